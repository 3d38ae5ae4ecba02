"""Progress on standard error: a live line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from packer.options import Progress

__all__ = ["progress_display"]

_FIRST_LINE_S = 1.5
_NEXT_LINES_S = 10.0
_REFRESH_S = 0.1
_MARK_EVERY_S = 1.0
_WINDOW_S = 30.0
_VERBS = {
    "scan": "scanning",
    "resume": "resuming",
    "pack": "packing",
    "check": "checking",
    "convert": "converting",
    "unpack": "unpacking",
    "verify": "reading back",
}


@contextmanager
def progress_display(quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """A function to be called with each step; what it shows is gone, on a terminal, when the context ends."""
    if quiet:
        yield lambda progress: None
    elif sys.stderr.isatty():
        with _live_line() as show:
            yield show
    else:
        yield _PlainLines()


class _PlainLines:
    """The first line within two seconds, so that a log shows at once that the job is alive."""

    def __init__(self) -> None:
        self._rate = _Rate()
        self._next = time.monotonic() + _FIRST_LINE_S

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        rate = self._rate.after(progress, now)
        if now >= self._next:
            self._next = now + _NEXT_LINES_S
            sys.stderr.write(f"{_VERBS[progress.stage]}: {_describe(progress, rate)}\n")
            sys.stderr.flush()


class _Rate:
    """Files and bytes a second over the last half minute of a stage; is told of every step, to know when that began.

    Not since the stage began: a job that goes on from an unfinished one passes over what was checked before in no time.
    """

    def __init__(self) -> None:
        self._stage = ""
        self._marks: deque[tuple[float, int, int]] = deque()

    def after(self, progress: Progress, now: float) -> tuple[float, float]:
        if progress.stage != self._stage:
            self._stage = progress.stage
            self._marks = deque([(now, progress.done, progress.done_bytes)])
        if now - self._marks[-1][0] >= _MARK_EVERY_S:
            self._marks.append((now, progress.done, progress.done_bytes))
            while len(self._marks) > 2 and now - self._marks[1][0] > _WINDOW_S:
                self._marks.popleft()
        since, done, done_bytes = self._marks[0]
        seconds = max(now - since, 1e-3)
        return (progress.done - done) / seconds, (progress.done_bytes - done_bytes) / seconds


def _describe(progress: Progress, rate: tuple[float, float]) -> str:
    files, bytes_ = rate
    parts = [f"{progress.done:,} files" if progress.total is None else f"{progress.done:,} of {progress.total:,}"]
    if files >= 1:
        parts.append(f"{files:,.0f} files/s")
    if bytes_ >= 1e5:
        parts.append(f"{bytes_ / 1e6:,.1f} MB/s")
    if progress.skipped:
        parts.append(f"{progress.skipped:,} skipped")
    if progress.total and files >= 1:
        parts.append(f"{_duration((progress.total - progress.done) / files)} left")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


@contextmanager
def _live_line() -> Iterator[Callable[[Progress], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[text]}"),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None, text="")
        rate = _Rate()
        shown, stage = 0.0, ""

        def show(progress: Progress) -> None:
            nonlocal shown, stage
            now = time.monotonic()
            speed = rate.after(progress, now)
            is_new = progress.stage != stage  # what begins is shown, however short it is
            if is_new or now - shown >= _REFRESH_S or progress.done == progress.total:
                shown, stage = now, progress.stage
                verb, text = _VERBS[stage], _describe(progress, speed)
                bar.update(task, description=verb, total=progress.total, completed=progress.done, text=text, refresh=is_new)

        yield show
