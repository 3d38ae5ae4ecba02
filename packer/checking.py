"""Judge a folder without packing it: a job that stops before the plan."""

from __future__ import annotations

import os
import time
from pathlib import Path

from packer.errors import InputError, OutputError, TooManySkippedError
from packer.files import discard_path
from packer.inspection import Inspection, require_folder
from packer.options import InputOptions, InputSummary, OnProgress
from packer.report import ReportWriter

__all__ = ["check_folder", "judge_folder"]

Refusal = InputError | TooManySkippedError


def check_folder(
    source: str | os.PathLike[str],
    report: str | os.PathLike[str],
    options: InputOptions | None = None,
    on_progress: OnProgress | None = None,
) -> InputSummary:
    """Judge the files of a folder as packing would, and write the report that packing would write.

    Nothing in the folder is changed. The report appears under its name when it is whole, also where the job ends with an
    error because of what is in it.

    Args:
        source: the folder; class folders in its first level give the labels.
        report: where the report is written, not in the folder; an earlier one is replaced.
        options: how; the defaults where left out.
        on_progress: called now and then, from this thread.

    Raises:
        OptionError: an option does not exist or does not fit; nothing was done.
        InputError: the input is missing, holds nothing that can be packed, or its labels would be a guess.
        OutputError: the report cannot be written.
        TooManySkippedError: more files are skipped than the options allow.
        DatasetError: the dataset that the classes are to be taken from cannot be opened.
    """
    summary, refusal = judge_folder(
        Path(source), Path(report), options or InputOptions(), on_progress or (lambda progress: None)
    )
    if refusal is not None:
        raise refusal
    return summary


def judge_folder(
    root: Path, report: Path, options: InputOptions, on_progress: OnProgress
) -> tuple[InputSummary, Refusal | None]:
    """As ``check_folder``, but an error because of what the files are is returned: then there is a report all the same."""
    options.require_sound()
    require_folder(root)
    target = _report_place(root, report)
    # A name of its own: two jobs may write to one place, and whoever may write there could leave a link under a known name.
    partial = target.with_name(f".pack-check-{os.urandom(8).hex()}.partial")
    started = time.perf_counter()
    try:
        with Inspection(root, options, on_progress, read=False) as inspection:
            inspection.scan()
            with ReportWriter(partial) as writer:
                for _ in inspection.kept(writer):
                    pass
                refusal = _finish(inspection, writer)
        partial.replace(target)
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        raise OutputError(f"{report}: the report cannot be written: {error.strerror or error}") from error
    finally:
        discard_path(partial)
    return InputSummary(**inspection.counts(writer), seconds=time.perf_counter() - started), refusal


def _report_place(root: Path, report: Path) -> Path:
    """The real path of the report: where it is a link, the file that this leads to is replaced, and not the link."""
    real_root, target = Path(os.path.realpath(root)), Path(os.path.realpath(report))
    if target == real_root or real_root in target.parents:
        raise OutputError(f"{report}: lies in the input, which is never changed; choose another place for the report")
    if os.path.lexists(target) and not os.path.isfile(target):
        raise OutputError(f"{report}: is no regular file, so the report is not written there")
    return target


def _finish(inspection: Inspection, report: ReportWriter) -> Refusal | None:
    try:
        inspection.finish(report)
    except (InputError, TooManySkippedError) as refusal:
        return refusal
    return None
