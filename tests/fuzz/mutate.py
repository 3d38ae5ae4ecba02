"""Damage to bytes, drawn from a ``random.Random``: flips, cuts, splices, runs, and the numbers that length fields go wrong by.

A checksum or a digest stops nearly every such mutant at the door, so those that a format has are repaired afterwards.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import xxhash

__all__ = ["MAX_BYTES", "SEPARATOR", "join_parts", "mutant", "repair_folder", "repair_manifest", "repair_png", "split_parts"]

MAX_BYTES = 1 << 16
"""No mutant is longer."""

SEPARATOR = b"\n=====\n"
"""Between the files of a folder that is fuzzed as one piece."""

_NUMBERS = (
    0,
    1,
    2,
    7,
    8,
    12,
    0x7F,
    0x80,
    0xFF,
    0x100,
    0x7FFF,
    0x8000,
    0xFFFF,
    *(2**n - m for n in (31, 32, 62, 63, 64) for m in (0, 1)),
)
_DECIMALS = (b"0", b"1", b"-1", b"2", b"255", b"1e999", b"9" * 5000, *(b"%d" % (1 << n) for n in (31, 32, 63, 64)))
_DIGITS = re.compile(rb"[0-9]+")
_Edit = Callable[[Random, bytearray, Sequence[bytes], Sequence[bytes]], None]


def mutant(random: Random, seeds: Sequence[bytes], words: Sequence[bytes] = ()) -> bytes:
    """One of the seeds with one to eight edits; ``words`` are put in and written over whatever stands there."""
    data = bytearray(random.choice(seeds))
    for _ in range(random.choice((1, 1, 2, 3, 5, 8))):
        random.choice(_EDITS)(random, data, seeds, words)
    return bytes(data[:MAX_BYTES])


def _place(random: Random, data: bytearray) -> int:
    """Headers are where the decisions are: half of all edits fall into the first 256 bytes."""
    end = len(data) if random.random() < 0.5 else min(len(data), 256)
    return random.randint(0, end)


def _length(random: Random) -> int:
    return random.randint(1, 1 << random.randrange(14))


def _flip(random: Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    at = _place(random, data)
    if at < len(data):
        data[at] ^= 1 << random.randrange(8)


def _byte(random: Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    at = _place(random, data)
    data[at : at + 1] = bytes([random.randrange(256)])


def _number(random: Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    size, at = random.choice((1, 2, 4, 8)), _place(random, data)
    value = random.choice(_NUMBERS) if random.random() < 0.7 else len(data) - at + random.randint(-16, 16)
    data[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, random.choice(("little", "big")))


def _decimal(random: Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    match = _DIGITS.search(data, _place(random, data))
    if match:
        start, end = match.span()
        del match  # it holds the buffer, which cannot change its size meanwhile
        data[start:end] = random.choice(_DECIMALS)


def _cut(random: Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    at = _place(random, data)
    del data[at : at + _length(random)]


def _end(random: Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    del data[_place(random, data) :]


def _repeat(random: Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    at = _place(random, data)
    piece = bytes(data[at : at + random.randint(1, 64)])
    data[at:at] = (piece * _length(random))[:MAX_BYTES]


def _run(random: Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    """What reads a run of one byte in quadratic time shows here."""
    at = _place(random, data)
    kept = at if random.random() < 0.5 else at + _length(random)
    data[at:kept] = bytes([random.choice((0, 32, 0xFF, random.randrange(256)))]) * _length(random)


def _word(random: Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    if words:
        at, word = _place(random, data), random.choice(words)
        data[at : at + random.choice((0, len(word)))] = word


def _splice(random: Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    other = random.choice(seeds)
    start = random.randint(0, len(other))
    at, size = _place(random, data), _length(random)
    data[at : at + random.choice((0, size))] = other[start : start + size]


_EDITS: tuple[_Edit, ...] = (_flip, _flip, _byte, _number, _number, _decimal, _cut, _end, _repeat, _run, _word, _word, _splice)


def repair_png(data: bytes) -> bytes:
    """The same chunks with the checksums that belong to them."""
    repaired, at = bytearray(data), 8
    while at + 12 <= len(data):
        end = at + 8 + int.from_bytes(data[at : at + 4], "big")
        if end + 4 > len(data):
            break
        repaired[end : end + 4] = zlib.crc32(data[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
    return bytes(repaired)


def repair_manifest(data: bytes) -> bytes:
    """The same manifest with the digest that belongs to it, as it stands where it is no JSON object."""
    content = _object(data)
    return data if content is None else _signed(content)


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _signed(content: dict[str, Any]) -> bytes:
    content.pop("digest", None)
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return json.dumps({**content, "digest": xxhash.xxh3_128_hexdigest(text.encode())}, indent=1).encode() + b"\n"


def split_parts(data: bytes) -> list[bytes]:
    """The four files of a folder: manifest, index, names, container."""
    parts = data.split(SEPARATOR, 3)
    return parts + [b""] * (4 - len(parts))


def join_parts(manifest: bytes, index: bytes, names: bytes, container: bytes) -> bytes:
    """The four files as one piece."""
    return SEPARATOR.join((manifest, index, names, container))


def repair_folder(data: bytes) -> bytes:
    """The same folder with the sizes and digests in its manifest that belong to the files, so that they are opened."""
    manifest, index, names, container = split_parts(data)
    content = _object(manifest)
    if content is None:
        return data
    try:
        for file, name in ((index, "index.npy"), (names, "names.bin")):
            content["files"][name] = {"bytes": len(file), "digest": xxhash.xxh3_128_hexdigest(file)}
        content["shards"][0]["bytes"] = len(container)
        content["shards"][0]["digest"] = xxhash.xxh3_128_hexdigest(container)
    except (LookupError, TypeError):
        return data
    return join_parts(_signed(content), index, names, container)
