"""Bring what was written to the disk: a file, the names in a folder, a whole file system."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sys
from pathlib import Path

__all__ = ["begin_sync", "sync_file", "sync_file_system", "sync_folder"]

_IS_WINDOWS = sys.platform == "win32"
_START_WRITING = 2  # SYNC_FILE_RANGE_WRITE of <linux/fs.h>: no waiting, and no error is taken away from a later fsync


def begin_sync(path: Path) -> None:
    """Have the system begin to bring to the disk what a file has so far, so that less is left to wait for in the end; returns
    at once. It never fails: where the system cannot be asked, it does so when it likes.
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    with contextlib.suppress(OSError, AttributeError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            library.sync_file_range(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), ctypes.c_uint(_START_WRITING))
        finally:
            os.close(descriptor)


def sync_file(path: Path) -> None:
    """Bring a finished file to the disk.

    Raises:
        OSError: the disk did not take it; the error names the file.
    """
    descriptor = os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    try:
        os.fsync(descriptor)
    except OSError as error:
        error.filename = os.fspath(path)
        raise
    finally:
        os.close(descriptor)


def sync_file_system(folder: Path) -> None:
    """Bring all files of the file system that a folder lies on to the disk: one call for a million small files.

    Raises:
        OSError: the disk did not take something, as far as the system says so.
    """
    if _IS_WINDOWS:
        return
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "syncfs"):
        os.sync()
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if library.syncfs(descriptor):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, where the system can."""
    if _IS_WINDOWS:
        return
    with contextlib.suppress(PermissionError):  # one that may be written but not listed cannot be opened
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot sync a folder
                raise
        finally:
            os.close(descriptor)
