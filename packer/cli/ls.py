"""``pack ls DATASET``: one line a sample."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from packer.cli.show import emit, escape

if TYPE_CHECKING:
    from packer.store import Store

__all__ = ["command"]


@click.command("ls")
@click.argument("dataset", type=click.Path(readable=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; the exit status says whether it can be opened.")
def command(dataset: Path, as_json: bool, quiet: bool) -> None:
    """List the samples of DATASET: number, label, type, width × height, size in bytes, original path."""
    from packer.store import Store

    store = Store(dataset)
    if not quiet:
        emit(_lines(store, as_json))


def _lines(store: Store, as_json: bool) -> Iterator[str]:
    from packer.model import TYPES, display_name
    from packer.walk import walk

    header = len(store.manifest.header)
    for index, record, raw_name in walk(store):
        kind = TYPES[record.type].name if record.type < len(TYPES) else "unknown"
        name = display_name(raw_name)
        if as_json:
            values = {
                "index": index,
                "label": record.label,
                "type": kind,
                "width": record.width,
                "height": record.height,
                "bytes": header + record.size,
                "path": name,
            }
            yield json.dumps(values)
            continue
        pixels = f"{record.width}×{record.height}" if record.width else "-"
        yield f"{index:>8} {record.label:>5} {kind:<5} {pixels:>10} {header + record.size:>10} {escape(name)}"
