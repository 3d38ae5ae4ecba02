"""The same questions to every container format.

Each test with the arguments ``format_name`` and ``tmp_path`` (and no other) is a question that any format must answer;
``test_new_format`` asks them of a format that is not part of packer. What follows under "What users of the three libraries
see" is about one shipped format each.
"""

from __future__ import annotations

import base64
import itertools
import json
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

import h5py
import lmdb
import numpy as np
import pytest
import xxhash

from packer import CorruptSampleError, InputError, OptionError, PackOptions, formats, open_dataset, pack_folder, verify_dataset
from packer.manifest import load_manifest
from packer.model import NO_LABEL, TYPES_BY_NAME, Extent, Sample
from packer.options import Progress
from packer.plan import ShardLimits, WritePlan
from tests.inputs import jpeg, npy, pack, photo, png, write_tree

Files = Mapping[bytes, bytes]


class Expected(NamedTuple):
    name: bytes
    payload: bytes
    label: int


def expected_samples(files: Files, *, labels: bool) -> list[Expected]:
    """What an input must become: ordered by path components as bytes, labelled by the first."""
    names = sorted(files, key=lambda name: name.split(b"/"))
    classes = sorted({name.split(b"/")[0] for name in names}) if labels else []
    return [Expected(name, files[name], classes.index(name.split(b"/")[0]) if labels else NO_LABEL) for name in names]


def pack_and_compare(tmp_path: Path, format_name: str, files: Files, *, labels: bool = True, **options: Any) -> Path:
    """Pack files that are all sound, and find them again, in order, by every road there is."""
    source = write_tree(tmp_path / "in", files)
    options = {"check": "none", "labels": "folder" if labels else "none", **options}
    summary = pack(source, format_name, output=tmp_path / f"out-{format_name}", **options)
    assert summary.skipped == {}
    assert_holds(summary.output, expected_samples(files, labels=labels))
    return summary.output


def assert_holds(output: Path, expected: list[Expected]) -> None:
    assert same(through_extents(output), expected)
    assert same(through_extents(output, mmap=True), expected)
    assert same(through_the_library(output), expected)
    look = INDEPENDENT_LOOKS.get(load_manifest(output).format)
    if look is not None:
        assert same(look(output), expected)
    assert list(verify_dataset(output)) == []


def same(found: list[Expected], expected: list[Expected]) -> bool:
    """Compare without pytest's difference of two lists of megabytes."""
    assert [sample.name for sample in found] == [sample.name for sample in expected]
    assert [sample.label for sample in found] == [sample.label for sample in expected]
    for sample, wanted in zip(found, expected, strict=True):
        assert len(sample.payload) == len(wanted.payload), wanted.name
        assert sample.payload == wanted.payload, wanted.name
    return True


def through_extents(output: Path, *, mmap: bool = False) -> list[Expected]:
    data = open_dataset(output, output="bytes", mmap=mmap)
    names = [name.encode("utf-8", "surrogateescape") for name in data.names]
    payloads = [data[i][0] if data.classes else data[i] for i in range(len(data))]
    return [Expected(*sample) for sample in zip(names, payloads, data.targets.tolist(), strict=True)]


def through_the_library(output: Path) -> list[Expected]:
    """By the format's own second road; names and labels that the container does not hold are taken from the index."""
    manifest = load_manifest(output)
    files = [shard.file for shard in manifest.shards]
    found = formats.get(manifest.format).read_native(output, files, manifest.header)
    return [
        Expected(
            indexed.name if native.name is None else native.name,
            native.payload,
            indexed.label if native.label is None else native.label,
        )
        for native, indexed in zip(found, through_extents(output), strict=True)
    ]


# The shipped containers, read as a person would who has never heard of packer.


def lmdb_look(output: Path) -> list[Expected]:
    manifest = json.loads((output / "manifest.json").read_text())
    environment = lmdb.open(str(output), readonly=True, lock=False)
    try:
        assert environment.stat()["entries"] == manifest["samples"]
        with environment.begin() as transaction:
            pairs = list(transaction.cursor())
    finally:
        environment.close()
    assert [key.split(b".")[0] for key, _ in pairs] == [b"%09d" % i for i in range(len(pairs))]
    # LMDB holds neither names nor labels.
    return [
        Expected(sample.name, value, sample.label) for (_, value), sample in zip(pairs, through_extents(output), strict=True)
    ]


def hdf5_look(output: Path) -> list[Expected]:
    manifest = json.loads((output / "manifest.json").read_text())
    with h5py.File(output / "data.h5", "r") as file:
        names = [bytes(name) for name in file["name"][...]]
        labels = file["label"][...].tolist() if "label" in file else [NO_LABEL] * len(names)
        if "classes" in file:
            classes = [bytes(name).decode("utf-8", "surrogateescape") for name in file["classes"][...]]
            assert classes == manifest["classes"]
        else:
            assert manifest["classes"] == []
        data = file["data"]
        if "offset" in file:
            offset = file["offset"][...].tolist()
            assert len(offset) == len(names) + 1
            assert (offset[0], offset[-1]) == (0, len(data))
            whole = data[...].tobytes()
            payloads = [whole[start:end] for start, end in itertools.pairwise(offset)]
        else:
            assert data.shape[0] == len(names)
            header = base64.b64decode(manifest["fields"][0]["header"])
            payloads = [header + row.tobytes() for row in data[...].reshape(len(names), -1)]
    return [Expected(*sample) for sample in zip(names, payloads, labels, strict=True)]


def webdataset_look(output: Path) -> list[Expected]:
    by_tar = tar_look(output)
    shards = sorted(output.glob("shard-*.tar"))
    import webdataset  # it loads torch, two seconds

    by_webdataset = [
        Expected(_path_of(sample["json"]), _payload_of(sample), int(sample.get("cls", NO_LABEL)))
        for sample in webdataset.WebDataset([str(shard) for shard in shards], shardshuffle=False)
    ]
    assert same(by_webdataset, by_tar)
    return by_tar


def tar_look(output: Path) -> list[Expected]:
    samples: dict[str, dict[str, bytes]] = {}
    for shard in sorted(output.glob("shard-*.tar")):
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                assert member.isreg()
                key, extension = member.name.split(".")
                samples.setdefault(key, {})[extension] = tar.extractfile(member).read()
    assert list(samples) == [f"{i:09d}" for i in range(len(samples))]
    return [
        Expected(_path_of(sample["json"]), _payload_of(sample), int(sample.get("cls", NO_LABEL))) for sample in samples.values()
    ]


def _path_of(metadata: bytes) -> bytes:
    values = json.loads(metadata.decode("ascii"))
    return unquote_to_bytes(values["path"]) if values.get("encoding") == "percent" else values["path"].encode()


def _payload_of(sample: Mapping[str, Any]) -> bytes:
    (payload,) = [value for key, value in sample.items() if key not in ("cls", "json") and not key.startswith("__")]
    return payload


INDEPENDENT_LOOKS: dict[str, Callable[[Path], list[Expected]]] = {
    "hdf5": hdf5_look,
    "lmdb": lmdb_look,
    "webdataset": webdataset_look,
}

# webdataset 1.0 leaves its shards for the garbage collector to close.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def mixed_files() -> dict[bytes, bytes]:
    """Pictures and arrays of many kinds, in class folders."""
    return {
        b"cat/1.jpg": jpeg(seed=1),
        b"cat/2.png": png(seed=2),
        b"cat/deeper/3.npy": npy(np.arange(12, dtype="<f4").reshape(3, 4)),
        b"dog/1.npy": npy(np.asfortranarray(np.arange(12).reshape(3, 4))),
        b"dog/2.npy": npy(np.arange(5, dtype=">i2")),
        b"dog/3.npy": npy(np.zeros((0, 7))),
        b"dog/4.npy": npy(np.array(2.5)),
        b"dog/5.jpg": jpeg(seed=5),
    }


def array_file(descr: str, shape: tuple[int, ...], body: bytes) -> bytes:
    """An ``.npy`` file byte by byte, for what ``numpy.save`` cannot be made to write."""
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode()
    text = text.ljust(-(-(len(text) + 11) // 64) * 64 - 11) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + body


def files_of(output: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in output.iterdir()}


# Questions to any format


def test_pictures_and_arrays_come_back_byte_for_byte_by_every_road(format_name: str, tmp_path: Path) -> None:
    pack_and_compare(tmp_path, format_name, mixed_files(), check="full", workers=1)


def test_a_photo_of_many_pixels_is_checked_and_kept(format_name: str, tmp_path: Path) -> None:
    pack_and_compare(tmp_path, format_name, {b"c/a.jpg": jpeg(photo(1500, 1000)), b"c/b.png": png()}, check="full", workers=1)


def test_samples_without_class_folders_have_no_labels(format_name: str, tmp_path: Path) -> None:
    files = {b"b.jpg": jpeg(), b"a.npy": npy([1.0]), b"c.png": png()}
    output = pack_and_compare(tmp_path, format_name, files, labels=False)
    data = open_dataset(output, output="bytes")
    assert (data.classes, data.class_to_idx, data.targets.tolist()) == ([], {}, [NO_LABEL] * 3)
    assert data[0] == files[b"a.npy"]


def test_order_and_labels_are_those_of_path_components(format_name: str, tmp_path: Path) -> None:
    folders = ["dog", "dog (copy)", "dog-small", "10", "9", "Ä", "a b"]
    files = {f"{folder}/{i}.jpg".encode(): jpeg(seed=i) for folder in folders for i in range(2)}
    output = pack_and_compare(tmp_path, format_name, files, labels=True)
    data = open_dataset(output)
    assert data.classes == ["10", "9", "a b", "dog", "dog (copy)", "dog-small", "Ä"]
    assert data.targets.tolist() == [label for label in range(7) for _ in range(2)]


def test_numbers_as_labels_are_kept(format_name: str, tmp_path: Path) -> None:
    files = {b"10/a.npy": npy([1]), b"9/a.npy": npy([2]), b"007/a.npy": npy([3])}
    source = write_tree(tmp_path / "in", files)
    output = pack(source, format_name, output=tmp_path / "out", check="none", labels="number").output
    expected = [Expected(name, files[name], label) for name, label in ((b"007/a.npy", 7), (b"10/a.npy", 10), (b"9/a.npy", 9))]
    assert_holds(output, expected)
    assert open_dataset(output).class_to_idx == {"007": 7, "10": 10, "9": 9}


@pytest.mark.parametrize("payload", [png(seed=3), npy(np.float32(1.5)), npy(np.zeros((0, 3)))], ids=["png", "scalar", "empty"])
def test_one_sample_is_a_whole_dataset(format_name: str, tmp_path: Path, payload: bytes) -> None:
    suffix = b"png" if payload.startswith(b"\x89PNG") else b"npy"
    pack_and_compare(tmp_path, format_name, {b"only/one." + suffix: payload})


def test_arrays_without_elements_are_kept_at_offset_zero(format_name: str, tmp_path: Path) -> None:
    output = pack_and_compare(tmp_path, format_name, {b"c/%d.npy" % i: npy(np.zeros((3, 0, 2))) for i in range(3)})
    records = np.load(output / "index.npy")["data"]
    empty = records["size"] == 0
    assert not records["offset"][empty].any()
    assert not records["shard"][empty].any()


def test_arrays_without_elements_before_all_others_are_kept(format_name: str, tmp_path: Path) -> None:
    files = {b"c/0.npy": npy(np.zeros(0)), b"c/1.npy": npy(np.zeros(0)), b"c/2.npy": npy([1.0, 2.0]), b"c/3.jpg": jpeg()}
    pack_and_compare(tmp_path, format_name, files)


def test_zero_bytes_at_the_end_of_a_payload_are_kept(format_name: str, tmp_path: Path) -> None:
    files = {
        b"c/0.jpg": jpeg() + bytes(1000),
        b"c/1.npy": npy(np.zeros(511, np.uint8)),
        b"c/2.png": png() + b"\0",
        b"c/3.npy": npy(np.array([1, 0, 0], "<i8")),
    }
    pack_and_compare(tmp_path, format_name, files)


def test_large_and_small_payloads_stand_side_by_side(format_name: str, tmp_path: Path) -> None:
    """5 MB each and 40 MB in all: more than any buffer, and more than one commit."""
    random = np.random.default_rng(0)
    files = {b"c/%d.npy" % i: npy(random.integers(0, 256, 5_000_000 + i, np.uint8)) for i in range(8)}
    files |= {b"c/%d.jpg" % i: jpeg(seed=i) for i in range(8)}
    pack_and_compare(tmp_path, format_name, files)


def test_thousands_of_small_payloads_are_kept_in_order(format_name: str, tmp_path: Path) -> None:
    pack_and_compare(tmp_path, format_name, {b"%d/%04d.npy" % (i % 3, i): npy(np.full(i % 50 + 1, i)) for i in range(2000)})


@pytest.mark.parametrize("largest_first", [False, True])
def test_payloads_around_page_and_block_sizes_are_kept(format_name: str, tmp_path: Path, largest_first: bool) -> None:
    """Bodies of these sizes, and whole files of these sizes (a header has 128 bytes)."""
    borders = [1, 16, 512, 2032, 2048, 4064, 4080, 4096, 8176, 8192, 10_240]
    sizes = sorted(
        {size + shift - less for size in borders for shift in (-1, 0, 1) for less in (0, 128) if size + shift > less}
    )
    sizes = sizes[::-1] if largest_first else sizes
    pack_and_compare(tmp_path, format_name, {b"c/%03d.npy" % i: npy(np.full(n, i, np.uint8)) for i, n in enumerate(sizes)})


def test_any_name_is_kept_and_none_collides(format_name: str, tmp_path: Path) -> None:
    names = [
        b"c.1/img.1.jpg",
        b"c.1/img.1.png",
        b"c.1/img.jpg",
        b"c.1/IMG.jpg",
        b"c.1/line\nbreak.jpg",
        b"c.1/per%20cent.jpg",
        b"c.1/quote\"'.jpg",
        b"c.1/back\\slash.jpg",
        b"c.1/\xc3\xa4.jpg",
        b"c.1/\xe4\xff.jpg",
        b"c.1/\x1b[2J.jpg",
        b"c.1/trailing space .jpg",
        b"c.1/no.more.jpeg.JPG",
        b"\xff\xfe odd/%41.jpg",
        b"c.1/" + b"/".join([b"x" * 200] * 4) + b"/" + b"y" * 250 + b".jpg",
    ]
    pack_and_compare(tmp_path, format_name, {name: jpeg(seed=i) for i, name in enumerate(names)})


def test_classes_keep_their_names_whatever_bytes_they_have(format_name: str, tmp_path: Path) -> None:
    names = [b"a.b.c", b"new\nline", b"\xff", b"x" * 255, b"%FF", b"\xc3\xa4"]
    output = pack_and_compare(tmp_path, format_name, {name + b"/1.npy": npy([i]) for i, name in enumerate(names)})
    classes = [name.encode("utf-8", "surrogateescape") for name in open_dataset(output).classes]
    assert classes == sorted(names)


def test_the_folder_holds_the_manifest_and_the_files_that_it_lists(format_name: str, tmp_path: Path) -> None:
    output = pack_and_compare(tmp_path, format_name, mixed_files())
    manifest = json.loads((output / "manifest.json").read_text("ascii"))
    listed = [shard["file"] for shard in manifest["shards"]] + list(manifest["files"])
    assert sorted([*listed, "manifest.json"]) == sorted(path.name for path in output.iterdir())
    assert manifest["format"] == format_name
    assert sum(shard["samples"] for shard in manifest["shards"]) == manifest["samples"] == len(mixed_files())
    for entry in [*manifest["shards"], *({"file": name, **value} for name, value in manifest["files"].items())]:
        content = (output / entry["file"]).read_bytes()
        assert (entry["bytes"], entry["digest"]) == (len(content), xxhash.xxh3_128_hexdigest(content))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", output.name]


def test_numpy_maps_the_index(format_name: str, tmp_path: Path) -> None:
    files = mixed_files()
    output = pack_and_compare(tmp_path, format_name, files, check="full", workers=1)
    index = np.load(output / "index.npy", mmap_mode="r")
    expected = expected_samples(files, labels=True)
    assert index["label"].tolist() == [sample.label for sample in expected]
    assert index["data"]["digest"].tolist() == [xxhash.xxh3_64_intdigest(sample.payload) for sample in expected]
    ends = index["name_end"].tolist()
    names = (output / "names.bin").read_bytes()
    assert [names[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)] == [sample.name for sample in expected]
    picture = index[0]["data"]
    assert (picture["width"], picture["height"], picture["frames"], picture["orientation"]) == (64, 48, 1, 1)
    assert not index["data"]["reserved"].any()
    assert not index["data"]["reserved2"].any()


def test_each_extent_is_the_payload_inside_its_shard(format_name: str, tmp_path: Path) -> None:
    files = mixed_files()
    output = pack_and_compare(tmp_path, format_name, files)
    manifest = load_manifest(output)
    shards = [(output / shard.file).read_bytes() for shard in manifest.shards]
    taken: list[tuple[int, int, int]] = []
    for record, sample in zip(np.load(output / "index.npy")["data"], expected_samples(files, labels=True), strict=True):
        shard, offset, size = int(record["shard"]), int(record["offset"]), int(record["size"])
        assert offset + size <= len(shards[shard]) == manifest.shards[shard].size_bytes
        assert manifest.header + shards[shard][offset : offset + size] == sample.payload
        taken += [(shard, offset, offset + size)] if size else []
    taken.sort()
    for (shard, _, end), (next_shard, start, _) in itertools.pairwise(taken):
        assert shard < next_shard or end <= start


def test_one_changed_byte_is_found_at_its_sample_and_nowhere_else(format_name: str, tmp_path: Path) -> None:
    output = pack_and_compare(tmp_path, format_name, mixed_files())
    manifest, record = load_manifest(output), np.load(output / "index.npy")["data"][4]
    path = output / manifest.shards[record["shard"]].file
    content = bytearray(path.read_bytes())
    content[int(record["offset"]) + int(record["size"]) // 2] ^= 1
    path.write_bytes(content)
    data = open_dataset(output, output="bytes")
    with pytest.raises(CorruptSampleError) as caught:
        data[4]
    assert (caught.value.index, caught.value.path, caught.value.offset_bytes) == (4, path, record["offset"])
    assert [i for i in range(len(data)) if i != 4 and data[i]] == [0, 1, 2, 3, 5, 6, 7]
    findings = [(finding.file, finding.index) for finding in verify_dataset(output)]
    assert findings == [(path.name, 4), (path.name, None)]


def test_content_digest_is_that_of_every_other_format(format_name: str, tmp_path: Path) -> None:
    source = write_tree(tmp_path / "in", mixed_files())
    digests = {name: pack(source, name, output=tmp_path / name, check="none").content_digest for name in formats.names()}
    assert digests[format_name] == load_manifest(tmp_path / format_name).content_digest
    assert len(set(digests.values())) == 1
    other = write_tree(tmp_path / "other", {**mixed_files(), b"cat/1.jpg": jpeg(seed=9)})
    assert pack(other, format_name, check="none").content_digest != digests[format_name]


def test_same_input_gives_same_bytes_whatever_workers_and_order_of_creation(format_name: str, tmp_path: Path) -> None:
    files = {**mixed_files(), b"cat/cut.jpg": jpeg()[:700], b"dog/text.jpg": b"no picture"}
    first = write_tree(tmp_path / "first", files)
    second = write_tree(tmp_path / "second", dict(reversed(files.items())))
    one = pack(first, format_name, output=tmp_path / "one", workers=1)
    two = pack(second, format_name, output=tmp_path / "two", workers=2)
    assert one.skipped == two.skipped == {"truncated": 1, "not_an_image": 1}
    assert files_of(one.output) == files_of(two.output)


def test_uniform_arrays_give_the_same_bytes_twice(format_name: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    files = {b"c/%02d.npy" % i: npy(random.standard_normal((100, 100))) for i in range(20)}
    first = pack(write_tree(tmp_path / "first", files), format_name, check="none")
    second = pack(write_tree(tmp_path / "second", dict(reversed(files.items()))), format_name, check="none")
    assert files_of(first.output) == files_of(second.output)


def test_skipped_files_leave_no_gap(format_name: str, tmp_path: Path) -> None:
    files = mixed_files()
    damaged = {b"cat/0.jpg": b"", b"cat/1a.jpg": b"text", b"cat/zz.png": png()[:100], b"dog/2a.npy": npy([1.0, 2.0])[:-1]}
    source = write_tree(tmp_path / "in", {**files, **damaged})
    summary = pack(source, format_name, workers=1)
    assert sum(summary.skipped.values()) == len(damaged)
    assert_holds(summary.output, expected_samples(files, labels=True))


def test_shards_end_at_the_number_of_samples_asked_for(format_name: str, tmp_path: Path) -> None:
    if not formats.get(format_name).has_shards:
        pytest.skip("one file")
    files = {b"c/%02d.jpg" % i: jpeg(seed=i) for i in range(25)}
    source = write_tree(tmp_path / "in", {**files, **{b"c/%02d.jpg" % i: jpeg()[:500] for i in (0, 9, 24)}})
    summary = pack(source, format_name, limits=ShardLimits(samples=10), workers=1)
    assert summary.skipped == {"truncated": 3}
    assert [shard.samples for shard in load_manifest(summary.output).shards] == [10, 10, 2]
    kept = {name: data for name, data in files.items() if name not in (b"c/00.jpg", b"c/09.jpg", b"c/24.jpg")}
    assert_holds(summary.output, expected_samples(kept, labels=True))


@pytest.mark.parametrize("limit", [40_960, 50_000, 51_200, 60_000])
def test_no_shard_of_several_samples_exceeds_the_size_asked_for(format_name: str, tmp_path: Path, limit: int) -> None:
    if not formats.get(format_name).has_shards:
        pytest.skip("one file")
    files = {b"c/%02d.npy" % i: npy(np.full(1000 + 37 * i, i)) for i in range(20)}
    output = pack_and_compare(tmp_path, format_name, files, limits=ShardLimits(size_bytes=limit))
    shards = load_manifest(output).shards
    assert [shard.file for shard in shards if shard.size_bytes > limit and shard.samples > 1] == []
    assert len(shards) < len(files)


def test_a_sample_larger_than_a_shard_has_one_for_itself(format_name: str, tmp_path: Path) -> None:
    if not formats.get(format_name).has_shards:
        pytest.skip("one file")
    files = {b"c/%d.npy" % i: npy(np.full(100_000 if i == 2 else 10, i)) for i in range(5)}
    output = pack_and_compare(tmp_path, format_name, files, limits=ShardLimits(size_bytes=30_000))
    assert [shard.samples for shard in load_manifest(output).shards] == [2, 1, 2]


def test_limits_of_shards_are_refused_where_there_are_none(format_name: str, tmp_path: Path) -> None:
    if formats.get(format_name).has_shards:
        pytest.skip("has shards")
    source = write_tree(tmp_path / "in", {b"a.npy": npy([1])})
    with pytest.raises(OptionError, match="it is one file"):
        pack(source, format_name, limits=ShardLimits(samples=10))
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_file_that_grew_after_the_scan_is_packed_whole(format_name: str, tmp_path: Path) -> None:
    """Rsync and labelling tools go on while people pack; the sizes of the scan are a plan and no promise."""
    files = {b"c/%d.npy" % i: npy(np.arange(10 + i)) for i in range(3)}
    source = write_tree(tmp_path / "in", files)
    grown = {**files, b"c/1.npy": npy(np.random.default_rng(0).random(500_000))}

    def grow(progress: Progress) -> None:
        if progress.stage == "pack" and not progress.done:
            write_tree(source, grown)

    summary = pack_folder(source, PackOptions(format=format_name, check="none"), grow)
    assert_holds(summary.output, expected_samples(grown, labels=True))


ARRAYS: dict[str, Any] = {
    "bool": np.array([[True, False, True]]),
    "int8": np.array([-128, 127], np.int8),
    "uint64": np.array([2**64 - 1, 0], np.uint64),
    "float16": np.array([1.5, np.inf, np.nan], np.float16),
    "float32": np.arange(6, dtype=np.float32).reshape(1, 2, 3),
    "complex64": np.array([1 + 2j, -1j], np.complex64),
    "complex128": np.array([[1 + 2j], [-1j]]),
    "big-endian float": np.array([1.0, 2.0], ">f4"),
    "big-endian int": np.array([[1, 2], [3, 4]], ">i8"),
    "Fortran": np.asfortranarray(np.arange(24).reshape(2, 3, 4)),
    "Fortran, one axis": np.asfortranarray(np.arange(4)),
    "Fortran, big-endian": np.asfortranarray(np.arange(6, dtype=">f8").reshape(2, 3)),
    "zero-d": np.array(3.5, np.float32),
    "zero-d bool": np.array(True),
    "zero-d big-endian": np.array(3.5, ">f8"),
    "empty": np.zeros((0,), np.int16),
    "empty, many axes": np.zeros((2, 0, 3), np.complex64),
    "many axes": np.arange(4).reshape((1,) * 10 + (4,) + (1,) * 10),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_of_every_kind_are_read_as_they_were_saved(format_name: str, tmp_path: Path, kind: str) -> None:
    array = ARRAYS[kind]
    output = pack_and_compare(
        tmp_path, format_name, {b"c/a.npy": npy(array), b"c/b.npy": npy(array[::-1] if array.ndim else array)}
    )
    read, label = open_dataset(output, output="numpy")[0]
    assert label == 0
    assert read.dtype == array.dtype.newbyteorder("=")
    assert read.shape == array.shape
    assert read.tobytes() == np.ascontiguousarray(array.astype(read.dtype)).tobytes()
    assert read.flags.writeable
    assert read.flags.c_contiguous


def test_arrays_of_all_kinds_in_one_folder_are_kept(format_name: str, tmp_path: Path) -> None:
    pack_and_compare(tmp_path, format_name, {b"c/%02d.npy" % i: npy(array) for i, array in enumerate(ARRAYS.values())})


@pytest.mark.parametrize("shape", [(4,), ()])
def test_bytes_of_a_bool_array_that_are_neither_0_nor_1_are_kept(format_name: str, tmp_path: Path, shape: tuple[int]) -> None:
    body = bytes([2, 255, 0, 1][: 4 if shape else 1])
    pack_and_compare(tmp_path, format_name, {b"c/%d.npy" % i: array_file("|b1", shape, body) for i in range(2)})


def test_an_array_of_32_axes_is_kept(format_name: str, tmp_path: Path) -> None:
    """As many as numpy 1 allows; one more axis over all samples is more than HDF5 allows."""
    pack_and_compare(tmp_path, format_name, {b"c/%d.npy" % i: npy(np.full((1,) * 32, i)) for i in range(2)})


@pytest.mark.parametrize("beside", [{}, {b"c/3.jpg": jpeg()}], ids=["alone", "beside a picture"])
def test_an_array_that_no_library_can_make_is_skipped(format_name: str, tmp_path: Path, beside: Files) -> None:
    """A shape with a zero in it needs no bytes, whatever its other lengths are; numpy refuses to make such an array."""
    hostile = array_file("<f4", (2**62, 0), b"")
    source = write_tree(tmp_path / "in", {b"c/1.npy": hostile, b"c/2.npy": hostile, **beside})
    if not beside:
        with pytest.raises(InputError, match="all of them skipped"):
            pack(source, format_name, check="none")
        assert sorted(tmp_path.iterdir()) == [source, tmp_path / f"in{formats.get(format_name).suffix}.report.jsonl"]
        return
    summary = pack(source, format_name, check="none")
    assert sum(summary.skipped.values()) == 2
    assert_holds(summary.output, expected_samples(beside, labels=True))


def test_a_format_says_truly_what_it_is(format_name: str) -> None:
    container = formats.get(format_name)
    assert container.name == format_name
    assert container.suffix.startswith(".")
    assert container.max_payload_bytes >= 2**32 - 1
    assert all(isinstance(key, str) and isinstance(value, str) for key, value in container.versions().items())
    assert type(container.has_shards) is bool
    default = [formats.get(name).suffix for name in formats.names()]
    assert len(set(default)) == len(default)


def test_each_finished_file_is_given_to_be_synced_once(format_name: str, tmp_path: Path) -> None:
    shards = _write(format_name, tmp_path, [npy([i]) for i in range(5)], finish=True)
    assert sorted(shard.path.name for shard in shards) == sorted(path.name for path in tmp_path.iterdir())
    assert len({shard.path for shard in shards}) == len(shards)
    assert sum(len(shard.extents) for shard in shards) == 5


def test_a_payload_of_no_bytes_has_the_extent_zero(format_name: str, tmp_path: Path) -> None:
    """No file of no bytes is packed today; a field of a sample may be empty tomorrow."""
    payloads = [b"", b"one", b"", b"", b"two\0", b""]
    shards = _write(format_name, tmp_path, payloads, finish=True)
    extents = [extent for shard in shards for extent in shard.extents]
    assert [(extent.offset, extent.size, extent.shard) for extent in extents if not extent.size] == [(0, 0, 0)] * 4
    files = [shard.path.read_bytes() for shard in shards]
    assert [files[extent.shard][extent.offset :][: extent.size] for extent in extents] == payloads
    native = formats.get(format_name).read_native(tmp_path, [shard.path.name for shard in shards], b"")
    assert [sample.payload for sample in native] == payloads


def test_a_writer_can_be_closed_unfinished_and_twice(format_name: str, tmp_path: Path) -> None:
    _write(format_name, tmp_path, [npy([i]) for i in range(5)], finish=False)


class _Shard(NamedTuple):
    path: Path
    extents: list[Extent]


def _write(format_name: str, folder: Path, payloads: list[bytes], *, finish: bool) -> list[_Shard]:
    done: list[_Shard] = []

    def shard_done(path: Path, extents: Iterable[Extent], header: bytes = b"") -> None:
        assert header == b""
        done.append(_Shard(path, list(extents)))

    plan = WritePlan(folder, [len(payload) for payload in payloads], [], [], ShardLimits(), shard_done)
    writer = formats.get(format_name).open_writer(plan)
    try:
        for i, payload in enumerate(payloads):
            writer.append(Sample(i, b"%d.npy" % i, NO_LABEL, TYPES_BY_NAME["npy"], len(payload)), payload)
        if finish:
            writer.finish()
    finally:
        writer.close()
        writer.close()
    return done


# What users of the three libraries see


def test_every_independent_look_is_at_a_format_that_exists() -> None:
    assert set(INDEPENDENT_LOOKS) <= set(formats.names())


def test_lmdb_holds_nothing_but_samples_under_numbered_keys(tmp_path: Path) -> None:
    output = pack_and_compare(tmp_path, "lmdb", {b"c/b.jpg": jpeg(), b"c/a.npy": npy([1]), b"c/c.jpg": png()})
    before = sorted(path.name for path in output.iterdir())
    environment = lmdb.open(str(output), readonly=True, lock=False)
    with environment.begin() as transaction:
        keys = list(transaction.cursor().iternext(keys=True, values=False))
    environment.close()
    assert keys == [b"000000000.npy", b"000000001.jpg", b"000000002.png"]  # the extension is that of the content
    assert sorted(path.name for path in output.iterdir()) == before
    assert "lock.mdb" not in before


@pytest.mark.parametrize("size", [10, 700, 3000, 5000, 70_000])
def test_lmdb_takes_little_more_room_than_its_payloads(tmp_path: Path, size: int) -> None:
    files = {b"c/%04d.npy" % i: npy(np.full(size, i % 256, np.uint8)) for i in range(max(20, 2_000_000 // (size + 2000)))}
    output = pack_and_compare(tmp_path, "lmdb", files)
    assert (output / "data.mdb").stat().st_size < 1.5 * sum(map(len, files.values())) + 1_000_000


@pytest.mark.parametrize("dtype", ["<f4", "<f2", "<i8", "|b1", "<c16"])
@pytest.mark.parametrize("shape", [(2, 3), (), (4,), (0,), (600, 150)])
def test_hdf5_shows_uniform_arrays_as_one_array(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    count = 3 if shape != (600, 150) else 14
    arrays = [np.asarray(random.integers(0, 2, shape)).astype(dtype) for _ in range(count)]
    output = pack_and_compare(tmp_path, "hdf5", {b"c/%02d.npy" % i: npy(array) for i, array in enumerate(arrays)})
    with h5py.File(output / "data.h5", "r") as file:
        assert "offset" not in file
        assert file["data"].shape == (count, *shape)
        assert file["data"].dtype == np.dtype(dtype)
        assert file["data"].chunks is None
        assert np.array_equal(file["data"][...], np.stack(arrays))
    header = npy(arrays[0])[: -arrays[0].nbytes or None]
    assert load_manifest(output).header == header
    assert b"NUMPY" not in (output / "data.h5").read_bytes()
    assert int(np.load(output / "index.npy")["data"]["size"].sum()) == sum(array.nbytes for array in arrays)


@pytest.mark.parametrize(
    "second",
    [
        npy(np.zeros((2, 3), "<f8")),
        npy(np.zeros((3, 2), "<f4")),
        npy(np.asfortranarray(np.zeros((2, 3), "<f4"))),
        npy(np.zeros((2, 3), ">f4")),
        jpeg(),
    ],
    ids=["dtype", "shape", "order", "byte order", "picture"],
)
def test_hdf5_keeps_whole_files_where_one_differs(tmp_path: Path, second: bytes) -> None:
    first = npy(np.ones((2, 3), "<f4"))
    output = pack_and_compare(tmp_path, "hdf5", {b"c/0.npy": first, b"c/1.npy": second})
    assert load_manifest(output).header == b""
    with h5py.File(output / "data.h5", "r") as file:
        assert (file["data"].dtype, file["data"].shape) == (np.uint8, (len(first) + len(second),))


@pytest.mark.parametrize("kind", ["Fortran", "big-endian float", "Fortran, big-endian"])
def test_hdf5_keeps_whole_files_where_plain_h5py_would_show_other_elements(tmp_path: Path, kind: str) -> None:
    """Uniform, but column by column, or in an order of bytes that torch does not take."""
    array = ARRAYS[kind]
    output = pack_and_compare(tmp_path, "hdf5", {b"c/%d.npy" % i: npy(array) for i in range(3)})
    assert load_manifest(output).header == b""
    with h5py.File(output / "data.h5", "r") as file:
        assert (file["data"].dtype, file["data"].shape) == (np.uint8, (3 * len(npy(array)),))


@pytest.mark.parametrize("count", [1, 3, 40])
@pytest.mark.parametrize("elements", [1, 10_000])
def test_hdf5_puts_headers_back_when_a_later_file_differs(tmp_path: Path, count: int, elements: int) -> None:
    """The first files were one array so far: 40 of 80 kB are more than what is written through h5py."""
    files = {b"c/%02d.npy" % i: npy(np.full(elements, i, "<f8")) for i in range(count)}
    files |= {b"d/0.jpg": jpeg(), b"d/1.npy": files[b"c/00.npy"], b"d/2.npy": npy([True])}
    output = pack_and_compare(tmp_path, "hdf5", files)
    assert load_manifest(output).header == b""
    assert not (output / "data.tmp").exists()


@pytest.mark.parametrize("total", [2**20 - 1, 2**20, 2**20 + 1, 2**21 - 1])
@pytest.mark.parametrize("uniform", [True, False])
def test_hdf5_keeps_all_bytes_around_its_alignment(tmp_path: Path, total: int, uniform: bool) -> None:
    random = np.random.default_rng(0)
    if uniform:
        files = {b"c/0.npy": npy(random.integers(0, 256, total, np.uint8))}
    else:
        small = jpeg()
        rest = total - len(small) - 128
        files = {b"c/0.jpg": small, b"c/1.npy": npy(random.integers(0, 256, rest, np.uint8))}
    output = pack_and_compare(tmp_path, "hdf5", files)
    with h5py.File(output / "data.h5", "r") as file:
        assert file["data"].nbytes == total


def test_hdf5_has_no_variable_length_types_and_no_attributes(tmp_path: Path) -> None:
    output = pack_and_compare(tmp_path, "hdf5", mixed_files())
    with h5py.File(output / "data.h5", "r") as file:
        assert sorted(file) == ["classes", "data", "label", "name", "offset"]
        assert not file.attrs
        for dataset in file.values():
            assert not dataset.attrs
            assert h5py.h5g.get_objinfo(file.id, dataset.name.encode()).mtime == 0  # two runs give the same bytes
            assert h5py.check_dtype(vlen=dataset.dtype) is None
            assert (string := h5py.check_string_dtype(dataset.dtype)) is None or string.length
        assert file["data"].chunks is None
        assert (file["offset"].dtype, file["label"].dtype) == (np.dtype("<u8"), np.dtype("<i8"))


def test_hdf5_has_no_label_where_there_are_none(tmp_path: Path) -> None:
    output = pack_and_compare(tmp_path, "hdf5", {b"a.jpg": jpeg(), b"b.jpg": jpeg(seed=1)}, labels=False)
    with h5py.File(output / "data.h5", "r") as file:
        assert sorted(file) == ["data", "name", "offset"]


def test_tar_members_are_plain_ustar_with_fixed_owner_mode_and_time(tmp_path: Path) -> None:
    names = {b"c/" + b"/".join([b"x" * 200] * 4) + b".jpg": jpeg(), b"c/\xff.npy": npy([1]), b"d/\xc3\xa4.png": png()}
    output = pack_and_compare(tmp_path, "webdataset", names)
    content = (output / "shard-000000.tar").read_bytes()
    assert len(content) % 10_240 == 0
    with tarfile.open(output / "shard-000000.tar", "r:") as tar:
        members = tar.getmembers()
    assert [member.name for member in members] == [
        f"{i:09d}.{extension}" for i, kind in enumerate(("jpg", "npy", "png")) for extension in (kind, "cls", "json")
    ]
    for member in members:
        assert member.pax_headers == {}
        assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")
        assert (member.mode, member.mtime, member.type) == (0o644, 0, tarfile.REGTYPE)
        plain = tarfile.TarInfo(member.name)
        plain.size = member.size
        assert content[member.offset : member.offset + 512] == plain.tobuf(tarfile.USTAR_FORMAT)
        assert member.offset_data == member.offset + 512


def test_webdataset_keeps_path_and_class_as_ascii_json(tmp_path: Path) -> None:
    output = pack_and_compare(tmp_path, "webdataset", {b"\xff/1%.npy": npy([1]), b"\xc3\xa4/2%.npy": npy([2])})
    with tarfile.open(output / "shard-000000.tar", "r:") as tar:
        found = [tar.extractfile(f"{i:09d}.json").read() for i in range(2)]
    assert found == [
        b'{"class":"\\u00e4","path":"\\u00e4/2%.npy"}',
        b'{"class":"%FF","path":"%FF/1%25.npy","encoding":"percent"}',
    ]


def test_webdataset_counts_keys_over_all_shards(tmp_path: Path) -> None:
    files = {b"c/%d.jpg" % i: jpeg(seed=i) for i in range(5)}
    output = pack_and_compare(tmp_path, "webdataset", files, limits=ShardLimits(samples=2))
    assert [shard.file for shard in load_manifest(output).shards] == [f"shard-{i:06d}.tar" for i in range(3)]
