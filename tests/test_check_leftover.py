"""Data that a decoder leaves over are damage, and a run of one byte behind them is padding."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from packer.check import CheckSettings, check_bytes, leftover
from packer.model import Kept, Skipped, Verdict
from tests.inputs import jpeg, photo

SETTINGS = CheckSettings()
JPEG = jpeg(photo(160, 120))
END = b"\xff\xd9"


def judge(data: bytes, name: bytes = b"x.jpg") -> Verdict:
    return check_bytes(data, name, SETTINGS)


@pytest.mark.parametrize("padding", [b"\0", b"\xff", bytes(9), b"aa", b"\x7f" * 100])
def test_a_run_before_the_end_marker_of_a_jpeg_is_padding(padding: bytes) -> None:
    assert JPEG.endswith(END)
    assert isinstance(judge(JPEG[:-2] + padding + END), Kept)


def test_a_picture_that_ends_with_the_byte_of_its_padding_is_whole() -> None:
    ends = set()
    for seed in range(40):
        data = jpeg(photo(seed=seed))
        last = data[-3:-2]
        ends.add(last)
        assert isinstance(judge(data[:-2] + last * 50 + END), Kept), (seed, last)
    assert len(ends) > 5


def test_odd_bytes_before_the_end_marker_of_a_jpeg_are_left_over() -> None:
    """The decoder takes a few of them with it, and speaks of those behind, be it a single one."""
    verdicts = [judge(JPEG[:-2] + b"abcdefghijklm"[:count] + END) for count in range(1, 14)]
    said = [verdict.detail for verdict in verdicts if isinstance(verdict, Skipped)]
    assert said == [
        f"the decoder says: Corrupt JPEG data: {n} extraneous bytes before marker 0xd9" for n in range(1, len(said) + 1)
    ]
    assert len(said) >= 5


def test_so_it_is_with_jpeg_in_tiff() -> None:
    buffer = io.BytesIO()
    photo(64, 48).save(buffer, "TIFF", compression="jpeg")
    data = buffer.getvalue()
    assert isinstance(judge(data, b"x.tif"), Kept)
    at = data.index(END)
    hurt = data[: at - 3] + b"\x31" + data[at - 3 : at - 1] + data[at:]
    assert isinstance(judge(hurt, b"x.tif"), Skipped)


class Asked:
    """A decoder of pictures whose data end with so many bytes that it does not look at: it needs all before."""

    def __init__(self, needed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.needed = needed
        self.count = 0
        monkeypatch.setattr(leftover, "digest_of_pixels", self.digest)

    def digest(self, data: bytes, _kind: str, _frame: int = 0) -> str | None:
        self.count += 1
        return None if len(data) < self.needed else data[: self.needed].hex()


NOISE = bytes(range(1, 200))


@pytest.mark.parametrize(
    ("coded", "needed", "unneeded"),
    [
        (NOISE, 199, 0),
        (NOISE, 197, 0),
        (NOISE, 170, 0),  # not with every cut
        (NOISE, 167, 16),
        (NOISE, 100, 16),
        (NOISE, 40, 0),  # nothing depends on what is behind a header
        (NOISE[:90], 20, 0),  # too few to tell
        (NOISE + bytes(100), 199, 0),
        (NOISE + bytes(100), 150, 116),
        (NOISE + bytes(100), 230, 16),  # made into pixels
        (NOISE + bytes(100), 299, 0),
        (NOISE + bytes(40), 215, 0),  # too few of them
        (bytes(300), 300, 0),
        (bytes(300), 100, 16),
        (b"", 0, 0),
    ],
)
def test_what_is_told_of_a_decoder(coded: bytes, needed: int, unneeded: int, monkeypatch: pytest.MonkeyPatch) -> None:
    Asked(needed, monkeypatch)
    assert leftover.count_unneeded(coded, "webp", 0, lambda data: data) == unneeded


def test_a_sound_picture_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(len(NOISE), monkeypatch)
    assert leftover.count_unneeded(NOISE, "webp", 0, lambda data: data) == 0
    assert asked.count == 1


def test_bytes_that_are_not_needed_but_change_pixels_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftover, "digest_of_pixels", lambda data, *_: data.hex())
    assert leftover.count_unneeded(NOISE, "webp", 0, lambda data: data) == 0


def test_a_digest_is_of_the_pixels() -> None:
    buffer = io.BytesIO()
    photo().save(buffer, "WEBP", lossless=True)
    other = io.BytesIO()
    photo().save(other, "WEBP", lossless=True, method=0)
    assert buffer.getvalue() != other.getvalue()
    found = leftover.digest_of_pixels(buffer.getvalue(), "webp")
    assert found is not None
    assert found == leftover.digest_of_pixels(other.getvalue(), "webp")
    assert leftover.digest_of_pixels(buffer.getvalue()[:-9], "webp") is None
    with Image.open(buffer) as picture:
        assert picture.size == (64, 48)
