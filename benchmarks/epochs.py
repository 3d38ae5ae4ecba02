"""Epochs of batches: timed, and proved to hold every sample once, with its data and its target.

A contender runs an epoch without a clock, of which every value is compared, and then one in another order that is timed. That
keeps the targets and one value of every sample, the same small work for every contender, and is compared afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from proof import WrongDataError
from timing import Contender
from torch.utils.data import BatchSampler, DataLoader, Dataset

from packer import Loader, PackedDataset

BATCH = 64

Epoch = Callable[[Sequence[int]], Iterator[tuple[torch.Tensor, torch.Tensor]]]
"""Gives the samples of an order, in this order, as batches of 64: data (n, ...), targets int64 (n,)."""


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The source files of a benchmark, in the order of the packed samples.

    Attributes:
        paths: absolute, as ImageFolder holds them.
        targets: the class of each.
    """

    paths: list[str]
    targets: list[int]

    @classmethod
    def of(cls, folder: Path) -> SourceFiles:
        """All files in class folders, sorted by class and name, as ImageFolder sorts them."""
        paths = sorted((path for path in folder.glob("*/*") if path.is_file()), key=lambda path: (path.parent.name, path.name))
        classes = sorted({path.parent.name for path in paths})
        return cls([str(path) for path in paths], [classes.index(path.parent.name) for path in paths])

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def size_bytes(self) -> int:
        """All files together."""
        return sum(Path(path).stat().st_size for path in self.paths)


@dataclass(frozen=True, slots=True)
class Truth:
    """What the batches must hold.

    Attributes:
        data: of all samples, shape (samples, ...).
        targets: int64, shape (samples,).
        tolerance: the mean difference of the values of one sample that is let through; 0 means equal.
    """

    data: torch.Tensor
    targets: torch.Tensor
    tolerance: float = 0.0

    def prove_batch(self, name: str, indices: Sequence[int], data: torch.Tensor, targets: torch.Tensor) -> None:
        """Compare one batch.

        Args:
            name: of the contender, for the message.
            indices: the samples that it must hold, in order.
            data: of the batch.
            targets: of the batch.

        Raises:
            WrongDataError: there is a difference.
        """
        expected = self.data[torch.tensor(indices)]
        if data.shape != expected.shape or data.dtype != expected.dtype:
            raise WrongDataError(
                f"{name}: a batch is {data.dtype} {tuple(data.shape)}, not {expected.dtype} {tuple(expected.shape)}"
            )
        if targets.dtype != torch.int64 or not torch.equal(targets, self.targets[torch.tensor(indices)]):
            raise WrongDataError(f"{name}: the targets of samples {indices[:4]} ... are {targets[:4].tolist()} ...")
        if torch.equal(data, expected):
            return
        differences = (data.float() - expected.float()).abs().flatten(1).mean(1)
        worst = float(differences.max())
        if not worst <= self.tolerance:
            index = indices[int(differences.argmax())]
            raise WrongDataError(f"{name}: sample {index} differs by {worst:.3f} on average, {self.tolerance} is let through")

    def prove_values(self, name: str, order: Sequence[int], values: Sequence[torch.Tensor]) -> None:
        """Compare one value of every sample of a timed epoch; of pictures the mean over all samples.

        Raises:
            WrongDataError: there is a difference, or there are too many or too few samples.
        """
        given = torch.cat(list(values))
        if len(given) != len(order):
            raise WrongDataError(f"{name}: {len(given)} samples in an epoch of {len(order)}")
        difference = float((given.float() - _one_value(self.data[torch.tensor(order)]).float()).abs().mean())
        if not difference <= self.tolerance:
            raise WrongDataError(f"{name}: the samples of a timed epoch differ by {difference:.3f} on average")


def timed(name: str, epoch: Epoch, truth: Truth, *, seed: int = 0) -> Contender:
    """A contender whose runs are a proved epoch and a timed one, each in another random order; names are for messages.

    Args:
        name: as the table shows it.
        epoch: gives the batches; it has been run before, so that nothing is started or compiled in the time.
        truth: what they must hold.
        seed: of the orders, the same for all contenders of one comparison.
    """
    random = np.random.default_rng(seed)
    prove_epoch(name, epoch, truth, random)
    return Contender(name, partial(_run, name, epoch, truth, random))


def _run(name: str, epoch: Epoch, truth: Truth, random: np.random.Generator) -> float:
    # First: a loop that trains finds the memory that its own last epoch let go of, not what another contender has left.
    prove_epoch(name, epoch, truth, random)
    order = random.permutation(len(truth.data)).tolist()
    targets: list[torch.Tensor] = []
    values: list[torch.Tensor] = []
    start = perf_counter()
    for data, labels in epoch(order):
        targets.append(labels)
        values.append(_one_value(data))
    seconds = perf_counter() - start
    truth.prove_values(name, order, values)
    if not torch.equal(torch.cat(targets), truth.targets[torch.tensor(order)]):
        raise WrongDataError(f"{name}: the targets of a timed epoch are wrong")
    return seconds


def prove_epoch(name: str, epoch: Epoch, truth: Truth, random: np.random.Generator) -> None:
    """Run one epoch in a random order and compare every value of it.

    Raises:
        WrongDataError: there is a difference, or a sample is missing or too many.
    """
    order = random.permutation(len(truth.data)).tolist()
    start = 0
    for data, targets in epoch(order):
        truth.prove_batch(name, order[start : start + BATCH], data, targets)
        start += len(data)
    if start != len(order):
        raise WrongDataError(f"{name}: {start} samples in an epoch of {len(order)}")


def with_threads(threads: int, epoch: Epoch) -> Epoch:
    """The same epochs with so many threads of torch in this process: copying in two is not always faster than in one."""
    return partial(_iterate_with_threads, threads, epoch)


def _iterate_with_threads(threads: int, epoch: Epoch, indices: Sequence[int]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield from epoch(indices)
    finally:
        torch.set_num_threads(before)


def _one_value(data: torch.Tensor) -> torch.Tensor:
    """The middle value of every sample's last plane, a copy: shape (n,)."""
    return data[:, -1, data.shape[2] // 2, data.shape[3] // 2].clone()


class Order:
    """A sampler whose order is set before each epoch, so that worker processes can outlive an epoch."""

    def __init__(self) -> None:
        self.indices: Sequence[int] = ()

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


def batch_epoch(data: Any, *, workers: int = 0) -> Epoch:
    """Epochs of a dataset that gives batches: a DataLoader with a ``BatchSampler`` and ``batch_size=None``."""
    order = Order()
    sampler = BatchSampler(order, BATCH, drop_last=False)
    loader = DataLoader(data, sampler=sampler, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
    return partial(_iterate, loader, order)


def loader_epoch(data: PackedDataset) -> Epoch:
    """Epochs of a packed dataset by ``packer.Loader``: in threads, without worker processes."""
    return lambda order: iter(Loader(data.subset(indices=order), BATCH))


def sample_epoch(dataset: Dataset[Any], *, workers: int = 0) -> Epoch:
    """Epochs of a dataset that gives samples: a DataLoader as everybody writes it, its samples put together by torch."""
    order = Order()
    loader = DataLoader(dataset, sampler=order, batch_size=BATCH, num_workers=workers, persistent_workers=workers > 0)
    return partial(_iterate, loader, order)


def _iterate(loader: DataLoader[Any], order: Order, indices: Sequence[int]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    order.indices = indices
    return iter(loader)
