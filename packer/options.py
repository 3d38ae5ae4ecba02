"""What a packing job is asked for, what it tells while it runs, and what it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from packer.manifest import REPORT_FILE
from packer.model import DEFAULT_MAX_PIXELS
from packer.plan import ShardLimits

__all__ = ["OnProgress", "PackOptions", "Progress", "Summary"]


@dataclass(frozen=True, slots=True)
class PackOptions:
    """How a folder is packed.

    Attributes:
        format: a name of ``packer.formats.names()``.
        output: where the dataset will stand; ``None`` for ``NAME.FORMAT`` beside the input.
        overwrite: replace an output of packer that stands there already; the old one stays until the new one is whole.
        check: ``"full"`` decodes every file, ``"none"`` looks at the first bytes only.
        labels: a rule of ``packer.labels.LABEL_RULES``.
        limits: when a shard is full, for formats that have shards; ``None`` for the defaults.
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
    limits: ShardLimits | None = None
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
