"""What the system says at one moment: memory, kills for lack of it, /dev/shm, open files, CPUs, how workers are started."""

from __future__ import annotations

import multiprocessing
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from packer.cgroup import MemoryGroup, memory_group
from packer.cpus import available_cpus

__all__ = ["Space", "SystemSnapshot", "default_start_method"]

_SHARED = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Space:
    """A file system's size and what is free of it, in bytes."""

    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class SystemSnapshot:
    """The state of the machine and of this process. What the system does not tell is ``None``.

    ``explain(error, since=before)`` compares one taken before the job with the state now: a count of kills that rose
    meanwhile is evidence, one that was there before is not. Taking one reads a dozen small files: under a millisecond.

    Attributes:
        group: the memory control group (container, job), ``None`` where there is none.
        memory_bytes: of the machine.
        available_bytes: memory that can be had without swapping.
        machine_oom_kills: processes that the kernel has killed for lack of memory since the machine was started.
        address_space_bytes: limit of this process's address space (``ulimit -v``).
        shared: the file system of shared memory, ``None`` where there is none.
        open_files: descriptors that this process has open.
        open_files_limit: how many it may have open (``ulimit -n``).
        open_files_hard_limit: what it may raise that to.
        cpus: that this process may use.
        start_method: how multiprocessing starts processes here: ``fork``, ``forkserver`` or ``spawn``.
        python: version as ``3.11.7``.
        system: ``Linux``, ``Darwin``, ``Windows``.
        scheduler: who runs the job, as ``Slurm job 1234`` or ``Kubernetes``; empty where nobody is known.
    """

    group: MemoryGroup | None = None
    memory_bytes: int | None = None
    available_bytes: int | None = None
    machine_oom_kills: int | None = None
    address_space_bytes: int | None = None
    shared: Space | None = None
    open_files: int | None = None
    open_files_limit: int | None = None
    open_files_hard_limit: int | None = None
    cpus: int = 1
    start_method: str = "fork"
    python: str = ""
    system: str = ""
    scheduler: str = ""

    @classmethod
    def take(cls) -> SystemSnapshot:
        """The state now. Never fails."""
        files, hard = _limit("RLIMIT_NOFILE")
        return cls(
            group=memory_group(),
            memory_bytes=_field("/proc/meminfo", "MemTotal:", 1024),
            available_bytes=_field("/proc/meminfo", "MemAvailable:", 1024),
            machine_oom_kills=_field("/proc/vmstat", "oom_kill", 1),
            address_space_bytes=_limit("RLIMIT_AS")[0],
            shared=_space(_SHARED),
            open_files=_open_files(),
            open_files_limit=files,
            open_files_hard_limit=hard,
            cpus=available_cpus(),
            start_method=default_start_method(),
            python=platform.python_version(),
            system=platform.system(),
            scheduler=_scheduler(),
        )


def default_start_method() -> str:
    """How multiprocessing would start a process now. Asking it in the usual way would settle the answer for good."""
    chosen: str | None = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]  # the default comes first


def _space(folder: Path) -> Space | None:
    try:
        state = os.statvfs(folder)
    except (OSError, AttributeError):
        return None
    return Space(state.f_frsize * state.f_blocks, state.f_frsize * state.f_bavail)


def _field(file: str, name: str, unit: int) -> int | None:
    try:
        with Path(file).open(encoding="ascii", errors="replace") as lines:
            return next((int(parts[1]) * unit for line in lines if (parts := line.split())[:1] == [name]), None)
    except (OSError, ValueError, IndexError):
        return None


def _limit(name: str) -> tuple[int | None, int | None]:
    """The limit and the hard one; ``None`` for none, and where the system has no such thing."""
    try:
        import resource

        soft, hard = resource.getrlimit(getattr(resource, name))
    except (ImportError, AttributeError, ValueError, OSError):
        return None, None
    return (None if soft == resource.RLIM_INFINITY else soft), (None if hard == resource.RLIM_INFINITY else hard)


def _open_files() -> int | None:
    for folder in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(folder)) - 1  # without the one that lists them
        except OSError:
            continue
    return None


def _scheduler() -> str:
    if job := os.environ.get("SLURM_JOB_ID"):
        return f"Slurm job {job}"
    return "Kubernetes" if "KUBERNETES_SERVICE_HOST" in os.environ else ""
