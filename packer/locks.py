"""One job a target at a time: a lock that dies with its process.

The lock is an advisory one on a file in the partial folder, which the system lets go when the process ends however it ends.
A file and not the folder: network file systems lock only what was opened for writing. Where the file system has no locks at
all (Lustre unless mounted with ``flock``), the file's own word counts: it names host and process, and its time is renewed
while the job works. A job found there is gone when its process is, where that can be asked (the same host), or when the file
was not renewed for ten minutes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from packer.errors import OutputError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["LOCK_FILE", "JobLock", "lock_folder"]

LOCK_FILE = "lock"
"""What the lock's file is called in the folder that only one job works in."""


_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_HELD = frozenset({errno.EAGAIN, errno.EACCES, errno.EDEADLK})
_RENEW_S = 30.0
_GONE_S = 600.0
_OPEN_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


class JobLock:
    """Held from the start on, until ``release`` or the end of the process.

    Args:
        path: the lock's file, which is made where it is missing.
        target: the output, for the message.

    Attributes:
        is_current: whether the file that is locked still is the one at that path. Where it is not, the job that held it has
            just ended and taken its folder away: try again.

    Raises:
        OutputError: another job holds it.
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path, target: Path) -> None:
        self._path = path
        self._target = target
        self._word = json.dumps({"host": socket.gethostname(), "process": os.getpid(), "job": os.urandom(8).hex()}).encode()
        self._renewed = time.monotonic()
        self._descriptor = os.open(path, _OPEN_FLAGS, 0o666)
        try:
            self._has_system_lock = self._take()
            if not self._has_system_lock:
                self._require_gone()
            self.is_current = self._is_at_path()
            if self.is_current:
                os.ftruncate(self._descriptor, 0)
                os.lseek(self._descriptor, 0, os.SEEK_SET)
                os.write(self._descriptor, self._word)
        except BaseException:
            self.release()
            raise

    def renew(self) -> None:
        """Say that the job is still at work, twice a minute at most; called by the job as it goes on.

        Raises:
            OutputError: another job has taken over.
        """
        now = time.monotonic()
        if not self._has_system_lock and now - self._renewed > _RENEW_S:
            self._renewed = now
            self.require_held()
            with contextlib.suppress(OSError):
                os.utime(self._path)

    def is_held(self) -> bool:
        """Whether no other job has taken over meanwhile."""
        if self._has_system_lock:
            return True
        try:
            return self._path.read_bytes() == self._word
        except OSError:
            return False

    def require_held(self) -> None:
        """Refuse to go on where another job has taken over meanwhile: this one was stopped for long (Ctrl-Z, a dead network).

        Raises:
            OutputError: it has.
        """
        if not self.is_held():
            raise OutputError(f"{self._target}: another job took over while this one stood still; nothing was put there")

    def release(self) -> None:
        """Let go; the file stays."""
        if self._descriptor != -1:
            os.close(self._descriptor)
            self._descriptor = -1

    def _take(self) -> bool:
        """Take the system's lock; ``False`` where the file system has none."""
        try:
            if sys.platform == "win32":
                # Far behind the end, since others could not even read the bytes that are locked.
                os.lseek(self._descriptor, 1 << 30, os.SEEK_SET)
                msvcrt.locking(self._descriptor, msvcrt.LK_NBLCK, 1)
            else:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
            if error.errno not in _HELD:
                raise
            raise self._held() from None
        return True

    def _require_gone(self) -> None:
        word = os.read(self._descriptor, 4096)
        try:
            other = json.loads(word)
            host, process = str(other["host"]), int(other["process"])
        except (ValueError, TypeError, KeyError):
            return  # empty: made by us, or by a job that was killed in that moment
        age_s = time.time() - os.fstat(self._descriptor).st_mtime
        gone = not _is_alive(process) if host == socket.gethostname() else age_s > _GONE_S
        if not gone:
            raise self._held(f" on {host}, process {process}, last seen {max(0, round(age_s))} s ago")

    def _held(self, where: str = "") -> OutputError:
        cure = " If it is gone, remove that file." if where else ""
        return OutputError(f"{self._target}: another job is writing to it right now{where} (it holds {self._path}).{cure}")

    def _is_at_path(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.lstat(self._path))
        except FileNotFoundError:
            return False


def lock_folder(folder: Path, target: Path, require_ours: Callable[[Path], None]) -> JobLock:
    """Make a folder in which only one job works, or find it, and lock it.

    Args:
        folder: beside the output.
        target: the output, for the message.
        require_ours: refuses a folder that is in the way.

    Raises:
        OutputError: another job holds it, or it was refused.
        OSError: it cannot be made.
    """
    while True:
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        with contextlib.suppress(FileNotFoundError):  # the job that held it has just ended, and taken it away
            require_ours(folder)
            lock = JobLock(folder / LOCK_FILE, target)
            if lock.is_current:
                return lock
            lock.release()


def _is_alive(process: int) -> bool:
    if process <= 0 or sys.platform == "win32":  # there, signal 0 would end it
        return process > 0
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # of another user
    return True
