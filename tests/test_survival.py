"""When workers die the batches go on: each sample once and in order, with the cause told, and no error in the loop's body."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from packer import OptionError, WorkerDiedError, make_loader, resilient
from tests.loading import Foreign, plain

pytestmark = [
    # Python 3.12 and later warn of any fork beside threads; torch itself has some.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.skipif(sys.platform == "win32", reason="no fork here"),
]

KINDS = ("make_loader", "DataLoader")


@pytest.fixture(autouse=True)
def no_process_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (torch.utils.data._utils, torch.utils.data._utils.pin_memory):
        monkeypatch.setattr(module, "MP_STATUS_CHECK_INTERVAL", 0.5)  # torch waits 5 s for what is gone
    yield
    for process in multiprocessing.active_children():
        process.join(5)
    assert multiprocessing.active_children() == []


class Numbers:
    """A dataset of numbers; some of them do something before."""

    def __init__(self, count: int, **deeds: Callable[[], object]) -> None:
        self.count = count
        self.deeds = {int(name.removeprefix("at")): deed for name, deed in deeds.items()}

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> torch.Tensor:
        self.deeds.get(number, int)()
        return torch.full((50,), number)


def started(kind: str, data: Any, batch_size: int = 2, workers: int = 2, max_deaths: int = 1000, **options: Any) -> Any:
    """A resilient loader with forked workers."""
    options = {"multiprocessing_context": "fork", "timeout": 600, **options}
    if kind == "make_loader":
        return resilient(make_loader(data, batch_size, num_workers=workers, **options), max_deaths=max_deaths)
    return resilient(DataLoader(data, batch_size, num_workers=workers, **options), max_deaths=max_deaths)


def numbers(batches: Any) -> list[list[int]]:
    return [batch[:, 0].tolist() for batch in batches]


def kill(*workers: Any, by: int = signal.SIGKILL) -> None:
    """End worker processes, some or all that there are, and wait until they have."""
    for worker in workers or multiprocessing.active_children():
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, by)
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)  # its status stays for torch to see


# ---------------------------------------------------------------------------------------------- each sample once and in order


class Killer:
    """Kills a random worker at a random moment of the next 10 ms, when it is asked to."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.kills = 0
        self._last: threading.Thread | None = None

    def soon(self) -> None:
        self.end()
        if workers := multiprocessing.active_children():
            self._last = threading.Timer(self.random.random() / 100, self._kill, [self.random.choice(workers)])
            self._last.daemon = True
            self._last.start()

    def _kill(self, worker: Any) -> None:
        if worker.is_alive():
            worker.kill()
            self.kills += 1

    def end(self) -> None:
        if self._last is not None:
            self._last.join()


def epoch(kind: str, loader: Any, number: int) -> Any:
    if kind == "make_loader":
        loader.set_epoch(number)
    return loader


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("kind", KINDS)
def test_epochs_with_random_kills_are_those_of_an_undisturbed_run(kind: str, method: str, long_run: bool) -> None:
    if (kind, method, long_run) == ("DataLoader", "spawn", False):
        pytest.skip("loading torch in each worker takes seconds")
    kills = 50 if long_run else 10 if method == "fork" else 2
    data = Foreign(60)
    options: Any = {"shuffle": True, "timeout": 60, "multiprocessing_context": method, "persistent_workers": method == "spawn"}
    killer = Killer(kills)
    workers = 1 if method == "spawn" and not long_run else 4
    loader = started(kind, data, 3, workers, **options)
    torch.manual_seed(0)
    found = []
    while killer.kills < kills:
        batches = []
        for batch in epoch(kind, loader, len(found)):
            batches.append(plain(batch))
            if killer.random.random() < (0.2 if method == "fork" else 0.1) and killer.kills < kills:
                killer.soon()
            time.sleep(0.001)
        killer.end()
        found.append(batches)
    assert loader.deaths  # not all: a worker may have been at its end
    torch.manual_seed(0)
    same = (
        make_loader(data, 3, shuffle=True, num_workers=0)
        if kind == "make_loader"
        else orders_of(DataLoader(data, 3, True), method)
    )
    expected = [[plain(batch) for batch in epoch(kind, same, number)] for number in range(len(found))]
    if kind == "DataLoader":  # a new worker draws other numbers there
        assert all([draws[0] for draws in batch[1]] == batch[0] for batches in found for batch in batches)
        found = [[batch[0] for batch in batches] for batches in found]
    assert found == expected


class orders_of:  # noqa: N801 - used as a function
    """The numbers that a DataLoader with workers would ask for."""

    def __init__(self, loader: Any, method: str) -> None:
        self.loader = loader
        self.seeds = [0] if method == "spawn" else None  # workers that persist are given seeds once

    def __iter__(self) -> Iterator[list[int]]:
        if self.seeds is None or self.seeds:
            torch.empty((), dtype=torch.int64).random_()
            if self.seeds:
                self.seeds.pop()
        return iter(self.loader.batch_sampler)


@pytest.mark.parametrize("kind", KINDS)
def test_workers_that_die_between_two_epochs_are_replaced(kind: str) -> None:
    loader = started(kind, Numbers(8), persistent_workers=True)
    first = numbers(loader)
    kill()
    assert numbers(loader) == first == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert loader.deaths == 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("persistent", [False, True])
def test_the_epoch_after_one_that_was_left_is_whole(kind: str, persistent: bool) -> None:
    loader = started(kind, Numbers(12), persistent_workers=persistent)
    for batch in loader:
        kill(multiprocessing.active_children()[0])
        if batch[0, 0] == 4:
            break
    assert numbers(loader) == [[i, i + 1] for i in range(0, 12, 2)]


@pytest.mark.parametrize("kind", KINDS)
def test_workers_that_die_after_a_loop_was_left_are_replaced(kind: str) -> None:
    loader = started(kind, Numbers(12), persistent_workers=True)
    next(iter(loader))
    kill()
    assert numbers(loader) == [[i, i + 1] for i in range(0, 12, 2)]


def test_the_state_behind_a_batch_is_that_of_an_undisturbed_loop() -> None:
    options: Any = {"shuffle": True, "seed": 3}
    loader = started("make_loader", Numbers(20), **options)
    head = []
    for batch in loader:
        head.append(batch[:, 0].tolist())
        kill()
        if len(head) == 4:
            state = loader.state_dict()
            break
    whole = numbers(make_loader(Numbers(20), 2, num_workers=0, **options))
    again = started("make_loader", Numbers(20), **options)
    again.load_state_dict(state)
    assert head + numbers(again) == whole


class KillsInBetween:
    """A batch sampler in the midst of which a worker dies."""

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[list[int]]:
        for i in range(12):
            if i in (6, 9):
                kill(multiprocessing.active_children()[0])
                sum(range(100_000))  # where torch would raise
            yield [i]


def test_a_sampler_that_is_at_work_when_a_worker_dies_goes_on() -> None:
    loader = resilient(DataLoader(Numbers(12), batch_sampler=KillsInBetween(), num_workers=2, multiprocessing_context="fork"))  # type: ignore[arg-type]
    assert numbers(loader) == [[i] for i in range(12)]
    assert loader.deaths == 2


@pytest.mark.parametrize("kind", KINDS)
def test_two_loops_at_once_have_workers_of_their_own(kind: str) -> None:
    loader = started(kind, Numbers(6), persistent_workers=False)
    pairs = []
    for first, second in zip(loader, loader, strict=True):
        pairs.append((first[0, 0].item(), second[0, 0].item()))
        if len(pairs) == 1:
            kill(multiprocessing.active_children()[0])
    assert pairs == [(0, 0), (2, 2), (4, 4)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_loop_with_persistent_workers_ends_the_first_by_an_error(kind: str) -> None:
    loader = started(kind, Numbers(6), persistent_workers=True)
    first = iter(loader)
    next(first)
    second = iter(loader)
    assert next(second)[0, 0] == 0
    with pytest.raises(RuntimeError, match="another iteration over this loader has begun"):
        next(first)
    assert numbers(second) == [[2, 3], [4, 5]]


def pretend_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "is_available": True, "current_device_index": 0, "set_device_index": None, "current_accelerator": torch.device("cuda")
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.accelerator, name, lambda *_, value=value: value)


class Pinnable(list[int]):
    """A batch that can be put into pinned memory where there is none."""

    pinned = False

    def pin_memory(self) -> Pinnable:
        self.pinned = True
        return self


def as_pinnable(samples: Sequence[torch.Tensor]) -> Pinnable:
    return Pinnable(int(sample[0]) for sample in samples)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_that_a_thread_pins_go_on_as_well(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_pinned_memory(monkeypatch)
    loader = started(kind, Numbers(16), pin_memory=True, collate_fn=as_pinnable, persistent_workers=False)
    found = []
    for batch in loader:
        assert batch.pinned
        found += batch
        if len(found) in (4, 10):
            kill(multiprocessing.active_children()[0])
    assert found == list(range(16))
    assert loader.deaths == 2
    for thread in threading.enumerate():
        if "pin_memory" in thread.name:
            thread.join(20)
            assert not thread.is_alive()


# --------------------------------------------------------------------------------------------------- the loop's body sees none


def die_in_the_middle_of_a_message() -> None:
    """Have this worker send half of the next long message, and be killed."""

    def write(descriptor: int, data: Any) -> int:
        if len(data) < 1 << 20:
            return os.write(descriptor, data)
        half = memoryview(data)[: len(data) // 2]
        while half:
            half = half[os.write(descriptor, half) :]
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    send: Any = connection.Connection._send  # type: ignore[attr-defined]
    connection.Connection._send = lambda self, buffer: send(self, buffer, write)  # type: ignore[attr-defined]


def only_once(deed: Callable[[], object], folder: Path) -> Callable[[], object]:
    """The deed, in whichever worker comes first."""

    def first() -> None:
        with contextlib.suppress(FileExistsError):
            Path(folder, "done").touch(exist_ok=False)
            deed()

    return first


@pytest.mark.parametrize("timeout", [0, 600])
@pytest.mark.parametrize("kind", KINDS)
def test_half_a_message_of_a_dead_worker_is_waited_for_no_longer_than_a_moment(kind: str, timeout: int, tmp_path: Path) -> None:
    class Long(Numbers):
        def __getitem__(self, number: int) -> Any:
            return bytes([super().__getitem__(number)[0]]) * 3_000_000

    data = Long(8, at3=only_once(die_in_the_middle_of_a_message, tmp_path))
    loader = started(kind, data, collate_fn=list, timeout=timeout)
    start = time.monotonic()
    assert [[sample[0] for sample in batch] for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert loader.deaths == 1  # the other worker was ended because of it
    assert time.monotonic() - start < 30


def test_half_a_message_is_no_hang_though_another_loader_was_forked_meanwhile(tmp_path: Path) -> None:
    """Its workers have the pipe of the first one, too."""

    class Long(Numbers):
        def __getitem__(self, number: int) -> Any:
            return bytes([super().__getitem__(number)[0]]) * 3_000_000

    data = Long(16, at9=only_once(die_in_the_middle_of_a_message, tmp_path))
    train = iter(started("DataLoader", data, collate_fn=list))
    found = [next(train)]
    other = iter(started("DataLoader", Numbers(20)))
    next(other)
    found += train
    assert [sample[0] for batch in found for sample in batch] == list(range(16))
    assert len(list(other)) == 9


def hold_what_torch_ends_workers_with() -> None:
    """Have this worker hold the lock of the event by which torch ends workers, until it is killed a second later."""
    frame: Any = sys._getframe()
    while "done_event" not in frame.f_locals:
        frame = frame.f_back
    frame.f_locals["done_event"]._cond.acquire()
    threading.Timer(1, os.kill, [os.getpid(), signal.SIGKILL]).start()


@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_that_a_dead_worker_held_ends_no_loop(kind: str, tmp_path: Path) -> None:
    loader = started(kind, Numbers(4, at3=only_once(hold_what_torch_ends_workers_with, tmp_path)))
    assert numbers(loader) == [[0, 1], [2, 3]]
    assert numbers(loader) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_death_while_the_training_is_in_its_own_code_raises_nothing_there(kind: str) -> None:
    loader = started(kind, Numbers(40))
    for batch in loader:
        if batch[0, 0] == 10:
            kill()
            sum(range(100_000))  # where torch would raise
            assert loader.deaths == 0
    assert loader.deaths == 2


def test_an_error_of_a_sample_passes_through_and_is_no_death(caplog: pytest.LogCaptureFixture) -> None:
    loader = started("DataLoader", Numbers(4, at3=fails), workers=1)
    assert error_of(loader) == error_of(DataLoader(Numbers(4, at3=fails), 2, num_workers=1))  # type: ignore[arg-type]
    assert loader.deaths == 0
    assert caplog.records == []


def error_of(loader: Any) -> str:
    try:
        list(loader)
    except KeyError as error:
        return str(error)
    finally:
        gc.collect()  # torch's iterator lies in a circle
    raise AssertionError("no KeyError was raised")


def fails() -> None:
    {}["no such"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_that_speaks_as_torch_does_is_no_death_and_no_timeout(kind: str) -> None:
    def fail() -> None:
        raise RuntimeError("DataLoader timed out after 600 seconds, DataLoader worker (pid 7) exited unexpectedly")

    loader = started(kind, Numbers(8, at3=fail), persistent_workers=False)
    with pytest.raises(RuntimeError, match="pid 7"):
        numbers(loader)
    assert loader.deaths == 0


def test_a_sampler_whose_own_loader_is_too_late_is_no_death() -> None:
    class Sampler:
        def __iter__(self) -> Iterator[int]:
            yield from range(6)
            yield from DataLoader(Numbers(1, at0=lambda: time.sleep(2)), num_workers=1, timeout=0.2)  # type: ignore[misc]

        def __len__(self) -> int:
            return 7

    loader = started("DataLoader", Numbers(8), 1, sampler=Sampler(), timeout=0.2)
    with pytest.raises(RuntimeError, match="timed out after"):
        numbers(loader)
    assert loader.deaths == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_that_raises_stop_iteration_does_not_end_the_epoch_in_silence(kind: str) -> None:
    def stop() -> None:
        raise StopIteration

    loader = started(kind, Numbers(8, at7=stop), persistent_workers=False)  # of the last batch
    with pytest.raises(RuntimeError, match="StopIteration"):
        numbers(loader)
    assert loader.deaths == 0


def test_the_timeout_counts_anew_for_each_batch_that_arrives() -> None:
    """As torch counts it: the first batch takes longer than the timeout, while others come."""
    loader = started("DataLoader", Numbers(6, at0=lambda: time.sleep(1.0)), 1, timeout=1, collate_fn=slowly)
    assert [int(batch[0]) for batch in loader] == list(range(6))
    assert loader.deaths == 0


def slowly(samples: list[torch.Tensor]) -> torch.Tensor:
    time.sleep(0.45)
    return samples[0]


def test_a_pinning_thread_that_ends_ends_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_pinned_memory(monkeypatch)
    monkeypatch.setattr(threading, "excepthook", lambda end: None)
    loader = started("DataLoader", Numbers(8, at4=lambda: None), pin_memory=True, collate_fn=unreadable_at_4, timeout=0)
    with pytest.raises(RuntimeError, match="Pin memory thread exited unexpectedly"):
        list(loader)


class Unreadable:
    def __reduce__(self) -> Any:
        return int, ("no number",)


def unreadable_at_4(samples: list[torch.Tensor]) -> Any:
    return Unreadable() if samples[0][0] == 4 else as_pinnable(samples)


def test_a_death_between_two_epochs_is_told_by_the_loader_itself_which_then_starts_anew() -> None:
    options: Any = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "fork", "timeout": 600}
    loader = make_loader(Numbers(8), 2, **options)
    first = numbers(loader)
    victim = multiprocessing.active_children()[0]
    kill(victim)
    with pytest.raises(WorkerDiedError, match=rf"worker \d \(pid {victim.pid}\) died\. killed"):
        numbers(loader)
    assert numbers(loader) == first


@pytest.mark.parametrize("kind", KINDS)
def test_workers_that_are_killed_while_they_end_after_the_last_batch_are_no_deaths(kind: str) -> None:
    loader = started(kind, Numbers(4), worker_init_fn=ends_by_a_signal, persistent_workers=False)
    assert numbers(loader) == [[0, 1], [2, 3]]
    assert loader.deaths == 0


def ends_by_a_signal(_: int) -> None:
    Finalize(None, os.kill, (os.getpid(), signal.SIGKILL), exitpriority=1)


# ------------------------------------------------------------------------------------------------------------- what is told


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGSEGV])
@pytest.mark.parametrize("kind", KINDS)
def test_each_death_is_told_once_with_its_signal_its_cause_and_its_samples(
    kind: str, by: signal.Signals, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mark = tmp_path / "mark"
    loader = started(kind, Numbers(24, at16=HangsOnce(mark)), workers=1, prefetch_factor=2)
    for batch in loader:
        if batch[0, 0] == 14:
            [worker] = multiprocessing.active_children()
            while not mark.exists():
                time.sleep(0.01)
            kill(worker, by=by)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert told[0].startswith(f"worker 0 (pid {worker.pid}) died, which had to make the samples 16, 17, 18, 19. ")
    assert by.name in told[0]
    assert f" {'killed (likely)' if by is signal.SIGKILL else 'segfault'}: " in told[0]
    assert told[0].endswith("2 batches are made again, by 1 workers.")


# --------------------------------------------------------------------------------------------------------------- and an end


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exits() -> None:
    os._exit(3)


@pytest.mark.parametrize("deed", [dies, exits])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_that_kills_whoever_makes_it_is_named_after_five_deaths(kind: str, deed: Any) -> None:
    loader = started(kind, Numbers(20, at9=deed), workers=4)
    given = []
    with pytest.raises(WorkerDiedError, match=r"The batch that comes next has cost 5 workers, .* it has the samples 8, 9\.$"):
        given.extend(batch[:, 0].tolist() for batch in loader)
    assert given == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert loader.num_workers == 1


def test_more_deaths_than_allowed_end_the_loop() -> None:
    loader = started("make_loader", Numbers(40), workers=1, max_deaths=1)
    batches = iter(loader)
    for _ in range(2):
        next(batches)
        kill()
    with pytest.raises(WorkerDiedError, match=r"These were 2 deaths, max_deaths=1 is the limit\."):
        next(batches)


def test_after_every_second_death_there_are_half_as_many_workers() -> None:
    loader = started("make_loader", Numbers(40), workers=5)
    counts = []
    for batch in loader:
        counts.append((loader.deaths, loader.num_workers, len(multiprocessing.active_children())))
        if batch[0, 0] in (4, 8, 12, 16, 20):
            kill(multiprocessing.active_children()[0])
    assert list(dict.fromkeys(counts)) == [(0, 5, 5), (1, 5, 5), (2, 2, 2), (3, 2, 2), (4, 1, 1), (5, 1, 1)]


def test_deaths_that_come_together_count_as_many() -> None:
    loader = started("make_loader", Numbers(40), workers=8)
    for batch in loader:
        if batch[0, 0] == 4:
            kill(*multiprocessing.active_children()[:3])
    assert (loader.deaths, loader.num_workers) == (3, 4)


class HangsOnce:
    """Hangs where it is called first."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __call__(self) -> None:
        if not self.mark.exists():
            self.mark.touch()
            time.sleep(600)


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_hangs_is_replaced_when_the_timeout_is_over(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loader = started(kind, Numbers(8, at3=HangsOnce(tmp_path / "mark")), timeout=1)
    assert numbers(loader) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert (loader.deaths, len(caplog.records)) == (1, 1)
    assert caplog.records[0].getMessage().startswith("a worker gave nothing, which had to make the samples 2, 3")


def test_a_worker_that_is_ended_while_it_starts_is_replaced(tmp_path: Path) -> None:
    loader = started("make_loader", Numbers(8), worker_init_fn=DiesOnce(tmp_path / "mark"))
    assert numbers(loader) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert loader.deaths >= 1


class DiesOnce(HangsOnce):
    def __call__(self, worker: int = 0) -> None:
        if not self.mark.exists():
            self.mark.touch()
            dies()


# ------------------------------------------------------------------------------------------------------------ which loaders


@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_without_workers_is_gone_over_as_it_is(kind: str) -> None:
    loader = started(kind, Numbers(4), workers=0, timeout=0, multiprocessing_context=None)
    assert numbers(loader) == numbers(loader) == [[0, 1], [2, 3]]


def test_all_else_is_the_loaders_own() -> None:
    inner = make_loader(Numbers(6), 4, num_workers=1, multiprocessing_context="fork")
    loader = resilient(inner)
    assert (len(loader), loader.skipped, loader.dataset, loader.state_dict()) == (2, 0, inner.dataset, inner.state_dict())


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize("loader", [DataLoader(Stream()), [1, 2]])
def test_what_has_no_samples_by_number_is_refused(loader: Any) -> None:
    kind = "Stream" if isinstance(loader, DataLoader) else "list"
    with pytest.raises(OptionError, match=f"loader is for a {kind}; expected a DataLoader of a map-style dataset"):
        resilient(loader)


def test_a_negative_limit_of_deaths_is_refused() -> None:
    with pytest.raises(OptionError, match="max_deaths=-1, expected 0 or more"):
        resilient(DataLoader(Numbers(2)), max_deaths=-1)  # type: ignore[arg-type]
