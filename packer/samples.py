"""Samples as the reading options want them, one by one or a batch at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from packer.batches import fill_batch, read_arrays
from packer.buffers import BufferPool
from packer.decode import ReadOptions, decode_array, decode_picture
from packer.errors import DatasetError, OptionError
from packer.index import Record
from packer.model import TYPES_BY_NAME
from packer.store import Store
from packer.tensors import PinnedBuffers, tensor_maker

__all__ = ["Pieces", "SampleReader", "Wanted"]

_NPY = TYPES_BY_NAME["npy"].code


class Wanted(NamedTuple):
    """Samples that the system was asked to read ahead: their numbers in the whole dataset, and their records."""

    numbers: Sequence[int]
    records: Sequence[Record]


class Pieces(NamedTuple):
    """What a batch is made of, read and decoded.

    Attributes:
        numbers: of the samples in the whole dataset.
        records: of the samples.
        data: one array or tensor, or a list where they are bytes or PIL images, or where a transform is still to be called.
    """

    numbers: Sequence[int]
    records: Sequence[Record]
    data: Any


class SampleReader:
    """Reads and decodes samples of a dataset.

    Args:
        store: the dataset.
        options: how samples are given out.
        buffers: where the memory of batches comes from; by default a pool of its own.

    Raises:
        ImportError: tensors are asked for, and torch is not installed.
    """

    def __init__(self, store: Store, options: ReadOptions, buffers: BufferPool | PinnedBuffers | None = None) -> None:
        self._store = store
        self._options = options
        self._gives_bytes = options.output == "bytes"
        self._buffers = buffers or BufferPool()
        self.as_tensor = tensor_maker(options.output)

    def keep_buffers(self, count: int) -> None:
        """Keep the memory of so many batches when they are let go of."""
        if isinstance(self._buffers, BufferPool):
            self._buffers.keep(count)

    def with_pinned_batches(self) -> SampleReader:
        """A reader of the same whose batches lie in pinned memory, but where it arrives pickled in another process."""
        return SampleReader(self._store, self._options, PinnedBuffers())

    def __reduce__(self) -> tuple[Any, ...]:
        return SampleReader, (self._store, self._options)

    def one(self, number: int, record: Record) -> Any:
        """A sample by itself: the file's bytes, a PIL image, or a private array or tensor.

        Raises:
            DatasetError: it cannot be read or decoded, or is not as it was packed.
            OptionError: Pillow cannot convert this picture to the mode asked for.
        """
        if self._gives_bytes:
            return self._store.payload(number, record)
        data = self._decode(number, record)
        return self.as_tensor(np.asarray(data, order="C")) if isinstance(data, np.ndarray) else data

    def several(self, numbers: Sequence[int], records: Sequence[Record], check: Callable[[], object]) -> list[Any]:
        """Samples as a list, each as ``one`` gives it; ``check`` is called before each."""
        samples = []
        for number, record in zip(numbers, records, strict=True):
            check()
            samples.append(self.one(number, record))
        return samples

    def batch(self, numbers: Sequence[int], records: Sequence[Record], check: Callable[[], object]) -> Any:
        """Samples as one array or tensor, shape (samples, ...); as a list where they are bytes or PIL images.

        Args:
            numbers: of the samples.
            records: of the samples.
            check: called before each sample; what it raises ends the reading.

        Raises:
            MixedBatchError: they differ in shape or dtype.
            DatasetError: as ``one``.
            OptionError: as ``one``.
        """
        output = self._options.output
        are_arrays = all(record.type == _NPY for record in records)
        if output == "bytes" or (output == "pil" and not are_arrays):
            return self.several(numbers, records, check)
        batch = read_arrays(self._store, numbers, records, self._buffers, check) if are_arrays else None
        if batch is None:
            arrays = self._decoded(numbers, records, check)
            batch = fill_batch(arrays, len(numbers), lambda i: self._store.name(numbers[i]), self._buffers)
        return self.as_tensor(batch)

    def _decoded(self, numbers: Sequence[int], records: Sequence[Record], check: Callable[[], object]) -> Iterator[Any]:
        for number, record in zip(numbers, records, strict=True):
            check()
            yield self._decode(number, record)

    def _decode(self, number: int, record: Record) -> Any:
        """A PIL image, or an array with the axes in which it is given out."""
        payload = self._store.payload(number, record)
        try:
            if record.type == _NPY:
                return decode_array(payload)
            picture = decode_picture(payload, record, self._options)
        except OptionError:
            raise
        except MemoryError as error:
            problem = f"not enough memory to decode sample {number} ({self._store.name(number)!r})"
            raise DatasetError.at(self._store.extents.path(record.shard), problem) from error
        # Any class may come out of a decoder; what reaches the training loop must name the sample.
        except Exception as error:
            raise self._store.corrupt(number, record, f"cannot be decoded ({type(error).__name__}: {error})") from error
        if not isinstance(picture, np.ndarray) or self._options.output != "torch":
            return picture
        return picture[None] if picture.ndim == 2 else picture.transpose(2, 0, 1)
