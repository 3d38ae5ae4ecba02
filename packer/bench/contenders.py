"""Who is compared: loose files in two ways, packed datasets, and decoding alone. All have the same numbers for a sample.

Raw: each returns how many samples and bytes it has read, and the sum of their digests, so that nothing large travels from a
worker. Everybody digests all bytes once, a packed dataset by comparing them with what was packed (and so it gives -1).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray
from PIL import Image
from xxhash import xxh3_64_intdigest

from packer.batches import ArrayBatch
from packer.bench.loading import HAS_TORCH, Source, collate, read_batches
from packer.bench.proof import Truth, digest_sum
from packer.bench.results import ARRAY_READER, LIMIT, PILLOW
from packer.buffers import BufferPool
from packer.datasets import PackedDataset, open_dataset
from packer.decode import ReadOptions, decode_array, decode_picture
from packer.index import Record
from packer.model import TYPES_BY_NAME, Unfit
from packer.npyheader import parse_header
from packer.permutation import permuted
from packer.tensors import tensor_maker

__all__ = [
    "OUTPUT",
    "SIZE",
    "Contender",
    "Decoder",
    "are_uniform",
    "content_of",
    "decode_seconds",
    "decoding_alone",
    "files_of",
    "read_file",
]

SIZE = (224, 224)
"""(height, width) that pictures are resized to, as most networks take them."""

OUTPUT = "torch" if HAS_TORCH else "numpy"
"""What packed datasets are asked for."""

_MEMORY_BYTES = 128 << 20  # of files held to measure decoding alone
_NPY = TYPES_BY_NAME["npy"].code
Raw = tuple[int, int, int]  # samples, bytes, sum of digests


@dataclass(frozen=True, slots=True)
class Decoder:
    """Makes batches of files' bytes as a packed dataset makes them.

    Attributes:
        records: of the samples, by number.
        is_pictures: or else they are arrays.
        uniform: whether they can be one array.
    """

    records: Sequence[Record]
    is_pictures: bool
    uniform: bool

    def one(self, number: int, payload: bytes) -> NDArray[Any]:
        """What one file holds, with the axes in which it is given out."""
        record = self.records[number]
        if record.type == _NPY:
            return decode_array(payload)
        pixels = np.asarray(decode_picture(payload, record, ReadOptions(output=OUTPUT, size=SIZE)))
        return pixels.transpose(2, 0, 1) if OUTPUT == "torch" else pixels

    def batch(self, numbers: list[int], payloads: Sequence[bytes], buffers: BufferPool) -> Any:
        """A batch; a list where the arrays differ in shape."""

        def make(place: int) -> NDArray[Any]:
            return self.one(numbers[place], payloads[place])

        places, as_tensor = range(len(numbers)), tensor_maker(OUTPUT)
        if not self.uniform:
            return [as_tensor(make(place)) for place in places]
        filling = ArrayBatch(len(numbers), make, str, buffers.empty)
        filling.fill(places, lambda: None)
        return as_tensor(filling.result())


def read_file(path: str) -> bytes:
    """A file in the fastest plain way."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        size = os.fstat(descriptor).st_size
        data = os.read(descriptor, size)
        while len(data) < size and (more := os.read(descriptor, size - len(data))):
            data += more
        return data
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class LooseBytes:
    """Reads loose files."""

    paths: Sequence[str]

    def __getitem__(self, numbers: list[int]) -> Raw:
        count = size = 0
        digests = []
        for number in numbers:
            data = read_file(self.paths[number])
            count, size = count + 1, size + len(data)
            digests.append(xxh3_64_intdigest(data))
        return count, size, digest_sum(digests)


@dataclass(frozen=True, slots=True)
class LooseDecoded:
    """Reads and decodes loose files with the decoder of packed datasets."""

    paths: Sequence[str]
    decoder: Decoder
    buffers: BufferPool = field(default_factory=BufferPool)

    def __getitem__(self, numbers: list[int]) -> Any:
        return self.decoder.batch(numbers, [read_file(self.paths[number]) for number in numbers], self.buffers)


@dataclass(frozen=True, slots=True)
class LoosePillow:
    """Reads loose pictures as an ImageFolder does: Pillow opens, converts and resizes, one by one."""

    paths: Sequence[str]

    def __getitem__(self, numbers: list[int]) -> Any:
        return collate([self._one(self.paths[number]) for number in numbers])

    def _one(self, path: str) -> NDArray[np.uint8]:
        with Image.open(path) as image:
            pixels = np.array(image.convert("RGB").resize(SIZE[::-1], Image.Resampling.BILINEAR))
        return pixels.transpose(2, 0, 1) if OUTPUT == "torch" else pixels


@dataclass(frozen=True, slots=True)
class LooseNumpy:
    """Reads loose arrays as ``numpy.load`` does, one by one."""

    paths: Sequence[str]
    uniform: bool

    def __getitem__(self, numbers: list[int]) -> Any:
        arrays = [self._one(self.paths[number]) for number in numbers]
        return collate(arrays) if self.uniform else [tensor_maker(OUTPUT)(array) for array in arrays]

    def _one(self, path: str) -> Any:
        with open(path, "rb") as file:  # noqa: PTH123 - what numpy.load does
            return npy_format.read_array(file, allow_pickle=False)


@dataclass(frozen=True, slots=True)
class PackedBytes:
    """Reads a packed dataset, a batch at once."""

    data: PackedDataset

    def __getitem__(self, numbers: list[int]) -> Raw:
        payloads = [item[0] if isinstance(item, tuple) else item for item in self.data.__getitems__(numbers)]
        return len(payloads), sum(map(len, payloads)), -1


@dataclass(frozen=True, slots=True)
class PackedDecoded:
    """Reads and decodes a packed dataset, a batch at once."""

    data: PackedDataset
    uniform: bool

    def __getitem__(self, numbers: list[int]) -> Any:
        if not self.uniform:
            return [item[0] if isinstance(item, tuple) else item for item in self.data.__getitems__(numbers)]
        batch = self.data[numbers]
        return batch[0] if isinstance(batch, tuple) else batch


@dataclass(frozen=True, slots=True)
class Memory:
    """Decodes bytes that are in memory. Of a large sample only some are; each number stands for one of them."""

    payloads: Sequence[tuple[int, bytes]]
    decoder: Decoder
    buffers: BufferPool = field(default_factory=BufferPool)

    def __getitem__(self, numbers: list[int]) -> Any:
        chosen = [self.payloads[number % len(self.payloads)] for number in numbers]
        return self.decoder.batch([number for number, _ in chosen], [payload for _, payload in chosen], self.buffers)


@dataclass(frozen=True, slots=True)
class Contender:
    """Somebody who reads.

    Attributes:
        name: as it is shown.
        files: all files that it reads from.
        truth: what its samples are.
        runs: numbers of the samples read in order, int64; those of a stretch where there are more.
        picks: numbers of the samples that are shuffled, int64.
        decoder: of its samples.
        dataset: the packed dataset; ``None`` for loose files and memory.
        paths: of the loose files, by number.
        payloads: bytes in memory, with the numbers of their samples.
    """

    name: str
    files: tuple[Path, ...]
    truth: Truth
    runs: NDArray[np.int64]
    picks: NDArray[np.int64]
    decoder: Decoder
    dataset: Path | None = None
    paths: Sequence[str] = ()
    payloads: Sequence[tuple[int, bytes]] = ()

    @property
    def same_decoder(self) -> bool:
        """Whether what it gives is equal to the truth, and not only near it."""
        return self.name != PILLOW

    @property
    def helpers(self) -> int:
        """Threads that read beside this one."""
        return 0

    def batches(self, work: str, orders: Iterable[list[int]], workers: int) -> Generator[tuple[list[int], Any], None, None]:
        """Batches of a reader that was just opened, with the numbers that are in them; closing it ends the workers."""
        return read_batches(self.opened(work), orders, workers)

    def does(self, work: str, cache: str, order: str, workers: int = 0) -> bool:
        """Whether it takes part there."""
        if self.name == LIMIT:
            return (work, cache, order) == ("decoded", "warm", "shuffled")
        return work == "decoded" or self.name not in (PILLOW, ARRAY_READER)

    def opened(self, work: str) -> Source:
        """A reader that was just opened."""
        if self.dataset is not None:
            if work == "raw":
                return PackedBytes(open_dataset(self.dataset, output="bytes"))
            return PackedDecoded(open_dataset(self.dataset, output=OUTPUT, size=SIZE), self.decoder.uniform)
        if self.name == LIMIT:
            return Memory(self.payloads, self.decoder)
        if work == "raw":
            return LooseBytes(self.paths)
        if self.name == PILLOW:
            return LoosePillow(self.paths)
        return (
            LooseNumpy(self.paths, self.decoder.uniform)
            if self.name == ARRAY_READER
            else LooseDecoded(self.paths, self.decoder)
        )

    def expected_row(self, number: int) -> int:
        """The sample that is given for a number."""
        return self.payloads[number % len(self.payloads)][0] if self.name == LIMIT else number


def decoding_alone(contender: Contender, read: Callable[[int], bytes]) -> Contender:
    """Who decodes the same samples, of which as many as are held in memory have been read.

    Args:
        contender: whose samples they are.
        read: gives the bytes of one by its number.
    """
    numbers = contender.picks
    payloads: list[tuple[int, bytes]] = []
    size = 0
    for number in numbers[permuted(np.arange(len(numbers)), len(numbers), 0)].tolist():
        if payloads and size + int(contender.truth.sizes[number]) > _MEMORY_BYTES:
            break
        payloads.append((number, read(number)))
        size += len(payloads[-1][1])
    return Contender(LIMIT, (), contender.truth, numbers, numbers, contender.decoder, payloads=payloads)


def decode_seconds(alone: Contender) -> float:
    """Seconds that decoding a sample takes: the least of some, since other work on the machine only adds to it."""
    seconds = []
    for number, payload in alone.payloads[:12]:
        start = time.perf_counter()
        alone.decoder.one(number, payload)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def files_of(dataset: Path) -> tuple[Path, ...]:
    """The files of a packed dataset."""
    return tuple(path for path in sorted(dataset.iterdir()) if path.is_file())


def content_of(decoder: Decoder) -> str:
    """What the samples are, as a word of ``packer.bench.results.Sample``."""
    if decoder.is_pictures:
        return "pictures"
    return "arrays" if decoder.uniform else "arrays of different shapes"


def are_uniform(heads: Iterator[bytes]) -> bool:
    """Whether ``.npy`` files, given by their first bytes, have one shape and dtype."""
    try:
        return len({(header.shape, header.dtype) for header in map(parse_header, heads)}) == 1
    except Unfit:
        return False
