"""Containers that are locked, cut, glued, written to or kept where nothing may be written: what their own libraries make of
that cost others a run, and what the reader makes of it."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest

from packer import (
    DatasetError,
    PackOptions,
    formats,
    open_dataset,
    pack_folder,
    verify_dataset,
)
from packer.errors import TruncatedFileError
from packer.index import Index
from packer.manifest import load_manifest
from packer.options import Progress
from tests.cases.processes import run_script, script_command
from tests.cases.recipes import pack_files
from tests.inputs import jpeg, npy, pack_here, write_tree

PROC = pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="what a process does is seen in /proc")
FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def numbered(count: int, length: int = 50) -> dict[str | bytes, bytes]:
    """Files in two classes; the contents of each are a function of its number."""
    return {f"{'ab'[i * 2 // count]}/{i:06d}.npy": npy(np.full(length, i, np.int32)) for i in range(count)}


def container(folder: Path) -> Path:
    """The one file, or first shard, that holds the payloads."""
    return folder / load_manifest(folder).shards[0].file


def places(folder: Path) -> list[tuple[int, int]]:
    """Where each payload lies in the container: offset and size."""
    records = Index(folder, load_manifest(folder).samples)
    return [(records[i].offset, records[i].size) for i in range(len(records))]


# What several damaged copies of one dataset give, in a process that a signal may end: one line each, "opening" with the error,
# or the samples that cannot be read; any sample that is read is compared with the contents that its name asks for.
OPEN_ALL = """
    import json, sys
    import numpy as np
    from packer import DatasetError, open_dataset
    for path in sys.argv[2:]:
        try:
            data = open_dataset(path, output="numpy", mmap=sys.argv[1] == "True")
        except DatasetError as error:
            print(json.dumps(["opening", type(error).__name__, str(error)]))
            continue
        gone, wrong = [], []
        for i in range(len(data)):
            try:
                array, _ = data[i]
                if not (array == int(data.names[i][2:8])).all():
                    wrong.append(i)
            except DatasetError as error:
                gone.append([i, type(error).__name__])
        print(json.dumps(["reading", gone, wrong]))
"""


def found_in(folders: list[Path], mmap: bool) -> list[list[Any]]:
    """What becomes of each of several datasets, see ``OPEN_ALL``."""
    return [json.loads(line) for line in run_script(OPEN_ALL, mmap, *folders).splitlines()]


def copies(folder: Path, into: Path, changes: dict[str, Callable[[bytes], bytes]]) -> dict[str, Path]:
    """Copies of a dataset with changed containers."""
    content = container(folder).read_bytes()
    found = {}
    for name, change in changes.items():
        found[name] = into / name
        shutil.copytree(folder, found[name])
        container(found[name]).write_bytes(change(content))
    return found


# Nothing may be written

STRANGER = """
    import os, sys
    import packer, packer.verify
    folder = sys.argv[1]
    warm = sys.argv[2]  # the libraries may lie where only their owner may look: all is loaded before
    list(packer.open_dataset(warm, output="bytes"))
    list(packer.verify_dataset(warm))
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    try:
        open(os.path.join(folder, "new"), "w").close()
        raise SystemExit("the folder can be written to")
    except OSError:
        pass
    for mmap in (False, True):
        data = packer.open_dataset(folder, output="bytes", mmap=mmap)
        print(len([data[i] for i in range(len(data))]))
        with open("/proc/locks") as locks:
            held = [line for line in locks if f" {os.getpid()} " in line]
        print(held)
    print(list(packer.verify_dataset(folder)))
"""


@pytest.fixture
def read_only(tmp_path: Path, format_name: str) -> Iterator[Path]:
    """A dataset in a folder that nobody may write to and everybody may look at."""
    output = pack_files(tmp_path, numbered(12), format_name).output
    with tempfile.TemporaryDirectory() as root:  # not tmp_path: its parents are closed to others
        os.chmod(root, 0o755)
        folder = Path(root, "data")
        shutil.copytree(output, folder)
        for path in folder.iterdir():
            path.chmod(0o444)
        folder.chmod(0o555)
        yield folder
        folder.chmod(0o755)


@PROC
def test_a_dataset_of_another_user_is_read_where_nothing_may_be_written(
    tmp_path: Path, read_only: Path, format_name: str
) -> None:
    """LMDB opened the usual way wants to write its lock file."""
    before = sorted(os.listdir(read_only))
    assert "lock.mdb" not in before
    assert run_script(STRANGER, read_only, tmp_path / f"out.{format_name}") == "12\n[]\n12\n[]\n[]\n"
    assert sorted(os.listdir(read_only)) == before


LOCKING = {
    "lmdb": "import lmdb; lmdb.open(sys.argv[1], readonly=True).begin().stat()",
    "hdf5": "import h5py; h5py.File(sys.argv[1] + '/data.h5')",
    "webdataset": "import fcntl, os; fcntl.lockf(os.open(sys.argv[1] + '/shard-000000.tar', os.O_RDONLY), fcntl.LOCK_SH)",
}
LOCK_CALL = re.compile(r"\bflock\(|F_(OFD_)?SETLKW?\b")
WRITE_CALL = re.compile(r"O_(CREAT|WRONLY|RDWR)|\b(mkdir|rename|unlink|chmod|truncate)")


def calls(log: Path, script: str, *arguments: object) -> list[str]:
    """The system calls of a script, its threads and children that could lock or write, as strace shows them."""
    kinds = "flock,fcntl,openat,open,creat,mkdir,mkdirat,rename,renameat,renameat2,unlink,unlinkat,chmod,fchmodat,truncate"
    run_script(script, *arguments, under=["strace", "-f", "-y", "-qq", "-o", str(log), "-e", f"trace={kinds}"])
    return log.read_text().splitlines()


def strace_works() -> bool:
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not strace_works(), reason="system calls are seen by strace")
def test_reading_calls_no_lock_and_opens_nothing_for_writing(tmp_path: Path, format_name: str) -> None:
    """On Lustre the call is refused, on GlusterFS many nodes hang in it."""
    folder = pack_files(tmp_path, numbered(12), format_name).output
    usual = calls(tmp_path / "usual", f"import sys\n{LOCKING[format_name]}", folder)
    assert [call for call in usual if LOCK_CALL.search(call)], "strace does not show what is looked for"
    (folder / "lock.mdb").unlink(missing_ok=True)
    read = """
        import sys, packer
        for mmap in (False, True):
            data = packer.open_dataset(sys.argv[1], output="bytes", mmap=mmap)
            assert len([data[i] for i in range(len(data))]) == 12
            assert data.names[0] and len(data.targets) == 12
    """
    found = calls(tmp_path / "log", read, folder)
    assert [call for call in found if str(folder) in call]
    assert [call for call in found if LOCK_CALL.search(call)] == []
    assert [call for call in found if str(folder) in call and WRITE_CALL.search(call)] == []


# Many processes

MANY_PROCESSES = """
    import os, signal, sys
    from packer import open_dataset
    path = sys.argv[1]

    def child(number, ready, go):
        data = before if number % 2 else open_dataset(path, output="numpy")
        for epoch in range(2):
            array, _ = data[number % len(data)]
            if not (array == number % len(data)).all():
                os._exit(1)
            os.write(ready, b".")
            os.read(go[epoch], 1)
        os._exit(0)

    def start(number):
        pid = os.fork()
        if not pid:
            try:
                child(number, ready_in, [pipe[0] for pipe in go])
            finally:
                os._exit(2)
        return pid

    def wait_for(count):
        while count:
            count -= len(os.read(ready_out, count))

    ready_out, ready_in = os.pipe()
    go = [os.pipe(), os.pipe()]  # one for the end of each epoch, and a dot in it for each child
    before = open_dataset(path, output="numpy")
    list(before)
    children = [start(number) for number in range(130)]
    wait_for(130)
    for pid in children[:20]:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    children = children[20:]
    children += [start(number) for number in range(20)]
    wait_for(20)
    os.write(go[0][1], b"." * 130)
    wait_for(130)
    os.write(go[1][1], b"." * 130)
    print(sorted({os.waitpid(pid, 0)[1] for pid in children}))
"""


@FORK
def test_130_processes_read_while_others_are_killed(tmp_path: Path, format_name: str) -> None:
    """A killed reader leaves its slot taken in LMDB's table of 126. Half of them come with what their parent has open."""
    folder = pack_files(tmp_path, numbered(12), format_name).output
    listed = sorted(os.listdir(folder))
    assert run_script(MANY_PROCESSES, folder) == "[0]\n"
    assert sorted(os.listdir(folder)) == listed


# Opened more than once


def native_handle(folder: Path, format_name: str) -> Any:
    """The container, opened by its own library."""
    if format_name == "lmdb":
        return lmdb.open(str(folder), readonly=True, lock=False)
    return h5py.File(folder / "data.h5") if format_name == "hdf5" else tarfile.open(container(folder))


@pytest.mark.parametrize("mmap", [False, True])
def test_one_dataset_is_open_four_times_in_a_process(tmp_path: Path, format_name: str, mmap: bool) -> None:
    """A second lmdb.open is refused, also through a link, or breaks the first one when it is closed."""
    files = numbered(40)
    folder = pack_files(tmp_path, files, format_name).output
    link = tmp_path / "link"
    link.symlink_to(folder)
    expected = list(files.values())
    with contextlib.closing(native_handle(folder, format_name)):
        first, second, third = (open_dataset(path, output="bytes", mmap=mmap) for path in (folder, f"{folder}/", link))
        wrong: list[Any] = []

        def read(data: Any) -> None:
            try:
                wrong.extend(i for _ in range(20) for i in range(len(data)) if data[i][0] != expected[i])
            except Exception as error:
                wrong.append(error)

        assert [first[i][0] for i in range(40)] == expected
        threads = [threading.Thread(target=read, args=(data,)) for data in (second, third, second, third)]
        for thread in threads:
            thread.start()
        del first
        gc.collect()
        for thread in threads:
            thread.join()
        assert wrong == []
        del second
        gc.collect()
        assert [third[i][0] for i in range(40)] == expected
    assert [third[i][0] for i in range(40)] == expected


# Cut, or something else

CUTS: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda data: data[: len(data) // 2],
    "4096 less": lambda data: data[:-4096],
    "100 less": lambda data: data[:-100],
    "nothing": lambda data: b"",
    "text": lambda data: b"these are no samples\n" * 100,
}
REPLACED: dict[str, Callable[[bytes], bytes]] = {
    "text of the same size": lambda data: (b"no samples\n" * len(data))[: len(data)]
}


@pytest.fixture(scope="module")
def thousands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """2,000 samples in every format."""
    root = tmp_path_factory.mktemp("thousands")
    return {name: pack_files(root / name, numbered(2000), name).output for name in formats.names()}


@pytest.mark.parametrize("mmap", [False, True])
def test_a_container_cut_short_is_one_error_at_opening_and_never_a_signal(
    tmp_path: Path, thousands: dict[str, Path], format_name: str, mmap: bool
) -> None:
    """A cut LMDB opens, reports all its entries, and the first read behind the end kills the worker; h5py says "truncated
    file" and not which."""
    folder = thousands[format_name]
    size = container(folder).stat().st_size
    cut = copies(folder, tmp_path, CUTS)
    for name, (stage, kind, message) in zip(cut, found_in(list(cut.values()), mmap), strict=True):
        there = container(folder).read_bytes()
        assert (stage, kind) == ("opening", "TruncatedFileError"), name
        assert str(container(cut[name])) in message
        assert f"{len(CUTS[name](there)):,} bytes found, {size:,} expected" in message


@pytest.mark.parametrize("mmap", [False, True])
def test_text_in_place_of_a_container_is_an_error_at_each_sample(
    tmp_path: Path, thousands: dict[str, Path], format_name: str, mmap: bool
) -> None:
    replaced = copies(thousands[format_name], tmp_path, REPLACED)
    (found,) = found_in(list(replaced.values()), mmap)
    assert found == ["reading", [[i, "CorruptSampleError"] for i in range(2000)], []]


UNFLUSHED = {
    "lmdb": """
        import lmdb
        lmdb.open(sys.argv[1], lock=False).begin(write=True).put(b"000000000.npy", bytes(1000))
    """,
    "hdf5": """
        import h5py
        file = h5py.File(sys.argv[1] + "/data.h5", "w")
        file["data"] = list(range(1000))
    """,
    "webdataset": """
        import tarfile
        tar = tarfile.open(sys.argv[1] + "/shard-000000.tar", "w")
        tar.addfile(tarfile.TarInfo("000000000.npy"))
    """,
}


def test_a_container_whose_writer_was_killed_is_refused_by_name_and_size(tmp_path: Path, format_name: str) -> None:
    """The job that wrote the file had not closed it, and nobody says which of 700 it is."""
    folder = pack_files(tmp_path, numbered(200), format_name).output
    file = container(folder)
    size = file.stat().st_size
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    script = f"import sys, os, signal{UNFLUSHED[format_name]}".replace("\n        ", "\n")
    killed = subprocess.run(
        script_command(script + "\nos.kill(os.getpid(), signal.SIGKILL)", unfinished), capture_output=True, check=False
    )
    assert (killed.returncode, killed.stderr) == (-signal.SIGKILL, b"")
    shutil.copyfile(unfinished / file.name, file)
    for mmap in (False, True):
        ((stage, kind, message),) = found_in([folder], mmap)
        assert (stage, kind) == ("opening", "TruncatedFileError")
        assert f"{file}: {file.stat().st_size:,} bytes found, {size:,} expected" in message


@pytest.mark.parametrize("dies_at", ["pack", "verify", None])
def test_nothing_has_the_final_name_before_it_is_whole(tmp_path: Path, format_name: str, dies_at: str | None) -> None:
    """A reader never meets a half-written file."""
    source = write_tree(tmp_path / "in", numbered(600))
    output = tmp_path / "out"
    options = PackOptions(format=format_name, output=output, workers=1)
    stages = set()

    def look(progress: Progress) -> None:
        stages.add(progress.stage)
        assert not os.path.lexists(output)
        with pytest.raises(DatasetError):
            open_dataset(output)
        if progress.stage == dies_at and (progress.done > 300 or dies_at == "verify"):
            raise RuntimeError("the packer dies")

    if dies_at:
        with pytest.raises(RuntimeError, match="the packer dies"):
            pack_folder(source, options, look)
        assert not os.path.lexists(output)
    else:
        pack_folder(source, options, look)
        assert len(open_dataset(output)) == 600
        assert stages >= {"pack", "verify"}


# Handles and locks of other processes


@PROC
@pytest.mark.parametrize("mmap", [False, True])
def test_opening_leaves_no_descriptor_that_workers_would_share(tmp_path: Path, format_name: str, mmap: bool) -> None:
    """An HDF5 handle made before the fork gave labels of 255 in a set of 40 classes."""
    folder = pack_files(tmp_path, numbered(400), format_name).output
    data = open_dataset(folder, mmap=mmap)
    assert len(data) == 400
    assert data.classes == ["a", "b"]
    assert open_below(folder) == []
    assert data[0] is not None
    assert open_below(folder) != [] or mmap
    del data
    gc.collect()
    assert open_below(folder) == []


def open_below(folder: Path) -> list[str]:
    """What this process has open in a folder."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    return [target for target in found if target.startswith(str(folder))]


HOLDERS = {
    "lmdb": "import lmdb; held = lmdb.open(sys.argv[1], map_size=1 << 30); writing = held.begin(write=True)",
    "hdf5": "import h5py; held = h5py.File(sys.argv[1] + '/data.h5', 'a')",
    "webdataset": """
import fcntl, os
held = os.open(sys.argv[1] + '/shard-000000.tar', os.O_RDWR)
fcntl.flock(held, fcntl.LOCK_EX)
fcntl.lockf(held, fcntl.LOCK_EX)
""",
}


@pytest.mark.parametrize("mmap", [False, True])
def test_a_container_that_another_process_holds_for_writing_is_read(tmp_path: Path, format_name: str, mmap: bool) -> None:
    """h5py fails with errno 11, on NFS with errno 37, and the variable that helps does not always help."""
    files = numbered(20)
    folder = pack_files(tmp_path, files, format_name).output
    command = script_command(f"import sys\n{HOLDERS[format_name]}\nprint('held', flush=True)\nsys.stdin.read()", folder)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        if format_name == "hdf5":
            with pytest.raises(BlockingIOError):
                h5py.File(folder / "data.h5")
        data = open_dataset(folder, output="bytes", mmap=mmap)
        assert [data[i][0] for i in range(20)] == list(files.values())
        holder.communicate("")
    assert holder.returncode == 0


# Bytes read, bytes kept


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """1,000 arrays of 3 kB and 200 of 600 kB in every format."""
    root = tmp_path_factory.mktemp("large")
    small: dict[str | bytes, bytes] = {f"{i:04d}.npy": npy(np.full(3000, i % 251, np.uint8)) for i in range(1000)}
    files = {**small, **{f"{i:04d}.npy": npy(np.full(600_000, i % 251, np.uint8)) for i in range(1000, 1200)}}
    source = write_tree(root / "in", files)
    return {name: pack_here(source, name).output for name in formats.names()}


def bytes_read() -> int:
    """What this thread has read by system calls."""
    lines = dict(line.split(": ") for line in Path("/proc/thread-self/io").read_text().splitlines())
    return int(lines["rchar"])


@PROC
def test_shuffled_reading_reads_hardly_more_than_it_returns(large: dict[str, Path], format_name: str) -> None:
    """Where chunks hold 1000 samples, each sample reads and unpacks them all."""
    data = open_dataset(large[format_name], output="numpy")
    chosen = random.Random(0).sample(range(len(data)), 500)
    assert data[0] is not None
    before = bytes_read()
    returned = 0
    for i in chosen:
        array = data[i]
        assert array[0] == array[-1] == i % 251
        returned += array.nbytes
    read = bytes_read() - before
    assert returned < read < 3 * returned


ZEROS = {
    "all zeros": npy(np.zeros(100, np.uint8)),
    "zeros around": npy(np.frombuffer(b"\0\0abc\0", np.uint8)),
    "one zero": npy(np.zeros(1, np.uint8)),
}


def test_zero_bytes_inside_and_at_the_end_of_payloads_are_kept(tmp_path: Path, format_name: str) -> None:
    """Text types of HDF5 refuse JPEG data at its first zero byte, or cut zeros off its end."""
    pictures = {f"{i}.jpg": jpeg(seed=i) + bytes(i) for i in range(6)}
    files: dict[str | bytes, bytes] = {**pictures, **{f"{name}.npy": data for name, data in ZEROS.items()}}
    result = pack_files(tmp_path, files, format_name)
    for mmap in (False, True):
        assert result.read(output="bytes", mmap=mmap) == files
    assert result.at_stored_places() == files
    uniform: dict[str | bytes, bytes] = {f"{i}.npy": npy(np.zeros(6, np.uint8)) for i in range(5)}
    assert pack_files(tmp_path / "uniform", uniform, format_name).read(output="bytes") == uniform


READ_ON = """
    import sys
    from packer import open_dataset

    def resident():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    data = open_dataset(sys.argv[1], output="bytes", mmap=sys.argv[2] == "True")
    first = [data[i] for i in range(len(data))]
    before = resident()
    for i in range(10_000):
        assert data[i % len(data)] == first[i % len(data)]
    print(resident() - before < 20_000)
"""


@PROC
@pytest.mark.parametrize("mmap", [False, True])
def test_ten_thousand_reads_leave_no_memory_behind(tmp_path: Path, format_name: str, mmap: bool) -> None:
    """Variable-length types leak while they are read."""
    files: dict[str | bytes, bytes] = {f"{i}.npy": npy(np.full(20_000, i, np.uint8)) for i in range(50)}
    folder = pack_files(tmp_path, files, format_name).output
    assert run_script(READ_ON, folder, mmap) == "True\n"


# Cut and glued where a tar reader ends without a word


def damages_of(folder: Path) -> tuple[dict[str, Callable[[bytes], bytes]], Callable[[bytes], bytes]]:
    """What interrupted uploads and `cat` make of the six samples' container; the last keeps its size."""
    starts = sorted(offset for offset, _ in places(folder))
    header = 512 if container(folder).suffix == ".tar" else 0
    fourth = starts[3] - header
    third = starts[2] - header
    return {
        "cut before the fourth": lambda data: data[:fourth],
        "cut in its header": lambda data: data[: fourth + 100],
        "cut in its data": lambda data: data[: starts[3] + 100],
        "zeros put in": lambda data: data[:third] + bytes(1024) + data[third:],
        "no end": lambda data: data[:-1024],
        "twice": lambda data: data + data,
    }, lambda data: data[:fourth] + bytes(len(data) - fourth)


def test_a_container_that_ends_early_or_is_glued_is_refused_at_opening(tmp_path: Path, format_name: str) -> None:
    """tarfile and webdataset give what they find, three samples or two, and no error."""
    folder = pack_files(tmp_path, numbered(6, 200), format_name).output
    changes, _ = damages_of(folder)
    first_lost = {"cut before the fourth": 3, "cut in its header": 3, "cut in its data": 3, "zeros put in": 2}
    by_place = [i for _, i in sorted((offset, i) for i, (offset, _) in enumerate(places(folder)))]
    damaged = copies(folder, tmp_path / "damaged", changes)
    for (name, path), (stage, kind, message) in zip(damaged.items(), found_in(list(damaged.values()), False), strict=True):
        assert (stage, kind) == ("opening", "TruncatedFileError"), name
        assert str(container(path)) in message
        first, *others = verify_dataset(path)
        assert (first.file, first.index) == (container(path).name, None)
        lost = sorted(by_place[first_lost.get(name, 6) :])
        assert [(finding.file, finding.index, finding.name) for finding in others] == [
            (container(path).name, i, list(numbered(6))[i]) for i in lost
        ]


def test_a_container_that_is_zeros_from_some_place_on_is_an_error_at_the_samples_that_are_gone(
    tmp_path: Path, format_name: str
) -> None:
    folder = pack_files(tmp_path, numbered(6, 200), format_name).output
    _, zeros = damages_of(folder)
    path = copies(folder, tmp_path / "damaged", {"zeros": zeros})["zeros"]
    fourth = sorted(offset for offset, _ in places(folder))[3]
    gone = [i for i, (offset, _) in enumerate(places(folder)) if offset >= fourth]
    assert len(gone) == 3
    for mmap in (False, True):
        assert found_in([path], mmap) == [["reading", [[i, "CorruptSampleError"] for i in gone], []]]
    names = list(numbered(6))
    findings = [finding for finding in verify_dataset(path) if finding.index is not None]
    assert [(finding.file, finding.index, finding.name) for finding in findings] == [
        (container(path).name, i, names[i]) for i in gone
    ]


def test_fractional_times_of_files_leave_no_trace(tmp_path: Path, format_name: str) -> None:
    """tarfile writes two more blocks a member for them since Python 3.8."""
    source = write_tree(tmp_path / "in", numbered(1000))
    outputs = []
    for number, time_ns in enumerate((1_700_000_000_000_000_000, 1_600_000_000_123_456_789)):
        for i, path in enumerate(sorted(source.rglob("*.npy"))):
            os.utime(path, ns=(time_ns, time_ns + i * 1_234_567))
        outputs.append(pack_here(source, format_name, output=tmp_path / str(number)).output)
    contents = [{path.name: path.read_bytes() for path in output.iterdir()} for output in outputs]
    assert contents[0] == contents[1]
    content = contents[1][container(outputs[1]).name]
    assert b"PaxHeader" not in content
    payload = sum(len(data) for data in numbered(1000).values())
    members = 3 if format_name == "webdataset" else 1  # the sample, its label, its path
    padding = 4096 if format_name == "lmdb" else 512
    assert len(content) < payload + 1000 * members * (1024 + padding) + (2 << 20)


def test_the_members_of_a_shard_are_plain_ustar_with_one_header_block(tmp_path: Path) -> None:
    folder = pack_files(tmp_path, numbered(1000), "webdataset").output
    content = container(folder).read_bytes()
    place = members = 0
    while (block := content[place : place + 512]).strip(b"\0"):
        assert block[257:265] == b"ustar\x0000"
        assert block[156:157] == b"0"
        assert int(block[136:147], 8) == 0
        place += 512 + -(-int(block[124:135], 8) // 512) * 512
        members += 1
    assert members == 3000
    assert len(content) - place <= 10240


# What is counted

FOREIGN: dict[str, Callable[[Path], None]] = {}


def foreign(name: str) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    def register(function: Callable[[Path], None]) -> Callable[[Path], None]:
        FOREIGN[name] = function
        return function

    return register


@foreign("lmdb")
def _(folder: Path) -> None:
    with lmdb.open(str(folder), map_size=1 << 30) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"length", b"11")
    (folder / "lock.mdb").unlink()


@foreign("hdf5")
def _(folder: Path) -> None:
    with h5py.File(folder / "data.h5", "a") as file:
        file["length"] = 11


@foreign("webdataset")
def _(folder: Path) -> None:
    (folder / "length").write_bytes(b"11")
    with tarfile.open(container(folder), "a") as tar:
        tar.add(folder / "length", "length")
    (folder / "length").unlink()


def test_the_length_counts_samples_and_nothing_else(tmp_path: Path, format_name: str) -> None:
    """Schema, classes and length were stored beside the samples, and counted with them."""
    files = numbered(10)
    data = open_dataset(pack_files(tmp_path, files, format_name).output, output="bytes")
    assert len(data) == 10
    assert data[-1] == data[9] == (list(files.values())[9], 1)
    with pytest.raises(IndexError):
        data[10]
    with pytest.raises(IndexError):
        data[-11]


def test_a_container_that_was_written_to_is_refused_or_found(tmp_path: Path, format_name: str) -> None:
    folder = pack_files(tmp_path, numbered(10), format_name).output
    FOREIGN[format_name](folder)
    (finding,) = verify_dataset(folder)
    assert finding.file == container(folder).name
    same_size = container(folder).stat().st_size == load_manifest(folder).shards[0].size_bytes
    with contextlib.nullcontext() if same_size else pytest.raises(TruncatedFileError, match=container(folder).name):
        data = open_dataset(folder, output="bytes")
    if same_size:  # what was added stands in no sample's place
        assert [data[i][0] for i in range(10)] == list(numbered(10).values())
