"""``pack SRC --dry-run``: what a job would do, told without opening a file; and how near its estimates are."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer import formats
from packer.cli.dryrun import emit_plan
from packer.dryrun import DryRun, plan_folder
from packer.errors import InputError, OutputError, PackerError, TooManySkippedError
from packer.formats._base import fill
from packer.options import PackOptions
from packer.plan import ShardLimits
from tests.inputs import npy, pack, write_tree

JPEG = b"\xff\xd8\xff\xe0"  # all that is looked at without a check


def plan(root: Path, format: str = "lmdb", **options: Any) -> DryRun:
    return plan_folder(root, PackOptions(format=format, **options))


# Estimates


def pictures(count: int, most: int, name: str) -> dict[str | bytes, bytes]:
    numbers = random.Random(0)
    return {name.format(i % 7, i).encode(): JPEG + numbers.randbytes(numbers.randrange(most)) for i in range(count)}


TREES: dict[str, dict[str | bytes, bytes]] = {
    "pages of their own": pictures(300, 40_000, "class {}/photo {:05d}.jpg"),
    "several a page": pictures(800, 2_100, "class {}/photo {:05d}.jpg"),
    "tiny": pictures(400, 40, "{}/{}.jpg"),
    "without labels": pictures(300, 10_000, "photo {1}.jpg"),
    "escaped names": pictures(300, 5_000, '日本 {}"/é\n😀{}.jpg'),
    "names of other lengths": {**pictures(300, 5_000, "{}/{}.jpg"), "0/" + "x" * 240 + ".jpg": JPEG},
    "equal arrays": {f"{i % 3}/{i}.npy": npy(np.full(500, i)) for i in range(300)},
    "other arrays": {f"{i}.npy": npy(np.zeros(100 + i)) for i in range(300)},
}


@pytest.mark.parametrize("tree", TREES)
def test_estimate_is_near_the_size_of_the_output(tmp_path: Path, format_name: str, tree: str) -> None:
    root = write_tree(tmp_path / "in", TREES[tree])
    limits = ShardLimits(1_000_000) if formats.get(format_name).has_shards else None
    found = plan(root, format_name, limits=limits).estimate
    summary = pack(root, format_name, check="none", limits=limits)
    # mostly headers and columns of fixed size where the files are tiny
    tolerance = 0.01 * summary.output_bytes + (4_096 if tree == "tiny" else 1_024)
    assert abs(found.container_bytes - summary.output_bytes) <= tolerance
    written = {file.name: file.stat().st_size for file in summary.output.iterdir()}
    assert (found.index_bytes, found.names_bytes) == (written["index.npy"], written["names.bin"])
    others = sum(size for name, size in written.items() if name in ("manifest.json", "report.jsonl"))
    rest = found.output_bytes - found.container_bytes - found.index_bytes - found.names_bytes
    assert 0 <= rest - others <= 8_192
    assert (found.shards, found.output_files) == (summary.shards, len(written))


@pytest.mark.parametrize("limits", [ShardLimits(200_000), ShardLimits(1, 0), ShardLimits(samples=7), ShardLimits(100_000, 7)])
def test_estimate_of_shards_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: ShardLimits) -> None:
    monkeypatch.setattr("packer.formats.webdataset._ESTIMATE_BLOCK", 30)
    root = write_tree(tmp_path / "in", pictures(100, 30_000, "class {}/é{}.jpg"))
    found = plan(root, "webdataset", limits=limits).estimate
    summary = pack(root, "webdataset", check="none", limits=limits)
    assert (found.container_bytes, found.shards) == (summary.output_bytes, summary.shards)


def test_a_box_takes_what_fits_and_at_least_one() -> None:
    assert fill(np.array([3, 3, 4, 10, 1, 5]), 6).tolist() == [0, 2, 3, 4]
    assert fill(np.array([1, 1, 1, 1, 1]), 6, 2).tolist() == [0, 2, 4]
    assert fill(np.array([], np.int64), 6).tolist() == []


def test_labels_with_gaps_find_their_class(tmp_path: Path) -> None:
    files: dict[str | bytes, bytes] = {
        f"{name}/{i}.jpg": JPEG for name, count in (("100", 3), ("000000000000007", 2)) for i in range(count)
    }
    # with another class's name, their members would take a block more
    files |= {f"9/{'d' * 235}/{i:02d}{'e' * 241}.jpg": JPEG for i in range(25)}
    root = write_tree(tmp_path / "in", files)
    found = plan(root, "webdataset", labels="number")
    summary = pack(root, "webdataset", check="none", labels="number")
    assert found.estimate.container_bytes == summary.output_bytes
    assert [(one.name, one.label, one.files, one.bytes) for one in found.classes] == [
        ("000000000000007", 7, 2, 8), ("100", 100, 3, 12), ("9", 9, 25, 100)
    ]  # fmt: skip


# What is planned


@pytest.mark.parametrize("step", [2, 1_000])
def test_plan_tells_files_by_class_and_type_and_what_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr("packer.dryrun._BLOCK", step)
    root = write_tree(
        tmp_path / "in",
        {
            "b/1.JPG": b"12",
            "b/2.jpeg": b"345",
            "a/x.npy": b"6",
            "a/y.jpg  ": b"7",
            "b/z.heic": b"8",
            "a/t.txt": b"",
            "a/u": b"",
        },
    )
    (root / "c").mkdir()
    found = plan(root)
    assert [(one.name, one.label, one.files, one.bytes) for one in found.classes] == [
        ("a", 0, 2, 2), ("b", 1, 3, 6), ("c", 2, 0, 0)
    ]  # fmt: skip
    assert {name: (amount.files, amount.bytes) for name, amount in found.types.items()} == {
        "jpeg": (3, 6), "npy": (1, 1), ".heic": (1, 1)
    }  # fmt: skip
    assert found.ignored == {".txt": 1, "(no extension)": 1}
    assert (found.files, found.bytes, found.labels_from) == (5, 8, "folder")
    assert found.warned["empty_class"].examples == ("c: holds no file; it keeps its label 2",)
    assert found.inodes_saved == 5 - 5


def test_plan_names_what_is_refused_whatever_is_in_it(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "in", {"a/1.jpg": JPEG, **{f"a/{i:02d}.png": b"" for i in range(15)}})
    (root / "a/link.jpg").symlink_to("gone")
    found = plan(root, max_skipped=16)
    summary = pack(root, "webdataset", check="none")
    assert plan(root, "webdataset", overwrite=True).estimate.container_bytes == summary.output_bytes
    skipped = summary.skipped
    assert {code: some.count for code, some in found.refused.items()} == skipped == {"empty_file": 15, "unreadable": 1}
    assert found.refused["empty_file"].examples == tuple(f"a/{i:02d}.png: 0 bytes" for i in range(3))
    assert found.refused["unreadable"].examples == ("a/link.jpg: a link to gone, which does not exist",)
    assert found.refusals == ()


def test_plan_has_the_warnings_of_the_scan(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "in", {"1/a.jpg": JPEG, "1/A.jpg": JPEG, "10/b.jpg": JPEG, "2/c.jpg": JPEG})
    (root / "1/up").symlink_to("..")
    assert {code: some.count for code, some in plan(root).warned.items()} == {
        "name_clash": 1, "numeric_classes": 1, "symlink_loop": 1
    }  # fmt: skip


_opened: list[object] | None = None


def _record_opened(event: str, arguments: tuple[object, ...]) -> None:
    if _opened is not None and event == "open":
        _opened.append(arguments[0])


sys.addaudithook(_record_opened)  # no hook can be removed


def test_nothing_is_written_and_no_file_is_opened(tmp_path: Path, format_name: str) -> None:
    global _opened
    root = write_tree(tmp_path / "in", {"a/1.jpg": JPEG, "a/2.npy": npy([1]), "b/3.txt": b"text"})
    before = [(path, path.lstat()) for path in sorted(tmp_path.rglob("*"))]
    formats.get(format_name)
    _opened = []
    try:
        plan(root, format_name)
        paths = [os.fsdecode(path) for path in _opened if isinstance(path, (str, bytes, os.PathLike))]
    finally:
        _opened = None
    assert [path for path in paths if "/in/" in path and not os.path.isdir(path)] == []
    assert [(path, path.lstat()) for path in sorted(tmp_path.rglob("*"))] == before


# Refusals


def refusal(work: Any, *arguments: Any) -> PackerError:
    with pytest.raises(PackerError) as caught:
        work(*arguments)
    return caught.value


def same(one: PackerError, other: PackerError) -> bool:
    return (type(one), str(one)) == (type(other), str(other))


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("none", {}),
        ("in/a/1.jpg", {}),
        ("in", {"output": "packed"}),
        ("in", {"output": "in"}),
        ("in", {"output": "."}),
        ("in", {"output": "none/out"}),
        ("in", {"output": "other"}),
        ("in", {"output": "other", "overwrite": True}),
        ("mixed", {}),
        ("splits", {}),
        ("in", {"labels": "number"}),
        ("in", {"limits": ShardLimits(5)}),
        ("in", {"max_skipped": "many"}),
        ("in", {"classes_from": "other"}),
        ("in", {"checksums": "none"}),
        ("packed", {}),
    ],
)
def test_what_ends_a_job_before_its_plan_ends_the_dry_run_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, options: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tree(tmp_path, {"in/a/1.jpg": JPEG, "mixed/a/1.jpg": JPEG, "mixed/2.jpg": JPEG, "splits/train/1.jpg": JPEG})
    pack("in", output=Path("packed"), check="none")
    (tmp_path / "other").mkdir()
    paths = ("output", "classes_from", "checksums")
    values: dict[str, Any] = {name: Path(value) if name in paths else value for name, value in options.items()}
    expected = refusal(lambda: pack(source, check="none", **values))
    found = refusal(plan_folder, source, PackOptions(**values))
    assert same(found, expected)
    assert not list(tmp_path.glob(".*"))


def test_a_folder_without_candidates_is_planned_and_refused_as_by_the_job(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "in", {"a/1.txt": b"", "a/2.csv": b""})
    found = plan(root)
    assert (found.files, found.ignored) == (0, {".csv": 1, ".txt": 1})
    error = refusal(found.raise_refusal)
    assert same(error, refusal(pack, root))
    assert found.refusals[0].exit_status == error.exit_status


def test_too_little_space_is_told_by_the_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_tree(tmp_path / "in", {"a/1.jpg": JPEG * 1000, "a/2.jpg": JPEG})
    needed = plan(root).estimate.output_bytes
    usage = type(shutil.disk_usage(tmp_path))
    for free, enough in ((needed, True), (needed - 1, False)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: usage(2 * free, free, free))
        found = plan(root)
        assert (found.enough_space, found.free_bytes, len(found.refusals)) == (enough, free, not enough)
    with pytest.raises(OutputError, match=rf"{needed - 1:,} bytes are free.* {needed:,} \(the largest file, a/1\.jpg"):
        found.raise_refusal()


@pytest.mark.parametrize(("allowed", "kind", "status"), [(1, TooManySkippedError, 3), ("100%", InputError, 1)])
def test_more_refused_than_allowed_is_told(tmp_path: Path, allowed: int | str, kind: type[PackerError], status: int) -> None:
    root = write_tree(tmp_path / "in", {"a/1.jpg": b"", "a/2.jpg": b""})
    found = plan(root, max_skipped=allowed)
    assert [one.exit_status for one in found.refusals] == [status]
    with pytest.raises(kind, match="2 empty_file"):
        found.raise_refusal()


# Print


def printed(capsys: pytest.CaptureFixture[str], found: DryRun, **how: bool) -> str:
    emit_plan(found, **{"as_json": False, "quiet": False, "verbose": False, **how})
    return capsys.readouterr().out


def test_plan_is_one_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str], format_name: str) -> None:
    root = write_tree(tmp_path / "in", {b"a\xe9/1.jpg": JPEG, b"a\xe9/2.jpg": b""})
    found = plan(root, format_name)
    (line,) = printed(capsys, found, as_json=True).splitlines()
    values = json.loads(line)
    assert values["classes"] == [{"name": "a\udce9", "label": 0, "files": 2, "bytes": 4}]
    assert values["estimate"]["output_bytes"] == found.estimate.output_bytes
    assert values["refused"] == {"empty_file": {"count": 1, "examples": ["a\udce9/2.jpg: 0 bytes"]}}
    assert (values["shard_bytes"] is None) == (not formats.get(format_name).has_shards)


def test_many_classes_are_shown_in_full_only_where_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(write_tree(tmp_path / "in", {f"class {i}/1.jpg": JPEG for i in range(30)}))
    text = printed(capsys, found)
    assert text.count("class 1") == 11
    assert "... and 10 more" in text
    assert printed(capsys, found, verbose=True).count("  class ") == 30


def test_names_in_a_plan_do_no_harm_on_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_tree(tmp_path / "\x1b[2Jin", {"\x1b[31mred/1.jpg": JPEG, "\x1b[31mred/2\n.jpg": b"", "b/\x1b.jpg": JPEG})
    (root / "b/\x1b[0m").symlink_to("..")
    lines = printed(capsys, plan(root)).split("\n")
    assert [line for line in lines if not line.isprintable()] == []
    assert sum("x1b" in line for line in lines) >= 4


def test_a_quiet_dry_run_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, plan(write_tree(tmp_path / "in", {"a/1.jpg": JPEG})), quiet=True) == ""


def test_why_a_job_would_fail_stands_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_tree(tmp_path / "in", {"a/1.txt": b""})
    last = printed(capsys, plan(root)).splitlines()[-1]
    assert last == f"would fail with status 1: {root}: nothing to pack: 1 files are of other kinds (1 .txt)"
