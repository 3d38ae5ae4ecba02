"""The layout as it is documented: made by hand from the words, and read by our reader; made by our writer, and read by hand.

What stands here is written from the docstrings of ``packer.index``, ``packer.manifest``, ``packer.report`` and the modules in
``packer.formats``, with ``struct``, ``json`` and the containers' own libraries; their example is made of the same two samples
and one empty file. Where a number here and one there differ, a dataset of today will not be readable tomorrow: then the layout
version changes, and not this file.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import shutil
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

import packer.formats.hdf5
import packer.formats.lmdb
import packer.formats.webdataset
import packer.index
import packer.manifest
import packer.report
from packer import CorruptDatasetError, CorruptSampleError, DatasetError, PackedDataset, formats, open_dataset, verify_dataset
from packer.index import RECORD
from packer.manifest import load_manifest
from packer.model import MODES, TYPES
from tests.forgery import forge
from tests.inputs import jpeg, npy, pack, pack_here, photo, png, write_tree
from tests.test_damage import copy_of

ARRAY = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }".ljust(117) + b"\n"
ARRAY += struct.pack("<2f", 1, 2)
PICTURE = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000002000000010800000000d14920560000000e494441547801010300fcff0080ff0202018056bc16e1"
    "0000000049454e44ae426082"
)
NAMES = (b"cat/a.npy", b"dog/\xff.png")
"""Two tiny samples: an array of class 0 and a picture of class 1."""

FILES = {NAMES[0]: ARRAY, NAMES[1]: PICTURE, b"dog/void.jpg": b""}
REPORT = b'{"path": "dog/void.jpg", "outcome": "skipped", "code": "empty_file", "detail": "0 bytes"}\n'
OPTIONS = {"check": "full", "labels": "auto", "max_pixels": 178_956_970, "follow_links": False}
TAR_OPTIONS = {"shard_bytes": 1_000_000_000, "shard_samples": 0}
TAR_PLACES = [(512, 136), (3584, 71)]
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
    picture = Record(18, 1, 0, 2, 2, 1, 0, 2, 1, 1, 0, picture_at, picture_size, xxhash.xxh3_64_intdigest(PICTURE))
    return [array, picture]


def dataset_by_hand(folder: Path, format_name: str, shard: str, places: list[tuple[int, int]], **changes: Any) -> None:
    """Index, names, report and manifest beside a container that is there already."""
    index, names = index_by_hand(records_by_hand(places)), b"".join(NAMES)
    files = {"index.npy": index, "names.bin": names, "report.jsonl": REPORT}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    container = (folder / shard).read_bytes()
    manifest = {
        "layout": 1,
        "format": format_name,
        "samples": 2,
        "classes": CLASSES,
        "labels": "folder",
        "fields": [{"name": "data", "header": ""}],
        "shards": [{"file": shard, "bytes": len(container), "samples": 2, "digest": xxhash.xxh3_128_hexdigest(container)}],
        "files": {name: {"bytes": len(data), "digest": xxhash.xxh3_128_hexdigest(data)} for name, data in files.items()},
        "options": OPTIONS | (TAR_OPTIONS if format_name == "webdataset" else {}),
        "versions": {"tar": "ustar"} if format_name == "webdataset" else {},
        "content_digest": xxhash.xxh3_128_hexdigest(content_by_hand()),
        **changes,
    }
    text = json.dumps({**manifest, "digest": own_digest(manifest)}, indent=1)
    (folder / "manifest.json").write_bytes(text.encode("ascii") + b"\n")


def columns_by_hand() -> list[bytes]:
    """Ends of the names, labels, digests."""
    digests = [xxhash.xxh3_64_intdigest(data) for data in (ARRAY, PICTURE)]
    return [struct.pack("<2Q", 9, 18), struct.pack("<2q", 0, 1), struct.pack("<2Q", *digests)]


def content_by_hand() -> bytes:
    """What the content digest is made of."""
    return b"".join([b'["cat","dog"]', *NAMES, *columns_by_hand()])


def digested(manifest: dict[str, Any]) -> bytes:
    """What the manifest's own digest is made of."""
    content = {key: value for key, value in manifest.items() if key != "digest"}
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii")


def own_digest(manifest: dict[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(digested(manifest))


# Containers as their docstrings describe them


def lmdb_by_hand(folder: Path) -> str:
    environment = lmdb.open(str(folder), map_size=1 << 24, lock=False)
    with environment.begin(write=True) as transaction:
        transaction.put(b"000000000.npy", ARRAY, append=True)
        transaction.put(b"000000001.png", PICTURE, append=True)
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
        "000000001.png": PICTURE,
        "000000001.cls": b"1",
        "000000001.json": b'{"class":"dog","path":"dog/%FF.png","encoding":"percent"}',
    }
    (folder / "shard-000000.tar").write_bytes(tar_by_hand(members))
    return "shard-000000.tar"


def tar_by_hand(members: dict[str, bytes]) -> bytes:
    """All that these tests make is less than 10,240 bytes."""
    tar = b"".join(tar_header(name, len(data)) + data + bytes(-len(data) % 512) for name, data in members.items())
    return tar.ljust(10_240, b"\0")


def tar_header(name: str, size: int) -> bytes:
    parts = {0: name.encode(), 100: b"0000644\0", 108: b"0000000\0" * 2, 124: b"%011o\0" % size, 136: b"%011o\0" % 0}
    parts |= {148: b" " * 8, 156: b"0", 257: b"ustar\0" + b"00"}
    header = bytearray(512)
    for at, part in parts.items():
        header[at : at + len(part)] = part
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


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


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same input packed by our writers, by format. Nothing is written there."""
    root = tmp_path_factory.mktemp("layout")
    write_tree(root / "in", FILES)
    return {name: pack_here(root / "in", name).output for name in formats.names()}


@pytest.mark.parametrize("kind", BY_HAND)
def test_a_dataset_made_by_hand_is_read(tmp_path: Path, kind: str) -> None:
    folder = made_by_hand(tmp_path, kind)
    data = open_dataset(folder, output="bytes")
    assert type(data) is not PackedDataset
    assert [data[i] for i in range(len(data))] == [(ARRAY, 0), (PICTURE, 1)]
    assert data.classes == CLASSES
    assert [name.encode("utf-8", "surrogateescape") for name in data.names] == list(NAMES)
    decoded = open_dataset(folder, output="numpy")
    assert np.array_equal(decoded[0][0], np.array([1, 2], np.float32))
    assert decoded[1][0].tolist() == [[[128] * 3, [255] * 3]]
    assert list(verify_dataset(folder, level="native")) == []


@pytest.mark.parametrize("kind", BY_HAND)
def test_our_writer_and_the_hand_make_the_same_bytes_around_a_container(
    ours: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    """Index, names, report and manifest, all of each; nothing else stands beside the container."""
    packed = ours[kind]
    manifest = json.loads((packed / "manifest.json").read_text("ascii"))
    index = (packed / "index.npy").read_bytes()
    starts = (HEADER_BYTES, HEADER_BYTES + RECORD_BYTES)
    places = [(read(index, start, "offset"), read(index, start, "size")) for start in starts]
    by_hand = tmp_path / "by-hand"
    by_hand.mkdir()
    shard = manifest["shards"][0]["file"]
    shutil.copyfile(packed / shard, by_hand / shard)
    dataset_by_hand(by_hand, kind, shard, places, versions=manifest["versions"])
    assert {path.name: path.read_bytes() for path in packed.iterdir()} == {
        path.name: path.read_bytes() for path in by_hand.iterdir()
    }


def test_our_writer_and_the_hand_make_the_same_tar_dataset(ours: dict[str, Path], tmp_path: Path) -> None:
    for path in made_by_hand(tmp_path, "webdataset").iterdir():
        assert path.read_bytes() == (ours["webdataset"] / path.name).read_bytes(), path.name


def test_the_tar_of_a_folder_without_labels_is_what_the_hand_makes(tmp_path: Path) -> None:
    """No class anywhere, bytes that are no UTF-8 in the name beside those that percent-encoding leaves alone or must not."""
    output = pack(write_tree(tmp_path / "in", {b"-a_b~ c%\xff\xc3\xa4+.npy": ARRAY}), "webdataset", workers=1).output
    metadata = b'{"path":"-a_b~ c%25%FF%C3%A4%2B.npy","encoding":"percent"}'
    members = {"000000000.npy": ARRAY, "000000000.json": metadata}
    assert (output / "shard-000000.tar").read_bytes() == tar_by_hand(members)


# The docstrings


def example(module: Any, after: str) -> list[str]:
    """The lines of the first literal block in a docstring that follows on some words, without their indentation."""
    _, found, rest = (module.__doc__ or "").partition(after)
    assert found, after
    block = re.search(r"::\n\n((?: {4}.*\n)+)", rest)
    assert block, after
    return [line[4:] for line in block[1].splitlines()]


def test_the_example_of_the_index_is_what_the_hand_makes() -> None:
    assert bytes.fromhex("".join(example(packer.index, "two grey pixels"))) == PICTURE
    index = index_by_hand(records_by_hand(TAR_PLACES))
    assert bytes.fromhex("".join(example(packer.index, "In the tar shard"))) == index[HEADER_BYTES:]
    text = " ".join(example(packer.index, "It begins with 512 bytes")).replace("(N,)", "(2,)").encode()
    assert index[10:HEADER_BYTES] == text.ljust(HEADER_BYTES - 11) + b"\n"
    assert f"``{index[:10].hex(' ')}``" in re.sub(r"\s+", " ", packer.index.__doc__ or "")


def test_the_numbers_of_types_and_modes_in_the_docstring_are_those_of_the_code() -> None:
    text = re.sub(r"\s+", " ", packer.index.__doc__ or "")
    types = text.split("Types: ")[1].split(". ")[0].split(", ")
    modes = text.split("as Pillow calls them: ")[1].split(". ")[0].split(", ")
    assert types == [f"{kind.code} {kind.name}" for kind in TYPES]
    assert modes == ["0 unknown", *(f"{code} ``{mode}``" for code, mode in enumerate(MODES) if mode)]
    for module in (packer.formats.lmdb, packer.formats.webdataset):
        assert " ".join(kind.extension for kind in TYPES[1:]) in re.sub(r"\s+", " ", module.__doc__ or "")


def test_the_example_of_the_manifest_is_what_the_hand_makes(tmp_path: Path) -> None:
    manifest = json.loads((made_by_hand(tmp_path, "webdataset") / "manifest.json").read_bytes())
    assert "".join(example(packer.manifest, "The bytes that")).encode() == digested(manifest)
    assert f"Its ``digest`` is ``{own_digest(manifest)}``" in (packer.manifest.__doc__ or "")
    columns = [bytes.fromhex(line) for line in example(packer.manifest, "The ``content_digest`` is made of")]
    assert columns == columns_by_hand()


def test_the_example_of_the_report_is_what_the_hand_makes() -> None:
    assert [line.encode() + b"\n" for line in example(packer.report, "Example")] == [REPORT]


def test_the_example_of_the_tar_is_what_tar_reads(tmp_path: Path) -> None:
    folder = made_by_hand(tmp_path, "webdataset")
    found = []
    with tarfile.open(folder / "shard-000000.tar") as tar:
        for member in tar:
            data = tar.extractfile(member).read()  # type: ignore[union-attr]
            what = f"({len(data)} bytes)" if member.name.endswith(("npy", "png")) else data.decode()
            found.append([str(member.offset), str(member.offset_data), member.name, what])
    rows = [line.split(maxsplit=3) for line in example(packer.formats.webdataset, "Example")]
    assert rows[:-1] == found
    content = (folder / "shard-000000.tar").read_bytes()
    assert rows[-1][0] == str(len(content.rstrip(b"\0")) + -len(content.rstrip(b"\0")) % 512)
    assert f"``{content[148:154].decode()}``" in (packer.formats.webdataset.__doc__ or "")


def test_the_table_of_the_tar_header_is_what_our_writer_writes(ours: dict[str, Path]) -> None:
    """Each row's bytes at its place, and nothing but zeros elsewhere."""
    content = (ours["webdataset"] / "shard-000000.tar").read_bytes()
    rows = re.findall(r"^(\d+) +(\d+) +(.*)$", packer.formats.webdataset.__doc__ or "", re.MULTILINE)
    assert [(int(at), int(size)) for at, size, _ in rows] == [
        (0, 100),
        (100, 24),
        (124, 12),
        (136, 12),
        (148, 8),
        (156, 1),
        (257, 8),
    ]
    header = bytearray(content[:512])
    for at, size, text in rows:
        start, end = int(at), int(at) + int(size)
        literal = "".join(re.findall(r"``([^`]*)``", text)).replace("\\0", "\0").encode()
        if len(literal) == int(size):
            assert header[start:end] == literal
        header[start:end] = bytes(int(size))
    assert not any(header)


def test_the_example_of_hdf5_is_what_h5py_reads(ours: dict[str, Path]) -> None:
    with h5py.File(ours["hdf5"] / "data.h5") as file:
        assert sorted(file) == ["classes", "data", "label", "name", "offset"]
        assert (file["data"].size, file["offset"][:].tolist(), file["label"][:].tolist()) == (207, [0, 136, 207], [0, 1])
        assert (file["classes"][:].tolist(), file["name"][:].tolist()) == ([b"cat", b"dog"], list(NAMES))
        for name, dtype in {"data": "|u1", "offset": "<u8", "label": "<i8", "classes": "S3", "name": "S9"}.items():
            assert file[name].dtype == np.dtype(dtype)
        for name in ("classes", "name"):
            kind = file[name].id.get_type()
            assert (kind.get_strpad(), kind.get_cset()) == (h5py.h5t.STR_NULLPAD, h5py.h5t.CSET_UTF8)
            assert (file[name].compression, file[name].compression_opts) == ("gzip", 1)
        rows = re.findall(r"^``(\w+)`` {2,}", packer.formats.hdf5.__doc__ or "", re.MULTILINE)
        assert sorted(rows) == sorted(file)


def test_the_example_of_lmdb_is_what_lmdb_reads(ours: dict[str, Path]) -> None:
    with (
        lmdb.open(str(ours["lmdb"]), readonly=True, lock=False) as environment,
        environment.begin() as reading,
    ):
        assert list(reading.cursor()) == [(b"000000000.npy", ARRAY), (b"000000001.png", PICTURE)]


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


def table(module: Any, heading: str) -> list[str]:
    """First words of the rows of a table in a docstring."""
    rows = (module.__doc__ or "").split(f"===\n{heading} ")[1].split("\n\n")[0]
    return re.findall(r"^(\w+) {2,}\S", rows, re.MULTILINE)


def test_the_table_of_the_manifest_is_what_is_written(ours: dict[str, Path]) -> None:
    written = json.loads((ours["lmdb"] / "manifest.json").read_text("ascii"))
    assert table(packer.manifest, "key") == list(written)


def test_the_options_in_the_docstring_are_those_that_can_be_written(tmp_path: Path) -> None:
    """Every option given that shapes an output."""
    source = write_tree(tmp_path / "in", FILES)
    classes = tmp_path / "classes.txt"
    classes.write_text("cat\ndog\n")
    sums = tmp_path / "sums"
    sums.write_bytes(b"%b  cat/a.npy\n" % hashlib.sha256(ARRAY).hexdigest().encode())
    more = {"skip": ["nonfinite"], "classes_from": classes, "checksums": sums, "shuffle": 1}
    options = json.loads((pack(source, "webdataset", workers=1, **more).output / "manifest.json").read_bytes())["options"]
    text = (packer.manifest.__doc__ or "").split("``options`` has ")[1].split("\n\n")[0]
    assert set(re.findall(r"``(\w+)``", text)) == set(options)


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
    output = pack_here(write_tree(tmp_path / "in", files), "webdataset").output
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
    output = pack_here(write_tree(tmp_path / "in", {f"{i}.npy": npy(a) for i, a in enumerate(arrays)}), "hdf5").output
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
    output = pack_here(write_tree(tmp_path / "in", {b"\x80/1.npy": npy([1]), b"\xc3\xa4/2.npy": npy([2])}), "lmdb").output
    assert b'"\\udc80"' in (output / "manifest.json").read_bytes()
    assert load_manifest(output).classes == ("\udc80", "ä")


def test_a_report_row_has_path_outcome_code_and_detail(tmp_path: Path) -> None:
    files = {b"a/1.npy": npy([1.0]), b"a/\xff.jpg": b"", b"b/x.png": jpeg(), b"b/y.jpg": jpeg(seed=1)}
    output = pack_here(write_tree(tmp_path / "in", files), "lmdb").output
    data = (output / "report.jsonl").read_bytes()
    assert data.isascii()
    rows = [json.loads(line) for line in data.splitlines()]
    assert [list(row) for row in rows] == [table(packer.report, "key")] * 2
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
    output = pack_here(write_tree(tmp_path / "in", {**files, b"a/a.png": whole}), "lmdb").output
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


# What is added to version 1, and what comes after it


def test_a_reader_of_today_ignores_keys_that_it_does_not_know(ours: dict[str, Path], tmp_path: Path, format_name: str) -> None:
    """In the manifest and the objects in it, and in the report: so can version 1 be added to."""
    folder = copy_of(ours[format_name], tmp_path / "work")
    report = json.dumps({**json.loads(REPORT), "reader": {"needs": ["nothing"]}}).encode() + b"\n"
    (folder / "report.jsonl").write_bytes(report)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["files"]["report.jsonl"] = {"bytes": len(report), "digest": xxhash.xxh3_128_hexdigest(report), "rows": 1}
    for known in (manifest, manifest["fields"][0], manifest["shards"][0], manifest["options"], manifest["versions"]):
        known["from a later version"] = [1.5, None, {"deep": True}]
    manifest["digest"] = own_digest(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest), "ascii")
    data = open_dataset(folder, output="bytes")
    assert [data[i] for i in range(len(data))] == [(ARRAY, 0), (PICTURE, 1)]
    assert list(verify_dataset(folder)) == []
    assert [row["code"] for row in packer.report.report_rows(folder / "report.jsonl")] == ["empty_file"]


def test_an_unknown_key_is_covered_by_the_digest(tmp_path: Path) -> None:
    folder = made_by_hand(tmp_path, "webdataset", extra=1)
    assert len(open_dataset(folder)) == 2
    path = folder / "manifest.json"
    path.write_text(path.read_text("ascii").replace('"extra": 1', '"extra": 2'), "ascii")
    with pytest.raises(CorruptDatasetError, match="the digest differs"):
        open_dataset(folder)


def test_numbers_to_come_and_reserved_bytes_leave_the_bytes_readable(
    ours: dict[str, Path], tmp_path: Path, format_name: str
) -> None:
    folder = copy_of(ours[format_name], tmp_path / "work")

    def from_a_later_version(records: Any) -> None:
        for column, value in {"type": 200, "mode": 201, "reserved": 202, "reserved2": 203}.items():
            records["data"][column] = value

    forge(folder, change=from_a_later_version)
    data = open_dataset(folder, output="bytes")
    assert [data[i] for i in range(len(data))] == [(ARRAY, 0), (PICTURE, 1)]
    with pytest.raises(CorruptSampleError, match="type 200"):
        open_dataset(folder)[1]


def test_a_later_layout_is_refused_before_anything_else_is_looked_at(tmp_path: Path) -> None:
    """It may have no key in common with this one, and no digest that this one could compute."""
    (tmp_path / "manifest.json").write_text('{"layout": 2, "content": {}}', "ascii")
    with pytest.raises(
        DatasetError, match=r"layout version 2, this packer reads version 1; a newer packer may read it"
    ) as caught:
        open_dataset(tmp_path)
    assert str(tmp_path / "manifest.json") in str(caught.value)
