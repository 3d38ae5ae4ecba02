"""Files made in one folder by relative names that a stranger chose: nothing is written outside of it, no link is followed."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from packer.model import display_name

__all__ = ["FileTree", "why_unsafe"]

_IS_WINDOWS = sys.platform == "win32"
_HAS_DIR_FD = {os.open, os.mkdir} <= os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
_FOLDER_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL
for _name in ("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"):
    _FILE_FLAGS |= getattr(os, _name, 0)
# With any extension, and with spaces before it: "con .jpg" is the console, too.
_WINDOWS_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])\s*(\..*)?", re.IGNORECASE | re.DOTALL)
_WINDOWS_SPECIAL = re.compile(r'[\x00-\x1f<>:"|?*\\]')


def why_unsafe(parts: Sequence[bytes]) -> str:
    """What is wrong with a relative name, given as its parts, on this system; empty where nothing is."""
    for part in parts:
        if part in (b"", b".", b"..") or b"\0" in part:
            return "a part that is empty, a dot or two, or has a zero byte"
        if _IS_WINDOWS and (problem := _why_unsafe_on_windows(display_name(part))):
            return problem
    return ""


def _why_unsafe_on_windows(part: str) -> str:
    if found := _WINDOWS_SPECIAL.search(part):
        return f"the character {found[0]!a} leads elsewhere on Windows, or cannot be in a name there"
    if part.endswith((".", " ")):
        return "Windows takes away a dot or space at the end of a name"
    if _WINDOWS_DEVICE.fullmatch(part):
        return "it is the name of a device on Windows"
    return ""


class FileTree:
    """Makes files in a folder, and the folders that their names need. A context.

    Names are given as their parts, of which ``why_unsafe`` has found nothing wrong.

    Args:
        root: an existing folder.
    """

    def __init__(self, root: Path) -> None:
        self._root_path = root
        self._parts: Sequence[bytes] = ()
        self._root = os.open(root, _FOLDER_FLAGS) if _HAS_DIR_FD else -1
        self._folder = self._root  # that of the last file, which is mostly that of the next

    def __enter__(self) -> FileTree:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._leave()
        if self._root != -1:
            os.close(self._root)
            self._root = self._folder = -1

    def make_folder(self, parts: Sequence[bytes]) -> None:
        """Make a folder where it is not there.

        Raises:
            OSError: the system refuses; ``NotADirectoryError`` where a file or a link has that name.
        """
        if self._root == -1:
            self._make_by_path(parts)
            return
        if parts == self._parts:
            return
        self._leave()
        folder = self._root
        try:
            for part in parts:
                inner = _enter(part, folder)
                if folder != self._root:
                    os.close(folder)
                folder = inner
        except BaseException:
            if folder != self._root:
                os.close(folder)
            raise
        self._folder, self._parts = folder, parts

    def write(self, parts: Sequence[bytes], data: bytes) -> None:
        """Make a new file.

        Raises:
            OSError: the system refuses; ``FileExistsError`` where anything has that name.
        """
        self.make_folder(parts[:-1])
        if self._root == -1:
            descriptor = os.open(self._path(parts), _FILE_FLAGS, 0o666)
        else:
            descriptor = os.open(parts[-1], _FILE_FLAGS, 0o666, dir_fd=self._folder)
        try:
            remaining = memoryview(data)
            while remaining:
                remaining = remaining[os.write(descriptor, remaining) :]
        finally:
            os.close(descriptor)

    def _leave(self) -> None:
        if self._folder != self._root:
            os.close(self._folder)
            self._folder = self._root
        self._parts = ()

    def _path(self, parts: Sequence[bytes]) -> Path:
        return Path(self._root_path, *map(display_name, parts))

    def _make_by_path(self, parts: Sequence[bytes]) -> None:
        if parts == self._parts:
            return
        for depth in range(1, len(parts) + 1):
            path = self._path(parts[:depth])
            with contextlib.suppress(FileExistsError):
                path.mkdir()
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        self._parts = parts


def _enter(part: bytes, folder: int) -> int:
    """The descriptor of a folder in a folder, which is made where it is not there."""
    try:
        return os.open(part, _FOLDER_FLAGS, dir_fd=folder)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, dir_fd=folder)
        return os.open(part, _FOLDER_FLAGS, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotADirectoryError(errno.ENOTDIR, "a link is in the way") from error
        raise
