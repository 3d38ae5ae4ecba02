"""What changed between two runs of a benchmark, beyond noise.

    python benchmarks/compare.py OLD.jsonl NEW.jsonl

Compared are the ratios to the baseline of the same round where there is one, so that another load of the machine changes
little, and the figures themselves where there is none. A row has changed where the ranges of its repetitions lie apart; with
fewer than three on either side that says nothing, and it is called too few. What differs in machine, versions and options is
told first.

The exit status is 1 where something got worse (slower, or larger) beyond noise, and 2 where a file is not from a benchmark, or
the two are from different ones.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from records import NoRecordsError, Records, Row, load, show

FEWEST = 3


def verdict(old: Row, new: Row) -> str:
    """``better``, ``worse``, ``within noise``, or ``too few repetitions``."""
    if min(len(old.values), len(new.values)) < FEWEST:
        return "too few repetitions"
    if min(new.values) > max(old.values):
        return "better" if new.more_is_better else "worse"
    if max(new.values) < min(old.values):
        return "worse" if new.more_is_better else "better"
    return "within noise"


def differences(old: Any, new: Any, name: str = "") -> Iterator[str]:
    """What differs between two settings, a line for each value; how busy the machine was is always told."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            yield from differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)
    elif old != new or name == "cpus_used_by_others":
        yield f"{name}: {old} -> {new}"


def compare(old: Records, new: Records) -> tuple[list[str], bool]:
    """The lines to print, and whether something got worse beyond noise."""
    lines = [f"setting: {line}" for line in differences(old.setting, new.setting)]
    before = {row.key: row for row in old.rows}
    worse = False
    for row in new.rows:
        name = ", ".join(filter(None, row.key))
        if row.key not in before:
            lines.append(f"only in NEW: {name}")
            continue
        former = before.pop(row.key)
        found = verdict(former, row)
        worse = worse or found == "worse"
        change = f"x {row.median / former.median:.2f}" if former.median else "from 0"
        figures = f"{show(former.median)} ({former.spread}) -> {show(row.median)} ({row.spread}) {row.unit}"
        lines.append(f"{found + ':':<20} {name}: {change}, {figures}")
    lines += [f"only in OLD: {', '.join(filter(None, key))}" for key in before]
    return lines, worse


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description="Compare two runs of a benchmark.")
    parser.add_argument("old", type=Path, metavar="OLD", help="JSON lines of a run")
    parser.add_argument("new", type=Path, metavar="NEW", help="JSON lines of a later run")
    options = parser.parse_args(arguments)
    try:
        old, new = load(options.old), load(options.new)
    except NoRecordsError as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 2
    kinds = [records.setting["benchmark"] for records in (old, new)]
    if kinds[0] != kinds[1]:
        print(f"compare.py: {options.old} is from {kinds[0]}.py, {options.new} from {kinds[1]}.py", file=sys.stderr)
        return 2
    lines, worse = compare(old, new)
    print("\n".join(lines))
    return int(worse)


if __name__ == "__main__":
    sys.exit(main())
