"""Which label a class folder gets, and which layouts are refused since their labels would be a guess."""

from __future__ import annotations

import codecs
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from packer.errors import InputError
from packer.files import read_regular_file
from packer.manifest import load_manifest
from packer.model import Note, Unfit, display_name

__all__ = ["LABEL_RULES", "KnownClasses", "load_classes", "number_classes", "refuse_loose_files", "refuse_splits"]

LABEL_RULES = ("auto", "folder", "number", "none")

_SPLIT_NAMES = frozenset(b"train training trainval val valid validation test testing dev eval evaluation".split())
_SHOWN = 12  # classes in a warning
_MAX_NAME_BYTES = 1024  # no file system takes more, most take 255
_MAX_LIST_BYTES = 64 << 20


class KnownClasses(NamedTuple):
    """Classes that were numbered before, elsewhere.

    Attributes:
        source: where they come from, for messages.
        labels_from: ``"folder"`` or ``"number"``, as in the manifest.
        label_of: label of each class by name, in the order of the classes.
    """

    source: str
    labels_from: str
    label_of: dict[bytes, int]

    def require(self, root: str, folders: list[bytes]) -> None:
        """Refuse class folders that are none of these classes.

        Raises:
            InputError: names them.
        """
        unknown = [name for name in folders if name not in self.label_of]
        if unknown:
            raise InputError(
                f"{root}: {len(unknown):,} of its class folders ({_some(unknown)}) are not among the {len(self.label_of):,} "
                f"classes of {self.source}. Add them there, or move them out of the input."
            )


def load_classes(source: Path) -> KnownClasses:
    """The classes of a packed dataset, or those in a text file, one a line in the order of their labels.

    Raises:
        InputError: the file cannot be read, is empty, or has a class twice or one that no folder can be called; the dataset
            has no classes.
        DatasetError: the dataset cannot be opened.
    """
    if source.is_dir():
        manifest = load_manifest(source)
        if not manifest.classes:
            raise InputError(f"{source}: was packed without labels, so no classes can be taken from it")
        try:
            names = {name.encode("utf-8", "surrogateescape"): label for name, label in manifest.class_to_idx.items()}
        except UnicodeEncodeError as error:
            raise InputError(f"{source}: no folder can be called like its class {error.object!a}") from None
        _require_folder_names(source, names)
        return KnownClasses(str(source), manifest.labels, names)
    try:
        text = read_regular_file(os.fsencode(source), _MAX_LIST_BYTES)
    except Unfit as unfit:
        problem = "is larger than any list of classes" if unfit.code == "too_large" else unfit.detail
        raise InputError(f"{source}: {problem}") from None
    lines = text.removeprefix(codecs.BOM_UTF8).split(b"\n")
    classes = [name for line in lines if (name := line.removesuffix(b"\r"))]
    twice = sorted(name for name, count in Counter(classes).items() if count > 1)
    if twice:
        raise InputError(f"{source}: names a class twice: {_some(twice)}")
    if not classes:
        raise InputError(f"{source}: names no class; one a line is expected, in the order of the labels")
    _require_folder_names(source, classes)
    return KnownClasses(str(source), "folder", {name: label for label, name in enumerate(classes)})


def _require_folder_names(source: Path, names: Iterable[bytes]) -> None:
    """Refuse classes that no folder can have: they are no list of classes, but another file, or a forged manifest."""
    for name in names:
        if name in (b"", b".", b"..") or b"/" in name or b"\0" in name or len(name) > _MAX_NAME_BYTES:
            shown = display_name(name[:60])
            raise InputError(f"{source}: no folder can be called like its class {shown!a}; one name a line is expected")


def number_classes(root: str, folders: list[bytes], rule: str) -> tuple[str, list[int], Note | None]:
    """Give each class folder its label.

    Args:
        root: the input, for messages.
        folders: class folders in the order of their bytes, which is ImageFolder's.
        rule: one of ``LABEL_RULES``.

    Returns:
        Where labels come from (``"folder"`` or ``"number"``), the labels, and a warning where they may surprise.

    Raises:
        InputError: numbers are asked for, and the folders' names are none.
    """
    places = list(range(len(folders)))
    numbers = [int(name) for name in folders if name.isdigit() and len(name) <= 18]
    if rule == "number":
        if len(numbers) < len(folders):
            wrong = [name for name in folders if not name.isdigit() or len(name) > 18]
            raise InputError(f"{root}: --labels number, but these class folders are no numbers: {_some(wrong)}")
        if len(set(numbers)) < len(numbers):
            raise InputError(f"{root}: --labels number, but two class folders have the same number")
        return "number", numbers, None
    if len(numbers) < len(folders) or numbers == places:
        return "folder", places, None
    # Folders 0..25 sort as text, so "2" gets index 12: with a good model accuracy then looks like chance.
    shown = ", ".join(f"{display_name(name)}→{label}" for label, name in enumerate(folders[:_SHOWN]))
    more = ", …" if len(folders) > _SHOWN else ""
    detail = (
        f"class folders are numbers, but sort as text, as ImageFolder does: {shown}{more}. --labels number takes the number."
    )
    return "folder", places, Note("numeric_classes", detail)


def refuse_splits(root: str, folders: list[bytes]) -> None:
    """Refuse folders that are splits: labels 0 = test and 1 = train fit every training script, and mean nothing.

    Raises:
        InputError: all folders are called like splits.
    """
    if _SPLIT_NAMES.issuperset(name.lower() for name in folders):
        commands = "; ".join(f"pack {Path(root, os.fsdecode(name))}" for name in folders)
        raise InputError(
            f"{root}: its folders are splits ({_some(folders)}), not classes. Pack each by itself: {commands}. "
            "If they really are the classes, add --labels folder; for no labels, --labels none."
        )


def refuse_loose_files(root: str, loose: list[bytes], folders: list[bytes]) -> None:
    """Refuse files beside class folders.

    Raises:
        InputError: always.
    """
    raise InputError(
        f"{root}: {len(loose):,} files ({_some(loose)}) lie beside class folders ({_some(folders)}), so their labels would be "
        "a guess. Move them into a class folder, or pack all without labels: --labels none."
    )


def _some(names: list[bytes]) -> str:
    shown = ", ".join(display_name(name) for name in names[:4])
    return shown if len(names) <= 4 else f"{shown}, … {len(names) - 4:,} more"
