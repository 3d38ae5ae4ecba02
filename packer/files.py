"""Files that somebody else may fill, change, replace or have set as a trap: read them, digest them, know them again."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

import xxhash

from packer.model import Unfit

__all__ = ["OPEN_FLAGS", "FileIdentity", "file_digest", "identify", "read_regular_file"]

# O_NONBLOCK: opening a FIFO otherwise waits for ever for a writer. The other two exist on one kind of system each.
OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def read_regular_file(path: bytes, max_bytes: int = 2**63) -> bytes:
    """Read a regular file whole, to at most the size that it has when it is opened.

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
            data = os.read(descriptor, info.st_size)
            if len(data) < info.st_size:
                data = _read_rest(descriptor, data, info.st_size)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise Unfit("unreadable", error.strerror or type(error).__name__) from error
    except MemoryError as error:
        raise Unfit("too_large", "not enough memory to read the file") from error
    return data


def _read_rest(descriptor: int, data: bytes, size: int) -> bytes:
    # One read gives at most 2 GiB on Linux, and less over some network file systems.
    parts = [data]
    missing = size - len(data)
    while missing:
        part = os.read(descriptor, missing)
        if not part:
            raise Unfit("changed", f"{size:,} bytes when opened, only {size - missing:,} could be read")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class FileIdentity:
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


def file_digest(path: Path) -> str:
    """xxh3-128 of a file as 32 hexadecimal digits; 10 GB/s from the page cache.

    Raises:
        OSError: the file cannot be read.
    """
    digest = xxhash.xxh3_128()
    block = memoryview(bytearray(4 << 20))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(block):
            digest.update(block[:size])
    return digest.hexdigest()
