"""The first half of every job: scan a folder, judge its files, and write what is wrong with them into the report."""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from packer.check import CheckSettings
from packer.checkers import CheckPool
from packer.checksums import Checksums
from packer.cpus import available_cpus
from packer.duplicates import DuplicateGroup, Duplicates
from packer.errors import InputError, TooManySkippedError
from packer.intake import Intake
from packer.journal import Journal
from packer.labels import load_classes
from packer.listing import Listing
from packer.manifest import MAX_MANIFEST_BYTES
from packer.model import Kept, Skipped, Source, Verdict, display_name
from packer.options import InputOptions, OnProgress, Progress, allowed_skips
from packer.report import ReportWriter
from packer.scan import scan

__all__ = ["Inspection", "require_folder"]

_PATHS = 5  # of a content that several files have


class Inspection:
    """Scans and judges one folder.

    Args:
        root: the folder.
        options: how; known to be sound.
        on_progress: called with each step.
        max_bytes: a file with more is skipped: what a container can hold as one value.
        read: whether the bytes of kept files are wanted.
        leave_out: folders that are not looked into.

    Attributes:
        listing: the candidate files, after ``scan``.
        samples: number of files kept so far.
        payload_bytes: their bytes together.
        checksums_digest: of the user's list of checksums, empty where there is none.
        journal: where verdicts are looked up and written down; set before they are asked for, or ``None``.

    Raises:
        InputError: the list of checksums cannot be read, or is none.
    """

    def __init__(
        self,
        root: Path,
        options: InputOptions,
        on_progress: OnProgress,
        *,
        max_bytes: int = 2**63,
        read: bool = True,
        leave_out: Iterable[Path] = (),
    ) -> None:
        self._root = root
        self._options = options
        self._on_progress = on_progress
        self._read = read
        self._stage = "pack" if read else "check"
        self._leave_out = tuple(leave_out)
        self._settings = CheckSettings(options.check, options.max_pixels, max_bytes)
        self._pool: CheckPool | None = None
        self._checksums = Checksums(options.checksums, root) if options.checksums is not None else None
        self._kept_by_label: Counter[int] = Counter()
        self._duplicates = Duplicates()
        self._turned = 0
        self.listing = Listing()
        self.samples = 0
        self.payload_bytes = 0
        self.checksums_digest = self._checksums.digest if self._checksums else ""
        self.journal: Journal | None = None

    def __enter__(self) -> Inspection:
        """Start the workers, which load their decoders while the folder is scanned."""
        options = self._options
        if options.check != "none":
            workers = options.workers or available_cpus()
            self._pool = CheckPool(
                os.fsencode(self._root),
                self._settings,
                workers,
                options.timeout_s,
                checksums=self._checksums,
                record=self._record,
            )
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pool is not None:
            self._pool.close()

    def scan(self, shuffle: int | None = None) -> Listing:
        """List the candidate files.

        Args:
            shuffle: seed of a random order to list them in; ``None`` for the order of their names.

        Raises:
            InputError: there are none, their labels would be a guess, their classes are too many, or the list of checksums is
                about other files.
            DatasetError: the dataset that classes are to be taken from cannot be opened.
        """
        self.listing = scan(
            self._root,
            self._options.labels,
            leave_out=self._leave_out,
            follow_links=self._options.follow_links,
            known=load_classes(self._options.classes_from) if self._options.classes_from is not None else None,
            on_progress=lambda seen: self._on_progress(Progress("scan", seen)),
        )
        if not len(self.listing):
            raise InputError(f"{self._root}: nothing to pack: {_ignored(self.listing)}")
        if self._checksums is not None and not any(self._checksums.expected(source.name) for source in self.listing):
            raise InputError(
                f"{self._options.checksums}: names none of the {len(self.listing):,} files, the first of which is "
                f"{display_name(self.listing[0].name)}. Names are taken relative to the list's folder or to {self._root}."
            )
        names = [display_name(name) for name in self.listing.classes]
        if len(json.dumps(names, indent=1)) > MAX_MANIFEST_BYTES // 2:
            raise InputError(
                f"{self._root}: the names of its {len(names):,} classes are longer together than a manifest can hold. "
                "Use shorter names, or --labels none."
            )
        if shuffle is not None:
            self.listing = self.listing.shuffled(shuffle)
        return self.listing

    def verdicts(self) -> Iterator[tuple[Source, Verdict]]:
        """The verdicts on all files in order, and nothing done with them."""
        for source, verdict, _ in self._intake(None).take(self.listing):
            yield source, verdict

    def kept(self, report: ReportWriter, read_from: int = 0) -> Iterator[tuple[Source, Kept, bytes]]:
        """The sound files in order, with their bytes where these are wanted; the others go into the report.

        Args:
            report: of the job.
            read_from: index of the first source whose bytes are wanted, in a job that wants them at all.
        """
        total, done_bytes = len(self.listing), 0
        self._on_progress(Progress(self._stage, 0, total))
        for source, verdict, payload in self._intake(read_from if self._read else None).take(self.listing):
            if isinstance(verdict, Skipped):
                report.skip(source.name, verdict.code, verdict.detail)
            else:
                for note in verdict.warnings:
                    report.warn(source.name, note.code, note.detail)
                self.samples += 1
                self.payload_bytes += verdict.size_bytes
                self._turned += verdict.orientation > 1
                self._kept_by_label[source.label] += 1
                self._duplicates.add(source.index, verdict.size_bytes, verdict.digest)
                yield source, verdict, payload
            done_bytes += source.size_bytes
            self._on_progress(Progress(self._stage, source.index + 1, total, done_bytes, source.index + 1 - self.samples))

    def finish(self, report: ReportWriter) -> None:
        """Report what only shows when all files were judged.

        Raises:
            TooManySkippedError: more files were skipped than the options allow.
            InputError: none was kept.
        """
        listing = self.listing
        self._report_checksums(report)
        name_of = dict(zip(listing.class_labels, listing.classes, strict=True))
        for group in self._duplicates.groups():
            self._report_duplicates(group, name_of, report)
        for name, note in listing.notes:
            report.warn(name, note.code, note.detail)
        for name, label in zip(listing.classes, listing.class_labels, strict=True):
            if not self._kept_by_label[label]:
                report.warn(name, "empty_class", f"no sample of this class was packed; it keeps its label {label}")
        skipped = len(listing) - self.samples
        causes = ", ".join(f"{count:,} {code}" for code, count in report.skipped.most_common())
        allowed = allowed_skips(self._options.max_skipped, len(listing))
        if skipped > allowed:
            first = next(iter(report.examples.values()))[0]
            raise TooManySkippedError(
                f"{self._root}: {skipped:,} of {len(listing):,} files were skipped ({causes}; the first: {first}), "
                f"{allowed:,} are allowed (--max-skipped {self._options.max_skipped})"
            )
        if not self.samples:
            raise InputError(
                f"{self._root}: nothing could be packed: {len(listing):,} files were looked at, all of them skipped "
                f"({causes}; the first: {', '.join(next(iter(report.examples.values())))}), {_ignored(listing)}"
            )

    def counts(self, report: ReportWriter) -> dict[str, Any]:
        """The values of an ``InputSummary``, but for the time."""
        return {
            "files": len(self.listing),
            "samples": self.samples,
            "payload_bytes": self.payload_bytes,
            "classes": tuple(display_name(name) for name in self.listing.classes),
            "skipped": dict(report.skipped),
            "skipped_examples": report.examples,
            "warned": dict(report.warned),
            "notes": tuple(note.detail for name, note in self.listing.notes if name is None),
            "turned": self._turned,
            "ignored": dict(sorted(self.listing.ignored.items())),
        }

    def _intake(self, read_from: int | None) -> Intake:
        return Intake(
            os.fsencode(self._root),
            self._settings,
            self._pool,
            checksums=self._checksums,
            skip=self._options.skip,
            journal=self.journal,
            read_from=read_from,
        )

    def _record(self, sources: list[Source], verdicts: list[Verdict]) -> None:
        if self.journal:
            self.journal.add(sources, verdicts)

    def _report_duplicates(self, group: DuplicateGroup, name_of: dict[int, bytes], report: ReportWriter) -> None:
        sources = [self.listing[int(index)] for index in group.sources[:_PATHS]]
        labels = sorted({self.listing.label(int(index)) for index in group.sources})
        classes = [display_name(name_of[label]) for label in labels if label in name_of]
        count = len(group.sources)
        detail = f"{count:,} files have these bytes (xxh3-64 {group.digest:016x})"
        if len(classes) > 1:
            detail += f", under {len(classes):,} labels: {', '.join(classes[:_PATHS])}{', …' if len(classes) > _PATHS else ''}"
        report.warn(
            sources[0].name,
            "duplicate_content",
            detail,
            digest=f"{group.digest:016x}",
            count=count,
            paths=[display_name(source.name) for source in sources],
            classes=classes,
        )

    def _report_checksums(self, report: ReportWriter) -> None:
        checksums = self._checksums
        if checksums is None:
            return
        for source in self.listing:
            if not checksums.expected(source.name):
                report.warn(source.name, "checksum", "not in the list of checksums, so its bytes were compared with nothing")
        for name in checksums.missing():
            with contextlib.suppress(ValueError):  # a zero byte in the name
                if not os.path.lexists(os.path.join(os.fsencode(self._root), name)):
                    report.warn(name, "checksum", "in the list of checksums, but there is no such file")


def require_folder(root: Path) -> None:
    """Refuse an input that is not there, before anything is made or started for it.

    Raises:
        InputError: says what is wrong.
    """
    try:
        os.stat(root)
    except FileNotFoundError:
        raise InputError(f"{root}: no such folder") from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise InputError(f"{root}: {getattr(error, 'strerror', None) or error}") from None


def _ignored(listing: Listing) -> str:
    if not listing.ignored:
        return "no other files"
    kinds = ", ".join(f"{count:,} {suffix}" for suffix, count in listing.ignored.most_common(5))
    return f"{sum(listing.ignored.values()):,} files are of other kinds ({kinds})"
