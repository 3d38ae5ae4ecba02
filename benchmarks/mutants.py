"""Random damage to valid files: eight kinds, each mutant different from its original, one seed and number one mutant."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from specimens import COPIES, VARIANTS, Specimen, make_specimen

Random = np.random.Generator

_SECTOR, _PAGE = 512, 4096
_MOST_TRIES = 1000  # of a kind of damage that may leave a file as it was, such as zeros over zeros


@dataclass(frozen=True, slots=True)
class Mutant:
    """One damaged file.

    Attributes:
        number: its number among those of its format.
        original: what it was.
        kind: a key of ``DAMAGE``.
        start: the first byte that was touched.
        length: how many were.
        data: its bytes.
    """

    number: int
    original: Specimen
    kind: str
    start: int
    length: int
    data: bytes

    @property
    def name(self) -> str:
        """A file name that no other mutant has."""
        return f"{self.number:06d}@{self.original.name}"


Damaged = tuple[int, int, bytes]  # start, length, bytes


def make_mutant(format_name: str, number: int, seed: int) -> Mutant:
    """Make one mutant. Their numbers go through all variants and kinds of damage, evenly.

    Raises:
        ModuleNotFoundError: scikit-learn, whose photographs these are, is not installed.
    """
    variants, kinds = list(VARIANTS[format_name]), list(DAMAGE)
    # Both lists at once, shifted where they would meet in the same pairs again: so few mutants show all of both.
    rounds = number // math.lcm(len(variants), len(kinds))
    variant, kind = variants[number % len(variants)], kinds[(number + rounds) % len(kinds)]
    copy = number // (len(variants) * len(kinds)) % COPIES
    original = make_specimen(format_name, variant, copy, seed)
    random = np.random.default_rng([seed, zlib.crc32(f"mutants of {format_name}".encode()), number])
    for _ in range(_MOST_TRIES):
        start, length, data = DAMAGE[kind](original, random, seed)
        if data != original.data:
            return Mutant(number, original, kind, start, length, data)
    raise ValueError(f"{original.name} stays as it is under {kind!r}")


def _cut(original: Specimen, random: Random, seed: int) -> Damaged:
    size = int(random.integers(len(original.data)))
    return size, len(original.data) - size, original.data[:size]


def _flip(original: Specimen, random: Random, seed: int) -> Damaged:
    data = bytearray(original.data)
    at = int(random.integers(len(data)))
    data[at] ^= 1 << int(random.integers(8))
    return at, 1, bytes(data)


def _zero_block(original: Specimen, random: Random, size: int) -> Damaged:
    data = original.data
    start = int(random.integers(-(-len(data) // size))) * size
    length = min(size, len(data) - start)
    return start, length, data[:start] + bytes(length) + data[start + length :]


def _zero_sector(original: Specimen, random: Random, seed: int) -> Damaged:
    return _zero_block(original, random, _SECTOR)


def _zero_page(original: Specimen, random: Random, seed: int) -> Damaged:
    return _zero_block(original, random, _PAGE)


def _range(size: int, random: Random) -> tuple[int, int]:
    """A place and a length; short ones are as likely as long ones, from one byte to half of the file."""
    length = max(1, int(2 ** random.uniform(0, math.log2(max(2, size // 2)))))
    return int(random.integers(size - length + 1)), length


def _splice(original: Specimen, random: Random, seed: int) -> Damaged:
    """Bytes of another file in the place of as many: of its sibling at the same place or anywhere, or of any format."""
    data = original.data
    way = int(random.integers(3))
    format_name, variant = original.format, original.variant
    if way == 2:
        format_name = str(random.choice(list(VARIANTS)))
        variant = str(random.choice(list(VARIANTS[format_name])))
    copy = (original.copy + int(random.integers(1, COPIES))) % COPIES
    donor = make_specimen(format_name, variant, copy, seed).data
    _, length = _range(min(len(data), len(donor)), random)
    start = int(random.integers(min(len(data), len(donor)) - length + 1))
    source = start if way == 0 else int(random.integers(len(donor) - length + 1))
    return start, length, data[:start] + donor[source : source + length] + data[start + length :]


def _double(original: Specimen, random: Random, seed: int) -> Damaged:
    data = original.data
    start, length = _range(len(data), random)
    return start, length, data[: start + length] + data[start:]


def _remove(original: Specimen, random: Random, seed: int) -> Damaged:
    data = original.data
    start, length = _range(len(data), random)
    return start, length, data[:start] + data[start + length :]


def _fill(original: Specimen, random: Random, seed: int) -> Damaged:
    data = original.data
    start, length = _range(len(data), random)
    return start, length, data[:start] + b"\xff" * length + data[start + length :]


DAMAGE: Mapping[str, Callable[[Specimen, Random, int], Damaged]] = {
    "cut": _cut,
    "flipped bit": _flip,
    "zeroed sector": _zero_sector,
    "zeroed page": _zero_page,
    "splice": _splice,
    "doubled": _double,
    "removed": _remove,
    "filled": _fill,
}
"""Kinds of damage. Each takes an original, random numbers and the seed of all specimens."""
