"""``pack ls DATASET``: one line a sample."""

from __future__ import annotations

import json
from pathlib import Path

import click

from packer.cli.show import emit, escape

__all__ = ["command"]


@click.command("ls")
@click.argument("dataset", type=click.Path(readable=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def command(dataset: Path, as_json: bool) -> None:
    """List the samples of DATASET: number, label, type, width × height, size in bytes, original path."""
    from packer.model import TYPES
    from packer.store import Store

    store = Store(dataset)
    header = len(store.manifest.header)
    for index, record in store.records():
        kind = TYPES[record.type].name if record.type < len(TYPES) else "unknown"
        name = store.name(index)
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
            emit(json.dumps(values))
            continue
        pixels = f"{record.width}×{record.height}" if record.width else "-"
        emit(f"{index:>8} {record.label:>5} {kind:<5} {pixels:>10} {header + record.size:>10} {escape(name)}")
