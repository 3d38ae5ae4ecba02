"""Each benchmark runs to its end on a handful of files, so that none rots, and none takes wrong data for right."""

from __future__ import annotations

import json
import operator
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import packer
from packer import formats

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
# The interpreter of an environment with FFCV, where there is one; FFCV is left out otherwise.
FFCV_PYTHON = os.environ.get("FFCV_PYTHON")


def run_benchmark(name: str, folder: Path, *options: str) -> tuple[list[Any], str, str]:
    """The rows of a benchmark's JSON lines, and what it printed on both streams."""
    results = folder / "results.jsonl"
    command = [sys.executable, str(BENCHMARKS / name), *options, "--repeat", "1", "--work", str(folder), "--json", str(results)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in folder.iterdir()] == [results.name]
    return [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()], done.stdout, done.stderr


@pytest.fixture
def benchmark() -> Iterator[Callable[[str], Any]]:
    """Imports a module of the benchmarks, of which no trace stays."""
    before = set(sys.modules)
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield import_module
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name, module in list(sys.modules.items()):
            if name not in before and str(BENCHMARKS) in str(getattr(module, "__file__", None)):
                del sys.modules[name]


def require_disk(benchmark: Callable[[str], Any], folder: Path) -> None:
    file_system = benchmark("machine").describe_machine(folder)["file_system"]
    if file_system not in ("ext4", "xfs", "btrfs"):
        pytest.skip(f"files may not be dropped from the page cache on {file_system}")


# ------------------------------------------------------------------------------------------------------------ they run


@dataclass(frozen=True)
class ShortRun:
    """What one short run of everything left."""

    status: int
    results: Path
    left_in_work: list[str]
    errors: str

    def rows(self, name: str) -> list[Any]:
        return [json.loads(line) for line in (self.results / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> ShortRun:
    """Each benchmark, run on a handful of files by the one command."""
    pytest.importorskip("sklearn", reason="the photographs come with scikit-learn")
    pytest.importorskip("matplotlib", reason="it draws the plots")
    results, work = tmp_path_factory.mktemp("results"), tmp_path_factory.mktemp("work")
    command = [sys.executable, str(BENCHMARKS / "everything.py"), "--short", "--results", str(results), "--work", str(work)]
    command += ["--ffcv-python", FFCV_PYTHON] if FFCV_PYTHON else []
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=290, check=False)
    return ShortRun(done.returncode, results, [path.name for path in work.iterdir()], done.stderr)


def test_one_command_runs_every_benchmark_and_makes_the_pages(benchmark: Callable[[str], Any], short_run: ShortRun) -> None:
    runs = benchmark("everything").RUNS
    assert short_run.status == 0, short_run.errors
    assert {path.stem for path in short_run.results.glob("*.jsonl")} == set(runs)
    assert short_run.left_in_work == []
    page = (short_run.results / "README.md").read_text(encoding="utf-8")
    assert [name for name in runs if f"\n## {name}.py\n" not in page] == ["growth"]
    assert "# How cost grows" in (short_run.results / "SCALE.md").read_text(encoding="utf-8")


def test_every_benchmark_writes_down_when_it_was_run(benchmark: Callable[[str], Any], short_run: ShortRun) -> None:
    for name in benchmark("everything").RUNS:
        assert abs((date.fromisoformat(short_run.rows(name)[0]["date"]) - date.today()).days) <= 1


def test_packing_and_checking_are_measured_with_the_memory_of_a_worker(short_run: ShortRun) -> None:
    _, *results = short_run.rows("packing")
    for part, subjects in (("check full", 3), ("check none", 3), ("checking", 2)):
        assert sum(row["part"] == part and row["budget"] is not None for row in results) == subjects
    if sys.platform == "linux":
        assert [5 < row["values"][0] < row["budget"] for row in results if row["part"] == "memory"] == [True]


def test_raw_reading_is_measured_in_every_format_and_what_is_read_is_proved_right(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the photographs come with scikit-learn")
    rows, printed, errors = run_benchmark("reading.py", tmp_path, "warm", "cold", "--count", "9", "--workers", "1")
    setting, *results = rows
    without_disk = "left_out" in setting["cold"]
    if without_disk:
        assert "cold reads are left out" in errors
    for name in formats.names():
        subjects = [row["subject"] for row in results if name in row["subject"] and row["budget"]]
        assert len(subjects) == 3 + (not without_disk), subjects
    assert "budget" in printed


def test_batches_are_measured_and_what_is_read_is_proved_right(short_run: ShortRun) -> None:
    _, *results = short_run.rows("reading")
    for part in ("arrays", "pictures"):
        assert sum(row["part"] == part and "hdf5" in row["subject"] and row["budget"] is not None for row in results) > 1
    if FFCV_PYTHON:
        assert sum(row["baseline"] == "FFCV" for row in results) > 1


def test_a_large_index_is_measured(short_run: ShortRun) -> None:
    _, *figures = short_run.rows("large_index")
    units = ["ms", "kB", "ms", *(["MB", "MB"] if sys.platform == "linux" else [])]
    assert [row["unit"] for row in figures if row["budget"]] == units


def test_scanning_is_measured_and_what_is_found_is_proved_right(short_run: ShortRun) -> None:
    _, *rows = short_run.rows("scanning")
    assert [row["budget"] for row in rows] == [2.5, 300]


def test_peers_are_measured_and_what_they_read_is_proved_right(short_run: ShortRun) -> None:
    setting, *results = short_run.rows("peers")
    compared = {(row["part"], row["subject"], row["baseline"]) for row in results}
    parts = {"random, warm", "sequential, warm", "own shuffle, warm", "pictures, 0 workers", "pictures, 1 workers"}
    assert parts <= {part for part, _, _ in compared}
    for part in parts:
        assert {(part, "packer, hdf5", "loose files"), (part, "loose files", "packer, hdf5")} <= compared
    assert set(setting["sizes"]) == {"loose files", "packer, hdf5"}
    assert "--envs" in setting["skipped"]["all"]["bagz"]
    assert "without bagz" in short_run.errors


def test_scaling_is_measured_and_its_outputs_are_proved_right(short_run: ShortRun) -> None:
    figures = {row["what"]: row for row in short_run.rows("scaling")[1:]}
    ratio, least, most = (figures[f"hdf5, {name}"] for name in ("90 files against 30", "30 files", "90 files"))
    assert ratio["values"][0] == pytest.approx(most["values"][0] / least["values"][0])
    assert ratio["budget"] == 1.15
    if sys.platform == "linux":
        assert figures["hdf5, 90 files: private memory"]["values"][0] > 5


def test_growth_is_measured_by_samples_shards_epochs_workers_and_ranks(
    benchmark: Callable[[str], Any], short_run: ShortRun
) -> None:
    setting, *figures = short_run.rows("growth")
    sizes: dict[str, set[int]] = {}
    for row in figures:
        sizes.setdefault(row["part"], set()).add(row["at"])
        assert min(row["values"]) >= 0
    epochs = {2000, *benchmark("growth").LONG_EPOCHS}
    assert sizes == {"samples": {2000}, "shards": {30}, "samples of an epoch": epochs, "workers": {0, 1}, "ranks": {3}}
    # The same as a manifest of one shard more, as packer writes it, but for the digits of its size.
    manifests = [row["values"][0] for row in figures if row["what"] == "manifest"]
    assert manifests[0] * 1000 == pytest.approx(15_570 + 30 * setting["limits"]["manifest_bytes_a_shard"], rel=0.05)


STUB = """\
import json, sys
print("ran", __file__, file=sys.stderr)
if {status}:
    sys.exit({status})
setting = {{"kind": "setting", "benchmark": "{name}", "sizes": {{}}}}
figure = {{"kind": "figure", "what": "memory", "unit": "MB", "values": [1], "budget": 2}}
with open(sys.argv[sys.argv.index("--json") + 1], "w") as file:
    file.write(json.dumps(setting) + chr(10) + json.dumps(figure))
"""


def test_a_benchmark_that_fails_is_named_and_the_others_follow(
    benchmark: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="the report loads it")
    everything, results = benchmark("everything"), tmp_path / "results"
    for name, status in (("packing", 0), ("scanning", 3), ("scaling", 0)):
        (tmp_path / f"{name}.py").write_text(STUB.format(name=name, status=status), encoding="utf-8")
    report = f"import runpy, sys; sys.path.insert(0, {str(BENCHMARKS)!r}); runpy.run_module('report', run_name='__main__')"
    (tmp_path / "report.py").write_text(report, encoding="utf-8")
    results.mkdir()
    earlier = write_results(results / "scanning.jsonl", {}, [7.0], benchmark="scanning").read_bytes()
    monkeypatch.setattr(everything, "HERE", tmp_path)
    only = ["--only", "scaling", "scanning", "packing"]  # in another order than theirs
    assert everything.main([*only, "--results", str(results)]) == 1
    printed = capfd.readouterr().err
    assert [line.partition(str(tmp_path))[2] for line in printed.splitlines() if line.startswith("ran")] == [
        "/packing.py",
        "/scanning.py",
        "/scaling.py",
    ]
    assert printed.splitlines()[-1] == "everything.py: failed: scanning.py (exit status 3)"
    assert (results / "scanning.jsonl").read_bytes() == earlier
    page = (results / "README.md").read_text(encoding="utf-8")
    assert all(f"\n## {name}.py" in page for name in ("packing", "scanning", "scaling"))
    assert everything.main(["--only", "packing", "--results", str(results)]) == 0


def test_a_short_run_never_replaces_results_that_are_kept(
    benchmark: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    everything = benchmark("everything")
    monkeypatch.setattr(everything.subprocess, "run", None)
    with pytest.raises(SystemExit):
        everything.main(["--short"])
    assert "--short: name another folder" in capsys.readouterr().err


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("there", [False, True])
def test_reading_is_measured_with_the_ffcv_that_is_named_or_that_of_the_peers(
    benchmark: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool, there: bool
) -> None:
    everything, peerlist = benchmark("everything"), benchmark("peerlist")
    environment = next(peer.environment for peer in peerlist.PEERS if peer.name == "FFCV")
    if there:
        environment.python(tmp_path).parent.mkdir(parents=True)
        (tmp_path / environment.name / "whole").touch()
    monkeypatch.setattr(peerlist.venv, "create", lambda *_, **__: no_wheel(peerlist))
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(everything.subprocess, "run", run)
    options = ["--envs", str(tmp_path), "--results", str(tmp_path / "r"), *(["--ffcv-python", "other"] if named else [])]
    assert everything.main([*options, "--only", "reading", "peers"]) == 0
    reading, peers = commands
    found = reading[reading.index("--ffcv-python") + 1] if "--ffcv-python" in reading else None
    assert found == ("other" if named else str(environment.python(tmp_path)) if there else None)
    assert peers[peers.index("--envs") + 1] == str(tmp_path)


def no_wheel(peerlist: Any) -> None:
    raise peerlist.UnavailableError("no wheel")


# --------------------------------------------------------------------------------------------- wrong data are no result

SHAPE = (3, 4, 5)


def faulty_epoch(truth: Any, fault: str, faulty_calls: Sequence[int]) -> Any:
    """Epochs of the samples of ``truth``, of which some, counted from 0, have a fault in their last batch."""
    calls = iter(range(100))

    def epoch(order: Sequence[int]) -> Iterator[tuple[Any, Any]]:
        faulty = next(calls) in faulty_calls
        for start in range(0, len(order), 64):
            indices = torch.tensor(order[start : start + 64])
            data, targets = truth.data[indices], truth.targets[indices]
            if faulty and start + 64 >= len(order):
                if fault == "batch missing":
                    return
                if fault == "sample missing":
                    data, targets = data[:-1], targets[:-1]
                if fault == "sample twice":
                    data = data[[0, *range(len(data) - 1)]]
                if fault == "target":
                    targets[-1] += 1
                if fault == "value":
                    data[-1, -1, 2, 2] += 200  # the one that timed epochs keep
                if fault == "dtype":
                    data = data.to(torch.float64)
            yield data, targets

    return epoch


@pytest.mark.parametrize("faulty_call", [0, 1, 2], ids=["before", "timed", "after"])
@pytest.mark.parametrize("tolerance", [0.0, 1.0])
@pytest.mark.parametrize("fault", ["batch missing", "sample missing", "sample twice", "target", "value"])
def test_an_epoch_with_a_fault_is_no_result(
    benchmark: Callable[[str], Any], fault: str, tolerance: float, faulty_call: int
) -> None:
    epochs = benchmark("epochs")
    random = np.random.default_rng(0)
    data = torch.from_numpy(random.integers(0, 256, (100, *SHAPE)).astype(np.float32))
    truth = epochs.Truth(data, torch.arange(100), tolerance)
    epochs.timed("sound", faulty_epoch(truth, fault, ()), truth).run()
    with pytest.raises(benchmark("proof").WrongDataError, match="faulty"):
        epochs.timed("faulty", faulty_epoch(truth, fault, (faulty_call,)), truth).run()


def test_a_batch_of_another_type_is_no_result(benchmark: Callable[[str], Any]) -> None:
    epochs = benchmark("epochs")
    truth = epochs.Truth(torch.zeros(10, *SHAPE), torch.zeros(10, dtype=torch.int64))
    with pytest.raises(benchmark("proof").WrongDataError, match="float64"):
        epochs.timed("faulty", faulty_epoch(truth, "dtype", (0,)), truth)


def test_a_picture_of_another_sample_is_further_away_than_the_tolerance(
    benchmark: Callable[[str], Any], tmp_path: Path
) -> None:
    pytest.importorskip("sklearn", reason="the photographs come with scikit-learn")
    pictures = benchmark("picturebatches")
    for label, (tiles, _, _) in pictures.SIZES.items():
        benchmark("data").make_photos(tmp_path / label, 12, tiles=tiles)
        files = benchmark("epochs").SourceFiles.of(tmp_path / label)
        with Image.open(files.paths[0]) as image:
            assert f"{image.width} x {image.height}" == label
        data = torch.stack([image for image, _ in pictures.PillowPictures(files)]).float()
        for one in range(12):
            for other in range(one):
                assert (data[one] - data[other]).abs().mean() > 2 * pictures.TOLERANCE


def invert_last_byte(payload: bytes) -> bytes:
    return payload[:-1] + bytes([payload[-1] ^ 1])


@pytest.mark.parametrize("part", ["compare_warm", "compare_cold"])
def test_raw_reads_of_other_bytes_are_no_result(
    benchmark: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    pytest.importorskip("sklearn", reason="the photographs come with scikit-learn")
    rawreads = benchmark("rawreads")
    for fact in ("MOST_CACHED", "LEAST_COUNTED"):  # on any file system
        monkeypatch.setattr(rawreads, fact, 1 - 2 * (fact == "LEAST_COUNTED"))

    def open_altered(path: Path, **options: Any) -> Any:
        return packer.open_dataset(path, **options, transform=invert_last_byte)

    arguments: dict[str, Any] = {"count": 5, "repeat": 1, "formats": ["hdf5"]}
    getattr(rawreads, part)(tmp_path, **arguments)
    monkeypatch.setattr(rawreads, "open_dataset", open_altered)
    with pytest.raises(benchmark("proof").WrongDataError, match="the bytes of a sample differ"):
        getattr(rawreads, part)(tmp_path, **arguments)


def test_a_cold_run_of_files_in_the_cache_is_no_result(
    benchmark: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn", reason="the photographs come with scikit-learn")
    rawreads = benchmark("rawreads")
    require_disk(benchmark, tmp_path)
    assert rawreads.compare_cold(tmp_path, count=5, repeat=1, formats=["hdf5"])[0]
    real_drop, calls = rawreads.drop, iter(range(100))
    monkeypatch.setattr(rawreads, "drop", lambda paths: next(calls) or real_drop(paths))  # only the first time
    with pytest.raises(benchmark("proof").WrongDataError, match="not cold"):
        rawreads.compare_cold(tmp_path, count=5, repeat=1, formats=["hdf5"])


FAKE_FFCV = """\
#!{python}
import json, sys
answer = json.loads({answer!r})
print(json.dumps({{"ffcv": "0"}}), flush=True)
for line in sys.stdin:
    print(json.dumps(answer) if answer else sys.exit("it crashed"), flush=True)
"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seen": [[0, 0], [1, 1]]}, "missing"),
        ({"seen": [[0, 0], [1, 1], [1, 1]]}, "missing"),
        ({"checked": [[0, 0], [1, 1], [2, 5]]}, "target"),
        ({"worst": 4.5}, "differs by 4.50"),
        ({"worst": float("inf")}, "differs by inf"),
        ({"worst": float("nan")}, "differs by nan"),
        (None, "it crashed"),
    ],
)
def test_what_ffcv_reads_wrong_is_no_result(
    benchmark: Callable[[str], Any], tmp_path: Path, change: dict[str, Any] | None, message: str
) -> None:
    all_samples = [[0, 0], [2, 2], [1, 1]]
    right = {"seconds": 0.5, "seen": all_samples, "checked": all_samples, "worst": 2.5}
    files = benchmark("epochs").SourceFiles(["a", "b", "c"], [0, 1, 2])

    def run(answer: dict[str, Any] | None) -> float:
        python = tmp_path / "python"
        python.write_text(FAKE_FFCV.format(python=sys.executable, answer=json.dumps(answer)), encoding="utf-8")
        python.chmod(stat.S_IRWXU)
        start = benchmark("ffcv_side").start_ffcv
        with start(python, "pictures", files, tmp_path, threads=[1, 2], tolerance=4.0) as (contenders, versions):
            assert versions == {"ffcv": "0"}
            assert {contender.setting_of for contender in contenders} == {"FFCV"}
            one, other = (float(contender.run()) for contender in contenders)
            assert one == other
            return one

    assert run(right) == 0.5
    with pytest.raises(benchmark("proof").WrongDataError, match=message):
        run(None if change is None else {**right, **change})


def test_ffcvs_samples_are_compared_with_the_source_files(benchmark: Callable[[str], Any], tmp_path: Path) -> None:
    array = np.arange(60, dtype=np.float32).reshape(SHAPE)
    np.save(tmp_path / "0.npy", array)
    arrays = benchmark("ffcv_child").Source("arrays", [(str(tmp_path / "0.npy"), 0)])
    assert arrays.difference(0, array) == 0
    for other in (array + np.float32(1e-3), array.astype(np.float64), array[:1]):
        assert arrays.difference(0, other) == float("inf")
    Image.new("RGB", (500, 375), (10, 20, 30)).save(tmp_path / "0.png")
    pictures = benchmark("ffcv_child").Source("pictures", [(str(tmp_path / "0.png"), 0)])
    colours = np.broadcast_to(np.array([10, 20, 30], np.uint8)[:, None, None], (3, 224, 224))
    assert pictures.difference(0, colours) == 0
    assert pictures.difference(0, colours + np.uint8(7)) == 7


def test_a_look_up_of_another_sample_is_no_result(benchmark: Callable[[str], Any], tmp_path: Path) -> None:
    synthetic = benchmark("synthetic")
    synthetic.make_dataset(tmp_path / "d", 3000, 7)
    data = packer.open_dataset(tmp_path / "d", output="numpy")
    synthetic.look_up(data, range(3000), 7)
    shifted = data.subset(indices=[*range(1, 3000)])
    other_targets = packer.open_dataset(tmp_path / "d", output="numpy", target_transform=operator.neg)
    for wrong, shards in ((shifted, 7), (other_targets, 7), (data, 9)):
        with pytest.raises(benchmark("proof").WrongDataError, match="sample 1234"):
            synthetic.look_up(wrong, [1234], shards)


@pytest.mark.parametrize("fault", ["missing", "renamed", "longer", "too many"])
def test_a_scan_that_found_other_files_is_no_result(benchmark: Callable[[str], Any], tmp_path: Path, fault: str) -> None:
    scanning = benchmark("scanning")
    scanning.make_files(tmp_path / "in", 20, 3)
    expected = scanning.run_find(tmp_path / "in")
    scanning.prove_scanned(scanning.run_scan(tmp_path / "in"), expected)
    file = tmp_path / "in/class 0001/picture 0000002.jpg"
    if fault in ("missing", "renamed"):
        file.rename(file.with_name("other.jpg" if fault == "renamed" else ".hidden.jpg"))
    else:
        (file if fault == "longer" else file.with_name("another.jpg")).write_bytes(b"123")
    with pytest.raises(benchmark("proof").WrongDataError, match="not the 20 of find"):
        scanning.prove_scanned(scanning.run_scan(tmp_path / "in"), expected)


def peers_answer(change: str = "") -> dict[str, Any]:
    answer = {"digests": [20, 10, 30], "labels": [2, 1, 3]}
    if change == "altered":
        answer["digests"][1] = 11
    if change == "other label":
        answer["labels"][2] = 1
    if change == "missing":
        answer = {name: values[:-1] for name, values in answer.items()}
    if change == "too many":
        answer = {name: [*values, values[0]] for name, values in answer.items()}
    if change == "other order":
        answer = {name: values[::-1] for name, values in answer.items()}
    return answer


@pytest.mark.parametrize("own_order", [False, True])
@pytest.mark.parametrize("change", ["altered", "other label", "missing", "too many", "other order"])
def test_files_that_a_peer_reads_wrong_are_no_result(benchmark: Callable[[str], Any], change: str, own_order: bool) -> None:
    truth = benchmark("peerside").Truth([10, 20, 30], [1, 2, 3])
    orders = None if own_order else [[1, 0, 2]]
    truth.prove_files("sound", orders, 1, peers_answer())
    if own_order and change == "other order":
        return truth.prove_files("sound", orders, 1, peers_answer(change))
    with pytest.raises(benchmark("proof").WrongDataError, match="faulty"):
        truth.prove_files("faulty", orders, 1, peers_answer(change))
    return None


@pytest.mark.parametrize("change", ["altered", "other label", "missing", "twice", "other shape"])
@pytest.mark.parametrize("proof", [False, True])
def test_pictures_that_a_peer_reads_wrong_are_no_result(
    benchmark: Callable[[str], Any], tmp_path: Path, change: str, proof: bool
) -> None:
    pictures = np.random.default_rng(0).uniform(0, 255, (3, 3, 16, 16)).astype(np.float32)
    truth = benchmark("peerside").Truth([], [1, 2, 3], {False: pictures})

    def prove(name: str, change: str) -> None:
        indices, labels, small = [1, 0, 2], [2, 1, 3], pictures[[1, 0, 2]]
        if change == "altered":
            small[2] += 5
        if change == "other label":
            labels[2] = 1
        if change == "missing":
            indices, labels, small = indices[:-1], labels[:-1], small[:-1]
        if change == "twice":
            indices, labels, small = [1, 0, 0], [2, 1, 1], small[[0, 1, 1]]
        if change == "other shape":
            small = small[:, :1]
        np.save(tmp_path / "proof.npy", small)
        values = small[:, :, 7:9, 7:9].mean((1, 2, 3)).tolist()
        answer = {"indices": indices, "labels": labels, "values": values, "crop": False}
        truth.prove_pictures(name, 1, answer, tmp_path / "proof.npy" if proof else None)

    prove("sound", "")
    if change == "other shape" and not proof:
        return
    with pytest.raises(benchmark("proof").WrongDataError, match="faulty"):
        prove("faulty", change)


LIAR = """\
import sys
sys.path.append({scripts!r})
from child import serve
from with_loose_files import LooseFiles

class Liar(LooseFiles):
    def sample(self, index):
        data, label = super().sample(index)
        return data[:-1] + bytes([data[-1] ^ {flipped}]), label

serve(Liar())
"""


@pytest.fixture
def few_files(benchmark: Callable[[str], Any], tmp_path: Path) -> tuple[Any, Path]:
    """Five files for the peers, and the list of them."""
    for index in range(5):
        (tmp_path / f"in/class_{index % 2}").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"in/class_{index % 2}/{index}").write_bytes(b"file %d" % index)
    files = benchmark("epochs").SourceFiles.of(tmp_path / "in")
    (tmp_path / "files.json").write_text(json.dumps(list(zip(files.paths, files.targets, strict=True))), encoding="utf-8")
    return files, tmp_path / "files.json"


def read_with(benchmark: Callable[[str], Any], few_files: tuple[Any, Path], script: str) -> Any:
    """A run of raw reads with the loose files and a peer that has the given script; returns the bench."""
    peerlist, peerparts = benchmark("peerlist"), benchmark("peerparts")
    work = few_files[1].parent
    (work / "script.py").write_text(script, encoding="utf-8")
    loose = next(peer for peer in peerlist.PEERS if peer.name == peerlist.LOOSE)
    bench = peerparts.Bench(work, [loose, peerlist.Peer("another", str(work / "script.py"))], None, 1)
    shutil.rmtree(work / "raw", ignore_errors=True)
    peerparts.compare_files(bench, *few_files)
    return bench


def test_peers_in_the_projects_own_environment_read_what_they_packed(
    benchmark: Callable[[str], Any], few_files: tuple[Any, Path]
) -> None:
    peerlist, peerparts = benchmark("peerlist"), benchmark("peerparts")
    libraries = ["loose_files", "lmdb", "h5py", "webdataset", *(["datasets"] if find_spec("datasets") else [])]
    peers = [peer for peer in peerlist.PEERS if peer.script in [f"with_{name}.py" for name in libraries]]
    bench = peerparts.Bench(few_files[1].parent, peers, None, 1)
    peerparts.compare_files(bench, *few_files)
    names = {peer.name for peer in peers}
    assert len(names) > 5 + bool(find_spec("datasets"))
    for part, without in (("random, warm", {"webdataset"}), ("sequential, warm", set())):
        assert {result.subject for result in bench.results[part]} == names - {peerlist.LOOSE} - without
    assert set(bench.sizes) == names


def test_a_peer_that_alters_files_ends_the_benchmark(benchmark: Callable[[str], Any], few_files: tuple[Any, Path]) -> None:
    scripts = str(BENCHMARKS / "peers")
    bench = read_with(benchmark, few_files, LIAR.format(scripts=scripts, flipped=0))
    assert [result.subject for result in bench.results["random, warm"]] == ["another"]
    with pytest.raises(benchmark("proof").WrongDataError, match="another"):
        read_with(benchmark, few_files, LIAR.format(scripts=scripts, flipped=1))


@pytest.mark.parametrize("script", ["import no_such_module", "raise SystemExit('no wheel: no_such_module')", "x ="])
def test_a_peer_that_does_not_start_is_left_out_with_its_reason(
    benchmark: Callable[[str], Any], few_files: tuple[Any, Path], script: str
) -> None:
    bench = read_with(benchmark, few_files, script)
    assert ("SyntaxError" if script == "x =" else "no_such_module") in bench.skipped["all"]["another"]
    assert set(bench.versions) == {"loose files"}


@pytest.mark.parametrize("fault", ["missing", "too many", "renamed", "altered", "other class"])
def test_an_output_of_other_small_files_is_no_result(benchmark: Callable[[str], Any], tmp_path: Path, fault: str) -> None:
    scaling = benchmark("scaling")
    tree = scaling.make_tree(tmp_path / "in", 5)
    folder = tmp_path / "in/class_000000"
    packer.pack_folder(tmp_path / "in", packer.PackOptions(format="hdf5", output=tmp_path / "out", check="none"))
    scaling.prove_sample(tmp_path / "out", tree, 0)
    scaling._sorted_names.cache_clear()
    if fault == "missing":
        (folder / "x.npy").write_bytes(b"")
    if fault == "too many":
        (folder / "000000004.npy").unlink()
    if fault == "renamed":
        (folder / "000000004.npy").rename(folder / "x.npy")
    if fault == "altered":
        (folder / "000000004.npy").write_bytes(b"other")
    if fault == "other class":
        folder.rename(tmp_path / "in/other")
    with pytest.raises(benchmark("proof").WrongDataError, match="out"):
        scaling.prove_sample(tmp_path / "out", scaling.Tree.of(tmp_path / "in"), 0)


def test_a_worker_that_hangs_is_ended(benchmark: Callable[[str], Any]) -> None:
    start = time.monotonic()
    with pytest.raises(benchmark("proof").WrongDataError, match="no answer in 2 s"):
        benchmark("inprocess").in_process("spawn", time.sleep, 200, seconds=2)
    assert time.monotonic() - start < 100


# --------------------------------------------------------------------------------------------------- what they stand on


def test_a_contender_can_be_compared_with_several_baselines(benchmark: Callable[[str], Any]) -> None:
    timing = benchmark("timing")
    seconds = {"a": [1.0, 4.0, 1.0], "b": [2.0, 2.0, 2.0], "c": [4.0, 1.0, 4.0]}
    contenders = [timing.Contender(name, iter(times).__next__) for name, times in seconds.items()]
    pairs = [timing.Pair("c", "a", 0.2), timing.Pair("c", "b", 0.6), timing.Pair("b", "a")]
    results = timing.compare_pairs(contenders, pairs, measure=timing.Measure.RATE, files=8, repeat=3)
    assert [result.ratios for result in results] == [[0.25, 4.0, 0.25], [0.5, 2.0, 0.5], [0.5, 2.0, 0.5]]
    assert [result.is_met for result in results] == [True, False, None]


def test_of_several_settings_the_one_with_the_shortest_median_counts_in_all_rounds(benchmark: Callable[[str], Any]) -> None:
    timing = benchmark("timing")
    seconds = {"a": [1.0, 8.0, 8.0], "b": [4.0, 4.0, 2.0], "c": [2.0, 2.0, 2.0]}
    contenders = {name: timing.Contender(name, iter(times).__next__) for name, times in seconds.items()}
    several = timing.settings_of("best", [contenders["a"], contenders["b"]])
    pairs = [timing.Pair("c", "best"), timing.Pair("best", "c")]
    results = timing.compare_pairs([*several, contenders["c"]], pairs, measure=timing.Measure.RATE, files=8, repeat=3)
    assert [result.ratios for result in results] == [[2.0, 2.0, 1.0], [0.5, 0.5, 1.0]]


def test_pages_that_are_dropped_are_not_called_cached(benchmark: Callable[[str], Any], tmp_path: Path) -> None:
    pagecache = benchmark("pagecache")
    file = tmp_path / "file"
    file.write_bytes(os.urandom(1 << 20))
    assert pagecache.cached_share([file]) == 1
    require_disk(benchmark, tmp_path)
    pagecache.drop([file])
    assert pagecache.cached_share([file]) == 0
    with file.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        opened.read(4096)
    assert 0 < pagecache.cached_share([file]) < 0.1


# ------------------------------------------------------------------------------------------------- results, read again


def write_results(path: Path, ratios: dict[str, list[float]], figure: Sequence[float] = (), **setting: Any) -> Path:
    """A file as the benchmarks write it: ratios to a baseline that takes a second for 8 files, and a figure."""
    rows: list[dict[str, Any]] = [{"kind": "setting", "benchmark": "peers", "sizes": {}, **setting}]
    for name, values in ratios.items():
        times = {"seconds": [1 / value for value in values], "baseline_seconds": [1.0] * len(values)}
        row = {"subject": name, "baseline": "loose", "measure": "files/s", "budget": 1.5, "files": 8, "ratios": values}
        rows.append({"kind": "result", "part": "random, warm", **row, **times})
    if figure:
        rows.append({"kind": "figure", "what": "memory", "unit": "MB", "values": list(figure), "budget": 300})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("old", "new", "word", "status"),
    [
        ([2.0, 2.1, 2.2], [1.7, 1.8, 1.9], "worse", 1),
        ([2.0, 2.1, 2.2], [2.3, 2.4, 2.5], "better", 0),
        ([2.0, 2.1, 2.2], [1.0, 1.1, 2.0], "within noise", 0),
        ([2.0, 2.1], [1.7, 1.8, 1.9], "too few", 0),
    ],
)
@pytest.mark.parametrize("is_figure", [False, True])
def test_what_is_told_of_two_runs_is_what_changed_beyond_noise(
    benchmark: Callable[[str], Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    old: list[float],
    new: list[float],
    word: str,
    status: int,
    is_figure: bool,
) -> None:
    if is_figure:  # where less is better
        old, new = [-value for value in old], [-value for value in new]
    written = [
        str(
            write_results(
                tmp_path / name, {} if is_figure else {"a": values}, values if is_figure else (), versions={"v": name}
            )
        )
        for name, values in (("old", old), ("new", new))
    ]
    assert benchmark("compare").main(written) == status
    setting, row = capsys.readouterr().out.splitlines()
    assert setting == "setting: versions.v: old -> new"
    assert row.startswith(word)


def test_rows_of_one_run_alone_are_named(
    benchmark: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = write_results(tmp_path / "old", {"a": [1.0] * 3, "b": [1.0] * 3})
    new = write_results(tmp_path / "new", {"a": [1.0] * 3, "c": [1.0] * 3})
    assert benchmark("compare").main([str(old), str(new)]) == 0
    printed = capsys.readouterr().out
    assert "only in NEW: random, warm, c" in printed
    assert "only in OLD: random, warm, b" in printed


@pytest.mark.parametrize("command", ["compare", "report"])
@pytest.mark.parametrize(
    "content", ["", "{}", "[1]", "no JSON", '{"kind": "setting", "benchmark": "a"}\n{"kind": "result"}', None]
)
def test_what_no_benchmark_wrote_is_refused(
    benchmark: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, content: str | None
) -> None:
    sound = write_results(tmp_path / "sound", {"a": [1.0]})
    if content is not None:
        (tmp_path / "other").write_text(content, encoding="utf-8")
    assert benchmark(command).main([str(sound), str(tmp_path / "other")]) == 2
    assert "other: " in capsys.readouterr().err


def test_the_page_says_what_the_results_say(benchmark: Callable[[str], Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="it draws the plots")
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots/earlier.svg").write_text("", encoding="utf-8")
    skipped = {"all": {"c|d": "no wheel"}}
    peers = write_results(tmp_path / "1", {"a": [2.0, 3.0, 7.0], "b": [0.5, 0.25, 0.75]}, skipped=skipped)
    others = write_results(tmp_path / "2", {"e": [1.0, 1.0, 1.0]}, [310.0, 299.0, 305.0], benchmark="scaling")
    assert benchmark("report").main([str(peers), str(others), "--output", str(tmp_path)]) == 0
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "| a | 24.0 | 3.00 (2.00–7.00) |\n| loose | 8.00 | 1 |\n| b | 4.00 | 0.50 (0.25–0.75) |" in page
    assert "| e | loose | 1.00 | 1.00–1.00 | ≥ 1.50 | **missed by 33 %** |" in page
    assert "| memory |  | 305 MB | 299–310 | ≤ 300 | **missed by 2 %** |" in page
    assert "no wheel" in page
    plots = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert plots == ["peers-random-warm.svg", "scaling-random-warm.svg"]
    assert all(f"(plots/{name})" in page for name in plots)
    drawn = (tmp_path / "plots" / plots[0]).read_text(encoding="utf-8")
    assert all(f"> {value}<" in drawn for value in ("24.0", "8.00", "4.00"))


def test_the_page_that_is_kept_is_made_from_the_results_that_are_kept(benchmark: Callable[[str], Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="it draws the plots")
    results = sorted(map(str, (BENCHMARKS / "results").glob("*.jsonl")))
    assert benchmark("report").main([*results, "--output", str(tmp_path)]) == 0
    for name in ("README.md", "SCALE.md"):
        kept_page, made_page = BENCHMARKS / name, tmp_path / name
        assert kept_page.exists() == made_page.exists()
        assert not kept_page.exists() or kept_page.read_bytes() == made_page.read_bytes()
    kept, made = (sorted(path.name for path in (folder / "plots").iterdir()) for folder in (BENCHMARKS, tmp_path))
    assert kept == made


def test_the_page_is_the_same_in_whatever_order_results_are_named(benchmark: Callable[[str], Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="it draws the plots")
    names = ("scaling", "large_index", "reading", "another")
    written = [str(write_results(tmp_path / name, {}, [1.0], benchmark=name)) for name in names]
    pages: list[str] = []
    for order in (written, written[::-1]):
        assert benchmark("report").main([*order, "--output", str(tmp_path)]) == 0
        pages.append((tmp_path / "README.md").read_text(encoding="utf-8"))
    assert pages[0] == pages[1]
    sections = [line[3:-3] for line in pages[0].splitlines() if line.startswith("## ") and line.endswith(".py")]
    assert sections == ["reading", "large_index", "scaling", "another"]


@pytest.mark.parametrize(
    ("ratios", "figure", "cells"),
    [
        ([1.4, 1.5, 1.6], [300.0], ["met", "met"]),
        ([1.0, 1.2, 1.3], [330.0], ["**missed by 20 %**", "**missed by 10 %**"]),
        ([1.49], [301.0], ["**missed by less than 1 %**", "**missed by less than 1 %**"]),
        ([0.0], [900.0], ["**missed by 100 %**", "**missed by 200 %**"]),
    ],
)
def test_a_budget_is_told_as_met_or_by_how_much_it_is_missed(
    benchmark: Callable[[str], Any], tmp_path: Path, ratios: list[float], figure: list[float], cells: list[str]
) -> None:
    rows = benchmark("records").load(write_results(tmp_path / "1", {"a": [max(value, 1e-9) for value in ratios]}, figure)).rows
    assert [row.verdict for row in rows] == cells


def test_all_budgets_stand_in_one_table_with_the_reason_for_each_that_is_missed(
    benchmark: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="it draws the plots")
    report, reasons = benchmark("report"), benchmark("reasons")
    monkeypatch.setattr(reasons, "REASONS", ((r"^reading, random, warm: [ac] against loose$", "it rained"), (r": e ", "snow")))
    reading = write_results(tmp_path / "1", {"a": [1.2], "b": [1.2], "c": [1.0], "e": [1.6]}, benchmark="reading")
    scaling = write_results(tmp_path / "2", {}, [310.0], benchmark="scaling")
    assert report.main([str(scaling), str(reading), "--output", str(tmp_path)]) == 0
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    budgets = page[page.index("## Budgets") : page.index("## reading.py")]
    assert "1 of 5 are met" in budgets
    assert "No results are kept of `packing.py`, `overhead.py`, `large_index.py`, `scanning.py`, and" in budgets
    assert "| reading | a | loose | 1.20 | 1.20–1.20 | ≥ 1.50 | **missed by 20 %** |" in budgets
    assert "| reading | e | loose | 1.60 | 1.60–1.60 | ≥ 1.50 | met |" in budgets
    assert "| scaling | memory |  | 310 MB | 310–310 | ≤ 300 | **missed by 3 %** |" in budgets
    assert "* a against loose; c against loose: it rained\n* b against loose; memory: not explained\n" in budgets
    assert "snow" not in budgets


def test_every_reason_is_that_of_a_row_which_a_benchmark_writes(benchmark: Callable[[str], Any], short_run: ShortRun) -> None:
    records, reasons = benchmark("records"), benchmark("reasons")
    found = {name: records.load(short_run.results / f"{name}.jsonl") for name in ("packing", "reading", "overhead", "scanning")}
    given = {reasons.reason(name, row) for name in found for row in found[name].rows if row.budget is not None}
    without_disk = "left_out" in found["reading"].setting["cold"]
    assert {text for pattern, text in reasons.REASONS if not (without_disk and "cold" in pattern)} <= given


# ------------------------------------------------------------------------------------------------------ how cost grows


@pytest.mark.parametrize(
    ("costs", "fixed", "each"),
    [
        ([5.0, 5.0, 5.0, 5.0], 5, 0),
        ([5.1, 4.9, 5.2, 4.8], 5, 0),
        ([2 + 0.03 * size for size in (10, 100, 1000, 10_000)], 2, 0.03),
        ([1.05 * (2 + 0.3), 0.95 * (2 + 3), 2 + 30, 2 + 300], 2, 0.03),
        ([0.03 * size for size in (10, 100, 1000, 10_000)], 0, 0.03),
        ([0.28, 2.9, 30.1, 300], 0, 0.03),
        ([2.3, 5.0, 32.0, 360.0], 1.98, 0.0325),  # a distance counts as a share of the cost
        ([9.0, 8.0, 7.0, 1.0], 1.315, 0),  # what shrinks is taken for constant
        ([4.0, 4.0, 4.5, 5.5], 4.4, 0),  # and what grows by less than twice
    ],
)
def test_the_law_of_a_cost_is_constant_or_a_fixed_part_and_a_part_for_each(
    benchmark: Callable[[str], Any], costs: list[float], fixed: float, each: float
) -> None:
    sizes = [10, 100, 1000, 10_000]
    law = benchmark("fits").fit(sizes, costs)
    assert law.fixed == pytest.approx(fixed, abs=0.2)
    assert law.each == pytest.approx(each, rel=0.1)
    assert law.fixed >= 0
    assert law.worst == pytest.approx(max(abs(law.at(size) / cost - 1) for size, cost in zip(sizes, costs, strict=True)))


def test_no_line_is_drawn_through_two_points(benchmark: Callable[[str], Any]) -> None:
    law = benchmark("fits").fit([1, 10], [1.0, 10.0])
    assert (law.each, law.worst > 0.5) == (0, True)


def write_growth(path: Path, costs: dict[tuple[str, str, str], dict[int, float]]) -> Path:
    limits = {"index_bytes_a_sample": 64, "held_index_bytes": 64_000, "manifest_bytes": 1 << 20, "manifest_bytes_a_shard": 1024}
    rows: list[dict[str, Any]] = [
        {"kind": "setting", "benchmark": "growth", "limits": {**limits, "open_shards": 7, "key_digits": 5}}
    ]
    for (part, what, unit), found in costs.items():
        row = {"kind": "figure", "part": part, "what": what, "unit": unit, "budget": None}
        rows += [{**row, "at": at, "values": [value, value * 0.9, value * 1.1]} for at, value in found.items()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_the_page_of_growth_tells_measured_costs_their_laws_and_what_these_predict(
    benchmark: Callable[[str], Any], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="it draws the plots")
    sizes = (10**4, 10**6, 10**7)
    costs = {
        ("samples", "opening", "ms"): {size: 1 + 8e-6 * size for size in sizes},
        ("samples", "one look-up", "µs"): {size: 4 + 0.5 * sizes.index(size) for size in sizes},
        ("samples", "private memory of a worker", "MB"): {500: 90, **dict.fromkeys(sizes, 2.0)},
        ("shards", "opening", "ms"): {1: 1, 10: 9, 100: 2, 1000: 1.5},
        ("shards", "one look-up", "µs"): {1: 5, 8: 20, 100: 20, 1000: 20},
        ("workers", "start, fork", "ms"): {0: 1, 1: 31, 2: 51, 8: 171},
    }
    results = write_growth(tmp_path / "growth.jsonl", costs)
    assert benchmark("report").main([str(results), "--output", str(tmp_path)]) == 0
    page = (tmp_path / "SCALE.md").read_text(encoding="utf-8")
    assert "| opening, ms |  | 1.08 (0.97–1.19) | 9.00 (8.10–9.90) | 81.0 (72.9–89.1) |" in page
    assert "| opening, ms | 1.00 + 8.00 a million samples | 10,000 | 0 % | 801 ms | 8,001 ms |" in page
    assert "| one look-up, µs | 4.43 | 10,000 | 11 % | 4.43 µs | 4.43 µs |" in page
    assert "| private memory of a worker, MB | 2.00 | 10,000 | 0 % | 2.00 MB | 2.00 MB |" in page  # not that of a held index
    assert "**fits badly** | not told |" in page
    assert "| one look-up, µs | 20.0 | 8 | 0 % | 20.0 µs |" in page  # not that of shards that stay open
    assert "| start, fork, ms | 11.0 + 20.0 a worker | 1 | 0 % |" in page
    assert "about 1,024 shards" in page
    assert "5 digits and sort up to 100,000 samples" in page
    assert "(SCALE.md)" in (tmp_path / "README.md").read_text(encoding="utf-8")
    plots = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert plots == ["growth-samples.svg", "growth-shards.svg"]
    drawn = (tmp_path / "plots" / plots[0]).read_text(encoding="utf-8")
    assert ">opening<" in drawn
    assert drawn.count("stroke-dasharray") == 2  # of the look-up and of opening
    drawn = (tmp_path / "plots" / plots[1]).read_text(encoding="utf-8")
    assert drawn.count("stroke-dasharray") == 1  # what fits badly has no line


class FaultySampler(packer.EpochSampler):
    """Gives the last number of an epoch in place of the one before it."""

    def __iter__(self) -> Iterator[int]:
        numbers = list(super().__iter__())
        return iter([*numbers[:-2], *numbers[-1:] * 2])


@pytest.mark.parametrize("part", ["epoch", "ranks"])
def test_an_epoch_with_other_numbers_is_no_result(
    benchmark: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    growth = benchmark("growthparts")

    def measure() -> list[Any]:
        return list(growth.by_epoch([300], repeat=1) if part == "epoch" else growth.by_ranks([3], samples=300, repeat=1))

    monkeypatch.setattr(growth, "PROVED", 100)
    assert measure()
    monkeypatch.setattr(growth, "EpochSampler", FaultySampler)
    with pytest.raises(benchmark("proof").WrongDataError, match="numbers are not"):
        measure()


@pytest.mark.parametrize("right", [0, 20], ids=["first", "timed"])
def test_a_wrong_look_up_is_no_result_of_growth(
    benchmark: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right: int
) -> None:
    growth, calls = benchmark("growthparts"), iter(range(100))

    def open_other(folder: Path, **options: Any) -> Any:
        return packer.open_dataset(folder, **options, target_transform=lambda label: label + (next(calls) >= right))

    monkeypatch.setattr(growth, "open_dataset", open_other)
    with pytest.raises(benchmark("proof").WrongDataError, match="sample 0 is" if right == 0 else "sample"):
        list(growth.by_shards(tmp_path, [3], samples=20, lookups=10, repeat=1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="spawned workers take seconds")
def test_a_worker_that_gives_no_sample_is_no_result(
    benchmark: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = benchmark("growthworkers")
    benchmark("synthetic").make_dataset(tmp_path / "d", 10)
    probe = workers.Probe(packer.open_dataset(tmp_path / "d", output="numpy"))
    assert workers.start_up(probe, 2, "fork")[0] > 0
    monkeypatch.setattr(workers.os, "getpid", lambda: 7)
    with pytest.raises(benchmark("proof").WrongDataError, match="1 of 2 workers"):
        workers.start_up(probe, 2, "fork")
