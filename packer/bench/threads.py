"""The contender that needs no worker processes: ``packer.Loader``'s threads over a packed dataset."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from packer.batchmaker import BatchMaker
from packer.bench.contenders import OUTPUT, SIZE, Contender
from packer.bench.results import THREADS
from packer.cpus import available_cpus
from packer.datasets import open_dataset
from packer.epochs import Ask
from packer.loader import ReadThreads

__all__ = ["ThreadedContender", "with_threads"]


@dataclass(frozen=True, slots=True)
class ThreadedContender(Contender):
    """A packed dataset that is read by threads of this process; decoded, shuffled, and without workers only."""

    @property
    def helpers(self) -> int:
        """Threads, each of which has batches ready when the clock starts."""
        return available_cpus()

    def does(self, work: str, cache: str, order: str, workers: int = 0) -> bool:
        """Whether it takes part there."""
        return (work, order, workers) == ("decoded", "shuffled", 0)

    def batches(self, work: str, orders: Iterable[list[int]], workers: int) -> Generator[tuple[list[int], Any], None, None]:
        """Batches with the numbers that are in them, as ``packer.Loader`` makes them."""
        maker = BatchMaker(open_dataset(self.dataset or "", output=OUTPUT, size=SIZE), 0, skips=False)
        with ReadThreads(maker, self.helpers) as threads:
            for ask, read in threads.read(Ask(0, numbers, 0) for numbers in orders):
                batch = maker.finish(ask, read).batch
                yield ask.numbers, batch[0] if isinstance(batch, tuple) else batch


def with_threads(contenders: Sequence[Contender]) -> list[Contender]:
    """The contenders, and behind the first packed dataset whose samples make batches the threads that read it."""
    for place, one in enumerate(contenders):
        if one.dataset is not None and one.decoder.uniform:
            fields = (one.files, one.truth, one.runs, one.picks, one.decoder, one.dataset)
            return [*contenders[: place + 1], ThreadedContender(THREADS, *fields), *contenders[place + 1 :]]
    return list(contenders)
