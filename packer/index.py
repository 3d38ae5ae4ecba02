"""The index: one fixed-size record a sample, and the names beside it.

Layout, version 1
=================
``index.npy`` is an ``.npy`` file that ``numpy.load(..., mmap_mode="r")`` opens. It begins with 512 bytes of header: ``93 4e 55
4d 50 59 01 00 f6 01``, then this as one line of ASCII with the number of samples in decimal digits for ``N``, then spaces, and
a line feed as byte 511::

    {'descr': [('name_end', '<u8'), ('label', '<i8'), ('data', [('shard', '<u4'), ('type', '|u1'), ('mode', '|u1'),
    ('orientation', '|u1'), ('reserved', '|u1'), ('width', '<u4'), ('height', '<u4'), ('frames', '<u4'), ('reserved2', '<u4'),
    ('offset', '<u8'), ('size', '<u8'), ('digest', '<u8')])], 'fortran_order': False, 'shape': (N,), }

Another header is refused, also one that means the same. Then one little-endian record a sample, 64 bytes, in the order of the
samples, and nothing behind them:

====  =====  =============  ==================================================================================
byte  type   field          meaning
====  =====  =============  ==================================================================================
0     <u8    name_end       where the sample's name ends in ``names.bin``; it begins where the one before ends
8     <i8    label          label of a class (see ``packer.manifest``), -1 where there are no labels
16           data           one block a field of the dataset; so far there is one field, named ``data``:
16    <u4    shard          place of the shard in the manifest's ``shards``, from 0; 0 for an empty payload
20    u1     type           number of the type of the file by content
21    u1     mode           number of the pixel layout; 0 for arrays and where unknown
22    u1     orientation    EXIF orientation 1 to 8, 0 where unknown and for arrays
23    u1     reserved       0
24    <u4    width          pixels a row as stored; 0 for arrays and where unknown
28    <u4    height         rows as stored; 0 for arrays and where unknown
32    <u4    frames         pictures in the file; 0 for arrays and where unknown
36    <u4    reserved2      0
40    <u8    offset         where the payload begins in the shard; 0 for an empty payload
48    <u8    size           its size in bytes
56    <u8    digest         xxh3-64 of the file's bytes (of the shared header too, where the manifest holds one)
====  =====  =============  ==================================================================================

The payload is what lies in the container: the file's bytes but for a shared header. Offsets need not ascend. A reader checks
that ``offset + size`` is inside the shard and that the label is that of a class, and ignores the reserved bytes.

Types: 0 unknown, 1 jpeg, 2 png, 3 webp, 4 gif, 5 bmp, 6 tiff, 7 avif, 8 npy. Modes, as Pillow calls them: 0 unknown, 1 ``1``,
2 ``L``, 3 ``LA``, 4 ``P``, 5 ``PA``, 6 ``RGB``, 7 ``RGBA``, 8 ``CMYK``, 9 ``YCbCr``, 10 ``LAB``, 11 ``HSV``, 12 ``I``,
13 ``F``, 14 ``I;16``, 15 ``I;16B``, 16 ``I;16L``, 17 ``I;16N``, 18 ``La``, 19 ``RGBa``, 20 ``RGBX``, 21 ``BGR;15``,
22 ``BGR;16``, 23 ``BGR;24``. Later ones go at the end, and no number is used again: a reader that meets one which it does not
know can still give out the file's bytes.

``names.bin``: the original relative paths, parts joined by ``/``, raw bytes end to end, so that the last ``name_end`` is the
size of the file. They need not be UTF-8, and are not to be trusted: a stranger may have written ``../x``.

Example
=======
The folder that the examples of this layout are about has two classes and three files. ``cat/a.npy`` has 136 bytes: the header
that ``numpy.save`` writes before two float32, then 1.0 and 2.0. ``dog/void.jpg`` is empty, so it is skipped.
``dog/\\xff.png``, whose name is no UTF-8, has 71 bytes, two grey pixels::

    89504e470d0a1a0a0000000d4948445200000002000000010800000000d14920560000000e494441547801010300fcff0080ff0202018056bc16e1
    0000000049454e44ae426082

``names.bin`` is ``cat/a.npydog/\\xff.png``. In the tar shard of ``packer.formats.webdataset`` the records are::

    09 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 08 00 00 00 00 00 00 00 00 00 00 00
    00 00 00 00 00 00 00 00 00 02 00 00 00 00 00 00 88 00 00 00 00 00 00 00 2d 87 e0 9c 7f ad 2b 5f
    12 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 02 02 01 00 02 00 00 00 01 00 00 00
    01 00 00 00 00 00 00 00 00 0e 00 00 00 00 00 00 47 00 00 00 00 00 00 00 17 56 56 db db 2a 68 42

A record is one cache line. There is no Python object a sample anywhere: a list of paths is what makes the memory of forked
workers grow (pytorch/pytorch#13246).
"""

from __future__ import annotations

import operator
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from packer.errors import CorruptDatasetError, DatasetChangedError, DatasetError, TruncatedFileError
from packer.files import OPEN_FLAGS, FileIdentity, OpenFile, discard
from packer.model import MODES, TYPES, Extent, Kept, display_name

__all__ = ["INDEX_FILE", "NAMES_FILE", "RECORD", "Index", "IndexWriter", "Names", "Record", "index_size"]

INDEX_FILE = "index.npy"
NAMES_FILE = "names.bin"

_FIELD = [
    ("shard", "<u4"), ("type", "u1"), ("mode", "u1"), ("orientation", "u1"), ("reserved", "u1"), ("width", "<u4"),
    ("height", "<u4"), ("frames", "<u4"), ("reserved2", "<u4"), ("offset", "<u8"), ("size", "<u8"), ("digest", "<u8"),
]  # fmt: skip
RECORD = np.dtype([("name_end", "<u8"), ("label", "<i8"), ("data", _FIELD)])
"""The record as a numpy dtype, 64 bytes."""
_RECORD_BYTES = RECORD.itemsize

_STRUCT = struct.Struct("<QqIBBBxIII4xQQQ")
_unpack_from = _STRUCT.unpack_from
_new_tuple = tuple.__new__
_HEADER_BYTES = 512
_MODE_CODES = {mode: code for code, mode in enumerate(MODES)}
_TYPE_CODES = {kind.name: kind.code for kind in TYPES}
_BLOCK = 65_536  # records a step where all are gone through
_NAME_BLOCK = 4 << 20
_TABLE_BYTES = 16 << 20  # 262,000 samples; a larger index is not held in memory, once in each worker


class Record(NamedTuple):
    """The fixed facts of one sample, as they stand in the index (see the module)."""

    name_end: int
    label: int
    shard: int
    type: int
    mode: int
    orientation: int
    width: int
    height: int
    frames: int
    offset: int
    size: int
    digest: int


def index_size(samples: int) -> int:
    """Exact size in bytes of the index of so many samples."""
    return _HEADER_BYTES + samples * RECORD.itemsize


def _header(samples: int) -> bytes:
    """The 512 bytes before the records. Written by hand, so that they depend on nothing but the number of samples."""
    text = f"{{'descr': {RECORD.descr!r}, 'fortran_order': False, 'shape': ({samples},), }}".encode()
    size = _HEADER_BYTES - 10
    return b"\x93NUMPY\x01\x00" + size.to_bytes(2, "little") + text.ljust(size - 1) + b"\n"


class IndexWriter:
    """Writes index and names while samples are packed; the places of the payloads come when their shard is complete.

    Attributes:
        samples: number of samples so far.
    """

    def __init__(self, folder: Path) -> None:
        self._path = Path(folder, INDEX_FILE)
        self._index = self._path.open("wb")
        self._names = Path(folder, NAMES_FILE).open("wb")
        self._index.write(bytes(_HEADER_BYTES))
        self._name_end = 0
        self._placed = 0
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
                verdict.width,
                verdict.height,
                verdict.frames,
                0,
                0,
                verdict.digest,
            )
        )
        self.samples += 1

    def place(self, extents: Iterable[Extent]) -> range:
        """Fill in where the payloads lie of the next samples that were added, in their order; returns which these are."""
        self._index.flush()
        first = done = self._placed
        with self._path.open("r+b", buffering=0) as file:
            for block in _blocks(extents):
                places = np.fromiter(block, [("shard", "u4"), ("offset", "u8"), ("size", "u8")], len(block))
                place = _HEADER_BYTES + done * RECORD.itemsize
                file.seek(place)
                records = np.fromfile(file, RECORD, len(block))
                for column in ("shard", "offset", "size"):
                    records["data"][column] = places[column]
                file.seek(place)
                file.write(records.tobytes())
                done += len(block)
        self._placed = done
        return range(first, done)

    def blocks(self, samples: range) -> Iterator[NDArray[Any]]:
        """Records of samples that have their places, up to 65,536 at a time: dtype ``RECORD``, shape (n,)."""
        for start in range(samples.start, samples.stop, _BLOCK):
            count = min(_BLOCK, samples.stop - start)
            yield np.fromfile(self._path, RECORD, count, offset=_HEADER_BYTES + start * _RECORD_BYTES)

    def name(self, index: int) -> bytes:
        """The name of a sample that was added."""
        self._names.flush()
        ends = [int(record["name_end"]) for block in self.blocks(range(max(0, index - 1), index + 1)) for record in block]
        with Path(self._path.parent, NAMES_FILE).open("rb") as names:
            names.seek(ends[0] if index else 0)
            return names.read(ends[-1] - names.tell())

    def finish(self) -> None:
        """Complete both files and close them."""
        if self._placed != self.samples:
            raise CorruptDatasetError.at(
                self._path, f"the container holds {self._placed:,} payloads, {self.samples:,} were packed"
            )
        self._names.close()
        self._index.seek(0)
        self._index.write(_header(self.samples))
        self._index.close()

    def close(self) -> None:
        """Close both files, finished or not."""
        discard(self._names)
        discard(self._index)


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
    """Index and names of a dataset: a small index is kept in memory, of a large one records are read when they are asked for.

    Never mapped: a copy over a mapped file (``cp`` truncates it first) ends every process that looks at it with a bus error.
    After each read it is asked whether somebody wrote to the file meanwhile: of an index that moved by one record, each sample
    is another one, with its own sound digest.

    Args:
        folder: the dataset.
        samples: number of samples, from the manifest.
        expected: identities of index and names where they were looked at before, by file name.

    Raises:
        DatasetChangedError: one of the files is another than the one that was looked at.
        TruncatedFileError: a file has not exactly the size that the number of samples, or the last record, asks for.
        CorruptDatasetError: the header is not the one of this layout.
    """

    def __init__(self, folder: Path, samples: int, expected: Mapping[str, FileIdentity] | None = None) -> None:
        expected = expected or {}
        self._samples = samples
        size = index_size(samples)
        self._records = _IndexFile(Path(folder, INDEX_FILE), size, expected.get(INDEX_FILE))
        self._table = self._records.read(0, size) if size <= _TABLE_BYTES else b""
        header = self._table[:_HEADER_BYTES] or self._records.read(0, _HEADER_BYTES)
        if header != _header(samples):
            raise CorruptDatasetError.at(self._records.path, f"its header is not that of an index of {samples:,} samples")
        names_size = self[samples - 1].name_end if samples else 0
        self._names = _IndexFile(Path(folder, NAMES_FILE), names_size, expected.get(NAMES_FILE))

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> Record:
        place = _HEADER_BYTES + index * _RECORD_BYTES
        table = self._table
        # tuple.__new__ takes half the time of Record._make
        return _new_tuple(
            Record, _unpack_from(table, place) if table else _unpack_from(self._records.read(place, _RECORD_BYTES))
        )

    def blocks(self) -> Iterator[NDArray[Any]]:
        """All records in order, up to 65,536 at a time: dtype ``RECORD``, shape (n,), read-only."""
        for start in range(0, self._samples, _BLOCK):
            count = min(_BLOCK, self._samples - start)
            data = self._records.read(_HEADER_BYTES + start * _RECORD_BYTES, count * _RECORD_BYTES)
            yield np.frombuffer(data, RECORD)

    def name(self, index: int) -> bytes:
        """The original relative path of a sample, raw bytes.

        Raises:
            CorruptDatasetError: the index places it outside the names.
        """
        start = self[index - 1].name_end if index else 0
        end = self[index].name_end
        if not start <= end <= self._names.size_bytes:
            raise CorruptDatasetError.at(self._records.path, f"the name of sample {index} lies outside {NAMES_FILE}")
        return self._names.read(start, end - start) if start < end else b""

    def name_blocks(self) -> Iterator[bytes]:
        """All names end to end, a few megabytes at a time."""
        for start in range(0, self._names.size_bytes, _NAME_BLOCK):
            yield self._names.read(start, min(_NAME_BLOCK, self._names.size_bytes - start))


class _IndexFile:
    """A file that must stay as it was when it was opened."""

    def __init__(self, path: Path, size_bytes: int, expected: FileIdentity | None) -> None:
        self.path = path
        self.size_bytes = size_bytes
        try:
            self._file = OpenFile(os.open(path, OPEN_FLAGS), path, size_bytes)
            self._identity = self._file.identity()
        except FileNotFoundError:
            if expected:
                raise DatasetChangedError.at(path, "removed since the dataset was opened") from None
            raise CorruptDatasetError.at(path, "missing") from None
        except OSError as error:  # no damage: too many open files, no permission, a server that went away
            raise DatasetError.at(path, f"cannot be read: {error.strerror or error}") from error
        if expected and self._identity != expected:
            raise DatasetChangedError.at(path, "replaced or changed since the dataset was opened")
        if self._identity.size_bytes != size_bytes:
            raise TruncatedFileError.sized(path, self._identity.size_bytes, size_bytes)

    def read(self, offset: int, size: int) -> bytes:
        """A range of bytes as it was when the file was opened.

        Raises:
            DatasetChangedError: somebody wrote to the file since.
            DatasetError: it cannot be read.
        """
        try:
            data = self._file.read(offset, size)
            same = self._file.identity() == self._identity
        except OSError as error:
            raise DatasetError.at(self.path, f"cannot be read: {error.strerror or error}") from error
        if not same:
            raise DatasetChangedError.at(self.path, "changed since the dataset was opened")
        return data


class Names(Sequence[str]):
    """The original relative paths as text, looked up when asked for; no list of strings is held.

    Bytes that are no UTF-8 appear as surrogates; ``os.fsencode`` gives the original bytes back.

    Args:
        index: holds the names.
        selection: numbers of the samples whose names these are, ``None`` for all.
    """

    def __init__(self, index: Index, selection: NDArray[np.unsignedinteger[Any]] | None = None) -> None:
        self._index = index
        self._selection = selection

    def __len__(self) -> int:
        return len(self._index) if self._selection is None else len(self._selection)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        number = operator.index(index)  # numpy's small integers overflow when the length is added
        position = number + len(self) if number < 0 else number
        if not 0 <= position < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        chosen = position if self._selection is None else int(self._selection[position])
        return display_name(self._index.name(chosen))
