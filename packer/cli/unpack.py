"""``pack unpack DATASET``: the files as they were."""

from __future__ import annotations

from pathlib import Path

import click

from packer.cli.findings import Findings
from packer.cli.progress import progress_display
from packer.cli.show import emit, escape, plural, short_path, size, warn

__all__ = ["command"]


@click.command("unpack")
@click.argument("dataset", type=click.Path(readable=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(readable=False, path_type=Path),
    metavar="FOLDER",
    help="Where the files will lie, a new or empty folder.  [default: the name without .lmdb and the like, beside DATASET]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, no summary.")
@click.pass_context
def command(ctx: click.Context, dataset: Path, output: Path | None, as_json: bool, quiet: bool) -> None:
    """Write the files of DATASET back to a folder, byte for byte, under their original relative paths.

    A damaged sample is named and left out, and the rest is written; the exit status is then 1.
    """
    from packer.unpack import unpack_dataset
    from packer.verify import Finding

    findings = Findings({"dataset": str(dataset)}, as_json=as_json, quiet=True)

    def on_damaged(finding: Finding) -> None:
        findings.add(finding.index, finding.name, finding.file, finding.problem)
        if not as_json:
            warn(f"left out: sample {finding.index} ({finding.name}) in {finding.file}: {finding.problem}")

    with progress_display(quiet) as on_progress:
        summary = unpack_dataset(dataset, output, on_progress, on_damaged)
    findings.end(
        {"output": str(summary.output), "files": summary.files, "bytes": summary.size_bytes, "seconds": summary.seconds}
    )
    if not as_json and not quiet:
        files = plural(summary.files + summary.damaged, "file")
        emit(
            f"unpacked {summary.files:,} of {files} into {escape(short_path(summary.output))} ({size(summary.size_bytes)}) "
            f"in {summary.seconds:.1f} s"
        )
        if summary.damaged:
            emit(f"{plural(summary.damaged, 'damaged sample')} left out: copy the dataset again, or pack again, to have them")
    if summary.damaged:
        ctx.exit(1)
