"""The command line: what is printed where, the exit status, and that no name does harm."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer import errors, formats, open_dataset
from packer.cli.app import run
from packer.cli.commands import COMMANDS
from packer.cli.progress import progress_display
from packer.cli.show import escape
from packer.manifest import _self_digest
from packer.options import Progress
from tests.check_hooks import as_nobody, environment, lines, pack_command, run_pack
from tests.inputs import jpeg, npy, pack, png, write_tree

FILES = {
    "ants/1.jpg": jpeg(seed=1),
    "ants/2.png": png(seed=2),
    "ants/cut.jpg": jpeg(seed=3)[:1000],
    "bees/1.npy": npy(np.arange(5)),
    "bees/empty.jpg": b"",
    "bees/odd.png": jpeg(seed=4),
    "bees/notes.txt": b"no candidate",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's folder, as the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def images(here: Path) -> Path:
    return write_tree(here / "images", FILES)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset that no test changes."""
    root = tmp_path_factory.mktemp("packed")
    return pack(write_tree(root / "images", FILES), workers=1).output


@pytest.fixture
def copy(packed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed, tmp_path / "copy.lmdb"))


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run the command line in this process: status, output, errors."""
    status = run(list(arguments))
    output, complaints = capsys.readouterr()
    return status, output, complaints


# The first screen


@pytest.mark.parametrize("arguments", [["--help"], ["-h"]])
def test_help_shows_first_how_to_pack(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    status, output, complaints = said(capsys, *arguments)
    assert (status, complaints) == (0, "")
    assert output.startswith("Usage: pack SRC --format " + "|".join(formats.names()))
    for option in (
        "--output",
        "--overwrite",
        "--labels",
        "--check",
        "--workers",
        "--shard-size",
        "--json",
        "--quiet",
        "--verbose",
    ):
        assert option in output
    assert output.index("Options:") < output.index("Commands:")
    for name in COMMANDS[1:]:
        assert re.search(rf"^  {name} ", output, re.MULTILINE)


def test_no_arguments_show_the_same_help(capsys: pytest.CaptureFixture[str]) -> None:
    _, shown, _ = said(capsys, "--help")
    _, output, complaints = said(capsys)
    assert shown.strip() in output + complaints


@pytest.mark.parametrize("name", COMMANDS[1:])
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], name: str) -> None:
    status, output, complaints = said(capsys, name, "--help")
    assert (status, complaints) == (0, "")
    assert output.startswith(f"Usage: pack {name} [OPTIONS]")


def test_help_behind_a_folder_is_help_on_packing(capsys: pytest.CaptureFixture[str], images: Path) -> None:
    status, output, _ = said(capsys, "images", "--help")
    assert status == 0
    assert "--overwrite" in output
    assert "pack pack" not in output
    assert os.listdir() == ["images"]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "--version") == (0, "packer 0.1.0\n", "")


# Which command


@pytest.mark.parametrize(
    "arguments", [["images"], ["images/"], ["--format", "lmdb", "images"], ["-q", "images"], ["--", "images"]]
)
def test_packing_is_the_default_command(capsys: pytest.CaptureFixture[str], images: Path, arguments: list[str]) -> None:
    assert said(capsys, *arguments)[0] == 0
    assert len(open_dataset("images.lmdb")) == 4


@pytest.mark.parametrize("name", COMMANDS[1:])
def test_folder_called_like_a_command_is_packed_as_dot_slash(capsys: pytest.CaptureFixture[str], here: Path, name: str) -> None:
    write_tree(here / name, {"a/1.npy": npy([1])})
    status, output, _ = said(capsys, f"./{name}", "--check", "none")
    assert status == 0
    assert f"into {name}.lmdb" in output


@pytest.mark.parametrize(("word", "meant"), [("verfy", "verify"), ("inof", "info"), ("Verify", "verify"), ("dmeo", "demo")])
def test_mistyped_command_names_the_near_one(capsys: pytest.CaptureFixture[str], here: Path, word: str, meant: str) -> None:
    status, output, complaints = said(capsys, word, "x.lmdb")
    assert (status, output) == (2, "")
    assert f"pack {meant}" in complaints
    assert repr(word) in complaints


def test_existing_folder_is_packed_however_near_its_name_is_to_a_command(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    write_tree(here / "verfy", {"a/1.npy": npy([1])})
    assert said(capsys, "verfy", "--check", "none")[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["images", "--nonsense"],
        ["images", "--frmat", "lmdb"],
        ["images", "--format", "zip"],
        ["images", "--check", "half"],
        ["images", "--labels", "guess"],
        ["images", "--workers", "0"],
        ["images", "--workers", "many"],
        ["images", "--shard-samples", "0", "-f", "webdataset"],
        ["images", "more"],
        ["-q"],
        ["verify"],
        ["verify", "--nonsense", "x"],
        ["info", "a", "b"],
        ["ls", "x", "--format", "lmdb"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_status_2_and_does_nothing(
    capsys: pytest.CaptureFixture[str], images: Path, arguments: list[str]
) -> None:
    status, output, complaints = said(capsys, *arguments)
    assert (status, output) == (2, "")
    assert "Error: " in complaints
    assert "Traceback" not in complaints
    assert os.listdir() == ["images"]


@pytest.mark.parametrize("option", [["--shard-size", "1MB"], ["--shard-samples", "5"], ["--shard-size", "1GB"]], ids=" ".join)
def test_shards_are_refused_for_formats_of_one_file(
    capsys: pytest.CaptureFixture[str], images: Path, option: list[str], format_name: str
) -> None:
    status, output, complaints = said(capsys, "images", "-f", format_name, *option, "-q")
    if formats.get(format_name).has_shards:
        assert (status, complaints) == (0, "")
        return
    assert (status, output) == (2, "")
    assert option[0] in complaints
    assert os.listdir() == ["images"]


SIZES = {
    "1": 1, "500": 500, "1k": 1000, "2kB": 2000, "1KiB": 1024, "3MB": 3_000_000, "1.5GB": 1_500_000_000, "1 GB": 10**9,
    "2gib": 2**31, "1TiB": 2**40, "0.1m": 100_000, "12345B": 12345, "100Mi": 100 * 2**20,
}  # fmt: skip


@pytest.mark.parametrize("text", SIZES)
def test_sizes_of_shards_are_read_as_people_write_them(capsys: pytest.CaptureFixture[str], here: Path, text: str) -> None:
    write_tree(here / "in", {"a/1.npy": npy([1])})
    assert said(capsys, "in", "-f", "webdataset", "--shard-size", text, "--check", "none")[0] == 0
    assert json.loads(Path("in.webdataset/manifest.json").read_bytes())["options"]["shard_bytes"] == SIZES[text]


@pytest.mark.parametrize(
    "text", ["0", "0MB", "-1", "1e9", "big", "1XB", "1i", "", "0.5", "0.0001k", "nan", "inf", "1,5GB", "9" * 400]
)
def test_what_is_no_size_is_wrong_usage(capsys: pytest.CaptureFixture[str], images: Path, text: str) -> None:
    status, output, complaints = said(capsys, "images", "-f", "webdataset", f"--shard-size={text}")
    assert (status, output) == (2, "")
    assert "500MB" in complaints or "at least" in complaints
    assert os.listdir() == ["images"]


# Exit status


def test_exit_status_of_errors_is_that_of_the_table() -> None:
    table = {}
    for line in str(errors.__doc__).splitlines():
        found = re.match(r"[\s│├└─]*(\w+Error)(?: \(\w+\))?(?: +(\d)\b)?", line)
        if found:
            table[found[1]] = int(found[2]) if found[2] else errors.DatasetError.exit_status
    kinds = {name: getattr(errors, name).exit_status for name in errors.__all__}
    assert table == kinds


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["images"], 0),
        (["./none"], 1),
        (["empty"], 1),
        (["images/ants/1.jpg"], 1),
        (["images", "-o", "images"], 1),
        (["images", "-o", "no/where"], 1),
        (["info", "none"], 1),
        (["ls", "images"], 1),
        (["verify", "none"], 1),
        (["images", "-f", "x"], 2),
    ],
    ids=str,
)
def test_exit_status(capsys: pytest.CaptureFixture[str], images: Path, arguments: list[str], status: int) -> None:
    Path("empty").mkdir()
    found, output, complaints = said(capsys, *arguments)
    assert found == status
    assert "Traceback" not in complaints
    if status == 1 and arguments[0] != "verify":
        assert output == ""
        assert len(lines(complaints)) == 1
        assert complaints.startswith("pack: ")


def test_missing_input_is_named_in_one_line(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    assert said(capsys, "./images") == (1, "", "pack: images: no such folder\n")


@pytest.mark.parametrize("command", ["info", "ls", "verify"])
def test_dataset_that_may_not_be_read_is_named_with_the_reason(command: str) -> None:
    with tempfile.TemporaryDirectory(prefix="packer-test-") as folder:
        Path(folder).chmod(0o755)
        write_tree(Path(folder, "closed/x.lmdb"), {"manifest.json": b"{}"})
        Path(folder, "closed").chmod(0)
        result = as_nobody("", command, "closed/x.lmdb", cwd=Path(folder))
        Path(folder, "closed").chmod(0o755)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "Permission denied" in result.stdout + result.stderr


# What is printed


def test_summary_says_what_was_packed_skipped_and_ignored(capsys: pytest.CaptureFixture[str], images: Path) -> None:
    status, output, complaints = said(capsys, "images")
    assert (status, complaints) == (0, "")
    assert re.match(r"packed 4 of 6 files into images\.lmdb \([\d.]+ kB, 2 classes\) in [\d.]+ s\n", output)
    assert "skipped 2: 1 empty_file, 1 truncated\n" in output
    assert "  truncated: ants/cut.jpg\n" in output
    assert "warnings 1: 1 extension_mismatch\n" in output
    assert "ignored 1: 1 .txt\n" in output
    assert output.endswith("report: images.lmdb/report.jsonl\n")


def test_summary_of_a_clean_folder_is_one_line(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    write_tree(here / "in", {"1.npy": npy([1])})
    _, output, _ = said(capsys, "in")
    assert re.fullmatch(r"packed 1 of 1 file into in\.lmdb \([\d.]+ kB, no labels\) in [\d.]+ s\n", output)


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str], images: Path) -> None:
    assert said(capsys, "images", "-q") == (0, "", "")
    assert said(capsys, "verify", "images.lmdb", "-q") == (0, "", "")


def test_quiet_still_says_what_failed(capsys: pytest.CaptureFixture[str], images: Path) -> None:
    said(capsys, "images", "-q")
    status, output, complaints = said(capsys, "images", "-q")
    assert (status, output) == (1, "")
    assert "--overwrite" in complaints


def test_json_is_one_object_on_stdout(capsys: pytest.CaptureFixture[str], images: Path, format_name: str) -> None:
    status, output, complaints = said(capsys, "images", "-f", format_name, "--json")
    assert (status, complaints) == (0, "")
    assert output.count("\n") == 1
    values = json.loads(output)
    assert (values["files"], values["samples"], values["format"]) == (6, 4, format_name)
    assert values["skipped"] == {"truncated": 1, "empty_file": 1}
    assert values["classes"] == ["ants", "bees"]
    assert Path(values["output"]) == Path.cwd() / f"images{formats.get(format_name).suffix}"
    assert Path(values["report"]).is_file()


def test_json_prints_nothing_where_packing_fails(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    (here / "in").mkdir()
    status, output, complaints = said(capsys, "in", "--json")
    assert (status, output) == (1, "")
    assert len(lines(complaints)) == 1


def test_verbose_names_every_skipped_file_and_every_warning(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    write_tree(here / "in", {**{f"a/{i}.jpg": b"" for i in range(20)}, "a/x.png": jpeg()})
    (here / "in/b").mkdir()
    _, output, _ = said(capsys, "in", "-v")
    for i in range(20):
        assert f"skipped empty_file a/{i}.jpg: 0 bytes\n" in output
    assert "warned extension_mismatch a/x.png: named .png, but the content is jpeg\n" in output
    assert "warned empty_class b: " in output
    _, output, _ = said(capsys, "in", "--overwrite")
    assert output.count("a/") == 3


def test_unfinished_output_is_mentioned(capsys: pytest.CaptureFixture[str], images: Path) -> None:
    write_tree(images.parent / ".images.lmdb.partial", {"data.mdb": b"half"})
    status, output, _ = said(capsys, "images", "--json")
    assert (status, json.loads(output)["replaced_unfinished"]) == (0, True)
    write_tree(images.parent / ".images.lmdb.partial", {"data.mdb": b"half"})
    assert "unfinished" in said(capsys, "images", "--overwrite")[1]


# verify, info, ls


def test_verify_says_that_a_sound_dataset_is_sound(capsys: pytest.CaptureFixture[str], packed: Path) -> None:
    status, output, _ = said(capsys, "verify", str(packed))
    assert status == 0
    assert "is sound: 4 samples" in output
    values = json.loads(said(capsys, "verify", str(packed), "--json")[1])
    assert (values["sound"], values["findings"], values["samples"]) == (True, [], 4)


def test_verify_of_a_damaged_dataset_names_the_sample_with_status_1(capsys: pytest.CaptureFixture[str], copy: Path) -> None:
    data = bytearray((copy / "data.mdb").read_bytes())
    at = data.index(FILES["ants/2.png"])
    data[at + 50] ^= 1
    (copy / "data.mdb").write_bytes(data)
    status, output, _ = said(capsys, "verify", str(copy))
    assert status == 1
    assert "ants/2.png" in output
    assert "finding" in output
    status, output, _ = said(capsys, "verify", str(copy), "--json")
    assert status == 1
    values = json.loads(output)
    assert not values["sound"]
    assert values["findings"][0]["name"] == "ants/2.png"
    assert said(capsys, "verify", str(copy), "-q") == (1, "", "")


@pytest.mark.parametrize("name", ["manifest.json", "index.npy", "names.bin", "report.jsonl", "data.mdb"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_verify_finds_every_missing_or_cut_file(capsys: pytest.CaptureFixture[str], copy: Path, name: str, damage: str) -> None:
    if damage == "cut":
        os.truncate(copy / name, (copy / name).stat().st_size // 2)
    else:
        (copy / name).unlink()
    status, output, complaints = said(capsys, "verify", str(copy))
    assert status == 1
    assert name in output + complaints
    assert "Traceback" not in complaints


def test_info_shows_what_a_dataset_holds(capsys: pytest.CaptureFixture[str], packed: Path) -> None:
    status, output, _ = said(capsys, "info", str(packed))
    assert status == 0
    for phrase in ("lmdb, 4 samples", "2 jpeg, 1 npy, 1 png", "classes: 2: ants 2, bees 2", "check full"):
        assert phrase in output
    _, output, _ = said(capsys, "info", str(packed), "--json")
    values = json.loads(output)
    assert output.count("\n") == 1
    assert (values["samples"], values["classes"], values["types"]) == (
        4,
        {"ants": 2, "bees": 2},
        {"jpeg": 2, "npy": 1, "png": 1},
    )


def test_ls_has_one_line_a_sample(capsys: pytest.CaptureFixture[str], packed: Path) -> None:
    status, output, _ = said(capsys, "ls", str(packed))
    assert status == 0
    assert [line.split()[-1] for line in output.splitlines()] == ["ants/1.jpg", "ants/2.png", "bees/1.npy", "bees/odd.png"]
    assert output.splitlines()[0].split() == ["0", "0", "jpeg", "64×48", str(len(FILES["ants/1.jpg"])), "ants/1.jpg"]
    rows = [json.loads(line) for line in said(capsys, "ls", str(packed), "--json")[1].splitlines()]
    assert [row["label"] for row in rows] == [0, 0, 1, 1]
    assert rows[2] == {
        "index": 2, "label": 1, "type": "npy", "width": 0, "height": 0, "bytes": len(FILES["bees/1.npy"]), "path": "bees/1.npy",
    }  # fmt: skip


@pytest.mark.parametrize("command", ["info", "ls"])
def test_quiet_look_says_by_its_status_alone_whether_a_dataset_can_be_opened(
    capsys: pytest.CaptureFixture[str], copy: Path, command: str
) -> None:
    assert said(capsys, command, str(copy), "--quiet") == (0, "", "")
    os.truncate(copy / "data.mdb", 1)
    status, output, complaints = said(capsys, command, str(copy), "-q")
    assert (status, output) == (1, "")
    assert "data.mdb" in complaints


@pytest.mark.parametrize("command", ["info", "ls"])
def test_folder_that_is_no_dataset_is_one_line(capsys: pytest.CaptureFixture[str], images: Path, command: str) -> None:
    for path in ("images", "images/ants/1.jpg", "none"):
        status, output, complaints = said(capsys, command, path)
        assert (status, output) == (1, "")
        assert len(lines(complaints)) == 1


# Where output goes


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose listing fills more than a pipe."""
    root = tmp_path_factory.mktemp("long")
    return pack(write_tree(root / "in", {f"{i:04d}.npy": npy([i]) for i in range(3_000)}), check="none").output


@pytest.mark.parametrize("arguments", [["ls"], ["ls", "--json"]])
def test_listing_cut_by_head_is_no_failure(long: Path, arguments: list[str]) -> None:
    job = subprocess.Popen(
        pack_command(*arguments, long), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert job.stdout is not None
    assert job.stderr is not None
    assert "0000.npy" in job.stdout.readline()
    job.stdout.close()
    complaints = job.stderr.read()
    job.stderr.close()
    assert (job.wait(timeout=30), complaints) == (141, "")


def test_output_that_cannot_be_printed_is_one_line(tmp_path: Path, packed: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    write_tree(tmp_path / "in", {"1.npy": npy([1])})
    for arguments in (["info", packed], ["ls", packed], ["verify", packed], ["in"]):
        with Path("/dev/full").open("w") as full:
            result = subprocess.run(
                pack_command(*arguments),
                cwd=tmp_path,
                env=environment(),
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        assert result.returncode == 1
        (line,) = lines(result.stderr)
        assert "No space left" in line


def test_progress_goes_to_stderr_in_plain_lines_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with progress_display(quiet=False) as show:
        for i in range(0, 4_000, 10):
            now[0] = 100 + i / 100
            show(Progress("scan", 50 * i) if i < 1_000 else Progress("pack", i, 4_000, 1_000_000 * i, 7))
    output, shown = capsys.readouterr()
    assert output == ""
    assert "\r" not in shown
    assert "\x1b" not in shown
    rows = shown.splitlines()
    assert len(rows) in (4, 5)
    assert rows[0].startswith("scanning: ")
    assert 4_000 <= int(re.sub(",", "", rows[0].split()[1])) <= 10_000, "not within the first two seconds"
    assert re.fullmatch(r"packing: [\d,]+ of 4,000, [\d,]+ files/s, [\d,.]+ MB/s, 7 skipped, \d+ s left", rows[-1])


def on_terminal(command: list[Any], cwd: Path, *, output: Path | None = None) -> tuple[int, str]:
    """Run a command on a pseudo-terminal, as a person does; returns its status and all that the terminal got.

    ``output``: a file that standard output is sent to.
    """
    master, slave = pty.openpty()
    with output.open("wb") if output else nullcontext(slave) as sent_to:
        job = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment(TERM="xterm-256color", COLUMNS="100"),
            stdin=slave,
            stdout=sent_to,
            stderr=slave,
        )
    os.close(slave)
    shown = b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if master in select.select([master], [], [], 0.1)[0]:
            try:
                block = os.read(master, 1 << 16)
            except OSError as error:
                if error.errno != errno.EIO:  # Linux: the other end is closed
                    raise
                break
            if not block:
                break
            shown += block
    os.close(master)
    return job.wait(timeout=10), shown.decode("utf-8", "replace")


def test_live_line_on_a_terminal(here: Path) -> None:
    write_tree(here / "in", {f"{i % 3}/{i}.npy": npy(np.full(50, i)) for i in range(1_500)})
    status, shown = on_terminal(pack_command("in", "--workers", "1"), here)
    assert status == 0
    assert "packing" in shown
    assert re.search(r"[\d,]+ of 1,500", shown)
    last = shown.rpartition("packed 1,500 of 1,500 files")
    assert last[1]
    assert "\x1b[?25h" in shown, "the cursor is shown again"


def test_live_line_is_on_the_terminal_when_the_summary_goes_elsewhere(here: Path) -> None:
    write_tree(here / "in", {f"{i}.npy": npy(np.full(50, i)) for i in range(600)})
    status, shown = on_terminal(pack_command("in", "--workers", "1", "--json"), here, output=here / "summary")
    assert status == 0
    assert "packing" in shown
    assert json.loads((here / "summary").read_bytes())["samples"] == 600


def test_quiet_shows_nothing_on_a_terminal(here: Path) -> None:
    write_tree(here / "in", {"1.npy": npy([1])})
    assert on_terminal(pack_command("in", "-q"), here) == (0, "")


# Names that mean harm


HARMFUL = [
    b"\x1b[2J\x1b]0;title\x07clear.jpg",
    b"line\nbreak: all is well.jpg",
    b"carriage\rreturn.jpg",
    b"[red]markup[blink] [link=x]y.jpg",
    b"latin-1 h\xe9.jpg",
    "日本 Ä €.jpg".encode(),
    "right \u202e to left.jpg".encode(),
    "c1 \x9b2J.jpg".encode(),
    b"back\\slash\x7f.jpg",
    b"%s {0} $HOME `id`.jpg",
]


@pytest.fixture(scope="module")
def harmful(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Odd names for classes, for files that are kept, and for files that are skipped."""
    root = tmp_path_factory.mktemp("harmful")
    files: dict[str | bytes, bytes] = {}
    for i, name in enumerate(HARMFUL):
        files[b"kept/" + name] = jpeg(seed=i)
        files[b"skipped/" + name] = b"damaged"
        files[name[:-4] + b"/1.jpg"] = jpeg(seed=i)
    write_tree(root / "in", files)
    (root / b"in/empty \x1b[31m".decode()).mkdir()
    return root


LOCALES = {
    "UTF-8": {"LC_ALL": "C.UTF-8"},
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "strict ascii": {"PYTHONIOENCODING": "ascii:strict", "LC_ALL": "C"},
    "latin-1": {"PYTHONIOENCODING": "latin-1:strict"},
}


def assert_harmless(shown: bytes, encoding: str = "utf-8") -> None:
    text = shown.decode(encoding)
    assert not [character for character in text if character != "\n" and not character.isprintable()]


@pytest.mark.parametrize("locale", LOCALES)
def test_harmful_names_are_shown_harmlessly(harmful: Path, tmp_path: Path, locale: str) -> None:
    encoding = "latin-1" if locale == "latin-1" else "utf-8" if locale == "UTF-8" else "ascii"
    commands: list[list[Any]] = [
        [harmful / "in", "-o", "out", "-v"],
        ["info", "out"],
        ["ls", "out"],
        ["verify", "out"],
    ]
    shown = b""
    for arguments in commands:
        result = subprocess.run(
            pack_command(*arguments), cwd=tmp_path, env=environment(**LOCALES[locale]), capture_output=True, check=False
        )
        assert (result.returncode, result.stderr) == (0, b"")
        assert_harmless(result.stdout, encoding)
        shown += result.stdout
    for phrase in (rb"\x1b[2J", rb"line\nbreak", rb"carriage\rreturn", b"[red]markup[blink]", rb"h\xe9", b"%s {0} $HOME `id`"):
        assert phrase in shown
    assert len([line for line in shown.splitlines() if b"all is well" in line and b"line" not in line]) == 0


def test_harmful_names_are_harmless_on_a_terminal(harmful: Path, tmp_path: Path) -> None:
    status, shown = on_terminal(pack_command(harmful / "in", "-o", "out", "-v"), tmp_path)
    assert status == 0
    assert "\x1b[2J" not in shown
    assert "\x1b]0;" not in shown
    assert "\x07" not in shown
    assert "[red]markup[blink]" in shown


def test_json_of_harmful_names_can_be_parsed_and_gives_the_names_back(harmful: Path, tmp_path: Path) -> None:
    for variables in LOCALES.values():
        result = run_pack(harmful / "in", "-o", "out", "--overwrite", "--json", cwd=tmp_path, env=variables)
        assert result.returncode == 0
        result.stdout.encode("ascii")
        values = json.loads(result.stdout)
        assert {os.fsencode(name) for name in values["classes"]} >= {name[:-4] for name in HARMFUL}
        listed = run_pack("ls", "out", "--json", cwd=tmp_path, env=variables)
        paths = {os.fsencode(json.loads(line)["path"]) for line in listed.stdout.splitlines()}
        assert paths >= {b"kept/" + name for name in HARMFUL}


@pytest.mark.parametrize("name", [*HARMFUL, b"-dash"], ids=repr)
def test_message_about_a_harmful_name_is_one_harmless_line(tmp_path: Path, name: bytes) -> None:
    """Such as a missing input: a line break in its name forged a second line."""
    folder = name.removesuffix(b".jpg")
    for arguments in ([b"./" + folder], [b"./in", b"-o", b"./no/" + folder + b"/x"], [b"info", b"./" + folder]):
        write_tree(tmp_path / "in", {"1.npy": npy([1])})
        result = subprocess.run(pack_command(*arguments), cwd=tmp_path, env=environment(), capture_output=True, check=False)
        assert (result.returncode, result.stdout) == (1, b"")
        assert result.stderr.count(b"\n") == 1
        assert_harmless(result.stderr)


@pytest.mark.parametrize("layout", ["loose", "splits", "numbers"])
def test_refusal_of_a_layout_with_harmful_names_is_harmless(here: Path, layout: str) -> None:
    evil = "\x1b[2Jx\nforged"
    files = {
        "loose": {f"{evil}.npy": b"", f"a{evil}/1.npy": b""},
        "splits": {"train/1.npy": b"", "test/1.npy": b""},
        "numbers": {f"1{evil}/1.npy": b""},
    }[layout]
    write_tree(here / f"in{evil}", files)
    flags = ["--labels", "number"] if layout == "numbers" else []
    result = run_pack(f"in{evil}", *flags, cwd=here)
    assert result.returncode == 1
    assert_harmless(result.stderr.encode())
    assert not [line for line in result.stderr.splitlines() if line.startswith("forged")]
    assert result.stderr.count("\n") == 1


def test_manifest_of_a_stranger_does_no_harm_on_the_terminal(capsys: pytest.CaptureFixture[str], copy: Path) -> None:
    """The name of the format and the content digest were printed as they stood there."""
    values = json.loads((copy / "manifest.json").read_bytes())
    del values["digest"]
    values |= {
        "format": "\x1b[2Jlmdb",
        "content_digest": "\x1b]0;title\x07",
        "options": {"a\x1b[1m": "\r\n"},
        "versions": {"\x1b": "\x1b"},
    }
    values["digest"] = _self_digest(values)
    (copy / "manifest.json").write_text(json.dumps(values))
    for arguments in (["info"], ["ls"], ["verify"], ["info", "--json"]):
        _, output, complaints = said(capsys, arguments[0], str(copy), *arguments[1:])
        assert_harmless((output + complaints).encode())


def test_escaped_name_is_printable_whatever_it_holds() -> None:
    every = "".join(chr(code) for code in range(0x110000))
    assert escape(every).isprintable()
    assert escape("plain Ä 日本 [red] \\") == "plain Ä 日本 [red] \\"
    assert escape("\udce9\x1b\n") == r"\xe9\x1b\n"


# Interrupts


INTERRUPTED_LATE = """
import signal, sys
from packer import commit
sync_folder, number = commit.sync_folder, getattr(signal, sys.argv.pop(1))
def interrupted(folder):
    sync_folder(folder)
    if folder.name != 'output':
        signal.raise_signal(number)
commit.sync_folder = interrupted
signal.signal(signal.SIGINT, signal.default_int_handler)
from packer.cli import main
main()
"""


@pytest.mark.parametrize("signal_name", ["SIGINT", "SIGTERM"])
def test_interrupt_after_the_rename_is_not_called_an_output_that_was_not_made(here: Path, signal_name: str) -> None:
    write_tree(here / "in", {"1.npy": npy([1])})
    result = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_LATE, signal_name, "in", "--workers", "1"],
        cwd=here, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert len(open_dataset("in.lmdb")) == 1
    assert lines(result.stderr) == [f"pack: {'interrupted' if signal_name == 'SIGINT' else 'terminated'}"]
    assert sorted(os.listdir(here)) == ["in", "in.lmdb"]


# The demo


def commands_of(output: str) -> list[str]:
    shown = output[output.index("Next:\n") :].splitlines()[1:]
    assert all(line.startswith("  ") for line in shown)
    return [line.strip() for line in shown]


@pytest.fixture
def with_pack_on_path(tmp_path: Path) -> dict[str, str]:
    """An environment in which ``pack`` and ``python`` are what the tests run."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, command in (("pack", pack_command()), ("python", [sys.executable])):
        script = " ".join(f"'{part}'" for part in command)
        (folder / name).write_text(f'#!/bin/sh\nexec {script} "$@"\n')
        (folder / name).chmod(0o755)
    return environment(PATH=f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture(scope="module")
def first_demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A folder in which ``pack demo`` was run, and what it said."""
    folder = tmp_path_factory.mktemp("demo")
    return folder, run_pack("demo", cwd=folder)


@pytest.mark.parametrize("folder", [None, "my demo", 'it\'s $HOME "quoted"'])
def test_demo_works_and_offers_commands_that_run(
    first_demo: tuple[Path, subprocess.CompletedProcess[str]], with_pack_on_path: dict[str, str], folder: str | None
) -> None:
    here, result = first_demo
    if folder is not None:
        result = run_pack("demo", folder, cwd=here)
    assert (result.returncode, result.stderr) == (0, "")
    for name in formats.names():
        assert re.search(rf"^{name} .* (\d+) of \1 byte for byte$", result.stdout, re.MULTILINE)
    for code in ("truncated", "corrupt", "empty_file", "not_an_image", "extension_mismatch", "nonfinite"):
        assert code in result.stdout
    assert "the same content in all of them: yes" in result.stdout
    *offered, last = commands_of(result.stdout)
    assert len(offered) == 4
    assert "YOUR_FOLDER" in last
    for command in offered:
        done = subprocess.run(
            ["sh", "-c", command], cwd=here, env=with_pack_on_path, capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, ""), command
        assert done.stdout, command


def test_second_demo_refuses_in_one_line(first_demo: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    here, result = first_demo
    assert result.returncode == 0
    before = {path: path.stat().st_mtime_ns for path in here.rglob("*")}
    result = run_pack("demo", cwd=here)
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = lines(result.stderr)
    assert "exists already" in line
    assert {path: path.stat().st_mtime_ns for path in here.rglob("*")} == before


@pytest.mark.parametrize("kind", ["folder", "folder with a file", "file"])
def test_demo_does_not_touch_what_exists(capsys: pytest.CaptureFixture[str], here: Path, kind: str) -> None:
    if kind == "file":
        write_tree(here, {"packer-demo": b"precious"})
    else:
        (here / "packer-demo").mkdir()
        if kind != "folder":
            write_tree(here / "packer-demo", {"precious": b"x"})
    before = sorted(here.rglob("*"))
    status, output, complaints = said(capsys, "demo")
    assert (status, output) == (1, "")
    assert len(lines(complaints)) == 1
    assert sorted(here.rglob("*")) == before


def test_demo_needs_no_torch(tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None\nfrom packer.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code, "demo"], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_links_that_leave_the_input_are_followed_where_asked(here: Path) -> None:
    write_tree(here, {"elsewhere/1.npy": npy([1]), "in/2.npy": npy([2])})
    (here / "in/1.npy").symlink_to(here / "elsewhere/1.npy")
    without = run_pack("in", "-o", "without", cwd=here)
    assert "1 unreadable" in without.stdout
    with_links = run_pack("in", "-o", "with", "--follow-links", cwd=here)
    assert (with_links.returncode, with_links.stderr) == (0, "")
    assert with_links.stdout.startswith("packed 2 of 2 files")


def test_removed_current_folder_is_one_line(here: Path) -> None:
    gone = here / "gone"
    gone.mkdir()
    code = "import os, sys; os.rmdir(os.getcwd()); from packer.cli.app import run; sys.exit(run(['info', 'x']))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=gone, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert len(lines(done.stderr)) == 1


# The terminal is gone


HANG_UP = """
import os, signal, sys
if sys.argv.pop(1) == "nohup":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
else:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
import packer.scan
scanned = packer.scan.scan
def scan(*arguments, **options):
    os.kill(os.getpid(), signal.SIGHUP)
    return scanned(*arguments, **options)
packer.scan.scan = scan
from packer.cli import main
main()
"""


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no such signal")
@pytest.mark.parametrize(("how", "status"), [("plain", 129), ("nohup", 0)])
def test_connection_that_breaks_ends_a_job_cleanly_unless_nohup_says_otherwise(here: Path, how: str, status: int) -> None:
    write_tree(here / "in", {"1.npy": npy([1])})
    result = subprocess.run(
        [sys.executable, "-c", HANG_UP, how, "in"], cwd=here, env=environment(), capture_output=True, text=True, check=False
    )
    assert result.returncode == status, result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(os.listdir(here)) == (["in"] if status else ["in", "in.lmdb"])
