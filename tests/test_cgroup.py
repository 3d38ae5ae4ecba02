"""Limits of the control group are found where container engines and batch systems set them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from packer import cpus
from packer.cgroup import MemoryGroup, cpu_quota, memory_group
from packer.cpus import available_cpus
from tests.inputs import write_tree


def write(root: Path, files: dict[str, str]) -> Path:
    write_tree(root, {name: text.encode() for name, text in files.items()})
    return root


def test_limits_and_kills_of_a_control_group_version_2_are_read(tmp_path: Path) -> None:
    """The limit stands above the group, as Slurm sets it; the kills are those of the group."""
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/job/step\n",
            "sys/fs/cgroup/job/memory.max": "1000000\n",
            "sys/fs/cgroup/job/memory.current": "900000\n",
            "sys/fs/cgroup/job/memory.peak": "950000\n",
            "sys/fs/cgroup/job/memory.events": "oom 9\noom_kill 9\n",
            "sys/fs/cgroup/job/step/memory.max": "max\n",
            "sys/fs/cgroup/job/step/memory.current": "5\n",
            "sys/fs/cgroup/job/step/memory.events": "low 0\noom 4\noom_kill 3\noom_group_kill 7\n",
        },
    )
    assert memory_group(root) == MemoryGroup(2, 1_000_000, 900_000, 950_000, 3)


def test_limits_and_kills_of_a_control_group_version_1_are_read(tmp_path: Path) -> None:
    """Inside a container the group is the mount itself, though its name is that of the host; the largest number is no limit."""
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/docker/abc\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "77\n",
            "sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        },
    )
    assert memory_group(root) == MemoryGroup(1, None, 77, None, 2)


@pytest.mark.parametrize("text", ["", "0::/../other\n", "nonsense"])
def test_a_machine_without_control_groups_has_none(tmp_path: Path, text: str) -> None:
    assert memory_group(write(tmp_path, {"proc/self/cgroup": text})) is None


@pytest.mark.parametrize(
    "text, files, quota",
    [
        ("0::/job/step\n", {"job/cpu.max": "150000 100000\n", "job/step/cpu.max": "max 100000\n"}, 1.5),
        ("0::/job/step\n", {"job/cpu.max": "400000 100000\n", "job/step/cpu.max": "200000 100000\n"}, 2.0),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {"cpu.max": "nonsense\n"}, None),
        ("3:cpu,cpuacct:/job\n", {"cpu/job/cpu.cfs_quota_us": "50000\n", "cpu/job/cpu.cfs_period_us": "100000\n"}, 0.5),
        ("3:cpu:/of/the/host\n", {"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3.0),
        ("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "0\n"}, None),
        ("", {}, None),
    ],
)
def test_the_least_quota_of_cpu_time_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, files: dict[str, str], quota: float | None
) -> None:
    root = write(tmp_path, {"proc/self/cgroup": text, **{f"sys/fs/cgroup/{name}": value for name, value in files.items()}})
    assert cpu_quota(root) == quota
    monkeypatch.setattr(cpus, "cpu_quota", lambda: cpu_quota(root))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    assert available_cpus() == (64 if quota is None else max(1, int(quota)))
