"""Ask libwebp again for the pictures of a WebP file, without the end of their data; see ``packer.check.leftover``.

Each stream of a picture (lossy, lossless, the alpha of a lossy one) is put alone into a file of the simplest kind, so that an
animation costs no canvas. Of a lossy one the last partition of coefficients is cut: damage to the others leads astray in it as
well, since rows of blocks take turns, and each depends on the one above.

Facts: RFC 9649, sections 2.7.1.2 (the alpha of a lossy picture is a lossless one without the header) and 3.4.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from packer.check import leftover
from packer.model import Unfit

__all__ = ["Coded", "require_needed"]

_NAMES = {"VP8 ": "its lossy picture", "VP8L": "its lossless picture", "ALPH": "its alpha"}


class Coded(NamedTuple):
    """Where the pixels of a picture are.

    Attributes:
        name: of the chunk.
        start: of its content.
        tail: where the part of it begins that is looked at.
        end: of its content.
        size: width and height of the picture.
        where: in the file; empty, or ending with a colon.
    """

    name: str
    start: int
    tail: int
    end: int
    size: tuple[int, int]
    where: str = ""


def require_needed(data: bytes, coded: Iterable[Coded], max_pixels: int) -> None:
    """Decode pictures without their last bytes, to at most ``max_pixels`` in all.

    Raises:
        Unfit: one of them is decoded all the same (``corrupt``).
    """
    for piece in coded:
        max_pixels -= piece.size[0] * piece.size[1]
        if max_pixels < 0:
            break
        before = data[piece.start : piece.tail]
        if piece.name == "ALPH":
            if data[piece.start] & 3 != 1:
                continue  # it is raw
            width, height = piece.size
            before = b"\x2f" + (width - 1 | height - 1 << 14 | 1 << 28).to_bytes(4, "little")
        file_with = partial(_file_with, piece.name, before)
        unneeded = leftover.count_unneeded(data[piece.tail : piece.end], "webp", 0, file_with)
        if unneeded:
            raise Unfit(
                "corrupt",
                f"{piece.where}{_NAMES[piece.name]} at byte {piece.start:,} can be decoded without the last {unneeded:,} "
                f"of its {piece.end - piece.start:,} bytes: damage led the decoder astray before",
            )


def _file_with(name: str, before: bytes, coded: bytes) -> bytes:
    """A file of the simplest kind with nothing but this picture."""
    body = before + coded
    chunk = name.replace("ALPH", "VP8L").encode() + len(body).to_bytes(4, "little") + body + bytes(len(body) & 1)
    return b"RIFF" + (len(chunk) + 4).to_bytes(4, "little") + b"WEBP" + chunk
