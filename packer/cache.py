"""A cache for datasets on slow storage: what was read once is kept near by, one copy for all processes of a job.

It is a mirror of the shards, one behind the other in one sparse file (``packer.cachefile``), and before them one byte a sample
that says whether its payload is there::

    0       the job that was told of a full cache
    4096    one byte a sample, 1: kept
    ...     the shards, each from a multiple of 4096 on, with payloads at the places that they have in the shard

A payload is written first and marked then, so that a process which dies in between leaves nothing but an unmarked range; two
that write the same range write the same bytes. There is no lock. What is read from the cache is compared with its digest each
time, whatever ``verify`` says: the machine may have gone down in the middle of a write, and other jobs write to a cache on a
disk. What differs counts as not kept: it is read from the dataset, and written again.

Nothing is ever thrown out for something else. Where each epoch reads each sample once in random order, any part of the
dataset that is kept is as good as another, and each exchange would cost a write and win nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from packer.cachefile import CacheFile, CacheOptions, open_cache_file
from packer.errors import DatasetError
from packer.extents import joined
from packer.index import Record
from packer.manifest import Manifest

__all__ = ["Cache", "open_cache"]

_LAYOUT = 1
_PAGE = 4096
_KEPT = b"\1"
# What goes wrong with a cache is no reason to stop: the dataset has all that it lacks. OverflowError: a place that a stranger's
# manifest puts beyond the end of any file.
_NO_USE = (DatasetError, OSError, MemoryError, OverflowError)


class Cache:
    """Payloads of one dataset that were read before. It raises nothing: what cannot be read counts as not kept.

    Args:
        file: holds them.
        manifest: of the dataset.
    """

    def __init__(self, file: CacheFile, manifest: Manifest) -> None:
        self.file = file
        self._sizes = [shard.size_bytes for shard in manifest.shards]
        ends = itertools.accumulate(map(_whole_pages, self._sizes), initial=_PAGE + _whole_pages(manifest.samples))
        *self._bases, end = ends
        self._has_failed = False
        file.stretch(end)

    def read(self, index: int, record: Record) -> bytes | None:
        """The bytes of a sample in its container, not yet compared with its digest; ``None`` where they are not kept."""
        return self.head(index, record, record.size)

    def head(self, index: int, record: Record, size: int) -> bytes | None:
        """The first bytes of a sample in its container, at most ``size``; as ``read``."""
        try:
            place = self._place(index, record)
            return None if place is None else self.file.read(place, min(size, record.size))
        except _NO_USE:
            return None

    def read_into(self, index: int, record: Record, *buffers: memoryview) -> bool:
        """Fill buffers, together as long as the sample; ``False``, and nothing of value in them, where it is not kept."""
        try:
            place = self._place(index, record)
            if place is not None:
                self.file.read_into(place, record.size, buffers)
        except _NO_USE:
            return False
        return place is not None

    def add(self, index: int, record: Record, *parts: bytes | memoryview) -> None:
        """Keep the bytes of a sample in its container, which must have been compared with its digest, while there is room."""
        if self._has_failed or not record.size:
            return
        try:
            # The pages that it may begin to use, with that of its mark.
            if problem := self.file.refusal(_whole_pages(record.offset % _PAGE + record.size) + _PAGE):
                self.file.tell(problem)
                return
            self.file.write(self._bases[record.shard] + record.offset, *parts)
            self.file.write(_PAGE + index, _KEPT)
        except (OSError, OverflowError) as error:  # no space, the user's quota, a disk that fails
            self._has_failed = True
            self.file.tell(getattr(error, "strerror", None) or str(error))

    def ask_ahead(self, numbers: Sequence[int], records: Sequence[Record]) -> Iterable[Record]:
        """Have the system read what is kept of these samples into its memory; gives the records of those that are not."""
        ranges, others = [], []
        for number, record in zip(numbers, records, strict=True):
            try:
                place = self._place(number, record)
            except _NO_USE:
                place = None
            if place is None:
                others.append(record)
            else:
                ranges.append((0, place, record.size))
        for _, place, size in joined(ranges):
            try:
                self.file.ask_ahead(place, size)
            except _NO_USE:
                continue
        return others

    def _place(self, index: int, record: Record) -> int | None:
        """Where a payload is kept. A mark is not trusted: the record of a stranger's dataset may point anywhere."""
        if self.file.read(_PAGE + index, 1) != _KEPT or record.shard >= len(self._sizes):
            return None
        return self._bases[record.shard] + record.offset if record.offset + record.size <= self._sizes[record.shard] else None


def open_cache(options: CacheOptions, manifest: Manifest) -> Cache | None:
    """The cache of a dataset; ``None`` where none is asked for, or where it cannot be had, which is logged.

    It is named by the contents and not by the path: jobs that read the same share one on a disk, also from two mounts, and a
    dataset that took another's place gets none of its bytes.
    """
    if options.kind is None:
        return None
    file = open_cache_file(options, f"{manifest.digest}-{_LAYOUT}")  # that digest is over those of the shards and the index
    return None if file is None else Cache(file, manifest)


def _whole_pages(size: int) -> int:
    return -(-size // _PAGE) * _PAGE
