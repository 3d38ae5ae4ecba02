"""A packed dataset on the disk, opened: manifest, index, names and payloads. Everything that reads one goes through here."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.cache import Cache, open_cache
from packer.cachefile import CacheOptions
from packer.errors import (
    CorruptDatasetError,
    CorruptSampleError,
    DatasetChangedError,
    DatasetError,
    TruncatedFileError,
)
from packer.extents import ExtentReader
from packer.files import FileIdentity, file_digest, identify
from packer.index import INDEX_FILE, NAMES_FILE, Index, Record
from packer.manifest import Manifest, load_manifest
from packer.model import display_name

__all__ = ["SampleView", "Store", "payload_digest"]


class Store:
    """Opens a packed dataset and gives its payloads.

    Opening reads the manifest, digests index and names (10 GB/s), and compares the size of every file; no payload is read and
    nothing stays open but a cache. A copy that arrives pickled in another process compares the files' identities instead.

    Args:
        path: the dataset's folder.
        mmap: map the shards instead of reading them, see ``packer.extents.ExtentReader``.
        verify: compare each payload with its digest.
        cache: whether and where payloads are kept that were read once.

    Raises:
        DatasetError: the folder is no packed dataset, or not the one that was packed.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, mmap: bool = False, verify: bool = True, cache: CacheOptions | None = None
    ) -> None:
        try:
            self.path = Path(os.path.abspath(path))
        except FileNotFoundError:  # a relative path, and the current folder has been removed
            raise DatasetError.at(Path(path), "the current folder no longer exists") from None
        self.mmap = mmap
        self.verify = verify
        self._open()
        for name in (INDEX_FILE, NAMES_FILE):
            entry = self.manifest.files[name]
            path = Path(self.path, name)
            try:
                same = file_digest(path) == entry.digest
            except OSError as error:
                raise DatasetError.at(path, f"cannot be read: {error.strerror}") from error
            if not same:
                raise CorruptDatasetError.at(path, "its contents are not those that were packed (the digest differs)")
        self.cache = open_cache(cache, self.manifest) if cache else None

    def _open(self) -> None:
        self.manifest: Manifest = load_manifest(self.path)
        self._index: Index | None = None
        self._targets: NDArray[np.int64] | None = None
        self._valid_labels = self.manifest.valid_labels
        self.extents = ExtentReader(self.path, self.manifest.shards, mmap=self.mmap)
        self._identities = {
            name: _identify(Path(self.path, name), entry.size_bytes) for name, entry in self.manifest.files.items()
        }
        identities = [self.extents.folder_identity, *self.extents.identities, *self._identities.values()]
        # One number for all, so that a dataset of 10,000 shards pickles as small as one of a single file.
        # Without the device, whose number differs between two hosts that share a file system.
        facts = [(identity.inode, identity.size_bytes, identity.mtime_ns) for identity in identities]
        self._fingerprint = xxhash.xxh3_128_hexdigest(repr((self.manifest.digest, facts)).encode())

    def __getstate__(self) -> dict[str, Any]:
        state = {"path": self.path, "mmap": self.mmap, "verify": self.verify, "fingerprint": self._fingerprint}
        return state if self.cache is None else {**state, "cache": self.cache.file}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.path, self.mmap, self.verify = state["path"], state["mmap"], state["verify"]
        self._open()
        if self._fingerprint != state["fingerprint"]:
            raise DatasetChangedError.at(self.path, "replaced or changed since the dataset was opened")
        file = state.get("cache")
        self.cache = None if file is None else Cache(file, self.manifest)

    def __len__(self) -> int:
        return self.manifest.samples

    @property
    def index(self) -> Index:
        """Index and names, opened on first use: right after opening, nothing of the dataset is open."""
        # No functools.cached_property: before Python 3.12 it holds a lock, and a process that is forked while a thread makes
        # its first read would wait for that lock for ever.
        if self._index is None:
            self._index = Index(self.path, self.manifest.samples, self._identities)
        return self._index

    @property
    def targets(self) -> NDArray[np.int64]:
        """Labels of all samples: int64, shape (samples,), read-only."""
        if self._targets is None:
            self._targets = self._read_targets()
        return self._targets

    def _read_targets(self) -> NDArray[np.int64]:
        labels = np.empty(len(self), np.int64)
        start = 0
        for block in self.index.blocks():
            labels[start : start + len(block)] = block["label"]
            start += len(block)
        labels.flags.writeable = False
        return labels.view()  # of a view nobody can make the memory writable again

    def name(self, index: int) -> str:
        """The original relative path of a sample, as text."""
        return display_name(self.index.name(index))

    def payload(self, index: int, record: Record) -> bytes:
        """The bytes of the original file of a sample, a private copy.

        Raises:
            CorruptSampleError: they cannot be read, or are not those that were packed.
            DatasetChangedError: the shard or the folder was replaced since the dataset was opened.
        """
        header = self.manifest.header
        try:
            body = None if self.cache is None else self._kept(index, record, self.cache)
            is_kept = body is not None
            if body is None:
                body = self.extents.read(record.shard, record.offset, record.size)
            whole = header + body if header else body
        except (DatasetError, OSError, MemoryError) as error:
            self._fail(index, record, error)
        self._require_sound(index, record, whole, is_kept)
        if self.cache is not None and not is_kept:
            self._keep(index, record, header, body, self.cache)
        return whole

    def read_arrays_into(
        self,
        numbers: Sequence[int],
        records: Sequence[Record],
        header: bytes,
        rows: memoryview,
        check: Callable[[], object],
    ) -> bool:
        """Read the elements of ``.npy`` files straight to where they are wanted, one after the other.

        Args:
            numbers: of the samples.
            records: of the samples.
            header: the header that each of their files is expected to have.
            rows: writable memory of bytes, for each sample exactly as many as that header promises.
            check: called before each sample; what it raises ends the reading.

        Returns:
            Whether all files are as expected; where one is not, there is nothing of value in ``rows``.

        Raises:
            DatasetError: as ``payload``.
        """
        # As little as can be is done for each sample: a long one drives the interpreter out of the processor's caches, and
        # then each object that is looked at costs 0.1 us (ten calls a sample: a seventh of the speed with two threads).
        cache, extents, labels, verify = self.cache, self.extents, self._valid_labels, self.verify
        scratch = bytearray(0 if self.manifest.header else len(header))
        ahead = (memoryview(scratch),) if scratch else ()
        size = len(rows) // len(records)
        whole, end = len(scratch) + size, 0
        for number, record in zip(numbers, records, strict=True):
            if record.size != whole:
                return False
            if record.label not in labels:
                raise self._no_label(number, record)
        for number, record in zip(numbers, records, strict=True):
            check()
            start, end = end, end + size
            row = rows[start:end]
            is_kept = cache is not None and self._has_filled(number, record, cache, scratch, row)
            if not is_kept:
                try:
                    extents.read_into(record.shard, record.offset, whole, (*ahead, row))
                except (DatasetError, OSError) as error:
                    self._fail(number, record, error)
            if scratch and scratch != header:
                return False
            if verify and not is_kept and _row_digest(header, rows, start, end) != record.digest:
                raise self._other_bytes(number, record)
            if cache is not None and not is_kept:
                self._keep(number, record, header, row, cache)
        return True

    def head(self, index: int, record: Record, size: int) -> bytes:
        """The first bytes of a sample as it lies in its container, at most ``size``; not compared with any digest.

        Raises:
            DatasetError: as ``payload``.
        """
        if self.cache is not None and (kept := self.cache.head(index, record, size)) is not None:
            return kept
        try:
            return self.extents.read(record.shard, record.offset, min(size, record.size))
        except (DatasetError, OSError) as error:
            self._fail(index, record, error)

    def view(self, index: int, record: Record) -> memoryview:
        """The bytes of the original file of a sample to look at, read-only; without a copy where the shards are mapped
        and there is no cache.

        Raises:
            DatasetError: as ``payload``.
        """
        if self.manifest.header or self.cache is not None:  # header and body lie in two files; a cache is never mapped
            return memoryview(self.payload(index, record))
        try:
            body = self.extents.view(record.shard, record.offset, record.size)
        except (DatasetError, OSError, MemoryError) as error:
            self._fail(index, record, error)
        self._require_sound(index, record, body)
        return body

    def ask_ahead(self, numbers: Sequence[int], records: Sequence[Record]) -> None:
        """Have the system read the payloads of these samples into its memory; returns at once, and never fails."""
        wanted = records if self.cache is None else self.cache.ask_ahead(numbers, records)
        self.extents.ask_ahead([(record.shard, record.offset, record.size) for record in wanted])

    def _kept(self, index: int, record: Record, cache: Cache) -> bytes | None:
        """The bytes of a sample in its container, from the cache and as they were packed; ``None`` where it has no such."""
        body = cache.read(index, record)
        return body if body is not None and payload_digest(self.manifest.header, body) == record.digest else None

    def _has_filled(self, index: int, record: Record, cache: Cache, scratch: bytearray, row: memoryview) -> bool:
        """As ``_kept``, into an array's header and its elements."""
        if not cache.read_into(index, record, memoryview(scratch), row):
            return False
        return payload_digest(self.manifest.header or bytes(scratch), row) == record.digest

    def _keep(self, index: int, record: Record, header: bytes, body: bytes | memoryview, cache: Cache) -> None:
        """Give the bytes of a sample that was read from its container to the cache; damaged ones never."""
        if self.verify or payload_digest(header, body) == record.digest:
            cache.add(index, record, *((body,) if self.manifest.header else (header, body)))

    def _require_sound(self, index: int, record: Record, whole: bytes | memoryview, is_compared: bool = False) -> None:
        if self.verify and not is_compared and payload_digest(b"", whole) != record.digest:
            raise self._other_bytes(index, record)
        if record.label not in self._valid_labels:
            raise self._no_label(index, record)

    def _other_bytes(self, index: int, record: Record) -> CorruptSampleError:
        return self.corrupt(index, record, "its bytes are not those that were packed (the digest differs)")

    def _no_label(self, index: int, record: Record) -> CorruptSampleError:
        return self.corrupt(index, record, f"its label {record.label} is that of no class")

    def _fail(self, index: int, record: Record, error: Exception) -> NoReturn:
        """Tell the training loop that the bytes of a sample could not be read."""
        if isinstance(error, DatasetChangedError):
            raise error
        if isinstance(error, TruncatedFileError):
            problem = f"the file has {error.found:,} bytes, {error.expected:,} are expected"
            raise self.corrupt(index, record, problem) from error
        if isinstance(error, DatasetError):
            raise self.corrupt(index, record, f"cannot be read: {error.problem}") from error
        # The machine's fault and not the dataset's: too many open files, a server that went away, too little memory.
        found = getattr(error, "strerror", None) or error
        why = f"not enough memory for {record.size:,} bytes" if isinstance(error, MemoryError) else found
        problem = f"cannot be read for sample {index} ({self.name(index)!r}): {why}"
        raise DatasetError.at(self.extents.path(record.shard), problem) from error

    def corrupt(self, index: int, record: Record, problem: str) -> CorruptSampleError:
        """The error that names a sample and where it lies."""
        return CorruptSampleError.of(index, self.name(index), self.extents.path(record.shard), record.offset, problem)

    def records(self) -> Iterator[tuple[int, Record]]:
        """All records with their numbers, in order."""
        for index in range(len(self)):
            yield index, self.index[index]


class SampleView:
    """The bytes of a sample to look at for the length of a block: ``with data.view(i) as view:``."""

    __slots__ = ("_view",)

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def __enter__(self) -> memoryview:
        return self._view

    def __exit__(self, *_: object) -> None:
        try:
            self._view.release()
        except BufferError:
            return  # an array over the view keeps the bytes, and stays right: no reason to stop a training run


def payload_digest(header: bytes, body: bytes | memoryview) -> int:
    """xxh3-64 of a file's bytes, of which the first may be kept once for all files."""
    if not header:
        return xxhash.xxh3_64_intdigest(body)
    digest = xxhash.xxh3_64(header)
    digest.update(body)
    return digest.intdigest()


def _row_digest(header: bytes, rows: memoryview, start: int, end: int) -> int:
    """``payload_digest`` of a header and the elements from ``start`` to ``end``, before which the header is laid meanwhile: in
    one piece 600 kB that were just read are digested in 26 us, behind a header that lies elsewhere in 36.
    """
    room = start - len(header)
    if room < 0:
        return payload_digest(header, rows[start:end])
    kept = rows[room:start].tobytes()
    rows[room:start] = header
    digest = xxhash.xxh3_64_intdigest(rows[room:end])
    rows[room:start] = kept
    return digest


def _identify(path: Path, expected: int) -> FileIdentity:
    try:
        info = os.stat(path)
    except OSError as error:
        raise CorruptDatasetError.at(path, error.strerror or type(error).__name__) from error
    if not stat.S_ISREG(info.st_mode):
        raise CorruptDatasetError.at(path, "no regular file")
    if info.st_size != expected:
        raise TruncatedFileError.sized(path, info.st_size, expected)
    return identify(info)
