"""Files that somebody else may fill, change, replace or have set as a trap: read them, digest them, know them again."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple

import xxhash

from packer.errors import TruncatedFileError
from packer.model import Unfit

__all__ = [
    "OPEN_FLAGS",
    "FileIdentity",
    "MappedFile",
    "OpenFile",
    "discard",
    "discard_path",
    "file_digest",
    "identify",
    "read_regular_file",
]

_LARGE_BYTES = 16 << 20
_ONE_READ_BYTES = 1 << 30
_HEAD_BYTES = 64 << 10
_MOST_ASKED_BYTES = 64 << 20  # what is larger is read ahead by the system while it is read
_ASKED_BYTES = 128 << 10  # of a longer range Linux reads only so much ahead, where the device's limit is its usual one
_HAS_PREAD = hasattr(os, "preadv")
_HAS_FADVISE = hasattr(os, "posix_fadvise")
_NOWAIT = getattr(os, "RWF_NOWAIT", None)

# O_NONBLOCK: opening a FIFO otherwise waits for ever for a writer. The other two exist on one kind of system each.
OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def discard(file: IO[Any]) -> None:
    """Close a file whose content no longer matters; what cannot be flushed to a full disk is lost anyway."""
    with contextlib.suppress(OSError):
        file.close()


def discard_path(path: Path) -> None:
    """Remove a file that is no longer wanted, where it is there at all."""
    with contextlib.suppress(OSError):
        path.unlink()


def read_regular_file(path: bytes, max_bytes: int = 2**63, accept: Callable[[bytes], object] | None = None) -> bytes:
    """Read a regular file whole, to at most the size that it has when it is opened.

    Args:
        path: the file.
        max_bytes: the largest size that is wanted.
        accept: is shown the first bytes of a large file, and raises ``Unfit`` where the rest is not worth reading: a disk image
            that was renamed to ``.jpg`` must not fill the memory.

    Raises:
        Unfit: it cannot be opened or read (``unreadable``), is no regular file (``unreadable``), is larger than
            ``max_bytes`` (``too_large``), or became shorter while it was read (``changed``).
    """
    try:
        descriptor = os.open(path, OPEN_FLAGS)
        try:
            info = os.fstat(descriptor)
            if not stat.S_ISREG(info.st_mode):
                raise Unfit("unreadable", "not a regular file")
            if info.st_size > max_bytes:
                raise Unfit("too_large", f"{info.st_size:,} bytes, the container holds at most {max_bytes:,} a file")
            if accept is not None and info.st_size > _LARGE_BYTES:
                accept(os.read(descriptor, _HEAD_BYTES))
                os.lseek(descriptor, 0, os.SEEK_SET)
            data = _read_whole(descriptor, info.st_size)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise Unfit("unreadable", error.strerror or type(error).__name__) from error
    except MemoryError as error:
        raise Unfit("too_large", "not enough memory to read the file") from error
    return data


def _read_whole(descriptor: int, size: int) -> bytes:
    if size < _ONE_READ_BYTES:
        data = os.read(descriptor, size)
        if len(data) == size:
            return data
        os.lseek(descriptor, 0, os.SEEK_SET)
    # One read gives at most 2 GiB on Linux, and less over some network file systems. A buffered reader fills one bytes object
    # of the whole size, however many reads that takes; parts that are joined take the memory twice.
    with open(descriptor, "rb", closefd=False) as file:
        data = file.read(size)
    if len(data) < size:
        raise Unfit("changed", f"{size:,} bytes when opened, only {len(data):,} could be read")
    return data


class FileIdentity(NamedTuple):
    """What tells a file or folder from another that took its place: device, inode, size and modification time."""

    device: int
    inode: int
    size_bytes: int
    mtime_ns: int


def identify(info: os.stat_result) -> FileIdentity:
    """The identity in a stat result. A folder's size and time change with its content, and are left out."""
    if stat.S_ISDIR(info.st_mode):
        return FileIdentity(info.st_dev, info.st_ino, 0, 0)
    return FileIdentity(info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | OPEN_FLAGS)


def file_digest(path: Path) -> str:
    """xxh3-128 of a file as 32 hexadecimal digits; 10 GB/s from the page cache.

    Raises:
        OSError: the file cannot be read.
    """
    digest = xxhash.xxh3_128()
    block = memoryview(bytearray(512 << 10))  # what a core keeps near itself: 10 % faster than 4 MiB
    with open(path, "rb", buffering=0, opener=_open_at_once) as file:
        while size := file.readinto(block):
            digest.update(block[:size])
    return digest.hexdigest()


class OpenFile:
    """A file that is open as long as somebody reads from it, at any place, from any thread, also after a fork.

    Args:
        descriptor: of the file; it belongs to this object.
        path: the file, for messages.
        size_bytes: the size that it must have, for messages.
    """

    # Closing it when it is no longer wanted instead gave another file's bytes in 121 reads of a 4 s test with threads: the
    # number of the closed descriptor had been given to the next file that was opened.
    __slots__ = ("_descriptor", "_lock", "path", "size_bytes")

    descriptors: ClassVar[int] = 1
    """How many it takes."""

    def __init__(self, descriptor: int, path: Path, size_bytes: int) -> None:
        self._descriptor = descriptor
        self._lock = None if _HAS_PREAD else threading.Lock()  # where there is no preadv there is no fork either
        self.path = path
        self.size_bytes = size_bytes

    def read(self, offset: int, size: int) -> bytes:
        """A private copy of exactly ``size`` bytes.

        Raises:
            TruncatedFileError: the file became shorter.
            OSError: the file system cannot read it.
        """
        data = os.pread(self._descriptor, size, offset) if self._lock is None else self._read_some(self._lock, offset, size)
        if len(data) == size:
            return data
        whole = bytearray(size)
        self.read_into(offset, size, (memoryview(whole),))
        return bytes(whole)

    def read_into(self, offset: int, size: int, buffers: Sequence[memoryview]) -> None:
        """Fill writable buffers, ``size`` bytes in all, one after the other, from one range of the file; raises as ``read``."""
        done = os.preadv(self._descriptor, buffers, offset) if self._lock is None else 0
        if done == size:
            return
        for buffer in buffers:
            filled = min(done, len(buffer))
            done -= filled
            offset += filled
            while filled < len(buffer):  # the kernel gives at most 2 GiB at once, a network file system sometimes less
                count = self._read_some_into(offset, buffer[filled:])
                if not count:
                    raise TruncatedFileError.sized(self.path, os.fstat(self._descriptor).st_size, self.size_bytes)
                filled += count
                offset += count

    def view(self, offset: int, size: int) -> memoryview:
        """The bytes to look at, read-only; raises as ``read`` does."""
        return memoryview(self.read(offset, size))

    def ask_ahead(self, offset: int, size: int) -> None:
        """Tell the system that this range is wanted soon, and return at once; where it cannot be told, nothing happens."""
        if _HAS_FADVISE and not (size > _ASKED_BYTES and self.has_cached(offset + size - 1)):
            end = offset + min(size, _MOST_ASKED_BYTES)
            for start in range(offset, end, _ASKED_BYTES):
                os.posix_fadvise(self._descriptor, start, min(_ASKED_BYTES, end - start), os.POSIX_FADV_WILLNEED)

    def has_cached(self, offset: int) -> bool:
        """Whether the system has a byte in its memory, as far as it can say; 1 µs, where asking for 600 kB that are there
        costs 9.
        """
        try:
            return _NOWAIT is not None and os.preadv(self._descriptor, [bytearray(1)], offset, _NOWAIT) == 1
        except OSError:  # it would have to wait, or a file system that cannot say
            return False

    def _read_some(self, lock: threading.Lock, offset: int, size: int) -> bytes:
        with lock:
            os.lseek(self._descriptor, offset, os.SEEK_SET)
            return os.read(self._descriptor, size)

    def _read_some_into(self, offset: int, buffer: memoryview) -> int:
        if self._lock is None:
            return os.preadv(self._descriptor, (buffer,), offset)
        data = self._read_some(self._lock, offset, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def identity(self) -> FileIdentity:
        """What the file is now; another one than at first if somebody wrote to it meanwhile."""
        return identify(os.fstat(self._descriptor))

    def __del__(self, close: object = os.close) -> None:
        # The name `os` may be gone while the interpreter ends.
        if callable(close) and hasattr(self, "_descriptor"):
            close(self._descriptor)


class MappedFile(OpenFile):
    """A mapped file. If it is truncated meanwhile, looking at it ends the process with a bus error."""

    __slots__ = ("_map", "_view")

    descriptors = 2  # Python's mmap makes one for itself

    def __init__(self, descriptor: int, path: Path, size_bytes: int) -> None:
        try:
            self._map = mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_READ)
        except ValueError:  # it was cut since its size was looked at
            raise TruncatedFileError.sized(path, os.fstat(descriptor).st_size, size_bytes) from None
        self._view = memoryview(self._map)
        super().__init__(descriptor, path, size_bytes)

    def read(self, offset: int, size: int) -> bytes:
        """A private copy."""
        return self._map[offset : offset + size]

    def read_into(self, offset: int, size: int, buffers: Sequence[memoryview]) -> None:
        """Fill writable buffers of bytes, one after the other."""
        for buffer in buffers:
            buffer[:] = self._view[offset : offset + len(buffer)]
            offset += len(buffer)

    def view(self, offset: int, size: int) -> memoryview:
        """The bytes to look at, read-only and not copied."""
        return self._view[offset : offset + size]
