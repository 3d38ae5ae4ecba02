"""One job a target at a time, also where the file system has no locks, and also after one of the two stood still."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import packer.locks
from packer import OutputError, PackOptions, open_dataset, pack_folder
from packer.commit import Staging
from packer.locks import JobLock
from packer.options import Progress
from tests.check_hooks import environment, lines, pack_command, run_pack
from tests.inputs import npy, write_tree

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="its locks are others")

NO_LOCKS = [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL]
ELSEWHERE = "another-host"


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without locks, such as Lustre mounted without ``flock``."""

    def refuse(*ignored: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(packer.locks.fcntl, "flock", refuse)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "in", {f"{i}.npy": npy([i]) for i in range(6)})


def pack(source: Path, on_progress: Any = None, **options: Any) -> Path:
    return pack_folder(source, PackOptions(check="none", **options), on_progress).output


def leave_lock(target: Path, *, host: str = "", process: int = 0, age_s: float = 0.0, word: bytes = b"") -> Path:
    """The partial folder of a job that holds it, or did."""
    partial = write_tree(target.with_name(f".{target.name}.partial"), {"output/data.mdb": b"half"})
    values = {"host": host or socket.gethostname(), "process": process, "job": "1"}
    (partial / "lock").write_bytes(word or json.dumps(values).encode())
    then = time.time() - age_s
    os.utime(partial / "lock", (then, then))
    return partial


def dead_process() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


# Where the system has locks


def test_second_job_is_refused_until_the_first_has_ended(source: Path, format_name: str) -> None:
    refusals: list[str] = []

    def look(progress: Progress) -> None:
        if progress.done == 3:
            with pytest.raises(OutputError) as caught:
                pack(source, format=format_name, overwrite=True)
            refusals.append(str(caught.value))

    output = pack(source, look, format=format_name)
    assert refusals
    assert set(refusals) == {
        f"{output}: another job is writing to it right now (it holds {output.with_name(f'.{output.name}.partial')}/lock)."
    }
    assert len(open_dataset(pack(source, format=format_name, overwrite=True))) == 6


def test_lock_that_lies_there_is_no_job(source: Path, tmp_path: Path) -> None:
    """What its file says counts where there are no locks only."""
    leave_lock(tmp_path / "in.lmdb", process=os.getpid())
    assert len(open_dataset(pack(source))) == 6
    assert sorted(os.listdir(tmp_path)) == ["in", "in.lmdb"]


def test_two_jobs_at_once_give_one_output_and_one_message(source: Path, tmp_path: Path) -> None:
    write_tree(source, {f"{i}.npy": npy([i]) for i in range(300)})
    first = subprocess.Popen(
        pack_command("in", "-o", "out"), cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    while not (tmp_path / ".out.partial/lock").exists() and first.poll() is None:
        time.sleep(0.001)
    first.send_signal(signal.SIGSTOP)
    second = run_pack("in", "-o", "out", "--check", "none", cwd=tmp_path)
    first.send_signal(signal.SIGCONT)
    first.communicate(timeout=60)
    if first.returncode:  # it was stopped before it had the lock
        assert second.returncode == 0
    else:
        assert (second.returncode, second.stdout) == (1, "")
        (line,) = lines(second.stderr)
        assert "another job is writing to it right now" in line
    assert len(open_dataset(tmp_path / "out")) == 300
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]


def test_failure_of_the_lock_that_means_something_else_is_an_error(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*ignored: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(packer.locks.fcntl, "flock", refuse)
    with pytest.raises(OutputError, match="Input/output error"):
        pack(source)
    assert not source.with_name("in.lmdb").exists()


# Where it has none


@pytest.mark.parametrize("number", NO_LOCKS, ids=errno.errorcode.get)
def test_file_system_without_locks_is_no_obstacle(source: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*ignored: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(packer.locks.fcntl, "flock", refuse)
    assert len(open_dataset(pack(source))) == 6
    assert sorted(os.listdir(source.parent)) == ["in", "in.lmdb"]


@pytest.mark.usefixtures("no_locks")
@pytest.mark.parametrize("age_s", [0, 10**6], ids=["fresh", "stale"])
def test_job_on_this_host_counts_as_long_as_its_process_lives(source: Path, tmp_path: Path, age_s: float) -> None:
    """A process that stood still for days is one, and one that is gone is none, however fresh its word."""
    partial = leave_lock(tmp_path / "in.lmdb", process=os.getppid(), age_s=age_s)
    before = (partial / "lock").read_bytes()
    with pytest.raises(
        OutputError, match=rf"another job .* process {os.getppid()}, last seen {age_s} s ago .*remove that file"
    ):
        pack(source)
    assert (partial / "lock").read_bytes() == before
    assert (partial / "output/data.mdb").exists()
    leave_lock(tmp_path / "in.lmdb", process=dead_process(), age_s=age_s)
    assert len(open_dataset(pack(source))) == 6


@pytest.mark.usefixtures("no_locks")
def test_job_on_another_host_counts_for_ten_minutes(source: Path, tmp_path: Path) -> None:
    for age_s in (0, 590):
        leave_lock(tmp_path / "in.lmdb", host=ELSEWHERE, process=1, age_s=age_s)
        with pytest.raises(OutputError, match=rf"another job .* on {ELSEWHERE}, process 1, last seen {age_s} s ago"):
            pack(source)
    leave_lock(tmp_path / "in.lmdb", host=ELSEWHERE, process=1, age_s=601)
    assert len(open_dataset(pack(source))) == 6


@pytest.mark.usefixtures("no_locks")
@pytest.mark.parametrize("word", [b" ", b"{", b"[]", b'{"host": "x"}', b'{"host": "x", "process": "y"}', b"\xff" * 5000])
def test_lock_that_says_nothing_is_taken_over(source: Path, tmp_path: Path, word: bytes) -> None:
    leave_lock(tmp_path / "in.lmdb", word=word)
    assert len(open_dataset(pack(source))) == 6


@pytest.mark.usefixtures("no_locks")
def test_second_job_without_locks_is_refused_until_the_first_has_ended(source: Path) -> None:
    refused = []

    def look(progress: Progress) -> None:
        if progress.stage == "pack":
            with pytest.raises(OutputError, match="another job"):
                pack(source)
            refused.append(progress.done)

    pack(source, look)
    assert refused
    assert len(open_dataset(pack(source, overwrite=True))) == 6


@pytest.mark.usefixtures("no_locks")
def test_word_of_a_job_stays_fresh_while_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    path = tmp_path / "lock"
    lock = JobLock(path, tmp_path / "out")
    for later_s, renewed in ((10, False), (29, False), (31, True), (35, False), (62, True)):
        os.utime(path, (1, 1))
        clock[0] = later_s
        lock.renew()
        assert (path.stat().st_mtime > 1) == renewed
    lock.release()


# The job that was overtaken


@pytest.fixture
def overtaken(source: Path, monkeypatch: pytest.MonkeyPatch, no_locks: None) -> Any:
    """Make another job take over the target's folder, as after ten minutes in which this one stood still."""
    target = source.with_name("in.lmdb")
    others: list[Staging] = []

    def take_over() -> Staging:
        os.utime(target.with_name(".in.lmdb.partial") / "lock", (1, 1))
        with monkeypatch.context() as patched:
            patched.setattr(socket, "gethostname", lambda: ELSEWHERE)
            other = Staging(target, overwrite=False).__enter__()
            other.start_over()
            write_tree(other.folder, {"mine": b"x"})
            others.append(other)
        return other

    yield take_over
    for other in others:
        other.__exit__(None, None, None)
    assert sorted(os.listdir(source.parent)) == ["in"]


@pytest.mark.parametrize("check", ["none", "full"])
def test_job_that_was_overtaken_commits_nothing_and_leaves_the_other_alone(source: Path, overtaken: Any, check: str) -> None:
    taken: list[Staging] = []

    def take_over(progress: Progress) -> None:
        if progress.stage == "pack" and progress.done == 6:
            taken.append(overtaken())

    with pytest.raises(OutputError) as caught:
        pack_folder(source, PackOptions(check=check, workers=1), take_over)
    (other,) = taken
    assert not hasattr(caught.value, "__notes__")  # there is nothing to go on from
    assert not source.with_name("in.lmdb").exists()
    assert (other.folder / "mine").read_bytes() == b"x"
    assert (other.partial / "lock").exists()


def test_job_that_was_overtaken_finds_out_as_it_goes_on(source: Path, overtaken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not write on for hours, and does not make the other's lock fresh."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    seen = []

    def stand_still(progress: Progress) -> None:
        seen.append((progress.stage, progress.done))
        if seen[-1] == ("pack", 2):
            overtaken()
            clock[0] = 601.0

    with pytest.raises(OutputError, match="another job took over while this one stood still; nothing was put there"):
        pack(source, stand_still)
    assert seen[-1] == ("pack", 2)


@pytest.mark.usefixtures("no_locks")
def test_job_that_was_overtaken_puts_nothing_there_and_takes_no_lock_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where the other has just begun, and there is nothing but its lock."""
    target = tmp_path / "out"
    staging = Staging(target, overwrite=False).__enter__()
    write_tree(staging.folder, {"data.mdb": b"x"})
    os.utime(staging.partial / "lock", (1, 1))
    monkeypatch.setattr(socket, "gethostname", lambda: ELSEWHERE)
    other = JobLock(staging.partial / "lock", target)
    with pytest.raises(OutputError, match="another job took over while this one stood still; nothing was put there"):
        staging.commit(b"{}", ["data.mdb"])
    assert not target.exists()
    for entry in staging.partial.iterdir():
        if entry.name != "lock":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    staging.__exit__(None, None, None)
    assert (staging.partial / "lock").exists()
    other.release()
