"""Batches from a source, in this process or through worker processes of torch's DataLoader, which exists only with torch."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from packer.workersetup import leave_if_orphaned

# As in packer.tensors: not on first use.
if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader, default_collate
else:
    try:
        import torch
        from torch.utils.data import DataLoader, default_collate
    except (ImportError, OSError):
        torch = None

__all__ = ["HAS_TORCH", "Source", "collate", "read_batches"]

HAS_TORCH = torch is not None

# Not the default of Python 3.14, which imports torch anew in each worker of each run. No thread of ours runs here.
_CONTEXT = "fork" if sys.platform.startswith("linux") else None


class Source(Protocol):
    """Who reads: ``source[numbers]`` gives a batch. Can be pickled."""

    def __getitem__(self, numbers: list[int]) -> Any: ...


def collate(values: list[Any]) -> Any:
    """Arrays of one shape as a batch, in the way of torch's DataLoader: in a worker straight into shared memory."""
    import numpy as np

    return default_collate([torch.from_numpy(value) for value in values]) if HAS_TORCH else np.stack(values)


def read_batches(source: Source, orders: Iterable[list[int]], workers: int) -> Generator[tuple[list[int], Any], None, None]:
    """Batches with the numbers that are in them, in order; closing the iterator ends the workers.

    Args:
        source: who reads.
        orders: the numbers of each batch; may be endless.
        workers: processes, 0 for this one.
    """
    if not workers:
        for numbers in orders:
            yield numbers, source[numbers]
        return
    asked: deque[list[int]] = deque()

    def noted() -> Iterator[list[int]]:
        for numbers in orders:
            asked.append(numbers)
            yield numbers

    loader: Any = DataLoader(
        source,  # type: ignore[arg-type] # it has all that lists of numbers need
        sampler=noted(),
        batch_size=None,
        num_workers=workers,
        multiprocessing_context=_CONTEXT,
        worker_init_fn=_leave_signals_to_parent,
    )
    batches = iter(loader)
    try:
        for batch in batches:
            yield asked.popleft(), batch
    finally:
        # Not left to its destructor: the frames of an exception would keep it, and the workers with it.
        with contextlib.suppress(AttributeError):
            batches._shutdown_workers()


def _leave_signals_to_parent(_: int) -> None:
    """Ctrl-C reaches all processes of a terminal, and each would print where it stood."""
    leave_if_orphaned()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
