"""The answer to "why did it die?"."""

from __future__ import annotations

from dataclasses import dataclass

from packer.words import printable

__all__ = ["Explanation"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a worker, a loader or a process ended. ``str()`` of it is a paragraph for a log.

    Attributes:
        cause: a word to compare with; all of them are in ``CAUSES`` of ``packer.doctor.explain``.
        summary: what happened, as a sentence without the full stop.
        likelihood: ``"certain"``, ``"likely"`` or ``"possible"``: how well the evidence fits this cause alone.
        evidence: plain facts that were seen, each a sentence without the full stop.
        cure: what to do: an argument or a command to paste, and what it does.
        source: address of the documentation or discussion that describes it.
        others: causes that fit less well and are not ruled out.
    """

    cause: str
    summary: str
    likelihood: str
    evidence: tuple[str, ...]
    cure: str
    source: str
    others: tuple[str, ...] = ()

    def __str__(self) -> str:
        """One paragraph: cause, evidence, cure, source. What is not printable in it appears as an escape."""
        name = self.cause.replace("_", " ")
        sure = "" if self.likelihood == "certain" else f" ({self.likelihood})"
        parts = [f"{name}{sure}: {self.summary}."]
        if self.evidence:
            parts.append(f"Seen: {'; '.join(self.evidence)}.")
        if self.others:
            parts.append(f"Not ruled out: {', '.join(other.replace('_', ' ') for other in self.others)}.")
        parts.append(f"What to do: {self.cure}.")
        parts.append(f"See {self.source}")
        return printable(" ".join(parts))
