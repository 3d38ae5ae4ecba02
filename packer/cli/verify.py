"""``pack verify DATASET``: is it still what was packed?"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click

from packer.cli.progress import progress_display
from packer.cli.show import emit, escape, plural, size

__all__ = ["command"]


@click.command("verify")
@click.argument("dataset", type=click.Path(readable=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, no result; the exit status says it.")
@click.pass_context
def command(ctx: click.Context, dataset: Path, as_json: bool, quiet: bool) -> None:
    """Compare every sample and every file of DATASET with the digests taken when it was packed.

    Exit status 0 when all are the same, 1 when anything differs.
    """
    from packer.options import Progress
    from packer.verify import verify_dataset

    with progress_display(quiet) as on_progress:
        findings = list(verify_dataset(dataset, lambda done, total: on_progress(Progress("verify", done, total))))
    if as_json:
        emit(json.dumps({"sound": not findings, "findings": [dataclasses.asdict(finding) for finding in findings]}))
    elif not quiet:
        for finding in findings:
            sample = "" if finding.index is None else f" sample {finding.index} ({escape(finding.name or '')})"
            emit(f"{escape(finding.file)}{sample}: {escape(finding.problem)}")
        if findings:
            emit(f"{plural(len(findings), 'finding')}. Copy the dataset again, or pack again.")
        else:
            from packer.manifest import load_manifest

            manifest = load_manifest(dataset)
            emit(f"{escape(str(dataset))} is sound: {plural(manifest.samples, 'sample')}, {size(manifest.size_bytes)}")
    if findings:
        ctx.exit(1)
