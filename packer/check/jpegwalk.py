"""Follow every scan of a JPEG file that the strict decoder cannot take, and see that it holds what the headers promise.

TurboJPEG's interface has names for the usual sampling factors only (CMYK in 4:2:0 has none), and the decoder that Pillow
uses takes nearly any damage in silence. A scan is sound where its codes are all in its tables and none of its blocks is too
long, and where the data end where the last block does. Nothing is decoded to pixels.

Facts: ITU-T T.81, A.2 (order and number of blocks), B.1.1 (stuffed and fill bytes), B.2 (segments), E.2.4 (restart markers),
G.1.1.1 (order of progressive scans), K.3 (the tables that a sequential file without any means).
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from packer.check.jpegcodes import MOST_BLOCKS, TOO_FEW, Bits, FaultError, follow_band, follow_bits, follow_blocks, refine_band
from packer.check.jpegmarkers import next_marker, walk
from packer.check.jpegtables import AC, AC_FIRST, AC_REFINE, DC, lookup, split_tables, usual_tables
from packer.model import Unfit

__all__ = ["require_sound_scans"]

_SEQUENTIAL, _PROGRESSIVE = frozenset({0xC0, 0xC1}), 0xC2
_TABLES, _END, _SCAN, _INTERVAL = 0xC4, 0xD9, 0xDA, 0xDD
_OTHER_FRAMES = frozenset(range(0xC3, 0xD0)) - {_TABLES, 0xC8, 0xCC}
_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})
_FILL = re.compile(rb"\xff\xff+")
_RESTART = re.compile(rb"\xff[\xd0-\xd7]")
_STUFFED = re.compile(rb"\xff+\x00?")
# Of coded data: 7 s of a sequential picture, 16 s of a progressive one. A sound file must not be lost to the time limit.
_MOST_FOLLOWED = 16 << 20


@dataclass(slots=True)
class _Component:
    """One colour component.

    Attributes:
        in_unit: its blocks in a unit of a scan with several components.
        blocks: blocks of a scan that has only this one.
        bits_left: for each coefficient the lowest bit that scans have brought; -1 where none has.
        known: for each block a bit for each coefficient that is not zero, where a later scan needs to know.
    """

    in_unit: int
    blocks: int
    bits_left: list[int] = field(default_factory=lambda: [-1] * 64)
    known: array[int] | None = None

    def knowing(self) -> array[int]:
        """``known``, made where there is none yet."""
        if self.known is None:
            self.known = array("Q", bytes(8 * self.blocks))
        return self.known


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a scan is followed.

    Attributes:
        follow: takes the bits, where they begin and end, and the units from and up to which; gives the bit behind them.
        units: of the scan.
        in_unit: blocks of a unit.
    """

    follow: Callable[[Bits, int, int, int, int], int]
    units: int
    in_unit: int


class _Coded:
    """The entropy-coded data of a scan.

    Attributes:
        pieces: what lies between its restart markers, as it was before bytes were stuffed into it.
        numbers: those of the restart markers.
    """

    def __init__(self, data: bytes, start: int, end: int) -> None:
        raw = data[start:end]
        edges = [match.start() for match in _RESTART.finditer(raw)]
        self._raw = [raw[a:b] for a, b in zip([0, *(at + 2 for at in edges)], [*edges, len(raw)], strict=True)]
        self._starts = [start, *(start + at + 2 for at in edges)]
        self.numbers = [raw[at + 1] - 0xD0 for at in edges]
        self.pieces = [_FILL.sub(b"\xff", piece.rstrip(b"\xff")).replace(b"\xff\0", b"\xff") for piece in self._raw]

    def place(self, piece: int, byte: int) -> int:
        """Where a byte of a piece lies in the file."""
        stuffed = 0
        for match in _STUFFED.finditer(self._raw[piece]):
            if match.start() - stuffed >= byte:
                break
            stuffed += len(match[0]) - 1
        return self._starts[piece] + byte + stuffed


def require_sound_scans(data: bytes) -> None:
    """Follow the scans up to the end marker.

    Pictures that are not Huffman-coded (arithmetic coding, lossless) are left to others, as is what is behind 16 MB of scans.

    Raises:
        Unfit: ``truncated`` where something is wrong and there is no end marker, else ``corrupt``.
    """
    try:
        _Walk(data).run()
    except ValueError as error:
        is_ended = walk(data, whole=True).end != -1
        raise Unfit("corrupt" if is_ended else "truncated", str(error)) from error


class _Walk:
    """What the markers have said so far; whatever is wrong is a ``ValueError``."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._tables: dict[tuple[int, int], bytes] = {}  # by class and number
        self._components: dict[int, _Component] = {}
        self._units = 0
        self._is_progressive = False
        self._interval = 0
        self._scans = 0
        self._followed = 0  # bytes

    def run(self) -> None:
        position = 2
        while True:
            begin = position
            marker, position = next_marker(self._data, begin)
            if marker == -1:
                raise ValueError(f"no end marker in {len(self._data):,} bytes")
            between = _RESTART.sub(b"", self._data[begin : position - 2].rstrip(b"\xff"))
            if between:
                raise ValueError(f"{len(between):,} bytes at byte {begin:,} that belong to no segment")
            if marker == _END or marker in _OTHER_FRAMES:
                return
            if marker in _ALONE:
                continue
            end = position + int.from_bytes(self._data[position : position + 2], "big")
            body = self._data[position + 2 : end]
            if marker in _SEQUENTIAL or marker == _PROGRESSIVE:
                self._begin(body, marker == _PROGRESSIVE)
            elif marker == _TABLES:
                self._tables.update(split_tables(body))
            elif marker == _INTERVAL:
                self._interval = int.from_bytes(body[:2], "big")
            elif marker == _SCAN:
                end = self._scan(body, end)
            position = end

    def _begin(self, body: bytes, is_progressive: bool) -> None:
        _, height, width, count = struct.unpack_from(">BHHB", body + bytes(6))
        factors = {body[at]: (body[at + 1] >> 4, body[at + 1] & 15) for at in range(6, min(6 + 3 * count, len(body) - 2), 3)}
        if (
            not width * height
            or len(factors) != count
            or not all(0 < factor < 5 for pair in factors.values() for factor in pair)
        ):
            raise ValueError("a frame header without sensible components")
        most_across, most_down = map(max, zip(*factors.values(), strict=True))
        self._units = -(-width // (8 * most_across)) * -(-height // (8 * most_down))
        self._components = {}
        for identifier, (across, down) in factors.items():
            columns, rows = -(-width * across // most_across), -(-height * down // most_down)
            self._components[identifier] = _Component(across * down, -(-columns // 8) * -(-rows // 8))
        self._is_progressive = is_progressive

    def _scan(self, header: bytes, start: int) -> int:
        """Follow one scan; returns where the marker behind it begins."""
        self._scans += 1
        count = header[0] if header else 0
        if (
            len(header) < 4 + 2 * count
            or not 1 <= count <= 4
            or not set(header[1 : 1 + 2 * count : 2]) <= set(self._components)
        ):
            raise ValueError(f"scan {self._scans} is of components that there are not")
        chosen = [(self._components[header[at]], header[at + 1]) for at in range(1, 1 + 2 * count, 2)]
        first, last, successive = header[1 + 2 * count : 4 + 2 * count]
        try:
            if self._is_progressive:
                plan = self._progressive(chosen, (first, last), successive >> 4, successive & 15)
            else:  # some encoders leave those three empty, where they say nothing
                plan = self._blocks(chosen, has_ac=True)
        except ValueError as error:
            raise ValueError(f"scan {self._scans}: {error}") from error
        marker, end = next_marker(self._data, start)
        end -= 2 * (marker != -1)
        self._followed += end - start
        if self._followed <= _MOST_FOLLOWED:
            self._follow(plan, _Coded(self._data, start, end), may_be_padded=marker == _END)
        return end

    def _progressive(self, chosen: list[tuple[_Component, int]], band: tuple[int, int], high: int, low: int) -> _Plan:
        first, last = band
        is_sensible = len(chosen) == 1 and first <= last < 64 if first else not last
        for component, _ in chosen:
            before = component.bits_left[first : last + 1]
            # Refined is what was there, by one bit, and nothing comes before the DC coefficients.
            is_sensible &= not (first and component.bits_left[0] == -1) and all(max(0, bit) == high for bit in before)
            component.bits_left[first : last + 1] = [low] * len(before)
        if not is_sensible or low > 13 or (high and low != high - 1):
            raise ValueError(f"its coefficients {first} to {last}, bits {high} to {low}, do not follow on those before")
        component, tables = chosen[0]
        if not first:
            return self._blocks(chosen, has_ac=False) if not high else self._refined_dc([one for one, _ in chosen])
        if not high:
            table, known = self._lookup(1, tables & 15, AC_FIRST), component.knowing() if low else None
            return _Plan(partial(follow_band, table=table, band=band, known=known), component.blocks, 1)
        table, values = self._lookup(1, tables & 15, AC_REFINE), component.knowing()
        return _Plan(partial(refine_band, table=table, band=band, known=values), component.blocks, 1)

    def _blocks(self, chosen: list[tuple[_Component, int]], *, has_ac: bool) -> _Plan:
        units, unit = self._unit([component for component, _ in chosen])
        looked_up = []
        for (_, tables), blocks in zip(chosen, unit, strict=True):
            dc = self._lookup(0, tables >> 4, DC)
            looked_up += [(dc, self._lookup(1, tables & 15, AC) if has_ac else dc)] * blocks
        return _Plan(partial(follow_blocks, unit=looked_up, only_dc=not has_ac), units, len(looked_up))

    def _refined_dc(self, components: list[_Component]) -> _Plan:
        units, unit = self._unit(components)
        in_unit = sum(unit)
        return _Plan(partial(follow_bits, in_unit=in_unit), units, in_unit)

    def _unit(self, components: list[_Component]) -> tuple[int, list[int]]:
        """Number of units of a scan, and blocks of each component in one."""
        if len(components) == 1:
            return components[0].blocks, [1]
        unit = [component.in_unit for component in components]
        if sum(unit) > MOST_BLOCKS:
            raise ValueError(f"{sum(unit)} blocks that belong together, more than {MOST_BLOCKS}")
        return self._units, unit

    def _lookup(self, kind: int, number: int, use: str) -> list[int]:
        table = self._tables.get((kind, number))
        if table is None and not self._is_progressive:
            table = usual_tables().get((kind, number))  # as in the single pictures of a Motion JPEG film
        if table is None:
            raise ValueError(f"no Huffman table {number} for its {use} coefficients")
        return lookup(table, use)

    def _follow(self, plan: _Plan, coded: _Coded, *, may_be_padded: bool) -> None:
        bits = Bits(b"".join(coded.pieces))
        interval = self._interval or plan.units or 1
        begin = 0  # byte of the piece
        for number, first in enumerate(range(0, plan.units, interval)):
            stop = min(first + interval, plan.units)
            is_last = stop == plan.units
            piece = coded.pieces[number]
            end = 8 * (begin + len(piece))
            try:
                at = plan.follow(bits, 8 * begin, end, first, stop)
            except FaultError as fault:
                what, at = (TOO_FEW, end) if fault.at > end else (fault.what, fault.at)
                place = coded.place(number, (at >> 3) - begin)
                raise ValueError(
                    f"scan {self._scans}, block {fault.block + 1:,} of {plan.units * plan.in_unit:,}, byte {place:,}: {what}"
                ) from fault
            used = (at + 7 >> 3) - begin
            if used < len(piece) and not (may_be_padded and is_last and _is_padded(piece, used)):
                raise ValueError(
                    f"scan {self._scans}: {len(piece) - used:,} bytes behind block {stop * plan.in_unit:,} of "
                    f"{plan.units * plan.in_unit:,}, from byte {coded.place(number, used):,} on"
                )
            begin += len(piece)
            if not is_last and coded.numbers[number : number + 1] != [number & 7]:
                raise ValueError(
                    f"scan {self._scans}: restart marker {number & 7} is missing at byte {coded.place(number, len(piece)):,}"
                )
        if any(coded.pieces[number + 1 :]):
            raise ValueError(
                f"scan {self._scans}: data behind all blocks and a restart marker, from byte {coded.place(number + 1, 0):,} on"
            )


def _is_padded(piece: bytes, used: int) -> bool:
    """Whether what is behind the codes is a run of one byte, as some writers pad, that does not begin within the codes.

    Else the file may be one that was cut and filled up: part of the filling was taken for codes. A single byte is no run, but
    where it is 0 or 0xff; damage leaves any byte over.
    """
    return len(piece.rstrip(piece[-1:])) == used and (len(piece) > used + 1 or piece[-1] in (0, 0xFF))
