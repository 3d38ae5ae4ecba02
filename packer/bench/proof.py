"""That what was read is what is there: sizes and digests of the files, and the pixels or elements that they hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from packer.errors import DatasetError

__all__ = ["Row", "Truth", "WrongDataError", "digest_sum", "noted_row"]

_TOLERANCE = 8.0
"""Levels of 255 by which two decoders and two ways to resize may differ on average; another picture differs by dozens."""

Row = tuple[int, Any]
"""The number of a sample, and what ``noted_row`` keeps of what was given for it."""


class WrongDataError(DatasetError):
    """A reader gave something else than what is in the file."""

    advice = " Did the files change meanwhile? Run again; if it stays, run `pack verify`, or pack again."


class Truth:
    """What the samples of one contender are.

    Args:
        sizes: of their files in bytes, by number.
        digests: xxh3-64 of their bytes, by number.
        decode: gives what a sample holds, by number, from its bytes as they were packed.
    """

    def __init__(self, sizes: NDArray[np.int64], digests: NDArray[np.uint64], decode: Callable[[int], NDArray[Any]]) -> None:
        self.sizes = sizes
        self.digests = digests
        self._decode = decode
        self._known: dict[int, tuple[tuple[int, ...], int]] = {}

    def find_wrong_raw(self, numbers: Sequence[int], found: tuple[int, int, int]) -> str:
        """What is wrong with a batch of raw reads, given as count, bytes and sum of digests; empty where nothing is.

        A sum of digests of -1 is that of a reader that compares them by itself.
        """
        expected = (len(numbers), int(self.sizes[numbers].sum()), digest_sum(self.digests[numbers]))
        if found[2] == -1:
            found = (*found[:2], expected[2])
        return "" if found == expected else f"{found} was read where {expected} is there (samples, bytes, sum of digests)"

    def find_wrong_row(self, row: Row, *, same_decoder: bool) -> str:
        """What is wrong with a decoded sample; empty where nothing is."""
        number, given = row
        if same_decoder:
            if number not in self._known:
                self._known[number] = _summary(self._decode(number))
            expected = self._known[number]
            return "" if given == expected else f"sample {number} is {given} where {expected} is there (shape, digest)"
        wanted = self._decode(number)
        if given.shape != wanted.shape:
            return f"sample {number} has shape {given.shape} where {wanted.shape} is there"
        difference = float(np.abs(given.astype(np.int16) - wanted.astype(np.int16)).mean())
        return "" if difference <= _TOLERANCE else f"sample {number} differs by {difference:.1f} levels from what is there"


def digest_sum(digests: Sequence[int] | NDArray[np.uint64]) -> int:
    """Sum of digests, of which the lowest 63 bits are kept."""
    return int(np.asarray(digests, np.uint64).sum(dtype=np.uint64)) & (2**63 - 1)


def noted_row(values: Any, *, same_decoder: bool) -> Any:
    """What is kept of a decoded sample until it is compared: shape and digest, or a copy where it is only to be near."""
    array = np.asarray(values)
    return _summary(array) if same_decoder else array.copy()


def _summary(values: NDArray[Any]) -> tuple[tuple[int, ...], int]:
    return values.shape, xxh3_64_intdigest(np.ascontiguousarray(values).data)
