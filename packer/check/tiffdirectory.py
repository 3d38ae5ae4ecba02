"""Read the directories of a TIFF file: the tags of each of its pictures.

Facts: TIFF revision 6.0 (Adobe, 1992), section 2, and the BigTIFF design (offsets of 8 bytes, magic number 43). Values are
read when they are asked for, and must lie in the file, so nothing much larger than it is ever allocated.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from packer.model import Unfit

__all__ = ["Directory", "directories"]

# Tags that say where and what the pixels are.
WIDTH, LENGTH, BITS, COMPRESSION, PHOTOMETRIC, FILL_ORDER = 256, 257, 258, 259, 262, 266
STRIP_OFFSETS, ORIENTATION, SAMPLES, ROWS_PER_STRIP, STRIP_COUNTS, PLANAR, FAX_OPTIONS = 273, 274, 277, 278, 279, 284, 292
COLOR_MAP, TILE_WIDTH, TILE_LENGTH, TILE_OFFSETS, TILE_COUNTS = 320, 322, 323, 324, 325
EXTRA_SAMPLES, SAMPLE_FORMAT, JPEG_TABLES, SUBSAMPLING = 338, 339, 347, 530

PREDICTOR, IMAGE_DEPTH, TILE_DEPTH = 317, 32997, 32998

_SINGLE = (
    WIDTH, LENGTH, COMPRESSION, PHOTOMETRIC, FILL_ORDER, SAMPLES, ROWS_PER_STRIP, PLANAR, PREDICTOR, TILE_WIDTH, TILE_LENGTH,
)  # fmt: skip
LISTS = (
    BITS, STRIP_OFFSETS, STRIP_COUNTS, COLOR_MAP, TILE_OFFSETS, TILE_COUNTS, EXTRA_SAMPLES, SAMPLE_FORMAT, JPEG_TABLES,
    SUBSAMPLING,
)  # fmt: skip
_DIFFERENT = ((STRIP_OFFSETS, STRIP_COUNTS), (TILE_OFFSETS, TILE_COUNTS))
_UNDEFINED = 7  # type of bytes
_PALETTE = 3  # kind of pixels
_CHOICES = {PLANAR: (1, 2), FILL_ORDER: (1, 2), PREDICTOR: (1, 2, 3)}
_EXPECTED = (BITS, COMPRESSION, PHOTOMETRIC)  # of every picture, but some writers leave one out
_SUBDIRECTORIES = {34665: "EXIF", 34853: "GPS"}

_SIZES = {
    1: 1,
    2: 1,
    3: 2,
    4: 4,
    5: 8,
    6: 1,
    7: 1,
    8: 2,
    9: 4,
    10: 8,
    11: 4,
    12: 8,
    13: 4,
    16: 8,
    17: 8,
    18: 8,
}  # bytes by type
# struct's letters of the integers.
_INTEGERS = {1: "B", 3: "H", 4: "L", 6: "b", 8: "h", 9: "l", 13: "L", 16: "Q", 17: "q", 18: "Q"}


@dataclass(frozen=True, slots=True)
class _Form:
    """How numbers are stored: the byte order, and the wider fields of BigTIFF."""

    order: str
    big: bool

    @property
    def head_bytes(self) -> int:
        """Bytes of the number of entries."""
        return 8 if self.big else 2

    @property
    def entry_bytes(self) -> int:
        return 20 if self.big else 12

    @property
    def offset_bytes(self) -> int:
        return 8 if self.big else 4

    def number(self, data: bytes, at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], "little" if self.order == "<" else "big")


@dataclass(slots=True)
class Directory:
    """One directory: the tags of one picture.

    Attributes:
        number: its place in the file's chain, counted from 0.
        start: its offset.
        end: where it ends, the offset of the next one included.
        entries: by tag, the type, the number of values, and the offset of the first value. The last entry of a tag holds.
        twice: tags with entries that differ.
    """

    number: int
    start: int
    end: int
    entries: dict[int, tuple[int, int, int]]
    twice: list[int]
    _data: bytes = field(repr=False)
    _form: _Form = field(repr=False)

    @property
    def is_big_endian(self) -> bool:
        """Whether the highest byte of a number comes first."""
        return self._form.order == ">"

    def count(self, tag: int) -> int:
        """Number of values of a tag, 0 where it is missing."""
        return self.entries[tag][1] if tag in self.entries else 0

    def numbers(self, tag: int, most: int | None = None) -> tuple[int, ...] | None:
        """All values of a tag, or its first ones, ``None`` where it is missing or its values are no integers.

        Raises:
            Unfit: ``truncated``, its values lie outside the file; ``corrupt``, one is negative.
        """
        kind, count, start = self.entries.get(tag, (0, 0, 0))
        if kind not in _INTEGERS or not count:
            return None
        self._require_inside(tag)
        count = count if most is None else min(count, most)
        values = struct.unpack_from(f"{self._form.order}{count}{_INTEGERS[kind]}", self._data, start)
        if _INTEGERS[kind].islower() and min(values) < 0:
            raise Unfit("corrupt", f"tag {tag} has the value {min(values)}")
        return values

    def number_of(self, tag: int, default: int = 0) -> int:
        """The first value of a tag, ``default`` where it is missing.

        Raises:
            Unfit: ``truncated``, its values lie outside the file.
        """
        values = self.numbers(tag, 1)
        return values[0] if values else default

    def raw(self, tag: int) -> bytes:
        """The bytes of a tag's values, empty where it is missing.

        Raises:
            Unfit: ``truncated``, its values lie outside the file.
        """
        kind, count, start = self.entries.get(tag, (0, 0, 0))
        self._require_inside(tag)
        return self._data[start : start + _SIZES.get(kind, 0) * count]

    def extent(self, tag: int) -> tuple[int, int]:
        """Where a tag's values begin and end in the file."""
        kind, count, start = self.entries.get(tag, (0, 0, 0))
        return start, start + _SIZES.get(kind, 0) * count

    def require_pixel_tags(self) -> None:
        """Find all tags without which the pixels cannot be told in the form that they must have.

        Raises:
            Unfit: ``truncated`` where values lie outside the file, ``corrupt`` for a wrong type or number of values, and where
                an expected tag is missing and another stands in its place.
        """
        for tag in (*_SINGLE, *LISTS):
            if tag not in self.entries:
                continue
            kind, count, _ = self.entries[tag]
            if kind not in _INTEGERS and not (tag == JPEG_TABLES and kind == _UNDEFINED):
                raise Unfit("corrupt", f"the values of tag {tag} have type {kind}, integers are expected")
            if count != 1 and (not count or tag in _SINGLE):
                raise Unfit("corrupt", f"tag {tag} has {count:,} values, {'one is' if tag in _SINGLE else 'some are'} expected")
            self._require_inside(tag)
        for tag, choices in _CHOICES.items():
            if (value := self.number_of(tag, choices[0])) not in choices:
                raise Unfit("corrupt", f"tag {tag} has the value {value:,}, {choices[0]} to {choices[-1]} exist")
        depth, found = self.number_of(BITS, 1), self.count(COLOR_MAP)
        if self.number_of(PHOTOMETRIC) == _PALETTE and depth <= 16 and found != 3 << depth:
            raise Unfit("corrupt", f"a palette of {found:,} numbers, {3 << depth:,} are promised by {depth} bits")
        for one, other in _DIFFERENT:
            if self.count(one) and self.extent(one) == self.extent(other):
                raise Unfit("corrupt", f"tags {one} and {other} have the same values, at byte {self.extent(one)[0]:,}")
        if ambiguous := [tag for tag in self.twice if tag in (*_SINGLE, *LISTS)]:
            raise Unfit("corrupt", f"tag {ambiguous[0]} has two entries that differ")
        missing = [tag for tag in _EXPECTED if tag not in self.entries]
        if missing and _has_one_out_of_place([*self.entries], missing[0]):
            raise Unfit("corrupt", f"tag {missing[0]} is missing, and the tags are not in order: {_shown(self.entries)}")

    def damaged_metadata(self) -> str:
        """What is wrong with entries that do not describe pixels, empty where nothing is."""
        for tag in self.entries:
            if self.extent(tag)[1] > len(self._data):
                return f"the values of tag {tag} lie outside the file"
        for tag, name in _SUBDIRECTORIES.items():
            start = self.number_of(tag)
            if start and _entries_end(self._data, start, self._form) > len(self._data):
                return f"the {name} directory at byte {start:,} does not fit into the file"
        if ORIENTATION in self.entries and self.number_of(ORIENTATION) not in range(1, 9):
            return f"orientation {self.number_of(ORIENTATION)}, there are 1 to 8"
        return ""

    def _require_inside(self, tag: int) -> None:
        start, end = self.extent(tag)
        if end > len(self._data):
            raise Unfit(
                "truncated",
                f"the values of tag {tag} at byte {start:,} need {end - start:,} bytes, "
                f"{max(0, len(self._data) - start):,} are left",
            )


def directories(data: bytes) -> Iterator[Directory]:
    """The directories of a file in the order of their chain, which ends where it comes back to an earlier one.

    Raises:
        Unfit: ``truncated`` where a directory lies outside the file, ``corrupt`` where there is none.
    """
    form = _Form("<" if data[:2] == b"II" else ">", data[2:3] == b"\x2b" or data[3:4] == b"\x2b")
    start, needed = (form.number(data, 8, 8), 16) if form.big else (form.number(data, 4, 4), 8)
    if len(data) < needed:
        raise Unfit("truncated", f"{len(data)} bytes, the header alone has {needed}")
    if form.big and (form.number(data, 4, 2), form.number(data, 6, 2)) != (8, 0):
        raise Unfit("corrupt", f"a BigTIFF header with offsets of {form.number(data, 4, 2)} bytes")
    if not start:
        raise Unfit("corrupt", "no directory, so no picture")
    seen: set[int] = set()
    spent = 0
    # Directories that overlap could be as many as the file has bytes.
    while start and start not in seen and spent <= len(data):
        seen.add(start)
        directory = _read(data, start, form, len(seen) - 1)
        spent += directory.end - directory.start
        yield directory
        start = form.number(data, directory.end - form.offset_bytes, form.offset_bytes)


def _entries_end(data: bytes, start: int, form: _Form) -> int:
    """Where the entries of a directory end; beyond the file where even their number does not fit into it."""
    first = start + form.head_bytes
    if first > len(data):
        return first
    return first + form.entry_bytes * form.number(data, start, form.head_bytes)


def _read(data: bytes, start: int, form: _Form, number: int) -> Directory:
    end = _entries_end(data, start, form)
    if end > len(data):
        needed, left = end - start, max(0, len(data) - start)
        raise Unfit("truncated", f"directory {number} at byte {start:,} needs {needed:,} bytes, {left:,} are left")
    entries: dict[int, tuple[int, int, int]] = {}
    twice: list[int] = []
    wide = form.offset_bytes
    for at in range(start + form.head_bytes, end, form.entry_bytes):
        tag, kind, count = form.number(data, at, 2), form.number(data, at + 2, 2), form.number(data, at + 4, wide)
        value = at + 4 + wide
        if _SIZES.get(kind, 0) * count > wide:
            value = form.number(data, value, wide)
        if entries.get(tag, (kind, count, value)) != (kind, count, value):
            twice.append(tag)
        entries[tag] = (kind, count, value)
    return Directory(number, start, end + wide, entries, twice, data, form)


def _has_one_out_of_place(entries: list[int], missing: int) -> bool:
    """Whether the tags would be in order if one of them were the missing one. Some writers never put them in order."""
    if entries == sorted(entries):
        return False
    places = ([*entries[:at], missing, *entries[at + 1 :]] for at in range(len(entries)))
    return any(candidate == sorted(candidate) for candidate in places)


def _shown(entries: Iterable[int]) -> str:
    numbers = [str(tag) for tag in entries]
    return ", ".join(numbers[:20]) + (", …" if len(numbers) > 20 else "")
