"""How what a dataset costs grows with samples, shards, workers and ranks: measured, and by a model beyond.

    python benchmarks/growth.py [--samples 10000 ...] [--shards 1 ...] [--workers 0 ...] [--ranks 1 ...] [--lookups 20000]
                                [--repeat 3] [--work DIR] [--json FILE]

The datasets are synthetic (``synthetic.py``); their files are in the page cache. Measured are

* by samples, in one shard, and by shards, with as many samples as there are shards but at least 10,000: opening, arriving
  pickled in a spawned process that has everything loaded, one look-up (array and target) in random order, the size of the
  pickle; the private memory by which a worker grows; the size of the manifest;
* by samples of an epoch: the first number that ``EpochSampler`` gives, and the mean of the next 100,000, in each order. That
  needs no dataset, so a hundred million and a billion samples are measured, too;
* by worker processes of torch's DataLoader, forked and spawned: the time until each has given a sample, and its private memory;
* by ranks: a number of one rank's epoch over the largest number of samples.

Every look-up is compared with what was written, and every epoch with the numbers that it must give. ``report.py`` makes a page
of the JSON lines, with a law for each cost and what that predicts (``scalepage.py``). The exit status is 1 where data are
wrong, and 2 where torch is not installed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from growthparts import by_epoch, by_ranks, by_samples, by_shards
from machine import CpuClock, describe_machine, describe_versions
from options import positive_int, whole_number
from proof import WrongDataError
from timing import Figure, format_figures, format_setting, write_json_lines

import packer
from packer.extents import _MAX_OPEN
from packer.index import _TABLE_BYTES, RECORD
from packer.manifest import MAX_MANIFEST_BYTES
from packer.model import sample_key

SAMPLES = [10_000, 100_000, 1_000_000, 3_000_000, 10_000_000]
SHARDS = [1, 10, 100, 1_000, 10_000]
WORKERS = [0, 1, 2, 4, 8]
RANKS = [1, 4, 16, 64, 256, 1_024]
# As many samples in the dataset that workers open, and at least as many in one of several shards.
WORKERS_SAMPLES = 1_000_000
SHARDED_SAMPLES = 10_000
LONG_EPOCHS = [100_000_000, 1_000_000_000]


def measure(work: Path, options: argparse.Namespace) -> list[Figure]:
    """Measure every part.

    Args:
        work: an existing folder for the datasets, which are removed.
        options: of the command.

    Raises:
        WrongDataError: a look-up or an epoch gave something else than it must.
        ModuleNotFoundError: torch is not installed.
    """
    from growthworkers import by_workers

    repeat, lookups, most = options.repeat, options.lookups, max(options.samples)
    sharded = max(SHARDED_SAMPLES, *options.shards)
    return [
        *by_samples(work, options.samples, lookups=lookups, repeat=repeat),
        *by_shards(work, options.shards, samples=sharded, lookups=lookups, repeat=repeat),
        *by_epoch([*options.samples, *LONG_EPOCHS], repeat=repeat),
        *by_workers(work, options.workers, samples=min(most, WORKERS_SAMPLES), repeat=repeat),
        *by_ranks(options.ranks, samples=most, repeat=repeat),
    ]


def limits() -> dict[str, int]:
    """What packer itself bounds, which measurements do not show."""
    entry = {"file": "shard-000000.tar", "bytes": 1_000_000_000, "samples": 15_000, "digest": "0" * 32}
    one, two = (len(json.dumps({"shards": [entry] * count}, indent=1)) for count in (1, 2))
    return {
        "index_bytes_a_sample": RECORD.itemsize,
        "held_index_bytes": _TABLE_BYTES,
        "manifest_bytes": MAX_MANIFEST_BYTES,
        "manifest_bytes_a_shard": two - one,
        "open_shards": _MAX_OPEN,
        "key_digits": len(sample_key(0)),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description="Measure how what a dataset costs grows.")
    for name, default in (("samples", SAMPLES), ("shards", SHARDS), ("ranks", RANKS)):
        told = " ".join(map(str, default))
        parser.add_argument(f"--{name}", nargs="+", type=positive_int, default=default, help=f"default {told}", metavar="N")
    told = " ".join(map(str, WORKERS))
    parser.add_argument("--workers", nargs="+", type=whole_number, default=WORKERS, help=f"default {told}", metavar="N")
    parser.add_argument("--lookups", type=positive_int, default=20_000, help="in random order, of a round (default 20000)")
    parser.add_argument("--repeat", type=positive_int, default=3, help="rounds (default 3)")
    parser.add_argument("--work", type=Path, help="an existing folder to work in (default: that for temporary files)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write setting and all repetitions as JSON lines")
    options = parser.parse_args(arguments)
    if options.work and not options.work.is_dir():
        parser.error(f"argument --work: {options.work} is not a folder")
    with tempfile.TemporaryDirectory(prefix="growth-", dir=options.work) as name:
        work = Path(name)
        setting: dict[str, object] = {
            "benchmark": "growth",
            "machine": describe_machine(work),
            "versions": {"packer": packer.__version__, **describe_versions(["numpy", "xxhash", "torch"])},
            "cache": "warm",
            "options": {"lookups": options.lookups, "repeat": options.repeat},
            "limits": limits(),
        }
        started = CpuClock.read()
        try:
            figures = measure(work, options)
        except WrongDataError as error:
            print(f"growth.py: {error}", file=sys.stderr)
            return 1
        except ModuleNotFoundError as error:
            print(f"growth.py: {error}", file=sys.stderr)
            return 2
    setting["cpus_used_by_others"] = started.cpus_used_by_others(CpuClock.read())
    print(format_setting(setting))
    print(format_figures(figures))
    if options.json:
        write_json_lines(options.json, setting, {"": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
