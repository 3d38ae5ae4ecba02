"""The simplest law that fits a cost: constant, or a fixed part and a part for each of what there is more of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# A second parameter always fits better, and what seems to grow a little is an absurdity a thousand times further on. A linear
# law is believed where the points lie less than half as far off on the whole, and the cost doubles over the sizes measured.
BETTER = 0.5
GROWN = 2.0


@dataclass(frozen=True, slots=True)
class Fit:
    """``fixed + each * x``.

    Attributes:
        fixed: part of the cost.
        each: part of the cost for each one more; 0 where the cost is taken for constant.
        worst: the largest distance of a measured point from the law, as a share of the point.
        usual: the root of the mean square of those distances.
    """

    fixed: float
    each: float
    worst: float
    usual: float

    def at(self, x: float) -> float:
        """The cost that the law gives."""
        return self.fixed + self.each * x


def fit(xs: Sequence[float], ys: Sequence[float]) -> Fit:
    """The constant or linear law whose distances from the points, as shares of them, have the smallest sum of squares.

    Neither part of a linear law is negative. It is taken only where its usual distance is less than half that of the constant,
    and by it the cost at least doubles over the sizes.

    Args:
        xs: sizes, at least one, ascending.
        ys: positive costs, one a size.

    Raises:
        ValueError: a cost is not positive.
    """
    x, y = np.array(xs, float), np.array(ys, float)
    if not (y > 0).all():
        raise ValueError(f"costs of {min(ys)}, expected more than 0")
    constant = _of(x, y, (1 / y).sum() / (1 / y**2).sum(), 0.0)
    if len(x) < 3:  # through two points goes every line
        return constant
    fixed, each = np.linalg.lstsq(np.stack([1 / y, x / y], axis=1), np.ones(len(x)), rcond=None)[0]
    if fixed < 0:
        fixed, each = 0.0, (x / y).sum() / ((x / y) ** 2).sum()
    linear = _of(x, y, float(fixed), float(each))
    is_linear = linear.usual < BETTER * constant.usual and linear.at(max(xs)) >= GROWN * linear.at(min(xs))
    return linear if is_linear else constant


def _of(x: NDArray[np.float64], y: NDArray[np.float64], fixed: float, each: float) -> Fit:
    away = (fixed + each * x) / y - 1
    return Fit(float(fixed), each, float(np.abs(away).max()), float(np.sqrt((away**2).mean())))
