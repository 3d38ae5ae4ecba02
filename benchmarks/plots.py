"""Plots of rates, with their spread, as SVG files that are the same for the same figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import matplotlib as mpl
from records import show

BAR_INCHES = 0.28
OURS, OTHERS = "#0b6e4f", "#9aa5b1"


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
    with mpl.rc_context({"svg.hashsalt": "packer", "svg.fonttype": "none", "font.size": 9}):
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
