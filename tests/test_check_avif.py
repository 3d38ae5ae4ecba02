"""AVIF files are judged by their boxes, and by whether the decoder needs the end of what is coded in them."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from PIL import Image, features

from packer.check import CheckSettings, avif, check_bytes
from packer.check.avifboxes import Coded, boxes, read_items, read_samples
from packer.model import Kept, Skipped, Verdict
from tests.inputs import photo

pytestmark = pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")

SETTINGS = CheckSettings()
SIZE = (160, 120)


def judge(data: bytes) -> Verdict:
    return check_bytes(data, b"x.avif", SETTINGS)


def written(*pictures: Image.Image, **options: Any) -> bytes:
    buffer = io.BytesIO()
    if len(pictures) > 1:
        options |= {"save_all": True, "append_images": pictures[1:]}
    pictures[0].save(buffer, "AVIF", **{"speed": 10, **options})
    return buffer.getvalue()


def box(name: bytes, body: bytes, version: int | None = None) -> bytes:
    body = body if version is None else bytes([version, 0, 0, 0]) + body
    return struct.pack(">I4s", 8 + len(body), name) + body


def pictures_of(seeds: Sequence[int]) -> list[Image.Image]:
    return [photo(*SIZE, seed=seed) for seed in seeds]


def with_alpha(seed: int = 0) -> Image.Image:
    return Image.merge("RGBA", (*photo(*SIZE, seed=seed).split(), photo(*SIZE, seed=seed + 1).convert("L")))


def spans(data: bytes) -> list[tuple[int, int]]:
    """Where the data of each item, or of each sample where there are any, begin and end."""
    found = {inner.name: inner for inner in boxes(data, 0, len(data))}
    pieces = read_samples(data, found[b"moov"]) if b"moov" in found else read_items(data, found[b"meta"])[1]
    return [(piece.start, piece.start + piece.size) for piece in pieces]


STILL = written(photo(*SIZE))
ALPHA = written(with_alpha())
ANIMATED = written(*pictures_of(range(4)))


def av1_of(data: bytes) -> tuple[bytes, bytes]:
    """The coded picture of a file, and the box with its settings."""
    start, end = spans(data)[0]
    at = data.index(b"av1C") - 4
    return data[start:end], data[at : at + int.from_bytes(data[at : at + 4], "big")]


def grid(*coded: bytes, settings: bytes, more: Sequence[bytes] = (), wide: bool = False, padded: int = 0) -> bytes:
    """A file with a row of tiles as its picture, with items that belong to nothing behind them."""
    kinds = [b"grid", *[b"av01"] * (len(coded) + len(more))]
    form = ">I" if wide else ">H"

    def numbered(number: int) -> bytes:
        return struct.pack(form, number)

    def meta(offsets: Sequence[int]) -> bytes:
        ends = [(1, 0, 8), *((0, at, len(data)) for at, data in zip(offsets, (*coded, *more), strict=True))]
        places = b"".join(
            numbered(item) + struct.pack(">HHHII", method, 0, 1, start, size)
            for item, (method, start, size) in enumerate(ends, 1)
        )
        infos = b"".join(
            box(b"infe", numbered(item) + b"\0\0" + kind + b"\0", 3 if wide else 2) for item, kind in enumerate(kinds, 1)
        )
        tiles = struct.pack(">H", len(coded)) + b"".join(numbered(item) for item in range(2, 2 + len(coded)))
        whole = struct.pack(">II", SIZE[0] * len(coded), SIZE[1])
        properties = box(b"ipco", box(b"ispe", whole, 0) + box(b"ispe", struct.pack(">II", *SIZE), 0) + settings)
        of_items = [
            struct.pack(">H", 1) + b"\1\x81",
            *(struct.pack(">H", item) + b"\2\x82\x83" for item in range(2, len(kinds) + 1)),
        ]
        links = box(b"ipma", struct.pack(">I", len(kinds)) + b"".join(of_items), 0)
        return box(
            b"meta",
            box(b"hdlr", bytes(4) + b"pict" + bytes(13), 0)
            + box(b"pitm", numbered(1), int(wide))
            + box(b"iloc", b"\x44\0" + numbered(len(kinds)) + places, 2 if wide else 1)
            + box(b"iinf", struct.pack(form, len(kinds)) + infos, int(wide))
            + box(b"iref", box(b"dimg", numbered(1) + tiles), int(wide))
            + box(b"iprp", properties + links)
            + box(b"idat", struct.pack(">BBBBHH", 0, 0, 0, len(coded) - 1, SIZE[0] * len(coded), SIZE[1])),
            0,
        )

    head = box(b"ftyp", b"avif\0\0\0\0avifmif1miaf")
    at = len(head) + len(meta([0] * (len(coded) + len(more)))) + 8 + padded
    offsets = []
    for data in (*coded, *more):
        offsets.append(at)
        at += len(data)
    return head + meta(offsets) + box(b"mdat", bytes(padded) + b"".join((*coded, *more)))


TILES = [av1_of(written(picture)) for picture in pictures_of((5, 6))]
GRID = grid(TILES[0][0], TILES[1][0], settings=TILES[0][1])

SOUND = {
    "still": (STILL, 1),
    "grey": (written(photo(*SIZE).convert("L")), 1),
    "all colours": (written(photo(*SIZE), subsampling="4:4:4", quality=100), 1),
    "alpha": (ALPHA, 1),
    "animated": (ANIMATED, 4),
    "animated with alpha": (written(with_alpha(), with_alpha(4)), 2),
    "tiles": (written(photo(320, 256), tile_rows=1, tile_cols=1, autotiling=False), 1),
    "a grid": (GRID, 1),
    "a grid with wide numbers": (grid(TILES[0][0], TILES[1][0], settings=TILES[0][1], wide=True), 1),
    "a box of no size at the end": (STILL + struct.pack(">I4s", 0, b"free") + b"text", 1),
    "a long size": (STILL + struct.pack(">I4sQ", 1, b"free", 20) + b"text", 1),
    "few bytes": (written(Image.new("RGB", (9, 9), (7, 8, 9))), 1),
}


@pytest.mark.parametrize("name", SOUND)
def test_what_encoders_write_is_clean(name: str) -> None:
    data, frames = SOUND[name]
    verdict = judge(data)
    assert isinstance(verdict, Kept), verdict
    assert [note.code for note in verdict.warnings] == ["multi_frame"] * (frames > 1)
    assert verdict.frames == frames


def test_a_grid_is_one_picture() -> None:
    verdict = judge(GRID)
    assert isinstance(verdict, Kept)
    assert (verdict.width, verdict.height) == (2 * SIZE[0], SIZE[1])


@pytest.mark.parametrize("data", [STILL, ALPHA, ANIMATED, GRID], ids=["still", "alpha", "animated", "grid"])
def test_a_file_that_ends_too_early_is_truncated(data: bytes) -> None:
    for size in sorted({*range(40, len(data), max(1, len(data) // 60)), len(data) - 1}):
        verdict = judge(data[:size])
        assert isinstance(verdict, Skipped), size
        assert verdict.code == "truncated", (size, verdict)
        found = re.search(r"box '(\w+)' at byte ([\d,]+) has [\d,]+ bytes, ([\d,]+) are left", verdict.detail)
        if found:
            assert int(found[2].replace(",", "")) + int(found[3].replace(",", "")) == size


@pytest.mark.parametrize("junk", [b"junk", b"\xff" * 100, bytes(100), b"\0\0\7\xd0text" + b"more"])
def test_bytes_behind_the_last_box_are_noted(junk: bytes) -> None:
    verdict = judge(STILL + junk)
    assert isinstance(verdict, Kept), verdict
    assert [note.code for note in verdict.warnings] in (["trailing_bytes"], [])
    if junk.strip(b"\0"):
        assert verdict.warnings[0].detail == f"{len(junk)} bytes after the end of the picture"


def put(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def test_an_item_beyond_the_file_is_truncated() -> None:
    place = STILL.index(b"iloc")
    start = spans(STILL)[0][0]
    at = STILL.index(struct.pack(">I", start), place)
    verdict = judge(put(STILL, at, struct.pack(">I", start + 100)))
    assert isinstance(verdict, Skipped)
    size = len(STILL) - start
    assert (verdict.code, verdict.detail) == (
        "truncated", f"item 1 at byte {start + 100:,} has {size:,} bytes, {size - 100:,} are left",
    )  # fmt: skip


def test_a_primary_item_that_is_not_there_is_corrupt() -> None:
    verdict = judge(put(STILL, STILL.index(b"pitm") + 8, b"\0\7"))
    assert isinstance(verdict, Skipped)
    assert verdict.code == "corrupt"


def hurt(data: bytes, start: int, end: int, share: float = 0.4) -> bytes:
    at = start + int(share * (end - start))
    return put(data, at, bytes((end - start) // 5))


LEFT = "can be decoded without the last \\d+ of its [\\d,]+ bytes: damage led the decoder astray before"

DAMAGED = {
    "still": (hurt(STILL, *spans(STILL)[0]), "^item 1 at byte"),
    "colours under alpha": (hurt(ALPHA, *spans(ALPHA)[0]), "^item 1 at byte"),
    "alpha": (hurt(ALPHA, *spans(ALPHA)[1]), "^item 2 at byte"),
    "the first of an animation": (hurt(ANIMATED, *spans(ANIMATED)[0]), "^picture 1 of track 1 at byte"),
    "the last of an animation": (hurt(ANIMATED, *spans(ANIMATED)[3]), "^picture 4 of track 1 at byte"),
    "the first tile of a grid": (hurt(GRID, *spans(GRID)[1]), "^item 2 at byte"),
    "the second tile of a grid": (hurt(GRID, *spans(GRID)[2]), "^item 3 at byte"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_zeros_among_the_data_of_a_picture_are_seen_by_what_is_left_over(name: str) -> None:
    data, where = DAMAGED[name]
    verdict = judge(data)
    assert isinstance(verdict, Skipped), verdict
    assert verdict.code == "corrupt"
    assert re.search(f"{where} [\\d,]+ {LEFT}", verdict.detail), verdict.detail


def test_an_item_that_belongs_to_no_picture_is_not_looked_at() -> None:
    other = hurt(TILES[0][0], 0, len(TILES[0][0]))
    data = grid(TILES[0][0], TILES[1][0], settings=TILES[0][1], more=[other])
    assert isinstance(judge(data), Kept)


@pytest.mark.parametrize("padding", [bytes(1), bytes(40), b"\xff" * 300])
def test_a_run_of_one_byte_behind_the_data_is_padding(padding: bytes) -> None:
    tile, settings = TILES[0]
    data = grid(longer(tile, padding), TILES[1][0], settings=settings)
    verdict = judge(data)
    assert isinstance(verdict, Kept), verdict
    damaged = judge(grid(longer(hurt(tile, 0, len(tile)), padding), TILES[1][0], settings=settings))
    assert isinstance(damaged, Skipped), damaged


def longer(coded: bytes, more: bytes) -> bytes:
    """A stream whose last unit has more bytes."""
    piece = Coded("", 0, len(coded), 0, 4, is_used=True)
    unit = avif._last_tiles(coded, piece)
    assert unit is not None
    size = unit.end - unit.start + len(more)
    number = bytes(size >> 7 * place & 127 | (128 if place < 3 else 0) for place in range(4))
    return coded[: unit.size_at] + number + coded[unit.start :] + more


def test_nothing_is_said_of_an_animation_beyond_the_limit_for_pixels() -> None:
    data = DAMAGED["the last of an animation"][0]
    few = CheckSettings(max_pixels=SIZE[0] * SIZE[1] * 2)
    assert isinstance(check_bytes(data, b"x.avif", few), Kept)


@pytest.mark.parametrize("options", [{}, {"quality": 100, "subsampling": "4:4:4"}, {"quality": 20, "subsampling": "4:0:0"}])
def test_pictures_of_all_sizes_need_the_end_of_their_data(options: dict[str, Any]) -> None:
    for number in range(30):
        picture = photo(1 + number * 7 % 50, 1 + number * 11 % 40, seed=number)
        if number % 4 == 1:  # texture at the end only
            picture.paste((200, 200, 200), (0, 0, picture.width, picture.height * 2 // 3))
        if number % 3 == 1:
            picture.putalpha(photo(*picture.size, seed=number + 1).convert("L"))
        verdict = judge(written(picture, **options))
        assert isinstance(verdict, Kept), (number, picture, verdict)


def test_damaged_boxes_never_raise() -> None:
    """Whatever they say: each byte of the boxes before the data, in a few ways."""
    for data in (ALPHA, GRID, ANIMATED):
        end = data.index(b"mdat") + 4
        for at in range(4, end, 3):
            for value in (0, 0x7F, 0xFF):
                verdict = judge(put(data, at, bytes([value])))
                assert not (isinstance(verdict, Skipped) and re.match("(Index|Value|Struct|Type)\\w*Error", verdict.detail))
