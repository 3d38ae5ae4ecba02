"""A worker's death is noticed where a batch is asked for, and nowhere else.

When one dies, torch raises from a signal handler, in whatever line the main process is at, and again in later ones: within a
step of the training, while a checkpoint is written, or while the first of these errors is being dealt with. So it is not let
watch. What it would be interrupted in, a thread ends from outside: a message that a dead worker has sent only half of, or a
lock that it held.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

# As in packer.tensors: not on first use.
if TYPE_CHECKING:
    signal_handling: Any
else:
    try:
        from torch.utils.data._utils import signal_handling
    except (ImportError, OSError):
        signal_handling = None

__all__ = ["NOTHING_LEFT", "WorkerDeathError", "begin", "dead_workers", "next_batch"]

NOTHING_LEFT = object()
"""What is given behind the last batch."""

_MOMENTS, _MOMENT_S = 50, 0.01
_SLICE_S = 0.1
_STUCK_S = 1.0  # after a death
_KILLED_S = 5.0
_TIMED_OUT = "DataLoader timed out"  # torch has no class of its own for it


class WorkerDeathError(Exception):
    """A worker is gone, or gives nothing; with the error by which that was noticed, where there is one."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__(str(error))
        self.error = error


class _Watch:
    """Looks after the workers of one iterator of torch's. A context: in it this process may wait for something that a worker
    has to do, and does not wait for ever where that one has died.

    Attributes:
        dead: workers that had died before it ended the others.
    """

    def __init__(self, batches: Any) -> None:
        self.dead: list[Any] = []
        self._batches = weakref.ref(batches)  # whose destructor ends the workers, and by that this
        self._workers = batches._workers
        self._results = batches._worker_result_queue
        self._done = batches._workers_done_event
        self._since: float | None = None
        self._over = threading.Event()
        # A daemon: workers that outlive the loop are ended by multiprocessing, which comes after other threads.
        self._thread = threading.Thread(target=self._attend, name="packer-deathwatch", daemon=True)
        self._thread.start()

    # When the interpreter ends, the modules may be gone.
    _now, _current_thread = staticmethod(time.monotonic), staticmethod(threading.current_thread)

    def __enter__(self) -> None:
        self._since = self._now()

    def __exit__(self, *exception: object) -> None:
        self._since = None
        batches = self._batches()
        if batches is None or batches._shutdown:
            self._over.set()
            if self._thread is not self._current_thread():  # of an iterator that is collected there
                self._thread.join(1.0)

    def _attend(self) -> None:
        connection.wait([worker.sentinel for worker in self._workers])
        death = time.monotonic()
        while (batches := self._batches()) is not None:
            is_ending, since = batches._shutdown, self._since
            del batches
            if since is None and is_ending:
                return
            is_stuck = since is not None and time.monotonic() - max(since, death) > _STUCK_S
            if is_stuck and (not is_ending or any(worker.exitcode for worker in self._workers)):
                self._set_free()
                return
            self._over.wait(_SLICE_S)

    def _set_free(self) -> None:
        self.dead = _ended(self._workers)
        for worker in self._workers:
            worker.kill()
        connection.wait([worker.sentinel for worker in self._workers if worker.exitcode is None], _KILLED_S)
        self._results._writer.close()  # the last one there is: half a message is at its end now
        with contextlib.suppress(ValueError):  # nobody holds it
            self._done._cond.release()


def begin(loader: Any, start: Callable[[], Any]) -> Any:
    """Begin an iteration over a DataLoader without letting torch watch over its workers.

    Args:
        loader: the DataLoader.
        start: gives torch's iterator over it, or any other, which has no workers that could die. An iterator of torch's has
            then a context ``packer_watch``, in which the main process cannot wait for ever for a worker that has died.
    """
    with _unheard(), getattr(loader._iterator, "packer_watch", contextlib.nullcontext()):  # of workers that persist
        batches = start()
        if getattr(batches, "_worker_pids_set", False):
            signal_handling._remove_worker_pids(id(batches))
            batches._worker_pids_set = False
    if hasattr(batches, "_workers") and not hasattr(batches, "packer_watch"):
        batches.packer_watch = _Watch(batches)
    return batches


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Keep torch's signal handler, which raises, for later."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGCHLD"):
        yield
        return
    signal_handling._set_SIGCHLD_handler()  # else it would keep ours for the one before its own
    came: list[Any] = []
    usual = signal.signal(signal.SIGCHLD, lambda *call: came.__setitem__(slice(None), call))
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, usual)
        if came and callable(usual):
            usual(*came)


def dead_workers(batches: Any) -> list[Any]:
    """The workers that died, without those that were ended because of it."""
    return batches.packer_watch.dead or _ended(batches._workers)


def _ended(workers: list[Any]) -> list[Any]:
    return [worker for worker in workers if not worker.is_alive()]


def next_batch(batches: Any) -> Any:
    """The next batch of torch's iterator, as ``begin`` gave it, or of any other.

    Raises:
        WorkerDeathError: a worker has died, or is beyond the timeout.
        Exception: what a sample has raised.
    """
    workers = getattr(batches, "_workers", None)
    if workers is None:
        return next(batches, NOTHING_LEFT)
    if _ended(workers):
        raise WorkerDeathError(None)
    try:
        with batches.packer_watch:
            return _wait(batches)
    except Exception as error:  # torch raises what a sample has raised, too
        if not _has_lost(workers, error) and _TIMED_OUT not in str(error):
            raise
        raise WorkerDeathError(error) from error


def _wait(batches: Any) -> Any:
    """The next batch, within the loader's timeout. torch looks after its workers when a wait is over, so it has slices."""
    limit = batches._timeout
    end = time.monotonic() + (limit or float("inf"))
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


def _has_lost(workers: Any, error: Exception) -> bool:
    """Whether an error came since a worker is gone: as torch's own, or as one of a connection to it."""
    # One that was killed has closed its connections a moment before that is known.
    is_sudden = isinstance(error, (OSError, EOFError, RuntimeError)) and not str(error).startswith("Caught ")
    for _ in range(_MOMENTS if is_sudden else 1):
        if _ended(workers):
            return True
        time.sleep(_MOMENT_S)
    return False
