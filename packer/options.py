"""What a job is asked for, what it tells while it runs, and what it did."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from packer.errors import OptionError
from packer.labels import LABEL_RULES
from packer.manifest import REPORT_FILE
from packer.model import CHECK_LEVELS, DATASET_WARNING_CODES, DEFAULT_MAX_PIXELS, WARNING_CODES
from packer.plan import ShardLimits

__all__ = [
    "SKIPPABLE_CODES",
    "InputOptions",
    "InputSummary",
    "OnProgress",
    "PackOptions",
    "Progress",
    "Summary",
    "allowed_skips",
]

SKIPPABLE_CODES = tuple(code for code in WARNING_CODES if code not in DATASET_WARNING_CODES)
"""Warnings about one file, which ``skip`` turns into skips."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputOptions:
    """How a folder is read and its files are judged.

    Attributes:
        check: ``"full"`` decodes every file, ``"none"`` looks at the first bytes only.
        labels: a rule of ``packer.labels.LABEL_RULES``.
        classes_from: a packed dataset, or a text file with one class a line, whose classes and labels are taken over: the
            training set's for a validation set that lacks some of its classes.
        follow_links: follow links that lead out of the input.
        workers: number of checking processes; ``None`` for the CPUs that this process may use.
        max_pixels: a picture with more pixels is skipped.
        timeout_s: seconds that checking one file may take.
        skip: warning codes (``SKIPPABLE_CODES``) with which a file is skipped rather than kept.
        max_skipped: the job fails where more files are skipped: a number, or a share such as ``"5%"``.
        checksums: a list of checksums as ``sha256sum`` writes it, with which the files are compared.
    """

    check: str = "full"
    labels: str = "auto"
    classes_from: Path | None = None
    follow_links: bool = False
    workers: int | None = None
    max_pixels: int = DEFAULT_MAX_PIXELS
    timeout_s: float = 60.0
    skip: Collection[str] = ()
    max_skipped: int | str = "100%"
    checksums: Path | None = None

    def require_sound(self) -> None:
        """Refuse what does not exist or does not fit.

        Raises:
            OptionError: says which option, and what there is.
        """
        for value, known, what in ((self.check, CHECK_LEVELS, "check"), (self.labels, LABEL_RULES, "labels")):
            if value not in known:
                raise OptionError(f"{what} {value!r}; there are {', '.join(known)}")
        for code in self.skip:
            if code not in SKIPPABLE_CODES:
                raise OptionError(f"skip {code!r}; there are {', '.join(SKIPPABLE_CODES)}")
        if self.workers is not None and self.workers < 1:
            raise OptionError(f"{self.workers} workers; at least 1 is needed")
        if self.max_pixels < 1 or not 0 < self.timeout_s < math.inf:
            raise OptionError("the limits of pixels and of seconds must be positive")
        if self.classes_from is not None and self.labels not in ("auto", "folder"):
            raise OptionError(f"labels cannot be taken from {self.classes_from} and be {self.labels!r} as well")
        allowed_skips(self.max_skipped, 0)


def allowed_skips(max_skipped: int | str, files: int) -> int:
    """How many of so many files may be skipped.

    Raises:
        OptionError: neither a number nor a share.
    """
    found = re.fullmatch(r"(\d{1,15})|(\d{1,3})(?:\.(\d{1,9}))?\s*%", str(max_skipped).strip(), re.ASCII)
    share = int(found[2] + (found[3] or "").ljust(9, "0")) if found and found[2] else 0  # in billionths of a hundredth
    if found is None or share > 100 * 10**9:
        raise OptionError(f"max_skipped {str(max_skipped)!r}; a number of files is expected, or a share such as 5%")
    return int(found[1]) if found[1] else files * share // (100 * 10**9)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions(InputOptions):
    """How a folder is packed.

    Attributes:
        format: a name of ``packer.formats.names()``.
        output: where the dataset will stand; ``None`` for ``NAME.FORMAT`` beside the input.
        overwrite: replace an output of packer that stands there already; the old one stays until the new one is whole.
        limits: when a shard is full, for formats that have shards; ``None`` for the defaults.
        resume: go on from what an unfinished job has left; ``False`` to start over.
        shuffle: seed of a random order to pack in, for readers that stream; ``None`` for the order of the names.
    """

    format: str = "lmdb"
    output: Path | None = None
    overwrite: bool = False
    limits: ShardLimits | None = None
    resume: bool = True
    shuffle: int | None = None


class Progress(NamedTuple):
    """How far a job is.

    Attributes:
        stage: ``"scan"``, ``"resume"``, ``"pack"``, ``"check"``, ``"convert"``, ``"unpack"`` or ``"verify"``.
        done: files looked at (scan, resume, pack, check) or samples read back (verify).
        total: how many there are, ``None`` while that is not known.
        done_bytes: bytes of the files done.
        skipped: files skipped so far.
    """

    stage: str
    done: int
    total: int | None = None
    done_bytes: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSummary:
    """What was found in a folder.

    Attributes:
        files: candidate files.
        samples: those that are sound, and kept.
        payload_bytes: the bytes of the samples together.
        classes: class names.
        skipped: files skipped, by code.
        skipped_examples: the first few of their paths, by code.
        warned: warnings, by code.
        notes: warnings about the input as a whole, in full.
        turned: samples whose Exif orientation says that the stored pixels are not upright.
        ignored: files that were no candidates, by extension.
        seconds: time it took.
    """

    files: int
    samples: int
    payload_bytes: int
    classes: tuple[str, ...]
    skipped: dict[str, int]
    skipped_examples: dict[str, list[str]]
    warned: dict[str, int]
    notes: tuple[str, ...]
    turned: int
    ignored: dict[str, int]
    seconds: float

    @property
    def mostly_skipped(self) -> bool:
        """Whether more than half of the files were skipped: then it is rather the folder or an option that is wrong."""
        return sum(self.skipped.values()) * 2 > self.files


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary(InputSummary):
    """What a packing job did.

    Attributes:
        output: the dataset's folder.
        format: its container format.
        output_bytes: size of the container.
        shards: number of files of the container.
        content_digest: the same for the same samples in any container.
        resumed: number of verdicts that an unfinished job had left, ``None`` where there was none to go on from.
        replaced_unfinished: whether an unfinished output was found and started over.
    """

    output: Path
    format: str
    output_bytes: int
    shards: int
    content_digest: str
    resumed: int | None
    replaced_unfinished: bool

    @property
    def report(self) -> Path:
        """Where each skipped file and each warning is named."""
        return self.output / REPORT_FILE


OnProgress = Callable[[Progress], None]
