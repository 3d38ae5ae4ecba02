"""A corpus of real and damaged files whose truth is known, where there is one on this machine.

``PACKER_TEST_CORPUS`` names a CSV file with the columns ``path`` (relative to it) and ``expect`` (``keep``, ``skip`` or
``either``). Nothing of it belongs to the project; the rules of the checks have tests of their own that make their inputs.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from packer.check import CheckSettings
from packer.checkers import CheckPool
from packer.model import Kept, Skipped, Source

TRUTH = Path(os.environ.get("PACKER_TEST_CORPUS", "nowhere"))


@pytest.mark.skipif(not TRUTH.is_file(), reason="no corpus: PACKER_TEST_CORPUS names no file")
def test_verdicts_are_those_of_the_truth_but_for_what_packer_decides_otherwise() -> None:
    with TRUTH.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if (TRUTH.parent / row["path"]).is_file()]
    assert rows
    pool = CheckPool(os.fsencode(TRUTH.parent), CheckSettings(), 2, 60)
    try:
        sources = [Source(i, os.fsencode(row["path"]), 0, 0, -1) for i, row in enumerate(rows)]
        verdicts = [verdict for _, verdict in pool.verdicts(sources)]
    finally:
        pool.close()
    wrong = {
        row["path"]: verdict
        for row, verdict in zip(rows, verdicts, strict=True)
        if row["expect"] != "either" and isinstance(verdict, Kept) != (row["expect"] == "keep")
    }
    for path, verdict in list(wrong.items()):
        # AVIF is kept, whatever it is called; arrays that no tensor can hold are not.
        decided = verdict.type == "avif" if isinstance(verdict, Kept) else verdict.code == "unsupported_dtype"
        if decided:
            del wrong[path]
    assert not wrong
    assert not [verdict for verdict in verdicts if isinstance(verdict, Skipped) and verdict.code in ("worker_died", "timeout")]
