"""Runs the benchmarks one after the other, and makes the pages of their results.

    python benchmarks/everything.py [--only NAME ...] [--envs DIR] [--ffcv-python PYTHON] [--work DIR] [--results DIR] [--short]

Each runs in a process of its own, never two at once, and writes ``NAME.jsonl`` into ``benchmarks/results``. Where one fails,
what it wrote before stays, and the others follow. Then ``report.py`` makes the pages from all results that are there, those of
earlier runs, too: beside that folder, or in the one that ``--results`` names.

The peers that need environments of their own have them in ``--envs``, where they are made; FFCV's serves ``reading.py``, too,
unless ``--ffcv-python`` names another. ``--short`` runs everything on a handful of files, to see that it runs; its figures mean
nothing.

The exit status is 1 where a benchmark failed; which ones is told in the end.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from peerlist import PEERS, UnavailableError

HERE = Path(__file__).parent
RESULTS = HERE / "results"
# Options of each: for results that are kept, and for a short run.
RUNS: dict[str, tuple[str, str]] = {
    "packing": ("--repeat 5", "--count 24 --repeat 1"),
    "reading": ("--repeat 5", "--count 12 --repeat 1 --workers 1 --formats hdf5"),
    "overhead": ("--repeat 15", "--count 12 --repeat 1 --workers 1"),
    "large_index": ("", "--samples 20000 --lookups 1500 --repeat 1"),
    "scanning": ("", "--files 700 --folders 3 --repeat 1"),
    "scaling": ("--check none --repeat 1", "--check none --repeat 1 --files 90 30 --formats hdf5"),
    "growth": ("", "--samples 2000 --shards 30 --workers 0 1 --ranks 3 --lookups 100 --repeat 1"),
    "peers": ("--count 1200 --repeat 5", "--count 9 --repeat 1 --workers 1 --only 'packer, hdf5' bagz"),
}


def command(name: str, options: argparse.Namespace, ffcv: Path | None) -> list[str]:
    """What runs one benchmark.

    Args:
        name: of the benchmark.
        options: of this command.
        ffcv: the interpreter of an environment with FFCV; None where there is none.
    """
    asked = shlex.split(RUNS[name][options.short])
    if options.work:
        asked += ["--work", str(options.work)]
    if name == "peers" and options.envs:
        asked += ["--envs", str(options.envs)]
    if name == "reading" and ffcv:
        asked += ["--ffcv-python", str(ffcv)]
    return [sys.executable, str(HERE / f"{name}.py"), *asked, "--json", str(options.results / f"{name}.jsonl")]


def find_ffcv(options: argparse.Namespace) -> Path | None:
    """The interpreter of an environment with FFCV: the one named, or that of the peers, which is made where it is missing."""
    environment = next(peer.environment for peer in PEERS if peer.name == "FFCV")
    if options.ffcv_python or not options.envs or not environment:
        named: Path | None = options.ffcv_python
        return named
    try:
        return environment.make(options.envs)
    except UnavailableError as reason:
        print(f"everything.py: reading without FFCV: {reason}", file=sys.stderr)
        return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description="Run the benchmarks and make the pages of their results.")
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS), metavar="NAME", help=f"of {', '.join(RUNS)}")
    parser.add_argument("--envs", type=Path, metavar="DIR", help="where environments lie or are made (default: none are)")
    parser.add_argument("--ffcv-python", type=Path, metavar="PYTHON", help="interpreter of an environment with FFCV")
    parser.add_argument("--work", type=Path, help="an existing folder to work in (default: that for temporary files)")
    parser.add_argument("--results", type=Path, metavar="DIR", default=RESULTS, help="for JSON lines (default: results/)")
    parser.add_argument("--short", action="store_true", help="a handful of files")
    options = parser.parse_args(arguments)
    for name in ("work", "envs"):
        folder = getattr(options, name)
        if folder and not folder.is_dir():
            parser.error(f"argument --{name}: {folder} is not a folder")
    if options.short and options.results == RESULTS:
        parser.error("--short: name another folder for the results, they are not worth keeping")
    options.results.mkdir(exist_ok=True)
    ffcv = find_ffcv(options) if "reading" in options.only else None
    failed: list[str] = []
    names = [name for name in RUNS if name in options.only]
    for number, name in enumerate(names, 1):
        print(f"\n==== {name}.py, {number} of {len(names)}", file=sys.stderr, flush=True)
        start = perf_counter()
        status = subprocess.run(command(name, options, ffcv), check=False).returncode
        print(f"==== {name}.py: exit status {status} after {perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        if status:
            failed.append(f"{name}.py (exit status {status})")
    output = HERE if options.results == RESULTS else options.results
    if there := sorted(options.results.glob("*.jsonl")):
        report = [sys.executable, str(HERE / "report.py"), *map(str, there), "--output", str(output)]
        if status := subprocess.run(report, check=False).returncode:
            failed.append(f"report.py (exit status {status})")
    if failed:
        print(f"everything.py: failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
