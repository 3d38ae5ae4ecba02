"""Where the pictures lie that follow the first one in a camera's multi-picture JPEG file.

Facts: CIPA DC-007, "Multi-Picture Format", section 5.2: a segment APP2 named MPF holds an index in the form of TIFF tags, whose
places are counted from its byte-order mark; entries have 16 bytes: attributes, size, place, two numbers of other pictures.
The size is not looked at: Pillow 13.0 writes a wrong one from the third picture on, and a JPEG has an end marker of its own.
"""

from __future__ import annotations

from packer.exif import BrokenTagsError, TagBlock

__all__ = ["later_pictures"]

_COUNT, _ENTRIES = 0xB001, 0xB002
_ENTRY_BYTES = 16


def later_pictures(data: bytes, index: bytes) -> list[int]:
    """Where all pictures but the first begin, as the index says.

    Args:
        data: the file.
        index: the body of its first MPF segment, behind the name.

    Raises:
        BrokenTagsError: it is cut off, or has not the form of an index; the first picture is not touched by that.
    """
    block = TagBlock(index, "an index")
    tags = {block.number(at, 2): (block.number(at + 4, 4), block.number(at + 8, 4)) for at in block.entries()}
    if _COUNT not in tags or _ENTRIES not in tags:
        return []  # the later pictures have such segments too, without a list
    count, (size, entries) = tags[_COUNT][1], tags[_ENTRIES]
    if size != count * _ENTRY_BYTES or entries + size > len(index):
        raise BrokenTagsError(f"an index of {count:,} pictures with {size:,} bytes at byte {entries} of {len(index)}")
    base = data.find(b"MPF\0" + index) + 4
    places = range(entries, entries + size, _ENTRY_BYTES)
    for at in places:
        if form := block.number(at, 4) >> 24 & 7:
            raise BrokenTagsError(f"picture {places.index(at) + 1} in form {form}, there is only 0, which is JPEG")
    return [base + block.number(at + 8, 4) for at in places[1:]]
