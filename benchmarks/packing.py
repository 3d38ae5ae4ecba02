"""How fast `pack` packs and checks, as ratios to what the machine can do, with every output proved right.

    python benchmarks/packing.py [--count 20000] [--repeat 3] [--workers N] [--work DIR] [--json FILE]

On photographs of 500 x 375 pixels (``data.py``), which are in the page cache (warm), three questions. So many that
the start of a command, 0.25 s, is a small part; with ``--count 6000`` it weighs three times as much.

* ``pack --check full`` against strict decoding alone in as many worker processes (``decode_alone.py``): files/s. Both
  are whole commands, from the start of the interpreter to its end.
* ``pack --check none`` against ``tar cf``: seconds. `pack` has its output on the disk when it ends, tar does not, so
  tar followed by a sync stands in the table as well, without a budget.
* Checking in one process, ``packer.check.check_source``, against ``load()`` of Pillow: files/s.

And the most private memory (``RssAnon``) of any worker process of ``pack --check full``, looked at in a run without a clock;
left out where the system does not tell.

Before each timed part everything written so far is synced to the disk; outputs are compared with the source files after
it, outside the time, and removed. A budget that is missed is printed; the exit status is 1 only where data are wrong or
a command failed, and 2 where scikit-learn is not installed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter, sleep

from checking import compare_checking
from childmemory import anonymous_bytes, descendants, private_bytes
from data import make_photos
from machine import CpuClock, count_cpus, describe_machine, describe_versions
from options import positive_int
from proof import WrongDataError, prove_packed, prove_tar
from timing import (
    Contender,
    Figure,
    Measure,
    Result,
    compare,
    format_figures,
    format_setting,
    format_table,
    write_json_lines,
)

import packer

FULL_BUDGET = 0.85
TAR_BUDGETS = {"lmdb": 2.5, "hdf5": 2.5, "webdataset": 3.0}
FORMATS = tuple(TAR_BUDGETS)
# At 1/8, as libjpeg-turbo rounds it up.
DECODED_PIXELS = 63 * 47
WARM_UP_FILES = 10
# Beside one decoded file, which is half a MB here.
WORKER_BUDGET = 200.0
POLL_SECONDS = 0.05
DISTRIBUTIONS = ("numpy", "pillow", "simplejpeg", "xxhash", "lmdb", "h5py", "webdataset")


@dataclass(frozen=True, slots=True)
class Bench:
    """Where the timed commands read and write.

    Attributes:
        source: the folder that is packed.
        work: the folder that outputs go to.
        workers: number of worker processes.
    """

    source: Path
    work: Path
    workers: int

    def pack(self, format_name: str, check: str) -> float:
        """Pack with the command, prove the output right, remove it; returns the seconds that the command took."""
        output = self.work / f"packed.{format_name}"
        command = [*pack_command(), str(self.source), "--format", format_name, "-o", str(output)]
        seconds, _ = _run_timed([*command, "--check", check, "--workers", str(self.workers), "-q"])
        prove_packed(output, self.source)
        shutil.rmtree(output)
        return seconds

    def worker_memory(self, format_name: str) -> float:
        """Pack with all checks; returns the most MB that a process held which the command had started."""
        output = self.work / f"packed.{format_name}"
        command = [*pack_command(), str(self.source), "--format", format_name, "-o", str(output), "--check", "full"]
        most = 0
        with subprocess.Popen([*command, "--workers", str(self.workers), "-q"], stdout=subprocess.DEVNULL) as process:
            while process.poll() is None:
                most = max([most, *map(anonymous_bytes, descendants(process.pid))])
                sleep(POLL_SECONDS)
        if process.returncode:
            raise WrongDataError(f"exit status {process.returncode} of {' '.join(command)}")
        shutil.rmtree(output)
        return most / 1e6

    def decode_alone(self) -> float:
        """Decode everything and prove it by the number of pixels; returns the seconds that the command took."""
        script = Path(__file__).with_name("decode_alone.py")
        command = [sys.executable, str(script), str(self.source), "--workers", str(self.workers)]
        seconds, printed = _run_timed(command)
        files, pixels = map(int, printed.split())
        if pixels != files * DECODED_PIXELS or files != _count_files(self.source):
            raise WrongDataError(f"decoding alone: {pixels} pixels from {files} files are not what the files hold")
        return seconds

    def tar(self, *, sync: bool) -> float:
        """Archive everything, prove the archive right, remove it.

        Returns:
            The seconds that the command took, with ``sync`` including those until its output was on the disk.
        """
        output = self.work / "packed.tar"
        seconds, _ = _run_timed(["tar", "cf", str(output), "-C", str(self.source), "."])
        if sync:
            start = perf_counter()
            os.sync()
            seconds += perf_counter() - start
        prove_tar(output, self.source)
        output.unlink()
        return seconds


def compare_full(bench: Bench, *, count: int, repeat: int) -> list[Result]:
    """Pack with all checks, against strict decoding alone."""
    return compare(
        Contender("decode alone", bench.decode_alone),
        [Contender(f"pack --check full, {name}", partial(bench.pack, name, "full"), FULL_BUDGET) for name in FORMATS],
        measure=Measure.RATE,
        files=count,
        repeat=repeat,
    )


def compare_none(bench: Bench, *, count: int, repeat: int) -> list[Result]:
    """Pack without checks, against tar."""
    subjects = [
        Contender(f"pack --check none, {name}", partial(bench.pack, name, "none"), TAR_BUDGETS[name]) for name in FORMATS
    ]
    return compare(
        Contender("tar cf", partial(bench.tar, sync=False)),
        [*subjects, Contender("tar cf, sync", partial(bench.tar, sync=True))],
        measure=Measure.TIME,
        files=count,
        repeat=repeat,
    )


def run_benchmark(work: Path, *, count: int, repeat: int, workers: int) -> dict[str, list[Result] | list[Figure]]:
    """Make the photographs, answer the three questions, and look at the memory.

    Args:
        work: an existing folder on the file system of interest; what is made in it stays.
        count: number of photographs to pack, about 60 kB each.
        repeat: number of rounds; with more than one, every format is packed once before, unmeasured and small.
        workers: number of worker processes.

    Returns:
        The rows of each part.

    Raises:
        WrongDataError: an output was wrong, or a command failed.
        ModuleNotFoundError: scikit-learn is not installed.
    """
    print(f"making {count} photographs", file=sys.stderr)
    source = work / "photos"
    make_photos(source, count, workers=workers)
    if repeat > 1:
        few = work / "few-photos"
        make_photos(few, WARM_UP_FILES)
        for name in FORMATS:
            Bench(few, work, workers).pack(name, "full")
    _read_all(source)
    bench = Bench(source, work, workers)
    memory = bench.worker_memory("hdf5") if private_bytes() else 0
    figure = Figure("private memory of a worker of pack --check full", "MB", (memory,), WORKER_BUDGET)
    return {
        "check full": compare_full(bench, count=count, repeat=repeat),
        "check none": compare_none(bench, count=count, repeat=repeat),
        "checking": compare_checking(work, count=count, repeat=repeat),
        "memory": [figure] if memory else [],
    }


def pack_command() -> list[str]:
    """The installed command, as users start it; from a checkout that is not installed, its function."""
    installed = shutil.which("pack", path=sysconfig.get_path("scripts"))
    if installed:
        return [installed]
    # -P: not another packer, from the folder in which the benchmark happens to be started.
    return [sys.executable, "-P", "-c", "import sys, packer.cli; sys.exit(packer.cli.main())"]


def _run_timed(command: Sequence[str]) -> tuple[float, str]:
    """Sync the disk, then run a command; returns its seconds and what it printed.

    Raises:
        WrongDataError: the command failed.
    """
    os.sync()
    start = perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = perf_counter() - start
    if done.returncode != 0:
        raise WrongDataError(f"exit status {done.returncode} of {' '.join(command)}\n{done.stderr}")
    return seconds, done.stdout


def _count_files(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


def _read_all(folder: Path) -> None:
    """Bring every file into the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.read_bytes()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description="Measure packing and checking against their budgets.")
    parser.add_argument("--count", type=positive_int, default=20_000, help="photographs to pack (default 20,000, 1.2 GB)")
    parser.add_argument("--repeat", type=positive_int, default=3, help="rounds (default 3)")
    parser.add_argument("--workers", type=positive_int, default=count_cpus(), help="worker processes (default: CPUs)")
    parser.add_argument("--work", type=Path, help="an existing folder to work in (default: that for temporary files)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write setting and all repetitions as JSON lines")
    options = parser.parse_args(arguments)
    if options.work and not options.work.is_dir():
        parser.error(f"argument --work: {options.work} is not a folder")
    with tempfile.TemporaryDirectory(prefix="packing-", dir=options.work) as name:
        work = Path(name)
        setting: dict[str, object] = {
            "benchmark": "packing",
            "machine": describe_machine(work),
            "versions": {"packer": packer.__version__, **describe_versions(DISTRIBUTIONS)},
            "cache": "warm",
            "options": {"count": options.count, "repeat": options.repeat, "workers": options.workers},
        }
        started = CpuClock.read()
        try:
            parts = run_benchmark(work, count=options.count, repeat=options.repeat, workers=options.workers)
        except WrongDataError as error:
            print(f"packing.py: {error}", file=sys.stderr)
            return 1
        except ModuleNotFoundError as error:
            print(f"packing.py: {error}", file=sys.stderr)
            return 2
    setting["cpus_used_by_others"] = started.cpus_used_by_others(CpuClock.read())
    print(format_setting(setting))
    rows = [row for found in parts.values() for row in found]
    print(format_table([row for row in rows if isinstance(row, Result)]))
    print(format_figures([row for row in rows if isinstance(row, Figure)]))
    if options.json:
        write_json_lines(options.json, setting, parts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
