"""Packed datasets as PyTorch wants them, and as plain sequences where torch is not installed.

    data = open_dataset("images.lmdb")
    image, label = data[0]

One implementation serves all containers; the three named classes check that the format is the expected one. A dataset can be
pickled, copied, read before and after a fork, opened twice and shared by threads: nothing of it is open until it is read, and
what is open then needs no position, no lock and no environment.
"""

from __future__ import annotations

import copy
import operator
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from packer.cachefile import CacheOptions
from packer.decode import ReadOptions
from packer.errors import DatasetError
from packer.index import Names, Record
from packer.model import DEFAULT_MAX_PIXELS, TYPES_BY_NAME
from packer.samples import Pieces, Reading, SampleReader, Wanted
from packer.selection import are_several, as_numbers, places_of_classes, split_places
from packer.store import SampleView, Store
from packer.tensors import Dataset, stack

__all__ = ["HDF5Dataset", "LMDBDataset", "PackedDataset", "WebDatasetDataset", "open_dataset"]


class PackedDataset(Dataset):
    """A packed dataset of any format. ``data[i]`` is ``(data, target)``, or the data alone where there are no labels.

    ``data[[i, j, ...]]`` is a batch, also by a range, or by an array or tensor of numbers: data of shape (samples, ...), and
    int64 targets of shape (samples,), as arrays for ``output="numpy"`` and as tensors otherwise. Pictures as PIL images, and
    bytes, stay lists; so does what a transform gives, unless it is numbers, or arrays or tensors of one shape. It raises
    ``MixedBatchError`` where samples differ in shape or dtype.

    Args:
        path: the dataset's folder.
        output: ``"pil"`` (pictures as PIL images, as ImageFolder gives them; arrays as tensors, or as numpy arrays where torch
            is not installed), ``"numpy"`` (pictures ``(height, width, channels)``, or ``(height, width)`` where there is one
            channel), ``"torch"`` (pictures ``(channels, height, width)``), or ``"bytes"`` (the file as it was).
        transform: called with the data.
        target_transform: called with the target.
        mode: Pillow's mode that pictures are converted to; ``None`` for the mode and depth of the file. 16-bit and float
            pictures are scaled to eight bits, never clipped.
        background: colour (red, green, blue) that transparent pictures are put on; ``None`` drops transparency as Pillow does.
        orient: turn pictures upright as their Exif orientation says.
        min_size: (height, width); decode JPEG at the smallest scale that is at least that large.
        size: (height, width) that every picture is resized to, so that batches can be made of pictures of different sizes. JPEG
            is decoded at the smallest scale that is large enough.
        verify: compare each payload with the digest taken when it was packed.
        mmap: map the files instead of reading them. Faster for arrays; but a file that is truncated under a running job then
            ends it with a bus error.
        max_pixels: refuse a picture whose header promises more.
        cache: ``"memory"`` or ``"disk"``, for datasets on slow storage (NFS, Lustre, spinning disks): each sample is read from
            there once, and then from a copy in memory, or on a disk of this machine. All worker processes share one copy; jobs
            that read the same dataset share the one on a disk, and find it there next time. Processes that were started each
            by itself, such as ``torchrun``'s, have a copy in memory each, unless they say ``cache="disk",
            cache_folder="/dev/shm"``. What comes from a cache is compared with its digest, also where ``verify=False``. A
            cache that cannot be had, or holds no more, is a warning in the log ``packer``; nothing is thrown out of it. Not on
            Windows.
        cache_bytes: the most that the cache takes, to within a sample a process. Left out, for memory half of what the process
            may use (of the machine, or of its cgroup; divided by ``torchrun``'s processes), for a disk as much as leaves a
            tenth of it free.
        cache_folder: where the disk cache lies, in a folder ``packer-cache-N`` of this user's number, which may be removed at
            any time. Left out, it is the folder of temporary files (``$TMPDIR``): on a cluster that is the node's own disk,
            where home is as far away as the dataset.

    Everything that is given out is private and writable; the memory of a batch is used again when nothing refers to it.
    Pictures as arrays or tensors are uint8 unless ``mode=None`` finds another depth.

    Raises:
        DatasetError: the folder is no packed dataset, or not as it was packed.
        OptionError: an option has a value that does not exist.
    """

    format: ClassVar[str] = ""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        output: str = "pil",
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        mode: str | None = "RGB",
        background: tuple[int, int, int] | None = None,
        orient: bool = False,
        min_size: tuple[int, int] | None = None,
        size: tuple[int, int] | None = None,
        verify: bool = True,
        mmap: bool = False,
        max_pixels: int = DEFAULT_MAX_PIXELS,
        cache: str | None = None,
        cache_bytes: int | None = None,
        cache_folder: str | os.PathLike[str] | None = None,
    ) -> None:
        self.options = ReadOptions(output, mode, background, orient, min_size, size, max_pixels)
        self.transform = transform
        self.target_transform = target_transform
        cached = CacheOptions(cache, cache_bytes, cache_folder)
        self._store = Store(path, mmap=mmap, verify=verify, cache=cached)
        self._reader = SampleReader(self._store, self.options)
        found = self._store.manifest.format
        if self.format and found != self.format:
            problem = f"is a dataset of format {found}, not {self.format}; open_dataset opens any format"
            raise DatasetError.at(self._store.path, problem)
        self._selection: NDArray[np.unsignedinteger[Any]] | None = None
        self._length = len(self._store)
        self._has_labels = bool(self._store.manifest.classes)
        self._targets: NDArray[np.int64] | None = None

    @property
    def classes(self) -> list[str]:
        """Class names in the order of their labels; empty where there are no labels."""
        return list(self._store.manifest.classes)

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The label of each class."""
        return self._store.manifest.class_to_idx

    @property
    def targets(self) -> NDArray[np.int64]:
        """Labels of all samples: int64, shape (samples,), read-only, -1 where there are none."""
        if self._selection is None:
            return self._store.targets
        if self._targets is None:
            chosen = self._store.targets[self._selection]
            chosen.flags.writeable = False
            self._targets = chosen.view()
        return self._targets

    @property
    def names(self) -> Names:
        """Original relative paths, looked up when asked for."""
        return Names(self._store.index, self._selection)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        # Without this, Python would iterate until the first IndexError, and take one from a transform for the end.
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        if type(index) is int and 0 <= index < self._length and self._selection is None:
            number = index
        elif are_several(index):
            return self.finish_batch(self.read_batch(index))
        else:
            number = self._number(index)
        return self._sample(number, self._store.index[number])

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[Any]:
        """The samples of a batch, each as ``data[i]`` gives it. torch's DataLoader asks so, also under ``Subset``."""
        numbers = self._numbers(indices)
        return [self._sample(number, record) for number, record in zip(numbers, self._asked(numbers), strict=True)]

    def view(self, index: SupportsIndex) -> SampleView:
        """A sample's file to look at: ``with data.view(i) as view:``, where ``view`` is a read-only memoryview of its bytes.

        With ``mmap=True`` nothing is copied. The view ends with the block; an array that was made over it keeps the bytes.
        """
        number = self._number(index)
        return SampleView(self._store.view(number, self._store.index[number]))

    def ask_ahead(self, indices: Sequence[SupportsIndex]) -> None:
        """Have the system read these samples from the disk or server into its memory. Returns at once; where the system
        cannot be asked, nothing happens.
        """
        self.ask_for(indices)

    def ask_for(self, indices: Any) -> Wanted:
        """As ``ask_ahead``, for a loader: what ``read_batch`` takes in place of the numbers, which are then looked up once."""
        numbers = self._numbers(indices)
        return Wanted(numbers, self._asked(numbers))

    def subset(
        self,
        *,
        indices: Sequence[int] | NDArray[np.integer[Any]] | None = None,
        classes: Sequence[str] | None = None,
        fraction: float | None = None,
        seed: int = 0,
    ) -> Self:
        """A dataset of some of the samples. What is given is applied one after the other.

        Classes keep their labels, also where one has no sample left. The new dataset has its own ``transform``, and shares
        everything else; it holds one number a sample.

        Args:
            indices: numbers of samples, in the order wanted; negative ones count from the end.
            classes: names of the classes to keep.
            fraction: share of the samples to keep, chosen at random, in the order in which they were.
            seed: another one chooses others; the same one chooses the same, on any machine.

        Raises:
            OptionError: there is no such class, or the fraction is not between 0 and 1.
            IndexError: there is no such sample.
        """
        chosen = self
        if indices is not None:
            chosen = chosen._view(np.array([self._place(index) for index in as_numbers(indices)], np.int64))
        if classes is not None:
            chosen = chosen._view(places_of_classes(chosen.targets, classes, self.class_to_idx))
        if fraction is not None:
            chosen = chosen._view(split_places(len(chosen), (fraction,), seed, None)[0])
        return chosen if chosen is not self else copy.copy(self)

    def split(self, *fractions: float, seed: int = 0, stratify: bool = False) -> tuple[Self, ...]:
        """Datasets that share no sample, one for each fraction: ``train, test = data.split(0.9, 0.1)``.

        Each has its own ``transform``. Sizes are as near to the fractions as whole samples allow; what the fractions leave of
        1 is in none of them.

        Args:
            fractions: shares of the samples, together at most 1.
            seed: another one divides otherwise; the same one divides the same way, on any machine.
            stratify: keep the shares within each class, too.

        Raises:
            OptionError: the fractions make no sense.
        """
        labels = self.targets if stratify else None
        return tuple(self._view(places) for places in split_places(len(self), fractions, seed, labels))

    def _view(self, places: NDArray[np.int64]) -> Self:
        """A dataset of the samples at these places of this one."""
        twin = copy.copy(self)
        numbers = places if self._selection is None else self._selection[places]
        twin._selection = numbers.astype(np.min_scalar_type(len(self._store)), copy=False)
        twin._length = len(numbers)
        twin._targets = None
        return twin

    def _place(self, index: SupportsIndex) -> int:
        try:
            wanted = operator.index(index)
        except TypeError:
            raise TypeError(
                f"a sample is asked for by its number, a batch by a list of numbers, not by {type(index).__name__}"
            ) from None
        place = wanted + self._length if wanted < 0 else wanted
        if not 0 <= place < self._length:
            raise IndexError(f"sample {wanted} of {self._length}")
        return place

    def _number(self, index: SupportsIndex) -> int:
        """The number that a sample has in the whole dataset."""
        place = self._place(index)
        return place if self._selection is None else int(self._selection[place])

    def _numbers(self, indices: Any) -> list[int]:
        return [self._number(index) for index in as_numbers(indices)]

    def _asked(self, numbers: list[int]) -> list[Record]:
        """Records of samples whose payloads will be read next."""
        records = [self._store.index[number] for number in numbers]
        self._store.ask_ahead(numbers, records)
        return records

    def _sample(self, number: int, record: Record) -> Any:
        data = self._reader.one(number, record)
        if self.transform is not None:
            data = self._call(self.transform, data, number)
        return (data, self._target(number, record)) if self._has_labels else data

    def _target(self, number: int, record: Record) -> Any:
        return record.label if self.target_transform is None else self._call(self.target_transform, record.label, number)

    def _call(self, function: Callable[[Any], Any], value: Any, number: int) -> Any:
        try:
            return function(value)
        except Exception as error:
            error.add_note(f"in the transform of sample {number} ({self._store.name(number)!r}) of {self._store.path}")
            raise

    def keep_buffers(self, count: int) -> None:
        """Keep the memory of so many batches when they are let go of, for who holds so many at once."""
        self._reader.keep_buffers(count)

    def with_pinned_batches(self) -> Self:
        """The same dataset, whose batches lie in pinned memory, from which an accelerator copies while the program goes on."""
        twin = copy.copy(self)
        twin._reader = self._reader.with_pinned_batches()
        return twin

    @property
    def has_transforms(self) -> bool:
        """Whether a function of the user's is called for each sample."""
        return self.transform is not None or self.target_transform is not None

    @property
    def holds_arrays(self) -> bool:
        """Whether the first sample is an array and not a picture; without looking at the others."""
        return len(self) > 0 and self._store.index[self._number(0)].type == TYPES_BY_NAME["npy"].code

    def begin_batch(self, indices: Any) -> Reading:
        """The first half of a batch, for loaders: its samples, to be read and decoded, by any thread: no transform is called.

        Args:
            indices: numbers of the samples, at least one; or what ``ask_for`` has given for them.
        """
        wanted = indices if isinstance(indices, Wanted) else self.ask_for(indices)
        if not wanted.numbers:
            raise IndexError("a batch of no samples")
        return self._reader.begin(wanted, as_list=self.transform is not None)

    def read_batch(self, indices: Any, check: Callable[[], object] = lambda: None) -> Pieces:
        """The first half at once, in this thread.

        Args:
            indices: as ``begin_batch`` takes them.
            check: called before each sample; what it raises ends the reading.

        Raises:
            DatasetError, OptionError, MixedBatchError: as ``data[[...]]``.
        """
        reading = self.begin_batch(indices)
        reading.fill(reading.places, check)
        return reading.pieces()

    def finish_batch(
        self,
        pieces: Pieces,
        before: Callable[[int], object] = lambda number: None,
        failed: Callable[[str, Exception], object] | None = None,
    ) -> Any:
        """The second half: transforms are called, and the batch is put together.

        Args:
            pieces: of ``read_batch`` or ``begin_batch``.
            before: called with the number of each sample before its transforms.
            failed: told the name of a sample whose transforms raise, and the error; the sample is then left out. ``None``: the
                error is raised.

        Returns:
            The batch as ``data[[...]]`` gives it; ``None`` where no sample is left.
        """
        data, whole = pieces.data, True
        targets: list[Any] = []
        if not self.has_transforms:
            targets = [record.label for record in pieces.records]
        else:
            values = []
            for number, record, value in zip(*pieces, strict=True):
                before(number)
                try:
                    made = value if self.transform is None else self._call(self.transform, value, number)
                    target = self._target(number, record) if self._has_labels else None
                except Exception as error:  # a transform raises anything
                    if failed is None:
                        raise
                    failed(self._store.name(number), error)
                    whole = False
                    continue
                values.append(made)
                targets.append(target)
            if not values:
                return None
            if self.transform is not None or not whole:
                data = self._stacked(values)
        return (data, self._stacked(targets)) if self._has_labels else data

    def _stacked(self, values: list[Any]) -> Any:
        """What transforms gave, as one tensor or array where it has one shape; plain numbers have none."""
        if isinstance(values[0], (bool, int, float, np.generic)) and len({type(value) for value in values}) == 1:
            numbers = np.array(values)
            return self._reader.as_tensor(numbers) if numbers.dtype.kind in "biufc" else values
        return stack(values)

    def __repr__(self) -> str:
        manifest = self._store.manifest
        classes = f"{len(manifest.classes)} classes" if manifest.classes else "no labels"
        return f"{type(self).__name__}({str(self._store.path)!r}: {manifest.format}, {len(self):,} samples, {classes})"

    def __copy__(self) -> PackedDataset:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedDataset:
        twin = copy.copy(self)
        twin.transform = copy.deepcopy(self.transform, memo)
        twin.target_transform = copy.deepcopy(self.target_transform, memo)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        for name in ("transform", "target_transform"):
            _require_picklable(name, getattr(self, name))
        return {**self.__dict__, "_targets": None}


class LMDBDataset(PackedDataset):
    """A dataset packed with ``--format lmdb``; see ``PackedDataset``."""

    format = "lmdb"


class HDF5Dataset(PackedDataset):
    """A dataset packed with ``--format hdf5``; see ``PackedDataset``."""

    format = "hdf5"


class WebDatasetDataset(PackedDataset):
    """A dataset packed with ``--format webdataset``; see ``PackedDataset``. Samples are read by number, not streamed."""

    format = "webdataset"


def open_dataset(path: str | os.PathLike[str], **options: Any) -> PackedDataset:
    """Open a packed dataset of any format; the options are those of ``PackedDataset``.

    Returns:
        The class named after the format where there is one, otherwise ``PackedDataset``.
    """
    opened = PackedDataset(path, **options)
    for kind in (LMDBDataset, HDF5Dataset, WebDatasetDataset):
        if kind.format == opened._store.manifest.format:
            opened.__class__ = kind
    return opened


def _require_picklable(name: str, function: object) -> None:
    """Say which argument is at fault; pickle itself says "Can't get local object" and no more."""
    try:
        pickle.dumps(function)
    except Exception as error:  # pickle raises PicklingError, AttributeError, TypeError and what a __reduce__ raises
        raise pickle.PicklingError(
            f"{name}= cannot be sent to a worker process ({error}). Define it with `def` at the top level of a module, or use "
            'multiprocessing_context="fork" where the system has it.'
        ) from error
