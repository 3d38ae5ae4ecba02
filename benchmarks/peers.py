"""The same work by packer and its peers in one run, each proved to give the files' own bytes and labels.

    python benchmarks/peers.py [--count 2000] [--repeat 5] [--workers N] [--envs DIR] [--only NAME ...] [--work DIR]
                               [--json FILE]

The files are photographs of 500 x 375 (``data.py``), about 60 kB each. Each peer (``peerlist.py``) is a child process that runs
a script of ``peers/`` with the libraries in their newest versions: in the project's own environment, or in one of its own, made
under ``--envs`` where it is not there yet. A peer that cannot be installed, does not start, or has no way to do something is
left out there, and the reason is printed and written down.

* ``pack``: all files, from the folder to the disk (everything is synced in the time), and the size of what was written. packer
  packs with ``--check none``, as no peer looks at the files; with all checks, it has rows of its own.
* ``random``: whole files as bytes and their labels in a random order that the benchmark gives, 64 at once or one by one,
  whichever is faster for the peer; ``sequential``: in the order of the files;
  ``own shuffle``: as the peer shuffles by itself. xxh3-64 of every file is taken in the time. ``warm``: from the page cache,
  three times in a run. ``cold``: nothing is open, and nothing of it in the page cache; to open it is in the time. A cold run is
  void if pages were left in the cache, or fewer bytes came from the disk than the files or the output have.
* ``pictures``: batches of 64 decoded and resized to 224 x 224 in a random order, a quarter of the files, with 0 and with
  ``--workers`` worker processes that run already: Pillow in torch's DataLoader, or the loader that the peer has.

In each round all run in turn, and files/s are compared with those of the fastest packer format, and of the loose files, which
are read as an ImageFolder reads them. The exit status is 1 only where data are wrong or a peer failed between rounds, and 2
where scikit-learn or torch is not installed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from data import make_photos
from epochs import SourceFiles
from machine import CpuClock, count_cpus, describe_machine, describe_versions
from options import positive_int
from peerlist import LOOSE, PEERS, UnavailableError
from peerparts import Bench, compare_files, compare_pictures
from proof import WrongDataError
from timing import format_setting, format_table, write_json_lines

import packer

DECODED_SHARE = 4


def run_benchmark(bench: Bench, *, count: int, workers: int) -> None:
    """Make the photographs and measure every part.

    Args:
        bench: takes the results.
        count: number of photographs.
        workers: number of worker processes, where there are any.

    Raises:
        WrongDataError: a peer gave something else than the files.
        UnavailableError: a peer failed that had run before.
        ModuleNotFoundError: scikit-learn is not installed.
    """
    listings: list[tuple[SourceFiles, Path]] = []
    for name, number in (("photos", count), ("few-photos", max(1, count // DECODED_SHARE))):
        make_photos(bench.work / name, number, workers=workers)
        files = SourceFiles.of(bench.work / name)
        listing = bench.work / f"{name}.json"
        listing.write_text(json.dumps(list(zip(files.paths, files.targets, strict=True))), encoding="utf-8")
        listings.append((files, listing))
    compare_files(bench, *listings[0])
    compare_pictures(bench, *listings[1], counts=(0, workers))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    names = [peer.name for peer in PEERS]
    parser = argparse.ArgumentParser(description="Measure packer and its peers.")
    parser.add_argument("--count", type=positive_int, default=2000, help="photographs (default 2000, 120 MB a peer)")
    parser.add_argument("--repeat", type=positive_int, default=5, help="rounds (default 5)")
    parser.add_argument("--workers", type=positive_int, default=count_cpus(), help="worker processes (default: CPUs)")
    parser.add_argument("--envs", type=Path, metavar="DIR", help="where environments lie or are made (default: none are)")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help="these beside the loose files")
    parser.add_argument("--work", type=Path, help="an existing folder to work in (default: that for temporary files)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write setting and all repetitions as JSON lines")
    options = parser.parse_args(arguments)
    for name in ("work", "envs"):
        folder = getattr(options, name)
        if folder and not folder.is_dir():
            parser.error(f"argument --{name}: {folder} is not a folder")
    asked = {LOOSE, *(options.only or names)}
    with tempfile.TemporaryDirectory(prefix="peers-", dir=options.work, ignore_cleanup_errors=True) as name:
        work = Path(name).resolve()
        envs = options.envs.resolve() if options.envs else None
        bench = Bench(work, [peer for peer in PEERS if peer.name in asked], envs, options.repeat)
        setting: dict[str, object] = {
            "benchmark": "peers",
            "machine": describe_machine(work),
            "versions": {"packer": packer.__version__, **describe_versions(["numpy", "pillow", "torch", "xxhash"])},
            "options": {"count": options.count, "repeat": options.repeat, "workers": options.workers},
        }
        started = CpuClock.read()
        try:
            run_benchmark(bench, count=options.count, workers=options.workers)
        except (WrongDataError, UnavailableError) as error:
            print(f"peers.py: {error}", file=sys.stderr)
            return 1
        except ModuleNotFoundError as error:
            print(f"peers.py: {error}", file=sys.stderr)
            return 2
    setting["cpus_used_by_others"] = started.cpus_used_by_others(CpuClock.read())
    print(format_setting(setting))
    for part, results in bench.results.items():
        print(f"\n{part}\n{format_table(results)}")
    for part, reasons in bench.skipped.items():
        print("\n".join(f"left out, {part}: {name}: {reason}" for name, reason in reasons.items()))
    if options.json:
        facts = {"sizes": bench.sizes, "peer_versions": bench.versions, "skipped": bench.skipped}
        write_json_lines(options.json, {**setting, **facts}, bench.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
