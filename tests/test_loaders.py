"""One seed gives the same batches with threads, with any number of workers of any start method, and after every resume."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from packer import EpochSampler, Loader, OptionError, make_loader, open_dataset
from tests.cases.loaders import FORKS, METHODS
from tests.inputs import pack_here
from tests.loading import Foreign, array_tree, brightness_and_draws, fails_at, made, picture_tree, plain

pytestmark = [
    # Python 3.12 and later warn of any fork beside threads; torch itself has some.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
    # torch counts the processors of this machine.
    pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes:UserWarning"),
    pytest.mark.skipif(not FORKS, reason="no fork here"),
]

SAMPLES = 22
KINDS = ("1 thread", "3 threads", "1 worker", "4 workers")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("loaders")
    return {
        "pictures": pack_here(picture_tree(folder / "pictures", SAMPLES), "lmdb").output,
        "arrays": pack_here(array_tree(folder / "arrays", SAMPLES), "webdataset").output,
    }


def opened(paths: dict[str, Path], what: str) -> Any:
    if what == "foreign":
        return Foreign(SAMPLES)
    if what == "arrays":
        return open_dataset(paths["arrays"])
    data = open_dataset(paths["pictures"], output="torch", transform=brightness_and_draws)
    return data.subset(indices=[*range(20, 2, -1), 5, 5]) if what == "subset" else data


def epochs_of(loader: Any, *numbers: int) -> list[list[Any]]:
    found = []
    for number in numbers:
        loader.set_epoch(number)
        found.append([plain(batch) for batch in loader])
    return found


# ----------------------------------------------------------------------------------------------- order, contents, augmentations


@pytest.mark.parametrize("what", ["pictures", "arrays", "subset", "foreign"])
def test_a_seed_gives_the_same_batches_with_threads_and_any_number_of_workers(paths: dict[str, Path], what: str) -> None:
    data = opened(paths, what)
    expected = epochs_of(made("0 workers", data, shuffle=True, seed=3), 0, 1, 7)
    assert len({str(epoch) for epoch in expected}) == 3
    for kind in KINDS:
        if what != "foreign" or "worker" in kind:
            loader = made(kind, data, shuffle=True, seed=3)
            assert epochs_of(loader, 0, 1, 7) == expected, kind
            assert len(loader) == len(expected[0])
            del loader
    assert epochs_of(made("0 workers", data, shuffle=True, seed=4), 0) != expected[:1]


@pytest.mark.parametrize("method, what", [("spawn", "subset"), ("forkserver", "foreign")])
def test_workers_of_other_start_methods_give_the_same_batches(paths: dict[str, Path], method: str, what: str) -> None:
    if method not in METHODS:
        pytest.skip(f"no {method} here")
    data = opened(paths, what)
    expected = epochs_of(made("0 workers", data, shuffle=True, seed=3), 0, 1)
    assert epochs_of(made(f"1 {method}", data, shuffle=True, seed=3), 0, 1) == expected


def test_batches_are_the_samples_that_the_order_names(paths: dict[str, Path], format_name: str, tmp_path: Path) -> None:
    output = pack_here(picture_tree(tmp_path / "in", SAMPLES), format_name).output
    data = open_dataset(output, output="torch")
    for loader in (Loader(data, 4, shuffle=True, seed=2, threads=2), make_loader(data, 4, shuffle=True, seed=2, num_workers=0)):
        batches = list(loader)
        assert [len(targets) for _, targets in batches] == [4, 4, 4, 4, 4, 2]
        order = list(EpochSampler(data, seed=2))
        for number, image, target in zip(
            order, torch.cat([images for images, _ in batches]), torch.cat([labels for _, labels in batches]), strict=True
        ):
            assert torch.equal(image, data[number][0])
            assert target == data[number][1]


def test_a_batch_is_the_tensor_alone_where_there_are_no_labels(paths: dict[str, Path]) -> None:
    data = opened(paths, "arrays")
    for kind in ("2 threads", "0 workers", "2 workers"):
        batches = list(made(kind, data))
        assert [batch.dtype for batch in batches] == [torch.int32] * 6
        assert torch.cat(batches)[:, 0].tolist() == list(range(SAMPLES))


def test_each_sample_draws_other_numbers_in_each_epoch_and_in_each_place_of_a_subset(paths: dict[str, Path]) -> None:
    """Also where workers and epochs would seed the generators alike, and a subset has a sample several times."""
    data = opened(paths, "subset")
    for kind in ("3 threads", "4 workers"):
        rows = [row for epoch in epochs_of(made(kind, data, shuffle=True), 0, 1) for rows, _ in epoch for row in rows]
        for column in (1, 2, 3):
            assert len({row[column] for row in rows}) == 2 * len(data), kind


def test_a_collate_function_does_not_change_what_samples_draw(paths: dict[str, Path]) -> None:
    data = opened(paths, "subset")
    expected = epochs_of(made("0 workers", data, shuffle=True), 0, 1)
    collated = epochs_of(made("2 workers", data, shuffle=True, collate_fn=list), 0, 1)
    turned = [[list(map(list, zip(*batch, strict=True))) for batch in epoch] for epoch in collated]
    assert turned == expected


@pytest.mark.parametrize("kind, what", [("2 threads", "pictures"), ("0 workers", "foreign"), ("1 worker", "foreign")])
def test_the_generators_of_the_loop_are_as_if_no_sample_had_been_made(paths: dict[str, Path], kind: str, what: str) -> None:
    loader = made(kind, opened(paths, what), shuffle=True)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist()  # type: ignore[index]
    for _ in range(2):
        for _batch in loader:
            now = random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist()  # type: ignore[index]
            assert now == before
    now = random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist()  # type: ignore[index]
    assert now == before


def test_the_generators_are_given_back_after_a_transform_that_raises(paths: dict[str, Path]) -> None:
    before = random.getstate(), torch.random.get_rng_state().tolist()
    for kind in ("1 thread", "0 workers"):
        with pytest.raises(ValueError, match="not this one"):
            list(made(kind, open_dataset(paths["arrays"], transform=fails_at(3))))
    assert (random.getstate(), torch.random.get_rng_state().tolist()) == before


# ------------------------------------------------------------------------------------------------------------- stop and resume


KINDS_OF_STATE = ("2 threads", "0 workers", "2 workers")


@pytest.fixture(scope="module")
def resumable(paths: dict[str, Path]) -> Iterator[dict[tuple[str, bool], Any]]:
    """Loaders that are used again and again, so that persistent workers go on after loops that were left early."""
    data = opened(paths, "pictures")
    loaders = {
        (kind, drops): made(kind, data, shuffle=True, seed=9, drop_last=drops)
        for kind in KINDS_OF_STATE
        for drops in (False, True)
    }
    yield loaders
    loaders.clear()


@pytest.fixture(scope="module")
def expected(paths: dict[str, Path]) -> dict[bool, list[list[Any]]]:
    """Three epochs, with all batches and without the last."""
    data = opened(paths, "pictures")
    return {
        drops: epochs_of(made("0 workers", data, shuffle=True, seed=9, drop_last=drops), 0, 1, 2) for drops in (False, True)
    }


def state_after(loader: Any, epoch: int, taken: int) -> tuple[list[Any], dict[str, Any]]:
    """What a loop was given until it was left after so many batches, and the state then."""
    loader.set_epoch(epoch)
    given: list[Any] = []
    if taken:
        for batch in loader:
            given.append(plain(batch))
            if len(given) == taken:
                break
    return given, json.loads(json.dumps(loader.state_dict()))


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("before", KINDS_OF_STATE)
def test_a_state_after_any_batch_goes_on_with_the_next_one_in_any_loader(
    before: str, drops: bool, resumable: dict[tuple[str, bool], Any], expected: dict[bool, list[list[Any]]]
) -> None:
    _, first, second = expected[drops]
    for taken in (0, 1, 3, len(first) - 1, len(first)):
        given, state = state_after(resumable[before, drops], 1, taken)
        for after in KINDS_OF_STATE:
            other = resumable[after, drops]
            other.load_state_dict(state)
            rest = [plain(batch) for batch in other]
            if taken == len(first):
                assert rest == second, (taken, after)
                continue
            assert given + rest == first, (taken, after)
            assert [plain(batch) for batch in other] == second


@pytest.mark.parametrize("kind", KINDS_OF_STATE)
def test_the_state_after_a_whole_epoch_is_the_start_of_the_next(
    kind: str, resumable: dict[tuple[str, bool], Any], expected: dict[bool, list[list[Any]]]
) -> None:
    for drops in (False, True):
        loader = resumable[kind, drops]
        assert epochs_of(loader, 0) == expected[drops][:1]
        state = loader.state_dict()
        assert (state["epoch"], state["position"]) == (1, 0)


@pytest.mark.parametrize("kind", KINDS_OF_STATE)
def test_set_epoch_keeps_the_place_that_was_loaded_in_that_epoch_and_no_other(
    kind: str, resumable: dict[tuple[str, bool], Any], expected: dict[bool, list[list[Any]]]
) -> None:
    loader = resumable[kind, False]
    given, state = state_after(loader, 1, 2)
    loader.load_state_dict(state)
    loader.set_epoch(1)
    assert loader.state_dict() == state
    assert given + [plain(batch) for batch in loader] == expected[False][1]
    loader.load_state_dict(state)
    loader.set_epoch(2)
    assert loader.state_dict()["position"] == 0
    assert [plain(batch) for batch in loader] == expected[False][2]


@pytest.mark.parametrize("kind", KINDS_OF_STATE)
def test_a_loop_that_was_left_early_is_followed_by_the_next_epoch(
    kind: str, resumable: dict[tuple[str, bool], Any], expected: dict[bool, list[list[Any]]]
) -> None:
    loader = resumable[kind, False]
    loader.set_epoch(0)
    for batch in loader:
        assert plain(batch) == expected[False][0][0]
        break
    assert [plain(batch) for batch in loader] == expected[False][1]
    left = iter(loader)
    assert plain(next(left)) == expected[False][2][0]
    loader.set_epoch(1)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (1, 0)
    assert [plain(batch) for batch in loader] == expected[False][1]
    left.close()  # type: ignore[attr-defined]


class FailsLater(Foreign):
    """Its first sample fails from the second time on."""

    times = 0

    def __getitem__(self, number: int) -> Any:
        self.times += number == 0
        if number == 0 and self.times > 1:
            raise ValueError("not again")
        return number


@pytest.mark.parametrize("kind", ["0 workers", "1 worker"])
def test_a_first_batch_that_fails_leaves_the_state_at_the_start_of_its_epoch(kind: str) -> None:
    loader = made(kind, FailsLater(8))
    assert len(list(loader)) == 2
    with pytest.raises(ValueError, match="not again"):
        list(loader)
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (1, 0)


def test_a_first_batch_that_fails_in_threads_leaves_the_state_at_the_start_of_its_epoch(paths: dict[str, Path]) -> None:
    data = open_dataset(paths["arrays"])
    loader = made("2 threads", data)
    assert len(list(loader)) == 6
    data.transform = fails_at()
    with pytest.raises(ValueError, match="not this one"):
        list(loader)
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (1, 0)


def test_iterators_alive_at_the_same_time_are_independent(paths: dict[str, Path]) -> None:
    data = opened(paths, "foreign")
    expected = epochs_of(made("0 workers", data, shuffle=True), 0, 1)
    for loader in (made("0 workers", data, shuffle=True), made("1 worker", data, shuffle=True, persistent_workers=False)):
        pairs = [(plain(one), plain(two)) for one, two in zip(loader, loader, strict=True)]
        assert [list(epoch) for epoch in zip(*pairs, strict=True)] == expected
    arrays = opened(paths, "arrays")
    pairs = [(plain(one), plain(two)) for one, two in zip(*[made("2 threads", arrays)] * 2, strict=True)]
    assert all(one == two for one, two in pairs)


def test_persistent_workers_serve_one_iterator_and_the_other_says_so() -> None:
    """torch would give each of them every other batch."""
    loader = made("1 worker", Foreign(12))
    first = iter(loader)
    next(first)
    assert len(list(loader)) == 3
    with pytest.raises(RuntimeError, match="another iteration over this loader has begun"):
        next(first)


def test_a_state_of_other_data_is_refused(paths: dict[str, Path]) -> None:
    state = make_loader(Foreign(5), 2, num_workers=0).state_dict()
    for loader in (made("1 thread", opened(paths, "arrays")), made("0 workers", Foreign(6))):
        with pytest.raises(OptionError, match="samples=5 there"):
            loader.load_state_dict(state)


def test_an_order_of_its_own_comes_as_a_sampler(paths: dict[str, Path]) -> None:
    data = opened(paths, "arrays")
    order = list(EpochSampler(data, order="blocks", block_size=3, seed=5))
    for kind in ("2 threads", "2 workers"):
        loader = made(kind, data, sampler=EpochSampler(data, order="blocks", block_size=3, seed=5))
        assert torch.cat(list(loader))[:, 0].tolist() == order


@pytest.mark.parametrize("drops", [False, True])
def test_no_samples_and_fewer_than_a_batch_are_no_special_cases(drops: bool, paths: dict[str, Path]) -> None:
    data = opened(paths, "arrays")
    for kind in ("2 threads", "0 workers", "1 worker"):
        for count in (0, 3):
            loader = made(kind, data.subset(indices=range(count)), drop_last=drops)
            batches = list(loader)
            assert len(batches) == len(loader) == (0 if drops or not count else 1)
            assert loader.state_dict()["epoch"] == 1
