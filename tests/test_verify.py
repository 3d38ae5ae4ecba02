"""Verifying at three levels: by our own reader, through the container's own library, by decoding."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest

import packer.children
import packer.native
import packer.verify
from packer import OptionError, formats, verify_dataset
from packer.cli.app import run
from packer.model import TYPES_BY_NAME
from packer.plan import ShardLimits
from packer.verify import VERIFY_LEVELS, Finding
from tests.check_hooks import environment, pack_command
from tests.forgery import forge
from tests.inputs import jpeg, npy, pack, photo, png, write_tree
from tests.test_checkers import is_running, wait_until
from tests.test_cli import on_terminal, said
from tests.test_damage import copy_of, damaged_in_place

pytestmark = pytest.mark.timeout(120)

FILES: dict[str | bytes, bytes] = {
    "cat/1.jpg": jpeg(seed=1),
    "cat/2.png": png(photo(20, 16, seed=2)),
    b"dog/3 h\xe9 %41.jpg": jpeg(photo(400, 300, seed=3), quality=98),  # in overflow pages of LMDB
    "dog/4.npy": npy(np.arange(7)),
    "dog/5.jpg": jpeg(seed=5),
}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A sound dataset in each format, in several shards where it has any."""
    root = tmp_path_factory.mktemp("verify")
    write_tree(root / "in", FILES)
    return {
        name: pack(
            root / "in", name, workers=1, **({"limits": ShardLimits(samples=2)} if formats.get(name).has_shards else {})
        ).output
        for name in formats.names()
    }


@pytest.fixture
def work(packed: dict[str, Path], format_name: str, tmp_path: Path) -> Path:
    """A copy of the one in the format asked for."""
    return copy_of(packed[format_name], tmp_path / "work")


def findings(path: Path, level: str) -> list[Finding]:
    return list(verify_dataset(path, level=level))


# What each level finds


@pytest.mark.parametrize("level", ["digest", "decode"])
def test_every_level_is_silent_about_a_sound_dataset_and_tells_how_far_it_is(
    packed: dict[str, Path], format_name: str, level: str
) -> None:
    told: list[tuple[int, int]] = []
    assert list(verify_dataset(packed[format_name], lambda done, total: told.append((done, total)), level=level)) == []
    total = len(FILES) * (1 + VERIFY_LEVELS.index(level))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert {of for _, of in told} == {total}
    assert told[-1] == (total, total)


def test_arrays_in_one_array_dataset_and_without_labels_are_sound(tmp_path: Path) -> None:
    """Their common header is in the manifest alone; a bool, a scalar and an empty array have each their own way in h5py."""
    for number, array in enumerate([np.array(True), np.zeros((0, 3)), np.arange(6.0).reshape(2, 3)]):
        source = write_tree(tmp_path / f"{number}", {f"{i}.npy": npy(array) for i in range(3)})
        assert findings(pack(source, "hdf5", check="none").output, "native") == []


def test_native_finds_two_samples_whose_places_were_exchanged(work: Path) -> None:
    """All digests are right, and the reader gives each name the other's bytes."""

    def exchange(records: Any) -> None:
        records["data"][[0, 1]] = records["data"][[1, 0]]

    forge(work, change=exchange)
    assert findings(work, "digest") == []
    assert [finding.index for finding in findings(work, "native")] == [0, 1]


def test_native_finds_a_label_that_is_another_in_the_container(work: Path, format_name: str) -> None:
    forge(work, change=lambda records: records["label"].__setitem__(1, 1))
    assert findings(work, "digest") == []
    found = findings(work, "native")
    if format_name == "lmdb":  # holds none
        assert found == []
    else:
        (finding,) = found
        assert (finding.index, finding.name) == (1, "cat/2.png")
        assert "its label is 0, the index says 1" in finding.problem


def test_native_finds_a_name_that_is_another_in_the_container(work: Path, format_name: str) -> None:
    names = [os.fsencode(name) for name in FILES]
    forge(work, names=[names[0], b"cat/x.png", *names[2:3], *names[3:]])
    assert findings(work, "digest") == []
    found = findings(work, "native")
    if format_name == "lmdb":
        assert found == []
    else:
        (finding,) = found
        assert (finding.index, finding.name) == (1, "cat/x.png")
        assert "its name is 'cat/2.png'" in finding.problem


def test_native_finds_a_foreign_entry_in_an_lmdb(packed: dict[str, Path], tmp_path: Path) -> None:
    work = copy_of(packed["lmdb"], tmp_path / "work")
    with lmdb.open(str(work), map_size=1 << 30, lock=False) as environment_, environment_.begin(write=True) as transaction:
        transaction.put(b"999999999.jpg", b"foreign")
    forge(work)
    assert findings(work, "digest") == []
    (finding,) = findings(work, "native")
    assert (finding.file, finding.index) == ("data.mdb", None)
    assert "more samples than the 5" in finding.problem


def test_native_finds_samples_that_the_container_has_no_longer(work: Path, format_name: str) -> None:
    """The index points at the last sample's bytes, which are there; the library sees what the container's own tables say."""
    if format_name == "lmdb":
        with lmdb.open(str(work), map_size=1 << 30, lock=False) as environment_, environment_.begin(write=True) as transaction:
            transaction.delete(b"000000004.jpg")
    elif format_name == "hdf5":
        with h5py.File(work / "data.h5", "r+") as file:
            names = file["name"][:4]
            del file["name"]
            file["name"] = names
    else:
        shard = sorted(work.glob("*.tar"))[-1]
        shard.write_bytes(bytes(512) + shard.read_bytes()[512:])  # tar takes a header of zeros for the end
    forge(work)
    (finding,) = findings(work, "native")
    assert finding.index is None
    assert "only 4 of 5 samples" in finding.problem


def test_decode_finds_the_sample_that_cannot_be_decoded(tmp_path: Path) -> None:
    files = {**FILES, "cat/cut.jpg": b"\xff\xd8\xff\xe0" + bytes(50), "dog/cut.png": png()[:300]}
    output = pack(write_tree(tmp_path / "in", files), "lmdb", check="none", workers=1).output
    forge(output, change=lambda records: records["data"]["type"].__setitem__(1, TYPES_BY_NAME["npy"].code))
    assert findings(output, "native") == []
    found = findings(output, "decode")
    assert [finding.name for finding in found] == ["cat/2.png", "cat/cut.jpg", "dog/cut.png"]
    assert all(finding.problem.startswith("cannot be decoded: ") for finding in found)
    assert [finding.index for finding in found] == [1, 2, 6]


def test_a_damaged_sample_is_named_once(packed: dict[str, Path], tmp_path: Path) -> None:
    work = copy_of(packed["hdf5"], tmp_path / "work")
    record = np.load(work / "index.npy")["data"][1]
    shard = json.loads((work / "manifest.json").read_bytes())["shards"][record["shard"]]["file"]
    damaged_in_place(work / shard, int(record["offset"]) + 30, b"XX")
    assert [(finding.file, finding.name) for finding in findings(work, "decode")] == [
        ("data.h5", "cat/2.png"),
        ("data.h5", None),
    ]


def test_a_cut_container_is_named_with_the_samples_that_are_gone_also_at_level_native(work: Path) -> None:
    shard = json.loads((work / "manifest.json").read_bytes())["shards"][-1]["file"]
    os.truncate(work / shard, 100)
    found = findings(work, "native")
    assert found[0].file == shard
    assert found[-1].name == "dog/5.jpg"


def test_a_format_that_nobody_knows_is_a_finding(work: Path) -> None:
    content = json.loads((work / "manifest.json").read_bytes())
    (work / "manifest.json").write_text(json.dumps({**content, "format": "os"}))
    forge(work)
    (finding,) = findings(work, "native")
    assert "no format 'os'" in finding.problem


def test_a_level_that_does_not_exist_is_refused(packed: dict[str, Path]) -> None:
    with pytest.raises(OptionError, match="there are digest, native, decode"):
        findings(packed["lmdb"], "full")


# Crashes and hangs


def test_a_crafted_lmdb_that_crashes_its_library_is_a_finding_that_names_signal_and_place(
    packed: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The node of sample 2 says that its value has 2 GB; liblmdb gives that out, and Python copies it."""
    work = copy_of(packed["lmdb"], tmp_path / "work")
    content = bytearray((work / "data.mdb").read_bytes())
    key = b"000000002.jpg"
    size = len(list(FILES.values())[2])
    node = struct.pack("<HHHH", size & 0xFFFF, size >> 16, 1, len(key)) + key  # low and high half of the size; 1 is "overflow"
    assert content.count(node) >= 1
    content = content.replace(node, struct.pack("<HHHH", 0xFFFF, 0x7FFF, 1, len(key)) + key)
    (work / "data.mdb").write_bytes(content)
    forge(work)
    assert findings(work, "digest") == []
    status, output, _ = said(capsys, "verify", str(work), "--level", "native")
    assert status == 1
    assert "behind sample 1; 3 of 5 samples were not reached" in output
    assert "SIGSEGV" in output or "SIGBUS" in output


def child_that(monkeypatch: pytest.MonkeyPatch, deed: str) -> None:
    """Have the processes that read do something first: ``deed`` is Python code."""
    boot = packer.children._BOOT
    monkeypatch.setattr(packer.children, "_BOOT", f"import os, sys, time; {boot.partition('; ')[0]}\n{deed}\n{boot}")


AFTER_ONE = """
sys.path[:] = json.loads(sys.argv[1])
import packer.formats
found = packer.formats.get('lmdb')
def read(*arguments):
    yield next(found.read_native(*arguments))
    {deed}
class Fake: read_native = staticmethod(read)
packer.formats.get = lambda name: Fake
"""


def test_a_library_that_hangs_is_ended_and_is_a_finding(packed: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    child_that(monkeypatch, AFTER_ONE.format(deed="time.sleep(600)"))
    monkeypatch.setattr(packer.native, "_SILENCE_S", 1.5)
    (finding,) = findings(packed["lmdb"], "native")
    assert "read nothing for 1.5 s behind sample 0; 4 of 5 samples were not reached" in finding.problem


@pytest.mark.parametrize("line", [b"7", b'[3, "x"]', b'"end"', b"[" * 60_000], ids=lambda line: str(line[:8]))
def test_a_process_that_a_file_has_taken_over_is_not_believed(
    packed: dict[str, Path], monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    """It writes into the pipe itself; the pipe is what ``os.dup`` gave."""
    keep = "dup = os.dup\ndef kept(number):\n    global pipe\n    pipe = dup(number)\n    return pipe\nos.dup = kept"
    deed = f"os.write(pipe, {line!r} + bytes([10])); os._exit(0)"
    child_that(monkeypatch, keep + AFTER_ONE.format(deed=deed))
    (finding,) = findings(packed["lmdb"], "native")
    assert "4 of 5 samples were not reached" in finding.problem


def test_an_error_of_the_library_is_a_finding(packed: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    child_that(monkeypatch, AFTER_ONE.format(deed="raise SystemError('broken ' + 5000 * 'x')"))
    (finding,) = findings(packed["lmdb"], "native")
    assert "lmdb cannot read on: SystemError: broken" in finding.problem
    assert len(finding.problem) <= 500


def test_a_decoder_that_crashes_costs_its_sample(packed: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    deed = (
        "sys.path[:] = json.loads(sys.argv[1])\nimport packer.decodable as found\ndecode = found.decode_sample\n"
        "def crash(path, *rest):\n    if path.endswith(b'/4'): os.kill(os.getpid(), 11)\n    return decode(path, *rest)\n"
        "found.decode_sample = crash"
    )
    child_that(monkeypatch, deed)
    (finding,) = findings(packed["lmdb"], "decode")
    assert (finding.index, finding.name) == (4, "dog/5.jpg")
    assert "SIGSEGV" in finding.problem


STOPPED_IN_THE_MIDDLE = """
import sys, packer.children
packer.children._BOOT = {boot!r}
from packer.cli import main
main()
"""


def test_the_process_that_reads_ends_when_pack_is_killed(
    packed: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while a library hangs and keeps Python's lock, so that no other thread of the process runs."""
    told = tmp_path / "told"
    deed = f"open({str(told)!r}, 'w').write(f'{{os.getpid()}} '); import ctypes; ctypes.PyDLL(None).sleep(600)"
    child_that(monkeypatch, AFTER_ONE.format(deed=deed))
    code = STOPPED_IN_THE_MIDDLE.format(boot=packer.children._BOOT)
    job = subprocess.Popen([sys.executable, "-c", code, "verify", "--level", "native", packed["lmdb"]], env=environment())
    assert wait_until(lambda: told.exists() and told.read_text().endswith(" "))
    child = int(told.read_text())
    assert is_running(child)
    job.kill()
    job.wait()
    ended = wait_until(lambda: not is_running(child), 5)
    if not ended:
        os.kill(child, signal.SIGKILL)
    assert ended


def test_verifying_that_is_given_up_ends_the_process_that_reads(
    packed: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def remember(*arguments: Any, **options: Any) -> Any:
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", remember)
    child_that(monkeypatch, AFTER_ONE.format(deed="raise KeyError('x')"))
    found = verify_dataset(packed["lmdb"], level="native")
    next(found)
    found.close()  # type: ignore[attr-defined]  # a generator
    assert started[0].poll() is not None


def test_decoding_loads_neither_torch_nor_a_container_library(packed: dict[str, Path]) -> None:
    code = (
        "import os, sys; from packer.check import CheckSettings; from packer.decodable import decode_sample\n"
        "samples = [os.fsencode(sys.argv[1]) + b'/%d' % i for i in range(5)]\n"
        "print([type(decode_sample(sample, CheckSettings())).__name__ for sample in samples])\n"
        "print([name for name in ('torch', 'lmdb', 'h5py', 'webdataset') if sys.modules.get(name)])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, packed["lmdb"]], env=environment(), capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines() == [str(["Kept"] * len(FILES)), "[]"]


# The command


def test_json_of_a_sound_dataset(packed: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    status, output, _ = said(capsys, "verify", str(packed["lmdb"]), "--level", "native", "--json")
    assert status == 0
    assert json.loads(output) == {
        "dataset": str(packed["lmdb"]), "level": "native", "findings": [], "samples": len(FILES), "sound": True,
    }  # fmt: skip


def lying(*found: Finding, check: Any = lambda: None) -> Any:
    def fake(*_: object, **__: object) -> Iterator[Finding]:
        for finding in found:
            yield finding
            check()

    return fake


MANY = (Finding("data.mdb", "one", 1, "a/\x1b.jpg"), Finding("report.jsonl", "two"))


def test_json_of_findings_is_one_object(
    packed: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packer.verify, "verify_dataset", lying(*MANY))
    status, output, _ = said(capsys, "verify", str(packed["lmdb"]), "--json")
    assert status == 1
    assert json.loads(output)["findings"] == [
        {"index": 1, "name": "a/\x1b.jpg", "path": "data.mdb", "problem": "one"},
        {"index": None, "name": None, "path": "report.jsonl", "problem": "two"},
    ]
    assert json.loads(output)["sound"] is False


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_each_finding_is_shown_when_it_is_found(
    packed: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    shown: list[int] = []
    monkeypatch.setattr(
        packer.verify, "verify_dataset", lying(*MANY, check=lambda: shown.append(capsys.readouterr().out.count("\n")))
    )
    assert run(["verify", str(packed["lmdb"]), *options]) == 1
    assert all(count >= 1 for count in shown)
    assert len(shown) == 2


def test_findings_go_where_standard_output_goes_also_while_a_terminal_shows_progress(
    packed: dict[str, Path], tmp_path: Path
) -> None:
    work = copy_of(packed["lmdb"], tmp_path / "work")
    (work / "foreign").write_bytes(b"")
    status, shown = on_terminal(pack_command("verify", work), tmp_path, output=tmp_path / "found")
    assert status == 1
    assert (tmp_path / "found").read_text().startswith("foreign: does not belong to the dataset\n1 finding.")
    assert "foreign" not in shown
    status, shown = on_terminal(pack_command("verify", work), tmp_path)
    assert "foreign: does not belong to the dataset" in shown
