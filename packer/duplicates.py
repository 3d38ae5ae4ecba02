"""The same bytes under several names: found by digest among all samples, reported once per content.

A placeholder ("this photo is no longer available") under thousands of names becomes the most frequent picture of a dataset
without anybody noticing. Nothing is removed by that alone: the report says so, and ``skip`` can keep the first copy only.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["DuplicateGroup", "Duplicates"]


class DuplicateGroup(NamedTuple):
    """One content that several samples have.

    Attributes:
        digest: xxh3-64 of it.
        sources: indices of the sources that have it, in order; at least two.
    """

    digest: int
    sources: NDArray[np.int64]


class Duplicates:
    """Remembers the digest of every sample: 24 bytes each, sorted once at the end, and no Python object."""

    def __init__(self) -> None:
        self._digests = array("Q")
        self._sizes = array("Q")
        self._sources = array("q")

    def add(self, source: int, size_bytes: int, digest: int) -> None:
        """A sample was kept."""
        self._digests.append(digest)
        self._sizes.append(size_bytes)
        self._sources.append(source)

    def groups(self) -> Iterator[DuplicateGroup]:
        """Contents that more than one sample has, in the order of their first sample. Empty files are no copies of another."""
        digests: NDArray[Any] = np.frombuffer(self._digests, np.uint64)
        sizes: NDArray[Any] = np.frombuffer(self._sizes, np.uint64)
        sources: NDArray[Any] = np.frombuffer(self._sources, np.int64)
        order = np.lexsort((sizes, digests))  # stable, so each group comes out in the order of its sources
        same = (digests[order[1:]] == digests[order[:-1]]) & (sizes[order[1:]] == sizes[order[:-1]])
        edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
        found = [(int(first), int(last) + 1) for first, last in edges.reshape(-1, 2)]
        for first, last in sorted(found, key=lambda span: int(sources[order[span[0]]])):
            members = order[first:last]
            yield DuplicateGroup(int(digests[members[0]]), sources[members])
