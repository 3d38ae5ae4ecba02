"""The walk over the codes of JPEG scans, against the strict decoder, and on the files that the strict decoder cannot take."""

from __future__ import annotations

import io
import random
import re
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import simplejpeg
from PIL import Image

from packer.check import CheckSettings, check_bytes, jpegwalk
from packer.check.jpegtables import split_tables, usual_tables
from packer.check.jpegwalk import require_sound_scans
from packer.model import Kept, Skipped, Unfit
from tests.inputs import jpeg, photo

EOI = b"\xff\xd9"

ENCODINGS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "optimized": {"optimize": True},
    "progressive": {"progressive": True},
    "restart markers": {"restart_marker_blocks": 3},
    "progressive with restart markers": {"progressive": True, "restart_marker_blocks": 2},
}

USUAL = [("RGB", "4:2:0"), ("RGB", "4:2:2"), ("RGB", "4:4:4"), ("L", "4:4:4"), ("CMYK", "4:4:4")]
"""What the strict decoder takes."""

RARE = [("CMYK", "4:2:0"), ("CMYK", "4:2:2")]
"""What it does not, for it has no names for these sampling factors."""


def refused_strictly(data: bytes) -> str:
    try:
        simplejpeg.decode_jpeg(data, strict=True)
    except ValueError as error:
        return str(error)
    return ""


def refused(data: bytes) -> str:
    try:
        require_sound_scans(data)
    except Unfit as unfit:
        return unfit.detail
    return ""


def coded_from(data: bytes) -> int:
    """Where the entropy-coded data of the first scan begin."""
    start = data.index(b"\xff\xda")
    return start + 2 + int.from_bytes(data[start + 2 : start + 4], "big")


def without(data: bytes, marker: int) -> bytes:
    """The file without the segments of a marker, up to the first scan."""
    kept, position = [data[:2]], 2
    while data[position + 1] != 0xDA:
        end = position + 2 + int.from_bytes(data[position + 2 : position + 4], "big")
        kept += [data[position:end]] * (data[position + 1] != marker)
        position = end
    return b"".join([*kept, data[position:]])


# Agreement with the strict decoder


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(("mode", "sampling"), USUAL + RARE)
def test_sound_files_are_sound(mode: str, sampling: str, encoding: str) -> None:
    choose = random.Random(1)
    qualities = [1, 100, *choose.sample(range(2, 100), 10)]
    sizes = [(1, 1), (8, 8), (16, 16), (17, 9), (9, 70), (65, 33)]
    sizes += [(choose.randrange(1, 80), choose.randrange(1, 80)) for _ in range(len(qualities) - len(sizes))]
    for seed, ((width, height), quality) in enumerate(zip(sizes, qualities, strict=True)):
        picture = photo(width, height, seed=seed).convert(mode)
        data = jpeg(picture, quality=quality, subsampling=sampling, **ENCODINGS[encoding])
        assert refused(data) == ""
        assert refused(data[:-2] + b"\xff\xff" + EOI) == "", "fill bytes"


def test_every_quality_is_sound() -> None:
    for quality in range(1, 101):
        data = jpeg(photo(40, 33, seed=quality).convert("CMYK"), quality=quality, subsampling="4:2:0", progressive=quality % 2)
        assert refused(data) == ""


def test_flat_pictures_are_sound_also_where_many_blocks_end_at_once() -> None:
    for mode in ("RGB", "L", "CMYK"):
        for progressive in (False, True):
            flat = Image.new(mode, (1500, 1400))
            flat.paste(photo(60, 60).convert(mode), (1300, 1300))
            assert refused(jpeg(flat, progressive=progressive, quality=75)) == ""


Damage = Callable[[bytes, random.Random, int, int], bytes]

DAMAGE: dict[str, Damage] = {
    "cut": lambda data, choose, at, size: data[:at],
    "cut and ended": lambda data, choose, at, size: data[:at] + EOI,
    "cut, filled up and ended": lambda data, choose, at, size: data[:at] + bytes(len(data)) + EOI,
    "zeroed": lambda data, choose, at, size: data[:at] + bytes(size) + data[at + size :],
    "ones": lambda data, choose, at, size: data[:at] + b"\xff" * size + data[at + size :],
    "noise": lambda data, choose, at, size: data[:at] + choose.randbytes(size) + data[at + size :],
    "doubled": lambda data, choose, at, size: data[: at + size] + data[at:],
    "removed": lambda data, choose, at, size: data[:at] + data[at + size :],
    "one bit": lambda data, choose, at, size: data[:at] + bytes([data[at] ^ 1 << choose.randrange(8)]) + data[at + 1 :],
}


def mutants(files: list[bytes], count: int, sizes: list[int], seed: int) -> Iterator[tuple[str, bytes]]:
    """Files with damage behind the header of their first scan, evenly of all kinds."""
    choose = random.Random(seed)
    for number in range(count):
        kind = list(DAMAGE)[number % len(DAMAGE)]
        data, size = choose.choice(files), choose.choice(sizes)
        start = coded_from(data)
        at = choose.randrange(start, max(start + 1, len(data) - size - 2))
        changed = DAMAGE[kind](data, choose, at, size)
        if changed != data:
            yield kind, changed


SEES_MORE = (
    "a coefficient beyond the last one",  # the decoder puts it into a spare place without a word
    "a code that its Huffman table does not have",  # it takes those for zeros in its fast path
    "blocks are said to end",  # it counts them down, whatever follows
    r" [1-7] bytes behind block",  # those it has read into its bit buffer, 64 bits, are not missed
)
"""Where the walk refuses what the strict decoder takes. No encoder makes any of it."""


def test_damage_that_the_strict_decoder_finds_is_found_and_the_other_way_round() -> None:
    files = [
        jpeg(
            photo(90 + 9 * number, 120 - 7 * number, seed=number).convert(mode),
            quality=quality,
            subsampling=sampling,
            **options,
        )
        for number, (quality, options) in enumerate(zip([60, 75, 90, 98, 85], ENCODINGS.values(), strict=True))
        for mode, sampling in USUAL
    ]
    verdicts: Counter[tuple[bool, bool]] = Counter()
    for kind, data in mutants(files, 400, [1, 2, 5, 20, 100, 400], seed=3):
        strictly, walked = refused_strictly(data), refused(data)
        verdicts[bool(strictly), bool(walked)] += 1
        # A run of one byte behind the codes is padding, which the check forgives here and there.
        assert walked or not strictly or isinstance(check_bytes(data, b"x.jpg", CheckSettings()), Kept), f"{kind}: {strictly}"
        assert strictly or not walked or any(re.search(reason, walked) for reason in SEES_MORE), f"{kind}: {walked}"
    assert verdicts[True, True] > 250
    assert verdicts[False, False] > 30
    assert verdicts[False, True] < 40


# Files that the strict decoder cannot take


def rare_files() -> list[bytes]:
    return [
        jpeg(photo(208, 144, seed=seed).convert(mode), quality=quality, subsampling=sampling, progressive=progressive)
        for seed, quality in enumerate((75, 90))
        for mode, sampling in RARE
        for progressive in (False, True)
    ]


def test_files_with_rare_sampling_are_kept_where_they_are_sound() -> None:
    for data in rare_files():
        assert "subsampling" in refused_strictly(data)
        verdict = check_bytes(data, b"x.jpg", CheckSettings())
        assert isinstance(verdict, Kept)
        assert verdict.warnings == ()


def test_bytes_between_segments_are_noted_as_in_other_files() -> None:
    data = rare_files()[0]
    verdict = check_bytes(data[:18] + b"more" + data[18:], b"x.jpg", CheckSettings())  # behind the Adobe segment
    assert isinstance(verdict, Skipped)
    comment = segment(0xFE, b"a comment") + b"more"
    verdict = check_bytes(data[:2] + comment + data[2:], b"x.jpg", CheckSettings())
    assert isinstance(verdict, Kept)
    assert [note.code for note in verdict.warnings] == ["bad_metadata"]


def test_files_with_rare_sampling_are_skipped_where_they_are_damaged() -> None:
    kept: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for kind, data in mutants(rare_files(), 360, [100, 400, 512], seed=5):
        count[kind] += 1
        kept[kind] += isinstance(check_bytes(data, b"x.jpg", CheckSettings()), Kept)
    for kind, share in {"zeroed": 0.15, "noise": 0.15, "doubled": 0.15, "removed": 0.15, "one bit": 1}.items():
        assert kept.pop(kind, 0) <= share * count[kind]
    assert +kept == {}


def test_pillow_alone_would_keep_them() -> None:
    """Or the walk would not be needed."""
    data = rare_files()[0]
    start = coded_from(data)
    doubled = data[: start + 2_000] + data[start + 1_600 :]
    with Image.open(io.BytesIO(doubled)) as picture:
        picture.load()
    verdict = check_bytes(doubled, b"x.jpg", CheckSettings())
    assert isinstance(verdict, Skipped)
    assert verdict.code == "corrupt"


# Scans made by hand


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body


def packed(bits: str) -> bytes:
    bits += "1" * (-len(bits) % 8)
    return int("1" + bits, 2).to_bytes(len(bits) // 8 + 1, "big")[1:].replace(b"\xff", b"\xff\0")


TABLES = b"".join(bytes([kind << 4 | number]) + table for (kind, number), table in usual_tables().items())
FLAT = {0: "001010", 1: "0000"}
"""A block of luma and of chroma in the usual tables: no difference, end of block."""


def picture_of(
    width: int, height: int, factors: list[int], *scans: bytes, frame: int = 0xC0, tables: bytes = TABLES, interval: int = 0
) -> bytes:
    components = b"".join(bytes([number, factor, 0]) for number, factor in enumerate(factors, 1))
    return b"".join([
        b"\xff\xd8",
        segment(0xDB, bytes(1) + bytes([16]) * 64),
        segment(frame, struct.pack(">BHHB", 8, height, width, len(factors)) + components),
        segment(0xC4, tables) if tables else b"",
        segment(0xDD, struct.pack(">H", interval)) if interval else b"",
        *scans,
        EOI,
    ])  # fmt: skip


def scan_of(components: list[int], coded: bytes, band: tuple[int, int] = (0, 63), successive: int = 0) -> bytes:
    chosen = b"".join(bytes([number, 0 if number == 1 else 0x11]) for number in components)
    return segment(0xDA, bytes([len(components)]) + chosen + bytes([*band, successive])) + coded


@pytest.mark.parametrize("size", [(16, 16), (17, 9), (8, 24), (33, 40), (1, 1)])
@pytest.mark.parametrize("factors", [[0x22, 0x11, 0x11], [0x21, 0x11, 0x11], [0x11, 0x11, 0x11], [0x12, 0x11, 0x11]])
def test_a_scan_of_one_component_has_the_blocks_of_that_component(size: tuple[int, int], factors: list[int]) -> None:
    across, down = max(factor >> 4 for factor in factors), max(factor & 15 for factor in factors)
    blocks = []
    for factor in factors:
        columns, rows = -(-size[0] * (factor >> 4) // across), -(-size[1] * (factor & 15) // down)
        blocks.append(-(-columns // 8) * -(-rows // 8))
    scans = [scan_of([number], packed(FLAT[number > 1] * count)) for number, count in enumerate(blocks, 1)]
    data = picture_of(*size, factors, *scans)
    assert refused_strictly(data) == ""
    assert refused(data) == ""
    for wrong in range(3):
        for more in (-1, 1):
            changed = [*scans]
            # Two blocks of chroma fit into the rest of a byte.
            changed[wrong] = scan_of([wrong + 1], packed(FLAT[wrong > 0] * (blocks[wrong] + 4 * more)))
            assert f"scan {wrong + 1}" in refused(picture_of(*size, factors, *changed)) or blocks[wrong] < 4


def test_a_scan_of_several_components_has_whole_units() -> None:
    for (width, height), units in {(17, 9): 2, (33, 40): 9, (48, 16): 3}.items():
        coded = packed((FLAT[0] * 4 + FLAT[1] * 2) * units)
        data = picture_of(width, height, [0x22, 0x11, 0x11], scan_of([1, 2, 3], coded))
        assert refused_strictly(data) == refused(data) == ""
        assert "bytes behind block" in refused(data.replace(coded, coded + bytes(9) + b"\1"))
        assert "the data end" in refused(data.replace(coded, coded[:-2]))
    # The one component of a grey picture is in no unit, whatever its factors say.
    assert refused(picture_of(17, 9, [0x22], scan_of([1], packed(FLAT[0] * 6)))) == ""
    assert "11 blocks" in refused(picture_of(17, 9, [0x33, 0x11, 0x11], scan_of([1, 2, 3], packed(FLAT[0] * 99))))


def test_pictures_without_tables_have_the_usual_ones() -> None:
    data = without(jpeg(), 0xC4)
    assert refused_strictly(data) == refused(data) == ""
    assert {(kind << 4) + number for kind, number in usual_tables()} == {0, 1, 0x10, 0x11}
    assert dict(split_tables(TABLES)) == usual_tables()
    assert "no Huffman table 0" in refused(without(jpeg(progressive=True), 0xC4))


THREE, TWO = packed(FLAT[0] * 3), packed(FLAT[0] * 2)  # of eight blocks, with a restart marker behind every third one


@pytest.mark.parametrize(
    ("coded", "detail"),
    [
        (THREE + b"\xff\xd0" + THREE + b"\xff\xd1" + TWO, ""),
        (THREE + b"\xff\xff\xd0" + THREE + b"\xff\xff\xff\xd1" + TWO, ""),
        (THREE + b"\xff\xd0" + THREE + b"\xff\xd1" + TWO + b"\xff\xd2", ""),
        (THREE + b"\xff\xd1" + THREE + b"\xff\xd1" + TWO, "scan 1: restart marker 0 is missing at byte "),
        (THREE + b"\xff\xd0" + THREE, "scan 1: restart marker 1 is missing at byte "),
        (packed(FLAT[0] * 8), "scan 1: 3 bytes behind block 3 of 8, from byte "),
        (THREE + bytes(9) + b"\xff\xd0" + THREE + b"\xff\xd1" + TWO, "scan 1: 9 bytes behind block 3 of 8, from byte "),
        (TWO + b"\xff\xd0" + THREE + b"\xff\xd1" + TWO, "block 3 of 8, byte "),
        (THREE + b"\xff\xd0" + THREE + b"\xff\xd1" + TWO + b"\xff\xd2xy", "scan 1: data behind all blocks"),
    ],
)
def test_restart_markers(coded: bytes, detail: str) -> None:
    data = picture_of(64, 8, [0x11], scan_of([1], coded), interval=3)
    found = refused(data)
    assert detail in found
    assert bool(found) == bool(detail)
    if not detail:
        assert refused_strictly(data) == ""


def luma(*symbols: tuple[int, int], number: int = 0) -> str:
    """The code of (class, symbol) each in the tables of luma."""
    bits = ""
    for kind, symbol in symbols:
        table, code, place = usual_tables()[kind, number], 0, 16
        for length in range(1, 17):
            for _ in range(table[length - 1]):
                if table[place] == symbol:
                    bits += f"{code:0{length}b}"
                code, place = code + 1, place + 1
            code <<= 1
    return bits


def test_codes_that_no_block_can_have() -> None:
    flat, twice = FLAT[0], luma((0, 0), (1, 0xF0), (1, 0xF0), (1, 0xF0))
    bad = {
        "block 2 of 3, byte 221: a code that its Huffman table does not have": flat + "1" * 40,
        "block 2 of 3, byte 232: a coefficient beyond": flat + luma((0, 0), *[(1, 0xF0)] * 4) + "1010" * 9,
        "a coefficient beyond the last": flat + twice + luma((1, 0xF1)) + "1" + flat * 3,
        "block 3 of 3": flat * 2 + luma((0, 0)) + "1" * 60,
    }
    for detail, bits in bad.items():
        data = picture_of(24, 8, [0x11], scan_of([1], packed(bits)))
        assert re.search(re.sub(r"byte \d+", r"byte \\d+", detail), refused(data)), detail
    last = twice + luma((1, 0xE1)) + "1"  # the last coefficient of all: no end of block
    assert refused(picture_of(24, 8, [0x11], scan_of([1], packed(flat + last + flat)))) == ""
    for size, use in ((12, 0), (11, 0x10)):  # of a symbol that means a number of so many bits
        tables = (
            bytes([use]) + bytes([0, 1] + [0] * 14) + bytes([size]) + bytes([use ^ 0x10]) + bytes([0, 1] + [0] * 14) + b"\0"
        )
        coded = packed("00" + "0" * 20 + "00")
        assert "does not have" in refused(picture_of(8, 8, [0x11], scan_of([1], coded), tables=tables))
    assert "more codes than there can be" in refused(
        picture_of(8, 8, [0x11], scan_of([1], b"\0"), tables=bytes([0, 3] + [0] * 15) + bytes(3) + TABLES[29:])
    )


def test_the_place_of_the_damage_is_named() -> None:
    data = jpeg(photo(256, 192).convert("CMYK"), subsampling="4:2:0", quality=95)
    at = data.index(b"\xff\0", len(data) // 2)
    for changed in (data[:at] + EOI, data[:at] + b"\xff\xe0\0\2" + data[at:]):
        scan, block, blocks, byte = re.fullmatch(
            r"scan (\d+), block ([\d,]+) of ([\d,]+), byte ([\d,]+): the data end", refused(changed)
        ).groups()  # type: ignore[union-attr]
        assert (scan, blocks, byte) == ("1", "1,344", f"{at:,}")
        assert 500 < int(block.replace(",", "")) < 900
    for code, changed in (("truncated", data[:at]), ("corrupt", data[:at] + EOI)):
        with pytest.raises(Unfit) as caught:
            require_sound_scans(changed)
        assert caught.value.code == code


def test_padding_behind_the_codes() -> None:
    data = jpeg(photo(48, 48).convert("CMYK"), subsampling="4:2:0")
    for padding in (b"\0", bytes(300), b"\xff", b"\xff" * 300, b"\xff\0" * 20, b"x" * 9):
        assert refused(data[:-2] + padding + EOI) == ""
    for more in (b"x", b"xy", bytes(20) + b"\1", b"\1" + bytes(20)):
        assert "bytes behind block 63 of 63" in refused(data[:-2] + more + EOI)
    assert "no segment" in refused(data[:18] + b"more" + data[18:])
    progressive = jpeg(photo(48, 48), progressive=True)
    at = progressive.index(b"\xff\xc4", coded_from(progressive))
    assert "scan 1: 20 bytes behind" in refused(progressive[:at] + bytes(20) + progressive[at:]), "before another marker"
    for missing in range(1, 60):  # zeros that were taken for codes are no padding
        assert refused(data[: len(data) - 2 - missing] + bytes(600) + EOI) != ""


def test_progressive_scans_follow_on_each_other() -> None:
    data = jpeg(photo(40, 40), progressive=True)
    starts = [match.start() for match in re.finditer(rb"\xff\xda", data)]
    assert len(starts) > 8
    for start in starts:
        count = data[start + 4]
        for at, changed in ((0, 70), (0, data[start + 5 + 2 * count] + 1), (1, 64), (2, 0x75), (2, 0x0E), (2, 0x32)):
            place = start + 5 + 2 * count + at
            wrong = data[:place] + bytes([changed]) + data[place + 1 :]
            assert refused(wrong)
    # A run of blocks that end goes beyond the last one.
    band = bytes([0x10]) + bytes([0, 1] + [0] * 14) + b"\x20" + bytes([0]) + bytes([0, 1] + [0] * 14) + b"\0"
    for run, detail in ((4, ""), (5, "block 1 of 4, byte [0-9]+: 5 blocks are said to end, but there are 4")):
        first = scan_of([1], packed("00" * 4), (0, 0))
        second = scan_of([1], packed("00" + f"{run - 4:02b}") + bytes(1), (1, 63))
        found = refused(picture_of(32, 8, [0x11], first, second, frame=0xC2, tables=band))
        assert re.search(detail, found)
        assert bool(found) == bool(detail)


@pytest.mark.parametrize("progressive", [False, True])
def test_what_is_promised_costs_no_time(progressive: bool) -> None:
    """A header of 65,535 × 2,700 pixels in four components, and hardly any data."""
    data = bytearray(jpeg(photo(64, 64).convert("CMYK"), subsampling="4:2:0", progressive=progressive))
    frame = re.search(rb"\xff[\xc0\xc2]", data).start()  # type: ignore[union-attr]
    data[frame + 5 : frame + 9] = struct.pack(">HH", 2_700, 65_535)
    began = time.process_time()
    assert "the data end" in refused(bytes(data))
    assert time.process_time() - began < 0.5


def test_runs_of_blocks_that_end_cost_no_time_in_each_of_many_scans() -> None:
    width, height, blocks = 16_000, 4_000, 1_000_000
    table = bytes([0x10]) + bytes([0, 0, 0, 3] + [0] * 12) + b"\xe0\x00\x01"
    tables = bytes([0]) + bytes([0, 1] + [0] * 14) + b"\0" + table
    runs, rest = divmod(blocks, 32_767)
    ends = packed(("0000" + "1" * 14) * runs + "0001" * rest)
    scans = [scan_of([1], packed("00" * blocks), (0, 0))]
    scans += [scan_of([1], packed("00101" * blocks), (1, 1), 6)]  # every block has to be remembered
    for k in range(2, 20):
        scans += [scan_of([1], ends, (k, k), 6)]
        scans += [scan_of([1], ends, (k, k), low + 1 << 4 | low) for low in range(5, -1, -1)]
    data = picture_of(width, height, [0x11], *scans, frame=0xC2, tables=tables)
    began = time.process_time()
    assert refused(data) == ""
    assert time.process_time() - began < 10


def test_a_file_of_100_kb_takes_less_than_half_a_second() -> None:
    for options in ({}, {"progressive": True}):
        data = jpeg(photo(640, 480).convert("CMYK"), quality=88, subsampling="4:2:0", **options)
        assert len(data) > 100_000
        times = []
        for _ in range(3):
            began = time.process_time()
            require_sound_scans(data)
            times.append(time.process_time() - began)
        assert min(times) < 0.5 * len(data) / 100_000


def test_the_largest_files_are_not_lost_to_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for progressive in (False, True):
        data = jpeg(photo(96, 96).convert("CMYK"), subsampling="4:2:0", progressive=progressive)
        cut = data[:-40] + EOI
        assert "the data end" in refused(cut)
        monkeypatch.setattr(jpegwalk, "_MOST_FOLLOWED", 2_000)
        assert refused(cut) == refused(data) == ""
        monkeypatch.undo()


def test_what_is_not_huffman_coded_is_left_to_others() -> None:
    data = bytearray(jpeg())
    data[data.index(b"\xff\xc0") + 1] = 0xC9
    assert refused(bytes(data[:-200])) == ""
