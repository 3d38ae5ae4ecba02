"""Scan the input folder once: which files are candidates, in which order, under which label.

Order: path components compared as bytes, one after the other (``dog/…`` before ``dog (copy)/…``, which comparing whole
paths would turn round). The class order, and so every label, is then that of torchvision's ``ImageFolder``, whatever the
file system, the locale and the order in which the files were made.

At most one stat a file. Nothing is opened.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from packer.errors import InputError
from packer.labels import KnownClasses, number_classes, refuse_loose_files, refuse_splits
from packer.listing import Listing
from packer.model import NO_LABEL, Note, display_name
from packer.names import CANDIDATE_SUFFIXES, SYSTEM_NAMES, clashes, shown_suffix, suffix_of

__all__ = ["is_packed_dataset", "scan"]

_FILE, _FOLDER, _REFUSED = 0, 1, 2
_TAIL = struct.Struct("<BQq")  # kind of entry, size, mtime in ns: behind the name and a zero byte
_PROGRESS_EVERY = 256  # entries; a network folder may give a few hundred a second

OnProgress = Callable[[int], None]
_Identity = tuple[int, int]  # device and inode
_Above = tuple[_Identity, ...]  # the folders on the way down
_Opened = tuple[bytes, Iterator[bytes], _Above]  # prefix of its names, its records, the folders on the way down to it


def scan(
    root: Path,
    labels: str = "auto",
    *,
    leave_out: Iterable[Path] = (),
    follow_links: bool = False,
    known: KnownClasses | None = None,
    on_progress: OnProgress | None = None,
) -> Listing:
    """List the candidate files under a folder.

    Args:
        root: the input folder.
        labels: one of ``packer.labels.LABEL_RULES``: class folders where there are any, always, as numbers, or never.
        leave_out: folders that are not looked into, such as an output inside the input.
        follow_links: follow links that lead out of the input.
        known: the classes and their labels, where those of another dataset are to be had.
        on_progress: called with the number of entries looked at so far, now and then.

    Raises:
        InputError: the folder does not exist, cannot be read, or is laid out so that labels would be a guess.
    """
    return _Scan(root, labels, leave_out, follow_links, known, on_progress).run()


def is_packed_dataset(folder: Path) -> bool:
    """Whether a folder is an output of packer."""
    return all(os.path.isfile(os.path.join(folder, name)) for name in ("manifest.json", "index.npy", "names.bin"))


class _Scan:
    def __init__(
        self,
        root: Path,
        labels: str,
        leave_out: Iterable[Path],
        follow_links: bool,
        known: KnownClasses | None,
        on_progress: OnProgress | None,
    ) -> None:
        self._root = os.fsencode(root)
        self._shown = str(root)
        self._rule = "folder" if known else labels
        self._known = known
        self._follow_links = follow_links
        self._on_progress = on_progress
        self._listing = Listing()
        self._leave_out = {_identity(os.fsencode(path)) for path in leave_out if path.exists()}
        self._real_root = os.path.realpath(self._root)
        self._linked_folders: set[_Identity] = set()
        self._current_label = NO_LABEL
        self._seen = 0

    def run(self) -> Listing:
        try:
            info = os.stat(self._root)
        except FileNotFoundError:
            raise InputError(f"{self._shown}: no such folder") from None
        except OSError as error:
            raise InputError(f"{self._shown}: {error.strerror}") from error
        if not stat.S_ISDIR(info.st_mode):
            raise InputError(f"{self._shown}: a folder of image or .npy files is expected, this is a file")
        if is_packed_dataset(Path(os.fsdecode(self._root))):
            raise InputError(f"{self._shown}: is a packed dataset already (`pack info` shows it)")
        here = (info.st_dev, info.st_ino)
        try:
            records = self._entries(b"")
        except OSError as error:
            raise InputError(f"{self._shown}: {error.strerror}") from error
        entries = [_unpack(record)[:2] for record in records]
        folders = [name for name, kind in entries if kind == _FOLDER]
        loose = [name for name, kind in entries if kind != _FOLDER]
        if self._has_class_folders(folders, loose, here):
            self._scan_classes(folders, here)
        else:
            self._walk((b"", iter(records), (here,)))
        return self._listing

    def _has_class_folders(self, folders: list[bytes], loose: list[bytes], here: _Identity) -> bool:
        if not folders or self._rule == "none":
            if self._rule in ("folder", "number"):
                raise InputError(f"{self._shown}: no class folders, so no labels. Use --labels none.")
            return False
        if self._rule == "auto":
            refuse_splits(self._shown, folders)
        if not loose:
            return True
        if any(self._holds_candidates(name, here) for name in folders):
            refuse_loose_files(self._shown, loose, folders)
        if self._rule != "auto":
            raise InputError(f"{self._shown}: no class folder holds a picture or array, so no labels. Use --labels none.")
        return False

    def _scan_classes(self, folders: list[bytes], here: _Identity) -> None:
        listing = self._listing
        if self._known:
            self._known.require(self._shown, folders)
            listing.labels_from = self._known.labels_from
            listing.classes, listing.class_labels = list(self._known.label_of), list(self._known.label_of.values())
        else:
            listing.classes = folders
            listing.labels_from, listing.class_labels, note = number_classes(self._shown, folders, self._rule)
            if note:
                listing.notes.append((None, note))
        label_of = dict(zip(listing.classes, listing.class_labels, strict=True))
        for name in folders:
            self._current_label = label_of[name]
            self._walk(self._open_folder(name, (here,)))

    def _holds_candidates(self, name: bytes, here: _Identity) -> bool:
        probe = _Scan(Path(os.fsdecode(self._root)), "none", (), self._follow_links, None, None)
        probe._leave_out = self._leave_out
        probe._walk(probe._open_folder(name, (here,)), stop_at_first=True)
        return len(probe._listing) > 0

    def _walk(self, top: _Opened | None, *, stop_at_first: bool = False) -> None:
        """List all below an opened folder, in order. A stack and no recursion: a path may have 2,000 parts."""
        listing = self._listing
        stack = [top] if top else []
        while stack:
            prefix, records, above = stack[-1]
            record = next(records, None)
            if record is None:
                stack.pop()
                continue
            entry, kind, size, mtime_ns = _unpack(record)
            path = prefix + entry
            if kind == _FOLDER:
                opened = self._open_folder(path, above)
                if opened:
                    stack.append(opened)
            elif kind == _REFUSED:
                self._look_again(path)
            else:
                listing.append(path, size, mtime_ns, self._current_label)
            if stop_at_first and len(listing):
                return

    def _open_folder(self, name: bytes, above: _Above) -> _Opened | None:
        """List a folder, unless it is a link that leads back, leads out, or was followed before."""
        path = os.path.join(self._root, name) if name else self._root
        try:
            here = _identity(path)
            if here in above:
                self._note_loop(name, "leads to a folder above it; not followed")
                return None
            if name and os.path.islink(path):
                if not self._inside(path):
                    self._refuse_outside(name, path)
                    return None
                if here in self._linked_folders:
                    self._note_loop(name, "leads to a folder that another link leads to as well; followed once")
                    return None
                self._linked_folders.add(here)
            records = self._entries(name)
        except OSError as error:
            self._listing.refuse(name, self._current_label, "unreadable", f"folder: {error.strerror}")
            return None
        return (name + b"/" if name else b""), iter(records), (*above, here)

    def _note_loop(self, name: bytes, detail: str) -> None:
        self._listing.notes.append((name, Note("symlink_loop", detail)))

    def _entries(self, folder: bytes) -> list[bytes]:
        """The entries of one folder in order, each packed into one bytes object: name, zero, kind, size, mtime.

        A zero byte sorts before every byte of a longer name, so sorting the records sorts the names.
        """
        records: list[bytes] = []
        ignored = self._listing.ignored
        with os.scandir(os.path.join(self._root, folder) if folder else self._root) as entries:
            for entry in entries:
                name = entry.name
                self._seen += 1
                if self._on_progress and self._seen % _PROGRESS_EVERY == 0:
                    self._on_progress(self._seen)
                if name.startswith(b".") or name in SYSTEM_NAMES:
                    if self._leave_out and entry.is_dir() and self._is_left_out(entry.path):
                        continue
                    ignored["(hidden or system)"] += 1
                    continue
                try:
                    if entry.is_dir():
                        if self._is_left_out(entry.path):
                            continue
                        records.append(name + b"\0" + _TAIL.pack(_FOLDER, 0, 0))
                        continue
                    suffix = suffix_of(name)
                    if suffix not in CANDIDATE_SUFFIXES:
                        ignored[shown_suffix(suffix)] += 1
                        continue
                    if entry.is_symlink():
                        records.append(name + b"\0" + _TAIL.pack(_REFUSED, 0, 0))
                        continue
                    info = entry.stat(follow_symlinks=False)
                    kind = _FILE if stat.S_ISREG(info.st_mode) else _REFUSED
                    records.append(name + b"\0" + _TAIL.pack(kind, info.st_size, info.st_mtime_ns))
                except OSError:
                    records.append(name + b"\0" + _TAIL.pack(_REFUSED, 0, 0))
        records.sort()
        prefix = folder + b"/" if folder else b""
        for name, first in clashes(lambda: (record[: -_TAIL.size - 1] for record in records)):
            detail = (
                f"differs from {display_name(first)} only in case or in how an accent is written; one file on macOS, Windows"
            )
            self._listing.notes.append((prefix + name, Note("name_clash", detail)))
        return records

    def _is_left_out(self, path: bytes) -> bool:
        """Whether a folder is the output, or an output of before: its index.npy is no sample, and it is no class."""
        if self._leave_out and _identity(path) in self._leave_out:
            return True
        if is_packed_dataset(Path(os.fsdecode(path))):
            self._listing.ignored["(packed dataset)"] += 1
            return True
        return False

    def _look_again(self, name: bytes) -> None:
        """A link, or something that is no regular file, or that could not be looked at: say precisely what."""
        path = os.path.join(self._root, name)
        try:
            if os.path.islink(path):
                info = os.stat(path)
                if not self._inside(path):
                    self._refuse_outside(name, path)
                    return
            else:
                info = os.lstat(path)
        except FileNotFoundError:
            detail = f"a link to {_readlink(path)}, which does not exist" if os.path.islink(path) else "no longer there"
            self._listing.refuse(name, self._current_label, "unreadable", detail)
            return
        except OSError as error:
            self._listing.refuse(name, self._current_label, "unreadable", error.strerror or type(error).__name__)
            return
        if not stat.S_ISREG(info.st_mode):
            self._listing.refuse(name, self._current_label, "unreadable", f"not a regular file but a {_kind(info.st_mode)}")
            return
        self._listing.append(name, info.st_size, info.st_mtime_ns, self._current_label)

    def _inside(self, path: bytes) -> bool:
        return self._follow_links or os.path.realpath(path).startswith(self._real_root.rstrip(b"/\\") + os.fsencode(os.sep))

    def _refuse_outside(self, name: bytes, path: bytes) -> None:
        detail = f"a link that leaves the input ({_readlink(path)}); --follow-links follows it"
        self._listing.refuse(name, self._current_label, "unreadable", detail)


def _unpack(record: bytes) -> tuple[bytes, int, int, int]:
    kind, size, mtime_ns = _TAIL.unpack_from(record, len(record) - _TAIL.size)
    return record[: -_TAIL.size - 1], kind, size, mtime_ns


def _identity(path: bytes) -> tuple[int, int]:
    info = os.stat(path)
    return info.st_dev, info.st_ino


def _readlink(path: bytes) -> str:
    return display_name(os.readlink(path))  # not os.fsdecode: the report must not depend on the locale


def _kind(mode: int) -> str:
    return {
        stat.S_IFDIR: "folder",
        stat.S_IFIFO: "FIFO",
        stat.S_IFSOCK: "socket",
        stat.S_IFBLK: "block device",
        stat.S_IFCHR: "character device",
    }.get(stat.S_IFMT(mode), "special file")
