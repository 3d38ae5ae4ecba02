"""Walk fax data, as TIFF has them: whether every code exists and every row ends where it must.

libtiff, and so Pillow, fills up a row that ends early, drops what goes beyond its end, and looks for the next row's start.
Here the first such row ends the walk. No pixels are made, only the places in a row where the colour changes.

Facts: ITU-T T.4 (2003), tables 2 and 3 (run lengths), 4.1.2 (end of line) and 4.2 (two-dimensional); ITU-T T.6 (1988);
TIFF 6.0, sections 10 (Modified Huffman: no ends of line, rows begin at bytes) and 11 (``T4Options``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

__all__ = ["HUFFMAN", "T4", "T6", "Fax", "walk"]

HUFFMAN, T4, T6 = 2, 3, 4
"""The three schemes, by their numbers in TIFF's compression tag."""

_TWO_DIMENSIONAL = 1  # of T4Options
_LONGEST = 13  # bits of a run's code
_PADDING = 31  # bits that may be left at the end: whatever fills bytes, words, or two of them

# Codes of runs of 0 to 63 pixels, then of 64, 128, ... 1728.
_WHITE = """
    00110101 000111 0111 1000 1011 1100 1110 1111 10011 10100 00111 01000 001000 000011 110100 110101
    101010 101011 0100111 0001100 0001000 0010111 0000011 0000100 0101000 0101011 0010011 0100100 0011000 00000010 00000011
    00011010 00011011 00010010 00010011 00010100 00010101 00010110 00010111 00101000 00101001 00101010 00101011 00101100
    00101101 00000100 00000101 00001010 00001011 01010010 01010011 01010100 01010101 00100100 00100101 01011000 01011001
    01011010 01011011 01001010 01001011 00110010 00110011 00110100
    11011 10010 010111 0110111 00110110 00110111 01100100 01100101 01101000 01100111 011001100 011001101 011010010
    011010011 011010100 011010101 011010110 011010111 011011000 011011001 011011010 011011011 010011000 010011001 010011010
    011000 010011011
"""
_BLACK = """
    0000110111 010 11 10 011 0011 0010 00011 000101 000100 0000100 0000101 0000111 00000100 00000111 000011000
    0000010111 0000011000 0000001000 00001100111 00001101000 00001101100 00000110111 00000101000 00000010111 00000011000
    000011001010 000011001011 000011001100 000011001101 000001101000 000001101001 000001101010 000001101011 000011010010
    000011010011 000011010100 000011010101 000011010110 000011010111 000001101100 000001101101 000011011010 000011011011
    000001010100 000001010101 000001010110 000001010111 000001100100 000001100101 000001010010 000001010011 000000100100
    000000110111 000000111000 000000100111 000000101000 000001011000 000001011001 000000101011 000000101100 000001011010
    000001100110 000001100111
    0000001111 000011001000 000011001001 000001011011 000000110011 000000110100 000000110101 0000001101100 0000001101101
    0000001001010 0000001001011 0000001001100 0000001001101 0000001110010 0000001110011 0000001110100 0000001110101
    0000001110110 0000001110111 0000001010010 0000001010011 0000001010100 0000001010101 0000001011010 0000001011011
    0000001100100 0000001100101
"""
# Of both colours: 1792, 1856, ... 2560.
_LONG = """
    00000001000 00000001100 00000001101 000000010010 000000010011 000000010100 000000010101 000000010110 000000010111
    000000011100 000000011101 000000011110 000000011111
"""
_PASS, _HORIZONTAL = 8, 9  # beside the vertical modes, -3 to 3
_MODES = {
    "1": 0, "011": 1, "000011": 2, "0000011": 3, "010": -1, "000010": -2, "0000010": -3, "0001": _PASS, "001": _HORIZONTAL,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fax:
    """What the data hold.

    Attributes:
        rows: whole rows before the end or the fault.
        fault: what is wrong behind them, empty where nothing is.
        ended: whether that is that they end too early.
        used: bytes up to there.
    """

    rows: int
    fault: str
    ended: bool
    used: int


def walk(data: bytes, scheme: int, options: int, width: int, rows: int, most: int) -> Fax:
    """Walk the rows of a strip or tile. Time is bounded by the length of the data.

    Args:
        data: codes that begin at the highest bit of a byte.
        scheme: ``HUFFMAN``, ``T4`` or ``T6``.
        options: the value of the tag ``T4Options``.
        width: pixels of a row.
        rows: number of rows that there should be.
        most: number of rows that there may be, where a writer filled up the last strip.
    """
    return _Walk(data, scheme, options, width).run(rows, most)


class _Fault(Exception):  # noqa: N818 - ends a walk, and is no error of the program
    """Raised where a row cannot be walked."""


class _End(_Fault):
    """Raised where the data end before their rows do."""


@cache
def _runs() -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Of white and of black: by the next 13 bits, the run and the bits of its code; no bits where there is no such code."""
    tables = []
    for text in (_WHITE, _BLACK):
        codes = text.split()
        lengths = [*range(64), *range(64, 1729, 64), *range(1792, 2561, 64)]
        table = [(0, 0)] * (1 << _LONGEST)
        for code, length in zip([*codes, *_LONG.split()], lengths, strict=True):
            _fill(table, code, _LONGEST, length)
        tables.append(table)
    return tables[0], tables[1]


@cache
def _modes() -> list[tuple[int, int]]:
    """By the next seven bits, the mode and the bits of its code."""
    table = [(0, 0)] * 128
    for code, mode in _MODES.items():
        _fill(table, code, 7, mode)
    return table


def _fill(table: list[tuple[int, int]], code: str, width: int, value: int) -> None:
    free = width - len(code)
    first = int(code, 2) << free
    table[first : first + (1 << free)] = [(value, len(code))] * (1 << free)


class _Walk:
    def __init__(self, data: bytes, scheme: int, options: int, width: int) -> None:
        self._bits = 8 * len(data)
        # The four bytes that begin at each byte: the next 24 bits, whichever bit of the first they begin at.
        padded = data + bytes(16)
        self._words = np.ndarray((len(data) + 12,), ">u4", padded, strides=(1,)).astype(np.uint32).data
        self._scheme = scheme
        self._options = options
        self._width = width
        self._at = 0
        self._has_ends = True  # whether ends of line stand between the rows of T.4

    def run(self, rows: int, most: int) -> Fax:
        reference = [self._width] * 4  # a white row
        done = 0
        try:
            while done < rows or (done < most and not self._is_end()):
                is_flat = self._begin_row(done)
                reference = self._flat_row() if is_flat else self._row_by(reference)
                if self._at > self._bits:
                    raise _End("the data end inside a row")
                done += 1
            if not self._is_end():
                raise _Fault("more data follow the last row")
        except _Fault as fault:
            # Behind the end of the data there is no code either.
            ended = isinstance(fault, _End) or self._at + _LONGEST > self._bits
            return Fax(done, str(fault), ended, min(self._at, self._bits) // 8)
        return Fax(done, "", False, -(-self._at // 8))

    def _begin_row(self, number: int) -> bool:
        """Step to the first code of a row; whether it is coded by itself."""
        if self._scheme == HUFFMAN:
            self._at += -self._at % 8
        if self._at >= self._bits:
            raise _End("the data end")
        if self._scheme == HUFFMAN:
            return True
        if self._scheme == T6:
            if self._next(24) == 0x001001:
                raise _End("the data say that they end")
            return False
        has_end = self._skip_end_of_line()
        # The first row may have none before it. Some writers set none at all.
        if number == 1:
            self._has_ends = has_end
        elif number > 1 and has_end != self._has_ends:
            raise _Fault("an end of line is missing" if self._has_ends else "an end of line where there were none")
        if not self._options & _TWO_DIMENSIONAL:
            return True
        self._at += 1
        return bool(self._next(1, -1))

    def _skip_end_of_line(self) -> bool:
        """Step over any zeros that are the filling before an end of line, and over it; whether there is one."""
        if self._next(11):
            return False
        at = self._at + 11
        while at < self._bits and not self._words[at >> 3] >> (31 - (at & 7)) & 1:
            at += 1
        if at >= self._bits:
            raise _End("the data end")
        self._at = at + 1
        return True

    def _flat_row(self) -> list[int]:
        """Where the colour changes in a row that is coded by itself."""
        changes: list[int] = []
        end = 0
        while end < self._width:
            end = self._run(end, len(changes) & 1)
            changes.append(end)
        return self._finish(changes, end)

    def _row_by(self, reference: list[int]) -> list[int]:
        """Where the colour changes in a row that is coded by the row above."""
        width, words, modes = self._width, self._words, _modes()
        changes: list[int] = []
        end = index = 0
        is_start = True
        while end < width:
            mode, bits = modes[words[self._at >> 3] >> (25 - (self._at & 7)) & 127]
            if not bits:
                raise _Fault("no such code")
            self._at += bits
            # The next change above that is right of here, and away from the present colour.
            while not is_start and reference[index] <= end and reference[index] < width:
                index += 2
            is_start = False
            if mode == _PASS:
                end = reference[index + 1]
            elif mode == _HORIZONTAL:
                for colour in (len(changes) & 1, ~len(changes) & 1):
                    end = self._run(end, colour)
                    changes.append(end)
            else:
                place = reference[index] + mode
                if place < end:
                    raise _Fault("a row goes back")
                end = place
                changes.append(end)
                index += -1 if index else 1
        return self._finish(changes, end)

    def _finish(self, changes: list[int], end: int) -> list[int]:
        if end > self._width:
            raise _Fault(f"a row of {end:,} pixels, {self._width:,} are promised")
        changes += [self._width] * 4
        return changes

    def _run(self, end: int, colour: int) -> int:
        """Where the run of a colour ends that begins here."""
        table, words, width, at = _runs()[colour], self._words, self._width, self._at
        while True:
            length, bits = table[words[at >> 3] >> (19 - (at & 7)) & 8191]
            if not bits:
                self._at = at
                raise _Fault("no such code")
            at += bits
            end += length
            if length < 64 or end > width:
                self._at = at
                return end

    def _is_end(self) -> bool:
        """Whether what follows is an end mark, or no more than fills up the last bytes."""
        left = self._bits - self._at
        if left <= _PADDING:
            return True
        if self._scheme == T6:
            return self._next(24) == 0x001001
        if self._scheme == HUFFMAN:
            return False
        start = self._at
        try:
            if not self._skip_end_of_line():
                return False
            left = self._bits - self._at
            # Six of them in a row end a page, each with the bit that says how a row is coded where rows have one.
            again, bits = (0x1001, 13) if self._options & _TWO_DIMENSIONAL else (0x001, 12)
            return left <= _PADDING or self._next(bits) == again
        except _Fault:
            return True  # zeros up to the end
        finally:
            self._at = start

    def _next(self, count: int, shift: int = 0) -> int:
        """The next bits (24 at most), zeros behind the end; they stay the next."""
        at = self._at + shift
        return self._words[at >> 3] >> (32 - (at & 7) - count) & ((1 << count) - 1)
