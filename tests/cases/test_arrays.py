"""``.npy`` files that hold code, lie about their length, or hold what no tensor can: and those that are merely unusual."""

from __future__ import annotations

import ast
import inspect
import io
import json
import os
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from packer import CorruptSampleError, PackedDataset, PackOptions, open_dataset
from packer.check import CheckSettings, check_source
from packer.cli.app import app
from packer.cli.commands import COMMANDS
from packer.decode import decode_array
from tests.cases.recipes import npy_by_hand, pack_files
from tests.check_hooks import run_pack
from tests.inputs import npy, write_tree

SKIPPED = "skipped"
WARNED = "warned"
PLAIN = npy(np.arange(5))


# Code in place of numbers


class Trap:
    """Makes a folder as soon as it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = os.fspath(marker)

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (self.marker,)


def object_files(marker: Path) -> dict[str | bytes, bytes]:
    return {
        "dicts.npy": npy(np.array([{"a": 1}, 2], dtype=object)),
        "record with one object.npy": npy(np.array([(1, {"a": 1})], dtype=[("x", "i4"), ("y", "O")])),
        "trap.npy": npy(np.array([Trap(marker), 2], dtype=object)),
    }


@pytest.mark.parametrize("check", ["full", "none"])
def test_arrays_of_python_objects_stay_out_and_are_never_unpickled(tmp_path: Path, check: str, format_name: str) -> None:
    """The usual answer is to switch pickling on, which runs whatever code the file holds."""
    marker = tmp_path / "marker"
    files = object_files(marker)
    result = pack_files(tmp_path, {**files, "plain.npy": PLAIN}, format_name, check=check)
    assert result.unlike(files, SKIPPED, "object_dtype") == {}
    assert result.read(output="bytes") == {"plain.npy": PLAIN}
    for output in ("numpy", "torch", "pil"):
        assert len(result.read(output=output)) == 1
    assert not marker.exists()


def test_the_trap_works(tmp_path: Path) -> None:
    np.load(io.BytesIO(object_files(tmp_path / "marker")["trap.npy"]), allow_pickle=True)
    assert (tmp_path / "marker").exists()


def test_a_trap_put_into_a_finished_dataset_is_not_unpickled_either(tmp_path: Path, format_name: str) -> None:
    marker = tmp_path / "marker"
    trap = object_files(marker)["trap.npy"]
    header = len(npy(np.zeros(0, np.uint8)))
    stand_in = npy(np.full(len(trap) - header, 7, np.uint8))
    result = pack_files(tmp_path, {"a.npy": PLAIN, "b.npy": stand_in}, format_name)
    (shard,) = {
        result.output / entry["file"] for entry in json.loads((result.output / "manifest.json").read_text("ascii"))["shards"]
    }
    content = shard.read_bytes()
    assert content.count(stand_in) == 1
    shard.write_bytes(content.replace(stand_in, trap))
    for output in ("numpy", "torch", "pil"):
        with pytest.raises(CorruptSampleError, match=r"b\.npy"):
            open_dataset(result.output, output=output, verify=False)[1]
    with pytest.raises(Exception, match="object"):
        decode_array(trap)
    assert not marker.exists()


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_has_an_option_that_unpickles(name: str) -> None:
    shown = CliRunner().invoke(app, [name, "--help"])
    assert shown.exit_code == 0
    assert "Usage" in shown.output
    assert "pickle" not in shown.output.lower()


@pytest.mark.parametrize("function", [PackOptions, PackedDataset, open_dataset], ids=lambda function: function.__name__)
def test_no_function_has_an_option_that_unpickles(function: Callable[..., Any]) -> None:
    assert [name for name in inspect.signature(function).parameters if "pickle" in name] == []


# Too short, too long, lying

WHOLE = npy(np.arange(1000, dtype="f4").reshape(10, 100))
TRILLION = npy_by_hand("'<f4'", "(1000000000000,)", bytes(16))
THOUSAND_FIELDS = repr([(f"field{number}", "<f4") for number in range(1000)])

LYING: dict[str, tuple[bytes, str, str]] = {
    "half.npy": (WHOLE[: len(WHOLE) // 2], "truncated", r"\(10, 100\).*4,000 bytes.*found 1,936"),
    "one byte less.npy": (WHOLE[:-1], "truncated", "4,000 bytes.*found 3,999"),
    "60 bytes.npy": (WHOLE[:60], "truncated", "60 bytes"),
    "6 bytes.npy": (WHOLE[:6], "truncated", "6 bytes"),
    "nothing.npy": (b"", "empty_file", "0 bytes"),
    "two bytes more.npy": (WHOLE + b"xx", "corrupt", "4,000 bytes.*found 4,002"),
    "a trillion.npy": (TRILLION, "truncated", "4,000,000,000,000 bytes.*found 16"),
    "minus one.npy": (npy_by_hand("'<f4'", "(-1,)", bytes(16)), "bad_header", r"\(-1,\)"),
    "version 4.npy": (npy_by_hand("'<f4'", "(4,)", bytes(16), version=4), "bad_header", r"4\.0"),
    "1000 fields.npy": (npy_by_hand(THOUSAND_FIELDS, "(1,)", bytes(4000)), "unsupported_dtype", "field0"),
}


def test_arrays_of_another_length_than_their_header_says_stay_out(tmp_path: Path, format_name: str) -> None:
    """A job died while it saved: the header is whole, and the numbers are short."""
    result = pack_files(tmp_path, {**{name: data for name, (data, _, _) in LYING.items()}, "whole.npy": WHOLE}, format_name)
    for name, (_, code, phrase) in LYING.items():
        assert result.outcome(name) == [(SKIPPED, code)], name
        assert re.search(phrase, result.detail(name)), result.detail(name)
    assert result.names == ["whole.npy"]
    assert np.array_equal(result.sample("whole.npy", output="numpy"), np.arange(1000, dtype="f4").reshape(10, 100))


def test_a_header_that_promises_a_trillion_numbers_allocates_nothing(tmp_path: Path) -> None:
    write_tree(tmp_path, {"a.npy": TRILLION, "b.npy": WHOLE})
    check_source(os.fsencode(tmp_path / "b.npy"), CheckSettings())
    tracemalloc.start()
    try:
        check_source(os.fsencode(tmp_path / "a.npy"), CheckSettings())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10_000_000


# Layouts

AXES = np.arange(24, dtype="f8").reshape(2, 3, 4)
LAYOUTS: dict[str, np.ndarray[Any, Any]] = {
    "big-endian.npy": np.arange(4, dtype=">f4"),
    "columns first.npy": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "both.npy": np.asfortranarray(AXES.astype(">f4")),
    "both, complex.npy": np.asfortranarray((AXES + 1j * AXES[::-1]).astype(">c8")),
    "every second.npy": np.arange(20)[::2],
}


def stored_layout(data: bytes) -> dict[str, Any]:
    """The header of an ``.npy`` file."""
    length = int.from_bytes(data[8:10], "little")
    fields: dict[str, Any] = ast.literal_eval(data[10 : 10 + length].decode("latin-1"))
    return fields


@pytest.mark.parametrize("mmap", [False, True])
def test_any_layout_gives_equal_values_in_native_row_order(tmp_path: Path, mmap: bool, format_name: str) -> None:
    """Where raw bytes are stored with the shape only, what comes back is transposed or scrambled."""
    files: dict[str | bytes, bytes] = {name: npy(array) for name, array in LAYOUTS.items()}
    result = pack_files(tmp_path, files, format_name)
    assert result.rows == []
    found = result.read(output="numpy", mmap=mmap)
    assert found.keys() == LAYOUTS.keys()
    for name, array in found.items():
        expected = LAYOUTS[name]
        assert np.array_equal(array, expected), name
        assert array.dtype == expected.dtype.newbyteorder("="), name
        assert array.dtype.isnative
        assert array.flags.c_contiguous
        assert array.flags.writeable
    assert (found["columns first.npy"].dtype, found["big-endian.npy"].dtype) == (np.int64, np.float32)
    for name, tensor in result.read(output="torch", mmap=mmap).items():
        assert tensor.is_contiguous()
        assert np.array_equal(tensor.numpy(), LAYOUTS[name]), name
    assert result.read(output="bytes", mmap=mmap) == files
    assert {name: stored_layout(data) for name, data in result.read(output="bytes").items()} == {
        str(name): stored_layout(data) for name, data in files.items()
    }


@pytest.mark.parametrize("array", [np.asfortranarray(np.arange(6).reshape(2, 3)), np.arange(4, dtype=">f4")], ids=["F", ">"])
def test_an_unusual_layout_that_all_arrays_share_is_read_right_too(
    tmp_path: Path, array: np.ndarray[Any, Any], format_name: str
) -> None:
    """HDF5 keeps arrays of one shape and type in one array of its own, but only where the bytes are what it says."""
    files: dict[str | bytes, bytes] = {f"{number}.npy": npy(array + array.dtype.type(number)) for number in range(4)}
    result = pack_files(tmp_path, files, format_name)
    assert result.read(output="bytes") == files
    for number, (_, found) in enumerate(result.read(output="numpy").items()):
        assert found.dtype == array.dtype.newbyteorder("=")
        assert np.array_equal(found, array + array.dtype.type(number))


# Element types


def zipped(**arrays: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


NO_TENSOR: dict[str, tuple[bytes, str, str]] = {
    "archive.npz": (zipped(x=np.zeros(3)), "unsupported_format", r"\.npz"),
    "archive under another name.npy": (zipped(x=np.zeros(3)), "unsupported_format", r"\.npz"),
    "bfloat16 by name.npy": (npy_by_hand("'bfloat16'", "(4,)", bytes(8)), "bad_header", "bfloat16"),
    "bfloat16 as two bytes.npy": (npy_by_hand("'|V2'", "(4,)", bytes(8)), "unsupported_dtype", "V2.*bfloat16"),
    "dates.npy": (npy(np.zeros(3, "datetime64[ns]")), "unsupported_dtype", "datetime64"),
    "eight-bit float.npy": (npy_by_hand("'<f1'", "(4,)", bytes(4)), "bad_header", "<f1"),
    "long double.npy": (npy(np.zeros(3, np.longdouble)), "unsupported_dtype", "float128|longdouble|float96"),
    "record.npy": (npy(np.zeros(3, [("x", "f4"), ("y", "i2")])), "unsupported_dtype", "'x'"),
    "strings.npy": (npy(np.zeros(3, "S5")), "unsupported_dtype", "S5"),
    "text.npy": (npy(np.zeros(3, "U5")), "unsupported_dtype", "U5"),
}
TENSORS = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int64", "float16", "float32", "complex64", "complex128")


def test_element_types_that_no_tensor_has_stay_out_by_name(tmp_path: Path) -> None:
    """They fail inside the training loop otherwise."""
    result = pack_files(tmp_path, {**{name: data for name, (data, _, _) in NO_TENSOR.items()}, "plain.npy": PLAIN})
    for name, (_, code, phrase) in NO_TENSOR.items():
        assert result.outcome(name) == [(SKIPPED, code)], name
        assert re.search(phrase, result.detail(name)), result.detail(name)
    assert result.names == ["plain.npy"]


def test_element_types_that_tensors_have_are_kept(tmp_path: Path, format_name: str) -> None:
    arrays = {f"{kind}.npy": np.array([0, 1, 1, 0, 1]).astype(kind) for kind in TENSORS}
    result = pack_files(tmp_path, {name: npy(array) for name, array in arrays.items()}, format_name)
    assert result.rows == []
    for name, found in result.read(output="numpy").items():
        assert found.dtype == arrays[name].dtype
        assert np.array_equal(found, arrays[name])
    for name, tensor in result.read(output="torch").items():
        assert tensor.dtype == getattr(torch, name.removesuffix(".npy"))


# No axes, no elements


@pytest.mark.parametrize("mmap", [False, True])
def test_scalars_and_empty_arrays_keep_their_shape(tmp_path: Path, mmap: bool, format_name: str) -> None:
    arrays = {"empty.npy": np.zeros((0, 4), "f4"), "full.npy": np.ones((2, 4), "f4"), "scalar.npy": np.float32(3.5)}
    files: dict[str | bytes, bytes] = {name: npy(array) for name, array in arrays.items()}
    result = pack_files(tmp_path, files, format_name)
    assert [(row["path"], row["outcome"], row["code"]) for row in result.rows] == [("empty.npy", WARNED, "empty_array")]
    assert "(0, 4)" in result.detail("empty.npy")
    for output in ("numpy", "torch"):
        found = result.read(output=output, mmap=mmap)
        assert {name: tuple(array.shape) for name, array in found.items()} == {
            "empty.npy": (0, 4),
            "full.npy": (2, 4),
            "scalar.npy": (),
        }
        assert found["scalar.npy"] == 3.5
        assert {str(array.dtype).removeprefix("torch.") for array in found.values()} == {"float32"}
    assert result.read(output="bytes", mmap=mmap) == files


@pytest.mark.parametrize("array", [np.float32(3.5), np.zeros((0, 4), "f4")], ids=["scalar", "empty"])
def test_nothing_but_scalars_or_empty_arrays_is_a_dataset_too(
    tmp_path: Path, array: np.ndarray[Any, Any], format_name: str
) -> None:
    result = pack_files(tmp_path, {f"{number}.npy": npy(array) for number in range(3)}, format_name)
    for mmap in (False, True):
        found = list(result.read(output="numpy", mmap=mmap).values())
        assert [(one.shape, one.dtype) for one in found] == [(array.shape, np.float32)] * 3


# What is no number


def nonfinite_files() -> dict[str | bytes, bytes]:
    base = np.arange(64, dtype="f4").reshape(8, 8)
    nan, infinite, half = base.copy(), base.copy(), base.astype("f2")
    nan[2, 3] = np.nan
    infinite[0, 0] = -np.inf
    infinite[7, 7] = infinite[7, 6] = np.nan
    half[1, 1] = np.inf
    return {"clean.npy": npy(base), "half.npy": npy(half), "infinite.npy": npy(infinite), "nan.npy": npy(nan)}


NONFINITE = {"half.npy": (0, 1), "infinite.npy": (2, 1), "nan.npy": (1, 0)}


def test_what_is_no_number_is_counted_and_never_changed(tmp_path: Path, format_name: str) -> None:
    """The loss is NaN from the first step on, and nobody knows from which file."""
    files = nonfinite_files()
    result = pack_files(tmp_path, files, format_name)
    assert [(row["path"], row["outcome"], row["code"]) for row in result.rows] == [
        (name, WARNED, "nonfinite") for name in NONFINITE
    ]
    for name, (nan, infinite) in NONFINITE.items():
        assert f"{nan} NaN and {infinite} infinite of 64" in result.detail(name)
    assert result.read(output="bytes") == files
    for name, array in result.read(output="numpy").items():
        assert np.array_equal(array, np.load(io.BytesIO(files[name])), equal_nan=True)


def test_what_is_no_number_is_skipped_where_asked(tmp_path: Path, format_name: str) -> None:
    result = pack_files(tmp_path, nonfinite_files(), format_name, skip=("nonfinite",))
    assert result.names == ["clean.npy"]
    assert result.unlike(NONFINITE, SKIPPED, "nonfinite") == {}
    assert "2 NaN and 1 infinite" in result.detail("infinite.npy")


def test_codes_to_skip_are_named_on_the_command_line(tmp_path: Path) -> None:
    clean: dict[str | bytes, bytes] = {f"{number}.npy": npy(np.full(3, number)) for number in range(10)}
    write_tree(tmp_path / "in", {**clean, **nonfinite_files(), "empty.npy": npy(np.zeros((0, 4)))})
    done = run_pack("in", "-o", "out", "--json", "--workers", "1", "--skip", "nonfinite,empty_array", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads(done.stdout)
    assert (summary["samples"], summary["skipped"], summary["warned"]) == (11, {"nonfinite": 3, "empty_array": 1}, {})
    wrong = run_pack("in", "-o", "other", "--skip", "nonfinit", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "nonfinit" in wrong.stderr
    assert not (tmp_path / "other").exists()
