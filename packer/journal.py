"""The journal of an unfinished job: what a later run of the same command need not do again.

Layout
======
No part of a packed dataset, and of no layout version: only the packer that wrote it reads it, since its version is one of the
settings. One line a fact, appended when it became true: the xxh3-64 of the JSON as 16 hexadecimal digits, a space, one ASCII
JSON value, a line feed. The first is an object with the settings of the job, each of the others is

* an array of arrays: verdicts. Path (bytes as Latin-1), size in bytes and time in ns as the scan saw the file, then the verdict
  as ``packer.check.worker`` encodes it. The last one about a path counts.
* an object: a shard that is complete and on the disk. ``file``, ``bytes``, ``samples``, ``digest`` as in the manifest, and
  ``chain``, the digest over all samples up to its end (``Chain``).

A line that does not match its digest is no fact; one that was cut is taken off. A journal whose first line is no fact begins
anew. Nothing is synced but by the shards' own syncs: what a power cut takes away is checked once more.

Verdicts that say more about the moment than about the file (a disk that did not answer, a worker that was killed) are
written down, too, but only count within the run that they come from.
"""

from __future__ import annotations

import json
import os
import threading
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.check.worker import decode_verdict, encode_verdict
from packer.errors import OutputError
from packer.manifest import ShardEntry
from packer.model import TYPES_BY_NAME, Kept, Skipped, Source, Verdict

__all__ = ["Chain", "FinishedShard", "Journal"]

_DIGEST_DIGITS = 16
_OF_THE_MOMENT = frozenset({"unreadable", "changed", "worker_died", "timeout", "too_large"})
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class Chain:
    """A digest over samples in order: where two are equal, the same samples stand in the same shards.

    Args:
        classes: class names; a sample's stands beside it in some containers.
        class_labels: the label of each class.
    """

    def __init__(self, classes: Sequence[bytes], class_labels: Sequence[int]) -> None:
        self._hash = xxhash.xxh3_128()
        for name, label in zip(classes, class_labels, strict=True):
            self._hash.update(b"%d %d %b" % (label, len(name), name))

    def add(self, name: bytes, label: int, verdict: Kept) -> None:
        """Go on by a sample."""
        code = TYPES_BY_NAME[verdict.type].code
        self._hash.update(b"%d %d %d %x %d %b" % (label, code, verdict.size_bytes, verdict.digest, len(name), name))

    def digest(self) -> str:
        """32 hexadecimal digits for the samples so far."""
        return self._hash.hexdigest()


class FinishedShard(NamedTuple):
    """A shard that is complete and on the disk, and the chain of samples up to its end."""

    entry: ShardEntry
    chain: str


class Journal:
    """Verdicts and shards of earlier runs, and those of this one.

    Args:
        path: the file; made where it is missing.
        settings: what the job's result depends on, as JSON values.

    Attributes:
        shards: the finished shards of earlier runs, in order.
        verdicts: number of verdicts written down, those of earlier runs included.

    Raises:
        OutputError: the earlier runs had other settings.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        self.shards: list[FinishedShard] = []
        self._keys = array("Q")
        self._offsets = array("Q")
        self._places: tuple[NDArray[np.uint64], NDArray[np.uint64]] | None = None
        self._rows: tuple[int, list[Any]] = (-1, [])  # of the line that was read last, and where it begins
        self._lock = threading.Lock()
        self._end = 0
        self._descriptor = os.open(path, _FLAGS, 0o666)
        self._reader = path.open("rb")  # opened again, since a duplicate would share the position with what is written
        try:
            found = self._load()
            self._own = self._end  # where this run's lines begin
            self._was_useful = bool(self._keys or self.shards)
            if found is None:
                os.ftruncate(self._descriptor, 0)
                self._end = self._own = 0
                self._write(settings)
            elif found != settings:
                raise OutputError(_difference(path.parent, found, settings))
        except BaseException:
            self.close()
            raise

    @property
    def verdicts(self) -> int:
        """Number of verdicts written down, those of earlier runs included."""
        return len(self._keys)

    @property
    def is_resumed(self) -> bool:
        """Whether there is something from earlier runs that this one need not do again."""
        return self._was_useful

    def find(self, source: Source) -> Verdict | None:
        """The verdict on a file that is as it was, where there is one.

        Those of this run are found from the next ``refresh`` on.
        """
        if self._places is None:
            return None
        keys, offsets = self._places
        key = xxhash.xxh3_64_intdigest(source.name)
        path = source.name.decode("latin-1")
        place = int(np.searchsorted(keys, np.uint64(key), side="right"))
        while place and int(keys[place - 1]) == key:
            place -= 1
            offset = int(offsets[place])
            values = next((row for row in reversed(self._rows_at(offset)) if row[0] == path), None)
            if values is None:
                continue
            if values[1:3] != [source.size_bytes, source.mtime_ns]:
                return None
            verdict = decode_verdict(values[3:])
            of_the_moment = isinstance(verdict, Skipped) and verdict.code in _OF_THE_MOMENT
            return None if of_the_moment and offset < self._own else verdict
        return None

    def _rows_at(self, offset: int) -> list[Any]:
        if offset != self._rows[0]:  # files in a row stand in one line
            self._reader.seek(offset)
            fact = _fact(self._reader.readline())
            self._rows = offset, fact if isinstance(fact, list) else []
        return self._rows[1]

    def refresh(self) -> None:
        """Let ``find`` know what was written since it was opened."""
        with self._lock:  # workers may still be at what was asked of them before
            keys, offsets = (np.array(column, np.uint64) for column in (self._keys, self._offsets))
        order = np.argsort(keys, kind="stable")  # of one path, the last stays the last
        self._places = (keys[order], offsets[order]) if len(keys) else None

    def add(self, sources: Iterable[Source], verdicts: Iterable[Verdict]) -> None:
        """Write verdicts down; from any thread.

        Raises:
            OSError: the file cannot be written.
        """
        rows = [
            [source.name.decode("latin-1"), source.size_bytes, source.mtime_ns, *encode_verdict(verdict)]
            for source, verdict in zip(sources, verdicts, strict=True)
        ]
        self._write(rows)

    def add_shard(self, shard: FinishedShard) -> None:
        """Write down that a shard is complete and on the disk."""
        entry = shard.entry
        values = {"file": entry.file, "bytes": entry.size_bytes, "samples": entry.samples, "digest": entry.digest}
        self._write({**values, "chain": shard.chain})

    def close(self) -> None:
        """Close the file; a worker that is just done then writes nothing any more, here or where its number is used again."""
        with self._lock:
            if self._descriptor != -1:
                self._reader.close()
                os.close(self._descriptor)
                self._descriptor = -1

    def _write(self, fact: Any) -> None:
        text = json.dumps(fact, separators=(",", ":")).encode()
        block = memoryview(b"%016x %b\n" % (xxhash.xxh3_64_intdigest(text), text))
        with self._lock:
            if self._descriptor == -1:
                return
            if isinstance(fact, list):
                self._remember(fact)
            self._end += len(block)
            try:
                while block:
                    block = block[os.write(self._descriptor, block) :]
            except OSError as error:
                error.filename = os.fspath(self.path)
                raise

    def _remember(self, rows: list[Any]) -> None:
        """Where verdicts stand that are in the line which begins at the end."""
        self._keys.extend([xxhash.xxh3_64_intdigest(row[0].encode("latin-1")) for row in rows])
        self._offsets.extend([self._end] * len(rows))

    def _load(self) -> Any:
        """Take in what earlier runs wrote; returns their settings, ``None`` where there are none."""
        settings = None
        shards: dict[str, FinishedShard] = {}
        for line in self._reader:
            if not line.endswith(b"\n"):
                break  # cut when the job was killed, or when the disk was full
            fact = _fact(line)
            if self._end == 0:
                if not isinstance(fact, dict):
                    return None
                settings = fact
            elif isinstance(fact, list):
                self._remember(fact)
            elif isinstance(fact, dict):
                entry = ShardEntry(fact["file"], fact["bytes"], fact["samples"], fact["digest"])
                shards[entry.file] = FinishedShard(entry, fact["chain"])
            self._end += len(line)
        os.ftruncate(self._descriptor, self._end)
        self.shards = [shards[name] for name in sorted(shards)]
        self.refresh()
        return settings


def _fact(line: bytes) -> Any:
    """What a line says; ``None`` where it is damaged."""
    text = line[_DIGEST_DIGITS + 1 : -1]
    try:
        if int(line[:_DIGEST_DIGITS], 16) != xxhash.xxh3_64_intdigest(text):
            return None
        return json.loads(text)
    except ValueError:
        return None


def _difference(folder: Path, then: dict[str, Any], now: dict[str, Any]) -> str:
    flat_then, flat_now = dict(_flat(then)), dict(_flat(now))
    differences = [
        f"{key} {_shown(flat_then.get(key))} then and {_shown(flat_now.get(key))} now"
        for key in sorted({*flat_then, *flat_now})
        if flat_then.get(key) != flat_now.get(key)
    ]
    return (
        f"{folder}: an unfinished output of a job with other settings: {'; '.join(differences)}. "
        "Run it with those to go on, or add --no-resume to start over."
    )


def _flat(values: dict[str, Any], above: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key} ")
        else:
            yield f"{above}{key}", value


def _shown(value: Any) -> str:
    return "not given" if value is None else json.dumps(value)
