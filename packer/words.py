"""Numbers and names as they are said to people."""

from __future__ import annotations

__all__ = ["count_text", "printable", "size_text"]


def size_text(count: float) -> str:
    """A number of bytes in decimal units: ``12 bytes``, ``1.5 GB``."""
    value = float(count)
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if abs(value) < 1000 or unit == "TB":
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return ""


def count_text(count: int, word: str) -> str:
    """``1 worker``, ``2 workers``, ``1 process``, ``2 processes``."""
    if count != 1:
        word += "es" if word.endswith("s") else "s"
    return f"{count:,} {word}"


def printable(text: str) -> str:
    """Text from a message as it can be logged: what is no printable character appears as an escape."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode("ascii") for one in text)
