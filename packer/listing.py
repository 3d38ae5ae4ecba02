"""What a scan found, in columns: a few dozen bytes a file and no Python object for each.

A list of a million paths takes 150 MB as Python strings, and the scan of ten million must fit a laptop.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.model import Note, Skipped, Source
from packer.permutation import permuted

__all__ = ["Columns", "Listing"]

_BLOCK = 65_536  # sources a step where all are gone through


class Columns(NamedTuple):
    """A listing as arrays, which are views: the listing takes no more while they are in use.

    Attributes:
        names: all names end to end, uint8.
        name_ends: where each ends there, int64 (n).
        sizes: in bytes, int64 (n).
        mtimes: in ns, int64 (n).
        labels: int64 (n).
    """

    names: NDArray[np.uint8]
    name_ends: NDArray[np.int64]
    sizes: NDArray[np.int64]
    mtimes: NDArray[np.int64]
    labels: NDArray[np.int64]


@dataclass(slots=True)
class Listing:
    """Candidate files in the order of their path components, and what was found beside them.

    Attributes:
        classes: class names in the order of their labels; empty when there are no labels.
        class_labels: the label of each class.
        labels_from: ``"folder"``, ``"number"`` or ``"none"``.
        refused: verdicts that the scan itself gave, by the index of the source.
        ignored: files that are no candidates, counted by extension, or by a word in brackets.
        notes: warnings about the input as a whole, each with the path it is about or ``None``.
        total_bytes: sizes of all candidates together.
    """

    classes: list[bytes] = field(default_factory=list)
    class_labels: list[int] = field(default_factory=list)
    labels_from: str = "none"
    refused: dict[int, Skipped] = field(default_factory=dict)
    ignored: Counter[str] = field(default_factory=Counter)
    notes: list[tuple[bytes | None, Note]] = field(default_factory=list)
    total_bytes: int = 0
    _names: bytearray = field(default_factory=bytearray)
    _ends: array[int] = field(default_factory=lambda: array("q"))
    _sizes: array[int] = field(default_factory=lambda: array("q"))
    _mtimes: array[int] = field(default_factory=lambda: array("q"))
    _labels: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> Source:
        if not 0 <= index < len(self._ends):
            raise IndexError(index)
        start = self._ends[index - 1] if index else 0
        name = bytes(self._names[start : self._ends[index]])
        return Source(index, name, self._sizes[index], self._mtimes[index], self._labels[index])

    def __iter__(self) -> Iterator[Source]:
        start = 0
        for index, end in enumerate(self._ends):
            name = bytes(self._names[start:end])
            yield Source(index, name, self._sizes[index], self._mtimes[index], self._labels[index])
            start = end

    def label(self, index: int) -> int:
        """The label of a source, without the rest of it."""
        return self._labels[index]

    def append(self, name: bytes, size_bytes: int, mtime_ns: int, label: int) -> None:
        """Add a candidate file."""
        self._names += name
        self._ends.append(len(self._names))
        self._sizes.append(size_bytes)
        self._mtimes.append(mtime_ns)
        self._labels.append(label)
        self.total_bytes += size_bytes

    def extend(self, prefix: bytes, names: list[bytes], sizes: array[int], mtimes: array[int], label: int) -> None:
        """Add candidate files of one folder.

        Args:
            prefix: the folder's name and a slash; empty for the input itself.
            names: of the files, without the folder's.
            sizes: in bytes, int64.
            mtimes: in ns, int64.
            label: of them all.
        """
        if not names:
            return
        lengths = map(len(prefix).__add__, map(len, names))
        self._ends.extend(islice(accumulate(lengths, initial=len(self._names)), 1, None))
        self._names += prefix
        self._names += prefix.join(names)
        self._sizes += sizes
        self._mtimes += mtimes
        self._labels += array("q", [label]) * len(names)
        self.total_bytes += sum(sizes)

    def refuse(self, name: bytes, label: int, code: str, detail: str) -> None:
        """Add a candidate file that cannot even be looked at."""
        self.refused[len(self)] = Skipped(code, detail)
        self.append(name, 0, 0, label)

    def sizes(self) -> array[int]:
        """Sizes of the candidates in bytes, in order."""
        return self._sizes

    def columns(self) -> Columns:
        """All candidates as arrays."""
        # an array and a bytearray show their memory without a copy
        names = np.asarray(memoryview(self._names), np.uint8)
        return Columns(names, *map(np.asarray, (self._ends, self._sizes, self._mtimes, self._labels)))

    def shuffled(self, seed: int) -> Listing:
        """The same candidates in a random order, which the seed and their number alone fix, on every machine.

        Args:
            seed: of which the lowest 64 bits count; not negative.
        """
        columns, count = self.columns(), len(self)
        order = np.empty(count, np.int64)
        for start in range(0, count, _BLOCK):
            stop = min(start + _BLOCK, count)
            order[start:stop] = permuted(np.arange(start, stop), count, seed)
        lengths = np.diff(columns.name_ends, prepend=0)
        place_of = np.empty(count if self.refused else 0, np.int64)
        if self.refused:
            place_of[order] = np.arange(count)
        result = Listing(
            classes=self.classes,
            class_labels=self.class_labels,
            labels_from=self.labels_from,
            refused=dict(sorted((int(place_of[index]), verdict) for index, verdict in self.refused.items())),
            ignored=self.ignored,
            notes=self.notes,
            total_bytes=self.total_bytes,
        )
        result._ends.frombytes(np.cumsum(lengths[order]).tobytes())
        for mine, column in (
            (result._sizes, columns.sizes),
            (result._mtimes, columns.mtimes),
            (result._labels, columns.labels),
        ):
            mine.frombytes(column[order].tobytes())
        for start in range(0, count, _BLOCK):
            some = order[start : start + _BLOCK]
            result._names += _gathered(columns.names, columns.name_ends[some] - lengths[some], lengths[some])
        return result


def _gathered(data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> bytes:
    """Ranges of bytes, put end to end."""
    ends = np.cumsum(lengths)
    places = np.repeat(starts - ends + lengths, lengths) + np.arange(ends[-1])
    return bytes(data[places].data)
