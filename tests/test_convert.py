"""Converting: the same samples in another container, or nothing."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest

from packer import convert_dataset, formats, unpack_dataset, verify_dataset
from packer.cli.app import run
from packer.errors import CorruptDatasetError, CorruptSampleError, InputError, OptionError, OutputError
from packer.manifest import load_manifest
from packer.plan import ShardLimits
from packer.store import Store
from tests.forgery import forge
from tests.inputs import jpeg, npy, pack_here, png, write_tree
from tests.test_unpack import NAMES, tree_of

PAIRS = list(itertools.permutations(formats.names(), 2))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One folder in each format: pictures, arrays, an empty class, a file that was skipped, an empty array, odd names."""
    root = tmp_path_factory.mktemp("converted")
    files: dict[str | bytes, bytes] = {f"dog/{i}.1.jpg": jpeg(seed=i) for i in range(4)}
    files |= {f"dog (copy)/{i}.npy": npy(np.full((i, 3), i, "f4")) for i in range(4)}
    files |= {"10/turned.png": png(), b"10/not \xff text\n.png": png(seed=3), "10/cut.jpg": jpeg()[:200]}
    source = write_tree(root / "in", files)
    (source / "nothing in it").mkdir()
    return {name: pack_here(source, name).output for name in formats.names()}


def contents(dataset: Path) -> list[tuple[str, int, bytes]]:
    store = Store(dataset)
    return [(store.name(i), int(store.targets[i]), store.payload(i, store.index[i])) for i in range(len(store))]


@pytest.mark.parametrize("source,target", PAIRS)
def test_everything_comes_along(packed: dict[str, Path], tmp_path: Path, source: str, target: str) -> None:
    summary = convert_dataset(packed[source], target, output=tmp_path / "out")
    assert list(verify_dataset(summary.output)) == []
    old, new = load_manifest(packed[source]), load_manifest(summary.output)
    assert contents(summary.output) == contents(packed[source])
    assert (new.content_digest, new.classes, new.labels) == (old.content_digest, old.classes, old.labels)
    assert "nothing in it" in new.classes
    assert (summary.output / "report.jsonl").read_bytes() == (packed[source] / "report.jsonl").read_bytes()
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("source,target", PAIRS)
def test_index_says_of_each_sample_what_packing_found_out(
    packed: dict[str, Path], tmp_path: Path, source: str, target: str
) -> None:
    converted = np.load(convert_dataset(packed[source], target, output=tmp_path / "out").output / "index.npy")
    direct = np.load(packed[target] / "index.npy")
    for column in ("type", "mode", "orientation", "width", "height", "frames", "size", "digest", "offset"):
        assert converted["data"][column].tolist() == direct["data"][column].tolist()


def test_uniform_arrays_lie_in_hdf5_as_one_array_and_come_back_whole(tmp_path: Path) -> None:
    files = {f"{i}.npy": npy(np.full((2, 5), i, "<f4")) for i in range(6)}
    source = pack_here(write_tree(tmp_path / "in", files), "webdataset").output
    middle = convert_dataset(source, "hdf5").output
    assert load_manifest(middle).header
    back = convert_dataset(middle, "lmdb").output
    assert [payload for _, _, payload in contents(back)] == list(files.values())


def test_new_shards_may_have_another_size(packed: dict[str, Path], tmp_path: Path) -> None:
    summary = convert_dataset(packed["webdataset"], "webdataset", output=tmp_path / "out", limits=ShardLimits(samples=4))
    assert [shard.samples for shard in load_manifest(summary.output).shards] == [4, 4, 2]
    assert load_manifest(summary.output).options["shard_samples"] == 4
    assert contents(summary.output) == contents(packed["webdataset"])


def test_damaged_sample_is_named_and_nothing_is_written(tmp_path: Path, format_name: str) -> None:
    source = pack_here(write_tree(tmp_path / "in", {f"{i}.jpg": jpeg(seed=i) for i in range(3)}), format_name).output
    shard = source / load_manifest(source).shards[0].file
    index = np.load(source / "index.npy")
    data = bytearray(shard.read_bytes())
    data[int(index["data"]["offset"][1]) + 50] ^= 1
    shard.write_bytes(data)
    other = next(name for name in formats.names() if name != format_name)
    with pytest.raises(CorruptSampleError, match="sample 1"):
        convert_dataset(source, other, output=tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["in", source.name]


def test_changed_report_is_no_report(tmp_path: Path) -> None:
    source = pack_here(write_tree(tmp_path / "in", {"1.jpg": jpeg(), "2.jpg": jpeg()[:99]})).output
    report = source / "report.jsonl"
    report.write_bytes(report.read_bytes().replace(b"2.jpg", b"3.jpg"))
    with pytest.raises(CorruptDatasetError, match="report"):
        convert_dataset(source, "hdf5")


def test_an_output_that_exists_stays_unless_it_is_to_be_replaced(packed: dict[str, Path], tmp_path: Path) -> None:
    old = pack_here(write_tree(tmp_path / "in", {"1.jpg": jpeg()}), "hdf5").output
    digest = load_manifest(old).content_digest
    with pytest.raises(OutputError, match="--overwrite"):
        convert_dataset(packed["lmdb"], "hdf5", output=old)
    assert load_manifest(old).content_digest == digest
    convert_dataset(packed["lmdb"], "hdf5", output=old, overwrite=True)
    assert contents(old) == contents(packed["lmdb"])
    assert sorted(os.listdir(tmp_path)) == ["in", old.name]


@pytest.mark.parametrize("place", ["itself", "in it", "around it"])
def test_dataset_is_never_its_own_output(packed: dict[str, Path], tmp_path: Path, place: str) -> None:
    source = tmp_path / "all" / "source"
    convert_dataset(packed["lmdb"], "lmdb", output=write_tree(tmp_path / "all", {}) / "source")
    output = {"itself": source, "in it": source / "out", "around it": tmp_path / "all"}[place]
    with pytest.raises(OutputError, match="choose another"):
        convert_dataset(source, "hdf5", output=output, overwrite=True)
    assert list(verify_dataset(source)) == []


def test_unfinished_packing_job_for_that_output_is_not_thrown_away(packed: dict[str, Path], tmp_path: Path) -> None:
    partial = write_tree(tmp_path / ".out.partial", {"journal.jsonl": b"hours of work"})
    with pytest.raises(OutputError, match="unfinished packing job"):
        convert_dataset(packed["lmdb"], "hdf5", output=tmp_path / "out")
    assert (partial / "journal.jsonl").read_bytes() == b"hours of work"


def test_what_a_container_cannot_hold_is_named(
    packed: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = formats.get("lmdb")._replace(max_payload_bytes=500)
    monkeypatch.setattr(formats, "get", lambda name: small)
    with pytest.raises(InputError, match=r"turned\.png|text|1\.jpg"):
        convert_dataset(packed["webdataset"], "lmdb", output=tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_limits_of_shards_fit_only_what_has_shards(packed: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="one file"):
        convert_dataset(packed["webdataset"], "lmdb", output=tmp_path / "out", limits=ShardLimits(samples=4))


def test_command_line(
    packed: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["convert", str(packed["lmdb"]), "-f", "webdataset", "--shard-samples", "4", "-o", "out"]) == 0
    assert capsys.readouterr().out.startswith("converted 10 samples into out (")
    assert run(["convert", "out", "-f", "hdf5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (Path(told["output"]), told["samples"]) == (tmp_path / "out.hdf5", 10)
    assert run(["convert", "out", "-f", "lmdb", "-q"]) == 0
    assert capsys.readouterr() == ("", "")
    assert run(["convert", "out", "-f", "lmdb"]) == 1
    assert "exists already" in capsys.readouterr().err
    assert run(["convert", "nowhere", "-f", "lmdb"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_type_that_no_version_here_knows_is_named(packed: dict[str, Path], tmp_path: Path) -> None:
    source = convert_dataset(packed["lmdb"], "lmdb", output=tmp_path / "source").output
    forge(source, change=lambda records: records["data"].__setitem__("type", 99))
    with pytest.raises(CorruptDatasetError, match="sample 0 has type 99"):
        convert_dataset(source, "hdf5")
    assert os.listdir(tmp_path) == ["source"]


def test_header_as_long_as_headers_may_be_is_shared_and_read(tmp_path: Path) -> None:
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"
    size = (1 << 20) - 12
    header = b"\x93NUMPY\x02\x00" + size.to_bytes(4, "little") + text.ljust(size - 1) + b"\n"
    files = {f"{i}.npy": header + bytes([i] * 8) for i in range(2)}
    output = pack_here(write_tree(tmp_path / "in", files), "hdf5").output
    assert [payload for _, _, payload in contents(output)] == list(files.values())


@pytest.mark.parametrize("route", list(itertools.permutations(formats.names())), ids="-".join)
def test_folder_comes_back_from_every_route_through_the_formats(tmp_path: Path, route: tuple[str, ...]) -> None:
    """Packed into one, converted to the next and the next, and unpacked: bytes, paths and class folders of the input."""
    source = write_tree(
        tmp_path / "in",
        {
            **{
                f"{kind}/".encode() + name: jpeg(seed=i) for kind in ("dog", "dog (copy)", "10") for i, name in enumerate(NAMES)
            },
            **{b"arrays \xff/%d.npy" % i: npy(np.full((i, 2), i, "f8")) for i in range(4)},
        },
    )
    (source / "empty class").mkdir()
    expected = tree_of(source)
    dataset = pack_here(source, route[0], output=tmp_path / "0").output
    digests = {load_manifest(dataset).content_digest}
    for number, name in enumerate(route[1:], 1):
        dataset = convert_dataset(dataset, name, output=tmp_path / str(number)).output
        digests.add(load_manifest(dataset).content_digest)
    assert tree_of(unpack_dataset(dataset, tmp_path / "out").output) == expected
    assert len(digests) == 1
