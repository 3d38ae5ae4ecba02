"""Make the batch that a loader asks for: from a packed dataset as a whole, from any other sample by sample."""

from __future__ import annotations

import contextlib
import threading
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

__all__ = ["BatchMaker", "BatchRead", "Read", "name_of"]


class Read(NamedTuple):
    """What was read for a batch, before transforms; of which of the numbers asked for, what was left out, how long it took."""

    pieces: Pieces | None
    numbers: list[int]
    skipped: list[Skip]
    seconds: float


def _nothing() -> None:
    """Any batch is wanted."""


class BatchRead:
    """A batch of a packed dataset that is being read, by one thread or by several, each with a part of it.

    Args:
        data: the dataset.
        numbers: of the samples.
        wanted: what ``ask_for`` has given for them, where they were asked for ahead.
        skips: leave out samples that cannot be read.

    Attributes:
        places: of all its samples.
    """

    def __init__(self, data: PackedDataset, numbers: list[int], wanted: Wanted | None, *, skips: bool) -> None:
        self._data = data
        self._numbers = numbers
        self._skips = skips
        self._reading = data.begin_batch(wanted or numbers)
        self.places = self._reading.places
        self._left = len(self.places)
        self._errors: dict[int, BaseException] = {}  # by the first place of their part
        self._lock = threading.Lock()
        self._start_s = 0.0

    def parts(self, most: int) -> list[range]:
        """Places for at most so many threads, all that there are."""
        return self._reading.parts(most)

    def fill(self, places: range, check: Callable[[], object]) -> bool:
        """Read and decode the samples at some places; what goes wrong is kept for ``result``.

        Args:
            places: what of the batch.
            check: called before each sample; what it raises ends the reading.

        Returns:
            Whether no other places are left, so that it is time for ``result``.
        """
        with self._lock:
            self._start_s = self._start_s or perf_counter()
        try:
            self._reading.fill(places, check)
        except BaseException as error:  # noqa: BLE001 - raised by whoever asks for the result
            self._errors[places.start] = error
        with self._lock:
            self._left -= len(places)
            return not self._left

    def result(self, check: Callable[[], object]) -> Read:
        """What was read. Where samples are skipped, this reads those that are not once more.

        Args:
            check: called before each sample then; what it raises ends it.

        Raises:
            Exception: of the first sample that raised one, unless it is skipped.
        """
        if not self._errors:
            return Read(self._reading.pieces(), self._numbers, [], perf_counter() - self._start_s)
        # Of the first part, and so of the first sample, however many threads there were.
        first = self._errors[min(self._errors)]
        self._errors.clear()
        try:
            if not self._skips or not isinstance(first, Exception):
                raise first
        finally:
            del first  # whose frames hold this one, and the memory of the batch
        data, sound, skipped = self._data, list[int](), list[Skip]()
        for number in self._numbers:
            check()
            try:
                data.read_batch([number])
            except Exception as error:  # noqa: BLE001 - whatever it is, the user wants the others
                skipped.append(Skip(name_of(data, number), _problem(error)))
            else:
                sound.append(number)
        pieces = data.read_batch(sound, check) if sound else None
        return Read(pieces, sound, skipped, perf_counter() - self._start_s)


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
            if not self._makes_whole:
                return self._make_by_sample(ask, check)
            reading = self.begin(ask)
            reading.fill(reading.places, check)
            return self.finish(ask, reading.result(check), check)
        except StopIteration as error:  # for a DataLoader that would be the end of the epoch
            raise RuntimeError(f"a sample raised {error!r}: {', '.join(getattr(error, '__notes__', []))}") from error

    def begin(self, ask: Ask, wanted: Wanted | None = None) -> BatchRead:
        """Begin to read a batch of a packed dataset; that runs nobody's transform, and so may be done in any thread.

        Args:
            ask: the batch.
            wanted: what ``ask_for`` has given for its numbers, where they were asked for ahead.
        """
        return BatchRead(self.data, ask.numbers, wanted, skips=self._skips)

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
                    skipped.append(Skip(name_of(self.data, number), _problem(error)))
            made_s = perf_counter()
            batch = self._collate(samples) if samples else None
        return Made(batch, len(samples), skipped, ask.used, Work(made_s - start, perf_counter() - made_s))

    def _now_at(self, number: int) -> None:
        if self.ear is not None:
            self.ear.number = number

    def _generators(self) -> contextlib.AbstractContextManager[None]:
        return kept_generators() if self._keeps_generators else contextlib.nullcontext()


def name_of(data: Any, number: int) -> str:
    """What a sample is called in messages."""
    return data.names[number] if isinstance(data, PackedDataset) else f"{type(data).__name__}[{number}]"


def _problem(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
