"""Makes ``benchmarks/README.md`` and its plots from what the benchmarks wrote; neither is ever edited by hand.

    python benchmarks/report.py RESULTS.jsonl ... [--output DIR]

Every file is a section, in the order given: how and where it was measured, tables, and for each comparison a plot. Plots of
earlier reports are removed. The exit status is 2 where a file is not from a benchmark.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

from plots import draw_rates
from records import NoRecordsError, Records, Row, load, show

HEAD = """\
# Benchmarks

Each command makes its own data, proves what was read or written right in the same run, and prints ratios of times that were
measured in turn; `--json FILE` keeps every repetition. Figures depend on the machine: take the ratio.

| command | question |
| --- | --- |
| `packing.py` | how fast is packing beside strict decoding alone and `tar cf`, and checking beside Pillow's `load()` |
| `reading.py` | how fast are raw reads, array batches and decoded batches beside loose files, memory, Pillow and FFCV |
| `large_index.py` | what do opening, pickling and looking up cost with ten million samples |
| `scanning.py` | how fast is a scan of a million files beside `find`, and what memory does it take |
| `scaling.py` | what does packing cost a file, and in memory, from ten thousand to a million files |
| `peers.py` | the same work by packer and its peers |
| `damage.py` | what do checks find in damaged files |
| `compare.py OLD NEW` | what changed between two runs beyond noise |
| `report.py RESULTS ...` | makes this page, and the plots in `plots/` |

The rest of this page was made by `report.py`.
"""
SIZES = "pack"
# CPUs that others used on average.
BUSY = 0.25


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def with_spread(row: Row | None) -> str:
    """Median, lowest and highest value of a row."""
    return f"{show(row.median)} ({row.spread})" if row else ""


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


def budgets_table(rows: Sequence[Row]) -> str:
    """Rows with what they are compared with, or figures for themselves, and their budgets."""
    body: list[list[str]] = []
    for row in rows:
        sign = "≥" if row.more_is_better else "≤"
        budget = "" if row.budget is None else f"{sign} {show(row.budget)}"
        verdict = {None: "", True: "met", False: "**missed**"}[row.is_met]
        unit = "" if row.unit == "ratio" else row.unit
        body.append([row.subject, row.baseline, f"{show(row.median)} {unit}".strip(), row.spread, budget, verdict])
    return table(["what", "against", "median", "lowest–highest", "budget", ""], body)


def describe(setting: dict[str, object]) -> Iterator[str]:
    """How and where it was measured, as a list."""
    told = {"date": setting.get("date", "not written down"), **setting}
    for name, value in told.items():
        if name in ("kind", "benchmark", "sizes", "peer_versions", "skipped", "memory"):
            continue
        words = ", ".join(f"{key} {part}" for key, part in value.items()) if isinstance(value, dict) else str(value)
        if name == "cpus_used_by_others" and float(words) > BUSY:
            words += ": **the machine was busy**, so that ratios tell little where their spread is wide"
        yield f"* {name.replace('_', ' ')}: {words}\n"


def left_out(records: Records) -> Iterator[str]:
    """What did not take part, and why; reasons that many share are told once."""
    for part, reasons in records.setting.get("skipped", {}).items():
        names: dict[str, list[str]] = {}
        for name, reason in reasons.items():
            names.setdefault(reason, []).append(name)
        where = "" if part == "all" else f" ({part})"
        yield from (f"* Left out{where}: {', '.join(found)}: {reason}\n" for reason, found in names.items())


def section(records: Records, plots: Path) -> Iterator[str]:
    """The text of one results file; its plots are drawn."""
    kind = records.setting["benchmark"]
    yield f"\n## {kind}.py\n\n"
    yield from describe(records.setting)
    for part in dict.fromkeys(row.part for row in records.rows):
        rows = [row for row in records.rows if row.part == part]
        yield f"\n### {part[0].upper()}{part[1:]}\n\n" if part else "\n"
        yield peers_table(records, part, rows) if kind == "peers" else budgets_table(rows)
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
    text = HEAD + "".join(piece for records in found for piece in section(records, plots))
    (options.output / "README.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
