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


# 16 × 16 noisy pixels. Without the last 19 bytes, three of which are padding, libwebp decodes it by chance, but not without 23.
ENDS_BY_CHANCE = base64.b64decode(
    "UklGRqoAAABXRUJQVlA4IJ4AAACwAgCdASoQABAAAUAmJbACdDBHSIsMRBPaAuuLOQAA/vxrzZ/VjzVVeez++00JTzYi7YOpKDFjfnyRAkFkgE06YaUnuSLHRf"
    "Wb2WeAo913iudg8tCjVMQbMyWzDR/YXN7WYf/4GvvFx3/r3/goyG/r/1kFUS5f/7r/8FL1rw/1/7yCLH/38dqep+Cm//+ug/zC//1p/8wj8TpnpAAAAA=="
)


def streams(data: bytes) -> dict[bytes, tuple[int, int]]:
    """Where the content of each chunk begins and ends, in files with one picture."""
    found, at = {}, 12
    while at + 8 <= len(data):
        end = at + 8 + int.from_bytes(data[at + 4 : at + 8], "little")
        found[data[at : at + 4]] = at + 8, end
        at = end + (end & 1)
    return found


def blanked(data: bytes, at: int, count: int) -> bytes:
    return data[:at] + bytes(count) + data[at + count :]


DETAILED = {
    "VP8": written(photo(200, 150)),
    "VP8L": written(photo(200, 150), lossless=True),
    "ALPH": written(Image.merge("RGBA", (*photo(200, 150).split(), photo(200, 150, seed=3).convert("L"))), quality=80),
}


@pytest.mark.parametrize("name", DETAILED)
@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
def test_zeros_among_the_data_of_a_picture_are_seen_by_what_is_left_over(name: str, share: float) -> None:
    data = DETAILED[name]
    start, end = streams(data)[name.ljust(4).encode()]
    verdict = judge(blanked(data, start + int(share * (end - start)), (end - start) // 5))
    assert isinstance(verdict, Skipped), verdict
    assert verdict.code == "corrupt"
    assert re.fullmatch(
        rf"its (lossy picture|lossless picture|alpha) at byte {start:,} can be decoded without the last \d+ of its "
        rf"{end - start:,} bytes: damage led the decoder astray before",
        verdict.detail,
    )


def test_the_picture_of_an_animation_that_has_data_left_over_is_named() -> None:
    lossy = DETAILED["VP8"][12:]
    hurt = blanked(lossy, len(lossy) // 2, 40)
    verdict = judge(extended(200, 150, ANIM, frame(200, 150, lossy), frame(200, 150, hurt), flags=2))
    assert isinstance(verdict, Skipped), verdict
    assert re.search(r"^picture 2 at byte [\d,]+: its lossy picture at byte [\d,]+ can be decoded without", verdict.detail)
    assert isinstance(judge(extended(200, 150, ANIM, frame(200, 150, lossy), frame(200, 150, lossy), flags=2)), Kept)


@pytest.mark.parametrize("name", ["VP8", "VP8L"])
@pytest.mark.parametrize("padding", [bytes(1), bytes(40), b"\xff" * 16, bytes(500)])
def test_a_run_of_one_byte_behind_the_data_is_padding(name: str, padding: bytes) -> None:
    data = DETAILED[name]
    start, end = streams(data)[name.ljust(4).encode()]
    verdict = judge(riff(chunk(name.ljust(4).encode(), data[start:end] + padding)))
    assert isinstance(verdict, Kept), verdict
    assert verdict.warnings == ()


@pytest.mark.parametrize("name", ["VP8", "VP8L"])
@pytest.mark.parametrize("filling", [0, 0x55])
def test_an_end_that_was_lost_and_filled_up_is_no_padding(name: str, filling: int) -> None:
    """Some of it is made into pixels."""
    data = DETAILED[name]
    start, end = streams(data)[name.ljust(4).encode()]
    at = start + (end - start) * 19 // 20
    verdict = judge(data[:at] + bytes([filling]) * (end - at) + data[end:])
    assert isinstance(verdict, Skipped), verdict
    assert verdict.code in ("corrupt", "truncated")


def test_a_flat_end_is_needed() -> None:
    """Its data are a run of zeros, as if they were filled up."""
    picture = photo(600, 400)
    picture.paste((90, 90, 90), (0, 60, 600, 400))
    for options in ({"quality": 10, "method": 0}, {"quality": 80}, {"lossless": True}, {"lossless": True, "method": 0}):
        assert isinstance(judge(written(picture, **options)), Kept), options


@pytest.mark.parametrize("name", ["VP8", "VP8L"])
def test_other_bytes_behind_the_data_are_left_over(name: str) -> None:
    data = DETAILED[name]
    start, end = streams(data)[name.ljust(4).encode()]
    verdict = judge(riff(chunk(name.ljust(4).encode(), data[start:end] + bytes(range(100, 180)))))
    assert isinstance(verdict, Skipped)
    assert "without the last 16 of its" in verdict.detail


def test_a_picture_whose_end_zeros_replace_by_chance_is_clean() -> None:
    start, end = 20, len(ENDS_BY_CHANCE)
    cut = riff(chunk(b"VP8 ", ENDS_BY_CHANCE[start : end - 19]))
    with Image.open(io.BytesIO(cut)) as picture:
        picture.load()
    assert isinstance(judge(ENDS_BY_CHANCE), Kept)


@pytest.mark.parametrize("options", [{}, {"lossless": True}, {"quality": 100, "method": 6}, {"quality": 5, "method": 0}])
def test_pictures_of_all_sizes_need_the_end_of_their_data(options: dict[str, Any]) -> None:
    for number in range(60):
        picture = photo(1 + number * 7 % 50, 1 + number * 11 % 40, seed=number)
        if number % 4 == 1:  # texture at the end only
            picture.paste((200, 200, 200), (0, 0, picture.width, picture.height * 2 // 3))
        if number % 3 == 1:
            picture.putalpha(photo(*picture.size, seed=number + 1).convert("L"))
        verdict = judge(written(picture, **options))
        assert isinstance(verdict, Kept), (number, picture, verdict)
