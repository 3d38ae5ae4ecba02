"""Walk the codes of an LZW stream, as GIF and TIFF have them, without making pixels of them.

Between two clear codes every code but the first adds one entry to the table, so the width of the n-th code is known
beforehand. Thousands of codes are therefore cut out of the bits at once, and the length of the string that each stands for
follows from the earlier code that its entry was made of. That tells what a stream unpacks to in less time than unpacking it.

Facts: GIF89a specification, appendix F (a table that is full stays as it is until the next clear code: "deferred clear
code"); TIFF 6.0, section 13.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Lzw", "walk"]

_MAX_WIDTH = 12
_TABLE = 1 << _MAX_WIDTH
_BLOCK = 1 << 14  # codes cut out at once where their number is not bounded by the table

_Ints = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Lzw:
    """What a stream holds.

    Attributes:
        unpacked: units (pixels or bytes) of the codes before the end code, the first bad code or the end of the data; where
            that is more than was expected, the walk did not go on to the end.
        ended: whether the end code was reached.
        bad_code_at: byte in which the first code begins that is not in the table; ``None`` where none was met.
        used: bytes up to where the walk stopped: with the end code, without a bad code.
        highest: the highest unit that occurs; 0 where there is none.
        filled_at: bytes up to the end of the code with which exactly as many units were there as expected; ``None`` where no
            code ends there.
    """

    unpacked: int
    ended: bool
    bad_code_at: int | None
    used: int
    highest: int
    filled_at: int | None


def walk(data: bytes, literal_bits: int, *, msb_first: bool, expected: int) -> Lzw:
    """Walk a stream until it ends, breaks, or holds more than it should.

    Nothing is unpacked: time is bounded by the length of the data, memory by a few times that.

    Args:
        data: the stream, without the packaging of its file format.
        literal_bits: bits of a unit, 1 to 11: GIF's minimum code size, 8 for TIFF.
        msb_first: codes begin at the highest bit and get wider one code earlier, as in TIFF; otherwise as in GIF.
        expected: units that there should be; the walk stops soon after it has found more.
    """
    return _Walk(data, literal_bits, msb_first, expected).run()


class _Schedule(NamedTuple):
    """Codes of one table, or of a run of tables: where they lie in the bits, and which are in the table.

    Attributes:
        begins: bit at which each begins, from the first on.
        widths: their bits.
        limits: the first value of each that is not in the table.
        cuts: for each of the eight bits of a byte at which the first may begin: the byte in which each begins, counted from
            that one, and what its four bytes are shifted by.
        masks: ones of their widths.
        narrow: how many have the first width.
    """

    begins: _Ints
    widths: _Ints
    limits: _Ints
    cuts: list[tuple[_Ints, npt.NDArray[np.uint32]]]
    masks: npt.NDArray[np.uint32]
    narrow: int


def _scheduled(widths: _Ints, limits: _Ints, msb_first: bool) -> _Schedule:
    begins = np.concatenate((np.zeros(1, np.intp), np.cumsum(widths[:-1])))
    cuts = []
    for bit in range(8):
        shifts = (begins + bit) & 7
        cuts.append(((begins + bit) >> 3, (32 - shifts - widths if msb_first else shifts).astype(np.uint32)))
    masks = np.left_shift(1, widths).astype(np.uint32) - np.uint32(1)
    return _Schedule(begins, widths, limits, cuts, masks, int((widths == widths[0]).sum()))


@cache
def _until_full(literal_bits: int, msb_first: bool) -> _Schedule:
    first_free = (1 << literal_bits) + 2
    entries = first_free + np.maximum(np.arange(-1, _TABLE - first_free + 1), 0)  # in the table when a code is read
    bounds = np.left_shift(1, np.arange(literal_bits + 1, _MAX_WIDTH))
    widths = (literal_bits + 1 + np.searchsorted(bounds, entries + int(msb_first), side="right")).astype(np.intp)
    widths[0] = literal_bits + 1
    limits = np.minimum(entries + 1, _TABLE)  # a code may stand for the entry that it completes
    limits[0] = first_free
    return _scheduled(widths, limits, msb_first)


@cache
def _even(width: int, msb_first: bool) -> _Schedule:
    return _scheduled(np.full(_BLOCK, width, np.intp), np.full(_BLOCK, _TABLE, np.intp), msb_first)


class _Walk:
    """The state of a walk: the bit at which the next table begins, and what was found before it."""

    def __init__(self, data: bytes, literal_bits: int, msb_first: bool, expected: int) -> None:
        self._clear = 1 << literal_bits
        self._first_free = self._clear + 2
        self._width = literal_bits + 1
        self._msb_first = msb_first
        self._expected = expected
        self._schedule = _until_full(literal_bits, msb_first)
        # Four bytes from any byte on: a code of 12 bits lies within them, whatever bit of the first it begins at.
        order = ">u4" if msb_first else "<u4"
        self._words = np.ndarray((len(data) + 1,), order, data + bytes(4), strides=(1,))
        self._bits = 8 * len(data)
        self._at = 0
        self._unpacked = 0
        self._highest = 0
        self._filled_at: int | None = None
        self._is_short = False

    def run(self) -> Lzw:
        while True:
            result = self._short_tables() if self._is_short else self._table()
            if result is not None:
                return result

    def _table(self) -> Lzw | None:
        """Go through the codes that share one table, up to the clear or end code behind them."""
        schedule, at = self._schedule, self._at
        codes = self._cut(schedule, at)
        count = _first(self._closes(codes))
        own = codes[:count]
        bad = _first(own >= schedule.limits[:count])
        lengths = self._lengths(np.maximum(own[:bad] - (self._first_free - 1), 0))
        self._count(own[:bad], lengths, schedule, at)
        if bad < count:
            return self._stop(bad_at=at + int(schedule.begins[bad]))
        if count < len(codes):
            self._is_short = count < schedule.narrow
            return self._close(int(codes[count]), at + int(schedule.begins[count] + schedule.widths[count]))
        if count < len(schedule.begins):
            return self._stop()
        return self._full_table(lengths, at + int(schedule.begins[-1]) + _MAX_WIDTH)

    def _full_table(self, lengths: npt.NDArray[np.int32], at: int) -> Lzw | None:
        """Go through the codes behind those that filled the table; all have the same width and none is bad."""
        units = np.ones(_TABLE, np.int32)
        units[self._first_free :] = lengths[: _TABLE - self._first_free] + 1
        while self._unpacked <= self._expected:
            schedule = _even(_MAX_WIDTH, self._msb_first)
            codes = self._cut(schedule, at)
            count = _first(self._closes(codes))
            self._count(codes[:count], units[codes[:count]], schedule, at)
            if count < len(codes):
                return self._close(int(codes[count]), at + (count + 1) * _MAX_WIDTH)
            if count < _BLOCK:
                break
            at += _BLOCK * _MAX_WIDTH
        self._at = at
        return self._stop()

    def _short_tables(self) -> Lzw | None:
        """Go through many tables at once that are cleared before the codes get wider.

        Some writers avoid compression in that way, and a hostile file can have a clear code after every pixel.
        """
        at, schedule = self._at, _even(self._width, self._msb_first)
        codes = self._cut(schedule, at)
        closes = np.flatnonzero(self._closes(codes))
        sizes = np.diff(closes, prepend=-1)  # of each table in codes, its clear or end code included
        tables = _first((sizes > self._schedule.narrow) | (codes[closes] == self._clear + 1))
        self._is_short = tables == len(closes) > 0
        if not tables:
            return self._table()  # which is longer, or the last one
        codes, sizes = codes[: int(closes[tables - 1]) + 1], sizes[:tables]
        starts = np.repeat(np.cumsum(sizes) - sizes, sizes)  # number of the first code of each code's table
        is_clear = codes == self._clear
        bad = _first((codes >= self._schedule.limits[np.arange(len(codes)) - starts]) & ~is_clear)
        own, is_clear = codes[:bad], is_clear[:bad]
        origins = np.where(own < self._first_free, 0, starts[:bad] + own - (self._first_free - 1))
        self._count(own, self._lengths(origins) * ~is_clear, schedule, at)
        if bad < len(codes):
            return self._stop(bad_at=at + bad * self._width)
        return self._close(self._clear, at + len(codes) * self._width)

    def _cut(self, schedule: _Schedule, at: int) -> _Ints:
        """The codes from bit ``at`` on, without those that the data do not hold."""
        where, shifts = schedule.cuts[at & 7]
        masks = schedule.masks
        if at + int(schedule.begins[-1]) + _MAX_WIDTH > self._bits:
            whole = int(np.searchsorted(schedule.begins + schedule.widths, self._bits - at, side="right"))
            where, shifts, masks = where[:whole], shifts[:whole], masks[:whole]
        if not len(where):
            return np.zeros(0, np.intp)
        near = self._words[at >> 3 : (at >> 3) + int(where[-1]) + 1]
        return ((near.take(where) >> shifts) & masks).astype(np.intp)

    def _closes(self, codes: _Ints) -> npt.NDArray[np.bool_]:
        """Which codes clear or end; the clear code is even, and the end code the next one."""
        is_close: npt.NDArray[np.bool_] = np.equal(codes & -2, self._clear)
        return is_close

    def _lengths(self, origins: _Ints) -> npt.NDArray[np.int32]:
        """Units that each code unpacks to.

        ``origins`` are 0 for a unit itself; for an entry, the number (from 1 on) of the earlier code whose string it has, with
        one unit more.
        """
        lengths = np.ones(len(origins) + 1, np.int32)
        lengths[0] = 0
        origins = np.concatenate((np.zeros(1, np.intp), origins))
        while origins.any():  # every round doubles the steps that are behind
            lengths += lengths.take(origins)
            origins = origins.take(origins)
        return lengths[1:]

    def _count(self, codes: _Ints, units: npt.NDArray[np.int32], schedule: _Schedule, at: int) -> None:
        """Take note of codes from bit ``at`` on that unpack to so many units each."""
        if not len(codes):
            return
        self._highest = max(self._highest, int((codes * (codes < self._clear)).max()))
        missing = self._expected - self._unpacked
        total = int(units.sum())
        if 0 < missing <= total:
            sums = units.cumsum()
            filling = int(np.searchsorted(sums, missing))
            if sums[filling] == missing:
                self._filled_at = -(-(at + int(schedule.begins[filling] + schedule.widths[filling])) // 8)
        self._unpacked += total

    def _close(self, code: int, behind: int) -> Lzw | None:
        """What follows a clear or end code: the result, or nothing where the walk goes on behind it."""
        self._at = behind
        if code != self._clear:
            return self._result(True, None, -(-behind // 8))
        return self._stop() if self._unpacked > self._expected else None

    def _stop(self, bad_at: int | None = None) -> Lzw:
        if bad_at is not None:
            return self._result(False, bad_at // 8, bad_at // 8)
        used = -(-self._at // 8) if self._unpacked > self._expected else self._bits // 8
        return self._result(False, None, used)

    def _result(self, ended: bool, bad_code_at: int | None, used: int) -> Lzw:
        return Lzw(self._unpacked, ended, bad_code_at, used, self._highest, self._filled_at)


def _first(flags: npt.NDArray[np.bool_]) -> int:
    """Number of the first true one, or that of all."""
    if not len(flags):
        return 0
    first = int(flags.argmax())
    return first if flags[first] else len(flags)
