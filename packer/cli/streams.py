"""The standard streams of the command, made so that a job does not end because of them."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["stand_by_streams"]


def stand_by_streams() -> None:
    """Open the standard streams that the shell has closed, and have standard error take all that is written to it.

    A closed stream is ``None`` in Python, and its number is given to the next file that is opened: what a C library prints
    would be written into a container. And what is only there to be looked at ends no job: ``2>&-`` packed nothing, without a
    word, and a job in the background whose terminal is closed gets an input/output error for its next line of progress.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # by their numbers: the lowest free one is given
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8 must not end a job
    if isinstance(sys.stderr, io.TextIOWrapper):
        tireless = io.BufferedWriter(_Tireless(sys.stderr))
        sys.stderr = io.TextIOWrapper(tireless, sys.stderr.encoding, errors="backslashreplace", line_buffering=True)


class _Tireless(io.RawIOBase):
    """What is written to another stream; what that does not take is lost, as nobody can be told."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        self._owner = stream  # which closes the other when it goes
        self._stream: Any = getattr(stream.buffer, "raw", stream.buffer)  # itself where Python was told not to buffer

    def write(self, data: ReadableBuffer, /) -> int:
        with contextlib.suppress(OSError):
            return int(self._stream.write(data) or 0)
        return memoryview(data).nbytes

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return bool(self._stream.isatty())

    def fileno(self) -> int:
        return int(self._stream.fileno())
