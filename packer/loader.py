"""Batches without worker processes: threads read, decode and resize them, straight into the memory of the batch.

    loader = Loader(data, batch_size=64, shuffle=True, seed=1)
    for epoch in range(90):
        loader.set_epoch(epoch)
        for images, labels in loader:
            ...

Reading, decoders and copies let other threads run (they release Python's global lock), so threads do what worker processes
are for: nothing is forked, pickled or sent through /dev/shm, and nothing can be killed for want of it. What holds the lock is
a transform in Python: where that takes longer than decoding, ``make_loader`` with its worker processes is faster.

All threads fill one batch, each a part of it, and then the next. So the first is there soon, and four or five are in memory at
once, on a machine of 64 CPUs as on one of two; with a batch for each thread that was 67. Only batches so small that a part
would be done before a thread has taken it are filled by one thread each.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, SupportsIndex

import numpy as np

from packer.batchmaker import BatchMaker, BatchRead, Read
from packer.cpus import available_cpus
from packer.datasets import PackedDataset
from packer.epochs import Ask, Epochs, InEpochs
from packer.errors import OptionError
from packer.metrics import OnBatch
from packer.sampler import EpochSampler, whole
from packer.samples import Wanted
from packer.tensors import PinnedBuffers, has_pinned_memory, pinned

__all__ = ["Loader", "ReadThreads"]

_READY = 2  # batches beside those that the threads are at: one is trained on, one waits for the loop
_POLL_S = 0.2


class Loader(InEpochs):
    """Batches of a packed dataset, in the order and with the contents that ``make_loader`` gives them.

    Args:
        data: a packed dataset. Pictures of several sizes need its ``size=(height, width)``.
        batch_size: samples in a batch.
        shuffle: another order in every epoch; ``False`` for 0, 1, 2 ...
        seed: of the order and of what transforms draw, the same on all ranks.
        drop_last: leave out a last batch of fewer samples.
        rank, world_size, even: as ``EpochSampler`` takes them.
        sampler: an ``EpochSampler`` in place of ``shuffle``, ``seed``, ``rank``, ``world_size`` and ``even``, for other orders.
        on_error: ``"raise"``, or ``"skip"``: a sample that cannot be read, decoded or transformed is left out of its batch,
            counted in ``skipped``, and named by the logger ``packer``. None takes its place. It ends the run after all where a
            hundred and more than half of an epoch are skipped.
        on_batch: called with the ``packer.BatchMetrics`` of each batch that is given out, in the thread that iterates.
        threads: that make batches; ``None`` for the CPUs that this process may use.
        pin_memory: put batches straight into pinned memory; ``None``: where there is an accelerator that profits from it.

    Transforms are called in the thread that iterates, one sample after the other: they need not be fit for threads. Before each
    sample the global generators of ``random``, numpy and torch (CPU) are seeded by seed, epoch and sample, and given back as
    they were after the batch; so augmentations are the same with any number of threads, after a resume, and in ``make_loader``.

    Attributes:
        data, threads, pin_memory: as given or chosen.

    Raises:
        OptionError: a value that does not exist or does not fit.
    """

    def __init__(
        self,
        data: PackedDataset,
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
        threads: SupportsIndex | None = None,
        pin_memory: bool | None = None,
    ) -> None:
        if not isinstance(data, PackedDataset):
            raise OptionError(
                f"data is a {type(data).__name__}, and Loader reads packed datasets only: make_loader takes any map-style "
                "dataset, and data.subset() or data.split() are packed datasets where a Subset is not"
            )
        self.data = data
        self.threads = available_cpus() if threads is None else whole("threads", threads, 1)
        self._epochs = Epochs(
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
        self.pin_memory = has_pinned_memory() if pin_memory is None else pin_memory
        if self.pin_memory:
            _require_pinned_memory()

    def __len__(self) -> int:
        return len(self._epochs)

    def __iter__(self) -> Iterator[Any]:
        # Each time anew, since a transform may have been set meanwhile.
        epochs, source = self._epochs, self.data.with_pinned_batches() if self.pin_memory else self.data
        source.keep_buffers(self.threads + _READY + 1)  # the last is the one that the loop holds
        maker = BatchMaker(source, epochs.sampler.seed, skips=epochs.on_error == "skip")
        with ReadThreads(maker, self.threads) as threads:
            batches = threads.read(iter(epochs))
            while True:
                epochs.wait()
                read = next(batches, None)
                if read is None:
                    break
                made = maker.finish(*read)
                del read
                if epochs.take(made):
                    yield pinned(made.batch) if self.pin_memory else made.batch
                del made
            epochs.end()

    @property
    def sampler(self) -> EpochSampler:
        """What gives the order."""
        return self._epochs.sampler

    def __repr__(self) -> str:
        own = f"threads={self.threads}, pin_memory={self.pin_memory}"
        return f"{type(self).__name__}({self.data!r}, {self._epochs.describe()}, {own})"


def _require_pinned_memory() -> None:
    try:
        PinnedBuffers().empty((1,), np.dtype(np.uint8))
    except MemoryError as error:
        raise OptionError(f"pin_memory=True, and there is none: {error}") from error


class _EndedError(Exception):
    """Nobody waits for this batch any more."""


class ReadThreads:
    """Threads that read batches a few ahead. A context: they end with it, within one sample.

    Args:
        maker: of the batches.
        count: how many.
    """

    _current_thread = staticmethod(threading.current_thread)  # when the interpreter ends, the module may be gone

    # No ThreadPoolExecutor: when the interpreter ends while an iterator lives, it first makes all that was ever asked for.
    def __init__(self, maker: BatchMaker, count: int) -> None:
        self._maker = maker
        self._asked: SimpleQueue[tuple[BatchRead, range, Future[Read]] | None] = SimpleQueue()
        self._ends = False
        self._main_thread = threading.main_thread()
        self._threads = [threading.Thread(target=self._work, name=f"packer-loader-{i}") for i in range(count)]

    def __enter__(self) -> ReadThreads:
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._ends = True
        for _ in self._threads:
            self._asked.put(None)
        for thread in self._threads:
            # Not one that could not be started; nor this one: the garbage collector ends a loop in whatever thread it runs.
            if thread.ident is not None and thread is not self._current_thread():
                thread.join()

    def read(self, asks: Iterator[Ask]) -> Iterator[tuple[Ask, Read]]:
        """What was read for each batch, in order; what lies on the disk is asked for before a thread comes to it.

        Raises:
            Exception: whatever reading the batch that is next has raised.
        """
        ahead: deque[tuple[Ask, Wanted]] = deque()
        pending: deque[tuple[Ask, int, Future[Read]]] = deque()
        while True:
            while True:
                while ahead and self._want_more([parts for _, parts, _ in pending]):
                    pending.append(self._begin(*ahead.popleft()))
                # A disk or server is told of more batches than have memory: it may take longer than a batch is trained on.
                if len(ahead) + len(pending) >= len(self._threads) + _READY or (ask := next(asks, None)) is None:
                    break
                ahead.append((ask, self._maker.data.ask_for(ask.numbers)))
            if not pending:
                return
            ask, _, future = pending.popleft()
            result = ask, future.result()
            del future
            yield result
            del result

    def _want_more(self, parts: list[int]) -> bool:
        """Whether to begin another batch, where so many parts of batches were given out: beside those that become ready there
        is one for each thread.
        """
        return sum(parts[:-_READY]) < len(self._threads)

    def _begin(self, ask: Ask, wanted: Wanted) -> tuple[Ask, int, Future[Read]]:
        """Give a batch out in parts: the batch, how many there are, and what becomes of it."""
        batch = self._maker.begin(ask, wanted)
        future: Future[Read] = Future()
        parts = batch.parts(len(self._threads))
        for places in parts:
            self._asked.put((batch, places, future))
        return ask, len(parts), future

    def _work(self) -> None:
        while not self._ends:
            try:
                task = self._asked.get(timeout=_POLL_S)
            except Empty:
                if not self._main_thread.is_alive():  # the interpreter ends, and waits for this thread
                    return
                continue
            if task is None:
                return
            batch, places, future = task
            try:
                if batch.fill(places, self._check):
                    future.set_result(batch.result(self._check))
            except BaseException as error:  # noqa: BLE001 - the loop raises it, when it comes to this batch
                future.set_exception(error)
            del task, batch, future  # the batch is the loop's alone

    def _check(self) -> None:
        if self._ends or not self._main_thread.is_alive():
            raise _EndedError
