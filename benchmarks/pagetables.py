"""What the pages of results are made of: tables and lists in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from records import Row, show

# CPUs that others used on average.
BUSY = 0.25
NOT_TOLD = ("kind", "benchmark", "sizes", "peer_versions", "skipped", "limits")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def with_spread(row: Row | None) -> str:
    """Median, lowest and highest value of a row."""
    return f"{show(row.median)} ({row.spread})" if row else ""


def describe(setting: dict[str, object]) -> Iterator[str]:
    """How and where it was measured, as a list."""
    told = {"date": setting.get("date", "not written down"), **setting}
    for name, value in told.items():
        if name in NOT_TOLD:
            continue
        words = ", ".join(f"{key} {part}" for key, part in value.items()) if isinstance(value, dict) else str(value)
        if name == "cpus_used_by_others" and float(words) > BUSY:
            words += ": **the machine was busy**, so that ratios tell little where their spread is wide"
        yield f"* {name.replace('_', ' ')}: {words}\n"
