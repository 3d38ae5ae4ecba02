"""A container format is one file in ``packer/formats``, and nothing else changes when one is added."""

from __future__ import annotations

import importlib
import inspect
import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import packer
import packer.cli
from packer import formats, open_dataset
from packer.cli.app import run
from packer.manifest import load_manifest
from tests import test_format_conformance as suite
from tests.inputs import jpeg, npy, write_tree

NAME = "lengths"

# Each payload behind its length, eight bytes; labels and names are left to the index.
MODULE = '''
"""Payloads in a row, each behind its length."""

from pathlib import Path

from packer.formats._base import Estimate, Format, NativeSample
from packer.model import Extent


class _Writer:
    def __init__(self, plan):
        self._plan = plan
        self.path = Path(plan.folder, "payloads.bin")
        self._file = self.path.open("wb")
        self._extents = []

    def append(self, sample, payload):
        self._file.write(len(payload).to_bytes(8, "little"))
        self._extents.append(Extent(0, self._file.tell() if payload else 0, len(payload)))
        self._file.write(payload)

    def finish(self):
        self._file.close()
        self._plan.shard_done(self.path, self._extents)

    def close(self):
        self._file.close()


def _read_native(folder, files, header):
    with Path(folder, files[0]).open("rb") as file:
        while length := file.read(8):
            yield NativeSample(header + file.read(int.from_bytes(length, "little")))


FORMAT = Format(
    name="lengths",
    suffix=".lengths",
    has_shards=False,
    max_payload_bytes=2**63,
    versions=lambda: {"lengths": "1"},
    open_writer=_Writer,
    read_native=_read_native,
    estimate=lambda candidates: Estimate(int(candidates.sizes.sum()) + 8 * len(candidates.sizes), 1),
)
'''


@pytest.fixture
def new_format(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("formats")
    (folder / f"{NAME}.py").write_text(MODULE)
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(folder)])
    # The command line asks for the names when it is loaded, as a new process would load it now.
    loaded = importlib.import_module("packer.cli.pack")
    monkeypatch.delitem(sys.modules, "packer.cli.pack")
    yield NAME
    sys.modules.pop(f"packer.formats.{NAME}", None)
    vars(formats).pop(NAME, None)
    packer.cli.pack = loaded  # type: ignore[attr-defined]


def questions() -> list[Any]:
    """Every question of the suite, with every set of values that it is asked with."""
    found = []
    for name, function in vars(suite).items():
        if name.startswith("test_") and "format_name" in inspect.signature(function).parameters:
            sets = [mark.args for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
            for i, values in enumerate(itertools.product(*(mark[1] for mark in sets))):
                arguments = dict(zip([mark[0] for mark in sets], values, strict=True))
                found.append(pytest.param(function, arguments, id=name.removeprefix("test_") + (f"-{i}" if sets else "")))
    return found


@pytest.mark.parametrize("question, arguments", questions())
def test_a_new_format_answers_every_question_of_the_suite(
    new_format: str, tmp_path: Path, question: Callable[..., None], arguments: dict[str, Any]
) -> None:
    wanted = inspect.signature(question).parameters
    question(new_format, **({"tmp_path": tmp_path} if "tmp_path" in wanted else {}), **arguments)


def test_a_new_format_is_offered(new_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert new_format in formats.names()
    assert f"packer.formats.{new_format}" not in sys.modules  # offered without being loaded
    assert run(["--help"]) == 0
    assert "|".join(formats.names()) in capsys.readouterr().out


def test_the_command_line_packs_with_a_new_format(new_format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_tree(tmp_path / "in", {"a/1.jpg": jpeg(), "b/2.npy": npy([1.0])})
    assert run([str(source), "--format", new_format, "--workers", "1"]) == 0
    output = tmp_path / "in.lengths"
    assert "packed 2 of 2 files" in capsys.readouterr().out
    assert load_manifest(output).format == new_format
    data = open_dataset(output, output="bytes")
    assert [data[i] for i in range(2)] == [(jpeg(), 0), (npy([1.0]), 1)]
    for command in ("verify", "info", "ls"):
        assert run([command, str(output)]) == 0
    assert new_format in capsys.readouterr().out


def test_the_demo_shows_a_new_format(new_format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", str(tmp_path / "demo")]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(new_format)]
    assert line.endswith("byte for byte")


def test_a_format_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert NAME not in formats.names()  # the other tests put it away again
    assert run([str(tmp_path), "--format", NAME]) == 2
    said = capsys.readouterr().err
    assert [name for name in formats.names() if name not in said] == []
    assert list(tmp_path.iterdir()) == []


def test_asking_for_one_format_loads_no_other() -> None:
    for name in formats.names():
        others = [other for other in formats.names() if other != name]
        code = (
            f"import sys; from packer import formats; formats.get({name!r})\n"
            f"sys.exit(any(f'packer.formats.{{other}}' in sys.modules for other in {others!r}))"
        )
        assert subprocess.run([sys.executable, "-c", code], cwd=Path(packer.__file__).parents[1], check=False).returncode == 0
