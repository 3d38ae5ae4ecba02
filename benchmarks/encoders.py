"""Writers of kinds of files that Pillow reads and does not write: interlaced PNG, run-length BMP, tiled TIFF.

Facts: W3C, Portable Network Graphics (third edition), sections 8 and 9; Microsoft, BITMAPINFOHEADER and "Bitmap
Compression"; Adobe, TIFF 6.0, sections 2 and 15.
"""

from __future__ import annotations

import struct
import zlib
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))  # x, y, steps
_TILE = 64
_SHORT, _LONG = 3, 4  # types of TIFF fields
_LONGEST_RUN = 255
_SHORTEST_ABSOLUTE = 3  # shorter ones would be an end of row, of picture, or a step


def encode_interlaced_png(pixels: Pixels) -> bytes:
    """An RGB picture, shape (height, width, 3), as a PNG in the seven passes of Adam7."""
    height, width, _ = pixels.shape
    passes = [pixels[y::dy, x::dx] for x, y, dx, dy in _ADAM7]
    rows = b"".join(_filter_rows(part) for part in passes if part.size)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 1)
    compressed = zlib.compress(rows, 6)
    middle = len(compressed) // 2
    chunks = [(b"IHDR", header), (b"IDAT", compressed[:middle]), (b"IDAT", compressed[middle:]), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_png_chunk(name, body) for name, body in chunks)


def encode_rle8_bmp(indices: Pixels, palette: bytes) -> bytes:
    """A palette picture, shape (height, width), as a BMP with run lengths; ``palette`` is red, green, blue, 256 times."""
    height, width = indices.shape
    body = b"".join(_rle8_row(row.tobytes()) + b"\0\0" for row in indices[::-1]) + b"\0\1"
    colours = b"".join(palette[i : i + 3][::-1] + b"\0" for i in range(0, 768, 3))
    offset = 14 + 40 + len(colours)
    header = struct.pack("<2sIHHI", b"BM", offset + len(body), 0, 0, offset)
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(body), 2835, 2835, 256, 0)
    return header + info + colours + body


def encode_tiled_tiff(pixels: Pixels, *, deflate: bool) -> bytes:
    """An RGB picture, shape (height, width, 3), as a TIFF of tiles of 64 x 64, raw or deflated."""
    height, width, _ = pixels.shape
    padded = np.pad(pixels, ((0, -height % _TILE), (0, -width % _TILE), (0, 0)), mode="edge")
    tiles = [
        padded[y : y + _TILE, x : x + _TILE].tobytes()
        for y in range(0, padded.shape[0], _TILE)
        for x in range(0, padded.shape[1], _TILE)
    ]
    if deflate:
        tiles = [zlib.compress(tile) for tile in tiles]
    fields = 10
    lists_at = 8 + 2 + 12 * fields + 4
    bits_at = lists_at + 8 * len(tiles)
    first = bits_at + 6
    sizes = [len(tile) for tile in tiles]
    offsets = [first + sum(sizes[:number]) for number in range(len(tiles))]
    directory = [
        (256, _LONG, 1, width),
        (257, _LONG, 1, height),
        (258, _SHORT, 3, bits_at),
        (259, _SHORT, 1, 8 if deflate else 1),
        (262, _SHORT, 1, 2),
        (277, _SHORT, 1, 3),
        (322, _LONG, 1, _TILE),
        (323, _LONG, 1, _TILE),
        # A single number stands in the field itself.
        (324, _LONG, len(tiles), lists_at if len(tiles) > 1 else first),
        (325, _LONG, len(tiles), lists_at + 4 * len(tiles) if len(tiles) > 1 else sizes[0]),
    ]
    parts = [b"II*\0", struct.pack("<IH", 8, fields)]
    parts += [struct.pack("<HHII", *entry) for entry in directory]
    parts += [bytes(4), struct.pack(f"<{2 * len(tiles)}I", *offsets, *sizes), struct.pack("<3H", 8, 8, 8), *tiles]
    return b"".join(parts)


def _filter_rows(part: Pixels) -> bytes:
    """The rows of one pass, each behind its filter byte: none, difference to the left, difference to above, in turn."""
    rows = part.reshape(part.shape[0], -1)
    left = np.zeros_like(rows)
    left[:, 3:] = rows[:, :-3]
    above = np.zeros_like(rows)
    above[1:] = rows[:-1]
    filtered = (rows, rows - left, rows - above)
    return b"".join(bytes([y % 3]) + filtered[y % 3][y].tobytes() for y in range(len(rows)))


def _png_chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _rle8_row(row: bytes) -> bytes:
    """Runs of at least three as two bytes, what is between them as it is."""
    parts: list[bytes] = []
    waiting = bytearray()
    for value, group in groupby(row):
        count = len(list(group))
        if count < 3:
            waiting += bytes([value]) * count
            continue
        parts.append(_rle8_literals(waiting))
        waiting = bytearray()
        parts += [bytes([min(_LONGEST_RUN, count - at), value]) for at in range(0, count, _LONGEST_RUN)]
    return b"".join([*parts, _rle8_literals(waiting)])


def _rle8_literals(values: bytes | bytearray) -> bytes:
    parts: list[bytes] = []
    for at in range(0, len(values), _LONGEST_RUN):
        part = bytes(values[at : at + _LONGEST_RUN])
        if len(part) < _SHORTEST_ABSOLUTE:
            parts += [bytes([1, value]) for value in part]
        else:
            parts.append(bytes([0, len(part)]) + part + bytes(len(part) % 2))
    return b"".join(parts)
