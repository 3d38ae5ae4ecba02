"""What packing costs a file as the number of files grows, and how much memory it takes, with the outputs proved right.

    python benchmarks/scaling.py [--files 10000 1000000] [--source DIR ...] [--check none|full] [--formats lmdb hdf5 webdataset]
                                 [--workers N] [--repeat 3] [--work DIR] [--json FILE]

The files are arrays of 20 float32, 208 bytes each, 1,000 to a folder; ``--source`` takes folders of class folders that are
there instead, each with as many files as it has. In each round every size is packed into every format by the ``pack`` command,
from the start of the interpreter to the end, when all is on the disk. Told are

* microseconds a file for each size, and the ratio to the smallest size in the same round, whose budget is 1.15;
* the same ratio without the start: less the time that the command takes for one file;
* the most private memory (``RssAnon``) of the command's main process, looked at every 20 ms; 0 where the system does not tell.

The number of samples, and name, class and bytes of a thousand of them at random, are compared with the files after each run,
outside the time. A budget that is missed is printed; the exit status is 1 only where data are wrong or a command failed.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import shutil
import subprocess
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from time import perf_counter, sleep

import numpy as np
from childmemory import anonymous_bytes
from machine import CpuClock, count_cpus, describe_machine, describe_versions
from options import positive_int
from packing import pack_command
from proof import WrongDataError
from timing import Figure, format_figures, format_setting, write_json_lines

import packer
from packer import formats

RATIO_BUDGET = 1.15
MEMORY_BUDGET = 300.0
FOLDER_FILES = 1000
LENGTH = 20
PROVED = 1000
POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Tree:
    """Class folders full of files, in the order in which they are packed.

    Attributes:
        root: holds the class folders.
        folders: names of the class folders.
        ends: for each folder the number of files in it and in those before.
    """

    root: Path
    folders: tuple[str, ...]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, root: Path) -> Tree:
        """Count the files of class folders."""
        folders = sorted((entry.name for entry in os.scandir(root) if entry.is_dir()), key=os.fsencode)
        counts = (sum(1 for entry in os.scandir(root / folder) if entry.is_file()) for folder in folders)
        return cls(root, tuple(folders), tuple(accumulate(counts)))

    @property
    def files(self) -> int:
        """How many there are."""
        return self.ends[-1]

    def name(self, index: int) -> str:
        """The path of a file inside the tree."""
        number = bisect_right(self.ends, index)
        start = self.ends[number - 1] if number else 0
        return f"{self.folders[number]}/{_sorted_names(self.root / self.folders[number])[index - start]}"


@cache
def _sorted_names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder), key=os.fsencode)


def make_tree(root: Path, files: int) -> Tree:
    """Make so many small arrays; each holds its own number in every element, as a bit pattern."""
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(LENGTH, np.float32))
    header = buffer.getvalue()[: -4 * LENGTH]
    for index in range(files):
        folder = f"{root}/class_{index // FOLDER_FILES:06d}"
        if index % FOLDER_FILES == 0:
            os.makedirs(folder)
        with open(f"{folder}/{index:09d}.npy", "wb") as file:  # noqa: PTH123 - a million times
            file.write(header + index.to_bytes(4, "little") * LENGTH)
    return Tree.of(root)


def prove_sample(output: Path, tree: Tree, seed: int) -> None:
    """Compare the number of samples, and name, class and bytes of a thousand.

    Raises:
        WrongDataError: there is a difference.
    """
    try:
        data = packer.open_dataset(output, output="bytes")
        if len(data) != tree.files:
            raise WrongDataError(f"{output.name}: {len(data)} samples of {tree.files} files")
        for index in sorted(random.Random(seed).sample(range(tree.files), min(PROVED, tree.files))):
            payload, label = data[index]
            name = tree.name(index)
            if data.names[index] != name or data.classes[label] != name.partition("/")[0]:
                raise WrongDataError(f"{output.name}: sample {index} is {data.names[index]} of class {label}, not {name}")
            if payload != (tree.root / name).read_bytes():
                raise WrongDataError(f"{output.name}: the bytes of {name} differ from those of the source file")
    except packer.PackerError as error:
        raise WrongDataError(f"{output.name} cannot be read back: {error}") from error


def pack(tree: Tree, output: Path, options: Sequence[str]) -> tuple[float, int]:
    """Pack by the command; returns its seconds, and the most private memory that its main process had.

    Raises:
        WrongDataError: the command failed.
    """
    os.sync()
    errors = output.with_suffix(".log")
    with errors.open("w", encoding="utf-8") as log:
        start, most = perf_counter(), 0
        command = [*pack_command(), str(tree.root), "-o", str(output), "--quiet", *options]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log) as process:
            while process.poll() is None:
                most = max(most, anonymous_bytes(process.pid))
                sleep(POLL_SECONDS)
        seconds = perf_counter() - start
    if process.returncode:
        raise WrongDataError(f"exit status {process.returncode} of {' '.join(command)}\n{errors.read_text(encoding='utf-8')}")
    return seconds, most


def measure(
    work: Path, trees: Sequence[Tree], *, check: str, format_names: Sequence[str], workers: int, repeat: int
) -> list[Figure]:
    """Pack every tree into every format, in each round.

    Args:
        work: an existing folder for the outputs, which are removed.
        trees: the smallest first.
        check: of the command.
        format_names: those to pack into.
        workers: worker processes of the command.
        repeat: number of rounds.

    Raises:
        WrongDataError: an output was wrong, or a command failed.
    """
    one = make_tree(work / "one", 1)
    found: dict[tuple[str, int], list[tuple[float, int]]] = {}
    for turn in range(repeat):
        for name in format_names:
            for number, tree in enumerate([one, *trees]):
                output = work / f"packed.{name}"
                options = ["--format", name, "--check", check, "--workers", str(workers)]
                seconds, memory = pack(tree, output, options)
                prove_sample(output, tree, turn)
                shutil.rmtree(output)
                found.setdefault((name, number), []).append((seconds, memory))
                print(f"  round {turn + 1} of {repeat}: {name}, {tree.files:,} files: {seconds:.2f} s", file=sys.stderr)
    figures: list[Figure] = []
    for name in format_names:
        start, smallest = found[name, 0], found[name, 1]
        for number, tree in enumerate(trees, 1):
            runs, what = found[name, number], f"{name}, {tree.files:,} files"
            each = [seconds / tree.files for seconds, _ in runs]
            figures.append(Figure(what, "µs a file", tuple(1e6 * value for value in each)))
            if number > 1:
                base = trees[0].files
                rounds = list(zip(runs, smallest, start, strict=True))
                whole = tuple((run / tree.files) / (least / base) for (run, _), (least, _), _ in rounds)
                net = tuple(
                    (run - begin) / tree.files / ((least - begin) / base) for (run, _), (least, _), (begin, _) in rounds
                )
                figures.append(Figure(f"{what} against {base:,}", "ratio", whole, RATIO_BUDGET))
                figures.append(Figure(f"{what} against {base:,}, without the start", "ratio", net))
            figures.append(Figure(f"{what}: private memory", "MB", tuple(memory / 1e6 for _, memory in runs), MEMORY_BUDGET))
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description="Measure how packing scales with the number of files.")
    parser.add_argument("--files", nargs="+", type=positive_int, default=[10_000, 1_000_000], help="default 10000 1000000")
    parser.add_argument("--source", nargs="+", type=Path, metavar="DIR", help="folders to pack in place of made ones")
    parser.add_argument("--check", choices=("none", "full"), default="full", help="of the command (default full)")
    parser.add_argument("--formats", nargs="+", default=formats.names(), choices=formats.names(), help="default: all")
    parser.add_argument("--workers", type=positive_int, default=count_cpus(), help="worker processes (default: CPUs)")
    parser.add_argument("--repeat", type=positive_int, default=3, help="rounds (default 3)")
    parser.add_argument("--work", type=Path, help="an existing folder to work in (default: that for temporary files)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write setting and all repetitions as JSON lines")
    options = parser.parse_args(arguments)
    for folder in [options.work, *(options.source or [])]:
        if folder and not folder.is_dir():
            parser.error(f"{folder} is not a folder")
    with tempfile.TemporaryDirectory(prefix="scaling-", dir=options.work) as name:
        work = Path(name)
        started = CpuClock.read()
        try:
            sources = [Tree.of(folder) for folder in options.source or []]
            trees = sources or [make_tree(work / str(files), files) for files in options.files]
            trees.sort(key=lambda tree: tree.files)
            figures = measure(
                work,
                trees,
                check=options.check,
                format_names=options.formats,
                workers=options.workers,
                repeat=options.repeat,
            )
        except WrongDataError as error:
            print(f"scaling.py: {error}", file=sys.stderr)
            return 1
        setting: dict[str, object] = {
            "benchmark": "scaling",
            "machine": describe_machine(work),
            "versions": {"packer": packer.__version__, **describe_versions(["numpy", "xxhash", "lmdb", "h5py", "webdataset"])},
            "cache": "warm",
            "options": {
                "files": [tree.files for tree in trees],
                "check": options.check,
                "workers": options.workers,
                "repeat": options.repeat,
            },
            "cpus_used_by_others": started.cpus_used_by_others(CpuClock.read()),
        }
    print(format_setting(setting))
    print(format_figures(figures))
    if options.json:
        write_json_lines(options.json, setting, {"": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
