"""Jobs that are killed, interrupted and terminated for real, several in a row; ``tests.kills`` does it for long."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.check_hooks import environment, lines, pack_command, run_pack
from tests.inputs import npy, pack, write_tree
from tests.kills import STAGES, Campaign, Kill, digests, make_input

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are looked up in /proc")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_input(tmp_path_factory.mktemp("kills") / "in", 90)


def test_any_number_of_kills_in_a_row_ends_in_the_output_of_an_undisturbed_run(
    source: Path, tmp_path: Path, format_name: str
) -> None:
    campaign = Campaign(tmp_path, source, format_name, random.Random(len(format_name)))
    kills = campaign.run_row(3, overwrite=False, exchanges=True)
    kills += campaign.run_row(3, overwrite=True, exchanges=format_name != "lmdb")
    assert sum(campaign.hits.values()) == kills
    assert kills >= 2


def test_kill_in_the_last_stages_is_survived(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """These are short, so a kill may come too late for its own; four in a row do not all."""
    campaign = Campaign(tmp_path, source, "lmdb", random.Random(0))
    due = list(STAGES[3:])
    monkeypatch.setattr(campaign, "_next_kill", lambda: Kill(due.pop(0), "parent", 0.0))
    while due:
        campaign.run_row(len(due), overwrite=True, exchanges=True)
    assert sum(campaign.hits[stage] for stage in STAGES[3:]) >= 2, campaign.hits


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_signal_in_the_middle_is_one_line_that_says_how_to_go_on(
    source: Path, tmp_path: Path, number: signal.Signals, format_name: str
) -> None:
    """The partial folder stays, and says by its name that it is one; the next run says that it was found."""
    undisturbed = source.with_name(format_name)
    if not undisturbed.exists():
        pack(source, format_name, output=undisturbed, workers=1)
    code = (
        "import os, signal\nfrom packer.cli import progress\nclass Ending(progress._PlainLines):\n"
        f"    def __call__(self, now):\n        if (now.stage, now.done) == ('pack', 70): os.kill(os.getpid(), {int(number)})\n"
        "progress._PlainLines = Ending\n"
    )
    command = [str(part) for part in pack_command(source, "-f", format_name, "-o", "out", "--workers", "1")]
    command[2] = code + command[2]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (128 + number, "")
    (line,) = lines(ended.stderr)
    assert line == (
        f"pack: {'interrupted' if number == signal.SIGINT else 'terminated'}. What was done so far is kept in "
        f"{tmp_path / '.out.partial'}: run the same command again to go on from there."
    )
    assert os.listdir(tmp_path) == [".out.partial"]
    again = run_pack(source, "-f", format_name, "-o", "out", "--workers", "1", cwd=tmp_path)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.startswith("unfinished output found: went on from it, ")
    assert digests(tmp_path / "out") == digests(undisturbed)
    assert os.listdir(tmp_path) == ["out"]


def test_signal_before_anything_was_found_out_leaves_nothing(tmp_path: Path, format_name: str) -> None:
    write_tree(tmp_path / "in", {"1.npy": npy([1])})
    code = "import os, signal\nfrom packer import inspection\ninspection.scan = lambda *a, **b: os.kill(os.getpid(), 15)\n"
    command = [sys.executable, *map(str, pack_command("in", "-f", format_name, "--check", "none")[1:])]
    command[2] = code + command[2]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (143, "", "pack: terminated\n")
    assert os.listdir(tmp_path) == ["in"]
