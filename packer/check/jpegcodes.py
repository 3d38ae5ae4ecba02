"""The Huffman codes of a JPEG scan, followed without making pixels of them.

For 32 kB of data at a time a list is made of the sixteen bits from each bit on; for each Huffman table, a list of 65,536
numbers says what such sixteen bits begin with: how long the code and the number behind it are, and how far they go on in the
block. A coefficient then costs two look-ups and two additions.

Facts: ITU-T T.81, C.2 (codes), F.1.2 (sequential scans, and the largest sizes), G.1.2 (progressive scans).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from packer.check.jpegtables import BAD, BITS, END, STEP, VALUE

__all__ = ["MOST_BLOCKS", "TOO_FEW", "Bits", "FaultError", "follow_band", "follow_bits", "follow_blocks", "refine_band"]

MOST_BLOCKS = 10
"""In one unit of a scan with several components (B.2.3)."""

_CHUNK = 1 << 15
# No unit of a scan has more bytes, so that its codes need no look at where the bits end: ten blocks with a code and a number
# of 27 bits and 63 of 26 bits.
_MARGIN = MOST_BLOCKS * (27 + 63 * 26) // 8 + 64
_SHIFTS = np.arange(8, 0, -1, dtype=np.uint32)

TOO_FEW = "the data end"
"""What is wrong where there are fewer codes than blocks need."""

_NO_CODE = "a code that its Huffman table does not have"
_BEYOND = "a coefficient beyond the last one of the block"


class FaultError(Exception):
    """Raised where the codes of a scan make no sense.

    Attributes:
        block: number of the block in the scan.
        at: the bit.
        what: what is there.
    """

    def __init__(self, block: int, at: int, what: str) -> None:
        super().__init__(what)
        self.block = block
        self.at = at
        self.what = what


class Bits:
    """The bits of a scan, without stuffed bytes and restart markers."""

    def __init__(self, data: bytes) -> None:
        self._data = data + bytes(_MARGIN)
        self._base = self._limit = 0
        self._windows: list[int] = []

    def around(self, at: int, end: int, block: int) -> tuple[list[int], int, int]:
        """The sixteen bits from each bit on, the bit that the first of them begins at, and how far they go.

        From any bit before the last value on, counted from the first one, there are enough for one unit of a scan.

        Raises:
            FaultError: the bit at which ``block`` begins is not before ``end``.
        """
        if at >= end:
            raise FaultError(block, at, TOO_FEW)
        if not self._base <= at < self._limit:
            first = at >> 3
            count = min(_CHUNK + _MARGIN, len(self._data) - first)
            part = np.frombuffer(self._data, np.uint8, count, first).astype(np.uint32)
            three = part[:-2] << 16 | part[1:-1] << 8 | part[2:]
            self._windows = (three[:, None] >> _SHIFTS & 0xFFFF).ravel().tolist()
            self._base, self._limit = 8 * first, 8 * (first + count - _MARGIN)
        return self._windows, self._base, min(self._limit, end) - self._base


def follow_blocks(
    bits: Bits, at: int, end: int, first: int, stop: int, unit: Sequence[tuple[list[int], list[int]]], *, only_dc: bool
) -> int:
    """Follow a sequential scan, or the first one of the DC coefficients, from one restart marker to the next.

    Args:
        bits: the scan.
        at: the bit to begin at.
        end: the bit to end at.
        first: number of the first unit.
        stop: number of the unit behind the last one.
        unit: look-up lists for the DC and the AC coefficients of each block of a unit.
        only_dc: the blocks have no AC coefficients.

    Returns:
        The bit behind the last code.

    Raises:
        FaultError: codes are damaged or missing.
    """
    behind = 1 if only_dc else 64
    numbered = [(number, *tables) for number, tables in enumerate(unit)]
    windows, base, limit = bits.around(at, end, first * len(unit))
    at -= base
    for count in range(first, stop):
        if at >= limit:
            at += base
            windows, base, limit = bits.around(at, end, count * len(unit))
            at -= base
        for number, dc, ac in numbered:
            entry = dc[windows[at]]
            if entry > BITS:
                raise FaultError(count * len(unit) + number, at + base, _NO_CODE)
            at += entry
            k = 1
            while k < behind:
                entry = ac[windows[at]]
                at += entry & BITS
                k += entry >> STEP
            if k > behind and entry >> STEP != END:
                what = _NO_CODE if entry >> STEP == BAD else _BEYOND
                raise FaultError(count * len(unit) + number, at + base, what)
    if at + base > end:
        raise FaultError(stop * len(unit) - 1, end, TOO_FEW)
    return at + base


def follow_bits(bits: Bits, at: int, end: int, first: int, stop: int, in_unit: int) -> int:
    """Follow a scan that refines DC coefficients, one bit a block; arguments and results as in ``follow_blocks``.

    Raises:
        FaultError: bits are missing.
    """
    behind = at + (stop - first) * in_unit
    if behind > end:
        raise FaultError(first * in_unit + end - at, end, TOO_FEW)
    return behind


def follow_band(
    bits: Bits, at: int, end: int, first: int, stop: int, table: list[int], band: tuple[int, int], known: array[int] | None
) -> int:
    """Follow the first progressive scan of a band of AC coefficients, from one restart marker to the next.

    Args:
        bits: the scan.
        at: the bit to begin at.
        end: the bit to end at.
        first: number of the first block.
        stop: number of the block behind the last one.
        table: look-up list.
        band: the first and the last coefficient.
        known: gets for each block a bit for each coefficient that is not zero, where a later scan needs to know.

    Returns:
        The bit behind the last code.

    Raises:
        FaultError: codes are damaged or missing.
    """
    low, behind = band[0], band[1] + 1
    windows, base, limit = bits.around(at, end, first)
    at -= base
    block = first
    while block < stop:
        if at >= limit:
            at += base
            windows, base, limit = bits.around(at, end, block)
            at -= base
        k = low
        values = 0
        while k < behind:
            entry = table[windows[at]]
            at += entry & BITS
            k += entry >> STEP
            if entry & VALUE:
                values |= 1 << k - 1
        run = 1
        if k > behind:
            size = (entry >> STEP) - END
            if not 0 <= size < 15:
                raise FaultError(block, at + base, _NO_CODE if entry >> STEP == BAD else _BEYOND)
            run = (1 << size) + (windows[at] >> 16 - size)
            at += size
            _require_run(run, block, stop, at + base)
        if values and known is not None:
            known[block] |= values
        block += run
    if at + base > end:
        raise FaultError(stop - 1, end, TOO_FEW)
    return at + base


def refine_band(
    bits: Bits, at: int, end: int, first: int, stop: int, table: list[int], band: tuple[int, int], known: array[int]
) -> int:
    """Follow a progressive scan that refines a band of AC coefficients; arguments and results as in ``follow_band``.

    Each coefficient that is not zero so far has one bit, wherever the codes go over it.

    Raises:
        FaultError: codes are damaged or missing.
    """
    low, behind = band[0], band[1] + 1
    mask = (1 << behind) - (1 << low)
    windows, base, limit = bits.around(at, end, first)
    at -= base
    block = first
    while block < stop:
        if at >= limit:
            at += base
            windows, base, limit = bits.around(at, end, block)
            at -= base
        k = low
        values = known[block]
        added = 0
        while k < behind:
            entry = table[windows[at]]
            at += entry & BITS
            zeros = entry >> STEP
            if zeros >= END:
                break
            if values >> k & (1 << zeros) - 1:
                while zeros:
                    if values >> k & 1:
                        at += 1
                    else:
                        zeros -= 1
                    k += 1
            else:
                k += zeros
            if entry & VALUE:
                added |= 1 << k - 1
        else:
            if k > behind:
                raise FaultError(block, at + base, _BEYOND)
            known[block] |= added
            block += 1
            continue
        size = zeros - END
        if size > 14:
            raise FaultError(block, at + base, _NO_CODE)
        run = (1 << size) + (windows[at] >> 16 - size)
        at += size + (values >> k & (1 << behind - k) - 1).bit_count()
        _require_run(run, block, stop, at + base)
        known[block] |= added
        if run > 1:
            at += _ones(known, block + 1, block + run, mask)
        block += run
    if at + base > end:
        raise FaultError(stop - 1, end, TOO_FEW)
    return at + base


def _ones(known: array[int], first: int, stop: int, mask: int) -> int:
    """Number of bits in a mask that are set, in all of some blocks together."""
    values = known[first:stop]
    if stop - first > 64:  # a hostile file has thousands of scans in which millions of blocks end at once
        chosen = np.frombuffer(values, np.uint64) & np.uint64(mask)
        values = array("Q", chosen[chosen != 0].tobytes())
    return sum((value & mask).bit_count() for value in values)


def _require_run(run: int, block: int, stop: int, at: int) -> None:
    if run > stop - block:
        raise FaultError(block, at, f"{run:,} blocks are said to end, but there are {stop - block:,}")
