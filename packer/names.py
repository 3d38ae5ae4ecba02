"""What the name of a file or folder alone says."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

from packer.model import TYPES, display_name

__all__ = ["CANDIDATE_SUFFIXES", "SYSTEM_NAMES", "USUAL_ENDINGS", "clashes", "shown_suffix", "suffix_of"]

# Formats that packer cannot keep, but that stand among pictures and would be missed: they get a row in the report.
_TO_REFUSE = ("heic", "heif", "npz")

CANDIDATE_SUFFIXES = frozenset(
    suffix.encode() for suffix in [*_TO_REFUSE, *(suffix for kind in TYPES[1:] for suffix in kind.suffixes)]
)
"""Extensions of files that are looked at, in lower case and without the dot."""

USUAL_ENDINGS = frozenset(
    "." + spelled
    for suffix in map(bytes.decode, CANDIDATE_SUFFIXES)
    if len(suffix) in (3, 4)
    for spelled in (suffix, suffix.upper())
)
"""The last four or five characters of nearly each candidate's name, so that ``suffix_of`` is not asked a million times."""

SYSTEM_NAMES = frozenset(
    {b"__MACOSX", b"Thumbs.db", b"desktop.ini", b"@eaDir", b"$RECYCLE.BIN", b"System Volume Information", b"lost+found"}
)
"""What systems leave behind, none of it with a candidate's extension. Names that begin with a dot are hidden everywhere and
need no entry."""


def suffix_of(name: bytes) -> bytes:
    """The extension in lower case, empty where there is none. A space behind it, as some exports leave, costs no picture."""
    stem, dot, suffix = name.rpartition(b".")
    return suffix.rstrip().lower() if dot and stem else b""


def clashes(names: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Names of one folder that are one name on macOS or Windows, each with the first that it clashes with.

    An unpacked copy would lose one of the files there; a class would be merged with another.

    Args:
        names: all different; they are looked at one by one only where there may be a clash.
    """
    together = b"/".join(names)
    if together.isascii():  # as nearly always; 0.1 µs a name, where folding each takes one
        folded = together.lower()
        if folded == together or len(set(folded.split(b"/"))) == len(names):
            return
    first_of: dict[bytes, bytes] = {}
    for name in names:
        first = first_of.setdefault(_fold(name), name)
        if first is not name:
            yield name, first


def _fold(name: bytes) -> bytes:
    """What a file system compares that knows neither case nor the two encodings of an accented letter."""
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFC", display_name(name)).casefold().encode("utf-8", "surrogateescape")


def shown_suffix(suffix: bytes) -> str:
    """An extension as it is counted among the ignored files."""
    text = suffix.decode("utf-8", "replace").lower()
    # A name without an extension may still hold a dot ("v1.0 (final)"); a hundred such would fill the summary.
    return f".{text}" if len(text) <= 8 and text.isalnum() else "(no extension)"
