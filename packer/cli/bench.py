"""``pack bench``: which format is fastest for these files on this disk."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packer.cli.inputs import FOLDER
from packer.cli.show import emit, escape, short_path
from packer.errors import OutputError
from packer.options import Progress

if TYPE_CHECKING:
    from packer.bench.results import Findings

__all__ = ["command"]

_VERBS = {"scan": "scanning", "check": "checking the sample", "pack": "packing the sample", "measure": "measuring"}
_NEXT_LINES_S = 10.0
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


class _Space(click.ParamType[int]):
    """A number of bytes: ``500MB``, ``2GB``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([kmgt]?)b?", str(value).strip(), re.IGNORECASE | re.ASCII)
        if found is None or not (size := int(float(found[1]) * _UNITS[found[2].lower()])):
            self.fail(f"{value!r} is no size such as 500MB or 2GB", param, ctx)
        return size


_FILE = click.Path(readable=False, path_type=Path)


@click.command("bench")
@click.argument("sources", metavar="SRC|DATASET...", type=FOLDER, nargs=-1, required=True)
@click.option("--samples", type=click.IntRange(min=1), default=3000, show_default=True, help="Measure with so many files.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=1, max=86_400),
    default=150,
    show_default=True,
    help="Take so long; more gives more repetitions.",
)
@click.option("--space", type=_Space(), default="2GB", show_default=True, help="Take so much of the disk meanwhile.")
@click.option(
    "--scratch",
    type=FOLDER,
    metavar="DIR",
    help="Make the scratch folder there, on the disk to measure.  [default: beside SRC]",
)
@click.option(
    "--seed", type=click.IntRange(min=0, max=2**63 - 1), default=0, show_default=True, help="Of the sample and the orders."
)
@click.option("--json", "json_file", type=_FILE, metavar="FILE", help="Write everything as one JSON object.")
@click.option("--html", "html_file", type=_FILE, metavar="FILE", help="Write one page with plots and tables.")
@click.option("--png", "png_file", type=_FILE, metavar="FILE", help="Write the plots as a picture.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, no tables: the advice alone.")
def command(
    sources: tuple[Path, ...],
    samples: int,
    seconds: float,
    space: int,
    scratch: Path | None,
    seed: int,
    json_file: Path | None,
    html_file: Path | None,
    png_file: Path | None,
    quiet: bool,
) -> None:
    """Measure which format is fastest for your files on your disk, or whether any is.

    A sample of the folder SRC is packed into every format in a scratch folder, which is removed in the end. Reading the loose
    files and the packed ones is compared: cold and warm, shuffled and in order, raw and decoded, with 0, 1, 2 ... workers.
    Packed datasets are compared with each other as they are.
    """
    from packer.bench.bench import BenchOptions, compare_datasets, compare_formats
    from packer.bench.figure import require_matplotlib
    from packer.scan import is_packed_dataset

    packed = [is_packed_dataset(path) for path in sources]
    if len(sources) > 1 and not all(packed):
        raise click.UsageError(
            "One folder of files is measured, or packed datasets are compared; not both, and not two folders."
        )
    if scratch is not None and all(packed):
        raise click.UsageError("--scratch is for a folder of files; packed datasets are measured where they are.")
    for file in (json_file, html_file, png_file):
        if file is not None:
            _require_writable(file, sources)
    if html_file or png_file:
        require_matplotlib()
    options = BenchOptions(samples=samples, seconds=seconds, space_bytes=space, scratch=scratch, seed=seed)
    with _display(quiet) as on_progress:
        if all(packed):
            findings = compare_datasets(_named(sources), options, on_progress)
        else:
            findings = compare_formats(sources[0], escape(short_path(sources[0])), options, on_progress)
    _write(findings, json_file, html_file, png_file)
    _show(findings, quiet)


def _named(datasets: tuple[Path, ...]) -> dict[str, Path]:
    """Datasets by the shortest names that tell them apart."""
    names = [escape(path.name or str(path)) for path in datasets]
    if len(set(names)) < len(names):
        names = [escape(str(path)) for path in datasets]
    if len(set(names)) < len(names):
        raise click.UsageError("The same dataset is given twice.")
    return dict(zip(names, datasets, strict=True))


def _require_writable(file: Path, sources: tuple[Path, ...]) -> None:
    """Before minutes of measuring, and not after."""
    folder = Path(os.path.realpath(file)).parent
    if not folder.is_dir():
        raise OutputError(f"{file}: there is no folder {folder}. Make it first (mkdir -p).")
    if any(Path(os.path.realpath(source)) in (folder, *folder.parents) for source in sources):
        raise OutputError(f"{file}: lies in what is measured, which is never changed; choose another place")
    if file.is_dir() or not os.access(file if file.exists() else folder, os.W_OK):
        raise OutputError(f"{file}: cannot be written")


def _write(findings: Findings, json_file: Path | None, html_file: Path | None, png_file: Path | None) -> None:
    from packer.bench.advice import advise
    from packer.bench.figure import draw_png
    from packer.bench.page import make_page

    for file, write in (
        (
            json_file,
            lambda path: path.write_text(json.dumps({**findings.as_values(), "advice": advise(findings)}, indent=1) + "\n"),
        ),
        (html_file, lambda path: path.write_text(make_page(findings), encoding="utf-8")),
        (png_file, lambda path: draw_png(findings, path)),
    ):
        if file is not None:
            try:
                write(file)
            except OSError as error:
                raise OutputError(f"{file}: {error.strerror or error}") from error


def _show(findings: Findings, quiet: bool) -> None:
    from packer.bench.advice import advise
    from packer.bench.tables import facts, tables

    if quiet:
        emit(advise(findings))
        return
    import io

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    buffer = io.StringIO()
    is_terminal = sys.stdout.isatty()
    console = Console(file=buffer, force_terminal=is_terminal, width=None if is_terminal else 160, highlight=False)
    for one in tables(findings):
        console.print(Text(one.title, style="bold"), soft_wrap=True)  # a title of the table would be folded to its width
        shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for place, column in enumerate(one.columns):
            shown.add_column(Text(column), justify="left" if place < one.left else "right", overflow="fold")
        for row in one.rows:
            shown.add_row(*map(Text, row))
        console.print(shown)
        console.print()
    for name, value in facts(findings):
        console.print(Text(f"{name + ':':<10}{value}"), soft_wrap=True)
    console.print()
    console.print(Text(advise(findings), style="bold"))
    emit(buffer.getvalue().rstrip("\n"))


@contextlib.contextmanager
def _display(quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """Progress on standard error, without the thread that others have: worker processes are forked while it is shown."""
    if quiet:
        yield lambda progress: None
        return
    if not sys.stderr.isatty():
        yield _PlainLines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[text]}"))
    with Bar(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("starting", total=None, text="")
        shown = 0.0

        def show(progress: Progress) -> None:
            nonlocal shown
            now = time.monotonic()
            if now - shown >= 0.1 or progress.done == progress.total:
                shown = now
                bar.update(
                    task,
                    description=_VERBS.get(progress.stage, progress.stage),
                    total=progress.total,
                    completed=progress.done,
                    text=_described(progress),
                    refresh=True,
                )

        yield show


class _PlainLines:
    """A line when a stage begins, and now and then."""

    def __init__(self) -> None:
        self._stage = ""
        self._next = 0.0

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.stage != self._stage or now >= self._next:
            self._stage, self._next = progress.stage, now + _NEXT_LINES_S
            sys.stderr.write(f"{_VERBS.get(progress.stage, progress.stage)}: {_described(progress)}\n")
            sys.stderr.flush()


def _described(progress: Progress) -> str:
    what = "runs" if progress.stage == "measure" else "files"
    return f"{progress.done:,} {what}" if progress.total is None else f"{progress.done:,} of {progress.total:,} {what}"
