"""The options about the input, which packing and checking share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from packer.cli.show import emit, escape, listed, plural, warn
from packer.options import SKIPPABLE_CODES, InputSummary

__all__ = ["FOLDER", "Function", "emit_findings", "emit_rows", "input_options", "input_values", "warn_if_mostly_skipped"]


class _Folder(click.Path):
    """A path that is not empty: ``pack "$DATA"`` where nothing is in DATA would otherwise take the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value):
            self.fail("the name of the folder is empty", param, ctx)
        return super().convert(value, param, ctx)


FOLDER = _Folder(readable=False, path_type=Path)

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--labels",
        type=click.Choice(["auto", "folder", "number", "none"]),
        default="auto",
        show_default=True,
        help="Class folders give the labels; number: the folder's name is the label.",
    ),
    click.option(
        "--classes-from",
        type=click.Path(readable=False, path_type=Path),
        metavar="DATASET|FILE",
        help="Take classes and labels from a packed dataset, or from a file with one class a line.",
    ),
    click.option("--follow-links", is_flag=True, help="Follow links that lead out of SRC."),
    click.option(
        "--skip", multiple=True, metavar="CODE,...", help=f"Skip files with these warnings: {', '.join(SKIPPABLE_CODES)}."
    ),
    click.option(
        "--max-skipped",
        metavar="N|P%",
        help="Fail with status 3, and write nothing, where more files are skipped.  [default: 100%]",
    ),
    click.option("--strict", is_flag=True, help="The same as --max-skipped 0."),
    click.option(
        "--checksums",
        type=click.Path(readable=False, path_type=Path),
        metavar="FILE",
        help="Compare each file with this list, as sha256sum writes it.",
    ),
    click.option("--max-pixels", type=click.IntRange(min=1), metavar="N", help="Skip larger pictures.  [default: 178956970]"),
    click.option(
        "--timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="For one file.  [default: 60]"
    ),
    click.option("--workers", type=click.IntRange(min=1), metavar="N", help="Checking processes.  [default: usable CPUs]"),
)


def input_options(command: Function) -> Function:
    """Add the options to a command, which takes them as keywords."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def input_values(values: dict[str, Any]) -> dict[str, Any]:
    """What the command got, as the fields of ``packer.options.InputOptions``; what was not given is left out."""
    if values.pop("strict"):
        if values["max_skipped"] is not None:
            raise click.UsageError("--strict and --max-skipped do not go together.")
        values["max_skipped"] = 0
    values["skip"] = tuple(code.strip() for part in values["skip"] for code in part.split(",") if code.strip())
    values["timeout_s"] = values.pop("timeout")
    return {name: value for name, value in values.items() if value is not None}


def emit_findings(summary: InputSummary, report: str) -> None:
    """What was skipped, warned of and ignored, and where the report is; the end of every summary."""
    if summary.skipped:
        emit(f"skipped {sum(summary.skipped.values()):,}: {listed(summary.skipped)}")
        for code, examples in sorted(summary.skipped_examples.items()):
            more = ", ..." if summary.skipped[code] > len(examples) else ""
            emit(f"  {code}: {', '.join(escape(name) for name in examples)}{more}")
    if summary.warned:
        emit(f"warnings {sum(summary.warned.values()):,}: {listed(summary.warned)}")
    for note in summary.notes:
        emit(f"  {escape(note)}")
    if summary.turned:
        emit(f"not upright {summary.turned:,}, by their Exif orientation: stored as is, orient=True turns them when reading")
    if summary.ignored:
        emit(f"ignored {sum(summary.ignored.values()):,}: {escape(listed(summary.ignored))}")
    if report and (summary.skipped or summary.warned):
        emit(f"report: {escape(report)}")


def warn_if_mostly_skipped(summary: InputSummary) -> None:
    """Say it loudly, also to a quiet job's log: training goes on with the rest without any error."""
    if summary.mostly_skipped:
        skipped = sum(summary.skipped.values())
        percent = min(99 if summary.samples else 100, round(100 * skipped / summary.files))
        warn(f"WARNING: {skipped:,} of {plural(summary.files, 'file')} were skipped, {percent} %: {listed(summary.skipped)}")


def emit_rows(rows: Iterable[dict[str, Any]]) -> None:
    """The rows of a report for a person, one a line."""
    for row in rows:
        path = "(all)" if row["path"] is None else escape(row["path"])
        emit(f"  {row['outcome']} {row['code']} {path}: {escape(row['detail'])}")
