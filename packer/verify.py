"""Hold a packed dataset against its own digests, read it by its container's own library, decode it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packer.decodable import decode_findings
from packer.errors import CorruptDatasetError, DatasetError, OptionError, TruncatedFileError
from packer.extents import ExtentReader
from packer.files import file_digest
from packer.index import INDEX_FILE, NAMES_FILE, Index
from packer.manifest import MANIFEST_FILE, Manifest, content_digest, load_manifest
from packer.model import display_name
from packer.native import native_findings
from packer.store import Store, payload_digest

__all__ = ["VERIFY_LEVELS", "Finding", "payload_findings", "verify_dataset"]

VERIFY_LEVELS = ("digest", "native", "decode")
"""What verifying does; each level includes those before it."""

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


def verify_dataset(
    path: str | os.PathLike[str], on_progress: OnProgress | None = None, *, level: str = "digest"
) -> Iterator[Finding]:
    """Compare every file and every payload of a dataset with the digests that were taken when it was packed.

    ``"digest"`` reads payloads as a training run reads them, and then each file of the container as a whole, which also covers
    what lies between the payloads. ``"native"`` also reads them through the container's own library, in a process of its own,
    and compares payloads, and labels and names where the container holds them, with the index. ``"decode"`` also decodes every
    sample, in processes of their own. A sample is named once, by the first level that finds it wrong.

    Args:
        path: the dataset's folder.
        on_progress: called now and then with how many samples were read and how many are to be read, each as often as the
            level reads it.
        level: one of ``VERIFY_LEVELS``.

    Raises:
        OptionError: there is no such level.
        DatasetError: there is no packed dataset at all.
        PackerError: a process cannot be started.
    """
    if level not in VERIFY_LEVELS:
        raise OptionError(f"level {level!r}; there are {', '.join(VERIFY_LEVELS)}")
    try:
        store = Store(path)
        index = store.index
    except CorruptDatasetError as error:
        yield Finding(error.path.name, error.problem)
        if isinstance(error, TruncatedFileError):
            yield from _lost_samples(Path(os.path.abspath(path)), on_progress)
        return
    wrong = np.zeros(len(store), np.bool_)  # the samples that were named
    try:
        for finding in _findings(store, index, level, _Passes(len(store), VERIFY_LEVELS.index(level) + 1, on_progress), wrong):
            if finding.index is not None:
                wrong[finding.index] = True
            yield finding
    except DatasetError as error:
        yield Finding(error.path.name, error.problem)


def _findings(store: Store, index: Index, level: str, passes: _Passes, wrong: NDArray[np.bool_]) -> Iterator[Finding]:
    manifest = store.manifest
    if not _names_are_in_order(index):
        yield Finding(INDEX_FILE, f"names that do not follow one another in {NAMES_FILE}")
    if content_digest(index, manifest.classes) != manifest.content_digest:
        yield Finding(MANIFEST_FILE, "its content digest is not that of the samples' names, labels and digests")
    yield from payload_findings(manifest, index, store.extents, passes)
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
    for later, found_by in (("native", native_findings), ("decode", decode_findings)):
        if VERIFY_LEVELS.index(level) < VERIFY_LEVELS.index(later):
            return
        passes.next()
        for said in found_by(store, wrong):
            if isinstance(said, int):
                passes(said + 1, len(index))
            else:
                yield _finding(store, index, *said)


def _finding(store: Store, index: Index, number: int | None, problem: str) -> Finding:
    if number is None:
        shards = store.manifest.shards
        return Finding(shards[0].file if len(shards) == 1 else MANIFEST_FILE, problem)
    return Finding(store.extents.path(index[number].shard).name, problem, number, _name(index, number))


class _Passes:
    """Progress over all samples several times."""

    def __init__(self, samples: int, passes: int, on_progress: OnProgress | None) -> None:
        self._samples = samples
        self._total = samples * passes
        self._done = 0
        self._on_progress = on_progress

    def __call__(self, done: int, total: int) -> None:
        if self._on_progress and (done % _PROGRESS_EVERY == 0 or done == total):
            self._on_progress(self._done + done, self._total)

    def next(self) -> None:
        self._done += self._samples


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
        if on_progress and ((i + 1) % _PROGRESS_EVERY == 0 or i + 1 == len(index)):
            on_progress(i + 1, len(index))


def _lost_samples(folder: Path, on_progress: OnProgress | None) -> Iterator[Finding]:
    """Which samples are gone where a file has another size than it should; nothing where more than that is wrong."""
    try:
        manifest = load_manifest(folder)
        index = Index(folder, manifest.samples)
        found = [shard._replace(size_bytes=os.lstat(Path(folder, shard.file)).st_size) for shard in manifest.shards]
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
