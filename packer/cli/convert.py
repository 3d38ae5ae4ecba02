"""``pack convert DATASET``: the same samples in another container."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from packer.cli.progress import progress_display
from packer.cli.shards import shard_limits, shard_options
from packer.cli.show import emit, escape, plural, short_path, size
from packer.formats import names

__all__ = ["command"]


@click.command("convert")
@click.argument("dataset", type=click.Path(readable=False, path_type=Path))
@click.option("-f", "--format", "format_", type=click.Choice(names()), required=True, help="Container format of the new one.")
@click.option(
    "-o",
    "--output",
    type=click.Path(readable=False, path_type=Path),
    help="Where to write.  [default: the dataset's name with the format's ending, beside it]",
)
@click.option("--overwrite", is_flag=True, help="Replace an earlier output; it stays until the new one is whole.")
@shard_options
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, no summary.")
def command(
    dataset: Path, format_: str, output: Path | None, overwrite: bool, as_json: bool, quiet: bool, **shards: Any
) -> None:
    """Write the samples of the packed DATASET into another container, or into shards of another size.

    Nothing is decoded again. Samples, order, names and labels stay, each is compared with its digest.
    """
    from packer.cli.memory import keep_freed_memory
    from packer.convert import convert_dataset

    limits = shard_limits(shards)
    keep_freed_memory()
    with progress_display(quiet) as on_progress:
        summary = convert_dataset(dataset, format_, output=output, overwrite=overwrite, limits=limits, on_progress=on_progress)
    if as_json:
        emit(json.dumps({**dataclasses.asdict(summary), "output": str(summary.output)}))
    elif not quiet:
        shards_text = f", {plural(summary.shards, 'shard')}" if summary.shards > 1 else ""
        emit(
            f"converted {plural(summary.samples, 'sample')} into {escape(short_path(summary.output))} "
            f"({size(summary.output_bytes)}{shards_text}) in {summary.seconds:.1f} s"
        )
