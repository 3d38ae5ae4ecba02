"""A sample that cannot be had ends the run with its name, or is left out, counted and named; never replaced, never unsaid."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from packer import CorruptSampleError, MixedBatchError, PackedDataset, PackerError, WorkerDiedError, make_loader, open_dataset
from tests.inputs import npy, pack_here, write_tree
from tests.loading import Foreign, array_tree, brightness_and_draws, fails_at, made, picture_tree, plain

# Python 3.12 and later warn of any fork beside threads; torch itself has some.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")

KINDS = ("2 threads", "0 workers", "2 workers")
SAMPLES = 14


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_here(array_tree(tmp_path_factory.mktemp("errors") / "in", SAMPLES), "lmdb").output


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_here(picture_tree(tmp_path_factory.mktemp("errors") / "in", SAMPLES), "hdf5").output


def damaged(output: Path, *numbers: int) -> Path:
    """The dataset, with a bit of each of these samples flipped in its container."""
    data = open_dataset(output)
    for number in numbers:
        record = data._store.index[number]
        path = data._store.extents.path(record.shard)
        contents = bytearray(Path(path).read_bytes())
        contents[record.offset + record.size - 1] ^= 1
        Path(path).write_bytes(contents)
    return output


def first_values(batches: list[Any]) -> list[list[int]]:
    return [np.asarray(batch)[:, 0].tolist() for batch in batches]


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "packer" and record.levelno == logging.WARNING]


def test_damaged_samples_are_left_out_counted_and_named_once(
    tmp_path: Path, format_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    output = damaged(pack_here(array_tree(tmp_path / "in", SAMPLES), format_name).output, 1, 6)
    for kind in KINDS:
        caplog.clear()
        loader = made(kind, open_dataset(output), on_error="skip")
        assert first_values(list(loader)) == [[0, 2, 3], [4, 5, 7], [8, 9, 10, 11], [12, 13]], kind
        assert loader.skipped == 2
        assert list(loader.skipped_samples) == ["0001.npy", "0006.npy"]
        assert all("CorruptSampleError" in problem for problem in loader.skipped_samples.values())
        assert [line.split(":")[0] for line in logged(caplog)] == ["skipped sample '0001.npy'", "skipped sample '0006.npy'"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_sample_ends_the_run_with_its_name_and_file(kind: str, tmp_path: Path, format_name: str) -> None:
    data = open_dataset(damaged(pack_here(array_tree(tmp_path / "in", SAMPLES), format_name).output, 6))
    with pytest.raises(CorruptSampleError) as caught:
        list(made(kind, data))
    file = Path(data._store.extents.path(0)).name
    for word in ("0006.npy", file):
        assert word in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_whose_transform_fails_are_left_out(kind: str, arrays: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = open_dataset(arrays, transform=fails_at(0, 5, 6))
    loader = made(kind, data, on_error="skip")
    assert first_values(list(loader)) == [[1, 2, 3], [4, 7], [8, 9, 10, 11], [12, 13]]
    assert loader.skipped_samples == {f"{i:04d}.npy": "ValueError: not this one" for i in (0, 5, 6)}
    assert len(logged(caplog)) == loader.skipped == 3
    with pytest.raises(ValueError, match="not this one") as caught:
        list(made(kind, data))
    assert "0000.npy" in "".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


def not_of_class_b(label: int) -> int:
    if label:
        raise KeyError(label)
    return label


@pytest.mark.parametrize("kind", KINDS)
def test_samples_whose_target_transform_fails_are_left_out_with_their_data(kind: str, pictures: Path) -> None:
    data = open_dataset(pictures, output="torch")
    expected = data[[0, 1, 2, 3, 4, 5, 6]]
    loader = made(kind, open_dataset(pictures, output="torch", target_transform=not_of_class_b), 5, on_error="skip")
    batches = list(loader)
    assert torch.equal(torch.cat([images for images, _ in batches]), expected[0])
    assert torch.cat([labels for _, labels in batches]).tolist() == [0] * 7
    assert loader.skipped == 7
    assert all(name.startswith("b/") for name in loader.skipped_samples)


class Failing(Foreign):
    def __getitem__(self, number: int) -> Any:
        if number in (2, 9):
            raise LookupError("gone")
        return super().__getitem__(number)


@pytest.mark.parametrize("kind", ["0 workers", "2 workers"])
def test_samples_that_a_dataset_of_another_library_raises_for_are_left_out(kind: str) -> None:
    loader = made(kind, Failing(11), on_error="skip")
    assert [plain(numbers) for numbers, _ in loader] == [[0, 1, 3], [4, 5, 6, 7], [8, 10]]
    assert loader.skipped_samples == {f"Failing[{i}]": "LookupError: gone" for i in (2, 9)}
    with pytest.raises(LookupError) as caught:
        list(made(kind, Failing(11)))
    assert "in sample 2 of Failing" in "".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


class Stopping(Foreign):
    def __getitem__(self, number: int) -> Any:
        return next(iter([])) if number == 5 else number


@pytest.mark.parametrize("kind", ["0 workers", "2 workers"])
def test_an_iterator_that_ends_inside_a_sample_does_not_end_the_epoch(kind: str) -> None:
    """For a DataLoader a StopIteration is the end of the epoch, and the rest of it goes missing."""
    with pytest.raises(RuntimeError, match=r"StopIteration.*in sample 5 of Stopping"):
        list(made(kind, Stopping(12)))
    loader = made(kind, Stopping(12), on_error="skip")
    assert sum(len(batch) for batch in loader) == 11
    assert list(loader.skipped_samples) == ["Stopping[5]"]


def runs_out(value: Any) -> Any:
    return next(iter([]))


@pytest.mark.parametrize("kind", KINDS)
def test_an_iterator_that_ends_inside_a_transform_does_not_end_the_epoch(kind: str, arrays: Path) -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(made(kind, open_dataset(arrays, transform=runs_out)))


def test_what_is_left_out_does_not_change_what_others_draw(pictures: Path, tmp_path: Path) -> None:
    output = damaged(pack_here(picture_tree(tmp_path / "in", SAMPLES), "hdf5").output, 3, 4)
    expected = {row[0]: row for rows, _ in made("0 workers", drawing(pictures), shuffle=True, seed=2) for row in rows.tolist()}
    for kind in KINDS:
        loader = made(kind, drawing(output), shuffle=True, seed=2, on_error="skip")
        rows = [row for rows, _ in loader for row in rows.tolist()]
        assert len(rows) == SAMPLES - 2
        assert all(expected[row[0]] == row for row in rows), kind


def drawing(path: Path) -> PackedDataset:
    return open_dataset(path, output="torch", transform=brightness_and_draws)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_which_nothing_is_left_is_not_given_out_and_a_resume_does_not_ask_for_it_again(
    kind: str, arrays: Path
) -> None:
    loader = made(kind, open_dataset(arrays, transform=fails_at(4, 5, 6, 7)), on_error="skip")
    given, states = [], []
    for batch in loader:
        given.append(batch)
        states.append(loader.state_dict())
    assert first_values(given) == [[0, 1, 2, 3], [8, 9, 10, 11], [12, 13]]
    loader.load_state_dict(states[1])
    assert first_values(list(loader)) == [[12, 13]]
    assert loader.skipped == 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_transform_that_always_fails_ends_the_run(kind: str, arrays: Path) -> None:
    loader = made(kind, open_dataset(arrays, transform=fails_at()), on_error="skip")
    with pytest.raises(PackerError, match=r"all 14 samples of this epoch were skipped.*'0000.npy': ValueError: not this one"):
        list(loader)
    many = open_dataset(arrays, transform=fails_at()).subset(indices=[*range(SAMPLES)] * 30)
    loader = made(kind, many, on_error="skip")
    with pytest.raises(PackerError, match="100 samples of this epoch were skipped and 0 given out, so not the samples"):
        list(loader)
    assert loader.skipped == 100


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_than_half_may_be_left_out_of_a_long_epoch(kind: str, arrays: Path) -> None:
    many = open_dataset(arrays, transform=fails_at(1, 3, 5, 7, 9, 11)).subset(indices=[*range(SAMPLES)] * 20)
    loader = made(kind, many, on_error="skip")
    assert sum(map(len, loader)) == 8 * 20
    assert (loader.skipped, len(loader.skipped_samples)) == (6 * 20, 6)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_different_shapes_is_an_error_also_where_samples_are_skipped(
    kind: str, on_error: str, tmp_path: Path
) -> None:
    files = {f"{i}.npy": npy(np.zeros(3 + (i == 5), np.int32)) for i in range(8)}
    data = open_dataset(pack_here(write_tree(tmp_path / "in", dict(files)), "lmdb").output)
    with pytest.raises(MixedBatchError, match=r"4\.npy.*5\.npy"):
        list(made(kind, data, on_error=on_error))


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_whose_batch_has_nothing_left_says_so(kind: str, arrays: Path) -> None:
    data = open_dataset(arrays, transform=fails_at(0, 2, 4, 6))
    other = made(kind, data, on_error="skip", rank=1, world_size=2)
    assert len(list(other)) == 2
    with pytest.raises(PackerError, match="all 4 samples of a batch were skipped, and the other ranks would wait"):
        list(made(kind, data, on_error="skip", rank=0, world_size=2))


def test_names_are_logged_without_control_characters(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = {"\x1b[31mred.npy": npy(np.arange(3)), "b.npy": npy(np.arange(3))}
    data = open_dataset(damaged(pack_here(write_tree(tmp_path / "in", dict(names)), "lmdb").output, 0))
    list(made("1 thread", data, on_error="skip"))
    (line,) = logged(caplog)
    assert "\x1b" not in line
    assert r"\x1b[31mred.npy" in line


class Killer(Foreign):
    """A dataset whose last sample kills the worker that makes it."""

    def __getitem__(self, number: int) -> Any:
        if number == len(self) - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(number)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python's own, of a connection that was cut
def test_the_death_of_a_worker_is_explained_in_the_error() -> None:
    with pytest.raises(WorkerDiedError, match=r"worker 0 \(pid \d+\) died.*SIGKILL.*packer.resilient\(loader\) goes on"):
        list(make_loader(Killer(8), 2, num_workers=1))
