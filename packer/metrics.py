"""How a loader does, batch by batch, as plain numbers."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from packer.workerlog import Said

__all__ = ["BatchMetrics", "OnBatch", "Work", "anonymous_bytes"]

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


@dataclass(frozen=True, slots=True)
class BatchMetrics:
    """What it took to give out a batch. Seconds are of the wall clock.

    Attributes:
        batch: number of the batch in this iteration, from 0.
        samples: in it.
        skipped: samples left out by this loader so far.
        wait_s: that the loop has waited for it. Where this is not small beside a step, the loader is what is slow.
        decode_s: that reading and decoding it took, in whatever process or thread.
        transform_s: that transforms and putting it together took.
        samples_per_s: given out since the iteration began.
        worker: number of the process that made it; -1 for this process.
        memory_bytes: anonymous memory of that process, what a fork left it of its parent's included; 0 where the system does
            not tell.
    """

    batch: int
    samples: int
    skipped: int
    wait_s: float
    decode_s: float
    transform_s: float
    samples_per_s: float
    worker: int
    memory_bytes: int


OnBatch = Callable[[BatchMetrics], object]


class Work(NamedTuple):
    """Of one batch: who made it, how long that took, and what was said meanwhile."""

    decode_s: float = 0.0
    transform_s: float = 0.0
    worker: int = -1
    memory_bytes: int = 0
    said: tuple[Said, ...] = ()


def anonymous_bytes() -> int:
    """Memory of this process that is not of files (Linux: resident without shared); 0 elsewhere. 5 µs, where the exact
    ``smaps_rollup`` takes a millisecond.
    """
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - once a batch
            _, resident, shared = map(int, file.read().split()[:3])
    except (OSError, ValueError):
        return 0
    return (resident - shared) * _PAGE_BYTES
