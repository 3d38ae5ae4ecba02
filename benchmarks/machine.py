"""What a figure depends on besides the code: the machine, its file system and the versions of the libraries."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import monotonic


def count_cpus() -> int:
    """The CPUs that this process may use; where the system does not tell, those of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def describe_machine(folder: Path) -> dict[str, object]:
    """Describe the machine without naming it.

    Args:
        folder: where the benchmark works; only the type of its file system is told.

    Returns:
        ``cpus`` (those that this process may use), ``cpu_model``, ``memory_bytes``, ``file_system`` and ``kernel``;
        a word the system does not tell is ``"unknown"``.
    """
    return {
        "cpus": count_cpus(),
        "cpu_model": _cpu_model(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "file_system": _file_system(folder),
        "kernel": f"{platform.system()} {platform.release()}",
    }


@dataclass(frozen=True, slots=True)
class CpuClock:
    """CPU time since the start of the machine, and since that of this process.

    Attributes:
        seconds: on the wall.
        busy_seconds: summed over all CPUs of the machine; 0 where the system does not tell.
        own_seconds: of this process and of those of its children that have ended.
    """

    seconds: float
    busy_seconds: float
    own_seconds: float

    @classmethod
    def read(cls) -> CpuClock:
        """Read all three now."""
        times = os.times()
        own_seconds = times.user + times.system + times.children_user + times.children_system
        return cls(monotonic(), _busy_seconds(), own_seconds)

    def cpus_used_by_others(self, later: CpuClock) -> float:
        """How many CPUs were busy with something else between two readings, on average.

        The kernel's own writing counts as something else. With much of a CPU gone, the times are worth little.
        """
        others_seconds = (later.busy_seconds - self.busy_seconds) - (later.own_seconds - self.own_seconds)
        return round(max(0.0, others_seconds) / (later.seconds - self.seconds), 2)


def describe_versions(distributions: Sequence[str]) -> dict[str, str]:
    """Versions of Python and of the named distributions; ``"absent"`` for one that is not installed."""
    versions = {"python": platform.python_version()}
    for distribution in distributions:
        try:
            versions[distribution] = version(distribution)
        except PackageNotFoundError:
            versions[distribution] = "absent"
    return versions


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    models = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return models[0] if models else "unknown"


def _busy_seconds() -> float:
    """All but idle and waiting for disks, of all CPUs."""
    try:
        first_line = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
    except OSError:
        return 0.0
    user, nice, system, _idle, _waiting, interrupts, soft_interrupts = map(int, first_line.split()[1:8])
    return (user + nice + system + interrupts + soft_interrupts) / os.sysconf("SC_CLK_TCK")


def _file_system(folder: Path) -> str:
    """The type of the file system that holds ``folder``: that of the longest mount point above it."""
    try:
        text = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return "unknown"
    types = {mount_point: kind for _, mount_point, kind, *_ in map(str.split, text.splitlines())}
    resolved = folder.resolve()
    for parent in (resolved, *resolved.parents):
        if str(parent) in types:
            return types[str(parent)]
    return "unknown"
