"""Everything that the findings are made of, as one value."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packer.doctor.data import DataFacts, look_at_data
from packer.doctor.snapshot import SystemSnapshot

__all__ = ["ASSUMED_SAMPLE_BYTES", "FORKED_WORKER_BYTES", "STARTED_WORKER_BYTES", "Facts", "gather"]

ASSUMED_SAMPLE_BYTES = 224 * 224 * 3 * 4
"""A picture of 224 × 224 as float32, where nothing better is known."""

FORKED_WORKER_BYTES = 32 << 20
STARTED_WORKER_BYTES = 200 << 20
"""Private memory of a worker without its batches, forked or started anew: 14 and 152 MB with torch 2.13 on Linux and nothing
else, rounded up for what a transform imports."""

_THREAD_LIMITS = ("OMP_NUM_THREADS", "OPENCV_FOR_THREADS_NUM")


@dataclass(frozen=True, slots=True)
class Facts:
    """This machine, the loader's settings, and the data.

    Attributes:
        system: the machine and this process.
        workers: processes that the loader starts.
        batch_size: samples a batch.
        prefetch: batches that each worker makes ahead.
        torch: its version, empty where it is not installed.
        opencv: whether it can be imported.
        threads_limited: whether the environment limits the threads that libraries start.
        data: what is read, ``None`` where none was given.
    """

    system: SystemSnapshot
    workers: int
    batch_size: int
    prefetch: int
    torch: str = ""
    opencv: bool = False
    threads_limited: bool = False
    data: DataFacts | None = None

    @property
    def sample_bytes(self) -> int:
        """Size of a decoded sample, assumed where it is not known."""
        return (self.data.sample_bytes if self.data else 0) or ASSUMED_SAMPLE_BYTES

    @property
    def batch_bytes(self) -> int:
        """Size of a batch of decoded samples."""
        return self.batch_size * self.sample_bytes

    @property
    def waiting_bytes(self) -> int:
        """Batches that lie in shared memory at once: those made ahead, and the one in use."""
        return (self.workers * self.prefetch + 1) * self.batch_bytes if self.workers else 0

    def as_values(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            **asdict(self),
            "sample_bytes": self.sample_bytes,
            "sample_bytes_assumed": not (self.data and self.data.sample_bytes),
            "waiting_bytes": self.waiting_bytes,
        }


def gather(path: Path | None, *, workers: int | None, batch_size: int, prefetch: int) -> Facts:
    """Look at the machine, and at the data where some is given.

    Args:
        path: a packed dataset or a folder of files.
        workers: that the loader will have; ``None`` for one a CPU.
        batch_size: samples a batch.
        prefetch: batches that each worker makes ahead.
    """
    system = SystemSnapshot.take()
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = ""
    return Facts(
        system,
        system.cpus if workers is None else workers,
        batch_size,
        prefetch,
        torch,
        find_spec("cv2") is not None,
        any(os.environ.get(name) for name in _THREAD_LIMITS),
        None if path is None else look_at_data(path),
    )
