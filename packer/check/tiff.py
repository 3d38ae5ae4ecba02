"""Check TIFF files strip by strip: the decoder fills what is damaged, and tells nobody.

libtiff stops unpacking where the rows are full, so it never sees a wrong checksum; it passes over broken fax lines and
JPEG data with a warning, and prints its errors to standard error, where Pillow does not look. So the strips and tiles of
every picture are unpacked here and compared with what the directory promises; then Pillow decodes, with standard error read.
"""

from __future__ import annotations

import re

from PIL import UnidentifiedImageError

from packer.check import pictures
from packer.check.stderr import Stderr
from packer.check.tiffdirectory import BITS, COMPRESSION, JPEG_TABLES, LENGTH, LISTS, WIDTH, Directory, directories
from packer.check.tiffraster import Piece, Raster, raster_of
from packer.check.tiffstrips import JPEG, RAW, look_at_jpeg, look_of
from packer.check.verdict import Finding, require_pixels
from packer.model import Note, Unfit

__all__ = ["check"]

_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))

# What libtiff says of tags that it could not read: the picture came out without them.
_ABOUT_TAGS = re.compile(r"\w*(TIFFFetch|TIFFRead(Custom|EXIF|GPS)?Directory|TIFFV?SetField|SetField)\w*:")
_NO_MODE = "unknown raw mode"  # for a layout of which Pillow knows the pixels, but not how to read them
_NO_MEMORY = re.compile(r"(out of|failed to allocate|insufficient|not enough) memory|no space for", re.I)
_NO_CODEC = re.compile(r"compression support is not configured|not implemented|not supported", re.I)


def check(data: bytes, max_pixels: int) -> Finding:
    """Check a whole file: every page, as long as they have ``max_pixels`` together.

    Raises:
        Unfit: ``truncated``, ``corrupt``, ``too_large``, ``unsupported_format``.
    """
    pages = visited = spent = depth = 0
    damaged, described = "", ""
    unread: set[int] = set()
    for directory in directories(data):
        pages += 1
        try:
            directory.require_pixel_tags()
            width, length = directory.number_of(WIDTH), directory.number_of(LENGTH)
            spent += width * length
            if directory.number and spent > max_pixels:
                continue
            visited += 1
            if not directory.number and width and length:
                require_pixels(width, length, max_pixels)
                depth = max(directory.numbers(BITS) or (1,))
                described = f"{width} × {length} pixels of {depth} bits, compression {directory.number_of(COMPRESSION, 1)}"
            _check_picture(data, directory, max_pixels)
            damaged = damaged or directory.damaged_metadata()
        except Unfit as unfit:
            if not directory.number:
                raise
            if unfit.code == "unsupported_format":  # the reader gives the first picture
                unread.add(directory.number)
                continue
            raise Unfit(unfit.code, f"page {directory.number}: {unfit.detail}") from unfit
    notes: list[Note] = []
    finding = _decode(data, max_pixels, (pages, visited), unread, described, notes)
    if depth == 16 and finding.mode in ("L", "LA", "RGB", "RGBA", "RGBX", "CMYK"):
        notes.append(Note("depth_reduced", f"16 bits a channel, the reader gives 8 ({finding.mode})"))
    if damaged and not any(note.code == "bad_metadata" for note in notes):
        notes.append(Note("bad_metadata", damaged))
    # Pillow turns a TIFF upright when it loads it, so the reader must not turn it once more.
    return finding._replace(orientation=1, warnings=tuple(notes))


def _check_picture(data: bytes, directory: Directory, max_pixels: int) -> None:
    raster = raster_of(directory)
    if raster is None:
        return
    look = look_of(raster)
    tables = directory.raw(JPEG_TABLES) if raster.compression == JPEG else b""
    used = [(0, 8), (directory.start, directory.end)]
    # A single value stands in the entry itself, and so in the directory.
    used += [directory.extent(tag) for tag in LISTS if directory.extent(tag)[0] not in range(directory.start, directory.end)]
    for piece in raster.pieces:
        if not piece.offset:
            raise Unfit("truncated", f"{piece.name} is missing, its offset is 0")
        if piece.offset >= len(data):
            raise Unfit("truncated", f"{piece.name} begins at byte {piece.offset:,}, the file has {len(data):,}")
        if not piece.stored and raster.compression != RAW and len(raster.pieces) > 1:
            continue  # its size can only be guessed
        size = 1
        if raster.compression == JPEG:
            size = look_at_jpeg(_data_of(data, piece, raster), piece, tables, max_pixels)
        elif look is not None:
            size = look(_data_of(data, piece, raster), piece)
        used.append((piece.offset, piece.offset + size))
    _require_apart(used)


def _data_of(data: bytes, piece: Piece, raster: Raster) -> memoryview:
    """The bytes of a strip or tile, to the end of the file where their number is not told."""
    size = piece.stored or len(data)
    if raster.compression != JPEG:
        size = min(size, 4 * piece.full + 1024)  # no compression makes them that much larger, but a lie may be
    block = memoryview(data)[piece.offset : piece.offset + size]
    if raster.fill_order == 2 and raster.compression not in (RAW, JPEG):
        return memoryview(bytes(block).translate(_REVERSED))
    return block


def _require_apart(used: list[tuple[int, int]]) -> None:
    """Strips may be the same one, as writers do with equal ones, but not begin inside another or in the directory."""
    end = 0
    for start, stop in sorted(set(used)):
        if start < end:
            raise Unfit("corrupt", f"the data at byte {start:,} lie on others that end at byte {end:,}")
        end = max(end, stop)


def _decode(
    data: bytes, max_pixels: int, counts: tuple[int, int], unread: set[int], described: str, notes: list[Note]
) -> Finding:
    """Have Pillow decode all pages that were visited, and read what libtiff says.

    Args:
        data: the file.
        max_pixels: the limit for the first page.
        counts: numbers of pages, and of those visited.
        unread: numbers of pages that Pillow cannot read; more are added to them.
        described: the first page in words, empty where it has no size.
        notes: those on it are added to them.
    """
    pages, visited = counts
    said = Stderr()
    try:
        with said:
            finding = pictures.check(data, "tiff", max_pixels, frames=1, notes=notes)
            if visited > 1:
                unread |= _load_pages(data, visited)
    except Unfit as unfit:
        errors = [line for line in said.lines if not _ABOUT_TAGS.match(line)]
        if described and (isinstance(unfit.__cause__, UnidentifiedImageError) or _NO_MODE in unfit.detail):
            raise Unfit("unsupported_format", f"Pillow knows no such TIFF ({described}): convert it to PNG or .npy") from unfit
        if not errors:
            raise
        if _NO_MEMORY.search(errors[0]):
            raise MemoryError(errors[0]) from unfit
        if _NO_CODEC.search(errors[0]):
            what = errors[0].removeprefix("tempfile.tif: ").rstrip(".")  # Pillow's name for what has none
            raise Unfit("unsupported_format", f"{what} ({described}): convert it to PNG or .npy") from unfit
        raise Unfit(unfit.code, f"{unfit.detail}; libtiff says: {errors[0]}") from unfit
    errors = [line for line in said.lines if not _ABOUT_TAGS.match(line)]
    if errors:
        raise Unfit("corrupt", f"libtiff says: {errors[0]}")
    if said.lines:
        notes.append(Note("bad_metadata", f"libtiff says: {said.lines[0]}"))
    if pages > 1:
        listed = ", ".join(map(str, sorted(unread)[:10])) + (", …" if len(unread) > 10 else "")
        but = f"; Pillow knows no such TIFF as on page {listed}" if unread else ""
        notes.append(Note("multi_frame", f"{pages} pictures, the first is read{but}"))
    return finding._replace(frames=pages)


def _load_pages(data: bytes, count: int) -> set[int]:
    """Decode the pages after the first, and return the numbers of those that Pillow has no mode or codec for.

    Raises:
        Unfit: ``truncated``, ``corrupt``.
    """
    strange = set()
    with pictures.open_picture(data, "tiff") as picture:
        for page in range(1, count):
            try:
                picture.seek(page)
            except (SyntaxError, KeyError):
                strange.add(page)
                continue
            except MemoryError:
                raise
            # Pillow raises TypeError, ValueError, OSError, struct.error and others for what it cannot set up or decode.
            except Exception as error:
                raise _undecoded(page, error) from error
            try:
                picture.load()
            except MemoryError:
                raise
            # The same classes again.
            except Exception as error:
                if _NO_MODE in str(error):
                    strange.add(page)
                    continue
                raise _undecoded(page, error) from error
    return strange


def _undecoded(page: int, error: Exception) -> Unfit:
    return Unfit("corrupt", f"page {page}: the decoder says: {type(error).__name__}: {error}")
