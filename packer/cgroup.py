"""The control group that this process is in: how much memory and time it may have, and how often the kernel killed for that.

A container and a Slurm or Kubernetes job are control groups. A limit may stand at the group itself or at one above it; the
counter of kills counts the victims in a group and below it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

__all__ = ["MemoryGroup", "control_groups", "cpu_quota", "memory_group"]

_NO_LIMIT = 1 << 60  # version 1 says "no limit" with the largest number of pages


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """What the memory controller says; what it does not say is ``None``.

    Attributes:
        version: 1 or 2.
        limit_bytes: the tightest limit of the group and those above it.
        used_bytes: what the group with that limit uses, page cache included.
        peak_bytes: the most that it has ever used.
        oom_kills: processes of the group that the kernel has killed for lack of memory since the group was made.
    """

    version: int
    limit_bytes: int | None = None
    used_bytes: int | None = None
    peak_bytes: int | None = None
    oom_kills: int | None = None


_FILES = {
    2: ("memory.max", "memory.current", "memory.peak", "memory.events"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control"),
}


def memory_group(root: Path = Path("/")) -> MemoryGroup | None:
    """The memory control group of this process, ``None`` where there is none.

    Args:
        root: where ``proc`` and ``sys`` are found; another one in tests.
    """
    for version, group in control_groups(root, "memory"):
        found = _read(version, group)
        if found is not None:
            return found
    return None


def cpu_quota(root: Path = Path("/")) -> float | None:
    """CPUs of time that the group, or one above it, grants at most; ``None`` for no limit.

    Args:
        root: where ``proc`` and ``sys`` are found; another one in tests.
    """
    quotas = [_quota(version, folder) for version, group in control_groups(root, "cpu") for folder in group]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(version: int, folder: Path) -> float | None:
    try:
        if version == 2:
            quota, period = map(int, Path(folder, "cpu.max").read_text(encoding="ascii").split())
        else:
            quota, period = (
                int(Path(folder, f"cpu.cfs_{name}_us").read_text(encoding="ascii")) for name in ("quota", "period")
            )
        return quota / period if quota > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # ValueError: "max", which is no limit
        return None


def control_groups(root: Path, controller: str) -> Iterator[tuple[int, list[Path]]]:
    """For each version that is there, the folders of the group that this process is in and of those above it.

    Args:
        root: where ``proc`` and ``sys`` are found; another one in tests.
        controller: ``"memory"``, ``"cpu"`` ...
    """
    try:
        lines = Path(root, "proc/self/cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            yield 1, _upwards(Path(root, "sys/fs/cgroup", controller), path)
    for line in lines:
        if line.startswith("0::"):
            for mount in ("sys/fs/cgroup", "sys/fs/cgroup/unified"):
                yield 2, _upwards(Path(root, mount), line[3:])


def _upwards(mount: Path, path: str) -> list[Path]:
    """Folders from the group up to the mount. Inside a container the path may be that of the host: then the mount is it."""
    inner = PurePosixPath(path.lstrip("/"))
    if ".." in inner.parts:  # the group lies outside of the namespace
        return [mount]
    return [Path(mount, part) for part in (inner, *inner.parents)]


def _read(version: int, folders: list[Path]) -> MemoryGroup | None:
    limit_file, used_file, peak_file, events_file = _FILES[version]
    there = [folder for folder in folders if Path(folder, used_file).is_file() or Path(folder, events_file).is_file()]
    if not there:
        return None
    limits = [(limit, folder) for folder in there if (limit := _number(Path(folder, limit_file))) is not None]
    limit, tightest = min(limits, key=lambda pair: pair[0], default=(None, there[0]))
    return MemoryGroup(
        version, limit, _number(Path(tightest, used_file)), _number(Path(tightest, peak_file)), _kills(there[0], events_file)
    )


def _number(file: Path) -> int | None:
    try:
        value = int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):  # ValueError: "max", which is no limit
        return None
    return value if 0 <= value < _NO_LIMIT else None


def _kills(folder: Path, name: str) -> int | None:
    try:
        lines = Path(folder, name).read_text(encoding="ascii").splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
    except (OSError, ValueError, IndexError):
        return None
