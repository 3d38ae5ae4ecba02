"""``pack SRC``: pack a folder."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from packer.cli.inputs import FOLDER, emit_findings, emit_rows, input_options, input_values, warn_if_mostly_skipped
from packer.cli.progress import progress_display
from packer.cli.shards import shard_limits, shard_options
from packer.cli.show import emit, escape, plural, short_path, size
from packer.formats import names

__all__ = ["command"]


class _Context(click.Context):
    """Packing is the command that needs no name: usage and errors say ``pack SRC``, not ``pack pack SRC``."""

    @property
    def command_path(self) -> str:
        return self.parent.command_path if self.parent else "pack"


class _Command(click.Command):
    context_class = _Context


@click.command("pack", cls=_Command)
@click.argument("src", type=FOLDER)
@click.option(
    "-f", "--format", "format_", type=click.Choice(names()), default="lmdb", show_default=True, help="Container format."
)
@click.option(
    "-o", "--output", type=click.Path(readable=False, path_type=Path), help="Where to write.  [default: SRC.FORMAT beside SRC]"
)
@click.option("--overwrite", is_flag=True, help="Replace an earlier output; it stays until the new one is whole.")
@click.option("--no-resume", is_flag=True, help="Start over where an unfinished job of before could be gone on with.")
@click.option(
    "--check",
    type=click.Choice(["full", "none"]),
    default="full",
    show_default=True,
    help="full: decode every file; none: look at its first bytes only.",
)
@input_options
@click.option("--dry-run", is_flag=True, help="Scan, say what would be packed and how large it gets, and write nothing.")
@click.option("--shuffle", type=click.IntRange(min=0, max=2**63 - 1), metavar="SEED", help="Pack in a random order.")
@shard_options
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, no summary.")
@click.option("-v", "--verbose", is_flag=True, help="Name every skipped file and every warning.")
def command(
    src: Path,
    format_: str,
    output: Path | None,
    overwrite: bool,
    no_resume: bool,
    check: str,
    dry_run: bool,
    shuffle: int | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    **inputs: Any,
) -> None:
    """Pack the images and .npy files in the folder SRC into one dataset that trains fast.

    Every file is checked by decoding it. A damaged one is named in the report and stays out; the rest is packed byte for
    byte. First-level folders are the classes, as in torchvision's ImageFolder.
    """
    from packer.cli.memory import keep_freed_memory
    from packer.options import PackOptions
    from packer.pack import pack_folder
    from packer.report import report_rows

    options = PackOptions(
        format=format_,
        output=output,
        overwrite=overwrite,
        resume=not no_resume,
        shuffle=shuffle,
        check=check,
        limits=shard_limits(inputs),
        **input_values(inputs),
    )
    if dry_run:
        from packer.cli.dryrun import emit_plan
        from packer.dryrun import plan_folder

        with progress_display(quiet) as on_progress:
            plan = plan_folder(src, options, on_progress)
        emit_plan(plan, as_json=as_json, quiet=quiet, verbose=verbose)
        plan.raise_refusal()
        return
    keep_freed_memory()
    with progress_display(quiet) as on_progress:
        summary = pack_folder(src, options, on_progress)
    if as_json:
        values = {**dataclasses.asdict(summary), "output": str(summary.output), "report": str(summary.report)}
        emit(json.dumps(values))
        warn_if_mostly_skipped(summary)
        return
    if quiet:
        warn_if_mostly_skipped(summary)
        return
    if summary.resumed is not None:
        emit(f"unfinished output found: went on from it, {plural(summary.resumed, 'file')} had been looked at already")
    elif summary.replaced_unfinished:
        emit("unfinished output found: started over")
    classes = f", {plural(len(summary.classes), 'class')}" if summary.classes else ", no labels"
    shards = f", {plural(summary.shards, 'shard')}" if summary.shards > 1 else ""
    emit(
        f"packed {summary.samples:,} of {plural(summary.files, 'file')} into {escape(short_path(summary.output))} "
        f"({size(summary.output_bytes)}{classes}{shards}) in {summary.seconds:.1f} s"
    )
    if verbose:
        emit_rows(report_rows(summary.report))
    emit_findings(summary, short_path(summary.report))
    warn_if_mostly_skipped(summary)
