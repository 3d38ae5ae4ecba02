"""The pool of checking workers: what kills, hangs or confuses one costs the file at fault, and no other."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import packer.children
import packer.nursery
import packer.workers
from packer.check import CheckSettings
from packer.checkers import CheckPool
from packer.errors import PackerError
from packer.model import Kept, Skipped, Source, Verdict
from tests.check_hooks import environment, pack_command
from tests.inputs import npy, write_tree

MISBEHAVE = "tests.check_hooks:misbehave"

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")


@contextmanager
def pool(root: Path, *, workers: int = 2, timeout_s: float = 30.0, check: str = MISBEHAVE) -> Iterator[CheckPool]:
    opened = CheckPool(os.fsencode(root), CheckSettings(max_pixels=1), workers, timeout_s, check)
    try:
        yield opened
    finally:
        opened.close()


def sources(names: Sequence[str], size_bytes: int = 0) -> list[Source]:
    return [Source(i, os.fsencode(name), size_bytes, 0, 0) for i, name in enumerate(names)]


def with_one(bad: str, at: int, count: int = 100) -> list[str]:
    return [f"{bad}{i}" if i == at else f"fine{i}" for i in range(count)]


def outcomes(verdicts: Iterator[tuple[Source, Verdict]]) -> dict[str, str]:
    """The codes of those that are skipped, by name; the order is checked on the way."""
    found = {}
    for number, (source, verdict) in enumerate(verdicts):
        assert source.index == number
        if isinstance(verdict, Skipped):
            found[os.fsdecode(source.name)] = verdict.code
    return found


def workers_of(pid: int) -> list[int]:
    """Process ids of the checking workers that a process has started, and of the nursery that they are forks of."""
    found: list[int] = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (status := _status(int(entry))):
            command = _read(f"/proc/{entry}/cmdline")
            if int(status[1]) == pid and status[0] not in "ZX" and "packer.check.worker" in command:
                found += [int(entry), *workers_of(int(entry))]
    return found


def _status(pid: int) -> list[str]:
    """State, parent and so on of a process; nothing where there is no such process."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""


def is_running(pid: int) -> bool:
    status = _status(pid)
    return bool(status) and status[0] not in "ZX"


def wait_until(condition, seconds: float = 20.0) -> bool:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + seconds
    while not (done := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(done)


@pytest.mark.parametrize("bad", ["exit", "segv", "kill", "raise"])
@pytest.mark.parametrize("at", [0, 99])
def test_death_of_a_worker_costs_one_file(tmp_path: Path, bad: str, at: int) -> None:
    with pool(tmp_path) as checkers:
        found = outcomes(checkers.verdicts(sources(with_one(bad, at))))
    assert found == {f"{bad}{at}": "worker_died"}


@pytest.mark.parametrize(
    ("bad", "phrase"), [("exit", "status 0"), ("segv", "SIGSEGV"), ("kill", "SIGKILL, probably for lack of memory")]
)
def test_death_of_a_worker_is_described(tmp_path: Path, bad: str, phrase: str) -> None:
    with pool(tmp_path, workers=1) as checkers:
        ((_, verdict),) = checkers.verdicts(sources([bad]))
    assert isinstance(verdict, Skipped)
    assert phrase in verdict.detail


@pytest.mark.parametrize("bad", ["hang", "chang"])
def test_hang_costs_one_file_and_little_more_than_its_time(tmp_path: Path, bad: str) -> None:
    started = time.monotonic()
    with pool(tmp_path, timeout_s=1.0) as checkers:
        verdicts = list(checkers.verdicts(sources(with_one(bad, 40))))
    assert outcomes(iter(verdicts)) == {f"{bad}40": "timeout"}
    assert verdicts[40][1] == Skipped("timeout", "not checked within 1 s")
    assert time.monotonic() - started < 15


def test_many_deaths_and_hangs_of_all_kinds_cost_those_files_and_no_other(tmp_path: Path) -> None:
    kinds = {
        5: "exit",
        6: "segv",
        7: "kill",
        31: "raise",
        32: "exit",
        33: "chang",
        95: "segv",
        96: "kill",
        150: "hang",
        199: "exit",
    }
    names = [f"{kinds.get(i, 'fine')}{i}" for i in range(200)]
    started = time.monotonic()
    with pool(tmp_path, timeout_s=1.5) as checkers:
        found = outcomes(checkers.verdicts(sources(names)))
    expected = {f"{kind}{i}": "timeout" if kind.endswith("hang") else "worker_died" for i, kind in kinds.items()}
    assert found == expected
    assert time.monotonic() - started < 30


def test_every_file_may_kill_its_worker(tmp_path: Path) -> None:
    names = [f"exit{i}" for i in range(16)]
    with pool(tmp_path) as checkers:
        found = outcomes(checkers.verdicts(sources(names)))
    assert found == dict.fromkeys(names, "worker_died")


@pytest.mark.parametrize("odd", ["print", "complain"])
def test_what_a_check_prints_is_no_answer_and_blocks_nothing(
    tmp_path: Path, odd: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pool(tmp_path) as checkers:
        found = outcomes(checkers.verdicts(sources(with_one(odd, 10))))
    assert found == {}
    assert capfd.readouterr() == ("", "")


def test_memory_that_one_file_takes_is_no_ones_business(tmp_path: Path) -> None:
    with pool(tmp_path, workers=1) as checkers:
        assert outcomes(checkers.verdicts(sources(["fine0", "allocate1", "fine2"]))) == {}


def test_slow_files_together_may_take_longer_than_the_limit_for_one(tmp_path: Path) -> None:
    names = [f"sleep{i}.100" for i in range(16)]
    with pool(tmp_path, timeout_s=1.0) as checkers:
        assert outcomes(checkers.verdicts(sources(names))) == {}


def test_order_is_kept_whatever_each_file_takes(tmp_path: Path) -> None:
    names = [f"sleep{i}.{(i * 37) % 41}" for i in range(150)]
    with pool(tmp_path) as checkers:
        verdicts = list(checkers.verdicts(sources(names, size_bytes=1 << 20)))
    assert [os.fsdecode(source.name) for source, _ in verdicts] == names
    assert all(isinstance(verdict, Kept) for _, verdict in verdicts)


def test_all_workers_work(tmp_path: Path) -> None:
    with pool(tmp_path, workers=3) as checkers:
        verdicts = checkers.verdicts(sources([f"sleep{i}.5" for i in range(60)], size_bytes=1 << 20))
        processes = {verdict.digest for _, verdict in verdicts if isinstance(verdict, Kept)}
    assert len(processes) == 3


def test_sources_are_taken_up_a_bounded_distance_ahead(tmp_path: Path) -> None:
    taken = []

    def endless() -> Iterator[Source]:
        i = 0
        while True:
            taken.append(i)
            yield Source(i, b"fine", 0, 0, 0)
            i += 1

    with pool(tmp_path) as checkers:
        verdicts = checkers.verdicts(endless())
        for _ in range(10):
            next(verdicts)
    assert len(taken) < 5_000


def test_names_and_details_of_any_bytes_travel_unchanged(tmp_path: Path) -> None:
    names = [
        os.fsdecode(name) for name in (b"h\xe9.jpg", b"line\nbreak", b'"quote" \\', "日本".encode(), b"\x1b[2J", b"\xff\xfe")
    ]
    with pool(tmp_path, check="tests.check_hooks:skip_by_name") as checkers:
        details = [verdict.detail for _, verdict in checkers.verdicts(sources(names)) if isinstance(verdict, Skipped)]
    assert details == [os.path.join(tmp_path, name) for name in names]
    with pool(tmp_path, check="tests.check_hooks:unprintable") as checkers:
        ((_, verdict),) = checkers.verdicts(sources(["x"]))
    assert verdict == Skipped("corrupt", "\x1b[2J\udcff\ud800\n\0")


def test_one_file_can_be_judged_again_in_the_middle(tmp_path: Path) -> None:
    with pool(tmp_path) as checkers:
        verdicts = checkers.verdicts(sources([f"fine{i}" for i in range(200)]))
        next(verdicts)
        fine, exits = sources(["fine7", "exit7"])
        assert isinstance(checkers.recheck(fine), Kept)
        died = checkers.recheck(exits)
        assert isinstance(died, Skipped)
        assert died.code == "worker_died"
        assert len(list(verdicts)) == 199


# Deaths that are no file's fault

UNLUCKY = """
import os, signal
from packer.model import Kept
poisoned = False
def check(path, settings, checksum=""):
    global poisoned
    if b"poison" in path:
        poisoned = True
    if b"victim" in path and poisoned:
        os.kill(os.getpid(), signal.SIGSEGV)
    if b"unlucky" in path:
        with open(path + b".tries", "ab") as tries:
            tries.write(b"x")
        if os.path.getsize(path + b".tries") < 3:
            os.kill(os.getpid(), signal.SIGKILL)
    return Kept("npy", 1, 2)
"""


@pytest.fixture
def unlucky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "unlucky_check.py").write_text(UNLUCKY)
    monkeypatch.syspath_prepend(tmp_path)
    return "unlucky_check:check"


def test_file_whose_worker_is_killed_from_outside_again_and_again_is_kept(tmp_path: Path, unlucky: str) -> None:
    """The kernel ends a process for lack of memory, often one that did nothing: with its chunk, and then alone."""
    with pool(tmp_path, workers=1, check=unlucky) as checkers:
        assert outcomes(checkers.verdicts(sources(["a", "unlucky", "b"]))) == {}


def test_crash_that_an_earlier_file_has_prepared_costs_no_file(tmp_path: Path, unlucky: str) -> None:
    """A decoder that spoils the memory of its process lets a later file crash there, which is sound."""
    with pool(tmp_path, workers=1, check=unlucky) as checkers:
        assert outcomes(checkers.verdicts(sources(["a", "poison", "victim1", "victim2", "b"]))) == {}


def test_worker_that_something_ends_while_it_starts_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    once = f"import os, signal\ntry: os.mkdir({str(tmp_path / 'mark')!r})\nexcept OSError: pass\n"
    monkeypatch.setattr(packer.children, "_BOOT", f"{once}else: os.kill(os.getpid(), signal.SIGKILL)\n{packer.children._BOOT}")
    with pool(tmp_path, workers=1) as checkers:
        assert outcomes(checkers.verdicts(sources(["fine1", "fine2"]))) == {}
    assert (tmp_path / "mark").exists()


def test_worker_that_never_starts_does_not_keep_the_job_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packer.children, "_BOOT", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
    monkeypatch.setattr(packer.workers, "_START_S", 0.5)
    with pool(tmp_path, workers=1) as checkers, pytest.raises(PackerError, match=r"did not start within 0\.5 s"):
        list(checkers.verdicts(sources(["fine"])))


SUSPENDED = """
from packer.check import CheckSettings
from packer.checkers import CheckPool
from packer.model import Source
pool = CheckPool(b"/", CheckSettings(), 1, 2.0, "tests.check_hooks:misbehave")
pool.recheck(Source(0, b"fine", 0, 0, 0))
print("ready", flush=True)
print(pool.recheck(Source(1, b"sleep.1000", 0, 0, 0)))
pool.close()
"""


def test_job_that_was_suspended_finds_no_file_too_slow() -> None:
    """A batch system stops all processes of a job for an hour; the time in which nothing ran is not the file's."""
    root = str(Path(__file__).parents[1])
    job = subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r})\n" + SUSPENDED],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    assert job.stdout.readline() == "ready\n"
    time.sleep(0.2)
    processes = [job.pid, *workers_of(job.pid)]
    for number, pause in ((signal.SIGSTOP, 3.0), (signal.SIGCONT, 0.0)):
        for pid in processes:
            os.kill(pid, number)
        time.sleep(pause)
    assert job.communicate(timeout=30)[0].startswith("Kept(")


def test_time_limit_of_centuries_and_no_temporary_folder_are_no_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """``tempfile`` falls back on the current folder, which may be the input, and the input is never changed."""

    def refuse(*arguments: object, **options: object) -> None:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pool(tmp_path, workers=1, timeout_s=1e12) as checkers:
        assert outcomes(checkers.verdicts(sources(["fine1"]))) == {}
    assert capfd.readouterr() == ("", "")


def test_system_that_gives_no_more_files_or_threads_is_an_error_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "memfd_create", refuse)
        with pytest.raises(PackerError, match=r"Too many open files.*--workers"), pool(tmp_path):
            pass

    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with pool(tmp_path) as checkers, monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(PackerError, match=r"can't start new thread.*--workers"):
            list(checkers.verdicts(sources(["fine"])))
    assert not workers_of(os.getpid())


# The end of a pool


@pytest.mark.parametrize("names", [["fine"] * 5_000, ["sleep.500"] * 200, ["chang"] * 200], ids=["busy", "slow", "hanging"])
def test_pool_closed_in_the_middle_leaves_no_process_and_no_open_pipe(tmp_path: Path, names: list[str]) -> None:
    """Open pipes would show as ResourceWarnings, which are errors here."""
    before = set(workers_of(os.getpid()))
    started = time.monotonic()
    with pool(tmp_path) as checkers:
        verdicts = checkers.verdicts(sources(names))
        if names[0] == "fine":
            next(verdicts)
        else:
            checkers._threads.submit(checkers._judge, sources(["fine"]))
            time.sleep(0.6)
        assert set(workers_of(os.getpid())) - before
    del verdicts, checkers
    gc.collect()
    assert not set(workers_of(os.getpid())) - before
    assert time.monotonic() - started < 10


def test_pool_closed_while_verdicts_are_awaited_leaves_no_process(tmp_path: Path) -> None:
    with pool(tmp_path) as checkers:
        verdicts = checkers.verdicts(sources(["chang"] * 2_000))
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        try:
            with pytest.raises(KeyboardInterrupt):
                next(verdicts)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert not workers_of(os.getpid())


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def test_unused_pool_can_be_closed_at_once(tmp_path: Path) -> None:
    with pool(tmp_path, workers=4):
        pass
    assert not workers_of(os.getpid())


@pytest.mark.parametrize(
    ("check", "reason"),
    [("tests.check_hooks:nothing", "nothing"), ("no_such_module_at_all:check", "No module named 'no_such_module_at_all'")],
)
def test_worker_that_cannot_start_is_an_error_with_its_reason(tmp_path: Path, check: str, reason: str) -> None:
    with pool(tmp_path, check=check) as checkers, pytest.raises(PackerError, match="did not start") as caught:
        list(checkers.verdicts(sources(["fine"])))
    assert reason in str(caught.value)
    assert not workers_of(os.getpid())


def test_interpreter_that_is_gone_is_an_error_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A raw FileNotFoundError came out, which packing then told as an output that cannot be written."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(PackerError, match="No such file"), pool(tmp_path) as checkers:
        list(checkers.verdicts(sources(["fine"])))


def test_worker_that_could_be_started_is_ended_when_another_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_fork(self: object, stderr: object) -> None:
        raise BrokenPipeError

    popen = subprocess.Popen
    started: list[subprocess.Popen[bytes]] = []

    def first_only(*arguments, **options):  # type: ignore[no-untyped-def]
        if started:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        started.append(popen(*arguments, **options))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", first_only)
    monkeypatch.setattr(packer.nursery.Nursery, "fork", no_fork)
    with pytest.raises(PackerError, match="temporarily unavailable"), pool(tmp_path, workers=2) as checkers:
        list(checkers.verdicts(sources(["fine"])))
    monkeypatch.undo()
    assert started[0].poll() is not None, "the first worker is still running"


CHECK_FOREVER = """
import itertools, os, sys
from packer.check import CheckSettings
from packer.checkers import CheckPool
from packer.model import Source
pool = CheckPool(b"/", CheckSettings(), 2, 600.0, "tests.check_hooks:misbehave")
for source, verdict in pool.verdicts(Source(i, sys.argv[1].encode(), 0, 0, 0) for i in itertools.count()):
    pass
"""


@pytest.mark.parametrize("what", ["fine", "hang", "chang"])
def test_workers_end_when_the_packing_process_is_killed(what: str) -> None:
    """``chang`` hangs inside C code that holds Python's lock, so that no other thread of the worker can end it."""
    root = str(Path(__file__).parents[1])
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r})\n" + CHECK_FOREVER, what], env=environment()
    )
    try:
        assert wait_until(lambda: len(workers_of(parent.pid)) == (3 if sys.platform == "linux" else 2))
        time.sleep(1.0)
        children = workers_of(parent.pid)
    finally:
        parent.kill()
        parent.wait()
    ended = wait_until(lambda: not any(map(is_running, children)), 5)
    left = [pid for pid in children if is_running(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert ended, f"{len(left)} of {len(children)} workers outlived their parent"


def test_interrupt_from_the_terminal_shows_no_traceback_of_workers(tmp_path: Path) -> None:
    """Ctrl-C goes to the whole process group."""
    write_tree(tmp_path / "in", {f"{i:05d}.npy": npy(list(range(i % 50))) for i in range(6_000)})
    job = subprocess.Popen(
        pack_command("in", "--workers", "2"),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert wait_until(lambda: (tmp_path / ".in.lmdb.partial/output/report.jsonl").exists())
    children = workers_of(job.pid)
    os.killpg(job.pid, signal.SIGINT)
    output, errors = job.communicate(timeout=30)
    assert (job.returncode, output) == (130, "")
    assert "Traceback" not in errors
    assert "interrupted" in errors
    assert len([line for line in errors.splitlines() if line]) == 1
    assert wait_until(lambda: not any(map(is_running, children)))
    assert sorted(os.listdir(tmp_path)) == ([".in.lmdb.partial", "in"] if "same command again" in errors else ["in"])


def test_user_script_without_a_main_guard_can_pack(tmp_path: Path) -> None:
    """Pools that start workers through ``__main__`` run such a script again in each of them."""
    write_tree(tmp_path / "in", {f"{i}.npy": npy([i]) for i in range(3)})
    script = tmp_path / "script.py"
    script.write_text(
        "import packer\nprint('once')\n"
        "summary = packer.pack_folder('in', packer.PackOptions(workers=2))\nprint(summary.samples)\n"
    )
    result = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False, timeout=60
    )
    assert (result.stdout.split(), result.stderr) == (["once", "3"], "")


def test_worker_loads_neither_torch_nor_lmdb_nor_h5py() -> None:
    code = (
        "import json, sys, packer.check.worker; print(json.dumps([m for m in ('torch', 'lmdb', 'h5py') if m in sys.modules]))"
    )
    result = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert json.loads(result.stdout) == []


@pytest.mark.parametrize("deed", ["nonsense", "forge"])
def test_answer_that_makes_no_sense_costs_the_file_and_never_the_job(tmp_path: Path, deed: str) -> None:
    """A decoder that writes into foreign memory, or that a file has taken over, may answer in the worker's place."""
    with pool(tmp_path, workers=1, timeout_s=20) as checkers:
        found = outcomes(checkers.verdicts(sources(["fine0", f"{deed}1", "fine2"])))
    assert found == {f"{deed}1": "worker_died"}


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forks on Linux only")
def test_workers_are_forks_of_one_process_that_has_loaded_the_decoders(tmp_path: Path) -> None:
    with pool(tmp_path, workers=3) as checkers:
        assert outcomes(checkers.verdicts(sources([f"fine{i}" for i in range(200)]))) == {}
        assert len(workers_of(os.getpid())) == 4
        direct = [pid for pid in workers_of(os.getpid()) if int(_status(pid)[1]) == os.getpid()]
        assert len(direct) == 1
    assert not workers_of(os.getpid())


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forks on Linux only")
@pytest.mark.parametrize("when", ["before", "between"])
def test_nursery_that_is_killed_costs_no_file(tmp_path: Path, when: str) -> None:
    """The lack of memory that ends it is no file's fault: its workers, which end with it, become processes of their own."""
    with pool(tmp_path, workers=2) as checkers:
        if when == "between":
            assert outcomes(checkers.verdicts(sources([f"fine{i}" for i in range(100)]))) == {}
        (nursery,) = [pid for pid in workers_of(os.getpid()) if int(_status(pid)[1]) == os.getpid()]
        os.kill(nursery, signal.SIGKILL)
        found = outcomes(checkers.verdicts(sources([*(f"fine{i}" for i in range(100)), "exit3"])))
    assert list(found) == ["exit3"]
    assert not workers_of(os.getpid())
