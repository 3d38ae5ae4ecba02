"""Copy the files that were skipped to a folder of their own, to be looked at; the input is never touched."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from packer.errors import OutputError
from packer.files import OPEN_FLAGS
from packer.model import Unfit

__all__ = ["copy_skipped", "require_quarantine"]

_PARTIAL = b".partial"  # no file of the input is called so: the scan passes hidden names over
_BLOCK_BYTES = 1 << 20


def require_quarantine(root: Path, folder: Path) -> None:
    """Refuse a folder that would mix with the input or with other files, or that cannot be made, before there is any work.

    Raises:
        OutputError: it lies in the input, holds it, is no folder, is not empty, or may not be written.
    """
    real_root, real_folder = Path(os.path.realpath(root)), Path(os.path.realpath(folder))
    if real_root == real_folder or real_root in real_folder.parents or real_folder in real_root.parents:
        raise OutputError(f"{folder}: lies in the input or holds it, which is never changed; choose another folder")
    there = next((place for place in (real_folder, *real_folder.parents) if os.path.lexists(place)), real_folder)
    if not os.path.isdir(there):
        raise OutputError(f"{folder}: {'exists and' if there == real_folder else there} is no folder")
    try:
        if there == real_folder and os.listdir(there):
            raise OutputError(f"{folder}: is not empty; choose another folder, or empty it")
    except PermissionError as error:
        raise OutputError(f"{folder}: {error.strerror}; choose another folder") from error
    if not os.access(there, os.W_OK | os.X_OK):
        raise OutputError(f"{folder}: cannot be written (no permission, or a read-only file system); choose another folder")


def copy_skipped(
    root: Path, rows: Iterable[dict[str, Any]], folder: Path, *, follow_links: bool = False
) -> Iterator[tuple[str, str]]:
    """Copy each skipped file to its relative path in the folder.

    A copy and no link: who deletes the original after a look at the quarantine must still have it, and who edits the one in the
    quarantine must not change the original.

    Args:
        root: the input.
        rows: of its report.
        folder: new or empty.
        follow_links: copy also what links lead to that leave the input.

    Yields:
        For each skipped file its path, and why it could not be copied (a dangling link, a FIFO); empty where it was.

    Raises:
        OutputError: the folder cannot be written. No part of a file is left there.
    """
    inside = os.path.join(os.path.realpath(os.fsencode(root)), b"")
    for row in rows:
        if row["outcome"] == "skipped":
            name = row["path"].encode("utf-8", "surrogateescape")  # as the report has it, whatever the locale
            source = os.path.join(os.fsencode(root), name)
            if follow_links or os.path.realpath(source).startswith(inside):
                yield row["path"], _copy(source, os.fsencode(folder), name)
            else:
                yield row["path"], "a link that leaves the input"


def _copy(source: bytes, folder: bytes, name: bytes) -> str:
    partial, target = os.path.join(folder, _PARTIAL), os.path.join(folder, name)
    try:
        descriptor = os.open(source, OPEN_FLAGS)
    except OSError as error:
        return error.strerror or type(error).__name__
    with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            return "not a regular file"
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            _require_room(target, info.st_size)
            with open(partial, "xb") as copy:  # noqa: PTH123 - a Path holds no bytes
                for block in _blocks(file, info.st_size):
                    copy.write(block)
            os.utime(partial, ns=(info.st_mtime_ns, info.st_mtime_ns))
            os.rename(partial, target)
        except Unfit as unfit:
            return unfit.detail
        except OSError as error:
            raise OutputError(
                f"{os.fsdecode(target)}: cannot be written: {error.strerror or error}. Choose another --quarantine folder."
            ) from error
        finally:
            with contextlib.suppress(OSError):
                os.unlink(partial)
    return ""


def _require_room(target: bytes, size: int) -> None:
    if os.path.lexists(target):  # where case or accents make no difference, one would take the other's place
        raise FileExistsError(errno.EEXIST, "another file has this name there")
    free = shutil.disk_usage(os.path.dirname(target)).free
    if size > free:
        raise OSError(errno.ENOSPC, f"it has {size:,} bytes, {free:,} are free there")


def _blocks(file: IO[bytes], size: int) -> Iterator[bytes]:
    """The bytes of a file, no more than it had when it was opened."""
    remaining = size
    while remaining:
        try:
            block = file.read(min(remaining, _BLOCK_BYTES))
        except OSError as error:
            raise Unfit("unreadable", error.strerror or type(error).__name__) from error
        if not block:
            return
        remaining -= len(block)
        yield block
