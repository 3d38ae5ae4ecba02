"""WebP files are judged by their chunks and partitions, so that a file which ends too early is called so."""

from __future__ import annotations

import base64
import io
import re
import struct
from typing import Any

import pytest
from PIL import Image

from packer.check import CheckSettings, check_bytes
from packer.model import Kept, Skipped, Verdict
from tests.inputs import photo

SETTINGS = CheckSettings()


def judge(data: bytes) -> Verdict:
    return check_bytes(data, b"x.webp", SETTINGS)


def written(*pictures: Image.Image, **options: Any) -> bytes:
    buffer = io.BytesIO()
    if len(pictures) > 1:
        options |= {"save_all": True, "append_images": pictures[1:]}
    pictures[0].save(buffer, "WEBP", **options)
    return buffer.getvalue()


def riff(*chunks: bytes) -> bytes:
    body = b"WEBP" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def chunk(name: bytes, body: bytes, size: int | None = None) -> bytes:
    return name + struct.pack("<I", len(body) if size is None else size) + body + bytes(len(body) & 1)


def put(data: bytes, at: int, value: int, size: int = 3) -> bytes:
    return data[:at] + value.to_bytes(size, "little") + data[at + size :]


LOSSY = written(photo())
LOSSLESS = written(photo(), lossless=True)
ALPHA = written(photo().convert("RGBA").rotate(30))
ANIMATED = written(photo(), photo(seed=1), photo(seed=2))

# A radial gradient of 48 × 48 with segments and four partitions of coefficients, written by libwebp 1.6.
FOUR_PARTITIONS = base64.b64decode(
    "UklGRqIAAABXRUJQVlA4IJYAAACQAwCdASowADAALvmczmcjqioqCjT4S0tPWD+A2PEAw9xf/E+wACkAABkAACIAAP7k6fVvYFQ/g6v6AlmL0MkmphRNVH"
    "5ycb3err75uP/GxRgcH2oPc2QA/lqHT8Qqa9HTTtShhq7tg/32WeCs+VwAAP7wXH/dAddP+/sZTGtAESHfUe0ITUUDvFkdlNj81G+bAAAAAAA="
)
PICTURE = FOUR_PARTITIONS[20:]
SIZES = 10 + (int.from_bytes(PICTURE[:3], "little") >> 5)  # where those of the partitions stand: 41, 25 and 34


def extended(width: int, height: int, *chunks: bytes, flags: int = 0) -> bytes:
    header = bytes([flags, 0, 0, 0]) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return riff(chunk(b"VP8X", header), *chunks)


def frame(width: int, height: int, picture: bytes, x: int = 0) -> bytes:
    numbers = (x // 2, 0, width - 1, height - 1, 100)
    return chunk(b"ANMF", b"".join(number.to_bytes(3, "little") for number in numbers) + b"\0" + picture)


ANIM = chunk(b"ANIM", bytes(6))
VP8 = chunk(b"VP8 ", PICTURE)

SOUND = {
    "lossy": (LOSSY, 1),
    "lossless": (LOSSLESS, 1),
    "alpha": (ALPHA, 1),
    "animated": (ANIMATED, 3),
    "four partitions": (FOUR_PARTITIONS, 1),
    "a chunk behind the picture": (riff(VP8, chunk(b"JUNK", b"xyz")), 1),
    "a canvas": (extended(48, 48, VP8), 1),
    "two frames": (extended(50, 48, ANIM, frame(48, 48, VP8), frame(48, 48, VP8, x=2), flags=2), 2),
}


@pytest.mark.parametrize("name", SOUND)
def test_what_encoders_write_is_clean(name: str) -> None:
    data, frames = SOUND[name]
    verdict = judge(data)
    assert isinstance(verdict, Kept), verdict
    assert [note.code for note in verdict.warnings] == ["multi_frame"] * (frames > 1)
    assert verdict.frames == frames


def test_bytes_behind_the_container_are_noted() -> None:
    verdict = judge(LOSSY + b"junk")
    assert isinstance(verdict, Kept), verdict
    assert [(note.code, note.detail[:7]) for note in verdict.warnings] == [("trailing_bytes", "4 bytes")]


@pytest.mark.parametrize("name", ["lossy", "lossless", "alpha", "animated", "a canvas"])
def test_a_file_that_ends_too_early_is_truncated(name: str) -> None:
    data, _ = SOUND[name]
    for size in sorted({*range(31, len(data), max(1, len(data) // 50)), len(data) - 1}):
        verdict = judge(data[:size])
        assert isinstance(verdict, Skipped), size
        assert (verdict.code, verdict.detail) == ("truncated", f"{size:,} bytes, and its header says {len(data):,}")


DAMAGED = {
    "a chunk beyond the file": (put(LOSSY, 16, 90_000, 4), "truncated", r"chunk 'VP8' at byte 12 has 90,000 bytes, [\d,]+ are"),
    "a chunk beyond the file behind the picture": (riff(VP8, chunk(b"JUNK", b"xyz", 999)), "truncated", "chunk 'JUNK' at byte"),
    "a first partition beyond its chunk": (
        put(FOUR_PARTITIONS, 20, 0x10 | 500 << 5), "truncated", "its first partition at byte 30 has 500 bytes, 140 are left",
    ),
    "a partition beyond its chunk": (
        put(FOUR_PARTITIONS, 20 + SIZES + 3, 200), "truncated", r"partition 2 of 4 at byte \d+ has 200 bytes, \d+ are left",
    ),
    "no room for the partitions": (riff(chunk(b"VP8 ", PICTURE[: SIZES + 8])), "truncated", "the list of its 4 partitions"),
    "a partition that is cut in a frame": (
        extended(48, 48, ANIM, frame(48, 48, VP8), frame(48, 48, chunk(b"VP8 ", PICTURE[:60])), flags=2),
        "truncated", r"picture 2 at byte \d+: partition 1 of 4",
    ),
    "no picture": (riff(), "corrupt", "no picture in its 12 bytes"),
    "an unknown first chunk": (riff(chunk(b"JUNK", b"")), "corrupt", "its first chunk is 'JUNK'"),
    "an animation without pictures": (extended(48, 48, ANIM, flags=2), "corrupt", "no picture in its"),
    "a wrong canvas": (extended(48, 49, VP8), "corrupt", "a canvas of 48 × 49 for a picture of 48 × 48"),
    "a frame outside the canvas": (
        extended(48, 48, ANIM, frame(48, 48, VP8, x=2), flags=2), "corrupt", r"48 × 48 at 2, 0 does not fit into 48 × 48",
    ),
    "a frame of another size": (extended(48, 48, ANIM, frame(48, 40, VP8), flags=2), "corrupt", "48 × 40 is stated, the"),
    "a frame without a picture": (extended(48, 48, ANIM, frame(48, 48, b""), flags=2), "corrupt", "picture 1 at byte 44: no"),
    "a chunk beyond its frame": (
        extended(48, 48, ANIM, frame(48, 48, chunk(b"VP8 ", PICTURE, 150)[:-10]), frame(48, 48, VP8), flags=2),
        "corrupt", r"chunk 'VP8' at byte 68 has 150 bytes, 140 are left",
    ),
    "no start code": (put(LOSSY, 23, 0), "corrupt", "byte 23 is 00 00 00, where 9d 01 2a is expected"),
    "no signature": (put(LOSSLESS, 20, 0, 1), "corrupt", "byte 20 is 00, where 2f is expected"),
    "a header that is not whole": (riff(chunk(b"VP8L", b"\x2f\0")), "truncated", "2 bytes of picture at byte 20, its header"),
    "too large": (extended(1 << 14, 1 << 14, VP8), "too_large", "16384 × 16384"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_named_with_its_place(name: str) -> None:
    data, code, detail = DAMAGED[name]
    verdict = judge(data)
    assert isinstance(verdict, Skipped), verdict
    assert verdict.code == code
    assert re.search(detail, verdict.detail), verdict.detail


def test_pixels_that_libwebp_misses_are_damage() -> None:
    """Every byte of the coefficients is still there; only Pillow can say that they end too early."""
    data = written(photo(256, 256), quality=90)
    picture = data[20:-300]
    verdict = judge(riff(chunk(b"VP8 ", picture)))
    assert isinstance(verdict, Skipped)
    assert verdict.code in ("corrupt", "truncated")
