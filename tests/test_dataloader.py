"""No setting of torch's DataLoader breaks a reader: start methods, workers, threads, epochs, subsets, damage."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split

from packer import formats, open_dataset
from packer.errors import CorruptSampleError
from packer.index import Index
from packer.manifest import load_manifest
from packer.plan import ShardLimits
from tests.cases.loaders import METHODS, failure_of
from tests.inputs import jpeg, npy, pack_here, write_tree

# Python 3.12 and later warn of any fork beside threads; torch itself has some.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")

SAMPLES = 40


def payload(number: int) -> bytes:
    """The contents of a file are a function of its number, and no two are equal."""
    return npy(np.arange(number, number + 200 + number, dtype=np.int32)) if number % 4 else jpeg(seed=number)


@dataclass(frozen=True)
class Packed:
    """A packed dataset and what must come out of it."""

    format: str
    path: Path
    samples: list[tuple[bytes, int]]

    @property
    def counts(self) -> Counter[tuple[bytes, int]]:
        return Counter(self.samples)


def limits_for(format: str, samples: int) -> dict[str, Any]:
    """Several shards where the format has any."""
    return {"limits": ShardLimits(samples=samples)} if formats.get(format).has_shards else {}


@pytest.fixture(scope="module", params=formats.names())
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """Forty files of two kinds in two classes."""
    named = {f"{'ab'[i % 2]}/{i:03d}.{'npy' if i % 4 else 'jpg'}": payload(i) for i in range(SAMPLES)}
    root = tmp_path_factory.mktemp(request.param)
    output = pack_here(write_tree(root / "in", named), request.param, **limits_for(request.param, 7)).output
    samples = [(named[name], "ab".index(name[0])) for name in sorted(named)]
    return Packed(request.param, output, samples)


def epoch(loader: DataLoader[Any]) -> list[tuple[bytes, int]]:
    """All samples of one epoch, in the order in which they came."""
    return [sample for batch in loader for sample in batch]


def loader_for(data: Any, **options: Any) -> DataLoader[Any]:
    """Shuffled batches of raw samples; a timeout, so that a hang is an error."""
    workers = options.get("num_workers", 0)
    timeout = {"timeout": 120} if workers else {}
    defaults = {"batch_size": 3, "shuffle": True, "collate_fn": list, **timeout}
    return DataLoader(data, **{**defaults, **options})


# ---------------------------------------------------------------------------------------------- every sample, the right bytes


@pytest.mark.skipif("fork" not in METHODS, reason="no fork here")
@pytest.mark.parametrize("read_before", [False, True])
@pytest.mark.parametrize("mmap", [False, True])
def test_new_workers_in_each_epoch_give_every_sample_once(packed: Packed, mmap: bool, read_before: bool) -> None:
    data = open_dataset(packed.path, output="bytes", mmap=mmap)
    if read_before:
        assert [data[i] for i in range(SAMPLES)] == packed.samples
    loader = loader_for(data, num_workers=2, multiprocessing_context="fork")
    for _ in range(3):
        assert Counter(epoch(loader)) == packed.counts


def test_without_shuffling_samples_come_in_order(packed: Packed) -> None:
    loader = loader_for(open_dataset(packed.path, output="bytes"), shuffle=False, num_workers=2)
    assert epoch(loader) == packed.samples


@pytest.mark.skipif("fork" not in METHODS, reason="no fork here")
def test_more_workers_than_samples_give_every_sample_once(packed: Packed) -> None:
    few = Subset(open_dataset(packed.path, output="bytes"), [5])
    loader = loader_for(few, num_workers=2, batch_size=1, multiprocessing_context="fork")
    assert epoch(loader) == [packed.samples[5]]


@pytest.mark.skipif("fork" not in METHODS, reason="no fork here")
def test_two_loaders_over_one_path_run_side_by_side(packed: Packed) -> None:
    loaders = [loader_for(open_dataset(packed.path, output="bytes"), num_workers=1) for _ in range(2)]
    firsts, seconds = zip(*zip(*loaders, strict=True), strict=True)
    for batches in (firsts, seconds):
        assert Counter(sample for batch in batches for sample in batch) == packed.counts


@pytest.mark.skipif("fork" not in METHODS, reason="no fork here")
def test_random_split_and_subset_keep_each_sample_with_its_label(packed: Packed) -> None:
    data = open_dataset(packed.path, output="bytes")
    parts = random_split(data, [25, 15], generator=torch.Generator().manual_seed(1))
    assert isinstance(parts[0], Subset)
    seen: Counter[tuple[bytes, int]] = Counter()
    for part in parts:
        seen.update(epoch(loader_for(part, num_workers=2, multiprocessing_context="fork")))
    assert seen == packed.counts
    chosen = Subset(data, [SAMPLES - 1, 0, 0, -2])
    assert epoch(loader_for(chosen, shuffle=False)) == [packed.samples[i] for i in (SAMPLES - 1, 0, 0, -2)]
    joined = ConcatDataset([data, open_dataset(packed.path, output="bytes")])
    assert Counter(epoch(loader_for(joined))) == packed.counts + packed.counts


def test_labels_weight_a_sampler_as_they_come(packed: Packed) -> None:
    """`targets` go into torch's samplers as they are."""
    data = open_dataset(packed.path, output="bytes")
    weights = torch.from_numpy(np.where(data.targets == 1, 1.0, 0.0))
    sampler = torch.utils.data.WeightedRandomSampler(weights, 50, generator=torch.Generator().manual_seed(0))
    assert {target for _, target in epoch(loader_for(data, shuffle=False, sampler=sampler))} == {1}


# -------------------------------------------------------------------------------------------------------- torch's own batches


@pytest.mark.skipif("fork" not in METHODS, reason="no fork here")
def test_torch_collates_tensors_and_targets_by_itself(tmp_path: Path, format_name: str) -> None:
    arrays = {f"{'ab'[i % 2]}/{i}.npy": npy(np.full((3, 4), i, np.float32)) for i in range(10)}
    output = pack_here(write_tree(tmp_path / "in", arrays), format_name).output
    loader = DataLoader(open_dataset(output), batch_size=5, num_workers=2, multiprocessing_context="fork", timeout=120)
    batches = list(loader)
    assert [tuple(values.shape) for values, _ in batches] == [(5, 3, 4), (5, 3, 4)]
    assert [values[:, 0, 0].tolist() for values, _ in batches] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    assert [targets.tolist() for _, targets in batches] == [[0] * 5, [1] * 5]
    assert batches[0][1].dtype == torch.int64


@pytest.mark.parametrize("argument", ["transform", "target_transform"])
def test_a_lambda_is_named_where_torchs_warning_is_an_error_too(packed: Packed, argument: str) -> None:
    data = open_dataset(packed.path, output="bytes", **{argument: lambda value: value})
    with pytest.raises(Exception, match="pickle") as caught:
        next(iter(loader_for(data, num_workers=1, multiprocessing_context="spawn")))
    assert f"{argument}=" in "".join(traceback.format_exception(caught.value))


@pytest.mark.skipif("fork" not in METHODS, reason="no fork here")
def test_a_lambda_is_fine_where_nothing_is_sent(packed: Packed) -> None:
    data = open_dataset(packed.path, output="bytes", transform=lambda value: value[::-1])
    loader = loader_for(data, num_workers=1, multiprocessing_context="fork")
    assert Counter(epoch(loader)) == Counter((data[::-1], target) for data, target in packed.samples)


# --------------------------------------------------------------------------------------------------------------------- damage


@pytest.fixture(scope="module")
def damaged(packed: Packed, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, Path]:
    """A copy with one byte of one sample flipped: the dataset, the number of the sample, the file it lies in."""
    folder = tmp_path_factory.mktemp("damaged")
    for path in packed.path.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    number = 23
    record = Index(folder, SAMPLES)[number]
    shard = folder / load_manifest(folder).shards[record.shard].file
    content = bytearray(shard.read_bytes())
    content[record.offset + record.size // 2] ^= 0x10
    shard.write_bytes(content)
    return folder, number, shard


def test_damage_without_workers_is_the_error_itself(damaged: tuple[Path, int, Path]) -> None:
    folder, number, shard = damaged
    data = open_dataset(folder, output="bytes")
    with pytest.raises(CorruptSampleError) as caught:
        epoch(loader_for(data))
    assert (caught.value.index, caught.value.name, caught.value.path) == (number, data.names[number], shard)


@pytest.mark.skipif("fork" not in METHODS, reason="no fork here")
def test_damage_in_a_worker_can_be_caught_by_its_class(damaged: tuple[Path, int, Path]) -> None:
    """torch makes the error anew from its text alone; a class that cannot be made so arrives as a RuntimeError."""
    loader = loader_for(open_dataset(damaged[0], output="bytes"), num_workers=1, multiprocessing_context="fork")
    assert type(failure_of(loader)) is CorruptSampleError


# --------------------------------------------------------------------------------------------------- in processes of their own


def run_script(script: str, *arguments: object, timeout_s: float = 100) -> subprocess.CompletedProcess[str]:
    """Run a script in an interpreter of its own, with every warning an error."""
    command = [sys.executable, "-W", "error", "-W", "ignore:.*multi-threaded:DeprecationWarning", "-c"]
    code = textwrap.dedent(script)
    return subprocess.run(
        [*command, code, *map(str, arguments)], capture_output=True, text=True, timeout=timeout_s, check=False
    )


@pytest.fixture(scope="module")
def all_formats(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One small dataset in every format."""
    files = {f"{i:03d}.npy": npy(np.full(50, i)) for i in range(20)}
    source = write_tree(tmp_path_factory.mktemp("all") / "in", files)
    return [pack_here(source, name, **limits_for(name, 6)).output for name in formats.names()]


@pytest.mark.skipif("fork" not in METHODS, reason="no fork here")
def test_a_training_loop_prints_nothing_warns_of_nothing_and_starts_no_thread(all_formats: list[Path]) -> None:
    script = """
        import sys
        import threading
        from torch.utils.data import DataLoader
        from packer import open_dataset
        for path in sys.argv[1:]:
            list(open_dataset(path))
            list(open_dataset(path, mmap=True))
        assert threading.active_count() == 1, threading.enumerate()
        for path in sys.argv[1:]:
            for output in ("pil", "torch"):
                data = open_dataset(path, output=output)
                data[0]
                for method, workers in ((None, 0), ("fork", 2)):
                    loader = DataLoader(data, 4, True, num_workers=workers, multiprocessing_context=method)
                    for epoch in range(2):
                        seen = sorted(int(value) for batch in loader for value in batch[:, 0])
                        assert seen == list(range(20)), seen
        print("done")
    """
    result = run_script(script, *all_formats)
    assert (result.stdout, result.stderr, result.returncode) == ("done\n", "", 0)


@pytest.mark.skipif("spawn" not in METHODS, reason="no spawn here")
def test_spawned_workers_warn_of_nothing_either(all_formats: list[Path], tmp_path: Path) -> None:
    """Warnings of a spawned worker go to its stderr; the options -W of the parent hold in it."""
    script = """
        import sys
        import threading
        from torch.utils.data import DataLoader
        from packer import open_dataset
        if __name__ == "__main__":
            data = open_dataset(sys.argv[1])
            loader = DataLoader(data, 4, num_workers=1, multiprocessing_context="spawn")
            print(sorted(int(value) for batch in loader for value in batch[:, 0]) == list(range(20)))
            # torch waits for no thread of its queues. One that frees the queue's semaphore while the interpreter ends may
            # not get to tell the resource tracker, which then takes it for lost, and says so.
            for thread in set(threading.enumerate()) - {threading.main_thread()}:
                thread.join()
    """
    result = run_script(script, all_formats[0])
    assert (result.stdout, result.stderr, result.returncode) == ("True\n", "", 0)


@pytest.mark.skipif("fork" not in METHODS, reason="no fork here")
def test_a_fork_while_a_thread_makes_its_first_read_leaves_no_lock_behind(all_formats: list[Path]) -> None:
    """A lock that a thread holds at the moment of a fork is held for ever in the child: its first read would hang."""
    script = """
        import os, signal, sys, threading
        sys.modules["torch"] = None  # not needed, and slow to load
        import packer.store
        from packer import open_dataset

        real, entered, proceed = packer.store.Index, threading.Event(), threading.Event()
        parent = os.getpid()

        def slow(*arguments, **options):
            if os.getpid() == parent:
                entered.set()
                proceed.wait(30)
            return real(*arguments, **options)

        packer.store.Index = slow
        data = [open_dataset(sys.argv[1], output="bytes") for _ in range(2)]
        thread = threading.Thread(target=lambda: data[0][0])
        thread.start()
        entered.wait(30)
        child = os.fork()
        if not child:
            signal.alarm(5)
            data[1][0]
            data[0][0]
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        proceed.set()
        thread.join()
        print("hung" if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
    """
    assert run_script(script, all_formats[0]).stdout == "0\n"
