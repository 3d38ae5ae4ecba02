"""``pack verify DATASET``: is it still what was packed?"""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from packer.cli.findings import Findings
from packer.cli.progress import progress_display
from packer.cli.show import emit, escape, plural, size

__all__ = ["command"]


@click.command("verify")
@click.argument("dataset", type=click.Path(readable=False, path_type=Path))
@click.option(
    "--level",
    type=click.Choice(["digest", "native", "decode"]),
    default="digest",
    show_default=True,
    help="native: also read every sample through lmdb, h5py or webdataset. decode: that, and decode every sample.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, no findings, no result; the exit status says it.")
@click.pass_context
def command(ctx: click.Context, dataset: Path, level: str, as_json: bool, quiet: bool) -> None:
    """Compare every sample and every file of DATASET with the digests taken when it was packed.

    Exit status 0 when all are the same, 1 when anything differs.
    """
    from packer.manifest import load_manifest
    from packer.options import Progress
    from packer.verify import verify_dataset

    findings = Findings({"dataset": str(dataset), "level": level}, as_json=as_json, quiet=quiet)
    with progress_display(quiet) as on_progress:
        for finding in verify_dataset(dataset, lambda done, total: on_progress(Progress("verify", done, total)), level=level):
            findings.add(finding.index, finding.name, finding.file, finding.problem)
    manifest = None
    with contextlib.suppress(ValueError):  # a finding, then
        manifest = load_manifest(dataset)
    findings.end({"samples": manifest.samples if manifest else None, "sound": not findings.count})
    if not as_json and not quiet:
        if findings.count:
            emit(f"{plural(findings.count, 'finding')}. Copy the dataset again, or pack again.")
        elif manifest:
            emit(f"{escape(str(dataset))} is sound: {plural(manifest.samples, 'sample')}, {size(manifest.size_bytes)}")
    if findings.count:
        ctx.exit(1)
