"""What workers say, warnings and prints, told in the main process: once each, with worker and sample, and counted after that.

Eight workers otherwise print one warning eight times an epoch, between each other's lines, and none says which sample it is
about. In a worker, lines are kept while a batch is made, and travel with it; those of the batch at hand are gone with a worker
that is killed. What is written between batches, and what is left where a batch fails, goes to where it always went. So does
what is no text: bytes that are written to ``sys.stdout.buffer``, and what libraries in C write.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TextIO

from packer.words import printable

__all__ = ["Ear", "Said", "Teller"]

_MOST_TEXTS = 1000
_MOST_CHARACTERS = 2000
_MORE = f"lines of other texts than the first {_MOST_TEXTS:,} are left out"

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
        self._left_out = 0
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
        self._left_out = 0

    @property
    def hears(self) -> bool:
        """Whether a batch is being made."""
        return self._heard is not None

    def hear(self, text: str, length: int | None = None) -> bool:
        """Keep a line, of so many characters where not all are given; ``False`` where no batch is being made."""
        if self._heard is None:
            return False
        length = len(text) if length is None else length
        text = text[:_MOST_CHARACTERS].rstrip()
        if length > _MOST_CHARACTERS:
            text += f" ... (cut, {length:,} characters)"
        if text in self._heard:
            self._heard[text][1] += 1
        elif len(self._heard) < _MOST_TEXTS:
            self._heard[text] = ["" if self.number is None else self._name(self.number), 1]
        else:
            self._left_out += 1
        return True

    def end(self) -> tuple[Said, ...]:
        """The batch is made: what was written meanwhile."""
        for stream in self._streams:
            stream.end_line()
        heard, self._heard = self._heard or {}, None
        said = [Said(text, sample, count) for text, (sample, count) in heard.items()]
        return (*said, Said(_MORE, "", self._left_out)) if self._left_out else tuple(said)

    def give_up(self) -> None:
        """The batch has failed: what was written goes to standard error."""
        for text, sample, count in self.end():
            sys.stderr.write(_line("", text, sample, count) + "\n")


class _Lines:
    """A standard stream whose lines are heard while a batch is made; everything else of it is the stream's own."""

    def __init__(self, ear: Ear, stream: TextIO) -> None:
        self._ear = ear
        self._stream = stream
        self._begun, self._length = "", 0  # of the line that is not ended: what is kept of it, and its characters

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_stream":  # asked for by copy and pickle, before there is anything
            raise AttributeError(name)
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        if not self._ear.hears:
            return self._stream.write(text)
        start = 0
        while (end := text.find("\n", start)) >= 0:
            self._add(text, start, end)
            self.end_line()
            start = end + 1
        self._add(text, start, len(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def end_line(self) -> None:
        """Take what is written of a line for all of it."""
        if self._begun.strip() or self._length > _MOST_CHARACTERS:
            self._ear.hear(self._begun, self._length)
        self._begun, self._length = "", 0

    def _add(self, text: str, start: int, end: int) -> None:
        kept = min(end, start + _MOST_CHARACTERS - len(self._begun))
        self._begun += text[start:kept]
        self._length += end - start


class Teller:
    """Tells in the main process what workers said, by the logger ``packer.workers``: each text once, then its count. Of more
    than a thousand texts the others are counted only, and the next epoch begins anew.
    """

    def __init__(self) -> None:
        self._again: dict[str, int] = {}  # how often a text was said since it was told
        self._left_out = 0

    def tell(self, worker: int, said: Iterable[Said]) -> None:
        """Tell what is new."""
        for text, sample, count in said:
            if text == _MORE:
                self._left_out += count
            elif text in self._again:
                self._again[text] += count
            elif len(self._again) < _MOST_TEXTS:
                self._again[text] = 0
                _log.warning("%s", _line(f"worker {worker}", text, sample, count))
            else:
                self._left_out += count

    def sum_up(self) -> None:
        """Tell how often it was said again; at the end of an epoch."""
        for text, count in self._again.items():
            if count:
                _log.warning("%s", _line("workers", text, "", count))
                self._again[text] = 0
        if self._left_out:
            _log.warning("workers: %s (%d times)", _MORE, self._left_out)
            self._left_out = 0
        if len(self._again) >= _MOST_TEXTS:
            self._again.clear()  # or nothing new would be heard of for the rest of the run


def _line(who: str, text: str, sample: str, count: int) -> str:
    about = ", ".join(filter(None, [who, f"sample {sample!r}" if sample else ""]))
    times = f" ({count:,} times{' more' if who == 'workers' else ''})" if count > 1 or who == "workers" else ""
    return f"{about}: {printable(text)}{times}" if about else f"{printable(text)}{times}"
