"""``pack doctor``: each finding is there when it is true and gone when it is not; what is shown, and the exit status."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import packer
from packer.cgroup import MemoryGroup
from packer.cli.app import run
from packer.doctor.data import DataFacts, Probe, look_at_data
from packer.doctor.facts import Facts, gather
from packer.doctor.finding import Finding
from packer.doctor.findings import CHECKS, find, is_sound
from packer.doctor.snapshot import Space, SystemSnapshot
from tests.inputs import jpeg, npy, pack_here, write_tree

HERE = Path(packer.__file__).parent.parent
GIB = 1 << 30
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells")
SOUND = Facts(
    SystemSnapshot(
        group=MemoryGroup(2, 64 * GIB, 8 * GIB, 9 * GIB, 0),
        memory_bytes=128 * GIB,
        available_bytes=100 * GIB,
        machine_oom_kills=3,
        shared=Space(64 * GIB, 63 * GIB),
        open_files=20,
        open_files_limit=65_536,
        open_files_hard_limit=1 << 20,
        cpus=8,
        start_method="fork",
        python="3.11.7",
        system="Linux",
    ),
    workers=8,
    batch_size=64,
    prefetch=2,
    torch="2.13.0",
    opencv=False,
    threads_limited=False,
    data=DataFacts(
        "images.lmdb", "packed", "", "lmdb", 60_000, True, 562_500, "ext4", 100 * GIB, 10**7, Probe(1500, 10**8, 0.5, 0.01)
    ),
)


def machine(**changes: Any) -> Facts:
    return replace(SOUND, system=replace(SOUND.system, **changes))


def data(**changes: Any) -> Facts:
    assert SOUND.data is not None
    return replace(SOUND, data=replace(SOUND.data, **changes))


def settings(**changes: Any) -> Facts:
    return replace(SOUND, **changes)


LOOSE: dict[str, Any] = {"kind": "folder", "path": "images", "samples": 50_000, "sample_bytes": 0}
BAD = Probe(9, 9, 0.1, 0.1, ("sample 3 ('a.jpg'): differs",), 1)
UNSOUND = [
    # what is true, the finding, its weight, what its evidence says, and what its cure says
    (data(error="data.mdb: 3 bytes found"), "damaged_dataset", "serious", "3 bytes found", "pack verify images.lmdb"),
    (data(kind="missing", error="x: no such file"), "no_dataset", "serious", "no such file", "path"),
    (data(probe=BAD), "damaged_sample", "serious", "sample 3 ('a.jpg'): differs", "pack verify images.lmdb"),
    (data(**LOOSE, probe=BAD), "damaged_sample", "serious", "1 of 10 samples", "pack check images"),
    (machine(shared=Space(64 << 20, 60 << 20)), "shared_memory_small", "serious", "/dev/shm has 67.1 MB", "--shm-size=2g"),
    (machine(shared=Space(2 * GIB, GIB)), "shared_memory_small", "warning", "8 workers × 2 batches", "--shm-size=2g"),
    (settings(data=None, batch_size=4096, workers=64), "shared_memory_small", "serious", "assumed", "fewer ahead"),
    (machine(shared=None), "no_shared_memory", "serious", "missing", "num_workers=0"),
    (machine(group=MemoryGroup(2, GIB, 0, 0, 0)), "memory_small", "serious", "may have 1.1 GB", "num_workers=4"),
    (machine(available_bytes=GIB), "memory_small", "serious", "1.1 GB of the machine", "--mem="),
    (machine(available_bytes=1700 << 20), "memory_small", "warning", "8 workers need about", "num_workers=4"),
    (machine(start_method="spawn", available_bytes=2 * GIB), "memory_small", "serious", "209.7 MB and two", "num_workers=4"),
    (machine(open_files_limit=128), "few_open_files", "serious", "128 files may be open", "ulimit -n 65536"),
    (machine(open_files_limit=1024, open_files_hard_limit=1024), "few_open_files", "note", "1,024", "set_sharing_strategy"),
    (machine(group=MemoryGroup(2, 64 * GIB, 0, 0, 2)), "out_of_memory", "warning", "killed 2 processes", "--pid"),
    (data(probe=Probe(20, 10**6, 0.8, 0.2)), "slow_reading", "warning", "25 a second", "pack bench images.lmdb"),
    (data(probe=Probe(2000, 10**8, 3.0, 2.5)), "slow_reading", "warning", "slowest 2.5 s", "blocks"),
    (settings(workers=9), "many_workers", "warning", "9 workers, 8 CPUs", "num_workers=8"),
    (data(free_bytes=0), "disk_full", "warning", "0 bytes are free", "df -h"),
    (data(free_inodes=7), "disk_full", "warning", "7 inodes are free", "df -i"),
    (data(file_system="nfs4"), "file_server", "note", "on nfs4", "cp -r images.lmdb"),
    (data(file_system="fuse.sshfs"), "file_server", "note", "on fuse.sshfs", "cp -r"),
    (data(**LOOSE, file_system="lustre"), "file_server", "warning", "on lustre", "pack images --format lmdb"),
    (data(file_system="overlay"), "in_the_image", "note", "on overlay", "-v /data:/data:ro"),
    (data(file_system="tmpfs"), "in_memory", "note", "on tmpfs", "memory"),
    (settings(opencv=True), "opencv_threads", "note", "8 workers on 8 CPUs", "cv2.setNumThreads(0)"),
    (machine(start_method="forkserver", python="3.14.0"), "not_forked", "note", "Python 3.14.0", "fork"),
    (data(**LOOSE), "not_packed", "note", "50,000 files", "pack check images"),
    (data(**LOOSE, counted=False), "not_packed", "note", "at least 50,000 files", "pack check images"),
]  # fmt: skip


@pytest.mark.parametrize("facts, name, weight, evidence, cure", UNSOUND)
def test_what_is_true_is_found_with_evidence_cure_and_source(
    facts: Facts, name: str, weight: str, evidence: str, cure: str
) -> None:
    found = {one.id: one for one in find(facts)}
    assert found[name].weight == weight
    assert evidence in " ".join([found[name].title, *found[name].evidence])
    assert cure in found[name].cure
    assert found[name].source.startswith(("https://", "README.md"))


def test_a_sound_machine_has_no_finding_at_all() -> None:
    assert find(SOUND) == []


@pytest.mark.parametrize(
    "facts",
    [
        machine(shared=None, system="Darwin"),
        settings(workers=0, batch_size=10**6),
        settings(opencv=True, threads_limited=True),
        settings(workers=0, opencv=True),
        machine(start_method="fork", python="3.14.0"),
        machine(group=None),
        machine(group=MemoryGroup(2)),
        machine(available_bytes=None, open_files_limit=None),
        data(probe=Probe(0, 0, 0.9)),
        data(probe=Probe(20, 10**9, 0.8, 0.2)),
        data(free_bytes=None, free_inodes=None),
        data(file_system="unknown"),
        settings(data=None),
    ],
)
def test_what_is_no_fault_or_not_known_is_not_found(facts: Facts) -> None:
    assert find(facts) == []


def test_every_check_is_made_true_above() -> None:
    made = {check.__name__ for check in CHECKS if any(check(facts) is not None for facts, *_ in UNSOUND)}
    assert made == {check.__name__ for check in CHECKS}


def test_the_weightiest_comes_first() -> None:
    facts = replace(machine(shared=Space(64 << 20, 0), start_method="spawn"), workers=12)
    assert [one.weight for one in find(facts)] == ["serious", "warning", "note"]


def test_notes_alone_are_of_no_weight() -> None:
    def one(weight: str) -> Finding:
        return Finding("x", weight, "", (), "", "")

    assert is_sound([one("note"), one("note")])
    assert not is_sound([one("note"), one("warning")])
    assert not is_sound([one("serious")])


def test_more_shared_memory_than_the_machine_has_is_not_advised() -> None:
    facts = replace(machine(memory_bytes=GIB), batch_size=10_000)
    found = {one.id: one for one in find(facts)}
    assert "--shm-size" not in found["shared_memory_small"].cure


def test_how_many_batches_fit_is_told() -> None:
    batch = SOUND.batch_bytes
    found = {one.id: one for one in find(machine(shared=Space(9 * batch, 9 * batch)))}
    assert "num_workers × prefetch_factor of at most 4)" in found["shared_memory_small"].cure


def test_a_path_in_a_command_is_quoted() -> None:
    found = {one.id: one for one in find(data(**{**LOOSE, "path": "my pictures; rm x"}))}
    assert "`pack check 'my pictures; rm x'`" in found["not_packed"].cure


# ------------------------------------------------------------------------------------------------------- looking at the data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = {f"{'ab'[i % 2]}/{i}.jpg": jpeg(seed=i) for i in range(12)}
    return write_tree(tmp_path_factory.mktemp("doctor") / "in", files)


def test_a_packed_dataset_is_read_and_its_samples_measured(folder: Path, format_name: str, tmp_path: Path) -> None:
    output = pack_here(folder, format_name, output=tmp_path / "out").output
    found = look_at_data(output)
    assert (found.kind, found.format, found.samples, found.error) == ("packed", format_name, 12, "")
    assert found.sample_bytes == 64 * 48 * 3
    assert (found.probe.samples, found.probe.damaged) == (12, ())
    assert found.probe.size_bytes == sum(file.stat().st_size for file in folder.rglob("*.jpg"))


def test_arrays_are_measured_by_their_elements(format_name: str, tmp_path: Path) -> None:
    """Also where files of several shapes keep their headers."""
    root = write_tree(tmp_path / "in", {"a.npy": npy([[1.0] * 100]), "b.npy": npy([1.0] * 300)})
    assert look_at_data(pack_here(root, format_name, output=tmp_path / "out").output).sample_bytes == 1600


def flip(path: Path, payload: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(payload) + len(payload) // 2] ^= 1
    path.write_bytes(data)


def test_a_damaged_sample_is_named(folder: Path, format_name: str, tmp_path: Path) -> None:
    output = pack_here(folder, format_name, output=tmp_path / "out").output
    payload = (folder / "a/4.jpg").read_bytes()
    flip(
        next(path for path in output.iterdir() if path.suffix in (".mdb", ".h5", ".tar") and payload in path.read_bytes()),
        payload,
    )
    found = find(gather(output, workers=0, batch_size=1, prefetch=1))
    (one,) = [one for one in found if one.id == "damaged_sample"]
    assert one.weight == "serious"
    assert [fact for fact in one.evidence if "a/4.jpg" in fact and "digest differs" in fact]


def test_a_cut_dataset_is_a_finding_and_no_error(folder: Path, tmp_path: Path) -> None:
    output = pack_here(folder, "lmdb", output=tmp_path / "out").output
    os.truncate(output / "data.mdb", 5000)
    found = look_at_data(output)
    assert (found.kind, found.samples) == ("packed", 0)
    assert "5,000 bytes found" in found.error


@pytest.mark.parametrize("name", ["manifest.json", "index.npy", "names.bin"])
def test_a_dataset_that_lost_a_file_is_still_one(folder: Path, tmp_path: Path, name: str) -> None:
    output = pack_here(folder, "lmdb", output=tmp_path / "out").output
    (output / name).unlink()
    found = look_at_data(output)
    assert found.kind == "packed"
    assert name in found.error


def test_loose_files_are_counted_and_read(folder: Path) -> None:
    found = look_at_data(folder)
    assert (found.kind, found.samples, found.counted, found.probe.samples) == ("folder", 12, True, 12)


def test_not_all_files_of_a_large_folder_are_looked_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packer.doctor.data._MOST_FILES", 5)
    found = look_at_data(folder)
    assert (found.samples, found.counted) == (5, False)


def test_reading_ends_when_its_time_is_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packer.doctor.data._PROBE_S", -1.0)
    assert look_at_data(folder).probe.samples == 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFO here")
def test_a_fifo_among_the_files_does_not_stop_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    assert look_at_data(tmp_path).samples == 1


@pytest.mark.parametrize("name", ["none", "empty", "file", "\0"])
def test_where_there_is_nothing_to_read_that_is_the_finding(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    found = look_at_data(tmp_path / name)
    assert found.error
    assert [one.id for one in find(replace(SOUND, data=found)) if one.weight == "serious"] == ["no_dataset"]


# -------------------------------------------------------------------------------------------------------------- the machine


def pack(*arguments: str, prefix: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    code = "import sys; from packer.cli import main; sys.argv[0] = 'pack'; main()"
    command = [sys.executable, "-c", code, "doctor", *arguments]
    if prefix:
        command = ["unshare", "-rm", "sh", "-c", f'{prefix} && exec "$@"', "sh", *command]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env={**os.environ, "PYTHONPATH": str(HERE)})


@LINUX
def test_a_small_limit_of_open_files_is_really_found() -> None:
    code = "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); from packer.cli.app import run; "
    command = [sys.executable, "-c", f"{code} sys.exit(run(['doctor', '--workers', '2', '--json']))"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE)
    (found,) = [one for one in json.loads(done.stdout)["findings"] if one["id"] == "few_open_files"]
    assert (done.returncode, found["weight"]) == (1, "serious")
    assert "64 files may be open" in found["evidence"][0]


@LINUX
def test_a_small_shared_memory_is_really_found() -> None:
    mount = "mount -t tmpfs -o size=8m tmpfs /dev/shm"
    if not shutil.which("unshare") or subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("no mount namespace may be made here")
    done = pack("--workers", "1", prefix=mount)
    assert done.returncode == 1
    assert "seen: /dev/shm has 8.4 MB, 8.4 MB free" in done.stdout


@LINUX
def test_this_machine_is_told_as_it_is() -> None:
    system = SystemSnapshot.take()
    assert system.shared is None or 0 <= system.shared.free_bytes <= system.shared.total_bytes
    assert system.memory_bytes is not None
    assert system.available_bytes is not None
    assert system.available_bytes <= system.memory_bytes
    assert system.cpus == packer.cpus.available_cpus()
    assert system.open_files is not None
    before = system.open_files
    with open(os.devnull), open(os.devnull):  # noqa: PTH123
        assert SystemSnapshot.take().open_files == before + 2


# -------------------------------------------------------------------------------------------------------------- the command


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The command is given these facts of a sound machine; returns what it asked for."""
    asked: list[dict[str, Any]] = []

    def given(path: Path | None, **options: Any) -> Facts:
        asked.append({"path": path, **options})
        return SOUND

    monkeypatch.setattr("packer.doctor.facts.gather", given)
    return asked


def test_a_sound_machine_ends_with_status_0(facts: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor"]) == 0
    output = capsys.readouterr().out
    assert output.endswith("\n\nnothing of weight found\n")
    assert "data:     images.lmdb: lmdb, 60,000 samples, on ext4, 107.4 GB free\n" in output


def test_the_settings_of_the_loader_are_taken(facts: list[dict[str, Any]]) -> None:
    run(["doctor", "x.lmdb", "--workers", "0", "--batch-size", "7", "--prefetch", "3"])
    run(["doctor"])
    assert facts == [
        {"path": Path("x.lmdb"), "workers": 0, "batch_size": 7, "prefetch": 3},
        {"path": None, "workers": None, "batch_size": 64, "prefetch": 2},
    ]


def test_json_is_one_object_with_facts_and_findings(facts: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["sound"], told["findings"]) == (True, [])
    assert told["facts"]["system"]["shared"] == {"total_bytes": 64 * GIB, "free_bytes": 63 * GIB}
    assert told["facts"]["waiting_bytes"] == 17 * 64 * 562_500
    assert told["facts"]["sample_bytes_assumed"] is False


def test_a_finding_of_weight_ends_with_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", str(tmp_path / "none")]) == 1
    assert "serious: there is nothing to read\n    seen: " in capsys.readouterr().out


def test_names_cannot_reach_the_terminal_with_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_tree(tmp_path / "a\x1b[2Jb", {"a.jpg": b"x"})
    run(["doctor", str(folder)])
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert "a\\x1b[2Jb" in output


@pytest.mark.parametrize(
    "arguments",
    [
        ["--seconds", "3"],
        ["--html", "x"],
        ["--png", "x"],
        ["--workers", "-1"],
        ["--batch-size", "0"],
        ["--pid", "1", "--workers", "2"],
        ["--pid", "1", "x.lmdb"],
        ["--pid", "0"],
        ["--pid", "1", "--seconds", "0"],
        ["a", "b"],
    ],
)
def test_options_that_do_not_go_together_end_with_status_2(arguments: list[str]) -> None:
    assert run(["doctor", *arguments]) == 2


def test_looking_loads_neither_torch_nor_a_container_library(folder: Path) -> None:
    code = f"from packer.cli.app import run; import sys; run(['doctor', {str(folder)!r}]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=HERE)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "packer.store" in loaded or "packer.doctor.data" in loaded
    assert loaded.isdisjoint({"torch", "cv2", "lmdb", "h5py", "matplotlib", "PIL"})
