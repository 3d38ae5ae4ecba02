"""A process and its children as ``/proc`` shows them. On a system without it there is nothing to read."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PROC", "Reading", "command_line", "family", "may_read", "read_process", "role_of", "waits_in_words"]

PROC = Path("/proc")

_TICK_S = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") and "SC_CLK_TCK" in os.sysconf_names else 0.01
_SYSCALLS = {
    "x86_64": {0: "read", 7: "poll", 17: "pread64", 23: "select", 35: "nanosleep", 45: "recvfrom", 47: "recvmsg", 61: "wait4",
               202: "futex", 230: "clock_nanosleep", 232: "epoll_wait", 270: "pselect6", 271: "ppoll", 295: "preadv"},
    "aarch64": {22: "epoll_wait", 63: "read", 67: "pread64", 69: "preadv", 72: "pselect6", 73: "ppoll", 98: "futex",
                101: "nanosleep", 115: "clock_nanosleep", 207: "recvfrom", 212: "recvmsg", 260: "wait4"},
}  # fmt: skip
_WORDS = (
    (r"futex", "a lock"),
    (r"p9_|v9fs", "a 9p file system"),
    (r"ptlrpc|ldlm|^(ll|cl|osc)_", "Lustre"),
    (r"nfs|rpc_", "the NFS server"),
    (r"fuse|request_wait_answer", "a FUSE file system"),
    (r"poll|select|^ep_", "messages (poll)"),
    (r"pipe", "a pipe"),
    (r"unix_|^sk_|skb|inet_|recv", "a socket"),
    (r"nanosleep|hrtimer", "time to pass (sleep)"),
    (r"do_wait|wait4|kernel_wait", "a child to end"),
    (r"folio_|io_schedule|wait_on_page|blk_|wait_on_buffer|filemap|pread", "the disk"),
    (r"nvidia|uvm_|os_acquire", "the GPU driver"),
)


@dataclass(frozen=True, slots=True)
class Reading:
    """A process at one moment.

    Attributes:
        pid: its id.
        parent: that of its parent.
        name: as the kernel has it (``comm``).
        state: ``R`` runs, ``S`` sleeps, ``D`` waits for a disk or server and cannot be interrupted, ``T`` is stopped,
            ``Z`` ended.
        cpu_s: seconds of CPU it has used.
        started: clock ticks after the machine's start at which it was started; with ``pid`` it names a process for good.
        threads: how many it has.
        private_bytes: memory that it shares with nobody, ``None`` where that may not be read.
        shared_bytes: memory mapped from /dev/shm and the like (``RssShmem``).
        open_files: descriptors, ``None`` where they may not be read.
        waits_for: the kernel's function or the system call in which its first thread waits; empty while it runs.
    """

    pid: int
    parent: int
    name: str
    state: str
    cpu_s: float
    started: int
    threads: int
    private_bytes: int | None = None
    shared_bytes: int | None = None
    open_files: int | None = None
    waits_for: str = ""


def read_process(pid: int, proc: Path = PROC) -> Reading | None:
    """A process as it is now, ``None`` where there is none (any more)."""
    folder = Path(proc, str(pid))
    stat = _stat(folder)
    if stat is None:
        return None
    name, fields = stat
    memory = _kilobytes(Path(folder, "status"), ("RssAnon:", "RssShmem:"))
    # Not RssAnon: after a fork it counts the pages that are still shared with the parent, and so does not show the copying
    # that makes workers grow.
    own = _kilobytes(Path(folder, "smaps_rollup"), ("Private_Dirty:", "Swap:"))
    private = sum(own.values()) if "Private_Dirty:" in own else memory.get("RssAnon:")
    return Reading(
        pid,
        int(fields[1]),
        name,
        fields[0],
        (int(fields[11]) + int(fields[12])) * _TICK_S,
        int(fields[19]),
        int(fields[17]),
        private,
        memory.get("RssShmem:"),
        _entries(Path(folder, "fd")),
        "" if fields[0] in "RZ" else _waits_for(folder),
    )


def family(pid: int, proc: Path = PROC) -> list[int]:
    """A process and all below it, parents first; empty where there is none."""
    children: dict[int, list[int]] = {}
    there = False
    for entry in os.listdir(proc):
        if entry.isdecimal() and (stat := _stat(Path(proc, entry))) is not None:
            children.setdefault(int(stat[1][1]), []).append(int(entry))
            there = there or int(entry) == pid
    found = [pid] if there else []
    for one in found:
        found += sorted(children.get(one, ()))
    return found


def may_read(pid: int, proc: Path = PROC) -> bool:
    """Whether this user is shown a process's memory and files."""
    return _entries(Path(proc, str(pid), "fd")) is not None


def command_line(pid: int, proc: Path = PROC) -> str:
    """Its arguments, joined by spaces; empty where they may not be read."""
    try:
        data = Path(proc, str(pid), "cmdline").read_bytes()[:4096]
    except OSError:
        return ""
    return data.replace(b"\0", b" ").strip().decode("utf-8", "replace")


def role_of(reading: Reading, root: int, command: str, root_command: str) -> str:
    """``main``, ``worker`` (of a loader), ``helper`` (of multiprocessing or torch) or ``child``."""
    if reading.pid == root:
        return "main"
    if reading.name.startswith("pt_data_worker"):  # so torch calls them, from 2.5 on
        return "worker"
    if any(word in command for word in ("resource_tracker", "multiprocessing.forkserver", "torch_shm_manager")):
        return "helper"
    # What was forked has the command line of its parent.
    return "worker" if "multiprocessing.spawn" in command or command == root_command else "child"


def waits_in_words(waits_for: str) -> str:
    """What a wait channel means; the channel itself where that is not known."""
    return next((words for pattern, words in _WORDS if re.search(pattern, waits_for)), waits_for)


def _stat(folder: Path) -> tuple[str, list[str]] | None:
    try:
        text = Path(folder, "stat").read_bytes().decode("utf-8", "replace")
    except OSError:
        return None
    # The name may hold blanks and brackets.
    start, end = text.find("("), text.rfind(")")
    fields = text[end + 2 :].split()
    return (text[start + 1 : end], fields) if len(fields) >= 20 else None


def _kilobytes(file: Path, names: tuple[str, ...]) -> dict[str, int]:
    try:
        with file.open(encoding="ascii", errors="replace") as lines:
            return {parts[0]: int(parts[1]) << 10 for line in lines if (parts := line.split()) and parts[0] in names}
    except (OSError, ValueError, IndexError):
        return {}


def _entries(folder: Path) -> int | None:
    try:
        return len(os.listdir(folder))
    except OSError:
        return None


def _waits_for(folder: Path) -> str:
    try:
        channel = Path(folder, "wchan").read_text(encoding="ascii", errors="replace").strip("\0\n ")
    except OSError:
        channel = ""
    if channel not in ("", "0"):
        return channel
    try:
        call = int(Path(folder, "syscall").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return ""
    return _SYSCALLS.get(platform.machine(), {}).get(call, f"system call {call}" if call >= 0 else "")
