"""Which label a class folder gets, and which layouts are refused since their labels would be a guess."""

from __future__ import annotations

import os
from pathlib import Path

from packer.errors import InputError
from packer.model import Note, display_name

__all__ = ["LABEL_RULES", "number_classes", "refuse_loose_files", "refuse_splits"]

LABEL_RULES = ("auto", "folder", "number", "none")

_SPLIT_NAMES = frozenset(b"train training trainval val valid validation test testing dev eval evaluation".split())
_SHOWN = 12  # classes in a warning


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
