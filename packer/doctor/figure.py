"""What a watched loader did, as a picture, drawn by matplotlib, which only this module of the doctor knows."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

from packer.doctor.watch import Series, Watch

__all__ = ["draw_png", "draw_svg"]

# Of Okabe and Ito: told apart by all who see colours, and in grey by their lightness.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
_MOST_LINES = 40
_DPI = 130


def draw_png(watch: Watch, path: Path) -> None:
    """Write the picture to a PNG file.

    Raises:
        OSError: it cannot be written.
    """
    path.write_bytes(_drawn(watch, "png"))


def draw_svg(watch: Watch) -> str:
    """The picture as an ``<svg>`` element."""
    text = _drawn(watch, "svg").decode("utf-8")
    return text[text.index("<svg") :]


def _drawn(watch: Watch, kind: str) -> bytes:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    buffer = io.BytesIO()
    style: Any = {"font.size": 9, "font.family": "DejaVu Sans", "axes.edgecolor": "#999999"}
    with warnings.catch_warnings(), matplotlib.rc_context(style):
        warnings.simplefilter("ignore")  # a letter that the font does not have
        figure = Figure(figsize=(10, 8), layout="constrained")
        FigureCanvasAgg(figure)
        panels: Any = figure.subplots(3, 1, sharex=True)
        # What uses most is drawn where there are too many.
        shown = sorted(watch.series.values(), key=lambda one: -(one.last.private_bytes or 0))[:_MOST_LINES]
        for place, series in enumerate(shown):
            look: Any = {"label": f"{series.role} {series.last.pid}", "lw": 1.6 if series.role == "main" else 1.1}
            look |= {"color": "#333333" if series.role == "main" else _COLOURS[place % len(_COLOURS)]}
            for panel, values in zip(panels, _lines(series), strict=True):
                panel.plot(series.times, values, **look)
        for panel, label in zip(panels, ("private memory in MB", "CPUs used", "open files"), strict=True):
            panel.set_ylabel(label)
            panel.set_ylim(bottom=0)
            panel.grid(axis="y", color="#dddddd", lw=0.6)
        panels[-1].set_xlabel("seconds")
        if shown:
            panels[0].legend(loc="upper left", ncols=4, fontsize=7, frameon=False)
        metadata: Any = dict.fromkeys(("Date", "Creator", "Format", "Type")) if kind == "svg" else None
        figure.savefig(buffer, format=kind, dpi=_DPI, metadata=metadata)
    return buffer.getvalue()


def _lines(series: Series) -> tuple[list[float], list[float], list[float]]:
    nothing = float("nan")
    used = [nothing] + [
        (later.cpu_s - earlier.cpu_s) / max(1e-6, then - when)
        for earlier, later, when, then in zip(
            series.readings, series.readings[1:], series.times, series.times[1:], strict=False
        )
    ]
    private = [nothing if one.private_bytes is None else one.private_bytes / 1e6 for one in series.readings]
    files = [nothing if one.open_files is None else float(one.open_files) for one in series.readings]
    return private, used, files
