"""Prove that a finished shard holds what was packed, by reading it back while it is still in the page cache.

What a memory or a disk altered on the way shows here, before anything has its final name, and while the input is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.files import OPEN_FLAGS, OpenFile

__all__ = ["Proof", "read_back"]

_SPAN_BYTES = 512 << 10  # payloads are read as many at a time: small files cost no system call each, and a core keeps it near


class Proof(NamedTuple):
    """What was found when a shard was read back.

    Attributes:
        wrong: the place among its samples of one that differs, ``None`` where there is none.
        digest: xxh3-128 of the whole shard, 32 hexadecimal digits; of no use where one differs or the reading ended early.
        size_bytes: of the shard.
    """

    wrong: int | None
    digest: str
    size_bytes: int


def read_back(path: Path, blocks: Iterator[NDArray[Any]], header: bytes, keep_on: Callable[[int], bool]) -> Proof:
    """Compare every payload in a shard with its digest, and digest the whole shard; it is read once.

    Args:
        path: the shard.
        blocks: the records of its samples, dtype ``packer.index.RECORD``, some at a time.
        header: bytes that every payload begins with and that are not in the shard.
        keep_on: told the number of samples compared; the reading ends where it says ``False``.

    Raises:
        TruncatedFileError: the shard ends before a payload does.
        OSError: it cannot be read.
    """
    shard = _Shard(path)
    begin = xxhash.xxh3_64(header)
    done = 0
    for records in blocks:
        data = records["data"]
        order = np.argsort(data["offset"], kind="stable")
        offsets, sizes, digests = (data[column][order].tolist() for column in ("offset", "size", "digest"))
        for first, last, start, end in _spans(offsets, sizes):
            span = shard.read(start, end)
            for i in range(first, last):
                body = span[offsets[i] - start : offsets[i] - start + sizes[i]]
                if header:
                    whole = begin.copy()
                    whole.update(body)
                    digest = whole.intdigest()
                else:
                    digest = xxhash.xxh3_64_intdigest(body)
                if digest != digests[i]:
                    return shard.proof(done + int(order[i]))
            if not keep_on(done + last):
                return shard.proof()
        done += len(records)
    while shard.position < shard.size_bytes and keep_on(done):
        shard.digest_some(shard.size_bytes)
    return shard.proof()


class _Shard:
    """A shard that is read from its begin to its end, what lies between two payloads too, and digested on the way."""

    def __init__(self, path: Path) -> None:
        self.size_bytes = os.stat(path).st_size
        self._digest = xxhash.xxh3_128()
        self.position = 0  # up to which it is digested
        self._file = OpenFile(os.open(path, OPEN_FLAGS), path, self.size_bytes)
        self._buffer = memoryview(bytearray(_SPAN_BYTES))  # one for all: a new one each time costs a page fault every 4 kB

    def read(self, start: int, end: int) -> memoryview:
        """A range of bytes, until the next call. In a tree some lie before others that were read already."""
        while self.position < start:
            self.digest_some(start)
        if end - start > len(self._buffer):
            self._buffer = memoryview(bytearray(end - start))
        span = self._buffer[: end - start]
        self._file.read_into(start, end - start, (span,))
        if end > self.position:
            self._digest.update(span[self.position - start :])
            self.position = end
        return span

    def digest_some(self, end: int) -> None:
        """Go on towards a place."""
        some = self._buffer[: end - self.position]
        self._file.read_into(self.position, len(some), (some,))
        self._digest.update(some)
        self.position += len(some)

    def proof(self, wrong: int | None = None) -> Proof:
        """What was found so far."""
        return Proof(wrong, self._digest.hexdigest(), self.size_bytes)


def _spans(offsets: list[int], sizes: list[int]) -> Iterator[tuple[int, int, int, int]]:
    """Payloads that are read at once: the first, the one behind the last, and the range of bytes."""
    first, count = 0, len(offsets)
    while first < count:
        start, end = offsets[first], offsets[first] + sizes[first]
        last = first + 1
        while last < count and offsets[last] >= end and offsets[last] + sizes[last] - start <= _SPAN_BYTES:
            end = offsets[last] + sizes[last]
            last += 1
        yield first, last, start, end
        first = last
