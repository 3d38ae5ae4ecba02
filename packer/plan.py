"""What is known before the first byte is written: how large the container can get, and which sample goes to which shard.

Both depend on the input and the options alone, never on the number of workers or on time, so the same input gives the same
shards.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

from packer.model import Extent

__all__ = ["DEFAULT_SHARD_BYTES", "ShardDone", "ShardLimits", "WritePlan"]

DEFAULT_SHARD_BYTES = 1_000_000_000


class ShardLimits(NamedTuple):
    """When a shard is full.

    Attributes:
        size_bytes: the size that a shard does not exceed, unless one sample alone does.
        samples: the number of samples that it does not exceed; 0 for no limit.
    """

    size_bytes: int = DEFAULT_SHARD_BYTES
    samples: int = 0

    def is_full(self, next_size_bytes: int, samples: int) -> bool:
        """Whether a shard must be closed before another sample, with which it would have ``next_size_bytes``."""
        return samples > 0 and (next_size_bytes > self.size_bytes or 0 < self.samples <= samples)


class ShardDone(Protocol):
    """Told of a shard that is complete."""

    def __call__(self, path: Path, extents: Iterable[Extent], header: bytes = b"") -> None:
        """Take it over.

        Args:
            path: the shard, or where it would be if an earlier job had not finished it.
            extents: where each of its payloads lies, in the order of the samples; gone through once, and now.
            header: bytes that every payload began with and that are not in the container.
        """


class WritePlan(NamedTuple):
    """What a writer knows before the first payload.

    Attributes:
        folder: where the files of the container are made.
        sizes: sizes in bytes of all candidates, as the scan saw them; those that are skipped later included.
        classes: class names, raw bytes.
        class_labels: the label of each class.
        limits: when a shard is full, where the format has shards.
        shard_done: called with each file that is complete and will not change; it is synced there.
        finished_shards: number of shards, from the first on, that an earlier job had finished, where the format has shards.
            Their samples come as all others do, but without their bytes, and are not written.
    """

    folder: Path
    sizes: Iterable[int]
    classes: list[bytes]
    class_labels: list[int]
    limits: ShardLimits
    shard_done: ShardDone
    finished_shards: int = 0
