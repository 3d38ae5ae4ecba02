"""Go on when worker processes die: batches of a DataLoader, each once and in order, whatever happens to its workers.

    for images, labels in resilient(make_loader(data, 64, shuffle=True, num_workers=8)):
        ...

A worker of torch's DataLoader that is killed ends the training, and torch raises in whatever line the training is at. Here the
death is noticed where a batch is asked for. What was asked for and not given out yet is known; new workers make it again, so no
sample is lost or comes twice. Each death is told by the logger ``packer``: which signal, the likely cause with what shows it,
and the samples that the worker held.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from packer.deathwatch import NOTHING_LEFT, WorkerDeathError, begin, dead_workers, next_batch
from packer.doctor.explain import explain
from packer.doctor.snapshot import SystemSnapshot
from packer.errors import OptionError, WorkerDiedError
from packer.replay import Replay
from packer.torchloader import WorkerLoader

# As in packer.tensors: not on first use.
if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader, IterableDataset
else:
    try:
        import torch
        from torch.utils.data import DataLoader, IterableDataset
    except (ImportError, OSError):
        torch, DataLoader, IterableDataset = None, (), ()

__all__ = ["ResilientLoader", "resilient"]

_DEATHS_FOR_FEWER = 2  # of a run, until there are half as many workers
_DEATHS_UNTIL_ALONE = 2  # of workers that had the next batch to make; then one makes it and no other, and shows who kills
_DEATHS_ON_ONE_BATCH = 5  # then it is the batch that kills
_SHOWN_SAMPLES = 8
_SHOWN_SUSPECTS = 1000
_END_S = 5.0
_ANSWER_S = 10.0  # that workers with nothing to do have to say that they begin

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
        self._iteration = 0
        self._persistent: tuple[DataLoader[Any], Replay] | None = None  # the workers that outlive an iteration
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
        self._iteration += 1
        iteration = self._iteration
        workers, replay = self._persistent or self._prepare(Replay(), _generator_of(self.loader))
        replay.begin(asks)
        in_a_row = 0
        batches: Any = workers._iterator  # of workers that persist
        try:
            while True:
                try:
                    if batches is not None:
                        _drain(batches)
                    replay.fetch(workers.num_workers * (workers.prefetch_factor or 1) + 1)
                    batches = _start(workers)
                    while (batch := next_batch(batches)) is not NOTHING_LEFT:
                        replay.given_out()
                        in_a_row = 0
                        yield batch
                        del batch
                        if self.loader.persistent_workers and iteration != self._iteration:
                            raise RuntimeError("another iteration over this loader has begun, and its workers serve one only")
                        replay.fetch(len(batches._task_info) + 1)
                except WorkerDeathError as death:
                    in_a_row = self._bury(death.error, batches, replay, in_a_row)
                if replay.is_done:
                    return
                alone = in_a_row >= _DEATHS_UNTIL_ALONE
                replay.begin_again(1 if alone else None)
                workers, _ = self._prepare(replay, workers.generator, alone=alone)
                batches = None
        finally:
            if batches is not None and not workers.persistent_workers:
                _end(batches)

    def _prepare(self, replay: Replay, generator: Any, *, alone: bool = False) -> tuple[DataLoader[Any], Replay]:
        """The loader that will have the workers; torch's own, with an order of ours.

        Args:
            replay: that order.
            generator: from which the seeds of the workers are drawn.
            alone: one worker only, for this iteration only.
        """
        loader = self.loader
        by_batch: dict[str, Any] = {"batch_size": None, "sampler": replay}
        workers: DataLoader[Any] = DataLoader(
            loader.dataset,
            **(by_batch if loader.batch_size is None and loader.batch_sampler is None else {"batch_sampler": replay}),
            num_workers=1 if alone else self.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=generator,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers and not alone,
            pin_memory_device=loader.pin_memory_device,
        )
        if workers.persistent_workers:
            self._persistent = workers, replay
        return workers, replay

    def _bury(self, error: Exception | None, batches: Any, replay: Replay, before: int) -> int:
        """Tell what happened, end the other workers, and decide how many come next.

        Args:
            error: by which it was noticed, if by any.
            batches: torch's iterator; ``None`` where it was not ready yet.
            replay: what is still to be made.
            before: how often the batch that comes next has cost a worker already.

        Returns:
            How often it has now.

        Raises:
            WorkerDiedError: it is not to go on.
        """
        workers, tasks, first = (
            (batches._workers, batches._task_info, batches._rcvd_idx) if batches is not None else ([], {}, 0)
        )
        dead = dead_workers(batches) if batches is not None else []
        now = SystemSnapshot.take()
        why = explain(dead[0] if dead else error, since=self._before, now=now)
        self._before = now
        made = sorted(i for i, task in tasks.items() if len(task) == 1 and (not dead or workers[task[0]] in dead))
        in_a_row = before + (first in made)
        again = len(tasks)
        if batches is not None:
            _kill(batches)
        self._persistent = None
        deaths, self.deaths = self.deaths, self.deaths + max(1, len(dead))
        who = ", ".join(f"worker {workers.index(worker)} (pid {worker.pid})" for worker in dead) or "a worker"
        what = "died" if dead or not workers else "gave nothing"
        text = f"{who} {what}, which had to make the samples {_shown(replay.numbers(made), _SHOWN_SAMPLES)}. {why}"
        if in_a_row >= _DEATHS_ON_ONE_BATCH:
            raise WorkerDiedError(
                f"{text} The batch that comes next has cost {in_a_row} workers, so it is what kills them: it has the samples "
                f"{_shown(replay.numbers([first]), _SHOWN_SUSPECTS)}."
            ) from error
        if self.deaths > self._max_deaths:
            raise WorkerDiedError(f"{text} These were {self.deaths} deaths, max_deaths={self._max_deaths} is the limit.") from (
                error
            )
        halvings = self.deaths // _DEATHS_FOR_FEWER - deaths // _DEATHS_FOR_FEWER
        self.num_workers = max(1, self.num_workers >> halvings)
        _log.warning("%s %d batches are made again, by %d workers.", text, again, self.num_workers)
        return in_a_row


def _generator_of(loader: DataLoader[Any]) -> torch.Generator:
    """Draws the seeds of workers. It costs the loader's own generator, from which the order is drawn as well, one number as
    torch does, and none for the workers that come after a death: the orders of later epochs are the same.
    """
    seed = torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
    return torch.Generator().manual_seed(int(seed))


def _drain(batches: Any) -> None:
    """Have workers that persist make what the iteration before has left: torch waits for that when it begins the next one, and
    would not be told of a death then.
    """
    for _ in range(len(batches._task_info) + 1):
        try:
            if next_batch(batches) is NOTHING_LEFT:
                return
        except WorkerDeathError:
            batches._task_info.clear()  # this iteration has none of them
            raise
        except Exception:  # noqa: BLE001 - what samples raise that nobody wants
            continue


def _start(workers: DataLoader[Any]) -> Any:
    """Begin an iteration.

    Raises:
        WorkerDeathError: a worker has died meanwhile.
    """
    earlier: Any = workers._iterator
    if earlier is not None:
        earlier._timeout = min(earlier._timeout or _ANSWER_S, _ANSWER_S)
    batches = begin(workers, lambda: iter(workers))
    batches._timeout = workers.timeout
    return batches


def _kill(batches: Any) -> None:
    """End all workers of an iterator that is of no use any more. Not by torch's own way: a worker that was killed may have held
    a lock that this waits for.
    """
    with batches.packer_watch:
        batches._shutdown = True
        if hasattr(batches, "_pin_memory_thread"):
            batches._pin_memory_thread_done_event.set()
        for worker in batches._workers:
            worker.kill()
        for worker in batches._workers:
            worker.join(_END_S)
    for queue in batches._index_queues:  # not that of the results, which the thread that pins memory may still read
        queue.cancel_join_thread()
        queue.close()


def _end(batches: Any, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    """End an iterator at the end of a loop, or where it was left."""
    if is_finalizing():  # multiprocessing has ended the workers, and the modules are gone
        return
    if dead_workers(batches) and not batches._shutdown:
        _kill(batches)
        return
    with batches.packer_watch:
        batches._shutdown_workers()


def _shown(samples: list[int], most: int) -> str:
    some = ", ".join(map(str, samples[:most]))
    return f"{some} and {len(samples) - most} more" if len(samples) > most else some or "of no batch"
