"""What a watched loader does just now, as a table of text and as values for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from packer.doctor.process import waits_in_words
from packer.doctor.watch import Series, Watch
from packer.words import size_text

__all__ = ["COLUMNS", "rows_of", "values_of"]

COLUMNS = ("pid", "role", "state", "CPUs", "private", "a minute", "shared", "files", "waits for")


def rows_of(watch: Watch, *, ended: bool = False) -> list[tuple[str, ...]]:
    """A row for each process, as ``COLUMNS`` names its cells; those that ended only where they are wanted."""
    stuck = {series.last.pid for series in watch.stuck()}
    return [_row(series, series.last.pid in stuck) for series in (watch.series.values() if ended else watch.alive())]


def _row(series: Series, is_stuck: bool) -> tuple[str, ...]:
    last = series.last
    grows = series.growth_bytes_s
    waits = waits_in_words(last.waits_for)
    return (
        str(last.pid),
        series.role,
        last.state if series.ended is None else "ended",
        f"{series.cpu_share:.2f}",
        _size(last.private_bytes),
        f"+{size_text(grows * 60)}" if grows else "",
        _size(last.shared_bytes),
        "?" if last.open_files is None else str(last.open_files),
        f"{waits} STUCK" if is_stuck else waits,
    )


def _size(count: int | None) -> str:
    return "?" if count is None else size_text(count)


def values_of(watch: Watch) -> dict[str, Any]:
    """Everything that was read and found, as JSON can hold it."""
    return {
        "pid": watch.pid,
        "seconds": round(watch.seconds, 3),
        "findings": [asdict(finding) for finding in watch.findings()],
        "processes": [
            {
                "pid": series.last.pid,
                "parent": series.last.parent,
                "name": series.last.name,
                "role": series.role,
                "ended_s": series.ended,
                "growth_bytes_s": series.growth_bytes_s,
                "stack": list(series.stack),
                "readings": [
                    {
                        "s": round(when, 3),
                        "state": one.state,
                        "cpu_s": round(one.cpu_s, 3),
                        "private_bytes": one.private_bytes,
                        "shared_bytes": one.shared_bytes,
                        "open_files": one.open_files,
                        "threads": one.threads,
                        "waits_for": one.waits_for,
                    }
                    for when, one in zip(series.times, series.readings, strict=True)
                ],
            }
            for series in watch.series.values()
        ],
    }
