"""Hold a packed dataset against its own digests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from packer.errors import CorruptDatasetError, DatasetError, TruncatedFileError
from packer.extents import ExtentReader
from packer.files import file_digest
from packer.index import INDEX_FILE, NAMES_FILE, Index
from packer.manifest import MANIFEST_FILE, Manifest, content_digest, load_manifest
from packer.model import display_name
from packer.store import Store, payload_digest

__all__ = ["Finding", "payload_findings", "verify_dataset"]

OnProgress = Callable[[int, int], None]
_PROGRESS_EVERY = 512


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it was packed.

    Attributes:
        file: name of the file inside the dataset.
        problem: what was found.
        index: number of the sample, where it is about one.
        name: original relative path of that sample.
    """

    file: str
    problem: str
    index: int | None = None
    name: str | None = None


def verify_dataset(path: str | os.PathLike[str], on_progress: OnProgress | None = None) -> Iterator[Finding]:
    """Compare every file and every payload of a dataset with the digests that were taken when it was packed.

    Payloads are read as a training run reads them; then each file of the container as a whole, which also covers what lies
    between the payloads.

    Args:
        path: the dataset's folder.
        on_progress: called with samples done and samples in all, now and then.

    Raises:
        DatasetError: there is no packed dataset at all.
    """
    try:
        store = Store(path)
        index = store.index
    except CorruptDatasetError as error:
        yield Finding(error.path.name, error.problem)
        if isinstance(error, TruncatedFileError):
            yield from _lost_samples(Path(os.path.abspath(path)), on_progress)
        return
    manifest = store.manifest
    if not _names_are_in_order(index):
        yield Finding(INDEX_FILE, f"names that do not follow one another in {NAMES_FILE}")
    if content_digest(index, manifest.classes) != manifest.content_digest:
        yield Finding(MANIFEST_FILE, "its content digest is not that of the samples' names, labels and digests")
    yield from payload_findings(manifest, index, store.extents, on_progress)
    for name, digest in _digests(manifest):
        try:
            if file_digest(Path(store.path, name)) != digest:
                yield Finding(name, "its bytes are not those that were packed (the digest differs)")
        except OSError as error:
            yield Finding(name, f"cannot be read: {error.strerror}")
    expected = {MANIFEST_FILE, *manifest.files, *(shard.file for shard in manifest.shards)}
    for name in sorted(os.listdir(store.path)):
        if name not in expected:
            yield Finding(name, "does not belong to the dataset")


def payload_findings(
    manifest: Manifest, index: Index, extents: ExtentReader, on_progress: OnProgress | None = None
) -> Iterator[Finding]:
    """Read every payload through its extent and compare its digest; one finding for each that differs."""
    valid_labels = manifest.valid_labels
    for i in range(len(index)):
        record = index[i]
        try:
            body = extents.read(record.shard, record.offset, record.size)
            same = payload_digest(manifest.header, body) == record.digest
            problem = "" if same else "its bytes are not those that were packed (the digest differs)"
            if record.label not in valid_labels:
                problem = f"its label {record.label} is that of no class"
        except DatasetError as error:
            problem = error.problem
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
        except MemoryError:
            problem = f"{record.size:,} bytes, more than there is memory for"
        if problem:
            yield Finding(extents.path(record.shard).name, problem, i, _name(index, i))
        if on_progress and (i + 1) % _PROGRESS_EVERY == 0:
            on_progress(i + 1, len(index))


def _lost_samples(folder: Path, on_progress: OnProgress | None) -> Iterator[Finding]:
    """Which samples are gone where a file has another size than it should; nothing where more than that is wrong."""
    try:
        manifest = load_manifest(folder)
        index = Index(folder, manifest.samples)
        found = [replace(shard, size_bytes=os.lstat(Path(folder, shard.file)).st_size) for shard in manifest.shards]
        extents = ExtentReader(folder, tuple(found))
    except (DatasetError, OSError):
        return
    yield from payload_findings(manifest, index, extents, on_progress)


def _names_are_in_order(index: Index) -> bool:
    last = np.uint64(0)
    for block in index.blocks():
        ends = block["name_end"]
        if ends[0] < last or (ends[1:] < ends[:-1]).any():
            return False
        last = ends[-1]
    return True


def _name(index: Index, i: int) -> str | None:
    try:
        return display_name(index.name(i))
    except DatasetError:
        return None


def _digests(manifest: Manifest) -> Iterator[tuple[str, str]]:
    for name, entry in manifest.files.items():
        yield name, entry.digest
    for shard in manifest.shards:
        yield shard.file, shard.digest
