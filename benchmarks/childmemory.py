"""The child processes of this one, and the most memory that they ever held. Linux; elsewhere there are none."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_PARENT = "PPid:"
_PEAK = "VmHWM:"


def child_processes() -> list[int]:
    """Process ids of all children that run now."""
    found = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    return [pid for pid in found if _field(pid, _PARENT) == os.getpid()]


def peak_memory_bytes(processes: Iterable[int]) -> int:
    """The largest resident set that any of some running processes ever had; 0 where the system does not tell."""
    return max((_field(pid, _PEAK) * 1024 for pid in processes), default=0)


def _field(pid: int, name: str) -> int:
    """A number from ``/proc/PID/status``, 0 where it is not there."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)
