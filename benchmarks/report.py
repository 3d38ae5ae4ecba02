"""Makes ``benchmarks/README.md`` and its plots from what the benchmarks wrote; neither is ever edited by hand.

    python benchmarks/report.py RESULTS.jsonl ... [--output DIR]

First stand all budgets, with the reason for each that is missed (``reasons.py``). Then every file is a section, in one order
whatever that of the arguments: how and where it was measured, tables, and for each comparison a plot. The results of
``growth.py`` become a page of their own, ``SCALE.md``. Plots of earlier reports are removed. The exit status is 2 where a file
is not from a benchmark.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from pagetables import describe, table, with_spread
from plots import draw_rates
from reasons import reason
from records import NoRecordsError, Records, Row, load, show
from scalepage import scale_page

COMMANDS = {
    "packing": "how fast is packing beside strict decoding alone and `tar cf`, and checking beside Pillow's `load()`",
    "reading": "how fast are raw reads, array batches and decoded batches beside loose files, memory, Pillow and FFCV",
    "overhead": "what do surviving deaths, hearing the workers and telling numbers cost a loader with workers",
    "large_index": "what do opening, pickling and looking up cost with ten million samples",
    "scanning": "how fast is a scan of a million files beside `find`, and what memory does it take",
    "scaling": "what does packing cost a file, and in memory, from ten thousand to a million files",
    "growth": "how does what a dataset costs grow with samples, shards, workers and ranks",
    "peers": "the same work by packer and its peers",
    "damage": "what do checks find in damaged files",
}
"""The question of each benchmark, in the order of the page."""
WITHOUT_BUDGETS = ("growth", "peers", "damage")
HEAD = """\
# Benchmarks

Each command makes its own data, proves what was read or written right in the same run, and prints ratios of times that were
measured in turn; `--json FILE` keeps every repetition. Figures depend on the machine: take the ratio.

"""
TOOLS = {
    "everything.py": "runs all of them but `damage.py` one after the other, and makes this page",
    "compare.py OLD NEW": "what changed between two runs beyond noise",
    "report.py RESULTS ...": "makes this page, and the plots in `plots/`",
}
TAIL = """
The rest of this page was made by `report.py`.
"""
SIZES = "pack"


def commands() -> str:
    """The commands and what they answer."""
    told = {f"{name}.py": question for name, question in COMMANDS.items()} | TOOLS
    return table(["command", "question"], ([f"`{name}`", question] for name, question in told.items()))


def rates_of(rows: Sequence[Row]) -> dict[str, tuple[float, ...]]:
    """Files/s of everything that was compared, the fastest first."""
    rates = {row.baseline: row.baseline_rates for row in rows} | {row.subject: row.rates for row in rows}
    return dict(sorted(rates.items(), key=lambda item: -median(item[1])))


def peers_table(records: Records, part: str, rows: Sequence[Row]) -> str:
    """All peers of one part, beside each baseline."""
    baselines = list(dict.fromkeys(row.baseline for row in rows))
    by_key = {(row.subject, row.baseline): row for row in rows}
    sizes = records.setting["sizes"] if part == SIZES else {}
    header = [
        "",
        "files/s",
        *(f"ratio to {name} (lowest–highest)" for name in baselines),
        *(["MB on the disk"] if sizes else []),
    ]
    body: list[list[str]] = []
    for name, rates in rates_of(rows).items():
        ratios = ["1" if name == baseline else with_spread(by_key.get((name, baseline))) for baseline in baselines]
        body.append([name, show(median(rates)), *ratios, *([show(sizes[name] / 1e6)] if sizes else [])])
    return table(header, body)


def budget_cells(row: Row) -> list[str]:
    """Median, spread, budget and verdict of a row."""
    sign = "≥" if row.more_is_better else "≤"
    budget = "" if row.budget is None else f"{sign} {show(row.budget)}"
    unit = "" if row.unit == "ratio" else row.unit
    return [f"{show(row.median)} {unit}".strip(), row.spread, budget, row.verdict]


def rows_table(rows: Sequence[Row]) -> str:
    """Rows with what they are compared with, or figures for themselves, and their budgets."""
    header = ["what", "against", "median", "lowest–highest", "budget", ""]
    return table(header, ([row.subject, row.baseline, *budget_cells(row)] for row in rows))


def budgets(found: Sequence[Records]) -> Iterator[str]:
    """Everything that has a budget, and why some of it is missed."""
    rows = [(str(records.setting["benchmark"]), row) for records in found for row in records.rows if row.budget is not None]
    if not rows:
        return
    missed: dict[str, list[str]] = {}
    for benchmark, row in rows:
        if row.is_met is False:
            missed.setdefault(reason(benchmark, row), []).append(row.name)
    count = sum(map(len, missed.values()))
    yield f"\n## Budgets\n\n{len(rows) - count} of {len(rows)} are met.\n\n"
    there = {records.setting["benchmark"] for records in found}
    if without := [f"`{name}.py`" for name in COMMANDS if name not in there and name not in WITHOUT_BUDGETS]:
        yield f"No results are kept of {', '.join(without)}, and nothing is told of their budgets.\n\n"
    header = ["", "what", "against", "median", "lowest–highest", "budget", ""]
    yield table(header, ([name, row.subject, row.baseline, *budget_cells(row)] for name, row in rows))
    if missed:
        yield "\nWhy some are missed (figures of other runs on the same machine):\n\n"
        yield from (f"* {'; '.join(names)}: {text}\n" for text, names in missed.items())


def left_out(records: Records) -> Iterator[str]:
    """What did not take part, and why; reasons that many share are told once."""
    for part, reasons in records.setting.get("skipped", {}).items():
        names: dict[str, list[str]] = {}
        for name, text in reasons.items():
            names.setdefault(text, []).append(name)
        where = "" if part == "all" else f" ({part})"
        yield from (f"* Left out{where}: {', '.join(found)}: {text}\n" for text, found in names.items())


def section(records: Records, plots: Path) -> Iterator[str]:
    """The text of one results file; its plots are drawn."""
    kind = records.setting["benchmark"]
    yield f"\n## {kind}.py\n\n"
    yield from describe(records.setting)
    for part in dict.fromkeys(row.part for row in records.rows):
        rows = [row for row in records.rows if row.part == part]
        yield f"\n### {part[0].upper()}{part[1:]}\n\n" if part else "\n"
        yield peers_table(records, part, rows) if kind == "peers" else rows_table(rows)
        compared = [row for row in rows if row.rates]
        if compared:
            name = "-".join(filter(None, [kind, re.sub(r"[^a-z0-9]+", "-", part.lower())])) + ".svg"
            draw_rates(plots / name, part or kind, rates_of(compared))
            yield f"\n![{part or kind}: files/s](plots/{name})\n"
    reasons = list(left_out(records))
    if reasons:
        yield "\n"
        yield from reasons
    if versions := records.setting.get("peer_versions"):
        yield "\n"
        told = ([name, ", ".join(f"{key} {value}" for key, value in found.items())] for name, found in versions.items())
        yield table(["peer", "versions"], told)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description="Make the page of the benchmarks.")
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULTS", help="JSON lines of a benchmark")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder of README.md (default: this one)")
    options = parser.parse_args(arguments)
    try:
        found = [load(path) for path in options.results]
    except NoRecordsError as error:
        print(f"report.py: {error}", file=sys.stderr)
        return 2
    plots = options.output / "plots"
    plots.mkdir(exist_ok=True)
    for old in plots.glob("*.svg"):
        old.unlink()
    order = list(COMMANDS)
    found.sort(key=lambda records: order.index(kind) if (kind := records.setting["benchmark"]) in order else len(order))
    scale = [records for records in found if records.setting["benchmark"] == "growth"]
    for records in scale:
        (options.output / "SCALE.md").write_text(scale_page(records, plots), encoding="utf-8")
    text = HEAD + commands() + TAIL + "".join(budgets(found))
    text += "\nWhat `growth.py` found has [a page of its own](SCALE.md).\n" if scale else ""
    text += "".join(piece for records in found if records not in scale for piece in section(records, plots))
    (options.output / "README.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
