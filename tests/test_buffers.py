"""Memory that is used again: only when nobody holds the batch, and only so much of it."""

from __future__ import annotations

import gc
import itertools
import math
import os
import pickle
import subprocess
import sys
import textwrap
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from packer import buffers
from packer.buffers import BufferPool
from tests.inputs import in_six_threads

SHAPE = (4, 3, 8)
INT = np.dtype(np.int32)
DTYPES = ("bool", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16")


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def with_graph(array: np.ndarray) -> Callable[[], torch.Tensor]:
    """Only the graph holds the batch; the gradient of the weights is the batch."""
    weights = torch.ones(array.shape, requires_grad=True)
    loss = (torch.from_numpy(array) * weights).sum()
    return lambda: torch.autograd.grad(loss, weights, retain_graph=True)[0]


def with_capsule(array: np.ndarray) -> Callable[[], torch.Tensor]:
    """Only a DLPack capsule holds the batch until it is looked at first."""
    held = [array.__dlpack__()]

    def look() -> torch.Tensor:
        if not isinstance(held[0], torch.Tensor):
            held[0] = torch.utils.dlpack.from_dlpack(held[0])
        return held[0]

    return look


def with_cycle(array: np.ndarray) -> list[Any]:
    """A part that is held by something that holds itself."""
    held = {"part": array[1:]}
    held["itself"] = held  # type: ignore[assignment]
    return [held["part"]]


class Owner:
    """Something of the user's own that gives numpy its memory."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__


# How a training loop may hold a batch, or a part of it; what is held is an array or tensor, several, or gives one when called.
HOLDING: dict[str, Callable[[np.ndarray], Any]] = {
    "the batch": lambda a: a,
    "a slice": lambda a: a[1:3],
    "a slice of a slice": lambda a: a[1:][:2][..., ::2],
    "a row": lambda a: a[2],
    "a row of a row": lambda a: a[2][1],
    "the last rows, backwards": lambda a: a[::-1][:1],
    "all rows": list,
    "one of all rows": lambda a: list(a)[3],
    "unpacked": lambda a: (lambda first, *rest: rest)(*a),
    "reshaped": lambda a: a.reshape(-1),
    "a slice of it reshaped": lambda a: a[1:].reshape(3, -1),
    "raveled": lambda a: a.ravel(),
    "transposed": lambda a: a.T[1:],
    "another dtype over it": lambda a: a.view(np.uint8).view(np.int32),
    "a dtype over a slice": lambda a: a[1:].view(np.uint32),
    "an axis more": lambda a: a[None][..., None],
    "squeezed": lambda a: np.squeeze(a[:1]),
    "an element, spread": lambda a: np.broadcast_to(a[0, 0, 0:1], (3, 3)),
    "strides": lambda a: as_strided(a, (2, 2), a.strides[:2]),
    "split": lambda a: np.split(a, 2)[1],
    "a flat iterator": lambda a: a.flat.base,
    "of a subclass": lambda a: a.view(np.ma.MaskedArray).data[1:],
    "a matrix": lambda a: a[0].view(np.recarray)[1:],
    "a memoryview": lambda a: memoryview(a)[1:],
    "a memoryview cast": lambda a: memoryview(a).cast("B").cast("i"),
    "its data": lambda a: a.data,
    "an array over a buffer": lambda a: np.frombuffer(a, np.int32, 4, offset=16),
    "an array over a memoryview": lambda a: np.asarray(memoryview(a)[1:]),
    "an object of one's own": lambda a: np.asarray(Owner(a))[1:],
    "a tensor": torch.from_numpy,
    "a tensor of it": lambda a: torch.as_tensor(a[1:]),
    "a row of a tensor": lambda a: torch.from_numpy(a)[2],
    "rows of a tensor": lambda a: torch.from_numpy(a).unbind()[1:],
    "a tensor and back": lambda a: torch.from_numpy(a).numpy(),
    "a slice of a tensor and back": lambda a: torch.from_numpy(a)[1:].numpy()[0],
    "data": lambda a: torch.from_numpy(a).data[1:],
    "detached": lambda a: torch.from_numpy(a).detach().view(-1)[5:],
    "expanded": lambda a: torch.from_numpy(a)[:1].expand(6, -1, -1),
    "a tensor's other dtype": lambda a: torch.from_numpy(a).view(torch.uint8).view(torch.int32),
    "permuted": lambda a: torch.from_numpy(a).permute(2, 0, 1)[3],
    "chunks": lambda a: torch.from_numpy(a).chunk(2)[1],
    "the storage": lambda a: torch.tensor([], dtype=torch.int32).set_(torch.from_numpy(a).untyped_storage()),  # type: ignore
    "a parameter": lambda a: torch.nn.Parameter(torch.from_numpy(a), requires_grad=False),
    "DLPack to torch": torch.from_dlpack,
    "DLPack to numpy": lambda a: np.from_dlpack(torch.from_numpy(a)),  # type: ignore[arg-type]
    "DLPack there and back": lambda a: np.from_dlpack(torch.from_dlpack(a)[1:]),  # type: ignore[arg-type]
    "a capsule": with_capsule,
    "a graph": with_graph,
    "a cycle": with_cycle,
    "copied": lambda a: a.copy(),
    "stacked rows": lambda a: torch.stack(list(torch.from_numpy(a))),
    "pickled": lambda a: pickle.loads(pickle.dumps(a)),
    "pickled out of band": lambda a: pickle.loads(pickle.dumps(a, 5, buffer_callback=(parts := []).append), buffers=parts),
    "shared": lambda a: torch.from_numpy(a).clone().share_memory_(),
}


def content(held: Any) -> set[float]:
    """The different values in what is held."""
    if callable(held) and not isinstance(held, torch.Tensor):
        held = held()
    if isinstance(held, (list, tuple)):
        return set().union(*map(content, held))
    return set(np.unique(np.asarray(held)).tolist())


class Trainer:
    """Makes batches, each full of a number of its own, and keeps parts of some."""

    def __init__(self) -> None:
        self.pool = BufferPool()
        self.held: list[tuple[int, str, Any]] = []
        self.made = 0

    def make(self, way: str | None, rows: int = SHAPE[0]) -> None:
        batch = self.pool.empty((rows, *SHAPE[1:]), INT)
        self.made += 1
        batch[...] = self.made
        if way:
            self.held.append((self.made, way, HOLDING[way](batch)))

    def require_unchanged(self) -> None:
        for number, way, held in self.held:
            assert content(held) == {number}, f"batch {number}, held as {way}, was overwritten"


ways = st.sampled_from([*HOLDING])
steps = st.one_of(
    st.tuples(st.just("keep"), ways, st.integers(4, 6)),
    st.tuples(st.just("make"), st.integers(1, 6), st.integers(1, 9)),
    st.tuples(st.just("drop"), st.integers(0, 20), st.just(0)),
)


def train(todo: list[tuple[str, Any, int]]) -> None:
    trainer = Trainer()
    for what, which, rows in todo:
        if what == "keep":
            trainer.make(which, rows)
        elif what == "make":
            for _ in range(which):
                trainer.make(None, rows)
        elif trainer.held:
            del trainer.held[which % len(trainer.held)]
        trainer.require_unchanged()


@pytest.mark.parametrize("way", HOLDING)
def test_what_is_held_is_not_overwritten(way: str) -> None:
    train([("make", 3, 4), ("keep", way, 4), ("make", 6, 4), ("keep", way, 4), ("make", 6, 5), ("drop", 0, 0), ("make", 6, 4)])


@given(st.lists(steps, max_size=40))
def test_whatever_is_held_and_let_go_of_nothing_held_is_overwritten(todo: list[tuple[str, Any, int]]) -> None:
    train(todo)


def test_as_many_are_kept_as_were_asked_for_and_never_fewer() -> None:
    pool = BufferPool()
    pool.keep(7)
    pool.keep(2)
    held = [pool.empty(SHAPE, INT) for _ in range(9)]
    before = {address(array) for array in held}
    held.clear()
    again = [pool.empty(SHAPE, INT) for _ in range(7)]
    assert {address(array) for array in again} <= before
    assert not pool._free


def with_a_finaliser_on_the_array(self: BufferPool, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """The trap: the array goes while slices of it live."""
    size = math.prod(shape) * dtype.itemsize
    buffer = self._take(size)
    array = buffer[:size].view(dtype).reshape(shape)
    weakref.finalize(array, self._free.append, buffer).atexit = False
    return array


@pytest.mark.parametrize("way", ["a slice", "a row", "all rows", "reshaped", "a slice of a slice"])
def test_the_tests_above_see_a_pool_that_overwrites(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BufferPool, "empty", with_a_finaliser_on_the_array)
    with pytest.raises(AssertionError, match="was overwritten"):
        test_what_is_held_is_not_overwritten(way)


def test_the_property_sees_a_pool_that_overwrites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BufferPool, "empty", with_a_finaliser_on_the_array)
    with pytest.raises(AssertionError, match="was overwritten"):
        test_whatever_is_held_and_let_go_of_nothing_held_is_overwritten()


# ------------------------------------------------------------------------------------------------------------- what is given


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,), (3, 0, 2), (1,) * 8], ids=str)
def test_an_array_is_of_the_shape_and_dtype_wanted_and_ordinary(shape: tuple[int, ...], name: str) -> None:
    pool = BufferPool()
    for _ in range(2):  # fresh, and used again
        array = pool.empty(shape, np.dtype(name))
        assert type(array) is np.ndarray
        assert (array.shape, array.dtype) == (shape, np.dtype(name))
        assert array.flags.c_contiguous
        assert array.flags.aligned
        assert array.flags.writeable
        array[...] = 1
        assert array.sum() == array.size
        tensor = torch.from_numpy(array)
        assert tensor.data_ptr() == address(array) or not array.size


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes in bytes of the memory that was made anew. Addresses would not do: malloc gives them out again, too."""
    sizes: list[int] = []
    real = buffers._allocate

    def allocate(size: int) -> np.ndarray:
        sizes.append(size)
        return real(size)

    monkeypatch.setattr(buffers, "_allocate", allocate)
    return sizes


def test_memory_that_was_let_go_of_is_used_again(allocated: list[int]) -> None:
    pool = BufferPool()
    first = pool.empty((1000,), INT)
    second = pool.empty((1000,), INT)
    assert address(first) != address(second)
    place = address(first)
    del first
    assert address(pool.empty((900,), np.dtype("f4"))) == place
    assert allocated == [4000, 4000]


def test_a_shorter_batch_at_the_end_of_an_epoch_takes_no_new_memory_where_it_is_a_quarter_as_long(allocated: list[int]) -> None:
    pool = BufferPool()
    for rows in (1000, 1000, 500, 1000, 250):
        pool.empty((rows,), INT)
    assert allocated == [4000]


def test_a_short_batch_at_the_end_of_an_epoch_drives_out_no_whole_one(allocated: list[int]) -> None:
    pool = BufferPool()
    for _ in range(5):
        held = [pool.empty((1000,), INT) for _ in range(4)]
        del held
        pool.empty((10,), INT)
    assert allocated.count(4000) == 4


def test_memory_of_batches_that_have_become_small_for_good_is_let_go_of(allocated: list[int]) -> None:
    pool = BufferPool()
    held = [pool.empty((1000,), INT) for _ in range(4)]
    del held
    for _ in range(100):
        pool.empty((10,), INT)
    assert allocated.count(40) <= 10
    assert sum(map(len, pool._free)) <= 4 * 40


def test_a_small_batch_between_does_not_cost_the_memory_of_a_large_one(allocated: list[int]) -> None:
    pool = BufferPool()
    for rows in (1000, 10, 1000):
        pool.empty((rows,), INT)
    assert allocated == [4000, 40]


def test_memory_goes_back_when_the_last_view_goes_and_not_before() -> None:
    pool = BufferPool()
    batch = pool.empty((10, 10), INT)
    rows = list(batch)
    place = address(batch)
    del batch
    while rows:
        assert address(pool.empty((10, 10), INT)) != place
        rows.pop()
    assert place in {address(array) for array in [pool.empty((10, 10), INT) for _ in range(3)]}


def test_a_batch_in_a_cycle_goes_back_when_the_cycle_is_collected() -> None:
    pool = BufferPool()
    cycle: list[Any] = [pool.empty((10,), INT)]
    place = address(cycle[0])
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert address(pool.empty((10,), INT)) == place


def test_more_memory_than_there_can_be_is_a_memory_error() -> None:
    for shape in ((2**62,), (2**40, 2**40)):
        with pytest.raises(MemoryError):
            BufferPool().empty(shape, INT)


# --------------------------------------------------------------------------------------------------------------- how much of it


def traced(work: Callable[[], object]) -> tuple[int, int]:
    """Bytes that live after some work, and the most that lived meanwhile."""
    gc.collect()
    tracemalloc.start()
    try:
        kept = work()
        gc.collect()
        return tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        del kept


MEGABYTE = (1 << 18,)


def test_two_hundred_batches_take_the_memory_of_two() -> None:
    def work() -> BufferPool:
        pool = BufferPool()
        for _ in range(200):
            batch = pool.empty(MEGABYTE, INT)
            batch[0] = 1
        return pool

    after, most = traced(work)
    assert after < 2.1 * (1 << 20)
    assert most < 2.1 * (1 << 20)


def test_of_many_batches_held_at_once_few_are_kept_afterwards() -> None:
    def work() -> BufferPool:
        pool = BufferPool()
        batches = [pool.empty(MEGABYTE, INT) for _ in range(30)]
        del batches
        return pool

    after, most = traced(work)
    assert after < 4.1 * (1 << 20)
    assert most > 29 * (1 << 20)


def test_batches_that_grow_leave_no_smaller_memory_behind() -> None:
    def work() -> BufferPool:
        pool = BufferPool()
        for size in range(1, 60):
            pool.empty((size << 14,), INT)
        return pool

    after, _ = traced(work)
    assert after < 2.1 * (59 << 16)


def test_small_batches_that_somebody_collects_do_not_hold_the_memory_of_large_ones() -> None:
    def work() -> list[Any]:
        pool = BufferPool()
        collected: list[Any] = [pool]
        for _ in range(30):
            pool.empty(MEGABYTE, INT)
            collected.append(pool.empty((1,), INT))
        return collected

    after, _ = traced(work)
    assert after < 2.1 * (1 << 20)


def test_a_pool_that_is_gone_leaves_its_batches_and_then_nothing() -> None:
    def work() -> None:
        pool = BufferPool()
        batch = pool.empty(MEGABYTE, INT)
        batch[...] = 5
        del pool
        gc.collect()
        assert content(batch[1:]) == {5}

    after, _ = traced(work)
    assert after < 1 << 17


# ---------------------------------------------------------------------------------------------------------- threads, forks, end


def test_threads_that_share_a_pool_never_share_memory() -> None:
    pool = BufferPool()
    numbers = itertools.count(1)
    wrong: list[object] = []

    def work() -> None:
        try:
            held: list[tuple[int, np.ndarray]] = []
            for _ in range(1_500):
                number = next(numbers)
                batch = pool.empty((64,), INT)
                batch[...] = number
                held.append((number, batch[1:]))
                if len(held) > 3:
                    expected, oldest = held.pop(0)
                    if content(oldest) != {expected}:
                        wrong.append(expected)
        except BaseException as error:
            wrong.append(error)

    in_six_threads(lambda _: work())
    assert wrong == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_forked_child_and_its_parent_keep_what_they_hold() -> None:
    trainer = Trainer()
    for _ in range(3):
        trainer.make("a slice")
    trainer.make(None)
    child = os.fork()
    for _ in range(20):
        trainer.make(None)
    trainer.make("all rows")
    try:
        trainer.require_unchanged()
        right = True
    except AssertionError:
        right = False
    if not child:
        os._exit(0 if right else 1)
    assert right
    assert os.waitpid(child, 0)[1] == 0


def test_the_end_of_the_interpreter_with_batches_held_is_silent() -> None:
    script = """
        import numpy as np
        from packer.buffers import BufferPool

        pool = BufferPool()
        held = [pool.empty((1000,), np.dtype("f4")) for _ in range(10)]
        cycle = [held[0][1:]]
        cycle.append(cycle)
        class Late:
            def __init__(self): self.batch = pool.empty((5,), np.dtype("f4"))
            def __del__(self): self.batch = None
        late = Late()
        late.itself = late
    """
    result = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
