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

__all__ = ["check_folder"]


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
        report: where the report is written; an earlier one is replaced.
        options: how; the defaults where left out.
        on_progress: called now and then, from this thread.

    Raises:
        OptionError: an option does not exist or does not fit; nothing was done.
        InputError: the input is missing, holds nothing that can be packed, or its labels would be a guess.
        OutputError: the report cannot be written.
        TooManySkippedError: more files are skipped than the options allow.
        DatasetError: the dataset that the classes are to be taken from cannot be opened.
    """
    options = options or InputOptions()
    options.require_sound()
    root, target = Path(source), Path(report)
    require_folder(root)
    if os.path.lexists(target) and not target.is_file():
        raise OutputError(f"{target}: is no regular file, so the report is not written there")
    partial = target.with_name(f".{target.name}.partial")
    started = time.perf_counter()
    try:
        with Inspection(root, options, on_progress or (lambda progress: None), read=False) as inspection:
            inspection.scan()
            with ReportWriter(partial) as writer:
                for _ in inspection.kept(writer):
                    pass
                refusal = _finish(inspection, writer)
        partial.replace(target)
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        raise OutputError(f"{target}: the report cannot be written: {error.strerror or error}") from error
    finally:
        discard_path(partial)
    if refusal is not None:
        raise refusal
    return InputSummary(**inspection.counts(writer), seconds=time.perf_counter() - started)


def _finish(inspection: Inspection, report: ReportWriter) -> InputError | TooManySkippedError | None:
    try:
        inspection.finish(report)
    except (InputError, TooManySkippedError) as refusal:
        return refusal
    return None
