"""What a container format has to offer.

All payloads of a container are contiguous ranges of bytes, so that one reader (``packer.extents``) serves all formats.
A writer gets payloads in order and says of each finished file where they lie; a second road to the same payloads, through the
container's own library, is there to prove the first.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from packer.errors import OptionError
from packer.model import Sample
from packer.plan import ShardLimits, WritePlan

__all__ = ["WRITE_BYTES", "Candidates", "Estimate", "Format", "NativeSample", "Writer", "fill"]

WRITE_BYTES = 128 << 10
"""How much a container is written at once. With 1 MB the kernel takes its pages in larger pieces, which cost up to a fifth more
system time where a virtual machine's host takes free memory back."""


class Writer(Protocol):
    """Writes one container. Nothing is renamed or synced here; that is the business of ``packer.commit``."""

    @property
    def path(self) -> Path:
        """The file that is written to now."""

    def append(self, sample: Sample, payload: bytes) -> None:
        """Add the next payload. ``OSError`` where the file system refuses."""

    def finish(self) -> None:
        """Complete the container; its last file is told to the plan as all others were."""

    def close(self) -> None:
        """Let go of all files, finished or not; called in the end whatever happened."""


class NativeSample(NamedTuple):
    """A sample as the container's own library gives it.

    Attributes:
        payload: the bytes of the original file.
        label: its label where the container holds it, otherwise ``None``.
        name: its original relative path where the container holds it, otherwise ``None``.
    """

    payload: bytes
    label: int | None = None
    name: bytes | None = None


class Candidates(NamedTuple):
    """What a scan knows of the files that will be packed, if they are sound: enough for an estimate of the container.

    Attributes:
        sizes: in bytes, int64 (n).
        names: bytes of all names, uint8; there may be others in between.
        name_starts: where each name begins there, int64 (n), ascending.
        name_ends: where it ends, int64 (n).
        labels: int64 (n); ``NO_LABEL`` where there are none.
        classes: class names.
        class_labels: the label of each class.
        limits: when a shard is full, where the format has shards.
    """

    sizes: NDArray[np.int64]
    names: NDArray[np.uint8]
    name_starts: NDArray[np.int64]
    name_ends: NDArray[np.int64]
    labels: NDArray[np.int64]
    classes: list[bytes]
    class_labels: list[int]
    limits: ShardLimits


class Estimate(NamedTuple):
    """Size in bytes and number of files of a container."""

    size_bytes: int
    shards: int


def fill(sizes: NDArray[np.int64], capacity: int, most: int = 0) -> NDArray[np.int64]:
    """Which of some things in a row is the first of each box, where a box takes what fits, and at least one.

    Args:
        sizes: of the things, int64 (n).
        capacity: of a box.
        most: things that a box takes; 0 for no limit.

    Returns:
        int64, ascending from 0; empty where there is nothing.
    """
    places = np.arange(len(sizes))
    ends = np.cumsum(sizes)
    following = np.maximum(np.searchsorted(ends, ends - sizes + capacity, side="right"), places + 1)
    if most:
        following = np.minimum(following, places + most)
    first, steps = array("q"), following.data
    at = 0
    while at < len(sizes):
        first.append(at)
        at = steps[at]
    return np.array(first, np.int64)


class Format(NamedTuple):
    """A container format.

    Attributes:
        name: the word after ``--format``.
        suffix: ending of the default output's name, with its dot.
        has_shards: whether ``--shard-size`` and ``--shard-samples`` mean something.
        max_payload_bytes: the largest file that fits as one payload.
        versions: versions of the file formats that it writes, for the manifest.
        open_writer: starts a container.
        read_native: all samples of a finished container in order, read by its own library, not by our reader.
            Arguments: folder, names of its files, shared header.
        estimate: how large the container will be, without looking into a file.
    """

    name: str
    suffix: str
    has_shards: bool
    max_payload_bytes: int
    versions: Callable[[], dict[str, str]]
    open_writer: Callable[[WritePlan], Writer]
    read_native: Callable[[Path, list[str], bytes], Iterator[NativeSample]]
    estimate: Callable[[Candidates], Estimate]

    def require_fitting(self, limits: ShardLimits | None) -> None:
        """Refuse limits that this format has no use for, or that no shard can keep.

        Raises:
            OptionError: says which.
        """
        if limits and not self.has_shards:
            raise OptionError(f"--shard-size and --shard-samples do not fit --format {self.name}: it is one file")
        if limits and (limits.size_bytes < 1 or limits.samples < 0):
            raise OptionError("a shard must hold at least one sample")
