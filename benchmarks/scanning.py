"""How fast a folder is scanned, as a ratio to `find`, and how much memory that takes.

    python benchmarks/scanning.py [--files 1000000] [--folders 1000] [--repeat 5] [--work DIR] [--json FILE]

The files have up to nine bytes and lie in class folders; folders and files are in the cache of the kernel (warm). Compared are

* ``find FOLDER -type f -printf '%s %p\\n'``, whose output goes to ``/dev/null``, and
* ``packer.scan.scan`` in a new process in which the modules are loaded: listing, sizes, times, labels and the order.

Sizes and paths that the scan found are compared with those that `find` printed; what the process' memory grew by while it
scanned is told by Linux (``VmHWM``), and is 0 elsewhere. A budget that is missed is printed; the exit status is 1 only where
data are wrong or a command failed, and 2 where there is no `find` that prints.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import xxhash
from childmemory import peak_memory_bytes
from machine import CpuClock, describe_machine, describe_versions
from options import positive_int
from proof import WrongDataError
from timing import Contender, Figure, Measure, Result, compare, format_figures, format_setting, format_table, write_json_lines

import packer
from packer.scan import scan

FIND_BUDGET = 2.5
BYTES_A_FILE = 300
LONGEST = 10  # sizes below it


class Found(NamedTuple):
    """Number of files, and a checksum over sizes and paths that does not depend on their order."""

    files: int
    checksum: int


class Scanned(NamedTuple):
    """What a scan took, and what it found."""

    seconds: float
    memory_bytes: int
    found: Found


def make_files(root: Path, files: int, folders: int) -> None:
    """Make so many files in so many class folders, in an order that is not that of their names."""
    each = -(-files // folders)
    for number in range(folders):
        folder = root / f"class {number:04d}"
        folder.mkdir(parents=True)
        count = min(each, files - number * each)
        for i in range(count):
            # Where two numbers are coprime, the multiples of one give every remainder of the other.
            step = i * 7919 % count if count % 7919 else i
            with open(folder / f"picture {step:07d}.jpg", "wb") as file:  # noqa: PTH123 - a million times
                file.write(bytes(step % LONGEST))


def checksum(lines: Iterable[bytes]) -> Found:
    """Sum up lines with a size and a path."""
    files = total = 0
    for line in lines:
        files += 1
        total += xxhash.xxh3_64_intdigest(line)
    return Found(files, total % 2**64)


def run_find(root: Path) -> Found:
    """What `find` prints.

    Raises:
        WrongDataError: it failed.
    """
    done = subprocess.run(_find_command(root), stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise WrongDataError(f"exit status {done.returncode} of find")
    return checksum(done.stdout.splitlines())


def time_find(root: Path) -> float:
    """The seconds that `find` takes."""
    start = perf_counter()
    subprocess.run(_find_command(root), stdout=subprocess.DEVNULL, check=True)
    return perf_counter() - start


def run_scan(root: Path) -> Scanned:
    """Scan in this process."""
    before = peak_memory_bytes([os.getpid()])
    start = perf_counter()
    listing = scan(root)
    seconds = perf_counter() - start
    memory = peak_memory_bytes([os.getpid()]) - before
    prefix = os.fsencode(root) + b"/"
    return Scanned(seconds, memory, checksum(b"%d %s%s" % (file.size_bytes, prefix, file.name) for file in listing))


def prove_scanned(scanned: Scanned, expected: Found) -> None:
    """Compare what a scan found with what `find` printed.

    Raises:
        WrongDataError: a file is missing or too many, or has another size.
    """
    if scanned.found != expected:
        raise WrongDataError(
            f"the scan found {scanned.found.files} files, and not the {expected.files} of find with their sizes"
        )


def run_benchmark(work: Path, *, files: int, folders: int, repeat: int) -> tuple[list[Result], Figure]:
    """Make the files and compare.

    Args:
        work: an existing folder on the file system of interest; what is made in it stays.
        files: how many.
        folders: how many they lie in.
        repeat: number of rounds.

    Returns:
        The comparison, and the memory that the scan took.

    Raises:
        WrongDataError: the scan found something else than `find`, or died.
    """
    print(f"making {files:,} files", file=sys.stderr)
    root = work / "files"
    make_files(root, files, folders)
    expected = run_find(root)
    if expected.files != files:
        raise WrongDataError(f"find printed {expected.files} of {files} files")
    memory: list[int] = []

    def scan_once() -> float:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            try:
                scanned = pool.submit(run_scan, root).result()
            except BrokenProcessPool:
                raise WrongDataError("the process that scanned died") from None
        prove_scanned(scanned, expected)
        memory.append(scanned.memory_bytes)
        return scanned.seconds

    results = compare(
        Contender("find -printf", lambda: time_find(root)),
        [Contender("scan", scan_once, FIND_BUDGET)],
        measure=Measure.TIME,
        files=files,
        repeat=repeat,
    )
    return results, Figure("memory of the scan", "bytes a file", tuple(value / files for value in memory), BYTES_A_FILE)


def _find_command(root: Path) -> list[str]:
    return ["find", str(root), "-type", "f", "-printf", "%s %p\\n"]


def _has_find(folder: Path) -> bool:
    try:
        return subprocess.run(_find_command(folder), capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description="Measure scanning a folder against find.")
    parser.add_argument("--files", type=positive_int, default=1_000_000, help="default a million")
    parser.add_argument("--folders", type=positive_int, default=1000, help="that they lie in (default 1000)")
    parser.add_argument("--repeat", type=positive_int, default=5, help="rounds (default 5)")
    parser.add_argument("--work", type=Path, help="an existing folder to work in (default: that for temporary files)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write setting and all repetitions as JSON lines")
    options = parser.parse_args(arguments)
    if options.work and not options.work.is_dir():
        parser.error(f"argument --work: {options.work} is not a folder")
    if options.folders > options.files:
        parser.error("there are fewer files than folders")
    with tempfile.TemporaryDirectory(prefix="scanning-", dir=options.work) as name:
        work = Path(name)
        if not _has_find(work):
            print("scanning.py: there is no find with -printf", file=sys.stderr)
            return 2
        setting: dict[str, object] = {
            "benchmark": "scanning",
            "machine": describe_machine(work),
            "versions": {"packer": packer.__version__, **describe_versions(["numpy"])},
            "cache": "warm",
            "options": {"files": options.files, "folders": options.folders, "repeat": options.repeat},
        }
        started = CpuClock.read()
        try:
            results, memory = run_benchmark(work, files=options.files, folders=options.folders, repeat=options.repeat)
        except WrongDataError as error:
            print(f"scanning.py: {error}", file=sys.stderr)
            return 1
    setting["cpus_used_by_others"] = started.cpus_used_by_others(CpuClock.read())
    print(format_setting(setting))
    print(format_table(results))
    print(format_figures([memory]))
    if options.json:
        write_json_lines(options.json, setting, {"": [*results, memory]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
