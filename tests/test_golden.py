"""Datasets that were packed when the layout became version 1: every later version reads them as they are.

What is pinned here never changes. Where a test fails, what reads or packs must be put right, and neither the dataset nor the
number. ``tests.golden.make`` made them.
"""

from __future__ import annotations

import json
import mmap
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
import xxhash

from packer import convert_dataset, formats, open_dataset, unpack_dataset, verify_dataset
from packer.index import RECORD
from packer.manifest import load_manifest
from packer.report import report_rows
from tests.golden import make
from tests.golden.make import FOLDER, GOLDEN, INPUTS, pack_again

OWN_DIGESTS = {
    "lmdb": "320a26a268885eccd86a3ea5101b62f5",
    "hdf5": "44692b76ea07fd05df8d4fd60a317d5d",
    "webdataset": "45fe992ef25fbef0fb3db5f5d2a7963d",
    "hdf5-arrays": "6b12025c1f8739753562e1e77a93659c",
}
"""The manifests' own; they cover the digests of all other files."""

CONTENT_DIGESTS = {"mixed": "fe4289bd714db40d5c27dd7f2172ae01", "arrays": "e6f662956ac6af4b7cc1b980033d1e0e"}

SAMPLES: dict[str, list[tuple[str, int, tuple[int, ...], str, int]]] = {
    "mixed": [
        ("cat/2.png", 0, (5, 7, 3), "uint8", 0x2A53849DA35043A8),
        ("cat/Kätzchen.jpg", 0, (12, 16, 3), "uint8", 0x2AA3FDD1DDADC733),
        ("dog/1.jpg", 1, (8, 20, 3), "uint8", 0x53407245616519BB),
        ("dog/3.npy", 1, (25, 30), "float32", 0xCEC311FC16820174),
    ],
    "arrays": [
        ("0.npy", -1, (2, 3), "int16", 0x5B8941C9810ED71E),
        ("1.npy", -1, (2, 3), "int16", 0x7033F496E0FE2752),
        ("2.npy", -1, (2, 3), "int16", 0x18AF05B8699CA2E4),
    ],
}
"""Name, label, shape, dtype and xxh3-64 of the decoded elements."""

CLASSES = {"mixed": ["cat", "dog", "fox"], "arrays": []}
REPORTS = {"mixed": [("dog/cut.jpg", "skipped", "truncated"), ("fox", "warned", "empty_class")], "arrays": []}


@pytest.fixture(params=GOLDEN)
def name(request: pytest.FixtureRequest) -> str:
    """Each golden dataset."""
    found: str = request.param
    return found


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_written_to_a_golden_dataset() -> Iterator[None]:
    before = golden_files()
    yield
    assert golden_files() == before


def golden_files() -> dict[Path, tuple[int, bytes]]:
    paths = [path for name in GOLDEN for path in (FOLDER / name).iterdir()]
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same inputs packed by the code of today."""
    root = tmp_path_factory.mktemp("golden")
    return {name: pack_again(name, root / f"{name}.in", root / name) for name in GOLDEN}


def kind(name: str) -> str:
    return GOLDEN[name][1]


def own_format_versions(name: str) -> bool:
    """Whether the container's library writes the file format that the golden dataset has."""
    manifest = load_manifest(FOLDER / name)
    return formats.get(manifest.format).versions() == manifest.versions


def test_every_format_has_a_golden_dataset() -> None:
    assert {container for container, _ in GOLDEN.values()} == set(formats.names())


def test_a_golden_dataset_is_the_one_that_was_packed_then(name: str) -> None:
    manifest = json.loads((FOLDER / name / "manifest.json").read_bytes())
    assert (manifest["layout"], manifest["digest"]) == (1, OWN_DIGESTS[name])
    assert manifest["content_digest"] == CONTENT_DIGESTS[kind(name)]


def test_names_labels_and_decoded_values_are_what_they_were(name: str) -> None:
    data = open_dataset(FOLDER / name, output="numpy")
    found = []
    for i, path in enumerate(data.names):
        array = data[i][0] if data.classes else data[i]
        digest = xxhash.xxh3_64_intdigest(np.ascontiguousarray(array))
        found.append((path, int(data.targets[i]), array.shape, str(array.dtype), digest))
    assert found == SAMPLES[kind(name)]
    assert data.classes == CLASSES[kind(name)]


def test_the_files_that_were_packed_come_back(name: str, tmp_path: Path) -> None:
    unpack_dataset(FOLDER / name, tmp_path / "out")
    kept = {path for path, *_ in SAMPLES[kind(name)]}
    expected = {path: data for path, data in INPUTS[kind(name)].items() if path in kept}
    assert {path: (tmp_path / "out" / path).read_bytes() for path in expected} == expected


def test_orientation_stands_in_the_index(name: str) -> None:
    if kind(name) == "mixed":
        turned = open_dataset(FOLDER / name, output="numpy", orient=True)
        assert [turned[i][0].shape[:2] for i in range(3)] == [(5, 7), (12, 16), (20, 8)]
    records = np.load(FOLDER / name / "index.npy", mmap_mode="r")
    assert records.dtype == RECORD
    expected = {"mixed": [1, 1, 6, 0], "arrays": [0, 0, 0]}
    assert records["data"]["orientation"].tolist() == expected[kind(name)]


def test_the_report_has_its_rows(name: str) -> None:
    rows = [(row["path"], row["outcome"], row["code"]) for row in report_rows(FOLDER / name / "report.jsonl")]
    assert rows == REPORTS[kind(name)]


def test_nothing_is_found_wrong_by_verifying(name: str) -> None:
    level = "native"
    if load_manifest(FOLDER / name).format == "lmdb" and not own_format_versions(name):
        level = "digest"  # LMDB 0.9 and 1.0 do not read each other's files
    assert list(verify_dataset(FOLDER / name, level=level)) == []


def test_converting_keeps_the_content_digest(name: str, tmp_path: Path) -> None:
    other = "webdataset" if GOLDEN[name][0] != "webdataset" else "lmdb"
    summary = convert_dataset(FOLDER / name, other, output=tmp_path / "out")
    assert summary.content_digest == CONTENT_DIGESTS[kind(name)]


def test_the_same_input_gives_the_same_samples(name: str, again: dict[str, Path]) -> None:
    """All of the index but the places of the payloads, which depend on the container's library."""
    then, now = (np.load(folder / "index.npy") for folder in (FOLDER / name, again[name]))
    for records in (then, now):
        records["data"]["offset"] = 0
    assert now.tobytes() == then.tobytes()
    assert (again[name] / "names.bin").read_bytes() == (FOLDER / name / "names.bin").read_bytes()
    assert load_manifest(again[name]).content_digest == CONTENT_DIGESTS[kind(name)]


def test_the_same_input_gives_the_same_report_but_for_its_words(name: str, again: dict[str, Path]) -> None:
    then, now = ((folder / "report.jsonl").read_bytes() for folder in (FOLDER / name, again[name]))
    assert without_words(now) == without_words(then)


def without_words(report: bytes) -> bytes:
    """A report without what its rows say to a person, which later versions may put better."""
    return re.sub(rb'"detail": "(?:[^"\\]|\\.)*"', b'"detail": ""', report)


def test_the_same_input_gives_the_same_bytes(name: str, again: dict[str, Path]) -> None:
    """Container and index, always in tar, and where HDF5 and LMDB write the same file format on pages of the same size."""
    then, now = FOLDER / name, again[name]
    found = load_manifest(then)
    reason = why_not_the_same(name, now)
    if reason:
        pytest.skip(reason)
    shards = [shard.file for shard in found.shards]
    assert [shard.file for shard in load_manifest(now).shards] == shards
    for file in ["index.npy", *shards]:
        assert (now / file).read_bytes() == (then / file).read_bytes(), file


def why_not_the_same(name: str, now: Path) -> str:
    """What else of this machine the container's bytes depend on; empty where all is as it was."""
    then = FOLDER / name
    if not own_format_versions(name):
        versions = formats.get(GOLDEN[name][0]).versions()
        return f"packed with {load_manifest(then).versions}, here is {versions}"
    if GOLDEN[name][0] == "lmdb":
        page = page_size(then)
        return "" if page == mmap.PAGESIZE else f"pages of {page} bytes, here they have {mmap.PAGESIZE}"
    if GOLDEN[name][0] == "hdf5":
        (names_then, deflated_then), (names_now, deflated_now) = names_in_hdf5(then), names_in_hdf5(now)
        assert names_now == names_then
        return "" if deflated_now == deflated_then else "the zlib of this h5py deflates otherwise"
    return ""


def page_size(folder: Path) -> int:
    """From the first page: its header, magic number, version, address, map size, then the first database's page size."""
    size: int = struct.unpack_from("<I", (folder / "data.mdb").read_bytes(), 16 + 4 + 4 + 8 + 8)[0]
    return size


def names_in_hdf5(folder: Path) -> tuple[list[bytes], bytes]:
    """The names, and how they are deflated."""
    with h5py.File(folder / "data.h5") as file:
        return file["name"][:].tolist(), file["name"].id.read_direct_chunk((0,))[1]


def test_a_golden_dataset_is_never_made_again(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match="never made again"):
        make.make(name, tmp_path)
