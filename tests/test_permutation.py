"""The keyed permutation: a bijection for each length and key, by all counts as good as a shuffle, and never another one."""

from __future__ import annotations

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from packer.permutation import permuted


def order(n: int, *key: int) -> NDArray[np.int64]:
    return permuted(np.arange(n), n, *key)


def deviation(counts: NDArray[np.int64]) -> float:
    """Chi-square of counts that should be equal, in standard deviations from what chance gives."""
    freedom = counts.size - 1
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom)


def test_it_is_a_bijection_of_every_small_range() -> None:
    wrong = [n for n in range(600) if not np.array_equal(np.sort(order(n, n, 3)), np.arange(n))]
    assert wrong == []


@pytest.mark.parametrize("n", [2**20 - 1, 2**20, 2**20 + 1, 1_500_007])
def test_it_is_a_bijection_of_a_large_range_taken_in_blocks(n: int) -> None:
    seen = np.zeros(n, np.uint8)
    for begin in range(0, n, 65_536):
        seen[permuted(np.arange(begin, min(begin + 65_536, n)), n, 11)] += 1
    assert seen.min() == seen.max() == 1


@given(st.integers(1, 2**63), st.lists(st.integers(0, 2**64 - 1), max_size=4), st.data())
def test_places_are_in_range_and_differ(n: int, key: list[int], data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, n - 1), unique=True, max_size=20))
    found = permuted(np.array(places, np.int64), n, *key)
    assert found.dtype == np.int64
    assert len(set(found.tolist())) == len(places)
    assert all(0 <= number < n for number in found.tolist())


@given(st.integers(1, 5000), st.integers(0, 2**64 - 1), st.data())
def test_a_place_does_not_depend_on_those_asked_for_with_it(n: int, seed: int, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, n - 1))
    assert permuted(np.array([place]), n, seed).tolist() == [order(n, seed)[place]]


@pytest.mark.parametrize("position", [-1, 10, 2**62])
def test_a_place_outside_the_range_is_refused(position: int) -> None:
    with pytest.raises(ValueError, match="expected 0 to 9"):
        permuted(np.array([0, position]), 10, 1)


@pytest.mark.parametrize(
    ("n", "key", "places", "expected"),
    [
        (10, (0, 0), range(10), [3, 6, 1, 0, 4, 9, 8, 7, 5, 2]),
        (10, (2**63, 7), range(10), [6, 8, 5, 7, 4, 0, 9, 3, 1, 2]),
        (10**9, (1, 2), [0, 1, 2, 10**9 - 1], [499439455, 80826289, 478495098, 418810662]),
        (2**63 - 1, (5,), [0, 1, 2**63 - 2], [5863186116405217132, 6054738246992061714, 1948572251407764360]),
    ],
)
def test_the_order_of_a_key_is_the_same_forever(
    n: int, key: tuple[int, ...], places: range | list[int], expected: list[int]
) -> None:
    """A job that is resumed with a later release goes on with the same order. Never change the expected numbers."""
    assert permuted(np.array(places, np.int64), n, *key).tolist() == expected


@pytest.mark.parametrize("n", [3, 5, 6])
def test_all_orders_of_a_few_numbers_are_equally_frequent(n: int) -> None:
    number = {found: i for i, found in enumerate(itertools.permutations(range(n)))}
    counts = np.zeros(len(number), np.int64)
    for seed in range(3000):
        counts[number[tuple(order(n, seed, 1).tolist())]] += 1
    assert abs(deviation(counts)) < 4


def test_odd_and_even_orders_are_equally_frequent_where_only_even_ones_would_be_easy_to_make() -> None:
    """A digit with an odd number of values is turned by an even permutation, and with two of them every order were even."""
    for n in (8, 9, 16, 25):
        odd = 0
        for seed in range(1000):
            found, cycles, seen = order(n, seed).tolist(), 0, set()
            for first in range(n):
                cycles += first not in seen
                while first not in seen:
                    seen.add(first)
                    first = found[first]
            odd += (n - cycles) % 2
        assert (n, 420 < odd < 580) == (n, True)


@pytest.mark.parametrize("n", [7, 100, 10_007])
@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_each_place_gets_each_part_of_the_range_equally_often_over_seeds_and_epochs(n: int, place: float) -> None:
    parts = min(n, 50)
    position = np.array([round(place * (n - 1))])
    found = [int(permuted(position, n, seed, epoch)[0]) for seed in range(60) for epoch in range(60)]
    counts = np.bincount([number * parts // n for number in found], minlength=parts)
    if n == 10_007:  # parts of nearly equal width; the others are equally wide
        counts = counts[:-1]
    assert abs(deviation(counts)) < 4


@pytest.mark.parametrize("n", [4096, 65_536, 100_000])
def test_the_first_tenth_of_an_order_is_spread_over_the_whole_range(n: int) -> None:
    counts = np.bincount(order(n, 5)[: n // 10] * 32 // n, minlength=32)
    assert deviation(counts) < 4


@pytest.mark.parametrize("n", [4096, 65_536, 100_000])
def test_neighbours_lie_as_far_apart_as_chance_puts_them(n: int) -> None:
    """Steps modulo n are uniform: no step, a small one least of all, is more frequent than another."""
    steps = np.diff(order(n, 5)) % n
    assert abs(deviation(np.bincount(steps * 64 // n, minlength=64))) < 4
    assert np.count_nonzero((steps == 1) | (steps == n - 1)) <= 10  # 2 are expected


@pytest.mark.parametrize("other", [(1, 3), (2, 2), (3, 1), (1, 2, 0)])
def test_orders_of_neighbouring_keys_have_nothing_in_common(other: tuple[int, ...]) -> None:
    n = 20_000
    one, two = order(n, 1, 2), order(n, *other)
    assert np.count_nonzero(one == two) <= 8  # 1 is expected
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.03
    assert abs(deviation(np.bincount((two - one) % n * 64 // n, minlength=64))) < 4


def test_its_memory_is_that_of_the_places_asked_for() -> None:
    places = np.arange(10**12, 10**12 + 4096)
    permuted(places, 10**15, 1)
    tracemalloc.start()
    permuted(places, 10**15, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 * places.nbytes


def test_no_place_is_no_number() -> None:
    assert permuted(np.empty(0, np.int64), 0, 1).tolist() == []
