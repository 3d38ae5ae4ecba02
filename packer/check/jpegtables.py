"""The Huffman tables of a JPEG file, made into lists that say what any sixteen bits begin with.

Facts: ITU-T T.81, B.2.4.2 (tables), C.2 (codes), F.1.2 (symbols and largest sizes), G.1.2 (the same in progressive scans), K.3
(tables that are meant where there are none).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import islice

__all__ = ["AC", "AC_FIRST", "AC_REFINE", "BAD", "BITS", "DC", "END", "STEP", "VALUE", "lookup", "split_tables", "usual_tables"]

DC, AC, AC_FIRST, AC_REFINE = "DC", "AC", "first AC", "refining AC"
"""What a Huffman table is used for."""

BITS = 31
"""The bits of an entry that say how many bits a code and the number behind it have; an entry for DC has no others if sound."""
VALUE = 32
"""The bit of an entry that says that a coefficient gets its first value."""
STEP = 6
"""The bits above this one say how far an entry goes on in its block, or that it is ``END`` or ``BAD``."""
END = 128
"""And up to 14 more: the block ends, and as many bits follow that say how many blocks do."""
BAD = 1024
"""No such code, or none that means anything."""

_BAD_DC = 32
_MOST_SIZE = {DC: 11, AC: 10, AC_FIRST: 10, AC_REFINE: 1}  # of 8-bit pictures


@lru_cache(maxsize=16)
def lookup(table: bytes, use: str) -> list[int]:
    """What each sixteen bits begin with.

    Args:
        table: sixteen numbers of codes, one for each length, and their symbols.
        use: ``DC``, ``AC`` (of a sequential scan), ``AC_FIRST`` or ``AC_REFINE``.

    Raises:
        ValueError: there are more codes of some length than there can be.
    """
    if sum(number << 15 - i for i, number in enumerate(table[:16])) > 1 << 16:
        raise ValueError("a Huffman table with more codes than there can be")
    entries: list[int] = []
    symbols = iter(table[16:])
    for length, number in enumerate(table[:16], 1):
        for symbol in islice(symbols, number):
            entries += [_entry(symbol, length, use)] * (1 << 16 - length)
    return entries + [_BAD_DC if use == DC else BAD << STEP] * ((1 << 16) - len(entries))


def _entry(symbol: int, length: int, use: str) -> int:
    if use == DC:
        return length + symbol if symbol <= _MOST_SIZE[DC] else _BAD_DC
    run, size = symbol >> 4, symbol & 15
    if size:
        return run + 1 << STEP | VALUE | length + size if size <= _MOST_SIZE[use] else BAD << STEP
    if run == 15:
        return 16 << STEP | length
    return END + run << STEP | length if use != AC or not run else BAD << STEP


def split_tables(body: bytes) -> Iterator[tuple[tuple[int, int], bytes]]:
    """Class, number and content of each table of a segment.

    Raises:
        ValueError: one does not end.
    """
    at = 0
    while at < len(body):
        end = at + 17 + sum(body[at + 1 : at + 17])
        if end > len(body) or end < at + 17:
            raise ValueError("a Huffman table that is longer than its segment")
        yield (body[at] >> 4, body[at] & 15), body[at + 1 : end]
        at = end


@cache
def usual_tables() -> dict[tuple[int, int], bytes]:
    """The tables of pictures that have none, such as those of a Motion JPEG film, by class and number."""
    return dict(split_tables(_USUAL_TABLES))


_USUAL_TABLES = bytes.fromhex(
    "0000010501010101010100000000000000000102030405060708090a0b100002010303020403050504040000017d01020300041105122131410613"
    "516107227114328191a1082342b1c11552d1f02433627282090a161718191a25262728292a3435363738393a434445464748494a53545556575859"
    "5a636465666768696a737475767778797a838485868788898a92939495969798999aa2a3a4a5a6a7a8a9aab2b3b4b5b6b7b8b9bac2c3c4c5c6c7c8"
    "c9cad2d3d4d5d6d7d8d9dae1e2e3e4e5e6e7e8e9eaf1f2f3f4f5f6f7f8f9fa0100030101010101010101010000000000000102030405060708090a"
    "0b1100020102040403040705040400010277000102031104052131061241510761711322328108144291a1b1c109233352f0156272d10a162434e1"
    "25f11718191a262728292a35363738393a434445464748494a535455565758595a636465666768696a737475767778797a82838485868788898a92"
    "939495969798999aa2a3a4a5a6a7a8a9aab2b3b4b5b6b7b8b9bac2c3c4c5c6c7c8c9cad2d3d4d5d6d7d8d9dae2e3e4e5e6e7e8e9eaf2f3f4f5f6f7"
    "f8f9fa"
)
