"""The one thing that packer wants from Exif: the orientation. And whether the block is whole enough to be read.

Layout: TIFF 6.0, section 2; the tag is 0x0112 of the Exif standard (CIPA DC-008).
"""

from __future__ import annotations

from packer.model import Note

__all__ = ["BrokenTagsError", "TagBlock", "orientation", "orientation_or_note"]

_ORIENTATION = 0x0112


class BrokenTagsError(ValueError):
    """The block cannot be read; the picture beside it is not touched by that."""


class TagBlock:
    """A block of tags in the form of TIFF, as segments of JPEG hold them.

    Args:
        block: from its byte-order mark on.
        what: it is, for messages.

    Raises:
        BrokenTagsError: it is empty, or begins with something else.
    """

    def __init__(self, block: bytes, what: str) -> None:
        if block[:4] not in (b"II*\0", b"MM\0*"):
            start = block[:4].hex(" ") or "nothing"
            raise BrokenTagsError(f"{what} of {len(block)} bytes that begins with {start}")
        self._block = block
        self._what = what
        self._is_big = block[:1] == b"M"

    def number(self, at: int, size: int) -> int:
        """The number of so many bytes at a place.

        Raises:
            BrokenTagsError: it lies outside the block.
        """
        if at + size > len(self._block):
            raise BrokenTagsError(f"{self._what} of {len(self._block)} bytes that points to byte {at}")
        return int.from_bytes(self._block[at : at + size], "big" if self._is_big else "little")

    def entries(self) -> range:
        """Where the entries of the first directory lie, 12 bytes each: tag, type, count, value."""
        start = self.number(4, 4)
        return range(start + 2, start + 2 + 12 * self.number(start, 2), 12)


def orientation(block: bytes) -> int:
    """Orientation 1 to 8 in an Exif block (from its byte-order mark on); 1 where it has none or a senseless one.

    Raises:
        BrokenTagsError: the block is empty, begins with something else, or points outside itself.
    """
    tags = TagBlock(block, "an Exif block")
    for entry in tags.entries():
        if tags.number(entry, 2) == _ORIENTATION:
            value = tags.number(entry + 8, 2)
            return value if 1 <= value <= 8 else 1
    return 1


def orientation_or_note(block: bytes | None, notes: list[Note]) -> int:
    """The orientation, 1 where there is no block; a broken block adds a warning, since the picture beside it is sound."""
    if block is None:
        return 1
    try:
        return orientation(block)
    except BrokenTagsError as error:
        notes.append(Note("bad_metadata", str(error)))
        return 1
