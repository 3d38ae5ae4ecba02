"""BMP files are judged by their headers, their palette, and the codes of run-length coded pictures."""

from __future__ import annotations

import io
import re
import struct

import pytest
from PIL import Image

from packer.check import CheckSettings, check_bytes
from packer.model import Kept, Skipped, Verdict
from tests.inputs import photo

SETTINGS = CheckSettings()


def judge(data: bytes) -> Verdict:
    return check_bytes(data, b"x.bmp", SETTINGS)


def written(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "BMP")
    return buffer.getvalue()


def bmp(
    pixels: bytes, width: int = 10, height: int = 4, bits: int = 8, compression: int = 0, colours: int = 0,
    palette: int = 256, start: int | None = None, extra: bytes = b"",
) -> bytes:  # fmt: skip
    table = bytes(4 * palette) if bits <= 8 else b""
    start = 54 + len(extra) + len(table) if start is None else start
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, compression, len(pixels), 0, 0, colours, 0)
    body = header + extra + table + pixels
    return struct.pack("<2sIHHI", b"BM", 14 + len(body), 0, 0, start) + body


def put_size(data: bytes, size: int) -> bytes:
    return data[:2] + struct.pack("<I", size) + data[6:]


def core(pixels: bytes) -> bytes:
    return struct.pack("<2sIHHIIHHHH", b"BM", 0, 0, 0, 26 + 768, 12, 10, 4, 1, 8) + bytes(768) + pixels


ROW = bytes(range(10)) + bytes(2)
ROWS = ROW * 4
EOL, END = b"\0\0", b"\0\1"
RUN = b"\x0a\x05"
RLE8 = (RUN + EOL) * 3 + RUN + EOL + END
MIXED = b"\x03\x07" + b"\0\x05abcde\0" + b"\x02\x01" + EOL
RLE4 = (b"\x04\x12" + b"\0\x05\x12\x34\x50\0" + b"\x01\x20" + EOL) * 4 + END

SOUND = {
    "24 bits": written(photo()),
    "8 bits": written(photo().convert("L")),
    "palette": written(photo().convert("P")),
    "1 bit": written(photo().convert("1")),
    "32 bits": written(photo().convert("RGBA")),
    "by hand": bmp(ROWS),
    "top down": bmp(ROWS, height=-4),
    "no size": put_size(bmp(ROWS), 0),
    "the size of its headers": put_size(bmp(ROWS), 54),
    "no place of the pixels": bmp(ROWS, start=0),
    "a small palette": bmp(ROWS, colours=10, palette=10),
    "a palette that is counted wrong": bmp(ROWS, colours=3, palette=256),
    "4 bits, a small palette": bmp(b"\x01\x23\x01\x23\x0f\0\0\0" * 4, width=9, bits=4, colours=4, palette=4),
    "bit fields": bmp(bytes(80), bits=16, compression=3, extra=struct.pack("<III", 0xF800, 0x7E0, 0x1F)),
    "OS/2": core(ROWS),
    "RLE8": bmp(RLE8, compression=1),
    "RLE8, mixed": bmp(MIXED * 4 + END, compression=1),
    "RLE8 without end code": bmp(RLE8[:-4], compression=1),
    "RLE8, a small palette": bmp(RLE8, compression=1, colours=6, palette=6),
    "RLE4": bmp(RLE4, bits=4, compression=2, palette=16),
}


@pytest.mark.parametrize("name", SOUND)
def test_what_encoders_write_is_clean(name: str) -> None:
    verdict = judge(SOUND[name])
    assert isinstance(verdict, Kept), verdict
    assert verdict.warnings == ()


NOTED = {
    "the last row is not filled up": (
        bmp(ROWS[:-2]), "bad_metadata", "the last row is not filled up: 46 bytes from byte 1,078 on, 48 are expected; no pixel",
    ),
    "a file that should be longer": (
        put_size(bmp(ROWS), 2000), "bad_metadata", "1,126 bytes, its header says 2,000; every pixel is there",
    ),
    "runs that are too long at the end of their rows": (
        bmp((b"\x06\1\x09\1" + EOL) * 4 + END, compression=1), "bad_metadata", "4 of its 4 rows of 10 pixels end with a run",
    ),
    "bytes behind the pixels": (bmp(ROWS) + b"junk", "trailing_bytes", "4 bytes"),
    "pixels left out at the end of a row": (
        bmp(b"\x07\x01" + EOL + RLE8[4:], compression=1), "bad_metadata", "3 pixels are left out in its 4 rows",
    ),
    "pixels stepped over": (
        bmp(b"\0\2\3\1\x07\x01" + EOL + RLE8[8:], compression=1), "bad_metadata", "13 pixels are left out in its 4 rows",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTED)
def test_what_is_odd_is_kept_and_noted(name: str) -> None:
    data, code, detail = NOTED[name]
    verdict = judge(data)
    assert isinstance(verdict, Kept), verdict
    assert [note.code for note in verdict.warnings] == [code]
    assert detail in verdict.warnings[0].detail


CUT, BAD, R = "truncated", "corrupt", 1
DAMAGED = {
    "rows missing": (bmp(ROWS[:30]), CUT, "2 of 4 rows: 30 bytes from byte 1,078 on, 46 are expected"),
    "a pixel missing": (bmp(ROWS[:45]), CUT, "3 of 4 rows: 45 bytes from byte 1,078 on, 46 are expected"),
    "nothing behind the palette": (bmp(b""), CUT, "0 of 4 rows"),
    "half a palette": (bmp(b"")[:500], CUT, "ends at byte 500 inside its palette of 256 colours, where 1,024 bytes"),
    "half a header": (bmp(b"")[:40], CUT, "ends at byte 40 inside the header, where 40 bytes from byte 14"),
    "a few bytes": (b"BM" + bytes(9), CUT, "ends at byte 11 inside the header"),
    "pixels beyond the file": (bmp(ROWS, start=5000), CUT, "0 of 4 rows: 0 bytes from byte 5,000 on"),
    "pixels inside the header": (bmp(ROWS, start=30), BAD, "begin at byte 30, inside its headers, which end at byte 54"),
    "a colour that is not there": (bmp(ROWS, palette=9), BAD, "a pixel of colour 9, its palette has 9"),
    "a colour that is not there, 4 bits": (bmp(b"\x01\x23\x45\x60" * 4, 7, bits=4, palette=6), BAD, "colour 6, its palette"),
    "a colour that is not there, 1 bit": (bmp(b"\x01\0\0\0" * 4, 8, bits=1, palette=1), BAD, "colour 1, its palette has 1"),
    "a colour that is not there, RLE8": (bmp(RLE8, compression=R, palette=5), BAD, "a pixel of colour 5"),
    "RLE8 that ends early": (bmp(RLE8[:10], compression=R), CUT, "2 of 4 rows and 10 pixels, then the file ends at byte 1,088"),
    "RLE8 cut inside a code": (bmp(RUN + EOL + MIXED[:7], compression=R), CUT, "1 of 4 rows and 3 pixels.* inside a code"),
    "RLE8 cut inside a step": (bmp(RUN + EOL + b"\0\2\1", compression=R), CUT, "1 of 4 rows and 0 pixels.* inside a code"),
    "RLE8 with an early end code": (bmp(RUN + EOL + END, compression=R), BAD, "1 of 4 rows and 0 pixels, then the end code"),
    "RLE8, a run that is too long": (
        bmp(b"\x06\1\x09\1\1\1" + EOL + RLE8[4:], compression=R), BAD, "0 of 4 rows and 10 pixels, then a run before byte 1,0",
    ),
    "RLE8 with pixels beyond its row": (bmp(RUN + MIXED[2:] + RLE8[4:], compression=R), BAD, "5 pixels at byte 1,080 reach"),
    "RLE8 with a step out of the picture": (bmp(b"\0\2\x0b\0", compression=R), BAD, "a step at byte 1,078 leads out"),
    "three bits a pixel": (bmp(ROWS, bits=3), BAD, "3 bits a pixel with compression 0"),
    "a PNG in it": (bmp(b"", bits=0, compression=5), "unsupported_format", "with a PNG in it: convert"),
    "a rare layout": (
        bmp(bytes(80), bits=16, compression=3, extra=struct.pack("<III", 0xFF00, 0xF0, 0xF)),
        "unsupported_format", "16 bits a pixel",
    ),
    "too large": (bmp(b"", 60_000, -60_000), "too_large", "60000 × 60000"),
    "no width": (bmp(b"", 0), BAD, "0 × 4"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_named_with_its_place(name: str) -> None:
    data, code, detail = DAMAGED[name]
    verdict = judge(data)
    assert isinstance(verdict, Skipped), verdict
    assert verdict.code == code, verdict
    assert re.search(detail, verdict.detail), verdict.detail
