"""Each way in which a loader dies gets its right name: provoked for real where that is possible, by its message elsewhere."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import packer
from packer import Explanation, SystemSnapshot, explain
from packer.cgroup import MemoryGroup, control_groups
from packer.doctor.evidence import short_mappings
from packer.doctor.explain import CAUSES
from packer.doctor.snapshot import Space, default_start_method
from packer.errors import CorruptSampleError

HERE = Path(packer.__file__).parent.parent
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells")
FULL, AMPLE = Space(64 << 20, 1 << 20), Space(32 << 30, 31 << 30)
QUIET = SystemSnapshot(group=MemoryGroup(2, 8 << 30, 1 << 30, None, 0), machine_oom_kills=0, shared=AMPLE, system="Linux")


def system(**changes: Any) -> SystemSnapshot:
    """A machine on which nothing is wrong, but for the changes."""
    values = {name: getattr(QUIET, name) for name in SystemSnapshot.__dataclass_fields__}
    return SystemSnapshot(**{**values, **changes})


def kills(count: int) -> MemoryGroup:
    return MemoryGroup(2, 8 << 30, 7 << 30, 8 << 30, count)


# --------------------------------------------------------------------------------------------------------- provoked for real


def provoke(folder: Path, *names: str, prefix: str = "", wrapper: Sequence[str] = ()) -> dict[str, Any]:
    code = f"{prefix} exec {sys.executable} -m tests.cases.provoked {' '.join(map(repr, names))}"
    environment = {**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*wrapper, "sh", "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told: dict[str, Any] = json.loads(done.stdout)
    return told


PROVOKED = {
    "killed": "killed",
    "terminated": "terminated",
    "segmentation fault": "segfault",
    "abort": "aborted",
    "exit": "exited",
    "memory limit": "out_of_memory",
    "files in the worker": "too_many_open_files",
    "files in the parent": "too_many_open_files",
    "truncated file": "bus_error_mapped_file",
    "truncated file of the parent": "bus_error_mapped_file",
    "transform": "transform_error",
    "dataset": "dataset_error",
    "sizes": "samples_differ",
    "hang": "timeout",
    "unpicklable": "unpicklable",
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is said of each case. They take milliseconds each, and torch two seconds to load."""
    if sys.platform != "linux":
        pytest.skip("signals and limits as Linux has them")
    return provoke(tmp_path_factory.mktemp("provoked"), *PROVOKED)


@pytest.mark.parametrize("case, cause", PROVOKED.items())
def test_what_really_happened_to_a_worker_is_told(told: dict[str, Any], case: str, cause: str) -> None:
    assert told[case]["cause"] == cause, told[case]


def test_a_hanging_worker_is_shown_with_what_it_waits_for(told: dict[str, Any]) -> None:
    assert any("lives: state S, waiting for time to pass" in fact for fact in told["hang"]["evidence"])


def test_a_cut_file_that_the_parent_has_mapped_is_named(told: dict[str, Any]) -> None:
    case = told["truncated file of the parent"]
    assert case["likelihood"] == "certain"
    assert any("mapped.bin is mapped up to byte 65,536 and has only 0 bytes" in fact for fact in case["evidence"])


def test_the_line_of_a_failing_transform_is_named(told: dict[str, Any]) -> None:
    assert "ValueError: no such colour" in told["transform"]["evidence"]
    assert any(fact.endswith("in transform") for fact in told["transform"]["evidence"])


def test_how_the_workers_were_started_is_told_and_not_how_others_would_be(told: dict[str, Any]) -> None:
    assert any(fact.startswith("workers are started by spawn") for fact in told["unpicklable"]["evidence"])


@LINUX
def test_batches_that_do_not_fit_into_shared_memory_are_told(tmp_path: Path) -> None:
    """In a mount namespace of its own, whose /dev/shm has one megabyte."""
    mount = "mount -t tmpfs -o size=1m tmpfs /dev/shm &&"
    if (
        not shutil.which("unshare")
        or subprocess.run(["unshare", "-rm", "sh", "-c", f"{mount} true"], capture_output=True).returncode
    ):
        pytest.skip("no mount namespace may be made here")
    found = provoke(tmp_path, "large batches", prefix=mount, wrapper=["unshare", "-rm"])["large batches"]
    assert found["cause"] == "shared_memory_full", found
    assert any("/dev/shm has 1.0 MB" in fact for fact in found["evidence"])
    assert "--shm-size" in found["text"]


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group of its own with little memory, below that of this process, where one may be made."""
    for version, group in control_groups(Path("/"), "memory"):
        made = Path(group[0], f"packer-test-{os.getpid()}")
        limit = "memory.max" if version == 2 else "memory.limit_in_bytes"
        try:
            made.mkdir()
        except OSError:
            continue
        try:
            Path(made, limit).write_text(str(800 << 20))
            yield made
            return
        except OSError:  # the controller is not handed down
            continue
        finally:
            made.rmdir()
    pytest.skip("no control group with a memory limit may be made here")


@LINUX
def test_a_worker_that_the_kernel_killed_for_lack_of_memory_is_told(tmp_path: Path, small_group: Path) -> None:
    found = provoke(tmp_path, "memory of the group", prefix=f"echo $$ > {small_group}/cgroup.procs &&")
    case = found["memory of the group"]
    assert (case["cause"], case["likelihood"]) == ("out_of_memory", "certain"), case
    assert any("was ended by SIGKILL" in fact for fact in case["evidence"])
    assert any("the kernel killed 1 process of this control group for lack of memory" in fact for fact in case["evidence"]), (
        case
    )


UNGUARDED = """
import sys
import torch
from torch.utils.data import DataLoader
from packer import explain

try:
    list(DataLoader([1, 2], num_workers=1, multiprocessing_context="spawn"))
except Exception as error:
    print(explain(error).cause, flush=True)
    raise
"""


def test_a_script_without_a_main_guard_is_told_in_the_worker_and_in_the_parent(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(UNGUARDED)
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["no_main_guard", "no_main_guard"], done.stderr[-2000:]


# ------------------------------------------------------------------------------------------------------------ exit statuses


def _end(code: str) -> int:
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode


@LINUX
def test_the_status_of_a_process_that_was_really_killed_is_explained() -> None:
    assert explain(_end("import os; os.kill(os.getpid(), 9)"), now=QUIET).cause == "killed"


@pytest.mark.parametrize(
    "status, cause",
    [
        (-9, "killed"),
        (137, "killed"),
        (-7, "bus_error_mapped_file"),
        (135, "bus_error_mapped_file"),
        (-11, "segfault"),
        (139, "segfault"),
        (-6, "aborted"),
        (-4, "wrong_build"),
        (-15, "terminated"),
        (143, "terminated"),
        (-2, "interrupted"),
        (-24, "limit_reached"),
        (-13, "signal"),
        (0, "ended_normally"),
        (1, "exited"),
        (3, "exited"),
        (255, "exited"),
        (0xC0000005, "segfault"),
    ],
)
@LINUX
def test_each_exit_status_has_its_cause(status: int, cause: str) -> None:
    assert explain(status, now=QUIET).cause == cause


class Ended:
    """As a process of multiprocessing or subprocess."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


@LINUX
@pytest.mark.parametrize("what", [Ended(exitcode=-11, pid=5), Ended(returncode=-11)])
def test_a_process_is_explained_by_how_it_ended(what: object) -> None:
    assert explain(what, now=QUIET).cause == "segfault"


def test_a_process_that_runs_is_said_to_run() -> None:
    assert explain(Ended(exitcode=None, pid=os.getpid()), now=QUIET).cause == "running"


def test_a_process_is_explained_by_its_last_words_where_there_are_some() -> None:
    done = subprocess.run([sys.executable, "-c", "open('/none' * 9, 'rb') if 0 else [].nothing"], capture_output=True)
    lost = subprocess.CompletedProcess([], 1, b"", b"Traceback ...\nMemoryError\n")
    assert (explain(done, now=QUIET).cause, explain(lost, now=QUIET).cause) == ("exited", "out_of_memory")


# -------------------------------------------------------------------------------------------------- evidence from the system


def test_a_kill_counted_since_the_job_began_is_lack_of_memory() -> None:
    found = explain(-9, since=system(group=kills(2)), now=system(group=kills(3)))
    assert (found.cause, found.likelihood) == ("out_of_memory", "certain")
    assert "the kernel killed 1 process of this control group for lack of memory since the job began" in found.evidence


def test_kills_from_before_the_job_are_no_evidence() -> None:
    found = explain(-9, since=system(group=kills(3)), now=system(group=kills(3)))
    assert (found.cause, found.others) == ("killed", ("out_of_memory",))


def test_without_an_earlier_look_kills_are_likely_but_not_certain() -> None:
    found = explain(-9, now=system(group=kills(3)))
    assert (found.cause, found.likelihood) == ("out_of_memory", "likely")


def test_a_kill_elsewhere_on_the_machine_makes_it_likely() -> None:
    found = explain(-9, since=system(machine_oom_kills=4), now=system(machine_oom_kills=5))
    assert (found.cause, found.likelihood) == ("out_of_memory", "likely")


def test_a_worker_that_vanished_while_the_kernel_killed_is_lack_of_memory() -> None:
    error = RuntimeError("DataLoader worker (pid(s) 17) exited unexpectedly")
    assert explain(error, since=system(), now=system(group=kills(1))).cause == "out_of_memory"
    assert explain(error, since=system(), now=QUIET).cause == "vanished"


def test_half_the_workers_are_advised_where_memory_was_short() -> None:
    error = RuntimeError("DataLoader worker (pid(s) 1, 2, 3, 4, 5, 6) exited unexpectedly")
    assert "num_workers=3" in explain(error, since=system(), now=system(group=kills(1))).cure


def test_the_sample_whose_transform_failed_is_named() -> None:
    error = ValueError("no such colour")
    error.add_note("in the transform of sample 17 ('cat/a.jpg') of images.lmdb")
    found = explain(error, now=QUIET)
    assert (found.cause, found.likelihood) == ("transform_error", "certain")
    assert "in the transform of sample 17 ('cat/a.jpg') of images.lmdb" in found.evidence
    assert "open_dataset(...)[17]" in found.cure


def test_whose_files_are_too_many_is_told() -> None:
    assert "the whole machine has" in explain(OSError(23, "Too many open files in system"), now=QUIET).summary
    assert "this process has" in explain(OSError(24, "Too many open files"), now=QUIET).summary


def test_damage_is_looked_for_with_the_command_that_fits() -> None:
    packed = explain(CorruptSampleError.of(3, "a.jpg", Path("d/data.mdb"), 9, "its bytes differ"), now=QUIET)
    loose = explain(OSError("image file is truncated (3 bytes not processed)"), now=QUIET)
    assert ("pack verify" in packed.cure, "pack check" in loose.cure) == (True, True)


def test_the_memory_of_group_and_machine_is_told() -> None:
    now = system(group=MemoryGroup(2, 8 * 10**9, 3 * 10**9, 5 * 10**9, 1), memory_bytes=64 * 10**9, available_bytes=9 * 10**9)
    facts = explain(-9, now=now).evidence
    assert "the control group may have 8.0 GB, 3.0 GB used, 5.0 GB at most so far" in facts
    assert "the machine has 64.0 GB memory, 9.0 GB available now" in facts


def test_a_system_that_tells_nothing_leaves_both_open() -> None:
    found = explain(-9, now=SystemSnapshot())
    assert (found.cause, found.likelihood, found.others) == ("killed", "possible", ("out_of_memory",))


def test_under_slurm_the_command_that_says_why_is_given() -> None:
    found = explain(-9, now=system(scheduler="Slurm job 4711"))
    assert "sacct -j 4711 " in found.cure


@LINUX
def test_a_bus_error_is_told_apart_by_shared_memory() -> None:
    causes = [explain(-7, now=system(shared=space)).cause for space in (FULL, AMPLE, Space(32 << 30, 10 << 20))]
    assert causes == ["shared_memory_full", "bus_error_mapped_file", "shared_memory_full"]


@LINUX
def test_a_file_is_short_only_where_pages_of_its_mapping_are_gone(tmp_path: Path) -> None:
    sound, cut = tmp_path / "sound", tmp_path / "cut"
    sound.write_bytes(b"x" * 5000)
    cut.write_bytes(b"x" * 4096)
    lines = "".join(
        f"{start:x}-{start + 8192:x} r--s 00000000 fe:00 1 {path}\n" for start, path in ((0, sound), (1 << 20, cut))
    )
    maps = tmp_path / "maps"
    maps.write_text(lines)
    found = short_mappings(maps)
    assert found == [f"{cut} is mapped up to byte 8,192 and has only 4,096 bytes"]


def test_asking_how_processes_are_started_settles_nothing() -> None:
    code = (
        "import multiprocessing as m; from packer.doctor.snapshot import *; default_start_method(); m.set_start_method('spawn')"
    )
    subprocess.run([sys.executable, "-c", f"{code}; assert default_start_method() == 'spawn'"], check=True, cwd=HERE)


def test_how_processes_are_started_is_what_multiprocessing_says() -> None:
    assert default_start_method() == multiprocessing.get_start_method()


# -------------------------------------------------------------------------------------------------------------- exceptions

MESSAGES = [
    (RuntimeError("Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' "
                  "start method"), "cuda_after_fork"),
    (RuntimeError("cuda runtime error (3) : initialization error at ../torch/csrc/cuda/Module.cpp:33"), "cuda_after_fork"),
    (RuntimeError("CUDA error: initialization error\nCUDA kernel errors might be asynchronously reported"), "cuda_after_fork"),
    (RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"), "gpu_out_of_memory"),
    (RuntimeError("received 0 items of ancdata"), "too_many_open_files"),
    (OSError(24, "Too many open files"), "too_many_open_files"),
    (OSError(28, "No space left on device", "/dev/shm/torch_12_34"), "shared_memory_full"),
    (RuntimeError("unable to write to file </torch_12_34_0>: No space left on device (28)"), "shared_memory_full"),
    (OSError(28, "No space left on device", "/scratch/out"), "disk_full"),
    (OSError(12, "Cannot allocate memory"), "out_of_memory"),
    (RuntimeError("[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
                  "allocate 4398046511104 bytes. Error code 12 (Cannot allocate memory)"), "out_of_memory"),
    (AttributeError("Can't pickle local object 'main.<locals>.<lambda>'"), "unpicklable"),
    (AttributeError("Can't get local object 'main.<locals>.<lambda>'"), "unpicklable"),
    (TypeError("cannot pickle '_io.BufferedReader' object"), "unpicklable"),
    (pickle.PicklingError("Can't pickle <class 'x'>: it's not the same object"), "unpicklable"),
    (AttributeError("Can't get attribute 'Data' on <module '__main__' (built-in)>"), "not_importable"),
    (AssertionError("daemonic processes are not allowed to have children"), "nested_workers"),
    (CorruptSampleError.of(3, "a.jpg", Path("d/data.mdb"), 9, "its bytes differ"), "damaged_sample"),
    (CorruptSampleError("Caught CorruptSampleError in DataLoader worker process 0."), "damaged_sample"),
    (OSError("image file is truncated (3 bytes not processed)"), "damaged_sample"),
    (packer.TruncatedFileError.sized(Path("d/data.mdb"), 3, 9), "damaged_dataset"),
    (packer.DatasetChangedError.at(Path("d"), "replaced"), "dataset_changed"),
    (packer.MixedBatchError.between("a", "3 wide", "b", "4 wide"), "samples_differ"),
    (RuntimeError("stack expects each tensor to be equal size, but got [3] at entry 0 and [4] at entry 1"), "samples_differ"),
    (RuntimeError("DataLoader worker (pid 7) is killed by signal: Segmentation fault. "), "segfault"),
    (RuntimeError("DataLoader worker (pid 7) exited unexpectedly with exit code 3. Details are lost"), "exited"),
    (RuntimeError("DataLoader timed out after 30 seconds"), "timeout"),
    (KeyboardInterrupt(), "interrupted"),
    (ValueError("x"), "unknown"),
    (RuntimeError(""), "unknown"),
]  # fmt: skip


@LINUX
@pytest.mark.parametrize("error, cause", MESSAGES)
def test_each_message_has_its_cause(error: BaseException, cause: str) -> None:
    found = explain(error, now=QUIET)
    assert found.cause == cause
    assert cause in CAUSES


@LINUX
def test_the_cause_is_found_behind_the_exception_that_hides_it() -> None:
    error = RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly")
    error.__cause__ = RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. ")
    assert explain(error, now=system(shared=FULL)).cause == "shared_memory_full"


def test_what_was_suppressed_is_not_the_cause() -> None:
    error = ValueError("chosen words")
    error.__context__, error.__suppress_context__ = MemoryError(), True  # as "from None" does
    assert explain(error, now=QUIET).cause == "unknown"


def test_a_chain_without_an_end_is_explained() -> None:
    one, two = ValueError("one"), MemoryError("two")
    one.__cause__, two.__cause__ = two, one
    assert explain(one, now=QUIET).cause == "out_of_memory"


def test_torch_raising_once_more_meanwhile_is_part_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its handler of SIGCHLD raises in the main thread, wherever that is."""
    late = [RuntimeError("DataLoader worker (pid 7) is killed by signal: Segmentation fault. ")]
    take = SystemSnapshot.take

    def interrupted() -> SystemSnapshot:
        if late:
            raise late.pop()
        return take()

    monkeypatch.setattr("packer.doctor.snapshot.SystemSnapshot.take", staticmethod(interrupted))
    found = explain(ConnectionResetError("reset"))
    assert (found.cause, late) == ("segfault", [])


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise ValueError


def test_an_exception_that_has_no_message_to_show_is_explained() -> None:
    assert explain(UnspeakableError(), now=QUIET).cause == "unknown"


class HalfMade:
    """As tempfile's wrapper is when its __init__ is interrupted."""

    def __init__(self) -> None:
        raise MemoryError

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["file"]


def test_objects_in_the_traceback_are_not_asked_for_what_they_may_not_have() -> None:
    with pytest.raises(MemoryError) as caught:
        HalfMade()
    assert explain(caught.value, now=QUIET).cause == "out_of_memory"


def test_the_members_of_a_group_are_looked_at() -> None:
    group = ExceptionGroup("two", [ValueError("x"), OSError(24, "Too many open files")])
    assert explain(group, now=QUIET).cause == "too_many_open_files"


@pytest.mark.parametrize("what", ["killed", None, 1.5, True])
def test_what_is_no_end_is_refused(what: object) -> None:
    with pytest.raises(TypeError, match="an exception, an exit status or a process"):
        explain(what)


# ------------------------------------------------------------------------------------------------------------- what it says


def test_an_explanation_is_a_paragraph_with_cause_evidence_cure_and_source() -> None:
    found = Explanation(
        "disk_full", "a disk is full", "likely", ("one", "two"), "make room", "https://example.org", ("killed",)
    )
    assert str(found) == (
        "disk full (likely): a disk is full. Seen: one; two. Not ruled out: killed. What to do: make room. See https://example.org"
    )


def test_a_message_cannot_reach_the_terminal_with_control_characters() -> None:
    text = str(explain(MemoryError("a\x1b[2Jb\ud800"), now=QUIET))
    assert text.isprintable()
    assert "a\\x1b[2Jb\\ud800" in text


@LINUX
@pytest.mark.parametrize("error, cause", MESSAGES)
def test_every_explanation_has_a_cure_and_a_source(error: BaseException, cause: str) -> None:
    found = explain(error, now=QUIET)
    assert found.cure
    assert found.source.startswith(("https://", "README.md"))


def test_explaining_loads_nothing_outside_the_standard_library() -> None:
    code = "import sys, packer; packer.explain(MemoryError()); packer.explain(-9); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=HERE)
    assert {"numpy", "torch", "click", "rich", "PIL"}.isdisjoint(done.stdout.split())


def test_a_snapshot_can_be_sent_to_another_process() -> None:
    taken = SystemSnapshot.take()
    assert pickle.loads(pickle.dumps(taken)) == taken


def test_the_example_of_the_module_runs() -> None:
    code = textwrap.dedent(
        """
        from packer import explain
        try:
            [][1]
        except Exception as error:
            print(explain(error))
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=HERE)
    assert done.stdout.startswith("unknown (possible): ")
