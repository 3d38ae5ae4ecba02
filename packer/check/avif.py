"""Check AVIF files by their boxes; Pillow decodes every picture, and once more without the end of its data.

AV1 has no checksum, and the decoder that comes with Pillow (dav1d) says nothing of data that it does not need. So it is asked
(``packer.check.leftover``): of every item of the picture, and of the first and the last sample of every track, the last tile.
An item is made the primary one for it, so that a picture in a grid costs no more than itself.

Facts: ISO/IEC 14496-12 (boxes); AV1 Bitstream & Decoding Process Specification, section 5.3 (units, their sizes and kinds).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from packer.check import leftover, pictures
from packer.check.avifboxes import Box, Coded, boxes, read_items, read_samples
from packer.check.verdict import Finding
from packer.model import Note, Unfit

__all__ = ["check"]

_KNOWN = frozenset({b"ftyp", b"meta", b"mdat", b"moov", b"free", b"skip", b"uuid"})
_TILES = (4, 6)  # units that end with coded tiles: a tile group, a frame
_MOST = 16  # items to look at: a grid can have 65,536


def check(data: bytes, max_pixels: int) -> Finding:
    """Check a whole file.

    Raises:
        Unfit: ``truncated``, ``corrupt``, ``too_large``.
    """
    notes: list[Note] = []
    found = {box.name: box for box in _boxes_of_file(data, notes)}
    primary_at = 0
    items: list[Coded] = []
    samples: list[Coded] = []
    try:
        if b"meta" in found:
            primary_at, items = read_items(data, found[b"meta"])
        if b"moov" in found:
            samples = read_samples(data, found[b"moov"])
    except IndexError:
        items, samples = [], []  # a box ends inside a number: the decoder is the judge of what it makes of that
    for piece in (*items, *samples):
        if piece.is_used and piece.start + piece.size > len(data):
            left = max(len(data) - piece.start, 0)
            raise Unfit("truncated", f"{piece.what} at byte {piece.start:,} has {piece.size:,} bytes, {left:,} are left")
    finding = pictures.check(data, "avif", max_pixels, notes=notes)
    if samples:  # decoders prefer them
        _require_needed_samples(data, samples, max_pixels // (finding.width * finding.height))
    else:
        _require_needed_items(data, primary_at, [item for item in items if item.is_used][:_MOST])
    return finding


def _boxes_of_file(data: bytes, notes: list[Note]) -> Iterable[Box]:
    end = 0
    for box in boxes(data, 0, len(data)):
        if box.end > len(data):
            if box.name in _KNOWN:
                left = len(data) - box.at
                raise Unfit(
                    "truncated",
                    f"box {box.name.decode()!r} at byte {box.at:,} has {box.end - box.at:,} bytes, {left:,} are left",
                )
            break
        yield box
        end = box.end
    if end < len(data):
        notes.append(Note("trailing_bytes", f"{len(data) - end:,} bytes after the end of the picture"))


def _require_needed_items(data: bytes, primary_at: int, items: Iterable[Coded]) -> None:
    for item in items:
        number = item.item.to_bytes(4 if data[primary_at - 4] else 2, "big")
        alone = data[:primary_at] + number + data[primary_at + len(number) :]
        _require_needed(alone, data, item)


def _require_needed_samples(data: bytes, samples: Iterable[Coded], pictures_left: int) -> None:
    """Of the last picture, all that it depends on are decoded again."""
    last: dict[str, Coded] = {}
    for sample in samples:
        if not sample.frame:
            _require_needed(data, data, sample)
        elif sample.frame < pictures_left and _last_tiles(data, sample) is not None:
            last[sample.what.rpartition(" ")[2]] = sample
    for sample in last.values():
        _require_needed(data, data, sample)


def _require_needed(alone: bytes, data: bytes, piece: Coded) -> None:
    unit = _last_tiles(data, piece)
    if unit is None:
        return
    coded = data[unit.start : unit.end]
    file_with = partial(_file_with, alone, piece, unit)
    unneeded = leftover.count_unneeded(coded, "avif", piece.frame, file_with)
    if not unneeded:
        return
    # An item may be no part of the picture (a map of depths), or the decoder may take another way to it.
    changed = _file_with(data, piece, unit, leftover.flipped(coded))
    if leftover.digest_of_pixels(changed, "avif", piece.frame) == leftover.digest_of_pixels(data, "avif", piece.frame):
        return
    raise Unfit(
        "corrupt",
        f"{piece.what} at byte {piece.start:,} can be decoded without the last {unneeded:,} of its {piece.size:,} bytes: "
        "damage led the decoder astray before",
    )


class _Unit(NamedTuple):
    """An open bitstream unit: its kind, where its size stands and on how many bytes (0: it has none), and its content."""

    kind: int
    size_at: int
    size_bytes: int
    start: int
    end: int


def _last_tiles(data: bytes, piece: Coded) -> _Unit | None:
    """The last unit, if it ends with tiles."""
    at, end = piece.start, piece.start + piece.size
    unit = None
    while at < end:
        size_at = at + 1 + (data[at] >> 2 & 1)
        start, size = size_at, end - size_at
        if data[at] & 2:
            size = 0
            while start < end and start < size_at + 8:
                size |= (data[start] & 127) << 7 * (start - size_at)
                start += 1
                if not data[start - 1] & 128:
                    break
        unit = _Unit(data[at] >> 3 & 15, size_at, start - size_at, start, start + size)
        at = start + size
    return unit if unit is not None and unit.kind in _TILES and at == end else None


def _file_with(data: bytes, piece: Coded, unit: _Unit, coded: bytes) -> bytes:
    """The file with another content of a unit, as long or shorter. What is left over belongs to nothing."""
    shorter = unit.end - unit.start - len(coded)
    changed = bytearray(data)
    changed[unit.start : unit.start + len(coded)] = coded
    if shorter:
        size = unit.end - unit.start - shorter
        for place in range(unit.size_bytes):  # as many bytes as before
            more = 128 if place < unit.size_bytes - 1 else 0
            changed[unit.size_at + place] = size >> 7 * place & 127 | more
        changed[piece.size_at : piece.size_at + piece.size_bytes] = (piece.size - shorter).to_bytes(piece.size_bytes, "big")
    return bytes(changed)
