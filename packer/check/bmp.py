"""Check BMP files by their headers: Pillow gives no numbers for what is missing, and fills up runs in silence.

Nothing in the format tells one colour from another, so this is about places and sizes: palette and rows lie in the file, and a
run-length coded picture fills its rows and ends with its end code.

Facts: Microsoft, "Bitmap storage", "Bitmap compression", BITMAPFILEHEADER, BITMAPINFOHEADER and its successors. Pillow reads
uncompressed and run-length coded pictures. ImageMagick has written runs that are too long, before the end of a row, where they
are harmless (image-rs/image issue 2321).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from packer.check import pictures
from packer.check.verdict import Finding, require_pixels
from packer.model import Note, Unfit

__all__ = ["check"]

_FILE_HEADER = 14
_CORE = 12  # the header of OS/2, with fewer and shorter fields
_RAW, _RLE8, _RLE4, _FIELDS = 0, 1, 2, 3
_DEPTHS = {_RAW: (1, 4, 8, 16, 24, 32), _RLE8: (8,), _RLE4: (4,), _FIELDS: (16, 24, 32)}
_UNREAD = {4: "with a JPEG in it", 5: "with a PNG in it", 6: "with alpha masks", 11: "in CMYK", 12: "in CMYK", 13: "in CMYK"}


@dataclass(frozen=True, slots=True)
class _Header:
    width: int
    height: int
    bits: int
    compression: int
    colours: int  # in the palette, 0 where there is none
    start: int  # of the pixels
    profile_end: int


def check(data: bytes, max_pixels: int) -> Finding:
    """Check a whole file.

    Raises:
        Unfit: ``truncated``, ``corrupt``, ``too_large``, ``unsupported_format``.
    """
    header = _read_header(data, max_pixels)
    notes: list[Note] = []
    if header.compression in (_RLE8, _RLE4):
        end = _Runs(data, header).walk(notes)
    else:
        end = _require_rows(data, header, notes)
    said = int.from_bytes(data[2:6], "little")
    if said > len(data):  # less is said by many writers: 0, or the size of something else
        notes.append(Note("bad_metadata", f"{len(data):,} bytes, its header says {said:,}; every pixel is there"))
    end = max(end, header.profile_end, said if said <= len(data) else 0)
    if end < len(data):
        notes.append(Note("trailing_bytes", f"{len(data) - end:,} bytes after the end of the picture"))
    try:
        return pictures.check(data, "bmp", max_pixels, notes=notes)
    except Unfit as unfit:
        if "Unsupported BMP bitfields" in unfit.detail:
            raise Unfit("unsupported_format", f"{header.bits} bits a pixel in a rare layout: convert it to PNG") from unfit
        if "invalid palette size" in unfit.detail:
            raise Unfit("unsupported_format", "a palette of more than 256 colours: convert it to PNG") from unfit
        raise


def _read_header(data: bytes, max_pixels: int) -> _Header:
    _require(data, 0, _FILE_HEADER + 4, "the header")
    start, size = struct.unpack_from("<II", data, 10)
    _require(data, _FILE_HEADER, size, "the header")
    palette, colours, compression, profile_end = _FILE_HEADER + size, 0, _RAW, 0
    if size == _CORE:
        width, height, _, bits = struct.unpack_from("<HHHH", data, 18)
    elif size >= 40:
        width, height, _, bits, compression = struct.unpack_from("<iiHHI", data, 18)
        colours = int.from_bytes(data[46:50], "little")
        palette += 12 if compression == _FIELDS and size == 40 else 0
        if size >= 124:
            place, length = struct.unpack_from("<II", data, _FILE_HEADER + 112)
            profile_end = _FILE_HEADER + place + length if place and _FILE_HEADER + place + length <= len(data) else 0
    else:
        raise Unfit("unsupported_format", f"BMP with a header of {size} bytes: convert it to PNG")
    require_pixels(width, abs(height), max_pixels)
    if compression in _UNREAD:
        raise Unfit("unsupported_format", f"BMP {_UNREAD[compression]}: convert it to PNG")
    if (bits, compression) == (2, _RAW):
        raise Unfit("unsupported_format", "BMP with 2 bits a pixel, as Windows CE has them: convert it to PNG")
    if bits not in _DEPTHS.get(compression, ()):
        raise Unfit("corrupt", f"{bits} bits a pixel with compression {compression} do not exist")
    entry = 3 if size == _CORE else 4
    if bits <= 8:
        colours = colours or 1 << bits
        if start in (0, _FILE_HEADER + size):
            start = palette + entry * colours
        elif start < palette:
            raise Unfit("corrupt", f"its pixels begin at byte {start:,}, inside its headers, which end at byte {palette:,}")
        colours = min((start - palette) // entry, 1 << bits)  # there may be more than the header counts, or fewer
        _require(data, palette, entry * colours, f"its palette of {colours:,} colours")
    else:
        colours = 0
        start = start or palette
    return _Header(width, abs(height), bits, compression, colours, start, profile_end)


def _require_rows(data: bytes, header: _Header, notes: list[Note]) -> int:
    """All rows must be there; the bytes that fill up the last one need not be. Returns where they end."""
    used = (header.width * header.bits + 7) // 8
    stride = (used + 3) // 4 * 4
    expected = stride * (header.height - 1) + used
    found = max(len(data) - header.start, 0)
    if found < expected:
        rows = f"{found // stride:,} of {header.height:,} rows"
        raise Unfit("truncated", f"{rows}: {found:,} bytes from byte {header.start:,} on, {expected:,} are expected")
    if found < stride * header.height:
        text = f"{found:,} bytes from byte {header.start:,} on, {stride * header.height:,} are expected"
        notes.append(Note("bad_metadata", f"the last row is not filled up: {text}; no pixel is missing"))
    if header.bits <= 8 and header.colours < 1 << header.bits:
        _require_colours(data, header, used, stride)
    return header.start + stride * header.height


def _require_colours(data: bytes, header: _Header, used: int, stride: int) -> None:
    cells = np.frombuffer(data, np.uint8, stride * (header.height - 1) + used, header.start)
    rows = np.lib.stride_tricks.as_strided(cells, (header.height, used), (stride, 1), writeable=False)
    highest = 0
    for at in range(0, header.height, 64):  # a few rows at a time: unpacking takes up to eight times their bytes
        block = rows[at : at + 64]
        if header.bits == 4:
            block = np.stack((block >> 4, block & 15), axis=2).reshape(len(block), -1)[:, : header.width]
        elif header.bits == 1:
            block = np.unpackbits(block, axis=1, count=header.width)
        highest = max(highest, int(block.max()))
    _require_colour(header, highest)


def _require_colour(header: _Header, highest: int) -> None:
    if highest >= header.colours:
        raise Unfit("corrupt", f"a pixel of colour {highest}, its palette has {header.colours}")


class _Runs:
    """Walks a run-length coded picture."""

    def __init__(self, data: bytes, header: _Header) -> None:
        self._data = data
        self._header = header
        self._x = self._y = 0
        self._skipped = 0
        self._too_long = 0
        self._highest = 0

    def walk(self, notes: list[Note]) -> int:
        """Go through the codes; returns where they end."""
        data, width, height = self._data, self._header.width, self._header.height
        at, is_over = self._header.start, False
        while True:
            if self._y == height - 1 and self._x == width and data[at : at + 2] != b"\0\1":
                break  # the last pixel is there: some files have no end code
            if self._y == height:
                at += 2 if data[at : at + 2] == b"\0\1" else 0
                break
            if at + 2 > len(data):
                raise Unfit("truncated", f"{self._there()}, then the file ends at byte {len(data):,} without an end code")
            count, value = data[at], data[at + 1]
            if is_over and (count or value > 1):
                raise Unfit("corrupt", f"{self._there()}, then a run before byte {at:,} that reaches beyond its row")
            if count:
                self._x += count
                self._see(bytes([value]), min(count, 2))
                is_over, self._x = self._x > width, min(self._x, width)
                self._too_long += is_over
                at += 2
            elif value == 0:
                self._skipped += width - self._x
                self._x, self._y, is_over = 0, self._y + 1, False
                at += 2
            elif value == 1:
                if self._y < height - 1 or self._x < width:
                    raise Unfit("corrupt", f"{self._there()}, then the end code at byte {at:,}")
                at += 2
                break
            elif value == 2:
                at = self._move(at)
            else:
                at = self._take(at, value)
        _require_colour(self._header, self._highest)
        if self._skipped:
            text = f"{self._skipped:,} pixels are left out in its {height:,} rows, the reader gives colour 0"
            notes.append(Note("bad_metadata", text))
        if self._too_long:
            text = f"{self._too_long:,} of its {height:,} rows of {width:,} pixels end with a run that is longer"
            notes.append(Note("bad_metadata", f"{text}, which the reader cuts off"))
        return at

    def _move(self, at: int) -> int:
        if at + 4 > len(self._data):
            raise Unfit("truncated", f"{self._there()}, then the file ends at byte {len(self._data):,} inside a code")
        right, down = self._data[at + 2], self._data[at + 3]
        self._x += right
        self._y += down
        self._skipped += right + down * self._header.width
        if self._x > self._header.width or self._y >= self._header.height:
            raise Unfit("corrupt", f"{self._there()}: a step at byte {at:,} leads out of the picture")
        return at + 4

    def _take(self, at: int, count: int) -> int:
        size = count if self._header.compression == _RLE8 else (count + 1) // 2
        if at + 2 + size > len(self._data):
            raise Unfit("truncated", f"{self._there()}, then the file ends at byte {len(self._data):,} inside a code")
        self._x += count
        if self._x > self._header.width:
            raise Unfit("corrupt", f"{self._there()}: {count} pixels at byte {at:,} reach beyond its row")
        self._see(self._data[at + 2 : at + 2 + size], count)
        return at + 2 + size + (size & 1)

    def _see(self, pixels: bytes, count: int) -> None:
        if self._header.colours == 1 << self._header.bits:
            return
        if self._header.compression == _RLE8:
            highest = max(pixels)
        else:
            highest = max([*(byte >> 4 for byte in pixels), *(byte & 15 for byte in pixels[: count // 2])])
        self._highest = max(self._highest, highest)

    def _there(self) -> str:
        return f"{self._y:,} of {self._header.height:,} rows and {self._x:,} pixels"


def _require(data: bytes, at: int, size: int, what: str) -> None:
    if at + size > len(data):
        raise Unfit(
            "truncated", f"ends at byte {len(data):,} inside {what}, where {size:,} bytes from byte {at:,} are expected"
        )
