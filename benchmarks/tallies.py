"""Counts of a damage campaign, and the page that shows them."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from decoders import KNOWN, OPTIONAL
from machine import describe_versions
from mutants import DAMAGE
from opinions import Look

_DISTRIBUTIONS = {
    "Pillow": "pillow", "simplejpeg": "simplejpeg", "numpy": "numpy", "OpenCV": "opencv-python-headless",
    "imagecodecs": "imagecodecs", "tifffile": "tifffile",
}  # fmt: skip

_WIDTH = 124  # of a line of the page

WARNINGS = frozenset({"trailing_bytes", "bad_metadata"})
"""Codes of warnings that are about damage."""

_HEADS = {
    "cut": "cut", "flipped bit": "bit flipped", "zeroed sector": "512 zeroed", "zeroed page": "4,096 zeroed",
    "splice": "other file's bytes", "doubled": "range doubled", "removed": "range removed", "filled": "0xff filled in",
}  # fmt: skip

_INTRODUCTION = """\
# What the check sees, and what it cannot

`pack` looks at every file before it goes in. This page tells what that is worth: valid files of every format are damaged at
random, thousands of times, and judged as `pack` judges them. Whatever is kept is decoded and compared with the original.

{summary}

## What no check can see

A check sees only the damaged file, and not the one that it once was. It can compare what the file says of itself: its
lengths, its checksums, the end of its data. **Where a format carries nothing of the kind, damaged bytes are bytes like any
others, and the picture that they give is a valid one, only another than yours.**

* **PNG** carries a checksum for every chunk, and **deflate in TIFF** one for every strip or tile: whatever happens to the
  pixels is seen.
* **Raw pixels and elements** (`.npy`, BMP, raw TIFF): every value is a valid value. What is missing or too much shows by the
  length; a value that was replaced does not.
* **JPEG**: nearly every sequence of bits is a picture. Most damage throws the decoder out of step, and it then finds too
  little or too much data; a flipped bit after which it falls into step again is not seen. Restart markers make more of it
  visible.
* **LZW (GIF, TIFF), run lengths (BMP, TIFF), Group 4 (TIFF)** carry no checksum either: damage shows where a code cannot be, or
  where a row or the picture then ends too early or too late.
* **WebP and AVIF**: every sequence of bits is a picture to their decoders. But after damage the decoder nearly always arrives
  with data left over, and that is seen; not where it falls into step again, as it does in lossless WebP and its alpha, nor in
  any but the first and the last picture of an AVIF animation, nor in any but the last tile of a large AVIF picture.

For files that matter, make a list of checksums while they are known to be good, and give it to `pack`; then every flipped bit
of every format is seen:

```
find images -type f -print0 | xargs -0 sha256sum > SHA256SUMS
pack images --checksums SHA256SUMS
```

Many datasets come with such a list, or with one checksum of an archive; comparing that before it is unpacked is worth as much.

## By format and kind of damage

Each cell is percent of the mutants: **skipped · kept, with the pixels of the original · kept, with other pixels**. Equal
pixels are damage to what is no pixel (a comment, a tail, an unused colour). Other pixels are what nothing in the file
tells, as above, or what a warning is about; of animations all pictures are compared. `<1` is more than none. The last
column is what Pillow's `load()` lets through, the usual check in scripts: percent of all mutants **with equal · with other
pixels** (first picture; for `.npy` it is `numpy.load`). Shares of a single kind are of a few dozen mutants each; those of a
whole row are of some hundred.
"""

_METHOD = """
## How it was made

    {command}

{mutants:,} mutants of each format from the seed {seed}, from photographs of about 300 × 200 pixels and small arrays,
several of each variant. A cut is at any byte; zeroed blocks are aligned, as lost sectors and pages of a file system are;
the other ranges are 1 byte to half of the file. Bytes of another file come from the same place of a sibling, from anywhere
in it, or from a file of any format. The same seed gives the same mutants.

Where pixels were others, these decoders were asked whether they notice anything, be it an error, a warning or a line on
standard error: {decoders}.
**If one does, and the check gave no warning, it is at fault, and the command fails and keeps the file** (`--keep DIR`).
So it is with a worker of the check that dies, hangs or takes more than 1 GB; the most that one took was {peak} MB.
Of MPO files the first picture is compared, which is the one that is read; damage to the others must give a warning.
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that must not be.

    Attributes:
        name: of the mutant, or of the valid file.
        kind: of damage.
        start: the first damaged byte, -1 for a valid file.
        what: ``noticed``, ``untold`` (later pictures of an MPO file are damaged, and there is no warning), ``worker_died``,
            ``timeout``, ``lost`` (a valid file was skipped) or ``memory``.
        said: what was said of it.
    """

    name: str
    kind: str
    start: int
    what: str
    said: str


@dataclass(frozen=True, slots=True)
class Unseen:
    """A mutant with other pixels that no decoder complains of.

    Attributes:
        name: of the mutant.
        kind: of damage.
        start: the first damaged byte.
        length: how many were damaged.
        known: decoders that complain all the same, as ``decoders.KNOWN`` explains.
    """

    name: str
    kind: str
    start: int
    length: int
    known: list[str]


@dataclass(slots=True)
class Cell:
    """Counts of mutants of one variant and kind of damage, or of many.

    Attributes:
        mutants: all of them.
        equal: kept, with the pixels of the original.
        other: kept, with other pixels.
        warned: how many of ``other`` have a warning of ``WARNINGS``.
        pillow_equal: let through by Pillow's ``load()`` with the pixels of the original.
        pillow_other: the same with other pixels.
    """

    mutants: int = 0
    equal: int = 0
    other: int = 0
    warned: int = 0
    pillow_equal: int = 0
    pillow_other: int = 0

    @property
    def skipped(self) -> int:
        """All that were not kept."""
        return self.mutants - self.equal - self.other

    def add(self, look: Look, warnings: Iterable[str]) -> None:
        """Count one mutant; ``warnings`` are their codes. Kept and refused by the reader counts as other pixels."""
        self.mutants += 1
        self.equal += look.reader == "equal"
        self.other += look.reader in ("other", "refused")
        self.warned += look.reader in ("other", "refused") and not WARNINGS.isdisjoint(warnings)
        self.pillow_equal += look.pillow == "equal"
        self.pillow_other += look.pillow == "other"


@dataclass(slots=True)
class Result:
    """Everything that a campaign found.

    Attributes:
        seed: of its random numbers.
        decoders: those that were asked.
        mutants: of each format.
        cells: by format, variant and kind of damage.
        codes: how many were skipped with which code.
        faults: empty where all is well.
        unseen: mutants with other pixels that nobody notices.
        known: how many of these somebody does notice, by the reason why that is no fault.
        peak_bytes: the most memory of a worker of the check, 0 where unknown.
    """

    seed: int
    decoders: list[str]
    mutants: int = 0
    cells: dict[tuple[str, str, str], Cell] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    unseen: list[Unseen] = field(default_factory=list)
    known: dict[str, int] = field(default_factory=dict)
    peak_bytes: int = 0

    def cell(self, format_name: str, variant: str, kind: str) -> Cell:
        """The counts of one cell, to be added to."""
        return self.cells.setdefault((format_name, variant, kind), Cell())

    def table(self) -> str:
        """The table in Markdown."""
        rows = [["format", "", *(_HEADS[kind] for kind in DAMAGE), "all", "Pillow's `load()`"]]
        rows.append(["---"] * len(rows[0]))
        for format_name, variant in dict.fromkeys((name, variant) for name, variant, _ in self.cells):
            of_row = {kind: cell for (name, other, kind), cell in self.cells.items() if (name, other) == (format_name, variant)}
            rows.append([format_name, variant, *_shown(of_row)])
        total: dict[str, Cell] = {}
        for (_, _, kind), cell in self.cells.items():
            total[kind] = _sum([total.get(kind, Cell()), cell])
        rows.append(["all", "", *_shown(total)])
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)

    def summary(self) -> str:
        """The figures of the whole campaign in one paragraph."""
        total = _sum(self.cells.values())
        noticed = sum(fault.what == "noticed" for fault in self.faults)
        untold = sum(fault.what == "untold" for fault in self.faults)
        told = f" {untold:,} MPO files with damaged later pictures were kept without a warning." if untold else ""
        exceptions = sum(self.known.values())
        known = f", but for {exceptions:,} exceptions that are explained below" if exceptions else ""
        ended = sum(fault.what in ("worker_died", "timeout") for fault in self.faults)
        text = (
            f"Of {total.mutants:,} mutants {_percent(total.skipped, total.mutants)} % were skipped, "
            f"{_percent(total.equal, total.mutants)} % kept with the pixels of the original, and "
            f"{_percent(total.other, total.mutants)} % ({total.other:,}) kept with other pixels, {total.warned:,} "
            "of these with a warning of `trailing_bytes` or `bad_metadata`; Pillow's `load()` lets "
            f"{_percent(total.pillow_other, total.mutants)} % ({total.pillow_other:,}) through with other pixels. "
            f"Other decoders complained of {noticed or 'none'} of those that were kept without one{known}; "
            f"workers that died or hung: {ended or 'none'}.{told}"
        )
        return textwrap.fill(text, _WIDTH, break_on_hyphens=False)

    def page(self) -> str:
        """The whole page in Markdown."""
        names = [_DISTRIBUTIONS[name] for name in self.decoders]
        versions = describe_versions(names)
        decoders = ", ".join(f"{name} {versions[_DISTRIBUTIONS[name]]}" for name in self.decoders)
        missing = [name for name in OPTIONAL.values() if name not in self.decoders]
        decoders += f" (not installed: {', '.join(missing)})" if missing else ""
        command = f"python benchmarks/damage.py --mutants {self.mutants} --seed {self.seed} --write docs/what-checks-see.md"
        method = _METHOD.format(
            command=command, mutants=self.mutants, seed=self.seed, decoders=decoders, peak=round(self.peak_bytes / 1e6)
        )
        if self.known:
            method += "\nExceptions that are known, and how many of the files with other pixels they are:\n\n"
            named = dict.fromkeys((known.format, known.why) for known in KNOWN if known.why in self.known)
            texts = [f"* {self.known[why]:,} {format_name}: {why}" for format_name, why in named]
            method += "".join(textwrap.fill(text, _WIDTH, subsequent_indent="  ") + "\n" for text in texts)
        return f"{_INTRODUCTION.format(summary=self.summary())}\n{self.table()}\n{method}"

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON values."""
        cells = [
            {"format": name, "variant": variant, "kind": kind, "skipped": cell.skipped, **dataclasses.asdict(cell)}
            for (name, variant, kind), cell in self.cells.items()
        ]
        return {
            "seed": self.seed,
            "mutants": self.mutants,
            "decoders": self.decoders,
            "known": self.known,
            "peak_bytes": self.peak_bytes,
            "codes": self.codes,
            "cells": cells,
            "faults": [dataclasses.asdict(fault) for fault in self.faults],
            "unseen": [dataclasses.asdict(unseen) for unseen in self.unseen],
        }


def _shown(by_kind: dict[str, Cell]) -> list[str]:
    """The cells of one row, their sum and Pillow's column."""
    total = _sum(by_kind.values())
    cells = [_triple(by_kind.get(kind, Cell())) for kind in DAMAGE]
    pillow = f"{_percent(total.pillow_equal, total.mutants)} · {_percent(total.pillow_other, total.mutants)}"
    return [*cells, _triple(total), pillow]


def _triple(cell: Cell) -> str:
    if not cell.mutants:
        return ""
    return " · ".join(_percent(count, cell.mutants) for count in (cell.skipped, cell.equal, cell.other))


def _percent(count: int, of: int) -> str:
    """Rounded, but neither to nothing nor to all where that is not so."""
    if not count or not of:
        return "0"
    if count * 100 < of:
        return "<1"
    return str(99 if count < of and round(100 * count / of) == 100 else round(100 * count / of))


def _sum(cells: Iterable[Cell]) -> Cell:
    total = Cell()
    for cell in cells:
        for name in (entry.name for entry in dataclasses.fields(Cell)):
            setattr(total, name, getattr(total, name) + getattr(cell, name))
    return total
