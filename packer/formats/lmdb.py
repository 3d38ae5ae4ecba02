"""LMDB: ``lmdb.open("images.lmdb", readonly=True, lock=False)`` reads it.

Layout, version 1
=================
The only shard is ``data.mdb``, in the file format of LMDB 0.9 (which 1.0 does not read), with the page size and byte order of
the machine that wrote it. One entry a sample in the main database, and nothing else, so the number of entries is the number of
samples. The key is ASCII: the sample's number with zeros in front up to nine digits, a dot, and the extension of its type by
content (jpg png webp gif bmp tif avif npy), as in ``000000012.jpg``. So keys sort in the order of the samples, up to 10**9 of
them. The value is the file's bytes, less than 4 GiB. Label and name are in the index.

Where a value lies: it is one range of bytes, in a leaf page or in overflow pages, and the index has its place in the file. The
writer finds it so: a page begins with its own number, eight bytes, in the file's byte order. A value's address in the map,
rounded down to the page size, is the page it begins in, and page number times page size plus the rest is its offset in the
file. (5,000 values of 0 to 700,000 bytes, inside leaf pages and in overflow pages: all right.)

The map size is the sum of page-rounded sizes from the plan plus what the tree can need, so it never fills and never grows, and
it is a function of the input: another map size, or another history of commits, would give other bytes. A commit stands behind
each sample with which 1 MiB of payload has come together since the last.

Example: samples of ``packer.index`` are the entries ``000000000.npy`` (136 bytes) and ``000000001.png`` (71 bytes).
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterator
from pathlib import Path

import lmdb
import numpy as np

from packer.errors import OutputError
from packer.formats._base import Candidates, Estimate, Format, NativeSample, fill
from packer.model import Extent, Sample, sample_key
from packer.plan import WritePlan

__all__ = ["FORMAT"]

_FILE = "data.mdb"
_COMMIT_BYTES = 1 << 20  # a commit stands at fixed counts of payload bytes; at 32 MiB its pages fall out of the cache first
_SPARE = 16 << 20


class _Writer:
    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        self._path = Path(plan.folder, _FILE)
        # writemap is never used: the file would get the size of the map. No lock: there is one writer, and lock.mdb would
        # stay behind. No sync: packer.commit does it once.
        self._space = sum(map(_space, plan.sizes)) + _SPARE
        with _errors_as_os_error:
            self._environment = lmdb.open(
                str(plan.folder), map_size=self._space, mode=0o666, lock=False, sync=False, writemap=False, max_dbs=0
            )
            self._transaction = self._environment.begin(write=True)
        self._used = _SPARE
        self._uncommitted = 0

    @property
    def path(self) -> Path:
        return self._path

    def append(self, sample: Sample, payload: bytes) -> None:
        self._used += _space(len(payload))
        with _errors_as_os_error:
            if self._used > self._space:
                # A file grew after the scan had seen it.
                self._commit(2 * self._used)
            if not self._transaction.put(f"{sample.key}.{sample.type.extension}".encode(), payload, append=True):
                raise OutputError(f"{self._path}: no more than {10**9:,} samples are in order there. Use webdataset.")
            self._uncommitted += len(payload)
            if self._uncommitted >= _COMMIT_BYTES:
                self._commit()

    def finish(self) -> None:
        with _errors_as_os_error:
            self._transaction.commit()
        self._plan.shard_done(self._path, _extents(self._environment))

    def close(self) -> None:
        self._environment.close()

    def _commit(self, new_space: int = 0) -> None:
        self._transaction.commit()
        if new_space:
            self._space = new_space
            self._environment.set_mapsize(new_space)
        self._transaction = self._environment.begin(write=True)
        self._uncommitted = 0


class _ErrorsAsOSError:
    """What liblmdb says of a full disk, as every other writer says it. One object, since each sample enters it."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, lmdb.Error):
            raise OSError(str(error)) from error


_errors_as_os_error = _ErrorsAsOSError()


def _space(size: int) -> int:
    """Bytes that a value can take: its pages with their header, its entry in a leaf, and its share of the tree."""
    pages = (size + 16 + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE
    return pages + pages // 64 + 256


def _extents(environment: lmdb.Environment) -> Iterator[Extent]:
    page_size = environment.stat()["psize"]
    with environment.begin(buffers=True) as transaction, transaction.cursor() as cursor:
        for value in cursor.iternext(keys=False, values=True):
            size = len(value)
            if not size:
                yield Extent(0, 0, 0)
                continue
            address = np.frombuffer(value, np.uint8).__array_interface__["data"][0]
            within = address % page_size
            number = int.from_bytes(ctypes.string_at(address - within, 8), sys.byteorder)
            yield Extent(0, number * page_size + within, size)


def _read_native(folder: Path, files: list[str], header: bytes) -> Iterator[NativeSample]:
    environment = lmdb.open(str(folder), readonly=True, lock=False, readahead=True, max_dbs=0)
    try:
        with environment.begin() as transaction, transaction.cursor() as cursor:
            for value in cursor.iternext(keys=False, values=True):
                yield NativeSample(header + value)
    finally:
        environment.close()


def _estimate(candidates: Candidates) -> Estimate:
    """From the sizes of LMDB's structures (``mdb.c``): pages have a header of 16 bytes, nodes one of 8 and a number of 2."""
    page = min(mmap.PAGESIZE, 32_768)
    room, key = page - 16, len(sample_key(0)) + len(".jpg")
    inline = 8 + key + candidates.sizes
    is_large = inline > (room // 2 & -2) - 2  # then the node holds a page number instead
    overflow = int(((15 + candidates.sizes[is_large]) // page + 1).sum())
    nodes = np.where(is_large, 8 + key + 8, inline)
    level = len(fill(nodes + (nodes & 1) + 2, room))
    pages = 2 + overflow + level + min(7, int(candidates.sizes.sum()) // _COMMIT_BYTES)  # the roots; what commits leave unused
    while level > 1:
        level = -(-level // (room // (8 + key + 3) // 2))  # a page of branches is split in the middle
        pages += level
    return Estimate(pages * page, 1)


FORMAT = Format(
    name="lmdb",
    suffix=".lmdb",
    has_shards=False,
    max_payload_bytes=2**32 - 1,
    versions=lambda: {"lmdb": ".".join(map(str, lmdb.version()[:2]))},
    open_writer=_Writer,
    read_native=_read_native,
    estimate=_estimate,
)
