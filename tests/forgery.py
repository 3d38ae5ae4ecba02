"""Datasets of strangers: names, records, classes or containers are changed, and every digest is put right again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packer.files import file_digest
from packer.index import INDEX_FILE, NAMES_FILE, RECORD, Index
from packer.manifest import content_digest
from tests.test_damage import manifest_of, seal

__all__ = ["forge"]


def forge(
    folder: Path,
    *,
    names: Sequence[bytes] = (),
    classes: Sequence[str] = (),
    change: Callable[[Any], object] = lambda records: None,
) -> Path:
    """Make a dataset say something else, without any contradiction between manifest, index, names and files.

    Args:
        folder: the dataset, which may have been changed already.
        names: all names, where they shall be others.
        classes: all classes, where they shall be others.
        change: is given all records, dtype ``RECORD``, to be changed.
    """
    path = folder / INDEX_FILE
    content = path.read_bytes()
    records = np.frombuffer(content[512:], RECORD).copy()
    if names:
        (folder / NAMES_FILE).write_bytes(b"".join(names))
        records["name_end"] = np.cumsum([len(name) for name in names])
    change(records)
    path.write_bytes(content[:512] + records.tobytes())
    manifest = manifest_of(folder)
    if classes:
        manifest["classes"] = list(classes)
    for entry in manifest["shards"]:
        entry.update(bytes=(folder / entry["file"]).stat().st_size, digest=file_digest(folder / entry["file"]))
    for name, entry in manifest["files"].items():
        entry.update(bytes=(folder / name).stat().st_size, digest=file_digest(folder / name))
    manifest["content_digest"] = content_digest(Index(folder, len(records)), tuple(manifest["classes"]))
    seal(folder, manifest)
    return folder
