"""``pack check SRC``: the verdicts, and no output."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import click

from packer.cli.inputs import FOLDER, emit_findings, emit_rows, input_options, input_values, warn_if_mostly_skipped
from packer.cli.progress import progress_display
from packer.cli.show import emit, escape, plural, short_path, size, warn
from packer.errors import OutputError, PackerError

__all__ = ["command"]


@click.command("check")
@click.argument("src", type=FOLDER)
@click.option(
    "-o",
    "--output",
    type=click.Path(readable=False, path_type=Path, allow_dash=True),
    help="Write the report, one JSON object a line, to this file (- is standard output).",
)
@click.option(
    "--quarantine",
    type=click.Path(readable=False, path_type=Path),
    metavar="DIR",
    help="Copy the skipped files to this new folder, with their relative paths.",
)
@input_options
@click.option("--json", "as_json", is_flag=True, help="Print summary and report as one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, no rows, no summary.")
def command(src: Path, output: Path | None, quarantine: Path | None, as_json: bool, quiet: bool, **inputs: Any) -> None:
    """Judge the images and .npy files in the folder SRC as packing would, and pack nothing. SRC is never changed.

    Each file that would be skipped, or kept with a warning, is shown with the reason. The exit status is 0 also then; with
    --strict it is 3 where any file would be skipped.
    """
    from packer.checking import judge_folder
    from packer.options import InputOptions
    from packer.quarantine import require_quarantine
    from packer.report import report_rows

    options = InputOptions(**input_values(inputs))
    to_stdout = output is not None and _is_standard_output(output)
    if as_json and to_stdout:
        raise click.UsageError("--json and -o - both go to standard output.")
    if quarantine is not None:
        require_quarantine(src, quarantine)
    with contextlib.ExitStack() as stack:
        report = output if output is not None and not to_stdout else Path(stack.enter_context(_scratch(src)), "report.jsonl")
        with progress_display(quiet) as on_progress:
            summary, refusal = judge_folder(src, report, options, on_progress)
        errors: list[PackerError] = []
        if quarantine is not None:
            try:
                _fill_quarantine(src, report, quarantine, options.follow_links, quiet or as_json or to_stdout)
            except OutputError as incomplete:
                errors.append(incomplete)  # what was found must be shown all the same
        if refusal is not None:
            errors.append(refusal)
        if to_stdout:
            with report.open(encoding="ascii") as lines:
                for line in lines:
                    emit(line.rstrip("\n"))
        elif as_json:
            values: dict[str, Any] = {"summary": dataclasses.asdict(summary)}
            if errors:
                values["error"] = "; ".join(map(str, errors))
            emit(json.dumps({**values, "rows": list(report_rows(report))}))
        elif not quiet:
            emit_rows(report_rows(report))
            classes = f", {plural(len(summary.classes), 'class')}" if summary.classes else ", no labels"
            emit(
                f"{summary.samples:,} of {plural(summary.files, 'file')} in {escape(short_path(src))} can be packed "
                f"({size(summary.payload_bytes)}{classes}); checked in {summary.seconds:.1f} s"
            )
            emit_findings(summary, "" if output is None else short_path(report))
    for error in errors[:-1]:
        warn(str(error))
    if errors:
        raise errors[-1]
    warn_if_mostly_skipped(summary)


def _is_standard_output(path: Path) -> bool:
    """``-``, or what standard output is: ``/dev/stdout``, or the file that the shell writes it to."""
    if str(path) == "-":
        return True
    try:
        return os.path.samestat(path.stat(), os.fstat(1))
    except OSError:
        return False


def _scratch(src: Path) -> tempfile.TemporaryDirectory[str]:
    """A folder for the report that is only shown."""
    try:
        folder = Path(os.path.realpath(tempfile.gettempdir()))  # the current folder where no other can be written
        if Path(os.path.realpath(src)) in (folder, *folder.parents):
            raise OSError(None, f"{folder} lies in the input, which is never changed")
        return tempfile.TemporaryDirectory(prefix="pack-check-", dir=folder)
    except OSError as error:
        raise OutputError(
            f"no place for temporary files: {error.strerror or error}. Set TMPDIR to another folder, or add -o FILE."
        ) from error


def _fill_quarantine(src: Path, report: Path, folder: Path, follow_links: bool, quiet: bool) -> None:
    from packer.quarantine import copy_skipped
    from packer.report import report_rows

    copied = 0
    for path, problem in copy_skipped(src, report_rows(report), folder, follow_links=follow_links):
        if problem:
            warn(f"{path}: not copied to the quarantine: {problem}")
        else:
            copied += 1
    if not quiet:
        emit(f"copied {plural(copied, 'skipped file')} to {escape(short_path(folder))}")
