"""Which settings are measured, how often and how long, so that the whole ends in time. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from packer.bench.results import CACHES, ORDERS, WORKS, Setting

__all__ = ["RUN_S", "Plan", "counted_batches", "first_batches", "make_plan", "settings", "usual_batch", "worker_counts"]

RUN_S = 0.4
"""Seconds that a run is wanted to last."""
SHORTEST_RUN_S = 0.12
REPETITIONS = (3, 9)
_BATCH = 64
_BATCHES_A_RUN = 12


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured.

    Attributes:
        settings: those that there is time for.
        left_out: those that there is none for.
        repetitions: of each.
        seconds: that the settings take at least.
    """

    settings: tuple[Setting, ...]
    left_out: tuple[Setting, ...]
    repetitions: int
    seconds: float


def worker_counts(cpus: int, samples: int, *, has_torch: bool) -> list[int]:
    """0, 1, 2, 4 ... and the number of CPUs; fewer where there are not enough samples to keep them busy."""
    counts = [0, *(1 << i for i in range(cpus.bit_length()) if 1 << i < cpus), cpus] if has_torch else [0]
    return [count for count in counts if not count or samples >= first_batches(count) + counted_batches(count)]


def first_batches(workers: int) -> int:
    """Batches of a run that are given before the clock starts."""
    return max(1, 2 * workers)


def counted_batches(workers: int) -> int:
    """Batches of a run that are timed at least: several times as many as the workers may have ready when the clock starts."""
    return max(6, 4 * workers)


def usual_batch(samples: int, most_workers: int, decode_s: float = 0.0) -> int:
    """Samples a batch: 64, or a smaller power of two.

    Args:
        samples: that there are: a cold run reads each once, and its first batches are not in the time.
        most_workers: of any setting.
        decode_s: seconds that decoding a sample takes: a run must have several batches.
    """
    fewest = first_batches(most_workers) + counted_batches(most_workers)
    batch = _BATCH
    while batch > 1 and (batch * fewest > samples or batch * decode_s > RUN_S / _BATCHES_A_RUN):
        batch //= 2
    return batch


def settings(workers: Sequence[int], caches: Sequence[str] = CACHES) -> list[Setting]:
    """All settings, the more important first: what is measured when there is no time for all."""
    most = max(workers)
    return sorted(
        (Setting(*values) for values in product(WORKS, caches, ORDERS, workers)),
        key=lambda one: (one.workers not in (0, most), one.order != "shuffled", one.work != "decoded", one.workers),
    )


def make_plan(
    wanted: Sequence[Setting], seconds: float, contenders: Callable[[Setting], int], cost_s: Callable[[Setting], float]
) -> Plan:
    """Take as many settings as there is time for, each at least three times; more often where time is left.

    Args:
        wanted: the more important first; the first is always taken.
        seconds: for all.
        contenders: how many take part in a setting.
        cost_s: what a run takes beside its measured time, at least.
    """
    taken: list[Setting] = []
    least = wished = 0.0
    for one in wanted:
        count, cost = contenders(one), cost_s(one)
        if taken and REPETITIONS[0] * (least + count * (cost + SHORTEST_RUN_S)) > seconds:
            break
        taken.append(one)
        least += count * (cost + SHORTEST_RUN_S)
        wished += count * (cost + RUN_S)
    fewest, most = REPETITIONS
    return Plan(tuple(taken), tuple(wanted[len(taken) :]), max(fewest, min(most, int(seconds / wished))), fewest * least)
