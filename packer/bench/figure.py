"""The findings as a picture, drawn by matplotlib, which only this module knows."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer.bench.results import CACHES, LIMIT, LOOSE, ORDERS, THREADS, WORKS, Findings, Setting
from packer.bench.tables import facts, workers_text
from packer.errors import OptionError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_png", "draw_svg", "require_matplotlib"]

# Of Okabe and Ito: told apart by all who see colours, and in grey by their lightness.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442")
_OWN = {LOOSE: "#7a7a7a", LIMIT: "#ffffff", THREADS: "#1b3a4b"}
_OTHERS = "#c4c4c4"
_TEXT = "#333333"
_DPI = 130
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


def require_matplotlib() -> None:
    """Refuse to begin what could not be drawn in the end.

    Raises:
        OptionError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise OptionError(f"plots need matplotlib ({error}): pip install 'packer[bench]'") from None


def draw_png(findings: Findings, path: Path) -> None:
    """Write the picture to a PNG file.

    Raises:
        OSError: it cannot be written.
    """
    buffer = io.BytesIO()
    _save(findings, buffer, "png")
    path.write_bytes(buffer.getvalue())


def draw_svg(findings: Findings) -> str:
    """The picture as an ``<svg>`` element."""
    buffer = io.BytesIO()
    _save(findings, buffer, "svg")
    text = buffer.getvalue().decode("utf-8")
    return text[text.index("<svg") :]


def _save(findings: Findings, buffer: io.BytesIO, kind: str) -> None:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style: Any = {"svg.hashsalt": "packer", "font.size": 9, "font.family": "DejaVu Sans", "axes.edgecolor": "#999999"}
    style |= {"text.color": _TEXT, "axes.labelcolor": _TEXT, "xtick.color": _TEXT, "ytick.color": _TEXT}
    # A letter that the font does not have is drawn as a box, and warned about.
    with warnings.catch_warnings(), matplotlib.rc_context(style):
        warnings.simplefilter("ignore")
        caches = [cache for cache in CACHES if any(timing.setting.cache == cache for timing in findings.timings)]
        parts = [
            (work, order)
            for work in WORKS
            for order in ORDERS
            if any((timing.setting.work, timing.setting.order) == (work, order) for timing in findings.timings)
        ]
        rows = len(parts) + 1
        figure = Figure(figsize=(11, 2.5 * rows + 0.8), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.add_gridspec(rows, 2)
        for row, (work, order) in enumerate(parts):
            for column, cache in enumerate(caches):
                place = grid[row, column] if len(caches) > 1 else grid[row, :]
                _draw_rates(figure.add_subplot(place), findings, (work, cache, order))
        _draw_packings(figure.add_subplot(grid[rows - 1, 0]), findings, "size in MB")
        _draw_packings(figure.add_subplot(grid[rows - 1, 1]), findings, "files/s packed, unchecked")
        colours = _colours(findings)
        handles = [matplotlib.patches.Patch(facecolor=colour, edgecolor="#555555", lw=0.6) for colour in colours.values()]
        legend = figure.legend(handles, list(colours), loc="outside upper center", ncols=min(6, len(colours)), frameon=False)
        for text in legend.get_texts():
            text.set_parse_math(False)  # a dollar in a name is no formula
        told = dict(facts(findings))
        caption = "\n".join(f"{name}: {told[name]}" for name in ("measured", "sample", "cold", "machine", "disk"))
        figure.supxlabel(caption, fontsize=8, x=0.01, ha="left", parse_math=False)
        figure.savefig(buffer, format=kind, dpi=_DPI, metadata=_NO_METADATA if kind == "svg" else None)


def _colours(findings: Findings) -> dict[str, str]:
    """Of each contender, the same in all parts."""
    names = list(dict.fromkeys([*findings.contenders("raw"), *findings.contenders("decoded")]))
    packed = [packing.contender for packing in findings.packings]
    colours = {name: _COLOURS[place % len(_COLOURS)] for place, name in enumerate(packed)}
    plain = {name: _OWN.get(name, _OTHERS) for name in names if name not in colours}
    first = [name for name in plain if name != LIMIT]
    return {name: plain[name] for name in first} | colours | ({LIMIT: plain[LIMIT]} if LIMIT in plain else {})


def _draw_rates(axes: Axes, findings: Findings, what: tuple[str, str, str]) -> None:
    """Bars of the medians, one group for each number of workers, with lines from the least to the largest."""
    work, cache, order = what
    workers, colours = findings.workers(), _colours(findings)
    here = [name for name in colours if any(findings.find(name, Setting(*what, count)) for count in workers)]
    width = 0.82 / max(1, len(here))
    for place, name in enumerate(here):
        for group, count in enumerate(workers):
            timing = findings.find(name, Setting(*what, count))
            if timing is None:
                continue
            spread: Any = [[timing.median - timing.low], [timing.high - timing.median]]
            axes.bar(
                group - 0.41 + (place + 0.5) * width,
                timing.median,
                width * 0.92,
                yerr=spread,
                color=colours[name],
                edgecolor="#555555",
                linewidth=0.6,
                error_kw={"lw": 0.9, "capsize": 2, "ecolor": "#222222"},
            )
    what_text = "raw bytes" if work == "raw" else "decoded batches"
    doubt = " (see: cold)" if cache == "cold" and not findings.cache.dropped else ""
    axes.set_title(f"{what_text}, {order}, {cache}{doubt}", fontsize=10, loc="left")
    axes.set_xticks(range(len(workers)), list(map(workers_text, workers)))
    axes.set_xlim(-0.5, len(workers) - 0.5)
    axes.set_ylabel("samples/s")
    _quiet(axes)


def _draw_packings(axes: Axes, findings: Findings, what: str) -> None:
    colours = _colours(findings)
    for place, packing in enumerate(findings.packings):
        colour = colours.get(packing.contender, _OTHERS)
        if what.startswith("size"):
            axes.bar(place, packing.size_bytes / 1e6, 0.6, color=colour, edgecolor="#555555", linewidth=0.6)
        elif packing.seconds:
            rates = sorted(packing.samples / seconds for seconds in packing.seconds)
            middle = rates[len(rates) // 2]
            spread: Any = [[middle - rates[0]], [rates[-1] - middle]]
            axes.bar(
                place,
                middle,
                0.6,
                yerr=spread,
                color=colour,
                edgecolor="#555555",
                linewidth=0.6,
                error_kw={"lw": 0.9, "capsize": 2},
            )
    axes.set_title(what, fontsize=10, loc="left")
    axes.set_xlim(-0.6, len(findings.packings) - 0.4)
    axes.set_xticks(range(len(findings.packings)), [packing.contender for packing in findings.packings])
    for label in axes.get_xticklabels():
        label.set_parse_math(False)
    if not any(packing.seconds for packing in findings.packings) and not what.startswith("size"):
        axes.text(0.5, 0.5, "packed before", transform=axes.transAxes, ha="center")
    _quiet(axes)


def _quiet(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 10 or not value else f"{value:g}")
