"""Whole jobs whose decoders crash, hang and eat memory: those files are lost by it, no other, and in bounded time."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import packer.inspection
from packer import InputOptions, check_folder, open_dataset
from packer.checkers import CheckPool
from tests.check_hooks import run_pack
from tests.inputs import jpeg, npy, pack, photo, write_tree

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is limited on Linux only")

CODE_OF = {
    "exit": "worker_died",
    "segv": "worker_died",
    "gulp": "too_large",
    "cgulp": "too_large",
    "swell": "too_large",
    "chang": "timeout",
}


@pytest.fixture
def misbehaving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files whose names begin with a deed do it to the worker that checks them."""
    pool = partial(CheckPool, check="tests.check_hooks:misbehave_or_check")
    monkeypatch.setattr(packer.inspection, "CheckPool", pool)


def rows(report: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in report.read_text("ascii").splitlines()]


@pytest.mark.usefixtures("misbehaving")
def test_files_that_kill_hang_and_gulp_cost_themselves_and_nothing_else(tmp_path: Path, long_run: bool) -> None:
    """A hundred of them in a long run."""
    deeds = ["exit"] * 9 + ["segv"] * 7 + ["gulp"] * 3 + ["cgulp"] * 4 + ["swell"] + ["chang"]
    if long_run:
        deeds = deeds * 4
    files: dict[str | bytes, bytes] = {f"{'abc'[i % 3]}/good{i:03d}.npy": npy([i]) for i in range(300)}
    # Spread among the good ones, some of them neighbours, and sorted in between by the folder's other names.
    bad = {f"{'abc'[i * 7 % 3]}/{deed}{i}.npy": CODE_OF[deed] for i, deed in enumerate(deeds)}
    root = write_tree(tmp_path / "in", {**files, **dict.fromkeys(bad, npy([0, 0]))})
    started = time.monotonic()
    summary = pack(root, workers=2, timeout_s=8.0)
    assert time.monotonic() - started < 90
    found = {row["path"]: row["code"] for row in rows(summary.report) if row["outcome"] == "skipped"}
    assert found == bad
    data = open_dataset(summary.output, output="numpy")
    assert {data.names[i]: int(data[i][0][0]) for i in range(len(data))} == {
        f"{'abc'[i % 3]}/good{i:03d}.npy": i for i in range(300)
    }


@pytest.mark.usefixtures("misbehaving")
def test_checking_alone_is_isolated_in_the_same_way(tmp_path: Path) -> None:
    names = ["exit1.npy", "gulp2.npy", "segv3.npy", "good4.npy"]
    root = write_tree(tmp_path / "in", {name: npy([i]) for i, name in enumerate(names)})
    summary = check_folder(root, tmp_path / "report.jsonl", InputOptions(workers=1))
    assert summary.skipped == {"worker_died": 2, "too_large": 1}
    assert summary.samples == 1


def test_memory_that_a_check_may_take_grows_with_the_file_itself(tmp_path: Path) -> None:
    """A limit for all files alike would lose a sound array of some gigabytes."""
    from packer.check.worker import _MemoryLimit

    write_tree(tmp_path, {"small.npy": b"", "large.npy": b""})
    os.truncate(tmp_path / "large.npy", 100 << 30)
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        limit = _MemoryLimit(1_000_000)
        limit.allow(os.fsencode(tmp_path / "small.npy"))
        small = resource.getrlimit(resource.RLIMIT_AS)[0]
        limit.allow(os.fsencode(tmp_path / "large.npy"))
        large = resource.getrlimit(resource.RLIMIT_AS)[0]
        limit.allow(os.fsencode(tmp_path / "no such.npy"))
        assert resource.getrlimit(resource.RLIMIT_AS)[0] == small
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    physical = os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()
    assert small > 512 << 20
    assert min(300 << 30, physical // 2) < large - small < 400 << 30


def test_job_under_a_memory_limit_of_its_own_still_packs(tmp_path: Path) -> None:
    """A batch system sets one; a worker must not ask for more than it may."""
    root = write_tree(tmp_path / "in", {f"{i}.jpg": jpeg(photo(seed=i)) for i in range(4)})

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))

    done = run_pack("in", cwd=tmp_path, preexec_fn=limit)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(open_dataset(root.with_name("in.lmdb"))) == 4


def test_time_limit_is_an_option(tmp_path: Path) -> None:
    write_tree(tmp_path / "in", {"a.npy": npy([1])})
    assert run_pack("in", "--timeout", "2.5", cwd=tmp_path).returncode == 0
    for wrong in ("0", "-1", "soon", "inf", "nan"):
        refused = run_pack("in", "--timeout", wrong, "-o", "other", cwd=tmp_path)
        assert refused.returncode == 2, wrong
        assert "Traceback" not in refused.stderr


def test_huge_file_that_is_no_picture_is_not_read(tmp_path: Path) -> None:
    """A disk image that somebody renamed; a hundred gigabytes would take all memory, or the night."""
    root = write_tree(tmp_path / "in", {"disk.jpg": b"", "text.png": b"hello", "a.npy": npy([1])})
    for name in ("disk.jpg", "text.png"):
        os.truncate(root / name, 100 << 30)
    started = time.monotonic()
    for check in ("full", "none"):
        check_folder(root, tmp_path / "report.jsonl", InputOptions(check=check, workers=1))
        assert {row["path"]: row["code"] for row in rows(tmp_path / "report.jsonl")} == {
            "disk.jpg": "corrupt", "text.png": "not_an_image",
        }  # fmt: skip
    assert time.monotonic() - started < 20


def test_huge_file_that_begins_like_an_array_costs_itself_only(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "in", {"huge.npy": npy(list(range(100))), "a.npy": npy([1])})
    os.truncate(root / "huge.npy", 1 << 42)
    summary = check_folder(root, tmp_path / "report.jsonl", InputOptions(workers=1, timeout_s=30))
    assert summary.samples == 1
    assert sum(summary.skipped.values()) == 1
