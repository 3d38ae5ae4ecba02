"""How many CPUs this process may use: a Slurm step or a container often has fewer than the machine."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["available_cpus"]

_CGROUP = Path("/sys/fs/cgroup")


def available_cpus() -> int:
    """CPUs of the affinity mask, or of the cgroup's quota where that is less; at least 1."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, min(count, int(quota) if quota else count))


def _cgroup_quota() -> float | None:
    """CPUs of time that the cgroup grants (version 2, then 1), or ``None`` for no limit."""
    try:
        quota, period = Path(_CGROUP, "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = Path(_CGROUP, "cpu/cpu.cfs_quota_us").read_text()
            period = Path(_CGROUP, "cpu/cpu.cfs_period_us").read_text()
        except OSError:
            return None
    try:
        return int(quota) / int(period) if int(quota) > 0 else None
    except (ValueError, ZeroDivisionError):
        return None
