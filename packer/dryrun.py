"""``pack SRC --dry-run``: the scan and the plan. Nothing is written, and no file of the input is opened."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packer.commit import require_replaceable
from packer.errors import InputError, OutputError, PackerError, TooManySkippedError
from packer.estimate import OutputEstimate, estimate_output, require_space
from packer.formats._base import Format
from packer.inspection import Inspection, require_folder
from packer.listing import Columns, Listing
from packer.model import TYPES, Note, display_name
from packer.names import shown_suffix, suffix_of
from packer.options import OnProgress, PackOptions, allowed_skips
from packer.pack import checked_format, resolve_target
from packer.plan import ShardLimits

__all__ = ["Amount", "ClassAmount", "DryRun", "Findings", "Refusal", "plan_folder"]

_EXAMPLES = 3
_BLOCK = 65_536  # names a step
_TAIL = 5  # bytes at the end of a name that tell its type
_TYPE_OF = {suffix.encode(): kind.name for kind in TYPES for suffix in kind.suffixes}
_REFUSALS: dict[str, type[PackerError]] = {kind.__name__: kind for kind in (InputError, OutputError, TooManySkippedError)}


@dataclass(frozen=True, slots=True)
class Amount:
    """Number of files, and their bytes together."""

    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ClassAmount:
    """A class, its label, and its candidate files."""

    name: str
    label: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Findings:
    """How often something was found, and the first few with what was found."""

    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the job would fail after its scan: the name of the error class, its exit status and its message."""

    kind: str
    exit_status: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What a packing job would do.

    Attributes:
        source: the input.
        output: where the dataset would stand.
        format: its container format.
        files: candidate files.
        bytes: of them together.
        classes: the classes in order, those without a file too; empty where there are no labels.
        labels_from: ``"folder"``, ``"number"`` or ``"none"``.
        types: candidate files by the type that their extension announces, or by their extension where it is none of these.
        ignored: files that are no candidates, by extension.
        refused: candidates that would be skipped whatever is in them, by code.
        warned: warnings of the scan, by code.
        estimate: of the output, if all other candidates are sound.
        shard_bytes: size that a shard does not exceed, ``None`` where the format has no shards.
        shard_samples: number of samples that it does not exceed, 0 for no limit, ``None`` where the format has no shards.
        free_bytes: what is free where the output would stand.
        enough_space: whether the estimate fits.
        inodes_saved: candidate files less the files of the output.
        refusals: why the job would fail, as far as the scan shows it.
        seconds: time that it took.
    """

    source: str
    output: str
    format: str
    files: int
    bytes: int
    classes: tuple[ClassAmount, ...]
    labels_from: str
    types: dict[str, Amount]
    ignored: dict[str, int]
    refused: dict[str, Findings]
    warned: dict[str, Findings]
    estimate: OutputEstimate
    shard_bytes: int | None
    shard_samples: int | None
    free_bytes: int
    enough_space: bool
    inodes_saved: int
    refusals: tuple[Refusal, ...]
    seconds: float

    def raise_refusal(self) -> None:
        """Raise the error that the job would end with, where there is one."""
        for refusal in self.refusals:
            raise _REFUSALS[refusal.kind](refusal.message)


def plan_folder(
    source: str | os.PathLike[str], options: PackOptions | None = None, on_progress: OnProgress | None = None
) -> DryRun:
    """Say what ``packer.pack.pack_folder`` would do with the same arguments.

    Args:
        source: the folder.
        options: how; the defaults where left out.
        on_progress: called now and then while the folder is scanned, from this thread.

    Raises:
        OptionError: an option does not exist or does not fit.
        InputError: the input is missing, or its labels would be a guess.
        DatasetError: the dataset that the classes are to be taken from cannot be opened.
        OutputError: the output exists already, or cannot be made.
    """
    options = options or PackOptions()
    started = time.perf_counter()
    container = checked_format(options)
    root = Path(source)
    require_folder(root)
    target = resolve_target(root, container, options)
    _require_free(target, overwrite=options.overwrite)
    listing, refusals = _scan(root, target, container, options, on_progress or (lambda progress: None))
    limits = options.limits or ShardLimits()
    kept, refused = _refused(listing, container)
    estimate = estimate_output(listing, kept, container, limits)
    free = shutil.disk_usage(target.parent).free
    try:
        require_space(target.parent, estimate, listing)
    except OutputError as error:
        refusals.append(_refusal(error))
    if len(listing):
        refusals += _too_many_skipped(root, len(listing), refused, options)
    columns = listing.columns()
    classes = _classes(listing, columns)
    return DryRun(
        source=str(root),
        output=str(target),
        format=container.name,
        files=len(listing),
        bytes=listing.total_bytes,
        classes=classes,
        labels_from=listing.labels_from,
        types=_types(columns),
        ignored=dict(sorted(listing.ignored.items())),
        refused=refused,
        warned=_warned(listing, classes),
        estimate=estimate,
        shard_bytes=limits.size_bytes if container.has_shards else None,
        shard_samples=limits.samples if container.has_shards else None,
        free_bytes=free,
        enough_space=estimate.output_bytes <= free,
        inodes_saved=len(listing) - estimate.output_files,
        refusals=tuple(refusals),
        seconds=time.perf_counter() - started,
    )


def _require_free(target: Path, *, overwrite: bool) -> None:
    if os.path.lexists(target):
        require_replaceable(target, overwrite=overwrite)
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise OutputError(f"{target.parent}: cannot be written: Permission denied. Choose another with -o.")


def _scan(
    root: Path, target: Path, container: Format, options: PackOptions, on_progress: OnProgress
) -> tuple[Listing, list[Refusal]]:
    """What was found, and what the job would say of it."""
    no_workers = dataclasses.replace(options, check="none")
    partial = target.parent / f".{target.name}.partial"
    inspection = Inspection(root, no_workers, on_progress, max_bytes=container.max_payload_bytes, leave_out=(target, partial))
    before = inspection.listing
    with inspection:
        try:
            inspection.scan(options.shuffle)
        except InputError as error:
            if inspection.listing is before:
                raise  # the scan itself ended with it
            return inspection.listing, [_refusal(error)]
    return inspection.listing, []


def _refusal(error: PackerError) -> Refusal:
    return Refusal(type(error).__name__, error.exit_status, str(error))


def _refused(listing: Listing, container: Format) -> tuple[NDArray[np.bool_], dict[str, Findings]]:
    """Which candidates would not be skipped already because of what the scan or their size says, and the others by code."""
    sizes = listing.columns().sizes
    kept = np.ones(len(listing), bool)
    kept[np.fromiter(listing.refused, np.int64, len(listing.refused))] = False
    examples: dict[str, list[str]] = {}
    counts: Counter[str] = Counter()
    for index, skipped in listing.refused.items():
        counts[skipped.code] += 1
        if len(found := examples.setdefault(skipped.code, [])) < _EXAMPLES:
            found.append(f"{display_name(listing[index].name)}: {skipped.detail}")
    for code, is_such in (("empty_file", sizes == 0), ("too_large", sizes > container.max_payload_bytes)):
        indices = np.flatnonzero(is_such & kept)
        kept[indices] = False
        if indices.size:
            counts[code] += len(indices)
            first = (listing[int(index)] for index in indices[:_EXAMPLES])
            examples.setdefault(code, []).extend(f"{display_name(one.name)}: {one.size_bytes:,} bytes" for one in first)
    return kept, {code: Findings(counts[code], tuple(examples[code][:_EXAMPLES])) for code in sorted(counts)}


def _too_many_skipped(root: Path, files: int, refused: dict[str, Findings], options: PackOptions) -> Iterator[Refusal]:
    skipped = sum(found.count for found in refused.values())
    causes = ", ".join(f"{found.count:,} {code}" for code, found in refused.items())
    allowed = allowed_skips(options.max_skipped, files)
    if skipped > allowed:
        yield _refusal(
            TooManySkippedError(
                f"{root}: {skipped:,} of {files:,} files would be skipped ({causes}), {allowed:,} are allowed "
                f"(--max-skipped {options.max_skipped})"
            )
        )
    elif skipped == files:
        yield _refusal(InputError(f"{root}: nothing could be packed: all of its {files:,} files would be skipped ({causes})"))


def _classes(listing: Listing, columns: Columns) -> tuple[ClassAmount, ...]:
    if not listing.classes:
        return ()
    labels = np.array(listing.class_labels, np.int64)
    order = np.argsort(labels)
    place = order[np.searchsorted(labels[order], columns.labels)]
    files = np.bincount(place, minlength=len(labels))
    sizes = np.zeros(len(labels), np.int64)
    np.add.at(sizes, place, columns.sizes)
    return tuple(
        ClassAmount(display_name(name), label, count, size)
        for name, label, count, size in zip(listing.classes, listing.class_labels, files.tolist(), sizes.tolist(), strict=True)
    )


def _types(columns: Columns) -> dict[str, Amount]:
    """Files and bytes by type, the most frequent first."""
    files: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for first in range(0, len(columns.name_ends), _BLOCK):
        block = slice(first, first + _BLOCK)
        for name, some in _by_type(columns, block):
            files[name] += len(some)
            sizes[name] += int(some.sum())
    return {name: Amount(count, sizes[name]) for name, count in files.most_common()}


def _by_type(columns: Columns, block: slice) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """The types in a part of the listing, each with the sizes of its files. A type may come more than once."""
    sizes, ends = columns.sizes[block], columns.name_ends[block]
    starts = np.append(columns.name_ends[block.start - 1] if block.start else 0, ends[:-1])
    places = ends[:, None] - np.arange(_TAIL, 0, -1)
    tails = np.zeros((len(ends), 8), np.uint8)  # numbers sort ten times faster than strings
    tails[:, -_TAIL:] = np.where(places >= starts[:, None], columns.names[np.maximum(places, 0)], 0)
    values, which = np.unique(tails.view(np.uint64)[:, 0], return_inverse=True)
    for number, value in enumerate(values):
        same = np.flatnonzero(which == number)
        name = _TYPE_OF.get(suffix_of(b"x" + value.tobytes()))
        if name:
            yield name, sizes[same]
            continue
        for i in same:  # a longer extension, or none
            suffix = suffix_of(columns.names[starts[i] : ends[i]].tobytes().rpartition(b"/")[2])
            yield _TYPE_OF.get(suffix) or shown_suffix(suffix), sizes[i : i + 1]


def _warned(listing: Listing, classes: tuple[ClassAmount, ...]) -> dict[str, Findings]:
    counts: Counter[str] = Counter()
    examples: dict[str, list[str]] = {}
    empty = (
        (one.name, Note("empty_class", f"holds no file; it keeps its label {one.label}")) for one in classes if not one.files
    )
    noted = ((None if path is None else display_name(path), note) for path, note in listing.notes)
    for path, note in chain(noted, empty):
        counts[note.code] += 1
        if len(found := examples.setdefault(note.code, [])) < _EXAMPLES:
            found.append(note.detail if path is None else f"{path}: {note.detail}")
    return {code: Findings(counts[code], tuple(examples[code])) for code in sorted(counts)}
