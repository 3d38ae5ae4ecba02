"""Where the pictures lie that follow the first one in a camera's multi-picture JPEG file.

Facts: CIPA DC-007, "Multi-Picture Format", section 5.2: a segment APP2 named MPF holds an index in the form of TIFF tags, whose
places are counted from its byte-order mark; entries have 16 bytes: attributes, size, place, two numbers of other pictures.
The size is not looked at: Pillow 13.0 writes a wrong one from the third picture on, and a JPEG has an end marker of its own.
"""

from __future__ import annotations

__all__ = ["BrokenIndexError", "later_pictures"]

_COUNT, _ENTRIES = 0xB001, 0xB002
_ENTRY_BYTES = 16


class BrokenIndexError(ValueError):
    """The index cannot be read; the first picture is not touched by that."""


def later_pictures(data: bytes, index: bytes) -> list[int]:
    """Where all pictures but the first begin, as the index says.

    Args:
        data: the file.
        index: the body of its first MPF segment, behind the name.

    Raises:
        BrokenIndexError: it is cut off, or has not the form of an index.
    """
    order = {b"II*\0": "little", b"MM\0*": "big"}.get(index[:4])
    if order is None:
        raise BrokenIndexError(f"an index of {len(index)} bytes that begins with {index[:4].hex(' ') or 'nothing'}")
    is_big = order == "big"

    def number(at: int, size: int = 4) -> int:
        if at + size > len(index):
            raise BrokenIndexError(f"an index of {len(index)} bytes that points to byte {at}")
        return int.from_bytes(index[at : at + size], "big" if is_big else "little")

    tags = {}
    start = number(4)
    for at in range(start + 2, start + 2 + 12 * number(start, 2), 12):
        tags[number(at, 2)] = (number(at + 4), number(at + 8))
    if _COUNT not in tags or _ENTRIES not in tags:
        return []  # the later pictures have such segments too, without a list
    count, (size, entries) = tags[_COUNT][1], tags[_ENTRIES]
    if size != count * _ENTRY_BYTES or entries + size > len(index):
        raise BrokenIndexError(f"an index of {count:,} pictures with {size:,} bytes at byte {entries} of {len(index)}")
    base = data.find(b"MPF\0" + index) + 4
    places = range(entries, entries + size, _ENTRY_BYTES)
    for at in places:
        if form := number(at) >> 24 & 7:
            raise BrokenIndexError(f"picture {places.index(at) + 1} in form {form}, there is only 0, which is JPEG")
    return [base + number(at + 8) for at in places[1:]]
