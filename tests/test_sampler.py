"""EpochSampler: each sample of an epoch once, in another order each epoch, divided among ranks, resumed wherever it stopped."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader

import packer.sampler
from packer import EpochSampler, OptionError, open_dataset
from tests.inputs import npy, pack_here, write_tree

# Python 3.12 and later warn of any fork beside threads; torch itself has some.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")

ORDERS = ("shuffled", "blocks", "sequential")

orders = st.sampled_from(ORDERS)
lengths = st.integers(0, 70)
world_sizes = st.integers(1, 9)


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of 3 blocks and pieces of 7 samples: a few dozen samples then show what thousands would."""
    monkeypatch.setattr(packer.sampler, "_WINDOW_BLOCKS", 3)
    monkeypatch.setattr(packer.sampler, "_PIECE", 7)


class Recorded:
    """Data that has a length only, and writes down what was asked for ahead."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.asked: list[range] = []

    def __len__(self) -> int:
        return self.n

    def ask_ahead(self, indices: range) -> None:
        self.asked.append(indices)

    def take(self) -> list[range]:
        """What was asked for since the last time."""
        asked, self.asked = self.asked, []
        return asked


def sampler(n: int, order: str = "shuffled", **options: Any) -> EpochSampler:
    return EpochSampler(range(n), order=order, **{"block_size": 4, "seed": 5, **options})


def ranks(n: int, world_size: int, order: str = "shuffled", **options: Any) -> list[EpochSampler]:
    return [sampler(n, order, rank=rank, world_size=world_size, **options) for rank in range(world_size)]


def drawn(iterator: Iterator[int], count: int) -> list[int]:
    return list(itertools.islice(iterator, count))


# An epoch


@given(lengths, orders, st.integers(0, 2**63), st.integers(1, 30))
def test_an_epoch_is_each_sample_once(n: int, order: str, seed: int, block_size: int) -> None:
    own = sampler(n, order, seed=seed, block_size=block_size)
    for _ in range(3):
        assert sorted(own) == list(range(n))


@given(lengths, orders, world_sizes)
def test_exact_ranks_give_each_sample_once_and_numbers_that_differ_by_at_most_one(n: int, order: str, world_size: int) -> None:
    given_out = [list(own) for own in ranks(n, world_size, order, even=False)]
    assert sorted(itertools.chain(*given_out)) == list(range(n))
    assert max(map(len, given_out)) - min(map(len, given_out)) <= 1


@given(lengths, orders, world_sizes)
def test_even_ranks_give_equally_many_and_repeat_only_the_start_of_the_order(n: int, order: str, world_size: int) -> None:
    each = -(-n // world_size)
    given_out = [list(own) for own in ranks(n, world_size, order)]
    assert [len(numbers) for numbers in given_out] == [each] * world_size
    missing = each * world_size - n
    whole = [number for _, number in zip(range(missing), itertools.cycle(_unshuffled(n, order)), strict=False)] if n else []
    assert Counter(itertools.chain(*given_out)) == Counter(range(n)) + Counter(whole)


def _unshuffled(n: int, order: str) -> list[int]:
    """The first epoch's order before it is divided and, in blocks, before windows are shuffled."""
    one = sampler(n, order)
    return one._by_block(0, np.arange(n)).tolist() if order == "blocks" and n else list(one)


def test_ranks_take_turns_in_the_order_of_one() -> None:
    whole = list(sampler(20))
    assert [list(own) for own in ranks(20, 3, even=False)] == [whole[0::3], whole[1::3], whole[2::3]]


def test_even_ranks_are_padded_as_torch_pads_them() -> None:
    from torch.utils.data import DistributedSampler

    for n, world_size in itertools.product((1, 2, 5, 12, 13), (1, 2, 3, 5, 7)):
        for rank, own in enumerate(ranks(n, world_size, "sequential")):
            theirs = DistributedSampler(range(n), world_size, rank, shuffle=False)  # type: ignore[arg-type]
            assert list(own) == list(theirs)
            assert len(own) == len(theirs)


@given(lengths, orders, world_sizes, st.booleans())
def test_the_length_is_what_an_epoch_gives(n: int, order: str, world_size: int, even: bool) -> None:
    for own in ranks(n, world_size, order, even=even):
        assert len(own) == len(list(own)) == len(own)


@pytest.mark.parametrize("order", ["shuffled", "blocks"])
def test_orders_of_other_epochs_and_seeds_are_others(order: str) -> None:
    found = {tuple(own) for seed in (0, 1, 2**63) for own in [sampler(64, order, seed=seed)] for _ in range(4)}
    assert len(found) == 12


def test_numbers_are_plain_ints() -> None:
    assert {type(number) for order in ORDERS for number in sampler(20, order)} == {int}


def test_the_orders_are_the_same_forever() -> None:
    """A job that is resumed with a later release goes on with the same order. Never change the expected numbers."""
    assert list(EpochSampler(range(12), seed=1)) == [5, 8, 11, 6, 1, 7, 0, 3, 2, 9, 10, 4]
    blocks = EpochSampler(range(20), seed=1, order="blocks", block_size=2, rank=1, world_size=2)
    blocks.set_epoch(3)
    assert list(blocks) == [8, 3, 18, 2, 9, 19, 4, 12, 5, 13]


def test_the_windows_are_256_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    data = Recorded(10_000)
    next(iter(EpochSampler(data, order="blocks")))
    assert sum(map(len, data.asked)) == 2 * 256 * 16


# Epochs


def test_each_iteration_is_the_next_epoch_though_nobody_says_so() -> None:
    own, told = sampler(30), sampler(30)
    for epoch in (0, 1, 2):
        told.set_epoch(epoch)
        assert list(own) == list(told)


def test_a_loop_that_was_left_early_does_not_see_the_same_samples_again() -> None:
    own, other = sampler(30), sampler(30)
    for _ in own:
        break
    other.set_epoch(1)
    assert list(own) == list(other)


def test_an_iterator_that_nothing_was_drawn_from_is_no_epoch() -> None:
    own = sampler(30)
    iter(own)
    assert list(own) == list(sampler(30))


def test_two_live_iterators_are_independent_and_of_different_epochs() -> None:
    own, other = sampler(30), sampler(30)
    pairs = list(zip(own, own, strict=True))
    assert [one for one, _ in pairs] == list(other)
    assert [two for _, two in pairs] == list(other)


@pytest.mark.parametrize("order", ["shuffled", "blocks"])
def test_set_epoch_names_the_next_iteration_and_counting_goes_on_from_there(order: str) -> None:
    counted = sampler(30, order)
    epochs = [list(counted) for _ in range(6)]
    own = sampler(30, order)
    own.set_epoch(4)
    assert list(own) == epochs[4]
    assert list(own) == epochs[5]
    own.set_epoch(1)
    assert list(own) == epochs[1]


# Asking ahead


@given(st.integers(1, 90), world_sizes, st.booleans(), st.integers(1, 9))
def test_blocks_ask_for_each_sample_once_before_it_is_given_out(n: int, world_size: int, even: bool, block_size: int) -> None:
    for rank in range(world_size):
        data = Recorded(n)
        own = EpochSampler(data, order="blocks", block_size=block_size, rank=rank, world_size=world_size, even=even)
        for _ in range(2):
            asked: set[int] = set()
            given_out = []
            for number in own:
                for indices in data.take():
                    assert asked.isdisjoint(indices)
                    asked |= set(indices)
                assert number in asked
                given_out.append(number)
            assert data.take() == []
            assert asked == set(given_out)


@given(st.integers(1, 200), st.integers(1, 9))
def test_a_window_is_asked_for_when_the_one_before_it_begins(n: int, block_size: int) -> None:
    data = Recorded(n)
    size = 3 * block_size
    for place, _ in enumerate(EpochSampler(data, order="blocks", block_size=block_size)):
        asked = data.take()
        if place == 0:
            assert sum(map(len, asked)) == min(2 * size, n)
        elif place % size == 0:
            assert sum(map(len, asked)) == min(size, max(0, n - place - size))
        else:
            assert asked == []


@given(st.integers(1, 200), st.integers(2, 9))
def test_what_is_asked_for_at_once_is_runs_of_whole_blocks_in_the_order_of_the_file(n: int, block_size: int) -> None:
    data = Recorded(n)
    runs = []
    for _ in EpochSampler(data, order="blocks", block_size=block_size):
        asked = data.take()
        runs += asked
        if len(runs) > len(asked):  # the first time two windows are asked for, one after the other
            assert [run.start for run in asked] == sorted(run.start for run in asked)
    assert sum(len(run) % block_size != 0 for run in runs) <= 1  # the one shorter block
    assert {run.step for run in runs} == {1}


@given(st.integers(1, 150), st.integers(1, 9), world_sizes)
def test_a_sample_is_given_out_in_the_window_of_its_block(n: int, block_size: int, world_size: int) -> None:
    """So none comes more than a window before or after its place in the order of blocks."""
    size = 3 * block_size
    for own in ranks(n, world_size, "blocks", block_size=block_size):
        first, count = own._stretch()
        in_place = own._by_block(0, np.arange(first, first + count) % n).tolist()
        given_out = list(own)
        for begin in range(0, count, size):
            assert sorted(given_out[begin : begin + size]) == sorted(in_place[begin : begin + size])


def test_samples_are_shuffled_within_a_window_and_blocks_over_the_epoch() -> None:
    own = sampler(4000, "blocks", block_size=100)
    given_out = np.array(list(own))
    assert np.count_nonzero(np.diff(given_out) == 1) < 40
    blocks = own._by_block(0, np.arange(0, 4000, 100)) // 100
    assert np.count_nonzero(np.diff(blocks) == 1) < 10
    assert len(set(blocks.tolist())) >= 39


def test_blocks_and_windows_are_shuffled_anew_for_each_epoch_and_seed_and_window() -> None:
    block_orders, window_orders = set(), set()
    for seed in (1, 2):
        own = sampler(300, "blocks", block_size=50, seed=seed)
        for epoch in range(3):
            in_place = own._by_block(epoch, np.arange(300)).tolist()
            given_out = list(own)
            block_orders.add(tuple(sampler(300, "blocks", block_size=5, seed=seed)._by_block(epoch, np.arange(300)).tolist()))
            for window in (slice(150), slice(150, 300)):
                window_orders.add(tuple(in_place[window].index(number) for number in given_out[window]))
    assert (len(block_orders), len(window_orders)) == (6, 12)


def test_each_rank_reads_blocks_of_its_own() -> None:
    given_out = [{number // 4 for number in own} for own in ranks(64, 4, "blocks")]
    assert [len(blocks) for blocks in given_out] == [4] * 4
    assert set.union(*given_out) == set(range(16))


@pytest.mark.parametrize("order", ["shuffled", "sequential"])
def test_other_orders_ask_for_nothing(order: str) -> None:
    data = Recorded(50)
    list(EpochSampler(data, order=order))
    assert data.asked == []


# Stop and resume


def resumed(state: dict[str, Any], own: EpochSampler) -> EpochSampler:
    own.load_state_dict(json.loads(json.dumps(state)))
    return own


@given(lengths, orders, world_sizes, st.booleans(), st.data())
def test_a_resume_at_any_point_gives_the_rest_and_then_the_next_epochs(
    n: int, order: str, world_size: int, even: bool, data: st.DataObject
) -> None:
    options = {"even": even, "rank": data.draw(st.integers(0, world_size - 1)), "world_size": world_size}
    whole, own = sampler(n, order, **options), sampler(n, order, **options)
    epochs = [list(whole) for _ in range(4)]
    list(own)
    stop = data.draw(st.integers(0, len(own)))
    running = iter(own)
    assert drawn(running, stop) == epochs[1][:stop]
    again = resumed(own.state_dict(), sampler(n, order, **options))
    if not stop or stop < len(own):  # else epoch 1 is over
        assert list(again) == epochs[1][stop:]
    assert list(again) == epochs[2]
    assert list(again) == epochs[3]
    assert list(running) == epochs[1][stop:]


@given(st.integers(1, 70), orders, world_sizes, st.lists(st.integers(0, 70), min_size=2, max_size=4))
def test_a_job_may_be_stopped_and_resumed_many_times_in_one_epoch(
    n: int, order: str, world_size: int, stops: list[int]
) -> None:
    expected = [list(own) for own in ranks(n, world_size, order)]
    given_out: list[list[int]] = [[] for _ in range(world_size)]
    running = ranks(n, world_size, order)
    for stop in stops:
        stop = min(stop, len(expected[0]) - len(given_out[0]) - 1)
        for rank, own in enumerate(running):
            given_out[rank] += drawn(iter(own), stop)
        states = [own.state_dict() for own in running]
        assert states == [states[0]] * world_size  # the first rank's serves all
        running = [resumed(states[0], own) for own in ranks(n, world_size, order)]
    assert [had + list(own) for had, own in zip(given_out, running, strict=True)] == expected


@given(st.integers(0, 70), st.sampled_from(["shuffled", "sequential"]), world_sizes, world_sizes, st.booleans(), st.data())
def test_what_remains_is_divided_among_another_number_of_ranks(
    n: int, order: str, before: int, after: int, even: bool, data: st.DataObject
) -> None:
    """Each remaining sample once where ranks are exact; where they are even, the start of the order fills up."""
    old = ranks(n, before, order, even=even)
    whole = list(sampler(n, order))
    stop = data.draw(st.integers(0, max(0, len(old[0]) - 1)))
    given_out = [number for own in old for number in drawn(iter(own), stop)]
    assert Counter(given_out) == Counter(whole[: stop * before])
    new = [resumed(old[0].state_dict(), own) for own in ranks(n, after, order, even=even)]
    rest = [list(own) for own in new]
    assert len({len(numbers) for numbers in rest}) <= (1 if even else 2)
    surplus = Counter(itertools.chain(*rest)) - Counter(whole[stop * before :])
    assert surplus == Counter(whole[place % n] for place in range(surplus.total()))
    assert Counter(itertools.chain(*rest)) >= Counter(whole[stop * before :])
    assert surplus.total() == 0 or (even and surplus.total() < after)
    assert sorted(set(itertools.chain(*new))) == list(range(n))
    assert all(len(numbers) <= len(own) for numbers, own in zip(rest, new, strict=True))


def test_taken_says_what_the_loop_has_used_of_what_was_drawn_ahead() -> None:
    own = sampler(50)
    expected = list(sampler(50))
    drawn(iter(own), 33)
    assert list(resumed(own.state_dict(taken=20), sampler(50))) == expected[20:]
    assert list(resumed(own.state_dict(taken=0), sampler(50))) == expected


def test_taken_counts_from_the_resume_as_the_loop_does() -> None:
    own = sampler(50)
    drawn(iter(own), 20)
    again = resumed(own.state_dict(), sampler(50))
    drawn(iter(again), 15)
    assert list(resumed(again.state_dict(taken=10), sampler(50))) == list(sampler(50))[30:]


@pytest.mark.parametrize("taken", [-1, 11, 2.5, "3"])
def test_more_than_was_given_out_was_not_taken(taken: Any) -> None:
    own = sampler(50)
    drawn(iter(own), 10)
    with pytest.raises(OptionError, match=r"taken=.*expected .*0 to 10"):
        own.state_dict(taken=taken)


def test_the_state_after_an_epoch_is_the_start_of_the_next() -> None:
    own = sampler(50)
    list(own)
    assert own.state_dict() == own.state_dict(taken=50)
    assert (own.state_dict()["epoch"], own.state_dict()["position"]) == (1, 0)


def test_an_exact_rank_without_samples_has_finished_an_epoch_when_it_was_iterated_over() -> None:
    own = sampler(2, rank=2, world_size=3, even=False)
    assert own.state_dict()["epoch"] == 0
    assert list(own) == []
    assert own.state_dict()["epoch"] == 1


@pytest.mark.parametrize("order", ORDERS)
def test_set_epoch_with_the_epoch_that_was_loaded_keeps_the_place_in_it(order: str) -> None:
    """A training loop calls it before each epoch, the resumed one too."""
    own = sampler(50, order)
    list(own)
    drawn(iter(own), 20)
    expected = sampler(50, order)
    epochs = [list(expected) for _ in range(3)]
    again = resumed(own.state_dict(), sampler(50, order))
    again.set_epoch(1)
    assert list(again) == epochs[1][20:]
    again.set_epoch(2)
    assert list(again) == epochs[2]
    again.set_epoch(1)
    assert list(again) == epochs[1]


def test_set_epoch_with_another_epoch_drops_the_place_that_was_loaded() -> None:
    own = sampler(50)
    drawn(iter(own), 20)
    again = resumed(own.state_dict(), sampler(50))
    again.set_epoch(3)
    assert again.state_dict()["position"] == 0
    assert sorted(again) == list(range(50))


def test_set_epoch_during_the_epoch_it_names_does_not_lose_its_progress() -> None:
    """A framework that sets the epoch after a DataLoader with workers has begun to draw."""
    own = sampler(50)
    running = iter(own)
    drawn(running, 20)
    own.set_epoch(0)
    assert own.state_dict(taken=10)["position"] == 10
    drawn(running, 5)
    assert own.state_dict()["position"] == 25


def test_a_state_can_be_asked_for_before_anything_was_drawn() -> None:
    own = sampler(50)
    own.set_epoch(7)
    assert (own.state_dict()["epoch"], own.state_dict()["position"]) == (7, 0)
    loaded = own.state_dict() | {"epoch": 3, "position": 12}
    assert resumed(loaded, sampler(50)).state_dict() == loaded


def test_the_state_after_set_epoch_is_the_start_of_that_epoch_whatever_ran_before() -> None:
    own = sampler(50)
    drawn(iter(own), 20)
    own.set_epoch(4)
    assert (own.state_dict()["epoch"], own.state_dict()["position"]) == (4, 0)


def test_the_state_after_a_load_is_what_was_loaded_whatever_ran_before() -> None:
    own = sampler(50)
    drawn(iter(own), 20)
    loaded = own.state_dict() | {"epoch": 3, "position": 12}
    assert resumed(loaded, own).state_dict() == loaded


@pytest.mark.parametrize("order", ORDERS)
def test_the_state_after_a_resumed_epoch_is_the_start_of_the_next(order: str) -> None:
    own = sampler(50, order, rank=0, world_size=2)
    drawn(iter(own), 20)
    again = resumed(own.state_dict(), sampler(50, order, rank=0, world_size=2))
    assert len(list(again)) == 5
    assert (again.state_dict()["epoch"], again.state_dict()["position"]) == (1, 0)


def test_a_resume_asks_only_for_the_windows_that_remain() -> None:
    own = EpochSampler(Recorded(60), order="blocks", block_size=4)
    drawn(iter(own), 30)
    data = Recorded(60)
    again = resumed(own.state_dict(), EpochSampler(data, order="blocks", block_size=4))
    rest = list(again)
    assert sum(map(len, data.asked)) == 60 - 24
    assert set(rest) <= set(itertools.chain(*data.asked))


def test_the_state_is_that_of_the_iterator_that_drew_last() -> None:
    own = sampler(50)
    training = iter(own)
    drawn(training, 20)
    drawn(iter(own), 3)
    assert own.state_dict()["epoch"] == 1
    drawn(training, 1)
    assert (own.state_dict()["epoch"], own.state_dict()["position"]) == (0, 21)


def test_the_length_after_a_resume_is_that_of_a_whole_epoch() -> None:
    own = sampler(50)
    drawn(iter(own), 20)
    assert len(resumed(own.state_dict(), sampler(50))) == 50


@pytest.mark.parametrize(
    ("there", "here", "named"),
    [
        ({"n": 51}, {"n": 50}, "samples=51 there, 50 here"),
        ({"seed": 1}, {"seed": 2}, "seed=1 there, 2 here"),
        ({"order": "blocks"}, {"order": "shuffled"}, "order='blocks' there, 'shuffled' here"),
        ({"order": "blocks", "block_size": 4}, {"order": "blocks", "block_size": 5}, "block_size=4 there, 5 here"),
        ({"order": "blocks", "world_size": 2}, {"order": "blocks", "world_size": 3}, "world_size=2 there, 3 here"),
        ({"order": "blocks", "even": True}, {"order": "blocks", "even": False}, "even=True there, False here"),
    ],
)
def test_the_state_of_another_sampler_is_refused_and_changes_nothing(
    there: dict[str, Any], here: dict[str, Any], named: str
) -> None:
    def made(n: int = 50, world_size: int = 2, **options: Any) -> EpochSampler:
        return sampler(n, rank=0, world_size=world_size, **options)

    other, own = made(**there), made(**here)
    drawn(iter(other), 10)
    with pytest.raises(OptionError, match=named):
        own.load_state_dict(other.state_dict())
    assert list(own) == list(made(**here))


def test_blocks_take_the_state_of_another_world_size_between_epochs() -> None:
    other = sampler(50, "blocks", rank=0, world_size=2)
    list(other)
    own, expected = sampler(50, "blocks"), sampler(50, "blocks")
    list(expected)
    assert list(resumed(other.state_dict(), own)) == list(expected)


@pytest.mark.parametrize(
    "damage",
    [{"epoch": -1}, {"epoch": "x"}, {"epoch": None}, {"position": -1}, {"position": 50}, {"position": 1.5}],
)
def test_a_state_that_cannot_be_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=rf"{next(iter(damage))}=.*expected"):
        sampler(50).load_state_dict(sampler(50).state_dict() | damage)


@pytest.mark.parametrize("state", [{}, {"yielded": 3}])
def test_what_is_no_state_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"no state of an EpochSampler: epoch, position.* missing"):
        sampler(50).load_state_dict(state)


# Under torch


def loaded(own: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(range(103), sampler=own, **options)  # type: ignore[arg-type]


def batches(loader: DataLoader[Any]) -> list[int]:
    return [int(number) for batch in loader for number in np.ravel(batch)]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [10, None])
def test_a_dataloader_gives_epoch_after_epoch(order: str, workers: int, batch_size: int | None) -> None:
    expected = sampler(103, order)
    loader = loaded(sampler(103, order), batch_size=batch_size, num_workers=workers)
    assert len(loader) == (103 if batch_size is None else 11)
    for _ in range(3):
        assert batches(loader) == list(expected)


def test_persistent_workers_see_the_epochs_too() -> None:
    expected = sampler(103)
    loader = loaded(sampler(103), batch_size=10, num_workers=2, persistent_workers=True)
    for _ in range(3):
        assert batches(loader) == list(expected)


def test_a_batch_sampler_gives_lists() -> None:
    expected = list(sampler(103))
    given_out = list(BatchSampler(sampler(103), 10, drop_last=False))
    assert given_out == [expected[begin : begin + 10] for begin in range(0, 103, 10)]
    assert len(BatchSampler(sampler(103), 10, drop_last=True)) == 10


def test_a_batch_sampler_that_drops_the_last_batch_ends_the_epoch() -> None:
    own = sampler(103)
    list(BatchSampler(own, 10, drop_last=True))
    assert own.state_dict()["epoch"] == 1


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("after", [0, 2])
def test_a_dataloader_is_resumed_in_mid_epoch_with_any_number_of_workers(order: str, before: int, after: int) -> None:
    expected = sampler(103, order)
    epochs = [list(expected) for _ in range(3)]
    own = sampler(103, order)
    own.set_epoch(1)
    seen: list[int] = []
    for step, batch in enumerate(loaded(own, batch_size=10, num_workers=before)):
        seen += batch.tolist()
        if step == 3:
            state = own.state_dict(taken=(step + 1) * 10)
            break
    again = resumed(state, sampler(103, order))
    loader = loaded(again, batch_size=10, num_workers=after)
    again.set_epoch(1)
    assert seen + batches(loader) == epochs[1]
    assert batches(loader) == epochs[2]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_packed_dataset_is_asked_ahead_and_read_in_blocks(
    workers: int, format_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_tree(tmp_path / "in", {f"{number:03d}.npy": npy(np.array([number])) for number in range(60)})
    pack_here(root, format_name)
    data = open_dataset(tmp_path / f"in.{format_name}", output="numpy")
    asked: list[int] = []
    ask_ahead = type(data).ask_ahead
    monkeypatch.setattr(type(data), "ask_ahead", lambda self, numbers: (asked.extend(numbers), ask_ahead(self, numbers)))
    own = EpochSampler(data, order="blocks", block_size=4)
    read = batches(DataLoader(data, batch_size=7, sampler=own, num_workers=workers))  # type: ignore[arg-type]
    assert read == list(EpochSampler(range(60), order="blocks", block_size=4))
    assert sorted(asked) == list(range(60))


def test_it_works_where_torch_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('not here')")
    code = "from packer import EpochSampler; print(sorted(EpochSampler(range(5))), end='')"
    path = f"{tmp_path}:{Path(packer.__file__).parents[1]}"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout == "[0, 1, 2, 3, 4]"


# Size, copies, options


@pytest.mark.parametrize("order", ORDERS)
def test_a_billion_samples_begin_at_once_in_little_memory(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    own = EpochSampler(Recorded(10**9), order=order, rank=3, world_size=8)
    next(iter(own))
    tracemalloc.start()
    found = drawn(iter(own), 10_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(set(found)) == 10_000
    assert peak < 4_000_000
    assert len(own) == 125_000_000


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, lambda own: pickle.loads(pickle.dumps(own))])
@pytest.mark.parametrize("order", ORDERS)
def test_a_copy_goes_on_by_itself(twin: Any, order: str) -> None:
    own = sampler(50, order, rank=1, world_size=2)
    running = iter(own)
    drawn(running, 10)
    state = own.state_dict()
    other = twin(own)
    drawn(running, 5)
    assert other.state_dict() == state
    assert list(other) == list(own)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("even", [True, False])
def test_no_sample_and_one_sample_are_no_special_cases(order: str, even: bool) -> None:
    assert [list(own) for own in ranks(0, 3, order, even=even)] == [[], [], []]
    assert sorted(len(list(own)) for own in ranks(1, 3, order, even=even)) == ([1, 1, 1] if even else [0, 0, 1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "random"}, "order='random', expected one of shuffled, blocks, sequential"),
        ({"seed": -1}, "seed=-1, expected 0 to 18446744073709551615"),
        ({"seed": 2**64}, "expected 0 to 18446744073709551615"),
        ({"seed": 1.5}, "seed=1.5, expected a whole number, 0 to"),
        ({"seed": None}, "seed=None, expected a whole number"),
        ({"rank": 0}, "rank=0, world_size=None: expected both or neither"),
        ({"world_size": 2}, "rank=None, world_size=2: expected both or neither"),
        ({"rank": 2, "world_size": 2}, "rank=2, expected 0 to 1"),
        ({"rank": -1, "world_size": 2}, "rank=-1, expected 0 to 1"),
        ({"rank": 0, "world_size": 0}, "world_size=0, expected 1 or more"),
        ({"block_size": 0}, "block_size=0, expected 1 or more"),
        ({"data": 1000}, "data=1000, expected a dataset or another object that has a length"),
    ],
)
def test_a_wrong_value_is_refused_with_what_was_expected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        EpochSampler(**{"data": range(10), **options})


def test_an_epoch_that_is_no_number_is_refused() -> None:
    with pytest.raises(OptionError, match="epoch=-1, expected 0 or more"):
        sampler(5).set_epoch(-1)


def test_numbers_may_be_those_of_numpy() -> None:
    own = EpochSampler(range(9), seed=np.int64(4), rank=np.int32(1), world_size=np.int32(2), block_size=np.int64(2))
    own.set_epoch(np.int64(2))
    assert json.loads(json.dumps(own.state_dict()))["epoch"] == 2
    expected = EpochSampler(range(9), seed=4, rank=1, world_size=2)
    expected.set_epoch(2)
    assert list(own) == list(expected)


def test_its_text_says_what_it_is() -> None:
    own = sampler(1234567, rank=1, world_size=2)
    next(iter(own))
    assert repr(own) == (
        "EpochSampler(1,234,567 samples, order='shuffled', seed=5, rank=1, world_size=2, even=True; next is epoch 1)"
    )
