"""Damage to the later pictures of a camera's multi-picture file is noted; the first one is the sample."""

from __future__ import annotations

import io
from typing import Literal

import pytest
from PIL import Image

from packer.check import CheckSettings, check_bytes, mpo
from packer.model import Kept, Note, Skipped
from tests.inputs import photo


def written(*pictures: Image.Image) -> bytes:
    buffer = io.BytesIO()
    pictures[0].save(buffer, "MPO", save_all=True, append_images=pictures[1:], quality=90)
    return buffer.getvalue()


WHOLE = written(photo(200, 150), photo(200, 150, seed=1), photo(100, 75, seed=2))


def index_of(data: bytes) -> bytes:
    at = data.index(b"MPF\0")
    return data[at + 4 : at - 2 + int.from_bytes(data[at - 2 : at], "big")]


SECOND, THIRD = mpo.later_pictures(WHOLE, index_of(WHOLE))


def notes(data: bytes, max_pixels: int = 10**6) -> list[Note]:
    verdict = check_bytes(data, b"x.jpg", CheckSettings(max_pixels=max_pixels))
    assert isinstance(verdict, Kept), verdict
    return list(verdict.warnings)


def changed(at: int, new: bytes) -> bytes:
    return WHOLE[:at] + new + WHOLE[at + len(new) :]


def test_the_places_are_those_of_the_index() -> None:
    sizes = []
    for start in (SECOND, THIRD):
        with Image.open(io.BytesIO(WHOLE[start:])) as picture:
            sizes.append(picture.size)
    assert sizes == [(200, 150), (100, 75)]


def test_a_whole_file_is_clean() -> None:
    assert notes(WHOLE) == []


def test_the_picture_that_is_damaged_is_named() -> None:
    marked = notes(changed((SECOND + THIRD) // 2, b"\xff\xe2"))
    assert [note.code for note in marked] == ["bad_metadata"]
    assert marked[0].detail.startswith(f"picture 2 of 3 at byte {SECOND:,} is damaged: ")
    begins = notes(changed(THIRD, b"\0\0"))
    assert begins == [
        Note("bad_metadata", f"picture 3 of 3 at byte {THIRD:,} is damaged: it begins with 00 00 ff, a JPEG with ff d8 ff")
    ]


@pytest.mark.parametrize(
    "size, number, why",
    [(THIRD + 900, 3, "no end marker"), (SECOND + 900, 2, "no end marker"), (SECOND, 2, "it begins with nothing")],
)
def test_a_file_that_ends_in_a_later_picture(size: int, number: int, why: str) -> None:
    (note,) = notes(WHOLE[:size])
    assert note.code == "bad_metadata"
    assert f"picture {number} of 3" in note.detail
    assert why in note.detail


def test_a_file_that_ends_in_its_first_picture_is_truncated() -> None:
    verdict = check_bytes(WHOLE[: SECOND // 2], b"x.jpg", CheckSettings())
    assert isinstance(verdict, Skipped)
    assert verdict.code == "truncated"


def test_later_pictures_are_looked_at_as_far_as_the_pixels_last() -> None:
    broken = changed((THIRD + len(WHOLE)) // 2, b"\xff\xe2")
    assert [note.code for note in notes(broken, 200 * 150 * 2 + 100 * 75)] == ["bad_metadata"]
    assert notes(broken, 200 * 150 * 2) == []


@pytest.mark.parametrize(
    "at, new, detail",
    [
        (0, b"XX", "begins with 58 58 2a 00"),
        (4, b"\xff\xff\xff\x00", "points to byte"),
        (8, b"\xff\xff", "points to byte"),
    ],
)
def test_a_broken_index_is_noted(at: int, new: bytes, detail: str) -> None:
    start = WHOLE.index(b"MPF\0") + 4
    new = new if index_of(WHOLE)[:2] == b"II" or at == 0 else new[::-1]
    found = notes(changed(start + at, new))
    assert [note.code for note in found] == ["bad_metadata"]
    assert "its list of pictures cannot be read" in found[0].detail
    assert detail in found[0].detail or at == 0


def test_an_entry_of_a_picture_that_is_no_jpeg_is_noted() -> None:
    start = WHOLE.index(b"MPF\0") + 4
    order: Literal["little", "big"] = "little" if WHOLE[start : start + 2] == b"II" else "big"
    tag = WHOLE.index((0xB002).to_bytes(2, order), start)
    at = start + int.from_bytes(WHOLE[tag + 8 : tag + 12], order)
    found = notes(changed(at, (0x05000000).to_bytes(4, order)))
    assert [(note.code, note.detail) for note in found] == [
        ("bad_metadata", "its list of pictures cannot be read: picture 1 in form 5, there is only 0, which is JPEG")
    ]
