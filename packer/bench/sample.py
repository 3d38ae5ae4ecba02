"""Files to measure with: drawn evenly from a folder, judged, and linked (or copied) beside each other."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packer.bench.scratch import Scratch
from packer.check import CheckSettings
from packer.checkers import CheckPool
from packer.cpus import available_cpus
from packer.errors import InputError, OutputError
from packer.listing import Listing
from packer.model import TYPES_BY_NAME, Kept, Source, Verdict, display_name
from packer.options import OnProgress, Progress
from packer.permutation import permuted
from packer.scan import scan

__all__ = ["Drawn", "draw", "require_room"]

_FORMATS = 3
_EXTRA_BYTES = 4096  # a sample and format: headers, padding, index, names
_TIMEOUT_S = 60.0
_MIXED = "of another kind than most (pictures or arrays)"
_NO_ROOM = "no room for it (--space)"
_NO_TIME = "no time to check it (--seconds)"


@dataclass(frozen=True, slots=True)
class Drawn:
    """The sample, linked or copied to ``files`` of the scratch folder under numbers, in the order of the original names.

    Attributes:
        paths: of the links or copies, by number.
        sizes: in bytes, int64.
        digests: xxh3-64 of the files' bytes, uint64.
        is_pictures: or else they are arrays.
        total: files that can be chosen from.
        total_bytes: of these.
        left_out: files that were drawn and left out, by reason.
        checked_per_s: files judged a second.
        copied: whether they are copies.
    """

    paths: tuple[str, ...]
    sizes: NDArray[np.int64]
    digests: NDArray[np.uint64]
    is_pictures: bool
    total: int
    total_bytes: int
    left_out: dict[str, int]
    checked_per_s: float
    copied: bool


def draw(
    root: Path, scratch: Scratch, *, samples: int, space_bytes: int, seconds: float, seed: int, on_progress: OnProgress
) -> Drawn:
    """Draw files of a folder at random, leave out those that cannot be decoded, and link or copy the rest.

    Args:
        root: the folder, which is not changed.
        scratch: where the links go.
        samples: how many to draw at most.
        space_bytes: what the sample may take, packed three times and copied where links are not possible.
        seconds: that checking may take.
        seed: another one draws others.
        on_progress: called now and then.

    Raises:
        InputError: nothing in the folder can be measured.
        OutputError: nothing fits into the space, or it cannot be written.
    """
    listing = scan(
        root,
        "none",
        leave_out=[scratch.folder],
        follow_links=True,
        on_progress=lambda seen: on_progress(Progress("scan", seen)),
    )
    if not len(listing):
        raise InputError(f"{root}: no pictures and no .npy files in it")
    left_out: Counter[str] = Counter()
    scratch.files.mkdir()
    links = _can_link(root, listing, scratch)
    copies = _FORMATS + (not links)
    chosen: list[tuple[Source, Verdict]] = []
    room, started = space_bytes, time.perf_counter()
    seconds_end = started + seconds
    drawn = min(samples, len(listing))
    on_progress(Progress("check", 0, drawn))
    pool = CheckPool(os.fsencode(root), CheckSettings(), min(available_cpus(), drawn), _TIMEOUT_S)
    judged = 0
    try:
        for source, verdict in pool.verdicts(_in_random_order(listing, drawn, seed)):
            judged += 1
            on_progress(Progress("check", judged, drawn))
            room -= copies * source.size_bytes + _FORMATS * _EXTRA_BYTES
            if room < 0:
                left_out[_NO_ROOM] = drawn - judged + 1
                break
            if isinstance(verdict, Kept):
                chosen.append((source, verdict))
            else:
                room += copies * source.size_bytes + _FORMATS * _EXTRA_BYTES
                left_out[verdict.code] += 1
            if time.perf_counter() > seconds_end and judged < drawn:
                left_out[_NO_TIME] = drawn - judged
                break
    finally:
        pool.close()
    checked_per_s = judged / (time.perf_counter() - started)
    kept = _of_one_kind([(source, verdict) for source, verdict in chosen if isinstance(verdict, Kept)], left_out)
    if not kept:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items())
        kind = OutputError if left_out[_NO_ROOM] else InputError
        raise kind(f"{root}: none of the {judged:,} files that were drawn can be measured: {reasons}")
    return Drawn(
        _bring(root, [source for source, _ in kept], [verdict.type for _, verdict in kept], scratch, links),
        np.array([verdict.size_bytes for _, verdict in kept], np.int64),
        np.array([verdict.digest for _, verdict in kept], np.uint64),
        kept[0][1].type != "npy",
        len(listing),
        listing.total_bytes,
        dict(left_out),
        checked_per_s,
        not links,
    )


def require_room(folder: Path, space_bytes: int) -> int:
    """What a sample may take on the disk of a folder: what is asked for, or most of what is free.

    Raises:
        OutputError: nothing is free.
    """
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise OutputError(f"{folder}: {error.strerror}") from error
    if free < 1 << 20:
        raise OutputError(f"{folder}: {free:,} bytes are free there, too few to measure with. Choose another with --scratch.")
    return min(space_bytes, free * 9 // 10)


def _in_random_order(listing: Listing, count: int, seed: int) -> Iterator[Source]:
    """The first files of a random order that can be looked at."""
    for start in range(0, count, 1024):
        for index in permuted(np.arange(start, min(start + 1024, count)), len(listing), seed).tolist():
            if index not in listing.refused:
                yield listing[index]


def _of_one_kind(kept: list[tuple[Source, Kept]], left_out: Counter[str]) -> list[tuple[Source, Kept]]:
    """Those of the more frequent kind, in the order of the folder: the others could not be in one batch with them."""
    kept = [(source, verdict) for source, verdict in kept if verdict.size_bytes]
    arrays = sum(verdict.type == "npy" for _, verdict in kept)
    is_arrays = 2 * arrays > len(kept)
    same = [(source, verdict) for source, verdict in kept if (verdict.type == "npy") == is_arrays]
    if len(same) < len(kept):
        left_out[_MIXED] = len(kept) - len(same)
    return sorted(same, key=lambda pair: pair[0].index)


def _can_link(root: Path, listing: Listing, scratch: Scratch) -> bool:
    first = next((source for source in listing if source.index not in listing.refused), None)
    if first is None:
        return False
    probe = scratch.files / "probe"
    try:
        os.symlink(_real(root, first), probe)
    except OSError:
        return False
    probe.unlink()
    return True


def _bring(root: Path, sources: list[Source], types: list[str], scratch: Scratch, links: bool) -> tuple[str, ...]:
    paths: list[str] = []
    for number, (source, kind) in enumerate(zip(sources, types, strict=True)):
        path = scratch.files / f"{number:07d}.{TYPES_BY_NAME[kind].extension}"
        original = _real(root, source)
        try:
            if links:
                os.stat(original)
                # Symbolic: a hard link changes the time by which some backups find what is new.
                os.symlink(original, path)
            else:
                shutil.copyfile(original, path)
        except FileNotFoundError:
            raise InputError(f"{display_name(source.name)}: is gone since the folder was listed. Run again.") from None
        paths.append(str(path))
    return tuple(paths)


def _real(root: Path, source: Source) -> str:
    """The path of the file itself, whole."""
    return os.fsdecode(os.path.realpath(os.path.join(os.fsencode(root), source.name)))
