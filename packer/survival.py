"""Go on when worker processes die: batches of a DataLoader, each once and in order, whatever happens to its workers.

    for images, labels in resilient(make_loader(data, 64, shuffle=True, num_workers=8)):
        ...

A worker of torch's DataLoader that is killed ends the training, and torch raises in whatever line the training is at. Here the
death is noticed where a batch is asked for. What was asked for and not given out yet is known; new workers make it again, so no
sample is lost or comes twice. Each death is told by the logger ``packer``: which signal, the likely cause with what shows it,
and the samples that the worker held.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

from packer.deathwatch import NOTHING_LEFT, WorkerDeathError, next_batch, stop_watching
from packer.doctor.explain import explain
from packer.doctor.snapshot import SystemSnapshot
from packer.epochs import Ask
from packer.errors import OptionError, WorkerDiedError
from packer.torchloader import WorkerLoader

# As in packer.tensors: not on first use.
if TYPE_CHECKING:
    from torch.utils.data import DataLoader, IterableDataset
else:
    try:
        from torch.utils.data import DataLoader, IterableDataset
    except (ImportError, OSError):
        DataLoader = IterableDataset = ()

__all__ = ["ResilientLoader", "resilient"]

_DEATHS_FOR_FEWER = 2  # of a run, until there are half as many workers
_DEATHS_ON_ONE_BATCH = 5  # of workers that had this batch to make; then it is the batch that kills
_SHOWN_SAMPLES = 8
_END_S = 5.0

_log = logging.getLogger("packer")


def resilient(loader: DataLoader[Any], *, max_deaths: int = 100) -> ResilientLoader:
    """Make a loader go on when its workers die.

    Args:
        loader: of ``make_loader``, or any DataLoader of a map-style dataset. Samples come in the same order all the same; what
            transforms draw is the same with ``make_loader`` only, since torch seeds new workers anew.
        max_deaths: after so many deaths ``WorkerDiedError`` is raised. It is raised earlier where the batch that
            comes next has cost five workers: then it is this batch that kills them. After every second death half as many
            workers are started, at least one: what a machine has too little of is most often memory.

    Raises:
        OptionError: it is no such loader.
    """
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        kind = type(getattr(loader, "dataset", loader)).__name__
        raise OptionError(f"loader is for a {kind}; expected a DataLoader of a map-style dataset, whose samples have numbers")
    if max_deaths < 0:
        raise OptionError(f"max_deaths={max_deaths}, expected 0 or more")
    return ResilientLoader(loader, max_deaths)


class ResilientLoader:
    """Gives the batches of a loader; all else is the loader's: ``len()``, ``set_epoch``, ``state_dict``, ``dataset`` ...

    Attributes:
        loader: the loader.
        num_workers: that make batches now.
        deaths: of workers so far.
    """

    def __init__(self, loader: DataLoader[Any], max_deaths: int) -> None:
        self.loader = loader
        self.num_workers = loader.num_workers
        self.deaths = 0
        self._max_deaths = max_deaths
        self._replay = _Replay(len(loader))
        self._workers: DataLoader[Any] | None = None
        self._before = SystemSnapshot.take()

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "loader":  # asked for by copy and pickle, before there is anything
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __iter__(self) -> Iterator[Any]:
        if not self.num_workers:
            return iter(self.loader)
        if isinstance(self.loader, WorkerLoader):
            return self.loader.deliver(lambda: self._batches(iter(self.loader.sampler)))
        return self._batches(iter(self.loader._index_sampler))

    def __repr__(self) -> str:
        return f"resilient({self.loader!r}, num_workers={self.num_workers}, deaths={self.deaths})"

    def _batches(self, asks: Iterator[Any]) -> Iterator[Any]:
        self._replay.begin(asks)
        in_a_row = 0
        batches = None
        try:
            while True:
                try:
                    batches = iter(self._started())
                    while (batch := next_batch(batches)) is not NOTHING_LEFT:
                        self._replay.given_out()
                        in_a_row = 0
                        yield batch
                        del batch
                    return
                except WorkerDeathError as death:
                    in_a_row = self._bury(death, batches, in_a_row)
        finally:
            if batches is not None and not self.loader.persistent_workers:
                self._workers = None
                _end(batches)

    def _started(self) -> DataLoader[Any]:
        """The loader that has the workers; torch's own, whose order is what is still to be made."""
        if self._workers is None:
            loader = self.loader
            by_batch: dict[str, Any] = {"batch_size": None, "sampler": self._replay}
            self._workers = DataLoader(
                loader.dataset,
                **(by_batch if loader.batch_size is None and loader.batch_sampler is None else {"batch_sampler": self._replay}),
                num_workers=self.num_workers,
                collate_fn=loader.collate_fn,
                pin_memory=loader.pin_memory,
                timeout=loader.timeout,
                worker_init_fn=loader.worker_init_fn,
                multiprocessing_context=loader.multiprocessing_context,
                generator=loader.generator,
                prefetch_factor=loader.prefetch_factor,
                persistent_workers=loader.persistent_workers,
                pin_memory_device=loader.pin_memory_device,
            )
        return self._workers

    def _bury(self, death: WorkerDeathError, batches: Any, before: int) -> int:
        """Tell what happened, end the other workers, and decide how many come next.

        Args:
            death: what was noticed.
            batches: torch's iterator.
            before: how often the batch that comes next has cost a worker already.

        Returns:
            How often it has now.

        Raises:
            WorkerDiedError: it is not to go on.
        """
        held = {index: task[0] for index, task in batches._task_info.items() if len(task) == 1}
        dead = [worker for worker in batches._workers if not worker.is_alive()]
        now = SystemSnapshot.take()
        cause: object = death.error
        if dead:
            dead[0].join()
            cause = dead[0]
        why = explain(cause, since=self._before, now=now)
        who = ", ".join(f"worker {batches._workers.index(worker)} (pid {worker.pid})" for worker in dead) or "a worker"
        numbers = [batches._workers.index(worker) for worker in dead] or range(len(batches._workers))
        made = [index for index, holder in held.items() if holder in numbers]
        samples = self._replay.numbers(made)
        in_a_row = before + (batches._rcvd_idx in made)
        _kill(batches)
        self._workers = None
        self.deaths += max(1, len(dead))
        text = f"{who} died, which had to make the samples {_shown(samples)}. {why}"
        if in_a_row >= _DEATHS_ON_ONE_BATCH:
            raise WorkerDiedError(
                f"{text} The batch that comes next has cost {in_a_row} workers: one of its samples kills whoever makes it."
            ) from death.error
        if self.deaths > self._max_deaths:
            raise WorkerDiedError(f"{text} These were {self.deaths} deaths, max_deaths={self._max_deaths} is the limit.") from (
                death.error
            )
        if self.deaths % _DEATHS_FOR_FEWER == 0:
            self.num_workers = max(1, self.num_workers // 2)
        _log.warning("%s %d batches are made again, by %d workers.", text, self._replay.renew(), self.num_workers)
        return in_a_row


class _Replay:
    """What torch takes for its sampler: what an iteration asks for, and first what was asked for and not given out.

    Args:
        batches: how many an epoch has.
    """

    def __init__(self, batches: int) -> None:
        self._count = batches
        self.begin(iter(()))

    def begin(self, asks: Iterator[Any]) -> None:
        """Another iteration begins."""
        self._asks = asks
        self._again: list[Any] = []
        self._pending: deque[tuple[int, Any]] = deque()  # with the number that torch gives each

    def renew(self) -> int:
        """What was not given out will be asked for again; returns how many batches that is."""
        self._again = [ask for _, ask in self._pending] + self._again
        self._pending.clear()
        return len(self._again)

    def given_out(self) -> None:
        """The first batch that was pending is given out."""
        self._pending.popleft()

    def numbers(self, indices: Iterable[int]) -> list[int]:
        """Numbers of the samples of some batches, by the numbers that torch has given those."""
        wanted = set(indices)
        found: list[int] = []
        for index, ask in self._pending:
            if index in wanted:
                numbers = ask[1].numbers if isinstance(ask, tuple) and isinstance(ask[-1], Ask) else ask
                found += numbers if isinstance(numbers, list) else [numbers]
        return found

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        for index in count():
            if self._again:
                ask = self._again.pop(0)
            else:
                try:
                    ask = next(self._asks)
                except StopIteration:
                    return
            self._pending.append((index, ask))
            yield ask


def _kill(batches: Any) -> None:
    """End all workers of an iterator that is of no use any more. Not by torch's own way: a worker that was killed may have held
    a lock that this waits for.
    """
    stop_watching(batches)
    batches._shutdown = True
    if hasattr(batches, "_pin_memory_thread"):
        batches._pin_memory_thread_done_event.set()
    for worker in batches._workers:
        worker.kill()
    for worker in batches._workers:
        worker.join(_END_S)
    for queue in [*batches._index_queues, batches._worker_result_queue]:
        queue.cancel_join_thread()
        queue.close()


def _end(batches: Any) -> None:
    """End an iterator at the end of a loop, or where it was left."""
    if any(not worker.is_alive() for worker in batches._workers) and not batches._shutdown:
        _kill(batches)
        return
    with contextlib.suppress(RuntimeError):  # a worker dies just now
        batches._shutdown_workers()


def _shown(samples: list[int]) -> str:
    some = ", ".join(map(str, samples[:_SHOWN_SAMPLES]))
    return f"{some} and {len(samples) - _SHOWN_SAMPLES} more" if len(samples) > _SHOWN_SAMPLES else some or "of no batch"
