"""The one sparse file behind a cache: in memory or on a disk near by, shared by all processes of a job.

In memory it is a file without a name (``memfd``), whose descriptor a forked process has by itself and a spawned one is handed.
Not a file in ``/dev/shm``: of that a container has 64 MB. It is read and written like any file and never mapped, so that a
full or shortened one is an exception and no bus error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import secrets
import stat
import sys
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packer.cgroup import memory_group
from packer.errors import OptionError
from packer.files import OpenFile

__all__ = ["CacheFile", "CacheOptions", "memory_limit", "open_cache_file"]

_KINDS = ("memory", "disk")
_HAS_PWRITE = hasattr(os, "preadv") and hasattr(os, "pwrite")
_CLOSE_ON_EXEC = getattr(os, "O_CLOEXEC", 0)
_FOLDER_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | _CLOSE_ON_EXEC
_FILE_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | _CLOSE_ON_EXEC
_FREE_PART = 10  # a tenth of a file system stays free
_BLOCK_BYTES = 512  # that in which a system counts a file's blocks, whatever their size
_JOB_BYTES = 8

_log = logging.getLogger("packer")


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """Whether and where payloads are kept that were read once.

    Args:
        kind: ``None``, ``"memory"`` or ``"disk"``.
        limit_bytes: the most that it takes, in whole blocks of the file system; ``None`` for ``memory_limit()``, and on a disk
            for what leaves a tenth of it free.
        folder: where a disk cache lies; ``None`` for the system's folder of temporary files.

    Raises:
        OptionError: a value that does not exist, or that does not fit the others.
    """

    kind: str | None = None
    limit_bytes: int | None = None
    folder: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if self.kind is not None and self.kind not in _KINDS:
            raise OptionError(f"cache={self.kind!r} does not exist; there are None, 'memory' and 'disk'")
        if self.kind and not _HAS_PWRITE:
            raise OptionError(f"cache={self.kind!r} needs os.preadv and os.pwrite, which this system lacks; leave it out here")
        limit = self.limit_bytes
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit <= 0):
            raise OptionError(f"cache_bytes={limit!r} is no whole number of bytes above 0")
        if limit is not None and self.kind is None:
            raise OptionError("cache_bytes is the limit of a cache; say cache='memory' or cache='disk', too")
        if self.folder is not None and self.kind != "disk":
            raise OptionError("cache_folder is where a disk cache lies; say cache='disk', too")


class CacheFile(OpenFile):
    """The file, open for reading and writing. It can be pickled, and what arrives in another process is the same file.

    Args:
        descriptor: of the file; it belongs to this object.
        options: where it lies and how much it may take.
        name: of the dataset's contents.
        job: eight bytes that all processes of a job have in common.
        place: the file, for messages.
    """

    def __init__(self, descriptor: int, options: CacheOptions, name: str, job: bytes, place: str) -> None:
        super().__init__(descriptor, Path(place), 0)
        self._options = options
        self._name = name
        self._job = job
        self._place = place
        self._has_told = False
        self._handed: tuple[weakref.ref[Any], Any] | None = None

    def write(self, offset: int, *parts: bytes | memoryview) -> None:
        """Write parts one after the other; raises OSError."""
        for part in parts:
            rest = memoryview(part)
            while rest:  # at most 2 GiB at once
                count = os.pwrite(self._descriptor, rest, offset)
                offset += count
                rest = rest[count:]

    def stretch(self, size_bytes: int) -> None:
        """Give it its full size, without taking space; where the file system cannot, it grows as it is written to."""
        with contextlib.suppress(OSError, OverflowError):
            if os.fstat(self._descriptor).st_size < size_bytes:
                os.ftruncate(self._descriptor, size_bytes)

    def refusal(self, size: int) -> str:
        """Why so many bytes more are beyond the limit, nothing where they are not. What others add meanwhile is not counted."""
        limit = self._options.limit_bytes
        if limit is None:
            disk = os.fstatvfs(self._descriptor)
            is_free = disk.f_bavail * disk.f_frsize - size >= disk.f_blocks * disk.f_frsize // _FREE_PART
            return "" if is_free else "a tenth of the disk stays free unless cache_bytes= says otherwise"
        is_within = os.fstat(self._descriptor).st_blocks * _BLOCK_BYTES + size <= limit
        return "" if is_within else f"its limit of {limit:,} bytes is reached (cache_bytes=)"

    def tell(self, problem: str) -> None:
        """Log, once a job, why something was not kept."""
        if self._has_told:
            return
        self._has_told = True
        with contextlib.suppress(OSError):
            if os.pread(self._descriptor, _JOB_BYTES, 0) == self._job:
                return
            self.write(0, self._job)
        where = "in memory" if self._options.kind == "memory" else repr(self._place)
        _log.warning("the cache %s is full: %s. What it lacks is read from the dataset each time.", where, problem)

    def __reduce__(self) -> tuple[Any, ...]:
        is_memory = self._options.kind == "memory"
        number = self._descriptor if is_memory else -1
        return _arrived, (
            self._options, self._name, self._job, self._place, self._handle() if is_memory else None, os.getpid(), number
        )  # fmt: skip

    def _handle(self) -> Any:
        """What hands the descriptor to the process that is being spawned; ``None`` while none is."""
        from multiprocessing.context import get_spawning_popen
        from multiprocessing.reduction import DupFd

        process = get_spawning_popen()
        if process is None:
            return None
        # Once for a process: a descriptor that is handed over twice, since something pickles the dataset twice meanwhile, is
        # refused by multiprocessing as "bad value(s) in fds_to_keep".
        if self._handed is None or self._handed[0]() is not process:
            self._handed = weakref.ref(process), DupFd(self._descriptor)
        return self._handed[1]


def open_cache_file(options: CacheOptions, name: str, job: bytes = b"") -> CacheFile | None:
    """Open the cache of a dataset, or make it; ``None``, and a warning in the log, where it cannot be had.

    Args:
        options: where it lies and how much it may take; ``kind`` must be given.
        name: of the dataset's contents, good for a file name: on a disk, all jobs that give the same one share the file.
        job: of the process that this one belongs to.
    """
    job = job or secrets.token_bytes(_JOB_BYTES)
    try:
        if options.kind == "disk":
            descriptor, place = _open_on_disk(_private_folder(options), name)
        else:
            options = dataclasses.replace(options, limit_bytes=options.limit_bytes or memory_limit())
            descriptor, place = _open_in_memory()
        return CacheFile(descriptor, options, name, job, place)
    except OSError as error:
        where = repr(str(_private_folder(options))) if options.kind == "disk" else "memory"
        _log.warning("no cache in %s: %s. All is read from the dataset each time.", where, error.strerror or error)
        return None


def _private_folder(options: CacheOptions) -> Path:
    user = os.getuid() if sys.platform != "win32" else 0
    return Path(os.path.abspath(options.folder or tempfile.gettempdir()), f"packer-cache-{user}")


def _open_on_disk(folder: Path, name: str) -> tuple[int, str]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
    directory = os.open(folder, _FOLDER_FLAGS)
    try:
        # Temporary files' folder is everybody's: a stranger must neither see what is read nor say what it is.
        _require_own(os.fstat(directory), stat.S_IFDIR)
        descriptor = os.open(name, _FILE_FLAGS, 0o600, dir_fd=directory)
    finally:
        os.close(directory)
    try:
        _require_own(os.fstat(descriptor), stat.S_IFREG)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, str(folder / name)


def _require_own(info: os.stat_result, kind: int) -> None:
    if sys.platform != "win32" and info.st_uid != os.getuid():
        raise PermissionError(f"it belongs to another user (number {info.st_uid})")
    if stat.S_IFMT(info.st_mode) != kind or (kind == stat.S_IFREG and info.st_nlink != 1):
        raise PermissionError("it is no plain file of its own")
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"others may write to it (mode {stat.S_IMODE(info.st_mode):o})")


def _open_in_memory() -> tuple[int, str]:
    """A file that ends with the last process that has it; where the system has none in memory, a temporary file."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            descriptor = os.memfd_create(f"packer-cache-{secrets.token_hex(8)}")
            return descriptor, _true_name(descriptor)
    with tempfile.TemporaryFile() as file:
        descriptor = os.dup(file.fileno())
    return descriptor, _true_name(descriptor)


def _true_name(descriptor: int) -> str:
    """What Linux calls an open file; no two memory caches have the same, on any host."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/fd/{descriptor}")
    return "memory"


def _arrived(
    options: CacheOptions, name: str, job: bytes, place: str, handle: Any, process: int, number: int
) -> CacheFile | None:
    """The file in a process that it was sent to; an empty one of its own where the sender's cannot be had."""
    if options.kind == "memory":
        with contextlib.suppress(OSError, EOFError):
            descriptor = _received(handle) if handle is not None else _opened(process, number, place)
            return CacheFile(descriptor, options, name, job, place)
    return open_cache_file(options, name, job)


def _received(handle: Any) -> int:
    """A descriptor that came with the process. It stays open: another copy of the dataset may have come by the same number."""
    return os.dup(handle.detach())


def _opened(process: int, number: int, place: str) -> int:
    """A descriptor of a process that lives, for what was pickled when no process was being spawned, such as for a queue."""
    descriptor = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | _CLOSE_ON_EXEC | getattr(os, "O_NONBLOCK", 0))
    if place == "memory" or _true_name(descriptor) != place:  # of another host, or the number has a new meaning
        os.close(descriptor)
        raise FileNotFoundError
    return descriptor


def memory_limit() -> int:
    """Bytes that a cache in memory takes at most unless it is told: half of the memory of the machine, or of the cgroup
    where that has less, divided among the processes that ``torchrun`` starts on a machine, since each has one of its own.
    """
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    granted, group = _machine_bytes(), memory_group()
    if group and group.limit_bytes is not None:
        granted = min(granted, group.limit_bytes)
    return granted // 2 // max(1, int(ranks) if ranks.isdecimal() else 1)


def _machine_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 4 << 30
