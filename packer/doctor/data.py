"""What is there to read: a packed dataset, a folder of loose files or nothing; and a look at some of it."""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from packer.errors import CorruptSampleError, DatasetError
from packer.index import INDEX_FILE, NAMES_FILE, Record
from packer.manifest import MANIFEST_FILE
from packer.model import TYPES_BY_NAME, Unfit
from packer.npyheader import parse_header
from packer.store import Store

__all__ = ["DataFacts", "Probe", "look_at_data"]

_PROBE_S = 0.8
_MOST_PROBED = 2000
_MOST_RECORDS = 1000
_MOST_FILES = 20_000
_WALK_S = 0.5
_MOST_DAMAGED = 5
_HEADER_BYTES = 4096
_Item = TypeVar("_Item")
_NPY = TYPES_BY_NAME["npy"].code


@dataclass(frozen=True, slots=True)
class Probe:
    """What came of reading some samples at random.

    Attributes:
        samples: that were read.
        size_bytes: of these.
        seconds: that it took.
        slowest_s: the longest for one.
        damaged: what is wrong with those that could not be read, a sentence each, at most five.
        damaged_count: how many could not be read.
    """

    samples: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    damaged: tuple[str, ...] = ()
    damaged_count: int = 0


@dataclass(frozen=True, slots=True)
class DataFacts:
    """The data that a loader would read.

    Attributes:
        path: as it was given.
        kind: ``packed``, ``folder`` or ``missing``.
        error: why it cannot be opened; empty where it can.
        format: of a packed dataset.
        samples: of a packed dataset; files of a folder, as far as they were counted.
        counted: whether ``samples`` is all, and not a lower bound.
        sample_bytes: mean size of a sample decoded: ``height × width × 3`` for a picture, the elements of an array; 0 where
            unknown.
        file_system: type of the file system that it lies on, ``"unknown"`` where the system does not tell.
        free_bytes: of that file system, ``None`` where unknown.
        free_inodes: the same; ``None`` also where it has no fixed number of them.
        probe: what came of reading some of it.
    """

    path: str
    kind: str
    error: str = ""
    format: str = ""
    samples: int = 0
    counted: bool = True
    sample_bytes: int = 0
    file_system: str = "unknown"
    free_bytes: int | None = None
    free_inodes: int | None = None
    probe: Probe = Probe()

    @property
    def quoted_path(self) -> str:
        """The path as a shell takes it."""
        return shlex.quote(self.path)


def look_at_data(path: Path, seed: int = 0) -> DataFacts:
    """Open it and read some samples at random, for at most a second. Never fails: what goes wrong is a fact."""
    facts = _place(path)
    if facts.kind == "missing":
        return facts
    # A dataset may have lost a file: two of the three that make one are enough to be told so.
    if sum(Path(path, name).exists() for name in (MANIFEST_FILE, INDEX_FILE, NAMES_FILE)) < 2:
        return _folder(path, facts, random.Random(seed))
    facts = replace(facts, kind="packed")
    try:
        store = Store(path)
        return _packed(store, facts, random.Random(seed))
    except (DatasetError, OSError, MemoryError) as error:
        return replace(facts, error=str(error) or type(error).__name__)


def _place(path: Path) -> DataFacts:
    from packer.bench.machine import file_system

    try:
        os.stat(path)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        return DataFacts(str(path), "missing", f"{path}: {getattr(error, 'strerror', None) or error}")
    if not path.is_dir():
        return DataFacts(str(path), "missing", f"{path}: a file; a packed dataset and a folder of files are folders")
    free_bytes = free_inodes = None
    try:
        state = os.statvfs(path)
        free_bytes = state.f_frsize * state.f_bavail
        free_inodes = state.f_favail if state.f_files else None
    except (OSError, AttributeError):
        pass  # not told here
    return DataFacts(str(path), "folder", file_system=file_system(path), free_bytes=free_bytes, free_inodes=free_inodes)


def _packed(store: Store, facts: DataFacts, chance: random.Random) -> DataFacts:
    count = len(store)
    facts = replace(facts, format=store.manifest.format, samples=count)
    numbers = sorted(chance.sample(range(count), min(count, _MOST_RECORDS)))
    sizes = [size for number in numbers if (size := _decoded_bytes(store, number, store.index[number]))]
    mean = sum(sizes) // len(sizes) if sizes else 0

    def read(number: int) -> int:
        return len(store.payload(number, store.index[number]))

    order = chance.sample(range(count), min(count, _MOST_PROBED))
    return replace(facts, sample_bytes=mean, probe=_probe(iter(order), read))


def _decoded_bytes(store: Store, number: int, record: Record) -> int:
    """Of a picture by what its record says, of an array by its header; 0 where neither tells."""
    if record.type != _NPY:
        return record.width * record.height * 3
    if store.manifest.header:  # kept once, and so the payload is the elements
        return record.size
    try:
        return parse_header(store.head(number, record, _HEADER_BYTES)).body_bytes
    except (Unfit, DatasetError):
        return record.size


def _folder(path: Path, facts: DataFacts, chance: random.Random) -> DataFacts:
    files: list[str] = []
    end = time.monotonic() + _WALK_S
    counted = True
    for file in _files(path):
        files.append(file)
        if len(files) >= _MOST_FILES or time.monotonic() > end:
            counted = False
            break
    facts = replace(facts, samples=len(files), counted=counted)
    if not files:
        return replace(facts, error=f"{path}: no files in it")

    def read(file: str) -> int:
        with open(file, "rb", opener=_without_waiting) as opened:
            return len(opened.read(64 << 20))

    return replace(facts, probe=_probe(iter(chance.sample(files, min(len(files), _MOST_PROBED))), read))


def _files(path: Path) -> Iterator[str]:
    """Files below a folder, as far as they are asked for: not os.walk, which first lists a folder of a million whole."""
    waiting = [os.fspath(path)]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    yield entry.path


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a FIFO would wait for ever for a writer


def _probe(items: Iterator[_Item], read: Callable[[_Item], int]) -> Probe:
    start = time.monotonic()
    count = size = failed = 0
    slowest = 0.0
    damaged: list[str] = []
    for item in items:
        begun = time.monotonic()
        if begun - start > _PROBE_S:
            break
        try:
            size += read(item)
            count += 1
        except CorruptSampleError as error:
            failed += 1
            damaged.append(f"sample {error.index} ({error.name!r}): {error.problem}")
        except (DatasetError, OSError, MemoryError) as error:
            failed += 1
            damaged.append(str(error))
        del damaged[_MOST_DAMAGED:]
        slowest = max(slowest, time.monotonic() - begun)
    return Probe(count, size, time.monotonic() - start, slowest, tuple(damaged), failed)
