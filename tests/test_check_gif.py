"""GIF files are judged by their blocks and by what their pixels unpack to."""

from __future__ import annotations

import io
import random
import re
import struct
from typing import Any

import pytest
from PIL import Image

from packer.check import CheckSettings, check_bytes
from packer.model import Kept, Skipped, Verdict
from tests.inputs import photo
from tests.test_check_lzw import compress, pack_codes

SETTINGS = CheckSettings()


def judge(data: bytes, settings: CheckSettings = SETTINGS) -> Verdict:
    return check_bytes(data, b"x.gif", settings)


def written(picture: Image.Image | None = None, **options: Any) -> bytes:
    buffer = io.BytesIO()
    (picture or photo()).save(buffer, "GIF", **options)
    return buffer.getvalue()


def blocks(stream: bytes, end: bytes = b"\0") -> bytes:
    return b"".join(bytes([len(part)]) + part for at in range(0, len(stream), 255) if (part := stream[at : at + 255])) + end


def image(stream: bytes, width: int = 40, height: int = 30, bits: int = 4, table: bytes = b"", at: int = 0) -> bytes:
    flags = 0x80 | (len(table) // 3).bit_length() - 2 if table else 0
    return b"," + struct.pack("<HHHHB", at, at, width, height, flags) + table + bytes([bits]) + blocks(stream)


def gif(*parts: bytes, colours: int = 16, end: bytes = b";") -> bytes:
    flags = 0x80 | colours.bit_length() - 2 if colours else 0
    return b"GIF89a" + struct.pack("<HHBBB", 40, 30, flags, 0, 0) + bytes(range(256))[:colours] * 3 + b"".join(parts) + end


def control(transparent: int) -> bytes:
    return b"!\xf9\x04\x01\0\0" + bytes([transparent]) + b"\0"


PIXELS = random.Random(1).randbytes(1200).translate(bytes(value % 16 for value in range(256)))
STREAM = compress(PIXELS, 4, False)
COMMENT = b"!\xfe\x05hello\0"


@pytest.mark.parametrize("bits", [8, 9, 10, 11])
def test_more_bits_a_pixel_than_the_colours_need_are_odd_but_harmless(bits: int) -> None:
    """Pillow reads such a file as it is meant, and a photograph from the wild has 11."""
    codes = [code for at in range(0, 1200, 40) for code in (1 << bits, *PIXELS[at : at + 40])]
    data = gif(image(pack_codes([(code, bits + 1) for code in [*codes, (1 << bits) + 1]], False), bits=bits))
    verdict = judge(data)
    assert isinstance(verdict, Kept), verdict
    assert verdict.warnings == ()
    with Image.open(io.BytesIO(data)) as picture:
        assert picture.tobytes() == PIXELS


def codes_of(data: list[int], bits: int = 5) -> bytes:
    return pack_codes([(code, bits) for code in data], False)


def without_end_code() -> bytes:
    """1,200 pixels as single codes with clear codes between them, and no end code."""
    codes: list[int] = []
    for at in range(0, 1200, 10):
        codes += [16, *PIXELS[at : at + 10]]
    return codes_of(codes)


SOUND = {
    "one picture": gif(image(STREAM)),
    "no end code": gif(image(without_end_code())),
    "no end code, zero bytes behind the pixels": gif(image(without_end_code() + bytes(3))),
    "bytes behind the end code": gif(image(STREAM + b"\0\x07")),
    "a block behind the end code": gif(image(STREAM)[:-1] + b"\x01\0\0"),
    "comments": gif(COMMENT, image(STREAM), COMMENT),
    "its own colour table": gif(image(STREAM, table=bytes(48)), colours=0),
    "one bit a pixel": gif(image(compress(bytes(600) + b"\1" * 600, 2, False), bits=2), colours=2),
}


@pytest.mark.parametrize("name", SOUND)
def test_what_encoders_write_is_clean(name: str) -> None:
    verdict = judge(SOUND[name])
    assert isinstance(verdict, Kept), verdict
    assert verdict.warnings == ()
    with Image.open(io.BytesIO(SOUND[name])) as picture:
        picture.load()
        assert (verdict.width, verdict.height, verdict.mode, verdict.frames) == (40, 30, picture.mode, 1)


def test_a_transparent_colour_may_lie_beyond_the_table() -> None:
    pixels = PIXELS.translate(bytes(value % 8 for value in range(256)))[:-1] + b"\x09"
    data = gif(control(9), image(compress(pixels, 4, False)), colours=8)
    verdict = judge(data)
    assert isinstance(verdict, Kept), verdict
    assert verdict.warnings == ()
    damaged = judge(gif(control(10), image(compress(pixels, 4, False)), colours=8))
    assert isinstance(damaged, Skipped)
    assert "a pixel of colour 9, its table has 8" in damaged.detail


NOTED = {
    "bytes behind the end": (gif(image(STREAM)) + b"junk", "trailing_bytes", "4 bytes"),
    "no end byte": (gif(image(STREAM), end=b""), "bad_metadata", "no end byte"),
    "no colour table": (gif(image(STREAM), colours=0), "bad_metadata", "picture 1 at byte 13: no colour table"),
    "zero bytes between blocks": (gif(COMMENT, b"\0\0", image(STREAM), b"\0"), "bad_metadata", "3 zero bytes between its"),
    "a picture that is partly outside": (
        gif(image(STREAM, at=29)), "bad_metadata", "picture 1 at byte 61: 40 × 30 at 29, 29 does not fit on a screen of 40",
    ),
}  # fmt: skip


def test_a_screen_without_a_size_is_as_large_as_its_first_picture() -> None:
    verdict = judge(gif(image(STREAM, at=3))[:6] + bytes(4) + gif(image(STREAM, at=3))[10:])
    assert isinstance(verdict, Kept), verdict
    assert (verdict.width, verdict.height, verdict.warnings) == (43, 33, ())


def test_one_note_for_all_pictures_without_a_colour_table() -> None:
    verdict = judge(gif(*[image(STREAM)] * 5, colours=0))
    assert isinstance(verdict, Kept), verdict
    assert [note.code for note in verdict.warnings] == ["bad_metadata", "multi_frame"]


@pytest.mark.parametrize("name", NOTED)
def test_what_is_odd_is_kept_and_noted(name: str) -> None:
    data, code, detail = NOTED[name]
    verdict = judge(data)
    assert isinstance(verdict, Kept), verdict
    assert [note.code for note in verdict.warnings] == [code]
    assert detail in verdict.warnings[0].detail


MISSING = codes_of([16, *PIXELS[:10], 16, *PIXELS[:10], 17])
BAD_CODE = codes_of([16, *PIXELS[:10], 16, *PIXELS[:10], 16, 25, 3])
LONGER = compress(PIXELS + b"\1", 4, False)

DAMAGED = {
    "pixels missing": (gif(image(MISSING)), "corrupt", "20 of 1,200 pixels, then the end code, 15 bytes into 15"),
    "a code that does not exist": (
        gif(image(BAD_CODE)),
        "corrupt",
        "20 of 1,200 pixels, then a code that does not exist, 14 byt",
    ),
    "no pixels": (gif(image(b"")), "corrupt", "0 of 1,200 pixels in 0 bytes"),
    "pixels missing without end code": (gif(image(without_end_code()[:-9])), "corrupt", r"of 1,200 pixels in \d+ bytes"),
    "a pixel too many": (gif(image(LONGER)), "corrupt", "more than its 1,200 pixels"),
    "rows too many": (gif(image(compress(PIXELS * 2, 4, False))), "corrupt", "more than its 1,200 pixels"),
    "a colour that is not there": (gif(image(STREAM), colours=8), "corrupt", "a pixel of colour 15, its table has 8"),
    "the second picture": (gif(image(STREAM), image(MISSING)), "corrupt", r"picture 2 at byte \d+: 20 of 1,200 pixels"),
    "no picture": (gif(COMMENT), "corrupt", "without any picture"),
    "an unknown block": (gif(image(STREAM), b"\x07"), "corrupt", r"byte [\d,]+ is 0x07, where a block"),
    "twelve bits a pixel": (gif(image(STREAM, bits=12)), "corrupt", "12 bits a pixel"),
    "a pixel above 255": (
        gif(image(pack_codes([(512, 10), (256, 10), (513, 10)], False), 1, 1, bits=9), colours=0),
        "corrupt",
        "a pixel of colour 256, there are 256 at most",
    ),
    "too large": (gif(image(STREAM, width=60_000, height=60_000)), "too_large", "60000 × 60000"),
    "too large by its place": (gif(image(STREAM, at=60_000)), "too_large", "60040 × 60030"),
    "outside the screen": (gif(image(STREAM, at=30)), "corrupt", "40 × 30 at 30, 30 does not fit on a screen of 40 × 30"),
    "cut before a picture": (gif(COMMENT, end=b""), "truncated", "ends at byte 70, before any picture"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_named_with_its_place(name: str) -> None:
    data, code, detail = DAMAGED[name]
    verdict = judge(data)
    assert isinstance(verdict, Skipped), verdict
    assert verdict.code == code
    assert re.search(detail, verdict.detail), verdict.detail


def test_a_file_that_ends_inside_a_block_is_truncated() -> None:
    data = gif(COMMENT, control(3), image(STREAM, table=bytes(48)), COMMENT)
    for size in range(13, len(data)):
        verdict = judge(data[:size])
        if size in (len(data) - 1, len(data) - 1 - len(COMMENT)):
            assert isinstance(verdict, Kept), size
        else:
            assert isinstance(verdict, Skipped), size
            assert verdict.code == "truncated", (size, verdict)
            assert f"ends at byte {size:,}" in verdict.detail


def test_later_pictures_may_lie_outside_the_screen() -> None:
    verdict = judge(gif(image(STREAM), image(STREAM, at=60_000)))
    assert isinstance(verdict, Kept), verdict
    assert (verdict.width, verdict.height, verdict.frames) == (40, 30, 2)


def test_flipped_bits_are_seen_that_pillow_passes_over() -> None:
    """Not all can be: a code that stands for another string of the same length makes another whole picture."""
    data = written(photo(160, 120))
    chance = random.Random(1)
    seen, loaded = 0, 0
    for _ in range(60):
        hurt = bytearray(data)
        hurt[chance.randrange(len(data) // 3, len(data) - 20)] ^= 1 << chance.randrange(8)
        seen += isinstance(judge(bytes(hurt)), Skipped)
        loaded += loads(bytes(hurt))
    assert loaded > 40
    assert seen > 20


def loads(data: bytes) -> bool:
    with Image.open(io.BytesIO(data)) as picture:
        try:
            picture.load()
        except OSError:
            return False
    return True
