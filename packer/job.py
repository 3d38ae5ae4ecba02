"""One packing job: scan, check, plan, write, read back, commit."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

from packer.check import CheckSettings
from packer.checkers import CheckPool
from packer.commit import Staging
from packer.cpus import available_cpus
from packer.errors import InputError, OutputError
from packer.extents import ExtentReader
from packer.files import file_digest
from packer.formats._base import Format, Writer, Written
from packer.index import INDEX_FILE, NAMES_FILE, Index, IndexWriter
from packer.intake import Intake
from packer.listing import Listing
from packer.manifest import REPORT_FILE, FileEntry, Manifest, ShardEntry, content_digest
from packer.model import TYPES_BY_NAME, Sample, Skipped, display_name
from packer.options import OnProgress, PackOptions, Progress, Summary
from packer.plan import ShardLimits, WritePlan
from packer.report import ReportWriter
from packer.scan import scan
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
        self._root = os.fsencode(root)
        self._shown = str(root)
        self._target = target
        self._container = container
        self._options = options
        self._staging = staging
        self._on_progress = on_progress
        self._settings = CheckSettings(options.check, options.max_pixels, container.max_payload_bytes)
        self._limits = options.limits or ShardLimits()
        self._payload_bytes = 0
        self._done_bytes = 0
        self._kept_by_label: Counter[int] = Counter()

    def run(self, started: float) -> Summary:
        """Do it all. ``started`` is the time (``time.perf_counter``) that the summary counts from."""
        pool = None
        if self._options.check != "none":
            workers = self._options.workers or available_cpus()
            pool = CheckPool(self._root, self._settings, workers, self._options.timeout_s)
        try:
            listing = self._scan()
            with ReportWriter(self._staging.folder) as report:
                written, samples = self._write(listing, pool, report)
                self._report_on_the_whole(listing, report)
        finally:
            if pool is not None:
                pool.close()
        manifest = self._manifest(listing, written, samples)
        self._read_back(manifest)
        files = [*(shard.file for shard in manifest.shards), INDEX_FILE, NAMES_FILE, REPORT_FILE]
        self._staging.commit(manifest.to_json(), files)
        return Summary(
            output=self._target,
            format=self._container.name,
            files=len(listing),
            samples=samples,
            payload_bytes=self._payload_bytes,
            output_bytes=manifest.size_bytes,
            shards=len(manifest.shards),
            classes=manifest.classes,
            skipped=dict(report.skipped),
            skipped_examples=report.examples,
            warned=dict(report.warned),
            ignored=dict(sorted(listing.ignored.items())),
            content_digest=manifest.content_digest,
            seconds=time.perf_counter() - started,
            replaced_unfinished=self._staging.found_unfinished,
        )

    def output_error(self, error: OSError) -> OutputError:
        """What the file system refused, and how far the job had come."""
        where = os.fsdecode(error.filename) if error.filename else str(self._staging.folder)
        return OutputError(
            f"{where}: cannot be written: {error.strerror or error} ({self._payload_bytes:,} bytes were packed, "
            f"{_free_bytes(self._target.parent):,} bytes are free there). Nothing was left behind."
        )

    def _scan(self) -> Listing:
        listing = scan(
            Path(os.fsdecode(self._root)),
            self._options.labels,
            leave_out=(self._target, self._staging.folder),
            follow_links=self._options.follow_links,
            on_progress=lambda seen: self._on_progress(Progress("scan", seen)),
        )
        if not len(listing):
            raise InputError(f"{self._shown}: nothing to pack: {_ignored(listing)}")
        free = _free_bytes(self._target.parent)
        if listing.total_bytes > free:
            raise OutputError(
                f"{self._target.parent}: {free:,} bytes are free, the files to pack have {listing.total_bytes:,}. "
                "Make room, or choose another place with -o."
            )
        return listing

    def _write(self, listing: Listing, pool: CheckPool | None, report: ReportWriter) -> tuple[Written, int]:
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
            self._append_all(listing, pool, report, index, writer)
            if not index.samples:
                skipped = ", ".join(f"{count:,} {code}" for code, count in report.skipped.most_common())
                raise InputError(
                    f"{self._shown}: nothing could be packed: {len(listing):,} files were looked at, all of them skipped "
                    f"({skipped}; the first: {', '.join(next(iter(report.examples.values())))}), {_ignored(listing)}"
                )
            written = writer.finish()
            index.finish(written.extents)
        finally:
            writer.close()
            index.close()
        return written, index.samples

    def _append_all(
        self, listing: Listing, pool: CheckPool | None, report: ReportWriter, index: IndexWriter, writer: Writer
    ) -> None:
        self._on_progress(Progress("pack", 0, len(listing)))
        for source, verdict, payload in Intake(self._root, self._settings, pool).take(listing):
            self._done_bytes += source.size_bytes
            if isinstance(verdict, Skipped):
                report.skip(source.name, verdict.code, verdict.detail)
            else:
                for note in verdict.warnings:
                    report.warn(source.name, note.code, note.detail)
                kind = TYPES_BY_NAME[verdict.type]
                writer.append(Sample(index.samples, source.name, source.label, kind, verdict.header), payload)
                index.append(source.name, source.label, verdict)
                self._payload_bytes += len(payload)
                self._kept_by_label[source.label] += 1
            skipped = source.index + 1 - index.samples
            self._on_progress(Progress("pack", source.index + 1, len(listing), self._done_bytes, skipped))

    def _report_on_the_whole(self, listing: Listing, report: ReportWriter) -> None:
        for name, note in listing.notes:
            report.warn(name, note.code, note.detail)
        for name, label in zip(listing.classes, listing.class_labels, strict=True):
            if not self._kept_by_label[label]:
                report.warn(name, "empty_class", f"no sample of this class was packed; it keeps its label {label}")

    def _manifest(self, listing: Listing, written: Written, samples: int) -> Manifest:
        folder, options = self._staging.folder, self._options
        shaping: dict[str, Any] = {
            "check": options.check,
            "labels": options.labels,
            "max_pixels": options.max_pixels,
            "follow_links": options.follow_links,
        }
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


def _ignored(listing: Listing) -> str:
    if not listing.ignored:
        return "no other files"
    kinds = ", ".join(f"{count:,} {suffix}" for suffix, count in listing.ignored.most_common(5))
    return f"{sum(listing.ignored.values()):,} files are of other kinds ({kinds})"
