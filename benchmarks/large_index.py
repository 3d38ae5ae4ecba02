"""What ten million samples cost before the first one is read, and in a worker's memory.

    python benchmarks/large_index.py [--samples 10000000] [--lookups 1000000] [--repeat 5] [--work DIR] [--json FILE]

The dataset is made from the layout in the docstrings of ``packer/index.py`` and ``packer/manifest.py``: an index of 640 MB,
names of 100 MB, and one payload of a few bytes at which all records point. Its files are in the page cache. Measured are

* opening it, the digests of index and names included;
* the size of its pickle, after look-ups;
* unpickling it in another process, with the first look-up; Python and the modules are loaded there already;
* the growth of the private memory (``smaps_rollup``) of a forked worker, which inherits the opened dataset after look-ups
  in the parent, and of a spawned one, over an epoch of look-ups. By default an epoch is a million samples in random order,
  which touch nearly every page of the index; array, target and name of each are looked up.

Each look-up is compared with what was written. A budget that is missed is printed; the exit
status is 1 only where data are wrong.
"""

from __future__ import annotations

import argparse
import multiprocessing
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import xxhash
from machine import CpuClock, describe_machine, describe_versions
from options import positive_int
from proof import WrongDataError
from timing import format_setting, write_rows

import packer
from packer import open_dataset
from packer.datasets import PackedDataset
from packer.files import file_digest
from packer.index import INDEX_FILE, NAMES_FILE, RECORD
from packer.manifest import FileEntry, Manifest, ShardEntry
from packer.model import TYPES_BY_NAME

OPEN_MILLISECONDS = 200.0
PICKLE_KB = 100.0
WORKER_MILLISECONDS = 20.0
MEMORY_MB = 30.0
CLASSES = 1000
NAME_BYTES = 10
BLOCK = 1_000_000  # records made at once
PAYLOAD = (
    b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }".ljust(117) + b"\n" + bytes(8)
)
# A worker that needs longer is taken for hung: a look-up costs some 20 microseconds.
LOOKUPS_PER_SECOND_AT_LEAST = 5_000


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure.

    Attributes:
        what: is measured.
        unit: of the values and the budget.
        budget: the median must be below it.
        values: of the repetitions.
    """

    what: str
    unit: str
    budget: float
    values: tuple[float, ...]

    @property
    def is_met(self) -> bool:
        """Whether the median keeps the budget."""
        return median(self.values) < self.budget


def make_dataset(folder: Path, samples: int) -> None:
    """Write a dataset of that many samples, all with the same payload: sample i has label i % 1000 and a name of 10 bytes."""
    folder.mkdir()
    (folder / "data.bin").write_bytes(PAYLOAD)
    (folder / "report.jsonl").write_bytes(b"")
    header = f"{{'descr': {RECORD.descr!r}, 'fortran_order': False, 'shape': ({samples},), }}".encode().ljust(501) + b"\n"
    with (folder / INDEX_FILE).open("wb") as index, (folder / NAMES_FILE).open("wb") as names:
        index.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        for start in range(0, samples, BLOCK):
            numbers = np.arange(start, min(start + BLOCK, samples), dtype=np.uint64)
            records = np.zeros(len(numbers), RECORD)
            records["name_end"] = (numbers + 1) * NAME_BYTES
            records["label"] = numbers % CLASSES
            records["data"]["type"] = TYPES_BY_NAME["npy"].code
            records["data"]["size"] = len(PAYLOAD)
            records["data"]["digest"] = xxhash.xxh3_64_intdigest(PAYLOAD)
            records.tofile(index)
            digits = numbers[:, None] // 10 ** np.arange(NAME_BYTES - 3, -1, -1, dtype=np.uint64) % 10
            text = np.empty((len(numbers), NAME_BYTES), np.uint8)
            text[:, :2] = np.frombuffer(b"c/", np.uint8)
            text[:, 2:] = digits + ord("0")
            text.tofile(names)
    digests = {name: file_digest(folder / name) for name in ("data.bin", INDEX_FILE, NAMES_FILE, "report.jsonl")}
    manifest = Manifest(
        format="synthetic",
        samples=samples,
        classes=tuple(f"class {i:03d}" for i in range(CLASSES)),
        labels="folder",
        header=b"",
        shards=(ShardEntry("data.bin", len(PAYLOAD), samples, digests.pop("data.bin")),),
        files={name: FileEntry((folder / name).stat().st_size, digest) for name, digest in digests.items()},
        options={},
        versions={},
        content_digest="",
    )
    (folder / "manifest.json").write_bytes(manifest.to_json())


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
        arriving = [_in_process("spawn", arrive, pickled, samples - 1, seconds=60) for _ in range(repeat)]
        seconds = 60 + lookups / LOOKUPS_PER_SECOND_AT_LEAST
        growth = {method: _in_process(method, grow, data, samples, lookups, seconds=seconds) for method in ("fork", "spawn")}
    finally:
        shutil.rmtree(folder)
    return [
        Figure("open, warm", "ms", OPEN_MILLISECONDS, tuple(opening)),
        Figure("pickle", "kB", PICKLE_KB, (len(pickled) / 1e3,)),
        Figure("unpickle in a worker, first look-up", "ms", WORKER_MILLISECONDS, tuple(arriving)),
        Figure("private memory of a forked worker", "MB", MEMORY_MB, (growth["fork"],)),
        Figure("private memory of a spawned worker", "MB", MEMORY_MB, (growth["spawn"],)),
    ]


def look_up(data: PackedDataset, indices: Sequence[int]) -> None:
    """Look up samples and compare array, target and name with what was written.

    Raises:
        WrongDataError: there is a difference.
    """
    for index in indices:
        array, target = data[index]
        if array.tolist() != [0, 0] or target != index % CLASSES or data.names[index] != f"c/{index:08d}":
            raise WrongDataError(f"sample {index} is {array.tolist()} of class {target}, named {data.names[index]}")


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


def private_bytes() -> int:
    """Memory that this process shares with no other, as Linux tells.

    Raises:
        FileNotFoundError: this system does not tell.
    """
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))


def _in_process(method: str, function: Callable[..., float], *arguments: object, seconds: float) -> float:
    """Call a function in a process of its own, which is ended where it takes too long."""
    context = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, function, arguments))  # type: ignore[attr-defined]
    process.start()
    sender.close()
    try:
        if not receiver.poll(seconds):
            raise WrongDataError(f"{function.__name__}, started by {method}: no answer in {seconds:.0f} s")
        answer = receiver.recv()
    except EOFError:
        raise WrongDataError(f"{function.__name__}, started by {method}: the process died") from None
    finally:
        process.kill()
        process.join()
    if isinstance(answer, str):
        raise WrongDataError(f"{function.__name__}, started by {method}: {answer}")
    return float(answer)


def _answer(sender: Connection, function: Callable[..., float], arguments: tuple[object, ...]) -> None:
    try:
        sender.send(function(*arguments))
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent tells it
        sender.send(f"{type(error).__name__}: {error}")


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
    for figure in figures:
        spread = f"{min(figure.values):.1f}–{max(figure.values):.1f}" if len(figure.values) > 1 else ""
        row = f"{figure.what:<36} {median(figure.values):>8.1f} {figure.unit}  {spread:<13} < {figure.budget:.0f}"
        print(f"{row}  {'met' if figure.is_met else 'MISSED'}")
    if options.json:
        write_rows(options.json, setting, ({"kind": "figure", "met": f.is_met, **asdict(f)} for f in figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
