"""A folder for what a benchmark makes, which is gone when it ends, however it ends; what a SIGKILL left goes at the next run.

It is called ``.pack-bench-`` and 16 hexadecimal digits, and holds a lock (``packer.locks``). A folder of that name is
removed as a leftover only where it is this user's, its lock file says that a job of packer made it and that job is gone, and
nothing is in it but what a benchmark makes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packer.bench.signals import undisturbed
from packer.errors import OutputError
from packer.locks import LOCK_FILE, JobLock

__all__ = ["FILES", "Scratch", "remove_leftovers", "scratch_folder"]

FILES = "files"
"""The loose files in it."""

_PREFIX = ".pack-bench-"
_NAME = re.compile(r"\.pack-bench-[0-9a-f]{16}")
_DATASETS = re.compile(r"data\.\w+|\.data\.\w+\.partial")

_held: list[JobLock] = []


def _let_go() -> None:
    """A forked worker has the locks of its parent as well: where that is killed, it would hold them until it notices."""
    for lock in _held:
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


@dataclass(frozen=True, slots=True)
class Scratch:
    """The folder, while it is there."""

    folder: Path
    lock: JobLock

    @property
    def files(self) -> Path:
        """The folder for loose files; not made here."""
        return self.folder / FILES

    def dataset(self, format_name: str) -> Path:
        """Where the dataset of a format goes."""
        return self.folder / f"data.{format_name}"


@contextlib.contextmanager
def scratch_folder(parent: Path) -> Iterator[Scratch]:
    """Make the folder in another one; it is removed in the end, also where the block ends by an exception or a signal.

    Raises:
        OutputError: it cannot be made there.
    """
    made: list[Path] = []
    scratch: Scratch | None = None
    try:
        with undisturbed():
            scratch = _make(parent, made)
            _held.append(scratch.lock)
        yield scratch
    finally:
        with undisturbed():
            if scratch is not None and sys.platform == "win32":
                scratch.lock.release()  # an open file cannot be removed there
            for folder in made:
                _remove(folder)
            if scratch is not None:
                _held.remove(scratch.lock)
                scratch.lock.release()


def remove_leftovers(parent: Path) -> int:
    """Remove what benchmarks that were killed have left in a folder; returns how many there were."""
    removed = 0
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in [entry for entry in entries if _NAME.fullmatch(entry.name)]:
            with contextlib.suppress(OSError):  # OutputError, too: that job is at work
                removed += _remove_leftover(Path(entry.path))
    return removed


def _make(parent: Path, made: list[Path]) -> Scratch:
    try:
        while True:
            folder = Path(parent, f"{_PREFIX}{secrets.token_hex(8)}")
            folder.mkdir(mode=0o700)
            made.append(folder)
            # Another job that looks for leftovers may take the folder away before it is locked.
            with contextlib.suppress(FileNotFoundError, OutputError):
                lock = JobLock(folder / LOCK_FILE, folder)
                if lock.is_current:
                    return Scratch(folder, lock)
                lock.release()
    except OSError as error:
        raise OutputError(
            f"{parent}: no scratch folder can be made in it: {error.strerror or error}. Choose another place with --scratch."
        ) from error


def _remove_leftover(folder: Path) -> bool:
    if not _is_ours(folder):
        return False
    lock = JobLock(folder / LOCK_FILE, folder)
    try:
        if not lock.is_current or not _is_ours(folder):
            return False
        for name in os.listdir(folder):
            if name != LOCK_FILE:
                shutil.rmtree(folder / name)
        if sys.platform == "win32":
            lock.release()
        Path(folder, LOCK_FILE).unlink()
        folder.rmdir()
    finally:
        lock.release()
    return True


def _is_ours(folder: Path) -> bool:
    info = os.lstat(folder)
    if not stat.S_ISDIR(info.st_mode) or (sys.platform != "win32" and info.st_uid != os.geteuid()):
        return False
    names = set(os.listdir(folder))
    others = [name for name in names - {LOCK_FILE, FILES} if not _DATASETS.fullmatch(name)]
    if LOCK_FILE not in names or others or not all(_is_folder(folder / name) for name in names - {LOCK_FILE}):
        return False
    lock = folder / LOCK_FILE
    info = os.lstat(lock)
    if not stat.S_ISREG(info.st_mode) or info.st_size > 4096:
        return False
    word = lock.read_bytes()
    if not word:
        return names == {LOCK_FILE}  # killed between making the lock file and writing to it
    try:
        return {"host", "process", "job"} == set(json.loads(word))
    except (ValueError, TypeError):
        return False


def _is_folder(path: Path) -> bool:
    return stat.S_ISDIR(os.lstat(path).st_mode)


def _remove(folder: Path) -> None:
    """Remove a folder. More than once: a worker that is just ending may make a file in what is being emptied."""
    for _ in range(3):
        shutil.rmtree(folder, ignore_errors=True)
