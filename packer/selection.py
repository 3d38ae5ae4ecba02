"""Which samples are meant: those of a batch, of some classes, of a share of all. No Python object a sample but in a batch."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import OptionError
from packer.permutation import permuted

__all__ = ["are_several", "as_numbers", "places_of_classes", "split_places"]

_NEARLY = Fraction(1, 10**6)  # thirds of single precision


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
            hint = f"; similar: {', '.join(map(repr, close))}" if close else f"; there are {len(class_to_idx):,}"
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
        labels: shape (samples,); where given, each part has its share of each label, rounded up or down.

    Raises:
        OptionError: the fractions are not greater than 0, or together more than 1.
    """
    shares = _exact(fractions)
    order = permuted(np.arange(samples), samples, operator.index(seed))  # a different number for each
    if labels is None:
        counts = np.array([samples])
        order = np.argsort(order)
    else:
        counts = np.unique(labels, return_counts=True)[1]
        order = np.lexsort((order, labels))
    # Laid end to end, label after label, each part takes its share of every label's stretch.
    starts = np.cumsum(counts) - counts
    parts = []
    for sizes in _rounded(counts.tolist(), shares).T:
        parts.append(np.sort(order[_stretches(starts, starts + sizes)]))
        starts = starts + sizes
    return parts


def _exact(fractions: Sequence[float]) -> list[Fraction]:
    """The fractions as they were written: in floating point 0.7 + 0.2 + 0.1 is less than 1, and 5 / 6 + 1 / 6 is more."""
    shares = []
    for fraction in fractions:
        try:
            shares.append(Fraction(str(fraction)))
        except ValueError:
            shares.append(Fraction(0))
    if not shares:
        raise OptionError("no fractions: split(0.9, 0.1) gives two parts")
    together = sum(shares, Fraction(0))
    if abs(together - 1) <= _NEARLY:
        shares = [share / together for share in shares]
    if min(shares) <= 0 or sum(shares) > 1:
        raise OptionError(f"fractions {', '.join(map(str, fractions))}: each must be above 0, and all together at most 1")
    return shares


def _rounded(counts: Sequence[int], shares: Sequence[Fraction]) -> NDArray[np.int64]:
    """How many samples of each label each part gets: shape (labels, parts).

    Each is its share of the label, rounded up where the part is owed most by the labels before: so that the parts have the
    right size in all, also where each of a thousand labels has four samples.
    """
    unit = lcm(*(share.denominator for share in shares))
    weights = [int(share * unit) for share in shares]
    weights.append(unit - sum(weights))  # of what is in no part
    owed = [0] * len(weights)  # in units
    table = np.empty((len(counts), len(weights)), np.int64)
    for label, count in enumerate(counts):
        sizes, rests = zip(*(divmod(count * weight, unit) for weight in weights), strict=True)
        owed = [before + rest for before, rest in zip(owed, rests, strict=True)]
        table[label] = sizes
        uneven = sorted((part for part, rest in enumerate(rests) if rest), key=lambda part: -owed[part])
        for part in uneven[: count - sum(sizes)]:
            table[label, part] += 1
            owed[part] -= unit
    return table[:, :-1]


def _stretches(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """All numbers from each start to its end, end to end."""
    counts = ends - starts
    before = np.cumsum(counts) - counts
    numbers: NDArray[np.int64] = np.arange(counts.sum()) + np.repeat(starts - before, counts)
    return numbers
