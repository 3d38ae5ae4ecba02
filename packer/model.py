"""Values that travel between the stages, and the fixed lists that appear in files.

Values of a pack job are tuples: a frozen dataclass with slots takes 0.8 ms when its module is loaded, a tenth of a second for
all of them, and 1.1 µs to make one, where a tuple takes 0.1 ms and 0.5 µs. Those with a field ``index``, a name that tuples use
for themselves, are dataclasses that nobody changes.

The numbers in ``TYPES`` and ``MODES`` stand in the index of every dataset ever written: new entries go at the end,
none is ever moved or reused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = [
    "CHECK_LEVELS",
    "DATASET_WARNING_CODES",
    "DEFAULT_MAX_PIXELS",
    "MODES",
    "NO_LABEL",
    "SKIP_CODES",
    "TYPES",
    "TYPES_BY_NAME",
    "WARNING_CODES",
    "Extent",
    "FileType",
    "Kept",
    "Note",
    "Sample",
    "Skipped",
    "Source",
    "Unfit",
    "Verdict",
    "display_name",
    "sample_key",
]

DEFAULT_MAX_PIXELS = 178_956_970
"""Pixels of one picture; Pillow's own limit, above which it speaks of a decompression bomb."""

NO_LABEL = -1
"""The label of a sample that has none."""

CHECK_LEVELS = ("full", "none")
"""``full`` decodes every file, ``none`` looks at its first bytes."""

SKIP_CODES = (
    "empty_file", "truncated", "corrupt", "not_an_image", "unsupported_format", "unsupported_dtype", "object_dtype",
    "bad_header", "too_large", "unreadable", "changed", "worker_died", "timeout", "checksum",
)  # fmt: skip

WARNING_CODES = (
    "extension_mismatch", "trailing_bytes", "bad_metadata", "multi_frame", "depth_reduced", "nonfinite", "empty_array",
    "duplicate_content", "empty_class", "numeric_classes", "name_clash", "symlink_loop",
)  # fmt: skip


DATASET_WARNING_CODES = frozenset({"empty_class", "numeric_classes", "name_clash", "symlink_loop"})
"""Warnings that are not about the content of one file."""


class FileType(NamedTuple):
    """A type of file by its content.

    Attributes:
        code: the number in the index.
        name: the word in reports and listings.
        extension: the one that packed members get, without the dot.
        suffixes: the extensions, lower case and without the dot, that announce this type.
    """

    code: int
    name: str
    extension: str
    suffixes: frozenset[str]


def _type(code: int, name: str, suffixes: str) -> FileType:
    extensions = suffixes.split()
    return FileType(code, name, extensions[0], frozenset(extensions))


TYPES = (
    _type(0, "unknown", "bin"),
    _type(1, "jpeg", "jpg jpeg jpe jfif mpo"),
    _type(2, "png", "png apng"),
    _type(3, "webp", "webp"),
    _type(4, "gif", "gif"),
    _type(5, "bmp", "bmp dib"),
    _type(6, "tiff", "tif tiff"),
    _type(7, "avif", "avif"),
    _type(8, "npy", "npy"),
)
"""Types in the order of their codes."""

TYPES_BY_NAME = {kind.name: kind for kind in TYPES}

MODES = (
    "", "1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "I;16", "I;16B", "I;16L",
    "I;16N", "La", "RGBa", "RGBX", "BGR;15", "BGR;16", "BGR;24",
)  # fmt: skip
"""Pillow's names of pixel layouts in the order of their codes in the index; arrays and unknown ones have the first."""


class Note(NamedTuple):
    """A code of ``WARNING_CODES`` with a sentence that a person can act on."""

    code: str
    detail: str


@dataclass(slots=True)
class Source:
    """One candidate file as the scan saw it.

    Attributes:
        index: its place in the scan.
        name: path relative to the input, raw bytes, parts joined by ``/``.
        size_bytes: its size at the scan.
        mtime_ns: its modification time at the scan.
        label: class index, or ``NO_LABEL``.
    """

    index: int
    name: bytes
    size_bytes: int
    mtime_ns: int
    label: int


class Kept(NamedTuple):
    """The verdict on a file that goes into the output.

    Attributes:
        type: a name of ``TYPES``.
        size_bytes: its size when it was checked.
        digest: xxh3-64 of its bytes.
        mode: Pillow's mode as stored in the file, empty for arrays and where unknown.
        width: pixels a row as stored, 0 for arrays and where unknown.
        height: rows as stored, 0 for arrays and where unknown.
        frames: number of pictures in the file, 0 for arrays and where unknown.
        orientation: EXIF orientation 1 to 8, 1 where there is none or a senseless one, 0 where nobody looked.
        header: the bytes before the body of an ``.npy`` file, empty for images.
        warnings: what is odd about it.
    """

    type: str
    size_bytes: int
    digest: int
    mode: str = ""
    width: int = 0
    height: int = 0
    frames: int = 0
    orientation: int = 0
    header: bytes = b""
    warnings: tuple[Note, ...] = ()


class Skipped(NamedTuple):
    """The verdict on a file that stays out: a code of ``SKIP_CODES`` (or of a warning turned into a skip), and why."""

    code: str
    detail: str


Verdict = Kept | Skipped


class Unfit(Exception):  # noqa: N818 - a verdict on a file, not an error of the program
    """Raised inside a check: the file stays out, with a code of ``SKIP_CODES`` and a sentence."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


@dataclass(slots=True)
class Sample:
    """What a container's writer is told about a payload.

    Attributes:
        index: number of the sample, counted without gaps from 0.
        name: original relative path, raw bytes.
        label: class index, or ``NO_LABEL``.
        type: type by content.
        size_bytes: of the payload.
        header: the first bytes of the payload that are an ``.npy`` header, empty for images.
    """

    index: int
    name: bytes
    label: int
    type: FileType
    size_bytes: int
    header: bytes = field(default=b"", repr=False)

    @property
    def key(self) -> str:
        """Its key in the containers, without an extension."""
        return sample_key(self.index)


class Extent(NamedTuple):
    """Where a payload lies: shard number, offset and size in bytes. A payload of zero bytes has offset 0."""

    shard: int
    offset: int
    size: int


def sample_key(index: int) -> str:
    """The key of a sample in a container: its number with leading zeros, so that keys sort in order.

    The number and not the name, since names hold dots (WebDataset cuts at the first), differ only in case, are longer
    than LMDB's 511 bytes, or are no text at all.
    """
    return f"{index:09d}"


def display_name(name: bytes) -> str:
    """A relative path as text: UTF-8, other bytes as surrogates, so that ``os.fsencode`` gives the same bytes back.

    Not ``os.fsdecode``: that one depends on the locale, and outputs must not.
    """
    return name.decode("utf-8", "surrogateescape")
