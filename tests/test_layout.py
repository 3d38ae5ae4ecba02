"""The layout as it is documented: made by hand from the words, and read by our reader; made by our writer, and read by hand.

What stands here is written from the docstrings of ``packer.index``, ``packer.manifest`` and the modules in
``packer.formats``, with ``struct``, ``json`` and the containers' own libraries. Where a number here and one there differ, a
dataset of today will not be readable tomorrow: then the layout version changes, and not this file.
"""

from __future__ import annotations

import base64
import io
import json
import re
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import lmdb
import numpy as np
import pytest
import xxhash

import packer.index
import packer.manifest
from packer import CorruptDatasetError, PackedDataset, open_dataset, verify_dataset
from packer.index import RECORD
from packer.manifest import load_manifest
from packer.model import MODES, TYPES
from tests.inputs import jpeg, npy, pack, photo, png, write_tree

ARRAY = npy(np.arange(3, dtype="<f4"))
PICTURE = jpeg()
NAMES = (b"cat/a.npy", b"dog/\xff.jpg")
"""Two tiny samples: an array of class 0 and a picture of class 1."""

CLASSES = ["cat", "dog"]
RECORD_BYTES = 64
HEADER_BYTES = 512


class Record(NamedTuple):
    """The documented fields in the documented order."""

    name_end: int
    label: int
    shard: int
    type: int
    mode: int
    orientation: int
    reserved: int
    width: int
    height: int
    frames: int
    reserved2: int
    offset: int
    size: int
    digest: int


FIELDS = {
    "name_end": (0, "<Q"),
    "label": (8, "<q"),
    "shard": (16, "<I"),
    "type": (20, "<B"),
    "mode": (21, "<B"),
    "orientation": (22, "<B"),
    "reserved": (23, "<B"),
    "width": (24, "<I"),
    "height": (28, "<I"),
    "frames": (32, "<I"),
    "reserved2": (36, "<I"),
    "offset": (40, "<Q"),
    "size": (48, "<Q"),
    "digest": (56, "<Q"),
}


def index_by_hand(records: list[Record]) -> bytes:
    fields = (
        "[('name_end', '<u8'), ('label', '<i8'), ('data', [('shard', '<u4'), ('type', '|u1'), ('mode', '|u1'), "
        "('orientation', '|u1'), ('reserved', '|u1'), ('width', '<u4'), ('height', '<u4'), ('frames', '<u4'), "
        "('reserved2', '<u4'), ('offset', '<u8'), ('size', '<u8'), ('digest', '<u8')])]"
    )
    text = f"{{'descr': {fields}, 'fortran_order': False, 'shape': ({len(records)},), }}".encode()
    header = b"\x93NUMPY\x01\x00" + (HEADER_BYTES - 10).to_bytes(2, "little") + text.ljust(HEADER_BYTES - 11) + b"\n"
    body = bytearray(RECORD_BYTES * len(records))
    for i, record in enumerate(records):
        for name, (at, code) in FIELDS.items():
            struct.pack_into(code, body, RECORD_BYTES * i + at, getattr(record, name))
    return header + body


def read(index: bytes, start: int, name: str) -> int:
    at, code = FIELDS[name]
    value: int = struct.unpack_from(code, index, start + at)[0]
    return value


def records_by_hand(places: list[tuple[int, int]]) -> list[Record]:
    """The two samples with their (offset, size) in the only shard."""
    (array_at, array_size), (picture_at, picture_size) = places
    array = Record(9, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, array_at, array_size, xxhash.xxh3_64_intdigest(ARRAY))
    picture = Record(18, 1, 0, 1, 6, 1, 0, 64, 48, 1, 0, picture_at, picture_size, xxhash.xxh3_64_intdigest(PICTURE))
    return [array, picture]


def dataset_by_hand(folder: Path, format_name: str, shard: str, places: list[tuple[int, int]], **changes: Any) -> None:
    """Index, names, report and manifest beside a container that is there already."""
    index, names = index_by_hand(records_by_hand(places)), b"".join(NAMES)
    files = {"index.npy": index, "names.bin": names, "report.jsonl": b""}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    container = (folder / shard).read_bytes()
    content = xxhash.xxh3_128(b'["cat","dog"]')
    content.update(names)
    for values, code in (((9, 18), "<Q"), ((0, 1), "<q")):
        content.update(b"".join(struct.pack(code, value) for value in values))
    content.update(b"".join(struct.pack("<Q", xxhash.xxh3_64_intdigest(data)) for data in (ARRAY, PICTURE)))
    manifest = {
        "layout": 1,
        "format": format_name,
        "samples": 2,
        "classes": CLASSES,
        "labels": "folder",
        "fields": [{"name": "data", "header": ""}],
        "shards": [{"file": shard, "bytes": len(container), "samples": 2, "digest": xxhash.xxh3_128_hexdigest(container)}],
        "files": {name: {"bytes": len(data), "digest": xxhash.xxh3_128_hexdigest(data)} for name, data in files.items()},
        "options": {},
        "versions": {},
        "content_digest": content.hexdigest(),
        **changes,
    }
    (folder / "manifest.json").write_text(json.dumps({**manifest, "digest": own_digest(manifest)}), "ascii")


def own_digest(manifest: dict[str, Any]) -> str:
    content = {key: value for key, value in manifest.items() if key != "digest"}
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii"))


# Containers as their docstrings describe them


def lmdb_by_hand(folder: Path) -> str:
    environment = lmdb.open(str(folder), map_size=1 << 24, lock=False)
    with environment.begin(write=True) as transaction:
        transaction.put(b"000000000.npy", ARRAY, append=True)
        transaction.put(b"000000001.jpg", PICTURE, append=True)
    environment.close()
    return "data.mdb"


def hdf5_by_hand(folder: Path) -> str:
    both = ARRAY + PICTURE
    with h5py.File(folder / "data.h5", "w") as file:
        file.create_dataset("data", data=np.frombuffer(both, np.uint8))
        file.create_dataset("offset", data=np.array([0, len(ARRAY), len(both)], "<u8"))
        file.create_dataset("label", data=np.array([0, 1], "<i8"))
        file.create_dataset("name", data=np.array(NAMES, h5py.string_dtype("utf-8", 9)))
        file.create_dataset("classes", data=np.array([b"cat", b"dog"], h5py.string_dtype("utf-8", 3)))
    return "data.h5"


def webdataset_by_hand(folder: Path) -> str:
    members = {
        "000000000.npy": ARRAY,
        "000000000.cls": b"0",
        "000000000.json": b'{"class":"cat","path":"cat/a.npy"}',
        "000000001.jpg": PICTURE,
        "000000001.cls": b"1",
        "000000001.json": b'{"class":"dog","path":"dog/%FF.jpg","encoding":"percent"}',
    }
    with tarfile.open(folder / "shard-000000.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(data), 0o644, 0
            tar.addfile(info, io.BytesIO(data))
    return "shard-000000.tar"


BY_HAND: dict[str, Callable[[Path], str]] = {"lmdb": lmdb_by_hand, "hdf5": hdf5_by_hand, "webdataset": webdataset_by_hand}


def made_by_hand(tmp_path: Path, format_name: str, **changes: Any) -> Path:
    folder = tmp_path / "by-hand"
    folder.mkdir()
    shard = BY_HAND[format_name](folder)
    content = (folder / shard).read_bytes()
    assert content.count(ARRAY) == content.count(PICTURE) == 1
    places = [(content.index(data), len(data)) for data in (ARRAY, PICTURE)]
    dataset_by_hand(folder, format_name, shard, places, **changes)
    return folder


def packed_by_us(tmp_path: Path, format_name: str) -> Path:
    source = write_tree(tmp_path / "in", dict(zip(NAMES, (ARRAY, PICTURE), strict=True)))
    return pack(source, format_name, workers=1).output


@pytest.mark.parametrize("kind", BY_HAND)
def test_a_dataset_made_by_hand_is_read(tmp_path: Path, kind: str) -> None:
    folder = made_by_hand(tmp_path, kind)
    data = open_dataset(folder, output="bytes")
    assert type(data) is not PackedDataset
    assert [data[i] for i in range(len(data))] == [(ARRAY, 0), (PICTURE, 1)]
    assert data.classes == CLASSES
    assert [name.encode("utf-8", "surrogateescape") for name in data.names] == list(NAMES)
    decoded = open_dataset(folder, output="numpy")
    assert np.array_equal(decoded[0][0], np.arange(3, dtype=np.float32))
    assert decoded[1][0].shape == (48, 64, 3)
    assert list(verify_dataset(folder)) == []


@pytest.mark.parametrize("kind", BY_HAND)
def test_our_writer_and_the_hand_make_the_same_but_for_the_places(tmp_path: Path, kind: str) -> None:
    """Index, names, report, and all of the manifest that is not about the container's bytes."""
    ours, by_hand = packed_by_us(tmp_path, kind), made_by_hand(tmp_path, kind)
    index = (ours / "index.npy").read_bytes()
    starts = (HEADER_BYTES, HEADER_BYTES + RECORD_BYTES)
    places = [(read(index, start, "offset"), read(index, start, "size")) for start in starts]
    assert index == index_by_hand(records_by_hand(places))
    for name in ("names.bin", "report.jsonl"):
        assert (ours / name).read_bytes() == (by_hand / name).read_bytes()
    mine, hands = (json.loads((folder / "manifest.json").read_text("ascii")) for folder in (ours, by_hand))
    assert list(mine) == list(hands)
    for key in ("layout", "format", "samples", "classes", "labels", "fields", "content_digest"):
        assert mine[key] == hands[key]
    assert mine["digest"] == own_digest(mine)
    assert [list(shard) for shard in mine["shards"]] == [list(shard) for shard in hands["shards"]]
    assert [(shard["file"], shard["samples"]) for shard in mine["shards"]] == [(hands["shards"][0]["file"], 2)]
    assert list(mine["files"]) == list(hands["files"])


def test_the_table_of_the_index_is_what_the_code_uses() -> None:
    """Each row of the docstring, against the dtype and against the numbers above."""
    rows = re.findall(r"^(\d+) +(?:(<u8|<i8|<u4|u1) +)?(\w+) ", packer.index.__doc__ or "", re.MULTILINE)
    found = {name: (int(at), code) for at, code, name in rows if code}
    inner = RECORD["data"]
    assert inner.names is not None
    offsets = {name: RECORD.fields[name] for name in ("name_end", "label")}  # type: ignore[index]
    offsets |= {name: (inner.fields[name][0], inner.fields[name][1] + 16) for name in inner.names}  # type: ignore[index]
    assert {name: (at, np.dtype(code)) for name, (at, code) in found.items()} == {
        name: (at, dtype) for name, (dtype, at) in offsets.items()
    }
    assert {name: at for name, (at, _) in found.items()} == {name: at for name, (at, _) in FIELDS.items()}
    assert RECORD.itemsize == RECORD_BYTES
    assert ("16", "", "data") in rows


def test_the_table_of_the_manifest_is_what_is_written(tmp_path: Path) -> None:
    text = packer.manifest.__doc__ or ""
    rows = re.findall(r"^(\w+) {2,}\S", text.split("===\nkey")[1], re.MULTILINE)
    documented = [name for name in rows if name not in ("key", "value")]
    written = json.loads((packed_by_us(tmp_path, "lmdb") / "manifest.json").read_text("ascii"))
    assert documented == list(written)


def test_numbers_of_types_and_modes_never_change() -> None:
    """They stand in the index of every dataset ever written: new ones go at the end."""
    assert [(kind.code, kind.name) for kind in TYPES][:9] == list(
        enumerate(["unknown", "jpeg", "png", "webp", "gif", "bmp", "tiff", "avif", "npy"])
    )
    assert MODES[:24] == (
        "", "1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "I;16", "I;16B", "I;16L",
        "I;16N", "La", "RGBa", "RGBX", "BGR;15", "BGR;16", "BGR;24",
    )  # fmt: skip


def test_each_field_of_a_record_is_where_the_table_says(tmp_path: Path) -> None:
    """A picture with an unusual value in every field."""
    exif = photo().getexif()
    exif[0x0112] = 6
    files = {b"a/1.npy": npy([1.0]), b"b/2.jpg": jpeg(photo(300, 200), exif=exif), b"c/3.gif": gif_of_three_frames()}
    output = pack(write_tree(tmp_path / "in", files), "webdataset", workers=1).output
    index = (output / "index.npy").read_bytes()
    assert len(index) == HEADER_BYTES + 3 * RECORD_BYTES
    found = [Record(*(read(index, HEADER_BYTES + RECORD_BYTES * i, name) for name in FIELDS)) for i in range(3)]
    shard = (output / "shard-000000.tar").read_bytes()
    at = [shard.index(data) for data in files.values()]
    size = [len(data) for data in files.values()]
    digest = [xxhash.xxh3_64_intdigest(data) for data in files.values()]
    assert found == [
        Record(7, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, at[0], size[0], digest[0]),
        Record(14, 1, 0, 1, 6, 6, 0, 300, 200, 1, 0, at[1], size[1], digest[1]),
        Record(21, 2, 0, 4, found[2].mode, 1, 0, 30, 20, 3, 0, at[2], size[2], digest[2]),
    ]
    assert MODES[found[2].mode] in ("P", "RGB", "L")


def gif_of_three_frames() -> bytes:
    buffer = io.BytesIO()
    frames = [photo(30, 20, seed=seed) for seed in range(3)]
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    return buffer.getvalue()


def test_a_shared_header_stands_in_the_manifest_as_base64(tmp_path: Path) -> None:
    arrays = [np.full((2, 3), i, "<f4") for i in range(3)]
    output = pack(write_tree(tmp_path / "in", {f"{i}.npy": npy(a) for i, a in enumerate(arrays)}), "hdf5", workers=1).output
    manifest = json.loads((output / "manifest.json").read_text("ascii"))
    header = base64.b64decode(manifest["fields"][0]["header"], validate=True)
    index, container = (output / "index.npy").read_bytes(), (output / "data.h5").read_bytes()
    for i, array in enumerate(arrays):
        start = HEADER_BYTES + RECORD_BYTES * i
        at, size = read(index, start, "offset"), read(index, start, "size")
        assert header + container[at : at + size] == npy(array)
        assert read(index, start, "digest") == xxhash.xxh3_64_intdigest(npy(array))  # of the whole file, header included
        assert read(index, start, "label") == -1


def test_bytes_of_a_class_name_that_are_no_utf8_stand_as_surrogates(tmp_path: Path) -> None:
    output = pack(write_tree(tmp_path / "in", {b"\x80/1.npy": npy([1]), b"\xc3\xa4/2.npy": npy([2])}), "lmdb", workers=1).output
    assert b'"\\udc80"' in (output / "manifest.json").read_bytes()
    assert load_manifest(output).classes == ("\udc80", "ä")


def test_a_report_row_has_path_outcome_code_and_detail(tmp_path: Path) -> None:
    files = {b"a/1.npy": npy([1.0]), b"a/\xff.jpg": b"", b"b/x.png": jpeg(), b"b/y.jpg": jpeg(seed=1)}
    output = pack(write_tree(tmp_path / "in", files), "lmdb", workers=1).output
    data = (output / "report.jsonl").read_bytes()
    assert data.isascii()
    rows = [json.loads(line) for line in data.splitlines()]
    assert [tuple(row) for row in rows] == [("path", "outcome", "code", "detail")] * 2
    assert [list(row.values())[:3] for row in rows] == [
        ["a/\udcff.jpg", "skipped", "empty_file"],
        ["b/x.png", "warned", "extension_mismatch"],
    ]


def test_no_address_of_this_process_stands_in_the_report(tmp_path: Path) -> None:
    """Pillow names the object that it was given; the same input would then give another report each time."""
    whole = png()
    files = {}
    for kind in (b"iCCP", b"gAMA", b"tEXt", b"zTXt", b"iTXt", b"eXIf", b"pHYs", b"tRNS", b"acTL", b"sBIT"):
        chunk = len(b"abc").to_bytes(4, "big") + kind + b"abc" + zlib.crc32(kind + b"abc").to_bytes(4, "big")
        files[b"a/" + kind + b".png"] = whole[:33] + chunk + whole[33:]
    for i, damaged in enumerate((b"GIF89a" + bytes(9), b"BM" + bytes(12) + b"(", b"II*\0" + bytes(40), b"RIFF....WEBPVP8 ")):
        files[b"b/%d.gif" % i] = damaged
    output = pack(write_tree(tmp_path / "in", {**files, b"a/a.png": whole}), "lmdb", workers=1).output
    rows = [json.loads(line) for line in (output / "report.jsonl").read_bytes().splitlines()]
    assert len(rows) > 5
    assert [row for row in rows if re.search(r"0x[0-9a-f]{6}|object at|/tmp|\bpid\b", row["detail"])] == []


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"layout": 2}, "layout version 2"),
        ({"samples": 3}, "3 samples, but the shards have 2"),
        ({"labels": "guess"}, "labels 'guess'"),
        ({"fields": [{"name": "mask", "header": ""}]}, "a field 'mask'"),
        ({"shards": [{"file": "../x", "bytes": 1, "samples": 2, "digest": ""}]}, "no plain file name"),
    ],
)
def test_a_manifest_that_leaves_the_layout_is_refused(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    folder = made_by_hand(tmp_path, "webdataset", **changes)
    with pytest.raises(CorruptDatasetError, match=problem):
        open_dataset(folder)


def test_a_manifest_changed_by_hand_is_noticed(tmp_path: Path) -> None:
    folder = made_by_hand(tmp_path, "webdataset")
    path = folder / "manifest.json"
    path.write_text(path.read_text("ascii").replace('"dog"', '"cow"'), "ascii")
    with pytest.raises(CorruptDatasetError, match="the digest differs"):
        open_dataset(folder)
