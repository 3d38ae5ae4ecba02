"""packer: a folder of loose image or ``.npy`` files becomes LMDB, HDF5 or WebDataset, and is read back in PyTorch.

    from packer import open_dataset
    data = open_dataset("images.lmdb")
    image, label = data[0]

``import packer`` loads nothing outside the standard library: every name is resolved on first use, since a checking
worker, a command line and a training script each need another part (numpy alone takes 70 ms to load, torch two seconds).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packer.checking import check_folder
    from packer.convert import ConvertSummary, convert_dataset
    from packer.datasets import HDF5Dataset, LMDBDataset, PackedDataset, WebDatasetDataset, open_dataset
    from packer.doctor.explain import explain
    from packer.doctor.explanation import Explanation
    from packer.doctor.snapshot import SystemSnapshot
    from packer.errors import (
        CorruptDatasetError,
        CorruptSampleError,
        DatasetChangedError,
        DatasetError,
        InputError,
        LaterLayoutError,
        MixedBatchError,
        OptionError,
        OutputError,
        PackerError,
        TooManySkippedError,
        TruncatedFileError,
        WorkerDiedError,
    )
    from packer.loader import Loader
    from packer.metrics import BatchMetrics
    from packer.options import InputOptions, PackOptions
    from packer.pack import pack_folder
    from packer.sampler import EpochSampler
    from packer.survival import ResilientLoader, resilient
    from packer.torchloader import WorkerLoader, make_loader
    from packer.unpack import UnpackSummary, unpack_dataset
    from packer.verify import verify_dataset

__version__ = "0.1.0"

_HOME_OF = {
    "HDF5Dataset": "datasets",
    "LMDBDataset": "datasets",
    "PackedDataset": "datasets",
    "WebDatasetDataset": "datasets",
    "open_dataset": "datasets",
    "Explanation": "doctor.explanation",
    "SystemSnapshot": "doctor.snapshot",
    "explain": "doctor.explain",
    "EpochSampler": "sampler",
    "ResilientLoader": "survival",
    "resilient": "survival",
    "InputOptions": "options",
    "PackOptions": "options",
    "check_folder": "checking",
    "ConvertSummary": "convert",
    "convert_dataset": "convert",
    "pack_folder": "pack",
    "BatchMetrics": "metrics",
    "Loader": "loader",
    "WorkerLoader": "torchloader",
    "make_loader": "torchloader",
    "UnpackSummary": "unpack",
    "unpack_dataset": "unpack",
    "verify_dataset": "verify",
    "CorruptDatasetError": "errors",
    "CorruptSampleError": "errors",
    "DatasetChangedError": "errors",
    "DatasetError": "errors",
    "InputError": "errors",
    "LaterLayoutError": "errors",
    "MixedBatchError": "errors",
    "OptionError": "errors",
    "OutputError": "errors",
    "PackerError": "errors",
    "TooManySkippedError": "errors",
    "TruncatedFileError": "errors",
    "WorkerDiedError": "errors",
}

__all__ = [
    "BatchMetrics",
    "ConvertSummary",
    "CorruptDatasetError",
    "CorruptSampleError",
    "DatasetChangedError",
    "DatasetError",
    "EpochSampler",
    "Explanation",
    "HDF5Dataset",
    "InputError",
    "InputOptions",
    "LMDBDataset",
    "LaterLayoutError",
    "Loader",
    "MixedBatchError",
    "OptionError",
    "OutputError",
    "PackOptions",
    "PackedDataset",
    "PackerError",
    "ResilientLoader",
    "SystemSnapshot",
    "TooManySkippedError",
    "TruncatedFileError",
    "UnpackSummary",
    "WebDatasetDataset",
    "WorkerDiedError",
    "WorkerLoader",
    "__version__",
    "check_folder",
    "convert_dataset",
    "explain",
    "make_loader",
    "open_dataset",
    "pack_folder",
    "resilient",
    "unpack_dataset",
    "verify_dataset",
]


def __getattr__(name: str) -> Any:
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'packer' has no attribute {name!r}")
    return getattr(importlib.import_module(f"packer.{module}"), name)


def __dir__() -> list[str]:
    return __all__
