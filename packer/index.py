"""The index: one fixed-size record a sample, and the names beside it.

Layout, version 1
=================
``index.npy`` is an ``.npy`` file that ``numpy.load(..., mmap_mode="r")`` opens: 512 bytes of header (version 1.0, padded
with spaces), then one little-endian record a sample, in the order of the samples:

====  =====  =============  ==================================================================================
byte  type   field          meaning
====  =====  =============  ==================================================================================
0     <u8    name_end       where the sample's name ends in ``names.bin``; it begins where the one before ends
8     <i8    label          class index, -1 where there are no labels
16           data           one block a field of the dataset; so far there is one field, named ``data``:
16    <u4    shard          number of the shard in the manifest
20    u1     type           number of the type of the file by content, ``packer.model.TYPES``
21    u1     mode           number of the pixel layout, ``packer.model.MODES``; 0 for arrays and where unknown
22    u1     orientation    EXIF orientation 1 to 8
23    u1     reserved       0
24    <u4    width          pixels a row as stored; 0 for arrays and where unknown
28    <u4    height         rows as stored; 0 for arrays and where unknown
32    <u4    frames         pictures in the file; 0 for arrays and where unknown
36    <u4    reserved2      0
40    <u8    offset         where the payload begins in the shard; 0 for an empty payload
48    <u8    size           its size in bytes
56    <u8    digest         xxh3-64 of the file's bytes (of the shared header too, where the manifest holds one)
====  =====  =============  ==================================================================================

``names.bin``: the original relative paths, parts joined by ``/``, raw bytes end to end.

A record is 64 bytes, one cache line. There is no Python object a sample anywhere: a list of paths is what makes the memory
of forked workers grow (pytorch/pytorch#13246).
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from packer.errors import CorruptDatasetError, TruncatedFileError
from packer.model import MODES, TYPES, Extent, Kept, display_name

__all__ = ["INDEX_FILE", "NAMES_FILE", "RECORD", "Index", "IndexWriter", "Names", "Record"]

INDEX_FILE = "index.npy"
NAMES_FILE = "names.bin"

_FIELD = [
    ("shard", "<u4"), ("type", "u1"), ("mode", "u1"), ("orientation", "u1"), ("reserved", "u1"), ("width", "<u4"),
    ("height", "<u4"), ("frames", "<u4"), ("reserved2", "<u4"), ("offset", "<u8"), ("size", "<u8"), ("digest", "<u8"),
]  # fmt: skip
RECORD = np.dtype([("name_end", "<u8"), ("label", "<i8"), ("data", _FIELD)])
"""The record as a numpy dtype, 64 bytes."""

_STRUCT = struct.Struct("<QqIBBBBIIIIQQQ")
_HEADER_BYTES = 512
_MODE_CODES = {mode: code for code, mode in enumerate(MODES)}
_TYPE_CODES = {kind.name: kind.code for kind in TYPES}
_BLOCK = 65_536  # records a step where all are gone through


class Record(NamedTuple):
    """The fixed facts of one sample, as they stand in the index (see the module)."""

    name_end: int
    label: int
    shard: int
    type: int
    mode: int
    orientation: int
    reserved: int
    width: int
    height: int
    frames: int
    reserved2: int
    offset: int
    size: int
    digest: int


def _header(samples: int) -> bytes:
    """The 512 bytes before the records. Written by hand, so that they depend on nothing but the number of samples."""
    text = f"{{'descr': {RECORD.descr!r}, 'fortran_order': False, 'shape': ({samples},), }}".encode()
    size = _HEADER_BYTES - 10
    return b"\x93NUMPY\x01\x00" + size.to_bytes(2, "little") + text.ljust(size - 1) + b"\n"


class IndexWriter:
    """Writes index and names while samples are packed; the places of the payloads come at the end."""

    def __init__(self, folder: Path) -> None:
        self._path = Path(folder, INDEX_FILE)
        self._index = self._path.open("wb")
        self._names = Path(folder, NAMES_FILE).open("wb")
        self._index.write(bytes(_HEADER_BYTES))
        self._name_end = 0
        self.samples = 0

    def append(self, name: bytes, label: int, verdict: Kept) -> None:
        """Add a sample; its place is not yet known."""
        self._names.write(name)
        self._name_end += len(name)
        self._index.write(
            _STRUCT.pack(
                self._name_end,
                label,
                0,
                _TYPE_CODES[verdict.type],
                _MODE_CODES.get(verdict.mode, 0),
                verdict.orientation,
                0,
                verdict.width,
                verdict.height,
                verdict.frames,
                0,
                0,
                0,
                verdict.digest,
            )
        )
        self.samples += 1

    def finish(self, extents: Iterable[Extent]) -> None:
        """Fill in where each payload lies, in the order of the samples, and close both files."""
        self._names.close()
        self._index.seek(0)
        self._index.write(_header(self.samples))
        self._index.close()
        records: NDArray[Any] = np.memmap(self._path, RECORD, "r+", _HEADER_BYTES, (self.samples,))
        start = 0
        for block in _blocks(extents):
            places = np.array([(e.shard, e.offset, e.size) for e in block], [("shard", "u4"), ("offset", "u8"), ("size", "u8")])
            target = records["data"][start : start + len(block)]
            for column in ("shard", "offset", "size"):
                target[column] = places[column]
            start += len(block)
        if start != self.samples:
            raise CorruptDatasetError(self._path, f"the container holds {start:,} payloads, {self.samples:,} were packed")
        records.flush()  # type: ignore[attr-defined]  # a memmap

    def close(self) -> None:
        """Close both files, finished or not."""
        self._names.close()
        self._index.close()


def _blocks(extents: Iterable[Extent]) -> Iterator[list[Extent]]:
    block: list[Extent] = []
    for extent in extents:
        block.append(extent)
        if len(block) == _BLOCK:
            yield block
            block = []
    if block:
        yield block


class Index:
    """Index and names of a dataset, mapped; nothing is read before it is asked for.

    The maps are of files that were just digested or whose identity was just compared. They hold no open position and
    survive a fork.

    Args:
        folder: the dataset.
        samples: number of samples, from the manifest.

    Raises:
        TruncatedFileError: the index has not exactly the size that the number of samples asks for.
        CorruptDatasetError: its header is not the one of this layout, or the names do not end where it says.
    """

    def __init__(self, folder: Path, samples: int) -> None:
        self.folder = folder
        self._samples = samples
        path = Path(folder, INDEX_FILE)
        expected = _HEADER_BYTES + samples * RECORD.itemsize
        self._map = _map(path, expected)
        if bytes(self._map[:_HEADER_BYTES]) != _header(samples):
            raise CorruptDatasetError(path, f"its header is not that of an index of {samples:,} samples")
        self._names_size = self[samples - 1].name_end if samples else 0
        self.name_bytes = _map(Path(folder, NAMES_FILE), self._names_size)

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> Record:
        return Record._make(_STRUCT.unpack_from(self._map, _HEADER_BYTES + index * RECORD.itemsize))

    @property
    def records(self) -> NDArray[Any]:
        """All records, dtype ``RECORD``, shape (samples,), read-only, no copy."""
        return np.frombuffer(self._map, RECORD, self._samples, _HEADER_BYTES)

    def name(self, index: int) -> bytes:
        """The original relative path of a sample, raw bytes.

        Raises:
            CorruptDatasetError: the index places it outside the names.
        """
        start = self[index - 1].name_end if index else 0
        end = self[index].name_end
        if not start <= end <= self._names_size:
            raise CorruptDatasetError(Path(self.folder, INDEX_FILE), f"the name of sample {index} lies outside {NAMES_FILE}")
        return bytes(self.name_bytes[start:end])


def _map(path: Path, expected: int) -> mmap.mmap | bytes:
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno()).st_size
            if found != expected:
                raise TruncatedFileError(path, found, expected)
            return mmap.mmap(file.fileno(), expected, access=mmap.ACCESS_READ) if expected else b""
    except OSError as error:
        raise CorruptDatasetError(path, error.strerror or type(error).__name__) from error


class Names(Sequence[str]):
    """The original relative paths as text, looked up when asked for; no list of strings is held.

    Bytes that are no UTF-8 appear as surrogates; ``os.fsencode`` gives the original bytes back.
    """

    def __init__(self, index: Index) -> None:
        self._index = index

    def __len__(self) -> int:
        return len(self._index)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        return display_name(self._index.name(position))
