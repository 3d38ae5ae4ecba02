"""However a loop over a loader ends, it ends at once, and leaves no process, no thread, and at most one traceback behind."""

from __future__ import annotations

import gc
import multiprocessing
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from packer import Loader, open_dataset
from packer.samples import Reading
from tests.endings import Stem
from tests.inputs import pack_here
from tests.loading import array_tree, fails_at, made

pytestmark = [
    # Python 3.12 and later warn of any fork beside threads; torch itself has some.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
    pytest.mark.skipif(sys.platform != "linux", reason="asks /proc for what is left"),
]

KINDS = ("threads", "workers", "new workers")

# A batch of a thread or worker takes 20 s, but the first one.
MAKE = """
import warnings
warnings.simplefilter("ignore")
class Late(slowly):
    def __getitem__(self, number):
        return number if number < 400 else self(number)
def slow_threads(**options):
    data = open_dataset({path!r}, **options).subset(indices=list(range(10)) * 400)
    read, done = data._store.extents.read_into, []
    def late(*arguments):
        done.append(0)
        if len(done) > 400:
            time.sleep(0.05)
        return read(*arguments)
    data._store.extents.read_into = late
    return Loader(data, 400, threads=1)
def make():
    if {kind!r} == "threads":
        return slow_threads()
    options = dict(num_workers=2, multiprocessing_context="fork", timeout=60)
    return make_loader(Late(0.05, 4000), 400, persistent_workers={kind!r} == "workers", **options)
def alive():
    return [thread.name for thread in threading.enumerate() if "packer" in thread.name] + multiprocessing.active_children()
"""


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_here(array_tree(tmp_path_factory.mktemp("ends") / "in", 12), "lmdb").output


@pytest.fixture(scope="module")
def stem(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stem]:
    stem = Stem(tmp_path_factory.mktemp("written"))
    yield stem
    stem.end()


@pytest.fixture
def left() -> Callable[[], list[str]]:
    """Names the processes and threads that were not there when the test began: a loader that another test has left in a circle
    of references ends when the garbage collector comes to it.
    """
    before = set(ours())
    return lambda: [one.name for one in ours() if one not in before]


def ours() -> list[threading.Thread | BaseProcess]:
    threads = [thread for thread in threading.enumerate() if "packer" in thread.name]
    return [*threads, *multiprocessing.active_children()]


def script(arrays: Path, kind: str, rest: str) -> str:
    return MAKE.format(path=str(arrays), kind=kind) + rest


# ---------------------------------------------------------------------------------------------- the loop ends, the program not


@pytest.mark.parametrize("kind", KINDS)
def test_leaving_after_the_first_batch_does_not_wait_for_the_next_ones(stem: Stem, arrays: Path, kind: str) -> None:
    end = stem.run(script(arrays, kind, "loader = make()\nfor _ in loader: break\nmark()\ndel loader\nprint(alive())"))
    assert (end.code, end.text, end.left) == (0, "[]\n", [])


@pytest.mark.parametrize("kind", KINDS)
def test_an_iterator_in_a_circle_of_references_ends_when_it_is_collected(stem: Stem, arrays: Path, kind: str) -> None:
    """With the loader, whose workers torch would wait for 5 s each, since their queues are collected first."""
    lines = "held = [iter(make())]\nheld.append(held)\nnext(held[0])\nmark()\ndel held\nprint(gc.collect() > 0)\nprint(alive())"
    end = stem.run(script(arrays, kind, lines))
    assert (end.code, end.text, end.left) == (0, "True\n[]\n", [])


@pytest.mark.parametrize("kind", ["workers"])
def test_the_next_epoch_after_a_loop_that_was_left_does_not_wait_for_the_batches_of_that_one(
    stem: Stem, arrays: Path, kind: str
) -> None:
    lines = "loader = make()\nfor _ in loader: break\nmark()\nnext(iter(loader))\nprint('next')\ndel loader\nprint(alive())"
    end = stem.run(script(arrays, kind, lines))
    assert (end.code, end.text, end.left) == (0, "next\n[]\n", [])


@pytest.mark.parametrize("kind", ["2 threads", "0 workers", "2 workers"])
def test_a_loop_that_raises_leaves_nothing_though_its_frames_are_kept(
    kind: str, arrays: Path, left: Callable[[], list[str]]
) -> None:
    loader = made(kind, open_dataset(arrays), **({"persistent_workers": False} if kind == "2 workers" else {}))

    def loop() -> None:
        for _ in loader:
            raise ValueError("in the training")

    with pytest.raises(ValueError, match="in the training") as kept:
        loop()
    assert kept.tb is not None
    assert left() == []


@pytest.mark.parametrize("kind", ["2 threads", "2 workers"])
def test_a_transform_that_raises_leaves_nothing(kind: str, arrays: Path, left: Callable[[], list[str]]) -> None:
    data = open_dataset(arrays, transform=fails_at(5))
    loader = made(kind, data, **({"persistent_workers": False} if kind == "2 workers" else {}))
    with pytest.raises(ValueError, match="not this one"):
        list(loader)
    assert left() == []


def test_an_iterator_that_one_of_its_own_threads_collects_ends_quietly(
    arrays: Path, left: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The garbage collector runs in whichever thread allocates."""
    data = open_dataset(arrays)
    let_go, collected = threading.Event(), threading.Event()
    fill = Reading.fill

    def collecting(self: Any, *arguments: Any) -> Any:
        if threading.current_thread() is not threading.main_thread() and self._wanted.numbers[0] >= 4:
            let_go.wait(30)
            gc.collect()
            collected.set()
        return fill(self, *arguments)

    monkeypatch.setattr(Reading, "fill", collecting)
    problems: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda hook: problems.append(hook.exc_value))
    held: list[Any] = [iter(Loader(data, 4, threads=1))]
    held.append(held)
    next(held[0])
    gc.disable()
    try:
        del held
        let_go.set()
        assert collected.wait(30)
    finally:
        gc.enable()
    for thread in threading.enumerate():
        if "packer" in thread.name:
            thread.join(30)
    assert (left(), problems) == ([], [])


def test_threads_that_cannot_all_be_started_are_ended(
    arrays: Path, left: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the process may have no more of them."""
    start, count = threading.Thread.start, []

    def limited(self: threading.Thread) -> None:
        if "packer" in self.name:
            count.append(self)
            if len(count) > 2:
                raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        list(Loader(open_dataset(arrays), 4, threads=3))
    for thread in count[:2]:
        thread.join(1)
    assert left() == []


# ----------------------------------------------------------------------------------------------------------- the program ends


@pytest.mark.parametrize("kind", KINDS)
def test_the_interpreter_ends_with_an_iterator_alive_and_work_pending(stem: Stem, arrays: Path, kind: str) -> None:
    end = stem.run(script(arrays, kind, "batches = iter(make())\nnext(batches)\nmark()"))
    assert (end.code, end.text, end.left) == (0, "", [])


@pytest.mark.parametrize("kind", KINDS)
def test_the_interpreter_ends_with_an_iterator_in_a_circle_of_references(stem: Stem, arrays: Path, kind: str) -> None:
    end = stem.run(script(arrays, kind, "held = [iter(make())]\nheld.append(held)\nnext(held[0])\nmark()\ndel held"))
    assert (end.code, end.text, end.left) == (0, "", [])


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_in_the_loop_ends_the_program_with_one_traceback(stem: Stem, arrays: Path, kind: str) -> None:
    end = stem.run(script(arrays, kind, "for _ in make():\n    mark()\n    raise KeyError('mine')"))
    assert (end.code, end.tracebacks, end.left) == (1, 1, [])
    assert end.text.endswith("KeyError: 'mine'\n")


@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_in_mid_epoch_ends_the_program_with_one_traceback(stem: Stem, arrays: Path, kind: str) -> None:
    end = stem.run(script(arrays, kind, "for _ in make(): mark()"), signal.SIGINT)
    assert (end.code, end.tracebacks, end.left) == (-signal.SIGINT, 1, []), end.text
    assert end.text.endswith("KeyboardInterrupt\n")


@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_that_the_training_handles_leaves_nothing(stem: Stem, arrays: Path, kind: str) -> None:
    lines = "loader = make()\ntry:\n    for _ in loader: mark()\nexcept KeyboardInterrupt: pass\ndel loader, _\nprint(alive())"
    end = stem.run(script(arrays, kind, lines), signal.SIGINT)
    assert (end.code, end.text, end.left) == (0, "[]\n", [])


@pytest.mark.parametrize("kind", KINDS)
def test_sigterm_to_all_ends_all_without_a_word(stem: Stem, arrays: Path, kind: str) -> None:
    end = stem.run(script(arrays, kind, "for _ in make(): mark()"), signal.SIGTERM)
    assert (end.code, end.text, end.left) == (-signal.SIGTERM, "", [])


@pytest.mark.parametrize("kind", KINDS)
def test_sigterm_that_the_training_handles_is_handled_once(stem: Stem, arrays: Path, kind: str) -> None:
    """And not by each worker, to which a forked process hands its handlers down."""
    lines = """
import signal
def save(number, frame):
    print("saved", flush=True)
    sys.exit(3)
signal.signal(signal.SIGTERM, save)
for _ in make(): mark()
"""
    end = stem.run(script(arrays, kind, lines), signal.SIGTERM)
    assert (end.code, end.text.count("saved"), end.left) == (3, 1, [])


def test_a_worker_whose_parent_is_gone_when_it_starts_ends() -> None:
    """torch then takes the system's first process for its parent, and waits for its end for ever."""
    code = (
        "import multiprocessing, os, signal, sys, time\n"
        "from packer.workersetup import WorkerSetup\n"
        "def work():\n"
        "    os.kill(os.getppid(), signal.SIGKILL)\n"
        "    while os.getppid() == multiprocessing.parent_process().pid: time.sleep(0.01)\n"
        "    WorkerSetup(None)(0)\n"
        "    sys.stdout.write('stays')\n"
        "    sys.stdout.flush()\n"
        "multiprocessing.get_context('fork').Process(target=work).start()\n"
        "time.sleep(60)\n"
    )
    # Its standard output is at its end when the worker is.
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")
