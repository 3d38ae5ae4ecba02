"""The one module that syncs and renames: an output is either absent under its final name, or whole and on the disk.

Work goes on in ``.NAME.partial`` beside the target, which holds

``lock``           of the job at work (``packer.locks``)
``journal.jsonl``  what a later run need not do again (``packer.journal``)
``output``         what becomes the target
``replaced``       between two renames, where an output is replaced on a system that cannot exchange two folders
``committing``     from then on the target is replaced: the digest of the manifest that it will have

In the end, in this order: the shards are synced, then index, names and report, then the manifest is written and synced, then
the folder; it is renamed; and the target's parent is synced. A stop at any moment leaves nothing under the final name, or what
stood there before, or the whole new output.

What this cannot promise: a drive or a network server that acknowledges a sync it has not done.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import sys
from collections.abc import Collection
from pathlib import Path
from types import TracebackType

import xxhash

from packer.errors import OutputError
from packer.locks import LOCK_FILE, JobLock, lock_folder
from packer.manifest import MANIFEST_FILE
from packer.scan import is_packed_dataset
from packer.syncing import sync_file, sync_folder

__all__ = ["Staging", "require_replaceable"]

_NO_REPLACE, _EXCHANGE = 1, 2  # flags of renameat2(2)
_AT_FDCWD = -100
_COMMITTING = "committing"


class Staging:
    """The unfinished output beside its target; a context that removes what no later run can use.

    Args:
        target: where the output will stand.
        overwrite: replace an output of packer that stands there already.

    Attributes:
        partial: the partial folder, which holds all the rest.
        folder: the unfinished output in it.
        journal: where its journal is.
        found_unfinished: whether a job that did not end had left one.

    Raises:
        OutputError: something stands at the target, the folder cannot be made, or another job is at work on it.
    """

    def __init__(self, target: Path, *, overwrite: bool) -> None:
        self._target = target
        self._overwrite = overwrite
        self.partial = target.parent / f".{target.name}.partial"
        self.folder = self.partial / "output"
        self.journal = self.partial / "journal.jsonl"
        self._replaced = self.partial / "replaced"
        self.found_unfinished = False
        self._lock: JobLock | None = None
        self._is_mine = False  # whether what is in the partial folder may be removed
        self._kept: Collection[str] | None = None

    def __enter__(self) -> Staging:
        try:
            if _exists(self._target) and not self._overwrite:
                self._refuse_after_tidying()
            self._take_folder()
            try:
                self._recover()
                if _exists(self._target):
                    require_replaceable(self._target, overwrite=self._overwrite)
                self.found_unfinished = os.listdir(self.partial) != [LOCK_FILE]
                self._is_mine = not self.found_unfinished
                self.folder.mkdir(exist_ok=True)
            except BaseException:
                self._leave_folder()
                raise
        except OSError as error:
            if isinstance(error, OutputError):
                raise
            raise OutputError(f"{self._target.parent}: cannot be written: {error.strerror}. Choose another with -o.") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._is_mine and self._lock and self._lock.is_held():
            with contextlib.suppress(OSError):
                if self._kept is None:
                    self._clear()
                else:
                    self._clear_output(self._kept)
        self._leave_folder()

    def start_over(self) -> None:
        """Remove all that an earlier job has left."""
        self._clear()
        self._is_mine = True
        self.folder.mkdir()

    def go_on(self, shards: Collection[str]) -> None:
        """Remove what an earlier job has left, but for its journal and these shards, which are finished."""
        self._is_mine = True
        self._clear_output(shards)

    def keep(self, shards: Collection[str]) -> bool:
        """Leave the journal and these shards to a later run, and remove the rest.

        Returns:
            ``False`` where no later run can go on from them: the output is committed, or another job has taken over.
        """
        if self._lock and self._lock.is_held() and not _is_committed(self._target, Path(self.partial, _COMMITTING)):
            self._kept = shards
        return self._kept is not None

    def renew_lock(self) -> None:
        """Say that the job is still at work, and stop it where another has taken over.

        Raises:
            OutputError: it has.
        """
        if self._lock:
            self._lock.renew()

    def commit(self, manifest: bytes, files: list[str]) -> None:
        """Sync the given files, write the manifest, and put the output under its final name."""
        for name in files:
            sync_file(Path(self.folder, name))
        path = Path(self.folder, MANIFEST_FILE)
        with path.open("wb") as file:
            file.write(manifest)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self.folder)
        Path(self.partial, _COMMITTING).write_bytes(_digest(manifest))
        if self._lock:
            self._lock.require_held()
        if self._overwrite and _exists(self._target):
            self._exchange()
        else:
            _rename_to_nothing(self.folder, self._target)
        sync_folder(self._target.parent)

    def _exchange(self) -> None:
        if _renameat2(self.folder, self._target, _EXCHANGE):
            return
        # Two renames; a stop between them is mended by `_recover` at the next run.
        self._target.rename(self._replaced)
        try:
            self.folder.rename(self._target)
        except OSError:
            self._replaced.rename(self._target)
            raise

    def _recover(self) -> None:
        """Mend what a job that was killed during its commit has left."""
        committing = Path(self.partial, _COMMITTING)
        if not _exists(committing):
            return
        if _exists(self._replaced) and not _exists(self._target):
            self._replaced.rename(self._target)
        if _is_committed(self._target, committing):
            self._clear()
            return
        committing.unlink()
        if _exists(self._replaced):
            shutil.rmtree(self._replaced)

    def _refuse_after_tidying(self) -> None:
        """Say that the target exists; what a job that was killed just after its commit has left beside it goes first."""
        if _exists(self.partial):
            with contextlib.suppress(OSError):
                self._take_folder()
                try:
                    if _is_committed(self._target, Path(self.partial, _COMMITTING)):
                        self._clear()
                finally:
                    self._leave_folder()
        require_replaceable(self._target, overwrite=False)

    def _take_folder(self) -> None:
        """Make the partial folder, or find it, and lock it."""
        self._lock = lock_folder(self.partial, self._target, _require_own_folder)

    def _leave_folder(self) -> None:
        """Let go of the partial folder, and remove it where it is empty."""
        if self._lock is None:
            return
        lock, self._lock = self._lock, None
        if not lock.is_held():
            lock.release()
            return
        if sys.platform == "win32":
            lock.release()  # an open file cannot be removed there
        with contextlib.suppress(OSError):
            if os.listdir(self.partial) == [LOCK_FILE]:
                Path(self.partial, LOCK_FILE).unlink()
                self.partial.rmdir()
        lock.release()

    def _clear(self) -> None:
        with os.scandir(self.partial) as entries:
            for entry in entries:
                if entry.name not in (LOCK_FILE, _COMMITTING):
                    _remove(entry)
        Path(self.partial, _COMMITTING).unlink(missing_ok=True)  # last: it is what tells the next run that the rest may go

    def _clear_output(self, kept: Collection[str]) -> None:
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name not in kept or not entry.is_file(follow_symlinks=False):
                    _remove(entry)


def _remove(entry: os.DirEntry[str]) -> None:
    if entry.is_dir(follow_symlinks=False):
        shutil.rmtree(entry.path)
    else:
        Path(entry.path).unlink()


def _digest(manifest: bytes) -> bytes:
    return xxhash.xxh3_128_hexdigest(manifest).encode()


def _is_committed(target: Path, committing: Path) -> bool:
    """Whether the target is what a job was about to put there."""
    try:
        return committing.read_bytes() == _digest(Path(target, MANIFEST_FILE).read_bytes())
    except OSError:
        return False


def _exists(path: Path) -> bool:
    return os.path.lexists(path)


def require_replaceable(target: Path, *, overwrite: bool) -> None:
    """Refuse to replace what stands at a target, unless it is an output of packer and that is asked for.

    Raises:
        OutputError: says what stands there.
    """
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
