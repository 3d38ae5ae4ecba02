"""Everything that a reader of the README can run is run here, and prints what the README says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.readme_images import make_images

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
CONSOLE = [text for kind, text in BLOCKS if kind == "console"]
PYTHON = [text for kind, text in BLOCKS if kind == "python"]
PLAIN = [text for kind, text in BLOCKS if not kind]
PACK = [sys.executable, "-c", "from packer.cli import main; main()"]


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)


def masked(text: str) -> str:
    """Sizes depend on the version of the JPEG encoder, times on the machine, and digests on the sizes."""
    text = re.sub(r"[\d.]+ (bytes|kB|MB|GB|TB|s)\b", r"# \1", text)
    return re.sub(r"\b[0-9a-f]{32}\b", "DIGEST", text)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    make_images(tmp_path / "images")
    return tmp_path


def test_every_command_shows_real_output(images: Path) -> None:
    shown = [block for text in CONSOLE for block in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]]
    assert len(shown) == 9
    for block in shown:
        command, _, expected = block.partition("\n")
        words = command.split()
        assert words[0] == "pack"
        done = run([*PACK, *words[1:]], images)
        assert done.returncode == 0, done.stderr
        assert masked(done.stdout) == masked(expected)
        # What takes more than a second and a half, on a busy machine, says how far it is.
        assert re.sub(r"(?m)^[a-z ]+: [\d,]+ (of|files).*\n", "", done.stderr) == ""


@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_every_python_example_runs_without_a_warning(images: Path, number: int) -> None:
    assert run([*PACK, "images"], images).returncode == 0
    script = images / "example.py"
    script.write_text(PYTHON[number], encoding="utf-8")
    # webdataset itself leaves the shards it reads to the garbage collector.
    done = run([sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", str(script)], images)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_the_two_commands_of_the_readme_are_those_that_are_tested() -> None:
    """``pack demo`` is run by the tests of the command line, and the test command by ``.ci/run``."""
    assert [text.strip() for text in PLAIN] == ["pip install . && pack demo", "pip install '.[test]' && pytest"]
    assert PLAIN[1].strip() in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_every_code_is_explained() -> None:
    from packer.model import SKIP_CODES, WARNING_CODES

    assert not [code for code in (*SKIP_CODES, *WARNING_CODES) if f"`{code}`" not in README]
