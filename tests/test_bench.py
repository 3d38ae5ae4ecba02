"""``pack bench`` on real files: what it measures, that it proves what it reads, and that it leaves nothing behind."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xxhash import xxh3_64_intdigest

import packer
from packer import OutputError
from packer.bench import bench, measure, pagecache, plan, scratch
from packer.bench.contenders import Contender, Decoder, read_file
from packer.bench.loading import HAS_TORCH
from packer.bench.machine import CpuClock, file_system
from packer.bench.measure import Measurement, first_cold_cache
from packer.bench.plan import Plan, make_plan, settings, usual_batch, worker_counts
from packer.bench.proof import Truth, WrongDataError, digest_sum, noted_row
from packer.bench.results import ARRAY_READER, LIMIT, LOOSE, PILLOW, THREADS, Setting
from packer.bench.sample import Drawn, draw
from packer.bench.scratch import remove_leftovers, scratch_folder
from packer.bench.signals import remembered, undisturbed
from packer.cli.app import run
from packer.locks import JobLock
from packer.store import Store
from tests.check_hooks import environment
from tests.inputs import jpeg, judging_here, npy, pack_here, photo, png, write_tree

FORMATS = ("hdf5", "lmdb", "webdataset")
COUNT = 40


def pictures(folder: Path, count: int = COUNT) -> Path:
    files = {f"{'ab'[i % 2]}/{i:03d}.jpg": jpeg(photo(20 + i, 30, seed=i)) for i in range(count)}
    return write_tree(
        folder, {**files, "a/cut.jpg": jpeg(seed=1)[:700], "a/grey.png": png(photo(9, 9).convert("L")), "b/note.txt": b"x"}
    )


@contextmanager
def quick(monkeypatch: pytest.MonkeyPatch, cpus: int = 1) -> Iterator[None]:
    """Short runs, no checking processes, and one worker at most."""
    for module, name, value in (
        (measure, "RUN_S", 0.01),
        (plan, "RUN_S", 0.01),
        (plan, "SHORTEST_RUN_S", 0.005),
        (plan, "REPETITIONS", (1, 1)),
        (bench, "_PACK_SHARE", 0.0),
        (bench, "available_cpus", lambda: cpus),
    ):
        monkeypatch.setattr(module, name, value)
    with judging_here():
        yield


def listing(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def run_bench(*arguments: object, json_file: Path) -> dict[str, Any]:
    assert run(["bench", *map(str, arguments), "--json", str(json_file)]) == 0
    values: dict[str, Any] = json.loads(json_file.read_text())
    return values


def combinations(values: dict[str, Any]) -> set[tuple[Any, ...]]:
    return {(one["contender"], one["work"], one["cache"], one["order"], one["workers"]) for one in values["timings"]}


# ----------------------------------------------------------------------------------------------------------- a whole run


@pytest.mark.skipif(not HAS_TORCH, reason="workers need torch")
def test_a_folder_of_pictures_is_compared_in_every_setting_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = pictures(tmp_path / "in")
    before = listing(source)
    changed = {path: path.stat().st_ctime_ns for path in source.rglob("*.jpg")}
    with quick(monkeypatch):
        values = run_bench(
            source, "--seconds", 60, "--html", tmp_path / "x.html", "--png", tmp_path / "x.png", json_file=tmp_path / "x.json"
        )
    caches = {"cold", "warm"} if values["cache"]["dropped"] is not False else {"warm"}
    expected = {
        (name, work, cache, order, workers)
        for name in (LOOSE, PILLOW, *FORMATS)
        for work in ("raw", "decoded")
        for cache in caches
        for order in ("shuffled", "sequential")
        for workers in (0, 1)
        if (name, work) != (PILLOW, "raw")
    }
    expected |= {(THREADS, "decoded", cache, "shuffled", 0) for cache in caches}
    assert combinations(values) == expected | {(LIMIT, "decoded", "warm", "shuffled", workers) for workers in (0, 1)}
    assert all(len(one["samples_per_s"]) == 1 and one["min"] > 0 for one in values["timings"])
    assert values["sample"]["count"] == COUNT + 1
    assert values["sample"]["left_out"] == {"truncated": 1}
    assert [packing["format"] for packing in values["packings"]] == list(FORMATS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "x.html", "x.json", "x.png"]
    assert listing(source) == before
    assert changed == {path: path.stat().st_ctime_ns for path in source.rglob("*.jpg")}  # a hard link would set it
    output = capsys.readouterr()
    assert " ".join(output.out.split()).endswith(values["advice"][-30:])  # its lines end where the figures say
    assert "measuring: 0 of " in output.err


def test_arrays_are_stacked_and_compared_with_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_tree(tmp_path / "in", {f"{i:03d}.npy": npy(np.full((3, 8), i, "f4")) for i in range(COUNT)})
    with quick(monkeypatch):
        monkeypatch.setattr(bench, "HAS_TORCH", False)  # no workers
        values = run_bench(source, "-q", "--seconds", 30, json_file=tmp_path / "x.json")
    assert values["sample"]["content"] == "arrays"
    assert {one[0] for one in combinations(values) if one[1] == "decoded"} == {ARRAY_READER, LOOSE, LIMIT, THREADS, *FORMATS}
    assert {one[0] for one in combinations(values) if one[1] == "raw"} == {LOOSE, *FORMATS}


def test_arrays_of_different_shapes_are_not_stacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_tree(tmp_path / "in", {f"{i:03d}.npy": npy(np.full(i + 1, i, ">i2")) for i in range(20)})
    with quick(monkeypatch):
        monkeypatch.setattr(bench, "HAS_TORCH", False)
        values = run_bench(source, "-q", "--seconds", 30, json_file=tmp_path / "x.json")
    assert values["sample"]["content"] == "arrays of different shapes"
    assert {LOOSE, *FORMATS} <= {one[0] for one in combinations(values) if one[1] == "decoded"}


def test_datasets_are_compared_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = pictures(tmp_path / "in")
    outputs = [pack_here(source, name).output for name in ("lmdb", "webdataset")]
    before = [listing(output) for output in outputs]
    with quick(monkeypatch):
        monkeypatch.setattr(bench, "HAS_TORCH", False)
        values = run_bench(*outputs, "--seconds", 30, "--samples", 30, json_file=tmp_path / "x.json")
    assert {one[0] for one in combinations(values)} == {"in.lmdb", "in.webdataset", THREADS, LIMIT}
    assert values["sample"]["count"] == 30
    assert [listing(output) for output in outputs] == before
    assert "same samples" not in " ".join(values["notes"])
    assert "in.webdataset" in capsys.readouterr().out


def test_it_is_said_where_datasets_hold_different_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = [pack_here(pictures(tmp_path / name, 10 + i)).output for i, name in enumerate("ab")]
    with quick(monkeypatch):
        monkeypatch.setattr(bench, "HAS_TORCH", False)
        values = run_bench(*outputs, "-q", "--seconds", 20, json_file=tmp_path / "x.json")
    assert "do not hold the same samples" in values["notes"][0]


def drawn_from(source: Path, place: Path, **options: Any) -> Drawn:
    """A sample, whose links are gone again."""
    values = {"samples": 1000, "space_bytes": 10**9, "seconds": 100.0, "seed": 0, **options}
    with judging_here(), scratch_folder(place) as made:
        drawn = draw(source, made, on_progress=lambda progress: None, **values)
        assert [len(Path(path).read_bytes()) for path in drawn.paths] == drawn.sizes.tolist()
        assert [xxh3_64_intdigest(Path(path).read_bytes()) for path in drawn.paths] == drawn.digests.tolist()
    return drawn


def test_of_a_mixed_folder_the_more_frequent_kind_is_measured(tmp_path: Path) -> None:
    source = write_tree(pictures(tmp_path / "in", 12), {f"{i}.npy": npy([i]) for i in range(3)})
    drawn = drawn_from(source, tmp_path)
    assert len(drawn.paths) == 13
    assert drawn.is_pictures
    assert sorted(drawn.left_out.values()) == [1, 3]


def test_the_sample_is_bounded_and_the_same_for_a_seed(tmp_path: Path) -> None:
    source = write_tree(tmp_path / "in", {f"{i:03d}.npy": npy([i]) for i in range(COUNT)})
    first, again, other = (drawn_from(source, tmp_path, samples=8, seed=seed) for seed in (1, 1, 2))
    assert (len(first.paths), first.total) == (8, COUNT)
    assert first.digests.tolist() == again.digests.tolist() != other.digests.tolist()


def test_the_sample_is_drawn_from_all_over_the_folder_and_kept_in_its_order(tmp_path: Path) -> None:
    source = write_tree(tmp_path / "in", {f"{i // 50}/{i:03d}.npy": npy([i]) for i in range(200)})
    order = {xxh3_64_intdigest(path.read_bytes()): i for i, path in enumerate(sorted(source.rglob("*.npy")))}
    places = [order[digest] for digest in drawn_from(source, tmp_path, samples=40).digests.tolist()]
    assert places == sorted(places)
    assert {place // 50 for place in places} == {0, 1, 2, 3}


def test_space_bounds_the_sample(tmp_path: Path) -> None:
    source = write_tree(tmp_path / "in", {f"{i:03d}.npy": npy(np.zeros(10_000, "u1")) for i in range(COUNT)})
    drawn = drawn_from(source, tmp_path, space_bytes=500_000)
    assert 8 < len(drawn.paths) <= 500_000 // (3 * 10_000)
    assert sum(drawn.left_out.values()) == COUNT - len(drawn.paths)
    with pytest.raises(OutputError, match="none of the 1 files that were drawn can be measured: 40 no room"):
        drawn_from(source, tmp_path, space_bytes=20_000)


def test_files_that_cannot_be_linked_are_copied_and_take_more_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_tree(tmp_path / "in", {f"{i:03d}.npy": npy(np.zeros(10_000, "u1")) for i in range(COUNT)})
    linked = drawn_from(source, tmp_path, space_bytes=500_000)

    def refuse(*arguments: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "symlink", refuse)
    copied = drawn_from(source, tmp_path, space_bytes=500_000)
    assert (linked.copied, copied.copied) == (False, True)
    assert len(copied.paths) < len(linked.paths)


def test_checking_that_takes_too_long_is_cut_short(tmp_path: Path) -> None:
    drawn = drawn_from(pictures(tmp_path / "in"), tmp_path, seconds=0.0)
    assert len(drawn.paths) <= 1
    assert max(drawn.left_out, key=lambda reason: drawn.left_out[reason]) == "no time to check it (--seconds)"


def test_without_torch_there_are_no_workers_and_that_is_said(tmp_path: Path) -> None:
    source = pictures(tmp_path / "in", 10)
    code = "import sys; sys.modules['torch'] = None; from packer.cli import main; main()"
    command = [sys.executable, "-c", code, "bench", str(source), "--seconds", "4", "--json", str(tmp_path / "x.json")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert {one[4] for one in combinations(json.loads((tmp_path / "x.json").read_text()))} == {0}
    assert "torch is not installed" in done.stdout


# --------------------------------------------------------------------------------------------------------- what is refused


def error_of(capsys: pytest.CaptureFixture[str], status: int, *arguments: object) -> str:
    assert run(["bench", *map(str, arguments)]) == status
    message = capsys.readouterr().err.strip()
    assert "Traceback" not in message
    return message


def test_a_folder_without_pictures_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_tree(tmp_path / "in", {"a.txt": b"x"})
    message = error_of(capsys, 1, source, "-q")
    assert "no pictures and no .npy files in it" in message
    assert len(message.splitlines()) == 1
    assert list(tmp_path.iterdir()) == [source]


def test_a_folder_of_damaged_pictures_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_tree(tmp_path / "in", {f"{i}.jpg": b"<html>" for i in range(3)})
    with judging_here():
        assert "none of the 3 files that were drawn can be measured: 3 not_an_image" in error_of(capsys, 1, source, "-q")
    assert list(tmp_path.iterdir()) == [source]


def test_what_cannot_be_compared_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = pictures(tmp_path / "in", 4)
    output = pack_here(source).output
    arrays = pack_here(write_tree(tmp_path / "arrays", {"1.npy": npy([1])})).output
    assert "no such folder" in error_of(capsys, 1, tmp_path / "nothing")
    assert "not both" in error_of(capsys, 2, source, output)
    assert "twice" in error_of(capsys, 2, output, output)
    assert "others arrays" in error_of(capsys, 2, output, arrays)
    assert "--scratch" in error_of(capsys, 2, output, "--scratch", tmp_path)
    assert "is no size" in error_of(capsys, 2, source, "--space", "many")


def test_a_result_that_could_not_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = pictures(tmp_path / "in", 4)
    monkeypatch.setattr(bench, "compare_formats", None)
    assert "there is no folder" in error_of(capsys, 1, source, "--json", tmp_path / "none/x.json")
    assert "lies in what is measured" in error_of(capsys, 1, source, "--html", source / "x.html")


@pytest.mark.parametrize("option", ["--html", "--png"])
def test_plots_without_matplotlib_are_one_message_with_the_cure(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(bench, "compare_formats", None)
    message = error_of(capsys, 2, pictures(tmp_path / "in", 4), option, tmp_path / "x")
    assert "pip install 'packer[bench]'" in message
    assert len(message.splitlines()) == 1


# ------------------------------------------------------------------------------------------------------- what is left behind

# One interpreter, and a fork of it for each run: loading torch takes seconds. Each line of its input is a command: a signal's
# number, the step after which it is sent, and how many seconds after it; or a limit of file size. Steps are those of which the
# progress tells: how long a run takes depends on what else the machine does.
DRIVER = """
import contextlib, json, os, resource, signal, sys, time
import torch
from pathlib import Path
from packer.bench import bench, measure, plan
from packer.cli.app import run
from tests.inputs import judging_here
measure.RUN_S = plan.RUN_S = 0.02
plan.SHORTEST_RUN_S, plan.REPETITIONS, bench._PACK_SHARE = 0.01, (1, 1), 0.0
bench.available_cpus = lambda: 1
bench.settings = lambda workers, caches: plan.settings(workers, caches)[::4]
import packer.cli.bench, packer.bench.figure, packer.cli.inputs
source, errors = sys.argv[1:]

class Steps:
    count = wanted = 0
    def __call__(self, progress=None):
        if self.count == self.wanted:
            os.write(self.sender, b"x")
        self.count += 1

steps = Steps()
@contextlib.contextmanager
def display(quiet):
    yield steps

packer.cli.bench._display = display

def start(step, limit):
    receiver, steps.sender = os.pipe()
    steps.wanted = step
    child = os.fork()
    if child:
        os.close(steps.sender)
        os.read(receiver, 1)  # nothing where the run has ended
        os.close(receiver)
        return child
    status = 99
    try:
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        os.dup2(2, 1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored
        if limit:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        with judging_here():
            status = run(["bench", source, "-q", "--seconds", "60"])
    finally:
        Path(errors + ".steps").write_text(str(steps.count))
        os._exit(status)

for line in sys.stdin:
    number, step, seconds, limit = json.loads(line)
    child = start(step, limit)
    if number:
        time.sleep(seconds)
        os.kill(child, number)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = sorted(name for name in os.listdir(os.path.dirname(source)))
    print(json.dumps([code, left, Path(errors).read_text(), int(Path(errors + ".steps").read_text())]), flush=True)
"""


class Driver:
    def __init__(self, tmp_path: Path) -> None:
        self.parent = tmp_path / "place"
        self.source = pictures(self.parent / "in", 24)
        command = [sys.executable, "-c", DRIVER, str(self.source), str(tmp_path / "errors")]
        self._process = subprocess.Popen(command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(
        self, number: int = 0, step: int = 0, seconds: float = 0.0, limit: int | None = None
    ) -> tuple[int, list[str], str, int]:
        """The status of a run, what lies beside the source then, what was printed, and the number of steps."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([number, step, seconds, limit]), file=self._process.stdin, flush=True)
        status, left, errors, steps = json.loads(self._process.stdout.readline())
        return status, left, errors, steps

    def end(self) -> None:
        self._process.communicate(timeout=60)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(tmp_path)
    yield driver
    driver.end()


@pytest.mark.skipif(not (HAS_TORCH and hasattr(os, "fork")), reason="forks a process that has loaded torch")
def test_a_run_that_is_ended_at_any_of_ten_moments_leaves_nothing(driver: Driver) -> None:
    before = listing(driver.source)
    status, left, errors, steps = driver.run()
    assert (status, left) == (0, ["in"]), errors
    statuses = {2: 130, 15: 143, 1: 129}
    for moment in range(10):
        number = (2, 15, 1)[moment % 3]
        status, left, errors, _ = driver.run(number, steps * moment // 12, 0.002 * (moment % 4))
        assert left == ["in"], (moment, left)
        assert "Traceback" not in errors, errors
        assert status == statuses[number], (moment, errors)
    assert listing(driver.source) == before
    # A disk that takes no file of that size, at two points.
    for limit in (4_000, 20_000):
        status, left, errors, _ = driver.run(limit=limit)
        assert (status, left) == (1, ["in"])
        assert "the benchmark cannot go on: File too large. Measure with less (--space)" in errors
        assert len(errors.splitlines()) == 1
    # And what no process can clean up after.
    status, left, *_ = driver.run(9, steps // 2)
    assert status == -9
    assert len(left) == 2
    assert driver.run()[:2] == (0, ["in"])


def test_an_interrupt_that_a_destructor_swallows_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # as it is now, in the end

    class Swallows:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    with remembered() as raise_again:
        raise_again()  # nothing has arrived
        Swallows()
        with pytest.raises(KeyboardInterrupt):
            raise_again()


def test_a_signal_waits_until_what_must_not_be_disturbed_is_done() -> None:
    done = []

    def work() -> None:
        with undisturbed():
            signal.raise_signal(signal.SIGINT)
            done.append(1)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [1]


def leftover(parent: Path, name: str = ".pack-bench-0123456789abcdef", word: str | None = None) -> Path:
    """A folder as a killed run leaves it."""
    folder = write_tree(parent / name, {"files/0.jpg": b"x", "data.lmdb/data.mdb": b"x", ".data.hdf5.partial/lock": b""})
    (folder / "lock").write_text(word or json.dumps({"host": "h", "process": 999_999_999, "job": "0"}))
    return folder


def test_the_folder_of_a_run_that_was_killed_is_removed(tmp_path: Path) -> None:
    leftover(tmp_path)
    write_tree(tmp_path / ".pack-bench-0000000000000000", {"lock": b""})  # killed just after it was made
    assert remove_leftovers(tmp_path) == 2
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_run_at_work_stays(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as made:
        made.files.mkdir()
        assert remove_leftovers(tmp_path) == 0
        assert made.files.is_dir()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_worker_that_outlives_a_run_that_was_killed_does_not_hold_its_folder(tmp_path: Path) -> None:
    receiver, sender = os.pipe()
    child = os.fork()
    if not child:
        with scratch_folder(tmp_path):
            worker = os.fork()
            if not worker:
                os.write(sender, b"x")
                time.sleep(60)
                os._exit(0)
            os.write(sender, b"%d" % worker)
            time.sleep(60)
            os._exit(0)
    told = b""
    while b"x" not in told or told == b"x":  # in whichever order they write
        told += os.read(receiver, 100)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    try:
        assert remove_leftovers(tmp_path) == 1
    finally:
        os.kill(int(told.replace(b"x", b"")), signal.SIGKILL)
        os.close(receiver)
        os.close(sender)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: folder.rename(folder.with_name(".pack-bench-mine")),
        lambda folder: folder.rename(folder.with_name("pack-bench-0123456789abcdef")),
        lambda folder: (folder / "lock").unlink(),
        lambda folder: (folder / "lock").write_text("my own"),
        lambda folder: (folder / "thesis.txt").write_text("my own"),
        lambda folder: (folder / "data.lmdb").rename(folder / "photos"),
        lambda folder: ((folder / "files/0.jpg").unlink(), (folder / "files").rmdir(), (folder / "files").symlink_to("/etc")),
    ],
)
def test_a_folder_that_is_not_ours_stays(tmp_path: Path, change: Any) -> None:
    change(leftover(tmp_path))
    before = sorted(tmp_path.rglob("*"))
    assert remove_leftovers(tmp_path) == 0
    assert sorted(tmp_path.rglob("*")) == before


def test_a_link_to_a_folder_is_no_leftover(tmp_path: Path) -> None:
    real = leftover(tmp_path / "elsewhere")
    (tmp_path / real.name).symlink_to(real)
    assert remove_leftovers(tmp_path) == 0
    assert (real / "files/0.jpg").exists()


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no users here")
def test_the_leftover_of_another_user_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = leftover(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert remove_leftovers(tmp_path) == 0
    assert folder.exists()


def test_a_folder_that_another_run_takes_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Path] = []

    def lock(path: Path, target: Path) -> JobLock:
        if not taken:
            taken.append(path.parent)
            path.parent.rmdir()
        return JobLock(path, target)

    monkeypatch.setattr(scratch, "JobLock", lock)
    with scratch_folder(tmp_path) as made:
        assert made.folder != taken[0]
        assert made.folder.is_dir()
    assert list(tmp_path.iterdir()) == []


# ----------------------------------------------------------------------------------------------------------------- the proof


@pytest.fixture
def loose(tmp_path: Path) -> Contender:
    """Loose files of 12 pictures, and what they are."""
    source = write_tree(tmp_path / "in", {f"{i:03d}.jpg": jpeg(photo(40, 30, seed=i)) for i in range(12)})
    store = Store(pack_here(source, labels="none").output)
    records = [record for _, record in store.records()]
    paths = tuple(str(path) for path in sorted(source.iterdir()))
    decoder = Decoder(records, True, True)
    sizes = np.array([record.size for record in records], np.int64)
    digests = np.array([record.digest for record in records], np.uint64)
    # The truth is what was packed, and not what lies there.
    truth = Truth(sizes, digests, lambda number: decoder.one(number, store.payload(number, records[number])))
    numbers = np.arange(12)
    return Contender(LOOSE, tuple(map(Path, paths)), truth, numbers, numbers, decoder, paths=paths)


def measured(contender: Contender, work: str) -> Measurement:
    measurement = Measurement([contender], {"raw": 1, "decoded": 1}, 0, 1e12, lambda progress: None)
    measurement.run(Plan((Setting(work, "warm", "sequential", 0),), (), 1, 1.0))
    return measurement


@pytest.mark.parametrize("work", ["raw", "decoded"])
def test_a_file_that_changed_meanwhile_ends_the_benchmark(work: str, loose: Contender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "RUN_S", 0.01)
    assert measured(loose, work).timings()[0].median > 0
    changed = jpeg(photo(40, 30, seed=77))
    loose.files[3].write_bytes(changed)
    with pytest.raises(WrongDataError, match=r"sample 3 is|was read where"):
        measured(loose, work)


def test_a_sample_that_is_missing_or_twice_is_noticed(loose: Contender) -> None:
    sizes, digests = loose.truth.sizes, loose.truth.digests
    right = (3, int(sizes[:3].sum()), digest_sum(digests[:3]))
    assert loose.truth.find_wrong_raw([0, 1, 2], right) == ""
    assert loose.truth.find_wrong_raw([0, 1, 2], (2, *right[1:]))
    assert loose.truth.find_wrong_raw([0, 1, 2], (3, right[1] + 1, right[2]))
    assert loose.truth.find_wrong_raw([0, 1, 2], (3, right[1], digest_sum(digests[1:4])))
    assert loose.truth.find_wrong_raw([0, 1, 2], (3, right[1], -1)) == ""  # a reader that compares digests itself


def test_another_picture_is_not_near_enough(loose: Contender) -> None:
    def wrong(values: np.ndarray[Any, Any], same_decoder: bool) -> str:
        row = (0, noted_row(values, same_decoder=same_decoder))
        return loose.truth.find_wrong_row(row, same_decoder=same_decoder)

    own = loose.decoder.one(0, read_file(loose.paths[0]))
    other = loose.decoder.one(1, read_file(loose.paths[1]))
    assert wrong(own, True) == ""
    assert wrong(own + np.uint8(1), True)
    assert wrong(own[:, 1:], True)
    assert wrong(own - (own > 9).astype(np.uint8), False) == ""
    assert "levels" in wrong(other, False)
    assert "shape" in wrong(own[:, 1:], False)


# ------------------------------------------------------------------------------------------------- the page cache and the plan


def test_pages_that_were_dropped_are_found_to_be_gone(loose: Contender) -> None:
    if not sys.platform.startswith("linux") or file_system(loose.files[0]) in ("tmpfs", "ramfs"):
        pytest.skip("nothing is dropped here")
    for path in loose.paths:
        read_file(path)
    assert pagecache.cached_share(loose.files) == 1.0
    pagecache.drop(loose.files)
    assert pagecache.cached_share(loose.files) == 0.0
    assert first_cold_cache([loose]).dropped is True


def test_pages_that_cannot_be_dropped_are_no_cold_cache(loose: Contender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "drop", lambda paths: True)
    monkeypatch.setattr(measure, "cached_share", lambda paths: 0.4)
    assert first_cold_cache([loose]).dropped is False
    assert "40%" in first_cold_cache([loose]).why
    monkeypatch.setattr(measure, "cached_share", lambda paths: None)
    assert first_cold_cache([loose]).dropped is None
    monkeypatch.setattr(measure, "drop", lambda paths: False)
    assert first_cold_cache([loose]).dropped is False


def test_where_pages_cannot_be_dropped_nothing_is_called_cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = pictures(tmp_path / "in", 10)
    with quick(monkeypatch):
        monkeypatch.setattr(bench, "HAS_TORCH", False)
        monkeypatch.setattr(measure, "drop", lambda paths: False)
        values = run_bench(source, "-q", "--seconds", 10, json_file=tmp_path / "x.json")
    assert {one[2] for one in combinations(values)} == {"warm"}
    assert values["cache"]["dropped"] is False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells")
def test_own_work_is_not_counted_as_that_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([(10.0, 100.0, 5.0), (20.0, 118.0, 14.0)])
    monkeypatch.setattr(CpuClock, "_read", lambda self: next(readings))
    assert CpuClock().cpus_used_by_others() == pytest.approx(0.9)
    monkeypatch.undo()
    seconds, busy, own = CpuClock._read()
    assert busy > own > 0
    assert seconds > 0


def test_worker_counts_go_up_to_the_cpus() -> None:
    assert worker_counts(1, 10_000, has_torch=True) == [0, 1]
    assert worker_counts(6, 10_000, has_torch=True) == [0, 1, 2, 4, 6]
    assert worker_counts(8, 10_000, has_torch=True) == [0, 1, 2, 4, 8]
    assert worker_counts(64, 30, has_torch=True) == [0, 1, 2, 4]
    assert worker_counts(64, 10_000, has_torch=False) == [0]


def test_batches_get_smaller_where_samples_are_few_or_slow() -> None:
    assert usual_batch(10_000, 2) == 64
    assert usual_batch(100, 2) == 8
    assert usual_batch(10_000, 2, 0.01) == 2
    assert usual_batch(1, 0, 9.0) == 1


def test_a_plan_keeps_within_its_time_and_takes_the_important_first() -> None:
    wanted = settings([0, 1, 2])
    assert len(wanted) == 24
    everything = make_plan(wanted, 1e6, lambda one: 5, lambda one: 0.1)
    assert (everything.settings, everything.left_out, everything.repetitions) == (tuple(wanted), (), 9)
    some = make_plan(wanted, 30, lambda one: 5, lambda one: 0.1)
    assert some.settings + some.left_out == tuple(wanted)
    assert len(some.settings) == 9
    assert some.seconds <= 30
    assert {one.order for one in some.settings[:8]} == {"shuffled"}
    assert {one.workers for one in some.settings} == {0, 2}
    assert len(make_plan(wanted, 0, lambda one: 5, lambda one: 0.1).settings) == 1


def test_the_package_says_where_its_parts_are() -> None:
    folder = Path(packer.__file__).parent / "bench"
    text = (folder / "__init__.py").read_text()
    assert [path.stem for path in folder.glob("*.py") if path.stem != "__init__" and path.stem not in text] == []
