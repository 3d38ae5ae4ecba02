"""A worker's death is noticed where a batch is asked for, and nowhere else.

When one dies, torch raises from a signal handler, in whatever line the main process is at, and again in later ones: within a
step of the training, while a checkpoint is written, or while the first of these errors is being dealt with. So it is not let
watch. It looks after its workers whenever a wait is over, and so waits a tenth of a second at a time. What it would be
interrupted in, a thread ends from outside: a message that a dead worker has sent only half of, or a lock that it held.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
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
_MOST_WATCHED = 60 if sys.platform == "win32" else None  # Windows waits for no more at once

_register = getattr(signal_handling, "_set_worker_pids", None)
_here = threading.local()  # whether this thread begins an iteration that torch shall not watch


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
        connection.wait([worker.sentinel for worker in self._workers[:_MOST_WATCHED]])
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
        with contextlib.suppress(ValueError):  # nobody holds it
            self._done._cond.release()
        if sys.platform == "win32":
            self._results._writer.close()
            return
        # Half a message is made whole by zeros, and is then no message. To close the pipe would not do: workers of another
        # loader that were forked later have its writing end, too.
        pipe = os.dup(self._results._writer.fileno())
        try:
            os.set_blocking(pipe, False)
            while self._since is not None:
                with contextlib.suppress(BlockingIOError):
                    os.write(pipe, bytes(1 << 16))
                self._over.wait(_MOMENT_S)
        finally:
            os.close(pipe)


def begin(loader: Any, start: Callable[[], Any]) -> Any:
    """Begin an iteration over a DataLoader without letting torch watch over its workers.

    Args:
        loader: the DataLoader.
        start: gives torch's iterator over it, or any other, which has no workers that could die. An iterator of torch's has
            then a context ``packer_watch``, in which the main process cannot wait for ever for a worker that has died.

    Raises:
        WorkerDeathError: of workers that persist one has died meanwhile, or does not answer.
    """
    earlier = loader._iterator
    if earlier is not None and _ended(earlier._workers):
        raise WorkerDeathError(None)
    if signal_handling is not None:
        signal_handling._set_worker_pids = _register_unless_told
    try:
        _here.begins = True
        with earlier.packer_watch if earlier is not None else contextlib.nullcontext():
            batches = start()
    except Exception as error:
        if earlier is not None and (_has_lost(earlier._workers, error) or _is_of(earlier, error)):
            raise WorkerDeathError(error) from error
        raise
    finally:
        _here.begins = False
    if hasattr(batches, "_workers") and batches is not earlier:
        batches._worker_pids_set = False
        batches._try_get_data = _in_slices(batches)
        batches.packer_watch = _Watch(batches)
    return batches


def _register_unless_told(key: int, processes: tuple[int, ...]) -> None:
    """What torch calls to have its workers watched; for all other loaders as it was."""
    if _register is not None and not getattr(_here, "begins", False):
        _register(key, processes)


def _in_slices(batches: Any) -> Callable[..., tuple[bool, Any]]:
    """torch's way to wait for something from a worker, after each part of which it looks whether all are alive."""
    own = weakref.ref(batches)  # a circle would leave the end of the workers to the garbage collector

    def try_get_data(timeout: float = 5.0) -> tuple[bool, Any]:
        end = time.monotonic() + timeout
        batches: Any = own()
        while True:
            left = end - time.monotonic()
            is_there, data = type(batches)._try_get_data(batches, max(0.001, min(_SLICE_S, left)))
            if is_there or left <= _SLICE_S:
                return is_there, data

    return try_get_data


def dead_workers(batches: Any) -> list[Any]:
    """The workers that died, without those that were ended because of it."""
    return batches.packer_watch.dead or _ended(batches._workers)


def _ended(workers: list[Any]) -> list[Any]:
    return [worker for worker in workers if not worker.is_alive()]


def next_batch(batches: Any) -> Any:
    """The next batch of torch's iterator, as ``begin`` gave it, or of any other.

    Raises:
        WorkerDeathError: a worker has died, or is beyond the timeout.
        RuntimeError: a sample has raised ``StopIteration``, which would end the loop.
        Exception: what a sample has raised.
    """
    workers = getattr(batches, "_workers", None)
    if workers is None:
        return next(batches, NOTHING_LEFT)
    if _ended(workers):
        raise WorkerDeathError(None)
    try:
        with batches.packer_watch:
            return next(batches)
    except StopIteration as end:
        if _is_of(batches, end):
            return NOTHING_LEFT
        raise RuntimeError(f"a sample raised StopIteration: {end}") from end
    except Exception as error:  # torch raises what a sample has raised, too
        is_timeout = batches._timeout > 0 and isinstance(error, RuntimeError) and _is_of(batches, error)
        if not is_timeout and not _has_lost(workers, error):
            raise
        raise WorkerDeathError(error) from error


def _is_of(batches: Any, error: BaseException) -> bool:
    """Whether torch's iterator has raised this itself, and not a sample, a sampler or another loader."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_locals.get("self") is batches


def _has_lost(workers: Any, error: Exception) -> bool:
    """Whether an error came since a worker is gone: as torch's own, or as one of a connection to it."""
    # One that was killed has closed its connections a moment before that is known.
    is_sudden = isinstance(error, (OSError, EOFError, RuntimeError)) and not str(error).startswith("Caught ")
    for _ in range(_MOMENTS if is_sudden else 1):
        if _ended(workers):
            return True
        time.sleep(_MOMENT_S)
    return False
