"""What breaks data sets in torch's DataLoader: memory that grows, random numbers that repeat, handles that cannot be sent,
damage without a name, memory that is read-only, forks beside threads, and an end that takes its time."""

from __future__ import annotations

import copy
import os
import pickle
import random
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

from packer import CorruptSampleError, EpochSampler, HDF5Dataset, LMDBDataset, WebDatasetDataset, formats, open_dataset
from packer.index import Index
from packer.manifest import load_manifest
from packer.plan import ShardLimits
from tests.cases.loaders import FORKS, METHODS, failure_of, make_synthetic, numbers_of
from tests.cases.processes import run_script, script_command
from tests.cases.recipes import pack_files
from tests.inputs import jpeg, npy

pytestmark = [
    # Python 3.12 and later warn of any fork beside threads; torch itself has some.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
    # torch counts the processors of this machine.
    pytest.mark.filterwarnings("ignore:This DataLoader will create . worker processes:UserWarning"),
]
FORK = pytest.mark.skipif(not FORKS, reason="no fork here")

CLASSES = {"lmdb": LMDBDataset, "hdf5": HDF5Dataset, "webdataset": WebDatasetDataset}
QUIET = ("error", "ignore:.*multi-threaded:DeprecationWarning", "ignore:This DataLoader will create:UserWarning")


def numbered(count: int, length: int = 20) -> dict[str | bytes, bytes]:
    """Arrays in two classes; the contents of each are its number."""
    return {f"{'ab'[i * 2 // count]}/{i:03d}.npy": npy(np.full(length, i, np.int32)) for i in range(count)}


def pack_numbered(folder: Path, format_name: str, count: int, shard_samples: int | None = None) -> Path:
    """The packed dataset, in shards of so many samples where the format has any."""
    sharded = shard_samples is not None and formats.get(format_name).has_shards
    options: dict[str, Any] = {"limits": ShardLimits(samples=shard_samples)} if sharded else {}
    return pack_files(folder, numbered(count), format_name, **options).output


def pack_numbered_in_all(folder: Path, count: int, shard_samples: int) -> list[Path]:
    """One in each format, for tests whose processes load torch, which takes seconds: one process reads all of them."""
    return [pack_numbered(folder / name, name, count, shard_samples) for name in formats.names()]


def loader_of(data: Any, workers: int = 2, method: str | None = "fork", **options: Any) -> DataLoader[Any]:
    """A loader, mostly with worker processes; a timeout, so that a hang is an error."""
    settings = {"num_workers": workers, "multiprocessing_context": method, "timeout": 100} if workers else {}
    return DataLoader(data, **settings, **options)


# Memory

MILLION = 1_000_000

# An epoch of look-ups of all that the index knows, then of samples, by four workers. In a process of its own: a worker of the
# process that runs the tests copies what these hold, fifty megabytes.
GROWTH = """
    import sys
    import torch
    from torch.utils.data import DataLoader, RandomSampler
    from packer import open_dataset
    from tests.cases.loaders import private_bytes

    class LookUps(torch.utils.data.Dataset):
        def __getitems__(self, numbers):
            names, targets = data.names, data.targets
            return [(names[i], targets[i]) for i in numbers]

        def __len__(self):
            return len(data)

    class Paths(torch.utils.data.Dataset):
        def __init__(self):
            self.paths = [f"c/{i:08d}" for i in range(len(data))]

        def __getitems__(self, numbers):
            return [self.paths[i] for i in numbers]

        def __len__(self):
            return len(self.paths)

    before = None

    def start(worker):
        global before
        before = private_bytes()

    def grown(batch):
        return len(batch), private_bytes() - before

    data = open_dataset(sys.argv[1], output="bytes")
    assert len(data[5][0]) > 0 and len(data.targets) == len(data)
    for name, make, some in (("look-ups", LookUps, len(data)), ("samples", lambda: data, 20_000), ("paths", Paths, len(data))):
        loader = DataLoader(make(), some // 40, sampler=RandomSampler(data, num_samples=some), num_workers=4, timeout=100,
                            multiprocessing_context="fork", worker_init_fn=start, collate_fn=grown, prefetch_factor=1)
        counts, growths = zip(*loader)
        print(name, sum(counts) == some, max(growths) < 30_000_000)
"""


@pytest.fixture(scope="module")
def huge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A million samples; what the index knows of them lies in the same files in all formats, so they are made for one."""
    return make_synthetic(tmp_path_factory.mktemp("huge") / "huge", MILLION, formats.names()[-1])


@FORK
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="private memory is seen in /proc")
def test_the_memory_of_workers_does_not_grow_with_a_million_samples(huge: Path) -> None:
    """A list of a million paths is copied page by page in every forked worker, as its reference counts are written."""
    assert type(open_dataset(huge)) is CLASSES[formats.names()[-1]]
    expected = "look-ups True True\nsamples True True\npaths True False\n"
    assert run_script(GROWTH, huge, torch=True, warnings=QUIET) == expected


def test_the_pickle_of_a_million_samples_is_small(huge: Path) -> None:
    """Spawned workers are sent the dataset; a list of paths is 54 MB."""
    data = open_dataset(huge)
    assert data[0] is not None
    assert data.names[MILLION - 1] == "c/00999999"
    assert len(data.targets) == MILLION
    sent = pickle.dumps(data)
    assert len(sent) < 100_000
    assert pickle.loads(sent).names[7] == "c/00000007"


# Random numbers


def test_packing_reading_and_sampling_leave_the_global_generators_alone(tmp_path: Path, format_name: str) -> None:
    np.random.seed(5)
    before = pickle.dumps((random.getstate(), np.random.get_state(), torch.get_rng_state().tolist()))
    data = open_dataset(pack_numbered(tmp_path, format_name, 20))
    for order in ("shuffled", "blocks", "sequential"):
        assert len(list(EpochSampler(data, order=order, seed=3))) == 20
    assert len(data[list(range(20))][0]) == 20
    assert sum(map(len, data.split(0.5, 0.5, seed=1))) == 20
    assert len(data.subset(fraction=0.5, seed=2)) == 10
    after = pickle.dumps((random.getstate(), np.random.get_state(), torch.get_rng_state().tolist()))
    assert after == before


@FORK
@pytest.mark.parametrize("order", ["shuffled", "blocks"])
def test_the_order_is_another_in_each_epoch_and_repeats_with_the_seed(tmp_path: Path, format_name: str, order: str) -> None:
    """And it does not depend on the number of workers."""
    data = open_dataset(pack_numbered(tmp_path, format_name, 100, 30))

    def epochs(workers: int, seed: int) -> list[list[int]]:
        sampler = EpochSampler(data, order=order, seed=seed)
        loader = loader_of(data, workers, batch_size=4, sampler=sampler)
        return [[int(row[0]) for rows, _ in loader for row in rows] for _ in range(2)]

    first, second = epochs(0, 7)
    assert sorted(first) == sorted(second) == list(range(100))
    assert len({tuple(first), tuple(second), tuple(range(100))}) == 3
    assert epochs(3, 7) == [first, second]
    assert epochs(0, 8) != [first, second]


class Noise:
    """A transform that draws from a generator of its own."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)

    def __call__(self, value: Any) -> int:
        return int(self.generator.integers(1 << 40))


def seed_transform(worker: int) -> None:
    """What a user gives as `worker_init_fn`."""
    info: Any = get_worker_info()
    info.dataset.transform.generator = np.random.default_rng(info.seed)


@FORK
def test_a_transforms_generator_can_be_seeded_in_each_worker_and_epoch(tmp_path: Path, format_name: str) -> None:
    """A generator that the dataset holds is copied into each worker, and draws the same numbers in all of them."""
    folder = pack_numbered(tmp_path, format_name, 8)

    def drawn(data: Any, **options: Any) -> list[int]:
        loader = loader_of(data, 4, generator=torch.Generator().manual_seed(1), **options)
        return [int(value) for _ in range(2) for values, _ in loader for value in values]

    assert len(set(drawn(open_dataset(folder, transform=Noise())))) == 2
    seeded = drawn(open_dataset(folder, transform=Noise()), worker_init_fn=seed_transform)
    assert len(set(seeded)) == 16
    assert drawn(open_dataset(folder, transform=Noise()), worker_init_fn=seed_transform) == seeded


# Start methods


@pytest.mark.parametrize("method", METHODS)
def test_each_reader_is_sent_to_workers_by_every_start_method(
    tmp_path: Path, format_name: str, method: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """An Environment cannot be pickled, nor can h5py objects."""
    folder = pack_numbered(tmp_path, format_name, 30, 7)
    data = CLASSES[format_name](folder, output="numpy", transform=numbers_of)
    expected = [(i, i // 15) for i in range(30)]
    assert [(int(data[i][0][0]), data[i][1]) for i in range(30)] == expected
    batches = list(loader_of(data, 1, method, batch_size=3))
    values, targets = (torch.cat([batch[part] for batch in batches]) for part in range(2))
    assert list(zip(values[:, 0].tolist(), targets.tolist(), strict=True)) == expected
    assert os.getpid() not in values[:, 1].tolist()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("read_before", [False, True])
@pytest.mark.parametrize("duplicate", [lambda data: pickle.loads(pickle.dumps(data)), copy.deepcopy, copy.copy])
def test_a_duplicate_of_a_reader_gives_equal_data(tmp_path: Path, format_name: str, duplicate: Any, read_before: bool) -> None:
    data = CLASSES[format_name](pack_numbered(tmp_path, format_name, 30, 7), output="numpy", transform=numbers_of)
    if read_before:
        data[range(30)]
    twin = duplicate(data)
    assert type(twin) is CLASSES[format_name]
    del data
    assert [int(twin[i][0][0]) for i in range(30)] == list(range(30))
    assert twin[[3, 29]][1].tolist() == [0, 1]


@pytest.mark.filterwarnings("ignore:Got pickle error:UserWarning")  # torch adds it to the error itself
@pytest.mark.parametrize("method", [method for method in METHODS if method != "fork"])
@pytest.mark.parametrize("argument", ["transform", "target_transform"])
def test_a_lambda_that_cannot_be_sent_is_named_in_the_error(
    tmp_path: Path, format_name: str, method: str, argument: str
) -> None:
    """ "Can't pickle local object" alone does not say which of the many objects is meant."""
    data = open_dataset(pack_numbered(tmp_path, format_name, 4), **{argument: lambda value: value})
    with pytest.raises(pickle.PicklingError, match=f"^{argument}=") as caught:
        next(iter(loader_of(data, 1, method)))
    assert "top level of a module" in str(caught.value)


# Open files

TWO_WORKERS = """
    import os, random, resource, sys
    import torch
    from torch.utils.data import DataLoader
    from packer import EpochSampler, open_dataset

    class Counted(torch.utils.data.Dataset):
        def __init__(self, data):
            self.data = data

        def __len__(self):
            return len(self.data)

        def __getitem__(self, i):
            array = self.data[i]
            held = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
                    if os.path.lexists(f"/proc/self/fd/{name}")]
            return int(array[0]), bool((array == i).all()), sum("/shard-" in name for name in held)

    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    for path in sys.argv[1:]:
        data = open_dataset(path, output="numpy")
        loader = DataLoader(Counted(data), 5, sampler=EpochSampler(data), num_workers=2, collate_fn=list, timeout=100,
                            persistent_workers=True, multiprocessing_context="fork")
        for epoch in range(2):
            seen = [sample for batch in loader for sample in batch]
            print(sorted(number for number, _, _ in seen) == list(range(300)), all(right for _, right, _ in seen))
        print(max(held for _, _, held in seen))
"""


@FORK
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the open files of a process are seen in /proc")
def test_300_shards_are_read_by_two_workers_with_at_most_64_of_them_open(tmp_path: Path) -> None:
    """A handle a shard is kept, and then there are "Too many open files"."""
    files: dict[str | bytes, bytes] = {f"{i:03d}.npy": npy(np.full(20, i, np.int32)) for i in range(300)}
    folders = []
    for name in formats.names():
        sharded = formats.get(name).has_shards
        options: dict[str, Any] = {"limits": ShardLimits(samples=1)} if sharded else {}
        folders.append(pack_files(tmp_path / name, files, name, **options).output)
        assert len(list(folders[-1].glob("shard-*"))) == (300 if sharded else 0)
    printed = run_script(TWO_WORKERS, *folders, torch=True, warnings=QUIET).splitlines()
    for name in formats.names():
        *right, most = printed[:3]
        del printed[:3]
        assert right == ["True True"] * 2, name
        assert int(most) <= 64
        assert int(most) > 8 or not formats.get(name).has_shards


# Damage

DAMAGED = 23


@pytest.fixture
def damaged(tmp_path: Path, format_name: str) -> tuple[Path, str, Path]:
    """Forty samples, one byte of one of them flipped: the dataset, the name of that sample, and the file that holds it."""
    folder = pack_numbered(tmp_path, format_name, 40, 7)
    manifest = load_manifest(folder)
    record = Index(folder, manifest.samples)[DAMAGED]
    shard = folder / manifest.shards[record.shard].file
    content = bytearray(shard.read_bytes())
    content[record.offset + record.size // 2] ^= 0x10
    shard.write_bytes(content)
    return folder, f"b/{DAMAGED:03d}.npy", shard


def assert_names_the_sample(error: BaseException, damaged: tuple[Path, str, Path]) -> None:
    assert isinstance(error, CorruptSampleError)
    _, name, shard = damaged
    assert f"sample {DAMAGED} ({name!r}) in {shard}" in str(error)


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("output", ["bytes", "numpy", "torch", "pil"])
def test_a_damaged_sample_is_an_error_and_never_none_or_its_neighbour(
    damaged: tuple[Path, str, Path], output: str, mmap: bool
) -> None:
    data = open_dataset(damaged[0], output=output, mmap=mmap)
    roads = (lambda: data[DAMAGED], lambda: data.__getitems__([3, DAMAGED, 4]), lambda: data[[3, DAMAGED, 4]])
    for read in roads:
        with pytest.raises(CorruptSampleError) as caught:
            read()
        assert_names_the_sample(caught.value, damaged)
        assert (caught.value.index, caught.value.name, caught.value.path) == (DAMAGED, *damaged[1:])
    others = [i for i in range(40) if i != DAMAGED]
    assert [sample[1] for sample in data.__getitems__(others)] == [i // 20 for i in others]
    if output == "numpy":
        assert [int(data[i][0][0]) for i in others] == others
        assert data[others][0][:, 0].tolist() == others


@pytest.mark.parametrize("method", [method for method in METHODS if method != "spawn"])
@pytest.mark.parametrize("batches", [False, True], ids=["samples", "batches"])
def test_damage_in_a_worker_is_told_in_the_main_process_with_sample_and_file(
    damaged: tuple[Path, str, Path], method: str, batches: bool
) -> None:
    data = open_dataset(damaged[0])
    order = EpochSampler(data, seed=1)
    how: dict[str, Any] = {"batch_size": 4, "sampler": order}
    if batches:
        how = {"batch_size": None, "sampler": torch.utils.data.BatchSampler(order, 4, drop_last=False)}
    assert_names_the_sample(failure_of(loader_of(data, 2, method, **how)), damaged)


# Ranks and workers


@FORK
@pytest.mark.parametrize("workers", [0, 1, 2, 5])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_one_epoch_gives_each_sample_once_over_all_ranks_and_workers(
    tmp_path: Path, format_name: str, world_size: int, workers: int
) -> None:
    """Where every worker streams everything, samples come twice; where there are more workers than shards, some get none."""
    folder = pack_numbered(tmp_path, format_name, 100, 34)
    if formats.get(format_name).has_shards:
        assert len(list(folder.glob("shard-*"))) == 3
    for even in (False, True):
        counts, seen = [], Counter[int]()
        for rank in range(world_size):
            data = open_dataset(folder)
            sampler = EpochSampler(data, rank=rank, world_size=world_size, even=even)
            loader = (
                loader_of(data, workers, batch_size=3, sampler=sampler) if workers else DataLoader(data, 3, sampler=sampler)
            )
            batches = [[int(row[0]) for row in rows] for rows, _ in loader]
            assert len(batches) == len(loader)
            counts.append(len(batches))
            seen.update(number for batch in batches for number in batch)
        assert seen == Counter(range(100))  # 100 is divided by each number of ranks
        assert max(counts) - min(counts) <= (0 if even else 1)


@pytest.mark.parametrize("world_size", [3, 7])
def test_ranks_are_equally_long_or_without_doubles_where_the_samples_do_not_divide(
    tmp_path: Path, format_name: str, world_size: int
) -> None:
    data = open_dataset(pack_numbered(tmp_path, format_name, 100, 34))
    for order in ("shuffled", "blocks", "sequential"):
        for even in (False, True):
            ranks = [EpochSampler(data, order=order, rank=rank, world_size=world_size, even=even) for rank in range(world_size)]
            given = [list(rank) for rank in ranks]
            assert [len(rank) for rank in ranks] == [len(numbers) for numbers in given]
            together = Counter(number for numbers in given for number in numbers)
            assert set(together) == set(range(100))
            if even:
                assert {len(numbers) for numbers in given} == {-(-100 // world_size)}
            else:
                assert set(together.values()) == {1}


# Memory that is read-only


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("output", ["torch", "pil"])
def test_changing_a_tensor_in_place_changes_no_later_read(tmp_path: Path, format_name: str, output: str, mmap: bool) -> None:
    """Adding to a tensor over LMDB's buffers, or over a mapped file, ends the process."""
    files = {**numbered(10), "b/picture.jpg": jpeg(seed=1)}
    data = open_dataset(pack_files(tmp_path, files, format_name).output, output=output, mmap=mmap)
    readers = {"sample": lambda: data[3][0], "samples": lambda: data.__getitems__([3])[0][0], "batch": lambda: data[[3, 4]][0]}
    for name, read in readers.items():
        tensor = read()
        before = tensor.clone()
        tensor.add_(1)
        assert torch.equal(read(), before), name
        assert torch.equal(tensor, before + 1), name
    if output == "torch":
        picture = data[10][0]
        before = picture.clone()
        picture.add_(1)
        assert torch.equal(data[10][0], before)


# Forks beside threads

THREADS = """
    import sys, threading, time
    import packer
    datasets = []
    for path in sys.argv[1:]:
        for mmap in (False, True):
            data = packer.open_dataset(path, output="numpy", mmap=mmap)
            data[0]
            data.__getitems__([1, 2])
            data[[3, 4]]
            data.ask_ahead([5, 6])
            list(packer.EpochSampler(data))
            assert threading.active_count() == 1, (path, threading.enumerate())
        datasets.append(data)
    from torch.utils.data import DataLoader
    for data in datasets:
        for epoch in range(2):
            loader = DataLoader(data, 4, num_workers=2, timeout=60, multiprocessing_context="fork")
            print(sorted(int(row[0]) for rows, _ in loader for row in rows) == list(range(20)))
    patience = time.monotonic() + 20  # the feeders of torch's queues end by and by
    while threading.active_count() > 1 and time.monotonic() < patience:
        time.sleep(0.05)
    assert threading.active_count() == 1, threading.enumerate()
"""


@FORK
def test_no_thread_is_there_when_workers_are_forked(tmp_path: Path) -> None:
    """A thread that holds a lock at the moment of the fork leaves it locked in the child for ever."""
    folders = pack_numbered_in_all(tmp_path, 20, 6)
    warnings = ("error::DeprecationWarning",)
    assert run_script(THREADS, *folders, torch=True, warnings=warnings) == "True\nTrue\n" * len(folders)


@FORK
def test_packing_forks_no_process(tmp_path: Path, format_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checking workers are new interpreters, whatever threads the program that packs has."""

    def fork() -> int:
        raise AssertionError("a fork")

    monkeypatch.setattr(os, "fork", fork)
    threads = threading.active_count()
    assert len(pack_files(tmp_path, numbered(40), format_name, workers=2).names) == 40
    assert threading.active_count() == threads


# Leaving early

LEAVE = """
    import sys
    from torch.utils.data import DataLoader
    from packer import open_dataset
    loaders = []
    for path in sys.argv[1:]:
        data = open_dataset(path)
        loaders.append(DataLoader(data, 1, num_workers=4, persistent_workers=True, multiprocessing_context="fork"))
        for batch in loaders[-1]:
            break
    print("left", flush=True)
"""
INTERRUPTED = """
    import signal, sys, time
    from torch.utils.data import ConcatDataset, DataLoader
    from packer import open_dataset
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in a shell's background ignores
    data = ConcatDataset([open_dataset(path) for path in sys.argv[1:]])
    loader = DataLoader(data, 1, shuffle=True, num_workers=4, persistent_workers=True, multiprocessing_context="fork")
    while True:
        for i, batch in enumerate(loader):
            if i == 5:
                print("reading", flush=True)
            time.sleep(0.001)
"""


def run_group(script: str, folders: list[Path], awaited: str, send: int | None) -> tuple[int, str, float]:
    """Run a script as the head of a process group, and send a signal to the group when it prints what is awaited.

    Returns:
        Its exit status, its stderr, and the seconds that it took from there to its end, with all its processes.
    """
    command = script_command(script, *folders, warnings=QUIET)
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=folders[0].parent
    )
    with started as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == awaited
            since = time.monotonic()
            if send is not None:
                os.killpg(process.pid, send)
            _, errors = process.communicate(timeout=60)
            # All workers hold the pipe of stderr, so it has ended only when they have.
            seconds = time.monotonic() - since
            with pytest.raises(ProcessLookupError):
                os.killpg(process.pid, 0)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, errors, seconds


@FORK
def test_leaving_in_the_first_batch_ends_at_once_and_in_silence(tmp_path: Path) -> None:
    """Persistent workers add five seconds each."""
    status, errors, seconds = run_group(LEAVE, pack_numbered_in_all(tmp_path, 40, 7), "left\n", None)
    assert (status, errors) == (0, "")
    assert seconds < 5


@FORK
def test_an_interrupt_ends_all_processes_with_one_traceback(tmp_path: Path) -> None:
    status, errors, seconds = run_group(INTERRUPTED, pack_numbered_in_all(tmp_path, 40, 7), "reading\n", signal.SIGINT)
    assert status == -signal.SIGINT
    assert errors.count("Traceback") == 1
    assert re.search("^KeyboardInterrupt$", errors, re.MULTILINE)
    assert seconds < 5
