"""The manifest: what a packed dataset is. It is written last; a folder without it is no dataset.

Layout, version 1
=================
A packed dataset is a folder with ``manifest.json``, ``index.npy`` and ``names.bin`` (``packer.index``), ``report.jsonl``
(``packer.report``) and the files of its container (``packer.formats``). Whatever the container, the bytes of sample ``i`` are
the ``header`` of the field, then ``size`` bytes from byte ``offset`` on of the file ``shards[shard]``; these three numbers
stand in record ``i`` of the index. Nothing else has to be understood to read one.

``manifest.json`` is one JSON object in ASCII, of at most 64 MiB and about four million values, no key twice in an object:

=================  =======================================================================================================
key                value
=================  =======================================================================================================
layout             1, the version of this layout
format             name of the container format, at most 255 characters
samples            number of samples, 1 to 2**40
classes            class names, each once; bytes that are no UTF-8 as surrogates (``\\udc80`` for 0x80, up to ``\\udcff``)
labels             ``"folder"``: a label is the class's place in ``classes``, from 0; ``"number"``: it is the class's name, 1 to
                   18 digits, read as a decimal number, no number twice; ``"none"``: there are no classes and no labels
fields             one object a field, and so far there is one: ``name``, which is ``"data"``, and ``header``: base64 of the
                   bytes that every payload of the field begins with and that are kept here once and not in the container,
                   at most 1 MiB (usually empty)
shards             one object a file of the container: ``file`` (a plain name), ``bytes`` (its exact size), ``samples`` (that
                   lie in it: the first shard has the first ones, and so on), ``digest`` (of the whole file)
files              the same without ``file`` and ``samples`` for ``index.npy``, ``names.bin`` and ``report.jsonl``, by name
options            the options that shaped the output, see below
versions           versions of the file formats inside, by name: ``lmdb``, ``hdf5`` or ``tar``
content_digest     the same for the same samples in any container, see below
digest             of this object without this key, see below
=================  =======================================================================================================

A plain name has 1 to 255 printable ASCII characters without ``/``, ``\\`` and ``:``, is neither ``.`` nor ``..``, and no file
has two entries. Sizes are at most 2**62, so a reader needs 64-bit integers; all numbers that packer writes are integers. A
name of a sample has at most 131,072 bytes on average. White space has no meaning; packer writes keys in the order of this
table, one a line, one space of indentation a level (``json.dumps(..., indent=1)``), and a line feed at the end.

``options`` has ``check`` (``"full"`` or ``"none"``), ``labels`` (the rule asked for), ``max_pixels``, ``follow_links``, and
where they were given ``skip`` (codes, sorted), ``classes_from`` (true), ``checksums`` (a digest of the list), ``shuffle`` (the
seed); where the format has shards ``shard_bytes`` and ``shard_samples`` (0: no limit). Nothing in them is needed to read a
dataset.

Digests
-------
All are xxh3 with seed 0. Those of single payloads are xxh3-64 and numbers. All others are xxh3-128 in the canonical form, 32
lower-case hexadecimal digits: of the bytes of a file, and two more.

``digest``: of the object without that key, written as JSON without white space, the keys of every object in the order of their
characters; in texts ``\\"``, ``\\\\``, ``\\n``, ``\\r``, ``\\t``, ``\\b``, ``\\f``, and everything else outside space to ``~``
as ``\\uxxxx`` in lower case, above U+FFFF as two surrogates.

``content_digest``: of the class names, written as such JSON; then of ``names.bin``; then, for each 65,536 samples in turn and
the rest, of the three columns ``name_end``, ``label`` and ``digest`` of the index, one behind the other, 8 bytes a number,
little-endian.

What may change
---------------
A reader looks at ``layout`` first, and refuses any other number: not even ``digest`` need mean the same there. Within version
1 may be added: keys here, in the objects inside, and in the report, which a reader ignores where it does not know them
(``digest`` covers them); container formats (a reader needs only shards and index); numbers of types and modes; words in the
report. Anything with which a reader of today would give out other data, or less, needs version 2: another record, a second
field, another kind of labels, a file more in ``files``, another digest. Files that the manifest does not name do not belong to
the dataset.

Example
-------
The bytes that ``digest`` is made of for the folder in ``packer.index``, packed as tar, but for the line breaks::

    {"classes":["cat","dog"],"content_digest":"0464c64c8b4282bcb67bfe3e13e4d721","fields":[{"header":"","name":"data"}],
    "files":{"index.npy":{"bytes":640,"digest":"e5643281f51d78f275dd4e3ed5da9ec3"},"names.bin":{"bytes":18,
    "digest":"967fada08ef69a8a4f756059b0bdaa40"},"report.jsonl":{"bytes":90,"digest":"be6068a87dfd01e3f598c945a6d18137"}},
    "format":"webdataset","labels":"folder","layout":1,"options":{"check":"full","follow_links":false,"labels":"auto",
    "max_pixels":178956970,"shard_bytes":1000000000,"shard_samples":0},"samples":2,"shards":[{"bytes":10240,
    "digest":"d19e2dad4c8be4dd4df0dece49f721dc","file":"shard-000000.tar","samples":2}],"versions":{"tar":"ustar"}}

Its ``digest`` is ``325b9ab55e1920c18c90c1826d9b474e``. The ``content_digest`` is made of ``["cat","dog"]``,
``cat/a.npydog/\\xff.png``, and::

    09 00 00 00 00 00 00 00 12 00 00 00 00 00 00 00
    00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00
    2d 87 e0 9c 7f ad 2b 5f 17 56 56 db db 2a 68 42
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import os
import stat
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from packer.errors import CorruptDatasetError, DatasetError, LaterLayoutError, OutputError
from packer.files import read_regular_file
from packer.index import INDEX_FILE, NAMES_FILE, Index, index_size
from packer.model import NO_LABEL, Unfit

__all__ = [
    "LAYOUT_VERSION",
    "MANIFEST_FILE",
    "MAX_MANIFEST_BYTES",
    "REPORT_FILE",
    "FileEntry",
    "Manifest",
    "ShardEntry",
    "content_digest",
    "load_manifest",
]

LAYOUT_VERSION = 1
MANIFEST_FILE = "manifest.json"
REPORT_FILE = "report.jsonl"
MAX_MANIFEST_BYTES = 64 << 20
"""A larger manifest is neither read nor written."""
_MAX_VALUES = 4 << 20
"""A manifest with more commas and opening brackets is neither read nor written. 64 MiB of ``[],[],`` would take gigabytes as
Python objects; a data set of four million persons has as many classes."""
_MAX_SAMPLES = 2**40
_MAX_NAME_BYTES = 1 << 17  # a path may be longer than the 4,096 bytes that one system call takes
_MAX_HEADER_BYTES = 1 << 20  # as ``packer.npyheader`` has it
_MAX_WORD = 255


class FileEntry(NamedTuple):
    """A file beside the container: size in bytes, xxh3-128."""

    size_bytes: int
    digest: str


class ShardEntry(NamedTuple):
    """A file of the container.

    Attributes:
        file: plain name in the dataset's folder.
        size_bytes: its exact size.
        samples: number of samples that begin in it.
        digest: xxh3-128 of the whole file.
    """

    file: str
    size_bytes: int
    samples: int
    digest: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A packed dataset in one value; see the module for the meaning of the fields."""

    format: str
    samples: int
    classes: tuple[str, ...]
    labels: str
    header: bytes
    shards: tuple[ShardEntry, ...]
    files: dict[str, FileEntry]
    options: dict[str, Any]
    versions: dict[str, str]
    content_digest: str
    digest: str = field(default="", compare=False)

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Label of each class by name."""
        if self.labels == "number":
            return {name: int(name) for name in self.classes}
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def valid_labels(self) -> Container[int]:
        """The labels that a sample can have."""
        if self.labels == "none":
            return (NO_LABEL,)
        return range(len(self.classes)) if self.labels == "folder" else frozenset(self.class_to_idx.values())

    @property
    def size_bytes(self) -> int:
        """Size of all shards together."""
        return sum(shard.size_bytes for shard in self.shards)

    def to_json(self) -> bytes:
        """The file's bytes.

        Raises:
            OutputError: it has more classes and shards than a manifest holds.
        """
        content = {
            "layout": LAYOUT_VERSION,
            "format": self.format,
            "samples": self.samples,
            "classes": list(self.classes),
            "labels": self.labels,
            "fields": [{"name": "data", "header": base64.b64encode(self.header).decode()}],
            "shards": [{"file": s.file, "bytes": s.size_bytes, "samples": s.samples, "digest": s.digest} for s in self.shards],
            "files": {name: {"bytes": f.size_bytes, "digest": f.digest} for name, f in self.files.items()},
            "options": self.options,
            "versions": self.versions,
            "content_digest": self.content_digest,
        }
        data = json.dumps({**content, "digest": _self_digest(content)}, indent=1).encode() + b"\n"
        if _values(data) > _MAX_VALUES:
            raise OutputError(
                f"{len(self.classes):,} classes and {len(self.shards):,} shards are more than a manifest holds. Make larger "
                "shards, or pack with --labels none."
            )
        return data


def load_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of a dataset. Every number is bounded; nothing else is opened.

    Raises:
        DatasetError: the folder is no packed dataset.
        CorruptDatasetError: the manifest is damaged, of a later layout, or larger than any that packer writes.
    """
    path = Path(folder, MANIFEST_FILE)
    try:
        data = read_regular_file(bytes(str(path), "utf-8", "surrogateescape"), MAX_MANIFEST_BYTES)
    except Unfit as unfit:
        raise _why_not(folder, path, unfit.detail) from None
    try:
        content = _load_json(data)
        del data  # it may be large, and so are its parts
        return _from_json(content)
    except MemoryError:
        raise DatasetError.at(path, "not enough memory to read it") from None
    except _ManifestError as problem:
        kind = LaterLayoutError if isinstance(problem, _LaterLayoutError) else CorruptDatasetError
        raise kind.at(path, _shortened(str(problem))) from None
    # json raises ValueError and RecursionError, the look-ups below KeyError and TypeError: all mean the same here.
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptDatasetError.at(path, _shortened(f"is no manifest ({type(error).__name__}: {error})")) from None


def _shortened(problem: str) -> str:
    """A sentence may repeat a value of the manifest, which may be as long as the manifest."""
    return problem if len(problem) <= 500 else f"{problem[:500]} …"


def _why_not(folder: Path, path: Path, problem: str) -> DatasetError:
    """Why the manifest could not be read."""
    try:
        if not stat.S_ISDIR(os.stat(folder).st_mode):
            return DatasetError.at(folder, "a packed dataset is a folder, this is a file")
    except FileNotFoundError:
        return DatasetError.at(folder, "no such dataset")
    except OSError as error:
        return DatasetError.at(folder, error.strerror or type(error).__name__)
    try:
        os.stat(path)
    except FileNotFoundError:
        return DatasetError.at(folder, f"no packed dataset, it has no {MANIFEST_FILE}")
    except OSError as error:
        return DatasetError.at(path, error.strerror or type(error).__name__)
    return CorruptDatasetError.at(path, problem)


class _ManifestError(Exception):
    pass


class _LaterLayoutError(_ManifestError):
    """The layout is none that is known here."""


def _values(data: bytes) -> int:
    """At least the number of values in JSON, without parsing it: each but the first follows a comma or an opening bracket."""
    return data.count(b",") + data.count(b"[") + data.count(b"{")


def _load_json(data: bytes) -> Any:
    if _values(data) > _MAX_VALUES:
        raise _ManifestError(f"more than {_MAX_VALUES:,} values")
    # What another parser could understand otherwise is no manifest: readers must agree on what a dataset is.
    return json.loads(str(data, "ascii"), object_pairs_hook=_object, parse_constant=_finite, parse_float=_finite)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _ManifestError("a key twice in one object")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _ManifestError(f"a number {text} that is none")
    return number


def _from_json(content: dict[str, Any]) -> Manifest:
    layout = content["layout"]
    if type(layout) is not int or layout != LAYOUT_VERSION:
        raise _LaterLayoutError(
            f"layout version {layout!r}, this packer reads version {LAYOUT_VERSION}; a newer packer may read it"
        )
    # Before anything is done with them that takes their size several times.
    (only_field,) = content["fields"]
    _require_length("format", content["format"], _MAX_WORD)
    _require_length("shared header", only_field["header"], -(-_MAX_HEADER_BYTES // 3) * 4)
    digest = content.pop("digest")
    if digest != _self_digest(content):
        raise _ManifestError("its contents are not those that were written (the digest differs)")
    classes = tuple(_text(name) for name in content["classes"])
    labels = content["labels"]
    if labels not in ("folder", "number", "none") or (labels == "none") != (not classes) or len(set(classes)) < len(classes):
        raise _ManifestError(f"labels {labels!r} with {len(classes)} classes make no sense")
    if labels == "number" and not all(name.isascii() and name.isdigit() and len(name) <= 18 for name in classes):
        raise _ManifestError("labels are numbers, but a class name is none")
    if labels == "number" and len(set(map(int, classes))) < len(classes):
        raise _ManifestError("labels are numbers, but two classes have the same")
    if only_field["name"] != "data":
        raise _ManifestError(f"a field {only_field['name']!r}, this packer reads one named 'data'")
    try:
        header = base64.b64decode(only_field["header"], validate=True)
    except binascii.Error:
        raise _ManifestError("the shared header is no base64") from None
    shards = tuple(
        ShardEntry(_plain_name(s["file"]), _count(s["bytes"], 2**62), _count(s["samples"]), _text(s["digest"]))
        for s in content["shards"]
    )
    files = {
        _plain_name(name): FileEntry(_count(f["bytes"], 2**62), _text(f["digest"])) for name, f in content["files"].items()
    }
    samples = _count(content["samples"])
    if samples < 1 or sum(shard.samples for shard in shards) != samples:
        raise _ManifestError(f"{samples:,} samples, but the shards have {sum(shard.samples for shard in shards):,}")
    if set(files) != {INDEX_FILE, NAMES_FILE, REPORT_FILE}:
        raise _ManifestError(f"files {sorted(files)}, expected {INDEX_FILE}, {NAMES_FILE} and {REPORT_FILE}")
    if files[INDEX_FILE].size_bytes != index_size(samples):
        raise _ManifestError(f"{samples:,} samples, but an index of {files[INDEX_FILE].size_bytes:,} bytes")
    if files[NAMES_FILE].size_bytes > samples * _MAX_NAME_BYTES:  # all of it is digested when the dataset is opened
        raise _ManifestError(f"{samples:,} samples, but names of {files[NAMES_FILE].size_bytes:,} bytes")
    named = [shard.file for shard in shards]
    if len(set(named)) < len(named) or not set(named).isdisjoint({*files, MANIFEST_FILE}):
        raise _ManifestError("two files with the same name")
    if not isinstance(content["options"], dict) or not isinstance(content["versions"], dict):
        raise _ManifestError("options and versions must be objects")
    return Manifest(
        format=_text(content["format"]),
        samples=samples,
        classes=classes,
        labels=labels,
        header=header,
        shards=shards,
        files=files,
        options=content["options"],
        versions=content["versions"],
        content_digest=_text(content["content_digest"]),
        digest=digest,
    )


def _self_digest(content: dict[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def _count(value: object, limit: int = _MAX_SAMPLES) -> int:
    if type(value) is not int or not 0 <= value <= limit:
        raise _ManifestError(f"{value!r} is no count up to {limit:,}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _ManifestError(f"{value!r} is no text")
    return value


def _require_length(what: str, value: object, limit: int) -> None:
    if len(_text(value)) > limit:
        raise _ManifestError(f"a {what} of more than {limit:,} characters")


def _plain_name(value: object) -> str:
    name = _text(value)
    # A stranger's manifest must not make the reader open a file outside the dataset's folder.
    # The names that packer gives are printable ASCII; what is longer or other cannot exist on some system.
    plain = name.isascii() and name.isprintable() and 0 < len(name) <= 255 and not set(name) & set("/\\:")
    if not plain or name in (".", ".."):
        raise _ManifestError(f"{name!r} is no plain file name")
    return name


def content_digest(index: Index, classes: tuple[str, ...]) -> str:
    """xxh3-128 over what the samples are, whatever container they lie in.

    Hashed in this order: the class names as compact JSON; the names, end to end; then block by block of 65,536 samples
    the columns ``name_end``, ``label`` and ``digest`` of the index, little-endian.
    """
    digest = xxhash.xxh3_128(json.dumps(list(classes), separators=(",", ":")).encode())
    for names in index.name_blocks():
        digest.update(names)
    for block in index.blocks():
        for column in (block["name_end"], block["label"], block["data"]["digest"]):
            digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()
