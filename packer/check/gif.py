"""Check GIF files by their blocks: decoders fill up pixels that are missing and pass over codes that do not exist.

The compressed pixels of every picture are walked, not unpacked: that there are as many as its header promises shows damage that
no decoder speaks of. Pillow decodes the first picture, since that is what the reader gives.

Facts: GIF89a specification. What encoders do beside it, and what is therefore no damage: an end code that is missing, bytes of
packaging behind it (golang/go issues 9856 and 16146), zero bytes between blocks (issue 38853), and a transparent colour beyond
the colour table (issue 15059).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from packer.check import lzw, pictures
from packer.check.verdict import Finding, require_pixels
from packer.model import Note, Unfit

__all__ = ["check"]

_IMAGE, _EXTENSION, _END = 0x2C, 0x21, 0x3B
_CONTROL = 0xF9
# Bits of a pixel: encoders write 2 for a picture of one bit, and one has written 11 for a picture of 256 colours, which some
# decoders refuse (giflib), but not Pillow.
_SMALLEST, _LARGEST = 1, 11


@dataclass(slots=True)
class _Walk:
    """What the blocks say."""

    width: int
    height: int
    colours: int
    frames: int = 0
    colourless: int = 0
    zeros: int = 0
    transparent: int | None = None
    notes: list[Note] = field(default_factory=list)


def check(data: bytes, max_pixels: int) -> Finding:
    """Check a whole file.

    Raises:
        Unfit: ``truncated``, ``corrupt``, ``too_large``.
    """
    found = _walk_blocks(data, max_pixels)
    return pictures.check(data, "gif", max_pixels, frames=found.frames, notes=found.notes)


def _walk_blocks(data: bytes, max_pixels: int) -> _Walk:
    _require(data, 0, 13, "the header")
    width, height = int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
    at, colours = _colour_table(data, 13, data[10], "the global colour table")
    found = _Walk(width, height, colours)
    while at < len(data):
        kind = data[at]
        if kind == _IMAGE:
            at = _take_image(data, at, found, max_pixels)
        elif kind == _EXTENSION:
            at = _take_extension(data, at, found)
        elif kind == _END:
            if at + 1 < len(data):
                found.notes.append(Note("trailing_bytes", f"{len(data) - at - 1:,} bytes after the end of the picture"))
            break
        elif kind:
            raise Unfit("corrupt", f"byte {at:,} is 0x{kind:02x}, where a block or the end byte 0x3b is expected")
        else:
            found.zeros += 1
            at += 1
    else:
        if not found.frames:
            raise Unfit("truncated", f"ends at byte {at:,}, before any picture")
        found.notes.append(
            Note("bad_metadata", f"no end byte (0x3b) after {found.frames} whole pictures; there may have been more")
        )
    if not found.frames:
        raise Unfit("corrupt", f"ends at byte {at:,} without any picture")
    if found.zeros:
        found.notes.append(Note("bad_metadata", f"{found.zeros:,} zero bytes between its blocks"))
    return found


def _take_extension(data: bytes, at: int, found: _Walk) -> int:
    block, end = _blocks(data, at + 2, "an extension")
    if data[at + 1] == _CONTROL and len(block) >= 4:
        found.transparent = block[3] if block[0] & 1 else None
    return end


def _take_image(data: bytes, at: int, found: _Walk, max_pixels: int) -> int:
    where = f"picture {found.frames + 1} at byte {at:,}"
    _require(data, at, 10, f"the header of {where}")
    left, top, width, height = (int.from_bytes(data[at + i : at + i + 2], "little") for i in (1, 3, 5, 7))
    if not found.frames:  # decoders make the screen as large as its first picture needs
        require_pixels(max(found.width, left + width), max(found.height, top + height), max_pixels)
        _look_at_place(found, left, top, width, height, where)
    start, colours = _colour_table(data, at + 10, data[at + 9], f"the colour table of {where}")
    colours = colours or found.colours
    _require(data, start, 1, where)
    bits = data[start]
    if not _SMALLEST <= bits <= _LARGEST:
        raise Unfit("corrupt", f"{where}: {bits} bits a pixel, there are {_SMALLEST} to {_LARGEST}")
    try:
        stream, end = _blocks(data, start + 1, where)
    except Unfit as unfit:
        raise Unfit(unfit.code, f"{unfit.detail}; it should hold {width} × {height} pixels") from None
    highest = _require_all_pixels(stream, bits, width * height, where)
    if highest > 255:
        raise Unfit("corrupt", f"{where}: a pixel of colour {highest}, there are 256 at most")
    if not colours:
        if not found.colourless:
            found.notes.append(
                Note("bad_metadata", f"{where}: no colour table, so that its pixels are numbers without a colour")
            )
        found.colourless += 1
    elif highest >= colours and highest != found.transparent and (1 << bits) > colours:
        raise Unfit("corrupt", f"{where}: a pixel of colour {highest}, its table has {colours}")
    found.frames += 1
    found.transparent = None
    return end


def _look_at_place(found: _Walk, left: int, top: int, width: int, height: int, where: str) -> None:
    """The first picture should lie on the screen; one of no size is a habit of some encoders."""
    if not found.width or not found.height or (left + width <= found.width and top + height <= found.height):
        return
    text = f"{where}: {width} × {height} at {left}, {top} does not fit on a screen of {found.width} × {found.height}"
    if left >= found.width or top >= found.height:
        raise Unfit("corrupt", text)
    found.notes.append(Note("bad_metadata", f"{text}, which the reader extends"))


def _require_all_pixels(stream: bytes, bits: int, pixels: int, where: str) -> int:
    """Compare what a stream unpacks to with what there should be; returns the highest colour in it."""
    got = lzw.walk(stream, bits, msb_first=False, expected=pixels)
    if got.unpacked < pixels:
        what = f"{where}: {got.unpacked:,} of {pixels:,} pixels"
        if got.bad_code_at is not None:
            raise Unfit("corrupt", f"{what}, then a code that does not exist, {got.bad_code_at:,} bytes into {len(stream):,}")
        if got.ended:
            raise Unfit("corrupt", f"{what}, then the end code, {got.used:,} bytes into {len(stream):,}")
        raise Unfit("corrupt", f"{what} in {len(stream):,} bytes")
    is_padding = got.filled_at is not None and not stream[got.filled_at :].strip(b"\0")
    if not is_padding and (got.unpacked > pixels or got.bad_code_at is not None):
        raise Unfit("corrupt", f"{where}: more than its {pixels:,} pixels, seen {got.used:,} bytes into {len(stream):,}")
    return got.highest


def _colour_table(data: bytes, at: int, flags: int, what: str) -> tuple[int, int]:
    """Where what follows begins, and the number of colours; 0 where the flags say that there is no table."""
    if not flags & 0x80:
        return at, 0
    colours = 2 << (flags & 7)
    _require(data, at, 3 * colours, what)
    return at + 3 * colours, colours


def _blocks(data: bytes, at: int, what: str) -> tuple[bytes, int]:
    """The bytes of a chain of blocks, and where it ends: each begins with its size, one of size 0 is the last."""
    pieces: list[bytes] = []
    while True:
        _require(data, at, 1, what)
        size = data[at]
        if not size:
            return b"".join(pieces), at + 1
        _require(data, at + 1, size, what)
        pieces.append(data[at + 1 : at + 1 + size])
        at += 1 + size


def _require(data: bytes, at: int, size: int, what: str) -> None:
    if at + size > len(data):
        raise Unfit(
            "truncated", f"ends at byte {len(data):,} inside {what}, where {size:,} bytes from byte {at:,} are expected"
        )
