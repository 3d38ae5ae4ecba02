"""Check TIFF files strip by strip: the decoder fills what is damaged, and tells nobody.

libtiff stops unpacking where the rows are full, so it never sees a wrong checksum; it passes over broken fax lines and
JPEG data with a warning, and prints its errors to standard error, where Pillow does not look. So the strips and tiles of
every picture are unpacked here, without being kept, and compared with what the directory promises; then Pillow decodes,
with standard error read.

Facts: TIFF revision 6.0, sections 9 (PackBits), 10 and 11 (fax), 13 (LZW); Adobe Photoshop TIFF Technical Notes (Deflate,
and JPEG as the tables of a directory with the abbreviated streams of its strips).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from functools import partial

from PIL import UnidentifiedImageError

from packer.check import fax, jpeg, jpegmarkers, lzw, pictures
from packer.check.stderr import Stderr
from packer.check.tiffdirectory import (
    COMPRESSION,
    JPEG_TABLES,
    LENGTH,
    LISTS,
    WIDTH,
    Directory,
    directories,
)
from packer.check.tiffraster import Piece, Raster, raster_of
from packer.check.verdict import Finding, require_pixels
from packer.model import Note, Unfit

__all__ = ["check"]

_BLOCK = 1 << 20  # bytes inflated in one go
_PADDING = 3  # bytes that a writer may add to end at an even address, or at one of four
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_JPEG = 7

# What libtiff says of tags that it could not read: the picture came out without them.
_ABOUT_TAGS = re.compile(r"\w*(TIFFFetch|TIFFRead(Custom|EXIF|GPS)?Directory|TIFFV?SetField|SetField)\w*:")
_NO_CODEC = re.compile(r"compression support is not configured|not implemented|not supported", re.I)


def check(data: bytes, max_pixels: int) -> Finding:
    """Check a whole file.

    Raises:
        Unfit: ``truncated``, ``corrupt``, ``too_large``, ``unsupported_format``.
    """
    spent = 0
    damaged, described = "", ""
    for directory in directories(data):
        try:
            width, length = directory.number_of(WIDTH), directory.number_of(LENGTH)
            spent += width * length
            if directory.number and spent > max_pixels:
                break
            if width and length:
                described = described or f"compression {directory.number_of(COMPRESSION, 1)}, {width} × {length} pixels"
                require_pixels(width, length, max_pixels)
            _check_picture(data, directory, max_pixels)
            damaged = damaged or directory.damaged_metadata()
        except Unfit as unfit:
            if not directory.number:
                raise
            raise Unfit(unfit.code, f"page {directory.number}: {unfit.detail}") from unfit
    return _decode(data, max_pixels, damaged, described)


def _check_picture(data: bytes, directory: Directory, max_pixels: int) -> None:
    directory.require_pixel_tags()
    raster = raster_of(directory)
    if raster is None:
        return
    look = _look_of(raster)
    tables = directory.raw(JPEG_TABLES) if raster.compression == _JPEG else b""
    used = [(0, 8), (directory.start, directory.end)]
    # A single value stands in the entry itself, and so in the directory.
    used += [directory.extent(tag) for tag in LISTS if directory.extent(tag)[0] not in range(directory.start, directory.end)]
    for piece in raster.pieces:
        if piece.offset >= len(data):
            raise Unfit("truncated", f"{piece.name} begins at byte {piece.offset:,}, the file has {len(data):,}")
        size = 1
        if raster.compression == _JPEG:
            _look_at_jpeg(data, piece, tables, max_pixels)
        elif look is not None:
            size = look(_data_of(data, piece, raster), piece)
        used.append((piece.offset, piece.offset + size))
    _require_apart(used)


def _data_of(data: bytes, piece: Piece, raster: Raster) -> bytes:
    """The bytes of a strip or tile, to the end of the file where their number is not told."""
    block = data[piece.offset : piece.offset + piece.stored] if piece.stored else data[piece.offset :]
    return block.translate(_REVERSED) if raster.fill_order == 2 else block


def _require_apart(used: list[tuple[int, int]]) -> None:
    """Strips may be the same one, as writers do with equal ones, but not begin inside another or in the directory."""
    end = 0
    for start, stop in sorted(set(used)):
        if start < end:
            raise Unfit("corrupt", f"the data at byte {start:,} lie on others that end at byte {end:,}")
        end = max(end, stop)


def _short(piece: Piece, found: int, data: bytes) -> Unfit:
    told = f" of {piece.stored:,}" if piece.stored > len(data) else ""
    return Unfit(
        "truncated",
        f"{piece.name} at byte {piece.offset:,} holds {found:,} bytes of pixels in {len(data):,}{told} bytes, "
        f"{piece.expected:,} are promised",
    )


def _long(piece: Piece) -> Unfit:
    return Unfit("corrupt", f"{piece.name} at byte {piece.offset:,} holds more than the {piece.expected:,} bytes promised")


def _look_at_raw(data: bytes, piece: Piece) -> int:
    if len(data) < piece.expected:
        raise _short(piece, len(data), data)
    return piece.expected


def _look_at_deflate(data: bytes, piece: Piece) -> int:
    stream = zlib.decompressobj()
    found, rest = 0, data
    try:
        while not stream.eof:
            block = stream.decompress(rest, _BLOCK)
            rest = stream.unconsumed_tail
            found += len(block)
            if found > piece.full:
                raise _long(piece)
            if not block and not rest:
                break
    except zlib.error as error:
        raise Unfit("corrupt", f"{piece.name} at byte {piece.offset:,} does not inflate: {error}") from None
    if found < piece.expected:
        raise _short(piece, found, data)
    if not stream.eof:
        raise Unfit("truncated", f"{piece.name} at byte {piece.offset:,} ends without its checksum")
    if found not in (piece.expected, piece.full):
        raise _long(piece)
    return len(data) - len(stream.unused_data)


def _look_at_lzw(data: bytes, piece: Piece) -> int:
    if data[:1] == b"\0" and data[1:2] and data[1] & 1:
        return 1  # libtiff's old order of bits, which the decoder must judge
    found = lzw.walk(data, 8, msb_first=True, expected=piece.full)
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


def _look_at_packbits(data: bytes, piece: Piece) -> int:
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


def _skip_runs(data: bytes, at: int, wanted: int) -> tuple[int, int]:
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


def _is_padding(data: bytes, at: int) -> bool:
    return len(data) - at <= _PADDING or not data[at:].strip(b"\0")


def _look_at_fax(data: bytes, piece: Piece, scheme: int, options: int) -> int:
    most = piece.rows * piece.full // piece.expected
    found = fax.walk(data, scheme, options, piece.width, piece.rows, most)
    if found.fault and (piece.stored or found.rows < piece.rows):
        raise Unfit(
            "truncated" if found.ended else "corrupt",
            f"{piece.name} at byte {piece.offset:,} has {found.rows:,} sound rows of {piece.rows:,}, then at byte "
            f"{piece.offset + found.used:,}: {found.fault}",
        )
    return found.used


def _look_at_jpeg(data: bytes, piece: Piece, tables: bytes, max_pixels: int) -> None:
    block = data[piece.offset : piece.offset + piece.stored] if piece.stored else data[piece.offset :]
    if not block.startswith(b"\xff\xd8"):
        raise Unfit("corrupt", f"{piece.name} at byte {piece.offset:,} is no JPEG stream, begins with {block[:4].hex(' ')}")
    stream = b"".join([b"\xff\xd8", tables.removeprefix(b"\xff\xd8").removesuffix(b"\xff\xd9"), block[2:]])
    where = f"{piece.name} at byte {piece.offset:,}"
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


_Look = Callable[[bytes, Piece], int]
_LOOKS: dict[int, _Look] = {
    1: _look_at_raw,
    5: _look_at_lzw,
    8: _look_at_deflate,
    32773: _look_at_packbits,
    32946: _look_at_deflate,
}


def _look_of(raster: Raster) -> _Look | None:
    if raster.compression in (fax.HUFFMAN, fax.T4, fax.T6):
        if raster.bits != 1:
            return None
        return partial(_look_at_fax, scheme=raster.compression, options=raster.fax_options)
    return _LOOKS.get(raster.compression)


def _decode(data: bytes, max_pixels: int, damaged: str, described: str) -> Finding:
    said = Stderr()
    try:
        with said:
            finding = pictures.check(data, "tiff", max_pixels)
    except Unfit as unfit:
        errors = [line for line in said.lines if not _ABOUT_TAGS.match(line)]
        if described and isinstance(unfit.__cause__, UnidentifiedImageError):
            raise Unfit("unsupported_format", f"Pillow knows no such TIFF ({described}): convert it to PNG or .npy") from unfit
        if not errors:
            raise
        if _NO_CODEC.search(errors[0]):
            raise Unfit("unsupported_format", f"{errors[0]} ({described}): convert it to PNG or .npy") from unfit
        raise Unfit(unfit.code, f"{unfit.detail}; libtiff says: {errors[0]}") from unfit
    errors = [line for line in said.lines if not _ABOUT_TAGS.match(line)]
    if errors:
        raise Unfit("corrupt", f"libtiff says: {errors[0]}")
    if said.lines and not damaged:
        damaged = f"libtiff says: {said.lines[0]}"
    if not damaged:
        return finding
    note = Note("bad_metadata", damaged)
    return Finding(
        finding.type, finding.mode, finding.width, finding.height, finding.frames, finding.orientation,
        warnings=(*finding.warnings, note),
    )  # fmt: skip
