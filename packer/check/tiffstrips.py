"""Unpack the strips and tiles of TIFF files, and compare them with what is promised. Nothing unpacked is kept.

Facts: TIFF revision 6.0, sections 9 (PackBits), 10 and 11 (fax), 13 (LZW); Adobe Photoshop TIFF Technical Notes (Deflate,
and JPEG as the tables of a directory with the abbreviated streams of its strips).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial

from packer.check import fax, jpeg, jpegmarkers, lzw
from packer.check.tiffraster import Piece, Raster
from packer.model import Unfit

__all__ = ["JPEG", "RAW", "look_at_jpeg", "look_of"]

RAW, JPEG = 1, 7
"""Numbers of compressions."""

_BLOCK = 1 << 18  # bytes inflated in one go
_PADDING = 3  # bytes that a writer may add to end at an even address, or at one of four


def _short(piece: Piece, found: int, data: memoryview) -> Unfit:
    told = f" of {piece.stored:,}" if piece.stored > len(data) else ""
    return Unfit(
        "truncated",
        f"{piece.name} at byte {piece.offset:,} holds {found:,} bytes of pixels in {len(data):,}{told} bytes, "
        f"{piece.expected:,} are promised",
    )


def _long(piece: Piece) -> Unfit:
    return Unfit("corrupt", f"{piece.name} at byte {piece.offset:,} holds more than the {piece.expected:,} bytes promised")


def _look_at_raw(data: memoryview, piece: Piece) -> int:
    if len(data) < piece.expected:
        raise _short(piece, len(data), data)
    return piece.expected


def _look_at_deflate(data: memoryview, piece: Piece) -> int:
    stream = zlib.decompressobj()
    at = found = 0
    rest: bytes | memoryview = b""
    try:
        while not stream.eof and (rest or at < len(data)):
            if not rest:  # in pieces: what is left of the input is copied each time
                rest = data[at : at + _BLOCK]
                at += len(rest)
            found += len(stream.decompress(rest, _BLOCK))
            rest = stream.unconsumed_tail
            if found > piece.full:
                raise _long(piece)
    except zlib.error as error:
        raise Unfit("corrupt", f"{piece.name} at byte {piece.offset:,} does not inflate: {error}") from None
    if found < piece.expected:
        raise _short(piece, found, data)
    if not stream.eof:
        raise Unfit("truncated", f"{piece.name} at byte {piece.offset:,} ends without its checksum")
    if found not in (piece.expected, piece.full):
        raise _long(piece)
    return at - len(stream.unused_data)


def _look_at_lzw(data: memoryview, piece: Piece) -> int:
    if len(data) > 1 and not data[0] and data[1] & 1:
        return 1  # libtiff's old order of bits, which the decoder must judge
    found = lzw.walk(bytes(data), 8, msb_first=True, expected=piece.full)
    if found.bad_code_at is not None and found.unpacked < piece.expected:
        raise Unfit(
            "corrupt",
            f"{piece.name} at byte {piece.offset:,} has a code that cannot be there after {found.unpacked:,} "
            f"of {piece.expected:,} bytes",
        )
    if found.unpacked < piece.expected:
        raise _short(piece, found.unpacked, data)
    if found.unpacked not in (piece.expected, piece.full):
        raise _long(piece)
    return found.used


def _look_at_packbits(data: memoryview, piece: Piece) -> int:
    """There is no end mark, so a run that lost its place shows only in what it leaves over."""
    at, found = _skip_runs(data, 0, piece.expected)
    if found == piece.expected < piece.full and not _is_padding(data, at):
        at, more = _skip_runs(data, at, piece.full - piece.expected)
        found += more
    if found < piece.expected or at > len(data):
        raise _short(piece, found - max(0, at - len(data)), data)
    if found not in (piece.expected, piece.full) or (piece.stored and not _is_padding(data, at)):
        raise _long(piece)
    return at


def _skip_runs(data: memoryview, at: int, wanted: int) -> tuple[int, int]:
    """Where the runs end that unpack to so many bytes, and to how many they do. Both may be too large."""
    found = 0
    while at < len(data) and found < wanted:
        head = data[at]
        if head < 128:  # bytes as they are
            found += head + 1
            at += head + 2
        elif head == 128:  # nothing
            at += 1
        else:  # one byte, repeated
            found += 257 - head
            at += 2
    return at, found


def _is_padding(data: memoryview, at: int) -> bool:
    return len(data) - at <= _PADDING or not bytes(data[at:]).strip(b"\0")


def _look_at_fax(data: memoryview, piece: Piece, scheme: int, options: int) -> int:
    most = piece.rows * piece.full // piece.expected
    found = fax.walk(bytes(data), scheme, options, piece.width, piece.rows, most)
    if found.fault and (piece.stored or found.rows < piece.rows):
        raise Unfit(
            "truncated" if found.ended else "corrupt",
            f"{piece.name} at byte {piece.offset:,} has {found.rows:,} sound rows of {piece.rows:,}, then at byte "
            f"{piece.offset + found.used:,}: {found.fault}",
        )
    return found.used


def look_at_jpeg(data: memoryview, piece: Piece, tables: bytes, max_pixels: int) -> int:
    """Decode a strip or tile that is a JPEG stream, with the tables that all of them share.

    Raises:
        Unfit: ``truncated`` or ``corrupt``; streams of a kind that JPEG files do not have are left to Pillow.
    """
    where = f"{piece.name} at byte {piece.offset:,}"
    if bytes(data[:2]) != b"\xff\xd8":
        raise Unfit("corrupt", f"{where} is no JPEG stream, begins with {data[:4].hex(' ')}")
    stream = b"".join([b"\xff\xd8", tables.removeprefix(b"\xff\xd8").removesuffix(b"\xff\xd9"), data[2:]])
    try:
        markers = jpegmarkers.walk(stream, whole=False)
        if markers.width < piece.width or markers.height < piece.rows:
            raise Unfit(
                "corrupt", f"a picture of {markers.width} × {markers.height}, {piece.width} × {piece.rows} are promised"
            )
        if markers.precision == 8 and markers.components in (1, 3, 4):
            jpeg.check(stream, max_pixels)
    except Unfit as unfit:
        raise Unfit(unfit.code, f"{where}: {unfit.detail}") from unfit
    return 1


_Look = Callable[[memoryview, Piece], int]
_LOOKS: dict[int, _Look] = {
    RAW: _look_at_raw,
    5: _look_at_lzw,
    8: _look_at_deflate,
    32773: _look_at_packbits,
    32946: _look_at_deflate,
}


def look_of(raster: Raster) -> _Look | None:
    """What unpacks a strip or tile of this compression; ``None`` where only Pillow can.

    It takes the data of a piece and the piece, returns how many bytes of the data were used, and raises ``Unfit``.
    """
    if raster.compression in (fax.HUFFMAN, fax.T4, fax.T6):
        if raster.bits != 1:
            return None
        return partial(_look_at_fax, scheme=raster.compression, options=raster.fax_options)
    return _LOOKS.get(raster.compression)
