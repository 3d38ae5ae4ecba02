"""Threads fill one batch together: it is the batch that one thread makes, and the same error where there is one."""

from __future__ import annotations

import gc
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import packer.samples
from packer import Loader, buffers, open_dataset
from packer.batchmaker import BatchRead
from packer.datasets import PackedDataset
from packer.errors import CorruptSampleError, DatasetError, MixedBatchError
from tests.inputs import npy, pack_here, png, write_tree
from tests.test_batches import MIXED, UNIFORM
from tests.test_datasets import same

SAMPLES = 24


def array(number: int) -> np.ndarray[Any, Any]:
    return np.arange(12, dtype=np.float32).reshape(3, 4) + 100 * number


def picture(number: int) -> bytes:
    return png(Image.new("RGB", (6 + number % 3, 5), (number, 2 * number, 3 * number)))


KINDS: dict[str, tuple[Callable[[int], bytes], dict[str, Any]]] = {
    "arrays": (lambda i: npy(array(i)), {}),
    "arrays, some by columns": (lambda i: npy(np.asfortranarray(array(i)) if i % 5 == 3 else array(i)), {}),
    "arrays by columns": (lambda i: npy(np.asfortranarray(array(i))), {}),
    "pictures": (picture, {"size": (5, 6), "output": "torch"}),
    "pictures in a list": (picture, {}),
    "bytes": (picture, {"output": "bytes"}),
    "a transform": (lambda i: npy(array(i)), {"transform": lambda value: value * 2}),
}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a single sample, where there are threads enough."""
    monkeypatch.setattr(packer.samples, "_PART_BYTES", 1)
    monkeypatch.setattr(packer.samples, "_DECODED_PART_BYTES", 1)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("parts")
    made = {}
    for number, (kind, (encode, _)) in enumerate(KINDS.items()):
        ending = "npy" if encode(0)[:6] == b"\x93NUMPY" else "png"
        source = write_tree(root / f"{number}", {f"{'ab'[i % 2]}/{i:02d}.{ending}": encode(i) for i in range(SAMPLES)})
        made[kind] = pack_here(source, "lmdb").output
    return made


def opened(outputs: dict[str, Path], kind: str) -> PackedDataset:
    return open_dataset(outputs[kind], **KINDS[kind][1])


def begin(data: PackedDataset, numbers: list[int], *, skips: bool = False) -> BatchRead:
    return BatchRead(data, numbers, None, skips=skips)


def read(batch: BatchRead, order: list[range]) -> Any:
    """The pieces, where its parts are filled in an order."""
    ended = [batch.fill(places, lambda: None) for places in order]
    assert ended == [False] * (len(order) - 1) + [True]
    return batch.result(lambda: None)


def equal(batch: Any, other: Any) -> bool:
    if isinstance(batch, (list, tuple)):
        return len(batch) == len(other) and all(map(equal, batch, other))
    return same(batch, other) if isinstance(batch, (np.ndarray, torch.Tensor)) else bool(batch == other)


# --------------------------------------------------------------------------------------------------------------- parts


@pytest.mark.parametrize("most", [1, 2, 3, 5, 23, 24, 1000])
def test_parts_are_all_places_once_and_nearly_equal(outputs: dict[str, Path], most: int) -> None:
    parts = begin(opened(outputs, "arrays"), list(range(SAMPLES))).parts(most)
    assert [place for places in parts for place in places] == list(range(SAMPLES))
    assert len(parts) == min(most, SAMPLES)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    "kind, least", [("arrays", "_PART_BYTES"), ("bytes", "_PART_BYTES"), ("pictures", "_DECODED_PART_BYTES")]
)
def test_a_part_is_no_smaller_than_is_worth_a_thread(
    outputs: dict[str, Path], kind: str, least: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = opened(outputs, kind)
    size = sum(data._store.index[i].size for i in range(SAMPLES))
    for count in (1, 4, 7):
        monkeypatch.setattr(packer.samples, least, size // count)
        assert len(begin(data, list(range(SAMPLES))).parts(100)) == count
    monkeypatch.setattr(packer.samples, least, size + 1)
    assert len(begin(data, list(range(SAMPLES))).parts(100)) == 1


# --------------------------------------------------------------------------------------------------------------- the batch


@pytest.mark.parametrize("kind", KINDS)
def test_parts_in_any_order_make_the_batch_that_one_thread_makes(outputs: dict[str, Path], kind: str) -> None:
    data = opened(outputs, kind)
    numbers = [5, 3, 3, 20, 0, 13, 8]
    wanted = data[numbers]
    for most in (1, 2, 3, 7):
        for turn in range(most):
            batch = begin(data, numbers)
            parts = batch.parts(most)
            made = read(batch, [*parts[turn:], *parts[:turn]])
            assert made.numbers == numbers
            assert equal(data.finish_batch(made.pieces), wanted), (most, turn)


@pytest.mark.parametrize("kind", UNIFORM)
def test_arrays_of_any_kind_are_right_whichever_is_read_first(tmp_path: Path, kind: str) -> None:
    source = write_tree(tmp_path / "in", {f"{i}.npy": content for i, content in enumerate(UNIFORM[kind])})
    data = open_dataset(pack_here(source, "hdf5").output, output="numpy")
    for numbers in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        wanted = np.stack([data[number] for number in numbers])
        for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
            made = read(begin(data, numbers), [range(place, place + 1) for place in order])
            assert same(made.pieces.data, wanted), (numbers, order)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_gives_the_same_with_any_number_of_threads(outputs: dict[str, Path], kind: str) -> None:
    batches = [list(Loader(opened(outputs, kind), 5, shuffle=True, seed=3, threads=threads)) for threads in (1, 2, 3, 8)]
    assert len(batches[0]) == 5
    for others in batches[1:]:
        assert equal(others, batches[0])


def test_threads_that_fill_one_batch_keep_few_batches_in_memory(
    outputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch for each of sixteen threads was nineteen batches: 700 MB where a batch has 64 arrays of 224 x 224 x 3 floats."""
    made: list[int] = []
    allocate = buffers._allocate
    monkeypatch.setattr(buffers, "_allocate", lambda size: made.append(size) or allocate(size))
    data = opened(outputs, "arrays")
    loader = Loader(data, 12, shuffle=True, threads=16)
    for epoch in range(5):
        loader.set_epoch(epoch)
        assert sum(len(values) for values, _ in loader) == SAMPLES
    assert len(made) <= 4


def test_small_batches_are_begun_until_each_thread_has_one(outputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread each, as none has enough in it for two."""
    monkeypatch.setattr(packer.samples, "_PART_BYTES", 1 << 30)
    together = threading.Barrier(6, timeout=30)
    fill = BatchRead.fill

    def meet(self: Any, places: range, check: Any) -> bool:
        together.wait()
        return fill(self, places, check)

    monkeypatch.setattr(BatchRead, "fill", meet)
    assert len(list(Loader(opened(outputs, "arrays"), 2, threads=6))) == SAMPLES // 2


# ------------------------------------------------------------------------------------------------------------------- errors


def damaged(path: Path, output: Path, numbers: list[int]) -> PackedDataset:
    """A copy in which some samples are not as they were packed."""
    shutil.copytree(path, output)
    data = open_dataset(output)
    for number in numbers:
        record = data._store.index[number]
        with data._store.extents.path(record.shard).open("r+b") as file:
            file.seek(record.offset + record.size - 1)
            last = file.read(1)[0]
            file.seek(record.offset + record.size - 1)
            file.write(bytes([last ^ 1]))
    return open_dataset(output)


@pytest.mark.parametrize("most", [1, 2, 4, 8])
def test_the_first_sample_that_fails_is_named_whichever_part_fails_first(
    outputs: dict[str, Path], tmp_path: Path, most: int
) -> None:
    data = damaged(outputs["arrays"], tmp_path / "damaged", [3, 6])
    for backwards in (False, True):
        batch = begin(data, list(range(8)))
        parts = batch.parts(most)
        with pytest.raises(CorruptSampleError, match=r"sample 3 "):
            read(batch, parts[::-1] if backwards else parts)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_samples_of_several_parts_are_left_out(outputs: dict[str, Path], tmp_path: Path, threads: int) -> None:
    data = damaged(outputs["arrays"], tmp_path / "damaged", [0, 3, 6, 23])
    loader = Loader(data, 8, threads=threads, on_error="skip")
    found = torch.cat([values[:, 0, 0] for values, _ in loader])
    names = list(data.names)
    sound = [i for i in range(SAMPLES) if i not in (0, 3, 6, 23)]
    assert found.tolist() == [100 * int(names[i][2:4]) for i in sound]
    assert sorted(loader.skipped_samples) == sorted(names[i] for i in (0, 3, 6, 23))


def test_a_batch_without_its_damaged_samples_can_be_ended_before_each_of_the_others(
    outputs: dict[str, Path], tmp_path: Path
) -> None:
    """A loop that was left must not wait until a slow disk has given them all a second and a third time."""
    batch = begin(damaged(outputs["arrays"], tmp_path / "damaged", [3]), list(range(8)), skips=True)
    checks: list[int] = []
    batch.fill(batch.places, lambda: None)
    made = batch.result(lambda: checks.append(1))
    assert made.numbers == [0, 1, 2, 4, 5, 6, 7]
    assert len(checks) == 8 + 7


@pytest.mark.parametrize("kind", MIXED)
def test_samples_that_differ_are_named_the_same_whichever_is_read_first(tmp_path: Path, kind: str) -> None:
    contents, first, other = MIXED[kind]
    source = write_tree(tmp_path / "in", {f"{i}.npy": content for i, content in enumerate(contents)})
    data = open_dataset(pack_here(source, "webdataset").output, output="numpy")
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        with pytest.raises(MixedBatchError, match=rf"'1\.npy' is .*{first}.*'2\.npy' is .*{other}"):
            read(begin(data, [1, 0, 2]), [range(place, place + 1) for place in order])


def test_memory_that_is_not_there_is_told_of_pictures_as_of_arrays(
    outputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(size: int) -> Any:
        raise MemoryError

    monkeypatch.setattr(buffers, "_allocate", none)
    for kind in ("arrays", "pictures"):
        with pytest.raises(DatasetError, match="not enough memory for a batch of 3 samples"):
            opened(outputs, kind)[[0, 1, 2]]


def test_a_batch_that_failed_is_let_go_of_with_its_error(outputs: dict[str, Path], tmp_path: Path) -> None:
    """And not only when the garbage collector comes."""
    data = damaged(outputs["arrays"], tmp_path / "damaged", [3])
    pool = data._reader._buffers
    assert isinstance(pool, buffers.BufferPool)
    gc.disable()
    try:
        for most in (1, 4):
            pool._free.clear()
            batch = begin(data, list(range(8)))
            with pytest.raises(CorruptSampleError, match="sample 3 ") as error:
                read(batch, batch.parts(most))
            assert not pool._free
            del batch, error
            assert len(pool._free) == 1
    finally:
        gc.enable()
