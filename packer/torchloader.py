"""torch's DataLoader, set up as experience says: workers that neither die for known reasons nor draw each other's numbers.

    loader = make_loader(data, batch_size=64, shuffle=True, seed=1)
    for epoch in range(90):
        loader.set_epoch(epoch)
        for images, labels in loader:
            ...

What is chosen, and the accident behind it:

* The sampler stays in the main process, and each batch is asked for by epoch and numbers. A worker makes it whole, so that one
  tensor and not 64 go through shared memory.
* Before each sample the global generators of ``random``, numpy and torch are seeded by seed, epoch and sample
  (``packer.seeds``): forked workers otherwise draw the same numpy numbers (pytorch/pytorch#5059), and other ones as soon as
  there is one worker more. Of a generator that the data keep for themselves there is a warning.
* Workers are started in the system's own way, but not by fork where an accelerator is in use in this process: its driver does
  not survive that ("Cannot re-initialize CUDA in forked subprocess").
* They persist over epochs: starting one anew costs the import of torch. When a loop is left, they stop within one sample:
  torch waits for all that it has asked of them.
* They ignore Ctrl-C, which a terminal sends to all processes, and the signals that the training handles for itself; the main
  process ends them. SIGTERM ends one at once and without a word. ``faulthandler`` prints where one crashed.
* OpenCV and OpenMP get one thread each: eight workers with eight threads are slower than without, and OpenCV's threads hang
  after a fork.
* That a worker has died is an error where a batch is asked for, with the cause (``packer.explain``), and not in whatever line
  the training is at, where torch's signal handler raises it.
* A worker that gives nothing for ten minutes is an error and not a night lost.
* A tensor of an accelerator that a worker has made is refused.
* Memory is pinned only where there is an accelerator.
* Where the process may have few open files, tensors travel by name and not by descriptor ("received 0 items of ancdata").
"""

from __future__ import annotations

import logging
import multiprocessing
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from functools import partial
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, SupportsIndex

from packer.batchmaker import BatchMaker, name_of
from packer.cpus import available_cpus
from packer.datasets import PackedDataset
from packer.deathwatch import NOTHING_LEFT, WorkerDeathError, begin, dead_workers, next_batch
from packer.doctor.explain import explain
from packer.doctor.snapshot import SystemSnapshot, default_start_method
from packer.epochs import Ask, Epochs, InEpochs, Made
from packer.errors import OptionError, WorkerDiedError
from packer.metrics import OnBatch, anonymous_bytes
from packer.owngenerators import own_generators
from packer.sampler import EpochSampler
from packer.sendable import require_picklable
from packer.tensors import foreign_device, has_pinned_memory
from packer.workerlog import Ear
from packer.workersetup import WorkerSetup, share_by_name_where_descriptors_are_short

# As in packer.tensors: not on first use.
if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader, IterableDataset

    _Base = DataLoader[Any]
else:
    try:
        import torch
        from torch.utils.data import DataLoader as _Base
        from torch.utils.data import IterableDataset
    except (ImportError, OSError):
        torch, _Base = None, object

__all__ = ["WorkerLoader", "make_loader"]

_log = logging.getLogger("packer")

_TIMEOUT_S = 600
_PREFETCH = 2  # torch's own default, batches a worker
_LEAVABLE = 256  # iterations that may be alive at the same time
_OURS = ("dataset", "batch_size", "batch_sampler", "shuffle", "sampler", "drop_last", "collate_fn", "worker_init_fn")


def make_loader(
    data: Any,
    batch_size: SupportsIndex,
    *,
    shuffle: bool = False,
    seed: SupportsIndex = 0,
    drop_last: bool = False,
    rank: SupportsIndex | None = None,
    world_size: SupportsIndex | None = None,
    even: bool = True,
    sampler: EpochSampler | None = None,
    on_error: str = "raise",
    on_batch: OnBatch | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    worker_init_fn: Callable[[int], object] | None = None,
    num_workers: int | None = None,
    **options: Any,
) -> WorkerLoader:
    """A DataLoader with the choices that the head of this module explains; its ``repr`` shows all of them.

    Args:
        data: a packed dataset, or any other map-style dataset of torch.
        batch_size, shuffle, seed, drop_last, rank, world_size, even, sampler, on_error, on_batch: as
            ``packer.Loader`` takes them.
        collate_fn: makes a batch of a list of samples; by default a packed dataset makes its batches itself, as
            ``data[[...]]``, and others are collated by torch.
        worker_init_fn: called with the number of the worker when one starts, after our own setting up.
        num_workers: worker processes, 0 for none. By default as many as CPUs that this process may use, and none for a packed
            dataset of arrays without a transform: what a worker makes is copied once more, which costs more than reading it.
        options: any other of DataLoader's, in place of what would be chosen: ``multiprocessing_context``, ``prefetch_factor``,
            ``persistent_workers``, ``pin_memory``, ``timeout`` ...

    Raises:
        ImportError: torch is not installed.
        OptionError: a value that does not exist or does not fit; or the data cannot be sent to a worker process.
    """
    if torch is None:
        raise ImportError('make_loader needs torch: pip install "packer[torch]"')
    if not isinstance(data, Sized) or not hasattr(data, "__getitem__") or isinstance(data, IterableDataset):
        raise OptionError(
            f"data is a {type(data).__name__}; a map-style dataset is expected, with a length and samples by number"
        )
    if taken := [name for name in options if name in _OURS]:
        raise OptionError(f"{taken[0]}= is decided by make_loader")
    epochs = Epochs(
        data,
        batch_size,
        shuffle=shuffle,
        seed=seed,
        drop_last=drop_last,
        rank=rank,
        world_size=world_size,
        even=even,
        sampler=sampler,
        on_error=on_error,
        on_batch=on_batch,
    )
    workers = _default_workers(data) if num_workers is None else num_workers
    maker = BatchMaker(data, epochs.sampler.seed, skips=on_error == "skip", collate_fn=collate_fn, keeps_generators=not workers)
    chosen: dict[str, Any] = {"num_workers": workers, "pin_memory": has_pinned_memory()}
    if workers:
        chosen |= {
            "multiprocessing_context": _start_method(),
            "persistent_workers": True,
            "prefetch_factor": _PREFETCH,
            "timeout": _TIMEOUT_S,
            "worker_init_fn": WorkerSetup(worker_init_fn),
        }
    chosen |= options
    live = None
    if workers:
        context = chosen["multiprocessing_context"]
        context = context if isinstance(context, BaseContext) else multiprocessing.get_context(context)
        if context.get_start_method() != "fork":
            sent = {type(data).__name__: data, "collate_fn=": collate_fn, "worker_init_fn=": worker_init_fn}
            require_picklable(sent, context.get_start_method())
        for path in own_generators("data", data):
            _log.warning(
                "%s is a generator of random numbers that each worker has a copy of: all of them draw the same numbers. Draw "
                "from the global generators of random, numpy or torch, which are seeded for each sample.",
                path,
            )
        share_by_name_where_descriptors_are_short(workers * (chosen["prefetch_factor"] or _PREFETCH))
        live = context.RawArray("b", _LEAVABLE)
    return WorkerLoader(_Batches(maker, data, live), epochs, chosen)


class WorkerLoader(InEpochs, _Base):
    """A DataLoader as ``make_loader`` sets it up. Its ``len()`` is the number of batches of a whole epoch.

    Attributes:
        dataset: makes batches; all attributes of the data are there, and the data itself as ``data``.
    """

    def __init__(self, dataset: _Batches, epochs: Epochs, options: Mapping[str, Any]) -> None:
        self._epochs = epochs
        self._options = dict(options)
        self._before = SystemSnapshot.take()
        self._batches = dataset
        self._asks = _Asks(epochs)
        self._ending: weakref.finalize[..., Any] | None = None
        # torch draws the seeds of its workers; from the global generator, unless it has this one.
        own = torch.Generator().manual_seed((epochs.sampler.seed + epochs.sampler.rank) % 2**64)
        fixed: dict[str, Any] = {"batch_size": None, "sampler": self._asks, "collate_fn": _as_made, "generator": own}
        super().__init__(dataset, **{**fixed, **options})  # type: ignore[arg-type]  # it has all that it needs of one

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # a loop needs no more of it than next()
        return self.deliver(super().__iter__)

    def deliver(self, start: Callable[[], Iterator[Made]]) -> Iterator[Any]:
        """Give out the batches of an iteration that is begun by ``start``, and keep account of them."""
        if self.num_workers and getattr(multiprocessing.current_process(), "_inheriting", False):
            raise RuntimeError(
                "The script is being imported by one of its own workers, and would start workers again. What starts the "
                'training must stand in a function that is called behind `if __name__ == "__main__":`.'
            )
        epochs = self._epochs
        self._asks.iteration += 1
        iteration = self._asks.iteration
        batches: Any = self._iterator  # of workers that persist
        ending = self._ending if batches is not None else None
        ends = not self.persistent_workers
        self._batches.allow(iteration)
        epochs.wait()  # from here on: workers make the first batch while others are being started
        try:
            batches = begin(self, start)
            ending = self._ending_of(batches, iteration)
            while True:
                if self.persistent_workers and iteration != self._asks.iteration:
                    raise RuntimeError("another iteration over this loader has begun, and persistent workers serve one only")
                made = next_batch(batches)
                if made is NOTHING_LEFT:
                    break
                if epochs.take(made):
                    yield made.batch
                    epochs.wait()
                del made
            epochs.end()
        except Exception as error:  # not by its name, which may be gone when a loop ends with the interpreter
            if not isinstance(error, WorkerDeathError):
                raise
            ends = True
            raise self._died(batches, error) from error.error
        finally:
            self._batches.leave(iteration)
            # Not left to its destructor: the frames of an exception would keep the workers.
            if ending is not None and ends:
                ending()
                self._iterator = None  # the next iteration has workers of its own
            if hasattr(batches, "close"):
                batches.close()

    def _died(self, batches: Any, death: WorkerDeathError) -> WorkerDiedError:
        dead = dead_workers(batches)
        who = ", ".join(f"worker {batches._workers.index(worker)} (pid {worker.pid})" for worker in dead)
        what = f"{who} died." if dead else "the workers gave nothing."
        why = explain(dead[0] if dead else death.error, since=self._before)
        return WorkerDiedError(f"{what} {why} packer.resilient(loader) goes on when workers die.")

    def _ending_of(self, batches: Any, iteration: int) -> weakref.finalize[..., Any] | None:
        """What ends the workers of torch's iterator: to be called, or called when this loader goes.

        It holds the iterator. Where the garbage collector ended that one with all that belongs to it, its queues would be
        closed first, and torch wait 5 s for each of its workers.
        """
        if not hasattr(batches, "_shutdown_workers"):
            return None
        known = self._ending.peek() if self._ending else None
        if known is None or known[2][0] is not batches:
            served = range(_LEAVABLE) if self.persistent_workers else range(iteration, iteration + 1)
            self._ending = weakref.finalize(self, _end_workers, batches, self._batches, served)
            self._ending.atexit = False  # then multiprocessing ends them
        return self._ending

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self._options.items())
        if self.num_workers:
            sharing = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
            options += f", sharing_strategy={sharing!r}"
        return f"{type(self).__name__}({self._batches.data!r}, {self._epochs.describe()}, {options})"


def _end_workers(batches: Any, dataset: _Batches, iterations: Iterable[int]) -> None:
    """End the workers that serve these iterations. Runs while the interpreter ends, too, when globals are gone."""
    for iteration in iterations:
        dataset.leave(iteration)
    with batches.packer_watch:
        batches._shutdown_workers()


class _LeftError(Exception):
    """Nobody waits for this batch any more."""


class _Asks:
    """What the DataLoader takes for its sampler: which batches to make, and for which iteration."""

    def __init__(self, epochs: Epochs) -> None:
        self._epochs = epochs
        self.iteration = 0

    def __len__(self) -> int:
        return len(self._epochs)

    def __iter__(self) -> Iterator[tuple[int, Ask]]:
        iteration = self.iteration
        return ((iteration, ask) for ask in self._epochs)


class _Batches:
    """What the DataLoader takes for its dataset: a batch by what is asked for. Everything else is the data's.

    Args:
        maker: makes the batches.
        data: what they are made of.
        live: memory that the workers share, where a loop says that it has been left: torch waits until its workers have made
            all that they were asked for. ``None`` where there are no workers.
    """

    def __init__(self, maker: BatchMaker, data: Any, live: Any = None) -> None:
        self._maker = maker
        self._live = live
        self._worker = -1
        self.data = data

    def allow(self, iteration: int) -> None:
        """Batches of this iteration are wanted."""
        if self._live is not None:
            self._live[iteration % len(self._live)] = 1

    def leave(self, iteration: int) -> None:
        """Batches of this iteration are wanted no more."""
        if self._live is not None:
            self._live[iteration % len(self._live)] = 0

    def __getitem__(self, wanted: tuple[int, Ask]) -> Made:
        iteration, ask = wanted

        def check() -> None:
            if self._live is not None and not self._live[iteration % len(self._live)]:
                raise _LeftError

        ear = self._maker.ear
        if ear is None:
            return self._maker.make(ask, check)
        ear.begin()
        try:
            made = self._maker.make(ask, check)
        except BaseException:
            ear.give_up()
            raise
        if device := foreign_device(made.batch):
            ear.give_up()
            raise OptionError(
                f"a batch that a worker has made lies on {device}: such memory ends with the worker, and survives no fork. Let "
                "transforms give tensors of the CPU, and move batches in the training loop."
            )
        return made._replace(work=made.work._replace(worker=self._worker, memory_bytes=anonymous_bytes(), said=ear.end()))

    def begin_worker(self, worker: int) -> None:
        """This is a worker now: what it says goes to the main process."""
        self._worker = worker
        self._maker.ear = Ear(partial(name_of, self._maker.data))
        self._maker.ear.install()

    def __len__(self) -> int:
        return len(self.data)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "data":  # asked for by pickle and copy, before there is anything
            raise AttributeError(name)
        return getattr(self.data, name)


def _as_made(made: Any) -> Any:
    return made


def _default_workers(data: Any) -> int:
    is_plain = isinstance(data, PackedDataset) and data.holds_arrays and not data.has_transforms
    return 0 if is_plain else available_cpus()


def _start_method() -> str:
    usual = default_start_method()
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return "forkserver" if usual == "fork" and in_use else usual
