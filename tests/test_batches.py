"""``data[[i, j]]`` is a batch: what ``data[i]`` gives, put together, whatever way it was read."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, Subset, random_split

from packer import buffers, files, formats, open_dataset
from packer.batches import ArrayBatch
from packer.datasets import PackedDataset
from packer.errors import CorruptSampleError, DatasetError, MixedBatchError, OptionError
from packer.manifest import load_manifest
from packer.npyheader import Header
from tests.inputs import jpeg, npy, pack_here, photo, png, write_tree
from tests.test_datasets import run_without_torch, same
from tests.test_extents import few_at_a_time

DTYPES = ("bool", "u1", "u2", "i8", "f2", "f4", "c16")
ORDERS = ([0, 1, 2], [2, 0], [-1, 0, -3], [1, 1, 1], [2])


def version(array: np.ndarray, major: int, padding: int = 0) -> bytes:
    """An ``.npy`` file of another version of the format, or with a longer header, as other programs write it."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version=(major, 0))
    data = buffer.getvalue()
    at = 10 if major == 1 else 12
    end = at + int.from_bytes(data[8:at], "little")
    header = data[at : end - 1] + b" " * padding + b"\n"
    return data[:8] + len(header).to_bytes(at - 8, "little") + header + data[end:]


def ramp(number: int, shape: tuple[int, ...] = (2, 3, 4), dtype: str = "f4") -> np.ndarray:
    size = int(np.prod(shape))
    return (np.arange(size).reshape(shape) + 7 * number).astype(dtype)


# Three files each, that make one batch; those that differ from the first have to be decoded one by one.
UNIFORM: dict[str, list[bytes]] = {
    **{f"of {name}": [npy(ramp(i, dtype=name)) for i in range(3)] for name in DTYPES},
    **{f"of shape {shape}": [npy(ramp(i, shape)) for i in range(3)] for shape in ((), (1,), (0,), (3, 0, 2), (1,) * 12)},
    "by columns": [npy(np.asfortranarray(ramp(i))) for i in range(3)],
    "some by columns": [npy(ramp(0)), npy(np.asfortranarray(ramp(1))), npy(ramp(2))],
    "first by columns": [npy(np.asfortranarray(ramp(0))), npy(ramp(1)), npy(ramp(2))],
    "big-endian": [npy(ramp(i, dtype=">f8")) for i in range(3)],
    "some big-endian": [npy(ramp(0, dtype="i2")), npy(ramp(1, dtype=">i2")), npy(ramp(2, dtype="i2"))],
    "of several versions": [version(ramp(i), i + 1) for i in range(3)],
    "of version 2": [version(ramp(i), 2) for i in range(3)],
    "with headers of several lengths": [version(ramp(i), 1, 64 * i) for i in range(3)],
    "with headers of one length": [version(ramp(0), 1), version(ramp(1), 1).replace(b", }", b",} "), version(ramp(2), 1)],
    "with a long header": [version(ramp(i), 2, 8000) for i in range(3)],
}
MIXED: dict[str, tuple[list[bytes], str, str]] = {
    "other lengths": ([npy(ramp(0, (5,))), npy(ramp(1, (5,))), npy(ramp(2, (6,)))], r"float32 \(5,\)", r"float32 \(6,\)"),
    "other shapes of one size": ([npy(ramp(0, (2, 3))), npy(ramp(1, (2, 3))), npy(ramp(2, (3, 2)))], r"\(2, 3\)", r"\(3, 2\)"),
    "other dtypes of one size": ([npy(ramp(i, (4,), "i4" if i == 2 else "f4")) for i in range(3)], "float32", "int32"),
    "other axes": ([npy(ramp(i, (4,) if i < 2 else (1, 4))) for i in range(3)], r"\(4,\)", r"\(1, 4\)"),
}


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Packs each kind of arrays into each format once, when it is asked for."""
    root = tmp_path_factory.mktemp("batches")
    made: dict[tuple[str, str], Path] = {}

    def find(format_name: str, kind: str) -> Path:
        if (format_name, kind) not in made:
            contents = UNIFORM[kind] if kind in UNIFORM else MIXED[kind][0]
            source = write_tree(root / f"{len(made)}", {f"{i}.npy": data for i, data in enumerate(contents)})
            made[format_name, kind] = pack_here(source, format_name).output
        return made[format_name, kind]

    return find


def together(values: list[Any]) -> Any:
    """What torch's own collation, or numpy, makes of samples."""
    return torch.stack(values) if isinstance(values[0], torch.Tensor) else np.stack(values)


@pytest.mark.parametrize("kind", UNIFORM)
def test_a_batch_of_arrays_is_the_stack_of_its_samples(arrays: Callable[[str, str], Path], format_name: str, kind: str) -> None:
    for options in ({}, {"mmap": True, "verify": False}):
        for output in ("torch", "numpy", "pil"):
            data = open_dataset(arrays(format_name, kind), output=output, **options)
            for order in ORDERS:
                batch = data[order]
                wanted = together([data[i] for i in order])
                assert same(batch, wanted)
                assert batch.shape == wanted.shape
                contents = np.asarray(batch)
                assert contents.flags.writeable
                assert contents.flags.c_contiguous
                assert contents.dtype.isnative
            assert data.__getitems__([1, -1])[1].shape == data[2].shape


@pytest.mark.parametrize("kind", UNIFORM)
def test_arrays_with_one_header_are_read_straight_into_the_batch(
    arrays: Callable[[str, str], Path], format_name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = open_dataset(arrays(format_name, kind), output="numpy")
    copied: list[object] = []
    fill = ArrayBatch.fill
    monkeypatch.setattr(ArrayBatch, "fill", lambda *arguments: copied.append(arguments) or fill(*arguments))
    data[[0, 1, 2]]
    has_one_header = not any(word in kind for word in ("columns", "endian", "several", "headers", "long"))
    assert bool(copied) is not (has_one_header or bool(data._store.manifest.header))


@pytest.mark.parametrize("kind", MIXED)
def test_samples_that_make_no_batch_are_named_with_what_they_are(
    arrays: Callable[[str, str], Path], format_name: str, kind: str
) -> None:
    _, first, other = MIXED[kind]
    for output in ("torch", "numpy", "pil"):
        data = open_dataset(arrays(format_name, kind), output=output)
        with pytest.raises(MixedBatchError, match=rf"'1\.npy' is .*{first}.*'2\.npy' is .*{other}"):
            data[[1, 0, 2]]
        assert len(data.__getitems__([0, 1, 2])) == 3
        assert len(data[[0, 1]]) == 2


@pytest.mark.parametrize("kind", ["of f4", "of several versions", "by columns"])
def test_raw_files_come_as_a_list(arrays: Callable[[str, str], Path], format_name: str, kind: str) -> None:
    data = open_dataset(arrays(format_name, kind), output="bytes")
    assert data[[2, 0, -2]] == [UNIFORM[kind][2], UNIFORM[kind][0], UNIFORM[kind][1]]


@pytest.mark.skipif(not hasattr(os, "preadv"), reason="no preadv here")
@pytest.mark.parametrize("most", [1, 7, 128, 129, 150])
@pytest.mark.parametrize("has_preadv", [True, False])
def test_reads_that_give_less_than_was_asked_for_give_the_same_batch(
    arrays: Callable[[str, str], Path], format_name: str, monkeypatch: pytest.MonkeyPatch, most: int, has_preadv: bool
) -> None:
    """The end of what was read may lie in the header, between header and elements, or in these."""
    data = open_dataset(arrays(format_name, "of f4"), output="numpy")
    wanted = together([data[i] for i in range(3)])
    monkeypatch.setattr(files, "_HAS_PREAD", has_preadv)
    real = os.preadv

    def few(descriptor: int, parts: list[memoryview], *where: int) -> int:
        left, kept = most, []
        for part in parts:
            kept.append(part[:left])
            left -= len(kept[-1])
        return real(descriptor, kept, *where)

    few_at_a_time(most)(monkeypatch)
    monkeypatch.setattr(os, "preadv", few)
    # Memory that malloc gives out again may hold what an earlier test read there.
    monkeypatch.setattr(buffers, "_allocate", lambda size: np.full(size, 0xAA, np.uint8))
    assert same(data[[0, 1, 2]], wanted)


# ------------------------------------------------------------------------------------------------------------------ pictures


def encoded(picture: Image.Image, kind: str) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind)
    return buffer.getvalue()


def turned(picture: Image.Image, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return jpeg(picture, exif=exif)


DEEP = (np.arange(48 * 64).reshape(48, 64) * 20).astype(np.uint16)
PICTURES: dict[str | bytes, bytes] = {
    "a/0.jpg": jpeg(seed=0),
    "a/1.png": png(seed=1),
    "a/2.png": png(photo(seed=2).convert("L")),
    "a/3.jpg": jpeg(photo(seed=3).convert("L")),
    "a/4.png": png(photo(seed=4).quantize(16)),
    "b/5.jpg": turned(photo(64, 48, seed=5), 6),
    "b/6.jpg": jpeg(photo(seed=6).convert("CMYK")),
    "b/7.png": encoded(Image.fromarray(DEEP), "PNG"),
    "b/8.webp": encoded(photo(seed=8), "WEBP"),
    "b/9.jpg": jpeg(photo(640, 480, seed=9)),
}
SAME_SIZE = [0, 1, 2, 3, 4, 6, 7, 8]  # and all RGB where mode is


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("pictures")
    source = write_tree(root / "in", PICTURES)
    return {name: pack_here(source, name).output for name in formats.names()}


@pytest.mark.parametrize("output, shape", [("torch", (8, 3, 48, 64)), ("numpy", (8, 48, 64, 3))])
def test_a_batch_of_pictures_is_the_stack_of_its_samples(
    pictures: dict[str, Path], format_name: str, output: str, shape: tuple[int, ...]
) -> None:
    data = open_dataset(pictures[format_name], output=output)
    batch, targets = data[SAME_SIZE]
    assert tuple(batch.shape) == shape
    assert np.asarray(batch).dtype == np.uint8
    assert same(batch, together([data[i][0] for i in SAME_SIZE]))
    assert same(targets, (torch.tensor if output == "torch" else np.array)([data[i][1] for i in SAME_SIZE]))


@pytest.mark.parametrize("orient", [False, True])
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_pictures_of_all_sizes_are_a_batch_where_a_size_is_given(
    pictures: dict[str, Path], format_name: str, output: str, mode: str, orient: bool
) -> None:
    data = open_dataset(pictures[format_name], output=output, mode=mode, orient=orient, size=(30, 20))
    channels = {"RGB": 3, "L": 1, "RGBA": 4}[mode]
    batch, targets = data[range(len(data))]
    ends = (30, 20) if mode == "L" else (30, 20, channels)
    assert tuple(batch.shape) == ((10, channels, 30, 20) if output == "torch" else (10, *ends))
    assert same(batch, together([data[i][0] for i in range(10)]))
    assert targets.tolist() == [0] * 5 + [1] * 5
    assert np.asarray(batch).flags.c_contiguous


def test_pictures_that_differ_in_size_or_depth_are_named(pictures: dict[str, Path], format_name: str) -> None:
    data = open_dataset(pictures[format_name], output="torch")
    with pytest.raises(
        MixedBatchError, match=r"'a/0\.jpg' is uint8 \(3, 48, 64\).*'b/9\.jpg' is uint8 \(3, 480, 640\)"
    ) as caught:
        data[[0, 9]]
    assert "size=(height, width)" in str(caught.value)
    native = open_dataset(pictures[format_name], output="numpy", mode=None)
    with pytest.raises(MixedBatchError, match=r"'a/1\.png' is uint8 \(48, 64, 3\).*'a/2\.png' is uint8 \(48, 64\)"):
        native[[1, 2]]
    with pytest.raises(MixedBatchError, match=r"'a/2\.png' is uint8 .*'b/7\.png' is uint16"):
        native[[2, 7]]
    assert native[[7, 7]][0].dtype == np.uint16


@pytest.mark.parametrize("output", ["pil", "bytes"])
def test_pil_images_and_files_come_as_a_list_with_their_targets(
    pictures: dict[str, Path], format_name: str, output: str
) -> None:
    data = open_dataset(pictures[format_name], output=output)
    batch, targets = data[[9, 0]]
    assert type(batch) is list
    assert all(same(one, data[i][0]) for one, i in zip(batch, [9, 0], strict=True))
    assert same(targets, torch.tensor([1, 0]))


def test_pictures_among_arrays_are_a_batch_where_they_are_alike(tmp_path: Path, format_name: str) -> None:
    pixels = np.asarray(photo(8, 6))
    tree = write_tree(tmp_path / "in", {"0.npy": npy(pixels), "1.png": png(photo(8, 6, seed=1))})
    data = open_dataset(pack_here(tree, format_name).output, output="numpy")
    assert same(data[[1, 0]], np.stack([data[1], pixels]))
    as_pil = open_dataset(data._store.path)
    assert [type(one).__name__ for one in as_pil[[0, 1]]] == ["Tensor", "Image"]


# ------------------------------------------------------------------------------------------------------- how it is asked for


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Six arrays, each with its number in it, in two classes."""
    root = tmp_path_factory.mktemp("labelled")
    source = write_tree(root / "in", {f"{'xy'[i // 3]}/{i}.npy": npy(np.full((2, 2), i)) for i in range(6)})
    return {name: pack_here(source, name).output for name in formats.names()}


@pytest.mark.parametrize(
    "indices",
    [
        [5, 0, 2],
        [-1, -6, 2],
        [5, np.int16(0), torch.tensor(2)],
        np.array([5, 0, 2]),
        np.array([-1, 0, 2], np.int8),
        np.array([5, 0, 2], np.uint64),
        np.array([5, 1, 0, 1, 2])[::2],
        torch.tensor([5, 0, 2]),
        torch.tensor([5, -6, -4], dtype=torch.int16),
    ],
    ids=str,
)
def test_samples_can_be_asked_for_in_many_ways(labelled: dict[str, Path], format_name: str, indices: Any) -> None:
    for output in ("torch", "numpy", "bytes"):
        data = open_dataset(labelled[format_name], output=output)
        batch, targets = data[indices]
        assert targets.tolist() == [1, 0, 0]
        assert all(same(one, data[i][0]) for one, i in zip(batch, [5, 0, 2], strict=True))
        assert [target for _, target in data.__getitems__(indices)] == [1, 0, 0]
        data.ask_ahead(indices)


def test_a_range_is_a_batch(labelled: dict[str, Path], format_name: str) -> None:
    data = open_dataset(labelled[format_name], output="numpy")
    assert data[range(4, 0, -2)][0][:, 0, 0].tolist() == [4, 2]


@pytest.mark.parametrize("output", ["torch", "numpy", "pil", "bytes"])
def test_targets_are_whole_numbers_of_64_bits(labelled: dict[str, Path], format_name: str, output: str) -> None:
    targets = open_dataset(labelled[format_name], output=output)[[0, 3]][1]
    assert same(targets, np.array([0, 1]) if output == "numpy" else torch.tensor([0, 1]))


@pytest.mark.parametrize(
    "indices, error, said",
    [
        ([], IndexError, "no samples"),
        (range(0), IndexError, "no samples"),
        (np.array([], np.int64), IndexError, "no samples"),
        ([0, 6], IndexError, "sample 6 of 6"),
        ([-7], IndexError, "sample -7 of 6"),
        (np.array([2**63], np.uint64), IndexError, "of 6"),
        (np.ones(6, bool), TypeError, "mask"),
        (torch.ones(6, dtype=torch.bool), TypeError, "mask"),
        ([True] * 6, TypeError, "mask"),
        (np.array([[0, 1]]), TypeError, "a batch by a list of numbers, not by ndarray"),
        (torch.tensor([[0, 1]]), TypeError, "a batch by a list of numbers, not by Tensor"),
        ([[0, 1]], TypeError, "not by list"),
        (np.array([0.0]), TypeError, "not by float"),
        (["0"], TypeError, "not by str"),
        ((0, 1), TypeError, "not by tuple"),
        (slice(0, 2), TypeError, "not by slice"),
        (None, TypeError, "not by NoneType"),
    ],
    ids=repr,
)
def test_what_names_no_samples_is_refused(labelled: dict[str, Path], indices: Any, error: type[Exception], said: str) -> None:
    data = open_dataset(labelled["lmdb"], output="numpy")
    with pytest.raises(error, match=said):
        data[indices]


def test_a_number_of_no_axes_is_one_sample(labelled: dict[str, Path]) -> None:
    data = open_dataset(labelled["lmdb"], output="numpy")
    for index in (np.int64(4), np.array(4), torch.tensor(4), -2, True + 3):
        assert data[index][0].tolist() == [[4, 4], [4, 4]]


# ---------------------------------------------------------------------------------------------------------------- transforms


@pytest.mark.parametrize(
    "transform, wanted",
    [
        (lambda array: torch.from_numpy(array) * 2, torch.tensor([[[10, 10], [10, 10]], [[0, 0], [0, 0]]])),
        (lambda array: array.sum(0), np.array([[10, 10], [0, 0]])),
        (lambda array: int(array[0, 0]), np.array([5, 0])),
        (lambda array: {"sum": int(array.sum())}, [{"sum": 20}, {"sum": 0}]),
        (lambda array: (int(array[0, 0]), "x"), [(5, "x"), (0, "x")]),
        (lambda array: "x", ["x", "x"]),
        (lambda array: None, [None, None]),
        (lambda array: array[: int(array[0, 0]), 0], None),
        (lambda array: array.astype("f4" if array[0, 0] else "f8"), None),
    ],
)
def test_what_a_transform_gives_is_put_together_where_it_is_alike(
    labelled: dict[str, Path], format_name: str, transform: Callable[[Any], Any], wanted: Any
) -> None:
    data = open_dataset(labelled[format_name], output="numpy", transform=transform)
    batch, targets = data[[5, 0]]
    assert targets.tolist() == [1, 0]
    if wanted is None:
        assert type(batch) is list
        assert all(same(one, data[i][0]) for one, i in zip(batch, [5, 0], strict=True))
    else:
        assert same(batch, wanted)


def test_a_target_transform_is_called_for_each_sample(labelled: dict[str, Path], format_name: str) -> None:
    data = open_dataset(labelled[format_name], output="torch", target_transform=lambda target: target * 10)
    assert same(data[[0, 5]][1], torch.tensor([0, 10]))
    data.target_transform = lambda target: torch.eye(2)[target]
    assert same(data[[0, 5]][1], torch.eye(2))
    data.target_transform = str
    assert data[[0, 5]][1] == ["0", "1"]


def test_an_error_of_a_transform_names_its_sample(labelled: dict[str, Path], format_name: str) -> None:
    data = open_dataset(labelled[format_name], output="numpy", transform=lambda array: 1 // int(array[0, 0]))
    with pytest.raises(ZeroDivisionError) as caught:
        data[[3, 0]]
    assert "sample 0 ('x/0.npy')" in caught.value.__notes__[0]


# -------------------------------------------------------------------------------------------------------------------- damage


def damaged(path: Path, root: Path, number: int, place: int = -1) -> Path:
    """A copy of a dataset in which one byte of one sample is another."""
    copy = root / path.name
    shutil.copytree(path, copy)
    record = open_dataset(copy)._store.index[number]
    shard = copy / load_manifest(copy).shards[record.shard].file
    with shard.open("r+b") as file:
        file.seek(record.offset + place % record.size)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0xFF]))
    return copy


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("place", [0, 30, -1])
def test_a_damaged_array_in_a_batch_is_named(
    labelled: dict[str, Path], tmp_path: Path, format_name: str, mmap: bool, place: int
) -> None:
    path = damaged(labelled[format_name], tmp_path, 4, place)
    for output in ("torch", "numpy", "bytes"):
        data = open_dataset(path, output=output, mmap=mmap)
        for order in ([0, 4, 1], [4], [4, 0]):
            with pytest.raises(CorruptSampleError, match=r"sample 4 \('y/4\.npy'\)") as caught:
                data[order]
            assert (caught.value.index, caught.value.name) == (4, "y/4.npy")
        assert len(data[[0, 1, 2, 3, 5]][0]) == 5


@pytest.mark.parametrize("size", [None, (10, 10)])
def test_a_damaged_picture_in_a_batch_is_named(
    pictures: dict[str, Path], tmp_path: Path, format_name: str, size: tuple[int, int] | None
) -> None:
    data = open_dataset(damaged(pictures[format_name], tmp_path, 1, 200), output="torch", size=size)
    with pytest.raises(CorruptSampleError, match=r"sample 1 \('a/1\.png'\)"):
        data[[0, 1, 2]]


def test_after_a_damaged_batch_the_next_one_is_right(labelled: dict[str, Path], tmp_path: Path, format_name: str) -> None:
    data = open_dataset(damaged(labelled[format_name], tmp_path, 4), output="numpy")
    before = data[[0, 1, 2]][0][1:]
    for _ in range(3):
        with pytest.raises(CorruptSampleError):
            data[[3, 3, 4]]
        assert data[[5, 5, 5]][0].tolist() == np.full((3, 2, 2), 5).tolist()
    assert before[:, 0, 0].tolist() == [1, 2]


def test_a_label_of_no_class_in_a_batch_is_named(labelled: dict[str, Path], format_name: str) -> None:
    for output in ("numpy", "bytes"):
        data = open_dataset(labelled[format_name], output=output)
        data._store._valid_labels = range(1)
        with pytest.raises(CorruptSampleError, match=r"sample 3 \('y/3\.npy'\).*label 1 is that of no class"):
            data[[0, 3]]


@pytest.mark.skipif(not hasattr(os, "truncate"), reason="no truncate here")
def test_a_shard_that_becomes_shorter_under_a_batch_names_the_sample(
    labelled: dict[str, Path], tmp_path: Path, format_name: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(labelled[format_name], copy)
    data = open_dataset(copy, output="numpy")
    data[[0, 1, 2, 3, 4, 5]]
    last = max(range(6), key=lambda i: data._store.index[i].offset)
    record = data._store.index[last]
    os.truncate(copy / load_manifest(copy).shards[record.shard].file, record.offset + record.size // 2)
    with pytest.raises(CorruptSampleError, match=f"sample {last} .*bytes"):
        data[[last - 1, last]]


def test_too_little_memory_for_a_batch_is_said_as_that(
    labelled: dict[str, Path], format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(size: int) -> np.ndarray:
        raise MemoryError(f"{size:,} bytes")

    data = open_dataset(labelled[format_name], output="numpy")
    monkeypatch.setattr("packer.buffers._allocate", fail)
    with pytest.raises(DatasetError, match="not enough memory for a batch of 2 samples, 64 bytes"):
        data[[0, 1]]


def test_a_header_that_promises_more_than_the_file_has_is_no_reason_to_allocate_it(
    labelled: dict[str, Path], format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No such file is packed; one that came from a stranger is left to the decoder, which says what is wrong with it."""
    liar = Header(np.dtype("f4"), (2**50,), fortran_order=False, size_bytes=128)
    monkeypatch.setattr("packer.batches.parse_header", lambda head: liar)
    data = open_dataset(labelled[format_name], output="numpy")
    assert data[[5, 1]][0][:, 0, 0].tolist() == [5, 1]


def test_a_mode_that_pillow_cannot_make_is_no_damage_in_a_batch_either(pictures: dict[str, Path], format_name: str) -> None:
    data = open_dataset(pictures[format_name], output="numpy", mode="RGBa")
    with pytest.raises(OptionError, match="RGBa"):
        data[[2, 3]]


# ------------------------------------------------------------------------------------------------------------ torch, and none


def in_batches(data: Any, **options: Any) -> DataLoader[Any]:
    """The way that the README shows."""
    sampler = BatchSampler(RandomSampler(data), 4, False)
    return DataLoader(data, sampler=sampler, batch_size=None, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("output", ["torch", "numpy", "pil"])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_torchs_loader_takes_whole_batches(labelled: dict[str, Path], format_name: str, output: str, workers: int) -> None:
    data = open_dataset(labelled[format_name], output=output)
    options: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    sources = [(data, range(6)), (Subset(data, [5, 1, 3]), [5, 1, 3]), (data.subset(indices=[2, 0]), [2, 0])]
    halves = random_split(data, [4, 2])
    sources += [(half, half.indices) for half in halves]
    for source, numbers in sources:
        found = []
        for batch, targets in in_batches(source, **options):
            assert isinstance(batch, torch.Tensor)
            assert batch.shape[1:] == (2, 2)
            assert targets.tolist() == [int(number) // 3 for number in batch[:, 0, 0]]
            found += batch[:, 1, 1].tolist()
        assert sorted(found) == sorted(numbers)


def test_torchs_loader_asks_for_the_samples_of_a_batch_at_once(
    labelled: dict[str, Path], format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[int]] = []
    real = PackedDataset.__getitems__

    def count(self: PackedDataset, indices: Any) -> list[Any]:
        asked.append(list(indices))
        return real(self, indices)

    monkeypatch.setattr(PackedDataset, "__getitems__", count)
    data = open_dataset(labelled[format_name], output="torch")
    for source in (data, Subset(data, [0, 2, 4, 5])):
        for batch, targets in DataLoader(source, batch_size=2, sampler=SequentialSampler(source)):
            assert targets.tolist() == [int(number) // 3 for number in batch[:, 0, 0]]
    assert asked == [[0, 1], [2, 3], [4, 5], [0, 2], [4, 5]]


@pytest.mark.parametrize("ask", ["batch", "samples", "ahead"])
def test_the_samples_of_a_batch_are_asked_for_before_the_first_is_read(
    labelled: dict[str, Path], format_name: str, ask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = open_dataset(labelled[format_name], output="numpy")
    data[0]
    done: list[str] = []
    reader = type(data._store.extents)

    def noted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def note(*arguments: Any) -> Any:
            done.append(name)
            return real(*arguments)

        return note

    for name in ("ask_ahead", "read", "read_into"):
        monkeypatch.setattr(reader, name, noted(name, getattr(reader, name)))
    {"batch": data.__getitem__, "samples": data.__getitems__, "ahead": data.ask_ahead}[ask]([0, 5])
    assert done[0] == "ask_ahead"
    assert done.count("ask_ahead") == 1
    assert (len(done) > 1) is (ask != "ahead")


def test_without_torch_batches_are_arrays(
    labelled: dict[str, Path], pictures: dict[str, Path], arrays: Callable[[str, str], Path], format_name: str
) -> None:
    script = """
        import numpy as np
        from packer import open_dataset

        labelled, pictures, columns = sys.argv[1:]
        for output in ("numpy", "pil"):
            batch, targets = open_dataset(labelled, output=output)[[5, 0]]
            assert type(batch) is type(targets) is np.ndarray
            assert batch[:, 0, 0].tolist() == [5, 0]
            assert (targets.tolist(), targets.dtype) == ([1, 0], np.int64)
            assert open_dataset(columns, output=output)[[0, 1]].shape == (2, 2, 3, 4)
        data = open_dataset(pictures, output="numpy", size=(20, 30))
        batch, targets = data[range(10)]
        assert batch.shape == (10, 20, 30, 3)
        assert all((batch[i] == data[i][0]).all() for i in range(10))
        assert [picture.size for picture in open_dataset(pictures, size=(20, 30))[[0, 9]][0]] == [(30, 20)] * 2
        data = open_dataset(labelled, output="bytes", transform=len)
        assert type(data[[0, 1]][0]) is np.ndarray
        print("done")
    """
    result = run_without_torch(script, labelled[format_name], pictures[format_name], arrays(format_name, "by columns"))
    assert (result.stdout, result.stderr, result.returncode) == ("done\n", "", 0)


def test_a_batch_is_the_same_in_every_format(labelled: dict[str, Path], pictures: dict[str, Path]) -> None:
    for paths, options in ((labelled, {}), (pictures, {"size": (20, 20)})):
        found = [open_dataset(path, output="numpy", **options)[[1, 0, 5]] for path in paths.values()]
        assert all(same(found[0], other) for other in found[1:])


@pytest.mark.parametrize(
    "function, dtype", [(float, torch.float64), (bool, torch.bool), (np.float32, torch.float32), (int, torch.int64)], ids=str
)
def test_numbers_that_a_transform_gives_are_one_tensor(
    labelled: dict[str, Path], format_name: str, function: Any, dtype: torch.dtype
) -> None:
    data = open_dataset(labelled[format_name], output="torch", target_transform=function)
    _, targets = data[[0, 1, -1]]
    assert targets.dtype == dtype
    assert targets.tolist() == [data[i][1] for i in (0, 1, -1)]
