"""The order in which a training job takes its samples: by seed and epoch, divided among ranks, resumable within an epoch.

    sampler = EpochSampler(data, seed=1, rank=rank, world_size=world_size)
    loader = DataLoader(data, batch_size=64, sampler=sampler, num_workers=8)
    for epoch in range(90):
        sampler.set_epoch(epoch)
        for step, (images, labels) in enumerate(loader):
            ...
            checkpoint["sampler"] = sampler.state_dict(taken=(step + 1) * 64)

Where each sample stands in an epoch's order is computed (``packer.permutation``), in pieces of some thousand: a billion samples
begin at once, and need no more memory than ten thousand. torch is not needed: a DataLoader or BatchSampler takes anything that
can be iterated over and has a length.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from packer.errors import OptionError
from packer.permutation import permuted

__all__ = ["EpochSampler", "whole"]

_ORDERS = ("shuffled", "blocks", "sequential")

_PIECE = 8192
"""Samples whose places are computed at once: 0.7 ms before the first one, and less than a megabyte."""

_WINDOW_BLOCKS = 256
"""Blocks that are shuffled together. Where folders are classes, a block is mostly of one class: it takes many to mix."""

_BLOCK_SAMPLES = 16
"""About 1 MB of pictures of 66 kB: as much as a network file system transfers or stripes at once, and on a disk as long to read
as to find. A window is then 4,096 samples or 270 MB; this one and the next are in the page cache."""


@dataclass(frozen=True)
class _Start:
    """Where an iteration begins: how many positions of the epoch's order all ranks together have left behind."""

    epoch: int
    position: int = 0


class EpochSampler:
    """Sample numbers in the order of an epoch, for one rank; ints, to be given to a DataLoader or BatchSampler as ``sampler=``.

    Args:
        data: what is sampled; only its length is used, and ``ask_ahead`` in the order ``"blocks"``.
        order: ``"shuffled"``, all samples over the whole epoch. ``"sequential"``, 0, 1, 2 ... ``"blocks"``, for disks and
            network file systems that read neighbours faster: blocks of consecutive samples come in shuffled order, and samples
            are shuffled within windows of 256 blocks. When a window begins, ``data.ask_ahead(range(...))`` is called for each
            run of samples of the next one: the page cache is the shuffle buffer, and the disk sees whole blocks.
        seed: 0 to 2**64 - 1, the same on all ranks. The order is a function of seed, epoch and length, and is the same with
            every release, on every machine.
        rank, world_size: this process and how many there are (``torch.distributed.get_rank()``, ``get_world_size()``); both or
            neither. Ranks take turns (positions ``rank``, ``rank + world_size`` ... of the order), except in blocks: there each
            has one stretch of the order of blocks, and so other parts of the file.
        even: every rank gives ``ceil(samples / world_size)``; what is missing is taken from the start of the epoch's order, as
            torch's DistributedSampler does. ``False``: each sample exactly once over all ranks, whose numbers then differ by at
            most one (for evaluation; a training step that waits for all ranks would wait forever).
        block_size: consecutive samples in a block.

    **Epochs.** The first iteration is epoch 0, and each later one is the next, also where the one before was left early: no
    order comes twice because ``set_epoch`` was forgotten. An epoch begins when its *first number is drawn*, and an iterator
    that nothing is drawn from counts for nothing (a DataLoader with workers makes one too many). A DataLoader with workers
    draws as soon as ``iter(loader)`` is called, one without workers at the first batch; whether workers are persistent is all
    the same, since the sampler stays in the main process. A check such as ``next(iter(loader))`` before the training uses up an
    epoch; ``set_epoch`` makes the training independent of that. Iterators alive at the same time are independent, and of
    different epochs.

    **Length.** ``len()`` is what a whole epoch of this rank gives, also where the first epoch after ``load_state_dict`` is what
    remains of one, since schedules are computed from ``len(loader)``; it is never exceeded.

    Lightning needs ``Trainer(use_distributed_sampler=False)``, or it divides what this sampler has divided. torchdata's
    StatefulDataLoader stores and restores this sampler by itself (0.11; with workers, a state stored after the end of an epoch
    begins the epoch after the next).

    Raises:
        OptionError: a value that does not exist or does not fit.
    """

    def __init__(
        self,
        data: Sized,
        *,
        order: str = "shuffled",
        seed: SupportsIndex = 0,
        rank: SupportsIndex | None = None,
        world_size: SupportsIndex | None = None,
        even: bool = True,
        block_size: SupportsIndex = _BLOCK_SAMPLES,
    ) -> None:
        if order not in _ORDERS:
            raise OptionError(f"order={order!r}, expected one of {', '.join(_ORDERS)}")
        if (rank is None) != (world_size is None):
            raise OptionError(f"rank={rank}, world_size={world_size}: expected both or neither")
        if not isinstance(data, Sized):
            raise OptionError(f"data={data!r}, expected a dataset or another object that has a length")
        self.data = data
        self.order = order
        self.seed = whole("seed", seed, 0, 2**64 - 1)
        self.world_size = 1 if world_size is None else whole("world_size", world_size, 1)
        self.rank = 0 if rank is None else whole("rank", rank, 0, self.world_size - 1)
        self.even = bool(even)
        self.block_size = whole("block_size", block_size, 1)
        self._samples = len(data)
        self._next = _Start(0)
        self._last: _Start | None = None  # of the iterator that drew last, until another start is set
        self._given = 0  # what that iterator has given out

    def __len__(self) -> int:
        return self._count(0)

    def __iter__(self) -> Iterator[int]:
        # A generator, so this is run when the first number is drawn: a DataLoader with workers calls iter() twice and uses one.
        start, given = self._next, 0
        self._next = _Start(start.epoch + 1)
        self._last, self._given = start, given
        pieces = self._windows(start) if self.order == "blocks" else self._turns(start)
        for piece in pieces:
            for number in piece.tolist():
                given += 1
                self._last, self._given = start, given
                yield number

    @property
    def begun(self) -> int | None:
        """The epoch of the iteration that drew last; ``None`` where none has, or another start was set since."""
        return None if self._last is None else self._last.epoch

    def set_epoch(self, epoch: SupportsIndex) -> None:
        """Make this the epoch of the next iteration; those after it go on from there.

        It begins at its start, unless it is the epoch that ``load_state_dict`` has set, which then goes on where it was: a loop
        that calls this before each epoch resumes as any other does.
        """
        wanted = whole("epoch", epoch, 0)
        if wanted != self._next.epoch:
            self._next = _Start(wanted)
        # A framework may set the epoch that a DataLoader with workers has begun already. That one still has its progress.
        if self._last is not None and wanted != self._last.epoch:
            self._last = None

    def state_dict(self, taken: SupportsIndex | None = None) -> dict[str, Any]:
        """What ``load_state_dict`` needs to go on: a few plain numbers and words, fit for JSON.

        The state is the same on all ranks when they have taken equally many, so the first rank's serves all.

        Args:
            taken: how many numbers the training has used since this iteration began (``(step + 1) * batch_size``); by default
                all that the iterator that drew last has given out. Workers and batch samplers draw ahead of what the loop has
                seen, and without this number a resume leaves that out. After a whole epoch it is not needed.

        Returns:
            The state. ``epoch`` is the one to go on with: after an epoch's last sample it is the next one.

        Raises:
            OptionError: ``taken`` is more than was given out.
        """
        start, given = self._last or self._next, self._given if self._last else 0
        used = given if taken is None else whole("taken", taken, 0, given)
        if self._last and used == self._count(start.position):
            start = _Start(start.epoch + 1)
        else:
            start = _Start(start.epoch, start.position + used * self.world_size)
        return {
            "epoch": start.epoch,
            "position": start.position,
            "samples": self._samples,
            "order": self.order,
            "seed": self.seed,
            "world_size": self.world_size,
            "even": self.even,
            "block_size": self.block_size,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration what remains of that epoch, and the ones after it what they would have been.

        The number of workers may be another one. Within an epoch ``world_size`` and ``even`` may be others, too, except in
        blocks: what remains is divided anew.

        Raises:
            OptionError: the state is of other data, another order or another seed; it says which. Nothing is changed then.
        """
        fixed = ["samples", "order", "seed"]
        if self.order == "blocks":
            fixed.append("block_size")
            if state.get("position"):
                fixed += ["world_size", "even"]  # other stretches would begin elsewhere
        own = self.state_dict()
        missing = [name for name in own if name not in state]
        if missing:
            raise OptionError(f"this is no state of an EpochSampler: {', '.join(missing)} missing")
        differing = [f"{name}={state[name]!r} there, {own[name]!r} here" for name in fixed if state[name] != own[name]]
        if differing:
            raise OptionError(f"the state is of another sampler: {'; '.join(differing)}")
        self._next = _Start(
            whole("epoch", state["epoch"], 0), whole("position", state["position"], 0, max(0, self._samples - 1))
        )
        self._last = None

    def __repr__(self) -> str:
        what = (
            f"{self._samples:,} samples, order={self.order!r}, seed={self.seed}, rank={self.rank}, world_size={self.world_size}"
        )
        return f"{type(self).__name__}({what}, even={self.even}; next is epoch {self._next.epoch})"

    def _count(self, position: int) -> int:
        """How many numbers this rank gives from a position of the epoch's order."""
        if self.order == "blocks":
            return self._stretch()[1] - position // self.world_size
        left = max(0, self._samples - position)
        return -(-(left if self.even else max(0, left - self.rank)) // self.world_size)

    def _stretch(self) -> tuple[int, int]:
        """Where this rank's positions begin in the order of blocks, and how many they are."""
        if self.even:
            count = -(-self._samples // self.world_size)
            return self.rank * count, count
        first, end = (self._samples * rank // self.world_size for rank in (self.rank, self.rank + 1))
        return first, end - first

    def _turns(self, start: _Start) -> Iterator[NDArray[np.int64]]:
        """This rank's numbers from a start, in pieces, where the ranks take turns."""
        count = self._count(start.position)
        for done in range(0, count, _PIECE):
            turns = np.arange(done, min(done + _PIECE, count))
            positions = (start.position + self.rank + self.world_size * turns) % self._samples
            shuffled = self.order == "shuffled"
            yield permuted(positions, self._samples, self.seed, start.epoch) if shuffled else positions

    def _windows(self, start: _Start) -> Iterator[NDArray[np.int64]]:
        """This rank's numbers from a start, window by window, each asked for before the one before it is given out."""
        ask: Callable[[range], object] | None = getattr(self.data, "ask_ahead", None)
        first, count = self._stretch()
        done = start.position // self.world_size
        size = self.block_size * _WINDOW_BLOCKS
        begins = range(done // size * size, count, size)
        coming: NDArray[np.int64] | None = None
        for begin in begins:
            window = self._window(start.epoch, first + begin, min(size, count - begin), ask) if coming is None else coming
            after = begin + size
            coming = self._window(start.epoch, first + after, min(size, count - after), ask) if after < count else None
            places = permuted(np.arange(len(window)), len(window), self.seed, start.epoch, 1, first + begin)
            yield window[places][max(0, done - begin) :]

    def _window(self, epoch: int, first: int, count: int, ask: Callable[[range], object] | None) -> NDArray[np.int64]:
        """The numbers at consecutive positions of the order of blocks, unshuffled; and asked for, in the order of the file."""
        numbers = self._by_block(epoch, np.arange(first, first + count) % self._samples)
        if ask is not None:
            runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
            for run in sorted(runs, key=operator.itemgetter(0)):
                ask(range(int(run[0]), int(run[-1]) + 1))
        return numbers

    def _by_block(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """What stands at positions of the order of blocks.

        One block is shorter where the blocks do not divide the samples. It comes last in each epoch, and is that block of the
        file which the permutation puts there: so the others have one length, and begin elsewhere from epoch to epoch.
        """
        blocks = -(-self._samples // self.block_size)
        slots, within = np.divmod(positions, self.block_size)
        chosen = permuted(np.append(slots, blocks - 1), blocks, self.seed, epoch, 0)
        behind, chosen = chosen[:-1] > chosen[-1], chosen[:-1]
        missing = blocks * self.block_size - self._samples
        numbers: NDArray[np.int64] = chosen * self.block_size - behind * missing + within
        return numbers


def whole(name: str, value: object, least: int, most: int | None = None) -> int:
    """The value as an int within bounds.

    Raises:
        OptionError: it is none.
    """
    bounds = f"{least} or more" if most is None else f"{least} to {most}"
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # whatever has no __index__ is refused here
    except TypeError:
        raise OptionError(f"{name}={value!r}, expected a whole number, {bounds}") from None
    if number < least or (most is not None and number > most):
        raise OptionError(f"{name}={number}, expected {bounds}")
    return number
