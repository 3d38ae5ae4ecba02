"""Put samples together to one output: container, index, names, manifest; then prove it by reading it back, and commit it.

Packing and converting both end here. Nothing here knows where a payload comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packer.commit import Staging
from packer.errors import OutputError
from packer.extents import ExtentReader
from packer.files import file_digest
from packer.formats._base import Format, Written
from packer.index import INDEX_FILE, NAMES_FILE, Index, IndexWriter
from packer.journal import Chain, FinishedShard
from packer.manifest import MAX_MANIFEST_BYTES, REPORT_FILE, FileEntry, Manifest, ShardEntry, content_digest
from packer.model import TYPES_BY_NAME, Kept, Sample, display_name
from packer.options import OnProgress, Progress
from packer.plan import ShardLimits, WritePlan
from packer.verify import payload_findings

__all__ = ["Assembly", "Labelling"]

OnShard = Callable[[FinishedShard], None]


@dataclass(frozen=True, slots=True)
class Labelling:
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

    Args:
        container: its format.
        staging: where it is made.
        labelling: its classes.
        sizes: sizes in bytes of all payloads that may come.
        limits: when a shard is full.
        finished: the first shards, which an earlier job has made already.
        on_shard: called with each shard that is complete and on the disk.

    Attributes:
        samples: number of samples so far.
        payload_bytes: their bytes together.
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
        self._on_shard = on_shard
        self._chain = Chain(labelling.classes, labelling.class_labels)
        self._shards = {shard.file: shard for shard in finished}
        self.payload_bytes = 0
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
        self._writer.close()
        self._index.close()

    @property
    def samples(self) -> int:
        """Number of samples so far."""
        return self._index.samples

    def add(self, name: bytes, label: int, verdict: Kept, payload: bytes) -> None:
        """Add the next sample; the payload of one that lies in a finished shard is not looked at."""
        kind = TYPES_BY_NAME[verdict.type]
        sample = Sample(self._index.samples, name, label, kind, verdict.size_bytes, verdict.header)
        self._writer.append(sample, payload)
        self._index.append(name, label, verdict)
        self._chain.add(name, label, verdict)
        self.payload_bytes += verdict.size_bytes

    def commit(self, options: dict[str, Any], on_progress: OnProgress) -> Manifest:
        """Complete the output, read every payload back, and put it under its final name. The report must be closed.

        Args:
            options: those that shaped the output, for its manifest.
            on_progress: told how far the reading back is.

        Raises:
            OutputError: something does not read back as it was written, or does not fit a manifest.
        """
        written = self._writer.finish()
        self._index.finish(written.extents)
        manifest = self._manifest(written, options)
        content = manifest.to_json()
        if len(content) > MAX_MANIFEST_BYTES:
            raise OutputError(
                f"{self._staging.folder}: {len(manifest.shards):,} shards, more than a manifest holds. Make larger ones "
                "(--shard-size, --shard-samples)."
            )
        self._read_back(manifest, on_progress)
        self._staging.commit(content, [*(shard.file for shard in manifest.shards), INDEX_FILE, NAMES_FILE, REPORT_FILE])
        return manifest

    def _finish_shard(self, path: Path, samples: int) -> None:
        self._staging.sync(path)
        entry = _file_entry(path)
        shard = ShardEntry(path.name, entry.size_bytes, samples, entry.digest)
        self._shards[path.name] = shard
        self._on_shard(FinishedShard(shard, self._chain.digest()))

    def _manifest(self, written: Written, options: dict[str, Any]) -> Manifest:
        folder, labelling = self._staging.folder, self._labelling
        classes = tuple(display_name(name) for name in labelling.classes)
        return Manifest(
            format=self._container.name,
            samples=self.samples,
            classes=classes,
            labels=labelling.labels_from,
            header=written.header,
            shards=tuple(self._shards[name] for name in written.files),
            files={name: _file_entry(Path(folder, name)) for name in (INDEX_FILE, NAMES_FILE, REPORT_FILE)},
            options=options,
            versions=self._container.versions(),
            content_digest=content_digest(Index(folder, self.samples), classes),
        )

    def _read_back(self, manifest: Manifest, on_progress: OnProgress) -> None:
        """Read every payload through its extent, as a training run will, before anything gets its final name."""
        folder = self._staging.folder

        def tell(done: int, total: int) -> None:
            self._staging.renew_lock()
            on_progress(Progress("verify", done, total))

        extents = ExtentReader(folder, manifest.shards)
        for finding in payload_findings(manifest, Index(folder, manifest.samples), extents, tell):
            raise OutputError(
                f"{folder}: sample {finding.index} ({finding.name!r}) does not read back as it was written: {finding.problem}. "
                "The disk or the memory of this machine is failing."
            )


def _file_entry(path: Path) -> FileEntry:
    return FileEntry(path.stat().st_size, file_digest(path))
