"""What a worker says is told once in the main process, with the worker and the sample, and nothing of it is lost."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from packer import make_loader, open_dataset
from packer.workerlog import Ear, Said
from tests.endings import Stem
from tests.inputs import pack_here
from tests.loading import array_tree

pytestmark = [
    # Python 3.12 and later warn of any fork beside threads; torch itself has some.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("always:spoken"),  # inherited by the workers
    pytest.mark.skipif(sys.platform == "win32", reason="no fork here"),
]


class Talks:
    """A dataset whose samples are their numbers, and that says something when one is made."""

    def __init__(self, count: int, say: Callable[[int], object]) -> None:
        self.count = count
        self.say = say

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> int:
        self.say(number)
        return number


def talk(
    say: Callable[[int], object], count: int = 4, *, batch_size: int = 2, workers: int = 2, epochs: int = 1, **options: Any
) -> list[list[int]]:
    """The batches of a loader whose samples say something."""
    options = {"multiprocessing_context": "fork", "timeout": 60, "persistent_workers": epochs > 1, **options}
    loader = make_loader(Talks(count, say), batch_size, num_workers=workers, **options)
    batches = []
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        batches += [batch.tolist() for batch in loader]
    return batches


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What the logger has told."""
    return lambda: [record.getMessage() for record in caplog.records if record.name == "packer.workers"]


# ------------------------------------------------------------------------------------------------------ with worker and sample


def test_what_is_said_before_the_first_sample_of_a_batch_is_of_none() -> None:
    ear = Ear(str)
    ear.begin()
    ear.number = 7
    ear.hear("of a sample")
    assert ear.end() == (Said("of a sample", "7", 1),)
    ear.begin()
    ear.hear("of the next batch")
    assert ear.end() == (Said("of the next batch", "", 1),)


def prints(number: int) -> None:
    print(f"made {number}")


def warns(number: int) -> None:
    warnings.warn(f"spoken of {number}", UserWarning, stacklevel=1)


@pytest.mark.parametrize("say", [prints, warns])
def test_what_is_said_is_told_with_the_worker_and_the_sample(say: Any, told: Callable[[], list[str]]) -> None:
    assert talk(say) == [[0, 1], [2, 3]]
    text = "made {}" if say is prints else f"{__file__}:{warns.__code__.co_firstlineno + 1}: UserWarning: spoken of {{}}"
    assert told() == [f"worker {i // 2}, sample 'Talks[{i}]': {text.format(i)}" for i in range(4)]


def test_a_spawned_worker_is_heard_as_well(told: Callable[[], list[str]]) -> None:
    talk(prints, workers=1, multiprocessing_context="spawn")
    assert told() == [f"worker 0, sample 'Talks[{i}]': made {i}" for i in range(4)]


def name_says(picture: Any) -> Any:
    print(f"array {int(picture.flatten()[0])}")
    return picture


def test_a_sample_of_a_packed_dataset_is_named_by_its_original_path(tmp_path: Path, told: Callable[[], list[str]]) -> None:
    data = open_dataset(pack_here(array_tree(tmp_path / "in", 3)).output, transform=name_says)
    list(make_loader(data, 2, num_workers=1, multiprocessing_context="fork"))
    assert told() == [f"worker 0, sample '{i:04d}.npy': array {i}" for i in range(3)]


def test_standard_error_is_heard_as_standard_output_is(told: Callable[[], list[str]]) -> None:
    talk(lambda number: print("wrong", number, file=sys.stderr), 1)
    assert told() == ["worker 0, sample 'Talks[0]': wrong 0"]


# ------------------------------------------------------------------------------------------------------------ once, and counted


def says_the_same(number: int) -> None:
    print("the same")


def test_a_text_is_told_once_and_its_count_at_the_end_of_the_epoch(told: Callable[[], list[str]]) -> None:
    talk(says_the_same, 8)
    assert told() == ["worker 0, sample 'Talks[0]': the same (2 times)", "workers: the same (6 times more)"]


def test_a_later_epoch_tells_only_the_count(told: Callable[[], list[str]]) -> None:
    talk(says_the_same, 2, epochs=3)
    assert told() == ["worker 0, sample 'Talks[0]': the same (2 times)", *["workers: the same (2 times more)"] * 2]


def test_what_was_said_of_an_epoch_that_is_left_is_counted_when_the_next_begins(told: Callable[[], list[str]]) -> None:
    loader = make_loader(Talks(8, says_the_same), 2, num_workers=1, multiprocessing_context="fork", timeout=60)
    batches = iter(loader)
    next(batches), next(batches)
    batches.close()  # type: ignore[attr-defined]  # it is a generator
    assert told() == ["worker 0, sample 'Talks[0]': the same (2 times)"]
    next(iter(loader))
    assert told()[1] == "workers: the same (2 times more)"


@pytest.fixture(scope="module")
def stem(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stem]:
    stem = Stem(tmp_path_factory.mktemp("written"))
    yield stem
    stem.end()


def run(stem: Stem, source: str) -> str:
    """What a script writes to both of its streams."""
    begin = "import logging, warnings\nfrom tests.test_worker_log import *\nwarnings.simplefilter('always')\nmark()\n"
    end = stem.run(begin + source)
    assert (end.code, end.left) == (0, []), end.text
    return end.text


def says_in_many_ways(number: int) -> None:
    warnings.warn("spoken", UserWarning, stacklevel=1)
    print("printed\n\nlines", number)
    print(file=sys.stderr)
    print("no end", end="", flush=True)
    sys.stderr.writelines(["a ", "b\n"])
    logging.getLogger("mine").warning("logged")


def test_nothing_reaches_the_streams_of_the_process(stem: Stem) -> None:
    script = """
class Keeps(logging.Handler):
    def emit(self, record):
        told.append(record.getMessage())
told = []
logging.getLogger("packer.workers").addHandler(Keeps())
talk(says_in_many_ways)
print(sorted({text.split(": ")[-1].removesuffix(" (2 times)") for text in told if text.startswith("worker ")}))
"""
    texts = ["a b", "lines 0", "lines 1", "lines 2", "lines 3", "logged", "no end", "no endprinted", "printed", "spoken"]
    assert run(stem, script) == f"{texts}\n"


# ------------------------------------------------------------------------------------------------------------- nothing is lost


def says_and_fails(number: int) -> None:
    print(f"before the failure of {number}")
    if number == 1:
        raise ValueError("not this one")


def test_what_was_said_of_a_batch_that_fails_goes_to_standard_error(
    capfd: pytest.CaptureFixture[str], told: Callable[[], list[str]]
) -> None:
    with pytest.raises(ValueError, match="not this one"):
        talk(says_and_fails, 2)
    assert told() == []
    assert capfd.readouterr().err == (
        "sample 'Talks[0]': before the failure of 0\nsample 'Talks[1]': before the failure of 1\n"
    )


def says_at_the_start(worker: int) -> None:
    print(f"worker {worker} is there")
    print("no end", end="")


def test_what_is_written_between_batches_goes_to_where_it_always_went(
    capfd: pytest.CaptureFixture[str], told: Callable[[], list[str]]
) -> None:
    talk(prints, 1, batch_size=1, workers=1, worker_init_fn=says_at_the_start)
    assert capfd.readouterr().out == "worker 0 is there\nno end"
    assert told() == ["worker 0, sample 'Talks[0]': made 0"]


def writes_a_line_in_pieces(number: int) -> None:
    if number == 0:
        print("first, ", end="")
    elif number == 1:
        print("second, ", end="", flush=True)
        print("whole")
    else:
        print("not ended", end="")


def test_a_line_that_is_written_in_pieces_is_one_and_its_end_that_of_the_batch(told: Callable[[], list[str]]) -> None:
    talk(writes_a_line_in_pieces)
    lines = [text.split(": ", 1)[1] for text in told()]
    assert lines == ["first, second, whole", "not endednot ended"]


class Foreign(logging.Handler):
    """A handler that a script has set up before its workers are forked; writes into a file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.file = path.open("a", buffering=1)

    def emit(self, record: logging.LogRecord) -> None:
        print(record.getMessage(), file=self.file)


def test_a_handler_of_the_script_still_writes_in_the_workers(tmp_path: Path, told: Callable[[], list[str]]) -> None:
    log = logging.getLogger("tests.test_worker_log")
    handler = Foreign(tmp_path / "log")
    log.addHandler(handler)
    try:
        talk(lambda number: log.warning("logged %d", number), 2)
    finally:
        log.removeHandler(handler)
        handler.file.close()
    assert (tmp_path / "log").read_text() == "logged 0\nlogged 1\n"


# ------------------------------------------------------------------------------------------- and the streams are still streams


def writes_bytes(number: int) -> None:
    sys.stdout.buffer.write(b"bytes of %d\n" % number)
    sys.stdout.flush()


def test_bytes_go_to_the_stream_itself(stem: Stem) -> None:
    assert run(stem, "talk(writes_bytes, 2)") == "bytes of 0\nbytes of 1\n"


def asks_the_streams(number: int) -> None:
    streams = [sys.stdout, sys.__stdout__]
    found = [(one.encoding, one.errors, one.writable(), one.closed, one.isatty(), one.fileno(), one.name) for one in streams]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    assert found[0] == found[1]
    assert sys.stdout.line_buffering  # type: ignore[union-attr]


def test_programs_that_ask_a_stream_what_it_is_get_its_own_answers(stem: Stem) -> None:
    assert run(stem, "talk(asks_the_streams, 1)") == ""


def records_warnings(number: int) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("caught here", UserWarning, stacklevel=1)
    assert [str(one.message) for one in caught] == ["caught here"]
    warnings.warn("spoken behind", UserWarning, stacklevel=1)


def test_warnings_that_a_transform_catches_are_its_own(told: Callable[[], list[str]]) -> None:
    talk(records_warnings, 1)
    assert [text.rsplit(": ", 1)[1] for text in told()] == ["spoken behind"]


# --------------------------------------------------------------------------------------------------------------- hostile text


def writes_controls(number: int) -> None:
    print("\x1b[2J\x07\r\u202e\udc80 é")


def test_control_characters_are_shown_as_escapes(told: Callable[[], list[str]]) -> None:
    talk(writes_controls, 1)
    assert told() == [r"worker 0, sample 'Talks[0]': \x1b[2J\x07\r\u202e\udc80 é"]


def writes_a_long_line(number: int) -> None:
    for _ in range(10):
        print("x" * 1_000_000, end="")
    print()
    warnings.warn("spoken" + "y" * 10_000_000, UserWarning, stacklevel=1)
    print(" " * 5_000 + "behind blanks")


def test_a_long_line_is_cut_and_says_so(told: Callable[[], list[str]]) -> None:
    talk(writes_a_long_line, 1)
    line, warning, blank = told()
    assert line.endswith("xxx ... (cut, 10,000,000 characters)")
    assert warning.endswith("yyy ... (cut, 10,000,{} characters)".format(warning.rsplit(",", 1)[1][:3]))
    assert len(line) < 2_100
    assert len(warning) < 2_100
    assert blank.endswith(" ... (cut, 5,013 characters)")


class Floods:
    """Says so many texts, all different, a sample."""

    def __init__(self, texts: int) -> None:
        self.texts = texts

    def __call__(self, number: int) -> None:
        for i in range(self.texts):
            sys.stdout.write(f"{number} {i} {'z' * 3_000}\n")


def test_a_flood_of_texts_is_bounded_in_memory_and_told_of(long_run: bool, told: Callable[[], list[str]]) -> None:
    texts = 1_000_000 if long_run else 30_000
    memory: list[int] = []
    for count in (0, texts):  # in this order, since a worker begins with what this process has
        talk(Floods(count), 1, workers=1, on_batch=lambda metrics: memory.append(metrics.memory_bytes))
    lines = told()
    assert len(lines) == 1_001
    assert lines[999].startswith("worker 0, sample 'Talks[0]': 0 999 zzz")
    left_out = f"({texts - 1_000} times)"
    assert lines[1_000] == f"workers: lines of other texts than the first 1,000 are left out {left_out}"
    if sys.platform == "linux":
        assert memory[1] - memory[0] < 20_000_000


def test_what_is_new_after_a_flood_is_told_in_the_next_epoch(told: Callable[[], list[str]]) -> None:
    talk(lambda number: [print(number, i) for i in range(600)], 2, batch_size=1, workers=1, epochs=2)
    lines = told()
    left_out = "workers: lines of other texts than the first 1,000 are left out (200 times)"
    assert [i for i, line in enumerate(lines) if line == left_out] == [1_000, 2_001]
    assert lines[1_001] == "worker 0, sample 'Talks[0]': 0 0"


# ------------------------------------------------------------------------------------------------------------- the main process


def test_the_streams_of_the_main_process_are_left_alone(told: Callable[[], list[str]]) -> None:
    before = sys.stdout, sys.stderr, warnings.showwarning
    talk(prints)
    talk(prints, workers=0, multiprocessing_context=None, timeout=0)
    assert (sys.stdout, sys.stderr, warnings.showwarning) == before
    assert len(told()) == 4  # none of the second loader: what it prints is on the screen


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    yield
    for process in multiprocessing.active_children():
        process.join(10)
    assert multiprocessing.active_children() == [], os.getpid()
