"""A batch that is held keeps its content, whoever holds it and however many further batches are made."""

from __future__ import annotations

import gc
import multiprocessing
import os
import queue
import random
import subprocess
import sys
import textwrap
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, Dataset, RandomSampler, Subset

from packer import formats, open_dataset
from packer.datasets import PackedDataset
from tests.inputs import in_six_threads, npy, pack_here, png, write_tree

# Python 3.12 and later warn of any fork beside threads; torch itself has some.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")

SAMPLES = 48
METHODS = [method for method in ("fork", "forkserver") if method in multiprocessing.get_all_start_methods()]
PARTS: dict[str, Callable[[Any], Any]] = {
    "the batch": lambda batch: batch,
    "a slice": lambda batch: batch[2:],
    "a row": lambda batch: batch[-1],
    "reshaped": lambda batch: batch.reshape(len(batch), -1)[1:],
    "list(batch)": list,
    "the other library": lambda batch: batch.numpy()[1:] if isinstance(batch, torch.Tensor) else torch.from_numpy(batch)[1:],
    "DLPack": lambda batch: torch.from_dlpack(batch)[:2],
}

if "forkserver" in METHODS:
    # Loaded once in the server and not in each worker, which takes seconds.
    multiprocessing.set_forkserver_preload(["torch", "packer.datasets", "tests.test_held_batches"])


def array(number: int) -> np.ndarray:
    """Every sample is full of its number."""
    return np.full((5, 6), number, np.float32)


def columns(number: int) -> np.ndarray:
    return np.asfortranarray(array(number))


def picture(number: int) -> bytes:
    return png(Image.new("RGB", (6 + number % 3, 5), (number, number, number)))


INPUTS: dict[str, tuple[str, Callable[[int], bytes], dict[str, Any]]] = {
    "arrays": ("npy", lambda number: npy(array(number)), {}),
    "mapped arrays": ("npy", lambda number: npy(array(number)), {"mmap": True}),
    "arrays by columns": ("npy", lambda number: npy(columns(number)), {}),
    "pictures": ("png", picture, {"size": (5, 6)}),
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """Arrays and pictures in every format."""
    root = tmp_path_factory.mktemp("held")
    outputs = {}
    for kind in ("arrays", "arrays by columns", "pictures"):
        ending, encode, _ = INPUTS[kind]
        files = {f"{'ab'[i // 24]}/{i:02d}.{ending}": encode(i) for i in range(SAMPLES)}
        source = write_tree(root / kind, files)
        for name in formats.names():
            outputs[name, kind] = pack_here(source, name, output=root / f"{kind}.{name}").output
    outputs |= {(name, "mapped arrays"): outputs[name, "arrays"] for name in formats.names()}
    return outputs


def open_kind(paths: dict[tuple[str, str], Path], format_name: str, kind: str, output: str = "torch") -> PackedDataset:
    return open_dataset(paths[format_name, kind], output=output, **INPUTS[kind][2])


@pytest.fixture
def data(paths: dict[tuple[str, str], Path], format_name: str) -> PackedDataset:
    return open_kind(paths, format_name, "arrays")


@pytest.fixture
def arrays(paths: dict[tuple[str, str], Path], format_name: str) -> PackedDataset:
    """As numpy arrays, whose slices do not refer to the array that they are of: the ones that a wrong pool overwrites."""
    return open_kind(paths, format_name, "arrays", "numpy")


def values(held: Any) -> list[int]:
    """The number that each row held is full of; -1 for a row that is not."""
    if isinstance(held, list):
        return [number for row in held for number in values(row)]
    rows = np.asarray(held)
    rows = rows.reshape(1, -1) if rows.ndim == 2 and rows.shape == (5, 6) else rows.reshape(len(rows), -1)
    return [int(row[0]) if (row == row[0]).all() else -1 for row in rows]


class Held:
    """Parts of batches, each with what it must still be."""

    def __init__(self) -> None:
        self.parts: list[tuple[str, Any, list[int]]] = []

    def add(self, way: str, batch: Any) -> None:
        part = PARTS[way](batch)
        self.parts.append((way, part, values(part)))

    def require_unchanged(self) -> None:
        assert self.parts
        for way, part, numbers in self.parts:
            assert -1 not in numbers
            assert values(part) == numbers, way


def batches_of(data: Dataset[Any], batch_size: int = 5, **options: Any) -> Iterator[Any]:
    """Shuffled batches, made at once, as the README shows it."""
    if options.get("num_workers"):
        options = {"timeout": 120, **options}
    return iter(
        DataLoader(data, sampler=BatchSampler(RandomSampler(data), batch_size, False), batch_size=None, **options)  # type: ignore
    )


@pytest.mark.parametrize("output", ["torch", "numpy"])
@pytest.mark.parametrize("kind", INPUTS)
def test_parts_of_batches_stay_as_they_were(
    paths: dict[tuple[str, str], Path], format_name: str, kind: str, output: str
) -> None:
    data = open_kind(paths, format_name, kind, output)
    chosen = random.Random(1)
    held = Held()
    for _ in range(6):
        for indices in BatchSampler(RandomSampler(data), 5, False):
            batch, _ = data[indices]
            if chosen.random() < 0.3:
                held.add(chosen.choice([*PARTS]), batch)
            if len(held.parts) > 8:
                del held.parts[chosen.randrange(8)]
        held.require_unchanged()


def test_batches_of_subsets_views_and_several_datasets_stay_as_they_were(arrays: PackedDataset) -> None:
    train, test = arrays.split(0.5, 0.5)
    held = Held()
    for _ in range(4):
        for source in (train, test, Subset(arrays, range(10, 30)), Subset(train, range(12)), arrays):
            for way, indices in zip(PARTS, BatchSampler(RandomSampler(source), 5, False), strict=False):
                held.add(way, source[indices][0])
        for batch, _ in DataLoader(ConcatDataset([train, arrays]), batch_size=4):
            held.add("a slice", batch)
    held.require_unchanged()


def test_batches_that_come_out_of_a_loader_stay_as_they_were(data: PackedDataset) -> None:
    held = Held()
    for _ in range(4):
        for source in (data, *data.split(0.5, 0.5), Subset(data, range(10, 30))):
            for way, (batch, _) in zip(PARTS, batches_of(source), strict=False):
                held.add(way, batch)
    held.require_unchanged()


def test_a_graph_that_is_held_gives_the_gradients_of_its_own_batch(data: PackedDataset) -> None:
    weights = torch.ones(5, 6, requires_grad=True)
    graphs = []
    for batch, _ in batches_of(data):
        graphs.append((values(batch), (batch * weights).sum()))
        del batch
        for _ in range(5):
            data[[0, 1, 2, 3, 4]]
    for numbers, loss in graphs:
        (gradient,) = torch.autograd.grad(loss, weights)
        assert (gradient == sum(numbers)).all()


def test_a_thread_that_holds_batches_as_a_pinning_thread_does_gets_them_whole(arrays: PackedDataset) -> None:
    """torch's own needs a GPU: it takes a batch from a queue, copies it, and lets it go while the loader goes on."""
    waiting: queue.Queue[Any] = queue.Queue(3)
    copied: list[tuple[list[int], list[int]]] = []

    def copy_each() -> None:
        while (item := waiting.get()) is not None:
            indices, batch = item
            copied.append((indices, values(torch.from_numpy(batch).clone())))
            del item, batch

    thread = threading.Thread(target=copy_each)
    thread.start()
    chosen = random.Random(2)
    for _ in range(300):
        indices = chosen.sample(range(SAMPLES), 5)
        waiting.put((indices[1:], arrays[indices][0][1:]))
    waiting.put(None)
    thread.join()
    assert len(copied) == 300
    assert all(found == indices for indices, found in copied)


# Sending a tensor moves it to shared memory and frees what it was in, also where an array or another tensor over that memory
# refers to the tensor: so says torch 2.13 of its own tensors, too. What holds the tensor's storage moves along.
LEFT_OUT = ("the other library", "DLPack")


class Keeping(Dataset[Any]):
    """Keeps parts of its batches in the worker, and counts those that have changed since."""

    def __init__(self, data: PackedDataset) -> None:
        self.data = data
        self.held = Held()
        self.changed = 0

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, indices: Any) -> Any:
        batch, targets = self.data[indices]
        self.changed += sum(values(part) != numbers for _, part, numbers in self.held.parts)
        ways = [way for way in PARTS if isinstance(batch, np.ndarray) or way not in LEFT_OUT]
        self.held.add(ways[len(self.held.parts) % len(ways)], batch)
        return batch, torch.tensor(indices), len(self.held.parts), self.changed, targets


@pytest.mark.parametrize("method, workers", [*zip(METHODS, (2, 1), strict=False)])
@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_batches_from_workers_stay_as_they_were_on_both_sides(
    paths: dict[tuple[str, str], Path], format_name: str, output: str, method: str, workers: int
) -> None:
    data = open_kind(paths, format_name, "arrays", output)
    before = [(i, data[[i, i + 1]][0]) for i in range(0, 20, 2)]
    came: list[tuple[list[int], torch.Tensor]] = []
    kept = 0
    options: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": method, "persistent_workers": True}
    keeping = Keeping(data)
    loader = DataLoader(
        keeping, sampler=BatchSampler(RandomSampler(keeping), 5, False), batch_size=None, timeout=120, **options
    )
    for _ in range(3):
        for batch, indices, held, changed, _ in loader:
            came.append((indices.tolist(), batch))
            kept = max(kept, held)
            assert changed == 0
    del loader
    assert kept >= 10
    assert len(came) == 30
    for numbers, batch in came:
        assert values(batch) == numbers
    assert all(values(batch) == [i, i + 1] for i, batch in before)


@pytest.mark.skipif("fork" not in METHODS, reason="no fork here")
def test_a_batch_held_over_a_fork_stays_as_it_was_in_both_processes(arrays: PackedDataset) -> None:
    held = Held()
    for number, way in enumerate(PARTS):
        held.add(way, arrays[[number] * 5][0])
    arrays[[9, 9, 9, 9, 9]]  # free, in both
    child = os.fork()
    try:
        for _ in range(20):
            held.add("a slice", arrays[[7 if child else 8] * 5][0])
        held.require_unchanged()
        right = True
    except BaseException:
        right = False
    if not child:
        os._exit(0 if right else 1)
    assert right
    assert os.waitpid(child, 0)[1] == 0


def test_threads_that_make_batches_at_once_each_get_their_own(arrays: PackedDataset) -> None:
    wrong: list[object] = []

    def work(seed: int) -> None:
        chosen = random.Random(seed)
        held: list[tuple[list[int], Any]] = []
        try:
            for _ in range(150):
                indices = [chosen.randrange(SAMPLES) for _ in range(5)]
                held.append((indices, arrays[indices][0][1:]))
                if len(held) > 3:
                    expected, part = held.pop(0)
                    if values(part) != expected[1:]:
                        wrong.append(expected)
        except BaseException as error:
            wrong.append(error)

    in_six_threads(work)
    assert wrong == []


def test_batches_outlive_their_dataset(paths: dict[tuple[str, str], Path], format_name: str) -> None:
    data = open_kind(paths, format_name, "mapped arrays", "numpy")
    held = Held()
    for i in range(10):
        held.add("a slice", data[[i, i + 1, i + 2, i + 3]][0])
    del data
    gc.collect()
    other = open_kind(paths, format_name, "mapped arrays", "numpy")
    for _ in range(10):
        other[[0, 0, 0, 0]]
    held.require_unchanged()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Eight arrays of a quarter of a megabyte, in every format."""
    source = write_tree(
        tmp_path_factory.mktemp("large") / "in", {f"{i}.npy": npy(np.full((256, 256), i, np.float32)) for i in range(8)}
    )
    return {name: pack_here(source, name).output for name in formats.names()}


@pytest.mark.parametrize("mmap", [False, True])
def test_the_memory_of_two_hundred_batches_is_that_of_three(large: dict[str, Path], format_name: str, mmap: bool) -> None:
    data = open_dataset(large[format_name], output="torch", mmap=mmap)
    data[[0]]
    tracemalloc.start()
    try:
        for _ in range(200):
            batch = data[[0, 1, 2, 3]]
        assert values(batch) == [0, 1, 2, 3]
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 3 * (1 << 20) + (1 << 18)


def test_the_end_of_a_process_with_batches_held_is_silent(paths: dict[tuple[str, str], Path], format_name: str) -> None:
    script = """
        import sys
        from torch.utils.data import BatchSampler, DataLoader, SequentialSampler
        from packer import open_dataset

        data = open_dataset(sys.argv[1], output="torch")
        batch, targets = data[[1, 2, 3]]
        held = [batch[1:], batch.numpy()[0], list(data[[4, 5]][0]), iter(data[[6, 7]][0])]
        cycle = [data[[8, 9]]]
        cycle.append(cycle)
        sampler = BatchSampler(SequentialSampler(data), 5, False)
        coming = iter(DataLoader(data, sampler=sampler, batch_size=None, num_workers=1, multiprocessing_context="fork"))
        held.append(next(coming))
    """
    command = [sys.executable, "-W", "error", "-W", "ignore:.*multi-threaded:DeprecationWarning", "-c", textwrap.dedent(script)]
    result = subprocess.run(
        [*command, str(paths[format_name, "arrays"])], capture_output=True, text=True, timeout=120, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
