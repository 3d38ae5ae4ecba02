"""One thing that the doctor has found."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NOTE", "SERIOUS", "WARNING", "Finding"]

SERIOUS, WARNING, NOTE = "serious", "warning", "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that will end or slow a loader.

    Attributes:
        id: a word to compare with.
        weight: ``serious`` (it fails, or will), ``warning`` (it can fail, or is slow), ``note`` (good to know, nothing wrong).
        title: what it is, as a sentence without the full stop.
        evidence: facts that were seen.
        cure: a command or an argument, and what it does.
        source: address of what describes it.
    """

    id: str
    weight: str
    title: str
    evidence: tuple[str, ...]
    cure: str
    source: str
