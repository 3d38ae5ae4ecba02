"""The walk over LZW codes, against a decoder that goes one code at a time."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from packer.check.lzw import Lzw, walk
from tests.inputs import photo

MUCH = 1 << 40


def slow_walk(data: bytes, literal_bits: int, msb_first: bool) -> tuple[bytes, bool, int | None]:
    """Units, whether the end code was seen, and the byte of the first bad code, by the book."""
    clear, total, padded = 1 << literal_bits, 8 * len(data), data + bytes(4)
    table: list[bytes] = []
    last, out, width, at = b"", bytearray(), literal_bits + 1, 0
    while at + width <= total:
        near = padded[at // 8 : at // 8 + 4]
        bits = int.from_bytes(near, "big") >> 32 - at % 8 - width if msb_first else int.from_bytes(near, "little") >> at % 8
        code, begin = bits & (1 << width) - 1, at
        at += width
        if code == clear + 1:
            return bytes(out), True, None
        if code == clear:
            table, last, width = [], b"", literal_bits + 1
            continue
        if code < clear:
            string = bytes([code])
        elif code - clear - 2 < len(table):
            string = table[code - clear - 2]
        elif code - clear - 2 == len(table) and last:
            string = last + last[:1]
        else:
            return bytes(out), False, begin // 8
        if last and len(table) + clear + 2 < 4096:
            table.append(last + string[:1])
        out += string
        last = string
        size = len(table) + clear + 2
        width = min(12, max(literal_bits + 1, (size + msb_first).bit_length()))
    return bytes(out), False, None


def pack_codes(codes: list[tuple[int, int]], msb_first: bool) -> bytes:
    """Codes and their widths as bytes."""
    if msb_first:
        text = "".join(f"{code:0{width}b}" for code, width in codes)
        text += "0" * (-len(text) % 8)
        return int(text, 2).to_bytes(len(text) // 8, "big")
    text = "".join(f"{code:0{width}b}" for code, width in reversed(codes))
    return int(text, 2).to_bytes(-(-len(text) // 8), "little")


def compress(units: bytes, literal_bits: int, msb_first: bool, clear_at: int = 4095) -> bytes:
    """An encoder that clears its table at ``clear_at`` entries, or never above 4,096, and ends with the end code."""
    clear = 1 << literal_bits
    codes: list[tuple[int, int]] = [(clear, literal_bits + 1)]
    table = {bytes([unit]): unit for unit in range(clear)}
    size, string, read = clear + 2, b"", 0

    def put(code: int) -> None:
        nonlocal read
        known = min(clear + 2 + max(read - 1, 0), 4096)
        width = min(12, max(literal_bits + 1, (known + msb_first).bit_length())) if read else literal_bits + 1
        codes.append((code, width))
        read += 1

    for number in range(len(units)):
        unit = units[number : number + 1]
        if string + unit in table:
            string += unit
            continue
        put(table[string])
        if size < 4096:
            table[string + unit] = size
            size += 1
        if size >= clear_at:
            put(clear)
            table, size, read = {bytes([value]): value for value in range(clear)}, clear + 2, 0
        string = unit
    if string:
        put(table[string])
    put(clear + 1)
    return pack_codes(codes, msb_first)


def noise(count: int, literal_bits: int, seed: int = 0, runs: int = 1) -> bytes:
    values = np.random.default_rng(seed).integers(0, 1 << literal_bits, -(-count // runs), np.uint8)
    return np.repeat(values, runs)[:count].tobytes()


def agree(data: bytes, literal_bits: int, msb_first: bool) -> Lzw:
    units, ended, bad_code_at = slow_walk(data, literal_bits, msb_first)
    found = walk(data, literal_bits, msb_first=msb_first, expected=MUCH)
    assert (found.unpacked, found.ended, found.bad_code_at) == (len(units), ended, bad_code_at)
    if bad_code_at is None:
        assert found.highest == max(units, default=0)
    return found


ORDERS = pytest.mark.parametrize("msb_first", [False, True], ids=["GIF", "TIFF"])


@ORDERS
@pytest.mark.parametrize("literal_bits", [2, 8])
@pytest.mark.parametrize("clear_at", [100, 600, 4095, 9999])
@pytest.mark.parametrize("runs", [1, 7, 9999])
def test_it_counts_what_a_stream_unpacks_to(msb_first: bool, literal_bits: int, clear_at: int, runs: int) -> None:
    units = noise(20_000, literal_bits, runs=runs)
    if clear_at <= (1 << literal_bits) + 3:
        clear_at = (1 << literal_bits) + 4
    data = compress(units, literal_bits, msb_first, clear_at)
    assert slow_walk(data, literal_bits, msb_first) == (units, True, None)
    found = agree(data + b"behind", literal_bits, msb_first)
    assert found.used == len(data)
    sound = walk(data, literal_bits, msb_first=msb_first, expected=len(units))
    assert (sound.unpacked, sound.ended) == (len(units), True)
    assert sound.filled_at is not None
    assert len(data) - 2 <= sound.filled_at <= len(data)
    longer = walk(data, literal_bits, msb_first=msb_first, expected=len(units) + 1)
    assert (longer.unpacked, longer.ended, longer.filled_at) == (len(units), True, None)


@ORDERS
def test_it_agrees_on_damaged_streams(msb_first: bool) -> None:
    chance = random.Random(1)
    for literal_bits in (1, 2, 3, 4, 8):
        for runs, clear_at in ((1, 4095), (3, 9999), (500, 600), (2, 1 << literal_bits | 5)):
            data = bytearray(compress(noise(9_000, literal_bits, runs=runs), literal_bits, msb_first, clear_at))
            for _ in range(12):
                hurt = bytearray(data)
                hurt[chance.randrange(len(hurt))] ^= 1 << chance.randrange(8)
                agree(bytes(hurt[: chance.choice([len(hurt), chance.randrange(len(hurt))])]), literal_bits, msb_first)


@ORDERS
@pytest.mark.parametrize("seed", range(40))
def test_it_agrees_on_random_bytes(msb_first: bool, seed: int) -> None:
    chance = random.Random(seed)
    agree(chance.randbytes(chance.randrange(1, 200)), chance.randrange(1, 9), msb_first)


@ORDERS
@pytest.mark.parametrize("data", [b"", b"\0", b"\xff" * 9, bytes(4000)])
def test_it_agrees_on_rubbish(msb_first: bool, data: bytes) -> None:
    agree(data, 8, msb_first)


@ORDERS
def test_many_clear_codes_are_walked_at_once(msb_first: bool) -> None:
    codes = [(256, 9), (7, 9), (256, 9), (8, 9), (9, 9), (258, 9), (256, 9)] * 50_000 + [(257, 9)]
    found = walk(pack_codes(codes[-7001:], msb_first), 8, msb_first=msb_first, expected=MUCH)
    assert (found.unpacked, found.ended, found.highest) == (5 * 1000, True, 9)


def test_a_bomb_is_left_soon_after_it_holds_too_much() -> None:
    data = compress(bytes(300_000), 8, False, 9999)
    found = walk(data * 50, 8, msb_first=False, expected=1000)
    assert found.unpacked > 1000
    assert found.used <= 4096 * 2


def frames_of_gif(picture: Image.Image, **options: object) -> tuple[bytes, int]:
    buffer = io.BytesIO()
    picture.save(buffer, "GIF", **options)
    data = buffer.getvalue()
    at = 13 + 3 * (2 << (data[10] & 7))
    while data[at] != 0x2C:
        at += 2
        while data[at]:
            at += data[at] + 1
        at += 1
    at += 10 + (3 * (2 << (data[at + 9] & 7)) if data[at + 9] & 0x80 else 0)
    bits, at, out = data[at], at + 1, b""
    while data[at]:
        out += data[at + 1 : at + 1 + data[at]]
        at += 1 + data[at]
    return out, bits


@pytest.mark.parametrize("picture", [photo(500, 375), Image.new("P", (300, 900), 3), photo(9, 7).convert("1")])
def test_what_pillow_writes_as_gif(picture: Image.Image) -> None:
    data, bits = frames_of_gif(picture)
    found = agree(data, bits, False)
    assert (found.unpacked, found.ended, found.used) == (picture.width * picture.height, True, len(data))


def test_what_pillow_writes_as_tiff() -> None:
    picture, buffer = photo(500, 375), io.BytesIO()
    picture.save(buffer, "TIFF", compression="tiff_lzw")
    with Image.open(buffer) as again:
        tags = again.tag_v2  # type: ignore[attr-defined]
        assert isinstance(tags, ImageFileDirectory_v2)
        strips = list(zip(tags[273], tags[279], strict=True))
    unpacked = 0
    for at, size in strips:
        unpacked += agree(buffer.getvalue()[at : at + size], 8, True).unpacked
    assert unpacked == 500 * 375 * 3


def test_where_the_expected_units_are_there() -> None:
    data = pack_codes([(256, 9), (7, 9), (258, 9), (259, 9), (257, 9)], False)  # 1 + 2 + 3 units
    ends = {1: 3, 3: 4, 6: 5}
    found = {expected: walk(data, 8, msb_first=False, expected=expected).filled_at for expected in range(8)}
    assert found == {expected: ends.get(expected) for expected in range(8)}
