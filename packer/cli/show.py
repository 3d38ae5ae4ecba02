"""How things are shown to a person: names that cannot do harm on a terminal, sizes, counts."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from packer.words import count_text as plural
from packer.words import size_text as size

__all__ = ["OutputClosed", "emit", "escape", "listed", "plural", "short_path", "size", "warn"]


def escape(text: str) -> str:
    """A name as it can be printed: control characters and bytes that are no text appear as ``\\x1b``, ``\\xe9``.

    A file name may hold an escape sequence that clears the screen, or a line break that forges a line of the summary.
    """
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if character == "\\" or character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii") if not 0xD800 <= code <= 0xDFFF else f"\\u{code:04x}"


def listed(counts: dict[str, int]) -> str:
    """``12 truncated, 3 corrupt``, the largest first."""
    return ", ".join(f"{count:,} {word}" for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def short_path(path: Path) -> str:
    """A path as text, relative to the current folder where it lies below it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


class OutputClosed(Exception):  # noqa: N818 - it may be nobody's error
    """Standard output takes no more: its reader is gone, or the disk that it goes to is full."""


def emit(lines: Iterable[str] | str) -> None:
    """Print to standard output, what cannot be encoded there as an escape.

    Raises:
        OutputClosed: it takes no more.
    """
    try:
        for line in [lines] if isinstance(lines, str) else lines:
            sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except OSError as error:
        raise OutputClosed(error.strerror) from error


def warn(message: str) -> None:
    """Print one message to standard error, as one line."""
    sys.stderr.write(f"pack: {escape(message)}\n")
    sys.stderr.flush()
