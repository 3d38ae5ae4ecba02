"""How many CPUs this process may use: a Slurm step or a container often has fewer than the machine."""

from __future__ import annotations

import os

from packer.cgroup import cpu_quota

__all__ = ["available_cpus"]


def available_cpus() -> int:
    """CPUs of the affinity mask, or of the control group's quota where that is less; at least 1."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    quota = cpu_quota()
    return max(1, min(count, int(quota) if quota else count))
