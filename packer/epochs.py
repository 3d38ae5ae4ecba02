"""Which samples each batch is made of, how far a loop has come, and what was left out: the same for every loader."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sized
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple, SupportsIndex

from packer.errors import OptionError, PackerError
from packer.metrics import BatchMetrics, OnBatch, Work, anonymous_bytes
from packer.sampler import EpochSampler, whole
from packer.workerlog import Teller

__all__ = ["Ask", "Epochs", "InEpochs", "Made", "Skip"]

_NAMED = 1000
"""Samples that are remembered by name as skipped; all are counted."""

_LEAST_SKIPPED = 100
"""From here on, more skipped than given in an epoch means that not the samples are at fault, and the run ends."""

_log = logging.getLogger("packer")


class Ask(NamedTuple):
    """One batch that is asked for.

    Attributes:
        epoch: of the order.
        numbers: of the samples.
        used: how many numbers of the epoch's order are used up when this batch has been given out.
    """

    epoch: int
    numbers: list[int]
    used: int


class Skip(NamedTuple):
    """A sample that was left out: its original path, or where it has none its number, and what was wrong."""

    name: str
    problem: str


class Made(NamedTuple):
    """A batch as it was made; plain values, so that it can come from another process.

    Attributes:
        batch: what the loop gets; of no meaning where there are no samples.
        samples: how many are in it.
        skipped: what was left out.
        used: of the ``Ask``.
        work: what it took to make it.
    """

    batch: Any
    samples: int
    skipped: list[Skip]
    used: int
    work: Work


class Epochs:
    """Divides an epoch into batches, and keeps account of what the loop was given.

    Args:
        data: what batches are made of; only its length is used, and ``ask_ahead`` by the order ``"blocks"``.
        batch_size: samples in a batch.
        shuffle: another order in every epoch; ``False`` for 0, 1, 2 ...
        seed: of the order and of what transforms draw; the same on all ranks.
        drop_last: leave out a last batch of fewer samples.
        rank, world_size, even: as ``EpochSampler`` takes them.
        sampler: an ``EpochSampler`` instead of ``shuffle``, ``seed``, ``rank``, ``world_size`` and ``even``.
        on_error: ``"raise"`` or ``"skip"``.
        on_batch: told what it took to give out each batch.

    Attributes:
        sampler: gives the order.
        skipped: samples left out so far.
        skipped_samples: what was wrong with the first thousand of them, by name.

    Raises:
        OptionError: a value that does not exist or does not fit.
    """

    def __init__(
        self,
        data: Sized,
        batch_size: SupportsIndex,
        *,
        shuffle: bool,
        seed: SupportsIndex,
        drop_last: bool,
        rank: SupportsIndex | None,
        world_size: SupportsIndex | None,
        even: bool,
        sampler: EpochSampler | None,
        on_error: str,
        on_batch: OnBatch | None,
    ) -> None:
        self.batch_size = whole("batch_size", batch_size, 1)
        if on_error not in ("raise", "skip"):
            raise OptionError(f"on_error={on_error!r}, expected raise or skip")
        if sampler is None:
            order = "shuffled" if shuffle else "sequential"
            sampler = EpochSampler(data, order=order, seed=seed, rank=rank, world_size=world_size, even=even)
        elif not isinstance(sampler, EpochSampler):
            raise OptionError(f"sampler={sampler!r}, expected a packer.EpochSampler, which can be resumed")
        elif shuffle or seed or rank is not None or world_size is not None or not even:
            raise OptionError("sampler= comes instead of shuffle=, seed=, rank=, world_size= and even=")
        self.sampler = sampler
        self.drop_last = drop_last
        self.on_error = on_error
        self.skipped = 0
        self.skipped_samples: dict[str, str] = {}
        self._used: int | None = 0  # of the order's numbers, in the iteration that drew last; None for all of them
        self._given = self._left_out = self._batches = 0  # of this iteration
        self._on_batch = on_batch
        self._teller = Teller()
        self._begun_s = self._asked_s = perf_counter()

    def __len__(self) -> int:
        samples = len(self.sampler)
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    def __iter__(self) -> Iterator[Ask]:
        """The batches of the next epoch. It begins when the first one is asked for."""
        numbers = iter(self.sampler)
        coming = list(islice(numbers, self.batch_size))
        epoch = self.sampler.begun or 0
        self.begin()
        used = 0
        if self.drop_last and len(coming) < self.batch_size:
            return
        while coming:
            batch, used = coming, used + len(coming)
            coming = list(islice(numbers, self.batch_size))
            if self.drop_last and len(coming) < self.batch_size:
                # With the last batch that is given out the epoch is over: a resume must not begin with what is left out.
                used += len(coming)
                coming = []
            yield Ask(epoch, batch, used)

    def describe(self) -> str:
        """The settings, for a ``repr``."""
        names = ("batch_size", "drop_last", "on_error", "sampler")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)

    def begin(self) -> None:
        """An iteration begins now, though no batch of it was given out: its first one may fail."""
        self._used = 0
        self._given = self._left_out = self._batches = 0
        self._begun_s = perf_counter()
        self._teller.sum_up()

    def wait(self) -> None:
        """The loop waits for the next batch from now on."""
        self._asked_s = perf_counter()

    def take(self, made: Made) -> bool:
        """Account for a batch that is given out now; returns whether there is a sample in it.

        Raises:
            PackerError: so much was skipped that the samples cannot be at fault, or nothing is left of a batch that other
                ranks wait for.
        """
        now_s = perf_counter()
        self._teller.tell(made.work.worker, made.work.said)
        self._given += made.samples
        self._left_out += len(made.skipped)
        self.skipped += len(made.skipped)
        for skip in made.skipped:
            if len(self.skipped_samples) < _NAMED:
                self.skipped_samples[skip.name] = skip.problem
            _log.warning("skipped sample %r: %s", *skip)
        if self._on_batch is not None and made.samples:
            self._on_batch(self._metrics(made, now_s))
        self._used = made.used  # not before: where that raises, the loop does not get the batch
        if not made.skipped:
            return True
        last = made.skipped[-1]
        if self._left_out >= _LEAST_SKIPPED and self._left_out > self._given:
            raise PackerError(
                f"{self._left_out:,} samples of this epoch were skipped and {self._given:,} given out, so not the samples are "
                f"at fault. The last was {last.name!r}: {last.problem}"
            )
        if not made.samples and self.sampler.world_size > 1:
            raise PackerError(
                f"all {len(made.skipped):,} samples of a batch were skipped, and the other ranks would wait for this one. "
                f"The last was {last.name!r}: {last.problem}"
            )
        return made.samples > 0

    def _metrics(self, made: Made, now_s: float) -> BatchMetrics:
        self._batches += 1
        return BatchMetrics(
            batch=self._batches - 1,
            samples=made.samples,
            skipped=self.skipped,
            wait_s=now_s - self._asked_s,
            decode_s=made.work.decode_s,
            transform_s=made.work.transform_s,
            samples_per_s=self._given / max(now_s - self._begun_s, 1e-9),
            worker=made.work.worker,
            memory_bytes=made.work.memory_bytes or anonymous_bytes(),
        )

    def end(self) -> None:
        """The iteration has given out all that it had.

        Raises:
            PackerError: that was nothing, since all was skipped.
        """
        self._used = None
        self._teller.sum_up()
        if self._left_out and not self._given:
            name, problem = next(iter(self.skipped_samples.items()))
            raise PackerError(
                f"all {self._left_out:,} samples of this epoch were skipped. The first of the run was {name!r}: {problem}"
            )

    def set_epoch(self, epoch: SupportsIndex) -> None:
        """Make this the epoch of the next iteration; see ``EpochSampler.set_epoch``."""
        self.sampler.set_epoch(epoch)
        if self.sampler.begun is None:
            self._used = 0

    def state_dict(self) -> dict[str, Any]:
        """What ``load_state_dict`` needs to go on behind the last batch that was given out; fit for JSON."""
        return self.sampler.state_dict(self._used)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration what remains of that epoch.

        Raises:
            OptionError: the state is of other data, another order or another seed.
        """
        self.sampler.load_state_dict(state)
        self._used = 0


class InEpochs:
    """What every loader says of its epochs."""

    _epochs: Epochs

    @property
    def skipped(self) -> int:
        """Samples left out so far."""
        return self._epochs.skipped

    @property
    def skipped_samples(self) -> dict[str, str]:
        """What was wrong with the first thousand samples left out, by their original relative path, or number."""
        return self._epochs.skipped_samples

    def set_epoch(self, epoch: SupportsIndex) -> None:
        """Make this the epoch of the next iteration; see ``EpochSampler.set_epoch``."""
        self._epochs.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """What ``load_state_dict`` needs to go on behind the last batch that was given out; fit for JSON."""
        return self._epochs.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration what remains of that epoch. A state of another kind of loader, or with another number of
        workers, will do as well.

        Raises:
            OptionError: the state is of other data, another order or another seed.
        """
        self._epochs.load_state_dict(state)
