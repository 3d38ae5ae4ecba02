"""The check of TIFF: every strip and tile is compared with what the directory promises, and no sound file is lost."""

from __future__ import annotations

import io
import os
import re
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

from packer.check import CheckSettings, check_bytes
from packer.check.stderr import Stderr
from packer.model import Kept, Skipped, Verdict
from tests.tiff_inputs import Array, Page, by_pillow, packbits, page_of, write


def judge(data: bytes, settings: CheckSettings = CheckSettings()) -> Verdict:  # noqa: B008 - frozen
    return check_bytes(data, b"x.tif", settings)


def slopes(width: int = 75, height: int = 53) -> Array:
    """RGB with slopes and a little noise, odd sizes so that strips and tiles do not fit."""
    y, x = np.mgrid[0:height, 0:width]
    noise = np.random.default_rng(0).integers(-4, 5, (height, width, 3))
    return (np.stack([x * 3, y * 4, x + y], -1) + noise).clip(0, 255).astype(np.uint8)


def text_page(width: int = 203, height: int = 150) -> Image.Image:
    page = Image.new("1", (width, height), 1)
    draw = ImageDraw.Draw(page)
    for row in range(0, height, 14):
        draw.text((3 + row % 5, row), "The quick brown fox jumps over the dog", fill=0)
    return page


RGB = slopes()
GREY = RGB[..., :1]
DEEP = RGB.astype(np.uint16)[..., :1] * 200
PICTURE = Image.fromarray(RGB)
TEXT = text_page()
DEFLATED: dict[str, Any] = {"pack": zlib.compress, "compression": 8}
ROW = 3 * RGB.shape[1]


def row_packbits(data: bytes) -> bytes:
    return packbits(data, ROW)


@cache
def pillow_files() -> dict[str, bytes]:
    modes = {
        "1": TEXT, "L": PICTURE.convert("L"), "LA": PICTURE.convert("LA"), "P": PICTURE.convert("P"), "RGB": PICTURE,
        "RGBA": PICTURE.convert("RGBA"), "CMYK": PICTURE.convert("CMYK"), "I;16": Image.fromarray(DEEP[..., 0]),
        "F": Image.fromarray(RGB[..., 0].astype(np.float32)), "I": Image.fromarray(RGB[..., 0].astype(np.int32)),
    }  # fmt: skip
    packings = ["raw", "tiff_lzw", "tiff_deflate", "tiff_adobe_deflate", "packbits", "jpeg", "lzma", "zstd"]
    packings += ["group3", "group4", "tiff_ccitt"]
    found = {}
    for mode, picture in modes.items():
        for packing in packings:
            fax = packing in ("group3", "group4", "tiff_ccitt")
            if (fax and mode != "1") or (packing == "jpeg" and mode not in ("L", "RGB", "CMYK")):
                continue
            found[f"{mode} {packing}"] = by_pillow(picture, compression=packing)
    for packing in ("tiff_lzw", "tiff_adobe_deflate"):
        found[f"{packing} with predictor"] = by_pillow(PICTURE, compression=packing, tiffinfo={317: 2})
        found[f"{packing} in small strips"] = by_pillow(PICTURE, compression=packing, strip_size=1000)
    found["JPEG in strips"] = by_pillow(PICTURE, compression="jpeg", strip_size=16 * ROW)
    found["big TIFF"] = by_pillow(PICTURE, big_tiff=True)
    pages = [PICTURE.rotate(90), TEXT, PICTURE.resize((10, 9))]
    found["pages"] = by_pillow(PICTURE, save_all=True, append_images=pages, compression="tiff_lzw")
    return found


@cache
def hand_files() -> dict[str, tuple[bytes, Array]]:
    """Files that our writer makes, and their pixels."""
    tile = (32, 16)
    deflate_page = page_of(RGB, **DEFLATED)
    return {
        "raw strips": (write(page_of(RGB)), RGB),
        "raw strips, Motorola": (write(page_of(RGB), order=">"), RGB),
        "raw tiles": (write(page_of(RGB, tile=tile)), RGB),
        "deflated tiles": (write(page_of(RGB, tile=tile, **DEFLATED)), RGB),
        "old number of deflate": (write(page_of(RGB, zlib.compress, 32946)), RGB),
        "planes of strips": (write(page_of(RGB, planar=True)), RGB),
        "planes of deflated strips": (write(page_of(RGB, planar=True, **DEFLATED)), RGB),
        "planes of deflated tiles": (write(page_of(RGB, planar=True, tile=tile, **DEFLATED)), RGB),
        "PackBits": (write(page_of(RGB, row_packbits, 32773)), RGB),
        "PackBits across rows": (write(page_of(RGB, lambda data: packbits(data, 1000), 32773)), RGB),
        "16 bits": (write(page_of(DEEP, **DEFLATED)), DEEP),
        "16 bits, Motorola": (write(page_of(DEEP, order=">"), order=">"), DEEP),
        "big, Intel": (write(page_of(RGB, **DEFLATED), big=True), RGB),
        "two pages": (write(deflate_page, page_of(GREY)), RGB),
        "equal tiles once": (
            write(page_of(np.full((32, 64, 1), 9, np.uint8), tile=(32, 32), offsets=lambda true: [true[0], true[0]])),
            np.full((32, 64, 1), 9, np.uint8),
        ),
        "one strip without its size": (write(page_of(RGB, rows=99, counts=lambda true: None)), RGB),
        "strips of size 0": (write(page_of(RGB, counts=lambda true: [0] * len(true))), RGB),
        "sizes too large": (write(page_of(RGB, counts=lambda true: [max(true)] * len(true))), RGB),
        "deflate, sizes too large": (write(page_of(RGB, counts=lambda true: [n + 1 for n in true], **DEFLATED)), RGB),
        "last strip filled up": (
            write(page_of(RGB, lambda data: zlib.compress(data.ljust(16 * ROW, b"\0")), 8)), RGB,
        ),
        "rows per strip missing": (write(_without(page_of(RGB, rows=99), 278)), RGB),
        "unknown tags": (write(page_of(RGB, tags={65000: (7, list(range(100))), 42: (12, [1, 2])})), RGB),
        "one strip tag too many": (
            write(page_of(RGB, offsets=lambda true: [*true, 0], counts=lambda true: [*true, 0], **DEFLATED)), RGB,
        ),
        "without a tag that is expected": (write(_without(page_of(GREY), 262)), 255 - GREY),
        "tags not in order": (_disordered(write(page_of(RGB))), RGB),
        "bits in the other order": (
            write(page_of(RGB, lambda data: _turned(zlib.compress(data)), 8, tags={266: (3, [2])})), RGB,
        ),
    }  # fmt: skip


def _without(page: Page, tag: int) -> Page:
    del page.tags[tag]
    return page


def _disordered(data: bytes) -> bytes:
    """The first two entries of the directory in each other's place."""
    start = int.from_bytes(data[4:8], "little") + 2
    return data[:start] + data[start + 12 : start + 24] + data[start : start + 12] + data[start + 24 :]


def _turned(data: bytes) -> bytes:
    return bytes(int(f"{byte:08b}"[::-1], 2) for byte in data)


@pytest.mark.parametrize("name", pillow_files())
def test_files_by_pillow_are_kept(name: str) -> None:
    verdict = judge(pillow_files()[name])
    assert isinstance(verdict, Kept), verdict
    assert [note.code for note in verdict.warnings] == (["multi_frame"] if name == "pages" else [])


@pytest.mark.parametrize("name", hand_files())
def test_files_by_hand_are_kept(name: str) -> None:
    data, pixels = hand_files()[name]
    with Image.open(io.BytesIO(data)) as picture:
        assert np.array_equal(np.asarray(picture).reshape(pixels.shape), pixels)
    verdict = judge(data)
    assert isinstance(verdict, Kept), verdict
    assert [note.code for note in verdict.warnings] == (["multi_frame"] if name == "two pages" else [])


def test_what_pillow_cannot_read_is_called_unsupported() -> None:
    """Pillow looks for the number of BigTIFF where only Intel's order has it."""
    verdict = judge(write(page_of(RGB), big=True, order=">"))
    assert isinstance(verdict, Skipped)
    assert verdict.code == "unsupported_format"
    assert "75 × 53 pixels" in verdict.detail


# Damage. Each makes a file of ours into one that promises other pixels than it holds.


def cut(count: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:-count]


def wrong_end(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def zeroed(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes(40) + data[middle + 40 :]


def spoiled(pack: Callable[[bytes], bytes], spoil: Callable[[bytes], bytes], index: int = 1) -> Callable[[bytes], bytes]:
    """Compress, then spoil one piece."""
    count = iter(range(1000))
    return lambda data: spoil(pack(data)) if next(count) == index else pack(data)


def deflate(spoil: Callable[[bytes], bytes], **options: Any) -> bytes:
    return write(page_of(RGB, spoiled(zlib.compress, spoil), 8, **options))


def entry_of(data: bytes, tag: int) -> int:
    """Where the first entry of a tag stands in a little-endian file of one page."""
    start = int.from_bytes(data[4:8], "little")
    for at in range(start + 2, start + 2 + 12 * int.from_bytes(data[start : start + 2], "little"), 12):
        if int.from_bytes(data[at : at + 2], "little") == tag:
            return at
    raise AssertionError(tag)


def with_value(data: bytes, tag: int, value: int) -> bytes:
    at = entry_of(data, tag) + 8
    return data[:at] + value.to_bytes(4, "little") + data[at + 4 :]


def with_value_of(data: bytes, tag: int, other: int) -> bytes:
    at = entry_of(data, other) + 8
    return with_value(data, tag, int.from_bytes(data[at : at + 4], "little"))


def renamed(data: bytes, tag: int, other: int) -> bytes:
    at = entry_of(data, tag)
    return data[:at] + other.to_bytes(2, "little") + data[at + 2 :]


def in_strips(data: bytes, index: int, spoil: Callable[[bytes], bytes]) -> bytes:
    """Spoil the data of one strip where they lie; their length stays."""
    with Image.open(io.BytesIO(data)) as picture:
        offset, size = (picture.tag_v2[tag][index] for tag in (273, 279))  # type: ignore[attr-defined]
    strip = spoil(data[offset : offset + size])
    assert len(strip) == size
    return data[:offset] + strip + data[offset + size :]


LZW = by_pillow(PICTURE, compression="tiff_lzw")
G4 = by_pillow(TEXT, compression="group4")
JPEG = by_pillow(Image.fromarray(slopes(160, 120)), compression="jpeg")
ONE_STRIP = write(page_of(RGB, rows=99))

DAMAGED = {
    "header only": (b"II*\0\x08", "truncated", "the header alone has 8"),
    "no directory": (b"II*\0" + bytes(20), "corrupt", "no directory"),
    "directory behind the end": (b"II*\0" + b"\x99\0\0\0", "truncated", "directory 0 at byte 153 needs 2 bytes, 0 are left"),
    "raw strip cut": (
        write(page_of(RGB, spoiled(bytes, cut(5)))), "truncated",
        "strip 1 at byte 3,608 holds 3,595 bytes of pixels in 3,595 bytes, 3,600 are promised",
    ),
    "taller than its strips": (with_value(write(page_of(RGB)), 257, 70), "truncated", "4 strips, the picture needs 5"),
    "lower than its strips": (with_value(write(page_of(RGB)), 257, 40), "corrupt", "4 strips, the picture needs 3"),
    "wider than its strips": (with_value(write(page_of(RGB)), 256, 76), "truncated", "3,648 are promised"),
    "raw strips with an empty one behind": (
        write(page_of(RGB, offsets=lambda true: [*true, 0], counts=lambda true: [*true, 0])), "corrupt", "5 strips, .* needs 4",
    ),
    "raw pixels that share their colours": (
        write(page_of(RGB, tags={262: (3, [6]), 530: (3, [2, 2])})), "unsupported_format", "one colour for 2 × 2 pixels",
    ),
    "strip in the header": (with_value(ONE_STRIP, 273, 4), "corrupt", "lie on others"),
    "strip on the directory": (with_value(ONE_STRIP, 273, len(ONE_STRIP) - 12_000), "corrupt", "lie on others"),
    "offsets that are the sizes": (
        with_value_of(write(page_of(RGB)), 273, 279), "corrupt", "tags 273 and 279 have the same values, at byte",
    ),
    "strip behind the end": (with_value(ONE_STRIP, 273, 99_999), "truncated", "begins at byte 99,999, the file has"),
    "tile missing": (
        write(page_of(RGB, tile=(32, 32), offsets=lambda true: [*true[:-1], 0])), "truncated", "tile 5 is missing, its offset",
    ),
    "strips on one another": (
        write(page_of(RGB, offsets=lambda true: [true[0], true[0] + 1, *true[2:]])), "corrupt", "lie on others",
    ),
    "values of a tag behind the end": (
        with_value(write(page_of(RGB)), 273, 10**6), "truncated", "values of tag 273 at byte 1,000,000 need 16 bytes",
    ),
    "deflate, wrong checksum": (deflate(wrong_end), "corrupt", "strip 1 at byte .* does not inflate: .*incorrect data check"),
    "deflate, without its checksum": (deflate(cut(4)), "truncated", "strip 1 .* ends without its checksum"),
    "deflate, zeros inside": (deflate(zeroed), "corrupt", "strip 1 at byte [0-9,]+ does not inflate"),
    "deflate, cut": (deflate(cut(300)), "truncated", "of pixels in [0-9,]+ bytes, 3,600 are promised"),
    "deflate, too long": (
        write(page_of(RGB, lambda data: zlib.compress(data + b"x"), 8)), "corrupt", "holds more than the 3,600 bytes promised",
    ),
    "deflate, a bomb": (
        write(page_of(RGB, spoiled(zlib.compress, lambda _: zlib.compress(bytes(10**8))), 8)), "corrupt", "holds more",
    ),
    "deflated tile": (deflate(wrong_end, tile=(32, 16)), "corrupt", "tile 1 at byte"),
    "second page": (
        write(page_of(GREY), page_of(RGB, spoiled(zlib.compress, wrong_end), 8)), "corrupt", "page 1: strip 1 at byte",
    ),
    "second page without a size": (
        write(page_of(GREY), _without(page_of(GREY), 256)), "corrupt", "page 1: the decoder says: TypeError: Missing dimens",
    ),
    "next directory behind the end": (write(page_of(GREY))[:-4] + b"\0\0\1\0", "truncated", "directory 1 at byte 65,536"),
    "LZW, zeros inside": (in_strips(LZW, 0, zeroed), "(corrupt|truncated)", "strip 0 at byte"),
    "PackBits, cut": (
        write(page_of(RGB, spoiled(row_packbits, cut(2)), 32773)), "truncated", "3,598 bytes of pixels .* 3,600 are promised",
    ),
    "PackBits, out of step": (
        write(page_of(RGB, spoiled(row_packbits, lambda data: data[1:]), 32773)), "(corrupt|truncated)", "3,600",
    ),
    "PackBits, more than promised": (
        with_value(write(page_of(RGB, row_packbits, 32773, rows=99)), 257, 52), "corrupt", "more than the 11,700 bytes",
    ),
    "tag of a wrong type": (
        write(page_of(RGB, tags={262: (12, [2])})), "corrupt", "the values of tag 262 have type 12, integers are expected",
    ),
    "tag with too many values": (write(page_of(RGB, tags={262: (3, [2, 2])})), "corrupt", "tag 262 has 2 values, one is exp"),
    "tag without values": (write(page_of(RGB, tags={258: (3, [])})), "corrupt", "tag 258 has 0 values, some are expected"),
    "tag with a value that does not exist": (
        write(page_of(RGB, tags={284: (3, [17])})), "corrupt", "tag 284 has the value 17, 1 to 2 exist",
    ),
    "tag twice": (renamed(write(page_of(RGB)), 278, 257), "corrupt", "tag 257 has two entries that differ"),
    "palette too short": (
        write(page_of(GREY, tags={262: (3, [3]), 320: (3, [0] * 700)})), "corrupt", "a palette of 700 numbers, 768 are",
    ),
    "tag whose number is damaged": (
        renamed(write(page_of(GREY)), 262, 262 ^ 1024), "corrupt", "tag 262 is missing, and the tags are not in order: 256, 2",
    ),
    "JPEG, zeros inside": (in_strips(JPEG, 0, zeroed), "corrupt", "strip 0 at byte"),
    "JPEG, not one": (in_strips(JPEG, 0, lambda data: b"x" + data[1:]), "corrupt", "no JPEG stream, begins with 78 d8"),
    "JPEG, lower than promised": (
        in_strips(JPEG, 0, lambda data: data.replace(b"\0\x78\0\xa0", b"\0\x70\0\xa0")), "corrupt",
        "160 × 112, 160 × 120 are promised",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_told(name: str) -> None:
    data, code, detail = DAMAGED[name]
    verdict = judge(data)
    assert isinstance(verdict, Skipped), verdict
    assert re.fullmatch(code, verdict.code), verdict
    assert re.search(detail, verdict.detail), verdict


@pytest.mark.parametrize("name", [*pillow_files(), *hand_files()])
def test_cut_files_are_truncated(name: str) -> None:
    """Anywhere: where the directory is behind the pixels it is missing, otherwise pixels are."""
    data = pillow_files().get(name) or hand_files()[name][0]
    for size in (9, len(data) // 3, len(data) // 2, len(data) - 40):
        verdict = judge(data[:size])
        assert isinstance(verdict, Skipped), (size, verdict)
        assert verdict.code == "truncated", (size, verdict)


def test_damaged_metadata_is_a_note() -> None:
    data = write(page_of(RGB, tags={65000: (7, list(range(100)))}))
    verdict = judge(with_value(data, 65000, 10**6))
    assert isinstance(verdict, Kept), verdict
    assert [(note.code, note.detail) for note in verdict.warnings] == [
        ("bad_metadata", "the values of tag 65000 lie outside the file")
    ]


@pytest.mark.parametrize(
    ("tag", "value", "detail"),
    [
        (34665, (4, [10**7]), "the EXIF directory at byte 10,000,000 does not fit into the file"),
        (34853, (4, [100]), "the GPS directory at byte 100 does not fit into the file"),
        (274, (3, [99]), "orientation 99, there are 1 to 8"),
    ],
)
def test_what_is_beside_the_pixels_costs_no_picture(tag: int, value: Any, detail: str) -> None:
    verdict = judge(write(page_of(RGB, tags={tag: value})))
    assert isinstance(verdict, Kept), verdict
    assert [(note.code, note.detail) for note in verdict.warnings] == [("bad_metadata", detail)]


@pytest.mark.parametrize("pages", [1, 2])
def test_pillow_turns_it_so_the_reader_must_not(pages: int) -> None:
    page = page_of(RGB, tags={274: (3, [6])})
    verdict = judge(write(*[page] * pages))
    assert isinstance(verdict, Kept), verdict
    assert (verdict.width, verdict.height, verdict.frames, verdict.orientation) == (53, 75, pages, 1)


def test_a_page_that_pillow_has_no_mode_for_does_not_cost_the_first() -> None:
    strange = page_of(np.zeros((20, 20, 2), np.uint16))
    verdict = judge(write(page_of(RGB), strange, page_of(GREY)))
    assert isinstance(verdict, Kept), verdict
    assert [(note.code, note.detail) for note in verdict.warnings] == [
        ("multi_frame", "3 pictures, the first is read; Pillow knows no such TIFF as on page 1")
    ]
    spoiled_page = page_of(GREY, spoiled(zlib.compress, wrong_end), 8)
    assert isinstance(judge(write(page_of(RGB), strange, spoiled_page)), Skipped)


def test_what_the_reader_gives_with_fewer_bits_is_noted() -> None:
    verdict = judge(write(page_of(RGB.astype(np.uint16) * 200)))
    assert isinstance(verdict, Kept), verdict
    assert [note.code for note in verdict.warnings] == ["depth_reduced"]


def test_pages_beyond_the_budget_are_not_unpacked() -> None:
    data = write(page_of(GREY), page_of(GREY, spoiled(zlib.compress, wrong_end), 8))
    small = CheckSettings(max_pixels=GREY.size)
    assert isinstance(judge(data, small), Kept)
    assert isinstance(judge(data), Skipped)


def test_raw_ycbcr_that_does_not_say_how_colours_are_shared_is_left_to_pillow() -> None:
    verdict = judge(write(page_of(RGB, tags={262: (3, [6])})))
    assert isinstance(verdict, Kept), verdict
    assert verdict.mode == "YCbCr"


def test_a_page_whose_size_is_damaged_does_not_escape_by_it() -> None:
    first = page_of(GREY)
    data = write(first, page_of(GREY, tags={257: (4, [10**6] * 2)}))
    verdict = judge(data, CheckSettings(max_pixels=10 * GREY.size))
    assert isinstance(verdict, Skipped)
    assert verdict.detail == "page 1: tag 257 has 2 values, one is expected"


def test_a_picture_larger_than_the_limit_is_not_unpacked() -> None:
    verdict = judge(write(page_of(RGB)), CheckSettings(max_pixels=1000))
    assert isinstance(verdict, Skipped)
    assert verdict.code == "too_large"


def test_what_a_c_library_prints_is_read_and_the_descriptor_comes_back(capfd: pytest.CaptureFixture[str]) -> None:
    with Stderr() as said:
        os.write(2, b"Fax4Decode: one\n\ntwo\n")
    os.write(2, b"after")
    assert said.lines == ["Fax4Decode: one", "two"]
    assert capfd.readouterr().err == "after"


def test_a_library_that_prints_without_end_neither_hangs_nor_fills_anything() -> None:
    with Stderr() as said:
        for _ in range(1000):
            try:
                os.write(2, b"x" * 999 + b"\n")
            except BlockingIOError:
                break
    assert len(said.lines) >= 4


def test_the_descriptor_comes_back_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), Stderr():
        raise ZeroDivisionError
    os.write(2, b"after")
    assert capfd.readouterr().err == "after"
