"""Write the original files of a packed dataset back, under their original relative paths.

Names come from a stranger: all are looked at before anything is written, files are made through the descriptor of the folder
they belong to, and no link is followed. Work goes on in ``.NAME.partial/unpacked`` beside the output, which is synced and
renamed when it is whole; an error or an interrupt removes it, and what a kill has left is replaced by the next run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packer import formats
from packer.errors import CorruptDatasetError, DatasetChangedError, DatasetError, OutputError
from packer.filetree import FileTree, why_unsafe
from packer.index import INDEX_FILE, NAMES_FILE
from packer.locks import LOCK_FILE, JobLock, lock_folder
from packer.manifest import MANIFEST_FILE
from packer.model import display_name
from packer.options import OnProgress, Progress
from packer.store import Store
from packer.syncing import sync_file_system, sync_folder
from packer.verify import Finding
from packer.walk import walk

__all__ = ["UnpackSummary", "unpack_dataset"]

_UNPACKED = "unpacked"
_PROGRESS_EVERY = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackSummary:
    """What was unpacked.

    Attributes:
        output: the folder.
        files: number of files written.
        size_bytes: their bytes together.
        damaged: number of samples that were left out, since their bytes are not those that were packed.
        seconds: time it took.
    """

    output: Path
    files: int
    size_bytes: int
    damaged: int
    seconds: float


def unpack_dataset(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    on_progress: OnProgress = lambda progress: None,
    on_damaged: Callable[[Finding], object] = lambda finding: None,
) -> UnpackSummary:
    """Write the files of a dataset to a new folder, byte for byte and each compared with its digest; empty classes are folders.

    A damaged sample is left out and told, and the rest goes on.

    Args:
        path: the dataset's folder.
        output: where the files will lie, a new or empty folder; ``None`` for the dataset's name without its suffix, beside it.
        on_progress: called now and then.
        on_damaged: called with each sample that is left out.

    Raises:
        DatasetError: the dataset cannot be opened, was changed meanwhile, or has a name that no file may have here.
        OutputError: the output exists, cannot be written, or another job is at work on it. Nothing stands there.
    """
    started = time.monotonic()
    store = Store(path)
    target = _target(store, output)
    size_bytes = _require_safe_names(store)
    with _partial_folder(target) as (folder, lock):

        def tell(progress: Progress) -> None:
            lock.renew()
            on_progress(progress)

        try:
            _require_room(target, size_bytes)
            folder.mkdir()
            with FileTree(folder) as tree:
                files, written, damaged = _write_all(store, tree, tell, on_damaged)
            sync_file_system(folder)
            lock.require_held()
            _require_free(target)
            if sys.platform == "win32" and target.exists():
                target.rmdir()  # elsewhere an empty folder is replaced at once
            folder.rename(target)
            sync_folder(target.parent)
        except (_CannotWriteError, OSError) as error:
            if isinstance(error, OutputError):
                raise
            why = error if isinstance(error, _CannotWriteError) else error.strerror or error
            raise OutputError(f"{target}: cannot be unpacked: {why}. Nothing was left there.") from error
    return UnpackSummary(output=target, files=files, size_bytes=written, damaged=damaged, seconds=time.monotonic() - started)


# ---------------------------------------------------------------------------------------------------------------- names


def _target(store: Store, output: str | os.PathLike[str] | None) -> Path:
    if output is None:
        known = formats.names()
        suffix = formats.get(store.manifest.format).suffix if store.manifest.format in known else ""
        name = store.path.name.removesuffix(suffix)
        if not name or name == store.path.name:
            raise OutputError(f"{store.path}: its name says nothing of what to call its files' folder. Choose one with -o.")
        target = store.path.with_name(name)
    else:
        target = Path(os.path.abspath(output))
    real_target, real_dataset = Path(os.path.realpath(target)), Path(os.path.realpath(store.path))
    if real_dataset in (real_target, *real_target.parents):
        raise OutputError(f"{target}: lies in the dataset. Choose another folder with -o.")
    if not os.path.isdir(target.parent):  # Path.is_dir raises where it may not look
        raise OutputError(f"{target.parent}: no such folder, so nothing can be unpacked there")
    _require_free(target)
    return target


def _require_free(target: Path) -> None:
    try:
        info = os.lstat(target)
        if not stat.S_ISDIR(info.st_mode) or os.listdir(target):
            raise OutputError(f"{target}: exists already, and is not touched. Choose another folder with -o.")
    except FileNotFoundError:
        return
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        raise OutputError(f"{target}: cannot be looked at: {error.strerror}") from error


def _require_safe_names(store: Store) -> int:
    """Refuse names that would lead out of the folder, or that the system treats specially; returns the bytes of all samples."""
    for class_name in store.manifest.classes:
        try:
            problem = why_unsafe([_class_folder(class_name)])
        except UnicodeEncodeError:
            problem = "is no text"
        if problem or "/" in class_name:
            shown = f"{class_name[:100]!a}: {problem or 'leads into another folder'}"
            raise CorruptDatasetError.at(store.path / MANIFEST_FILE, f"no folder may be called like its class {shown}")
    total = 0
    header = len(store.manifest.header)
    for number, record, name in walk(store):
        problem = why_unsafe(name.split(b"/"))
        if problem:
            shown = f"{display_name(name[:100])!r}: {problem}"
            raise CorruptDatasetError.at(store.path / NAMES_FILE, f"no file may be called like sample {number}, {shown}")
        total += header + record.size
    return total


def _class_folder(class_name: str) -> bytes:
    return class_name.encode("utf-8", "surrogateescape")


# ---------------------------------------------------------------------------------------------------------------- files


def _write_all(
    store: Store, tree: FileTree, on_progress: OnProgress, on_damaged: Callable[[Finding], object]
) -> tuple[int, int, int]:
    """Number of files written, their bytes, and number of samples left out."""
    for class_name in store.manifest.classes:
        try:
            tree.make_folder([_class_folder(class_name)])
        except OSError as error:
            raise _CannotWriteError(f"class {class_name[:100]!r}: {error.strerror or error}") from error
    written = damaged = 0
    for number, record, name in walk(store):
        try:
            payload = store.payload(number, record)
        except DatasetChangedError:
            raise
        except DatasetError as error:
            damaged += 1
            on_damaged(Finding(store.extents.path(record.shard).name, error.problem, number, display_name(name)))
        else:
            try:
                tree.write(name.split(b"/"), payload)
            except OSError as error:
                raise _cannot_write(store, number, name, error) from error
            written += len(payload)
        if (number + 1) % _PROGRESS_EVERY == 0 or number + 1 == len(store):
            on_progress(Progress("unpack", number + 1, len(store), written, damaged))
    return len(store) - damaged, written, damaged


class _CannotWriteError(Exception):
    """Says which sample could not be written."""


def _cannot_write(store: Store, number: int, name: bytes, error: OSError) -> Exception:
    shown = f"sample {number} of {len(store):,} ({display_name(name)!r})"
    if isinstance(error, (FileExistsError, NotADirectoryError, IsADirectoryError)):
        problem = f"{shown} would take the place of another file, folder or link ({error.strerror})"
        return CorruptDatasetError.at(store.path / INDEX_FILE, problem)
    return _CannotWriteError(f"{shown}: {error.strerror or error}")


# ---------------------------------------------------------------------------------------------------------------- place


@contextlib.contextmanager
def _partial_folder(target: Path) -> Iterator[tuple[Path, JobLock]]:
    """Where a folder beside the target can be made; it is this job's alone, and what is there afterwards is removed."""
    partial = target.with_name(f".{target.name}.partial")
    try:
        lock = _locked(partial, target)
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        raise OutputError(f"{target.parent}: cannot be written: {error.strerror or error}") from error
    try:
        yield partial / _UNPACKED, lock
    finally:
        if lock.is_held():
            shutil.rmtree(partial / _UNPACKED, ignore_errors=True)
            if sys.platform == "win32":
                lock.release()  # an open file cannot be removed there
            with contextlib.suppress(OSError):
                (partial / LOCK_FILE).unlink()
                partial.rmdir()
        lock.release()


def _locked(partial: Path, target: Path) -> JobLock:
    lock = lock_folder(partial, target, _require_ours)
    if os.path.lexists(partial / _UNPACKED):
        shutil.rmtree(partial / _UNPACKED)
    return lock


def _require_ours(partial: Path) -> None:
    info = os.lstat(partial)
    is_mine = sys.platform == "win32" or info.st_uid == os.geteuid()
    if not stat.S_ISDIR(info.st_mode) or not is_mine or not {LOCK_FILE, _UNPACKED}.issuperset(os.listdir(partial)):
        raise OutputError(f"{partial}: is in the way; the files would be unpacked there first. Choose another place with -o.")


def _require_room(target: Path, size_bytes: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if size_bytes > free:
        raise OutputError(
            f"{target}: {size_bytes:,} bytes are to be unpacked, {free:,} are free there. Choose another place with -o."
        )
