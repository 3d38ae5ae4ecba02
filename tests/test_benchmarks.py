"""Each benchmark runs to its end on a handful of files, so that none rots, and none takes wrong data for right."""

from __future__ import annotations

import json
import operator
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
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


def test_packing_is_measured_and_its_outputs_are_proved_right(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the photographs come with scikit-learn")
    rows, printed, _ = run_benchmark("packing.py", tmp_path, "--count", "24")
    assert rows
    assert "budget" in printed


@pytest.mark.parametrize(
    "parts, format_names",
    # To decode a picture takes the time, not to read it; and an array is read in the same way from each.
    [(("warm", "cold"), formats.names()), (("arrays", "pictures"), ["hdf5"])],
    ids=["raw", "batches"],
)
def test_reading_is_measured_and_what_is_read_is_proved_right(
    tmp_path: Path, parts: tuple[str, ...], format_names: list[str]
) -> None:
    pytest.importorskip("sklearn", reason="the photographs come with scikit-learn")
    options = ["--formats", *format_names]
    options += ["--ffcv-python", FFCV_PYTHON] if FFCV_PYTHON else []
    # More than one batch, and the last one is smaller.
    rows, printed, errors = run_benchmark("reading.py", tmp_path, *parts, "--count", "70", "--workers", "1", *options)
    setting, *results = rows
    assert setting["benchmark"] == "reading"
    without_disk = "cold" in parts and "left_out" in setting["cold"]
    if without_disk:
        assert "cold reads are left out" in errors
    for name in format_names:
        subjects = [row["subject"] for row in results if name in row["subject"] and row["budget"]]
        assert len(subjects) > (not without_disk), subjects
    if FFCV_PYTHON and "arrays" in parts:
        assert sum(row["baseline"] == "FFCV" for row in results) > 1
    assert "budget" in printed


def test_a_large_index_is_measured(tmp_path: Path) -> None:
    rows, printed, _ = run_benchmark("large_index.py", tmp_path, "--samples", "20000", "--lookups", "1500")
    assert [row["unit"] for row in rows[1:]] == ["ms", "kB", "ms", "MB", "MB"]
    assert "met" in printed


def test_scanning_is_measured_and_what_is_found_is_proved_right(tmp_path: Path) -> None:
    rows, printed, _ = run_benchmark("scanning.py", tmp_path, "--files", "700", "--folders", "3")
    assert [row["budget"] for row in rows[1:]] == [2.5]
    assert rows[0]["memory"]["budget"] == 300
    assert "budget" in printed


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
        with start(python, "pictures", files, tmp_path, threads=[1, 2], tolerance=4.0) as (contender, versions):
            assert versions == {"ffcv": "0"}
            return float(contender.run())

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
    large_index = benchmark("large_index")
    large_index.make_dataset(tmp_path / "d", 3000)
    data = packer.open_dataset(tmp_path / "d", output="numpy")
    large_index.look_up(data, [0, 1234, 2999])
    shifted = data.subset(indices=[*range(1, 3000)])
    other_targets = packer.open_dataset(tmp_path / "d", output="numpy", target_transform=operator.neg)
    for wrong in (shifted, other_targets):
        with pytest.raises(benchmark("proof").WrongDataError, match="sample 1234"):
            large_index.look_up(wrong, [1234])


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


def test_a_worker_that_hangs_is_ended(benchmark: Callable[[str], Any]) -> None:
    large_index = benchmark("large_index")
    start = time.monotonic()
    with pytest.raises(benchmark("proof").WrongDataError, match="no answer in 2 s"):
        large_index._in_process("spawn", time.sleep, 200, seconds=2)
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


def test_the_fastest_of_several_settings_counts(benchmark: Callable[[str], Any]) -> None:
    make = benchmark("timing").Contender
    best = benchmark("epochs").best_of("best", [make("a", iter([3.0, 1.0]).__next__), make("b", iter([2.0, 5.0]).__next__)])
    assert [best.run(), best.run()] == [2.0, 1.0]


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
