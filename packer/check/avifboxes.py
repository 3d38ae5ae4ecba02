"""Read from the boxes of an AVIF file where the coded pixels of its picture are, and where their sizes stand.

Facts: ISO/IEC 14496-12, sections 8.6 and 8.7 (tables of samples), 8.11 (meta, iloc, pitm, iinf, iref); AV1 Image File Format,
with alpha as an auxiliary item or track, and grids.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Box", "Coded", "boxes", "read_items", "read_samples"]


class Box(NamedTuple):
    """A box: where it begins, where its content does, and where it ends as it says."""

    name: bytes
    at: int
    start: int
    end: int


class Coded(NamedTuple):
    """A stream of AV1 in one piece.

    Attributes:
        what: it is, in words.
        start: of its data.
        size: of its data.
        size_at: where that number stands, big-endian.
        size_bytes: of that number.
        is_used: for the picture itself, so that it must be there.
        item: number of an item, 0 for a sample of a track.
        frame: number of the picture that it is part of, from 0.
    """

    what: str
    start: int
    size: int
    size_at: int
    size_bytes: int
    is_used: bool
    item: int = 0
    frame: int = 0


def boxes(data: bytes, at: int, end: int) -> Iterator[Box]:
    """The boxes between two bytes; the last one may end beyond them. What is too short for a box is left out."""
    while at + 8 <= end:
        size, start = _number(data, at, 4), at + 8
        if size == 1:
            size, start = _number(data, at + 8, 8), at + 16
        elif size == 0:
            size = end - at
        if size < start - at:
            return
        yield Box(data[at + 4 : at + 8], at, start, at + size)
        at += size


def read_items(data: bytes, meta: Box) -> tuple[int, list[Coded]]:
    """Where the number of the primary item stands, 0 where there is none, and all items that lie in one piece.

    Raises:
        IndexError: a box ends inside a number.
    """
    inner = {box.name: box for box in boxes(data, meta.start + 4, meta.end)}
    if b"iloc" not in inner or b"pitm" not in inner:
        return 0, []
    at = inner[b"pitm"].start + 4
    primary = _number(data, at, 4 if data[at - 4] else 2)
    kinds = _kinds(data, inner[b"iinf"]) if b"iinf" in inner else {}
    links = list(_links(data, inner[b"iref"])) if b"iref" in inner else []
    wholes = {primary, *(source for name, source, targets in links if name == b"auxl" and primary in targets)}
    parts = {part for name, source, targets in links if name == b"dimg" and source in wholes for part in targets}
    idat = inner[b"idat"].start if b"idat" in inner else 0
    used = {item for item in wholes | parts if kinds.get(item) == b"av01"}
    return at, list(_extents(data, inner[b"iloc"], used, idat))


def _kinds(data: bytes, box: Box) -> dict[int, bytes]:
    found = {}
    for entry in boxes(data, box.start + (8 if data[box.start] else 6), box.end):
        width = 4 if data[entry.start] == 3 else 2
        at = entry.start + 4 + width + 2
        found[_number(data, entry.start + 4, width)] = data[at : at + 4]
    return found


def _links(data: bytes, box: Box) -> Iterator[tuple[bytes, int, list[int]]]:
    """Kind of a reference, the item that refers, and those that it refers to."""
    width = 4 if data[box.start] else 2
    for entry in boxes(data, box.start + 4, box.end):
        at = entry.start + width
        count = min(_number(data, at, 2), (entry.end - at - 2) // width)
        yield entry.name, _number(data, entry.start, width), [_number(data, at + 2 + width * i, width) for i in range(count)]


def _extents(data: bytes, box: Box, used: set[int], idat: int) -> Iterator[Coded]:
    version, sizes = data[box.start], _number(data, box.start + 4, 2)
    offset_bytes, length_bytes, base_bytes, index_bytes = sizes >> 12, sizes >> 8 & 15, sizes >> 4 & 15, sizes & 15
    wide = 4 if version == 2 else 2
    count, at = _number(data, box.start + 6, wide), box.start + 6 + wide
    for _ in range(count):
        item, at = _number(data, at, wide), at + wide
        method = 0
        if version:
            method, at = _number(data, at, 2) & 15, at + 2
        base, at = _number(data, at + 2, base_bytes), at + 2 + base_bytes
        extents, at = _number(data, at, 2), at + 2
        each = offset_bytes + length_bytes + (index_bytes if version else 0)
        if extents == 1 and length_bytes and method <= 1:
            place = at + each - offset_bytes - length_bytes
            start = base + _number(data, place, offset_bytes) + (idat if method else 0)
            size = _number(data, place + offset_bytes, length_bytes)
            yield Coded(f"item {item}", start, size, place + offset_bytes, length_bytes, item in used, item)
        at += each * extents


def read_samples(data: bytes, moov: Box) -> list[Coded]:
    """The samples of all tracks of pictures.

    Raises:
        IndexError: a box ends inside a number.
    """
    found: list[Coded] = []
    for number, track in enumerate((box for box in boxes(data, moov.start, moov.end) if box.name == b"trak"), 1):
        media = {box.name: box for box in boxes(data, track.start, track.end)}.get(b"mdia")
        if media is None:
            continue
        inner = {box.name: box for box in boxes(data, media.start, media.end)}
        if b"hdlr" not in inner or b"minf" not in inner or data[inner[b"hdlr"].start + 8 :][:4] not in (b"pict", b"auxv"):
            continue
        table = {box.name: box for box in boxes(data, inner[b"minf"].start, inner[b"minf"].end)}.get(b"stbl")
        if table is not None:
            found.extend(_samples(data, table, f"of track {number}"))
    return found


def _samples(data: bytes, table: Box, of: str) -> Iterator[Coded]:
    inner = {box.name: box for box in boxes(data, table.start, table.end)}
    sizes, runs = inner.get(b"stsz"), inner.get(b"stsc")
    wide = 4 if b"stco" in inner else 8
    places = inner.get(b"stco", inner.get(b"co64"))
    if sizes is None or runs is None or places is None or _number(data, sizes.start + 4, 4):
        return
    count = min(_number(data, sizes.start + 8, 4), (sizes.end - sizes.start - 12) // 4)
    firsts = {}
    for at in range(runs.start + 8, runs.start + 8 + 12 * _number(data, runs.start + 4, 4), 12):
        firsts[_number(data, at, 4)] = _number(data, at + 4, 4)
    sample = in_chunk = 0
    for chunk in range(_number(data, places.start + 4, 4)):
        start, in_chunk = _number(data, places.start + 8 + wide * chunk, wide), firsts.get(chunk + 1, in_chunk)
        for _ in range(min(in_chunk, count - sample)):
            at = sizes.start + 12 + 4 * sample
            size = _number(data, at, 4)
            yield Coded(f"picture {sample + 1} {of}", start, size, at, 4, is_used=True, frame=sample)
            start, sample = start + size, sample + 1


def _number(data: bytes, at: int, size: int) -> int:
    if at + size > len(data):
        raise IndexError(f"a number at byte {at:,} beyond {len(data):,} bytes")
    return int.from_bytes(data[at : at + size], "big")
