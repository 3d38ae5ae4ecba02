"""Makes ``benchmarks/SCALE.md``: what ``growth.py`` measured, a law for each cost, and what the laws predict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fits import Fit, fit
from pagetables import describe, table, with_spread
from plots import Curve, draw_growth
from records import Records, Row, show

BAD = 0.25
MICROSECONDS = {"ms": 1e3, "µs": 1.0}
HEAD = """\
# How cost grows

What a packed dataset costs beside its payloads, as there are more samples, shards, workers and ranks. Datasets are synthetic
(`synthetic.py`); every look-up and every epoch was proved right in the run. Figures depend on the machine: take the law.

"""
ASSUMPTIONS = """
## What the laws assume

* A law is constant, or a fixed part and a part for each. The second is taken only where the points lie less than half as far
  off (root mean square), and the cost at least doubles over the sizes that were measured; what grows by less is taken for
  constant. Nothing else was tried. A law whose worst point is more than {bad:.0f} % off predicts nothing, and one from two
  points is always constant.
* The index, {record} bytes a sample, and the names stay in the page cache, once a machine: {tenth:.1f} GB of index for a
  hundred million samples, {record} GB for a billion. Opening reads and digests all of both; where they have to come from a
  disk, it takes as long as the disk does. Names have 10 bytes here, and longer ones make it longer in proportion.
* An index of at most {held} MiB, {held_samples:,} samples, is held in memory by every process; of a larger one each record is
  read when it is asked for. Arriving, looking up and memory have laws for the larger ones only.
* A manifest has at most {manifest} MiB, of which a shard of 1 GB takes {entry} bytes: about {shards:,} shards, less what the
  names of the classes take. Only webdataset has several shards.
* A process keeps at most {open} shards open. With more of them, nearly every random look-up opens one, and the law is for that.
* Keys in the containers have {digits} digits and sort up to {most:,} samples; LMDB ends there, and so do the predictions.
* Payloads are 136 bytes and in the page cache. To read and decode real ones comes on top, and costs each sample the same,
  however many there are, but for what the disk does.
* Workers are started on the CPUs named above; more workers than CPUs wait for one another, and take less on a larger machine.
* The files lie on the file system named above. On one that is far away, opening takes a round trip for each shard.
"""


@dataclass(frozen=True, slots=True)
class Part:
    """A table of the page.

    Attributes:
        name: of the part, in the results.
        each: what the second part of a law is told for.
        scale: how many that are.
        beyond: sizes that are predicted.
        plotted: costs that the plot shows, of this and other parts.
    """

    name: str
    each: str
    scale: int
    beyond: tuple[int, ...] = ()
    plotted: tuple[str, ...] = ()


PARTS = (
    Part(
        "samples",
        "a million samples",
        10**6,
        (10**8, 10**9),
        ("opening", "arriving in a worker, with the first look-up", "one look-up"),
    ),
    Part(
        "shards",
        "a thousand shards",
        10**3,
        (10**5,),
        ("opening", "arriving in a worker, with the first look-up", "one look-up"),
    ),
    Part("samples of an epoch", "a million samples", 10**6),
    Part("workers", "a worker", 1),
    Part("ranks", "a rank", 1),
)


def least(row: Row, limits: dict[str, int]) -> int:
    """The smallest size that the law of a cost holds for: below, packer does something else."""
    if row.part == "samples" and row.subject not in ("opening", "pickle"):
        return limits["held_index_bytes"] // limits["index_bytes_a_sample"]
    if row.part == "shards" and row.subject == "one look-up":
        return limits["open_shards"] + 1
    return 1 if row.part == "workers" else 0


def law(rows: Sequence[Row], limits: dict[str, int]) -> Fit | None:
    """The law of one cost; None where it was measured for no size that the law holds for, or was 0."""
    held = [row for row in rows if (row.at or 0) >= least(row, limits)]
    if not held or min(row.median for row in held) <= 0:
        return None
    return fit([float(row.at or 0) for row in held], [row.median for row in held])


def scale_page(records: Records, plots: Path) -> str:
    """The page; its plots are drawn.

    Args:
        records: of ``growth.py``.
        plots: an existing folder.
    """
    pieces = [HEAD, *describe(records.setting)]
    for part in PARTS:
        pieces += _part(part, records, plots)
    return "".join([*pieces, _assumptions(records.setting["limits"])])


def _part(part: Part, records: Records, plots: Path) -> Iterator[str]:
    limits = records.setting["limits"]
    costs: dict[str, list[Row]] = {}
    for row in records.rows:
        if row.part == part.name:
            costs.setdefault(row.subject, []).append(row)
    if not costs:
        return
    sizes = sorted({row.at or 0 for rows in costs.values() for row in rows})
    yield f"\n## By {part.name}\n\nMedian (lowest–highest):\n\n"
    yield table(["", *(f"{size:,}" for size in sizes)], (_measured(name, rows, sizes) for name, rows in costs.items()))
    laws = {name: law(rows, limits) for name, rows in costs.items()}
    yield "\nThe law, how far the worst measured point lies from it, and what it predicts:\n\n"
    header = ["", "law", "holds from", "worst", *(f"{size:,} {part.name}" for size in part.beyond)]
    yield table(header, (_predicted(part, rows, laws[name], limits) for name, rows in costs.items()))
    if part.plotted:
        curves = [_curve(part, costs[name], laws[name], limits) for name in part.plotted if name in costs]
        draw_growth(plots / f"growth-{part.name}.svg", f"By {part.name}", part.name, curves)
        yield f"\n![costs by {part.name}](plots/growth-{part.name}.svg)\n"


def _measured(name: str, rows: Sequence[Row], sizes: Sequence[int]) -> list[str]:
    by_size = {row.at: row for row in rows}
    cells = [with_spread(by_size.get(size)) if size in by_size else "" for size in sizes]
    return [f"{name}, {rows[0].unit}", *cells]


def _predicted(part: Part, rows: Sequence[Row], found: Fit | None, limits: dict[str, int]) -> list[str]:
    unit = rows[0].unit
    name = f"{rows[0].subject}, {unit}"
    if not found:
        return [name, "none: not measured where one holds", *[""] * (2 + len(part.beyond))]
    words = f"{show(found.fixed)}"
    words += f" + {show(part.scale * found.each)} {part.each}" if found.each else ""
    worst = f"{100 * found.worst:.0f} %" + (", **fits badly**" if found.worst > BAD else "")
    first = min(row.at or 0 for row in rows if (row.at or 0) >= least(rows[0], limits))
    told = [f"{show(found.at(size))} {unit}" if found.worst <= BAD else "not told" for size in part.beyond]
    return [name, words, f"{first:,}", worst, *told]


def _curve(part: Part, rows: Sequence[Row], found: Fit | None, limits: dict[str, int]) -> Curve:
    factor = MICROSECONDS[rows[0].unit]
    points = {row.at or 0: [factor * value for value in row.values] for row in rows}
    scaled = replace(found, fixed=factor * found.fixed, each=factor * found.each) if found and found.worst <= BAD else None
    first = max(least(rows[0], limits), min(points))
    return Curve(rows[0].subject, points, scaled, first, max(*points, *part.beyond))


def _assumptions(limits: dict[str, int]) -> str:
    record, held = limits["index_bytes_a_sample"], limits["held_index_bytes"]
    return ASSUMPTIONS.format(
        bad=100 * BAD,
        record=record,
        tenth=record / 10,
        held=held >> 20,
        held_samples=held // record,
        manifest=limits["manifest_bytes"] >> 20,
        entry=limits["manifest_bytes_a_shard"],
        shards=limits["manifest_bytes"] // limits["manifest_bytes_a_shard"],
        open=limits["open_shards"],
        digits=limits["key_digits"],
        most=10 ** limits["key_digits"],
    )
