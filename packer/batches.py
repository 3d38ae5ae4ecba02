"""Put samples into one array, the batch: ``.npy`` files straight from their container, everything else as it is decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.buffers import BufferPool
from packer.errors import DatasetError, MixedBatchError
from packer.index import Record
from packer.model import Unfit
from packer.npyheader import Header, parse_header
from packer.store import Store
from packer.tensors import PinnedBuffers

__all__ = ["fill_batch", "read_arrays"]

_HEAD_BYTES = 4096


def read_arrays(
    store: Store,
    numbers: Sequence[int],
    records: Sequence[Record],
    buffers: BufferPool | PinnedBuffers,
    check: Callable[[], object],
) -> NDArray[Any] | None:
    """Read ``.npy`` files of one shape and dtype without a copy between.

    Args:
        store: the dataset.
        numbers: of the samples, at least one; all must be ``.npy`` files.
        records: of the samples.
        buffers: where the memory for the batch comes from.
        check: called before each sample; what it raises ends the reading.

    Returns:
        Shape (samples, ...); ``None`` where the files differ, or do not hold their elements row-major in native byte order, so
        that each must be decoded by itself.

    Raises:
        DatasetError: a sample cannot be read, or is not as it was packed.
    """
    head = store.manifest.header or store.head(numbers[0], records[0], _HEAD_BYTES)
    try:
        header = parse_header(head)
    except Unfit:
        return None
    if not _is_plain(header) or header.body_bytes > records[0].size:
        return None
    head = head[: header.size_bytes]
    try:
        batch = buffers.empty((len(numbers), *header.shape), header.dtype)
    except MemoryError:
        size = len(numbers) * header.body_bytes
        raise DatasetError.at(
            store.path, f"not enough memory for a batch of {len(numbers):,} samples, {size:,} bytes"
        ) from None
    rows = batch.reshape(-1).view(np.uint8).data
    return batch if store.read_arrays_into(numbers, records, head, rows, check) else None


def _is_plain(header: Header) -> bool:
    return not header.fortran_order and header.dtype.isnative


def fill_batch(
    arrays: Iterator[NDArray[Any]], count: int, name: Callable[[int], str], buffers: BufferPool | PinnedBuffers
) -> NDArray[Any]:
    """Put arrays of one shape and dtype into one.

    Args:
        arrays: one a sample.
        count: how many they are, at least one.
        name: gives the name of one, for messages.
        buffers: where the memory for the batch comes from.

    Returns:
        Shape (samples, ...).

    Raises:
        MixedBatchError: two samples differ in shape or dtype.
    """
    first = next(arrays)
    batch = buffers.empty((count, *first.shape), first.dtype)
    batch[0] = first
    for i, array in enumerate(arrays, 1):
        if array.shape != first.shape or array.dtype != first.dtype:
            raise MixedBatchError.between(name(0), _kind(first), name(i), _kind(array))
        batch[i] = array
    return batch


def _kind(array: NDArray[Any]) -> str:
    return f"{array.dtype} {array.shape}"
