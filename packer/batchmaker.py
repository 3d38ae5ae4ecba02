"""Make the batch that a loader asks for: from a packed dataset as a whole, from any other sample by sample."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

from packer.datasets import PackedDataset
from packer.epochs import Ask, Made, Skip
from packer.metrics import Work
from packer.samples import Pieces, Wanted
from packer.seeds import kept_generators, seed_generators
from packer.tensors import collate
from packer.workerlog import Ear

__all__ = ["BatchMaker", "Read"]


class Read(NamedTuple):
    """What was read for a batch, before transforms; of which of the numbers asked for, what was left out, how long it took."""

    pieces: Pieces | None
    numbers: list[int]
    skipped: list[Skip]
    seconds: float


def _nothing() -> None:
    """Any batch is wanted."""


class BatchMaker:
    """Makes batches; can be pickled where the data can.

    Args:
        data: a packed dataset, or any other map-style dataset.
        seed: of what transforms draw.
        skips: leave out samples that cannot be made, and say so, instead of raising.
        collate_fn: makes a batch out of a list of samples; ``None`` for a packed dataset's own batches, and for torch's
            ``default_collate`` of any other's samples.
        keeps_generators: give the global generators back as they were after each batch: where the loop lives in this process.
    """

    def __init__(
        self,
        data: Any,
        seed: int,
        *,
        skips: bool,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        keeps_generators: bool = True,
    ) -> None:
        self.data = data
        self._seed = seed
        self._skips = skips
        self._collate = collate_fn or collate
        self._makes_whole = isinstance(data, PackedDataset) and collate_fn is None
        self._keeps_generators = keeps_generators
        self.ear: Ear | None = None  # in a worker

    def make(self, ask: Ask, check: Callable[[], object] = _nothing) -> Made:
        """The batch, in this thread.

        Args:
            ask: the batch.
            check: called before each sample; what it raises ends the making.

        Raises:
            Exception: whatever a sample raises, unless it is skipped.
        """
        try:
            return self.finish(ask, self.read(ask, check), check) if self._makes_whole else self._make_by_sample(ask, check)
        except StopIteration as error:  # for a DataLoader that would be the end of the epoch
            raise RuntimeError(f"a sample raised {error!r}: {', '.join(getattr(error, '__notes__', []))}") from error

    def read(self, ask: Ask, check: Callable[[], object] = _nothing, wanted: Wanted | None = None) -> Read:
        """Read and decode what the batch is made of; what runs nobody's transform, and so may be called in any thread.

        Args:
            ask: the batch.
            check: called before each sample; what it raises ends the reading.
            wanted: what ``ask_for`` has given for its numbers, where they were asked for ahead.
        """
        data: PackedDataset = self.data
        start = perf_counter()
        try:
            return Read(data.read_batch(wanted or ask.numbers, check), ask.numbers, [], perf_counter() - start)
        except Exception:  # of whatever class: which sample it was, and whether it is alone, shows below
            if not self._skips:
                raise
        sound, skipped = [], []
        for number in ask.numbers:
            check()
            try:
                data.read_batch([number])
            except Exception as error:  # noqa: BLE001 - whatever it is, the user wants the others
                skipped.append(Skip(self.name(number), _problem(error)))
            else:
                sound.append(number)
        pieces = data.read_batch(sound, check) if sound else None
        return Read(pieces, sound, skipped, perf_counter() - start)

    def finish(self, ask: Ask, read: Read, check: Callable[[], object] = _nothing) -> Made:
        """Call the transforms and put the batch together; in the thread that the transforms belong to."""
        data: PackedDataset = self.data
        pieces, numbers, skipped, seconds = read
        if pieces is None:
            return Made(None, 0, skipped, ask.used, Work(seconds))
        start = perf_counter()
        if not data.has_transforms:
            batch = data.finish_batch(pieces)
            return Made(batch, len(numbers), skipped, ask.used, Work(seconds, perf_counter() - start))
        # Not the numbers in the whole dataset: where a subset has a sample twice, it is not to be augmented twice the same way.
        coming = iter(numbers)
        failed: list[Skip] = []

        def begin(_: int) -> None:
            check()
            number = next(coming)
            self._now_at(number)
            seed_generators(self._seed, ask.epoch, number)

        with self._generators():
            batch = data.finish_batch(
                pieces,
                before=begin,
                failed=(lambda name, error: failed.append(Skip(name, _problem(error)))) if self._skips else None,
            )
        work = Work(seconds, perf_counter() - start)
        return Made(batch, len(numbers) - len(failed), [*skipped, *failed], ask.used, work)

    def _make_by_sample(self, ask: Ask, check: Callable[[], object]) -> Made:
        samples, skipped = [], []
        start = perf_counter()
        with self._generators():
            for number in ask.numbers:
                check()
                self._now_at(number)
                seed_generators(self._seed, ask.epoch, number)
                try:
                    samples.append(self.data[number])
                except Exception as error:  # a dataset of the user's raises anything
                    if not self._skips:
                        error.add_note(f"in sample {number} of {type(self.data).__name__}")
                        raise
                    skipped.append(Skip(self.name(number), _problem(error)))
            made_s = perf_counter()
            batch = self._collate(samples) if samples else None
        return Made(batch, len(samples), skipped, ask.used, Work(made_s - start, perf_counter() - made_s))

    def _now_at(self, number: int) -> None:
        if self.ear is not None:
            self.ear.number = number

    def _generators(self) -> contextlib.AbstractContextManager[None]:
        return kept_generators() if self._keeps_generators else contextlib.nullcontext()

    def name(self, number: int) -> str:
        """What a sample is called in messages."""
        return self.data.names[number] if isinstance(self.data, PackedDataset) else f"{type(self.data).__name__}[{number}]"


def _problem(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
