"""What a watched loader did, as one HTML page that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from packer.doctor.figure import draw_svg
from packer.doctor.watch import Watch
from packer.doctor.watchtable import COLUMNS, rows_of

__all__ = ["make_page"]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff }
body { max-width: 1000px; margin: 2em auto; padding: 0 1em } svg { width: 100%; height: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums } dd { margin: 0 0 .4em 1.5em }
th, td { padding: .25em .9em .25em 0; text-align: right; border-bottom: 1px solid #ddd; overflow-wrap: anywhere }
"""


def make_page(watch: Watch, title: str) -> str:
    """The page: findings, picture, table. Everything that comes from the machine is escaped."""
    found = "".join(
        f"<dt><b>{_text(one.weight)}</b>: {_text(one.title)}</dt>\n"
        + "".join(f"<dd>{_text(line)}</dd>\n" for line in (*one.evidence, one.cure, one.source))
        for one in watch.findings()
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{_text(title)}</h1>\n"
        f"<dl>\n{found or '<dt>nothing of weight found</dt>'}</dl>\n"
        f'<div role="img" aria-label="Private memory, CPUs and open files over time">{draw_svg(watch)}</div>\n'
        f"<table>\n<thead>{_row('th', COLUMNS)}</thead>\n<tbody>\n"
        + "".join(_row("td", row) for row in rows_of(watch, ended=True))
        + "</tbody>\n</table>\n</body>\n</html>\n"
    )


def _row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{_text(cell)}</{tag}>' for cell in cells)}</tr>\n"


def _text(value: str) -> str:
    return escape(value.encode("utf-8", "backslashreplace").decode("utf-8"))
