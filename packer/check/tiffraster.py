"""Where a picture of a TIFF file lies: its strips or tiles, and how many bytes of pixels each of them must hold.

Facts: TIFF revision 6.0 (Adobe, 1992), sections 8 (baseline tags), 15 (tiles) and 21 (YCbCr).
"""

from __future__ import annotations

from dataclasses import dataclass

from packer.check.tiffdirectory import (
    BITS,
    COMPRESSION,
    EXTRA_SAMPLES,
    FAX_OPTIONS,
    FILL_ORDER,
    IMAGE_DEPTH,
    LENGTH,
    PHOTOMETRIC,
    PLANAR,
    PREDICTOR,
    ROWS_PER_STRIP,
    SAMPLE_FORMAT,
    SAMPLES,
    STRIP_COUNTS,
    STRIP_OFFSETS,
    SUBSAMPLING,
    TILE_COUNTS,
    TILE_DEPTH,
    TILE_LENGTH,
    TILE_OFFSETS,
    TILE_WIDTH,
    WIDTH,
    Directory,
)
from packer.model import Unfit

__all__ = ["Piece", "Raster", "raster_of"]

_WHITE_IS_ZERO, _YCBCR = 0, 6
_RAW, _OLD_JPEG, _JPEG, _PACKBITS = 1, 6, 7, 32773
_SIGNED, _FLOAT = 2, 3
_ALPHAS = (1, 2)  # premultiplied, and not


@dataclass(frozen=True, slots=True)
class Piece:
    """One strip or tile.

    Attributes:
        name: ``strip 3`` or ``tile 3``, for sentences.
        offset: where its data begin.
        stored: bytes of data that the directory tells, 0 where it does not.
        width: pixels a row.
        rows: number of rows that it must have.
        row_bytes: bytes of an unpacked row (of YCbCr with fewer colours: of as many rows as share theirs).
        expected: bytes of all its rows.
        full: bytes of as many rows as the other strips have, which some writers pad the last strip to.
    """

    name: str
    offset: int
    stored: int
    width: int
    rows: int
    row_bytes: int
    expected: int
    full: int


@dataclass(frozen=True, slots=True)
class Raster:
    """Where a picture lies.

    Attributes:
        compression: the number of its scheme.
        fill_order: 2 where the lowest bit of a byte comes first.
        bits: of one pixel in a strip or tile.
        fax_options: of a fax, how rows are coded.
        pieces: strips or tiles, in the order of the directory.
    """

    compression: int
    fill_order: int
    bits: int
    fax_options: int
    pieces: tuple[Piece, ...]


def raster_of(directory: Directory) -> Raster | None:
    """Where the pixels of a picture lie, ``None`` where that is not told in the usual way: its decoder must judge it then.

    Raises:
        Unfit: ``truncated`` where there are fewer strips or tiles than the picture needs, ``corrupt`` where there are more;
            ``unsupported_format`` where Pillow would make other pixels of it, and say nothing.
    """
    width, length = directory.number_of(WIDTH), directory.number_of(LENGTH)
    compression, planar = directory.number_of(COMPRESSION, 1), directory.number_of(PLANAR, 1)
    samples = directory.number_of(SAMPLES, 1)
    bits = set(directory.numbers(BITS) or (1,))
    tiled = TILE_WIDTH in directory.entries
    slices = max(directory.number_of(IMAGE_DEPTH, 1), directory.number_of(TILE_DEPTH, 1))
    if slices > 1:
        raise Unfit("unsupported_format", f"a volume of {slices:,} slices in one picture: save it as .npy")
    if not (width and length and samples) or len(bits) != 1 or compression == _OLD_JPEG:
        return None
    if tiled and TILE_OFFSETS in directory.entries and STRIP_OFFSETS in directory.entries:
        return None
    depth = bits.pop()
    _require_same_pixels(directory, compression, planar, samples, depth)
    together = samples if planar == 1 else 1
    if tiled:
        across, down = directory.number_of(TILE_WIDTH), directory.number_of(TILE_LENGTH)
    else:
        across, down = width, min(directory.number_of(ROWS_PER_STRIP, length) or length, length)
    if not (across and down and depth):
        return None
    shared = _shared_rows(directory, compression, samples, planar)
    if shared is None:
        return None
    wide, high = shared
    if compression == _RAW and wide * high > 1:
        raise Unfit(
            "unsupported_format",
            f"YCbCr, raw, one colour for {wide} × {high} pixels, which Pillow takes for whole pixels: convert it to PNG",
        )
    if wide * high > 1:
        row_bytes = (-(-across // wide) * (wide * high + 2) * depth + 7) // 8
    else:
        row_bytes = (across * together * depth + 7) // 8
    name, planes = "tile" if tiled else "strip", samples // together
    per_plane = -(-width // across) * -(-length // down)
    found = _stored(directory, name, per_plane * planes, may_be_more=compression != _RAW)
    if found is None:
        return None
    pieces = []
    for index, (offset, stored) in enumerate(zip(*found, strict=True)):
        rows = down if tiled else min(down, length - index % per_plane * down)
        expected, full = (row_bytes * -(-count // high) for count in (rows, down))
        pieces.append(Piece(f"{name} {index:,}", offset, stored, across, rows, row_bytes, expected, full))
    return Raster(
        compression, directory.number_of(FILL_ORDER, 1), depth * together, directory.number_of(FAX_OPTIONS), tuple(pieces)
    )


def _require_same_pixels(directory: Directory, compression: int, planar: int, samples: int, depth: int) -> None:
    """Refuse what Pillow (13.0) makes other pixels of, each seen against the numbers that were written."""
    is_raw = compression == _RAW
    other = ""
    if compression == _PACKBITS and directory.number_of(PREDICTOR, 1) != 1:
        other = "PackBits with a predictor, which Pillow leaves out"
    elif (
        directory.is_big_endian
        and not is_raw
        and samples == 1
        and (depth in (16, 32) and directory.number_of(SAMPLE_FORMAT, 1) in (_SIGNED, _FLOAT))
    ):
        other = f"compressed big-endian numbers of {depth} bits, whose bytes Pillow puts in the wrong order"
    elif planar == 2 and is_raw and _loses_its_layout(directory, samples, depth):
        other = f"raw planes of {depth} bits in a layout that Pillow does not look at"
    elif planar == 2 and samples == 2 and directory.number_of(EXTRA_SAMPLES) in _ALPHAS:
        other = "planes of grey and alpha, which Pillow mixes up"
    if other:
        raise Unfit("unsupported_format", f"{other}: convert it to PNG or .npy")


def _loses_its_layout(directory: Directory, samples: int, depth: int) -> bool:
    """Whether more than the kind of a plane must be known: Pillow reads each with what its layout's name begins with."""
    if directory.number_of(FILL_ORDER, 1) == 2 or (directory.number_of(PHOTOMETRIC, 1) == _WHITE_IS_ZERO and depth <= 8):
        return True
    if samples > 1:
        return depth == 16
    is_signed = directory.number_of(SAMPLE_FORMAT, 1) == _SIGNED
    return depth not in (1, 8, 16, 32) or (depth == 16 and is_signed) or (depth == 32 and directory.is_big_endian)


def _shared_rows(directory: Directory, compression: int, samples: int, planar: int) -> tuple[int, int] | None:
    """How many pixels share one colour across and down, where that shows in the unpacked bytes; ``None`` for an odd answer."""
    if directory.number_of(PHOTOMETRIC) != _YCBCR or compression == _JPEG:
        return 1, 1
    if compression == _RAW and SUBSAMPLING not in directory.entries:
        return None  # 2 × 2 by the letter, but writers of whole pixels leave it out as well
    wide, high = (*(directory.numbers(SUBSAMPLING) or (2, 2)), 0)[:2]
    if wide not in (1, 2, 4) or high not in (1, 2, 4) or samples != 3 or (planar == 2 and wide * high > 1):
        return None
    return wide, high


def _stored(
    directory: Directory, name: str, needed: int, *, may_be_more: bool
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Offsets and byte counts of all strips or tiles; the counts are 0 where they are not told.

    Empty ones behind those needed are passed over by libtiff, but not by Pillow itself, which reads uncompressed ones.
    """
    tile = name == "tile"
    # libtiff wrote, and reads, tiles under the tags of strips.
    where = TILE_OFFSETS if tile and TILE_OFFSETS in directory.entries else STRIP_OFFSETS
    sizes = TILE_COUNTS if tile and TILE_COUNTS in directory.entries else STRIP_COUNTS
    told = directory.count(where)
    if told < needed:
        raise Unfit("truncated", f"{told:,} {name}s, the picture needs {needed:,}")
    offsets = directory.numbers(where)
    counts = directory.numbers(sizes) if sizes in directory.entries else (0,) * told
    if offsets is None or counts is None:
        return None
    if len(counts) < needed:
        raise Unfit("truncated", f"byte counts of {len(counts):,} {name}s, the picture needs {needed:,}")
    if (
        (told > needed and not may_be_more)
        or any(counts[needed:])
        or (told > needed and any(offsets[needed:]) and not any(counts))
    ):
        raise Unfit("corrupt", f"{told:,} {name}s, the picture needs {needed:,}")
    return offsets[:needed], counts[:needed]
