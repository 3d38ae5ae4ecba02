"""Drops files from the page cache, and tells whether that worked. Linux; elsewhere nothing is dropped, and that is told.

The names and inodes of the files stay in memory, and so may what a host keeps of a virtual disk.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np


def drop(paths: Sequence[Path]) -> None:
    """Ask the kernel to forget the contents of files, which are synced before: it keeps what is not on the disk yet."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def cached_share(paths: Sequence[Path]) -> float:
    """The share of the pages of some files that is in the page cache, as ``mincore`` tells; 1 where it does not.

    Of files that one may not write, newer kernels call every page cached, so that this errs on the safe side.
    """
    try:
        mincore = ctypes.CDLL(None, use_errno=True).mincore
    except (AttributeError, OSError):
        return 1.0
    mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    cached = pages = 0
    for path in paths:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            states = np.empty(-(-len(mapped) // mmap.PAGESIZE), np.uint8)
            address = np.frombuffer(mapped, np.uint8).ctypes.data  # the array goes at once, so that the map can be closed
            if mincore(address, len(mapped), states.ctypes.data):
                return 1.0
        cached += int((states & 1).sum())
        pages += len(states)
    return cached / pages if pages else 0.0


def disk_bytes_read() -> int:
    """Bytes that this process has made the kernel read from disks so far; 0 where the system does not tell."""
    try:
        text = Path("/proc/self/io").read_text(encoding="ascii")
    except OSError:
        return 0
    return int(dict(line.split(": ") for line in text.splitlines())["read_bytes"])
