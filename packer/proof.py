"""Prove that a finished shard holds what was packed, by reading it back while it is still in the page cache.

What a memory or a disk altered on the way shows here, before anything has its final name, and while the input is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.files import OPEN_FLAGS, OpenFile

__all__ = ["find_wrong_payload"]

_SPAN_BYTES = 512 << 10  # payloads are read as many at a time: small files cost no system call each, and a core keeps it near
_GAP_BYTES = 64 << 10  # that nobody wants, between two of them


def find_wrong_payload(path: Path, blocks: Iterator[NDArray[Any]], header: bytes, keep_on: Callable[[int], bool]) -> int | None:
    """Compare every payload in a shard with its digest.

    Args:
        path: the shard.
        blocks: the records of its samples, dtype ``packer.index.RECORD``, some at a time.
        header: bytes that every payload begins with and that are not in the shard.
        keep_on: told the number of samples compared; the comparison ends where it says ``False``.

    Returns:
        The place among these samples of one that differs, ``None`` where there is none.

    Raises:
        TruncatedFileError: the shard ends before a payload does.
        OSError: it cannot be read.
    """
    file = OpenFile(os.open(path, OPEN_FLAGS), path, os.stat(path).st_size)
    begin = xxhash.xxh3_64(header)
    done = 0
    buffer = memoryview(bytearray(_SPAN_BYTES))  # one for all: a new one each time costs a page fault every 4 kB
    for records in blocks:
        data = records["data"]
        order = np.argsort(data["offset"], kind="stable")
        offsets, sizes, digests = (data[column][order].tolist() for column in ("offset", "size", "digest"))
        for first, last, start, end in _spans(offsets, sizes):
            if end - start > len(buffer):
                buffer = memoryview(bytearray(end - start))
            span = buffer[: end - start]
            file.read_into(start, end - start, (span,))
            for i in range(first, last):
                body = span[offsets[i] - start : offsets[i] - start + sizes[i]]
                if header:
                    whole = begin.copy()
                    whole.update(body)
                    digest = whole.intdigest()
                else:
                    digest = xxhash.xxh3_64_intdigest(body)
                if digest != digests[i]:
                    return done + int(order[i])
            if not keep_on(done + last):
                return None
        done += len(records)
    return None


def _spans(offsets: list[int], sizes: list[int]) -> Iterator[tuple[int, int, int, int]]:
    """Payloads that are read at once: the first, the one behind the last, and the range of bytes."""
    first, count = 0, len(offsets)
    while first < count:
        start, end = offsets[first], offsets[first] + sizes[first]
        last = first + 1
        while last < count and 0 <= offsets[last] - end <= _GAP_BYTES and offsets[last] + sizes[last] - start <= _SPAN_BYTES:
            end = offsets[last] + sizes[last]
            last += 1
        yield first, last, start, end
        first = last
