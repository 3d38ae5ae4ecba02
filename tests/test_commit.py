"""The commit: what is synced and renamed, in which order, and what a stop in between leaves."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from packer import commit, formats, open_dataset
from packer.commit import Staging
from packer.errors import OutputError
from packer.plan import ShardLimits
from tests.check_hooks import environment
from tests.inputs import npy, pack, write_tree

Event = tuple[str, str]
FILES = ["index.npy", "names.bin", "report.jsonl", "data.mdb"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "in", {f"{c}/{i}.npy": npy([i, ord(c)]) for c in "ab" for i in range(6)})


@pytest.fixture
def no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system, such as NFS, or a kernel without ``renameat2``."""
    monkeypatch.setattr(commit, "_renameat2", lambda source, target, flags: False)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Event]:
    """All syncs and renames, as they happen, by the names below the test's folder."""
    seen: list[Event] = []
    fsync, rename, renameat2 = os.fsync, Path.rename, commit._renameat2

    def shown(path: str | os.PathLike[str]) -> str:
        return os.path.relpath(path, tmp_path)

    def recording_fsync(descriptor: int) -> None:
        seen.append(("sync", shown(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    def recording_rename(self: Path, target: Path) -> Path:
        seen.append(("rename", f"{shown(self)} {shown(target)}"))
        return rename(self, target)

    def recording_renameat2(source: Path, target: Path, flags: int) -> bool:
        done = renameat2(source, target, flags)
        if done:
            seen.append(("exchange" if flags == 2 else "rename", f"{shown(source)} {shown(target)}"))
        return done

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(Path, "rename", recording_rename)
    monkeypatch.setattr(commit, "_renameat2", recording_renameat2)
    return seen


def tree(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def stage(target: Path, content: bytes = b"x", *, overwrite: bool = False) -> Staging:
    """A staging folder that is entered and empty but for all files of a dataset, the manifest excepted."""
    staging = Staging(target, overwrite=overwrite).__enter__()
    staging.start_over()
    for name in FILES:
        (staging.folder / name).write_bytes(content)
    return staging


def finish(staging: Staging, error: BaseException | None = None) -> None:
    staging.__exit__(None if error is None else type(error), error, None)


def put(target: Path, content: bytes = b"x", *, overwrite: bool = False) -> None:
    staging = stage(target, content, overwrite=overwrite)
    staging.commit(content, FILES)
    finish(staging)


# Order


def test_everything_is_synced_before_the_rename_in_this_order(source: Path, events: list[Event], format_name: str) -> None:
    limits = 5 if formats.get(format_name).has_shards else 0
    output = _pack(source, format_name, shard_samples=limits)
    partial = f".in.{format_name}.partial/output"
    shards = sorted(set(tree(output)) - {"index.npy", "names.bin", "report.jsonl", "manifest.json"})
    if limits:
        assert len(shards) == 3
    last = {event: i for i, event in enumerate(events)}
    order = [("sync", f"{partial}/{name}") for name in [*shards, "index.npy", "names.bin", "report.jsonl", "manifest.json"]]
    order += [("sync", partial), ("rename", f"{partial} in.{format_name}"), ("sync", ".")]
    assert [last[event] for event in order] == sorted(last[event] for event in order)
    assert events[-3:] == order[-3:]


def test_overwriting_exchanges_in_the_same_order(source: Path, events: list[Event], format_name: str) -> None:
    _pack(source, format_name)
    events.clear()
    _pack(source, format_name, overwrite=True)
    partial = f".in.{format_name}.partial/output"
    assert events[-4:] == [
        ("sync", f"{partial}/manifest.json"),
        ("sync", partial),
        ("exchange", f"{partial} in.{format_name}"),
        ("sync", "."),
    ]


def test_nothing_is_written_after_its_sync(source: Path, monkeypatch: pytest.MonkeyPatch, format_name: str) -> None:
    synced: dict[str, str] = {}
    fsync = os.fsync

    def digesting_fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_file():
            synced[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", digesting_fsync)
    output = _pack(source, format_name)
    assert synced == {name: hashlib.sha256(data).hexdigest() for name, data in tree(output).items()}


def test_manifest_does_not_exist_before_all_else_is_synced(
    source: Path, monkeypatch: pytest.MonkeyPatch, format_name: str
) -> None:
    fsync = os.fsync
    seen = []

    def looking_fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_file() and path.name != "manifest.json":
            seen.append((path.parent / "manifest.json").exists())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", looking_fsync)
    _pack(source, format_name)
    assert len(seen) >= 4
    assert not any(seen)


def test_failed_sync_leaves_nothing_under_the_final_name(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_name: str
) -> None:
    fsync = os.fsync
    for name in (None, "index.npy", "names.bin", "report.jsonl", "manifest.json", "output"):

        def failing_fsync(descriptor: int, name: str | None = name) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            if path.name == name or (name is None and path.is_file()):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", failing_fsync)
        with pytest.raises(OutputError, match=r"Input/output error"):
            _pack(source, format_name)
        assert not (tmp_path / f"in.{format_name}").exists()
    monkeypatch.undo()
    assert len(open_dataset(_pack(source, format_name))) == 12
    assert sorted(os.listdir(tmp_path)) == ["in", f"in.{format_name}"]


# The final name


def test_output_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "out"
    staging = stage(target)
    assert not target.exists()
    staging.commit(b"{}", FILES)
    assert sorted(os.listdir(target)) == sorted([*FILES, "manifest.json"])
    finish(staging)
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(1), None])
def test_leaving_without_a_commit_removes_the_partial_folder(tmp_path: Path, error: BaseException | None) -> None:
    staging = stage(tmp_path / "out")
    finish(staging, error)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("fallback", [False, True])
@pytest.mark.parametrize("make", [Path.mkdir, Path.touch], ids=["empty folder", "file"])
def test_what_appears_under_the_final_name_meanwhile_is_not_replaced(
    tmp_path: Path, make: Callable[[Path], None], fallback: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fallback:
        monkeypatch.setattr(commit, "_renameat2", lambda source, target, flags: False)
    target = tmp_path / "out"
    staging = stage(target)
    make(target)
    before = target.stat().st_ino
    with pytest.raises(OutputError, match="somebody else"):
        staging.commit(b"{}", FILES)
    finish(staging)
    assert target.stat().st_ino == before
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("fallback", [False, True])
def test_overwriting_replaces_all_and_leaves_nothing_else(
    tmp_path: Path, fallback: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fallback:
        monkeypatch.setattr(commit, "_renameat2", lambda source, target, flags: False)
    target = tmp_path / "out"
    put(target, b"old")
    (target / "shard-000007.tar").write_bytes(b"of the old one")
    put(target, b"new", overwrite=True)
    assert tree(target) == dict.fromkeys(sorted([*FILES, "manifest.json"]), b"new")
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("fallback", [False, True])
def test_old_output_stays_until_the_exchange(tmp_path: Path, fallback: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if fallback:
        monkeypatch.setattr(commit, "_renameat2", lambda source, target, flags: False)
    target = tmp_path / "out"
    put(target, b"old")
    staging = stage(target, b"new", overwrite=True)
    assert set(tree(target).values()) == {b"old"}
    finish(staging, KeyboardInterrupt())
    assert set(tree(target).values()) == {b"old"}
    assert os.listdir(tmp_path) == ["out"]


def test_system_call_that_does_not_exist_is_done_without(
    source: Path, monkeypatch: pytest.MonkeyPatch, format_name: str
) -> None:
    monkeypatch.setattr(sys, "platform", "freebsd14")
    first = tree(_pack(source, format_name))
    assert tree(_pack(source, format_name, overwrite=True)) == first


# A stop between the two renames, where the system cannot exchange


@pytest.mark.usefixtures("no_exchange")
def test_kill_between_the_two_renames_is_mended_by_the_next_run(source: Path, tmp_path: Path) -> None:
    output = _pack(source, "lmdb")
    old = tree(output)
    write_tree(source, {"a/more.npy": npy([9])})
    step = 1
    while output.exists():
        assert _pack_and_die(source, "lmdb", step, overwrite=True)
        step += 1
    with pytest.raises(OutputError, match="exists already"):
        _pack(source, "lmdb")
    assert tree(output) == old
    assert len(open_dataset(_pack(source, "lmdb", overwrite=True))) == 13
    assert sorted(os.listdir(tmp_path)) == ["in", "in.lmdb"]


@pytest.mark.usefixtures("no_exchange")
def test_failure_of_the_second_rename_puts_the_old_output_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old output was left under a hidden name, and the message said that nothing was left behind."""
    target = tmp_path / "out"
    put(target, b"old")
    staging = stage(target, b"new", overwrite=True)
    rename = Path.rename

    def failing(self: Path, name: Path) -> Path:
        if self == staging.folder:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(self, name)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="Input/output error"):
        staging.commit(b"{}", FILES)
    finish(staging, OSError())
    assert set(tree(target).values()) == {b"old"}
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.usefixtures("no_exchange")
def test_half_removed_old_output_is_not_in_the_way_of_the_next_run(tmp_path: Path) -> None:
    """A kill while the old output was removed made every later overwrite fail: "Directory not empty"."""
    target = tmp_path / "out"
    put(target, b"old")
    write_tree(tmp_path / ".out.partial/replaced", {"data.mdb": b"what a kill left of the one before"})
    put(target, b"new", overwrite=True)
    assert set(tree(target).values()) == {b"new"}
    assert os.listdir(tmp_path) == ["out"]


def test_old_output_that_was_replaced_is_removed_by_the_next_run(tmp_path: Path) -> None:
    target = tmp_path / "out"
    put(target, b"new")
    put(tmp_path / "other", b"old")
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / "other").rename(tmp_path / ".out.partial/replaced")
    put(target, b"newer", overwrite=True)
    assert set(tree(target).values()) == {b"newer"}
    assert os.listdir(tmp_path) == ["out"]


# A kill at every single step from the manifest on

_CHANGES = frozenset({"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"})


def _pack_and_die(source: Path, format_name: str, step: int, *, overwrite: bool) -> bool:
    """Pack in a copy of this process that is gone before it makes a change to the file system; whether it came so far.

    Args:
        step: which change that is, counted from the opening of the manifest's file for writing.
    """
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    fsync, left = os.fsync, [0]

    def count() -> None:
        if left[0]:
            left[0] -= 1
            if not left[0]:
                os._exit(9)

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if writes and not left[0] and str(arguments[0]).endswith("manifest.json"):
            left[0] = step
        if writes or event in _CHANGES or (event == "ctypes.dlsym" and arguments[1] == "renameat2"):
            count()

    def counting_fsync(descriptor: int) -> None:
        count()
        fsync(descriptor)

    os.fsync = counting_fsync
    sys.addaudithook(watch)
    try:
        _pack(source, format_name, overwrite=overwrite, shard_samples=5 if formats.get(format_name).has_shards else 0)
    except BaseException:  # nothing may go on in the copy
        os._exit(1)
    os._exit(0)


@pytest.mark.parametrize(
    ("in_format", "overwrite", "fallback"),
    [("hdf5", False, False), ("lmdb", False, True), ("webdataset", True, False), ("lmdb", True, True)],
)
def test_kill_at_any_step_of_the_commit_leaves_old_or_new_and_the_next_run_tidies_up(
    source: Path, tmp_path: Path, in_format: str, overwrite: bool, fallback: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fallback:
        monkeypatch.setattr(commit, "_renameat2", lambda source, target, flags: False)
    shard_samples = 5 if formats.get(in_format).has_shards else 0
    output = tmp_path / f"in.{in_format}"
    old = tree(_pack(source, in_format, shard_samples=shard_samples)) if overwrite else None
    write_tree(source, {"a/more.npy": npy([9])})
    new = tree(_pack(source, in_format, overwrite=overwrite, shard_samples=shard_samples))
    seen: list[str] = []
    step = 1
    while step:
        shutil.rmtree(output)
        if old is not None:
            write_tree(output, old)
        step = step + 1 if _pack_and_die(source, in_format, step, overwrite=overwrite) else 0
        found = tree(output) if output.exists() else None
        assert found in (old, new, None)
        seen.append("new" if found == new else "old" if found else "nothing")
        if not overwrite and found == new:
            with pytest.raises(OutputError, match="exists already"):
                _pack(source, in_format, shard_samples=shard_samples)
        else:
            _pack(source, in_format, overwrite=overwrite, shard_samples=shard_samples)
        assert tree(output) == new
        assert sorted(os.listdir(tmp_path)) == ["in", output.name]
    assert len(seen) > 10
    before = ["old", "nothing"] if fallback and overwrite else ["old"] if overwrite else ["nothing"]
    assert list(dict.fromkeys(seen)) == [*before, "new"]


# Unfinished outputs and other jobs


def test_unfinished_output_is_removed_where_it_is_started_over(tmp_path: Path) -> None:
    """Links in it are removed, too, and what they lead to is not."""
    write_tree(tmp_path / ".out.partial", {"output/data.mdb": b"half", "journal.jsonl": b"", "folder/deep/file": b"x"})
    (tmp_path / ".out.partial/link").symlink_to(write_tree(tmp_path / "elsewhere", {"precious": b"x"}))
    with Staging(tmp_path / "out", overwrite=False) as staging:
        assert staging.found_unfinished
        staging.start_over()
        assert sorted(os.listdir(staging.partial)) == ["lock", "output"]
        assert os.listdir(staging.folder) == []
    assert os.listdir(tmp_path) == ["elsewhere"]
    assert (tmp_path / "elsewhere/precious").exists()


def test_unfinished_output_stays_as_it_is_until_somebody_starts_over_or_goes_on(tmp_path: Path) -> None:
    left = {"output/data.mdb": b"half", "journal.jsonl": b"x"}
    write_tree(tmp_path / ".out.partial", left)
    for error in (None, KeyboardInterrupt()):
        staging = Staging(tmp_path / "out", overwrite=False).__enter__()
        assert staging.found_unfinished
        finish(staging, error)
    assert {name: (tmp_path / ".out.partial" / name).read_bytes() for name in left} == left


def test_going_on_leaves_journal_and_finished_shards_and_nothing_else(tmp_path: Path) -> None:
    write_tree(
        tmp_path / ".out.partial",
        {
            "output/1.tar": b"done",
            "output/2.tar": b"half",
            "output/index.npy": b"x",
            "output/3.tar/x": b"",
            "journal.jsonl": b"x",
        },
    )
    with Staging(tmp_path / "out", overwrite=False) as staging:
        staging.go_on(["1.tar", "3.tar"])  # a folder is no shard, whatever its name
        assert tree(staging.folder) == {"1.tar": b"done"}
        assert staging.journal.read_bytes() == b"x"
        (staging.folder / "2.tar").write_bytes(b"half again")
        assert staging.keep(["1.tar"])
    assert tree(tmp_path / ".out.partial/output") == {"1.tar": b"done"}
    assert (tmp_path / ".out.partial/journal.jsonl").read_bytes() == b"x"


def test_fresh_output_is_not_called_unfinished(tmp_path: Path) -> None:
    with Staging(tmp_path / "out", overwrite=False) as staging:
        assert not staging.found_unfinished


@pytest.mark.parametrize("kind", ["link to a folder", "dangling link", "file"])
def test_partial_folder_that_is_no_folder_is_refused(tmp_path: Path, kind: str) -> None:
    precious = write_tree(tmp_path / "elsewhere", {"precious": b"x"})
    partial = tmp_path / ".out.partial"
    if kind == "file":
        partial.write_bytes(b"x")
    else:
        partial.symlink_to(precious if kind == "link to a folder" else "gone")
    with pytest.raises(OutputError, match="in the way"), Staging(tmp_path / "out", overwrite=False):
        pass
    assert os.path.lexists(partial)
    assert (precious / "precious").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_partial_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    partial = write_tree(tmp_path / ".out.partial", {"precious": b"x"})
    os.chown(partial, 65534, 65534)
    with pytest.raises(OutputError, match="another user"), Staging(tmp_path / "out", overwrite=False):
        pass
    assert tree(partial) == {"precious": b"x"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_second_job_on_one_target_is_refused_and_the_first_goes_on(tmp_path: Path, overwrite: bool) -> None:
    target = tmp_path / "out"
    staging = stage(target)
    with pytest.raises(OutputError, match="another job"), Staging(target, overwrite=overwrite):
        pass
    staging.commit(b"{}", FILES)
    finish(staging)
    assert sorted(os.listdir(target)) == sorted([*FILES, "manifest.json"])


def test_jobs_on_other_targets_in_one_folder_do_not_meet(tmp_path: Path) -> None:
    one, other = stage(tmp_path / "one"), stage(tmp_path / "other")
    for staging in (one, other):
        staging.commit(b"{}", FILES)
        finish(staging)
    assert sorted(os.listdir(tmp_path)) == ["one", "other"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_job_that_ends_does_not_remove_the_folder_of_the_next(
    tmp_path: Path, overwrite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the rename and the end of a job the target is free for the next one, which has the same partial folder."""
    target = tmp_path / "out"
    if overwrite:
        put(target, b"old")
    first = stage(target, b"first", overwrite=overwrite)
    sync_folder = commit.sync_folder
    later: list[Staging | OutputError] = []

    def next_job_starts(folder: Path) -> None:
        sync_folder(folder)
        if folder == tmp_path and not later:
            try:
                later.append(stage(target, b"second", overwrite=True))
            except OutputError as error:
                later.append(error)

    monkeypatch.setattr(commit, "sync_folder", next_job_starts)
    first.commit(b"first", FILES)
    finish(first)
    (second,) = later
    if isinstance(second, OutputError):
        assert "another job" in str(second)
        assert set(tree(target).values()) == {b"first"}
        return
    second.commit(b"second", FILES)
    finish(second)
    assert set(tree(target).values()) == {b"second"}


def test_lock_dies_with_its_process(source: Path, tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom packer.commit import Staging\n"
        "staging = Staging(Path(sys.argv[1]), overwrite=False)\nstaging.__enter__()\nos._exit(9)\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "in.lmdb"], env=environment(), check=False, timeout=60)
    assert (tmp_path / ".in.lmdb.partial").exists()
    assert pack(source).replaced_unfinished


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_file_system_that_cannot_sync_a_folder_is_no_obstacle(
    source: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fsync = os.fsync

    def files_only(descriptor: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{descriptor}")).is_dir():
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", files_only)
    assert pack(source).samples == 12


def _pack(source: Path, format_name: str, *, overwrite: bool = False, shard_samples: int = 0) -> Path:
    limits = ShardLimits(samples=shard_samples) if shard_samples else None
    return pack(source, format_name, overwrite=overwrite, check="none", limits=limits).output
