"""The parts of ``growth.py`` that need no torch: by samples, by shards, by length of an epoch, and by ranks."""

from __future__ import annotations

import pickle
import random
import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from time import perf_counter

import numpy as np
from childmemory import private_bytes
from inprocess import in_process
from numpy.typing import NDArray
from proof import WrongDataError
from synthetic import look_up, make_dataset, prove_sample
from timing import Figure

from packer import EpochSampler, open_dataset

SAMPLES, SHARDS, EPOCHS, RANKS = "samples", "shards", "samples of an epoch", "ranks"
ORDERS = ("shuffled", "blocks", "sequential")
# Numbers after the first whose cost is measured.
FOLLOWING = 100_000
EPOCHS_A_ROUND = 5
# All numbers of all ranks together are compared with the samples for so many; no multiple of anything.
PROVED = 20_011
WHOLE_EPOCH = 1_000_000
CHILD_SECONDS = 300.0


def by_samples(work: Path, sizes: Sequence[int], *, lookups: int, repeat: int) -> Iterator[Figure]:
    """What a dataset of one shard costs, by its number of samples.

    Args:
        work: an existing folder; each dataset is made in it and removed.
        sizes: numbers of samples.
        lookups: of a round, and of a worker whose memory is looked at.
        repeat: number of rounds.

    Raises:
        WrongDataError: a look-up gave another sample than the one that was asked for.
    """
    for samples in sizes:
        yield from _dataset_costs(work / "growing", samples, 1, SAMPLES, samples, lookups, repeat)


def by_shards(work: Path, counts: Sequence[int], *, samples: int, lookups: int, repeat: int) -> Iterator[Figure]:
    """What a dataset costs by its number of shards; arguments and errors as ``by_samples``.

    Args:
        counts: numbers of shards.
        samples: of each dataset.
    """
    for shards in counts:
        yield from _dataset_costs(work / "growing", samples, shards, SHARDS, shards, lookups, repeat)


def _dataset_costs(folder: Path, samples: int, shards: int, part: str, at: int, lookups: int, repeat: int) -> Iterator[Figure]:
    print(f"making {samples:,} samples in {shards:,} shards", file=sys.stderr)
    make_dataset(folder, samples, shards)
    try:
        opening: list[float] = []
        for _ in range(repeat):
            start = perf_counter()
            data = open_dataset(folder, output="numpy")
            opening.append(1e3 * (perf_counter() - start))
        look_up(data, range(min(samples, 100)), shards)
        looking: list[float] = []
        for turn in range(repeat):
            indices = random.Random(turn).choices(range(samples), k=lookups)
            start = perf_counter()
            found = [data[index] for index in indices]
            looking.append(1e6 * (perf_counter() - start) / lookups)
            for index, sample in zip(indices, found, strict=True):
                prove_sample(data, index, sample, shards)
        pickled = pickle.dumps(data)
        arriving, memory = in_process("spawn", arrive, pickled, samples, shards, lookups, repeat, seconds=CHILD_SECONDS)
        manifest = (folder / "manifest.json").stat().st_size
    finally:
        shutil.rmtree(folder)
    yield Figure("opening", "ms", tuple(opening), part=part, at=at)
    yield Figure("arriving in a worker, with the first look-up", "ms", arriving, part=part, at=at)
    yield Figure("one look-up", "µs", tuple(looking), part=part, at=at)
    yield Figure("pickle", "kB", (len(pickled) / 1e3,), part=part, at=at)
    if part == SHARDS:
        yield Figure("manifest", "kB", (manifest / 1e3,), part=part, at=at)
    elif memory:
        yield Figure("private memory of a worker", "MB", (memory,), part=part, at=at)


def arrive(pickled: bytes, samples: int, shards: int, lookups: int, repeat: int) -> tuple[tuple[float, ...], float]:
    """What a dataset costs in a worker process that has everything loaded.

    Returns:
        Milliseconds from its pickle to the first sample, of each round; and the MB by which the private memory of the process
        has grown after another arrival and look-ups in random order, 0 where the system does not tell.
    """
    arriving: list[float] = []
    for _ in range(repeat + 1):
        before = private_bytes()
        start = perf_counter()
        data = pickle.loads(pickled)
        sample = data[samples - 1]
        arriving.append(1e3 * (perf_counter() - start))
        prove_sample(data, samples - 1, sample, shards)
        if len(arriving) == 1:
            look_up(data, random.Random(0).choices(range(samples), k=lookups), shards)
            memory = (private_bytes() - before) / 1e6
    return tuple(arriving[1:]), max(0.0, memory)


def by_epoch(sizes: Sequence[int], *, repeat: int) -> Iterator[Figure]:
    """What the first number of an epoch costs, and one after it, by the number of samples and in each order.

    Args:
        sizes: numbers of samples; nothing is made of them.
        repeat: number of rounds of five epochs, each of another seed.

    Raises:
        WrongDataError: an order had a number twice or one that is none of a sample.
    """
    for samples in sizes:
        for order in ORDERS:
            first: list[float] = []
            after: list[float] = []
            for turn in range(EPOCHS_A_ROUND * repeat + 1):
                numbers = iter(EpochSampler(range(samples), order=order, seed=turn))
                start = perf_counter()
                given = [next(numbers)]
                begun = perf_counter()
                given += islice(numbers, FOLLOWING)
                end = perf_counter()
                _prove_numbers(f"{order}, {samples:,} samples", np.array(given), samples, min(samples, FOLLOWING + 1))
                if order == "sequential" and given != list(range(len(given))):
                    raise WrongDataError(f"{order}, {samples:,} samples: the numbers do not ascend from 0")
                if turn:  # the first time, numpy is slow
                    first.append(1e3 * (begun - start))
                    after.append(1e6 * (end - begun) / max(1, len(given) - 1))
            if samples <= WHOLE_EPOCH:
                whole = np.fromiter(EpochSampler(range(samples), order=order), np.int64)
                _prove_numbers(f"{order}, {samples:,} samples", whole, samples, samples)
            yield Figure(f"first number, {order}", "ms", tuple(first), part=EPOCHS, at=samples)
            yield Figure(f"a later number, {order}", "µs", tuple(after), part=EPOCHS, at=samples)


def by_ranks(counts: Sequence[int], *, samples: int, repeat: int) -> Iterator[Figure]:
    """What a number costs in an epoch of one rank, from the first to the last; the middle rank is measured.

    Args:
        counts: numbers of ranks.
        samples: of the epoch, over all ranks.
        repeat: number of rounds.

    Raises:
        WrongDataError: all ranks together did not give each sample once, or the one that was timed gave a number twice.
    """
    for order in ("shuffled", "blocks"):
        for ranks in counts:
            parts = [EpochSampler(range(PROVED), order=order, rank=r, world_size=ranks, even=False) for r in range(ranks)]
            together = np.array([number for part in parts for number in part])
            _prove_numbers(f"{order}, {ranks:,} ranks together", together, PROVED, PROVED)
            each: list[float] = []
            for turn in range(repeat):
                sampler = EpochSampler(range(samples), order=order, seed=turn, rank=ranks // 2, world_size=ranks)
                start = perf_counter()
                given = np.fromiter(sampler, np.int64, len(sampler))
                each.append(1e6 * (perf_counter() - start) / len(sampler))
                _prove_numbers(f"{order}, one of {ranks:,} ranks", given, samples, -(-samples // ranks))
            yield Figure(f"a number of a rank's epoch, {order}", "µs", tuple(each), part=RANKS, at=ranks)


def _prove_numbers(name: str, numbers: NDArray[np.int64], samples: int, count: int) -> None:
    """Look whether there are so many numbers of samples, none of them twice.

    Raises:
        WrongDataError: there are not.
    """
    if len(numbers) != count or len(np.unique(numbers)) != count or numbers.min() < 0 or numbers.max() >= samples:
        raise WrongDataError(f"{name}: {len(numbers):,} numbers are not {count:,} different ones below {samples:,}")
