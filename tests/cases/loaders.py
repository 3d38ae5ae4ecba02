"""What tests of torch's DataLoader share: the start methods there are, and functions that a worker finds by their names."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from torch.utils.data import DataLoader

from packer.index import RECORD
from packer.manifest import FileEntry, Manifest, ShardEntry
from tests.inputs import npy

__all__ = ["FORKS", "METHODS", "failure_of", "make_synthetic", "numbers_of", "private_bytes"]

METHODS = [method for method in ("fork", "spawn", "forkserver") if method in multiprocessing.get_all_start_methods()]
FORKS = "fork" in METHODS

if "forkserver" in METHODS:
    # Loaded once in the server and not in each worker, which takes seconds.
    multiprocessing.set_forkserver_preload(["torch", "packer.datasets", "tests.cases.loaders"])


def numbers_of(value: np.ndarray[Any, Any]) -> torch.Tensor:
    """A transform that spawned workers can import: the first number, and the process that it ran in."""
    return torch.tensor([int(np.asarray(value).flat[0]), os.getpid()])


def private_bytes() -> int:
    """The memory that this process shares with no other."""
    lines = dict(line.split(":") for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return 1024 * sum(int(lines[name].split()[0]) for name in ("Private_Clean", "Private_Dirty"))


def make_synthetic(folder: Path, samples: int, format_name: str) -> Path:
    """A dataset of so many samples that all lie in one place; class ``i % 1000``, name ``c/`` and eight digits."""
    folder.mkdir()
    payload = npy(np.arange(10, dtype=np.int32))
    (folder / "data.bin").write_bytes(payload)
    (folder / "names.bin").write_bytes(b"".join(b"c/%08d" % i for i in range(samples)))
    (folder / "report.jsonl").write_bytes(b"")
    records = np.zeros(samples, RECORD)
    records["name_end"] = np.arange(1, samples + 1, dtype=np.uint64) * 10
    records["label"] = np.arange(samples) % 1_000
    records["data"]["type"] = 8
    records["data"]["size"] = len(payload)
    records["data"]["digest"] = xxhash.xxh3_64_intdigest(payload)
    text = f"{{'descr': {RECORD.descr!r}, 'fortran_order': False, 'shape': ({samples},), }}".encode().ljust(501) + b"\n"
    (folder / "index.npy").write_bytes(b"\x93NUMPY\x01\x00" + (502).to_bytes(2, "little") + text + records.tobytes())

    def digest(name: str) -> str:
        return xxhash.xxh3_128_hexdigest((folder / name).read_bytes())

    manifest = Manifest(
        format=format_name,
        samples=samples,
        classes=tuple(f"class {i:03d}" for i in range(1_000)),
        labels="folder",
        header=b"",
        shards=(ShardEntry("data.bin", len(payload), samples, digest("data.bin")),),
        files={n: FileEntry((folder / n).stat().st_size, digest(n)) for n in ("index.npy", "names.bin", "report.jsonl")},
        options={},
        versions={},
        content_digest="",
    )
    (folder / "manifest.json").write_bytes(manifest.to_json())
    return folder


def failure_of(loader: DataLoader[Any]) -> Exception:
    """What ends an epoch; the loader is let go of at once, since torch's workers take 5 s each where gc ends the loader."""
    try:
        list(loader)
    except Exception as error:
        for each in (error, error.__context__):
            if each is not None:
                traceback.clear_frames(each.__traceback__)
        return error.with_traceback(None)
    return pytest.fail("the epoch ended without an error")
