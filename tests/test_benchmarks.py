"""Each benchmark runs to its end on a handful of files, so that none rots."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_packing_is_measured_and_its_outputs_are_proved_right(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the photographs come with scikit-learn")
    results = tmp_path / "results.jsonl"
    command = [sys.executable, str(ROOT / "benchmarks" / "packing.py"), "--count", "24", "--repeat", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "--work", str(tmp_path), "--json", str(results)],
        env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    assert rows
    assert "budget" in done.stdout
