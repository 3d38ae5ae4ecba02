"""Kinds of damage, and the regions of a packed dataset that each of them can strike.

A damage is a small value that can be sent to another process; what it does to the files of a dataset is a pure function.
"""

from __future__ import annotations

import json
import os
import random
import re
import struct
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import xxhash

from packer.index import RECORD

__all__ = ["WHOLE_FILE", "Damage", "Region", "changed_files", "damages", "regions"]

Range = tuple[int, int]
Files = Mapping[str, bytes]

PAGE = 4096
WHOLE_FILE = "whole file"
_BRANCH, _LEAF, _OVERFLOW, _META = 1, 2, 4, 8  # kinds of LMDB's pages


@dataclass(frozen=True, slots=True)
class Damage:
    """One damage.

    Attributes:
        kind: a name of ``KINDS``.
        region: what was struck, for messages.
        file: the file that is struck.
        at: the first byte that is.
        length: how many bytes; of ``flip bit`` the number of the bit.
        other: the second place of a swap: an offset in the same file, or another file.
    """

    kind: str
    region: str
    file: str
    at: int = 0
    length: int = 0
    other: int | str = 0


@dataclass(frozen=True, slots=True)
class Region:
    """Ranges of bytes of one file that mean the same: from each first byte up to the one behind."""

    file: str
    name: str
    ranges: tuple[Range, ...]


# ------------------------------------------------------------------------------------------------------- what a damage does


def _with(content: bytes, at: int, new: bytes) -> bytes:
    return content[:at] + new + content[at + len(new) :]


def _noise(damage: Damage) -> bytes:
    return random.Random(f"{damage.file} {damage.at} {damage.length}").randbytes(damage.length)


def _swapped(content: bytes, damage: Damage) -> bytes:
    assert isinstance(damage.other, int)
    one, other = (content[at : at + damage.length] for at in (damage.at, damage.other))
    return _with(_with(content, damage.at, other), damage.other, one)


IN_FILE: dict[str, Callable[[bytes, Damage], bytes]] = {
    "flip bit": lambda content, d: _with(content, d.at, bytes([content[d.at] ^ 1 << d.length])),
    "flip bytes": lambda content, d: _with(content, d.at, bytes(b ^ 0xFF for b in content[d.at : d.at + d.length])),
    "zero": lambda content, d: _with(content, d.at, bytes(d.length)),
    "truncate": lambda content, d: content[: d.at],
    "swap": _swapped,
    "delete": lambda content, d: content[: d.at] + content[d.at + d.length :],
    "insert": lambda content, d: content[: d.at] + _noise(d) + content[d.at :],
}
SAME_SIZE = ("flip bit", "flip bytes", "zero", "swap")
"""What no size gives away."""
KINDS = (*IN_FILE, "remove file", "exchange files")


def changed_files(files: Files, damage: Damage) -> dict[str, bytes | None]:
    """The files that a damage changes, with their new content; ``None`` where a file is gone. Empty where nothing changes."""
    content = files[damage.file]
    if damage.kind == "remove file":
        return {damage.file: None}
    if damage.kind == "exchange files":
        new = {damage.file: files[str(damage.other)], str(damage.other): content}
    else:
        new = {damage.file: IN_FILE[damage.kind](content, damage)}
    return {name: data for name, data in new.items() if data != files[name] and not _same_manifest(name, data, files[name])}


def _same_manifest(name: str, data: bytes, before: bytes) -> bool:
    """White space between the values of the manifest means nothing."""
    try:
        return name == "manifest.json" and json.dumps(json.loads(data)) == json.dumps(json.loads(before))
    except (ValueError, RecursionError):
        return False


# ------------------------------------------------------------------------------------------------------- where it can strike


def damages(folder: Path, at_least: int, seed: int = 0) -> list[Damage]:
    """Different damages to a dataset, of every kind in every region, the same ones for the same dataset.

    No two give the same files, and each changes something.
    """
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    chosen = random.Random(seed)
    found: dict[str, Damage] = {}

    def add(damage: Damage) -> None:
        if changed := changed_files(files, damage):
            key = repr([(name, data and xxhash.xxh3_128_hexdigest(data)) for name, data in sorted(changed.items())])
            found.setdefault(key, damage)

    for damage in _of_whole_files(files):
        add(damage)
    for region in _payloads(files):
        for _ in range(2 * len(region.ranges)):
            for kind in SAME_SIZE:
                add(_in_region(kind, region, len(files[region.file]), chosen))
    struck = regions(folder)
    for _ in count():
        for region in struck:
            for kind in IN_FILE:
                add(_in_region(kind, region, len(files[region.file]), chosen))
        if len(found) >= at_least:
            return list(found.values())
    raise AssertionError


def _of_whole_files(files: Files) -> Iterator[Damage]:
    names = sorted(files)
    for i, name in enumerate(names):
        size = len(files[name])
        yield Damage("remove file", WHOLE_FILE, name)
        yield Damage("zero", WHOLE_FILE, name, 0, size)
        for left in (0, 1, size // 2, size - 512, size - PAGE, size - 1):
            if 0 <= left < size:
                yield Damage("truncate", WHOLE_FILE, name, left)
        for more in (1, 512, PAGE):
            yield Damage("insert", f"end of the {WHOLE_FILE}", name, size, more)
        for other in names[i + 1 :]:
            yield Damage("exchange files", WHOLE_FILE, name, other=other)


def _in_region(kind: str, region: Region, file_bytes: int, chosen: random.Random) -> Damage:
    start, end = chosen.choice(region.ranges)
    at = chosen.randrange(start, end)
    length = min(end - at, chosen.choice((1, 2, 8, 64, 512)))
    if kind == "flip bit":
        return Damage(kind, region.name, region.file, at, chosen.randrange(8))
    if kind == "zero" and chosen.random() < 0.5:
        return Damage(kind, region.name, region.file, start, end - start)
    if kind == "swap":
        return _swap(region, start, end, file_bytes, chosen)
    return Damage(kind, region.name, region.file, at, length)


def _swap(region: Region, start: int, end: int, file_bytes: int, chosen: random.Random) -> Damage:
    """With another range of the same meaning; where there is none, of the region's halves; or with any other bytes."""
    others = [a for a, b in region.ranges if a != start and b - a == end - start]
    if others:
        return Damage("swap", region.name, region.file, start, end - start, chosen.choice(others))
    if end - start > 1:
        half = (end - start) // 2
        return Damage("swap", region.name, region.file, start, half, start + half)
    return Damage("swap", region.name, region.file, start, 1, chosen.randrange(file_bytes))


def regions(folder: Path) -> list[Region]:
    """Every region of every file of a dataset. Together they cover each byte of it, but for some padding."""
    found = [*_manifest(folder), *_index(folder)]
    for path in sorted(folder.iterdir()):
        size = path.stat().st_size
        if not size or path.name in ("manifest.json", "index.npy"):
            continue
        kinds = {".mdb": _lmdb, ".h5": _hdf5, ".tar": _tar}
        found += kinds.get(path.suffix, _slices)(path, size)
    return [region for region in found if region.ranges]


def _payloads(files: Files) -> Iterator[Region]:
    """The payloads as the index has them, for each file of the container."""
    places = np.frombuffer(files["index.npy"][512:], RECORD)["data"]
    for number, shard in enumerate(json.loads(files["manifest.json"])["shards"]):
        found = places[places["shard"] == number]
        ranges = zip(found["offset"].tolist(), (found["offset"] + found["size"]).tolist(), strict=True)
        yield Region(shard["file"], "payload in the index", tuple(ranges))


def _slices(path: Path, size: int) -> list[Region]:
    step = max(1, size // 8)
    return [Region(path.name, f"{path.name} from {at}", ((at, min(size, at + step)),)) for at in range(0, size, step)]


def _manifest(folder: Path) -> Iterator[Region]:
    """The value of each key, with the key; and the braces around them."""
    content = (folder / "manifest.json").read_bytes()
    found = list(re.finditer(rb'^ "(\w+)":', content, re.MULTILINE))
    assert [key[1].decode() for key in found] == list(json.loads(content))
    for key, end in zip(found, [*(key.start() for key in found[1:]), len(content) - 2], strict=True):
        yield Region("manifest.json", f"manifest {key[1].decode()}", ((key.start(), end),))
    yield Region("manifest.json", "manifest braces", ((0, 2), (len(content) - 3, len(content))))


def _index(folder: Path) -> Iterator[Region]:
    size = (folder / "index.npy").stat().st_size
    yield Region("index.npy", "index magic and length", ((0, 10),))
    yield Region("index.npy", "index header", ((10, 512),))
    assert RECORD.fields is not None
    columns = [(name, at, dtype.itemsize) for name, (dtype, at, *_) in RECORD.fields.items() if name != "data"]
    inner, base = RECORD.fields["data"][0], RECORD.fields["data"][1]
    columns += [(name, base + at, dtype.itemsize) for name, (dtype, at, *_) in inner.fields.items()]
    for name, at, width in columns:
        ranges = tuple((record + at, record + at + width) for record in range(512, size, RECORD.itemsize))
        yield Region("index.npy", f"index {name}", ranges)


def _lmdb(path: Path, size: int) -> Iterator[Region]:
    """Pages by their kind, which stands in byte 10; the header of the first overflow page says how many follow."""
    content = path.read_bytes()
    parts: dict[str, list[Range]] = {}
    page = 0
    while page * PAGE < size:
        start = page * PAGE
        flags, pages = struct.unpack_from("<HI", content, start + 10)
        span = pages if flags & _OVERFLOW else 1
        end = start + span * PAGE
        kinds = {_BRANCH: "branch", _LEAF: "leaf", _OVERFLOW: "overflow", _META: "meta"}
        name = next((kind for bit, kind in kinds.items() if flags & bit), "unused")
        parts.setdefault(f"{name} page header", []).append((start, start + 16))
        parts.setdefault(f"{name} page", []).append((start + 16, end))
        if name == "meta":
            for field, at, width in (("magic", 16, 8), ("map size", 32, 8), ("databases", 40, 96), ("last page", 136, 16)):
                parts.setdefault(f"meta {field}", []).append((start + at, start + at + width))
        page += span
    for name, ranges in parts.items():
        yield Region(path.name, f"lmdb {name}", tuple(ranges))


def _hdf5(path: Path, size: int) -> Iterator[Region]:
    import h5py  # not above: the judging processes need it not

    taken: dict[str, list[Range]] = {"superblock": [(0, 96)]}
    with h5py.File(path) as file:
        headers = [("root", h5py.h5o.get_info(file["/"].id).addr)]
        for name, dataset in file.items():
            headers.append((name, h5py.h5o.get_info(dataset.id).addr))
            start = dataset.id.get_offset()
            if start is not None:
                taken[name] = [(start, start + dataset.id.get_storage_size())]
            else:
                chunks = [dataset.id.get_chunk_info(i) for i in range(dataset.id.get_num_chunks())]
                taken[name] = [(chunk.byte_offset, chunk.byte_offset + chunk.size) for chunk in chunks]
    covered = sorted(range_ for ranges in taken.values() for range_ in ranges)
    for name, address in headers:
        end = min([at for at, _ in covered if at > address] + [size, address + 256])
        taken[f"object header of {name}"] = [(address, end)]
    covered = sorted(range_ for ranges in taken.values() for range_ in ranges)
    last = 0
    for start, end in covered:  # trees, heaps and padding
        if start > last:
            taken.setdefault("between", []).append((last, start))
        last = max(last, end)
    if last < size:
        taken.setdefault("between", []).append((last, size))
    for name, ranges in taken.items():
        yield Region(path.name, f"hdf5 {name}", tuple(range_ for range_ in ranges if range_[0] < range_[1]))


_USTAR = {
    "name": 0,
    "mode": 100,
    "owner": 108,
    "size": 124,
    "time": 136,
    "checksum": 148,
    "type": 156,
    "magic": 257,
    "rest": 265,
}


def _tar(path: Path, size: int) -> Iterator[Region]:
    parts: dict[str, list[Range]] = {}
    end = 0
    with tarfile.open(path) as tar:
        for member in tar:
            ends = [*list(_USTAR.values())[1:], 512]
            for (field, at), behind in zip(_USTAR.items(), ends, strict=True):
                parts.setdefault(f"header {field}", []).append((member.offset + at, member.offset + behind))
            kind = os.path.splitext(member.name)[1]
            kind = kind if kind in (".cls", ".json") else "payload"
            data = member.offset_data
            parts.setdefault(kind, []).append((data, data + member.size))
            end = data + member.size + -member.size % 512
            if data + member.size < end:
                parts.setdefault("padding", []).append((data + member.size, end))
    parts["end blocks"] = [(end, size)]
    for name, ranges in parts.items():
        yield Region(path.name, f"tar {name}", tuple(ranges))
