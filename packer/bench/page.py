"""The findings as one HTML page that needs no network: advice, facts, picture, and all numbers as tables."""

from __future__ import annotations

from html import escape

from packer.bench.advice import advise
from packer.bench.figure import draw_svg
from packer.bench.results import Findings
from packer.bench.tables import Table, facts, tables

__all__ = ["make_page"]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff }
body { max-width: 1100px; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.5em; overflow-wrap: anywhere } h2 { font-size: 1.1em; margin: 2em 0 .5em }
.advice { background: #eef4fa; border-left: 4px solid #0072B2; padding: .8em 1.2em }
.wide { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap }
th, td { padding: .25em .9em .25em 0; text-align: right; border-bottom: 1px solid #ddd } th { font-weight: 600 }
.word { text-align: left } dl { display: grid; grid-template-columns: max-content 1fr; gap: .2em 1.2em; font-size: .93em }
dt { color: #666 } dd { margin: 0; overflow-wrap: anywhere } svg { width: 100%; height: auto }
"""


def make_page(findings: Findings) -> str:
    """The page; everything that comes from files or the machine is escaped."""
    lines = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>\n" for name, value in facts(findings))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>pack bench: {_text(findings.source)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>pack bench: {_text(findings.source)}</h1>\n"
        f'<p class="advice">{_text(advise(findings))}</p>\n'
        f"<dl>\n{lines}</dl>\n"
        f'<div role="img" aria-label="Bars of the numbers in the tables below">{draw_svg(findings)}</div>\n'
        + "".join(map(_table, tables(findings)))
        + "</body>\n</html>\n"
    )


def _table(table: Table) -> str:
    head = "".join(_cell("th", name, place, table.left) for place, name in enumerate(table.columns))
    body = "".join(
        f"<tr>{''.join(_cell('td', value, place, table.left) for place, value in enumerate(row))}</tr>\n" for row in table.rows
    )
    return (
        f'<h2>{_text(table.title)}</h2>\n<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}</tbody>\n</table></div>\n"
    )


def _cell(tag: str, value: str, place: int, left: int) -> str:
    style = ' class="word"' if place < left else ""
    return f"<{tag}{style}>{_text(value)}</{tag}>"


def _text(value: str) -> str:
    return escape(value.encode("utf-8", "backslashreplace").decode("utf-8"))
