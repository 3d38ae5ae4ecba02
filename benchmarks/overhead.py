"""What surviving deaths, hearing the workers and telling numbers cost, all together, as a ratio of batches/s.

    python benchmarks/overhead.py [arrays] [pictures] [--count N] [--repeat 9] [--workers N] [--work DIR] [--json FILE]

``make_loader`` whose workers are not listened to is compared with ``resilient(make_loader(..., on_batch=...))`` whose workers
print a line and warn now and then: the same dataset, order, transform and number of workers, in alternating rounds. Batches are
of 64 arrays (3, 224, 224) or of as many pictures of 224 x 224 pixels. A timed epoch is compared by one value of every sample,
and the epoch after it by all values.

Rounds of these differ by more than there is to be seen. So what a batch costs more is measured by itself, too: in CPU time of
the process and its worker, with batches that hold nearly nothing; and shown as the share of the time that a real one takes.
A budget that is missed is printed; the exit status is 1 only where data are wrong, and 2 where scikit-learn or torch is not
installed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import math
import multiprocessing
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from machine import CpuClock, count_cpus, describe_machine, describe_versions
from options import positive_int
from proof import WrongDataError
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
from packer import EpochSampler, PackOptions, make_loader, open_dataset, pack_folder, resilient

if TYPE_CHECKING:
    from epochs import Truth

COUNTS = {"arrays": 1500, "pictures": 1024}  # 900 and 60 MB
SIZE = (224, 224)
BUDGET = 0.98
MOST_PERCENT = 2.0
NEARLY_EMPTY = 400  # batches
EVERY = 100  # samples, for a line
DISTRIBUTIONS = ("numpy", "simplejpeg", "torch")


class Says:
    """A transform that changes nothing, and says something now and then."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.calls = 0

    def __call__(self, value: Any) -> Any:
        """The value."""
        self.calls += 1
        if self.every and self.calls % self.every == 1:
            print(f"{self.calls} samples are made")
            warnings.warn("a sample has no metadata", RuntimeWarning, stacklevel=1)
        return value


def be_deaf(worker: int) -> None:
    """Have nobody hear what this worker says."""
    from torch.utils.data import get_worker_info

    info: Any = get_worker_info()
    info.dataset._maker.ear = None


@contextlib.contextmanager
def hearing() -> Iterator[io.StringIO]:
    """What workers say, in place of the terminal."""
    log, heard = logging.getLogger("packer.workers"), io.StringIO()
    handler = logging.StreamHandler(heard)
    log.addHandler(handler)
    log.propagate = False
    try:
        yield heard
    finally:
        log.removeHandler(handler)
        log.propagate = True


class Nothing:
    """A dataset that costs nothing to read, and says something now and then."""

    def __init__(self, samples: int, every: int) -> None:
        self.samples = samples
        self.says = Says(every)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, number: int) -> int:
        value: int = self.says(number)
        return value


def total(samples: list[int]) -> int:
    """A batch of next to nothing, by which it is known all the same."""
    return sum(samples)


def cpu_seconds() -> float:
    """CPU time of this process and of those that it has started, so far; of these only where the system tells."""
    seconds = process_time()
    for worker in multiprocessing.active_children():
        try:
            seconds += int(Path(f"/proc/{worker.pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9
        except OSError:
            continue
    return seconds


def costs_of_a_batch(batches: int, repeat: int) -> list[float]:
    """Seconds of CPU time that surviving, logs and metrics take a batch more, one a round.

    Raises:
        WrongDataError: other batches came than were asked for.
    """
    told: list[packer.BatchMetrics] = []
    options: dict[str, Any] = {"num_workers": 1, "persistent_workers": True, "collate_fn": total}
    plain = make_loader(Nothing(64 * batches, 0), 64, worker_init_fn=be_deaf, **options)
    whole = resilient(make_loader(Nothing(64 * batches, EVERY), 64, on_batch=told.append, **options))

    def run(loader: Any) -> float:
        before = cpu_seconds()
        found = sum(loader)
        seconds = cpu_seconds() - before
        if found != sum(range(64 * batches)):
            raise WrongDataError("batches of nearly nothing: other samples came than were asked for")
        return seconds / batches

    with hearing():
        for loader in (plain, whole):
            run(loader)  # its worker is started
        found = [(run(plain), run(whole)) for _ in range(repeat)]
    if len(told) != batches * (repeat + 1):
        raise WrongDataError(f"{len(told)} batches were told of, not {batches * (repeat + 1)}")
    return [with_all - alone for alone, with_all in found]


def contender(name: str, loader: Any, truth: Truth, budget: float | None = None) -> Contender:
    """Times an epoch and proves it, and another one in full.

    Args:
        name: as the table shows it.
        loader: of ``make_loader``, shuffled, or a resilient one.
        truth: what the batches must hold.
        budget: for the ratio to the baseline.
    """
    # Here, so that a missing torch is told as a missing scikit-learn is.
    import torch
    from epochs import BATCH

    sampler = EpochSampler(loader.dataset, order="shuffled")
    epoch = 0

    def begin() -> list[int]:
        nonlocal epoch
        epoch += 1
        for one in (loader, sampler):
            one.set_epoch(epoch)
        return list(sampler)

    def prove() -> None:
        order, start = begin(), 0
        for data, targets in loader:
            truth.prove_batch(name, order[start : start + BATCH], data, targets)
            start += len(data)
        if start != len(order):
            raise WrongDataError(f"{name}: {start} samples in an epoch of {len(order)}")

    def run() -> float:
        order = begin()
        values, labels = [], []
        start = perf_counter()
        for data, targets in loader:
            values.append(data[:, -1, data.shape[2] // 2, data.shape[3] // 2].clone())
            labels.append(targets)
        seconds = perf_counter() - start
        truth.prove_values(name, order, values)
        if not torch.equal(torch.cat(labels), truth.targets[torch.tensor(order)]):
            raise WrongDataError(f"{name}: the targets of a timed epoch are wrong")
        prove()
        return seconds

    prove()  # its workers are started
    return Contender(name, run, budget)


def compare_part(
    part: str, work: Path, costs: Sequence[float], *, count: int, repeat: int, workers: int
) -> list[Result | Figure]:
    """Make the data, pack them, and time epochs.

    Args:
        part: ``arrays`` or ``pictures``.
        work: an existing folder; what is made in it stays.
        costs: what a batch costs more, seconds of CPU time.
        count: number of files.
        repeat: number of rounds.
        workers: worker processes of each loader.

    Raises:
        WrongDataError: an epoch lacked a sample, or had another value or target; or nothing was told.
        ModuleNotFoundError: scikit-learn or torch is not installed.
    """
    import torch
    from data import make_arrays, make_photos
    from epochs import BATCH, Truth

    folder, output = work / part, work / f"{part}.hdf5"
    make_arrays(folder, count) if part == "arrays" else make_photos(folder, count)
    pack_folder(folder, PackOptions(format="hdf5", output=output, check="none"))
    options: dict[str, Any] = {"output": "torch"} | ({} if part == "arrays" else {"size": SIZE})
    data = open_dataset(output, **options)
    samples = [data[i] for i in range(count)]
    truth = Truth(torch.stack([sample for sample, _ in samples]), torch.tensor([target for _, target in samples]))
    told: list[packer.BatchMetrics] = []
    silent = open_dataset(output, transform=Says(0), **options)
    plain = make_loader(silent, BATCH, shuffle=True, num_workers=workers, worker_init_fn=be_deaf)
    whole = resilient(
        make_loader(
            open_dataset(output, transform=Says(EVERY), **options),
            BATCH,
            shuffle=True,
            num_workers=workers,
            on_batch=told.append,
        )
    )
    with hearing() as heard:
        results = compare(
            contender(f"make_loader, {part}", plain, truth),
            [contender(f"resilient, with metrics and what workers say, {part}", whole, truth, BUDGET)],
            measure=Measure.RATE,
            files=count,
            repeat=repeat,
        )
    if not (heard.getvalue() and sum(metrics.samples for metrics in told) == (2 * repeat + 1) * count and not whole.deaths):
        raise WrongDataError(f"{part}: nothing was heard of the workers, or {len(told)} batches were told of, or workers died")
    batch_s = median(results[0].baseline_seconds) / math.ceil(count / BATCH)
    share = Figure(
        f"CPU time of the same, of the time of a batch, {part}",
        "%",
        tuple(100 * cost / batch_s for cost in costs),
        MOST_PERCENT,
    )
    return [*results, share]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description="Measure what surviving, logs and metrics cost.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(COUNTS)} (default: all)")
    counts = ", ".join(f"{part} {count}" for part, count in COUNTS.items())
    parser.add_argument("--count", type=positive_int, help=f"files (default: {counts})")
    parser.add_argument("--repeat", type=positive_int, default=9, help="rounds (default 9)")
    parser.add_argument("--workers", type=positive_int, default=count_cpus(), help="worker processes (default: CPUs)")
    parser.add_argument("--work", type=Path, help="an existing folder to work in (default: that for temporary files)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write setting and all repetitions as JSON lines")
    options = parser.parse_args(arguments)
    if unknown := [part for part in options.parts if part not in COUNTS]:
        parser.error(f"argument PART: {unknown[0]} is none of {', '.join(COUNTS)}")
    if options.work and not options.work.is_dir():
        parser.error(f"argument --work: {options.work} is not a folder")
    with tempfile.TemporaryDirectory(prefix="overhead-", dir=options.work) as name:
        work = Path(name)
        setting: dict[str, object] = {
            "benchmark": "overhead",
            "machine": describe_machine(work),
            "versions": {"packer": packer.__version__, **describe_versions(DISTRIBUTIONS)},
            "options": {"count": options.count or COUNTS, "repeat": options.repeat, "workers": options.workers},
        }
        started = CpuClock.read()
        results: dict[str, list[Result | Figure]] = {}
        batches = options.count or NEARLY_EMPTY
        try:
            costs = costs_of_a_batch(batches, options.repeat)
            for part in options.parts or COUNTS:
                count = options.count or COUNTS[part]
                results[part] = compare_part(part, work, costs, count=count, repeat=options.repeat, workers=options.workers)
        except WrongDataError as error:
            print(f"overhead.py: {error}", file=sys.stderr)
            return 1
        except ModuleNotFoundError as error:
            print(f"overhead.py: {error}", file=sys.stderr)
            return 2
    setting["cpus_used_by_others"] = started.cpus_used_by_others(CpuClock.read())
    print(format_setting(setting))
    rows = [row for found in results.values() for row in found]
    print(format_table([row for row in rows if isinstance(row, Result)]))
    print(format_figures([row for row in rows if isinstance(row, Figure)]))
    if options.json:
        write_json_lines(options.json, setting, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
