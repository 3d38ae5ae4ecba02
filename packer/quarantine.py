"""Copy the files that were skipped to a folder of their own, to be looked at; the input is never touched."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from packer.errors import OutputError
from packer.files import OPEN_FLAGS

__all__ = ["copy_skipped", "require_quarantine"]


def require_quarantine(root: Path, folder: Path) -> None:
    """Refuse a folder that would mix with the input or with other files.

    Raises:
        OutputError: it lies in the input, holds it, is no folder, or is not empty.
    """
    real_root, real_folder = Path(os.path.realpath(root)), Path(os.path.realpath(folder))
    if real_root == real_folder or real_root in real_folder.parents or real_folder in real_root.parents:
        raise OutputError(f"{folder}: lies in the input or holds it, which is never changed; choose another folder")
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise OutputError(f"{folder}: exists and is no folder")
    if any(folder.iterdir()):
        raise OutputError(f"{folder}: is not empty; choose another folder, or empty it")


def copy_skipped(root: Path, rows: Iterable[dict[str, Any]], folder: Path) -> Iterator[tuple[str, str]]:
    """Copy each skipped file to its relative path in the folder.

    A copy and no link: who deletes the original after a look at the quarantine must still have it, and who edits the one in the
    quarantine must not change the original.

    Args:
        root: the input.
        rows: of its report.
        folder: new or empty.

    Yields:
        For each skipped file its path, and why it could not be copied (a dangling link, a FIFO); empty where it was.

    Raises:
        OutputError: the folder cannot be written.
    """
    for row in rows:
        if row["outcome"] == "skipped":
            name = os.fsencode(row["path"]) if os.sep == "/" else row["path"].encode("utf-8", "surrogateescape")
            yield row["path"], _copy(os.path.join(os.fsencode(root), name), os.path.join(os.fsencode(folder), name))


def _copy(source: bytes, target: bytes) -> str:
    try:
        descriptor = os.open(source, OPEN_FLAGS)
    except OSError as error:
        return error.strerror or type(error).__name__
    with open(descriptor, "rb") as file:  # noqa: PTH123
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            return "not a regular file"
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "xb") as copy:  # noqa: PTH123 - a Path holds no bytes
                shutil.copyfileobj(file, copy, 1 << 20)
            os.utime(target, ns=(info.st_mtime_ns, info.st_mtime_ns))
        except OSError as error:
            raise OutputError(f"{os.fsdecode(target)}: cannot be written: {error.strerror or error}") from error
    return ""
