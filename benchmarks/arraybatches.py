"""Shuffled batches of 64 float32 arrays (3, 224, 224) in one process: what torch's DataLoader gives from a packed dataset, and
``packer.Loader`` with a thread for each CPU.

Against

* the in-memory gather: everything in one array, and each batch gathered into the same buffer, in a plain loop and in one
  thread, as the packed samples are read (``numpy.take``; ``torch.index_select`` takes longer). With all threads, too.
* ``np.load`` for each file, and the rows of the HDF5 file through h5py, both in a DataLoader with ``batch_size=64``; torch
  puts the samples together in one thread or in one for each CPU, whichever is faster.
* FFCV, its own threads beside the process: the faster of one thread and one for each CPU.

``preadv and digest alone`` and ``mapped copy alone`` are what the machine allows: known ranges, and no reader.

All are warm. Nothing reads in worker processes: shared memory is fresh pages for every batch.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from data import ARRAY_SHAPE, make_arrays
from epochs import BATCH, SourceFiles, Truth, batch_epoch, loader_epoch, sample_epoch, timed, with_threads
from ffcv_side import start_ffcv
from machine import count_cpus
from numpy.typing import NDArray
from ranges import KnownRanges
from timing import Contender, Measure, Pair, Result, compare_pairs, settings_of
from torch.utils.data import Dataset
from xxhash import xxh3_64_intdigest

from packer import PackOptions, open_dataset, pack_folder

GATHER_BUDGET = 0.65
MAPPED_GATHER_BUDGET = 0.85
FFCV_BUDGET = 1.3
LOAD_BUDGET = 6.0
MAPPED: dict[str, Any] = {"mmap": True, "verify": False}


class NpyFiles(Dataset[tuple[torch.Tensor, int]]):
    """``.npy`` files as everybody reads them."""

    def __init__(self, files: SourceFiles) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(np.load(self.files.paths[index])), self.files.targets[index]


class H5pyRows(Dataset[tuple[torch.Tensor, int]]):
    """The rows of one HDF5 dataset (n, ...) as everybody reads them."""

    def __init__(self, path: Path, targets: list[int]) -> None:
        self.rows = h5py.File(path)["data"]
        self.targets = targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self.rows[index]), self.targets[index]


def compare_arrays(
    work: Path, *, count: int, repeat: int, formats: Sequence[str], ffcv_python: Path | None
) -> tuple[list[Result], dict[str, object]]:
    """Make the arrays, pack them into each format, and time epochs of shuffled batches.

    Args:
        work: an existing folder; what is made in it stays.
        count: number of arrays, 602 kB each.
        repeat: number of rounds.
        formats: those to pack into.
        ffcv_python: the interpreter of an environment with FFCV; None leaves FFCV out.

    Returns:
        The results, and the versions of FFCV's environment.

    Raises:
        WrongDataError: an epoch lacked a sample, or had another value or target than the source files.
    """
    folder = work / "arrays"
    make_arrays(folder, count)
    files = SourceFiles.of(folder)
    data = np.empty((count, *ARRAY_SHAPE), np.float32)
    for row, path in zip(data, files.paths, strict=True):
        row[...] = np.load(path)
    truth = Truth(torch.from_numpy(data), torch.tensor(files.targets))
    buffer = torch.zeros((BATCH, *ARRAY_SHAPE))
    gather, parallel, load, rows = "in-memory gather", "in-memory gather, all threads", "np.load a file", "h5py a row"
    contenders = [
        timed(gather, partial(take, truth, buffer), truth),
        timed(parallel, partial(index_select, truth, buffer), truth),
        *_in_one_or_all_threads(load, NpyFiles(files), truth),
    ]
    others = [Pair(parallel, gather), Pair(load, gather)]
    settings: dict[str, object] = {}
    pairs: list[Pair] = []
    with ExitStack() as stack:
        if ffcv_python:
            ffcv, versions = stack.enter_context(
                start_ffcv(ffcv_python, "arrays", files, work, threads=sorted({1, count_cpus()}), tolerance=0.0)
            )
            settings["ffcv"] = versions
            contenders += ffcv
            others.append(Pair("FFCV", gather))
        for format_name in formats:
            output = work / f"arrays.{format_name}"
            pack_folder(folder, PackOptions(format=format_name, output=output, check="none"))
            if format_name == "hdf5":
                dataset = H5pyRows(output / "data.h5", files.targets)
                contenders += _in_one_or_all_threads(rows, dataset, truth)
                others.append(Pair(rows, gather))
            if not pairs:
                known, two = KnownRanges(output), [np.zeros((BATCH, *ARRAY_SHAPE), np.float32) for _ in range(2)]
                contenders += [
                    timed(name, partial(read_rows, known, in_map, truth.targets, two), truth)
                    for name, in_map in (("preadv and digest alone", False), ("mapped copy alone", True))
                ]
                others += [Pair("preadv and digest alone", gather), Pair("mapped copy alone", gather)]
            plain, mapped = f"batches, {format_name}", f"batches, {format_name}, mmap, unverified"
            threads = f"packer.Loader, {format_name}"
            contenders += [
                timed(plain, batch_epoch(open_dataset(output)), truth),
                timed(mapped, batch_epoch(open_dataset(output, **MAPPED)), truth),
                timed(threads, loader_epoch(open_dataset(output)), truth),
            ]
            pairs += [Pair(plain, gather, GATHER_BUDGET), Pair(mapped, gather, MAPPED_GATHER_BUDGET)]
            pairs += [Pair(name, load, LOAD_BUDGET) for name in (plain, threads)]
            others.append(Pair(threads, gather))
            if ffcv_python:
                pairs += [Pair(name, "FFCV", FFCV_BUDGET) for name in (plain, threads)]
        results = compare_pairs(contenders, [*pairs, *others], measure=Measure.RATE, files=count, repeat=repeat)
    return results, settings


def read_rows(
    known: KnownRanges, mapped: bool, targets: torch.Tensor, buffers: list[NDArray[np.float32]], order: Sequence[int]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """What a reader that costs nothing would take: known rows, copied from the map or read and digested, into two buffers."""
    row_bytes = math.prod(ARRAY_SHAPE) * 4
    for start in range(0, len(order), BATCH):
        numbers = order[start : start + BATCH]
        buffers.reverse()
        rows = buffers[0].reshape(-1).view(np.uint8).data
        for row, number in enumerate(numbers):
            shard, offset, size = known.ranges[number]
            offset += size - row_bytes  # behind the header, where it is in the container
            into = rows[row * row_bytes : (row + 1) * row_bytes]
            if mapped:
                into[:] = known.maps[shard][offset : offset + row_bytes]
            else:
                os.preadv(known.descriptors[shard], [into], offset)
                xxh3_64_intdigest(into)
        yield torch.from_numpy(buffers[0][: len(numbers)]), targets[torch.tensor(numbers)]


def _in_one_or_all_threads(name: str, dataset: Dataset[Any], truth: Truth) -> list[Contender]:
    epoch = sample_epoch(dataset)
    ways = [timed(f"{name}, {n} threads", with_threads(n, epoch), truth) for n in sorted({1, count_cpus()})]
    return settings_of(name, ways)


def take(truth: Truth, buffer: torch.Tensor, order: Sequence[int]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Gather by numpy, in one thread."""
    source, reused = truth.data.numpy(), buffer.numpy()
    for start in range(0, len(order), BATCH):
        indices = np.array(order[start : start + BATCH])
        batch = reused[: len(indices)]
        np.take(source, indices, axis=0, out=batch, mode="clip")  # "raise" gathers into a copy first
        yield torch.from_numpy(batch), truth.targets[torch.from_numpy(indices)]


def index_select(truth: Truth, buffer: torch.Tensor, order: Sequence[int]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Gather by torch, in as many threads as it takes."""
    for start in range(0, len(order), BATCH):
        indices = torch.tensor(order[start : start + BATCH])
        batch = buffer[: len(indices)]
        torch.index_select(truth.data, 0, indices, out=batch)
        yield batch, truth.targets[indices]
