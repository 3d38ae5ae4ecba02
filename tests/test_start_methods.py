"""Each start method and number of workers, after reads in the parent and beside threads that read there: every byte is right.

Worker processes stay for three epochs; what they write to their stderr, such as a warning, fails the test, and in new
interpreters (spawn, forkserver) every warning is an error.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset

from packer import EpochSampler, PackedDataset, formats, open_dataset
from packer.plan import ShardLimits
from tests.cases.loaders import METHODS
from tests.inputs import npy, pack_here, write_tree

pytestmark = [
    # Python 3.12 and later warn of any fork beside threads, and threads are what is asked for here.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
    # torch counts the processors of this machine.
    pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes:UserWarning"),
]

SAMPLES = 200
LENGTH = 300
EPOCHS = 3

# (start method, number of workers); without workers there is no method. A spawned worker takes two seconds to load torch: the
# last test but one has them read all formats.
SETTINGS = [(None, 0), *((method, workers) for method in METHODS if method != "spawn" for workers in (1, 4))]


def contents(i: int) -> np.ndarray[Any, Any]:
    """The array of a sample: a function of its number, and of the place in the array."""
    return np.arange(LENGTH, dtype=np.int32) + 1000 * i


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """200 arrays in four classes; several shards where the format has any."""
    files: dict[str | bytes, bytes] = {f"{i // 50}/{i:03d}.npy": npy(contents(i)) for i in range(SAMPLES)}
    source = write_tree(tmp_path_factory.mktemp("start") / "in", files)
    limits = {name: {"limits": ShardLimits(samples=15)} if formats.get(name).has_shards else {} for name in formats.names()}
    return {name: pack_here(source, name, **limits[name]).output for name in formats.names()}


@pytest.fixture
def packed(outputs: dict[str, Path], format_name: str) -> Path:
    return outputs[format_name]


def wrong_in(values: Any, targets: Any) -> list[int]:
    """Which rows of a batch are not the samples that they say they are."""
    rows = np.asarray(values)
    numbers = rows[:, 0] // 1000
    right = (rows == np.arange(LENGTH) + 1000 * numbers[:, None]).all(1) & (np.asarray(targets) == numbers // 50)
    return [int(number) for number in numbers[~right]]


@contextlib.contextmanager
def read_by_threads(datasets: list[PackedDataset]) -> Iterator[None]:
    """Threads that read samples and batches all the while, and must have found each of them right."""
    stop, wrong, reads = threading.Event(), [], [0] * 3

    def read(seed: int) -> None:
        chosen = random.Random(seed)
        try:
            while not stop.is_set():
                data = datasets[chosen.randrange(len(datasets))]
                numbers = [chosen.randrange(SAMPLES) for _ in range(8)]
                rows, targets = data[numbers]
                if wrong_in(rows, targets) or not np.array_equal(np.asarray(rows)[:, 0] // 1000, numbers):
                    wrong.append(numbers)
                value, target = data[numbers[0]]
                if not np.array_equal(value, contents(numbers[0])) or target != numbers[0] // 50:
                    wrong.append(numbers[:1])
                reads[seed] += 1
                stop.wait(0.002)  # so that they do not hold up the loader on a small machine
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=read, args=(seed,), daemon=True) for seed in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert wrong == []
    assert min(reads) > 0


def read_three_epochs(path: Path, method: str | None, workers: int, **options: Any) -> None:
    """Read in the parent, then three epochs beside threads, then in the parent again."""
    data, mapped = open_dataset(path), open_dataset(path, mmap=True)
    for each in (data, mapped):
        assert wrong_in(*each[range(SAMPLES)]) == []
    settings: dict[str, Any] = {}
    if workers:
        settings = {"num_workers": workers, "multiprocessing_context": method, "persistent_workers": True, "timeout": 120}
    loader = DataLoader(data, **settings, **{name: make(data) for name, make in options.items()})
    with read_by_threads([data, mapped]):
        for _ in range(EPOCHS):
            seen: Counter[int] = Counter()
            for values, targets in loader:
                assert wrong_in(values, targets) == []
                seen.update((values[:, 0] // 1000).tolist())
            assert seen == Counter(range(SAMPLES))
    del loader
    assert wrong_in(*data[range(SAMPLES)]) == []


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Nothing is written to stderr, by any of the processes."""
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    yield
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("method, workers", SETTINGS)
def test_samples_are_right_with_every_start_method(packed: Path, method: str | None, workers: int) -> None:
    read_three_epochs(packed, method, workers, batch_size=lambda data: 8, sampler=EpochSampler)


@pytest.mark.parametrize("method, workers", SETTINGS)
def test_batches_are_right_with_every_start_method(packed: Path, method: str | None, workers: int) -> None:
    read_three_epochs(packed, method, workers, batch_size=lambda data: None, sampler=batches_of)


def batches_of(data: PackedDataset) -> BatchSampler:
    return BatchSampler(EpochSampler(data), 8, drop_last=False)


class Side(Dataset[Any]):
    """Datasets side by side: what is read is a dataset's number, and the number of a sample or a list of them."""

    def __init__(self, datasets: list[PackedDataset]) -> None:
        self.datasets = datasets

    def __getitem__(self, key: tuple[int, Any]) -> tuple[int, Any, Any]:
        number, indices = key
        return number, *self.datasets[number][indices]


class SamplesAndBatches:
    """Of each batch of eight, the first sample by itself and the rest as a batch; all samples of all datasets in an epoch."""

    def __init__(self, datasets: list[PackedDataset]) -> None:
        self.batches = [batches_of(data) for data in datasets]

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        for number, batches in enumerate(self.batches):
            for first, *others in batches:
                yield number, first
                yield number, others


@pytest.mark.skipif("spawn" not in METHODS, reason="no spawn here")
@pytest.mark.parametrize("workers", [1, 4])
def test_samples_and_batches_of_all_formats_are_right_in_spawned_workers(outputs: dict[str, Path], workers: int) -> None:
    datasets = [open_dataset(path) for path in outputs.values()]
    for data in datasets:
        assert wrong_in(*data[range(SAMPLES)]) == []
    settings: dict[str, Any] = {"multiprocessing_context": "spawn", "persistent_workers": True, "timeout": 120}
    loader = DataLoader(Side(datasets), None, sampler=SamplesAndBatches(datasets), num_workers=workers, **settings)
    with read_by_threads(datasets):
        for _ in range(EPOCHS):
            seen: Counter[tuple[int, int]] = Counter()
            for number, values, targets in loader:
                rows = np.asarray(values).reshape(-1, LENGTH)
                assert wrong_in(rows, np.asarray(targets).reshape(-1)) == [], list(outputs)[number]
                seen.update((number, int(row[0]) // 1000) for row in rows)
            assert seen == Counter((number, i) for number in range(len(datasets)) for i in range(SAMPLES))
    del loader
    for data in datasets:
        assert wrong_in(*data[range(SAMPLES)]) == []


def test_the_contents_of_no_two_samples_are_equal() -> None:
    """Otherwise a sample in another's place would go unseen."""
    assert len({contents(i).tobytes() for i in range(SAMPLES)}) == SAMPLES
    wrong = np.stack([contents(1), contents(2)])
    wrong[1, 7] += 1
    assert wrong_in(torch.from_numpy(wrong), torch.tensor([0, 0])) == [2]
    assert wrong_in(np.stack([contents(150)]), [0]) == [150]
