"""``pack doctor``: what on this machine, in these settings or in this data will end a loader; or what a running one does."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packer.cli.show import emit, escape, plural, size
from packer.errors import OutputError

if TYPE_CHECKING:
    from packer.doctor.facts import Facts
    from packer.doctor.finding import Finding
    from packer.doctor.watch import Watch

__all__ = ["command"]

_EVERY_S = 1.0
_NEXT_LINES_S = 10.0
_FILE = click.Path(dir_okay=False, path_type=Path)
_POSITIVE = click.IntRange(1)


@click.command("doctor")
@click.argument("dataset", required=False, type=click.Path(readable=False, path_type=Path))
@click.option("--workers", type=click.IntRange(0, 10_000), help="num_workers of your loader. [default: the CPUs it may use]")
@click.option("--batch-size", type=_POSITIVE, help="batch_size of your loader. [default: 64]")
@click.option("--prefetch", type=_POSITIVE, help="prefetch_factor of your loader. [default: 2]")
@click.option("--pid", type=_POSITIVE, help="Watch this running process and its workers, until Ctrl-C.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="With --pid: end after so long.")
@click.option("--html", "html_file", type=_FILE, metavar="FILE", help="With --pid: write a page with a plot in the end.")
@click.option("--png", "png_file", type=_FILE, metavar="FILE", help="With --pid: write the plot in the end.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as one JSON object.")
@click.pass_context
def command(
    ctx: click.Context,
    dataset: Path | None,
    workers: int | None,
    batch_size: int | None,
    prefetch: int | None,
    pid: int | None,
    seconds: float | None,
    html_file: Path | None,
    png_file: Path | None,
    as_json: bool,
) -> None:
    """Say what will end or slow a DataLoader: on this machine, with these settings, with DATASET.

    DATASET is a packed dataset or a folder of files. With --pid: what a running loader does, who grows, who is stuck.

    Exit status 0 when nothing of weight was found, 1 when something was.
    """
    if pid is None:
        if seconds is not None or html_file or png_file:
            raise click.UsageError("--seconds, --html and --png go with --pid.")
        sound = _look(dataset, workers, batch_size or 64, prefetch or 2, as_json)
    else:
        if dataset is not None or (workers, batch_size, prefetch) != (None, None, None):
            raise click.UsageError(
                "--pid watches a process; DATASET, --workers, --batch-size and --prefetch do not go with it."
            )
        if html_file or png_file:
            from packer.bench.figure import require_matplotlib

            require_matplotlib()
            for file in filter(None, (html_file, png_file)):
                _require_writable(file)
        sound = _watch(pid, seconds, html_file, png_file, as_json)
    if not sound:
        ctx.exit(1)


def _look(dataset: Path | None, workers: int | None, batch_size: int, prefetch: int, as_json: bool) -> bool:
    from packer.doctor.facts import gather
    from packer.doctor.findings import find, is_sound

    facts = gather(dataset, workers=workers, batch_size=batch_size, prefetch=prefetch)
    findings = find(facts)
    sound = is_sound(findings)
    if as_json:
        emit(json.dumps({"sound": sound, "findings": [asdict(one) for one in findings], "facts": facts.as_values()}))
        return sound
    emit(f"{name + ':':<10}{escape(value)}" for name, value in _facts(facts))
    emit("")
    _show(findings)
    return sound


def _facts(facts: Facts) -> Iterator[tuple[str, str]]:
    system, data = facts.system, facts.data
    torch = f"torch {facts.torch}" if facts.torch else "torch is not installed"
    yield "machine", f"{system.system}, {plural(system.cpus, 'CPU')}, Python {system.python}, {torch}"
    limit = system.group.limit_bytes if system.group else None
    memory = [] if system.memory_bytes is None else [size(system.memory_bytes)]
    memory += [] if system.available_bytes is None else [f"{size(system.available_bytes)} available"]
    yield "memory", ", ".join([*memory, f"at most {size(limit)} for this job" if limit else "no limit for this job is known"])
    if system.shared:
        yield "/dev/shm", f"{size(system.shared.total_bytes)}, {size(system.shared.free_bytes)} free"
    yield (
        "loader",
        f"{plural(facts.workers, 'worker')}, started by {system.start_method}, {facts.prefetch} batches of "
        f"{facts.batch_size} ahead: up to {size(facts.waiting_bytes)} in shared memory",
    )
    if data is None or data.kind == "missing":
        return
    what = f"{data.format}, {plural(data.samples, 'sample')}" if data.kind == "packed" else f"{plural(data.samples, 'file')}"
    free = "" if data.free_bytes is None else f", {size(data.free_bytes)} free"
    yield "data", f"{data.path}: {what}{'' if data.counted else ' at least'}, on {data.file_system}{free}"
    probe = data.probe
    if probe.samples:
        rate = probe.samples / max(probe.seconds, 1e-6)
        yield (
            "reading",
            f"{plural(probe.samples, 'sample')} at random, {size(probe.size_bytes)}, {rate:,.0f} a second by one process "
            "(what was read before comes from memory)",
        )


def _show(findings: Sequence[Finding]) -> None:
    for one in findings:
        emit(f"{one.weight}: {escape(one.title)}")
        emit(f"    seen: {escape(fact)}" for fact in one.evidence)
        emit(f"    do:   {escape(one.cure)}")
        emit(f"    see:  {escape(one.source)}")
    if all(one.weight == "note" for one in findings):
        emit("nothing of weight found")


def _watch(pid: int, seconds: float | None, html_file: Path | None, png_file: Path | None, as_json: bool) -> bool:
    from packer.doctor.watch import Watch
    from packer.doctor.watchtable import values_of

    watch = Watch(pid)
    runs, interrupted = True, False
    try:
        with _display(as_json) as show:
            while runs and (seconds is None or watch.seconds < seconds):
                begun = watch.seconds
                runs = watch.read()
                show(watch)
                left = float("inf") if seconds is None else seconds - watch.seconds
                time.sleep(max(0.0, min(begun + _EVERY_S - watch.seconds, left)) if runs else 0)
    except KeyboardInterrupt:
        interrupted = True  # the usual end: what was found is shown
    findings = watch.findings()
    if as_json:
        emit(json.dumps({"sound": not findings, "runs": runs, **values_of(watch)}))
    else:
        if not runs:
            emit(f"process {pid} ended, {watch.seconds:.0f} s after the watching began")
        elif interrupted or not sys.stderr.isatty():
            emit(_table(watch))
        _show(findings)
    _write(watch, html_file, png_file)
    return not findings


def _require_writable(file: Path) -> None:
    """Before hours of watching, and not after."""
    place = file if file.exists() else file.parent
    if not os.access(place, os.W_OK):
        raise OutputError(f"{file}: {'cannot be written' if place.exists() else f'there is no folder {place}'}")


def _write(watch: Watch, html_file: Path | None, png_file: Path | None) -> None:
    if html_file is None and png_file is None:
        return
    from packer.doctor.figure import draw_png
    from packer.doctor.page import make_page

    page: Callable[[Path], Any] = lambda path: path.write_text(  # noqa: E731 - one of two ways to fill a file
        make_page(watch, f"pack doctor --pid {watch.pid}"), encoding="utf-8"
    )
    for file, fill in ((html_file, page), (png_file, lambda path: draw_png(watch, path))):
        if file is not None:
            try:
                fill(file)
            except OSError as error:
                raise OutputError(f"{file}: {error.strerror or error}") from error


def _table(watch: Watch) -> list[str]:
    from packer.doctor.watchtable import COLUMNS, rows_of

    rows = [COLUMNS, *(tuple(map(escape, row)) for row in rows_of(watch))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


@contextlib.contextmanager
def _display(quiet: bool) -> Iterator[Callable[[Watch], None]]:
    """A table on standard error: one that refreshes on a terminal, and elsewhere a new one now and then."""
    if quiet:
        yield lambda watch: None
        return
    if not sys.stderr.isatty():
        yield _PlainTables()
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(stderr=True), auto_refresh=False) as live:
        yield lambda watch: live.update(Text("\n".join(_table(watch)), no_wrap=True, overflow="ellipsis"), refresh=True)


class _PlainTables:
    """The first at once, so that a log shows that it works."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, watch: Watch) -> None:
        if watch.seconds >= self._next:
            self._next = watch.seconds + _NEXT_LINES_S
            sys.stderr.write("\n".join([f"after {watch.seconds:.0f} s:", *_table(watch)]) + "\n")
            sys.stderr.flush()
