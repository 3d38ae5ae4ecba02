"""Hundreds of shards where a process may have 128 files open: threads, worker processes and a second dataset beside them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from packer import formats
from packer.plan import ShardLimits
from tests.cases.processes import run_script
from tests.inputs import npy, pack_here, write_tree

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a limit of open files")

SHARDS = 300
LENGTH = 20
LIMIT = 128

# Reads every element, in eight threads, and in the meantime also by two workers where torch is there; with and without mmap.
READ = f"""
    import random, resource, sys, threading
    from packer import open_dataset

    resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, {LIMIT}))
    sys.setswitchinterval(1e-4)

    def check(number, i, array):
        if array.shape != ({LENGTH},) or (array != 1000 * number + i).any():
            wrong.append((number, i, array.tolist()))

    def read_all(seed):
        chosen = random.Random(seed)
        places = [(number, i) for number in range(len(datasets)) for i in range({SHARDS})]
        try:
            while reads[seed] < len(places) or not stop.is_set():
                chosen.shuffle(places)
                for number, i in places:
                    check(number, i, datasets[number][i])
                    reads[seed] += 1
        except BaseException as error:
            wrong.append(repr(error))

    def read_by_workers():
        from torch.utils.data import DataLoader

        for number, data in enumerate(datasets):
            loader = DataLoader(data, 5, True, num_workers=2, collate_fn=list, timeout=100, multiprocessing_context="fork")
            seen = [array for batch in loader for array in batch]
            numbers = sorted(int(array[0]) - 1000 * number for array in seen)
            if numbers != list(range(len(data))):
                wrong.append(numbers)
            for array in seen:
                check(number, int(array[0]) - 1000 * number, array)

    for mmap in (False, True):
        datasets = [open_dataset(path, output="numpy", mmap=mmap) for path in sys.argv[1:]]
        wrong, reads, stop = [], [0] * 8, threading.Event()
        threads = [threading.Thread(target=read_all, args=(seed,), daemon=True) for seed in range(8)]
        datasets[0][0]
        for thread in threads:
            thread.start()
        if sys.modules.get("torch", True):
            read_by_workers()
        stop.set()
        for thread in threads:
            thread.join()
        print(wrong[:3])
"""
IGNORED = ("error", "ignore:.*multi-threaded:DeprecationWarning")  # Python 3.12 and later warn of any fork beside threads


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Path]:
    """Two datasets, training and validation, in each format; one sample a shard where there are shards."""
    outputs = {}
    for number in range(2):
        root = tmp_path_factory.mktemp("open_files")
        arrays: dict[str | bytes, bytes] = {
            f"{i:03d}.npy": npy(np.full(LENGTH, 1000 * number + i, np.int16)) for i in range(SHARDS)
        }
        source = write_tree(root / "in", arrays)
        for name in formats.names():
            limits = {"limits": ShardLimits(samples=1)} if formats.get(name).has_shards else {}
            outputs[name, number] = pack_here(source, name, **limits).output
    return outputs


def test_eight_threads_read_two_datasets_of_300_shards_side_by_side(
    packed: dict[tuple[str, int], Path], format_name: str
) -> None:
    """Training and validation: 64 files of each are more than a process may have."""
    paths = [packed[format_name, number] for number in range(2)]
    if formats.get(format_name).has_shards:
        assert [len(list(path.glob("shard-*"))) for path in paths] == [SHARDS, SHARDS]
    assert run_script(READ, *paths) == "[]\n[]\n"


def test_two_workers_read_two_datasets_of_300_shards_in_turn_beside_eight_threads(
    packed: dict[tuple[str, int], Path], format_name: str
) -> None:
    """Each worker begins with what its parent has open of both."""
    paths = [packed[format_name, number] for number in range(2)]
    assert run_script(READ, *paths, torch=True, warnings=IGNORED) == "[]\n[]\n"
