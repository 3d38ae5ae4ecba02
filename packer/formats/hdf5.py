"""HDF5: plain h5py reads it, ``h5py.File("images.hdf5/data.h5")``.

Layout, version 1
=================
The only shard is ``data.h5``, in the oldest file format that holds it, with these datasets in the root group:

===========  ===============================================================================================================
``data``     the payloads end to end, uint8, contiguous (neither chunked nor compressed: a sample is one range of bytes).
             Where every file is an ``.npy`` with the same header, of less than 32 axes, with a C-order body (or one axis) of
             no big-endian dtype, it is instead the array ``(samples, ...)`` of that dtype as h5py maps it (bool an enumeration
             of one byte, complex a compound of ``r`` and ``i``); the header is kept in the manifest, and the index has the
             places of the bodies.
``offset``   uint64 (samples + 1): payload ``i`` is ``data[offset[i]:offset[i + 1]]``. Absent where ``data`` is an array.
``label``    int64 (samples). Absent where there are no labels.
``classes``  class names by their place in the manifest's ``classes``, fixed-length strings (a dataset: attributes end at
             64 kB), whatever their labels. Absent where there are no labels.
``name``     original relative paths (samples), fixed-length strings.
===========  ===============================================================================================================

Numbers are little-endian. Strings are as long as the longest, padded with zeros, marked as UTF-8 though any bytes may be in
them, chunked by up to 1 MiB and deflated at level 1 (one path of 4,000 bytes must not cost as much for every sample).
Variable-length types are never used: they cut payloads at a zero byte or leak while reading (h5py/h5py#745, #1747). A reader
ignores other datasets.

How it is written: payloads go into the file by plain writes from 1 MiB on while h5py has it closed; in the end the dataset is
created over them, contiguous, allocated early and never filled, at its exact size, with an alignment of 1 MiB. h5py then
gives its offset, and it must be 1 MiB. That costs 37 µs a file against 104 through slices of a growing dataset. Less than
1 MiB in all lies where HDF5 has room for it.

Example: for ``packer.index``, ``data`` has 207 bytes, ``offset`` 0, 136, 207, ``label`` 0, 1, ``classes`` of 3 bytes ``cat``,
``dog``, and ``name`` of 9 bytes ``cat/a.npy``, ``dog/\\xff.png``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import zlib
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
from numpy.typing import NDArray

from packer.errors import OutputError
from packer.files import discard
from packer.formats._base import WRITE_BYTES, Candidates, Estimate, Format, NativeSample
from packer.model import Extent, Sample
from packer.npyheader import parse_header
from packer.plan import WritePlan

__all__ = ["FORMAT"]

_FILE = "data.h5"
_START = 1 << 20  # where payloads begin: behind all that HDF5 writes before the first dataset
_CHUNK_BYTES = 1 << 20
_MAX_RANK = 32  # axes that an HDF5 dataset can have
_HDF5_BYTES = 8_192  # about what its own structures take
_NPY_SUFFIX = np.frombuffer(b".npy", np.uint8)
_USUAL_NPY_HEADER = 128  # numpy pads to multiples of 64
_ESTIMATE_BLOCKS, _ESTIMATE_NAMES = 8, 1_000


class _Writer:
    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        self._path = Path(plan.folder, _FILE)
        with _errors_as_os_error(), h5py.File(self._path, "w", libver="earliest"):
            pass
        self._file: BinaryIO = self._path.open("r+b", buffering=WRITE_BYTES)
        self._file.seek(_START)
        self._sizes = array("Q")
        self._labels = array("q")
        self._names = bytearray()
        self._name_ends = array("Q")
        self._header: bytes | None = None  # the header that all payloads so far share; empty once two differed

    @property
    def path(self) -> Path:
        return self._path

    def append(self, sample: Sample, payload: bytes) -> None:
        if self._header is None:
            self._header = sample.header if _is_plain_array(sample.header) else b""
        if self._header and sample.header != self._header:
            self._put_headers_back()
        body = memoryview(payload)[len(self._header) :]
        self._file.write(body)
        self._sizes.append(len(body))
        self._labels.append(sample.label)
        self._names += sample.name
        self._name_ends.append(len(self._names))

    def finish(self) -> None:
        self._file.close()
        header = self._header or b""
        total = sum(self._sizes)
        shape: tuple[int, ...] = (total,)
        dtype: np.dtype[Any] = np.dtype(np.uint8)
        if header:
            parsed = parse_header(header)
            shape, dtype = (len(self._sizes), *parsed.shape), parsed.dtype
        with _errors_as_os_error():
            start = _create_data(self._path, shape, dtype, total)
            with h5py.File(self._path, "r+", libver="earliest") as file:
                self._add_columns(file, with_offsets=not header)
        self._plan.shard_done(self._path, self._extents(start), header)

    def close(self) -> None:
        discard(self._file)

    def _put_headers_back(self) -> None:
        """The first file with another header: from here on payloads are whole files, those written so far too."""
        header = self._header or b""
        spare = self._path.with_suffix(".tmp")
        self._file.flush()
        with self._path.open("rb") as old, spare.open("wb") as new:
            new.write(old.read(_START))
            old.seek(_START)  # which is beyond its end while all payloads so far are empty
            new.seek(_START)
            for i, size in enumerate(self._sizes):
                new.write(header)
                new.write(old.read(size))
                self._sizes[i] = len(header) + size
        self._file.close()
        spare.replace(self._path)
        self._file = self._path.open("r+b", buffering=WRITE_BYTES)
        self._file.seek(0, 2)
        self._header = b""

    def _add_columns(self, file: h5py.File, *, with_offsets: bool) -> None:
        if with_offsets:
            offsets = np.zeros(len(self._sizes) + 1, "<u8")
            np.cumsum(np.frombuffer(self._sizes, np.uint64), out=offsets[1:])
            file.create_dataset("offset", data=offsets, track_times=False)
        if self._plan.classes:
            file.create_dataset("label", data=np.frombuffer(self._labels, np.int64).astype("<i8"), track_times=False)
            classes = self._plan.classes
            _create_strings(file, "classes", len(classes), max(map(len, classes)), classes)
        ends = np.frombuffer(self._name_ends, np.uint64)
        longest = int(np.diff(ends, prepend=np.uint64(0)).max())
        _create_strings(file, "name", len(ends), longest, self._iterate_names())

    def _iterate_names(self) -> Iterator[bytes]:
        start = 0
        for end in self._name_ends:
            yield bytes(self._names[start:end])
            start = end

    def _extents(self, start: int) -> Iterator[Extent]:
        offset = start
        for size in self._sizes:
            yield Extent(0, offset if size else 0, size)
            offset += size


@contextlib.contextmanager
def _errors_as_os_error() -> Iterator[None]:
    """h5py raises RuntimeError where a full disk shows while a file is closed, and says the reason in its text only."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        number = re.search(r"errno = (\d+)", str(error))
        if isinstance(error, OSError) and (error.errno or not number):
            raise
        raise (OSError(int(number[1]), os.strerror(int(number[1]))) if number else OSError(str(error))) from error


def _is_plain_array(header: bytes) -> bool:
    """Whether arrays with this header can lie in an array dataset as they are: row-major, and in little-endian order."""
    if not header:
        return False
    parsed = parse_header(header)
    if len(parsed.shape) >= _MAX_RANK:  # the samples are one more axis
        return False
    return parsed.dtype.newbyteorder("<") == parsed.dtype and (not parsed.fortran_order or len(parsed.shape) < 2)


def _create_data(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], total: int) -> int:
    """Create the dataset over the payloads that stand in the file already, and return where it begins."""
    small = b""
    if total < _START:
        # HDF5 aligns only what is at least as large as the alignment: less is taken out, and put where HDF5 has room for it.
        with path.open("r+b") as file:
            file.seek(_START)
            small = file.read(total)
            file.truncate(_end_of_hdf5(path))
    with h5py.File(path, "r+", libver="earliest", alignment_threshold=_START, alignment_interval=_START) as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_layout(h5py.h5d.CONTIGUOUS)
        properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        properties.set_obj_track_times(False)
        space = h5py.h5s.create_simple(shape)
        data = h5py.h5d.create(file.id, b"data", h5py.h5t.py_create(dtype, logical=True), space, properties)
        start = int(data.get_offset()) if total else 0
    if total >= _START and start != _START:
        raise OutputError(f"{path}: HDF5 placed the data at byte {start:,}, {_START:,} is expected. Please report this.")
    if small:
        # Not through h5py, which makes 1 of every byte of a bool array that is not 0.
        with path.open("r+b") as file:
            file.seek(start)
            file.write(small)
    return start


def _end_of_hdf5(path: Path) -> int:
    with h5py.File(path, "r") as file:
        return int(file.id.get_filesize())


def _create_strings(file: h5py.File, name: str, count: int, width: int, values: Iterable[bytes]) -> None:
    chunk = max(1, min(count, _CHUNK_BYTES // width))
    dtype = h5py.string_dtype("utf-8", width)
    dataset = file.create_dataset(
        name, (count,), dtype, chunks=(chunk,), compression="gzip", compression_opts=1, track_times=False
    )
    remaining = iter(values)
    for start in range(0, count, chunk):
        block = list(itertools.islice(remaining, chunk))
        dataset[start : start + len(block)] = np.array(block, dtype)


def _read_native(folder: Path, files: list[str], header: bytes) -> Iterator[NativeSample]:
    with h5py.File(Path(folder, files[0]), "r", locking=False) as file:
        data, names = file["data"], file["name"]
        labels = file.get("label")
        offsets: NDArray[np.uint64] | None = file["offset"][...] if "offset" in file else None
        for i in range(len(names)):
            # A slice also where it is one element: as a scalar, h5py gives a bool and not its byte.
            body = data[i : i + 1] if offsets is None else data[int(offsets[i]) : int(offsets[i + 1])]
            label = int(labels[i]) if labels is not None else None
            yield NativeSample(header + np.asarray(body).tobytes(), label, bytes(names[i]))


def _estimate(candidates: Candidates) -> Estimate:
    """Deflated names are estimated from a few thousand; arrays of one size are taken for arrays of one dtype and shape."""
    sizes = candidates.sizes
    samples, total = len(sizes), int(sizes.sum())
    columns = 8 * samples if candidates.classes else 0
    lengths = candidates.name_ends - candidates.name_starts
    tails = candidates.names[candidates.name_ends[:, None] - np.arange(_NPY_SUFFIX.size, 0, -1)] if samples else _NPY_SUFFIX
    if samples and sizes.min() == sizes.max() >= _USUAL_NPY_HEADER and (lengths > 4).all() and (tails == _NPY_SUFFIX).all():
        total -= _USUAL_NPY_HEADER * samples
    else:
        columns += 8 * (samples + 1)
    longest = int(lengths.max(initial=0))
    some = [
        candidates.names[candidates.name_starts[i] : candidates.name_ends[i]].tobytes().ljust(longest, b"\0")
        for block in np.array_split(np.arange(samples), _ESTIMATE_BLOCKS)
        for i in block[: max(1, min(_ESTIMATE_NAMES, _CHUNK_BYTES // max(1, longest)))]
    ]
    columns += len(zlib.compress(b"".join(some), 1)) * samples // max(1, len(some))
    classes = b"".join(name.ljust(max(map(len, candidates.classes)), b"\0") for name in candidates.classes)
    columns += len(zlib.compress(classes, 1))
    return Estimate((_START if total >= _START else 0) + total + columns + _HDF5_BYTES, 1)


FORMAT = Format(
    name="hdf5",
    suffix=".hdf5",
    has_shards=False,
    max_payload_bytes=2**62,
    versions=lambda: {"hdf5": ".".join(h5py.version.hdf5_version.split(".")[:2])},
    open_writer=_Writer,
    read_native=_read_native,
    estimate=_estimate,
)
