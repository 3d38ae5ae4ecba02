"""Datasets of any number of samples and shards, made from the layout in the docstrings of ``packer/index.py`` and
``packer/manifest.py`` without anything being packed.

Sample ``i`` of ``n`` has label ``i % 1000``, a name of 10 bytes, and lies in shard ``i * shards // n``. All samples of a shard
are one payload of a few bytes: an array of two int32, the number of the shard and its negative.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from proof import WrongDataError

from packer.files import file_digest
from packer.index import INDEX_FILE, NAMES_FILE, RECORD
from packer.manifest import REPORT_FILE, FileEntry, Manifest, ShardEntry
from packer.model import TYPES_BY_NAME

CLASSES = 1000
NAME_BYTES = 10
BLOCK = 1_000_000  # records made at once
_HEADER = b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }".ljust(117) + b"\n"


def payload(shard: int) -> bytes:
    """The bytes of every sample of a shard."""
    return _HEADER + np.array([shard, -shard], "<i4").tobytes()


def make_dataset(folder: Path, samples: int, shards: int = 1) -> None:
    """Write a dataset.

    Args:
        folder: is made.
        samples: how many.
        shards: how many, at most one a sample.
    """
    folder.mkdir()
    digests = np.empty(shards, np.uint64)
    entries: list[ShardEntry] = []
    for shard in range(shards):
        data, name = payload(shard), f"shard-{shard:06d}.tar"
        (folder / name).write_bytes(data)
        digests[shard] = xxhash.xxh3_64_intdigest(data)
        # Those of all shards up to this one, rounded up, less those before.
        count = -(-(shard + 1) * samples // shards) - -(-shard * samples // shards)
        entries.append(ShardEntry(name, len(data), count, xxhash.xxh3_128_hexdigest(data)))
    (folder / REPORT_FILE).write_bytes(b"")
    header = f"{{'descr': {RECORD.descr!r}, 'fortran_order': False, 'shape': ({samples},), }}".encode().ljust(501) + b"\n"
    with (folder / INDEX_FILE).open("wb") as index, (folder / NAMES_FILE).open("wb") as names:
        index.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        for start in range(0, samples, BLOCK):
            numbers = np.arange(start, min(start + BLOCK, samples), dtype=np.uint64)
            records = np.zeros(len(numbers), RECORD)
            records["name_end"] = (numbers + 1) * NAME_BYTES
            records["label"] = numbers % CLASSES
            records["data"]["shard"] = numbers * shards // samples
            records["data"]["type"] = TYPES_BY_NAME["npy"].code
            records["data"]["size"] = len(payload(0))
            records["data"]["digest"] = digests[records["data"]["shard"]]
            records.tofile(index)
            digits = numbers[:, None] // 10 ** np.arange(NAME_BYTES - 3, -1, -1, dtype=np.uint64) % 10
            text = np.empty((len(numbers), NAME_BYTES), np.uint8)
            text[:, :2] = np.frombuffer(b"c/", np.uint8)
            text[:, 2:] = digits + ord("0")
            text.tofile(names)
    manifest = Manifest(
        format="synthetic",
        samples=samples,
        classes=tuple(f"class {i:03d}" for i in range(CLASSES)),
        labels="folder",
        header=b"",
        shards=tuple(entries),
        files={
            name: FileEntry((folder / name).stat().st_size, file_digest(folder / name))
            for name in (INDEX_FILE, NAMES_FILE, REPORT_FILE)
        },
        options={},
        versions={},
        content_digest="",
    )
    (folder / "manifest.json").write_bytes(manifest.to_json())


def look_up(data: Any, indices: Iterable[int], shards: int = 1) -> None:
    """Look up samples and compare array, target and name with what was written.

    Args:
        data: the dataset, opened with ``output="numpy"``.
        indices: of the samples.
        shards: that it was made with.

    Raises:
        WrongDataError: there is a difference.
    """
    for index in indices:
        prove_sample(data, index, data[index], shards)


def prove_sample(data: Any, index: int, sample: Sequence[Any], shards: int = 1) -> None:
    """Compare what was looked up, and the sample's name, with what was written.

    Raises:
        WrongDataError: there is a difference.
    """
    array, target = sample
    shard = index * shards // len(data)
    if array.tolist() != [shard, -shard] or target != index % CLASSES or data.names[index] != f"c/{index:08d}":
        raise WrongDataError(f"sample {index} is {array.tolist()} of class {target}, named {data.names[index]}")
