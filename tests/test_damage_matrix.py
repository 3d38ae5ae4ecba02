"""Every kind of damage in every region of every file of an output: the package's own error, or a finding, and never other data.

Hundreds of damaged datasets are judged in processes of their own (``tests/damage_matrix.py``), since what is to be ruled out
includes signals and hangs.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer import formats
from packer.plan import ShardLimits
from tests.damage_kinds import KINDS, Damage, damages, regions
from tests.damage_liars import LIARS
from tests.damage_matrix import CLOSED, REPLACED, WRITTEN
from tests.inputs import jpeg, npy, pack_here, photo, write_tree

pytestmark = pytest.mark.timeout(300)  # a hang is a failure

AT_LEAST = 500
A_PROCESS = 100
SECONDS = 100  # for one process, which takes about 4 s


@dataclass(frozen=True)
class Sound:
    """A sound dataset, the folder it was packed from, and a place for a copy that is damaged."""

    source: Path
    output: Path
    work: Path


def mixed() -> dict[str | bytes, bytes]:
    """Pictures of one size, and arrays of two shapes: small ones, which LMDB keeps inside its pages, and large ones."""
    files: dict[str | bytes, bytes] = {}
    for i in range(4):
        files[f"cat/{i}.jpg"] = jpeg(photo(56, 48, seed=i))
        files[f"{'cat' if i % 2 else 'dog'}/a{i}.npy"] = npy(np.arange(580, dtype=np.int16) + 1_000 * i)
        files[f"dog/b{i}.npy"] = npy(np.random.default_rng(i).random((25, 25)))
    return files


def uniform() -> dict[str | bytes, bytes]:
    """Arrays with one header, which HDF5 keeps once, in the manifest."""
    return {
        f"{'ab'[i % 2]}/{i:02d}.npy": npy(np.random.default_rng(i).integers(0, 2**16, (40, 50), np.uint16)) for i in range(12)
    }


CONTENTS = {"mixed": mixed, "uniform": uniform}


@pytest.fixture(scope="module")
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sound:
    """The dataset of a format and contents, which the parameter names."""
    format_name, contents = request.param
    root = tmp_path_factory.mktemp(f"{format_name}-{contents}")
    limits: dict[str, Any] = {"limits": ShardLimits(samples=4)} if formats.get(format_name).has_shards else {}
    output = pack_here(write_tree(root / "in", CONTENTS[contents]()), format_name, skip=("duplicate_content",), **limits).output
    (root / "work").mkdir()
    for path in output.iterdir():
        shutil.copyfile(path, root / "work" / path.name)
    return Sound(root / "in", output, root / "work")


def each(*contents: str) -> pytest.MarkDecorator:
    """A test that runs for each format, with these contents."""
    pairs = [(format_name, name) for format_name in formats.names() for name in contents]
    return pytest.mark.parametrize("sound", pairs, indirect=True, ids=["-".join(pair) for pair in pairs])


@cache
def chosen(sound: Sound) -> list[Damage]:
    return damages(sound.output, AT_LEAST)


def judge(sound: Sound, wanted: list[Damage], way: str = CLOSED, liar: str = "") -> list[str]:
    """What gave each damage away, or what is wrong; a process that dies is wrong about the damage that it was at."""
    found: list[str] = []
    while len(found) < len(wanted):
        part = wanted[len(found) : len(found) + A_PROCESS]
        asked = {
            "sound": str(sound.output),
            "input": str(sound.source),
            "work": str(sound.work),
            "damages": [dataclasses.astuple(damage) for damage in part],
            "way": way,
            "liar": liar,
        }
        # Without torch, which takes seconds to load; nothing here needs it.
        code = "import sys; sys.modules['torch'] = None; from tests.damage_matrix import main; main()"
        command = [sys.executable, "-W", "error", "-c", code]
        root = Path(__file__).parents[1]
        result = subprocess.run(
            command, input=json.dumps(asked), capture_output=True, text=True, timeout=SECONDS, check=False, cwd=root
        )
        lines = result.stdout.splitlines()
        found += lines
        if result.returncode < 0:
            found.append(f"wrong: ended by {signal.Signals(-result.returncode).name}")
            restore(sound)
        elif result.returncode or len(lines) != len(part) or result.stderr:
            found.append(f"wrong: exit status {result.returncode} after {len(lines)} of {len(part)}: {result.stderr[-2000:]}")
            break
    return found


def restore(sound: Sound) -> None:
    for path in sound.output.iterdir():
        shutil.copyfile(path, sound.work / path.name)


def complaints(wanted: list[Damage], found: list[str]) -> list[str]:
    return [f"{damage}: {outcome}" for damage, outcome in zip(wanted, found, strict=False) if outcome.startswith("wrong")]


# ---------------------------------------------------------------------------------------------------------------- the matrix


@each("mixed")
def test_damage_is_an_error_at_open_or_at_its_samples_or_a_finding(sound: Sound) -> None:
    wanted = chosen(sound)
    assert len(wanted) >= AT_LEAST
    require_told(sound, wanted)


@pytest.mark.parametrize("sound", [("hdf5", "uniform")], indirect=True, ids=["hdf5-uniform"])
def test_damage_where_one_header_is_kept_for_all_arrays_is_told_in_the_same_way(sound: Sound, long_run: bool) -> None:
    require_told(sound, some(chosen(sound), 3, long_run))


def require_told(sound: Sound, wanted: list[Damage]) -> None:
    found = judge(sound, wanted)
    assert "\n".join(complaints(wanted, found)) == ""
    assert len(found) == len(wanted)
    assert set(found) == {"open", "sample", "verify"}
    assert found.count("sample") >= len(wanted) // 10


def some(wanted: list[Damage], step: int, long_run: bool) -> list[Damage]:
    """All of them in a long run, and otherwise one of so many."""
    return wanted if long_run else wanted[::step]


def touches_the_index(damage: Damage) -> bool:
    return not {"index.npy", "names.bin"}.isdisjoint({damage.file, damage.other})


@each("mixed")
def test_damage_to_the_containers_of_an_open_dataset_gives_the_right_data_or_an_error(sound: Sound, long_run: bool) -> None:
    wanted = some([damage for damage in chosen(sound) if not touches_the_index(damage)], 9, long_run)
    found = judge(sound, wanted, WRITTEN)
    assert "\n".join(complaints(wanted, found)) == ""
    assert set(found) == {"right", "error"}


@each("mixed")
def test_damage_to_the_index_of_an_open_dataset_gives_the_right_data_or_an_error(sound: Sound, long_run: bool) -> None:
    wanted = some([damage for damage in chosen(sound) if touches_the_index(damage)], 7, long_run)
    found = judge(sound, wanted, WRITTEN)
    assert "\n".join(complaints(wanted, found)) == ""


@each("mixed")
def test_files_replaced_or_removed_under_an_open_dataset_give_the_right_data_or_an_error(sound: Sound, long_run: bool) -> None:
    wanted = some(chosen(sound), 11, long_run)
    found = judge(sound, wanted, REPLACED)
    assert "\n".join(complaints(wanted, found)) == ""
    assert set(found) == {"right", "error"}


@each("mixed")
def test_only_a_mapped_file_that_is_cut_while_it_is_mapped_may_end_the_process(sound: Sound) -> None:
    """By a bus error, which is documented as the price of ``mmap=True``; the same cut without it is an exception."""
    script = """
        import os, sys
        sys.modules["torch"] = None
        from packer import DatasetError, open_dataset
        data = open_dataset(sys.argv[1], output="bytes", mmap=sys.argv[2] == "True")
        assert len(data[0][0]) and len(data[11][0])
        for name in sys.argv[3:]:
            os.truncate(os.path.join(sys.argv[1], name), 0)
        for i in range(12):
            try:
                data[i]
            except DatasetError:
                continue
            print("no error at", i)
    """
    containers = [path.name for path in sound.work.iterdir() if path.suffix in (".mdb", ".h5", ".tar")]
    statuses = {}
    for mmap in (False, True):
        command = [sys.executable, "-c", textwrap.dedent(script), str(sound.work), str(mmap), *containers]
        result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert (result.stdout, result.stderr) == ("", "")
        statuses[mmap] = result.returncode
        restore(sound)
    assert statuses[False] == 0
    assert statuses[True] in (0, -signal.SIGBUS)


# ------------------------------------------------------------------------------------------------------ what is struck, and how


@each("mixed")
def test_every_kind_of_damage_strikes_every_file(sound: Sound) -> None:
    wanted = chosen(sound)
    names = {path.name for path in sound.output.iterdir() if path.stat().st_size}
    for kind in KINDS:
        struck = {damage.file for damage in wanted if damage.kind == kind}
        struck |= {str(damage.other) for damage in wanted if damage.kind == kind == "exchange files"}
        assert struck >= names, kind


STRUCTURE = {
    "lmdb": {"meta page", "branch page", "leaf page", "overflow page", "overflow page header", "meta databases"},
    "hdf5": {"superblock", "object header of data", "data", "offset", "label", "name", "classes", "between"},
    "webdataset": {"header size", "header checksum", "payload", "padding", ".cls", ".json", "end blocks"},
}
"""Regions that the containers of the matrix must have."""


@each("mixed")
def test_the_containers_that_are_damaged_have_all_that_their_formats_have(sound: Sound) -> None:
    format_name = sound.output.suffix[1:]
    names = {region.name.removeprefix(f"{format_name} ").removeprefix("tar ") for region in regions(sound.output)}
    assert names >= STRUCTURE.get(format_name, set())
    assert {"index label", "index offset", "manifest shards", "manifest digest"} <= names


@each("mixed")
def test_the_regions_leave_out_no_byte(sound: Sound) -> None:
    for path in sound.output.iterdir():
        covered = bytearray(path.stat().st_size)
        for region in regions(sound.output):
            if region.file == path.name:
                for start, end in region.ranges:
                    covered[start:end] = b"x" * (end - start)
        assert len(covered) == path.stat().st_size
        assert covered.count(0) == 0, path.name


@pytest.mark.parametrize("sharded", [name for name in formats.names() if formats.get(name).has_shards])
def test_shards_of_one_size_in_each_others_place_are_among_the_damages(sharded: str, tmp_path: Path) -> None:
    """Nothing but digests tells them apart."""
    output = pack_here(write_tree(tmp_path / "in", uniform()), sharded, limits=ShardLimits(samples=4)).output
    sizes = {path.name: path.stat().st_size for path in output.glob("shard-*")}
    assert len(sizes) == 3
    exchanged = [damage for damage in damages(output, AT_LEAST) if damage.kind == "exchange files"]
    assert any(sizes.get(damage.file, 0) == sizes.get(str(damage.other), 1) for damage in exchanged)


# ------------------------------------------------------------------------------------------------------------ the judge itself


WHAT_THE_JUDGE_SAYS = {
    "other bytes": "other data at sample",
    "other bytes in a list": "other data in a list",
    "other bytes in a batch": "other data in a batch",
    "other bytes in a view": "other data in a view",
    "another label": "other data at sample",
    "the sample before": "other data at sample",
    "no error": "no error at the damaged samples",
    "a foreign exception": "KeyError",
    "an error at another sample": "an error at a sample that is sound",
    "a bus error": "ended by SIGBUS",
    "a hang": "ended by SIGALRM",
    "silent verify": "nothing that verifying finds",
}


@pytest.mark.parametrize("sound", [(formats.names()[0], "uniform")], indirect=True, ids=["one format"])
@pytest.mark.parametrize("liar", ["", *LIARS])
def test_the_judge_sees_what_a_broken_reader_does(sound: Sound, liar: str) -> None:
    name = next(path.name for path in sorted(sound.output.iterdir()) if path.suffix in (".mdb", ".h5", ".tar"))
    index = np.load(sound.output / "index.npy")
    damage = Damage("flip bytes", "payload", name, int(index["data"]["offset"][1]) + 100, 8)
    (outcome,) = judge(sound, [damage], liar=liar)
    if liar:
        assert outcome.startswith("wrong: ")
        assert WHAT_THE_JUDGE_SAYS[liar] in outcome
    else:
        assert outcome == "sample"
