"""Zeroed sectors in JPEG scans: found where a strict decoder finds nothing, and never where a picture is sound."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from packer.check import CheckSettings, check_bytes
from packer.check.jpegholes import find_hole
from packer.model import Kept, Skipped
from tests.inputs import jpeg, photo

ENCODINGS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "optimized": {"optimize": True},
    "4:4:4": {"subsampling": 0},
    "progressive": {"progressive": True},
    "restart markers": {"restart_marker_blocks": 4},
}


def zeroed(data: bytes, at: int, size: int) -> bytes:
    return data[:at] + bytes(size) + data[at + size :]


def passes_strictly(data: bytes) -> bool:
    try:
        simplejpeg.decode_jpeg(data, strict=True)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_every_zeroed_sector_of_a_picture_with_detail_is_corrupt(encoding: str, mode: str) -> None:
    choose = random.Random(7)
    unseen = 0
    for seed in range(6):
        data = jpeg(photo(256, 192, seed=seed).convert(mode), **ENCODINGS[encoding])
        start = data.index(b"\xff\xda") + 20
        for size in (400, 512):
            for _ in range(3):
                damaged = zeroed(data, choose.randrange(start, len(data) - size - 40), size)
                unseen += passes_strictly(damaged)
                verdict = check_bytes(damaged, b"x.jpg", CheckSettings())
                assert isinstance(verdict, Skipped)
                assert verdict.code in ("corrupt", "truncated")
    if encoding == "baseline" and mode == "RGB":
        assert unseen > 5, "a strict decoder sees them all, so this test shows nothing"


def clean_pictures() -> Iterator[Image.Image]:
    random_ = np.random.default_rng(1)
    for width, height in ((16, 16), (200, 200), (900, 17)):
        yield Image.new("RGB", (width, height))
        yield Image.new("RGB", (width, height), (200, 30, 90))
        yield Image.linear_gradient("L").resize((width, height)).convert("RGB")
        yield photo(width, height)
        half = np.zeros((height, width, 3), np.uint8)
        half[: height // 2] = random_.integers(0, 256, (height // 2, width, 3))
        yield Image.fromarray(half)
        yield Image.fromarray((np.indices((height, width)).sum(0) // 3 % 2 * 255).astype(np.uint8)).convert("RGB")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_no_sound_picture_has_a_hole(encoding: str) -> None:
    runs_of_zeros = 0
    for picture in clean_pictures():
        for quality in (1, 30, 75, 95):
            for mode in ("RGB", "L", "CMYK"):
                data = jpeg(picture.convert(mode), quality=quality, **ENCODINGS[encoding])
                assert find_hole(data) == -1
                runs_of_zeros += bytes(64) in data
    if encoding == "optimized":
        assert runs_of_zeros, "no flat picture is among them, so this test shows nothing"


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_progressive_gradient_is_kept_although_its_steps_are_coded_as_zeros(mode: str) -> None:
    runs_of_zeros = 0
    for width in (1024, 1920, 2048, 3840):
        for slope in (0.09375, 0.125, 0.25):
            row = ((255 - np.arange(width) * slope) % 256).astype(np.uint8)
            picture = Image.fromarray(np.repeat(row[None], 16, axis=0)).convert(mode)
            for quality in (75, 90, 95):
                data = jpeg(picture, quality=quality, progressive=True, subsampling=0)
                runs_of_zeros += bytes(64) in data
                assert find_hole(data) == -1
    assert runs_of_zeros > 2, "no gradient is coded so, and this test shows nothing"


def test_zeros_as_padding_before_the_end_marker_and_behind_it_are_harmless() -> None:
    data = jpeg(photo(200, 150))
    for padded in (data[:-2] + bytes(500) + data[-2:], data + bytes(500)):
        assert isinstance(check_bytes(padded, b"x.jpg", CheckSettings()), Kept)


def test_detail_says_where() -> None:
    data = jpeg(photo(256, 256, seed=3))
    for at in range(data.index(b"\xff\xda") + 1000, len(data) - 2000, 50):
        damaged = zeroed(data, at, 400)
        if passes_strictly(damaged):
            verdict = check_bytes(damaged, b"x.jpg", CheckSettings())
            assert isinstance(verdict, Skipped)
            found = int("".join(filter(str.isdigit, verdict.detail.split(" on ")[0])))
            assert abs(found - at) <= 1
            return
    pytest.fail("no hole passes the strict decoder")
