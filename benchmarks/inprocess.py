"""Calls a function in a process of its own, which is ended where it takes too long."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

from proof import WrongDataError

Answer = TypeVar("Answer")


def in_process(method: str, function: Callable[..., Answer], *arguments: object, seconds: float) -> Answer:
    """What a function returns in another process.

    Args:
        method: ``fork`` or ``spawn``.
        function: of a module; its answer must be fit for a pickle.
        arguments: of the function.
        seconds: that it may take.

    Raises:
        WrongDataError: it raised something, died, or did not answer in time.
    """
    context = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, function, arguments))  # type: ignore[attr-defined]
    process.start()
    sender.close()
    try:
        if not receiver.poll(seconds):
            raise WrongDataError(f"{function.__name__}, started by {method}: no answer in {seconds:.0f} s")
        answer: Answer
        problem, answer = receiver.recv()
    except EOFError:
        raise WrongDataError(f"{function.__name__}, started by {method}: the process died") from None
    finally:
        process.kill()
        process.join()
    if problem:
        raise WrongDataError(f"{function.__name__}, started by {method}: {problem}")
    return answer


def _answer(sender: Connection, function: Callable[..., object], arguments: tuple[object, ...]) -> None:
    try:
        sender.send(("", function(*arguments)))
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent tells it
        sender.send((f"{type(error).__name__}: {error}", None))
