"""Drops files from the page cache, and finds out whether that worked. Linux; elsewhere nothing is dropped, and that is told.

Names and inodes of the files stay in memory, and so may what a disk, a server or the host of a virtual machine keeps.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

__all__ = ["cached_share", "drop"]

_FILES = 48  # that are looked at
_STRETCH = 64  # pages
_STRETCHES = 24  # of a file


def drop(paths: Sequence[Path]) -> bool:
    """Ask the kernel to forget the contents of files. They are synced before: it keeps what is not on the disk yet.

    Returns:
        Whether the system can be asked at all.

    Raises:
        OSError: a file cannot be opened.
    """
    if not hasattr(os, "posix_fadvise"):
        return False
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # a read-only file system has nothing to write
                os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    return True


def cached_share(paths: Sequence[Path]) -> float | None:
    """Share of the pages of some files that is in the page cache, by ``mincore`` for a sample of files and of their pages.

    Not by ``preadv2`` with ``RWF_NOWAIT``: on a page that is not there, kernels of today begin to read it.

    Returns:
        0 to 1; ``None`` where the system does not say. Of a file that is another user's and may not be written, Linux calls
        every page cached: such files are not looked at.
    """
    try:
        mincore = ctypes.CDLL(None, use_errno=True).mincore
    except (AttributeError, OSError, TypeError):
        return None
    mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    cached = pages = 0
    for path in paths[:: -(-len(paths) // _FILES) or 1]:
        with path.open("rb") as file:
            info = os.fstat(file.fileno())
            size = info.st_size
            if not size or not _may_ask(path, info):
                continue
            with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as mapped:
                states = _states(mapped, size, mincore)
        if states is None:
            return None
        cached += int(states.sum())
        pages += len(states)
    return cached / pages if pages else None


def _may_ask(path: Path, info: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or info.st_uid == os.geteuid() or os.access(path, os.W_OK)


def _states(
    mapped: mmap.mmap, size: int, mincore: ctypes._NamedFuncPointer
) -> np.ndarray[tuple[int], np.dtype[np.uint8]] | None:
    """Of the pages that are looked at: uint8, 1 where one is in memory."""
    count = -(-size // mmap.PAGESIZE)
    # The array goes at once, so that the map can be closed.
    address = np.frombuffer(mapped, np.uint8).ctypes.data
    found = []
    step = max(_STRETCH, -(-count // _STRETCHES))
    for first in range(0, count, step):
        length = min(_STRETCH, count - first)
        states = np.empty(length, np.uint8)
        if mincore(address + first * mmap.PAGESIZE, length * mmap.PAGESIZE, states.ctypes.data):
            return None
        found.append(states & 1)
    return np.concatenate(found)
