"""Processes that descend from this one, and their memory. Linux; elsewhere there are none, and they have none."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_PARENT = "PPid:"
_PEAK = "VmHWM:"
_ANONYMOUS = "RssAnon:"


def child_processes(parent: int | None = None) -> list[int]:
    """Process ids of all children that run now; of this process where none is named."""
    wanted = os.getpid() if parent is None else parent
    found = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    return [pid for pid in found if _field(pid, _PARENT) == wanted]


def descendants(process: int) -> list[int]:
    """Process ids of the children that run now, and of theirs."""
    return [pid for child in child_processes(process) for pid in (child, *descendants(child))]


def peak_memory_bytes(processes: Iterable[int]) -> int:
    """The largest resident set that any of some running processes ever had; 0 where the system does not tell."""
    return max((_field(pid, _PEAK) * 1024 for pid in processes), default=0)


def anonymous_bytes(process: int) -> int:
    """Memory of a running process that is no file's, now; pages that a fork still shares count. 0 where nobody tells."""
    return _field(process, _ANONYMOUS) * 1024


def private_bytes() -> int:
    """Memory that this process shares with no other, now; 0 where the system does not tell."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))


def _field(pid: int, name: str) -> int:
    """A number from ``/proc/PID/status``, 0 where it is not there."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)
