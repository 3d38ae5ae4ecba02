"""``pack info DATASET``: what is in it?"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import click

from packer.cli.show import emit, escape, listed, plural, size

__all__ = ["command"]

_MANY = 12


@click.command("info")
@click.argument("dataset", type=click.Path(readable=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print it as one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; the exit status says whether it can be opened.")
def command(dataset: Path, as_json: bool, quiet: bool) -> None:
    """Show what DATASET holds: format, samples, classes, types of files, options."""
    import numpy as np

    from packer.model import TYPES
    from packer.store import Store

    store = Store(dataset)
    if quiet:
        return
    manifest = store.manifest
    samples_of: Counter[int] = Counter()
    codes: Counter[int] = Counter()
    for block in store.index.blocks():
        for counter, column in ((samples_of, block["label"]), (codes, block["data"]["type"])):
            values, counts = np.unique(column, return_counts=True)
            counter.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
    types = {TYPES[code].name if code < len(TYPES) else "unknown": count for code, count in codes.items()}
    by_class = {name: samples_of[label] for name, label in manifest.class_to_idx.items()}
    if as_json:
        facts = {
            "path": str(store.path),
            "format": manifest.format,
            "samples": manifest.samples,
            "bytes": manifest.size_bytes,
            "shards": len(manifest.shards),
            "labels": manifest.labels,
            "classes": by_class,
            "class_to_idx": manifest.class_to_idx,
            "types": types,
            "options": manifest.options,
            "versions": manifest.versions,
            "content_digest": manifest.content_digest,
        }
        emit(json.dumps(facts))
        return
    emit(
        f"{escape(str(dataset))}: {escape(manifest.format)}, {plural(manifest.samples, 'sample')}, {size(manifest.size_bytes)}"
    )
    emit(f"types:   {listed(types)}")
    if manifest.shards[1:]:
        emit(f"shards:  {len(manifest.shards):,}, {escape(manifest.shards[0].file)} to {escape(manifest.shards[-1].file)}")
    if by_class:
        shown = [f"{escape(name)} {count:,}" for name, count in list(by_class.items())[:_MANY]]
        more = f", ... {len(by_class) - _MANY:,} more" if len(by_class) > _MANY else ""
        emit(f"classes: {len(by_class):,}: {', '.join(shown)}{more}")
    else:
        emit("classes: none")
    if manifest.header:
        emit("arrays:  all of one shape and dtype, in one array dataset")
    emit(f"options: {', '.join(f'{escape(name)} {escape(str(value))}' for name, value in manifest.options.items())}")
    emit(f"content: {escape(manifest.content_digest)} (the same for the same samples in any format)")
