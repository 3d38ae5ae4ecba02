"""Hostile datasets: what is done to a sound one, so that a naive reader of it opens the wrong file, hangs or fills the memory.

What contradicts itself is sealed with right digests, so that nothing but the bounds protects.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import struct
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from packer.index import RECORD
from tests.inputs import jpeg, npy, photo, png
from tests.test_damage import forge_index, manifest_of, put, seal

__all__ = [
    "ALL",
    "AT_A_SAMPLE",
    "AT_OPEN",
    "AT_THE_FIRST_READ",
    "FILES",
    "LARGE",
    "MORE_THAN_MEMORY",
    "NO_FOLDER",
    "SOUND_BYTES",
    "Case",
]

Case = Callable[[Path], object]


# ------------------------------------------------------------------------------------------------------------------- manifests


def changed(change: Callable[[dict[str, Any]], object]) -> Case:
    """A manifest that is another, and sealed."""

    def make(folder: Path) -> None:
        content = manifest_of(folder)
        change(content)
        seal(folder, content)

    return make


def written(content: bytes) -> Case:
    """A manifest of these bytes."""
    return lambda folder: (folder / "manifest.json").write_bytes(content)


def with_text(before: str, after: str) -> Case:
    """A manifest in which a text is replaced; sealed as Python's parser understands it."""

    def make(folder: Path) -> None:
        content = manifest_of(folder)
        content.pop("digest")
        text = json.dumps(content).replace(before, after, 1)
        assert after in text
        digest = "0" * 32
        with contextlib.suppress(ValueError, RecursionError):  # too many digits, too deep
            meant = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
            digest = xxhash.xxh3_128_hexdigest(meant.encode())
        (folder / "manifest.json").write_text(f'{text[:-1]}, "digest": "{digest}"}}')

    return make


def sparse(name: str, size: int) -> Case:
    return lambda folder: os.truncate(folder / name, size)


def replaced(name: str, by: Callable[[Path], object]) -> Case:
    """Something else in the place of a file; ``container`` is the first shard."""

    def make(folder: Path) -> None:
        path = folder / (manifest_of(folder)["shards"][0]["file"] if name == "container" else name)
        path.unlink()
        by(path)

    return make


def link(target: str) -> Callable[[Path], object]:
    return lambda path: path.symlink_to(target)


def copy_elsewhere(path: Path) -> None:
    """The right bytes, but outside of the folder."""
    sound = path.parent.parent / "sound" / path.name
    path.symlink_to(sound)


def sized(name: str, value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda m: (m["shards"][0] if name == "shard" else m["files"][name]).update(bytes=value)


def endless_names(folder: Path) -> None:
    """Nothing contradicts; to compare their digest would take minutes."""
    forge_index(folder, put("name_end", 2**40, -1))
    os.truncate(folder / "names.bin", 2**40)
    changed(sized("names.bin", 2**40))(folder)


AT_OPEN: dict[str, Case] = {
    "a shard outside": changed(lambda m: m["shards"][0].update(file="../sound/names.bin")),
    "a shard with an absolute name": changed(lambda m: m["shards"][0].update(file="/dev/zero")),
    "a shard that is a link to a device": replaced("container", link("/dev/zero")),
    "a shard that is a link to a file outside": replaced("container", copy_elsewhere),
    "a shard that is a FIFO": replaced("container", os.mkfifo),
    "a report that is a FIFO": replaced("report.jsonl", os.mkfifo),
    "a report that is a device": replaced("report.jsonl", link("/dev/zero")),
    "names that are a device": replaced("names.bin", link("/dev/zero")),
    "an index that is a device": replaced("index.npy", link("/dev/zero")),
    "an index that is a link to itself": replaced("index.npy", link("index.npy")),
    "a manifest that is a FIFO": replaced("manifest.json", os.mkfifo),
    "a manifest that is a device": replaced("manifest.json", link("/dev/zero")),
    "two shards with one name": changed(lambda m: m["shards"].append(dict(m["shards"][0], samples=0))),
    **{
        f"{value:.4g} bytes of a {name}": changed(sized(name, value))
        for name in ("shard", "names.bin", "index.npy", "report.jsonl")
        for value in (2**40, 2**62, 2**63, 2**64 - 1)
    },
    "names of a terabyte": endless_names,
    **{f"{value:.4g} samples": changed(lambda m, value=value: m.update(samples=value)) for value in (2**40, 2**63, 2**64 - 1)},
    "samples that the shards have not": changed(lambda m: m.update(samples=m["samples"] + 1)),
    "samples that the index has not": changed(lambda m: (m.update(samples=2**39), m["shards"][0].update(samples=2**39))),
    "100,000 nested lists": written(b"[" * 100_000 + b"]" * 100_000),
    "100,000 nested objects": written(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "100,000 nested lists among the options": with_text(
        '"options": {', '"options": {"deep": ' + "[" * 100_000 + "]" * 100_000 + ","
    ),
    "an integer of 100,000 digits": with_text('"options": {', '"options": {"n": 1' + "0" * 100_000 + ","),
    "a sample count of 100,000 digits": with_text('"samples": ', '"samples": 1' + "0" * 100_000),
    "infinity by its exponent": with_text('"options": {', '"options": {"n": 1e999,'),
    "infinity": with_text('"options": {', '"options": {"n": Infinity,'),
    "not a number": with_text('"options": {', '"options": {"n": NaN,'),
    "a key twice": with_text('"labels": ', '"labels": "none", "labels": '),
    "a key of a shard twice": with_text('"file": ', '"file": "x", "file": '),
}
"""Datasets that are refused when they are opened."""

LARGE: dict[str, Case] = {
    "a manifest of 1 GB": sparse("manifest.json", 1 << 30),
    "a manifest of 1 TB": sparse("manifest.json", 1 << 40),
    "a format of 60 MB": changed(lambda m: m.update(format="x" * 60_000_000)),
    "a shared header of 40 MB": changed(lambda m: m["fields"][0].update(header="AAAA" * 10_000_000)),
    "more classes than fit": changed(lambda m: m.update(classes=[f"{i:060x}" for i in range(1_100_000)])),
    "lists without end": written(b"[" + b"[]," * 22_000_000 + b"[]]"),
    "objects without end": written(b"[" + b"{}," * 22_000_000 + b"{}]"),
    "numbers without end": written(b"[" + b"1.5," * 16_000_000 + b"1]"),
    "texts without end": written(b"[" + b'"\xc3\xa4\xc3\xa5",' * 9_000_000 + b"1]"),
    "a million shards": changed(
        lambda m: m.update(shards=[{"file": f"{i:x}", "bytes": 0, "samples": 1, "digest": ""} for i in range(1_000_000)])
    ),
}
"""Refused when they are opened, too; the container plays no part, so they are made for one format."""


def forge_header(folder: Path, samples: int) -> None:
    content = (folder / "index.npy").read_bytes()
    count = (len(content) - 512) // RECORD.itemsize
    new = content[:512].replace(b"(%d,), }" % count, b"(%d,), }" % samples)[:511] + b"\n" + content[512:]
    assert new != content
    (folder / "index.npy").write_bytes(new)
    changed(lambda m: m["files"]["index.npy"].update(digest=xxhash.xxh3_128_hexdigest(new)))(folder)


# ------------------------------------------------------------------------------------------------------------------- samples

FILES: dict[str | bytes, bytes] = {
    "a/0.jpg": jpeg(photo(40, 32)),
    "a/1.png": png(photo(40, 32)),
    "b/6.npy": npy(np.arange(600, dtype=np.float32).reshape(20, 30)),
    "b/7.npy": npy(np.arange(100, dtype=np.int64)),
}
for number, kind in enumerate(("GIF", "BMP", "TIFF", "WEBP"), 2):
    target = Path(f"{'ab'[number > 3]}/{number}.{kind.lower()}")
    buffer = io.BytesIO()
    photo(40, 32, seed=number).save(buffer, kind)
    FILES[str(target)] = buffer.getvalue()

JPEG, PNG, GIF, BMP, TIFF, WEBP, NPY, LAST = range(8)


def forged(sample: int, forge: Callable[[bytes], bytes]) -> Case:
    """Another payload of the same length, with its digest in a sealed index, and a record that says 8 × 8 pixels."""

    def make(folder: Path) -> None:
        record = np.frombuffer((folder / "index.npy").read_bytes()[512:], RECORD)["data"][sample]
        path = folder / manifest_of(folder)["shards"][record["shard"]]["file"]
        start, size = int(record["offset"]), int(record["size"])
        before = path.read_bytes()[start : start + size]
        after = forge(before)
        assert len(after) == size
        assert after != before
        with path.open("r+b") as file:
            file.seek(start)
            file.write(after)

        def change(records: np.ndarray) -> None:
            for field, value in (("digest", xxhash.xxh3_64_intdigest(after)), ("width", 8), ("height", 8)):
                put(field, value, sample)(records)

        forge_index(folder, change)

    return make


def put_at(at: int, new: bytes, payload: bytes) -> bytes:
    return payload[:at] + new + payload[at + len(new) :]


def huge_jpeg(payload: bytes) -> bytes:
    return put_at(payload.index(b"\xff\xc0") + 5, struct.pack(">HH", 65_500, 65_500), payload)


def huge_png(payload: bytes) -> bytes:
    header = b"IHDR" + struct.pack(">II", 2**31 - 1, 2**31 - 1) + payload[24:29]
    return put_at(12, header + struct.pack(">I", zlib.crc32(header)), payload)


def huge_gif(payload: bytes) -> bytes:
    screen = put_at(6, struct.pack("<HH", 65_535, 65_535), payload)
    block = re.search(rb"\x2c\0\0\0\0\x28\0\x20\0", screen)
    assert block is not None
    return put_at(block.start() + 5, struct.pack("<HH", 65_535, 65_535), screen)


def huge_tiff(payload: bytes) -> bytes:
    for tag in (256, 257):
        at = re.search(struct.pack("<H", tag) + rb"[\x03\x04]\x00\x01\x00\x00\x00", payload)
        assert at is not None
        payload = put_at(at.start(), struct.pack("<HHII", tag, 4, 1, 2**30), payload)
    return payload


def huge_webp(payload: bytes) -> bytes:
    start = payload.index(b"\x9d\x01\x2a")
    return put_at(start + 3, struct.pack("<HH", 16_383, 16_383), payload)


def huge_array(payload: bytes) -> bytes:
    header = payload[10:128]
    shape = header.replace(b"(20, 30)", b"(1048576, 1048576)")[: len(header) - 1] + b"\n"
    assert shape != header
    return put_at(10, shape, payload)


def record(field: str, value: int, sample: int = 3) -> tuple[int, Case]:
    return sample, lambda folder: forge_index(folder, put(field, value, sample))


def both(offset: int, size: int) -> tuple[int, Case]:
    """An end that wraps around where it is reckoned in 64 bits."""
    return 3, lambda folder: forge_index(folder, lambda records: (put("offset", offset)(records), put("size", size)(records)))


def sparse_payload(container_bytes: int, payload_bytes: int) -> tuple[int, Case]:
    """A container that takes no room on the disk, with a sample inside its bounds that is more than the memory."""

    def make(folder: Path) -> None:
        shards = manifest_of(folder)["shards"]
        number = int(np.frombuffer((folder / "index.npy").read_bytes()[512:], RECORD)["data"]["shard"][3])
        os.truncate(folder / shards[number]["file"], container_bytes)
        changed(lambda m: m["shards"][number].update(bytes=container_bytes))(folder)
        forge_index(folder, put("size", payload_bytes))

    return 3, make


AT_A_SAMPLE: dict[str, tuple[int, Case]] = {
    **{f"{field} {value}": record(field, value) for field in ("offset", "size") for value in (2**31, 2**62, 2**63, 2**64 - 1)},
    "offset and size that wrap around to the start": both(2**64 - 100, 200),
    "size that wraps around to the start": both(512, 2**64 - 512),
    "a shard beyond all": record("shard", 2**32 - 1),
    "a type of none": record("type", 255),
    "a label beyond all": record("label", 2**63 - 1),
    "a label below all": record("label", -(2**63)),
    "a name that ends before it begins": record("name_end", 0),
    "a name that ends far behind": record("name_end", 2**40),
    "a JPEG of 2**32 pixels": (JPEG, forged(JPEG, huge_jpeg)),
    "a PNG of 2**62 pixels": (PNG, forged(PNG, huge_png)),
    "a GIF of 2**32 pixels": (GIF, forged(GIF, huge_gif)),
    "a BMP of 2**60 pixels": (BMP, forged(BMP, partial(put_at, 18, struct.pack("<ii", 2**30, 2**30)))),
    "a TIFF of 2**60 pixels": (TIFF, forged(TIFF, huge_tiff)),
    "a WebP of 2**28 pixels": (WEBP, forged(WEBP, huge_webp)),
    "an array of 2**40 elements": (NPY, forged(NPY, huge_array)),
    "a picture called an array": record("type", 8, PNG),
    "an array called a JPEG": record("type", 1, NPY),
    "a sample of half a terabyte": sparse_payload(2**40, 2**39),
    "a sample of two gigabytes": sparse_payload(2**31 + 2**28, 2**31),
}
"""Datasets that are opened, and refused at one sample."""

SOUND_BYTES = ("a type of none", "a picture called an array", "an array called a JPEG")
"""All digests are right; only decoding shows that the type is wrong."""
MORE_THAN_MEMORY = ("a sample of half a terabyte", "a sample of two gigabytes")

AT_THE_FIRST_READ: dict[str, Case] = {
    "a last name that ends elsewhere": lambda folder: forge_index(folder, put("name_end", 2**64 - 1, -1)),
    "an index of another number of samples": lambda folder: forge_header(folder, 2**40),
}
"""Datasets whose index is looked into when it is first needed, and refused then."""

NO_FOLDER: dict[str, Case] = {
    "a class that is no text": changed(lambda m: m.update(classes=["a", "\ud800"])),
    "a class outside": changed(lambda m: m.update(classes=["a", "../x"])),
    "a class of a million characters": changed(lambda m: m.update(classes=["a", "x" * 1_000_000])),
}
"""Read as they are, since names of classes are only texts there; refused where folders are to be called so."""

ALL: dict[str, Case] = {**AT_OPEN, **NO_FOLDER, **AT_THE_FIRST_READ, **{name: case for name, (_, case) in AT_A_SAMPLE.items()}}
