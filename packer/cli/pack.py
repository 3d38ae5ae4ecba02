"""``pack SRC``: pack a folder."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import click

from packer.cli.progress import progress_display
from packer.cli.show import emit, escape, listed, plural, short_path, size
from packer.formats import names

__all__ = ["command"]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


class _Size(click.ParamType[int]):
    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)\s*([kmgt]?i?)b?", str(value).strip().lower())
        size = int(float(found[1]) * _UNITS[found[2]]) if found and found[2] in _UNITS else 0
        if not size:
            self.fail(f"{value!r} is no size; examples: 500MB, 1GB, 2GiB")
        return size


class _Context(click.Context):
    """Packing is the command that needs no name: usage and errors say ``pack SRC``, not ``pack pack SRC``."""

    @property
    def command_path(self) -> str:
        return self.parent.command_path if self.parent else "pack"


class _Command(click.Command):
    context_class = _Context


@click.command("pack", cls=_Command)
@click.argument("src", type=click.Path(readable=False, path_type=Path))
@click.option(
    "-f", "--format", "format_", type=click.Choice(names()), default="lmdb", show_default=True, help="Container format."
)
@click.option(
    "-o", "--output", type=click.Path(readable=False, path_type=Path), help="Where to write.  [default: SRC.FORMAT beside SRC]"
)
@click.option("--overwrite", is_flag=True, help="Replace an earlier output; it stays until the new one is whole.")
@click.option(
    "--labels",
    type=click.Choice(["auto", "folder", "number", "none"]),
    default="auto",
    show_default=True,
    help="Class folders give the labels; number: the folder's name is the label.",
)
@click.option(
    "--check",
    type=click.Choice(["full", "none"]),
    default="full",
    show_default=True,
    help="full: decode every file; none: look at its first bytes only.",
)
@click.option("--follow-links", is_flag=True, help="Follow links that lead out of SRC.")
@click.option("--workers", type=click.IntRange(min=1), metavar="N", help="Checking processes.  [default: usable CPUs]")
@click.option("--shard-size", type=_Size(), metavar="SIZE", help="Size of a shard, webdataset only.  [default: 1GB]")
@click.option("--shard-samples", type=click.IntRange(min=1), metavar="N", help="Samples a shard, webdataset only.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, no summary.")
@click.option("-v", "--verbose", is_flag=True, help="Name every skipped file and every warning.")
def command(
    src: Path,
    format_: str,
    output: Path | None,
    overwrite: bool,
    labels: str,
    check: str,
    follow_links: bool,
    workers: int | None,
    shard_size: int | None,
    shard_samples: int | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Pack the images and .npy files in the folder SRC into one dataset that trains fast.

    Every file is checked by decoding it. A damaged one is named in the report and stays out; the rest is packed byte for
    byte. First-level folders are the classes, as in torchvision's ImageFolder.
    """
    from packer.options import PackOptions
    from packer.pack import pack_folder
    from packer.plan import ShardLimits

    default = ShardLimits()
    limits = ShardLimits(shard_size or default.size_bytes, shard_samples or default.samples)
    options = PackOptions(
        format=format_,
        output=output,
        overwrite=overwrite,
        check=check,
        labels=labels,
        follow_links=follow_links,
        limits=limits if shard_size or shard_samples else None,
        workers=workers,
    )
    with progress_display(quiet) as on_progress:
        summary = pack_folder(src, options, on_progress)
    if as_json:
        values = {**dataclasses.asdict(summary), "output": str(summary.output), "report": str(summary.report)}
        emit(json.dumps(values))
        return
    if quiet:
        return
    if summary.replaced_unfinished:
        emit("an unfinished output of a job that was killed was found, and started over")
    classes = f", {plural(len(summary.classes), 'class')}" if summary.classes else ", no labels"
    shards = f", {plural(summary.shards, 'shard')}" if summary.shards > 1 else ""
    emit(
        f"packed {summary.samples:,} of {plural(summary.files, 'file')} into {escape(short_path(summary.output))} "
        f"({size(summary.output_bytes)}{classes}{shards}) in {summary.seconds:.1f} s"
    )
    if summary.skipped:
        emit(f"skipped {sum(summary.skipped.values()):,}: {listed(summary.skipped)}")
        for code, examples in sorted(summary.skipped_examples.items()):
            more = ", ..." if summary.skipped[code] > len(examples) else ""
            emit(f"  {code}: {', '.join(escape(name) for name in examples)}{more}")
    if summary.warned:
        emit(f"warnings {sum(summary.warned.values()):,}: {listed(summary.warned)}")
    if summary.ignored:
        emit(f"ignored {sum(summary.ignored.values()):,}: {escape(listed(summary.ignored))}")
    if verbose:
        _emit_rows(summary.report)
    if summary.skipped or summary.warned:
        emit(f"report: {escape(short_path(summary.report))}")


def _emit_rows(report: Path) -> None:
    with report.open(encoding="ascii") as rows:
        for line in rows:
            row = json.loads(line)
            path = "(all)" if row["path"] is None else escape(row["path"])
            emit(f"  {row['outcome']} {row['code']} {path}: {escape(row['detail'])}")
