"""What workers say, warnings and prints, told in the main process: once each, with worker and sample, and counted after that.

Eight workers otherwise print one warning eight times an epoch, between each other's lines, and none says which sample it is
about. In a worker, lines are kept while a batch is made, and travel with it. What is written between batches, and what is left
where a batch fails, goes to where it always went.
"""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TextIO

__all__ = ["Ear", "Said", "Teller"]

_MOST_TEXTS = 1000
_MOST_CHARACTERS = 2000

_log = logging.getLogger("packer.workers")


class Said(NamedTuple):
    """A line that a worker wrote while it made a batch.

    Attributes:
        text: of the line, or of the warning with its class and place.
        sample: during which it was written first; empty where that is not known.
        times: how often it was written.
    """

    text: str
    sample: str
    times: int


class Ear:
    """Hears what is written in this process, from ``install`` on.

    Args:
        name: gives the name of a sample by its number.
    """

    def __init__(self, name: Callable[[int], str]) -> None:
        self.number: int | None = None  # of the sample that is being made
        self._name = name
        self._heard: dict[str, list[Any]] | None = None  # sample and count by text; None between batches
        self._streams: list[_Lines] = []

    def install(self) -> None:
        """Stand in for the standard streams, and for what shows warnings."""
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is not None:
                self._streams.append(_Lines(self, stream))
                setattr(sys, name, self._streams[-1])
        show = warnings.showwarning

        def heard(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if file is not None or not self.hear(f"{filename}:{lineno}: {category.__name__}: {message}"):
                show(message, category, filename, lineno, file, line)

        warnings.showwarning = heard

    def begin(self) -> None:
        """A batch is begun: what is written from now on belongs to it."""
        self.number = None
        self._heard = {}

    def hear(self, text: str) -> bool:
        """Keep a line; ``False`` where no batch is being made, or too much was said already."""
        if self._heard is None:
            return False
        text = text.rstrip()[:_MOST_CHARACTERS]
        if text in self._heard:
            self._heard[text][1] += 1
        elif len(self._heard) < _MOST_TEXTS:
            self._heard[text] = ["" if self.number is None else self._name(self.number), 1]
        else:
            return False
        return True

    def end(self) -> tuple[Said, ...]:
        """The batch is made: what was written meanwhile."""
        for stream in self._streams:
            stream.end_line()
        heard, self._heard = self._heard or {}, None
        return tuple(Said(text, sample, count) for text, (sample, count) in heard.items())

    def give_up(self) -> None:
        """The batch has failed: what was written goes to standard error."""
        for text, sample, count in self.end():
            sys.stderr.write(_line("", text, sample, count) + "\n")


class _Lines(io.TextIOBase):
    """A standard stream whose lines are heard."""

    def __init__(self, ear: Ear, stream: TextIO) -> None:
        self._ear = ear
        self._stream = stream
        self._begun = ""

    def write(self, text: str) -> int:
        lines = (self._begun + text).split("\n")
        self._begun = lines.pop()
        for line in lines:
            if line.strip() and self._ear.hear(line):
                continue
            self._stream.write(line + "\n")
        return len(text)

    def end_line(self) -> None:
        """Take what is written of a line for all of it."""
        if self._begun:
            self.write("\n")

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # io's own is a plain attribute
        return self._stream.encoding


class Teller:
    """Tells in the main process what workers said, by the logger ``packer.workers``: each text once, then its count."""

    def __init__(self) -> None:
        self._again: dict[str, int] = {}  # how often a text was said since it was told

    def tell(self, worker: int, said: Iterable[Said]) -> None:
        """Tell what is new."""
        for text, sample, count in said:
            if text in self._again:
                self._again[text] += count
            elif len(self._again) < _MOST_TEXTS:
                self._again[text] = 0
                _log.warning("%s", _line(f"worker {worker}", text, sample, count))

    def sum_up(self) -> None:
        """Tell how often it was said again; at the end of an epoch."""
        for text, count in self._again.items():
            if count:
                _log.warning("%s", _line("workers", text, "", count))
                self._again[text] = 0


def _line(who: str, text: str, sample: str, count: int) -> str:
    about = ", ".join(filter(None, [who, f"sample {sample!r}" if sample else ""]))
    times = f" ({count:,} times{' more' if who == 'workers' else ''})" if count > 1 or who == "workers" else ""
    shown = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
    return f"{about}: {shown}{times}" if about else f"{shown}{times}"
