"""The contenders that were packed before: some of their samples, in a stretch for reading in order and all over the dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from packer.bench.contenders import Contender, Decoder, are_uniform, files_of
from packer.bench.proof import Truth
from packer.errors import InputError
from packer.index import Record
from packer.model import TYPES_BY_NAME
from packer.permutation import permuted
from packer.store import Store

__all__ = ["dataset_contender"]

_NPY = TYPES_BY_NAME["npy"].code
_HEAD_BYTES = 4096


def dataset_contender(name: str, store: Store, *, samples: int, room_bytes: int, seed: int) -> tuple[Contender, dict[str, int]]:
    """A dataset that was packed before.

    Args:
        name: as it is shown.
        store: the dataset.
        samples: that are read at most, in order as well as shuffled.
        room_bytes: that they may have together.
        seed: another one chooses others.

    Returns:
        The contender, and how many samples are left out of it, by reason.

    Raises:
        InputError: it holds no samples.
    """
    index = store.index
    sizes, types = np.empty(len(store), np.int64), np.empty(len(store), np.int64)
    digests = np.empty(len(store), np.uint64)
    start = 0
    for block in index.blocks():
        stop = start + len(block)
        data = block["data"]
        sizes[start:stop], digests[start:stop], types[start:stop] = data["size"], data["digest"], data["type"]
        start = stop
    sizes += len(store.manifest.header)
    is_array = types == _NPY
    is_arrays = 2 * int(is_array.sum()) > len(store)
    usable = np.flatnonzero(is_array == is_arrays)
    if not len(usable):
        raise InputError(f"{store.path}: holds no samples")
    count = min(samples, len(usable))
    while count > 1 and 2 * count * float(sizes[usable].mean()) > room_bytes:
        count //= 2
    begin = int(permuted(np.zeros(1, np.int64), len(usable) - count + 1, seed)[0])
    runs = usable[begin : begin + count]
    picks = usable[np.sort(permuted(np.arange(count), len(usable), seed))]
    records = _Records(store)
    uniform = True
    if is_arrays:
        uniform = are_uniform(_packed_head(store, number) for number in np.union1d(runs, picks).tolist())
    decoder = Decoder(records, not is_arrays, uniform)
    truth = Truth(sizes, digests, lambda number: decoder.one(number, store.payload(number, index[number])))
    left = {f"of another kind than most in {name}": len(store) - len(usable)} if len(usable) < len(store) else {}
    contender = Contender(name, files_of(store.path), truth, runs, picks, decoder, store.path)
    return contender, left


class _Records(Sequence[Record]):
    """The records of a dataset, looked up when asked for."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getitem__(self, number: Any) -> Any:
        return self._store.index[number]

    def __len__(self) -> int:
        return len(self._store)


def _packed_head(store: Store, number: int) -> bytes:
    return store.manifest.header or store.head(number, store.index[number], _HEAD_BYTES)
