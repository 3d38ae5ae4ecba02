"""The JSON lines of the benchmarks, read back: a setting, and rows with all repetitions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any


class NoRecordsError(Exception):
    """A file does not hold what a benchmark writes."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measured thing.

    Attributes:
        part: of the benchmark; empty where it has only one.
        subject: what was measured.
        baseline: what it is compared with; empty for a figure that stands for itself.
        unit: of the values; ``ratio`` where there is a baseline.
        values: one a round: ratios to the baseline, or figures.
        more_is_better: whether a larger value is a better one.
        budget: for the median; None where there is none.
        rates: files/s of each round; empty for a figure.
        baseline_rates: the same of the baseline.
        at: for how many samples, shards, workers or ranks; None where that is not the question.
    """

    part: str
    subject: str
    baseline: str
    unit: str
    values: tuple[float, ...]
    more_is_better: bool
    budget: float | None
    rates: tuple[float, ...] = ()
    baseline_rates: tuple[float, ...] = ()
    at: int | None = None

    @property
    def name(self) -> str:
        """What was measured, for how many, and against what."""
        at = "" if self.at is None else f" at {self.at:,}"
        return f"{self.subject}{at}" + (f" against {self.baseline}" if self.baseline else "")

    @property
    def key(self) -> tuple[str, str]:
        """What names it in one file."""
        return self.part, self.name

    @property
    def median(self) -> float:
        """Of the values."""
        return median(self.values)

    @property
    def spread(self) -> str:
        """The lowest and the highest value."""
        return f"{show(min(self.values))}–{show(max(self.values))}"

    @property
    def is_met(self) -> bool | None:
        """Whether the median keeps the budget; None where there is none."""
        if self.budget is None:
            return None
        return self.median >= self.budget if self.more_is_better else self.median <= self.budget

    @property
    def verdict(self) -> str:
        """Whether the median keeps the budget, or by how much of the budget it misses it; empty where there is none."""
        if not self.budget or self.is_met is not False:
            return "met" if self.is_met else ""
        percent = 100 * abs(self.median - self.budget) / self.budget
        return f"**missed by {percent:.0f} %**" if percent >= 1 else "**missed by less than 1 %**"


@dataclass(frozen=True, slots=True)
class Records:
    """One run of a benchmark: how and where, and its rows."""

    setting: dict[str, Any]
    rows: list[Row]


def show(value: float) -> str:
    """A number with three digits that count, and all of those before the point."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def load(path: Path) -> Records:
    """Read a file that a benchmark wrote.

    Raises:
        NoRecordsError: it is not one.
    """
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if not lines or lines[0]["kind"] != "setting" or not lines[0]["benchmark"]:
            raise NoRecordsError(f"{path}: the first line is not the setting of a benchmark")
        return Records(lines[0], [_row(line) for line in lines[1:]])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NoRecordsError(f"{path}: not the JSON lines of a benchmark: {type(error).__name__}: {error}") from error


def _row(line: dict[str, Any]) -> Row:
    part = line.get("part", "")
    if line["kind"] == "figure":
        values = tuple(line["values"])
        return Row(part, line["what"], "", line["unit"], values, False, line["budget"], at=line.get("at"))
    rates, baseline_rates = (tuple(line["files"] / value for value in line[name]) for name in ("seconds", "baseline_seconds"))
    more = line["measure"] == "files/s"
    ratios = tuple(line["ratios"])
    return Row(part, line["subject"], line["baseline"], "ratio", ratios, more, line["budget"], rates, baseline_rates)
