"""The one module that syncs and renames: an output is either absent under its final name, or whole and on the disk.

Work goes on in ``.NAME.partial`` beside the target. In the end, in this order: the shards are synced, then index, names and
report, then the manifest is written and synced, then the folder; it is renamed; and its parent is synced. A stop at any
moment leaves nothing under the final name, or what stood there before, or the whole new output.

What this cannot promise: a drive or a network server that acknowledges a sync it has not done. And where a file system has
no locks, two jobs on one target are not kept apart (one of them then fails when it renames).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import sys
from pathlib import Path
from types import TracebackType

from packer.errors import OutputError
from packer.manifest import MANIFEST_FILE
from packer.scan import is_packed_dataset

if sys.platform != "win32":
    import fcntl

__all__ = ["Staging"]

_NO_REPLACE, _EXCHANGE = 1, 2  # flags of renameat2(2)
_AT_FDCWD = -100
_SAME_AS_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EINVAL})


class Staging:
    """The unfinished output beside its target; a context that removes it unless ``commit`` was called.

    Args:
        target: where the output will stand.
        overwrite: replace an output of packer that stands there already.

    Attributes:
        folder: the partial folder, empty at the start.
        found_unfinished: whether a killed job had left one.

    Raises:
        OutputError: something stands at the target, the folder cannot be made, or another job is at work on it.
    """

    def __init__(self, target: Path, *, overwrite: bool) -> None:
        self._target = target
        self.folder = target.parent / f".{target.name}.partial"
        self._old = target.parent / f".{target.name}.old"
        self.found_unfinished = False
        self._lock = -1
        self._is_ours = False
        self._recover()
        self._overwrite = overwrite and _exists(target)
        if _exists(target):
            _require_replaceable(target, overwrite=overwrite)

    def __enter__(self) -> Staging:
        try:
            self._make_folder()
        except OSError as error:
            self._unlock()
            if isinstance(error, OutputError):
                raise
            raise OutputError(f"{self.folder.parent}: cannot be written: {error.strerror}") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        # The partial folder may belong to the next job by now: the target was free for it since the rename.
        if self._is_ours:
            shutil.rmtree(self.folder, ignore_errors=True)
        self._unlock()

    def sync(self, path: Path) -> None:
        """Bring a finished file to the disk."""
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def commit(self, manifest: bytes, files: list[str]) -> None:
        """Sync the given files, write the manifest, and put the output under its final name."""
        for name in files:
            self.sync(Path(self.folder, name))
        path = Path(self.folder, MANIFEST_FILE)
        with path.open("xb") as file:
            file.write(manifest)
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(self.folder)
        if self._overwrite:
            self._exchange()
        else:
            _rename_to_nothing(self.folder, self._target)
            self._is_ours = False
        _sync_folder(self._target.parent)

    def _exchange(self) -> None:
        mine = self._lock
        self._lock = _lock(self._target, self._target)  # of the old output, which is about to be the partial folder
        try:
            if _renameat2(self.folder, self._target, _EXCHANGE):
                return
        finally:
            if mine != -1:
                os.close(mine)
        # Two renames; a stop between them is mended by `_recover` at the next run.
        self._target.rename(self._old)
        try:
            self.folder.rename(self._target)
        except OSError:
            self._old.rename(self._target)
            raise
        self._is_ours = False
        shutil.rmtree(self._old, ignore_errors=True)

    def _recover(self) -> None:
        if not _exists(self._old):
            return
        if not _exists(self._target) and is_packed_dataset(self._old):
            with contextlib.suppress(OSError):
                self._old.rename(self._target)
        else:
            shutil.rmtree(self._old, ignore_errors=True)

    def _make_folder(self) -> None:
        while True:
            try:
                self.folder.mkdir()
            except FileExistsError:
                self.found_unfinished = True
                _require_own_folder(self.folder)
            if self._take_lock():
                self._is_ours = True
                break
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    Path(entry.path).unlink()

    def _take_lock(self) -> bool:
        """Lock the partial folder itself; whether it still is the one at that path.

        The lock dies with the process, and needs no file that could be left behind or renamed along.
        """
        self._unlock()
        self._lock = _lock(self.folder, self._target)
        if self._lock == -1:
            return True
        try:
            return os.path.samestat(os.fstat(self._lock), os.lstat(self.folder))
        except FileNotFoundError:
            return False  # the job that held it has just finished

    def _unlock(self) -> None:
        if self._lock != -1:
            os.close(self._lock)
            self._lock = -1


def _lock(folder: Path, target: Path) -> int:
    """Lock a folder; returns the descriptor that holds the lock, -1 where the system has no such locks."""
    if sys.platform == "win32":
        return -1
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise OutputError(f"{target}: another job is packing to it right now (it holds {folder.name})") from None
    except OSError as error:
        if error.errno not in _SAME_AS_NO_LOCKS:
            os.close(descriptor)
            raise
    return descriptor


def _exists(path: Path) -> bool:
    return os.path.lexists(path)


def _require_replaceable(target: Path, *, overwrite: bool) -> None:
    if not is_packed_dataset(target):
        raise OutputError(f"{target}: exists and is no output of packer, so it is not touched. Choose another with -o.")
    if not overwrite:
        raise OutputError(f"{target}: exists already. Add --overwrite to replace it, or choose another with -o.")


def _require_own_folder(folder: Path) -> None:
    info = os.lstat(folder)
    if not stat.S_ISDIR(info.st_mode):
        raise OutputError(f"{folder}: is in the way; the unfinished output would be made there. Remove it.")
    if sys.platform != "win32" and info.st_uid != os.geteuid():
        raise OutputError(f"{folder}: an unfinished output of another user. Ask them to remove it, or choose another with -o.")


def _rename_to_nothing(source: Path, target: Path) -> None:
    """Rename, but never over something: a plain rename replaces an empty folder in silence."""
    try:
        if _renameat2(source, target, _NO_REPLACE):
            return
        if _exists(target):
            raise FileExistsError
        source.rename(target)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY) or isinstance(error, FileExistsError):
            raise OutputError(f"{target}: was made by somebody else while this job ran; it is not touched") from error
        raise


def _renameat2(source: Path, target: Path, flags: int) -> bool:
    """Linux's rename with flags; ``False`` where the system or the file system does not have it."""
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "renameat2"):
        return False
    if library.renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flags) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(target))


def _sync_folder(folder: Path) -> None:
    if sys.platform == "win32":
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return  # a folder that may be written but not listed cannot be opened, so it cannot be synced
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot sync a folder
            raise
    finally:
        os.close(descriptor)
