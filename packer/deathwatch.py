"""A worker's death is noticed where a batch is asked for, and nowhere else.

When one dies, torch raises from a signal handler, in whatever line the main process is at, and again in later ones: within a
step of the training, or while a checkpoint is written.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

# As in packer.tensors: not on first use.
if TYPE_CHECKING:
    signal_handling: Any
else:
    try:
        from torch.utils.data._utils import signal_handling
    except (ImportError, OSError):
        signal_handling = None

__all__ = ["NOTHING_LEFT", "WorkerDeathError", "next_batch", "stop_watching"]

NOTHING_LEFT = object()
"""What is given behind the last batch."""

_MOMENTS, _MOMENT_S = 50, 0.01
_SLICE_S = 5  # as long as torch waits where it has no timeout
_TIMED_OUT, _DIED = "DataLoader timed out", "DataLoader worker (pid"  # torch has no classes of its own for them


class WorkerDeathError(Exception):
    """A worker is gone, or gives nothing; with the error by which that was noticed, where there is one."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__(str(error))
        self.error = error


def next_batch(batches: Any) -> Any:
    """The next batch of torch's iterator, or of any other, which has no workers that could die.

    Raises:
        WorkerDeathError: a worker has died, or is beyond the timeout.
        Exception: what a sample has raised.
    """
    workers = getattr(batches, "_workers", None)
    if workers is None:
        return next(batches, NOTHING_LEFT)
    try:
        return _watched(batches, workers)
    except RuntimeError as error:
        if not str(error).startswith(_DIED):
            raise
        # Another one has died while the first was being noticed.
        stop_watching(batches)
        raise WorkerDeathError(error) from error


def _watched(batches: Any, workers: Any) -> Any:
    stop_watching(batches)  # torch begins to watch by itself
    try:
        _watch(batches)
        if any(not worker.is_alive() for worker in workers):
            raise WorkerDeathError(None)
        batch = _wait(batches)
        stop_watching(batches)
    except WorkerDeathError:
        stop_watching(batches)
        raise
    except Exception as error:  # torch raises what a sample has raised, too
        stop_watching(batches)
        if not _has_lost(workers, error) and _TIMED_OUT not in str(error):
            raise
        raise WorkerDeathError(error) from error
    return batch


def _wait(batches: Any) -> Any:
    """The next batch, within the loader's timeout. torch looks after its workers when that is over. Before, it learns of a
    death by a signal only, which is not heard in the moment before the waiting; so the waiting is cut into slices.
    """
    limit = batches._timeout
    if limit <= _SLICE_S:
        return next(batches, NOTHING_LEFT)
    end = time.monotonic() + limit
    try:
        while True:
            batches._timeout = min(_SLICE_S, max(0.001, end - time.monotonic()))
            try:
                return next(batches, NOTHING_LEFT)
            except RuntimeError as error:
                if _TIMED_OUT not in str(error):
                    raise
                if time.monotonic() >= end:
                    raise RuntimeError(f"{_TIMED_OUT} after {limit:g} seconds") from error
    finally:
        batches._timeout = limit


def _watch(batches: Any) -> None:
    """Let torch raise when a worker dies: it waits for a batch now."""
    if not batches._shutdown:
        signal_handling._set_worker_pids(id(batches), tuple(worker.pid for worker in batches._workers))
        batches._worker_pids_set = True


def stop_watching(batches: Any) -> None:
    """Let it raise no more."""
    while getattr(batches, "_worker_pids_set", False):
        # RuntimeError: torch raised once more, between two steps of this. ValueError: the first was done already.
        with contextlib.suppress(RuntimeError):
            with contextlib.suppress(ValueError):
                signal_handling._remove_worker_pids(id(batches))
            batches._worker_pids_set = False


def _has_lost(workers: Any, error: Exception) -> bool:
    """Whether an error came since a worker is gone: as torch's own, or as one of a connection to it."""
    # One that was killed has closed its connections a moment before that is known.
    is_sudden = isinstance(error, (OSError, EOFError, RuntimeError)) and not str(error).startswith("Caught ")
    for _ in range(_MOMENTS if is_sudden else 1):
        if any(not worker.is_alive() for worker in workers):
            return True
        time.sleep(_MOMENT_S)
    return False
