"""What a packed dataset promises to whoever reads it, in every format, with torch and without."""

from __future__ import annotations

import base64
import collections.abc
import copy
import gc
import json
import os
import pickle
import subprocess
import sys
import tempfile
import textwrap
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import packer
from packer import formats, open_dataset
from packer.datasets import HDF5Dataset, LMDBDataset, PackedDataset, WebDatasetDataset
from packer.errors import CorruptDatasetError, DatasetChangedError, DatasetError, OptionError
from packer.index import Index
from packer.manifest import load_manifest
from tests.cases.loaders import make_synthetic
from tests.inputs import jpeg, npy, pack_here, photo, png, write_tree

NAMED = (HDF5Dataset, LMDBDataset, WebDatasetDataset)
RAMP = np.arange(24, dtype=np.float32).reshape(2, 3, 4)

LABELLED: dict[str | bytes, bytes] = {
    "cat/0.jpg": jpeg(seed=0),
    "cat/1.png": png(seed=1),
    b"cat/h\xe9.jpg": jpeg(seed=2),
    "cat/\u00e4 b.jpg": jpeg(seed=3),
    "dog (copy)/grey.png": png(photo(seed=4).convert("L")),
    "dog/ramp.npy": npy(RAMP),
    "dog/a.1.jpg": jpeg(seed=5),
    "\u00c4/x.npy": npy(np.arange(6, dtype=">f8")),
}
FLAT: dict[str | bytes, bytes] = {"b.jpg": jpeg(seed=6), "a.png": png(seed=7), "c.npy": npy(RAMP)}


def in_order(files: dict[str | bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """Names and contents in the order of ImageFolder: by path components, compared as bytes."""
    pairs = [(os.fsencode(name), data) for name, data in files.items()]
    return sorted(pairs, key=lambda pair: pair[0].split(b"/"))


@dataclass(frozen=True)
class Packed:
    """One packed dataset and what must come out of it."""

    format: str
    labelled: Path
    flat: Path

    @property
    def names(self) -> list[bytes]:
        return [name for name, _ in in_order(LABELLED)]

    @property
    def payloads(self) -> list[bytes]:
        return [data for _, data in in_order(LABELLED)]

    @property
    def targets(self) -> list[int]:
        classes = sorted({name.split(b"/")[0] for name in self.names})
        return [classes.index(name.split(b"/")[0]) for name in self.names]

    def index_of(self, name: str) -> int:
        return self.names.index(os.fsencode(name))


@pytest.fixture(scope="module", params=formats.names())
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """A folder with classes and a flat one, packed into each format."""
    root = tmp_path_factory.mktemp(request.param)
    write_tree(root / "labelled", LABELLED)
    write_tree(root / "flat", FLAT)
    return Packed(
        request.param,
        pack_here(root / "labelled", request.param).output,
        pack_here(root / "flat", request.param).output,
    )


def same(one: Any, other: Any) -> bool:
    """Whether two samples are equal, whatever kind they are of."""
    if isinstance(one, tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Image.Image):
        return isinstance(other, Image.Image) and one.mode == other.mode and one.tobytes() == other.tobytes()
    if isinstance(one, (np.ndarray, torch.Tensor)):
        return type(one) is type(other) and one.dtype == other.dtype and np.array_equal(np.asarray(one), np.asarray(other))
    return type(one) is type(other) and bool(one == other)


NO_TORCH = """
    import sys

    class NoTorch:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in ("torch", "torchvision"):
                raise MISSING

    sys.meta_path.insert(0, NoTorch())
"""


def run_without_torch(
    script: str, *arguments: object, missing: str = "ImportError(f'{name} is not installed')"
) -> subprocess.CompletedProcess[str]:
    """Run a script in an interpreter of its own that finds no torch, with every warning an error."""
    code = textwrap.dedent(NO_TORCH.replace("MISSING", missing)) + textwrap.dedent(script)
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


# ---------------------------------------------------------------------------------------------------- samples and labels


def test_a_sample_is_the_data_and_its_target(packed: Packed) -> None:
    data = open_dataset(packed.labelled, output="bytes")
    assert [data[i] for i in range(len(data))] == list(zip(packed.payloads, packed.targets, strict=True))
    assert all(type(data[i][1]) is int for i in range(len(data)))


def test_without_labels_a_sample_is_the_data_alone(packed: Packed) -> None:
    data = open_dataset(packed.flat, output="bytes")
    assert [data[i] for i in range(len(data))] == [content for _, content in in_order(FLAT)]
    assert data.classes == []
    assert data.class_to_idx == {}
    assert data.targets.tolist() == [-1, -1, -1]


def test_iterating_gives_every_sample_once_and_in_order(packed: Packed) -> None:
    data = open_dataset(packed.labelled, output="bytes")
    assert list(data) == list(zip(packed.payloads, packed.targets, strict=True))
    assert list(reversed(data)) == list(zip(packed.payloads, packed.targets, strict=True))[::-1]


def test_classes_are_those_of_image_folder(packed: Packed) -> None:
    data = open_dataset(packed.labelled)
    assert data.classes == ["cat", "dog", "dog (copy)", "\u00c4"]
    assert data.class_to_idx == {"cat": 0, "dog": 1, "dog (copy)": 2, "\u00c4": 3}


def test_changing_the_lists_that_were_given_out_changes_nothing(packed: Packed) -> None:
    data = open_dataset(packed.labelled)
    data.classes.clear()
    data.class_to_idx.clear()
    assert len(data.classes) == len(data.class_to_idx) == 4


def test_targets_are_int64_read_only_and_no_copy(packed: Packed) -> None:
    data = open_dataset(packed.labelled)
    targets = data.targets
    assert targets.dtype == np.int64
    assert targets.dtype.isnative
    assert targets.shape == (len(data),)
    assert targets.tolist() == packed.targets
    assert np.shares_memory(targets, data.targets)
    with pytest.raises(ValueError, match="read-only"):
        targets[0] = 7
    with pytest.raises(ValueError, match="WRITEABLE"):
        targets.flags.writeable = True


def test_targets_outlive_their_dataset(packed: Packed) -> None:
    targets = open_dataset(packed.labelled).targets
    gc.collect()
    assert targets.tolist() == packed.targets


def test_names_give_back_the_original_bytes(packed: Packed) -> None:
    names = open_dataset(packed.labelled).names
    assert [os.fsencode(names[i]) for i in range(len(names))] == packed.names
    assert [os.fsencode(name) for name in names] == packed.names
    assert names[packed.index_of("cat/\u00e4 b.jpg")] == "cat/\u00e4 b.jpg"


def test_names_are_a_sequence(packed: Packed) -> None:
    names = open_dataset(packed.labelled).names
    assert isinstance(names, collections.abc.Sequence)
    assert len(names) == len(LABELLED)
    assert names[-1] == names[len(names) - 1]
    assert names[1:3] == [names[1], names[2]]
    assert names[::-2] == list(names)[::-2]
    assert "dog/ramp.npy" in names
    assert names.index("dog/ramp.npy") == packed.index_of("dog/ramp.npy")
    for index in (len(names), -len(names) - 1):
        with pytest.raises(IndexError, match=f"{index} of {len(names)}"):
            names[index]


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.int16, np.int32, np.int64, torch.tensor])
def test_names_are_asked_for_by_any_integer(packed: Packed, kind: Any) -> None:
    """A product in the index's own type overflowed: with int32 from sample 33,554,432 on, with uint8 from sample 4 on."""
    names = open_dataset(packed.labelled).names
    assert [os.fsencode(names[kind(i)]) for i in range(len(names))] == packed.names


# ---------------------------------------------------------------------------------------------------------------- indices


def test_negative_indices_count_from_the_end(packed: Packed) -> None:
    data = open_dataset(packed.labelled, output="bytes")
    assert [data[-i] for i in range(1, len(data) + 1)] == [data[i] for i in reversed(range(len(data)))]


@pytest.mark.parametrize("beyond", [0, 1, 2**31, 2**63, 2**70])
def test_an_index_outside_is_an_index_error(packed: Packed, beyond: int) -> None:
    data = open_dataset(packed.labelled)
    for index in (len(data) + beyond, -len(data) - 1 - beyond):
        with pytest.raises(IndexError, match=f"sample {index} of {len(data)}"):
            data[index]


@pytest.mark.parametrize(
    "convert",
    [np.int64, np.int32, np.uint8, np.int8, np.array, torch.tensor, lambda i: torch.tensor(i, dtype=torch.int32)],
    ids=["int64", "int32", "uint8", "int8", "array", "tensor", "tensor of int32"],
)
def test_integers_of_numpy_and_torch_are_indices(packed: Packed, convert: Any) -> None:
    data = open_dataset(packed.labelled, output="bytes")
    for i in range(len(data)):
        assert data[convert(i)] == data[i]


@pytest.mark.parametrize(
    "index",
    [1.0, "1", None, slice(0, 2), b"1", np.float64(1), np.array(1.0), np.array([[0, 1]]), torch.tensor(1.0), (0,), {}],
    ids=repr,
)
def test_what_is_no_integer_is_a_type_error_that_names_its_type(packed: Packed, index: Any) -> None:
    data = open_dataset(packed.labelled)
    with pytest.raises(TypeError, match=type(index).__name__):
        data[index]


# ------------------------------------------------------------------------------------------------------------ output kinds


def test_pictures_come_as_pil_images_by_default(packed: Packed) -> None:
    picture, _ = open_dataset(packed.labelled)[packed.index_of("cat/1.png")]
    assert isinstance(picture, Image.Image)
    assert (picture.mode, picture.size) == ("RGB", (64, 48))
    assert picture.tobytes() == photo(seed=1).tobytes()


def test_pictures_come_as_numpy_arrays_of_rows_columns_channels(packed: Packed) -> None:
    picture, _ = open_dataset(packed.labelled, output="numpy")[packed.index_of("cat/1.png")]
    assert isinstance(picture, np.ndarray)
    assert (picture.dtype, picture.shape) == (np.uint8, (48, 64, 3))
    assert np.array_equal(picture, np.asarray(photo(seed=1)))


def test_pictures_come_as_tensors_of_channels_rows_columns(packed: Packed) -> None:
    picture, _ = open_dataset(packed.labelled, output="torch")[packed.index_of("cat/1.png")]
    assert isinstance(picture, torch.Tensor)
    assert (picture.dtype, tuple(picture.shape)) == (torch.uint8, (3, 48, 64))
    assert picture.is_contiguous()
    assert np.array_equal(picture.permute(1, 2, 0).numpy(), np.asarray(photo(seed=1)))


@pytest.mark.parametrize("name", ["cat/0.jpg", "dog (copy)/grey.png"])
def test_one_channel_has_no_axis_in_numpy_and_one_in_torch(packed: Packed, name: str) -> None:
    index = packed.index_of(name)
    array, _ = open_dataset(packed.labelled, output="numpy", mode="L")[index]
    tensor, _ = open_dataset(packed.labelled, output="torch", mode="L")[index]
    assert array.shape == (48, 64)
    assert tuple(tensor.shape) == (1, 48, 64)
    assert np.array_equal(tensor[0].numpy(), array)


@pytest.mark.parametrize("output, kind", [("pil", torch.Tensor), ("numpy", np.ndarray), ("torch", torch.Tensor)])
def test_arrays_keep_their_shape_and_values_in_each_output(packed: Packed, output: str, kind: type) -> None:
    data = open_dataset(packed.labelled, output=output)
    ramp, target = data[packed.index_of("dog/ramp.npy")]
    assert isinstance(ramp, kind)
    assert tuple(ramp.shape) == (2, 3, 4)
    assert np.array_equal(np.asarray(ramp), RAMP)
    assert np.asarray(ramp).dtype == np.float32
    assert target == 1


def test_bytes_are_those_of_the_files(packed: Packed) -> None:
    data = open_dataset(packed.labelled, output="bytes")
    assert [data[i][0] for i in range(len(data))] == packed.payloads


def test_reading_mapped_and_unverified_gives_the_same(packed: Packed) -> None:
    usual = open_dataset(packed.labelled, output="numpy")
    for options in ({"mmap": True}, {"verify": False}, {"mmap": True, "verify": False}):
        other = open_dataset(packed.labelled, output="numpy", **options)
        assert all(same(other[i], usual[i]) for i in range(len(usual)))


@pytest.mark.parametrize("options", [{"output": "jpeg"}, {"output": None}, {"mode": "rgb"}, {"mode": ""}])
def test_an_option_that_does_not_exist_is_refused(packed: Packed, options: dict[str, Any]) -> None:
    (value,) = options.values()
    with pytest.raises(OptionError, match=repr(value)):
        open_dataset(packed.labelled, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"min_size": 224}, {"min_size": (0, 5)}, {"min_size": (5,)}, {"min_size": (-1, 5)}, {"min_size": (1.5, 2)},
        {"background": "white"}, {"background": 255}, {"background": (1, 2)}, {"background": (256, 0, 0)},
        {"max_pixels": 0}, {"max_pixels": None}, {"size": (100_000, 100_000)},
    ],
    ids=repr,
)  # fmt: skip
def test_an_option_without_sense_is_refused_at_once_and_not_called_damage(packed: Packed, options: dict[str, Any]) -> None:
    """`min_size=224`, or a size beyond all memory, reached the decoder: every sample was "corrupt: copy the dataset again"."""
    (name,) = options
    with pytest.raises(OptionError, match=f"{name}="):
        open_dataset(packed.labelled, **options)


def test_a_mistyped_option_is_refused(packed: Packed) -> None:
    with pytest.raises(TypeError, match="ouput"):
        open_dataset(packed.labelled, ouput="numpy")


def halved_and_turned(picture: Image.Image) -> Image.Image:
    """What many a transform does; Pillow hands the Exif block on from picture to picture."""
    return ImageOps.exif_transpose(picture.resize((picture.width // 2, picture.height // 2)))


def test_a_transform_can_turn_a_picture_by_its_exif_as_with_image_folder(tmp_path: Path, format_name: str) -> None:
    """The same training script must not see other pictures because the reader dropped the orientation."""
    files: dict[str | bytes, bytes] = {}
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        files |= {f"{orientation}.jpg": jpeg(photo(96, 64), exif=exif), f"{orientation}.png": png(photo(96, 64), exif=exif)}
    source = write_tree(tmp_path / "in", files)
    output = pack_here(source, format_name).output
    plain, turned = open_dataset(output), open_dataset(output, transform=halved_and_turned)
    for i, name in enumerate(plain.names):
        with Image.open(source / name) as original:
            wanted = halved_and_turned(original.convert("RGB"))
        assert same(turned[i], wanted), name
        assert same(halved_and_turned(pickle.loads(pickle.dumps(plain[i]))), wanted), name


# -------------------------------------------------------------------------------------------------------------- transforms


def double(value: int) -> int:
    return value * 2


def test_transforms_are_applied_to_the_data_and_to_the_target(packed: Packed) -> None:
    data = open_dataset(packed.labelled, output="bytes", transform=len, target_transform=double)
    assert [data[i] for i in range(len(data))] == [
        (len(payload), 2 * target) for payload, target in zip(packed.payloads, packed.targets, strict=True)
    ]


def test_without_labels_only_the_data_is_transformed(packed: Packed) -> None:
    data = open_dataset(packed.flat, output="bytes", transform=len, target_transform=double)
    assert [data[i] for i in range(len(data))] == [len(content) for _, content in in_order(FLAT)]


def test_a_transform_can_be_set_later(packed: Packed) -> None:
    data = open_dataset(packed.labelled, output="bytes")
    data.transform = len
    assert data[0] == (len(packed.payloads[0]), 0)
    data.transform = None
    assert data[0] == (packed.payloads[0], 0)


def test_an_error_in_a_transform_keeps_its_class_and_names_the_sample(packed: Packed) -> None:
    def fail(value: object) -> object:
        raise ZeroDivisionError("of the user")

    index = packed.index_of("dog/ramp.npy")
    for options in ({"transform": fail}, {"target_transform": fail}):
        data = open_dataset(packed.labelled, **options)
        with pytest.raises(ZeroDivisionError, match="of the user") as caught:
            data[index]
        (note,) = caught.value.__notes__
        assert f"sample {index}" in note
        assert "dog/ramp.npy" in note
        assert str(packed.labelled) in note


def test_an_index_error_in_a_transform_does_not_end_the_iteration(packed: Packed) -> None:
    """Python takes it for the end of a sequence that has no `__iter__`: the other samples went missing in silence."""

    def fail_on_arrays(value: object) -> object:
        if isinstance(value, np.ndarray) and value.dtype == np.float32:
            raise IndexError("a mistake in the transform")
        return value

    data = open_dataset(packed.labelled, output="numpy", transform=fail_on_arrays)
    with pytest.raises(IndexError, match="a mistake in the transform"):
        list(data)


# ------------------------------------------------------------------------------------------------------------ named classes


def test_open_dataset_gives_the_class_named_for_the_format(packed: Packed) -> None:
    expected = next((kind for kind in NAMED if kind.format == packed.format), PackedDataset)
    assert type(open_dataset(packed.labelled)) is expected


def test_a_named_class_opens_its_format_and_refuses_another(packed: Packed) -> None:
    for kind in NAMED:
        if kind.format == packed.format:
            assert kind(packed.labelled, output="bytes")[0] == (packed.payloads[0], 0)
        else:
            with pytest.raises(DatasetError, match=f"format {packed.format}, not {kind.format}") as caught:
                kind(packed.labelled)
            assert str(packed.labelled) in str(caught.value)


def test_every_format_that_ships_can_be_opened_by_the_base_class(packed: Packed) -> None:
    assert PackedDataset(packed.labelled, output="bytes")[0] == (packed.payloads[0], 0)


def test_open_dataset_never_gives_a_class_of_the_users(packed: Packed) -> None:
    """It was given, and without its `__init__`, since it derives from the same base and names the same format."""
    script = """
        from packer.datasets import PackedDataset, open_dataset
        class Mine(PackedDataset):
            format = sys.argv[2]
        print(type(open_dataset(sys.argv[1])).__name__)
    """
    result = run_without_torch(script, packed.labelled, packed.format)
    assert result.stderr == ""
    assert result.stdout.strip() == type(open_dataset(packed.labelled)).__name__


def test_repr_says_path_format_samples_and_classes(packed: Packed) -> None:
    data = open_dataset(packed.labelled)
    assert repr(data).startswith(type(data).__name__)
    for part in (str(packed.labelled), packed.format, "8 samples", "4 classes"):
        assert part in repr(data)
    assert "no labels" in repr(open_dataset(packed.flat))


@pytest.mark.parametrize("path", ["missing", "file", "empty"])
def test_what_is_no_packed_dataset_is_refused_by_its_path(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match=path):
        open_dataset(tmp_path / path)


def test_a_path_may_be_text_or_relative_and_the_folder_may_change(packed: Packed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(packed.labelled.parent)
    relative = open_dataset(packed.labelled.name, output="bytes")
    monkeypatch.chdir("/")
    assert relative[0] == open_dataset(str(packed.labelled), output="bytes")[0] == (packed.payloads[0], 0)


# ----------------------------------------------------------------------------------------------- pickled, copied, twice open


@pytest.mark.parametrize("read_before", [False, True])
@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize(
    "duplicate", [lambda data: pickle.loads(pickle.dumps(data)), copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"]
)
def test_a_copy_gives_the_same_and_outlives_its_original(packed: Packed, duplicate: Any, mmap: bool, read_before: bool) -> None:
    data = open_dataset(packed.labelled, output="numpy", transform=np.copy, mmap=mmap)
    wanted = [data[i] for i in range(len(data))]
    if not read_before:
        data = open_dataset(packed.labelled, output="numpy", transform=np.copy, mmap=mmap)
    other = duplicate(data)
    assert type(other) is type(data)
    assert other.options == data.options
    del data
    gc.collect()
    assert len(other) == len(wanted)
    assert all(same(other[i], wanted[i]) for i in range(len(other)))
    assert other.targets.tolist() == packed.targets


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_dataset_is_pickled_with_every_protocol(packed: Packed, protocol: int) -> None:
    data = open_dataset(packed.labelled, output="bytes")
    assert pickle.loads(pickle.dumps(data, protocol))[1] == data[1]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_dataset_with_a_lambda_can_be_copied(packed: Packed, duplicate: Any) -> None:
    """No process is involved; a local function stands in the way of pickle alone."""
    data = open_dataset(packed.labelled, output="bytes", transform=lambda value: len(value))
    assert duplicate(data)[0] == (len(packed.payloads[0]), 0)


@pytest.mark.parametrize("argument", ["transform", "target_transform"])
def test_a_lambda_is_named_as_what_cannot_be_pickled(packed: Packed, argument: str) -> None:
    data = open_dataset(packed.labelled, **{argument: lambda value: value})
    with pytest.raises(pickle.PicklingError, match=f"^{argument}="):
        pickle.dumps(data)


def test_a_pickle_of_a_dataset_that_changed_meanwhile_is_refused(packed: Packed, tmp_path: Path) -> None:
    write_tree(tmp_path / "in", FLAT)
    output = pack_here(tmp_path / "in", packed.format).output
    pickled = pickle.dumps(open_dataset(output))
    write_tree(tmp_path / "in", {"another.jpg": jpeg(seed=9)})
    pack_here(tmp_path / "in", packed.format, overwrite=True)
    with pytest.raises(DatasetChangedError, match="since the dataset was opened"):
        pickle.loads(pickled)


def test_two_datasets_on_one_path_do_not_disturb_each_other(packed: Packed, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(packed.labelled)
    paths = [packed.labelled, f"{packed.labelled}/", tmp_path / "link", packed.labelled]
    for mmap in (False, True):
        several = [open_dataset(path, output="bytes", mmap=mmap) for path in paths]
        for data in several:
            assert data[0] == (packed.payloads[0], 0)
        while several:
            del several[0]
            gc.collect()
            for data in several:
                assert [data[i][0] for i in range(len(data))] == packed.payloads


@pytest.mark.parametrize("mmap", [False, True])
def test_a_dataset_is_read_while_the_containers_own_library_has_it_open(packed: Packed, mmap: bool) -> None:
    """`lmdb.open` of a path that is open in the process raises since lmdb 2, and HDF5 takes locks: neither is used to read."""
    manifest = load_manifest(packed.labelled)
    container = formats.get(packed.format)
    first = open_dataset(packed.labelled, output="bytes", mmap=mmap)
    assert first[1][0] == packed.payloads[1]
    native = container.read_native(packed.labelled, [shard.file for shard in manifest.shards], manifest.header)
    assert next(native).payload == packed.payloads[0]
    second = open_dataset(packed.labelled, output="bytes", mmap=mmap)
    assert [second[i][0] for i in range(len(second))] == packed.payloads
    del first
    gc.collect()
    assert [sample.payload for sample in native] == packed.payloads[1:]
    native.close()  # type: ignore[attr-defined]  # a generator
    assert [second[i][0] for i in range(len(second))] == packed.payloads


# ----------------------------------------------------------------------------------------------------- private and writable


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("mode", ["RGB", "L", None])
def test_tensors_are_private_and_writable(packed: Packed, mmap: bool, verify: bool, mode: str | None) -> None:
    """Adding in place to a tensor over a read-only map ends the process; over a bytes object it changes the bytes."""
    data = open_dataset(packed.labelled, output="torch", mmap=mmap, verify=verify, mode=mode)
    for i in range(len(data)):
        tensor, _ = data[i]
        before = tensor.clone()
        tensor.add_(1)
        assert not torch.equal(tensor, before)
        assert torch.equal(data[i][0], before)


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("mode", ["RGB", "L", None])
def test_arrays_are_private_and_writable(packed: Packed, mmap: bool, mode: str | None) -> None:
    data = open_dataset(packed.labelled, output="numpy", mmap=mmap, mode=mode)
    for i in range(len(data)):
        array, _ = data[i]
        assert array.flags.writeable
        assert array.flags.c_contiguous
        assert array.dtype.isnative
        before = array.copy()
        array += 1
        assert np.array_equal(data[i][0], before)


@pytest.mark.parametrize("mode", ["RGB", "L", None])
def test_pictures_are_private_and_writable(packed: Packed, mode: str | None) -> None:
    data = open_dataset(packed.labelled, mode=mode)
    for name in ("cat/0.jpg", "cat/1.png", "dog (copy)/grey.png"):
        picture, _ = data[packed.index_of(name)]
        before = picture.tobytes()
        picture.paste(77, (0, 0, 8, 8)) if picture.mode == "L" else picture.paste((7, 7, 7), (0, 0, 8, 8))
        assert picture.tobytes() != before
        assert data[packed.index_of(name)][0].tobytes() == before


def test_pictures_can_be_pickled_as_a_worker_sends_them(packed: Packed) -> None:
    for mode in ("RGB", None):
        data = open_dataset(packed.labelled, mode=mode)
        for i in range(len(data)):
            assert same(pickle.loads(pickle.dumps(data[i])), data[i])


# -------------------------------------------------------------------------------------------------------------------- torch


def test_with_torch_it_is_a_torch_dataset(packed: Packed) -> None:
    data = open_dataset(packed.labelled)
    assert isinstance(data, torch.utils.data.Dataset)
    assert not isinstance(data, torch.utils.data.IterableDataset)
    assert len(data + open_dataset(packed.flat)) == len(LABELLED) + len(FLAT)


WITHOUT_TORCH = """
    import collections.abc
    import numpy as np
    from PIL import Image
    from packer import open_dataset

    for path in sys.argv[1:]:
        data = open_dataset(path)
        assert isinstance(data, collections.abc.Sequence), type(data).__mro__
        samples = list(data)
        assert len(samples) == len(data) == 8
        kinds = {type(sample).__name__ if isinstance(sample, np.ndarray) else "picture" for sample, _ in samples}
        assert kinds == {"ndarray", "picture"}, kinds
        assert all(isinstance(sample, (np.ndarray, Image.Image)) for sample, _ in samples)
        assert samples[-1][0].tolist() == [0, 1, 2, 3, 4, 5] and samples[-1][0].dtype == np.float64
        assert [target for _, target in reversed(data)] == [target for _, target in samples][::-1]
        raw = open_dataset(path, output="bytes")
        assert raw[2] in raw and raw.index(raw[2]) == 2 and raw.count(raw[2]) == 1
        try:
            open_dataset(path, output="torch")
        except ImportError as error:
            assert "torch" in str(error)
        else:
            raise AssertionError("output='torch' without torch")
    assert not any(name.split(".")[0] == "torch" for name in sys.modules)
    print("done")
"""


def test_without_torch_it_is_a_plain_sequence_and_arrays_are_numpy(tmp_path: Path) -> None:
    write_tree(tmp_path / "in", LABELLED)
    outputs = [pack_here(tmp_path / "in", name).output for name in formats.names()]
    result = run_without_torch(WITHOUT_TORCH, *outputs)
    assert (result.stdout, result.stderr, result.returncode) == ("done\n", "", 0)


def test_a_torch_whose_libraries_do_not_load_counts_as_none(packed: Packed) -> None:
    script = """
        from packer import open_dataset
        print(len(list(open_dataset(sys.argv[1]))))
    """
    missing = "OSError('libtorch_cpu.so: cannot open shared object file')"
    result = run_without_torch(script, packed.labelled, missing=missing)
    assert (result.stdout, result.stderr) == (f"{len(LABELLED)}\n", "")


# --------------------------------------------------------------------------------------------- what reading leaves and needs


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the open files of a process are seen in /proc")
@pytest.mark.parametrize("mmap", [False, True])
def test_nothing_of_a_dataset_is_open_before_it_is_read(packed: Packed, mmap: bool) -> None:
    data = open_dataset(packed.labelled, mmap=mmap)
    assert len(data) == len(LABELLED)
    assert data.classes
    assert repr(data)
    pickled = pickle.loads(pickle.dumps(data))
    assert open_files(packed.labelled) == []
    assert pickled[0]
    assert open_files(packed.labelled) != []
    del pickled
    gc.collect()
    assert open_files(packed.labelled) == []


def open_files(folder: Path) -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if target.startswith(str(folder)):
            found.append(target)
    return found


def state_of(folder: Path) -> dict[str, tuple[int, int]]:
    return {entry.name: (entry.stat().st_size, entry.stat().st_mtime_ns) for entry in os.scandir(folder)}


@pytest.mark.parametrize("mmap", [False, True])
def test_reading_makes_and_changes_no_file(packed: Packed, mmap: bool) -> None:
    before = state_of(packed.labelled)
    data = open_dataset(packed.labelled, mmap=mmap)
    assert len(list(data)) == len(LABELLED)
    assert state_of(packed.labelled) == before
    del data
    gc.collect()
    assert state_of(packed.labelled) == before


READ_AS_ANOTHER_USER = """
    import os
    from packer import open_dataset, verify_dataset
    warm, folder, mmap = sys.argv[1], sys.argv[2], sys.argv[3] == "True"
    list(open_dataset(warm))  # the libraries may lie where only the owner may look
    list(verify_dataset(warm))
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    try:
        open(os.path.join(folder, "new"), "w").close()
    except OSError:
        pass
    else:
        raise AssertionError("the folder can be written to")
    print(len(list(open_dataset(folder, mmap=mmap))), list(verify_dataset(folder)))
"""


@pytest.mark.skipif(not hasattr(os, "setuid"), reason="needs users")
@pytest.mark.parametrize("mmap", [False, True])
def test_a_dataset_is_read_where_nothing_may_be_written(packed: Packed, mmap: bool) -> None:
    """LMDB opened the usual way wants to write its lock file, and HDF5 to lock the file."""
    # Not tmp_path: its parents are closed to other users.
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o755)
        folder = Path(root, "data")
        folder.mkdir()
        for path in packed.labelled.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
            (folder / path.name).chmod(0o444)
        folder.chmod(0o555)
        before = state_of(folder)
        try:
            result = run_without_torch(READ_AS_ANOTHER_USER, packed.labelled, folder, mmap)
            assert (result.stdout, result.stderr) == (f"{len(LABELLED)} []\n", "")
            assert state_of(folder) == before
        finally:
            folder.chmod(0o755)


@pytest.mark.skipif(not hasattr(os, "setuid") or os.geteuid() != 0, reason="needs root, to become somebody else")
@pytest.mark.parametrize("name", ["manifest.json", "index.npy"])
def test_a_file_that_may_not_be_read_is_an_error_of_packer_that_names_it(packed: Packed, name: str) -> None:
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o755)
        folder = Path(root, "data")
        folder.mkdir()
        for path in packed.labelled.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        (folder / name).chmod(0)
        script = """
            import os
            from packer import DatasetError, open_dataset
            list(open_dataset(sys.argv[1]))
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            try:
                open_dataset(sys.argv[2])
            except DatasetError as error:
                print(error)
        """
        result = run_without_torch(script, packed.labelled, folder)
        assert result.stderr == ""
        assert str(folder / name) in result.stdout


# --------------------------------------------------------------------------------------------------------------------- size

MANY = 1_000_000


@pytest.fixture(scope="module")
def huge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A million samples that all lie in one place, made by hand from the layout in the docstrings."""
    folder = make_synthetic(tmp_path_factory.mktemp("huge") / "dataset", MANY, "synthetic")
    yield folder
    for path in folder.iterdir():
        path.unlink()


def test_a_dataset_made_by_hand_from_the_documented_layout_is_read(huge: Path) -> None:
    data = open_dataset(huge, output="numpy")
    assert type(data) is PackedDataset
    assert len(data) == MANY
    for i in (0, 1, 123_456, MANY - 1):
        array, target = data[i]
        assert array.tolist() == list(range(10))
        assert target == i % 1_000
        assert data.names[i] == f"c/{i:08d}"
    assert np.array_equal(np.load(huge / "index.npy", mmap_mode="r")["label"], data.targets)


def test_the_pickle_of_a_huge_dataset_is_small(huge: Path) -> None:
    """Lists of paths cost about 54 MB a million samples, sent to every worker."""
    data = open_dataset(huge)
    assert data[5]
    assert len(pickle.dumps(data)) < 100_000


def test_a_huge_dataset_holds_no_object_a_sample(huge: Path) -> None:
    """A list of a million strings grows in every forked worker, page by page (pytorch/pytorch#13246)."""
    list(open_dataset(huge, output="numpy")[0])  # what is loaded on first use counts for nothing
    gc.collect()
    objects = len(gc.get_objects())
    tracemalloc.start()
    try:
        data = open_dataset(huge, output="numpy")
        assert len(data) == MANY
        assert int(data.targets.sum()) == sum(range(1_000)) * (MANY // 1_000)
        for i in range(0, MANY, 997):
            assert data[i][1] == i % 1_000
            assert data.names[i]
        gc.collect()
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 8 * MANY + 500_000  # the labels as one array, and a thousand class names
    assert peak < 8 * MANY + 10_000_000  # blocks of 4 MiB while digests are taken and labels are read
    assert len(gc.get_objects()) - objects < 3_000


def test_opening_a_huge_dataset_does_not_depend_on_how_it_is_opened(huge: Path) -> None:
    pickled = pickle.dumps(open_dataset(huge))
    again = pickle.loads(pickled)
    assert again[MANY - 1][1] == 999


# ------------------------------------------------------------------------------------------------------------------- naming


def test_everything_that_is_exported_is_there() -> None:
    for name in packer.__all__:
        assert getattr(packer, name) is not None
    assert packer.open_dataset is open_dataset
    with pytest.raises(AttributeError, match="no_such_name"):
        packer.no_such_name  # noqa: B018


def test_samples_with_a_shared_header_are_whole_files(tmp_path: Path, format_name: str) -> None:
    """Where all arrays have one header, a container may keep it once; what is read is the whole file all the same."""
    arrays = {f"{i}.npy": npy(np.full((3, 4), i, np.float32)) for i in range(5)}
    output = pack_here(write_tree(tmp_path / "in", arrays), format_name).output
    header = load_manifest(output).header
    content = json.loads((output / "manifest.json").read_bytes())
    assert base64.b64decode(content["fields"][0]["header"]) == header
    for options in ({}, {"mmap": True}):
        data = open_dataset(output, output="bytes", **options)
        assert list(data) == list(arrays.values())
        assert [array.tolist() for array in open_dataset(output, output="numpy", **options)] == [
            np.full((3, 4), i).tolist() for i in range(5)
        ]


def test_the_index_refuses_another_number_of_samples_than_it_has(packed: Packed) -> None:
    with pytest.raises((CorruptDatasetError, DatasetError), match=r"index\.npy"):
        Index(packed.labelled, len(LABELLED) + 1)
