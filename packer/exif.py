"""The one thing that packer wants from Exif: the orientation. And whether the block is whole enough to be read.

Layout: TIFF 6.0, section 2; the tag is 0x0112 of the Exif standard (CIPA DC-008).
"""

from __future__ import annotations

from packer.model import Note

__all__ = ["BrokenExifError", "orientation", "orientation_or_note"]

_ORIENTATION = 0x0112


class BrokenExifError(ValueError):
    """The block cannot be read; the picture beside it is not touched by that."""


def orientation(block: bytes) -> int:
    """Orientation 1 to 8 in an Exif block (from its byte-order mark on); 1 where it has none or a senseless one.

    Raises:
        BrokenExifError: the block is empty, begins with something else, or points outside itself.
    """
    order = {b"II*\0": "little", b"MM\0*": "big"}.get(block[:4])
    if order is None:
        raise BrokenExifError(f"an Exif block of {len(block)} bytes that begins with {block[:4].hex(' ') or 'nothing'}")
    big = order == "big"

    def number(at: int, size: int) -> int:
        if at + size > len(block):
            raise BrokenExifError(f"an Exif block of {len(block)} bytes that points to byte {at}")
        return int.from_bytes(block[at : at + size], "big" if big else "little")

    start = number(4, 4)
    for entry in range(start + 2, start + 2 + 12 * number(start, 2), 12):
        if number(entry, 2) == _ORIENTATION:
            value = number(entry + 8, 2)
            return value if 1 <= value <= 8 else 1
    return 1


def orientation_or_note(block: bytes | None, notes: list[Note]) -> int:
    """The orientation, 1 where there is no block; a broken block adds a warning, since the picture beside it is sound."""
    if block is None:
        return 1
    try:
        return orientation(block)
    except BrokenExifError as error:
        notes.append(Note("bad_metadata", str(error)))
        return 1
