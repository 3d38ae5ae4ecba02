"""The part of ``growth.py`` that starts worker processes of torch's DataLoader."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from childmemory import private_bytes
from proof import WrongDataError
from synthetic import look_up, make_dataset
from timing import Figure
from torch.utils.data import DataLoader, Dataset

from packer import open_dataset

WORKERS = "workers"
METHODS = ("fork", "spawn")


class Probe(Dataset[tuple[int, int]]):
    """A dataset of which each sample tells the process that has looked it up, and that process' private memory in bytes."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[int, int]:
        look_up(self.data, [index])
        return os.getpid(), private_bytes()


def by_workers(work: Path, counts: Sequence[int], *, samples: int, repeat: int) -> Iterator[Figure]:
    """How long a DataLoader takes until each of its workers has given a sample, and how much memory a worker has then.

    Args:
        work: an existing folder; the dataset is made in it and removed.
        counts: numbers of worker processes; 0 reads in this process.
        samples: of the dataset.
        repeat: number of rounds.

    Raises:
        WrongDataError: a look-up gave another sample, or a worker gave none.
    """
    folder = work / "growing"
    make_dataset(folder, samples)
    try:
        probe = Probe(open_dataset(folder, output="numpy"))
        start_up(probe, 0, None)
        for method in (name for name in METHODS if name in multiprocessing.get_all_start_methods()):
            for workers in counts:
                runs = [start_up(probe, workers, method) for _ in range(repeat)]
                print(f"  {workers} workers, {method}: {runs[-1][0]:.3f} s", file=sys.stderr)
                yield Figure(f"start, {method}", "ms", tuple(1e3 * seconds for seconds, _ in runs), part=WORKERS, at=workers)
                memory = tuple(found / 1e6 for _, found in runs)
                if workers and all(memory):
                    yield Figure(f"private memory of a worker, {method}", "MB", memory, part=WORKERS, at=workers)
    finally:
        shutil.rmtree(folder)


def start_up(probe: Probe, workers: int, method: str | None) -> tuple[float, float]:
    """Seconds until each worker has given its first sample, and the median of their private memory in bytes.

    Raises:
        WrongDataError: one of them gave none.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that these are more workers than CPUs
        start = perf_counter()
        loader = DataLoader(
            probe,
            batch_size=None,
            sampler=range(max(1, workers)),
            num_workers=workers,
            multiprocessing_context=method if workers else None,
        )
        running = iter(loader)
        given = [next(running) for _ in range(max(1, workers))]
        seconds = perf_counter() - start
        del running  # ends the workers
    processes = {int(process) for process, _ in given}
    if len(processes) != max(1, workers):
        raise WrongDataError(f"{len(processes)} of {workers} workers gave a sample")
    return seconds, median(int(memory) for _, memory in given)
