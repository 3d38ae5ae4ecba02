"""Which samples are meant: those of a batch, of some classes, of a share of all. No Python object a sample but in a batch."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import OptionError
from packer.permutation import permuted

__all__ = ["are_several", "as_numbers", "places_of_classes", "split_places"]


def are_several(index: object) -> bool:
    """Whether samples are asked for by a list, a range, or an array or tensor of one axis."""
    return isinstance(index, (list, range)) or getattr(index, "ndim", 0) == 1


def as_numbers(indices: Any) -> Sequence[Any]:
    """The numbers of an array or tensor as Python's."""
    values: Sequence[Any] = indices.tolist() if hasattr(indices, "tolist") else indices
    if len(values) and isinstance(values[0], bool):
        raise TypeError("samples are asked for by their numbers, not by a mask: np.flatnonzero(mask) gives them")
    return values


def places_of_classes(targets: NDArray[np.int64], classes: Sequence[str], class_to_idx: Mapping[str, int]) -> NDArray[np.int64]:
    """Places of the samples of some classes, ascending.

    Args:
        targets: labels, shape (samples,).
        classes: names of the classes wanted.
        class_to_idx: the label of each class that there is.

    Raises:
        OptionError: there is no such class.
    """
    if isinstance(classes, str):
        raise OptionError(f"classes={classes!r} is one text; a list of class names is expected")
    for name in classes:
        if name not in class_to_idx:
            close = difflib.get_close_matches(str(name), class_to_idx, n=3)
            hint = f"; similar: {', '.join(close)}" if close else f"; there are {len(class_to_idx):,}"
            raise OptionError(f"no class {name!r}{hint}")
    return np.flatnonzero(np.isin(targets, [class_to_idx[name] for name in classes]))


def split_places(
    samples: int, fractions: Sequence[float], seed: int, labels: NDArray[np.int64] | None
) -> list[NDArray[np.int64]]:
    """Divide samples at random into parts that share none; the places in each are ascending.

    Args:
        samples: how many there are.
        fractions: the share of each part; what they leave of 1 is in none.
        seed: of the division.
        labels: shape (samples,); where given, each part has its share of each label, to within one sample.

    Raises:
        OptionError: the fractions are not greater than 0, or together more than 1.
    """
    bounds = _bounds(fractions)
    order = permuted(np.arange(samples), samples, seed)  # a different number for each
    counts = np.array([samples])
    if labels is not None:
        counts = np.unique(labels, return_counts=True)[1]
        order = np.lexsort((order, labels))
    else:
        order = np.argsort(order)
    # Laid end to end, label after label, each part takes its share of every label's stretch. Rounded at the ends of the
    # stretches, the parts have the right size in all, also where each of a thousand labels has four samples.
    ends = np.cumsum(counts)
    starts = ends - counts
    parts = []
    previous = starts
    for bound in bounds:
        reached = starts + _share(ends, bound) - _share(starts, bound)
        parts.append(np.sort(order[_stretches(previous, reached)]))
        previous = reached
    return parts


def _bounds(fractions: Sequence[float]) -> list[Fraction]:
    """Where each part ends, as a share of all. Exact, since 0.7 + 0.2 + 0.1 is less than 1 in floating point."""
    bounds = []
    reached = Fraction(0)
    for fraction in fractions:
        try:
            share = Fraction(str(fraction))
        except ValueError:
            share = Fraction(0)
        reached += share
        if share <= 0 or reached > 1:
            raise OptionError(f"fractions {', '.join(map(str, fractions))}: each must be above 0, and all together at most 1")
        bounds.append(reached)
    if not bounds:
        raise OptionError("no fractions: split(0.9, 0.1) gives two parts")
    return bounds


def _share(ends: NDArray[np.int64], bound: Fraction) -> NDArray[np.int64]:
    """The share of so many samples, rounded to the nearest whole."""
    shares: NDArray[np.int64] = np.array([round(int(end) * bound) for end in ends], np.int64)
    return shares


def _stretches(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """All numbers from each start to its end, end to end."""
    counts = ends - starts
    before = np.cumsum(counts) - counts
    numbers: NDArray[np.int64] = np.arange(counts.sum()) + np.repeat(starts - before, counts)
    return numbers
