"""``pack doctor --pid``: what a running loader does is seen, growth and waiting are told apart from what is usual."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from packer.cli.app import run
from packer.doctor import watch as watching
from packer.doctor.process import Reading, family, read_process, role_of, waits_in_words
from packer.doctor.stacks import python_stack
from packer.doctor.watch import GROWTH_BYTES_S, Series, Watch, growth_of
from packer.doctor.watchtable import rows_of, values_of
from packer.errors import PackerError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
MIB = 1 << 20

PARENT = """
import os, sys, threading, time

def wait():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

def read():
    os.read(os.pipe()[0], 1)

def grow():
    kept = []
    while True:
        kept.append(b"x" * 300_000)
        time.sleep(0.02)

def touch():
    for sample in shared:
        pass
    wait()

def spin():
    while True:
        pass

shared = [float(number) for number in range(500_000)] if "touch" in sys.argv[1] else []
for deed in sys.argv[1].split(","):
    if os.fork() == 0:
        globals()[deed]()
print("ready", flush=True)
wait()
"""


def sleeps(pid: int) -> bool:
    found = read_process(pid)
    return found is not None and found.state == "S" and found.waits_for != "do_wait"


@pytest.fixture
def started() -> Iterator[Callable[[str], int]]:
    """Starts a process whose children do one thing each; all of them end with the test."""
    processes = []

    def start(deeds: str) -> int:
        command = [sys.executable, "-c", PARENT, deeds]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        end = time.monotonic() + 10
        while {"read", "wait"} >= set(deeds.split(",")) and not all(map(sleeps, family(process.pid))):
            assert time.monotonic() < end
            time.sleep(0.01)
        return process.pid

    yield start
    for process in processes:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def read_until(watch: Watch, is_enough: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not is_enough() and time.monotonic() < end:
        watch.read()
        time.sleep(0.1)


def children(watch: Watch) -> list[Series]:
    return [series for series in watch.alive() if series.role != "main"]


# ------------------------------------------------------------------------------------------------------- real processes


def test_a_process_and_its_children_are_seen_with_what_they_do(started: Callable[[str], int]) -> None:
    pid = started("read,spin")
    watch = Watch(pid)
    assert watch.read()
    read_until(watch, lambda: children(watch)[1].cpu_share > 0.05)
    main, *forked = watch.alive()
    assert (main.role, main.last.pid, [one.role for one in forked]) == ("main", pid, ["worker", "worker"])
    assert all(one.last.parent == pid for one in forked)
    reader, spinner = forked
    assert waits_in_words(reader.last.waits_for) == "a pipe"
    assert (reader.last.state, spinner.last.state) == ("S", "R")
    assert reader.last.open_files == len(os.listdir(f"/proc/{reader.last.pid}/fd"))
    assert (reader.last.private_bytes or 0) > 10_000


def test_a_worker_that_waits_for_a_lock_while_its_parent_waits_is_stuck(
    started: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "STUCK_S", 0.6)
    watch = Watch(started("wait,spin"))
    assert watch.stuck() == []
    read_until(watch, watch.stuck)
    (stuck,) = watch.stuck()
    (finding,) = [one for one in watch.findings() if one.id == "stuck_worker"]
    assert finding.weight == "serious"
    assert f"worker {stuck.last.pid} is stuck" in finding.title
    assert "state S, waits for a lock" in finding.evidence[0]
    assert [row[0] for row in rows_of(watch) if row[-1] == "a lock STUCK"] == [str(stuck.last.pid)]


def test_a_growing_worker_is_named_and_the_others_are_not(
    started: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_LEAST_S", 1.5)
    watch = Watch(started("grow,read"))
    read_until(watch, watch.findings)
    (finding,) = watch.findings()
    assert (finding.id, finding.weight) == ("growing_memory", "warning")
    assert str(children(watch)[0].last.pid) in finding.title


def test_memory_copied_by_a_forked_worker_is_growth(started: Callable[[str], int]) -> None:
    """Nothing is allocated: a list that the parent made is only touched. ``RssAnon`` would not show it."""
    watch = Watch(started("touch,read"))
    watch.read()
    toucher, reader = children(watch)
    read_until(watch, lambda: (toucher.last.private_bytes or 0) > 10 * MIB)
    assert (toucher.last.private_bytes or 0) > 10 * MIB
    assert (reader.last.private_bytes or 0) < 4 * MIB


def test_a_process_that_ends_is_told(started: Callable[[str], int]) -> None:
    pid = started("read")
    watch = Watch(pid)
    assert watch.read()
    os.killpg(pid, signal.SIGKILL)
    end = time.monotonic() + 10
    while watch.read() and time.monotonic() < end:
        time.sleep(0.01)
    assert not watch.read()
    assert [series.ended is None for series in watch.series.values()] == [False, False]


def test_another_process_under_the_same_number_is_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(os.getpid())
    assert watch.read()
    reading = read_process(os.getpid())
    assert reading is not None
    changed = Reading(
        **{name: getattr(reading, name) for name in Reading.__dataclass_fields__} | {"started": reading.started + 1}
    )
    monkeypatch.setattr(watching, "read_process", lambda pid, proc: changed)
    assert not watch.read()


# ----------------------------------------------------------------------------------------------------------- what is refused


def test_a_process_that_does_not_exist_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--pid", "4194305"]) == 1
    assert capsys.readouterr().err == "pack: there is no process 4194305 (any more)\n"


def test_a_process_that_has_ended_and_was_not_waited_for_is_one_message() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    try:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(PackerError, match=rf"process {child.pid} .* has ended"):
            Watch(child.pid)
    finally:
        child.wait()


def test_a_process_of_another_user_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "may_read", lambda pid, proc: False)
    with pytest.raises(PackerError, match="belongs to another user"):
        Watch(os.getpid())


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="only root can become somebody else")
def test_what_may_not_be_read_is_known_as_that() -> None:
    """Asked by a real user without rights, of this process and of itself."""
    ask = "import os, sys; from packer.doctor.process import may_read;"
    give_up_rights = "os.setgid(65534); os.setuid(65534);"
    statuses = [
        subprocess.run([sys.executable, "-c", f"{ask} {before} sys.exit(may_read({pid}))"]).returncode
        for before, pid in ((give_up_rights, os.getpid()), ("", os.getpid()), ("", "os.getpid()"))
    ]
    assert statuses == [0, 1, 1]


def test_a_system_without_proc_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(PackerError, match="through /proc, which darwin does not have"):
        Watch(os.getpid(), tmp_path)


# ------------------------------------------------------------------------------------------------------------------- growth


def seconds(count: int, step: float = 1.0) -> list[float]:
    return [place * step for place in range(count)]


@pytest.mark.parametrize(
    ("values", "grows"),
    [
        ([100 * MIB + place * MIB for place in range(60)], True),
        ([100 * MIB + place * MIB + (place % 5) * 2 * MIB for place in range(60)], True),
        ([100 * MIB] * 60, False),
        ([100 * MIB + (place % 7) * 10 * MIB for place in range(60)], False),
        ([min(100 + 20 * place, 300) * MIB for place in range(60)], False),
        ([(300 - place) * MIB for place in range(60)], False),
        ([100 * MIB + place * 1000 for place in range(60)], False),
        ([place * MIB for place in range(5)], False),
        ([place * 30 * MIB for place in range(4)], False),
    ],
    ids=["steady", "noisy", "level", "up and down", "warming up", "falling", "too slow", "too few", "far too few"],
)
def test_growth_is_what_goes_on_and_not_what_a_start_takes(values: list[int], grows: bool) -> None:
    assert (growth_of(seconds(len(values)), values) > 0) == grows


def test_the_pace_of_growth_is_in_bytes_a_second() -> None:
    assert growth_of(seconds(61), [place * MIB for place in range(61)]) == pytest.approx(MIB, rel=0.05)
    hour = seconds(600, 6.0)
    assert growth_of(hour, [int(when * GROWTH_BYTES_S * 1.1) for when in hour]) == pytest.approx(GROWTH_BYTES_S * 1.1, rel=0.05)
    assert growth_of(hour, [int(when * GROWTH_BYTES_S * 0.9) for when in hour]) == 0


def reading(**changes: Any) -> Reading:
    values: dict[str, Any] = {"pid": 5, "parent": 1, "name": "python", "state": "S", "cpu_s": 0.0, "started": 9, "threads": 1}
    return Reading(**{**values, **changes})


def test_a_long_watch_keeps_few_readings_and_the_whole_time() -> None:
    series = Series("worker")
    for place in range(5000):
        series.add(float(place), reading(private_bytes=place * MIB, cpu_s=place / 2))
    assert len(series.times) == len(series.readings) <= 600
    assert (series.times[0], series.times[-1]) == (0.0, 4999.0)
    assert series.growth_bytes_s == pytest.approx(MIB, rel=0.1)
    assert series.cpu_share == pytest.approx(0.5)


def test_a_worker_that_waits_for_work_is_not_stuck() -> None:
    """Its queue is polled; and while the parent computes, nobody is stuck at all."""
    watch = Watch(os.getpid())
    mine = read_process(os.getpid())
    assert mine is not None

    def filled(main: Reading, worker: Reading) -> list[Series]:
        watch.series = {(os.getpid(), mine.started): Series("main"), (5, 9): Series("worker")}
        for when in (0.0, 10.0):
            watch.series[os.getpid(), mine.started].add(when, main)
            watch.series[5, 9].add(when, worker)
        return watch.stuck()

    waiting = reading(pid=os.getpid(), state="S", waits_for="futex_do_wait")
    assert len(filled(waiting, reading(waits_for="futex_do_wait"))) == 1
    assert filled(waiting, reading(waits_for="poll_schedule_timeout")) == []
    assert filled(reading(pid=os.getpid(), state="R"), reading(waits_for="futex_do_wait")) == []
    assert len(filled(reading(pid=os.getpid(), state="R"), reading(state="D", waits_for="folio_wait_bit"))) == 1


def test_a_worker_that_used_cpu_meanwhile_is_not_stuck() -> None:
    series = Series("worker")
    series.add(0.0, reading())
    series.add(9.0, reading(cpu_s=0.5))
    series.stack = ("old",)
    series.add(10.0, reading(cpu_s=0.5))
    assert (series.idle_since, series.stack) == (9.0, ("old",))
    series.add(11.0, reading(cpu_s=0.9))
    assert (series.idle_since, series.stack) == (11.0, ())


# --------------------------------------------------------------------------------------------------------------- reading /proc


def fake_process(proc: Path, pid: int, parent: int, name: str = "python", **files: str) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    fields = ["S", str(parent), *["0"] * 9, "150", "50", *["0"] * 4, "3", "0", "777", *["0"] * 5]
    (folder / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
    for file, text in files.items():
        (folder / file).write_text(text)


def test_the_files_of_a_process_are_read(tmp_path: Path) -> None:
    """Its name may hold blanks and brackets; private is what it shares with nobody, swapped out or not."""
    rollup = "0-1 ---p 0 00:00 0 [rollup]\nRss: 99 kB\nPrivate_Clean: 50 kB\nPrivate_Dirty: 20 kB\nSwap: 4 kB\nSwapPss: 1 kB\n"
    status = "Name:\tx\nRssAnon:\t80 kB\nRssShmem:\t7 kB\n"
    fake_process(tmp_path, 12, 3, ") (a b", smaps_rollup=rollup, status=status, wchan="pipe_read")
    found = read_process(12, tmp_path)
    assert found == Reading(12, 3, ") (a b", "S", 2.0, 777, 3, 24 << 10, 7 << 10, None, "pipe_read")


def test_where_private_memory_may_not_be_read_anonymous_memory_is_taken(tmp_path: Path) -> None:
    fake_process(tmp_path, 12, 3, status="RssAnon:\t80 kB\n", wchan="0", syscall="running\n")
    found = read_process(12, tmp_path)
    assert found is not None
    assert (found.private_bytes, found.waits_for) == (80 << 10, "")


@pytest.mark.parametrize(
    ("machine", "call", "waits"),
    [
        ("x86_64", 202, "futex"),
        ("x86_64", 0, "read"),
        ("x86_64", -1, ""),
        ("aarch64", 98, "futex"),
        ("sparc64", 142, "system call 142"),
    ],
)
def test_without_a_wait_channel_the_system_call_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, call: int, waits: str
) -> None:
    monkeypatch.setattr("packer.doctor.process.platform.machine", lambda: machine)
    fake_process(tmp_path, 12, 3, wchan="0", syscall=f"{call} 0x1 0x2\n")
    found = read_process(12, tmp_path)
    assert found is not None
    assert found.waits_for == waits


def test_children_of_children_belong_to_the_family(tmp_path: Path) -> None:
    for pid, parent in ((1, 0), (7, 1), (20, 7), (5, 7), (30, 20), (8, 1)):
        fake_process(tmp_path, pid, parent)
    (tmp_path / "meminfo").write_text("")
    assert family(7, tmp_path) == [7, 5, 20, 30]
    assert family(99, tmp_path) == []


@pytest.mark.parametrize(
    ("name", "command", "role"),
    [
        ("python", "python train.py", "worker"),
        ("pt_data_worker", "python -c from multiprocessing.forkserver import main", "worker"),
        ("python", "python -c from multiprocessing.spawn import spawn_main", "worker"),
        ("python", "python -c from multiprocessing.resource_tracker import main", "helper"),
        ("python", "python -c from multiprocessing.forkserver import main", "helper"),
        ("torch_shm_manag", "torch/bin/torch_shm_manager", "helper"),
        ("nvidia-smi", "nvidia-smi -l", "child"),
    ],
)
def test_each_process_of_a_loader_has_its_role(name: str, command: str, role: str) -> None:
    assert role_of(reading(name=name), 1, command, "python train.py") == role


@pytest.mark.parametrize(
    ("channel", "words"),
    [
        ("futex_do_wait", "a lock"),
        ("futex", "a lock"),
        ("poll_schedule_timeout.constprop.0", "messages (poll)"),
        ("ep_poll", "messages (poll)"),
        ("anon_pipe_read", "a pipe"),
        ("nfs_wait_bit_killable", "the NFS server"),
        ("rpc_wait_bit_killable", "the NFS server"),
        ("ll_file_read", "Lustre"),
        ("ptlrpc_set_wait", "Lustre"),
        ("request_wait_answer", "a FUSE file system"),
        ("p9_client_rpc", "a 9p file system"),
        ("folio_wait_bit_common", "the disk"),
        ("hrtimer_nanosleep", "time to pass (sleep)"),
        ("unix_stream_read_generic", "a socket"),
        ("do_wait", "a child to end"),
        ("something_else", "something_else"),
    ],
)
def test_what_is_waited_for_is_told_in_words(channel: str, words: str) -> None:
    assert waits_in_words(channel) == words


# ------------------------------------------------------------------------------------------------------------------- py-spy


def pretend_py_spy(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "py-spy"
    program.write_text(f"#!/bin/sh\n{textwrap.dedent(script)}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_the_stack_of_a_stuck_worker_is_asked_of_py_spy_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: Callable[[str], int]
) -> None:
    monkeypatch.setattr(watching, "STUCK_S", 0.3)
    pretend_py_spy(tmp_path, monkeypatch, f'echo "$@" >> {tmp_path}/asked\necho "wait (train.py:7)"\n')
    watch = Watch(started("wait"))
    read_until(watch, lambda: watch.findings() and all(series.stack for series in children(watch)))
    for _ in range(3):
        watch.read()
    (worker,) = children(watch)
    assert worker.stack == ("wait (train.py:7)",)
    assert "wait (train.py:7)" in watch.findings()[0].evidence
    assert (tmp_path / "asked").read_text() == f"dump --pid {worker.last.pid}\n"


def test_what_py_spy_may_not_do_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_py_spy(tmp_path, monkeypatch, "echo 'Permission Denied: try sudo' >&2\nexit 1\n")
    assert python_stack(1) == ("py-spy: Permission Denied: try sudo",)


def test_a_py_spy_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packer.doctor.stacks._MOST_S", 0.2)
    pretend_py_spy(tmp_path, monkeypatch, "exec sleep 30\n")
    assert "timed out" in python_stack(1)[0]


def test_without_py_spy_there_is_no_stack_and_it_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert python_stack(os.getpid()) == ()
    series = Series("worker", [0.0], [reading(waits_for="futex")])
    assert "pip install py-spy" in watching._stuck(series, 9.0).cure


# ---------------------------------------------------------------------------------------------------------------- the command


def test_the_command_watches_for_so_long_and_shows_a_table(
    started: Callable[[str], int], capsys: pytest.CaptureFixture[str]
) -> None:
    pid = started("read")
    assert run(["doctor", "--pid", str(pid), "--seconds", "0.2"]) == 0
    output, shown = capsys.readouterr()
    assert shown.startswith("after 0 s:\n")
    head, main, worker, last = output.splitlines()
    assert head.split() == ["pid", "role", "state", "CPUs", "private", "a", "minute", "shared", "files", "waits", "for"]
    assert main.split()[:2] == [str(pid), "main"]
    assert worker.split()[1:3] == ["worker", "S"]
    assert worker.endswith("a pipe")
    assert last == "nothing of weight found"


def test_json_has_all_readings(started: Callable[[str], int], capsys: pytest.CaptureFixture[str]) -> None:
    pid = started("read")
    assert run(["doctor", "--pid", str(pid), "--seconds", "0.1", "--json"]) == 0
    output, shown = capsys.readouterr()
    told = json.loads(output)
    assert (told["sound"], told["runs"], told["pid"], told["findings"], shown) == (True, True, pid, [], "")
    assert [process["role"] for process in told["processes"]] == ["main", "worker"]
    assert told["processes"][1]["readings"][0]["waits_for"] != ""


def test_what_is_found_ends_with_status_1(
    started: Callable[[str], int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "STUCK_S", 0.05)
    monkeypatch.setattr("packer.cli.doctor._EVERY_S", 0.1)
    assert run(["doctor", "--pid", str(started("wait")), "--seconds", "0.5"]) == 1
    assert "is stuck\n    seen: it has used no CPU" in capsys.readouterr().out


def test_ctrl_c_ends_the_watching_with_what_was_found(
    started: Callable[[str], int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    # The module that the command sees, and not the one that all others sleep with.
    monkeypatch.setattr("packer.cli.doctor.time", SimpleNamespace(sleep=interrupted))
    assert run(["doctor", "--pid", str(started("read"))]) == 0
    assert capsys.readouterr().out.endswith("nothing of weight found\n")


def test_a_process_that_ends_ends_the_watching(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packer.cli.doctor._EVERY_S", 0.05)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.5)"])
    try:
        assert run(["doctor", "--pid", str(child.pid)]) == 0
    finally:
        child.wait()
    assert capsys.readouterr().out.startswith(f"process {child.pid} ended, ")


def test_a_page_and_a_picture_are_written(
    started: Callable[[str], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packer.cli.doctor._EVERY_S", 0.1)
    page, picture = tmp_path / "a.html", tmp_path / "a.png"
    pid = started("read")
    assert run(["doctor", "--pid", str(pid), "--seconds", "0.3", "--html", str(page), "--png", str(picture)]) == 0
    text = page.read_text("utf-8")
    assert f"<td>{pid}</td><td>main</td>" in text
    assert "<svg" in text
    assert "http-equiv" in text
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_plot_that_cannot_be_written_is_refused_before_the_watching(
    started: Callable[[str], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "none" / "a.html"
    assert run(["doctor", "--pid", str(started("read")), "--html", str(file)]) == 1
    assert capsys.readouterr().err == f"pack: {file}: there is no folder {file.parent}\n"


def test_a_plot_that_can_no_longer_be_written_is_one_message(
    started: Callable[[str], int], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packer.cli.doctor._require_writable", lambda file: None)
    file = tmp_path / "none" / "a.png"
    assert run(["doctor", "--pid", str(started("read")), "--seconds", "0.1", "--png", str(file)]) == 1
    assert f"pack: {file}: No such file or directory\n" in capsys.readouterr().err


def test_what_comes_from_a_process_is_escaped_on_the_page() -> None:
    from packer.doctor.page import make_page

    watch = Watch(os.getpid())
    series = Series("<b>worker", [0.0], [reading(waits_for="<script>\udc80")])
    watch.series = {(5, 9): series}
    page = make_page(watch, "<title>")
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "<b>worker" not in page


def test_values_for_json_have_no_numbers_that_json_lacks(started: Callable[[str], int]) -> None:
    watch = Watch(started("read"))
    watch.read()
    assert json.loads(json.dumps(values_of(watch), allow_nan=False))["processes"]
