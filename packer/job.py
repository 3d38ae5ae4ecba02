"""One packing job: scan, check, plan, write, commit; and what it leaves to the next run where it ends early."""

from __future__ import annotations

import errno
import importlib
import mmap
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np

from packer.assembly import Assembly, Labelling
from packer.commit import Staging
from packer.errors import InputError, OutputError, TooManySkippedError
from packer.estimate import estimate_output, require_space
from packer.files import file_digest
from packer.formats._base import Format
from packer.inspection import Inspection
from packer.journal import Chain, FinishedShard, Journal
from packer.listing import Listing
from packer.manifest import REPORT_FILE, Manifest
from packer.model import Kept
from packer.options import OnProgress, PackOptions, Progress, Summary
from packer.plan import ShardLimits
from packer.report import ReportWriter

__all__ = ["Job"]

_DECIDING = {"packer": "packer", "numpy": "numpy", "pillow": "PIL", "simplejpeg": "simplejpeg"}
"""Distributions whose versions a verdict may depend on, and their packages: ``importlib.metadata`` takes 30 ms to say it."""


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
        self._root = root
        self._target = target
        self._container = container
        self._options = options
        self._staging = staging
        self._on_progress = on_progress
        self._limits = options.limits or ShardLimits()
        self._finished: list[FinishedShard] = []
        self._inspection = Inspection(
            root,
            options,
            self._tell,
            max_bytes=container.max_payload_bytes,
            leave_out=(target, staging.partial),
        )

    def run(self, started: float) -> Summary:
        """Do it all. ``started`` is the time (``time.perf_counter``) that the summary counts from."""
        staging = self._staging
        try:
            if not self._options.resume or not staging.journal.exists():
                staging.start_over()
            journal = Journal(staging.journal, self._settings())
            resumed = journal.verdicts if journal.is_resumed else None
            if self._container.has_shards or self._options.check != "none":
                self._inspection.journal = journal  # else there is nothing that a later run could use
            try:
                with self._inspection:  # it ends before the journal does: what its workers are at is still written down
                    summary = self._pack(journal)
            except BaseException as error:
                self._leave(journal, error)
                raise
            finally:
                journal.close()
        except OSError as error:
            if isinstance(error, OutputError):
                raise
            told = self._output_error(error)
            for note in getattr(error, "__notes__", ()):
                told.add_note(note)
            raise told from error
        return Summary(
            **summary,
            output=self._target,
            format=self._container.name,
            resumed=resumed,
            replaced_unfinished=resumed is None and staging.found_unfinished,
            seconds=time.perf_counter() - started,
        )

    def _output_error(self, error: OSError) -> OutputError:
        """What the file system refused, and how far the job had come."""
        where = os.fsdecode(error.filename) if error.filename else str(self._staging.folder)
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return OutputError(f"{where}: {error.strerror}. Each worker takes three: fewer --workers, or a higher `ulimit -n`.")
        return OutputError(
            f"{where}: cannot be written: {error.strerror or error} ({self._inspection.payload_bytes:,} bytes were packed, "
            f"{_free_bytes(self._target.parent):,} bytes are free there)."
        )

    def _pack(self, journal: Journal) -> dict[str, Any]:
        inspection = self._inspection
        listing = inspection.scan(self._options.shuffle)
        read_from = self._take_over(listing, journal)
        self._require_space(listing)
        path = Path(self._staging.folder, REPORT_FILE)
        try:
            with self._assembly(listing, journal) as assembly:
                with ReportWriter(path) as report:
                    for source, verdict, payload in inspection.kept(report, read_from):
                        assembly.add(source.name, source.label, verdict, payload)
                    inspection.finish(report)
                manifest = assembly.commit(self._shaping(), self._on_progress)
        except (InputError, TooManySkippedError) as error:
            raise type(error)(f"{error}. Nothing was packed. Report: {self._rescue(path)}") from None
        return {**inspection.counts(report), **_described(manifest)}

    def _assembly(self, listing: Listing, journal: Journal) -> Assembly:
        def shard_done(shard: FinishedShard) -> None:
            if self._container.has_shards:
                journal.add_shard(shard)
                self._finished.append(shard)

        return Assembly(
            self._container,
            self._staging,
            Labelling(listing.classes, listing.class_labels, listing.labels_from),
            sizes=listing.sizes(),
            limits=self._limits,
            finished=[shard.entry for shard in self._finished],
            on_shard=shard_done,
        )

    def _take_over(self, listing: Listing, journal: Journal) -> int:
        """Find the shards of an earlier run that are as this run would make them; returns the source that comes after them."""
        covered = 0
        waiting = iter(journal.shards)
        shard = next(waiting, None)
        if shard is not None:
            chain, samples = Chain(listing.classes, listing.class_labels), 0
            for source, verdict in self._inspection.verdicts():
                self._tell(Progress("resume", source.index + 1, len(listing)))
                if not isinstance(verdict, Kept):
                    continue
                chain.add(source.name, source.label, verdict)
                samples += 1
                if samples < shard.entry.samples:
                    continue
                if chain.digest() != shard.chain or not _is_whole(Path(self._staging.folder, shard.entry.file), shard):
                    break
                self._finished.append(shard)
                covered, samples = source.index + 1, 0
                shard = next(waiting, None)
                if shard is None:
                    break
            journal.refresh()
        self._staging.go_on([shard.entry.file for shard in self._finished])
        return covered

    def _leave(self, journal: Journal, error: BaseException) -> None:
        """Leave what a later run can use, and say so."""
        if isinstance(error, InputError) or not (journal.verdicts or self._finished):
            return
        if self._staging.keep([shard.entry.file for shard in self._finished]):
            error.add_note(
                f"What was done so far is kept in {self._staging.partial}: run the same command again to go on from there."
            )

    def _require_space(self, listing: Listing) -> None:
        kept = np.ones(len(listing), bool)
        kept[np.fromiter(listing.refused, np.int64, len(listing.refused))] = False
        estimate = estimate_output(listing, kept, self._container, self._limits)
        written = sum(shard.entry.size_bytes for shard in self._finished)
        require_space(self._target.parent, estimate, listing, written)

    def _rescue(self, report: Path) -> Path:
        """Keep the report of a job that packs nothing: it says why."""
        kept = self._target.with_name(f"{self._target.name}.{REPORT_FILE}")
        report.replace(kept)
        return kept

    def _shaping(self) -> dict[str, Any]:
        """The options that shape the output."""
        options = self._options
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
        if options.shuffle is not None:
            shaping["shuffle"] = options.shuffle
        if self._container.has_shards:
            shaping |= {"shard_bytes": self._limits.size_bytes, "shard_samples": self._limits.samples}
        return shaping

    def _settings(self) -> dict[str, Any]:
        """All that the bytes of the output depend on, but for the input."""
        return {
            "input": os.path.realpath(self._root),
            "format": self._container.name,
            **self._shaping(),
            "version of": {name: importlib.import_module(package).__version__ for name, package in _DECIDING.items()}
            | self._container.versions(),
            "page size": mmap.PAGESIZE,
        }

    def _tell(self, progress: Progress) -> None:
        self._staging.renew_lock()
        self._on_progress(progress)


def _is_whole(path: Path, shard: FinishedShard) -> bool:
    try:
        info = os.lstat(path)
        return info.st_size == shard.entry.size_bytes and file_digest(path) == shard.entry.digest
    except OSError:
        return False


def _described(manifest: Manifest) -> dict[str, Any]:
    return {
        "output_bytes": manifest.size_bytes,
        "shards": len(manifest.shards),
        "content_digest": manifest.content_digest,
    }


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free
