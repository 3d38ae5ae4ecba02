"""How large an output will be, from the scan alone: no file is opened."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packer.errors import OutputError
from packer.formats._base import Candidates, Format
from packer.index import index_size
from packer.listing import Listing
from packer.model import display_name
from packer.plan import ShardLimits

__all__ = ["OutputEstimate", "estimate_output", "require_space"]

_OTHER_FILES = 4  # manifest, index, names, report
_OTHER_BYTES = 4_096  # manifest and report, but for the classes and the shards
_SHARD_ENTRY_BYTES = 160  # in the manifest


@dataclass(frozen=True, slots=True)
class OutputEstimate:
    """Sizes in bytes of an output, within 5 % or 1 MiB for usual inputs whose files are sound.

    Attributes:
        shards: number of files of the container.
        container_bytes: size of the container.
        index_bytes: exact size of the index.
        names_bytes: exact size of the names.
        output_bytes: size of all files of the output.
        output_files: number of all its files.
    """

    shards: int
    container_bytes: int
    index_bytes: int
    names_bytes: int
    output_bytes: int
    output_files: int


def estimate_output(listing: Listing, kept: NDArray[np.bool_], container: Format, limits: ShardLimits) -> OutputEstimate:
    """Estimate the output of a job.

    Args:
        listing: what was found.
        kept: bool (n), which of the candidates will be packed if they are sound.
        container: the format.
        limits: when a shard is full, where the format has shards.
    """
    columns = listing.columns()
    ends = columns.name_ends[kept]
    starts = np.append(0, columns.name_ends)[:-1][kept]
    candidates = Candidates(
        sizes=columns.sizes[kept],
        names=columns.names,
        name_starts=starts,
        name_ends=ends,
        labels=columns.labels[kept],
        classes=listing.classes,
        class_labels=listing.class_labels,
        limits=limits,
    )
    size_bytes, shards = container.estimate(candidates)
    index_bytes, names_bytes = index_size(len(ends)), int((ends - starts).sum())
    manifest_bytes = shards * _SHARD_ENTRY_BYTES + sum(len(name) + 6 for name in listing.classes)
    return OutputEstimate(
        shards=shards,
        container_bytes=size_bytes,
        index_bytes=index_bytes,
        names_bytes=names_bytes,
        output_bytes=size_bytes + index_bytes + names_bytes + manifest_bytes + _OTHER_BYTES,
        output_files=shards + _OTHER_FILES,
    )


def require_space(folder: Path, estimate: OutputEstimate, listing: Listing, written_bytes: int = 0) -> None:
    """Refuse a job that will not fit, before it works for hours.

    Args:
        folder: where the output will stand.
        estimate: of the output.
        listing: what was found.
        written_bytes: those of the output that stand there already.

    Raises:
        OutputError: says what is free, what is needed, and what is large.
    """
    free = shutil.disk_usage(folder).free
    if estimate.output_bytes - written_bytes > free:
        largest = listing[int(listing.columns().sizes.argmax())]
        raise OutputError(
            f"{folder}: {free:,} bytes are free, the output will have about {estimate.output_bytes:,} (the largest file, "
            f"{display_name(largest.name)}, has {largest.size_bytes:,}). Make room, or choose another place with -o."
        )
