"""Put samples into one batch, which several threads may fill at once.

A batch is made by filling all its places, 0 to count - 1: whoever fills some of them has these for himself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from packer.errors import MixedBatchError
from packer.index import Record
from packer.model import Unfit
from packer.npyheader import parse_header
from packer.store import Store

__all__ = ["Allocate", "ArrayBatch", "Filling", "ListBatch", "NpyBatch"]

Allocate = Callable[[tuple[int, ...], "np.dtype[Any]"], NDArray[Any]]
_HEAD_BYTES = 4096


class Filling(Protocol):
    """A batch in the making."""

    def fill(self, places: range, check: Callable[[], object]) -> None:
        """Make the samples at some places, one after the other; ``check`` is called before each, and what it raises ends it."""

    def result(self) -> Any:
        """The batch, when all its places are filled."""


class ListBatch:
    """Samples as a list.

    Args:
        count: of samples.
        make: gives the sample at a place.
    """

    def __init__(self, count: int, make: Callable[[int], Any]) -> None:
        self._samples: list[Any] = [None] * count
        self._make = make

    def fill(self, places: range, check: Callable[[], object]) -> None:
        """Make the samples at some places."""
        for place in places:
            check()
            self._samples[place] = self._make(place)

    def result(self) -> list[Any]:
        """The list."""
        return self._samples


class ArrayBatch:
    """Arrays of one shape and dtype as one array, shape (samples, ...).

    Args:
        count: of samples, at least one.
        make: gives the array at a place.
        name: gives the name of the sample at a place, for messages.
        allocate: gives the memory of the batch.
    """

    def __init__(self, count: int, make: Callable[[int], NDArray[Any]], name: Callable[[int], str], allocate: Allocate) -> None:
        self._count = count
        self._make = make
        self._name = name
        self._allocate = allocate
        self._lock = threading.Lock()
        self._batch: NDArray[Any] | None = None
        self._others: dict[int, str] = {}  # by place: what samples are that do not fit in

    def fill(self, places: range, check: Callable[[], object]) -> None:
        """Make the arrays at some places and copy them in."""
        for place in places:
            check()
            array = self._make(place)
            batch = self._memory(array.shape, array.dtype)
            if (array.shape, array.dtype) == (batch.shape[1:], batch.dtype):
                batch[place] = array
            else:
                self._others[place] = f"{array.dtype} {array.shape}"

    def _memory(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The batch; for samples of this kind where it is asked for first."""
        with self._lock:
            if self._batch is None:
                self._batch = self._allocate((self._count, *shape), dtype)
            return self._batch

    def result(self) -> NDArray[Any]:
        """The batch.

        Raises:
            MixedBatchError: two samples differ in shape or dtype.
        """
        batch = self._batch
        if batch is None:
            raise ValueError("nothing is filled")
        if self._others:
            own = f"{batch.dtype} {batch.shape[1:]}"
            kinds = [self._others.get(place, own) for place in range(self._count)]
            other = next(place for place, kind in enumerate(kinds) if kind != kinds[0])
            raise MixedBatchError.between(self._name(0), kinds[0], self._name(other), kinds[other])
        return batch


class NpyBatch(ArrayBatch):
    """As ``ArrayBatch``, of ``.npy`` files: read straight into it without a copy between, where all that are filled at once
    have the header of the first and hold their elements row-major in native byte order.

    Args:
        store: the dataset.
        numbers: of the samples, at least one; all must be ``.npy`` files.
        records: of the samples.
        make, name, allocate: as ``ArrayBatch`` takes them.
    """

    def __init__(
        self,
        store: Store,
        numbers: Sequence[int],
        records: Sequence[Record],
        make: Callable[[int], NDArray[Any]],
        name: Callable[[int], str],
        allocate: Allocate,
    ) -> None:
        super().__init__(len(numbers), make, name, allocate)
        self._store = store
        self._numbers = numbers
        self._records = records
        self._header: bytes | None = None  # empty where there is none that would do

    def fill(self, places: range, check: Callable[[], object]) -> None:
        """Read the files at some places; those by themselves of which one is not as the first."""
        header = self._plain_header()
        if not header or not self._has_read(header, places, check):
            super().fill(places, check)

    def _plain_header(self) -> bytes:
        with self._lock:
            if self._header is None:
                head = self._store.manifest.header or self._store.head(self._numbers[0], self._records[0], _HEAD_BYTES)
                self._header = head[: _plain_size(head, self._records[0].size)]
            return self._header

    def _has_read(self, head: bytes, places: range, check: Callable[[], object]) -> bool:
        header, part = parse_header(head), slice(places.start, places.stop)
        rows = self._memory(header.shape, header.dtype)[part].reshape(-1).view(np.uint8).data
        return self._store.read_arrays_into(self._numbers[part], self._records[part], head, rows, check)


def _plain_size(head: bytes, file_bytes: int) -> int:
    """The size of a header that says row-major and native byte order; 0 of any other."""
    try:
        header = parse_header(head)
    except Unfit:
        return 0
    is_plain = not header.fortran_order and header.dtype.isnative and header.body_bytes <= file_bytes
    return header.size_bytes if is_plain else 0
