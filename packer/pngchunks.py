"""The chunks of a PNG file, and the file without those that are no part of the picture.

Facts: W3C, Portable Network Graphics (third edition), section 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["SIGNATURE", "Chunk", "chunks", "without_metadata"]

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PICTURE = frozenset({b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"})


class Chunk(NamedTuple):
    """A chunk: its type, where its data begin, their length as the chunk says, and whether the file holds all of it."""

    type: bytes
    start: int
    length: int
    whole: bool


def chunks(data: bytes) -> Iterator[Chunk]:
    """The chunks up to the end chunk, or up to the end of the file; the last one may not be whole."""
    position = len(SIGNATURE)
    while position + 8 <= len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        kind = data[position + 4 : position + 8]
        end = position + 12 + length
        yield Chunk(kind, position + 8, length, end <= len(data))
        if kind == b"IEND" or end > len(data):
            return
        position = end


def without_metadata(data: bytes) -> bytes:
    """The file with only the chunks that make the (first) picture.

    Pillow refuses a sound picture whose colour profile inflates to more than 1 MiB, whose text has a wrong checksum, or that
    has frames of an animation without its header.
    """
    kept = [SIGNATURE]
    kept += [data[c.start - 8 : c.start + c.length + 4] for c in chunks(data) if c.type in _PICTURE and c.whole]
    return b"".join(kept)
