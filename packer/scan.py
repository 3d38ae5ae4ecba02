"""Scan the input folder once: which files are candidates, in which order, under which label.

Order: path components compared as bytes, one after the other (``dog/…`` before ``dog (copy)/…``, which comparing whole
paths would turn round). The class order, and so every label, is then that of torchvision's ``ImageFolder``, whatever the
file system, the locale and the order in which the files were made.

At most one stat a file. No file is opened, only folders.
"""

from __future__ import annotations

import contextlib
import os
import stat
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from packer.errors import InputError
from packer.labels import KnownClasses, number_classes, refuse_loose_files, refuse_splits
from packer.listing import Listing
from packer.model import NO_LABEL, Note, display_name
from packer.names import CANDIDATE_SUFFIXES, SYSTEM_NAMES, USUAL_ENDINGS, clashes, shown_suffix, suffix_of

__all__ = ["is_packed_dataset", "scan"]

_FOLDER, _REFUSED = -1, -2  # in place of a size
_PROGRESS_EVERY = 256  # entries; a network folder may give a few hundred a second

OnProgress = Callable[[int], None]
_Identity = tuple[int, int]  # device and inode
_Above = tuple[_Identity, ...]  # the folders on the way down


class _Entries(NamedTuple):
    """What a folder holds, in the order of the names: candidate files, folders, and what must be looked at again.

    Attributes:
        names: without the folder's.
        sizes: in bytes of the files; ``_FOLDER`` and ``_REFUSED`` say what the others are.
        mtimes: in ns of the files.
        others: places of those that are no files.
    """

    names: list[bytes]
    sizes: array[int]
    mtimes: array[int]
    others: list[int]


_Opened = tuple[bytes, _Entries, _Above]  # prefix of its names, what it holds, the folders on the way down to it


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


def is_packed_dataset(folder: str | os.PathLike[str]) -> bool:
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
        if is_packed_dataset(self._shown):
            raise InputError(f"{self._shown}: is a packed dataset already (`pack info` shows it)")
        here = (info.st_dev, info.st_ino)
        try:
            entries = self._entries(b"", self._root)
        except OSError as error:
            raise InputError(f"{self._shown}: {error.strerror}") from error
        folders = [name for name, size in zip(entries.names, entries.sizes, strict=True) if size == _FOLDER]
        loose = [name for name, size in zip(entries.names, entries.sizes, strict=True) if size != _FOLDER]
        if self._has_class_folders(folders, loose, here):
            self._scan_classes(folders, here)
        else:
            self._walk((b"", entries, (here,)))
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
        stack = [(self._list(top), top[2])] if top else []
        while stack:
            others, above = stack[-1]
            path, is_folder = next(others, (b"", False))
            if not path:
                stack.pop()
            elif is_folder:
                opened = self._open_folder(path, above)
                if opened:
                    stack.append((self._list(opened), opened[2]))
            else:
                self._look_again(path)
            if stop_at_first and len(self._listing):
                return

    def _list(self, folder: _Opened) -> Iterator[tuple[bytes, bool]]:
        """Add the files of a folder. Each of the others is given out when its turn has come, and whether it is a folder."""
        prefix, entries, _ = folder
        start = 0
        for place in entries.others:
            self._add_files(prefix, entries, start, place)
            yield prefix + entries.names[place], entries.sizes[place] == _FOLDER
            start = place + 1
        if start:
            self._add_files(prefix, entries, start, len(entries.names))
        else:
            self._listing.extend(prefix, entries.names, entries.sizes, entries.mtimes, self._current_label)

    def _add_files(self, prefix: bytes, entries: _Entries, start: int, stop: int) -> None:
        names, sizes, mtimes = entries.names[start:stop], entries.sizes[start:stop], entries.mtimes[start:stop]
        self._listing.extend(prefix, names, sizes, mtimes, self._current_label)

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
            entries = self._entries(name, path)
        except OSError as error:
            self._listing.refuse(name, self._current_label, "unreadable", f"folder: {error.strerror}")
            return None
        return (name + b"/" if name else b""), entries, (*above, here)

    def _note_loop(self, name: bytes, detail: str) -> None:
        self._listing.notes.append((name, Note("symlink_loop", detail)))

    def _entries(self, folder: bytes, path: bytes) -> _Entries:
        """What a folder at a path holds. The loop is the larger half of a scan: nothing in it is done that need not be."""
        listed: list[str] = []
        sizes, mtimes = array("q"), array("q")
        others = 0
        with _scandir(path) as found:
            while some := list(islice(found, _PROGRESS_EVERY - self._seen % _PROGRESS_EVERY)):
                for entry in some:
                    name = entry.name
                    try:
                        if (
                            (name[-4:] in USUAL_ENDINGS or name[-5:] in USUAL_ENDINGS)
                            and name[0] != "."
                            and entry.is_file(follow_symlinks=False)
                        ):
                            info = entry.stat(follow_symlinks=False)
                            mtimes.append(info.st_mtime_ns)
                            sizes.append(info.st_size)
                            listed.append(name)
                            continue
                        size, mtime_ns = self._size_and_mtime(entry, path)
                    except OverflowError:
                        size, mtime_ns = info.st_size, _mtime_ns(info)
                    except OSError:
                        size, mtime_ns = _REFUSED, 0
                    if size is not None:
                        others += size < 0
                        mtimes.append(mtime_ns)
                        sizes.append(size)
                        listed.append(name)
                self._count(len(some))
        names = os.fsencode("/".join(listed)).split(b"/") if listed else []
        order = sorted(range(len(names)), key=names.__getitem__)
        names = [names[place] for place in order]
        prefix = folder + b"/" if folder else b""
        for later, first in clashes(names):
            detail = (
                f"differs from {display_name(first)} only in case or in how an accent is written; one file on macOS, Windows"
            )
            self._listing.notes.append((prefix + later, Note("name_clash", detail)))
        sizes, mtimes = array("q", [sizes[place] for place in order]), array("q", [mtimes[place] for place in order])
        return _Entries(names, sizes, mtimes, [place for place, size in enumerate(sizes) if size < 0] if others else [])

    def _count(self, entries: int) -> None:
        self._seen += entries
        if self._on_progress and self._seen % _PROGRESS_EVERY == 0:
            self._on_progress(self._seen)

    def _size_and_mtime(self, entry: os.DirEntry[str], folder: bytes) -> tuple[int | None, int]:
        """Of any entry; in place of the size what it is where it is no file, and ``None`` where it is not looked at."""
        name = os.fsencode(entry.name)
        if name.startswith(b".") or name in SYSTEM_NAMES:
            with contextlib.suppress(OSError):
                if self._leave_out and entry.is_dir() and self._is_left_out(os.path.join(folder, name)):
                    return None, 0
            self._listing.ignored["(hidden or system)"] += 1
            return None, 0
        if entry.is_dir():
            return (None if self._is_left_out(os.path.join(folder, name)) else _FOLDER), 0
        suffix = suffix_of(name)
        if suffix not in CANDIDATE_SUFFIXES:
            self._listing.ignored[shown_suffix(suffix)] += 1
            return None, 0
        if not entry.is_file(follow_symlinks=False):
            return _REFUSED, 0
        info = entry.stat(follow_symlinks=False)
        return info.st_size, _mtime_ns(info)

    def _is_left_out(self, path: bytes) -> bool:
        """Whether a folder is the output, or an output of before: its index.npy is no sample, and it is no class."""
        if self._leave_out and _identity(path) in self._leave_out:
            return True
        if is_packed_dataset(os.fsdecode(path)):
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
        self._listing.append(name, info.st_size, _mtime_ns(info), self._current_label)

    def _inside(self, path: bytes) -> bool:
        return self._follow_links or os.path.realpath(path).startswith(self._real_root.rstrip(b"/\\") + os.fsencode(os.sep))

    def _refuse_outside(self, name: bytes, path: bytes) -> None:
        detail = f"a link that leaves the input ({_readlink(path)}); --follow-links follows it"
        self._listing.refuse(name, self._current_label, "unreadable", detail)


@contextlib.contextmanager
def _scandir(folder: bytes) -> Iterator[Iterator[os.DirEntry[str]]]:
    """The entries of a folder, which are looked at by their names in it where the system can.

    By whole paths the system goes through all folders above for each file: a twentieth of a scan, a tenth ten folders down.
    """
    if os.scandir not in os.supports_fd:
        with os.scandir(os.fsdecode(folder)) as found:
            yield found
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with os.scandir(descriptor) as found:
            yield found
    finally:
        os.close(descriptor)


def _mtime_ns(info: os.stat_result) -> int:
    """In 64 bits. Some file systems take years after 2262, whose nanoseconds need more: a change still changes the number."""
    return (info.st_mtime_ns + 2**63) % 2**64 - 2**63


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
