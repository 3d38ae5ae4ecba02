"""TIFF files made by hand: what Pillow does not write, or would not write wrong."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

__all__ = ["Page", "by_pillow", "cut_up", "packbits", "page_of", "write"]

_LETTERS = {1: "B", 2: "B", 3: "H", 4: "L", 7: "B", 12: "d", 16: "Q"}
_ENDS = {"<": b"II", ">": b"MM"}

Array = npt.NDArray[Any]
Value = Sequence[int]


@dataclass
class Page:
    """One picture: its tags but those of the pieces, and its strips or tiles.

    ``offsets`` and ``counts`` may replace what is true of the pieces; ``None`` leaves the tag out.
    """

    tags: dict[int, tuple[int, Value]]
    pieces: list[bytes]
    tiled: bool = False
    offsets: Any = field(default=lambda true: true)
    counts: Any = field(default=lambda true: true)


def write(*pages: Page, order: str = "<", big: bool = False) -> bytes:
    """A file with these pictures, the directory of each behind its pieces."""
    wide, size = ("Q", 8) if big else ("L", 4)
    head = _ENDS[order] + (struct.pack(order + "HHH", 43, 8, 0) if big else struct.pack(order + "H", 42))
    out = bytearray(head)
    hole = len(out)
    out += struct.pack(order + wide, 0)
    for page in pages:
        where = []
        for piece in page.pieces:
            where.append(len(out))
            out += piece + b"\0" * (len(piece) % 2)
        tags = dict(page.tags)
        kind = 16 if big else 4
        for tag, change, true in (
            (324 if page.tiled else 273, page.offsets, where),
            (325 if page.tiled else 279, page.counts, [len(piece) for piece in page.pieces]),
        ):
            value = change(true)
            if value is not None:
                tags[tag] = (kind, value)
        entries = b""
        for tag, (kind, values) in sorted(tags.items()):
            stored = struct.pack(f"{order}{len(values)}{_LETTERS[kind]}", *values)
            if len(stored) > size:
                at = struct.pack(order + wide, len(out))
                out += stored + b"\0" * (len(stored) % 2)
                stored = at
            entries += struct.pack(order + "HH" + wide, tag, kind, len(values)) + stored.ljust(
                struct.calcsize(order + wide), b"\0"
            )
        struct.pack_into(order + wide, out, hole, len(out))
        out += struct.pack(order + ("Q" if big else "H"), len(tags)) + entries
        hole = len(out)
        out += struct.pack(order + wide, 0)
    return bytes(out)


def cut_up(pixels: Array, across: int, down: int, *, planar: bool = False, tiled: bool = False) -> list[Array]:
    """The strips or tiles of an array of rows, pixels and samples; tiles at the edge are filled up."""
    planes = [pixels[..., index : index + 1] for index in range(pixels.shape[2])] if planar else [pixels]
    found = []
    for plane in planes:
        for y in range(0, plane.shape[0], down):
            for x in range(0, plane.shape[1], across):
                piece = plane[y : y + down, x : x + across]
                if tiled:
                    missing = ((0, down - piece.shape[0]), (0, across - piece.shape[1]), (0, 0))
                    piece = np.pad(piece, missing, mode="edge")
                found.append(piece)
    return found


def page_of(
    pixels: Array,
    pack: Any = bytes,
    compression: int = 1,
    *,
    order: str = "<",
    rows: int = 16,
    tile: tuple[int, int] | None = None,
    planar: bool = False,
    **changes: Any,
) -> Page:
    """A page with the pixels of an array (rows, pixels, samples); ``pack`` compresses the bytes of each piece."""
    height, width, samples = pixels.shape
    across, down = tile or (width, rows)
    pieces = cut_up(pixels, across, down, planar=planar, tiled=tile is not None)
    stored = np.dtype(order + pixels.dtype.str[1:])
    tags: dict[int, tuple[int, Value]] = {
        256: (3, [width]), 257: (3, [height]), 258: (3, [8 * pixels.dtype.itemsize] * samples), 259: (3, [compression]),
        262: (3, [2 if samples == 3 else 1]), 277: (3, [samples]), 284: (3, [2 if planar else 1]),
    }  # fmt: skip
    if tile:
        tags |= {322: (3, [across]), 323: (3, [down])}
    else:
        tags[278] = (3, [down])
    tags |= changes.pop("tags", {})
    return Page(tags, [pack(piece.astype(stored).tobytes()) for piece in pieces], tiled=tile is not None, **changes)


def packbits(data: bytes, row: int) -> bytes:
    """Every row in runs of its own: of literal bytes, with one repeated byte wherever four are equal."""
    out = bytearray()
    for start in range(0, len(data), row):
        line = data[start : start + row]
        at = 0
        while at < len(line):
            same = 1
            while at + same < len(line) and same < 128 and line[at + same] == line[at]:
                same += 1
            if same >= 4:
                out += bytes([257 - same, line[at]])
                at += same
                continue
            size = min(64, len(line) - at)
            out += bytes([size - 1]) + line[at : at + size]
            at += size
    return bytes(out)


def by_pillow(picture: Image.Image, **options: Any) -> bytes:
    """A file as Pillow writes it."""
    buffer = io.BytesIO()
    picture.save(buffer, "TIFF", **options)
    return buffer.getvalue()
