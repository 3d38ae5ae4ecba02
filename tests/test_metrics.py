"""What a loader tells of each batch are plain numbers that fit what happened, told once a batch where the loop runs."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from packer import BatchMetrics, open_dataset
from tests.inputs import pack_here
from tests.loading import array_tree, fails_at, made, slowly

pytestmark = [
    # Python 3.12 and later warn of any fork beside threads; torch itself has some.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
    pytest.mark.skipif(sys.platform == "win32", reason="no fork here"),
]

ROOT = Path(__file__).parents[1]
KINDS = ("2 threads", "0 workers", "2 workers")


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_here(array_tree(tmp_path_factory.mktemp("metrics") / "in", 10), "lmdb").output


def gone_over(kind: str, arrays: Path, *, transform: Any = None, **options: Any) -> list[BatchMetrics]:
    told: list[BatchMetrics] = []
    loader = made(kind, open_dataset(arrays, transform=transform), on_batch=told.append, **options)
    assert len(list(loader)) == len(told)
    return told


@pytest.mark.parametrize("kind", KINDS)
def test_all_are_plain_numbers(kind: str, arrays: Path) -> None:
    told = gone_over(kind, arrays)
    assert {tuple(map(type, astuple(metrics))) for metrics in told} == {(int, int, int, float, float, float, float, int, int)}


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_counted_from_0_and_their_samples_add_up(kind: str, arrays: Path) -> None:
    told = gone_over(kind, arrays)
    assert [(metrics.batch, metrics.samples) for metrics in told] == [(0, 4), (1, 4), (2, 2)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_worker_is_that_which_made_the_batch(kind: str, arrays: Path) -> None:
    told = gone_over(kind, arrays)
    assert [metrics.worker for metrics in told] == ([0, 1, 0] if kind == "2 workers" else [-1, -1, -1])


@pytest.mark.skipif(sys.platform != "linux", reason="0 elsewhere")
@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_that_of_the_process_which_made_the_batch(kind: str, arrays: Path) -> None:
    told = gone_over(kind, arrays, transform=Fattens(200_000_000))
    before = gone_over(kind, arrays)
    assert all(0 < metrics.memory_bytes < 20_000_000_000 for metrics in told)
    assert max(metrics.memory_bytes for metrics in told) - before[0].memory_bytes > 150_000_000


class Fattens:
    """A transform that keeps so much memory."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.kept = b""

    def __call__(self, value: Any) -> Any:
        self.kept = self.kept or b"x" * self.count
        return value


@pytest.mark.parametrize("kind", KINDS)
def test_the_time_of_a_transform_is_told_as_such_and_the_loop_has_waited_for_it(kind: str, arrays: Path) -> None:
    told = gone_over(kind, arrays, transform=slowly(0.05))
    assert told[0].transform_s >= 4 * 0.05
    assert told[0].decode_s > 0
    assert told[0].wait_s >= told[0].decode_s + told[0].transform_s
    assert all(metrics.wait_s >= 0 for metrics in told)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_that_is_slow_itself_does_not_count_as_waiting(kind: str, arrays: Path) -> None:
    told: list[BatchMetrics] = []
    loader = made(kind, open_dataset(arrays), on_batch=told.append)
    start = time.perf_counter()
    for _ in loader:
        time.sleep(0.1)
    assert sum(metrics.wait_s for metrics in told) <= time.perf_counter() - start - 3 * 0.1
    assert 10 / 0.2 > told[2].samples_per_s > 0  # two batches were trained on meanwhile


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_skipped_is_told_with_its_batch(kind: str, arrays: Path) -> None:
    told = gone_over(kind, arrays, transform=fails_at(1, 2, 9), on_error="skip")
    assert [(metrics.samples, metrics.skipped) for metrics in told] == [(2, 2), (4, 2), (1, 3)]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_called_in_the_thread_that_iterates_before_the_loop_has_the_batch(kind: str, arrays: Path) -> None:
    calls: list[Any] = []

    def on_batch(metrics: BatchMetrics) -> None:
        calls.append((metrics.batch, os.getpid(), threading.get_ident()))

    for number, _ in enumerate(made(kind, open_dataset(arrays), on_batch=on_batch)):
        assert calls == [(i, os.getpid(), threading.get_ident()) for i in range(number + 1)]


@pytest.mark.parametrize("kind", KINDS)
def test_each_iteration_begins_at_0(kind: str, arrays: Path) -> None:
    told: list[BatchMetrics] = []
    loader = made(kind, open_dataset(arrays), on_batch=told.append)
    for _ in loader:
        break
    list(loader)
    assert [metrics.batch for metrics in told] == [0, 0, 1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_for_which_it_raised_comes_again_after_a_resume(kind: str, arrays: Path) -> None:
    def raises(metrics: BatchMetrics) -> None:
        if metrics.batch == 1:
            raise ValueError("the callback")

    undisturbed = [batch.tolist() for batch in made(kind, open_dataset(arrays))]
    loader = made(kind, open_dataset(arrays), on_batch=raises)
    with pytest.raises(ValueError, match="the callback"):
        list(loader)
    resumed = made(kind, open_dataset(arrays))
    resumed.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in resumed] == undisturbed[1:]


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_raises_reaches_the_loop(kind: str, arrays: Path) -> None:
    def on_batch(metrics: BatchMetrics) -> None:
        if metrics.batch == 1:
            raise LookupError("of the callback")

    given = 0
    with pytest.raises(LookupError, match="of the callback"):  # noqa: PT012
        for _ in made(
            kind, open_dataset(arrays), on_batch=on_batch, **{} if "threads" in kind else {"persistent_workers": False}
        ):
            given += 1
    assert given == 1


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    yield
    for process in multiprocessing.active_children():
        process.join(5)
    assert multiprocessing.active_children() == []


# --------------------------------------------------------------------------------------------------------------- the example


def test_the_example_exports_over_http_what_it_prints(arrays: Path) -> None:
    pytest.importorskip("prometheus_client")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        str(ROOT / "examples" / "metrics_prometheus.py"),
        str(arrays),
        "--port",
        str(port),
        "--epochs",
        "2",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            printed = process.stdout.readline()
            assert printed, process.communicate(timeout=60)[1]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                text = answer.read().decode()
            process.communicate(input="\n", timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("packer_"))
    assert float(lines["packer_samples_total"]) == 20
    assert float(lines["packer_skipped_total"]) == 0
    assert float(lines["packer_wait_seconds_count"]) == 6
    told = dict(part.split("=") for part in printed.split())
    assert {name: float(value) for name, value in told.items()} == {name: float(lines[name]) for name in told}
    assert set(told) == {"packer_samples_total", "packer_skipped_total", "packer_wait_seconds_sum"}
