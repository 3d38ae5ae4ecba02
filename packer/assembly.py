"""Put samples together to one output: container, index, names, manifest; then prove it by reading it back, and commit it.

Packing and converting both end here. Nothing here knows where a payload comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

from packer.commit import Staging
from packer.errors import OutputError
from packer.files import file_digest
from packer.formats._base import Format
from packer.index import INDEX_FILE, NAMES_FILE, Index, IndexWriter
from packer.journal import Chain, FinishedShard
from packer.manifest import MAX_MANIFEST_BYTES, REPORT_FILE, FileEntry, Manifest, ShardEntry, content_digest
from packer.model import TYPES_BY_NAME, Extent, Kept, Sample, display_name
from packer.options import OnProgress, Progress
from packer.plan import ShardLimits, WritePlan
from packer.proof import read_back
from packer.syncing import begin_sync, sync_file

__all__ = ["Assembly", "Labelling"]

OnShard = Callable[[FinishedShard], None]
_TICK_S = 0.1
_BEGIN_SYNC_BYTES = 16 << 20  # of payloads, each time


class Labelling(NamedTuple):
    """The classes of an output.

    Attributes:
        classes: class names in the order of their labels, raw bytes; empty where there are no labels.
        class_labels: the label of each class.
        labels_from: ``"folder"``, ``"number"`` or ``"none"``.
    """

    classes: Sequence[bytes]
    class_labels: Sequence[int]
    labels_from: str


class Assembly:
    """One output in the making; a context that lets go of its files.

    A finished shard is synced and read back by threads, while the next one is written: syncing waits for the disk, and what was
    just written need not be read from there.

    Args:
        container: its format.
        staging: where it is made.
        labelling: its classes.
        sizes: sizes in bytes of all payloads that may come.
        limits: when a shard is full.
        finished: the first shards, which an earlier job has made already.
        on_shard: called with each shard that is complete, proved and on the disk, from another thread.

    Attributes:
        payload_bytes: bytes of all samples so far.
    """

    def __init__(
        self,
        container: Format,
        staging: Staging,
        labelling: Labelling,
        *,
        sizes: Iterable[int],
        limits: ShardLimits,
        finished: Sequence[ShardEntry] = (),
        on_shard: OnShard = lambda shard: None,
    ) -> None:
        self._container = container
        self._staging = staging
        self._labelling = labelling
        self._finished = {shard.file: shard for shard in finished}
        self._on_shard = on_shard
        self._chain = Chain(labelling.classes, labelling.class_labels)
        self._shards: list[ShardEntry] = []
        self._header = b""
        self._proved = 0  # samples
        self._ends = False
        self._concluding: Future[None] | None = None
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="packer-shard")
        self.payload_bytes = 0
        self._begun_bytes = 0  # of them that the disk was asked to take
        plan = WritePlan(
            folder=staging.folder,
            sizes=sizes,
            classes=list(labelling.classes),
            class_labels=list(labelling.class_labels),
            limits=limits,
            shard_done=self._finish_shard,
            finished_shards=len(finished),
        )
        self._index = IndexWriter(staging.folder)
        try:
            self._writer = container.open_writer(plan)
        except BaseException:
            self._index.close()
            raise

    def __enter__(self) -> Assembly:
        return self

    def __exit__(self, *exception: object) -> None:
        self._ends = True
        self._threads.shutdown()
        self._writer.close()
        self._index.close()

    def add(self, name: bytes, label: int, verdict: Kept, payload: bytes) -> None:
        """Add the next sample; the payload of one that lies in a finished shard is not looked at."""
        kind = TYPES_BY_NAME[verdict.type]
        sample = Sample(self._index.samples, name, label, kind, verdict.size_bytes, verdict.header)
        self._writer.append(sample, payload)
        self._index.append(name, label, verdict)
        self._chain.add(name, label, verdict)
        self.payload_bytes += verdict.size_bytes
        if self.payload_bytes - self._begun_bytes >= _BEGIN_SYNC_BYTES:
            begin_sync(self._writer.path)
            self._begun_bytes = self.payload_bytes

    def commit(self, options: dict[str, Any], on_progress: OnProgress) -> Manifest:
        """Complete the output and put it under its final name. The report must be closed.

        Args:
            options: those that shaped the output, for its manifest.
            on_progress: told how far the reading back is.

        Raises:
            OutputError: something does not read back as it was written, or does not fit a manifest.
        """
        self._writer.finish()
        while self._concluding and not self._concluding.done():
            on_progress(Progress("verify", self._proved, self._index.samples))
            wait([self._concluding], _TICK_S)
        self._conclude_last()
        on_progress(Progress("verify", self._index.samples, self._index.samples))
        self._index.finish()
        manifest = self._manifest(options)
        content = manifest.to_json()
        if len(content) > MAX_MANIFEST_BYTES:
            raise OutputError(
                f"{self._staging.folder}: {len(manifest.shards):,} shards, more than a manifest holds. Make larger ones "
                "(--shard-size, --shard-samples)."
            )
        self._staging.commit(content, [INDEX_FILE, NAMES_FILE, REPORT_FILE])
        return manifest

    def _finish_shard(self, path: Path, extents: Iterable[Extent], header: bytes = b"") -> None:
        """Conclude a shard in the background, once the one before it is."""
        samples = self._index.place(extents)
        self._conclude_last()
        self._header = header
        finished = self._finished.get(path.name)
        if finished:
            self._shards.append(finished)
            self._proved = samples.stop
        else:
            self._concluding = self._threads.submit(self._conclude, path, samples, self._chain.digest())

    def _conclude_last(self) -> None:
        if self._concluding:
            self._concluding.result()
            self._concluding = None

    def _conclude(self, path: Path, samples: range, chain: str) -> None:
        syncing = self._threads.submit(sync_file, path)
        proof = read_back(path, self._index.blocks(samples), self._header, self._keep_on(samples.start))
        if proof.wrong is not None:
            index = samples.start + proof.wrong
            raise OutputError(
                f"{path}: sample {index} ({display_name(self._index.name(index))!r}) does not read back as it was written. "
                "The disk or the memory of this machine is failing."
            )
        entry = ShardEntry(path.name, proof.size_bytes, len(samples), proof.digest)
        syncing.result()
        if not self._ends:
            self._shards.append(entry)
            self._on_shard(FinishedShard(entry, chain))

    def _keep_on(self, before: int) -> Callable[[int], bool]:
        def keep_on(proved: int) -> bool:
            self._proved = before + proved
            return not self._ends

        return keep_on

    def _manifest(self, options: dict[str, Any]) -> Manifest:
        folder, labelling = self._staging.folder, self._labelling
        classes = tuple(display_name(name) for name in labelling.classes)
        samples = self._index.samples
        return Manifest(
            format=self._container.name,
            samples=samples,
            classes=classes,
            labels=labelling.labels_from,
            header=self._header,
            shards=tuple(self._shards),
            files={name: _file_entry(Path(folder, name)) for name in (INDEX_FILE, NAMES_FILE, REPORT_FILE)},
            options=options,
            versions=self._container.versions(),
            content_digest=content_digest(Index(folder, samples), classes),
        )


def _file_entry(path: Path) -> FileEntry:
    return FileEntry(path.stat().st_size, file_digest(path))
