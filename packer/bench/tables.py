"""The findings as tables of text and lines of facts, which the terminal and the page show alike."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from packer.bench.results import CACHES, LIMIT, ORDERS, PILLOW, THREADS, WORKS, Findings, Setting, Timing
from packer.words import size_text

__all__ = ["Table", "cold_sentence", "facts", "rate_text", "tables", "workers_text"]

_NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Table:
    """One table.

    Attributes:
        title: what it shows.
        columns: their names; the first is that of the rows.
        rows: cells, as many as there are columns.
        left: number of columns, from the first on, that hold words and not numbers.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1


def tables(findings: Findings) -> list[Table]:
    """All tables, in order."""
    found = [_packings(findings)]
    for work in WORKS:
        found += [table for cache in CACHES if (table := _rates(findings, work, cache)).rows]
    if (shares := _shares(findings)).rows:
        found.append(shares)
    return found


def facts(findings: Findings) -> list[tuple[str, str]]:
    """What a figure depends on: names and values."""
    sample, machine = findings.sample, findings.machine
    left_out = ", ".join(f"{count:,} {reason}" for reason, count in sample.left_out.items())
    lines = [
        ("measured", findings.source),
        (
            "sample",
            f"{sample.count:,} of {sample.total:,} {sample.content}, {size_text(sample.mean_bytes)} a file"
            + (f"; left out: {left_out}" if left_out else "")
            + ("; loose files are copies" if sample.copied else ""),
        ),
        ("decoded", f"to {findings.size[0]} × {findings.size[1]}" if sample.content == "pictures" else "to arrays"),
        ("batches", f"of {findings.batches['raw']}, decoded of {findings.batches['decoded']}; seed {findings.seed}"),
        ("cold", cold_sentence(findings)),
        ("machine", f"{machine['cpu']}, {machine['cpus']} CPUs, {size_text(int(machine['memory_bytes']))} memory"),
        ("disk", f"{machine['file_system']}, {machine['disk']}"),
        ("system", f"{machine['system']}, {machine['machine']}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in findings.versions.items())),
        ("took", f"{findings.seconds:.0f} s"),
    ]
    if not findings.has_torch:
        lines.append(("workers", "0 only: torch is not installed, whose DataLoader starts them (pip install 'packer[torch]')"))
    return lines + [("note", note) for note in findings.notes]


def cold_sentence(findings: Findings) -> str:
    """Whether cold was cold."""
    cache = findings.cache
    measured = any(timing.setting.cache == "cold" for timing in findings.timings)
    if cache.dropped:
        return f"pages were dropped before each run; at most {cache.most_cached:.1%} of those looked at were still in memory"
    if cache.dropped is None:
        return f"NOT CHECKED: pages were dropped before each run, but {cache.why}"
    return f"{'NOT COLD' if measured else 'NOT MEASURED'}: {cache.why}"


def rate_text(timing: Timing | None) -> str:
    """A median with its spread."""
    if timing is None:
        return _NOTHING
    return f"{timing.median:,.0f} ({timing.low:,.0f}–{timing.high:,.0f})"


def workers_text(count: int) -> str:
    """``0 workers``, ``1 worker``."""
    return f"{count} worker" if count == 1 else f"{count} workers"


def _packings(findings: Findings) -> Table:
    rows = []
    checked = findings.sample.checked_per_s
    for packing in findings.packings:
        rate = _NOTHING
        if packing.seconds:
            rates = [packing.samples / seconds for seconds in packing.seconds]
            rate = f"{median(rates):,.0f} ({min(rates):,.0f}–{max(rates):,.0f})"
        overhead = _NOTHING
        if packing.samples == findings.sample.count:
            payload = findings.sample.mean_bytes * packing.samples
            overhead = f"{packing.size_bytes / payload - 1:+.1%}"
        rows.append((packing.contender, packing.format, f"{packing.samples:,}", size_text(packing.size_bytes), overhead, rate))
    title = "Packing and size" + (f" (--check full judges {checked:,.0f} files/s)" if checked else "")
    columns = ("dataset", "format", "samples", "size", "more than the files", "files/s packed, unchecked (min–max)")
    return Table(title, columns, tuple(rows), left=2)


def _rates(findings: Findings, work: str, cache: str) -> Table:
    workers = findings.workers()
    rows = []
    for order in ORDERS:
        for contender in findings.contenders(work):
            found = [findings.find(contender, Setting(work, cache, order, count)) for count in workers]
            if any(found):
                rows.append((contender, order, *map(rate_text, found)))
    what = "Raw bytes" if work == "raw" else "Decoded batches"
    not_cold = " (see: cold)" if cache == "cold" and not findings.cache.dropped else ""
    title = f"{what}, {cache}{not_cold}: samples/s, median (min–max)"
    return Table(title, ("reader", "order", *map(workers_text, workers)), tuple(rows), left=2)


def _shares(findings: Findings) -> Table:
    """Of those who decode alike."""
    workers = findings.workers()
    rows = []
    for cache in CACHES:
        for contender in findings.contenders("decoded"):
            cells = []
            for count in workers:
                timing = findings.find(contender, Setting("decoded", cache, "shuffled", count))
                share = findings.decode_share(timing) if timing else None
                cells.append(_NOTHING if share is None else f"{share:.0%}")
            if contender not in (LIMIT, PILLOW, THREADS) and set(cells) != {_NOTHING}:
                rows.append((contender, cache, *cells))
    title = "Share of the time that decoding takes, shuffled"
    return Table(title, ("reader", "cache", *map(workers_text, workers)), tuple(rows), left=2)
