"""Plain facts about the machine and the workers, as sentences."""

from __future__ import annotations

import ast
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from packer.doctor.process import read_process, waits_in_words
from packer.doctor.snapshot import SystemSnapshot
from packer.doctor.symptom import Symptom
from packer.words import count_text, size_text

__all__ = [
    "Case",
    "files_evidence",
    "main_without_guard",
    "memory_evidence",
    "native_libraries",
    "shared_evidence",
    "short_mappings",
    "start_evidence",
    "worker_states",
]

_NATIVE = ("cv2", "h5py", "lmdb", "av", "decord", "torchcodec", "turbojpeg", "simplejpeg", "nvidia.dali", "tensorflow", "jax")
_MOST_MAPS = 20_000
_MOST_SOURCE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Case:
    """What is to be explained: the symptom, the machine now, and the machine before, where somebody looked."""

    symptom: Symptom
    now: SystemSnapshot
    since: SystemSnapshot | None = None

    @property
    def start_method(self) -> str:
        """How the workers were started, as far as known; else how they would be started now."""
        return self.symptom.start_method or self.now.start_method

    @property
    def group_kills(self) -> int | None:
        """Kills for lack of memory in the control group: since the snapshot, or ever."""
        return self._rise(
            self.now.group.oom_kills if self.now.group else None,
            self.since.group.oom_kills if self.since and self.since.group else None,
        )

    @property
    def machine_kills(self) -> int | None:
        """The same, of the whole machine."""
        return self._rise(self.now.machine_oom_kills, self.since.machine_oom_kills if self.since else None)

    def _rise(self, now: int | None, before: int | None) -> int | None:
        if now is None or (self.since is not None and before is None):
            return None
        return max(0, now - (before or 0))


def memory_evidence(case: Case) -> list[str]:
    """Kills, limits and what is free."""
    now, found = case.now, []
    meanwhile = "since the job began" if case.since else "since its start"
    if case.group_kills is not None:
        found.append(
            f"the kernel killed {count_text(case.group_kills, 'process')} of this control group for lack of memory {meanwhile}"
        )
    if case.machine_kills and not case.group_kills:
        found.append(f"on the whole machine it killed {count_text(case.machine_kills, 'process')} {meanwhile}")
    group = now.group
    if group and group.limit_bytes is not None:
        used = f", {size_text(group.used_bytes)} used" if group.used_bytes is not None else ""
        peak = f", {size_text(group.peak_bytes)} at most so far" if group.peak_bytes is not None else ""
        found.append(f"the control group may have {size_text(group.limit_bytes)}{used}{peak}")
    if now.memory_bytes is not None and now.available_bytes is not None:
        found.append(f"the machine has {size_text(now.memory_bytes)} memory, {size_text(now.available_bytes)} available now")
    if now.address_space_bytes is not None:
        found.append(f"the address space is limited to {size_text(now.address_space_bytes)} (ulimit -v)")
    return found


def shared_evidence(now: SystemSnapshot) -> list[str]:
    """Size and use of /dev/shm."""
    if now.shared is None:
        return ["there is no /dev/shm"] if now.system == "Linux" else []
    return [f"/dev/shm has {size_text(now.shared.total_bytes)}, {size_text(now.shared.free_bytes)} free now"]


def files_evidence(now: SystemSnapshot) -> list[str]:
    """Open files and their limits."""
    found = []
    if now.open_files_limit is not None:
        opened = f", {now.open_files:,} are open now" if now.open_files is not None else ""
        hard = "" if now.open_files_hard_limit is None else f", which can be raised to {now.open_files_hard_limit:,}"
        found.append(f"{now.open_files_limit:,} files may be open in this process{hard}{opened}")
    return found


def start_evidence(case: Case) -> list[str]:
    """How workers are started here."""
    return [f"workers are started by {case.start_method}, Python {case.now.python}"]


def worker_states(case: Case) -> list[str]:
    """What the workers that still live are doing."""
    found = []
    for pid in case.symptom.workers[:8]:
        reading = read_process(pid)
        if reading is not None and reading.state != "Z":
            waits = f", waiting for {waits_in_words(reading.waits_for)}" if reading.waits_for else ""
            found.append(
                f"worker {pid} lives: state {reading.state}{waits}, {reading.cpu_s:.1f} s of CPU, "
                f"{size_text(reading.private_bytes or 0)} private memory"
            )
    return found


def native_libraries() -> list[str]:
    """Libraries with C code of their own that are loaded here, and so in forked workers, too."""
    loaded = [name for name in _NATIVE if name in sys.modules]
    return [f"libraries with native code loaded here: {', '.join(loaded)}"] if loaded else []


def short_mappings(maps: Path = Path("/proc/self/maps")) -> list[str]:
    """Files mapped into this process (and so into forked workers) that are now shorter than what is mapped of them."""
    ends: dict[str, int] = {}
    try:
        with maps.open(encoding="utf-8", errors="surrogateescape") as lines:
            for line in (line for line, _ in zip(lines, range(_MOST_MAPS), strict=False)):
                parts = line.rstrip("\n").split(None, 5)
                # What cannot be read is kept free between the parts of a library, and may reach beyond its file.
                if (
                    len(parts) < 6
                    or parts[1][0] != "r"
                    or not parts[5].startswith("/")
                    or parts[5].startswith(("/dev/", "/SYSV", "/memfd:"))
                ):
                    continue
                start, _, end = parts[0].partition("-")
                reach = int(parts[2], 16) + int(end, 16) - int(start, 16)
                ends[parts[5]] = max(ends.get(parts[5], 0), reach)
    except (OSError, ValueError):
        return []
    page = os.sysconf("SC_PAGE_SIZE")
    found = []
    for path, reach in ends.items():
        try:
            size = os.stat(path).st_size
        except OSError:
            continue
        if -(-size // page) * page < reach:
            found.append(f"{path} is mapped up to byte {reach:,} and has only {size:,} bytes")
    return found


def main_without_guard() -> str:
    """The script that was started, where it starts no part of itself under ``if __name__ == "__main__":``; else empty."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if not path:
        return ""
    try:
        with Path(path).open("rb") as file:
            tree = ast.parse(file.read(_MOST_SOURCE_BYTES))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return "" if "__name__" in names else str(path)
