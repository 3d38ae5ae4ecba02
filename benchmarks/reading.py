"""How fast packed datasets are read, as ratios to what people do without them, with all that is read proved right.

    python benchmarks/reading.py [warm] [cold] [arrays] [pictures] [--count N] [--repeat 5] [--formats lmdb hdf5 webdataset]
                                 [--workers N] [--ffcv-python PYTHON] [--work DIR] [--json FILE]

* ``warm`` and ``cold`` (``rawreads.py``): random reads of whole files as bytes against loose files, from the page cache and
  from the disk.
* ``arrays`` (``arraybatches.py``): shuffled batches of arrays against the gather in memory, ``np.load``, h5py and FFCV.
* ``pictures`` (``picturebatches.py``): JPEG to batches of 224 x 224 against Pillow in a DataLoader, and FFCV.

All four where none is named; files/s is compared. FFCV is measured where ``--ffcv-python`` names the interpreter of an
environment that has it (``ffcv_child.py`` says what that needs). A budget that is missed is printed; the exit status is 1
only where data are wrong, and 2 where scikit-learn or torch is not installed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from machine import CpuClock, count_cpus, describe_machine, describe_versions
from options import positive_int
from proof import WrongDataError
from timing import Result, format_setting, format_table, write_json_lines

import packer
from packer import formats

# 360 MB, 240 MB, 1.8 GB, and 60 MB with 250 MB of large ones. Of an epoch of half the arrays FFCV's start is a third, and 4 %
# are that of Loader.
COUNTS = {"warm": 6000, "cold": 4000, "arrays": 3000, "pictures": 1024}
DISTRIBUTIONS = ("numpy", "pillow", "simplejpeg", "xxhash", "h5py", "torch")


def run_part(part: str, work: Path, options: argparse.Namespace) -> tuple[list[Result], dict[str, object]]:
    """Run one part of the benchmark.

    Args:
        part: its name.
        work: an existing folder on the file system of interest; what is made in it stays.
        options: of the command.

    Returns:
        The results, and facts to be written down with them.

    Raises:
        WrongDataError: something else was read than there is.
        ModuleNotFoundError: scikit-learn or torch is not installed.
    """
    # Here, so that a missing torch is told as a missing scikit-learn is.
    from arraybatches import compare_arrays
    from picturebatches import compare_pictures
    from rawreads import compare_cold, compare_warm

    count = options.count or COUNTS[part]
    repeat, names, ffcv = options.repeat, options.formats, options.ffcv_python
    print(f"{part}: {count} files", file=sys.stderr)
    if part == "warm":
        return compare_warm(work, count=count, repeat=repeat, formats=names), {}
    if part == "cold":
        return compare_cold(work, count=count, repeat=repeat, formats=names)
    if part == "arrays":
        return compare_arrays(work, count=count, repeat=repeat, formats=names, ffcv_python=ffcv)
    return compare_pictures(work, count=count, repeat=repeat, formats=names, workers=options.workers, ffcv_python=ffcv)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description="Measure reading against its budgets.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(COUNTS)} (default: all)")
    counts = ", ".join(f"{part} {count}" for part, count in COUNTS.items())
    parser.add_argument("--count", type=positive_int, help=f"files (default: {counts})")
    parser.add_argument("--repeat", type=positive_int, default=5, help="rounds (default 5)")
    parser.add_argument("--formats", nargs="+", default=formats.names(), choices=formats.names(), help="default: all")
    parser.add_argument("--workers", type=positive_int, default=count_cpus(), help="worker processes (default: CPUs)")
    parser.add_argument("--ffcv-python", type=Path, metavar="PYTHON", help="interpreter of an environment with FFCV")
    parser.add_argument("--work", type=Path, help="an existing folder to work in (default: that for temporary files)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write setting and all repetitions as JSON lines")
    options = parser.parse_args(arguments)
    if unknown := [part for part in options.parts if part not in COUNTS]:
        parser.error(f"argument PART: {unknown[0]} is none of {', '.join(COUNTS)}")
    if options.work and not options.work.is_dir():
        parser.error(f"argument --work: {options.work} is not a folder")
    if options.ffcv_python and not options.ffcv_python.is_file():
        parser.error(f"argument --ffcv-python: {options.ffcv_python} is no interpreter")
    with tempfile.TemporaryDirectory(prefix="reading-", dir=options.work) as name:
        work = Path(name)
        setting: dict[str, object] = {
            "benchmark": "reading",
            "machine": describe_machine(work),
            "versions": {"packer": packer.__version__, **describe_versions(DISTRIBUTIONS)},
            "options": {"count": options.count or COUNTS, "repeat": options.repeat, "workers": options.workers},
            "ffcv": "not measured: --ffcv-python names no interpreter",
        }
        started = CpuClock.read()
        results: dict[str, list[Result]] = {}
        try:
            for part in options.parts or COUNTS:
                results[part], facts = run_part(part, work, options)
                setting.update(facts)
        except WrongDataError as error:
            print(f"reading.py: {error}", file=sys.stderr)
            return 1
        except ModuleNotFoundError as error:
            print(f"reading.py: {error}", file=sys.stderr)
            return 2
    setting["cpus_used_by_others"] = started.cpus_used_by_others(CpuClock.read())
    print(format_setting(setting))
    print(format_table([result for found in results.values() for result in found]))
    if options.json:
        write_json_lines(options.json, setting, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
