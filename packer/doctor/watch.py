"""A running process and its children, read again and again: who grows, who waits, and for what."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from packer.doctor import sources
from packer.doctor.finding import SERIOUS, WARNING, Finding
from packer.doctor.process import PROC, Reading, command_line, family, may_read, read_process, role_of, waits_in_words
from packer.doctor.stacks import python_stack
from packer.errors import PackerError
from packer.words import size_text

__all__ = ["GROWTH_BYTES_S", "STUCK_S", "Series", "Watch", "growth_of"]

GROWTH_BYTES_S = (1 << 20) / 60
"""From a megabyte a minute on, a process is said to grow."""

STUCK_S = 5.0
"""So long without any CPU, and a worker is said to be stuck; torch's own waiting wakes up every five seconds."""

_LEAST_S = 5.0
_LEAST_READINGS = 6
_LEAST_GROWTH = 1 << 20
_MOST_READINGS = 600  # then every second one is dropped: an hour and a week look alike
_MOST_PROCESSES = 500
_IDLE_CPU_S = 0.015  # one clock tick


@dataclass(slots=True)
class Series:
    """The readings of one process, at most 600.

    Attributes:
        role: ``main``, ``worker``, ``helper`` or ``child``.
        times: seconds since the watching began.
        readings: as many.
        idle_since: the time since when it has used no CPU.
        ended: the time when it was gone, ``None`` while it is there.
        stack: its Python stack, taken when it was found stuck; a line a function, empty where it could not be had.
    """

    role: str
    times: list[float] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    idle_since: float = 0.0
    ended: float | None = None
    stack: tuple[str, ...] = ()

    @property
    def last(self) -> Reading:
        """The latest reading."""
        return self.readings[-1]

    @property
    def cpu_share(self) -> float:
        """CPUs that it used between the two latest readings."""
        if len(self.times) < 2:
            return 0.0
        return (self.readings[-1].cpu_s - self.readings[-2].cpu_s) / max(1e-6, self.times[-1] - self.times[-2])

    @property
    def growth_bytes_s(self) -> float:
        """How fast its private memory grows, 0 where it does not keep growing."""
        private = [reading.private_bytes for reading in self.readings]
        return growth_of(self.times, [one for one in private if one is not None]) if None not in private else 0.0

    def add(self, seconds: float, reading: Reading) -> None:
        """Take in a reading."""
        if not self.readings or reading.cpu_s - self.last.cpu_s > _IDLE_CPU_S or reading.state == "R":
            self.idle_since, self.stack = seconds, ()
        self.times.append(seconds)
        self.readings.append(reading)
        if len(self.times) > _MOST_READINGS:
            # The latest two stay, of which the CPU's use is told.
            self.times[:-2], self.readings[:-2] = self.times[:-2:2], self.readings[:-2:2]


def growth_of(times: list[float], values: list[int]) -> float:
    """Bytes a second by which memory keeps growing; 0 where it is level, falls, or has grown at the start only.

    Its minimum must rise from each third of the time to the next, by a megabyte in all, and to the last third still at a
    third of the pace of the whole: neither batches that come and go nor what a process takes while it warms up are a leak.
    """
    if len(values) < _LEAST_READINGS or times[-1] - times[0] < _LEAST_S:
        return 0.0
    cuts = [times[0] + (times[-1] - times[0]) * share for share in (1 / 3, 2 / 3)]
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    for when, value in zip(times, values, strict=True):
        parts[sum(when > cut for cut in cuts)].append(value)
    if not all(parts):
        return 0.0
    first, second, third = map(min, parts)
    if not first < second < third or third - first < _LEAST_GROWTH:
        return 0.0
    slope = (third - first) / ((times[-1] - times[0]) * 2 / 3)
    still = (third - second) / ((times[-1] - times[0]) / 3)
    return slope if slope >= GROWTH_BYTES_S and still >= slope / 3 else 0.0


class Watch:
    """Reads a process and all below it.

    Args:
        pid: of the training process.
        proc: where its files are.

    Raises:
        PackerError: there is no such process, it is somebody else's, or the system shows none.
    """

    def __init__(self, pid: int, proc: Path = PROC) -> None:
        self.pid = pid
        self.series: dict[tuple[int, int], Series] = {}
        self._proc = proc
        self._start = time.monotonic()
        if not Path(proc, "self").exists() and sys.platform != "linux":
            raise PackerError(f"processes are watched through /proc, which {sys.platform} does not have: use Linux, or py-spy")
        root = read_process(pid, proc)
        if root is None:
            raise PackerError(f"there is no process {pid} (any more)")
        if root.state == "Z":
            raise PackerError(f"process {pid} ({root.name}) has ended; its parent has not asked for its exit status yet")
        if not may_read(pid, proc):
            raise PackerError(
                f"process {pid} ({root.name}) belongs to another user: run `pack doctor --pid` as that user or as root"
            )
        self._identity = (pid, root.started)
        self._command = command_line(pid, proc)

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._start

    def read(self) -> bool:
        """Read all processes once more; whether the watched one still runs."""
        now = self.seconds
        seen = set()
        for pid in family(self.pid, self._proc)[:_MOST_PROCESSES]:
            reading = read_process(pid, self._proc)
            if reading is None or reading.state == "Z":
                continue
            key = (pid, reading.started)
            seen.add(key)
            if key not in self.series:
                command = command_line(pid, self._proc)
                self.series[key] = Series(role_of(reading, self.pid, command, self._command))
            self.series[key].add(now, reading)
        for key, series in self.series.items():
            if key not in seen and series.ended is None:
                series.ended = now
        self._forget_some()
        for series in self.stuck():
            if not series.stack:
                series.stack = python_stack(series.last.pid)
        return self._identity in seen

    def alive(self) -> Iterator[Series]:
        """Those that still run, in the order in which they were found."""
        return (series for series in self.series.values() if series.ended is None)

    def stuck(self) -> list[Series]:
        """Workers that have used no CPU for a while: they wait for a disk, or for something else while all of them wait."""
        main = self.series.get(self._identity)
        waiting = main is not None and main.ended is None and self._idle_s(main) >= STUCK_S
        return [
            series
            for series in self.alive()
            if series.role in ("worker", "child")
            and self._idle_s(series) >= STUCK_S
            and (series.last.state == "D" or (waiting and "poll" not in waits_in_words(series.last.waits_for)))
        ]

    def findings(self) -> list[Finding]:
        """What is wrong so far, the weightiest first."""
        found = [_stuck(series, self._idle_s(series)) for series in self.stuck()]
        growing = [series for series in self.series.values() if series.growth_bytes_s and series.role != "helper"]
        return found + [_growing(series) for series in growing]

    def _idle_s(self, series: Series) -> float:
        return series.times[-1] - series.idle_since

    def _forget_some(self) -> None:
        """Workers of earlier epochs, the oldest first."""
        ended = [key for key, series in self.series.items() if series.ended is not None]
        for key in ended[: max(0, len(self.series) - _MOST_PROCESSES)]:
            del self.series[key]


def _growing(series: Series) -> Finding:
    first, last = series.readings[0].private_bytes or 0, series.last.private_bytes or 0
    return Finding(
        "growing_memory",
        WARNING,
        f"{series.role} {series.last.pid} keeps growing",
        (
            f"its private memory went from {size_text(first)} to {size_text(last)} in "
            f"{series.times[-1] - series.times[0]:.0f} s, {size_text(series.growth_bytes_s * 60)} a minute",
        ),
        "in a forked worker: keep paths and labels in arrays, not in lists of Python objects, whose counters copy the memory "
        "of the parent page by page; anywhere: do not collect losses or batches (loss.item()); `persistent_workers=False` ends "
        "workers with each epoch",
        sources.LIST_GROWTH,
    )


def _stuck(series: Series, idle_s: float) -> Finding:
    last = series.last
    waits = f"waits for {waits_in_words(last.waits_for)} ({last.waits_for})" if last.waits_for else "waits"
    disk = last.state == "D"
    return Finding(
        "stuck_worker",
        SERIOUS,
        f"{series.role} {last.pid} is stuck",
        (f"it has used no CPU for {idle_s:.0f} s, state {last.state}, {waits}", *series.stack),
        "its disk or file server does not answer: look at the server, or copy the data to a local disk"
        if disk
        else "where it waits for a lock it was probably forked while another thread held that: "
        'DataLoader(..., multiprocessing_context="forkserver"), cv2.setNumThreads(0)'
        + ("" if series.stack else "; `pip install py-spy` shows the line that it is in"),
        sources.WAIT_CHANNEL if disk else sources.CUDA_FORK.partition("#")[0],
    )
