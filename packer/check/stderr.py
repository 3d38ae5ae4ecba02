"""Read what C libraries print to standard error while they work: to some it is the only place where they tell of damage."""

from __future__ import annotations

import contextlib
import os
from types import TracebackType

__all__ = ["Stderr"]

_LIMIT = 1 << 16  # bytes looked at: the least that a pipe holds where it is not made smaller


class Stderr:
    """Descriptor 2 leads into a pipe inside the ``with`` block, and back afterwards.

    The pipe does not block: what does not fit into it is lost, so that a decoder which prints a line for every row can
    neither hang nor fill anything. No other thread may print meanwhile.

    Attributes:
        lines: what was printed, complete after the block.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._saved: int | None = None
        self._reader = -1

    def __enter__(self) -> Stderr:
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(writer, False)
        with contextlib.suppress(OSError):  # nothing is open there
            self._saved = os.dup(2)
        os.dup2(writer, 2)
        os.close(writer)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._saved is None:
            os.close(2)
        else:
            os.dup2(self._saved, 2)
            os.close(self._saved)
        with contextlib.suppress(BlockingIOError):
            text = os.read(self._reader, _LIMIT).decode("utf-8", "replace")
            self.lines = [line.strip() for line in text.splitlines() if line.strip()]
        os.close(self._reader)
