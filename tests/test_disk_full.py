"""A disk that is full: one message with path and bytes, nothing under the final name, and the same bytes once there is room."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packer.checkers
from packer import OutputError, PackOptions, formats, pack_folder
from packer.options import Progress
from packer.plan import ShardLimits
from tests.check_hooks import environment, lines
from tests.inputs import judging_here, npy, write_tree

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="limits are set in a fork of this process")

COUNT = 40
POINTS = 20
_NEW_NAMESPACE, _PRIVATE = 0x20000, 0x44000


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Files are checked in this process, four at a time, and hardly ahead of the writer."""
    monkeypatch.setattr(packer.checkers, "_CHUNK_FILES", 4)
    monkeypatch.setattr(packer.checkers, "_AHEAD_PER_WORKER", 1)
    with judging_here():
        yield


@pytest.fixture
def source(tmp_path: Path) -> Path:
    files = {f"{'ab'[i % 2]}/{i:03d}.npy": npy(np.full(500 + i, i, "f8")) for i in range(COUNT)}
    return write_tree(tmp_path / "in", {**files, **{f"a/bad{i}.jpg": b"x" * 2 * i for i in range(3)}})


def pack(source: Path, format_name: str, output: Path, on_progress: Any = None, **values: Any) -> dict[str, str]:
    """Pack, and give the digest of each file of the output."""
    limits = ShardLimits(samples=15) if formats.get(format_name).has_shards else None
    options = PackOptions(format=format_name, output=output, limits=limits, workers=1, **values)
    folder = pack_folder(source, options, on_progress).output
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def in_a_copy(work: Callable[[], Any]) -> Any:
    """Run something in a fork of this process, and give its JSON value back; an exception's text raises ``AssertionError``."""
    receiver, sender = os.pipe()
    child = os.fork()
    if not child:
        try:
            answer = {"value": work()}
        except BaseException as error:  # nothing may go on in the copy
            answer = {"error": f"{type(error).__name__}: {error}"}
        with open(sender, "wb") as pipe:  # noqa: PTH123 - a descriptor
            pipe.write(json.dumps(answer).encode())
        os._exit(0)
    os.close(sender)
    with open(receiver, "rb") as pipe:  # noqa: PTH123 - a descriptor
        text = pipe.read()
    os.waitpid(child, 0)
    answer = json.loads(text or b'{"error": "it ended without an answer"}')
    assert "error" not in answer, answer["error"]
    return answer["value"]


def limited(size: int, work: Callable[[], Any]) -> str:
    """The error of a job in whose process no file may become larger than so many bytes."""

    def in_the_copy() -> str:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        try:
            work()
        except OutputError as error:
            return " ".join([str(error), *getattr(error.__cause__, "__notes__", ()), *getattr(error, "__notes__", ())])
        return ""

    message = in_a_copy(in_the_copy)
    assert isinstance(message, str)
    return message


def assert_says_all(message: str, folder: Path, what: str) -> None:
    """One line with the cause, the path, and the bytes written and free; and how to go on, where there is something left."""
    assert re.search(what, message), message
    assert str(folder) in message
    assert re.search(r"\([\d,]+ bytes were packed, [\d,]+ bytes are free there\)", message), message
    assert len(message.splitlines()) == 1
    assert ("run the same command again" in message) == (folder / ".out.partial").exists(), message


@pytest.mark.parametrize("check", ["full", "none"])
def test_limit_of_file_size_at_twenty_points_is_one_message_and_costs_nothing(
    source: Path, tmp_path: Path, check: str, format_name: str
) -> None:
    undisturbed = pack(source, format_name, tmp_path / "undisturbed", check=check)
    largest = max(path.stat().st_size for path in (tmp_path / "undisturbed").iterdir())
    points = POINTS if check == "full" else 5
    output = tmp_path / "out"
    for point in range(points):
        size = 1 + (largest - 2) * point // (points - 1)
        message = limited(size, lambda: pack(source, format_name, output, check=check))
        assert message, f"{size} bytes were enough"
        assert not output.exists()
        if size > 100:  # less is not enough for the lock
            assert_says_all(message, tmp_path, "File too large|Input/output error")
        assert pack(source, format_name, output, check=check) == undisturbed, size
        assert sorted(os.listdir(tmp_path)) == ["in", "out", "undisturbed"]
        shutil.rmtree(output)


def test_several_full_disks_in_a_row_are_gone_on_from(source: Path, tmp_path: Path, format_name: str) -> None:
    undisturbed = pack(source, format_name, tmp_path / "undisturbed")
    for size in (30_000, 60_000, 8_000, 60_000):
        assert limited(size, lambda: pack(source, format_name, tmp_path / "out"))
    assert pack(source, format_name, tmp_path / "out") == undisturbed


def test_journal_alone_that_cannot_be_written_ends_the_job(tmp_path: Path, format_name: str) -> None:
    """Names of accents are longest there."""
    files: dict[str | bytes, bytes] = {f"a/{i:03d}{'é' * 60}.jpg": b"" for i in range(150)}
    source = write_tree(tmp_path / "in", {**files, "a/good.npy": npy([1])})
    undisturbed = pack(source, format_name, tmp_path / "undisturbed")
    message = limited(90_000, lambda: pack(source, format_name, tmp_path / "out"))
    assert_says_all(message, tmp_path, "File too large")
    assert str(tmp_path / ".out.partial/journal.jsonl") in message
    assert not (tmp_path / "out").exists()
    assert pack(source, format_name, tmp_path / "out") == undisturbed


@pytest.mark.parametrize("name", ["report.jsonl", "index.npy", "names.bin", "manifest.json"])
def test_one_file_alone_that_cannot_be_written_ends_the_job(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, format_name: str
) -> None:
    undisturbed = pack(source, format_name, tmp_path / "undisturbed")
    open_file = Path.open

    def full(self: Path, *arguments: Any, **options: Any) -> Any:
        is_meant = self.name == name and self.parent.name == "output"
        return (
            open_file(Path("/dev/full"), "w" + arguments[0][1:] if arguments else "w", **options)
            if is_meant
            else (open_file(self, *arguments, **options))
        )

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OutputError, match="No space left on device"):
        pack(source, format_name, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(Path, "open", open_file)
    assert pack(source, format_name, tmp_path / "out") == undisturbed


# A file system that is full


def on_a_disk(folder: Path, size: str, work: Callable[[], Any]) -> Any:
    """Run something in a copy of this process for which a folder is a file system of that size."""
    folder.mkdir()
    library = ctypes.CDLL(None, use_errno=True)

    def in_the_copy() -> Any:
        if library.unshare(_NEW_NAMESPACE) or library.mount(b"none", b"/", None, _PRIVATE, None):
            return None
        if library.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, f"size={size}".encode()):
            return None
        return work()

    found = in_a_copy(in_the_copy)
    if found is None:
        pytest.skip("no mount namespace here")
    return found


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            pass
        try:
            while True:
                file.write(b"\0" * 512)
        except OSError:
            pass


@pytest.mark.parametrize("check", ["full", "none"])
def test_disk_that_fills_up_at_twenty_points_is_one_message_and_costs_nothing(
    source: Path, tmp_path: Path, check: str, format_name: str
) -> None:
    undisturbed = pack(source, format_name, tmp_path / "undisturbed", check=check)
    output, filler = tmp_path / "disk/out", tmp_path / "disk/filler"
    moments = [*(("pack", at) for at in range(0, COUNT + 3, 2 if check == "full" else 9)), ("verify", None)]

    def fill_at(moment: tuple[str, int | None]) -> Callable[[Progress], None]:
        def on_progress(progress: Progress) -> None:
            if progress.stage == moment[0] and moment[1] in (None, progress.done) and not filler.exists():
                _fill(filler)

        return on_progress

    def work() -> list[Any]:
        found: list[Any] = []
        for moment in moments:
            message = ""
            try:
                pack(source, format_name, output, fill_at(moment), check=check)
            except OutputError as error:
                message = str(error)
            found.append([moment, filler.exists(), message, sorted(os.listdir(tmp_path / "disk"))])
            filler.unlink(missing_ok=True)
            if not output.exists():
                found[-1].append(pack(source, format_name, output, check=check) == undisturbed)
            shutil.rmtree(output)
            found[-1].append(os.listdir(tmp_path / "disk"))
        return found

    failed = 0
    for moment, is_full, message, left, *after in on_a_disk(tmp_path / "disk", "8m", work):
        if not is_full:  # the last shard was proved before anybody could look
            assert moment[0] == "verify"
            continue
        failed += 1
        assert re.search("No space left on device|bytes are free", message), (moment, message)
        assert str(tmp_path / "disk") in message
        assert "out" not in left, moment
        assert after == [True, []], moment
    assert failed >= (POINTS if check == "full" else 5)


def test_output_that_will_not_fit_is_refused_before_packing(source: Path, tmp_path: Path, format_name: str) -> None:
    def work() -> list[str]:
        try:
            pack(source, format_name, tmp_path / "disk/out")
        except OutputError as error:
            return [str(error), *os.listdir(tmp_path / "disk")]
        return []

    (message,) = on_a_disk(tmp_path / "disk", "100k", work)
    assert re.search(
        rf"^{tmp_path}/disk: [\d,]+ bytes are free, the output will have about [\d,]+ \(the largest file, ", message
    )


# On the command line

COMMAND = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
from packer.cli import main
main()
"""


def test_command_says_it_in_one_line_with_status_1_and_leaves_no_file_open(
    source: Path, tmp_path: Path, format_name: str
) -> None:
    """Closing the container failed as well, and then index and names were not closed at all."""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", COMMAND, source, "-f", format_name, "-o", "out", "--workers", "1"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = lines(result.stderr)
    assert line.startswith("pack: ")
    assert_says_all(line, tmp_path, "File too large|Input/output error")


def test_what_hdf5_says_of_a_full_disk_in_its_text_is_told_as_the_system_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a sentence about reference counts."""

    def full(*arguments: object, **options: object) -> None:
        raise RuntimeError("Can't decrement id ref count (file write failed: errno = 28, error message = 'x')")

    monkeypatch.setattr("packer.formats.hdf5.h5py.File", full)
    write_tree(tmp_path / "in", {"1.npy": npy([1])})
    with pytest.raises(OutputError, match="cannot be written: No space left on device"):
        pack(tmp_path / "in", "hdf5", tmp_path / "out", check="none")
