"""Check WebP files by their chunks and partitions, so that what is missing is named; then Pillow decodes every picture.

WebP has no checksum. libwebp, which Pillow uses, refuses a file that ends too early without saying so, cuts partitions of a
lossy picture that reach beyond its chunk to what is there, and ignores what follows the container. Nor does it say that it does
not need the end of a picture's data, as it is after damage: so it is asked (``packer.check.webptail``).

Facts: RFC 9649 (container, lossless), RFC 6386, sections 7, 9 and 19.2 (lossy).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from packer.check import pictures, webptail
from packer.check.verdict import Finding, require_pixels
from packer.check.webptail import Coded
from packer.model import Note, Unfit

__all__ = ["check"]

_TAG_BYTES = 10  # of a lossy picture: frame tag, start code, width, height


class _Chunk(NamedTuple):
    name: str
    start: int
    end: int


@dataclass(slots=True)
class _Canvas:
    """The size that an extended file states; of a simple one, that of its picture."""

    width: int
    height: int
    is_animated: bool = False
    pictures: int = 0
    coded: list[Coded] = field(default_factory=list)


def check(data: bytes, max_pixels: int) -> Finding:
    """Check a whole file.

    Raises:
        Unfit: ``truncated``, ``corrupt``, ``too_large``.
    """
    notes: list[Note] = []
    coded = _walk_file(data, max_pixels, notes)
    found = pictures.check(data, "webp", max_pixels, notes=notes)
    webptail.require_needed(data, coded, max_pixels)
    return found


def _walk_file(data: bytes, max_pixels: int, notes: list[Note]) -> list[Coded]:
    """Look at the container and the headers in it; returns where coded pixels are."""
    end = int.from_bytes(data[4:8], "little") + 8
    if end < len(data):
        notes.append(Note("trailing_bytes", f"{len(data) - end:,} bytes after the end of the picture"))
    canvas: _Canvas | None = None
    for chunk in _chunks(data, 12, min(end, len(data)), end):
        if canvas is None:
            canvas = _canvas_of(data, chunk)
            require_pixels(canvas.width, canvas.height, max_pixels)
        if chunk.name == "ANMF" and canvas.is_animated:
            _require_frame(data, chunk, canvas)
        elif chunk.name == "ALPH" and not canvas.is_animated and not canvas.pictures:
            canvas.coded.append(Coded(chunk.name, chunk.start, chunk.start + 1, chunk.end, (canvas.width, canvas.height)))
        elif chunk.name in ("VP8 ", "VP8L") and not canvas.is_animated and not canvas.pictures:
            picture = _require_picture(data, chunk)
            width, height = picture.size
            if (width, height) != (canvas.width, canvas.height):
                raise Unfit("corrupt", f"a canvas of {canvas.width} × {canvas.height} for a picture of {width} × {height}")
            canvas.coded.append(picture)
            canvas.pictures = 1
    if end > len(data):
        raise Unfit("truncated", f"{len(data):,} bytes, and its header says {end:,}")
    if canvas is None or not canvas.pictures:
        raise Unfit("corrupt", f"no picture in its {end:,} bytes")
    return canvas.coded


def _chunks(data: bytes, at: int, end: int, promised: int) -> Iterator[_Chunk]:
    """The chunks between two bytes, all of them whole; ``promised`` is where the last of them ends in a whole file.

    Raises:
        Unfit: one is not whole: ``truncated`` where the file ends before, else ``corrupt``.
    """
    while at + 8 <= end:
        stop = at + 8 + int.from_bytes(data[at + 4 : at + 8], "little")
        name = data[at : at + 4].decode("latin-1")
        if stop > end:
            if end < promised:
                break  # the file ends inside this chunk, which is said with the sizes of the whole
            code = "truncated" if stop > len(data) else "corrupt"
            raise Unfit(code, f"chunk {name.strip()!r} at byte {at:,} has {stop - at - 8:,} bytes, {end - at - 8:,} are left")
        yield _Chunk(name, at + 8, stop)
        at = stop + (stop & 1)


def _canvas_of(data: bytes, chunk: _Chunk) -> _Canvas:
    if chunk.name == "VP8X":
        if chunk.end - chunk.start < 10:
            raise Unfit(
                "corrupt", f"chunk 'VP8X' at byte {chunk.start - 8:,} has {chunk.end - chunk.start} bytes, 10 are expected"
            )
        at = chunk.start
        return _Canvas(_number(data, at + 4) + 1, _number(data, at + 7) + 1, bool(data[at] & 2))
    if chunk.name in ("VP8 ", "VP8L"):
        return _Canvas(*_size_of(data, chunk))
    raise Unfit("corrupt", f"its first chunk is {chunk.name.strip()!r}, 'VP8', 'VP8L' or 'VP8X' is expected")


def _require_frame(data: bytes, chunk: _Chunk, canvas: _Canvas) -> None:
    where = f"picture {canvas.pictures + 1} at byte {chunk.start - 8:,}"
    if chunk.end - chunk.start < 16:
        raise Unfit("corrupt", f"{where}: {chunk.end - chunk.start} bytes, its header has 16")
    at = chunk.start
    x, y, width, height = 2 * _number(data, at), 2 * _number(data, at + 3), _number(data, at + 6) + 1, _number(data, at + 9) + 1
    if x + width > canvas.width or y + height > canvas.height:
        place = f"{width} × {height} at {x}, {y}"
        raise Unfit("corrupt", f"{where}: {place} does not fit into {canvas.width} × {canvas.height}")
    for inner in _chunks(data, at + 16, chunk.end, chunk.end):
        if inner.name in ("VP8 ", "VP8L"):
            picture = _require_picture(data, inner, f"{where}: ")
            if picture.size != (width, height):
                found = f"{picture.size[0]} × {picture.size[1]}"
                raise Unfit("corrupt", f"{where}: {width} × {height} is stated, the picture has {found}")
            canvas.coded.append(picture)
            canvas.pictures += 1
            return
        if inner.name == "ALPH":
            canvas.coded.append(Coded(inner.name, inner.start, inner.start + 1, inner.end, (width, height), f"{where}: "))
    raise Unfit("corrupt", f"{where}: no picture in it")


def _require_picture(data: bytes, chunk: _Chunk, where: str = "") -> Coded:
    """Compare the partitions of a lossy picture with its chunk."""
    size = _size_of(data, chunk, where)
    last = _require_partitions(data, chunk, where) if chunk.name == "VP8 " else chunk.start
    return Coded(chunk.name, chunk.start, last, chunk.end, size, where)


def _size_of(data: bytes, chunk: _Chunk, where: str = "") -> tuple[int, int]:
    at = chunk.start
    lossy = chunk.name == "VP8 "
    needed = _TAG_BYTES if lossy else 5
    if chunk.end - at < needed:
        raise Unfit("truncated", f"{where}{chunk.end - at} bytes of picture at byte {at:,}, its header alone has {needed}")
    signature, place = (b"\x9d\x01\x2a", at + 3) if lossy else (b"\x2f", at)
    if not data.startswith(signature, place):
        found = data[place : place + len(signature)]
        raise Unfit("corrupt", f"{where}byte {place:,} is {found.hex(' ')}, where {signature.hex(' ')} is expected")
    if lossy:
        return int.from_bytes(data[at + 6 : at + 8], "little") & 0x3FFF, int.from_bytes(
            data[at + 8 : at + 10], "little"
        ) & 0x3FFF
    bits = int.from_bytes(data[at + 1 : at + 5], "little")
    return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1


def _require_partitions(data: bytes, chunk: _Chunk, where: str) -> int:
    """All partitions must lie in the chunk; returns where the last one begins."""
    start = chunk.start + _TAG_BYTES
    first = _number(data, chunk.start) >> 5
    if start + first > chunk.end:
        _raise_short(f"{where}its first partition", start, first, chunk.end)
    count = _Bools(data[start : start + first]).token_partitions()
    at = start + first + 3 * (count - 1)
    if at >= chunk.end:
        _raise_short(f"{where}the list of its {count} partitions", start + first, 3 * (count - 1) + 1, chunk.end)
    for number in range(count - 1):  # the last one has what is left
        size = _number(data, start + first + 3 * number)
        if at + size > chunk.end:
            _raise_short(f"{where}partition {number + 1} of {count}", at, size, chunk.end)
        at += size
    return at


def _raise_short(what: str, at: int, size: int, end: int) -> None:
    raise Unfit("truncated", f"{what} at byte {at:,} has {size:,} bytes, {max(end - at, 0):,} are left")


def _number(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 3], "little")


class _Bools:
    """The arithmetic decoder of RFC 6386, section 7, as far as the header of a key frame needs it: all odds are even."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._value = int.from_bytes(data[:2].ljust(2, b"\0"), "big")
        self._range = 255
        self._at = 2
        self._shifted = 0

    def number(self, bits: int) -> int:
        value = 0
        for _ in range(bits):
            value = value << 1 | self._bool()
        return value

    def token_partitions(self) -> int:
        """Read the header up to the number of partitions that hold the coefficients (section 19.2)."""
        self.number(2)  # colour space, clamping
        if self.number(1):  # segments
            with_map, with_data = self.number(1), self.number(1)
            if with_data:
                self.number(1)
                self._optional(4, 7 + 1)  # quantizers and their signs
                self._optional(4, 6 + 1)  # filter levels and their signs
            if with_map:
                self._optional(3, 8)
        self.number(1 + 6 + 3)  # filter: kind, level, sharpness
        if self.number(1) and self.number(1):
            self._optional(8, 6 + 1)
        return 1 << self.number(2)

    def _optional(self, count: int, bits: int) -> None:
        for _ in range(count):
            if self.number(1):
                self.number(bits)

    def _bool(self) -> int:
        split = 1 + (self._range - 1 >> 1)
        is_set = self._value >= split << 8
        if is_set:
            self._range -= split
            self._value -= split << 8
        else:
            self._range = split
        while self._range < 128:
            self._value <<= 1
            self._range <<= 1
            self._shifted += 1
            if self._shifted == 8:
                self._shifted = 0
                self._value |= self._data[self._at] if self._at < len(self._data) else 0
                self._at += 1
        return int(is_set)
