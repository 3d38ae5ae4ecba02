"""What the tests of the loaders share: datasets and transforms that a worker finds by their names, and kinds of loaders."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from packer import Loader, make_loader
from tests.inputs import jpeg, npy, photo, write_tree

__all__ = ["Foreign", "array_tree", "brightness_and_draws", "fails_at", "made", "picture_tree", "plain", "slowly"]


def picture_tree(folder: Path, count: int) -> Path:
    """So many JPEG files of two classes, all of 24 x 16 pixels."""
    named = {f"{'ab'[i % 2]}/{i:04d}.jpg": jpeg(photo(24, 16, seed=i)) for i in range(count)}
    return write_tree(folder, dict(named))


def array_tree(folder: Path, count: int, length: int = 3) -> Path:
    """So many int32 arrays without labels, each full of its number."""
    return write_tree(folder, {f"{i:04d}.npy": npy(np.full(length, i, np.int32)) for i in range(count)})


def brightness_and_draws(picture: Any) -> torch.Tensor:
    """Which picture it is, and a number from each of the global generators."""
    return torch.tensor(
        [float(picture.double().mean()), random.random(), np.random.rand(), float(torch.rand((), dtype=torch.float64))],
        dtype=torch.float64,
    )


class Foreign:
    """A map-style dataset that knows nothing of packer: a number, and one from each of the global generators."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[int, torch.Tensor]:
        return number, brightness_and_draws(torch.tensor([number]))


class fails_at:  # noqa: N801 - used as a function
    """A transform that raises for some arrays of ``array_tree``, by their number, and counts from -1 where for all."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def __call__(self, value: Any) -> Any:
        if not self.numbers or int(np.asarray(value).flat[0]) in self.numbers:
            raise ValueError("not this one")
        return value


class slowly:  # noqa: N801 - used as a function
    """A transform, and a dataset, whose samples take so many seconds each."""

    def __init__(self, seconds: float, count: int = 0) -> None:
        self.seconds = seconds
        self.count = count

    def __call__(self, value: Any) -> Any:
        time.sleep(self.seconds)
        return value

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> int:
        return int(self(number))


def made(kind: str, data: Any, batch_size: int = 4, **options: Any) -> Any:
    """A loader: ``"3 threads"``, ``"0 workers"``, ``"2 workers"`` (forked), ``"1 spawn"`` ...; it has a timeout."""
    count, what = kind.split()
    if what in ("thread", "threads"):
        return Loader(data, batch_size, threads=int(count), **options)
    if count == "0":
        return make_loader(data, batch_size, num_workers=0, **options)
    method = "fork" if what in ("worker", "workers") else what
    chosen = {"multiprocessing_context": method, "timeout": 60, **options}
    return make_loader(data, batch_size, num_workers=int(count), **chosen)


def plain(batch: Any) -> Any:
    """A batch as lists and numbers, which can be compared."""
    if isinstance(batch, (list, tuple)):
        return [plain(part) for part in batch]
    return batch.tolist() if isinstance(batch, (torch.Tensor, np.ndarray)) else batch
