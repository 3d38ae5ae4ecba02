"""Read payloads by their place: a range of bytes in a file. One reader for all containers; it needs none of their libraries.

There is no environment to reopen after a fork, no lock, no table of readers, nothing that cannot be pickled. Reading is
``os.preadv``: it needs no open position, so threads and forked processes can share a descriptor, and a file that shrank or
a server that went away is an exception (of a mapped file it would be a bus error).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from packer.errors import CorruptDatasetError, DatasetChangedError, DatasetError, TruncatedFileError
from packer.files import OPEN_FLAGS, FileIdentity, MappedFile, OpenFile, identify
from packer.manifest import ShardEntry

if sys.platform != "win32":
    import resource

__all__ = ["ExtentReader", "joined"]

_MAX_OPEN = 64  # files; a dataset may have thousands of shards
_SHARE_OF_LIMIT = (
    8  # of `ulimit -n`, which may be 128: other datasets want a share, too, and torch's pipes, which do not ask twice
)
_NEAR_BYTES = 64 << 10
# One that is missing after all costs a hard disk 10 ms, and asking 5 us: so it may be one of two thousand. To look takes 1 us,
# and several where threads wait for each other meanwhile: a hundredth of the speed at one of eight, so it is one a batch.
_ALL_CACHED = 1024
_LOOKED_AT = 64  # one of so many
_HAS_DIR_FD = os.open in os.supports_dir_fd
_FOLDER_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_TOO_MANY_OPEN = frozenset({errno.EMFILE, errno.ENFILE})
_REPLACED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


class ExtentReader:
    """Reads ranges of bytes from the shards of one dataset.

    A shard is opened when it is first read, through the folder as it was when the reader was made: what was replaced
    meanwhile is noticed, not mixed in.

    Args:
        folder: the dataset.
        shards: its shards, from the manifest.
        mmap: map the shards instead of reading them. Faster for arrays; but a file that is truncated while it is mapped ends
            the process with a bus error, which nothing can catch.

    Raises:
        TruncatedFileError: a shard has another size than the manifest says.
        CorruptDatasetError: a shard is missing or is no regular file.
    """

    def __init__(self, folder: Path, shards: tuple[ShardEntry, ...], *, mmap: bool = False) -> None:
        self.folder = folder
        self._shards = shards
        self._mmap = mmap
        self._files: dict[int, OpenFile] = {}
        self._cached_in_a_row = 0  # no lock: where a thread's are forgotten, some more are looked at
        self.folder_identity = identify(os.stat(folder))
        self.identities = tuple(_identify_shard(Path(folder, shard.file), shard.size_bytes) for shard in shards)

    def read(self, shard: int, offset: int, size: int) -> bytes:
        """A private copy of a range of bytes.

        Raises:
            CorruptDatasetError: the range is not inside the shard.
            DatasetChangedError: the shard or the folder was replaced since the reader was made.
            TruncatedFileError: the shard became shorter since it was opened.
            OSError: the file system cannot read it.
        """
        if not size:
            self._require_inside(shard, offset, size)
            return b""
        return self._file(shard, offset, size).read(offset, size)

    def read_into(self, shard: int, offset: int, size: int, buffers: Sequence[memoryview]) -> None:
        """Fill writable buffers, ``size`` bytes in all, one after the other, from one range of a shard; raises as ``read``."""
        if not size:
            self._require_inside(shard, offset, size)
            return
        self._file(shard, offset, size).read_into(offset, size, buffers)

    def view(self, shard: int, offset: int, size: int) -> memoryview:
        """A range of bytes to look at, read-only, without a copy where the shards are mapped; raises as ``read`` does."""
        if not size:
            return memoryview(self.read(shard, offset, size))
        return self._file(shard, offset, size).view(offset, size)

    def ask_ahead(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Have the system read ranges into its memory while something else is done. Advice: it never fails.

        Cold random reads of a batch are three times as fast when all are asked for first, since a disk or server then works
        on many at once. Of those that are in memory already it is a fifth of the time of a small sample: after a thousand in
        a row of which each was, only some are looked at, and nothing is asked for until one is missing.
        """
        wanted = list(joined(ranges))
        if self._are_cached(wanted):
            return
        for shard, offset, size in wanted:
            try:
                self._file(shard, offset, size).ask_ahead(offset, size)
            except (DatasetError, OSError):
                continue  # what is wrong with a range is said when it is read, with the name of its sample

    def _are_cached(self, ranges: list[tuple[int, int, int]]) -> bool:
        """Whether the system seems to have all of these in its memory."""
        for shard, offset, size in ranges[:: 1 if self._cached_in_a_row < _ALL_CACHED else _LOOKED_AT]:
            try:
                is_cached = self._file(shard, offset, size).has_cached(offset + size - 1)
            except (DatasetError, OSError):
                is_cached = False
            if not is_cached:
                self._cached_in_a_row = 0
                return False
            self._cached_in_a_row += 1
        return True

    def path(self, shard: int) -> Path:
        """The file of a shard, for messages."""
        return Path(self.folder, self._shards[shard].file) if 0 <= shard < len(self._shards) else self.folder

    def _require_inside(self, shard: int, offset: int, size: int) -> None:
        if not 0 <= shard < len(self._shards) or not 0 <= offset <= self._shards[shard].size_bytes - size:
            raise CorruptDatasetError.at(
                self.path(shard), f"bytes {offset:,} to {offset + size:,} are not inside the container"
            )

    def _file(self, shard: int, offset: int, size: int) -> OpenFile:
        """An open shard that has this range. The caller's reference keeps it open, whoever drops it from the list meanwhile."""
        file = self._files.get(shard)
        if file is not None and 0 <= offset <= file.size_bytes - size:
            return file
        self._require_inside(shard, offset, size)
        try:
            file = self._open(shard)
        except OSError as error:
            if error.errno not in _TOO_MANY_OPEN or not self._files:
                raise
            self._drop_oldest(0)  # others in this process need descriptors, too, such as a second dataset
            file = self._open(shard)
        self._files[shard] = file
        self._drop_oldest(_most_open(file.descriptors))
        return file

    def _drop_oldest(self, keep: int) -> None:
        # No lock, since a thread could hold it at the moment of a fork. Single steps of a dict are atomic.
        while len(self._files) > keep:
            with contextlib.suppress(RuntimeError, StopIteration):
                self._files.pop(next(iter(self._files)), None)

    def _open(self, shard: int) -> OpenFile:
        name = self._shards[shard].file
        path = Path(self.folder, name)
        try:
            if _HAS_DIR_FD:
                folder = os.open(self.folder, _FOLDER_FLAGS)
                try:
                    same_folder = identify(os.fstat(folder)) == self.folder_identity
                    descriptor = os.open(name, OPEN_FLAGS | _NO_LINK, dir_fd=folder) if same_folder else -1
                finally:
                    os.close(folder)
            else:
                same_folder = identify(os.stat(self.folder)) == self.folder_identity
                descriptor = os.open(path, OPEN_FLAGS) if same_folder else -1
        except OSError as error:
            if error.errno in _REPLACED:
                raise DatasetChangedError.at(path, "removed or replaced since the dataset was opened") from None
            raise
        if not same_folder:
            raise DatasetChangedError.at(self.folder, "replaced since the dataset was opened")
        try:
            if identify(os.fstat(descriptor)) != self.identities[shard]:
                raise DatasetChangedError.at(path, "replaced or changed since the dataset was opened")
            kind = MappedFile if self._mmap else OpenFile
            return kind(descriptor, path, self._shards[shard].size_bytes)
        except BaseException:
            os.close(descriptor)
            raise


def _most_open(descriptors: int) -> int:
    """How many files of so many descriptors each a reader may keep open, as the limit of the process is now."""
    if sys.platform == "win32":
        return _MAX_OPEN
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MAX_OPEN if limit == resource.RLIM_INFINITY else max(4, min(_MAX_OPEN, limit // (_SHARE_OF_LIMIT * descriptors)))


def joined(ranges: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Neighbours become one range, so that a stretch of small samples is asked for at once."""
    shard, start, end = -1, 0, 0
    for next_shard, offset, size in ranges:
        if next_shard == shard and 0 <= offset - end <= _NEAR_BYTES:
            end = offset + size
            continue
        if end > start:
            yield shard, start, end - start
        shard, start, end = next_shard, offset, offset + size
    if end > start:
        yield shard, start, end - start


def _identify_shard(path: Path, expected: int) -> FileIdentity:
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        raise CorruptDatasetError.at(path, "missing") from None
    except (OSError, ValueError) as error:  # ValueError: a name that cannot exist on this system
        raise CorruptDatasetError.at(path, f"cannot be looked at ({error})") from None
    if not stat.S_ISREG(info.st_mode):
        raise CorruptDatasetError.at(path, "no regular file")
    if info.st_size != expected:
        raise TruncatedFileError.sized(path, info.st_size, expected)
    return identify(info)
