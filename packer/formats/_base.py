"""What a container format has to offer.

All payloads of a container are contiguous ranges of bytes, so that one reader (``packer.extents``) serves all formats.
A writer gets payloads in order and says in the end where each lies; a second road to the same payloads, through the
container's own library, is there to prove the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from packer.model import Extent, Sample
from packer.plan import WritePlan

__all__ = ["Format", "NativeSample", "Writer", "Written"]


@dataclass(frozen=True, slots=True)
class Written:
    """A finished container.

    Attributes:
        files: file name of each shard.
        extents: where each payload lies, in the order of the samples; gone through once.
        header: bytes that every payload began with and that are not in the container.
    """

    files: list[str]
    extents: Iterable[Extent]
    header: bytes = b""


class Writer(Protocol):
    """Writes one container. Nothing is renamed or synced here; that is the business of ``packer.commit``."""

    def append(self, sample: Sample, payload: bytes) -> None:
        """Add the next payload. ``OSError`` where the file system refuses."""

    def finish(self) -> Written:
        """Complete the container and close its files."""

    def close(self) -> None:
        """Let go of all files, finished or not; called in the end whatever happened."""


@dataclass(frozen=True, slots=True)
class NativeSample:
    """A sample as the container's own library gives it.

    Attributes:
        payload: the bytes of the original file.
        label: its label where the container holds it, otherwise ``None``.
        name: its original relative path where the container holds it, otherwise ``None``.
    """

    payload: bytes
    label: int | None = None
    name: bytes | None = None


@dataclass(frozen=True, slots=True)
class Format:
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
    """

    name: str
    suffix: str
    has_shards: bool
    max_payload_bytes: int
    versions: Callable[[], dict[str, str]]
    open_writer: Callable[[WritePlan], Writer]
    read_native: Callable[[Path, list[str], bytes], Iterator[NativeSample]]
