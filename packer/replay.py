"""What a DataLoader that goes on after deaths takes for its sampler: what is still to be given out, again and again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import count, islice
from typing import Any

from packer.epochs import Ask

__all__ = ["Replay"]


class Replay:
    """What torch takes for its sampler: what an iteration asks for, from the first that is not given out yet.

    torch goes over it while it may raise, at any line, that a worker has died. So nothing is changed then, and nobody's sampler
    is called: a generator that an exception has left gives no more, and the rest of an epoch would be missing.
    """

    def __init__(self) -> None:
        self._run = 0

    def begin(self, asks: Iterator[Any]) -> None:
        """Another iteration begins; who goes over an earlier one comes to the end."""
        self._asks = asks
        self._asked: deque[Any] = deque()  # and not given out
        self.begin_again(None)

    def begin_again(self, limit: int | None) -> None:
        """It will be gone over anew, from the first that is not given out; so many, or all."""
        self._given = 0  # since then
        self._limit = limit
        self._run += 1

    @property
    def is_done(self) -> bool:
        """Whether all is given out."""
        self.fetch(1)
        return not self._asked

    def fetch(self, count: int) -> None:
        """Have so many at hand that are not given out, or all."""
        for ask in islice(self._asks, max(0, count - len(self._asked))):
            self._asked.append(ask)

    def given_out(self) -> None:
        """The first that was not given out has been."""
        self._asked.popleft()
        self._given += 1

    def numbers(self, indices: Iterable[int]) -> list[int]:
        """Numbers of the samples of some batches, by the numbers that torch has given those."""
        found: list[int] = []
        for ask in (self._asked[i - self._given] for i in indices if i - self._given < len(self._asked)):
            numbers = ask[1].numbers if isinstance(ask, tuple) and isinstance(ask[-1], Ask) else ask
            found += numbers if isinstance(numbers, list) else [numbers]
        return found

    def __iter__(self) -> Iterator[Any]:
        run = self._run
        for index in count():
            if index == self._limit:
                return
            if run == self._run:
                self.fetch(index - self._given + 1)  # where torch asks for more at once than it is known to
            if run != self._run or index - self._given >= len(self._asked):
                return
            yield self._asked[index - self._given]
