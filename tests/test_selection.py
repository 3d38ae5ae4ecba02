"""Views of some samples: by number, by class, by share. A division made once stays the same for ever."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
import tracemalloc
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, RandomSampler, SubsetRandomSampler

from packer import formats, open_dataset
from packer.datasets import PackedDataset
from packer.errors import OptionError
from packer.selection import split_places
from tests.inputs import npy, pack_here, write_tree

CLASSES = {"ant": 7, "bee": 20, "cat": 1, "dog": 12}
NAMES = [f"{name}/{i:02d}.npy" for name, count in CLASSES.items() for i in range(count)]
SAMPLES = len(NAMES)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Forty arrays in four classes, in every format; the value of each is its number."""
    root = tmp_path_factory.mktemp("selection")
    source = write_tree(root / "in", {name: npy(np.full(3, i)) for i, name in enumerate(NAMES)})
    return {name: pack_here(source, name).output for name in formats.names()}


@pytest.fixture
def data(paths: dict[str, Path], format_name: str) -> PackedDataset:
    return open_dataset(paths[format_name], output="numpy")


@pytest.fixture
def one(paths: dict[str, Path]) -> PackedDataset:
    """A dataset of one format, where the format does not matter."""
    return open_dataset(paths["lmdb"], output="numpy")


def numbers(data: PackedDataset) -> list[int]:
    """The samples of a view, by their numbers in the whole dataset."""
    return [int(array[0]) for array, _ in data]


# -------------------------------------------------------------------------------------------------------------------- subset


@pytest.mark.parametrize(
    "indices, chosen",
    [
        ([3, 1, 2], [3, 1, 2]),
        ([0, 0, 39, -1, -40], [0, 0, 39, 39, 0]),
        (range(5, 0, -2), [5, 3, 1]),
        (np.array([2, 8], np.uint8), [2, 8]),
        (torch.tensor([-1, 4]), [39, 4]),
        ((7, np.int16(9)), [7, 9]),
        ([], []),
    ],
)
def test_a_subset_has_the_samples_asked_for_in_that_order(data: PackedDataset, indices: Any, chosen: list[int]) -> None:
    view = data.subset(indices=indices)
    assert type(view) is type(data)
    assert len(view) == len(chosen)
    assert numbers(view) == chosen
    assert list(view.names) == [NAMES[i] for i in chosen]
    assert view.targets.tolist() == data.targets[chosen].tolist()
    assert [target for _, target in view] == view.targets.tolist()


def test_a_subset_of_classes_keeps_their_labels_and_their_order(data: PackedDataset) -> None:
    view = data.subset(classes=["dog", "ant"])
    assert [NAMES[i] for i in numbers(view)] == [name for name in NAMES if name[:3] in ("ant", "dog")]
    assert view.classes == data.classes
    assert view.class_to_idx == data.class_to_idx
    assert set(view.targets.tolist()) == {0, 3}


def test_a_subset_of_a_share_is_of_that_size_and_in_order(data: PackedDataset) -> None:
    view = data.subset(fraction=0.25, seed=1)
    assert len(view) == 10
    assert numbers(view) == sorted(set(numbers(view)))
    assert numbers(view) == numbers(data.subset(fraction=0.25, seed=1)) != numbers(data.subset(fraction=0.25, seed=2))


def test_what_is_given_to_subset_is_applied_one_after_the_other(data: PackedDataset) -> None:
    view = data.subset(indices=range(0, SAMPLES, 2), classes=["bee"], fraction=0.5)
    bees = [i for i in range(0, SAMPLES, 2) if NAMES[i].startswith("bee")]
    assert len(view) == len(bees) // 2
    assert set(numbers(view)) < set(bees)


def test_a_subset_of_nothing_named_is_all_of_it_with_its_own_transform(data: PackedDataset) -> None:
    view = data.subset()
    view.transform = np.sum
    assert view[1][0] == 3
    assert data[1][0].tolist() == [1, 1, 1]


def test_a_view_of_a_view_is_one_of_the_first(data: PackedDataset) -> None:
    view = data.subset(indices=range(10, 30)).subset(indices=[-1, 0, 5]).subset(indices=[2, 0])
    assert numbers(view) == [15, 29]
    assert view.targets.tolist() == data.targets[[15, 29]].tolist()
    train, _ = view.split(0.5, 0.5)
    assert set(numbers(train)) < {15, 29}


def test_negative_numbers_count_from_the_end_of_the_view(data: PackedDataset) -> None:
    view = data.subset(indices=[4, 5, 6])
    assert int(view[-1][0][0]) == 6
    assert view.names[-1] == NAMES[6]
    for index in (3, -4):
        with pytest.raises(IndexError, match="of 3"):
            view[index]


@pytest.mark.parametrize(
    "options, error, said",
    [
        ({"classes": ["bea"]}, OptionError, "no class 'bea'; similar: 'bee'"),
        ({"classes": ["zebra"]}, OptionError, "no class 'zebra'; there are 4"),
        ({"classes": [0]}, OptionError, "no class 0"),
        ({"classes": "bee"}, OptionError, "one text; a list"),
        ({"indices": [40]}, IndexError, "sample 40 of 40"),
        ({"indices": [-41]}, IndexError, "sample -41 of 40"),
        ({"indices": [1.0]}, TypeError, "by its number"),
        ({"indices": [[1]]}, TypeError, "by its number"),
        ({"indices": np.zeros(SAMPLES, bool)}, TypeError, "mask"),
        ({"fraction": 0}, OptionError, "above 0"),
        ({"fraction": 1.01}, OptionError, "at most 1"),
        ({"fraction": 0.5, "seed": 0.5}, TypeError, "integer"),
    ],
)
def test_what_cannot_be_chosen_is_refused(one: PackedDataset, options: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        one.subset(**options)


def test_without_labels_no_class_can_be_chosen(tmp_path: Path) -> None:
    data = open_dataset(pack_here(write_tree(tmp_path / "in", {"a.npy": npy([1]), "b.npy": npy([2])})).output)
    with pytest.raises(OptionError, match="no class 'a'; there are 0"):
        data.subset(classes=["a"])
    assert [view[0].item() for view in data.split(0.5, 0.5, stratify=True)] in ([1, 2], [2, 1])


# --------------------------------------------------------------------------------------------------------------------- split


@st.composite
def divisions(draw: st.DrawFn) -> tuple[list[int], list[Fraction], int]:
    """Counts of labels, shares that are at most 1 together, and a seed."""
    counts = draw(st.lists(st.integers(0, 30), max_size=12))
    weights = draw(st.lists(st.integers(1, 20), min_size=1, max_size=6))
    unit = sum(weights) + draw(st.sampled_from([0, 0, 1, 17]))
    return counts, [Fraction(weight, unit) for weight in weights], draw(st.integers(0, 2**70))


@given(divisions(), st.booleans(), st.sampled_from([Fraction, float, np.float64, Decimal]))
@example(([1, 1], [Fraction(1, 3), Fraction(1, 6), Fraction(1, 2)], 0), True, Fraction)  # a part once had minus one sample
@example(([], [Fraction(1)], 0), True, float)
@example(([1], [Fraction(1, 2), Fraction(1, 2)], 0), False, float)
@example(([4] * 12, [Fraction(9, 10), Fraction(1, 10)], 0), True, float)
def test_the_parts_of_a_division_are_what_was_asked_for(
    division: tuple[list[int], list[Fraction], int], stratify: bool, kind: Callable[[Any], Any]
) -> None:
    counts, shares, seed = division
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    given_as = [kind(share.numerator) / kind(share.denominator) for share in shares]
    parts = split_places(len(labels), given_as, seed, labels if stratify else None)
    assert len(parts) == len(shares)
    together = np.concatenate(parts)
    assert len(set(together.tolist())) == len(together) <= len(labels)
    assert set(together.tolist()) <= set(range(len(labels)))
    if sum(shares) == 1:
        assert len(together) == len(labels)
    # Floats and decimals are not quite the shares: where a share is a whole number of samples, they round to it.
    slack = 0 if kind is Fraction else 1e-9
    for part, share in zip(parts, shares, strict=True):
        assert part.tolist() == sorted(part.tolist())
        assert abs(len(part) - share * len(labels)) < 1 + slack
        for label, count in enumerate(counts if stratify else []):
            assert abs((labels[part] == label).sum() - share * count) < 1 + slack


@pytest.mark.parametrize("stratify", [False, True])
def test_a_small_share_of_many_small_classes_is_not_lost(stratify: bool) -> None:
    """Rounded label by label, a tenth of four samples is none, a thousand times."""
    labels = np.arange(4000) % 1000
    train, test = split_places(4000, (0.9, 0.1), 0, labels if stratify else None)
    assert (len(train), len(test)) == (3600, 400)


@pytest.mark.parametrize(
    "fractions",
    [
        (0.7, 0.2, 0.1),
        (0.1,) * 10,
        (5 / 6, 1 / 6),
        (1 / 3, 1 / 3, 1 / 3),
        (0.7, 0.2, 1 - 0.7 - 0.2),
        (np.float32(1 / 3),) * 3,
        (Decimal("0.7"), Fraction(3, 10)),
        (1,),
    ],
)
def test_fractions_that_are_meant_to_be_all_leave_no_sample_out(one: PackedDataset, fractions: tuple[Any, ...]) -> None:
    parts = one.split(*fractions)
    assert sorted(number for part in parts for number in numbers(part)) == list(range(SAMPLES))


@pytest.mark.parametrize(
    "fractions",
    [(), (0,), (0.5, 0.0), (-0.1,), (float("nan"),), (float("inf"),), (1.001,), (0.5, 0.51), (True,), ("half",), (None,)],
)
@pytest.mark.parametrize("stratify", [False, True])
def test_fractions_that_make_no_sense_are_refused(one: PackedDataset, fractions: Any, stratify: bool) -> None:
    with pytest.raises(OptionError, match="fractions"):
        one.split(*fractions, stratify=stratify)


def test_a_split_shares_no_sample_and_keeps_names_and_labels(data: PackedDataset) -> None:
    parts = data.split(0.6, 0.3, seed=4)
    assert [len(part) for part in parts] == [24, 12]
    for one, other in combinations(parts, 2):
        assert not set(numbers(one)) & set(numbers(other))
    for part in parts:
        assert type(part) is type(data)
        assert list(part.names) == [NAMES[i] for i in numbers(part)]
        assert part.targets.tolist() == [target for _, target in part] == data.targets[numbers(part)].tolist()


def test_a_stratified_split_has_every_class_in_its_share(data: PackedDataset) -> None:
    train, test = data.split(0.75, 0.25, stratify=True)
    assert (len(train), len(test)) == (30, 10)
    counts = Counter(test.targets.tolist())
    assert (counts[1], counts[3]) == (5, 3)
    assert counts[0] in (1, 2)
    assert counts[2] in (0, 1)


def test_another_seed_divides_otherwise(one: PackedDataset) -> None:
    drawn = {tuple(numbers(one.split(0.5, 0.5, seed=seed)[0])) for seed in range(20)}
    assert len(drawn) == 20


@pytest.mark.parametrize("seed", [np.int64(3), np.uint8(3), torch.tensor(3)])
def test_a_seed_may_be_a_number_of_numpy_or_torch(one: PackedDataset, seed: Any) -> None:
    assert numbers(one.split(0.5, seed=seed)[0]) == numbers(one.split(0.5, seed=3)[0])


def test_every_sample_is_drawn_about_equally_often() -> None:
    drawn = np.zeros(50, int)
    for seed in range(1_000):
        drawn[split_places(50, (0.2,), seed, None)[0]] += 1
    assert drawn.min() > 150  # 200 ± 12.6 are expected: four times that
    assert drawn.max() < 250


GOLDEN = (
    ((0.8, 0.2), 0, False, [[1, 2, 3, 4, 5, 7, 8, 9], [0, 6]]),
    ((0.5, 0.3), 7, False, [[0, 3, 4, 5, 7], [1, 2, 6]]),
    ((0.7, 0.2, 0.1), 123, True, [[1, 3, 5, 6, 7, 8, 9], [0, 2], [4]]),
)


@pytest.mark.parametrize("fractions, seed, stratify, parts", GOLDEN)
def test_a_release_never_changes_a_split(fractions: Any, seed: int, stratify: bool, parts: list[list[int]]) -> None:
    """A changed split would leak what was tested on into what is trained on."""
    labels = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0]) if stratify else None
    assert [part.tolist() for part in split_places(10, fractions, seed, labels)] == parts


def test_another_process_divides_the_same_way(paths: dict[str, Path]) -> None:
    script = """
        import sys
        sys.modules["torch"] = None  # not needed, and slow to load
        from packer import open_dataset
        parts = open_dataset(sys.argv[1], output="numpy").split(0.5, 0.25, seed=5, stratify=True)
        print([[int(array[0]) for array, _ in part] for part in parts])
    """
    parts = open_dataset(paths["lmdb"], output="numpy").split(0.5, 0.25, seed=5, stratify=True)
    command = [sys.executable, "-c", textwrap.dedent(script), str(paths["hdf5"])]
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=environment)
    assert result.stdout == f"{list(map(numbers, parts))}\n"


# -------------------------------------------------------------------------------------------------------- views as datasets


def negative(array: np.ndarray) -> np.ndarray:
    """A transform that a worker can import."""
    return -array


def test_the_transforms_of_the_parts_are_their_own(data: PackedDataset) -> None:
    train, test = data.split(0.5, 0.5)
    train.transform = negative
    test.target_transform = str
    assert all(int(array[0]) <= 0 and type(target) is int for array, target in train)
    assert all(int(array[0]) >= 0 and type(target) is str for array, target in test)
    assert data.transform is data.target_transform is None


def test_a_view_says_how_many_samples_it_has(data: PackedDataset) -> None:
    assert "3 samples" in repr(data.subset(indices=[1, 2, 3]))
    assert f"{SAMPLES} samples" in repr(data)


@pytest.mark.parametrize("parts", [0, 1])
def test_a_view_of_few_samples_can_be_divided(one: PackedDataset, parts: int) -> None:
    view = one.subset(indices=range(parts))
    for stratify in (False, True):
        halves = view.split(0.5, 0.5, stratify=stratify)
        assert sum(map(len, halves)) == parts
    assert view.targets.dtype == np.int64
    assert list(view.subset(classes=["dog"], fraction=0.5)) == []


def test_the_targets_of_a_view_cannot_be_written(one: PackedDataset) -> None:
    targets = one.subset(indices=[1, 2]).targets
    with pytest.raises(ValueError, match="read-only"):
        targets[0] = 5
    with pytest.raises(ValueError, match="WRITEABLE"):
        targets.flags.writeable = True


def test_a_view_arrives_in_another_process_as_it_was(data: PackedDataset) -> None:
    view = data.subset(classes=["bee"]).subset(indices=[4, 2])
    assert len(view.targets) == 2
    twin = pickle.loads(pickle.dumps(view))
    assert numbers(twin) == numbers(view)
    assert twin.targets.tolist() == view.targets.tolist()
    assert list(twin.names) == list(view.names)


def test_a_view_holds_one_small_number_a_sample(one: PackedDataset) -> None:
    whole = len(pickle.dumps(one))
    many = np.arange(100_000) % SAMPLES
    assert len(pickle.dumps(one.subset(indices=many))) < whole + 100_000 + 1_000
    tracemalloc.start()
    try:
        view = one.subset(indices=many)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(view) == 100_000
    assert held < 120_000


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_loaders_and_samplers_take_a_view_for_a_dataset(data: PackedDataset, workers: int) -> None:
    train, test = data.split(0.5, 0.5, stratify=True)
    options: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    seen = []
    for view in (train, test):
        view.transform = negative
        loader = DataLoader(view, batch_size=4, shuffle=True, **options)
        seen += [-int(value) for arrays, _ in loader for value in arrays[:, 0]]
    batches = DataLoader(train, sampler=BatchSampler(RandomSampler(train), 4, False), batch_size=None, **options)
    assert sorted(int(value) for arrays, _ in batches for value in arrays[:, 0]) == sorted(numbers(train))
    assert sorted(seen) == list(range(SAMPLES))


def test_views_can_be_put_together_again(data: PackedDataset) -> None:
    both = ConcatDataset(data.split(0.3, 0.7))
    assert sorted(int(array[0]) for array, _ in both) == list(range(SAMPLES))
    loader = DataLoader(data.subset(classes=["dog"]), sampler=SubsetRandomSampler([0, 5]), batch_size=2)
    assert sorted(next(iter(loader))[0][:, 0].tolist()) == [28, 33]


def test_a_batch_of_a_view_has_its_samples(data: PackedDataset) -> None:
    view = data.subset(indices=[30, 20, 10])
    arrays, targets = view[[2, 0, -2]]
    assert arrays[:, 0].tolist() == [10, 30, 20]
    assert targets.tolist() == data.targets[[10, 30, 20]].tolist()
    assert [int(array[0]) for array, _ in view.__getitems__([2, 0])] == [10, 30]
    with view.view(1) as bytes_of_it:
        assert bytes(bytes_of_it) == npy(np.full(3, 20))
    view.ask_ahead([0, 1, 2])
