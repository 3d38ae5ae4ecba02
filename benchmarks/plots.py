"""Plots of rates and of growing costs, with their spread, as SVG files that are the same for the same figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import matplotlib as mpl
from fits import Fit
from records import show

BAR_INCHES = 0.28
OURS, OTHERS = "#0b6e4f", "#9aa5b1"


@dataclass(frozen=True, slots=True)
class Curve:
    """A cost that grows.

    Attributes:
        name: as the legend shows it.
        points: values in microseconds of every round, by size.
        law: None where none fits.
        law_from, law_to: the sizes that the law is drawn for.
    """

    name: str
    points: Mapping[int, Sequence[float]]
    law: Fit | None
    law_from: int
    law_to: int


def draw_rates(path: Path, title: str, rates: Mapping[str, Sequence[float]]) -> None:
    """Draw one bar for each name: the median, and a line from the lowest to the highest.

    Args:
        path: of the SVG file, replaced if it exists.
        title: of the plot.
        rates: files/s of every round by name; the fastest is drawn at the top.
    """
    from matplotlib.figure import Figure

    names = sorted(rates, key=lambda name: median(rates[name]))
    middles = [median(rates[name]) for name in names]
    below = [middle - min(rates[name]) for name, middle in zip(names, middles, strict=True)]
    above = [max(rates[name]) - middle for name, middle in zip(names, middles, strict=True)]
    with _style():
        figure = Figure(figsize=(8, 0.9 + BAR_INCHES * len(names)), layout="constrained")
        axes = figure.add_subplot()
        colours = [OURS if name.startswith(("packer", "pack ")) else OTHERS for name in names]
        axes.barh(names, middles, xerr=[below, above], color=colours, error_kw={"elinewidth": 1, "capsize": 2})
        for number, (name, middle) in enumerate(zip(names, middles, strict=True)):
            axes.annotate(f" {show(middle)}", (max(rates[name]), number), va="center", fontsize=8)
        axes.set_title(f"{title}: files/s, median, lowest and highest")
        axes.margins(x=0.12, y=0.02)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, format="svg", metadata={"Date": None})


def draw_growth(path: Path, title: str, size: str, curves: Sequence[Curve]) -> None:
    """Draw costs over sizes on logarithmic axes: medians with lowest and highest, and dashed the laws.

    Args:
        path: of the SVG file, replaced if it exists.
        title: of the plot.
        size: what there is more and more of.
        curves: what grows.
    """
    from matplotlib.figure import Figure

    with _style():
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.add_subplot()
        for number, curve in enumerate(curves):
            sizes = sorted(curve.points)
            middles = [median(curve.points[at]) for at in sizes]
            below = [middle - min(curve.points[at]) for at, middle in zip(sizes, middles, strict=True)]
            above = [max(curve.points[at]) - middle for at, middle in zip(sizes, middles, strict=True)]
            colour = f"C{number}"
            axes.errorbar(sizes, middles, [below, above], fmt="o", markersize=4, capsize=2, color=colour, label=curve.name)
            if curve.law:
                steps = 40
                ends = (max(1, curve.law_from), curve.law_to)
                line = [ends[0] * (ends[1] / ends[0]) ** (step / steps) for step in range(steps + 1)]
                axes.plot(line, [curve.law.at(at) for at in line], "--", linewidth=1, color=colour)
        axes.set(xscale="log", yscale="log", xlabel=size, ylabel="µs", title=f"{title}: measured, and the law (dashed)")
        axes.legend(fontsize=8, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _style() -> AbstractContextManager[None]:
    return mpl.rc_context({"svg.hashsalt": "packer", "svg.fonttype": "none", "font.size": 9})
