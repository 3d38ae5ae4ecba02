"""The whole benchmark: draw, pack, measure; or measure datasets that are there."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from packer.bench.contenders import SIZE, Contender, content_of, decode_seconds, decoding_alone
from packer.bench.folder import folder_contenders, pack_all
from packer.bench.loading import HAS_TORCH, read_batches
from packer.bench.machine import CpuClock, available_memory, describe_machine, describe_versions, file_system
from packer.bench.measure import Measurement, first_cold_cache
from packer.bench.packed import dataset_contender
from packer.bench.plan import counted_batches, first_batches, make_plan, settings, usual_batch, worker_counts
from packer.bench.results import Cache, Findings, Packing, Sample, Setting
from packer.bench.sample import draw, require_room
from packer.bench.scratch import remove_leftovers, scratch_folder
from packer.bench.signals import remembered
from packer.bench.threads import with_threads
from packer.cpus import available_cpus
from packer.errors import InputError, OptionError, OutputError
from packer.options import OnProgress, Progress
from packer.store import Store

__all__ = ["BenchOptions", "compare_datasets", "compare_formats"]

_CHECK_SHARE = 0.15  # of the time, at most
_PACK_SHARE = 0.06  # of the time, that one round of packing may take to be done again
_BUSY = 0.3  # CPUs
_END_SHARE = 0.03  # of the time, for what comes after the measuring


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """How much a benchmark may take.

    Attributes:
        samples: to measure with, at most.
        seconds: for all.
        space_bytes: on the disk, at most.
        scratch: folder in which the scratch folder is made; ``None`` for beside the source.
        seed: of the sample and of all orders.
    """

    samples: int = 3000
    seconds: float = 150.0
    space_bytes: int = 2_000_000_000
    scratch: Path | None = None
    seed: int = 0

    def require_sound(self) -> None:
        """Refuse what makes no sense.

        Raises:
            OptionError: says what.
        """
        if self.samples < 1 or self.space_bytes < 1 or not 0 < self.seconds < 1e6 or self.seed < 0:
            raise OptionError("samples, seconds and space must be positive, and the seed not negative")


def compare_formats(source: Path, shown: str, options: BenchOptions, on_progress: OnProgress) -> Findings:
    """Pack a sample of a folder into every format, and compare reading those with reading the loose files.

    Args:
        source: the folder, which is not changed.
        shown: its name in the findings.
        options: how much that may take.
        on_progress: called now and then, from this thread.

    Raises:
        InputError: nothing in the folder can be measured, or a file changed meanwhile.
        OutputError: the scratch folder cannot be made, or is full.
        WrongDataError: something else was read than there is.
    """
    started = time.perf_counter()
    options.require_sound()
    if not source.is_dir():
        raise InputError(f"{source}: no such folder" if not source.exists() else f"{source}: no folder")
    parent = options.scratch if options.scratch is not None else Path(os.path.realpath(source)).parent
    if not parent.is_dir():
        raise OutputError(f"{parent}: no such folder for the scratch folder")
    remove_leftovers(parent)
    notes = _place_notes(source, parent)
    with remembered() as raise_again, scratch_folder(parent) as scratch, _as_no_room(parent):

        def told(progress: Progress) -> None:
            raise_again()
            scratch.lock.renew()
            on_progress(progress)

        drawn = draw(
            source,
            scratch,
            samples=options.samples,
            space_bytes=_fitting_memory(require_room(parent, options.space_bytes)),
            seconds=options.seconds * _CHECK_SHARE,
            seed=options.seed,
            on_progress=told,
        )
        packings = pack_all(scratch, drawn, options.seconds * _PACK_SHARE, told)
        contenders = folder_contenders(scratch, drawn, packings)
        sample = Sample(
            content_of(contenders[0].decoder),
            len(drawn.paths),
            float(drawn.sizes.mean()),
            drawn.total,
            drawn.total_bytes,
            drawn.left_out,
            drawn.checked_per_s,
            drawn.copied,
        )
        return _measured(contenders, packings, sample, shown, parent, options, started, notes, told)


def compare_datasets(datasets: Mapping[str, Path], options: BenchOptions, on_progress: OnProgress) -> Findings:
    """Compare reading packed datasets with each other, as they are. Nothing is written.

    Args:
        datasets: by the name that they have in the findings.
        options: how much that may take; space and scratch do not count.
        on_progress: called now and then, from this thread.

    Raises:
        DatasetError: one cannot be opened or read.
        OptionError: one holds pictures and another arrays.
        WrongDataError: something else was read than there is.
    """
    started = time.perf_counter()
    options.require_sound()
    contenders: list[Contender] = []
    packings: list[Packing] = []
    stores = {name: Store(path) for name, path in datasets.items()}
    kinds: set[str] = set()
    room = _fitting_memory(1 << 62) // len(stores)
    left_out: dict[str, int] = {}
    for name, store in stores.items():
        contender, left = dataset_contender(name, store, samples=options.samples, room_bytes=room, seed=options.seed)
        contenders.append(contender)
        kinds.add(content_of(contender.decoder))
        left_out |= left
        files = store.manifest.files.values()
        size = store.manifest.size_bytes + sum(entry.size_bytes for entry in files)
        packings.append(Packing(name, store.manifest.format, size, len(store)))
    if len({kind == "pictures" for kind in kinds}) > 1:
        raise OptionError("some of these datasets hold pictures and others arrays: compare those of one kind")
    notes = []
    if len({store.manifest.content_digest for store in stores.values()}) > 1:
        notes.append("the datasets do not hold the same samples, so a difference may be that of their contents")
    first = contenders[0]
    store = stores[first.name]
    contenders.append(decoding_alone(first, lambda number: store.payload(number, store.index[number])))
    sizes = first.truth.sizes[np.union1d(first.runs, first.picks)]
    sample = Sample(
        next(iter(kinds)) if len(kinds) == 1 else "arrays of different shapes",
        len(first.picks),
        float(sizes.mean()),
        len(store),
        int(first.truth.sizes.sum()),
        left_out,
        0.0,
        False,
    )
    shown = ", ".join(datasets)
    with remembered() as raise_again:

        def told(progress: Progress) -> None:
            raise_again()
            on_progress(progress)

        return _measured(contenders, packings, sample, shown, store.path, options, started, notes, told)


def _measured(
    contenders: Sequence[Contender],
    packings: Sequence[Packing],
    sample: Sample,
    shown: str,
    place: Path,
    options: BenchOptions,
    started: float,
    notes: list[str],
    on_progress: OnProgress,
) -> Findings:
    contenders = with_threads(contenders)
    with warnings.catch_warnings():
        # Of Pillow about what is in the files, and of Python 3.12 about any fork beside threads: torch has some.
        warnings.simplefilter("ignore")
        dropping = time.perf_counter()
        cache = first_cold_cache(contenders)
        drop_s = (time.perf_counter() - dropping) / len(contenders)
        decode_s = decode_seconds(contenders[-1])
        workers = worker_counts(available_cpus(), sample.count, has_torch=HAS_TORCH)
        batches = {
            "raw": usual_batch(sample.count, max(workers)),
            "decoded": usual_batch(sample.count, max(workers), decode_s),
        }
        start_s = _start_seconds(contenders, batches["raw"]) if max(workers) else 0.0
        every = wanted = settings(workers, ["warm"] if cache.dropped is False else ["cold", "warm"])
        deadline = started + options.seconds * (1 - _END_SHARE)
        clock = CpuClock()
        measurement = Measurement(contenders, batches, options.seed, deadline, on_progress)
        warm_up_s = sample.count * sample.mean_bytes * len(contenders) / 1e9
        while wanted:
            left_s = deadline - time.perf_counter() - warm_up_s
            plan = make_plan(
                wanted,
                left_s,
                lambda one: sum(contender.does(*one) for contender in contenders),
                lambda one: _cost_s(one, start_s, drop_s, batches["decoded"] * decode_s),
            )
            if plan.seconds > left_s and len(wanted) < len(every):
                break  # the first plan is carried out whatever it takes
            measurement.run(plan)
            wanted = list(plan.left_out)
    others = clock.cpus_used_by_others()
    if cache.dropped and measurement.most_cached > 0.02:
        why = f"before one of the cold runs {measurement.most_cached:.0%} of the pages were in memory all the same"
        cache = Cache(False, measurement.most_cached, why)
    elif cache.dropped:
        cache = dataclasses.replace(cache, most_cached=max(cache.most_cached, measurement.most_cached))
    return Findings(
        source=shown,
        sample=sample,
        packings=tuple(packings),
        timings=measurement.timings(),
        cache=cache,
        batches=batches,
        size=SIZE,
        has_torch=HAS_TORCH,
        seed=options.seed,
        machine=describe_machine(place),
        versions=describe_versions(),
        notes=(*notes, *measurement.notes, *_left_notes(wanted), *_busy_notes(others)),
        seconds=time.perf_counter() - started,
    )


def _cost_s(setting: Setting, start_s: float, drop_s: float, batch_s: float) -> float:
    """Seconds that a run takes, however short it is meant to be.

    Args:
        setting: what is run.
        start_s: that a worker takes to start and end.
        drop_s: that dropping the pages takes.
        batch_s: that decoding a batch takes; half of the readers decode slower than we.
    """
    cost = start_s * setting.workers + (drop_s if setting.cache == "cold" else 0.0)
    if setting.work == "decoded":
        at_once = max(1, min(setting.workers, available_cpus()))
        cost += 1.5 * batch_s * (first_batches(setting.workers) + counted_batches(setting.workers)) / at_once
    return cost


def _start_seconds(contenders: Sequence[Contender], batch: int) -> float:
    """Seconds that it takes to start and end a worker."""
    contender = next(one for one in contenders if one.does("raw", "warm", "shuffled"))
    start = time.perf_counter()
    with contextlib.closing(read_batches(contender.opened("raw"), iter([contender.picks[:batch].tolist()]), 1)) as batches:
        for _ in batches:
            pass
    return time.perf_counter() - start


def _fitting_memory(space_bytes: int) -> int:
    """Not more than half of the memory: what is warm must stay there."""
    memory = available_memory()
    return min(space_bytes, memory // 2) if memory else space_bytes


def _place_notes(source: Path, parent: Path) -> list[str]:
    if os.stat(source).st_dev == os.stat(parent).st_dev:
        return []
    return [
        f"the scratch folder lies on another file system ({file_system(parent)}) than the source ({file_system(source)}): "
        "all was measured there, the loose files as copies; --scratch DIR chooses the place"
    ]


def _busy_notes(others: float) -> list[str]:
    if others < _BUSY:
        return []
    return [
        f"other work kept {others:.1f} of {available_cpus()} CPUs busy meanwhile: the figures are worth less, run again later"
    ]


def _left_notes(settings: Sequence[Setting]) -> list[str]:
    if not settings:
        return []
    left = ", ".join(f"{one.work} {one.cache} {one.order} {one.workers}" for one in settings[:6])
    more = f" and {len(settings) - 6} more" if len(settings) > 6 else ""
    return [f"no time for {len(settings)} settings (--seconds): {left}{more}"]


@contextlib.contextmanager
def _as_no_room(parent: Path) -> Iterator[None]:
    """What the disk does not take, as one message; the packer's own tells how to go on with what is kept, and nothing is."""
    try:
        yield
    except OSError as error:
        cause = error.__cause__ if isinstance(error, OutputError) and isinstance(error.__cause__, OSError) else error
        if cause.errno is None and isinstance(error, OutputError):
            raise
        full = cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        advice = " Measure with less (--space), or on another disk (--scratch)." if full else ""
        raise OutputError(f"{parent}: the benchmark cannot go on: {cause.strerror or cause}.{advice}") from None
