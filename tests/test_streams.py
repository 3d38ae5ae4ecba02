"""The standard streams of the command: closed, full, or gone in the middle of a job."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer import formats, open_dataset
from tests.check_hooks import environment, pack_command, run_pack
from tests.inputs import jpeg, npy, write_tree

CLOSED = ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"]


def run_in_shell(redirection: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command: list[Any] = ["sh", "-c", f'exec "$@" {redirection}', "sh", *pack_command(*arguments)]
    return subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``images``; tests use names of their own beside it."""
    folder = tmp_path_factory.mktemp("streams")
    write_tree(folder / "images", {f"{i % 2}/{i}.jpg": jpeg(seed=i) for i in range(6)} | {"1/bad.jpg": jpeg()[:700]})
    return folder


@pytest.fixture(scope="module")
def usual(here: Path) -> dict[str, tuple[Path, str]]:
    """For each format, what packing with all streams open makes, and what it prints."""
    made = {}
    for name in formats.names():
        result = run_pack("images", "-f", name, "-o", f"usual.{name}", cwd=here)
        assert result.returncode == 0
        made[name] = here / f"usual.{name}", result.stdout
    return made


def without_seconds(text: str) -> str:
    return re.sub(r"[\d.]+ s$", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("redirection", CLOSED)
def test_closed_streams_pack_the_same_bytes(
    here: Path, usual: dict[str, tuple[Path, str]], format_name: str, redirection: str
) -> None:
    name = f"closed{CLOSED.index(redirection)}.{format_name}"
    result = run_in_shell(redirection, "images", "-f", format_name, "-o", name, cwd=here)
    whole, said = usual[format_name]
    assert (result.returncode, result.stderr) == (0, "")
    expected = "" if " >&-" in f" {redirection}" else said.replace(whole.name, name)
    assert without_seconds(result.stdout) == without_seconds(expected)
    for path in sorted(whole.iterdir()):
        assert (here / name / path.name).read_bytes() == path.read_bytes(), path


@pytest.mark.parametrize(
    "arguments",
    [
        ["info", "usual.lmdb"],
        ["ls", "usual.lmdb"],
        ["verify", "usual.lmdb", "--level", "decode"],
        ["check", "images", "-o", "said.jsonl"],
        ["convert", "usual.lmdb", "-f", "hdf5", "-o", "converted.hdf5"],
        ["unpack", "usual.lmdb", "-o", "again"],
    ],
    ids=lambda arguments: arguments[0],
)
@pytest.mark.usefixtures("usual")
def test_every_command_does_its_work_with_closed_streams(here: Path, arguments: list[str]) -> None:
    assert run_in_shell(CLOSED[-1], *arguments, cwd=here).returncode == 0
    if arguments[0] == "unpack":
        assert (here / "again" / "1" / "5.jpg").read_bytes() == (here / "images" / "1" / "5.jpg").read_bytes()


def test_a_refusal_keeps_its_status_where_nobody_can_be_told(here: Path) -> None:
    for redirection in CLOSED:
        assert run_in_shell(redirection, "images", "--format", "nonsense", cwd=here).returncode == 2
    assert run_in_shell(CLOSED[-1], "no-such-folder", cwd=here).returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_full_disk_under_standard_error_ends_nothing(here: Path) -> None:
    for arguments, status in ((["images"], 0), (["images"], 1), (["images", "--format", "nonsense"], 2)):  # exists: 1
        result = run_in_shell("2>/dev/full", *arguments, cwd=here)
        assert result.returncode == status
    assert len(open_dataset(here / "images.lmdb")) == 6


def test_terminal_that_is_closed_in_the_middle_ends_nothing(tmp_path: Path) -> None:
    count = 3_000
    write_tree(tmp_path / "images", {f"{i % 3}/{i}.npy": npy(np.full(50, i)) for i in range(count)})
    master, slave = pty.openpty()
    job = subprocess.Popen(
        pack_command("images", "--workers", "1"),
        cwd=tmp_path,
        env=environment(TERM="xterm-256color"),
        stdout=subprocess.DEVNULL,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    assert os.read(master, 1)
    os.close(master)  # from here on each line gives EIO
    assert job.poll() is None, "it ended before its terminal did"
    assert job.wait(timeout=60) == 0
    assert len(open_dataset(tmp_path / "images.lmdb")) == count
