"""A packed dataset on the disk, opened: manifest, index, names and payloads. Everything that reads one goes through here."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import xxhash
from numpy.typing import NDArray

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
    nothing stays open. A copy that arrives pickled in another process compares the files' identities instead.

    Args:
        path: the dataset's folder.
        mmap: map the shards instead of reading them, see ``packer.extents.ExtentReader``.
        verify: compare each payload with its digest.

    Raises:
        DatasetError: the folder is no packed dataset, or not the one that was packed.
    """

    def __init__(self, path: str | os.PathLike[str], *, mmap: bool = False, verify: bool = True) -> None:
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
        return {"path": self.path, "mmap": self.mmap, "verify": self.verify, "fingerprint": self._fingerprint}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.path, self.mmap, self.verify = state["path"], state["mmap"], state["verify"]
        self._open()
        if self._fingerprint != state["fingerprint"]:
            raise DatasetChangedError.at(self.path, "replaced or changed since the dataset was opened")

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
            body = self.extents.read(record.shard, record.offset, record.size)
            if header:
                body = header + body
        except (DatasetError, OSError, MemoryError) as error:
            self._fail(index, record, error)
        self._require_sound(index, record, b"", body)
        return body

    def read_array_into(self, index: int, record: Record, header: bytes, row: memoryview) -> bool:
        """Read the elements of an ``.npy`` file straight to where they are wanted.

        Args:
            index: number of the sample.
            record: its record.
            header: the header that its file is expected to have.
            row: writable memory of bytes, exactly as many as that header promises.

        Returns:
            Whether the file is as expected; where it is not, there is nothing of value in ``row``.

        Raises:
            DatasetError: as ``payload``.
        """
        scratch = bytearray(0 if self.manifest.header else len(header))
        if record.size != len(scratch) + len(row):
            return False
        try:
            self.extents.read_into(record.shard, record.offset, memoryview(scratch), row)
        except (DatasetError, OSError) as error:
            self._fail(index, record, error)
        if not self.manifest.header and scratch != header:
            return False
        self._require_sound(index, record, header, row)
        return True

    def head(self, index: int, record: Record, size: int) -> bytes:
        """The first bytes of a sample as it lies in its container, at most ``size``; not compared with any digest.

        Raises:
            DatasetError: as ``payload``.
        """
        try:
            return self.extents.read(record.shard, record.offset, min(size, record.size))
        except (DatasetError, OSError) as error:
            self._fail(index, record, error)

    def view(self, index: int, record: Record) -> memoryview:
        """The bytes of the original file of a sample to look at, read-only; without a copy where the shards are mapped.

        Raises:
            DatasetError: as ``payload``.
        """
        if self.manifest.header:  # the two parts lie in two files
            return memoryview(self.payload(index, record))
        try:
            body = self.extents.view(record.shard, record.offset, record.size)
        except (DatasetError, OSError, MemoryError) as error:
            self._fail(index, record, error)
        self._require_sound(index, record, b"", body)
        return body

    def ask_ahead(self, records: Iterable[Record]) -> None:
        """Have the system read the payloads of these samples into its memory; returns at once, and never fails."""
        self.extents.ask_ahead([(record.shard, record.offset, record.size) for record in records])

    def _require_sound(self, index: int, record: Record, header: bytes, body: bytes | memoryview) -> None:
        if self.verify and payload_digest(header, body) != record.digest:
            raise self.corrupt(index, record, "its bytes are not those that were packed (the digest differs)")
        if record.label not in self._valid_labels:
            raise self.corrupt(index, record, f"its label {record.label} is that of no class")

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
