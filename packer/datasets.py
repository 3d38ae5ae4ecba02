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
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from packer.decode import ReadOptions, decode_array, decode_picture
from packer.errors import DatasetError, OptionError
from packer.index import Names, Record
from packer.model import DEFAULT_MAX_PIXELS, TYPES_BY_NAME
from packer.store import Store

if TYPE_CHECKING:
    _Base = Sequence[Any]
else:
    try:
        from torch.utils.data import Dataset as _Base
    except (ImportError, OSError):  # OSError: installed, but its libraries do not load
        _Base = Sequence

__all__ = ["HDF5Dataset", "LMDBDataset", "PackedDataset", "WebDatasetDataset", "open_dataset"]

_NPY = TYPES_BY_NAME["npy"].code


class PackedDataset(_Base):
    """A packed dataset of any format. ``data[i]`` is ``(data, target)``, or the data alone where there are no labels.

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
        verify: compare each payload with the digest taken when it was packed.
        mmap: map the files instead of reading them. Faster for arrays; but a file that is truncated under a running job then
            ends it with a bus error.
        max_pixels: refuse a picture whose header promises more.

    Everything that is given out is private and writable. Pictures as arrays or tensors are uint8 unless ``mode=None`` finds
    another depth.

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
        verify: bool = True,
        mmap: bool = False,
        max_pixels: int = DEFAULT_MAX_PIXELS,
    ) -> None:
        self.options = ReadOptions(output, mode, background, orient, min_size, max_pixels)
        self.transform = transform
        self.target_transform = target_transform
        self._store = Store(path, mmap=mmap, verify=verify)
        found = self._store.manifest.format
        if self.format and found != self.format:
            problem = f"is a dataset of format {found}, not {self.format}; open_dataset opens any format"
            raise DatasetError.at(self._store.path, problem)
        self._as_tensor = _tensor_maker(output)

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
        return self._store.targets

    @property
    def names(self) -> Names:
        """Original relative paths, looked up when asked for."""
        return Names(self._store.index)

    def __len__(self) -> int:
        return len(self._store)

    def __iter__(self) -> Iterator[Any]:
        # Without this, Python would iterate until the first IndexError, and take one from a transform for the end.
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: SupportsIndex) -> Any:  # type: ignore[override]  # batches come by list, not by slice
        try:
            wanted = operator.index(index)
        except TypeError:
            raise TypeError(f"a sample is asked for by its number, not by {type(index).__name__}") from None
        number = wanted + len(self) if wanted < 0 else wanted
        if not 0 <= number < len(self):
            raise IndexError(f"sample {wanted} of {len(self)}")
        record = self._store.index[number]
        data = self._decode(number, record)
        target = record.label
        try:
            if self.transform is not None:
                data = self.transform(data)
            if not self._store.manifest.classes:
                return data
            return data, target if self.target_transform is None else self.target_transform(target)
        except Exception as error:
            error.add_note(f"in the transform of sample {number} ({self.names[number]!r}) of {self._store.path}")
            raise

    def _decode(self, number: int, record: Record) -> Any:
        payload = self._store.payload(number, record)
        output = self.options.output
        if output == "bytes":
            return payload
        try:
            if record.type == _NPY:
                array = decode_array(payload)
                return array if output == "numpy" else self._as_tensor(array)
            picture = decode_picture(payload, record, self.options)
        except OptionError:
            raise
        # Any class may come out of a decoder; what reaches the training loop must name the sample.
        except Exception as error:
            raise self._store.corrupt(number, record, f"cannot be decoded ({type(error).__name__}: {error})") from error
        if not isinstance(picture, np.ndarray) or output != "torch":
            return picture
        planes = picture[None] if picture.ndim == 2 else picture.transpose(2, 0, 1)
        return self._as_tensor(np.ascontiguousarray(planes))

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
        return {name: value for name, value in self.__dict__.items() if name != "_as_tensor"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._as_tensor = _tensor_maker(self.options.output)


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


def _tensor_maker(output: str) -> Callable[[NDArray[Any]], Any]:
    """What turns an array into what is given out."""
    try:
        from torch import from_numpy
    except (ImportError, OSError):
        if output == "torch":
            raise ImportError('output="torch" needs torch: pip install "packer[torch]"') from None
        return _same
    return from_numpy


def _same(array: NDArray[Any]) -> NDArray[Any]:
    return array


def _require_picklable(name: str, function: object) -> None:
    """Say which argument is at fault; pickle itself says "Can't get local object" and no more."""
    try:
        pickle.dumps(function)
    except Exception as error:  # pickle raises PicklingError, AttributeError, TypeError and what a __reduce__ raises
        raise pickle.PicklingError(
            f"{name}= cannot be sent to a worker process ({error}). Define it with `def` at the top level of a module, or use "
            'multiprocessing_context="fork" where the system has it.'
        ) from error
