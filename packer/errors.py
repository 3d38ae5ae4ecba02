"""Every error that packer raises on purpose, and the exit status each one gives the command line.

    PackerError                      1
    ├── OptionError (ValueError)     2   an option that does not exist or does not fit
    ├── InputError (ValueError)      1   the input folder is missing, empty, or laid out in two ways at once
    ├── OutputError (OSError)        1   the output cannot be written: it exists, no space, no permission
    ├── TooManySkippedError          3   more files were skipped than allowed; nothing was written
    ├── WorkerDiedError (RuntimeError) 1 a worker process of a loader died
    ├── MixedBatchError (ValueError) 1   samples of a batch differ in shape or dtype
    └── DatasetError (ValueError)    1   a packed dataset cannot be trusted
        ├── CorruptDatasetError          manifest, index or names are damaged or contradict each other
        │   ├── LaterLayoutError         a layout that this version does not know
        │   └── TruncatedFileError       a file is shorter (or longer) than the manifest says
        ├── DatasetChangedError          a file or the folder was replaced while the dataset was open
        └── CorruptSampleError           the bytes of one sample are not those that were packed

An interrupt ends the command line with status 130, a termination with 143 (see ``packer.cli``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self

__all__ = [
    "CorruptDatasetError",
    "CorruptSampleError",
    "DatasetChangedError",
    "DatasetError",
    "InputError",
    "LaterLayoutError",
    "MixedBatchError",
    "OptionError",
    "OutputError",
    "PackerError",
    "TooManySkippedError",
    "TruncatedFileError",
    "WorkerDiedError",
]


class PackerError(Exception):
    """Base of all errors raised on purpose; ``exit_status`` is the command line's exit status."""

    exit_status: ClassVar[int] = 1

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception raised in a DataLoader worker travels to the main process pickled. The default way calls
        # the class with `args` alone, which fails for every class whose fields are required.
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(kind: type[PackerError], args: tuple[Any, ...], fields: dict[str, Any]) -> PackerError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


class OptionError(PackerError, ValueError):
    """An option that does not exist, or that does not fit the others."""

    exit_status = 2


class InputError(PackerError, ValueError):
    """The input folder cannot be packed as it is; nothing was written."""


class OutputError(PackerError, OSError):
    """The output cannot be written; nothing stands under its final name."""

    def __str__(self) -> str:
        # OSError prints two arguments as "[Errno ...]"; there is only ever one here, the whole message.
        return str(self.args[0]) if self.args else ""


class TooManySkippedError(PackerError):
    """More files were skipped than ``max_skipped`` allows; nothing stands under the output's final name."""

    exit_status = 3


class WorkerDiedError(PackerError, RuntimeError):
    """A worker process of a loader died; in ``resilient``, more often than is to be put up with."""


class MixedBatchError(PackerError, ValueError):
    """Samples that were asked for as one batch differ in shape or dtype."""

    @classmethod
    def between(cls, one: str, its_kind: str, other: str, other_kind: str) -> Self:
        """The error about two samples, by their names."""
        return cls(
            f"{one!r} is {its_kind}, but {other!r} is {other_kind}: they cannot be one batch. size=(height, width) resizes "
            "pictures; a transform can give all samples one shape; or read them one by one, data[i]."
        )


class DatasetError(PackerError, ValueError):
    """A packed dataset cannot be opened or trusted.

    Made by ``at``; the class itself takes a finished message, since that is how torch's DataLoader makes the error of a
    worker again in the main process (the attributes then have their defaults).

    Attributes:
        path: the file or folder at fault.
        problem: what was found there, and what was expected.
    """

    advice: ClassVar[str] = ""
    path: Path = Path()
    problem: str = ""

    @classmethod
    def at(cls, path: Path, problem: str) -> Self:
        """The error about a file or folder."""
        error = cls(f"{path}: {problem}.{cls.advice}")
        error.path, error.problem = path, problem
        return error


class CorruptDatasetError(DatasetError):
    """The manifest, the index or the names are damaged, or contradict each other."""

    advice = " Copy the dataset again, or pack again."


class LaterLayoutError(CorruptDatasetError):
    """The dataset has a layout that this version of packer does not know."""

    advice = " Install that one, or pack again with this one."


class DatasetChangedError(DatasetError):
    """A file of the dataset, or its folder, was replaced after the dataset was opened."""

    advice = " Open it again."


class TruncatedFileError(CorruptDatasetError):
    """A file of the dataset has another size than the manifest says.

    Attributes:
        found: its size in bytes.
        expected: the size in bytes that the manifest gives.
    """

    advice = " The copy was probably interrupted: copy the file again, or pack again."
    found: int = 0
    expected: int = 0

    @classmethod
    def sized(cls, path: Path, found: int, expected: int) -> Self:
        """The error about a file by its sizes."""
        difference = f"{expected - found:,} bytes missing" if found < expected else f"{found - expected:,} bytes too many"
        error = cls.at(path, f"{found:,} bytes found, {expected:,} expected by the manifest ({difference})")
        error.found, error.expected = found, expected
        return error


class CorruptSampleError(DatasetError):
    """The stored bytes of one sample are not those that were packed, or cannot be decoded.

    Attributes:
        path: the shard.
        index: number of the sample.
        name: original relative path of the sample, bytes that are no UTF-8 as surrogates (``os.fsencode`` restores them).
        offset_bytes: where the sample begins in the shard.
    """

    index: int = -1
    name: str = ""
    offset_bytes: int = 0

    @classmethod
    def of(cls, index: int, name: str, path: Path, offset_bytes: int, problem: str) -> Self:
        """The error about a sample."""
        error = cls(
            f"sample {index} ({name!r}) in {path} at byte {offset_bytes:,}: {problem}. "
            "Run `pack verify` to see what else is damaged; copy the dataset again, or pack again."
        )
        error.index, error.name, error.path, error.offset_bytes, error.problem = index, name, path, offset_bytes, problem
        return error
