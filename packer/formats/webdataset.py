"""WebDataset: tar shards that ``webdataset``, ``datasets.load_dataset("webdataset", ...)`` and ``tar`` read.

Layout, version 1
=================
``shard-000000.tar``, ``shard-000001.tar``, ... (at least six digits), in this order in the manifest. A sample is two or three
members in a row, whose common key is the sample's number over all shards, with zeros in front up to nine digits:

==================  ========================================================================================================
member              content
==================  ========================================================================================================
``000000012.jpg``   the file's bytes; the extension is that of its type by content: jpg png webp gif bmp tif avif npy
``000000012.cls``   its label in decimal digits; absent where there are no labels
``000000012.json``  ``{"class":"cat","path":"cat/1.2.jpg"}``: class and original path as compact JSON in ASCII, no ``class``
                    where there are no labels. Where one of the two is no UTF-8, both are percent-encoded: all bytes but
                    ASCII letters, digits, ``_.-~/`` and space, with upper-case digits; ``"encoding":"percent"`` follows
==================  ========================================================================================================

Each member is a header of 512 bytes, the content, and zeros up to a multiple of 512. The header is that of POSIX.1-1988
(ustar) for a regular file, the same bytes for the same name and size:

====  =====  ===============================================================================================================
byte  bytes  content
====  =====  ===============================================================================================================
0     100    name
100   24     ``0000644\\0``, ``0000000\\0``, ``0000000\\0``: mode, owner, group
124   12     size in bytes, eleven octal digits and ``\\0``: a file has at most 8 GiB less a byte
136   12     ``00000000000\\0``: time
148   8      sum of the header's bytes, with eight spaces here: six octal digits, ``\\0``, space
156   1      ``0``
257   8      ``ustar\\0``, ``00``
====  =====  ===============================================================================================================

All else in it is zero. Behind the last member come at least 1,024 zeros, up to a multiple of 10,240 bytes.

A shard is full, and the next sample begins another, where with that sample the whole file would be larger than ``shard_bytes``
(the zeros at the end counted), or where it has ``shard_samples`` samples already, if that is not 0. A shard has at least one
sample, so that only one of a single sample can be larger.

The key is a number, so dots (where webdataset cuts a name), case, length and clashes of names cannot matter.

Example
=======
Samples of ``packer.index``: where members begin, where their content does, and what it is::

    0     512   000000000.npy   (136 bytes)
    1024  1536  000000000.cls   0
    2048  2560  000000000.json  {"class":"cat","path":"cat/a.npy"}
    3072  3584  000000001.png   (71 bytes)
    4096  4608  000000001.cls   1
    5120  5632  000000001.json  {"class":"dog","path":"dog/%FF.png","encoding":"percent"}
    6144                        zeros up to 10,240 bytes

The header of the first member has the sum ``007425``.
"""

from __future__ import annotations

import json
import tarfile
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote_from_bytes, unquote_to_bytes

import numpy as np
from numpy.typing import NDArray

from packer.files import discard
from packer.formats._base import WRITE_BYTES, Candidates, Estimate, Format, NativeSample, fill
from packer.model import NO_LABEL, Extent, Sample
from packer.plan import WritePlan

__all__ = ["FORMAT"]

_BLOCK = 512
_RECORD = 10_240
_ZEROS = bytes(_BLOCK)
_ESTIMATE_BLOCK = 65_536  # names


class _Writer:
    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        self._class_of = dict(zip(plan.class_labels, plan.classes, strict=True))
        self._file: BinaryIO | None = None
        self._position = 0
        self._shards = 0  # that are complete
        self._offsets = array("Q")  # of the samples in this shard
        self._sizes = array("Q")

    @property
    def path(self) -> Path:
        return Path(self._plan.folder, _shard_name(self._shards))

    def append(self, sample: Sample, payload: bytes) -> None:
        key = sample.key.encode()
        others = _member(key + b".json", self._metadata(sample))
        if sample.label != NO_LABEL:
            others = _member(key + b".cls", b"%d" % sample.label) + others
        needed = _BLOCK + _padded(sample.size_bytes) + len(others)
        if self._plan.limits.is_full(_file_size(self._position + needed), len(self._sizes)):
            self._close_shard()
        self._offsets.append(self._position + _BLOCK if sample.size_bytes else 0)
        self._sizes.append(sample.size_bytes)
        if self._shards >= self._plan.finished_shards:
            self._write(_member_header(b"%b.%b" % (key, sample.type.extension.encode()), len(payload)), payload, others)
        self._position += needed

    def finish(self) -> None:
        self._close_shard()

    def close(self) -> None:
        if self._file is not None:
            discard(self._file)
            self._file = None

    def _write(self, header: bytes, payload: bytes, others: bytes) -> None:
        if self._file is None:
            self._file = self.path.open("wb", buffering=WRITE_BYTES)
        self._file.write(header)
        self._file.write(payload)
        self._file.write(_ZEROS[: -len(payload) % _BLOCK] + others)

    def _close_shard(self) -> None:
        if not self._sizes:
            return
        if self._file is not None:
            self._file.write(bytes(_file_size(self._position) - self._position))
            self._file.close()
            self._file = None
        self._plan.shard_done(self.path, self._extents())
        self._shards += 1
        self._position = 0
        del self._offsets[:], self._sizes[:]

    def _extents(self) -> Iterator[Extent]:
        for offset, size in zip(self._offsets, self._sizes, strict=True):
            yield Extent(self._shards if size else 0, offset, size)

    def _metadata(self, sample: Sample) -> bytes:
        values = [("path", sample.name)]
        if sample.label != NO_LABEL:
            values.insert(0, ("class", self._class_of[sample.label]))
        try:
            shown, encoding = [(key, value.decode()) for key, value in values], ""
        except UnicodeDecodeError:
            shown, encoding = [(key, quote_from_bytes(value, safe="/ ")) for key, value in values], ',"encoding":"percent"'
        members = ",".join([f'"{key}":{_quote(text)}' for key, text in shown])
        return f"{{{members}{encoding}}}".encode()


def _shard_name(number: int) -> str:
    return f"shard-{number:06d}.tar"


def _file_size(end: int) -> int:
    """Size of a shard whose last member ends at a position."""
    closed = end + 2 * _BLOCK
    return closed + -closed % _RECORD


def _padded(size: int) -> int:
    return size + -size % _BLOCK


# A ustar header (POSIX.1-1988): name 100 bytes, mode, owner and group 24, size 12, time 12, checksum 8, the rest. Only name,
# size and checksum differ between members, and tarfile takes 27 µs for each header, which was half of the packing time of
# small files; so the rest is taken from one header that tarfile made.
_TEMPLATE = tarfile.TarInfo().tobuf(tarfile.USTAR_FORMAT)
_BEFORE_SIZE, _TIME, _AFTER_CHECKSUM = _TEMPLATE[100:124], _TEMPLATE[136:148], _TEMPLATE[156:]
_FIXED_SUM = sum(_BEFORE_SIZE) + sum(_TIME) + sum(_AFTER_CHECKSUM) + 8 * ord(" ")


_quote = json.JSONEncoder().encode  # of a text: 0.1 µs; json.dumps takes 4 for a small object


def _member(name: bytes, data: bytes) -> bytes:
    """A small member, whole."""
    return b"%b%b%b" % (_member_header(name, len(data)), data, _ZEROS[: -len(data) % _BLOCK])


def _member_header(name: bytes, size: int) -> bytes:
    digits = b"%011o\0" % size
    checksum = _FIXED_SUM + sum(name) + sum(digits)
    return b"%b%b%b%b%06o\0 %b" % (name.ljust(100, b"\0"), _BEFORE_SIZE, digits, _TIME, checksum, _AFTER_CHECKSUM)


def _read_native(folder: Path, files: list[str], header: bytes) -> Iterator[NativeSample]:
    # webdataset loads torch where it is installed, which nothing else here does.
    from webdataset.tariterators import group_by_keys, tar_file_iterator

    for file in files:
        with Path(folder, file).open("rb") as stream:
            members = ({**member, "__url__": file} for member in tar_file_iterator(stream))
            for sample in group_by_keys(members):
                metadata = json.loads(sample["json"])
                path = metadata["path"]
                name = unquote_to_bytes(path) if metadata.get("encoding") == "percent" else path.encode()
                (payload,) = [value for key, value in sample.items() if not key.startswith("_") and key not in ("cls", "json")]
                yield NativeSample(header + payload, int(sample["cls"]) if "cls" in sample else None, name)


def _json_widths() -> NDArray[np.uint8]:
    """Characters that each byte of UTF-8 takes in ASCII JSON: all of an escape at the first byte of its character."""
    widths = np.ones(256, np.uint8)
    widths[:0x20] = widths[0x7F] = 6
    widths[list(b'"\\\b\f\n\r\t')] = 2
    widths[0x80:0xC0] = 0
    widths[0xC0:0xF0] = 6
    widths[0xF0:] = 12  # two surrogates
    return widths


_JSON_WIDTHS = _json_widths()


def _estimate(candidates: Candidates) -> Estimate:
    """Exact where all names are UTF-8."""
    samples = len(candidates.sizes)
    metadata = np.full(samples, len('{"path":""}'))
    for start in range(0, samples, _ESTIMATE_BLOCK):
        block = slice(start, start + _ESTIMATE_BLOCK)
        starts, ends = candidates.name_starts[block], candidates.name_ends[block]
        widths = np.cumsum(_JSON_WIDTHS[candidates.names[starts[0] : ends[-1]]], dtype=np.int64)
        metadata[block] += np.diff(np.append(0, widths)[np.stack([starts, ends]) - starts[0]], axis=0)[0]
    members = _padded_all(candidates.sizes)
    if candidates.classes:
        order = np.argsort(candidates.class_labels)
        place = order[np.searchsorted(np.array(candidates.class_labels)[order], candidates.labels)]
        widths = np.array([_JSON_WIDTHS[np.frombuffer(name, np.uint8)].sum(dtype=np.int64) for name in candidates.classes])
        metadata += len('"class":"",') + widths[place]
        members += 2 * _BLOCK  # the label, one block behind its header
    members += _padded_all(metadata)
    limits = candidates.limits
    first = fill(members, limits.size_bytes // _RECORD * _RECORD - 2 * _BLOCK, limits.samples)
    ends = np.add.reduceat(members, first) if samples else first
    return Estimate(int((-(-(ends + 2 * _BLOCK) // _RECORD) * _RECORD).sum()), len(first))


def _padded_all(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes of members with so many bytes, their headers included."""
    return _BLOCK + -(-sizes // _BLOCK) * _BLOCK


FORMAT = Format(
    name="webdataset",
    suffix=".webdataset",
    has_shards=True,
    max_payload_bytes=8**11 - 1,  # eleven octal digits in a ustar header
    versions=lambda: {"tar": "ustar"},
    open_writer=_Writer,
    read_native=_read_native,
    estimate=_estimate,
)
