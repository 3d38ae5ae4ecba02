"""A packed dataset from a stranger: refused with packer's own error, in bounded time and memory.

Each dataset is read by the library and by commands, in processes that may have 1.5 GB and 20 s (``tests/hostile.py``).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import packer.manifest
from packer import formats
from packer.errors import OutputError
from packer.plan import ShardLimits
from tests.hostile import WAYS
from tests.hostile_cases import (
    ALL,
    AT_A_SAMPLE,
    AT_OPEN,
    AT_THE_FIRST_READ,
    FILES,
    LARGE,
    MORE_THAN_MEMORY,
    NO_FOLDER,
    SOUND_BYTES,
    Case,
)
from tests.inputs import npy, pack_here, write_tree
from tests.test_damage import copy_of

pytestmark = pytest.mark.timeout(300)

GROWTH_BYTES = 200_000_000

Ends = dict[tuple[str, str], dict[str, Any]]

OTHERS = {case: make for case, make in ALL.items() if case not in AT_A_SAMPLE}


def read_each(root: Path, format_name: str, cases: dict[str, Case]) -> Ends:
    """How each way of reading each hostile dataset ended, by case and way."""
    limits: dict[str, Any] = {"limits": ShardLimits(samples=3)} if formats.get(format_name).has_shards else {}
    pack_here(write_tree(root / "in", FILES), format_name, **limits).output.rename(root / "sound")
    for name, make in cases.items():
        make(copy_of(root / "sound", root / name))
    asked = {"sound": str(root / "sound"), "link": str(root / "link"), "cases": [str(root / name) for name in cases]}
    # Without torch, which takes seconds to load; nothing here needs it.
    code = "import sys; sys.modules['torch'] = None; from tests.hostile import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    assert (result.returncode, result.stderr) == (0, "")
    answers = map(json.loads, result.stdout.splitlines())
    return {(answer["case"], answer["way"]): answer for answer in answers}


@pytest.fixture(scope="module", params=formats.names())
def ends(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ends:
    """What is wrong with samples, for each format."""
    return read_each(tmp_path_factory.mktemp(request.param), request.param, {case: ALL[case] for case in AT_A_SAMPLE})


@pytest.fixture(scope="module")
def other_ends(tmp_path_factory: pytest.TempPathFactory) -> Ends:
    """What is wrong with manifest, index, names and the folder is the same in all formats: for one."""
    return read_each(tmp_path_factory.mktemp("others"), formats.names()[-1], OTHERS)


@pytest.fixture(scope="module")
def large_ends(tmp_path_factory: pytest.TempPathFactory) -> Ends:
    """For one format."""
    return read_each(tmp_path_factory.mktemp("large"), formats.names()[0], LARGE)


LIBRARY = ("read", "mapped", "unpickled")
COMMANDS = ("info", "info --json", "ls", "verify")


@pytest.mark.parametrize("case", AT_OPEN)
def test_it_is_refused_when_it_is_opened(other_ends: Ends, case: str) -> None:
    assert {way: other_ends[case, way]["end"] for way in LIBRARY} == dict.fromkeys(LIBRARY, "refused")
    assert {way: other_ends[case, way]["end"] for way in COMMANDS} == dict.fromkeys(COMMANDS, "status 1")


@pytest.mark.parametrize("case", AT_THE_FIRST_READ)
def test_it_is_refused_when_it_is_first_read(other_ends: Ends, case: str) -> None:
    everything = ", ".join(map(str, range(len(FILES))))
    assert other_ends[case, "read"]["end"] == other_ends[case, "mapped"]["end"] == f"refused: {everything}"
    assert other_ends[case, "unpickled"]["end"] == "refused"
    assert {way: other_ends[case, way]["end"] for way in COMMANDS} == dict.fromkeys(COMMANDS, "status 1")


@pytest.mark.parametrize("case", NO_FOLDER)
def test_its_classes_are_refused_where_folders_are_to_be_called_so(other_ends: Ends, case: str) -> None:
    assert other_ends[case, "classes-from"]["end"] == "refused"
    assert other_ends[case, "read"]["end"] == other_ends[case, "mapped"]["end"] == "read"
    assert [other_ends[case, way]["end"] for way in COMMANDS] == ["status 0", "status 0", "status 0", "status 1"]


@pytest.mark.parametrize("case", AT_A_SAMPLE)
def test_it_is_refused_at_the_sample_that_makes_no_sense(ends: Ends, case: str) -> None:
    sample = str(AT_A_SAMPLE[case][0])
    for way in ("read", "mapped"):
        end = ends[case, way]["end"]
        assert sample in end.removeprefix("refused: ").split(", "), end
    assert ends[case, "unpickled"]["end"] == "refused"
    if case not in MORE_THAN_MEMORY:
        assert ends[case, "verify"]["end"] == ("status 0" if case in SOUND_BYTES else "status 1")
    for way in ("info", "info --json", "ls"):
        assert ends[case, way]["end"] in ("status 0", "status 1")


def test_verifying_finds_a_sample_that_is_more_than_the_memory(ends: Ends) -> None:
    assert ends["a sample of two gigabytes", "verify"]["end"] == "status 1"


@pytest.mark.parametrize("case", LARGE)
def test_what_is_too_large_is_refused_when_it_is_opened(large_ends: Ends, case: str) -> None:
    assert {way: large_ends[case, way]["end"] for way in LIBRARY} == dict.fromkeys(LIBRARY, "refused")
    assert {way: large_ends[case, way]["end"] for way in COMMANDS} == dict.fromkeys(COMMANDS, "status 1")
    growth = {way: large_ends[case, way]["growth"] for way in WAYS}
    assert max(growth.values()) < GROWTH_BYTES, growth


def test_more_values_than_are_read_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset that its own reader refuses must not come into being."""
    monkeypatch.setattr(packer.manifest, "_MAX_VALUES", 100)
    root = write_tree(tmp_path / "in", {f"{i:02d}/1.npy": npy([i]) for i in range(90)})
    with pytest.raises(OutputError, match="90 classes and 1 shards are more than a manifest holds"):
        pack_here(root)
    assert not (tmp_path / "in.lmdb").exists()


@pytest.mark.parametrize("case", AT_A_SAMPLE)
def test_a_sample_is_refused_in_bounded_memory_and_time(ends: Ends, case: str) -> None:
    require_bounded(ends, case)


@pytest.mark.parametrize("case", OTHERS)
def test_a_dataset_is_refused_in_bounded_memory_and_time(other_ends: Ends, case: str) -> None:
    require_bounded(other_ends, case)


def require_bounded(ends: Ends, case: str) -> None:
    for way in WAYS:
        if way == "verify" and case in MORE_THAN_MEMORY:
            continue
        assert not ends[case, way]["end"].startswith("wrong"), (way, ends[case, way])
        assert ends[case, way]["growth"] < GROWTH_BYTES, (way, ends[case, way])
