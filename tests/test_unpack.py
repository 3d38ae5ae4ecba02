"""Unpacking: what comes out is what went in, and nothing is written anywhere else."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packer.filetree
import packer.index
import packer.unpack
import packer.walk
from packer import CorruptDatasetError, DatasetError, OutputError, formats, unpack_dataset
from packer.cli.app import run
from packer.filetree import FileTree, why_unsafe
from packer.options import Progress
from packer.plan import ShardLimits
from packer.store import Store
from packer.verify import Finding
from packer.walk import walk
from tests.check_hooks import environment, lines
from tests.forgery import forge
from tests.inputs import jpeg, npy, pack, write_tree
from tests.test_cli import said
from tests.test_damage import copy_of, damaged_in_place, forge_index

pytestmark = pytest.mark.timeout(120)

Tree = dict[bytes, bytes | None]

NAMES: list[bytes] = [
    b"a.1.jpg",
    b"a.2.jpg",
    b"A.1.JPG",
    b"no class.tar.gz.png",
    "\u00e4 \u65e5\u672c \U0001f600.jpg".encode(),
    "a\u0308.jpg".encode(),
    b"\xe9\xff\xfe.jpg",
    b"line\nbreak\r.png",
    b"\x1b[2J\x07.jpg",
    b" begins and ends with a space.jpg ",
    b"percent %41 %.jpg",
    b"back\\slash:colon*?.jpg",
    b"con.jpg",
    b"quote'\".jpg",
    b"x" * 251 + b".jpg",
    b"deep/er/and deeper/1.jpg",
    b"-rf.jpg",
    b"empty.npy",
]


def tree_of(folder: Path) -> Tree:
    """All files with their bytes, and all folders with ``None``, by relative path; links are refused."""
    found: Tree = {}
    root = os.fsencode(folder)
    for path, folders, files in os.walk(root):
        for name in folders + files:
            whole = os.path.join(path, name)
            assert not os.path.islink(whole)
            found[os.path.relpath(whole, root)] = None
        for name in files:
            with open(os.path.join(path, name), "rb") as file:  # noqa: PTH123 - a Path holds no bytes
                found[os.path.relpath(os.path.join(path, name), root)] = file.read()
    return found


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small dataset in each format; tests change copies."""
    root = tmp_path_factory.mktemp("unpack")
    files: dict[str | bytes, bytes] = {f"{'ab'[i // 2]}/{i}.npy": npy([i]) for i in range(3)}
    write_tree(root / "in", {**files, "b/3.jpg": jpeg()})
    return {name: pack(root / "in", name, check="none").output for name in formats.names()}


@pytest.fixture
def work(packed: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the dataset ``a/0.npy a/1.npy b/2.npy b/3.jpg``, two folders down."""
    (tmp_path / "one").mkdir()
    return copy_of(packed["lmdb"], tmp_path / "one" / "work.lmdb")


def require_refused(work: Path, root: Path, kind: type[Exception], match: str, **options: Any) -> None:
    """Unpacking raises that, and nothing in the whole folder is another than before."""
    before = tree_of(root)
    with pytest.raises(kind, match=match) as caught:
        unpack_dataset(work, **options)
    assert tree_of(root) == before
    assert "\n" not in str(caught.value)


# Round trips


def test_names_of_every_kind_come_back_with_their_bytes(tmp_path: Path, format_name: str) -> None:
    files: dict[str | bytes, bytes] = {}
    for number, name in enumerate(NAMES):
        data = npy(np.zeros((0, 2))) if name.endswith(b"npy") else jpeg(seed=number)
        files |= {b"class " + name.replace(b"/", b"-")[:60] + b"/1.jpg": data, b"cat.v1/" + name: data}
    source = write_tree(tmp_path / "in", files)
    for empty in ("an empty class", "zzz"):
        (source / empty).mkdir()
    options: dict[str, Any] = {"limits": ShardLimits(samples=7)} if formats.get(format_name).has_shards else {}
    output = pack(source, format_name, check="none", **options).output
    before = tree_of(source)
    shutil.rmtree(source)
    summary = unpack_dataset(output)
    assert summary.output == source
    assert tree_of(source) == before
    assert (summary.files, summary.damaged) == (len(files), 0)
    assert summary.size_bytes == sum(map(len, files.values()))


def test_arrays_that_are_one_array_in_hdf5_come_back_as_files(tmp_path: Path, format_name: str) -> None:
    """Their common header is kept once, in the manifest."""
    files: dict[str | bytes, bytes] = {f"{i}.npy": npy(np.arange(6.0).reshape(2, 3) + i) for i in range(3)}
    output = pack(write_tree(tmp_path / "in", files), format_name, check="none").output
    assert (json.loads((output / "manifest.json").read_bytes())["fields"][0]["header"] != "") == (format_name == "hdf5")
    unpack_dataset(output, tmp_path / "out")
    assert tree_of(tmp_path / "out") == tree_of(tmp_path / "in")


def test_what_was_packed_in_a_shuffled_order_comes_back(tmp_path: Path) -> None:
    files: dict[str | bytes, bytes] = {f"{i % 4}/{i}.npy": npy([i]) for i in range(40)}
    output = pack(write_tree(tmp_path / "in", files), check="none", shuffle=1).output
    unpack_dataset(output, tmp_path / "out")
    assert tree_of(tmp_path / "out") == tree_of(tmp_path / "in")


def test_a_path_longer_than_one_system_call_takes_comes_back(work: Path, tmp_path: Path) -> None:
    name = b"/".join([b"a", *[b"d" * 200] * 30, b"0.npy"])
    forge(work, names=[name, b"a/1.npy", b"b/2.npy", b"b/3.jpg"])
    summary = unpack_dataset(work, tmp_path / "out")
    assert summary.files == 4
    folder = os.open(tmp_path / "out", os.O_RDONLY)
    for part in name.split(b"/"):
        inner = os.open(part, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    assert os.read(folder, 1000) == npy([0])
    os.close(folder)
    subprocess.run(["rm", "-r", tmp_path / "out"], check=True)


# Damage


def damage(folder: Path, number: int) -> str:
    """Change a byte of a sample; returns the file that it is in."""
    record = np.load(folder / "index.npy")["data"][number]
    shard = json.loads((folder / "manifest.json").read_bytes())["shards"][record["shard"]]["file"]
    at = int(record["offset"]) + int(record["size"]) - 1
    damaged_in_place(folder / shard, at, bytes([(folder / shard).read_bytes()[at] ^ 1]))
    return str(shard)


def test_a_damaged_sample_is_told_and_left_out_and_the_rest_comes_back(
    packed: dict[str, Path], tmp_path: Path, format_name: str
) -> None:
    work = copy_of(packed[format_name], tmp_path / "work")
    shard = damage(work, 1)
    told: list[Finding] = []
    summary = unpack_dataset(work, tmp_path / "out", on_damaged=told.append)
    assert [(finding.index, finding.name, finding.file) for finding in told] == [(1, "a/1.npy", shard)]
    assert "digest" in told[0].problem
    assert (summary.files, summary.damaged) == (3, 1)
    expected = tree_of(packed[format_name].with_name("in"))
    del expected[b"a/1.npy"]
    assert tree_of(tmp_path / "out") == expected


def test_the_command_names_what_is_damaged_on_standard_error_and_ends_with_1(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(work, 3)
    status, output, complaints = said(capsys, "unpack", str(work), "-o", str(tmp_path / "out"))
    assert status == 1
    assert "left out: sample 3 (b/3.jpg) in data.mdb: its bytes are not those that were packed" in complaints
    assert "unpacked 3 of 4 files into" in output
    assert "1 damaged sample left out" in output
    status, output, complaints = said(capsys, "unpack", str(work), "-o", str(tmp_path / "out2"), "-q")
    assert (status, output) == (1, "")
    assert "sample 3" in complaints
    status, output, complaints = said(capsys, "unpack", str(work), "-o", str(tmp_path / "out3"), "--json")
    assert (status, complaints) == (1, "")
    values = json.loads(output)
    assert [finding["name"] for finding in values["findings"]] == ["b/3.jpg"]
    assert (values["files"], values["output"], values["dataset"]) == (3, str(tmp_path / "out3"), str(work))


def test_a_dataset_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no such dataset"):
        unpack_dataset(tmp_path / "none.lmdb")


# Names from a stranger


HOSTILE = [
    b"../../x",
    b"../x.jpg",
    b"//x.jpg",
    b"a/../../x.jpg",
    b"a/./x.jpg",
    b"a//x.jpg",
    b"a/x.jpg/",
    b"a/",
    b"..",
    b".",
    b"",
    b"a/x\0.jpg",
]


@pytest.mark.parametrize("name", HOSTILE, ids=repr)
def test_a_name_that_leads_out_of_the_folder_is_refused(work: Path, tmp_path: Path, name: bytes) -> None:
    forge(work, names=[b"a/0.npy", b"a/1.npy", b"b/2.npy", name])
    require_refused(work, tmp_path, CorruptDatasetError, "no file may be called like sample 3")


def test_an_absolute_name_is_refused(work: Path, tmp_path: Path) -> None:
    forge(work, names=[b"a/0.npy", b"a/1.npy", b"b/2.npy", os.fsencode(tmp_path / "x")])
    require_refused(work, tmp_path, CorruptDatasetError, "no file may be called like sample 3")


@pytest.mark.parametrize("name", ["../x", "..", "", "/x", "b/c", "x\0", "\ud800"], ids=repr)
def test_a_class_that_leads_out_of_the_folder_is_refused(work: Path, tmp_path: Path, name: str) -> None:
    forge(work, classes=["a", name])
    require_refused(work, tmp_path, CorruptDatasetError, "no folder may be called like its class")


@pytest.mark.parametrize(
    "names",
    [[b"a/0", b"a/1", b"b/2", b"a/0"], [b"a/0", b"a/1", b"b/2", b"a"], [b"a/0", b"a/1", b"a/0/2", b"b/3"]],
    ids=["two equal names", "a folder that is a file", "a file that is a folder"],
)
@pytest.mark.parametrize("has_dir_fd", [True, False])
def test_two_names_that_cannot_both_be_are_refused(
    work: Path, tmp_path: Path, names: list[bytes], has_dir_fd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packer.filetree, "_HAS_DIR_FD", has_dir_fd)
    forge(work, names=names)
    require_refused(work, tmp_path, CorruptDatasetError, "would take the place of another file, folder or link")


def test_a_name_that_the_file_system_does_not_take_is_refused(work: Path, tmp_path: Path) -> None:
    forge(work, names=[b"a/0.npy", b"a/1.npy", b"b/2.npy", b"b/" + b"x" * 300])
    require_refused(work, tmp_path, OutputError, r"work: cannot be unpacked: sample 3 of 4 \('b/x+'\): File name too long")


def test_a_class_that_the_file_system_does_not_take_is_refused(work: Path, tmp_path: Path) -> None:
    forge(work, classes=["a", "x" * 300])
    require_refused(work, tmp_path, OutputError, r"work: cannot be unpacked: class 'x{100}': File name too long")


SPECIAL_ON_WINDOWS = [
    "con", "CON.jpg", "nul.tar.gz", "Com1.jpg", "lpt\u00b2", "conin$", "aux .jpg", "a:b", "C:", "a\\b", "..\\x", "x.", "x ",
    "what?.jpg", "a*", 'a"b', "a<b", "a>b", "a|b", "a\nb", "\x1f",
]  # fmt: skip
USUAL_ON_WINDOWS = [
    "console.jpg",
    "com.jpg",
    "com10.jpg",
    "nul-1.jpg",
    " x",
    ".hidden",
    "x..jpg",
    "\u00e4",
    "lpt",
    "a'b`$%.jpg",
]


@pytest.mark.parametrize("name", SPECIAL_ON_WINDOWS)
def test_names_that_windows_treats_specially_are_refused_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_unsafe([b"a", name.encode()]) == ""
    monkeypatch.setattr(packer.filetree, "_IS_WINDOWS", True)
    assert why_unsafe([b"a", name.encode()]) != ""


def test_usual_names_are_not_refused_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packer.filetree, "_IS_WINDOWS", True)
    assert [name for name in USUAL_ON_WINDOWS if why_unsafe([name.encode()])] == []


def test_a_device_of_windows_is_refused_there_before_anything_is_written(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packer.filetree, "_IS_WINDOWS", True)
    forge(work, names=[b"a/0.npy", b"a/1.npy", b"b/2.npy", b"b/nul.jpg"])
    require_refused(work, tmp_path, CorruptDatasetError, "the name of a device on Windows")


@pytest.mark.parametrize("has_dir_fd", [True, False])
def test_no_link_is_followed_in_the_folder(tmp_path: Path, has_dir_fd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packer.filetree, "_HAS_DIR_FD", has_dir_fd)
    outside = write_tree(tmp_path / "outside", {"file": b"as it was"})
    root = tmp_path / "root"
    root.mkdir()
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "file")
    (root / "new").symlink_to(outside / "new")
    with FileTree(root) as tree:
        for parts in ([b"folder", b"x"], [b"folder", b"y", b"x"], [b"file"], [b"new"], [b"file", b"x"]):
            with pytest.raises((FileExistsError, NotADirectoryError)):
                tree.write(parts, b"written through a link")
        with pytest.raises(NotADirectoryError):
            tree.make_folder([b"folder"])
        tree.write([b"sound", b"x"], b"sound")
    assert tree_of(outside) == {b"file": b"as it was"}
    assert (root / "sound/x").read_bytes() == b"sound"


def test_a_link_that_somebody_puts_into_the_unfinished_folder_is_not_followed(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packer.unpack, "_PROGRESS_EVERY", 1)
    outside = tmp_path / "outside"
    outside.mkdir()

    def put_link(progress: Progress) -> None:
        if progress.done == 1:
            folder = work.parent / ".work.partial/unpacked/b"
            folder.rmdir()
            folder.symlink_to(outside)

    require_refused(work, tmp_path, CorruptDatasetError, r"'b/2\.npy'.*would take the place", on_progress=put_link)


# Where the output stands


@pytest.mark.parametrize("what", ["file", "folder", "link to an empty folder", "dangling link"])
def test_an_output_that_exists_is_not_touched(work: Path, what: str) -> None:
    target = work.parent / "work"
    if what == "file":
        target.write_bytes(b"x")
    elif what == "folder":
        write_tree(target, {"x": b"x"})
    elif what == "dangling link":
        target.symlink_to("nothing")
    else:
        (work.parent / "empty").mkdir()
        target.symlink_to("empty")
    before = sorted(os.listdir(work.parent)), target.is_symlink() or tree_of(work.parent)
    with pytest.raises(OutputError, match=r"work: exists already, and is not touched\. Choose another folder with -o"):
        unpack_dataset(work)
    assert (sorted(os.listdir(work.parent)), target.is_symlink() or tree_of(work.parent)) == before


def test_an_empty_folder_is_filled(work: Path) -> None:
    (work.parent / "work").mkdir()
    assert unpack_dataset(work).files == 4
    assert sorted(os.listdir(work.parent)) == ["work", "work.lmdb"]
    assert sorted(os.listdir(work.parent / "work")) == ["a", "b"]


def test_an_output_that_somebody_makes_meanwhile_is_not_touched(work: Path) -> None:
    with pytest.raises(OutputError, match="exists already"):
        unpack_dataset(work, on_progress=lambda progress: write_tree(work.parent / "work", {"theirs": b"x"}))
    assert tree_of(work.parent / "work") == {b"theirs": b"x"}
    assert sorted(os.listdir(work.parent)) == ["work", "work.lmdb"]


@pytest.mark.parametrize(
    ("output", "problem"),
    [("work.lmdb/x", "lies in the dataset"), ("work.lmdb", "lies in the dataset"), ("none/x", "no such folder")],
)
def test_a_place_where_nothing_can_be_unpacked_is_refused(work: Path, tmp_path: Path, output: str, problem: str) -> None:
    require_refused(work, tmp_path, OutputError, problem, output=work.parent / output)


def test_a_dataset_whose_name_has_no_suffix_needs_a_name_for_its_files(work: Path, tmp_path: Path) -> None:
    bare = work.rename(work.with_name("work"))
    require_refused(bare, tmp_path, OutputError, "Choose one with -o")
    assert unpack_dataset(bare, work.parent / "files").files == 4


def test_what_a_killed_job_has_left_is_replaced(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import os, signal, sys, packer.unpack\npacker.unpack._PROGRESS_EVERY = 1\n"
        "packer.unpack_dataset(sys.argv[1], on_progress=lambda progress: os.kill(os.getpid(), signal.SIGKILL))"
    )
    assert subprocess.run([sys.executable, "-c", code, work], env=environment(), check=False).returncode == -9
    assert sorted(os.listdir(work.parent)) == [".work.partial", "work.lmdb"]
    assert (work.parent / ".work.partial/unpacked/a/0.npy").exists()
    write_tree(work.parent / ".work.partial/unpacked", {"a/old.jpg": b"old"})
    unpack_dataset(work)
    assert sorted(os.listdir(work.parent)) == ["work", "work.lmdb"]
    assert sorted(os.listdir(work.parent / "work/a")) == ["0.npy", "1.npy"]


def test_the_unfinished_output_of_another_command_is_not_touched(work: Path, tmp_path: Path) -> None:
    write_tree(work.parent / ".work.partial", {"lock": b"", "journal.jsonl": b"hours of work", "output/data.mdb": b"x"})
    require_refused(work, tmp_path, OutputError, r"\.work\.partial: is in the way")


def test_a_link_in_the_place_of_the_unfinished_output_is_refused(work: Path, tmp_path: Path) -> None:
    outside = write_tree(tmp_path / "outside", {"unpacked/file": b"as it was"})
    (work.parent / ".work.partial").symlink_to(outside)
    with pytest.raises(OutputError, match="is in the way"):
        unpack_dataset(work)
    assert tree_of(outside) == {b"unpacked": None, b"unpacked/file": b"as it was"}


def test_a_second_job_on_the_same_output_is_refused(work: Path) -> None:
    def second(progress: Progress) -> None:
        with pytest.raises(OutputError, match="another job"):
            unpack_dataset(work)

    assert unpack_dataset(work, on_progress=second).files == 4


def test_an_interrupt_leaves_nothing(work: Path, tmp_path: Path) -> None:
    def interrupt(progress: Progress) -> None:
        raise KeyboardInterrupt("by hand")

    require_refused(work, tmp_path, KeyboardInterrupt, "^by hand$", on_progress=interrupt)


# Disks


def test_a_full_disk_is_one_message_and_leaves_nothing(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = FileTree.write

    def full(self: FileTree, parts: Any, data: bytes) -> None:
        write(self, parts, data)
        if parts == [b"b", b"2.npy"]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(FileTree, "write", full)
    before = tree_of(tmp_path)
    status, output, complaints = said(capsys, "unpack", str(work))
    assert (status, output) == (1, "")
    (line,) = lines(complaints)
    assert str(work.parent / "work") in line
    assert "'b/2.npy'" in line
    assert "No space left on device" in line
    assert tree_of(tmp_path) == before


def test_a_disk_that_fails_when_it_is_synced_is_an_error_and_leaves_nothing(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(packer.unpack, "sync_file_system", fail)
    require_refused(work, tmp_path, OutputError, "Input/output error")


def test_all_is_synced_before_it_gets_its_name_and_its_name_after(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, calls = work.parent / "work", []

    def note(name: str) -> None:
        real = getattr(packer.unpack, name)

        def noting(folder: Path) -> None:
            calls.append((name, folder.relative_to(work.parent), target.exists()))
            real(folder)

        monkeypatch.setattr(packer.unpack, name, noting)

    note("sync_file_system")
    note("sync_folder")
    unpack_dataset(work)
    assert calls == [("sync_file_system", Path(".work.partial/unpacked"), False), ("sync_folder", Path(), True)]


def test_too_little_room_is_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers that are kept once count as often as there are files."""
    arrays = {f"{i}.npy": npy([i]) for i in range(3)}
    output = pack(write_tree(tmp_path / "in", arrays), "hdf5", check="none").output
    size = sum(map(len, arrays.values()))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=size - 1))
    problem = f"{size:,} bytes are to be unpacked, {size - 1:,} are free"
    require_refused(output, tmp_path, OutputError, problem, output=tmp_path / "out")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=size))
    assert unpack_dataset(output, tmp_path / "out").files == 3


# The command, and going through all samples


def test_the_command_says_what_it_wrote(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work.parent)
    status, output, complaints = said(capsys, "unpack", "work.lmdb")
    assert (status, complaints) == (0, "")
    assert re.fullmatch(r"unpacked 4 of 4 files into work \([\d.]+ kB\) in [\d.]+ s\n", output)
    assert said(capsys, "unpack", "work.lmdb", "-o", "quiet", "-q") == (0, "", "")
    assert json.loads(said(capsys, "unpack", "work.lmdb", "-o", "json", "--json")[1])["files"] == 4
    assert said(capsys, "unpack", "work.lmdb")[0] == 1
    assert run(["unpack"]) == 2


def test_walking_gives_what_looking_up_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of records and of names end anywhere."""
    files: dict[str | bytes, bytes] = {f"{'c' * (i % 5)}/{i}.npy": npy([i]) for i in range(30)}
    store = Store(pack(write_tree(tmp_path / "in", files), check="none", labels="none").output)
    expected = [(number, record, store.index.name(number)) for number, record in store.records()]
    for names, block, rows in ((7, 4, 3), (1, 1, 1), (1000, 30, 30), (9, 7, 2)):
        monkeypatch.setattr(packer.index, "_NAME_BLOCK", names)
        monkeypatch.setattr(packer.index, "_BLOCK", block)
        monkeypatch.setattr(packer.walk, "_ROWS", rows)
        assert list(walk(store)) == expected


@pytest.mark.parametrize("end", [0, 6, 2**40])
def test_walking_refuses_a_name_that_lies_outside_the_names(work: Path, end: int) -> None:
    ends = np.load(work / "index.npy")["name_end"].copy()
    ends[1] = end
    forge_index(work, lambda records: records["name_end"].__setitem__(slice(None), ends))
    with pytest.raises(CorruptDatasetError, match="the name of sample 1 lies outside"):
        list(walk(Store(work)))
