"""Runs what was planned, in turns, and takes the time: rounds in which everyone runs once, so that a slow minute hits all.

A round begins with all that is warm, after everyone's files were read once, and ends with all that is cold, for which the
pages of the contender's files are dropped each time. The clock starts when each worker has given two batches (without
workers, at the first batch): starting them is not in the time, nor are batches that one has ready since another came later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from packer.bench.contenders import Contender
from packer.bench.pagecache import cached_share, drop
from packer.bench.plan import RUN_S, Plan, counted_batches, first_batches
from packer.bench.proof import Row, WrongDataError, noted_row
from packer.bench.results import ARRAY_READER, PILLOW, Cache, Setting, Timing
from packer.errors import PackerError
from packer.options import OnProgress, Progress
from packer.permutation import permuted

__all__ = ["Measurement", "first_cold_cache"]

_ROWS = 16  # decoded samples a run that are compared
_COLD_SHARE = 0.02
_CHUNK = 64
_Run = tuple[Contender, Setting]


@dataclass
class Measurement:
    """All runs of one benchmark.

    Args:
        contenders: who runs.
        batches: samples a batch, by what is done.
        seed: of the orders.
        deadline: of ``perf_counter``, at which all must be over.
        on_progress: called after each run.

    Attributes:
        notes: what could not be measured, and why.
        most_cached: largest share of pages found in memory before a cold run.
    """

    contenders: Sequence[Contender]
    batches: Mapping[str, int]
    seed: int
    deadline: float
    on_progress: OnProgress
    notes: list[str] = field(default_factory=list)
    most_cached: float = 0.0
    _rates: dict[tuple[str, Setting], list[float]] = field(default_factory=dict)
    _failed: set[tuple[str, Setting]] = field(default_factory=set)

    def run(self, plan: Plan) -> None:
        """Run all rounds of a plan.

        Args:
            plan: what is run; may be one of several.

        Raises:
            WrongDataError: something else was read than there is.
            PackerError: a dataset cannot be read.
        """
        warm, cold = self._runs(plan, "warm"), self._runs(plan, "cold")
        total = plan.repetitions * (len(warm) + len(cold))
        done = 0
        self.on_progress(Progress("measure", 0, total))
        for turn in range(plan.repetitions):
            for runs in (warm, cold):
                if runs is warm and warm:
                    self._warm_up()
                for place in range(len(runs)):
                    contender, setting = runs[(place + turn) % len(runs)]
                    left = self.deadline - perf_counter()
                    if left < 0 and turn:
                        self._note(f"stopped in round {turn + 1} of {plan.repetitions}: the time was over")
                        return
                    self._run(contender, setting, turn, max(0.05, min(RUN_S * 1.5, left / (total - done))))
                    done += 1
                    self.on_progress(Progress("measure", done, total))

    def _runs(self, plan: Plan, cache: str) -> list[_Run]:
        """Those who compare with each other, side by side."""
        return [
            (contender, setting)
            for setting in plan.settings
            if setting.cache == cache
            for contender in self.contenders
            if contender.does(*setting)
        ]

    def _run(self, contender: Contender, setting: Setting, turn: int, seconds: float) -> None:
        key = (contender.name, setting)
        if key in self._failed:
            return
        if setting.cache == "cold":
            drop(contender.files)
            self.most_cached = max(self.most_cached, cached_share(contender.files) or 0.0)
        try:
            rate = self._timed(contender, setting, turn, seconds)
        except PackerError:
            raise
        # DataLoader raises RuntimeError where a worker dies, most often for lack of shared memory: that costs the setting.
        except Exception as error:
            if not setting.workers and contender.name not in (PILLOW, ARRAY_READER):
                raise
            self._failed.add(key)
            first_line = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            self._note(f"{contender.name}, {setting.work} with {setting.workers} workers was not measured: {first_line}")
            return
        if rate is not None:
            self._rates.setdefault(key, []).append(rate)

    def _timed(self, contender: Contender, setting: Setting, turn: int, seconds: float) -> float | None:
        """Samples a second of one run; ``None`` where it was over before the clock could start."""
        rows: list[Row] = []
        orders = self._orders(contender, setting, turn)
        start = begun = now = perf_counter()
        batches = count = counted = 0
        helpers = setting.workers or contender.helpers
        started, least = first_batches(helpers), counted_batches(helpers)
        with contextlib.closing(contender.batches(setting.work, orders, setting.workers)) as given:
            for numbers, result in given:
                if setting.work == "raw":
                    wrong = contender.truth.find_wrong_raw(numbers, tuple(result))
                    if wrong:
                        raise WrongDataError.at(contender.files[0].parent, f"{contender.name}: {wrong}")
                    count += result[0]
                else:
                    if len(result) != len(numbers):
                        problem = f"{contender.name}: {len(result)} samples of {len(numbers)} were given"
                        raise WrongDataError.at(contender.files[0].parent, problem)
                    count += len(result)
                    if len(rows) < _ROWS:
                        place = batches % len(result)
                        noted = noted_row(result[place], same_decoder=contender.same_decoder)
                        rows.append((contender.expected_row(numbers[place]), noted))
                now = perf_counter()
                batches += 1
                if batches == started:
                    begun, counted = now, count
                elif batches >= started + least and now - start >= seconds:
                    break
        for row in rows:
            wrong = contender.truth.find_wrong_row(row, same_decoder=contender.same_decoder)
            if wrong:
                raise WrongDataError.at(contender.files[0].parent, f"{contender.name}: {wrong}")
        return (count - counted) / (now - begun) if count > counted else None

    def _orders(self, contender: Contender, setting: Setting, turn: int) -> Iterator[list[int]]:
        """Numbers of batch after batch; cold each sample once, warm again and again, in another order each time."""
        numbers = contender.picks if setting.order == "shuffled" else contender.runs
        epoch = 0
        while True:
            if setting.order == "shuffled":
                places = permuted(np.arange(len(numbers)), len(numbers), self.seed, 1 + turn, epoch)
                order = numbers[places].tolist()
            else:
                order = numbers.tolist()
            batch = self.batches[setting.work]
            for first in range(0, len(order), batch):
                yield order[first : first + batch]
            if setting.cache == "cold":
                return
            epoch += 1

    def _warm_up(self) -> None:
        for contender in self.contenders:
            if not contender.files or not contender.does("raw", "warm", "shuffled"):
                continue
            source: Any = contender.opened("raw")
            for numbers in _distinct(contender):
                for first in range(0, len(numbers), _CHUNK):
                    source[numbers[first : first + _CHUNK]]

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def timings(self) -> tuple[Timing, ...]:
        """All that was measured, setting by setting."""
        settings = sorted({setting for _, setting in self._rates})
        wanted = [(contender.name, setting) for setting in settings for contender in self.contenders]
        return tuple(Timing(*key, tuple(self._rates[key])) for key in wanted if key in self._rates)


def first_cold_cache(contenders: Sequence[Contender]) -> Cache:
    """Find out whether pages can be dropped here, before it is relied on."""
    files = [path for contender in contenders for path in contender.files]
    if not drop(files):
        return Cache(False, 1.0, "this system has no call to drop pages")
    share = cached_share(files)
    if share is None:
        return Cache(None, 0.0, "this system does not say which pages are in memory")
    if share > _COLD_SHARE:
        return Cache(False, share, f"{share:.0%} of the pages stayed in memory when they were dropped")
    return Cache(True, share, "")


def _distinct(contender: Contender) -> Iterator[list[int]]:
    yield contender.runs.tolist()
    if contender.picks is not contender.runs:
        yield contender.picks.tolist()
