"""The walk over fax data: every code that an encoder may use, and the first row that does not come out right."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from packer.check import CheckSettings, check_bytes, fax
from packer.model import Kept, Skipped, Verdict
from tests.tiff_inputs import by_pillow

PACKINGS = {
    "Group 4": ("group4", {}),
    "Group 3": ("group3", {}),
    "Group 3, two-dimensional": ("group3", {292: 1}),
    "Group 3, ends of line at bytes": ("group3", {292: 4}),
    "Group 3, both": ("group3", {292: 5}),
    "Modified Huffman": ("tiff_ccitt", {}),
}


def judge(data: bytes) -> Verdict:
    return check_bytes(data, b"x.tif", CheckSettings())


def runs(seed: int) -> npt.NDArray[np.bool_]:
    """Rows of runs with lengths of one kind, many of them near the runs of the row above."""
    random = np.random.default_rng(seed)
    width, height = int(random.integers(1, 6000)), int(random.integers(1, 30))
    scale = random.choice([1.5, 5, 30, 300, 3000])
    found = np.zeros((height, width), bool)
    edges = np.zeros(0, np.int64)
    for y in range(height):
        if not y or random.random() < 0.2:
            edges = np.cumsum(random.exponential(scale, width + 2).astype(int) + 1)
        else:
            edges = np.sort(np.maximum(0, edges + random.integers(-3, 4, len(edges))))[random.integers(0, 2) :]
        changes = np.bincount(edges[edges < width], minlength=width)
        found[y] = np.cumsum(changes) % 2 == 1
    return found


def every_length() -> npt.NDArray[np.bool_]:
    """A white and a black run of each length up to 2,700."""
    x = np.arange(5400)
    return np.array([(x >= length) & (x < 2 * length) for length in range(2700)])


def strip_of(data: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(data)) as picture:
        offset, size = (picture.tag_v2[tag][0] for tag in (273, 279))  # type: ignore[attr-defined]
    return offset, size


@pytest.mark.parametrize("name", PACKINGS)
@pytest.mark.parametrize("order", [1, 2])
def test_what_an_encoder_writes_is_sound(name: str, order: int) -> None:
    packing, tags = PACKINGS[name]
    for seed in range(30):
        data = by_pillow(Image.fromarray(runs(seed)), compression=packing, tiffinfo={**tags, 266: order})
        assert isinstance(verdict := judge(data), Kept), (seed, verdict)


@pytest.mark.parametrize("name", PACKINGS)
def test_every_length_of_a_run_is_known(name: str) -> None:
    packing, tags = PACKINGS[name]
    data = by_pillow(Image.fromarray(every_length()), compression=packing, tiffinfo=tags, strip_size=1 << 24)
    assert isinstance(verdict := judge(data), Kept), verdict


@pytest.mark.parametrize("name", PACKINGS)
def test_zeros_inside_are_found(name: str) -> None:
    packing, tags = PACKINGS[name]
    for seed in range(10):
        data = by_pillow(Image.fromarray(runs(seed)), compression=packing, tiffinfo={**tags, 278: 99})
        offset, size = strip_of(data)
        if size < 200:
            continue
        middle = offset + size // 2
        verdict = judge(data[:middle] + bytes(64) + data[middle + 64 :])
        assert isinstance(verdict, Skipped), seed
        assert verdict.code in ("corrupt", "truncated")
        assert " sound rows of " in verdict.detail


def bits(text: str) -> bytes:
    text = text.replace(" ", "")
    return int(text.ljust(-(-len(text) // 8) * 8, "0"), 2).to_bytes(-(-len(text) // 8), "big")


WHITE_8 = "10011"
END = "000000000001"


@pytest.mark.parametrize(
    ("scheme", "options", "data", "rows", "fault"),
    [
        (fax.T6, 0, bits("1 1 1" + END + END), 3, ""),
        (fax.T6, 0, bits("1 1 1"), 3, ""),
        (fax.T6, 0, bits("1 1" + END + END), 2, "the data say that they end"),
        (fax.T6, 0, bits("1 1 0000001111"), 2, "no such code"),
        (fax.T6, 0, bits("1 1 001" + WHITE_8 + "010"), 2, "a row of 9 pixels, 8 are promised"),
        (fax.T6, 0, bits("1 1 1" + "1" * 40), 3, "more data follow the last row"),
        (fax.T6, 0, b"", 0, "the data end"),
        (fax.HUFFMAN, 0, bytes([0x98] * 3), 3, ""),
        (fax.HUFFMAN, 0, bytes([0x98] * 2), 2, "the data end"),
        (fax.T4, 0, bits((END + WHITE_8) * 3), 3, ""),
        (fax.T4, 0, bits(("0000" + END + WHITE_8) * 3 + END * 6), 3, ""),
        (fax.T4, 0, bits((WHITE_8 + END) * 3), 3, ""),
        (fax.T4, 0, bits(WHITE_8 * 3), 3, ""),
        (fax.T4, 0, bits((END + WHITE_8) * 2 + WHITE_8 * 9), 2, "an end of line is missing"),
        (fax.T4, 0, bits(WHITE_8 * 2 + END + WHITE_8), 2, "an end of line where there were none"),
        (fax.T4, 1, bits(END + "1" + WHITE_8 + (END + "0 1") * 2 + (END + "1") * 6), 3, ""),
        (fax.T4, 0, bits((END + WHITE_8) * 9), 3, "more data follow the last row"),
    ],
)
def test_rows_of_eight_white_pixels(scheme: int, options: int, data: bytes, rows: int, fault: str) -> None:
    found = fax.walk(data, scheme, options, 8, 3, 3)
    assert (found.rows, found.fault) == (rows, fault)
    assert found.used <= len(data)


def test_a_last_strip_that_is_filled_up_is_sound() -> None:
    data = bits("1" * 60 + END + END)
    assert fax.walk(data, fax.T6, 0, 8, 20, 60).fault == ""
    assert fax.walk(data, fax.T6, 0, 8, 20, 30).fault == "more data follow the last row"


def test_random_bytes_end_the_walk_with_a_reason() -> None:
    random = np.random.default_rng(0)
    for _ in range(300):
        data = random.bytes(int(random.integers(1, 60)))
        for scheme in (fax.HUFFMAN, fax.T4, fax.T6):
            for options in (0, 1):
                found = fax.walk(data, scheme, options, int(random.integers(1, 40)), 50, 50)
                assert bool(found.fault) == (found.rows < 50) or found.fault == "more data follow the last row"
