"""Packing a folder from end to end: what is in the output, what is refused, and what an interrupted job leaves."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer import InputError, OptionError, OutputError, PackOptions, formats, open_dataset, pack_folder, verify_dataset
from packer.checkers import CheckPool
from packer.model import Kept, Verdict
from packer.options import Progress, Summary
from packer.plan import ShardLimits
from packer.report import report_rows
from tests import inputs
from tests.check_hooks import as_nobody, environment, lines, pack_command, run_pack
from tests.inputs import jpeg, npy, png, write_tree

MIXED = {
    "a/1.jpg": jpeg(seed=1),
    "a/2.png": png(seed=2),
    "a/cut.jpg": jpeg(seed=3)[:1000],
    "a/named.png": jpeg(seed=4),
    "b/1.npy": npy(np.arange(5)),
    "b/empty.jpg": b"",
    "b/nan.npy": npy([np.nan]),
    "b/notes.txt": b"not a candidate",
    "c/page.jpg": b"<html>",
}
GOOD = ["a/1.jpg", "a/2.png", "a/named.png", "b/1.npy", "b/nan.npy"]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can enter, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="packer-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def pack(source: str | Path, format_name: str = "lmdb", **options: Any) -> Summary:
    """Pack with one checking worker; more take longer to start than all these files take to be checked."""
    return inputs.pack(source, format_name, **{"workers": 1, **options})


def quick(source: str | Path, format_name: str = "lmdb", **options: Any) -> Summary:
    """Pack without checking workers, where what they do is not the point."""
    return pack(source, format_name, **{"check": "none", **options})


def rows(output: Path) -> list[tuple[str | None, str, str]]:
    parsed = [json.loads(line) for line in (output / "report.jsonl").read_text("ascii").splitlines()]
    return [(row["path"], row["outcome"], row["code"]) for row in parsed]


def content(output: Path) -> dict[str, bytes]:
    data = open_dataset(output, output="bytes")
    return {data.names[i]: data[i][0] if data.classes else data[i] for i in range(len(data))}


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def arrays(count: int, folders: str = "ab") -> dict[str | bytes, bytes]:
    return {f"{folder}/{i:04d}.npy": npy(np.full(i % 50 + 1, i)) for folder in folders for i in range(count)}


# What is in the output


def test_every_file_is_packed_byte_for_byte_or_named_in_the_report(tmp_path: Path, format_name: str) -> None:
    summary = pack(write_tree(tmp_path / "in", MIXED), format_name)
    assert content(summary.output) == {name: MIXED[name] for name in GOOD}
    assert rows(summary.output) == [
        ("a/cut.jpg", "skipped", "truncated"),
        ("a/named.png", "warned", "extension_mismatch"),
        ("b/empty.jpg", "skipped", "empty_file"),
        ("b/nan.npy", "warned", "nonfinite"),
        ("c/page.jpg", "skipped", "not_an_image"),
        ("c", "warned", "empty_class"),
    ]
    assert list(verify_dataset(summary.output)) == []


def test_summary_counts_add_up(tmp_path: Path, format_name: str) -> None:
    summary = pack(write_tree(tmp_path / "in", MIXED), format_name)
    assert (summary.files, summary.samples) == (8, 5)
    assert summary.files == summary.samples + sum(summary.skipped.values())
    assert summary.skipped == {"truncated": 1, "empty_file": 1, "not_an_image": 1}
    assert summary.skipped_examples == {
        "truncated": ["a/cut.jpg"],
        "empty_file": ["b/empty.jpg"],
        "not_an_image": ["c/page.jpg"],
    }
    assert summary.warned == {"extension_mismatch": 1, "nonfinite": 1, "empty_class": 1}
    assert summary.ignored == {".txt": 1}
    assert summary.payload_bytes == sum(len(MIXED[name]) for name in GOOD)
    assert summary.classes == ("a", "b", "c")
    assert summary.output_bytes == sum(
        path.stat().st_size
        for path in summary.output.iterdir()
        if path.name.partition(".")[0] not in ("manifest", "index", "names", "report")
    )
    assert not summary.replaced_unfinished


def test_labels_of_what_is_kept_do_not_move(tmp_path: Path, format_name: str) -> None:
    files = {"a/1.npy": b"broken", "b/1.npy": npy([1]), "c/1.npy": b"", "d/1.npy": npy([2])}
    data = open_dataset(quick(write_tree(tmp_path / "in", files), format_name).output)
    assert data.classes == ["a", "b", "c", "d"]
    assert list(data.targets) == [1, 3]


def test_content_digest_is_the_same_in_every_format(tmp_path: Path) -> None:
    source = write_tree(tmp_path / "in", MIXED)
    assert len({quick(source, name).content_digest for name in formats.names()}) == 1


def test_same_bytes_whatever_workers_order_and_times(tmp_path: Path, format_name: str) -> None:
    files = {**arrays(60), **MIXED}
    one = pack(write_tree(tmp_path / "1/in", files), format_name, workers=1).output
    other_source = write_tree(tmp_path / "2/in", dict(reversed(files.items())))
    for path in other_source.rglob("*.npy"):
        os.utime(path, (1, 1))
    other = pack(other_source, format_name, workers=3).output
    assert digests(one) == digests(other)


def test_locale_and_hash_seed_change_no_byte(tmp_path: Path, format_name: str) -> None:
    write_tree(tmp_path / "in", {"Ä/ö.npy": npy([1]), b"\xff/\xfe.npy": npy([2]), "b/x.jpg": b"<html>", "b/y.png": jpeg()})
    (tmp_path / "in/b/gone.jpg").symlink_to("Ä.jpg")
    environments = [
        {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"},
        {"PYTHONHASHSEED": "1", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"},
    ]
    found = []
    for variables in environments:
        result = run_pack("in", "-f", format_name, "-o", "out", "--overwrite", cwd=tmp_path, env=variables)
        assert (result.returncode, result.stderr) == (0, "")
        found.append(digests(tmp_path / "out"))
    assert found[0] == found[1]


def test_check_none_gives_the_same_payloads(tmp_path: Path, format_name: str) -> None:
    source = write_tree(tmp_path / "in", arrays(40))
    full = pack(source, format_name, output=tmp_path / "full")
    none = pack(source, format_name, output=tmp_path / "none", check="none")
    assert none.content_digest == full.content_digest
    assert content(none.output) == content(full.output)


def test_input_is_not_changed(tmp_path: Path, format_name: str) -> None:
    source = write_tree(tmp_path / "in", MIXED)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in source.rglob("*") if path.is_file()}
    pack(source, format_name)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in source.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("samples", [1, 10, 22, 100])
def test_shards_are_full_numbered_without_gaps_and_hold_no_failure(tmp_path: Path, samples: int, format_name: str) -> None:
    if not formats.get(format_name).has_shards:
        pytest.skip("one file")
    files = {f"a/{i:02d}.jpg": jpeg(seed=i) for i in range(25)}
    for bad in (0, 11, 24):
        files[f"a/{bad:02d}.jpg"] = b"damaged"
    summary = quick(write_tree(tmp_path / "in", files), format_name, limits=ShardLimits(samples=samples))
    shards = sorted(summary.output.glob("*.tar"))
    assert [path.name for path in shards] == [f"shard-{i:06d}.tar" for i in range(-(-22 // samples))]
    keys: list[str] = []
    members = {}
    for path in shards:
        with tarfile.open(path) as tar:
            in_shard = [member.name for member in tar]
            members |= {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
        keys += sorted({name.partition(".")[0] for name in in_shard})
        assert len({name.partition(".")[0] for name in in_shard}) <= samples
    assert keys == [f"{i:09d}" for i in range(22)]
    good = [data for data in files.values() if data != b"damaged"]
    assert [members[f"{key}.jpg"] for key in keys] == good
    text = b"".join(data for name, data in members.items() if not name.endswith(".jpg"))
    assert b"a/10.jpg" in text
    for bad in ("a/00.jpg", "a/11.jpg", "a/24.jpg"):
        assert bad.encode() not in text + b"".join(path.read_bytes() for path in summary.output.glob("*.bin"))
        assert (bad, "skipped", "not_an_image") in rows(summary.output)


def test_progress_counts_files_up_to_their_number(tmp_path: Path, format_name: str) -> None:
    seen: list[Progress] = []
    source = write_tree(tmp_path / "in", MIXED)
    summary = pack_folder(source, PackOptions(format=format_name), seen.append)
    packing = [progress for progress in seen if progress.stage == "pack"]
    assert [progress.done for progress in packing] == list(range(9))
    assert {progress.total for progress in packing} == {8}
    assert packing[-1].skipped == 3
    assert packing[-1].done_bytes == sum(len(data) for name, data in MIXED.items() if not name.endswith(".txt"))
    assert summary.seconds > 0


def test_empty_array_may_come_first(tmp_path: Path, format_name: str) -> None:
    """HDF5: payloads were moved as if they began at one megabyte, though with no byte written the file was shorter."""
    files = {"0.npy": npy(np.zeros((0, 4))), "1.npy": npy(np.zeros((0, 4))), "2.npy": npy(np.arange(5)), "3.png": png()}
    summary = quick(write_tree(tmp_path / "in", files), format_name)
    assert content(summary.output) == files
    assert list(verify_dataset(summary.output)) == []


# Files that change while a job runs


def pack_while(source: Path, format_name: str, at: int, change: Any, **options: Any) -> Any:
    """Pack with one worker and make a change when so many files are packed; all others have been checked by then."""

    def on_progress(progress: Progress) -> None:
        if progress.stage == "pack" and progress.done == at:
            change()

    return pack_folder(source, PackOptions(format=format_name, workers=1, **options), on_progress)


def test_file_that_changed_after_its_check_is_checked_again(tmp_path: Path, format_name: str) -> None:
    source = write_tree(tmp_path / "in", {f"{i}.npy": npy([i]) for i in range(6)})
    new = npy(np.arange(100.0))
    summary = pack_while(source, format_name, 2, lambda: (source / "4.npy").write_bytes(new))
    assert content(summary.output)["4.npy"] == new
    assert summary.samples == 6


def test_file_damaged_after_its_check_is_skipped(tmp_path: Path, format_name: str) -> None:
    source = write_tree(tmp_path / "in", {f"{i}.npy": npy([i]) for i in range(6)})
    summary = pack_while(source, format_name, 2, lambda: (source / "4.npy").write_bytes(npy([4])[:-1]))
    assert rows(summary.output) == [("4.npy", "skipped", "truncated")]
    assert list(content(summary.output)) == ["0.npy", "1.npy", "2.npy", "3.npy", "5.npy"]


def test_file_that_never_stops_changing_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_name: str) -> None:
    source = write_tree(tmp_path / "in", {f"{i}.npy": npy([i]) for i in range(6)})
    recheck = CheckPool.recheck

    def changing(self: CheckPool, name: bytes) -> Verdict:
        verdict = recheck(self, name)
        (source / "4.npy").write_bytes(npy([44]))
        return verdict

    monkeypatch.setattr(CheckPool, "recheck", changing)
    summary = pack_while(source, format_name, 2, lambda: (source / "4.npy").write_bytes(npy([40])))
    assert rows(summary.output) == [("4.npy", "skipped", "changed")]
    assert summary.samples == 5


@pytest.mark.parametrize("check", ["full", "none"])
@pytest.mark.parametrize("at", [0, 2])
def test_file_deleted_after_the_scan_is_unreadable(tmp_path: Path, at: int, check: str, format_name: str) -> None:
    source = write_tree(tmp_path / "in", {f"{i}.npy": npy([i]) for i in range(6)})
    summary = pack_while(source, format_name, at, (source / "4.npy").unlink, check=check)
    assert rows(summary.output) == [("4.npy", "skipped", "unreadable")]
    assert summary.samples == 5


@pytest.mark.parametrize("check", ["full", "none"])
def test_files_that_grew_after_the_scan_fit(tmp_path: Path, check: str, format_name: str) -> None:
    """LMDB's map is planned from the scan. Growing it while a transaction was open ended the job."""
    source = write_tree(tmp_path / "in", {f"{i}.npy": npy([i]) for i in range(6)})
    large = npy(np.arange(5_000_000, dtype="f4"))

    def grow() -> None:
        for i in (1, 3, 4):
            (source / f"{i}.npy").write_bytes(large)

    summary = pack_while(source, format_name, 0, grow, check=check)
    assert summary.samples == 6
    assert {name: len(data) for name, data in content(summary.output).items() if data == large}.keys() == {
        "1.npy",
        "3.npy",
        "4.npy",
    }
    assert list(verify_dataset(summary.output)) == []


def test_unreadable_file_costs_itself_only(open_folder: Path, format_name: str) -> None:
    source = write_tree(open_folder / "in", {f"a/{i}.npy": npy([i]) for i in range(4)})
    (source / "a/2.npy").chmod(0)
    (open_folder / "out").mkdir()
    (open_folder / "out").chmod(0o777)
    result = as_nobody("", source, "-f", format_name, "-o", "out/x", "--check", "none", "--json", cwd=open_folder)
    (source / "a/2.npy").chmod(0o644)
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["skipped"] == {"unreadable": 1}
    assert rows(open_folder / "out/x") == [("a/2.npy", "skipped", "unreadable")]


def test_special_files_are_named_in_the_report(tmp_path: Path, format_name: str) -> None:
    source = write_tree(tmp_path / "in", {"a/1.npy": npy([1])})
    (source / "a/x.jpg").symlink_to("gone.jpg")
    os.mkfifo(source / "a/y.jpg")
    assert rows(quick(source, format_name).output) == [
        ("a/x.jpg", "skipped", "unreadable"),
        ("a/y.jpg", "skipped", "unreadable"),
    ]


# Refusals


def refused(source: str | Path, *, left: Sequence[str] = (), **options: Any) -> str:
    """Require that packing is refused in one line and leaves only so much in the current folder; returns the line."""
    before = sorted(Path.cwd().rglob("*"))
    with pytest.raises((InputError, OutputError)) as caught:
        quick(source, **options)
    assert caught.value.exit_status == 1
    assert sorted(Path.cwd().rglob("*")) == sorted([*before, *(Path.cwd() / name for name in left)])
    (line,) = str(caught.value).splitlines()
    return line


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's folder, as the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_existing_output_is_refused_before_any_work(tmp_path: Path, format_name: str) -> None:
    source = write_tree(tmp_path / "in", arrays(5))
    before = digests(quick(source, format_name).output)
    write_tree(source, {"a/more.npy": npy([7])})
    started: list[Progress] = []
    with pytest.raises(OutputError, match="--overwrite"):
        pack_folder(source, PackOptions(format=format_name), started.append)
    assert started == []
    assert digests(tmp_path / f"in{formats.get(format_name).suffix}") == before


def test_overwriting_leaves_exactly_the_new_output(tmp_path: Path, format_name: str) -> None:
    limits = ShardLimits(samples=10) if formats.get(format_name).has_shards else None
    output = tmp_path / "out"
    quick(write_tree(tmp_path / "many", arrays(50)), format_name, output=output, limits=limits)
    few = write_tree(tmp_path / "few", arrays(20))
    quick(few, format_name, output=tmp_path / "alone", limits=limits)
    assert quick(few, format_name, output=output, limits=limits, overwrite=True).samples == 40
    assert digests(output) == digests(tmp_path / "alone")
    assert sorted(os.listdir(tmp_path)) == ["alone", "few", "many", "out"]


def test_overwriting_another_format_leaves_exactly_the_new_one(tmp_path: Path) -> None:
    source = write_tree(tmp_path / "in", arrays(5))
    for name in formats.names():
        alone = quick(source, name).output
        assert digests(quick(source, name, output=tmp_path / "out", overwrite=True).output) == digests(alone)


def test_overwriting_without_an_old_output_just_packs(tmp_path: Path, format_name: str) -> None:
    assert quick(write_tree(tmp_path / "in", arrays(5)), format_name, overwrite=True).samples == 10


@pytest.mark.parametrize("kind", ["folder", "empty folder", "file", "dangling link", "half a dataset"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_output_of_packer_is_never_replaced(tmp_path: Path, kind: str, overwrite: bool) -> None:
    source = write_tree(tmp_path / "in", arrays(3))
    output = tmp_path / "out"
    if kind == "file":
        output.write_bytes(b"precious")
    elif kind == "dangling link":
        output.symlink_to("nowhere/at all")
    else:
        output.mkdir()
        if kind != "empty folder":
            write_tree(output, {"manifest.json" if kind == "half a dataset" else "precious": b"x"})
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(OutputError):
        quick(source, output=output, overwrite=overwrite)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_output_that_is_a_link_to_an_old_output_is_replaced_where_it_lies(tmp_path: Path, format_name: str) -> None:
    source = write_tree(tmp_path / "in", arrays(3))
    (tmp_path / "disk").mkdir()
    quick(source, format_name, output=tmp_path / "disk/out")
    (tmp_path / "link").symlink_to("disk/out")
    with pytest.raises(OutputError, match="exists already"):
        quick(source, format_name, output=tmp_path / "link")
    write_tree(source, {"a/more.npy": npy([7])})
    quick(source, format_name, output=tmp_path / "link", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert len(open_dataset(tmp_path / "disk/out")) == 7


def test_old_output_is_intact_when_the_new_run_fails(tmp_path: Path, format_name: str) -> None:
    source = write_tree(tmp_path / "in", arrays(5))
    output = quick(source, format_name).output
    before = digests(output)

    def fail() -> None:
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        pack_while(source, format_name, 7, fail, overwrite=True)
    assert digests(output) == before
    shutil.rmtree(source)
    write_tree(source, {"a/1.npy": b"damaged"})
    with pytest.raises(InputError):
        quick(source, format_name, overwrite=True, resume=False)
    assert digests(output) == before
    assert sorted(os.listdir(tmp_path)) == ["in", output.name, f"{output.name}.report.jsonl"]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("spelling", ["in", "in/", "link", "in/a/..", "{}/in"])
def test_output_that_is_the_input_is_refused(here: Path, spelling: str, overwrite: bool) -> None:
    write_tree("in", arrays(3))
    Path("link").symlink_to("in")
    output = Path(spelling.format(here))
    assert "is the input itself" in refused("in", output=output, overwrite=overwrite)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("overwrite", [False, True])
def test_output_that_holds_the_input_is_refused(overwrite: bool) -> None:
    write_tree("data/images", arrays(3))
    assert "holds the input" in refused("data/images", output=Path("data"), overwrite=overwrite)


def test_output_inside_the_input_is_left_out_of_every_scan(tmp_path: Path, format_name: str) -> None:
    source = write_tree(tmp_path / "in", arrays(4))
    (tmp_path / "link").symlink_to("in")
    for output in (source / "packed", tmp_path / "link/packed", source / "a/deeper"):
        for _ in range(2):
            summary = quick(source, format_name, output=output, overwrite=True)
            assert (summary.files, summary.samples, summary.classes) == (8, 8, ("a", "b"))


def test_partial_folder_is_not_counted_as_a_file_of_the_user(tmp_path: Path) -> None:
    """The summary of an output inside the input spoke of one hidden file: it was the unfinished output itself."""
    source = write_tree(tmp_path / "in", arrays(4))
    assert quick(source, output=source / "packed").ignored == {}


@pytest.mark.usefixtures("here")
def test_missing_parent_of_the_output_is_refused() -> None:
    write_tree("in", arrays(3))
    line = refused("in", output=Path("no/such/out"))
    assert "no such folder" in line
    assert "mkdir" in line


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", ["o" * 247, "o" * 251, "o" * 255, "o" * 256, "o" * 300 + "/x", "p/" * 2100 + "x"], ids=len)
def test_output_with_too_long_a_name_is_refused(name: str) -> None:
    """The unfinished output beside it has a longer name still; the system's error came out as a traceback."""
    write_tree("in", arrays(3))
    assert re.search("too long|no such folder", refused("in", output=Path(name)))


@pytest.mark.usefixtures("here")
def test_input_with_too_long_a_name_is_refused() -> None:
    """The system's error came out as a traceback."""
    assert re.search("too long|no such folder", refused("i" * 300))


NO_RIGHTS = {
    "parent that is read-only": (0o555, "closed/out"),
    "parent that cannot be entered": (0o600, "closed/out"),
    "grandparent that cannot be entered": (0o600, "closed/deeper/out"),
}


@pytest.mark.parametrize("case", NO_RIGHTS)
def test_output_where_nothing_may_be_written_is_refused(open_folder: Path, case: str) -> None:
    mode, output = NO_RIGHTS[case]
    write_tree(open_folder / "in", arrays(3))
    (open_folder / "closed/deeper").mkdir(parents=True)
    (open_folder / "closed").chmod(mode)
    result = as_nobody("", "in", "-o", output, "--check", "none", cwd=open_folder)
    (open_folder / "closed").chmod(0o755)
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = lines(result.stderr)
    assert "Permission denied" in line
    assert "closed" in line
    assert [path.name for path in (open_folder / "closed").rglob("*")] == ["deeper"]


def test_output_in_a_folder_that_may_be_written_but_not_listed(open_folder: Path) -> None:
    """The output was there, and yet called a failure that left nothing: its parent could not be opened to be synced."""
    write_tree(open_folder / "in", arrays(3))
    (open_folder / "drop").mkdir()
    (open_folder / "drop").chmod(0o333)
    result = as_nobody("", "in", "-o", "drop/out", "--check", "none", cwd=open_folder)
    (open_folder / "drop").chmod(0o755)
    assert (result.returncode == 0) == (open_folder / "drop/out").exists()
    assert len(lines(result.stderr)) == (result.returncode != 0)


@pytest.mark.parametrize("case", ["folder", "its parent"])
def test_input_that_may_not_be_read_is_refused(open_folder: Path, case: str) -> None:
    write_tree(open_folder / "closed/in", arrays(3))
    (open_folder / "closed").chmod(0)
    (open_folder / "out").mkdir()
    (open_folder / "out").chmod(0o777)
    source = "closed" if case == "folder" else "closed/in"
    result = as_nobody("", source, "-o", "out/x", "--check", "none", cwd=open_folder)
    (open_folder / "closed").chmod(0o755)
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = lines(result.stderr)
    assert "Permission denied" in line
    assert os.listdir(open_folder / "out") == []


NOTHING = {
    "empty folder": ({}, "nothing to pack: no other files"),
    "empty class folders": ({"a/": b"", "b/": b""}, "nothing to pack"),
    "no candidate": ({"a.txt": b"x", "b.txt": b"x", "c.csv": b"x"}, r"3 files .*2 \.txt, 1 \.csv"),
    "all damaged": (
        {"a/1.jpg": b"x", "a/2.jpg": b"", "a/n.txt": b""},
        r"2 files .*1 empty_file.*1 files are of other kinds \(1 \.txt\)",
    ),
}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("case", NOTHING)
def test_nothing_usable_leaves_no_output_and_says_what_was_seen(case: str, format_name: str) -> None:
    """Where files were looked at, the report says what was wrong with each, and stays."""
    files, phrase = NOTHING[case]
    Path("in").mkdir()
    for name, data in files.items():
        if name.endswith("/"):
            Path("in", name).mkdir()
        else:
            write_tree("in", {name: data})
    report = f"in.{format_name}.report.jsonl"
    left = [report] if case == "all damaged" else []
    message = refused("in", left=left, format_name=format_name)
    assert re.search(phrase, message)
    if left:
        assert f"Report: {Path.cwd() / report}" in message
        assert [row["path"] for row in report_rows(Path(report)) if row["outcome"] == "skipped"] == ["a/1.jpg", "a/2.jpg"]


@pytest.mark.usefixtures("here")
def test_missing_input_and_file_as_input_leave_nothing_behind(format_name: str) -> None:
    write_tree(".", {"file.jpg": jpeg()})
    assert "no such folder" in refused("none", format_name=format_name)
    assert "this is a file" in refused("file.jpg", format_name=format_name)
    Path("dangling").symlink_to("nowhere")
    assert "no such folder" in refused("dangling", format_name=format_name)


@pytest.mark.usefixtures("here")
def test_files_beside_class_folders_leave_nothing_behind(format_name: str) -> None:
    write_tree("in", {**arrays(3), "loose.npy": npy([1])})
    line = refused("in", format_name=format_name)
    assert "--labels none" in line
    assert "Move" in line


@pytest.mark.parametrize(
    "options",
    [
        {"format": "zip"},
        {"check": "half"},
        {"labels": "guess"},
        {"workers": 0},
        {"max_pixels": 0},
        {"timeout_s": 0},
        {"limits": ShardLimits(samples=-1), "format": "webdataset"},
        {"limits": ShardLimits(size_bytes=0), "format": "webdataset"},
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused_before_any_work(tmp_path: Path, options: dict[str, Any]) -> None:
    write_tree(tmp_path / "in", arrays(1))
    with pytest.raises(OptionError):
        pack_folder(tmp_path / "in", PackOptions(**options))
    assert os.listdir(tmp_path) == ["in"]


def test_shards_are_refused_for_formats_of_one_file(tmp_path: Path, format_name: str) -> None:
    source = write_tree(tmp_path / "in", arrays(1))
    if formats.get(format_name).has_shards:
        assert quick(source, format_name, limits=ShardLimits(samples=1)).shards == 2
        return
    with pytest.raises(OptionError, match="one file"):
        quick(source, format_name, limits=ShardLimits(samples=1))


# Jobs that end early, and jobs at the same time


def start(cwd: Path, *arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        pack_command(*arguments),
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_many_jobs_started_at_once_give_one_whole_output(tmp_path: Path, format_name: str) -> None:
    write_tree(tmp_path / "in", arrays(20))
    jobs = [start(tmp_path, "in", "-f", format_name, "-o", "out", "--workers", "1") for _ in range(5)]
    results = [(job.communicate(timeout=60), job.returncode) for job in jobs]
    assert [status for _, status in results].count(0) == 1
    for (_, errors), status in results:
        assert len(lines(errors)) == status
        assert "Traceback" not in errors
    assert list(verify_dataset(tmp_path / "out")) == []
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]


def test_failure_leaves_no_open_file(tmp_path: Path, format_name: str) -> None:
    """Open files would show as ResourceWarnings, which are errors here."""
    source = write_tree(tmp_path / "in", arrays(5))

    def fail() -> None:
        raise KeyboardInterrupt

    before = sorted(os.listdir("/proc/self/fd"))
    for at in (0, 3, 10):
        with pytest.raises(KeyboardInterrupt):
            pack_while(source, format_name, at, fail, resume=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sorted(os.listdir("/proc/self/fd")) == before


def test_verdicts_that_lie_about_a_file_are_noticed_before_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_name: str
) -> None:
    """What a writer wrote is read back: here one that swaps two bytes."""
    source = write_tree(tmp_path / "in", {f"{i}.npy": npy(np.arange(i + 4.0)) for i in range(6)})
    container = formats.get(format_name)
    append = container.open_writer.append  # type: ignore[attr-defined]

    def damaging(self: Any, sample: Any, payload: bytes) -> None:
        append(self, sample, payload[:-1] + b"\x77" if sample.index == 3 else payload)

    monkeypatch.setattr(container.open_writer, "append", damaging)
    with pytest.raises(OutputError, match=r"sample 3 \('3\.npy'\) does not read back"):
        pack(source, format_name)
    assert sorted(os.listdir(tmp_path)) == [f".in.{format_name}.partial", "in"]
    monkeypatch.undo()
    assert pack(source, format_name).samples == 6
    assert sorted(os.listdir(tmp_path)) == ["in", f"in.{format_name}"]


def test_kept_verdict_of_the_same_size_but_another_digest_is_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_name: str
) -> None:
    source = write_tree(tmp_path / "in", {f"{i}.npy": npy([i]) for i in range(4)})
    changed = npy([99])
    assert len(changed) == len(npy([2]))
    summary = pack_while(source, format_name, 1, lambda: (source / "2.npy").write_bytes(changed))
    assert content(summary.output)["2.npy"] == changed
    assert isinstance(Kept("npy", 0, 0), Kept)
