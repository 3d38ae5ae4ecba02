"""Files from other programs' test suites and from the wild on which the check was wrong once, made here in small."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile

from packer.check import CheckSettings, check_bytes
from packer.model import Kept, Skipped, Verdict
from tests.inputs import jpeg, photo, png
from tests.tiff_inputs import Page, packbits, page_of, write


def judge(data: bytes) -> Verdict:
    return check_bytes(data, b"x.jpg", CheckSettings())


def skipped(data: bytes) -> tuple[str, str]:
    verdict = judge(data)
    assert isinstance(verdict, Skipped), verdict
    return verdict.code, verdict.detail


def noted(data: bytes, code: str) -> list[str]:
    verdict = judge(data)
    assert isinstance(verdict, Kept), verdict
    return [note.detail for note in verdict.warnings if note.code == code]


# JPEG


@pytest.mark.parametrize(
    "marker, kind", [(0xC3, "lossless JPEG"), (0xC7, "lossless"), (0xC5, "hierarchical"), (0xCF, "lossless"), (0xF7, "JPEG-LS")]
)
def test_kinds_of_jpeg_that_are_not_read_get_no_further_than_their_frame(
    marker: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lossless one made the decoder overwrite memory, and sound files that came after it were lost with the worker."""
    monkeypatch.setattr("packer.check.jpeg.simplejpeg.decode_jpeg", lambda *_, **__: pytest.fail("was given to the decoder"))
    data = jpeg().replace(b"\xff\xc0", bytes([0xFF, marker]), 1)
    code, detail = skipped(data)
    assert code == "unsupported_format"
    assert kind in detail
    assert "convert it to PNG" in detail


def test_a_jpeg_whose_height_comes_last_is_not_called_damaged() -> None:
    data = jpeg()
    at = data.index(b"\xff\xc0") + 5
    late = data[:at] + b"\0\0" + data[at + 2 : -2] + b"\xff\xdc\0\4" + data[at : at + 2] + b"\xff\xd9"
    assert skipped(late)[0] == "unsupported_format"
    assert skipped(data[:at] + b"\0\0" + data[at + 2 :])[0] == "corrupt"


COMMENT = b"\xff\xfe\0\x07hello"


@pytest.mark.parametrize("junk", [b"x", bytes(9), b"\1\2\3\4\5", b"\xff\0\0\2"])
def test_bytes_between_segments_that_say_nothing_about_pixels_are_noted(junk: bytes) -> None:
    variants: tuple[dict[str, Any], ...] = ({}, {"progressive": True}, {"optimize": True})
    for options in variants:
        data = jpeg(**options)
        changed = data[:2] + COMMENT + junk + data[2:]
        assert noted(changed, "bad_metadata") == [f"{len(junk):,} bytes at byte 11 that belong to no segment"]
        with Image.open(io.BytesIO(changed)) as odd, Image.open(io.BytesIO(data)) as sound:
            assert odd.tobytes() == sound.tobytes()


def test_bytes_between_segments_that_may_matter_are_damage() -> None:
    data = jpeg()
    tables = data.index(b"\xff\xdb")
    shifted = data[: tables + 20] + b"\x07" + data[tables + 20 :]  # the last number of the table lies behind it now
    unmarked = data[:2] + COMMENT + b"\0\xee\0\x0eAdobe\0d\0\0\0\0\0" + data[2:]
    for damaged in (shifted, unmarked):
        assert skipped(damaged)[0] in ("corrupt", "truncated")
    missing = data.replace(b"\xff\xdb", b"\0\xdb", 1)
    assert skipped(missing)[0] in ("corrupt", "truncated")


# TIFF


Samples = np.ndarray[Any, np.dtype[Any]]


def numbers(kind: str, samples: int = 1) -> Samples:
    return np.random.default_rng(0).integers(0, 120, (20, 30, samples)).astype(kind)


def runs(data: bytes) -> bytes:
    return packbits(data, 30)


OTHER_PIXELS = {
    "PackBits with a predictor": page_of(numbers("u1"), runs, 32773, tags={317: (3, [2])}),
    "compressed big-endian numbers of 32": page_of(numbers("f4"), zlib.compress, 8, order=">", tags={339: (3, [3])}),
    "compressed big-endian numbers of 16": page_of(numbers("i2"), zlib.compress, 8, order=">", tags={339: (3, [2])}),
    "raw planes of 16 bits": page_of(numbers("u2", 3), planar=True),
    "raw planes of 16 bits in": page_of(numbers("i2"), planar=True, tags={339: (3, [2])}),
    "raw planes of 8 bits": page_of(numbers("u1"), planar=True, tags={262: (3, [0])}),
    "planes of grey and alpha": page_of(numbers("u1", 2), zlib.compress, 8, planar=True, tags={338: (3, [2])}),
}


@pytest.mark.parametrize("what", OTHER_PIXELS)
def test_a_tiff_that_pillow_makes_other_pixels_of_is_not_kept(what: str) -> None:
    data = write(OTHER_PIXELS[what], order=">" if "endian" in what else "<")
    code, detail = skipped(data)
    assert code == "unsupported_format"
    assert detail.startswith(what)
    assert "convert it to" in detail


@pytest.mark.parametrize(
    "page, order",
    [
        (page_of(numbers("u1"), runs, 32773), "<"),
        (page_of(numbers("f4"), order=">", tags={339: (3, [3])}), ">"),
        (page_of(numbers("f4"), zlib.compress, 8, tags={339: (3, [3])}), "<"),
        (page_of(numbers("u2"), zlib.compress, 8, order=">"), ">"),
        (page_of(numbers("u1", 3), planar=True), "<"),
        (page_of(numbers("u1"), planar=True), "<"),
        (page_of(numbers("f4"), planar=True, tags={339: (3, [3])}), "<"),
        (page_of(numbers("u2", 3), zlib.compress, 8, planar=True), "<"),
        (page_of(numbers("u1", 2), zlib.compress, 8, tags={338: (3, [2])}), "<"),
    ],
)
def test_its_neighbours_are_kept_and_read_as_they_are(page: Page, order: str) -> None:
    data = write(page, order=order)
    assert isinstance(judge(data), Kept), judge(data)
    with Image.open(io.BytesIO(data)) as picture:
        read = np.asarray(picture)
    samples, kind = page.tags[277][1][0], page.tags[258][1][0]
    expected = numbers("u1", samples).reshape(read.shape)
    assert np.array_equal(read, expected >> 8 if (samples, kind) == (3, 16) else expected)


def test_a_layout_that_pillow_cannot_read_is_not_called_damage() -> None:
    code, _ = skipped(write(page_of(numbers("u1", 2), planar=True, tags={338: (3, [0])}), order="<"))
    assert code == "unsupported_format"


def test_later_pages_that_pillow_cannot_read_do_not_cost_the_first() -> None:
    data = write(page_of(numbers("u1")), OTHER_PIXELS["raw planes of 16 bits"])
    (detail,) = noted(data, "multi_frame")
    assert detail.endswith("Pillow knows no such TIFF as on page 1")


def reordered(data: bytes, tags: list[int]) -> bytes:
    """A little-endian file of one page with only these entries, in this order."""
    start = int.from_bytes(data[4:8], "little")
    count = int.from_bytes(data[start : start + 2], "little")
    entries = {
        int.from_bytes(data[at : at + 2], "little"): data[at : at + 12] for at in range(start + 2, start + 2 + 12 * count, 12)
    }
    return data[:start] + struct.pack("<H", len(tags)) + b"".join(entries[tag] for tag in tags) + bytes(4)


def grey(width: int = 20, height: int = 10) -> bytes:
    return write(page_of(np.arange(width * height, dtype=np.uint8).reshape(height, width, 1), rows=height))


def test_a_writer_that_puts_tags_in_no_order_and_leaves_some_out_has_no_file_lost() -> None:
    tags = [256, 257, 277, 258, 262, 273]  # no compression, rows or byte counts
    assert noted(reordered(grey(), tags), "bad_metadata") == []


def test_a_tag_with_a_flipped_bit_is_damage_still() -> None:
    data = reordered(grey(), [256, 257, 258, 259, 262, 273, 277, 278, 279])
    at = data.index(struct.pack("<HH", 259, 3))
    code, detail = skipped(data[:at] + struct.pack("<H", 259 ^ 1024) + data[at + 2 :])
    assert (code, detail[:19]) == ("corrupt", "tag 259 is missing,")


def test_a_tiff_volume_is_not_called_damaged() -> None:
    page = page_of(np.zeros((10, 20, 1), np.uint8), rows=10)
    page.tags[32997] = (4, [5])
    assert skipped(write(page)) == ("unsupported_format", "a volume of 5 slices in one picture: save it as .npy")


# BMP


def test_two_bits_a_pixel_are_a_kind_of_bmp() -> None:
    header = struct.pack("<2sIIIIiiHHIIiiII", b"BM", 0, 0, 70, 40, 8, 4, 1, 2, 0, 0, 0, 0, 4, 0)
    code, detail = skipped(header + bytes(16) + bytes(16))
    assert code == "unsupported_format"
    assert "2 bits a pixel" in detail


def test_a_palette_that_is_larger_than_it_can_be_used_is_not_called_damage() -> None:
    header = struct.pack("<2sIIIIiiHHIIiiII", b"BM", 0, 0, 54 + 1200, 40, 8, 4, 1, 8, 0, 0, 0, 0, 300, 0)
    assert skipped(header + bytes(1200) + bytes(32)) == (
        "unsupported_format",
        "a palette of more than 256 colours: convert it to PNG",
    )


# PNG


def animation(numbers: tuple[int, int, int]) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    def control(number: int) -> bytes:
        return chunk(b"fcTL", struct.pack(">IIIIIHHBB", number, 4, 2, 0, 0, 1, 10, 0, 0))

    rows = zlib.compress(bytes(5) * 2)
    return b"".join(
        [
            png(Image.new("L", (4, 2)))[:33],
            chunk(b"acTL", struct.pack(">II", 2, 0)),
            control(numbers[0]),
            chunk(b"IDAT", rows),
            control(numbers[1]),
            chunk(b"fdAT", struct.pack(">I", numbers[2]) + rows),
            chunk(b"IEND", b""),
        ]
    )


def test_chunks_of_an_animation_that_are_numbered_wrong_are_noted() -> None:
    assert noted(animation((0, 1, 2)), "bad_metadata") == []
    for numbers in ((1, 2, 3), (0, 2, 3), (0, 1, 1)):
        (detail,) = noted(animation(numbers), "bad_metadata")
        assert "of an animation has the number" in detail


# Other formats


@pytest.mark.parametrize(
    "start, what",
    [
        (b"icns\0\0\7\x27TOC ", "a Mac icon"),
        (b"icns" + bytes(12) + png(), "a Mac icon"),
        (b"qoif\0\0\0\1", "QOI"),
        (b"P6\n128 128\n255\n", "Netpbm"),
        (b"P2\n# Created by GIMP", "Netpbm"),
        (b"II\xbc\1\x08\0\0\0", "JPEG XR"),
        (b"/* XPM */\nstatic", "XPM"),
    ],
)
def test_pictures_of_other_formats_are_called_by_name(start: bytes, what: str) -> None:
    code, detail = skipped(start + bytes(40))
    assert (code, what in detail) == ("unsupported_format", True)


# Memory


def lacking(*_: object, **__: object) -> None:
    raise MemoryError


def of_kind(kind: str) -> bytes:
    buffer = io.BytesIO()
    photo().save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WEBP", "BMP", "TIFF"])
def test_lack_of_memory_when_a_file_is_opened_is_no_damage(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = of_kind(kind)
    monkeypatch.setattr(Image, "open", lacking)
    assert skipped(data)[0] == "too_large"


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "BMP", "TIFF"])
def test_lack_of_memory_when_pixels_are_decoded_is_no_damage(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = of_kind(kind)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lacking)
    assert skipped(data)[0] == "too_large"


def test_lack_of_memory_that_a_decoder_puts_in_words_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: object) -> None:
        raise OSError("out of memory when reading image file")

    monkeypatch.setattr(ImageFile.ImageFile, "load", out_of_memory)
    assert skipped(of_kind("BMP"))[0] == "too_large"
