"""Signals that end a benchmark: none is lost, and none comes while a folder is made or removed."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

__all__ = ["remembered", "undisturbed"]

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Signals wait until the end of the block.

    Not by the mask of this thread, since one of torch's threads would take them.
    """
    arrived: list[int] = []
    with _handled_by(lambda number, _: arrived.append(number)):
        yield
    for number in arrived[:1]:
        signal.raise_signal(number)


@contextlib.contextmanager
def remembered() -> Iterator[Callable[[], None]]:
    """Gives a function to call now and then: it raises again what a signal's handler has raised before, and was lost.

    What is raised while a destructor or a callback of the garbage collector runs is printed by Python and forgotten; ending
    worker processes runs many of these.
    """
    arrived: list[int] = []
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    hook = sys.unraisablehook

    def remember(number: int, frame: FrameType | None) -> None:
        arrived.append(number)
        handle(number, frame)

    def handle(number: int, frame: FrameType | None) -> None:
        handler = handlers[number]
        if callable(handler):
            handler(number, frame)
        elif handler is signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def raise_again() -> None:
        if arrived:
            handle(arrived[0], None)

    def print_unless_ending(lost: Any) -> None:
        if not arrived:
            hook(lost)

    sys.unraisablehook = print_unless_ending
    try:
        with _handled_by(remember):
            yield raise_again
    finally:
        # After a signal it stays: what was half made when that came complains until the process ends.
        if not arrived:
            sys.unraisablehook = hook


@contextlib.contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Those that are not ignored, where this is the thread in which Python's handlers run."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    before = {number: one for number, one in before.items() if one is not None and one != signal.SIG_IGN}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, one in before.items():
            signal.signal(number, one)
