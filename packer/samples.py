"""Samples as the reading options want them, one by one or a batch at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.batches import ArrayBatch, Filling, ListBatch, NpyBatch
from packer.buffers import BufferPool
from packer.decode import ReadOptions, decode_array, decode_picture
from packer.errors import DatasetError, OptionError
from packer.index import Record
from packer.model import TYPES_BY_NAME
from packer.store import Store
from packer.tensors import PinnedBuffers, tensor_maker

__all__ = ["Pieces", "Reading", "SampleReader", "Wanted"]

_NPY = TYPES_BY_NAME["npy"].code

# What a part of a batch has at least: to hand it to a thread takes 20 us, in which no other thread runs Python.
_PART_BYTES = 2 << 20  # read in 0.3 ms
_DECODED_PART_BYTES = 128 << 10  # of files, decoded in 1 to 2 ms


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


class Reading:
    """A batch that is being read, by one thread or by several, each with a part of it.

    Args:
        wanted: its samples, at least one.
        filling: what they come into.
        part_bytes: of files, at least, in a part.
        as_tensor: turns an array into what is given out.

    Attributes:
        places: of all its samples.
    """

    def __init__(self, wanted: Wanted, filling: Filling, part_bytes: int, as_tensor: Callable[[NDArray[Any]], Any]) -> None:
        self.places = range(len(wanted.numbers))
        self._wanted = wanted
        self._filling = filling
        self._part_bytes = part_bytes
        self._as_tensor = as_tensor

    def fill(self, places: range, check: Callable[[], object]) -> None:
        """Read and decode the samples at some places. Threads may do so at once, each with places of its own.

        Args:
            places: what of the batch.
            check: called before each sample; what it raises ends the reading.

        Raises:
            DatasetError, OptionError: as ``SampleReader.one``.
        """
        self._filling.fill(places, check)

    def parts(self, most: int) -> list[range]:
        """Places for at most so many threads, all that there are; fewer parts where these would be small."""
        size = sum(record.size for record in self._wanted.records)
        count = max(1, min(most, len(self.places), size // self._part_bytes))
        bounds = [len(self.places) * part // count for part in range(count + 1)]
        return [range(start, stop) for start, stop in pairwise(bounds)]

    def pieces(self) -> Pieces:
        """What was read, when all places are filled.

        Raises:
            MixedBatchError: the samples differ in shape or dtype.
        """
        data = self._filling.result()
        return Pieces(*self._wanted, self._as_tensor(data) if isinstance(data, np.ndarray) else data)


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

    def begin(self, wanted: Wanted, *, as_list: bool) -> Reading:
        """Begin a batch: one array or tensor of shape (samples, ...); a list where samples are bytes or PIL images.

        Args:
            wanted: its samples, at least one.
            as_list: samples as a list all the same, each as ``one`` gives it.
        """
        numbers, records = wanted

        def decode(place: int) -> Any:
            return self._decode(numbers[place], records[place])

        def name(place: int) -> str:
            return self._store.name(numbers[place])

        are_arrays = all(record.type == _NPY for record in records)
        filling: Filling
        if as_list or self._gives_bytes or (self._options.output == "pil" and not are_arrays):
            filling = ListBatch(len(numbers), lambda place: self.one(numbers[place], records[place]))
        elif are_arrays:
            filling = NpyBatch(self._store, numbers, records, decode, name, self._allocate)
        else:
            filling = ArrayBatch(len(numbers), decode, name, self._allocate)
        part_bytes = _PART_BYTES if self._gives_bytes or are_arrays else _DECODED_PART_BYTES
        return Reading(wanted, filling, part_bytes, self.as_tensor)

    def _allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        try:
            return self._buffers.empty(shape, dtype)
        except MemoryError:
            size = math.prod(shape) * dtype.itemsize
            problem = f"not enough memory for a batch of {shape[0]:,} samples, {size:,} bytes"
            raise DatasetError.at(self._store.path, problem) from None

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
