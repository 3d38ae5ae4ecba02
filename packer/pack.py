"""Pack a folder: scan, check, plan, write, read back, commit."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from packer import formats
from packer.check import CHECK_LEVELS, CheckSettings, check_source
from packer.checkers import CheckPool
from packer.commit import Staging
from packer.cpus import available_cpus
from packer.errors import InputError, OptionError, OutputError
from packer.extents import ExtentReader
from packer.files import file_digest, read_regular_file
from packer.formats._base import Format, Writer, Written
from packer.index import INDEX_FILE, NAMES_FILE, Index, IndexWriter
from packer.listing import Listing
from packer.manifest import REPORT_FILE, FileEntry, Manifest, ShardEntry, content_digest
from packer.model import DEFAULT_MAX_PIXELS, TYPES_BY_NAME, Kept, Sample, Skipped, Source, Unfit, Verdict, display_name
from packer.plan import ShardLimits, WritePlan
from packer.report import ReportWriter
from packer.scan import LABEL_RULES, scan
from packer.verify import payload_findings

__all__ = ["PackOptions", "Progress", "Summary", "pack_folder"]


@dataclass(frozen=True, slots=True)
class PackOptions:
    """How a folder is packed.

    Attributes:
        format: a name of ``packer.formats.names()``.
        output: where the dataset will stand; ``None`` for ``NAME.FORMAT`` beside the input.
        overwrite: replace an output of packer that stands there already; the old one stays until the new one is whole.
        check: ``"full"`` decodes every file, ``"none"`` looks at the first bytes only.
        labels: a rule of ``packer.scan.LABEL_RULES``.
        limits: when a shard is full, for formats that have shards.
        workers: number of checking processes; ``None`` for the CPUs that this process may use.
        max_pixels: a picture with more pixels is skipped.
        timeout_s: seconds that checking one file may take.
        follow_links: follow links that lead out of the input.
    """

    format: str = "lmdb"
    output: Path | None = None
    overwrite: bool = False
    check: str = "full"
    labels: str = "auto"
    limits: ShardLimits = field(default_factory=ShardLimits)
    workers: int | None = None
    max_pixels: int = DEFAULT_MAX_PIXELS
    timeout_s: float = 60.0
    follow_links: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is.

    Attributes:
        stage: ``"scan"``, ``"pack"`` or ``"verify"``.
        done: files looked at (scan, pack) or samples read back (verify).
        total: how many there are, ``None`` while that is not known.
        done_bytes: bytes of the files done.
        skipped: files skipped so far.
    """

    stage: str
    done: int
    total: int | None = None
    done_bytes: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """What a job did.

    Attributes:
        output: the dataset's folder.
        format: its container format.
        files: candidate files that were found.
        samples: files that were packed.
        payload_bytes: their bytes together.
        output_bytes: size of the container.
        shards: number of files of the container.
        classes: class names.
        skipped: files skipped, by code.
        skipped_examples: the first few of their paths, by code.
        warned: warnings, by code.
        ignored: files that were no candidates, by extension.
        content_digest: the same for the same samples in any container.
        seconds: time it took.
        replaced_unfinished: whether an unfinished output of a killed job was found and started over.
    """

    output: Path
    format: str
    files: int
    samples: int
    payload_bytes: int
    output_bytes: int
    shards: int
    classes: tuple[str, ...]
    skipped: dict[str, int]
    skipped_examples: dict[str, list[str]]
    warned: dict[str, int]
    ignored: dict[str, int]
    content_digest: str
    seconds: float
    replaced_unfinished: bool

    @property
    def report(self) -> Path:
        """Where each skipped file and each warning is named."""
        return self.output / REPORT_FILE


OnProgress = Callable[[Progress], None]


def pack_folder(
    source: str | os.PathLike[str], options: PackOptions | None = None, on_progress: OnProgress | None = None
) -> Summary:
    """Pack a folder of images and ``.npy`` files into one container.

    Files that cannot be decoded are named in the report and stay out; they never end the job. Nothing stands under the
    output's final name before it is whole, read back and on the disk.

    Args:
        source: the folder; class folders in its first level give the labels.
        options: how; the defaults where left out.
        on_progress: called now and then, from this thread.

    Raises:
        OptionError: an option does not exist or does not fit; nothing was done.
        InputError: the input is missing, holds nothing that can be packed, or its labels would be a guess.
        OutputError: the output exists already or cannot be written.
    """
    options = options or PackOptions()
    container = _checked_format(options)
    root = Path(source)
    if not root.exists():
        raise InputError(f"{root}: no such folder")
    target = _target(root, container, options)
    started = time.perf_counter()
    with Staging(target, overwrite=options.overwrite) as staging:
        job = _Job(root, target, container, options, staging, on_progress or (lambda progress: None))
        try:
            return job.run(started)
        except OutputError:
            raise
        except OSError as error:
            raise job.output_error(error) from error


def _checked_format(options: PackOptions) -> Format:
    container = formats.get(options.format)
    for value, known, what in ((options.check, CHECK_LEVELS, "check"), (options.labels, LABEL_RULES, "labels")):
        if value not in known:
            raise OptionError(f"{what} {value!r}; there are {', '.join(known)}")
    if not container.has_shards and options.limits != ShardLimits():
        raise OptionError(f"--shard-size and --shard-samples do not fit --format {container.name}: it is one file")
    if options.limits.size_bytes < 1 or options.limits.samples < 0:
        raise OptionError("a shard must hold at least one sample")
    if options.workers is not None and options.workers < 1:
        raise OptionError(f"{options.workers} workers; at least 1 is needed")
    if options.max_pixels < 1 or options.timeout_s <= 0:
        raise OptionError("the limits of pixels and of seconds must be positive")
    return container


def _target(root: Path, container: Format, options: PackOptions) -> Path:
    """The output's real path, so that everything is made on the same file system as the output itself."""
    real_root = Path(os.path.realpath(root))
    if options.output is None:
        if not real_root.name:
            raise OptionError(f"{root}: has no name to call the output after; say where with -o")
        target = real_root.parent / f"{real_root.name}{container.suffix}"
    else:
        target = Path(os.path.realpath(options.output))
    if target == real_root:
        raise OutputError(f"{options.output}: is the input itself; choose another with -o")
    if target in real_root.parents:
        raise OutputError(f"{options.output}: holds the input; choose another with -o")
    if not target.parent.is_dir():
        raise OutputError(f"{target.parent}: no such folder, so {target.name} cannot be made in it. Make it first (mkdir -p).")
    return target


class _Job:
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
        self._payload_bytes = 0
        self._done_bytes = 0
        self._kept_by_label: Counter[int] = Counter()

    def run(self, started: float) -> Summary:
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
            limits=self._options.limits,
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
        for source, verdict in self._verdicts(listing, pool):
            payload = b""
            if isinstance(verdict, Kept):
                verdict, payload = self._read(source, verdict, pool)
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

    def _verdicts(self, listing: Listing, pool: CheckPool | None) -> Iterator[tuple[Source, Verdict]]:
        if not listing.refused:
            yield from self._checked(listing, pool)
            return
        checked = self._checked((source for source in listing if source.index not in listing.refused), pool)
        for source in listing:
            refused = listing.refused.get(source.index)
            yield (source, refused) if refused else next(checked)

    def _checked(self, sources: Iterable[Source], pool: CheckPool | None) -> Iterator[tuple[Source, Verdict]]:
        if pool is not None:
            return pool.verdicts(sources)
        return ((source, self._check(source, None)) for source in sources)

    def _check(self, source: Source, pool: CheckPool | None) -> Verdict:
        if pool is not None:
            return pool.recheck(source.name)
        return check_source(self._path(source), self._settings)

    def _path(self, source: Source) -> bytes:
        return os.path.join(self._root, source.name)

    def _read(self, source: Source, verdict: Verdict, pool: CheckPool | None) -> tuple[Verdict, bytes]:
        """The bytes that a verdict is about. A file that changed meanwhile is checked once more."""
        for attempt in range(2):
            if isinstance(verdict, Skipped):
                return verdict, b""
            try:
                payload = read_regular_file(self._path(source), self._settings.max_bytes)
            except Unfit as unfit:
                return Skipped(unfit.code, unfit.detail), b""
            if len(payload) == verdict.size_bytes and xxhash.xxh3_64_intdigest(payload) == verdict.digest:
                return verdict, payload
            if not attempt:
                verdict = self._check(source, pool)
        return Skipped("changed", "its bytes changed between checking and packing, twice"), b""

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
            shaping |= {"shard_bytes": options.limits.size_bytes, "shard_samples": options.limits.samples}
        classes = tuple(display_name(name) for name in listing.classes)
        return Manifest(
            format=self._container.name,
            samples=samples,
            classes=classes,
            labels=listing.labels_from,
            header=written.header,
            shards=tuple(
                ShardEntry(name, Path(folder, name).stat().st_size, count, file_digest(Path(folder, name)))
                for name, count in written.files
            ),
            files={
                name: FileEntry(Path(folder, name).stat().st_size, file_digest(Path(folder, name)))
                for name in (INDEX_FILE, NAMES_FILE, REPORT_FILE)
            },
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


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _ignored(listing: Listing) -> str:
    if not listing.ignored:
        return "no other files"
    kinds = ", ".join(f"{count:,} {suffix}" for suffix, count in listing.ignored.most_common(5))
    return f"{sum(listing.ignored.values()):,} files are of other kinds ({kinds})"
