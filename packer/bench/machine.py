"""What a figure depends on besides the code: CPUs, memory, file system, kernel, versions. Nothing that names the machine."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import monotonic

from packer.cgroup import memory_group
from packer.cpus import available_cpus

__all__ = ["CpuClock", "available_memory", "describe_machine", "describe_versions", "file_system"]

_DISTRIBUTIONS = ("packer", "numpy", "pillow", "simplejpeg", "lmdb", "h5py", "webdataset", "torch")


class CpuClock:
    """Started when it is made; tells how many CPUs others have kept busy since."""

    def __init__(self) -> None:
        self._start = self._read()

    def cpus_used_by_others(self) -> float:
        """On average; the kernel's own writing counts as something else. 0 where the system does not tell."""
        seconds, busy, own = (now - then for now, then in zip(self._read(), self._start, strict=True))
        return max(0.0, busy - own) / seconds if seconds > 0 else 0.0

    @staticmethod
    def _read() -> tuple[float, float, float]:
        """Seconds on the wall, those that all CPUs were busy, and those of this process and of its children that ended."""
        times = os.times()
        own = times.user + times.system + times.children_user + times.children_system
        try:
            first_line = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
            user, nice, system, _, _, interrupts, soft_interrupts = map(int, first_line.split()[1:8])
        except (OSError, ValueError):
            return monotonic(), own, own
        return monotonic(), (user + nice + system + interrupts + soft_interrupts) / os.sysconf("SC_CLK_TCK"), own


def describe_machine(folder: Path) -> dict[str, str | int]:
    """Machine, system and the file system that a folder lies on; what the system does not tell is ``"unknown"`` or 0."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine() or "unknown",
        "cpu": _cpu_model(),
        "cpus": available_cpus(),
        "memory_bytes": _memory("MemTotal"),
        "file_system": file_system(folder),
        "disk": _disk(folder),
    }


def describe_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that take part; ``"absent"`` for one that is not installed."""
    versions = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "absent"
    return versions


def available_memory() -> int:
    """Bytes that can be had without swapping, in the control group too; 0 where the system does not tell."""
    free, group = _memory("MemAvailable"), memory_group()
    if group and group.limit_bytes is not None and group.used_bytes is not None:
        return min(free, max(0, group.limit_bytes - group.used_bytes))
    return free


def file_system(folder: Path) -> str:
    """The type of the file system that a folder lies on: that of the longest mount point above it."""
    try:
        text = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return "unknown"
    types = {fields[1]: fields[2] for fields in map(str.split, text.splitlines()) if len(fields) > 2}
    real = Path(os.path.realpath(folder))
    return next((types[str(parent)] for parent in (real, *real.parents) if str(parent) in types), "unknown")


def _disk(folder: Path) -> str:
    """``"rotating"``, ``"not rotating"``, or ``"unknown"`` where no block device of one's own is behind the file system."""
    try:
        device = os.stat(folder).st_dev
        block = Path(os.path.realpath(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"))
    except (OSError, AttributeError):
        return "unknown"
    for place in (block, block.parent):  # of a partition, the disk has it
        try:
            return "rotating" if Path(place, "queue/rotational").read_text().strip() == "1" else "not rotating"
        except OSError:
            continue
    return "unknown"


def _memory(field: str) -> int:
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith(f"{field}:"))
    except (OSError, ValueError, IndexError, StopIteration):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if field == "MemTotal" else 0
    except (AttributeError, OSError, ValueError):
        return 0


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")), "unknown")
