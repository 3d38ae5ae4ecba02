"""Interleaved repetitions, ratios of paired times, and how they are printed and written down.

A benchmark is a list of contenders, one of them the baseline. They run in turn, in rounds of another order each, so that a slow
minute of the machine and the mark of who ran before fall on all of them, and each ratio is taken between two times of the same
round. Reported are the median of the ratios, the lowest and the highest, and in the JSON lines every time of every round.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from enum import Enum
from pathlib import Path
from random import Random
from statistics import median


class Measure(Enum):
    """What a ratio compares, and which side of the budget is good."""

    RATE = "files/s"
    """Rate of the subject over that of the baseline: at least the budget."""
    TIME = "seconds"
    """Time of the subject over that of the baseline: at most the budget."""


@dataclass(frozen=True, slots=True)
class Contender:
    """Something that is timed.

    Attributes:
        name: as the table shows it.
        run: does the work once, proves the result right outside the timed part, and returns the seconds of the
            timed part.
        budget: for the ratio to the baseline; None where there is none.
        setting_of: the name of what this is one setting of, which is compared at its best one; empty where it has no others.
    """

    name: str
    run: Callable[[], float]
    budget: float | None = None
    setting_of: str = ""


def settings_of(name: str, contenders: Sequence[Contender]) -> list[Contender]:
    """The contenders as several settings of one thing, such as numbers of workers."""
    return [replace(contender, setting_of=name) for contender in contenders]


@dataclass(frozen=True, slots=True)
class Result:
    """The times of one contender beside those of the baseline, round by round.

    Attributes:
        subject: name of the contender.
        baseline: name of what it is compared with.
        measure: what the ratio compares.
        budget: for the median of the ratios; None where there is none.
        files: number of files that each run treats.
        seconds: times of the contender, one a round.
        baseline_seconds: times of the baseline in the same rounds.
    """

    subject: str
    baseline: str
    measure: Measure
    budget: float | None
    files: int
    seconds: tuple[float, ...]
    baseline_seconds: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """One ratio a round, without a unit."""
        pairs = zip(self.seconds, self.baseline_seconds, strict=True)
        if self.measure is Measure.RATE:
            return [baseline / subject for subject, baseline in pairs]
        return [subject / baseline for subject, baseline in pairs]

    @property
    def ratio(self) -> float:
        """The median of the ratios."""
        return median(self.ratios)

    @property
    def is_met(self) -> bool | None:
        """Whether the median keeps the budget; None where there is no budget."""
        if self.budget is None:
            return None
        return self.ratio >= self.budget if self.measure is Measure.RATE else self.ratio <= self.budget


@dataclass(frozen=True, slots=True)
class Figure:
    """Something that is measured for itself, in several rounds.

    Attributes:
        what: is measured.
        unit: of the values.
        values: one a round.
        budget: the median is at most that; None where there is none.
        part: of the benchmark; empty where it has only one.
        at: for how many samples, shards, workers or ranks; None where the cost of none of them is asked for.
    """

    what: str
    unit: str
    values: tuple[float, ...]
    budget: float | None = None
    part: str = ""
    at: int | None = None

    @property
    def is_met(self) -> bool | None:
        """Whether the median keeps the budget; None where there is no budget."""
        return None if self.budget is None else median(self.values) <= self.budget


@dataclass(frozen=True, slots=True)
class Pair:
    """Two contenders to compare, by their names, where there is more than one baseline.

    Attributes:
        subject: the one whose ratio is taken.
        baseline: the one that it is compared with.
        budget: for the ratio; None where there is none.
    """

    subject: str
    baseline: str
    budget: float | None = None


def compare(baseline: Contender, subjects: Sequence[Contender], *, measure: Measure, files: int, repeat: int) -> list[Result]:
    """Run the baseline and the subjects, ``repeat`` rounds.

    Args:
        baseline: what the others are compared with.
        subjects: the others, in the order of the results.
        measure: what the ratios compare.
        files: number of files that each run treats.
        repeat: number of rounds, at least 1.
    """
    pairs = [Pair(subject.name, baseline.name, subject.budget) for subject in subjects]
    return compare_pairs([baseline, *subjects], pairs, measure=measure, files=files, repeat=repeat)


def compare_pairs(
    contenders: Sequence[Contender], pairs: Sequence[Pair], *, measure: Measure, files: int, repeat: int
) -> list[Result]:
    """Run all contenders, ``repeat`` rounds, and compare some of them with others. What was written is synced first.

    Each round has another order, the same in every run: who came after ``tar``, whose archive of a gigabyte had just been
    removed, took half as long again.

    Of several settings of one thing, the one with the shortest median stands for it in all rounds. The shortest of each round
    would be what nobody gets: of two equal settings whose times spread by a third, as here, it is 7 % shorter than either.

    Args:
        contenders: no two have the same name, and their own budgets are not looked at.
        pairs: what is compared with what, in the order of the results.
        measure: what the ratios compare.
        files: number of files that each run treats.
        repeat: number of rounds, at least 1.
    """
    os.sync()
    seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for turn in range(repeat):
        for contender in Random(turn).sample(contenders, len(contenders)):
            times = seconds[contender.name]
            times.append(contender.run())
            print(f"  round {turn + 1} of {repeat}: {contender.name}: {times[-1]:.3f} s", file=sys.stderr)
    for name in dict.fromkeys(contender.setting_of for contender in contenders if contender.setting_of):
        ways = [contender.name for contender in contenders if contender.setting_of == name]
        best = min(ways, key=lambda way: median(seconds[way]))
        seconds[name] = seconds[best]
        print(f"  {name}: best with {best}", file=sys.stderr)
    return [
        Result(
            pair.subject,
            pair.baseline,
            measure,
            pair.budget,
            files,
            tuple(seconds[pair.subject]),
            tuple(seconds[pair.baseline]),
        )
        for pair in pairs
    ]


def format_setting(setting: dict[str, object]) -> str:
    """How and where it was measured, a line for each part."""
    lines: list[str] = []
    for name, value in setting.items():
        words = ", ".join(f"{key} {part}" for key, part in value.items()) if isinstance(value, dict) else str(value)
        lines.append(f"{name}: {words}")
    return "\n".join(lines)


def format_table(results: Sequence[Result]) -> str:
    """The results as lines of text: ratio, spread, budget, and the medians that they come from."""
    rows: list[tuple[str, ...]] = [("what", "against", "ratio", "spread", "budget", "", "files/s", "against")]
    rows += [_format_row(result) for result in results]
    return _columns(rows)


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _format_row(result: Result) -> tuple[str, ...]:
    sign = "≥" if result.measure is Measure.RATE else "≤"
    return (
        result.subject,
        result.baseline,
        f"{result.ratio:.2f}",
        f"{min(result.ratios):.2f}–{max(result.ratios):.2f}",
        "" if result.budget is None else f"{sign} {result.budget:.2f}",
        {None: "", True: "met", False: "MISSED"}[result.is_met],
        f"{result.files / median(result.seconds):,.0f}",
        f"{result.files / median(result.baseline_seconds):,.0f}",
    )


def format_figures(figures: Sequence[Figure]) -> str:
    """Figures as lines of text: median, spread and budget."""
    rows: list[tuple[str, ...]] = [("what", "at", "median", "unit", "spread", "budget", "")]
    for figure in figures:
        rows.append(
            (
                figure.what,
                "" if figure.at is None else f"{figure.at:,}",
                f"{median(figure.values):,.2f}",
                figure.unit,
                f"{min(figure.values):,.2f}–{max(figure.values):,.2f}",
                "" if figure.budget is None else f"≤ {figure.budget:,.2f}",
                {None: "", True: "met", False: "MISSED"}[figure.is_met],
            )
        )
    return _columns(rows)


def write_json_lines(path: Path, setting: dict[str, object], rows: Mapping[str, Sequence[Result | Figure]]) -> None:
    """Write one JSON object a line: first when, how and where it was measured, then each row with all repetitions.

    Args:
        path: the file, replaced if it exists.
        setting: machine, versions and options; the date of today is added.
        rows: by part of the benchmark, which is empty where there is only one; a figure that names its part keeps it.
    """
    lines = [{"kind": "setting", "date": date.today().isoformat(), **setting}]
    lines += [_line(row, part) for part, found in rows.items() for row in found]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def _line(row: Result | Figure, part: str) -> dict[str, object]:
    values = asdict(row)
    if isinstance(row, Figure):
        return {"kind": "figure", **values, "part": row.part or part, "met": row.is_met}
    derived = {"measure": row.measure.value, "ratios": row.ratios, "ratio": row.ratio, "met": row.is_met}
    return {"kind": "result", "part": part, **values, **derived}
