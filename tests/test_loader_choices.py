"""The usual advice against workers that die or repeat each other is what make_loader does unless it is told otherwise."""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, RandomSampler

import packer.loader
import packer.tensors
import packer.torchloader
from packer import EpochSampler, Loader, OptionError, WorkerDiedError, make_loader, open_dataset
from packer.cpus import available_cpus
from tests.cases.loaders import FORKS, METHODS
from tests.cases.processes import run_script
from tests.inputs import pack_here
from tests.loading import Foreign, array_tree, made, picture_tree

pytestmark = [
    # Python 3.12 and later warn of any fork beside threads; torch itself has some.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
    pytest.mark.skipif(not FORKS, reason="no fork here"),
]

ROOT = Path(packer.tensors.__file__).parents[1]


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_here(array_tree(tmp_path_factory.mktemp("choices") / "in", 12), "lmdb").output


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_here(picture_tree(tmp_path_factory.mktemp("choices") / "in", 6), "lmdb").output


@pytest.fixture(autouse=True)
def same_sharing() -> Iterator[None]:
    before = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
    yield
    torch.multiprocessing.set_sharing_strategy(before)  # type: ignore[no-untyped-call]


# ------------------------------------------------------------------------------------------------- how workers are started


def test_a_script_without_a_guard_is_told_so_and_starts_no_workers_in_its_workers(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        f"os.write(os.open({str(tmp_path / 'runs')!r}, os.O_CREAT | os.O_APPEND | os.O_WRONLY), b'+')\n"
        "from packer import make_loader\n"
        "loader = make_loader(list(range(4)), 2, num_workers=1, multiprocessing_context='spawn', timeout=60)\n"
        "print(list(loader))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.count("RuntimeError: The script is being imported by one of its own workers") == 1
    assert 'behind `if __name__ == "__main__":`' in done.stderr
    assert (tmp_path / "runs").read_bytes() == b"++"


def test_without_workers_a_script_may_be_imported_by_somebody_s_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    assert len(list(make_loader(Foreign(4), 2, num_workers=0))) == 2
    with pytest.raises(RuntimeError, match="imported by one of its own workers"):
        list(made("1 worker", Foreign(4)))


def test_no_fork_where_cuda_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none=False: "fork")
    for in_use, expected in ((False, "fork"), (True, "forkserver")):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda in_use=in_use: in_use)
        loader = make_loader(Foreign(4), 2, num_workers=1)
        assert loader.multiprocessing_context.get_start_method() == expected
        assert f"multiprocessing_context={expected!r}" in repr(loader)


def test_making_a_loader_does_not_settle_how_processes_are_started() -> None:
    """The script may still call ``multiprocessing.set_start_method``."""
    code = (
        "import multiprocessing, packer\n"
        "packer.make_loader([1, 2, 3], 2, num_workers=1)\n"
        "multiprocessing.set_start_method('spawn')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_system_s_own_start_method_is_taken_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for method in METHODS:
        monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none=False, method=method: method)
        assert f"multiprocessing_context={method!r}" in repr(make_loader(Foreign(4), 2, num_workers=1))


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc for what is open")
def test_nothing_of_the_dataset_is_open_in_the_process_that_forks(arrays: Path) -> None:
    loader = made("1 worker", open_dataset(arrays))
    list(loader)
    folder = Path("/proc/self/fd")
    files = [os.readlink(folder / name) for name in os.listdir(folder) if os.path.lexists(folder / name)]
    assert [file for file in files if file.startswith(str(arrays)) and file.endswith("data.mdb")] == []


class Holding(Foreign):
    """A dataset with one attribute more."""

    def __init__(self, held: object) -> None:
        super().__init__(4)
        self.held = held


class Choosing(Holding):
    def __getstate__(self) -> dict[str, Any]:
        return {"count": self.count}


@pytest.mark.parametrize(
    "named, data, options",
    [
        (r"Holding\.held cannot be sent .* started by spawn: cannot pickle", lambda: Holding(threading.Lock()), {}),
        (r"Holding\.held\.held ", lambda: Holding(Holding(threading.RLock())), {}),
        (r"Holding\.held ", lambda: Holding([lambda: 0]), {}),
        (r"worker_init_fn= ", lambda: Foreign(4), {"worker_init_fn": lambda _: None}),
        (r"collate_fn= ", lambda: Foreign(4), {"collate_fn": lambda batch: batch}),
    ],
)
def test_what_cannot_be_sent_to_a_worker_is_named_at_once(named: str, data: Callable[[], Any], options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=named):
        make_loader(data(), 2, num_workers=1, multiprocessing_context="spawn", **options)
    make_loader(data(), 2, num_workers=1, multiprocessing_context="fork", **options)
    make_loader(data(), 2, num_workers=0, **options)


@pytest.mark.parametrize("name", ["transform", "target_transform"])
def test_a_transform_that_cannot_be_sent_is_named_at_once(name: str, pictures: Path) -> None:
    data = open_dataset(pictures, output="torch", **{name: lambda value: value})
    with pytest.raises(OptionError, match=f"{name}= cannot be sent to a worker process"):
        make_loader(data, 2, num_workers=1, multiprocessing_context=multiprocessing.get_context("spawn"))


def test_what_can_be_sent_only_while_a_process_is_started_is_not_refused() -> None:
    """A value that all workers share, such as the number of an epoch, and a tensor, of which no copy is made to find out."""
    context = multiprocessing.get_context("spawn")
    tensor = torch.zeros(4)
    for held in (context.Value("i", 0), context.Lock(), context.Queue(), tensor):
        assert len(made("1 spawn", Holding(held), 2)) == 2
    assert not tensor.is_shared()
    assert len(made("1 spawn", Choosing(threading.Lock()), 2)) == 2


class Counted(Foreign):
    """Gives what a counter is that the processes share."""

    def __init__(self, counter: Any) -> None:
        super().__init__(2)
        self.counter = counter

    def __getitem__(self, number: int) -> Any:
        return self.counter.value


def test_a_value_that_workers_share_arrives(arrays: Path) -> None:
    if "forkserver" not in METHODS:
        pytest.skip("no forkserver here")
    counter = multiprocessing.get_context("forkserver").Value("i", 7)
    assert [batch.tolist() for batch in made("1 forkserver", Counted(counter), 2)] == [[7, 7]]


# --------------------------------------------------------------------------------------------------------- inside a worker


class Told(Foreign):
    """Gives what it finds in the process that makes it."""

    def __getitem__(self, number: int) -> dict[str, Any]:
        cv2 = sys.modules.get("cv2")
        return {
            "pid": os.getpid(),
            "ignored": [int(number) for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN],
            "children": signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL,
            "handled": [int(number) for number in signal.valid_signals() if callable(signal.getsignal(number))],
            "faults": faulthandler.is_enabled(),
            "threads": torch.get_num_threads(),
            "opencv": os.environ.get("OPENCV_FOR_THREADS_NUM"),
            "cv2": getattr(cv2, "threads", None),
            "sharing": torch.multiprocessing.get_sharing_strategy(),  # type: ignore[no-untyped-call]
        }


@pytest.mark.parametrize("method", [method for method in METHODS if method != "spawn"])
def test_a_worker_leaves_signals_to_the_training_and_is_set_up(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that was not forked, and does not know which signals the training handles."""
    monkeypatch.delenv("OPENCV_FOR_THREADS_NUM", raising=False)
    fake = types.ModuleType("cv2")
    fake.setNumThreads = lambda count: setattr(fake, "threads", count)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cv2", fake)
    monkeypatch.setattr("resource.getrlimit", lambda _: (12, 12))
    called: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda received, _frame: called.append(received))
    try:
        loader = make_loader(
            Told(40), 1, num_workers=1, multiprocessing_context=method, timeout=60, collate_fn=first_of, prefetch_factor=4
        )
        told = iter(loader)
        found = next(told)
        os.kill(found["pid"], signal.SIGUSR1)
        os.kill(found["pid"], signal.SIGINT)
        assert [now["pid"] for now in told] == [found["pid"]] * 39
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert called == []
    assert found["pid"] != os.getpid()
    assert {int(signal.SIGINT), int(signal.SIGUSR1)} <= set(found["ignored"])
    assert int(signal.SIGTERM) not in found["ignored"]
    assert set(found["handled"]) <= {int(signal.SIGTERM)}
    assert found["children"]
    assert found["faults"]
    assert (found["threads"], found["opencv"]) == (1, "1")
    assert found["cv2"] == (0 if method == "fork" else None)
    assert found["sharing"] == "file_system"


def first_of(samples: list[Any]) -> Any:
    return samples[0]


class Pids(Foreign):
    def __getitem__(self, number: int) -> int:
        return os.getpid()


def terminate_and_read_on(pid: int, batches: Iterator[Any]) -> None:
    subprocess.run(["kill", "-TERM", str(pid)], check=True)
    list(batches)


def test_sigterm_ends_a_worker_without_a_word_and_the_loop_hears_of_it(capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: print("a checkpoint is written", file=sys.stderr))
    try:
        batches = iter(made("1 worker", Pids(1000), 1, collate_fn=first_of, timeout=5))
        pid = next(batches)
        # As a scheduler does, which is not its parent.
        with pytest.raises(WorkerDiedError, match=r"worker 0 \(pid \d+\) died\. terminated"):
            terminate_and_read_on(pid, batches)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capfd.readouterr().err == ""


class Stuck(Foreign):
    """A sample never returns from C, where Python's own handlers do not run."""

    def __getitem__(self, number: int) -> int:
        return int(ctypes.PyDLL(None).sleep(3600))


def test_a_sample_that_hangs_is_an_error_and_sigterm_ends_its_worker() -> None:
    loader = made("1 worker", Stuck(8), 2, timeout=1)
    with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
        list(loader)
    assert multiprocessing.active_children() == []  # torch sends it SIGTERM, and nothing else


def test_the_function_of_the_user_is_called_after_our_own_setting_up() -> None:
    loader = made("1 worker", Told(2), 1, collate_fn=first_of, worker_init_fn=ignore_nothing)
    assert int(signal.SIGINT) not in next(iter(loader))["ignored"]
    assert "ignore_nothing" in repr(loader)


def ignore_nothing(worker: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


# -------------------------------------------------------------------------------------------------------------- descriptors


def test_tensors_are_shared_by_name_only_where_descriptors_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, strategy in ((1024, "file_descriptor"), (16, "file_system")):
        torch.multiprocessing.set_sharing_strategy("file_descriptor")  # type: ignore[no-untyped-call]
        monkeypatch.setattr("resource.getrlimit", lambda _, limit=limit: (limit, limit))
        loader = make_loader(Foreign(4), 2, num_workers=2)
        assert f"sharing_strategy={strategy!r}" in repr(loader)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere tensors are always shared by name")
def test_a_process_that_may_open_few_files_reads_on() -> None:
    """A loop that keeps its batches holds two descriptors for each of them, unless they are shared by name."""
    script = """
        import resource
        import torch
        from packer import make_loader
        from tests.loading import Foreign
        make = lambda: make_loader(Foreign(60), 1, num_workers=1, prefetch_factor=8, multiprocessing_context="fork")
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
        loader = make()
        kept = list(loader)
        print(len(kept), torch.multiprocessing.get_sharing_strategy())
        """
    assert run_script(script, torch=True) == "60 file_system\n"


# ------------------------------------------------------------------------------------------------ torch's own options


def test_what_only_workers_need_is_set_only_with_workers() -> None:
    text = repr(make_loader(Foreign(4), 2, num_workers=0))
    for name in ("multiprocessing_context", "persistent_workers", "prefetch_factor", "timeout", "worker_init_fn", "sharing"):
        assert name not in text
    loader = make_loader(Foreign(4), 2, num_workers=2)
    for choice in ("num_workers=2", "persistent_workers=True", "prefetch_factor=2", "timeout=600", "pin_memory=False"):
        assert choice in repr(loader)
    assert "worker_init_fn=<sets a worker up>" in repr(loader)
    assert (loader.persistent_workers, loader.prefetch_factor, loader.timeout) == (True, 2, 600)


def test_the_text_says_what_is_read_and_in_which_order(arrays: Path) -> None:
    data = open_dataset(arrays)
    for loader in (Loader(data, 4, shuffle=True, seed=6, threads=3), make_loader(data, 4, shuffle=True, seed=6)):
        for part in (
            repr(data),
            "batch_size=4",
            "drop_last=False",
            "on_error='raise'",
            "order='shuffled', seed=6",
            "pin_memory=",
        ):
            assert part in repr(loader)
    assert "threads=3" in repr(Loader(data, 4, threads=3))


def test_every_choice_can_be_another(arrays: Path) -> None:
    options: dict[str, Any] = {
        "multiprocessing_context": "spawn",
        "persistent_workers": False,
        "prefetch_factor": 5,
        "timeout": 7,
        "pin_memory": False,
        "pin_memory_device": "",
        "in_order": False,
        "generator": torch.Generator(),
    }
    loader = make_loader(open_dataset(arrays), 4, num_workers=2, **options)
    for name, value in options.items():
        found = getattr(loader, name)
        assert (found.get_start_method() if name == "multiprocessing_context" else found) == value, name
        assert f"{name}={value!r}" in repr(loader)


@pytest.mark.parametrize("name", ["dataset", "batch_sampler"])
def test_what_make_loader_decides_itself_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name}= is decided by make_loader"):
        make_loader(Foreign(4), 2, **{name: None})


def test_an_option_that_torch_does_not_have_is_an_error() -> None:
    with pytest.raises(TypeError, match="worker_count"):
        make_loader(Foreign(4), 2, num_workers=0, worker_count=4)


def test_workers_are_as_many_as_cpus_and_none_for_plain_arrays(arrays: Path, pictures: Path) -> None:
    assert make_loader(open_dataset(arrays), 4).num_workers == 0
    assert make_loader(open_dataset(arrays, transform=first_of), 4).num_workers == available_cpus()
    assert make_loader(open_dataset(pictures), 4).num_workers == available_cpus()
    assert make_loader(Foreign(4), 4).num_workers == available_cpus()
    assert Loader(open_dataset(arrays), 4).threads == available_cpus()


def test_the_dataset_of_the_dataloader_shows_the_attributes_of_the_data(pictures: Path) -> None:
    data = open_dataset(pictures)
    loader = make_loader(data, 4, num_workers=0)
    assert loader.dataset.classes == ["a", "b"]  # type: ignore[attr-defined]
    assert loader.dataset.data is data  # type: ignore[attr-defined]
    assert len(loader.dataset) == 6  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        loader.dataset.nothing  # type: ignore[attr-defined]  # noqa: B018


# ------------------------------------------------------------------------------------------------------------ pinned memory


def test_memory_is_pinned_only_where_there_is_an_accelerator(arrays: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = open_dataset(arrays)
    monkeypatch.setattr(packer.loader, "_require_pinned_memory", lambda: None)  # which this machine may not have
    for kind, expected in (("cuda", True), ("mps", False), (None, False)):
        device = None if kind is None else torch.device(kind)
        monkeypatch.setattr(torch.accelerator, "is_available", lambda device=device: device is not None)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda device=device: device)
        assert make_loader(data, 4).pin_memory is expected
        assert Loader(data, 4).pin_memory is expected
        assert make_loader(data, 4, pin_memory=not expected).pin_memory is not expected
        assert Loader(data, 4, pin_memory=not expected).pin_memory is not expected


def test_batches_of_threads_are_made_in_pinned_memory_and_not_copied_there(
    arrays: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stood in for here by memory that is written down; only targets, which come from the index, are copied."""
    pinned: set[int] = set()
    copied: list[torch.Tensor] = []
    empty = torch.empty

    def allocate(*arguments: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        tensor = empty(*arguments, **options)
        if pin_memory:
            pinned.add(tensor.data_ptr())
        return tensor

    monkeypatch.setattr(packer.loader, "_require_pinned_memory", lambda: None)  # whose memory would be used again
    monkeypatch.setattr(torch, "empty", allocate)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: tensor.data_ptr() in pinned)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: copied.append(tensor) or tensor)
    for batch in Loader(open_dataset(arrays), 4, threads=2, pin_memory=True):
        assert batch.data_ptr() in pinned
    assert copied == []
    for images, targets in Loader(open_dataset(pictures, output="torch"), 3, threads=2, pin_memory=True):
        assert images.data_ptr() in pinned
        assert [tensor.data_ptr() for tensor in copied] == [targets.data_ptr()]
        copied.clear()
    count = len(pinned)
    list(Loader(open_dataset(arrays), 4, threads=2))
    assert len(pinned) == count


# ------------------------------------------------------------------------------------------------------------ wrong values


class Endless(IterableDataset[int]):
    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"data": 5}, "data is a int; a map-style dataset is expected"),
        ({"data": Endless()}, "data is a Endless; a map-style dataset is expected"),
        ({"data": iter([1])}, "a map-style dataset is expected"),
        ({"batch_size": 0}, "batch_size=0, expected 1 or more"),
        ({"batch_size": 1.5}, "batch_size=1.5, expected a whole number"),
        ({"batch_size": None}, "batch_size=None, expected a whole number"),
        ({"on_error": "ignore"}, "on_error='ignore', expected raise or skip"),
        ({"seed": -1}, "seed=-1, expected 0 to"),
        ({"rank": 0}, "expected both or neither"),
        ({"sampler": RandomSampler(range(4))}, "expected a packer.EpochSampler"),  # type: ignore[arg-type]
        ({"sampler": EpochSampler(range(4)), "shuffle": True}, "sampler= comes instead of shuffle="),
        ({"sampler": EpochSampler(range(4)), "rank": 0, "world_size": 1}, "sampler= comes instead of"),
    ],
)
def test_a_wrong_value_is_refused_with_what_was_expected(options: dict[str, Any], message: str, arrays: Path) -> None:
    with pytest.raises(OptionError, match=message):
        make_loader(**{"data": Foreign(4), "batch_size": 2, "num_workers": 0, **options})
    if "data" not in options:
        with pytest.raises(OptionError, match=message):
            Loader(**{"data": open_dataset(arrays), "batch_size": 2, **options})


def test_loader_reads_packed_datasets_only_and_says_what_reads_others(arrays: Path) -> None:
    for data in (Foreign(4), torch.utils.data.Subset(open_dataset(arrays), [1])):
        with pytest.raises(OptionError, match="reads packed datasets only: make_loader takes any"):
            Loader(data, 2)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="threads=0, expected 1 or more"):
        Loader(open_dataset(arrays), 2, threads=0)


def test_numbers_may_be_those_of_numpy(arrays: Path) -> None:
    for loader in (
        Loader(open_dataset(arrays), np.int64(5), seed=np.int32(1)),
        make_loader(open_dataset(arrays), np.int64(5), seed=np.int32(1)),
    ):
        assert [len(batch) for batch in loader] == [5, 5, 2]


def test_make_loader_without_torch_says_how_to_install_it(tmp_path: Path) -> None:
    script = f"""
        sys.path.insert(0, {str(ROOT)!r})
        from packer import make_loader
        try:
            make_loader([1], 1)
        except ImportError as error:
            print(error)
        """
    assert run_script(script) == 'make_loader needs torch: pip install "packer[torch]"\n'


def test_loader_needs_no_torch(arrays: Path) -> None:
    script = """
        from packer import Loader, open_dataset
        loader = Loader(open_dataset(sys.argv[1], transform=lambda array: array + 1), 5, shuffle=True, seed=1)
        batches = list(loader)
        print(sorted(int(row[0]) for batch in batches for row in batch), type(batches[0]).__name__)
        """
    assert run_script(script, arrays) == f"{list(range(1, 13))} ndarray\n"


class OnAnotherDevice(Foreign):
    def __getitem__(self, number: int) -> Any:
        return {"image": [torch.empty(1, device="meta")]}


def test_a_tensor_of_an_accelerator_is_refused_from_a_worker() -> None:
    with pytest.raises(OptionError, match=r"lies on meta.*move batches in the training loop"):
        list(make_loader(OnAnotherDevice(4), 2, num_workers=1))


def test_threads_and_pinned_memory_that_cannot_be_had_are_refused_at_once(arrays: Path) -> None:
    data = open_dataset(arrays)
    for threads in ("4", 2.5, 0):
        with pytest.raises(OptionError, match="threads="):
            Loader(data, 4, threads=threads)  # type: ignore[arg-type]
    if not torch.accelerator.is_available():
        with pytest.raises(OptionError, match="pin_memory=True, and there is none"):
            Loader(data, 4, pin_memory=True)
