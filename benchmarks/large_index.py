"""What ten million samples cost before the first one is read, and in a worker's memory.

    python benchmarks/large_index.py [--samples 10000000] [--lookups 1000000] [--repeat 5] [--work DIR] [--json FILE]

The dataset is synthetic (``synthetic.py``): an index of 640 MB, names of 100 MB, and one payload of a few bytes at which all
records point. Its files are in the page cache. Measured are

* opening it, the digests of index and names included;
* the size of its pickle, after look-ups;
* unpickling it in another process, with the first look-up; Python and the modules are loaded there already;
* the growth of the private memory (``smaps_rollup``) of a forked worker, which inherits the opened dataset after look-ups
  in the parent, and of a spawned one, over an epoch of look-ups. By default an epoch is a million samples in random order,
  which touch nearly every page of the index; array, target and name of each are looked up. Left out where the system does
  not tell.

Each look-up is compared with what was written. A budget that is missed is printed; the exit
status is 1 only where data are wrong.
"""

from __future__ import annotations

import argparse
import pickle
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import numpy as np
from childmemory import private_bytes
from inprocess import in_process
from machine import CpuClock, describe_machine, describe_versions
from options import positive_int
from proof import WrongDataError
from synthetic import look_up, make_dataset
from timing import Figure, format_figures, format_setting, write_json_lines

import packer
from packer import open_dataset
from packer.datasets import PackedDataset

OPEN_MILLISECONDS = 200.0
PICKLE_KB = 100.0
WORKER_MILLISECONDS = 20.0
MEMORY_MB = 30.0
# A worker that needs longer is taken for hung: a look-up costs some 20 microseconds.
LOOKUPS_PER_SECOND_AT_LEAST = 5_000


def measure(work: Path, *, samples: int, lookups: int, repeat: int) -> list[Figure]:
    """Make the dataset and measure it.

    Args:
        work: an existing folder; the dataset is made in it and removed.
        samples: of the dataset, at least 1000.
        lookups: of a worker's epoch.
        repeat: how often it is opened, and sent to another process; memory is measured once.

    Raises:
        WrongDataError: a look-up gave another sample than the one that was asked for.
    """
    folder = work / "large"
    print(f"making an index of {samples:,} samples", file=sys.stderr)
    make_dataset(folder, samples)
    try:
        opening: list[float] = []
        for _ in range(repeat):
            start = perf_counter()
            data = open_dataset(folder, output="numpy")
            opening.append(1e3 * (perf_counter() - start))
        look_up(data, np.random.default_rng(1).integers(0, samples, 1000).tolist())
        pickled = pickle.dumps(data)
        arriving = [in_process("spawn", arrive, pickled, samples - 1, seconds=60) for _ in range(repeat)]
        seconds = 60 + lookups / LOOKUPS_PER_SECOND_AT_LEAST
        methods = ("fork", "spawn") if private_bytes() else ()
        growth = {method: in_process(method, grow, data, samples, lookups, seconds=seconds) for method in methods}
    finally:
        shutil.rmtree(folder)
    return [
        Figure("open, warm", "ms", tuple(opening), OPEN_MILLISECONDS),
        Figure("pickle", "kB", (len(pickled) / 1e3,), PICKLE_KB),
        Figure("unpickle in a worker, first look-up", "ms", tuple(arriving), WORKER_MILLISECONDS),
        *(Figure(f"private memory of a worker, {method}", "MB", (found,), MEMORY_MB) for method, found in growth.items()),
    ]


def arrive(pickled: bytes, index: int) -> float:
    """Milliseconds from a pickle to the first sample, in this process."""
    start = perf_counter()
    data = pickle.loads(pickled)
    look_up(data, [index])
    return 1e3 * (perf_counter() - start)


def grow(data: PackedDataset, samples: int, lookups: int) -> float:
    """MB by which the private memory of this process grows over an epoch of look-ups in random order."""
    random = np.random.default_rng(0)
    before = private_bytes()
    for start in range(0, lookups, 1000):
        look_up(data, random.integers(0, samples, min(1000, lookups - start)).tolist())
    return (private_bytes() - before) / 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description="Measure what a large index costs.")
    parser.add_argument("--samples", type=positive_int, default=10_000_000, help="default 10 million, 740 MB")
    parser.add_argument("--lookups", type=positive_int, default=1_000_000, help="of a worker's epoch (default a million)")
    parser.add_argument("--repeat", type=positive_int, default=5, help="default 5")
    parser.add_argument("--work", type=Path, help="an existing folder to work in (default: that for temporary files)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write setting and all repetitions as JSON lines")
    options = parser.parse_args(arguments)
    if options.work and not options.work.is_dir():
        parser.error(f"argument --work: {options.work} is not a folder")
    with tempfile.TemporaryDirectory(prefix="large-index-", dir=options.work) as name:
        work = Path(name)
        setting: dict[str, object] = {
            "benchmark": "large_index",
            "machine": describe_machine(work),
            "versions": {"packer": packer.__version__, **describe_versions(["numpy", "xxhash"])},
            "cache": "warm",
            "options": {"samples": options.samples, "lookups": options.lookups, "repeat": options.repeat},
        }
        started = CpuClock.read()
        try:
            figures = measure(work, samples=options.samples, lookups=options.lookups, repeat=options.repeat)
        except WrongDataError as error:
            print(f"large_index.py: {error}", file=sys.stderr)
            return 1
    setting["cpus_used_by_others"] = started.cpus_used_by_others(CpuClock.read())
    print(format_setting(setting))
    print(format_figures(figures))
    if options.json:
        write_json_lines(options.json, setting, {"": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
