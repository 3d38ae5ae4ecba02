"""One packing job: scan, check, plan, write, read back, commit."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

from packer.commit import Staging
from packer.errors import InputError, OutputError, TooManySkippedError
from packer.extents import ExtentReader
from packer.files import file_digest
from packer.formats._base import Format, Written
from packer.index import INDEX_FILE, NAMES_FILE, Index, IndexWriter
from packer.inspection import Inspection
from packer.listing import Listing
from packer.manifest import MAX_MANIFEST_BYTES, REPORT_FILE, FileEntry, Manifest, ShardEntry, content_digest
from packer.model import TYPES_BY_NAME, Sample, display_name
from packer.options import OnProgress, PackOptions, Progress, Summary
from packer.plan import ShardLimits, WritePlan
from packer.report import ReportWriter
from packer.verify import payload_findings

__all__ = ["Job"]


class Job:
    """Packs one folder into a partial folder and commits it; the options are known to be sound."""

    def __init__(
        self,
        root: Path,
        target: Path,
        container: Format,
        options: PackOptions,
        staging: Staging,
        on_progress: OnProgress,
    ) -> None:
        self._target = target
        self._container = container
        self._options = options
        self._staging = staging
        self._on_progress = on_progress
        self._limits = options.limits or ShardLimits()
        self._inspection = Inspection(
            root,
            options,
            on_progress,
            max_bytes=container.max_payload_bytes,
            leave_out=(target, staging.folder),
        )

    def run(self, started: float) -> Summary:
        """Do it all. ``started`` is the time (``time.perf_counter``) that the summary counts from."""
        path = Path(self._staging.folder, REPORT_FILE)
        with self._inspection as inspection:
            listing = inspection.scan()
            self._require_space(listing)
            try:
                with ReportWriter(path) as report:
                    written = self._write(listing, report)
            except (InputError, TooManySkippedError) as error:
                raise type(error)(f"{error}. Nothing was packed. Report: {self._rescue(path)}") from None
        manifest = self._manifest(listing, written)
        content = manifest.to_json()
        if len(content) > MAX_MANIFEST_BYTES:
            raise OutputError(
                f"{self._target}: {len(manifest.shards):,} shards, more than a manifest holds. Make larger ones "
                "(--shard-size, --shard-samples)."
            )
        self._read_back(manifest)
        files = [*(shard.file for shard in manifest.shards), INDEX_FILE, NAMES_FILE, REPORT_FILE]
        self._staging.commit(content, files)
        return Summary(
            **inspection.counts(report),
            output=self._target,
            format=self._container.name,
            output_bytes=manifest.size_bytes,
            shards=len(manifest.shards),
            content_digest=manifest.content_digest,
            seconds=time.perf_counter() - started,
            replaced_unfinished=self._staging.found_unfinished,
        )

    def output_error(self, error: OSError) -> OutputError:
        """What the file system refused, and how far the job had come."""
        where = os.fsdecode(error.filename) if error.filename else str(self._staging.folder)
        return OutputError(
            f"{where}: cannot be written: {error.strerror or error} ({self._inspection.payload_bytes:,} bytes were packed, "
            f"{_free_bytes(self._target.parent):,} bytes are free there). Nothing was left behind."
        )

    def _require_space(self, listing: Listing) -> None:
        free = _free_bytes(self._target.parent)
        if listing.total_bytes > free:
            sizes = listing.sizes()
            largest = listing[sizes.index(max(sizes))]
            raise OutputError(
                f"{self._target.parent}: {free:,} bytes are free, the files to pack have {listing.total_bytes:,} (the largest, "
                f"{display_name(largest.name)}, has {largest.size_bytes:,}). Make room, or choose another place with -o."
            )

    def _rescue(self, report: Path) -> Path:
        """Keep the report of a job that packs nothing: it says why."""
        kept = self._target.with_name(f"{self._target.name}.{REPORT_FILE}")
        report.replace(kept)
        return kept

    def _write(self, listing: Listing, report: ReportWriter) -> Written:
        plan = WritePlan(
            folder=self._staging.folder,
            sizes=listing.sizes(),
            classes=listing.classes,
            class_labels=listing.class_labels,
            limits=self._limits,
            shard_done=self._staging.sync,
        )
        index = IndexWriter(self._staging.folder)
        writer = self._container.open_writer(plan)
        try:
            for source, verdict, payload in self._inspection.kept(report):
                kind = TYPES_BY_NAME[verdict.type]
                writer.append(Sample(index.samples, source.name, source.label, kind, verdict.header), payload)
                index.append(source.name, source.label, verdict)
            self._inspection.finish(report)
            written = writer.finish()
            index.finish(written.extents)
        finally:
            writer.close()
            index.close()
        return written

    def _manifest(self, listing: Listing, written: Written) -> Manifest:
        folder, options, samples = self._staging.folder, self._options, self._inspection.samples
        shaping: dict[str, Any] = {
            "check": options.check,
            "labels": options.labels,
            "max_pixels": options.max_pixels,
            "follow_links": options.follow_links,
        }
        if options.skip:
            shaping["skip"] = sorted(set(options.skip))
        if options.classes_from is not None:
            shaping["classes_from"] = True
        if options.checksums is not None:
            shaping["checksums"] = self._inspection.checksums_digest
        if self._container.has_shards:
            shaping |= {"shard_bytes": self._limits.size_bytes, "shard_samples": self._limits.samples}
        classes = tuple(display_name(name) for name in listing.classes)
        return Manifest(
            format=self._container.name,
            samples=samples,
            classes=classes,
            labels=listing.labels_from,
            header=written.header,
            shards=tuple(_shard_entry(Path(folder, name), count) for name, count in written.files),
            files={name: _file_entry(Path(folder, name)) for name in (INDEX_FILE, NAMES_FILE, REPORT_FILE)},
            options=shaping,
            versions=self._container.versions(),
            content_digest=content_digest(Index(folder, samples), classes),
        )

    def _read_back(self, manifest: Manifest) -> None:
        """Read every payload through its extent, as a training run will, before anything gets its final name."""
        folder = self._staging.folder

        def tell(done: int, total: int) -> None:
            self._on_progress(Progress("verify", done, total))

        extents = ExtentReader(folder, manifest.shards)
        for finding in payload_findings(manifest, Index(folder, manifest.samples), extents, tell):
            raise OutputError(
                f"{folder}: sample {finding.index} ({finding.name!r}) does not read back as it was written: {finding.problem}. "
                "The disk or the memory of this machine is failing."
            )


def _file_entry(path: Path) -> FileEntry:
    return FileEntry(path.stat().st_size, file_digest(path))


def _shard_entry(path: Path, samples: int) -> ShardEntry:
    entry = _file_entry(path)
    return ShardEntry(path.name, entry.size_bytes, samples, entry.digest)


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free
