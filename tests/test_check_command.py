"""``pack check SRC``: the verdicts of packing, and nothing packed."""

from __future__ import annotations

import json
import os
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from packer import OutputError, check_folder
from packer.quarantine import copy_skipped
from tests.check_hooks import as_nobody, environment, pack_command, run_pack
from tests.inputs import jpeg, npy, pack, png, write_tree

FILES: dict[str | bytes, bytes] = {
    "a/1.jpg": jpeg(),
    "a/2.jpg": jpeg()[:500],
    "a/3 \x1b[31m.jpg": b"<html><title>404 Not Found</title></html>",
    b"b/h\xe9.jpg": b"",
    "b/5.jpg": png(),
    "b/6.npy": npy([1.0, float("nan")]),
    "b/notes.txt": b"x",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "in", FILES)


def snapshot(folder: Path) -> dict[bytes, tuple[int, int, int, bytes]]:
    """Everything that may be seen of a folder's files."""
    found = {}
    for path, _, names in os.walk(os.fsencode(folder)):
        for name in [b"", *names]:
            info = os.lstat(os.path.join(path, name))
            data = b""
            if stat.S_ISREG(info.st_mode):
                with open(os.path.join(path, name), "rb") as file:  # noqa: PTH123 - a Path holds no bytes
                    data = file.read()
            found[os.path.join(path, name)] = (info.st_mode, info.st_mtime_ns, info.st_ino, data)
    return found


@pytest.mark.parametrize("arguments", [(), ("--skip", "nonfinite"), ("--labels", "none"), ("--max-pixels", "100")])
def test_report_is_the_one_that_packing_writes(tmp_path: Path, root: Path, arguments: tuple[str, ...]) -> None:
    before = snapshot(root)
    checked = run_pack("check", "in", "-o", "report.jsonl", *arguments, cwd=tmp_path)
    assert (checked.returncode, sorted(os.listdir(tmp_path))) == (0, ["in", "report.jsonl"])
    packed = run_pack("in", *arguments, cwd=tmp_path)
    assert packed.returncode == 0, packed.stderr
    assert (tmp_path / "report.jsonl").read_bytes() == (tmp_path / "in.lmdb/report.jsonl").read_bytes()
    assert snapshot(root) == before


def test_rows_and_summary_on_the_terminal(tmp_path: Path, root: Path) -> None:
    done = run_pack("check", "in", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert r"skipped not_an_image a/3 \x1b[31m.jpg: an HTML page, title '404 Not Found'" in done.stdout
    assert r"skipped empty_file b/h\xe9.jpg: 0 bytes" in done.stdout
    assert "warned extension_mismatch b/5.jpg" in done.stdout
    assert "3 of 6 files in in can be packed" in done.stdout
    assert "skipped 3: 1 empty_file, 1 not_an_image, 1 truncated" in done.stdout
    assert "ignored 1: 1 .txt" in done.stdout
    assert "\x1b" not in done.stdout
    assert os.listdir(tmp_path) == ["in"]


def test_report_on_standard_output_is_json_lines(tmp_path: Path, root: Path) -> None:
    done = run_pack("check", "in", "-o", "-", cwd=tmp_path)
    assert done.stderr == ""
    assert [json.loads(line)["code"] for line in done.stdout.splitlines()] == [
        "truncated", "not_an_image", "extension_mismatch", "nonfinite", "empty_file",
    ]  # fmt: skip


def test_json_is_one_object_with_summary_and_rows(tmp_path: Path, root: Path) -> None:
    done = run_pack("check", "in", "--json", cwd=tmp_path)
    content = json.loads(done.stdout)
    assert content["summary"]["samples"] == 3
    assert content["summary"]["skipped"] == {"truncated": 1, "not_an_image": 1, "empty_file": 1}
    assert [row["path"] for row in content["rows"]][-1] == "b/h\udce9.jpg"
    assert run_pack("check", "in", "--json", "-o", "-", cwd=tmp_path).returncode == 2


def test_strict_gives_status_3_and_the_rows_all_the_same(tmp_path: Path, root: Path) -> None:
    done = run_pack("check", "in", "--strict", "-o", "report.jsonl", cwd=tmp_path)
    assert done.returncode == 3
    assert "3 of 6 files were skipped" in done.stderr
    assert len((tmp_path / "report.jsonl").read_text().splitlines()) == 5
    assert "skipped truncated a/2.jpg" in done.stdout
    content = json.loads(run_pack("check", "in", "--strict", "--json", cwd=tmp_path).stdout)
    assert len(content["rows"]) == 5
    assert "3 of 6" in content["error"]


def test_quiet_says_nothing_and_its_status_everything(tmp_path: Path, root: Path) -> None:
    done = run_pack("check", "in", "-q", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert run_pack("check", "in", "-q", "--strict", cwd=tmp_path).returncode == 3


def test_folder_where_every_file_is_bad_is_still_reported(tmp_path: Path) -> None:
    write_tree(tmp_path / "in", {"1.jpg": b"", "2.jpg": jpeg()[:300]})
    done = run_pack("check", "in", cwd=tmp_path)
    assert done.returncode == 1
    assert "skipped empty_file 1.jpg" in done.stdout
    assert "nothing could be packed" in done.stderr


@pytest.mark.parametrize("arguments", [(), ("-o", "report.jsonl")])
def test_input_that_cannot_be_packed_is_refused_in_the_same_words(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    write_tree(tmp_path / "in", {"train/1.npy": npy([1]), "val/1.npy": npy([1])})
    checked, packed = run_pack("check", "in", *arguments, cwd=tmp_path), run_pack("in", cwd=tmp_path)
    assert (checked.returncode, packed.returncode) == (1, 1)
    assert checked.stderr == packed.stderr
    assert os.listdir(tmp_path) == ["in"]
    assert run_pack("check", "missing", cwd=tmp_path).returncode == 1


def test_report_replaces_a_file_and_nothing_else(tmp_path: Path, root: Path) -> None:
    (tmp_path / "report.jsonl").write_text("old")
    check_folder(root, tmp_path / "report.jsonl")
    assert (tmp_path / "report.jsonl").read_text() != "old"
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match="no regular file"):
        check_folder(root, tmp_path / "folder")
    with pytest.raises(OutputError, match="cannot be written"):
        check_folder(root, tmp_path / "missing/report.jsonl")
    assert sorted(os.listdir(tmp_path)) == ["folder", "in", "report.jsonl"]


@pytest.mark.parametrize("place", ["in/report.jsonl", "in/a/1.jpg", "link", "in/../in/new.jsonl"])
def test_report_never_goes_into_the_input(tmp_path: Path, root: Path, place: str) -> None:
    os.symlink("in/a/1.jpg", tmp_path / "link")
    before = snapshot(root)
    done = run_pack("check", "in", "-o", place, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{place}: lies in the input" in done.stderr
    assert snapshot(root) == before


def test_report_at_a_link_replaces_what_it_leads_to(tmp_path: Path, root: Path) -> None:
    """``/dev/stdout`` is one: it would be gone."""
    (tmp_path / "report.jsonl").write_text("old")
    os.symlink("report.jsonl", tmp_path / "link")
    check_folder(root, tmp_path / "link")
    assert os.readlink(tmp_path / "link") == "report.jsonl"
    assert "truncated" in (tmp_path / "report.jsonl").read_text()


def test_standard_output_by_another_name_gets_the_rows_and_nothing_else(tmp_path: Path, root: Path) -> None:
    expected = run_pack("check", "in", "-o", "-", cwd=tmp_path).stdout
    assert run_pack("check", "in", "-o", "/dev/stdout", cwd=tmp_path).stdout == expected
    with (tmp_path / "rows").open("w") as file:
        command = pack_command("check", "in", "-o", "rows")
        subprocess.run(command, cwd=tmp_path, env=environment(), stdout=file, check=True, timeout=60)
    assert (tmp_path / "rows").read_text() == expected


def test_two_jobs_and_a_trap_under_the_unfinished_name_do_not_meet(tmp_path: Path, root: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    os.symlink("mine", tmp_path / ".report.jsonl.partial")
    check_folder(root, tmp_path / "report.jsonl", on_progress=lambda progress: _check_once_inside(root, tmp_path))
    assert (tmp_path / "mine").read_text() == "mine"
    assert len((tmp_path / "report.jsonl").read_text().splitlines()) == 5
    assert sorted(os.listdir(tmp_path)) == [".report.jsonl.partial", "in", "inner.mark", "mine", "report.jsonl"]


def _check_once_inside(root: Path, folder: Path) -> None:
    if not (folder / "inner.mark").exists():
        (folder / "inner.mark").write_text("")
        check_folder(root, folder / "report.jsonl")


def test_report_of_before_is_not_shown_where_the_job_ends_without_one(tmp_path: Path) -> None:
    write_tree(tmp_path / "in", {"train/1.npy": npy([1]), "val/1.npy": npy([1])})
    old = '{"path": "train/1.npy", "outcome": "skipped", "code": "corrupt", "detail": "long ago"}\n'
    (tmp_path / "report.jsonl").write_text(old)
    for arguments in ((), ("--json",), ("--quarantine", "bad")):
        done = run_pack("check", "in", "-o", "report.jsonl", *arguments, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        assert "splits" in done.stderr
    assert (tmp_path / "report.jsonl").read_text() == old
    assert sorted(os.listdir(tmp_path)) == ["in", "report.jsonl"]


@pytest.mark.parametrize("place", ["in", "missing"])
def test_no_place_for_temporary_files_is_one_message_with_a_way_out(tmp_path: Path, root: Path, place: str) -> None:
    """In the input is none: ``tempfile`` falls back on the current folder."""
    before = snapshot(root)
    code = f"import tempfile; tempfile.tempdir = {str(tmp_path / place)!r}; from packer.cli import main; main()"
    command = [sys.executable, "-c", code, "check", "in"]
    for more, status in (([], 1), (["-o", "report.jsonl"], 0)):
        done = subprocess.run(
            [*command, *more], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr
        assert ("TMPDIR" in done.stderr) == bool(status)
    assert snapshot(root) == before


def test_empty_name_is_not_the_current_folder(tmp_path: Path, root: Path) -> None:
    """``pack "$DATA"`` where nothing is in DATA."""
    for command in (["check", ""], [""]):
        done = run_pack(*command, cwd=root)
        assert (done.returncode, done.stdout) == (2, "")
        assert "the name of the folder is empty" in done.stderr
    assert os.listdir(tmp_path) == ["in"]


# --quarantine


def test_quarantine_has_the_skipped_files_with_their_paths_and_bytes(tmp_path: Path, root: Path) -> None:
    os.symlink("nowhere.jpg", root / "a/dangling.jpg")
    os.mkfifo(root / "b/fifo.jpg")
    before = snapshot(root)
    done = run_pack("check", "in", "--quarantine", "bad", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "copied 3 skipped files to bad" in done.stdout
    assert "a/dangling.jpg: not copied to the quarantine: No such file" in done.stderr
    assert "b/fifo.jpg: not copied to the quarantine: not a regular file" in done.stderr
    copies = {
        os.path.relpath(path, os.fsencode(tmp_path / "bad")): data for path, (*_, data) in snapshot(tmp_path / "bad").items()
    }
    assert {name: data for name, data in copies.items() if name.endswith(b".jpg")} == {
        b"a/2.jpg": FILES["a/2.jpg"], b"a/3 \x1b[31m.jpg": FILES["a/3 \x1b[31m.jpg"], b"b/h\xe9.jpg": b"",
    }  # fmt: skip
    assert snapshot(root) == before
    (tmp_path / "bad/a/2.jpg").write_bytes(b"edited")
    assert snapshot(root) == before, "a copy that is edited must not reach the original"


@pytest.mark.parametrize("folder", ["in", "in/bad", "in/a", ".", "full", "file", "link"])
def test_quarantine_that_would_mix_with_anything_is_refused_before_any_work(tmp_path: Path, root: Path, folder: str) -> None:
    write_tree(tmp_path, {"full/x.txt": b"mine", "file": b"mine"})
    os.symlink("in", tmp_path / "link")
    before = snapshot(tmp_path)
    done = run_pack("check", "in", "--quarantine", folder, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    assert snapshot(tmp_path) == before


def test_empty_folder_may_be_the_quarantine_and_packing_goes_on_after_it(tmp_path: Path, root: Path) -> None:
    (tmp_path / "bad").mkdir()
    assert run_pack("check", "in", "--quarantine", "bad", "-q", cwd=tmp_path).stdout == ""
    assert pack(root).skipped == {"truncated": 1, "not_an_image": 1, "empty_file": 1}


def test_quarantine_needs_no_locale(tmp_path: Path) -> None:
    write_tree(tmp_path / "in", {"日本.jpg": b"text", "a.npy": npy([1])})
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run_pack("check", "in", "--quarantine", "bad", cwd=tmp_path, env=plain)
    assert done.returncode == 0, done.stderr
    assert os.listdir(tmp_path / "bad") == ["日本.jpg"]


def test_quarantine_does_not_follow_a_link_that_packing_does_not_follow(tmp_path: Path) -> None:
    """A hostile archive holds a link to a private key; who sends the quarantine on must not send the key."""
    write_tree(tmp_path, {"in/a.npy": npy([1]), "in/bad.jpg": b"text", "key": b"secret"})
    os.symlink("../key", tmp_path / "in/b.jpg")
    os.symlink("bad.jpg", tmp_path / "in/c.jpg")
    done = run_pack("check", "in", "--quarantine", "bad", cwd=tmp_path)
    assert "b.jpg: not copied to the quarantine: a link that leaves the input" in done.stderr
    assert sorted(os.listdir(tmp_path / "bad")) == ["bad.jpg", "c.jpg"]
    run_pack("check", "in", "--quarantine", "all", "--follow-links", cwd=tmp_path)
    assert (tmp_path / "all/b.jpg").read_bytes() == b"secret"


def test_full_disk_leaves_no_part_of_a_file_and_the_rows_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_tree(tmp_path / "in", {"1.jpg": b"x" * 3_000_000, "2.jpg": b"y"})
    rows: list[dict[str, Any]] = [{"path": name, "outcome": "skipped"} for name in ("1.jpg", "2.jpg")]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, before[1]))  # fails in the middle, as a full disk does
    try:
        with pytest.raises(OutputError, match=r"1\.jpg: cannot be written.*--quarantine"):
            list(copy_skipped(root, rows, tmp_path / "bad"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path / "bad") == []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 9, 0))
    with pytest.raises(OutputError, match="it has 3,000,000 bytes, 0 are free"):
        list(copy_skipped(root, rows, tmp_path / "other"))
    code = (
        "import shutil; shutil.disk_usage = lambda path: shutil._ntuple_diskusage(9, 9, 0)\nfrom packer.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "check", "in", "--quarantine", "third", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    assert "skipped not_an_image 1.jpg" in done.stdout
    assert "third/1.jpg: cannot be written" in done.stderr


REQUIRE = """
import sys
from pathlib import Path
from packer.quarantine import require_quarantine
try:
    require_quarantine(Path("in"), Path(sys.argv[1]))
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("place", "phrase"),
    [
        ("closed/bad", "cannot be written"),
        ("in/../closed/x/y", "cannot be written"),
        ("hidden", "Permission denied"),
        ("file/bad", "file is no folder"),
    ],
)
def test_quarantine_that_cannot_be_made_is_refused_before_any_work(place: str, phrase: str) -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to other users
        root = write_tree(folder, {"in/a.npy": npy([1]), "file": b"mine"})
        root.chmod(0o755)
        (root / "closed").mkdir(mode=0o555)
        (root / "hidden").mkdir(mode=0o333)
        done = as_nobody(REQUIRE, place, cwd=root)
        (root / "hidden").chmod(0o755)
    assert done.stdout.startswith("OutputError"), done
    assert phrase in done.stdout
