"""All samples of a dataset in order, with their names: block by block, for ten million of them in a few megabytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from packer.errors import CorruptDatasetError
from packer.index import INDEX_FILE, NAMES_FILE, Record
from packer.store import Store

__all__ = ["walk"]

_ROWS = 1024  # records that are Python objects at a time


def walk(store: Store) -> Iterator[tuple[int, Record, bytes]]:
    """Number, record and original relative path of each sample; 2 µs each, where looking them up by number takes 15.

    Raises:
        CorruptDatasetError: the index places a name outside the names.
        DatasetError: index or names were changed, or cannot be read.
    """
    pieces = store.index.name_blocks()
    names, start, number = b"", 0, 0  # of `names`, what is before `start` was given out
    passed = 0  # bytes of the names before `names`
    for block in store.index.blocks():
        for first in range(0, len(block), _ROWS):
            for end, label, data in block[first : first + _ROWS].tolist():
                shard, kind, mode, orientation, _, width, height, frames, _, offset, size, digest = data
                while end > passed + len(names):
                    piece = next(pieces, b"")
                    if not piece:
                        raise _misplaced(store, number)
                    passed, names, start = passed + start, names[start:] + piece, 0
                if end < passed + start:
                    raise _misplaced(store, number)
                name = names[start : end - passed]
                start = end - passed
                record = Record(end, label, shard, kind, mode, orientation, width, height, frames, offset, size, digest)
                yield number, record, name
                number += 1


def _misplaced(store: Store, number: int) -> CorruptDatasetError:
    return CorruptDatasetError.at(Path(store.path, INDEX_FILE), f"the name of sample {number} lies outside {NAMES_FILE}")
