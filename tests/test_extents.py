"""The one reader of all containers: ranges of bytes, from files that come and go under it."""

from __future__ import annotations

import copy
import errno
import gc
import itertools
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from packer import extents, files
from packer.errors import CorruptDatasetError, DatasetChangedError, TruncatedFileError
from packer.extents import ExtentReader
from packer.manifest import ShardEntry
from tests.inputs import in_six_threads

_MAX_OPEN = 64
_needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the open files of a process are seen in /proc")


def make_reader(folder: Path, contents: list[bytes], *, mmap: bool = False) -> ExtentReader:
    """A reader over one new file for each of the contents."""
    entries = []
    for i, content in enumerate(contents):
        Path(folder, f"shard-{i}").write_bytes(content)
        entries.append(ShardEntry(f"shard-{i}", len(content), 1, ""))
    return ExtentReader(folder, tuple(entries), mmap=mmap)


def open_in(folder: Path) -> list[str]:
    """The files inside a folder that this process has open, once for each descriptor."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the descriptor that listed the folder
            continue
        if Path(target).parent == folder:
            found.append(Path(target).name)
    return found


@pytest.fixture(params=[False, True], ids=["pread", "mmap"])
def mmap(request: pytest.FixtureRequest) -> bool:
    """Both ways to read."""
    return request.param


@pytest.fixture(params=["as is", "no preadv", "no dir_fd", "neither"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Systems that lack some of the calls."""
    if request.param in ("no preadv", "neither"):
        monkeypatch.setattr(files, "_HAS_PREAD", False)
        monkeypatch.delattr(os, "preadv", raising=False)
        monkeypatch.delattr(os, "pread", raising=False)
    if request.param in ("no dir_fd", "neither"):
        monkeypatch.setattr(extents, "_HAS_DIR_FD", False)
    return request.param


CONTENT = random.Random(1).randbytes(100_000)
RANGES = [(0, 100_000), (0, 1), (99_999, 1), (4_095, 2), (12_345, 54_321), (0, 0), (100_000, 0), (50_000, 0)]


@pytest.mark.parametrize("offset, size", RANGES)
def test_a_range_is_read_as_it_stands_in_the_file(tmp_path: Path, mmap: bool, system: str, offset: int, size: int) -> None:
    reader = make_reader(tmp_path, [b"other" * 20_000, CONTENT], mmap=mmap)
    assert reader.read(1, offset, size) == CONTENT[offset : offset + size]
    buffer = bytearray(size)
    reader.read_into(1, offset, len(buffer), (memoryview(buffer),))
    assert buffer == CONTENT[offset : offset + size]


def test_read_into_fills_its_buffer_and_nothing_beside_it(tmp_path: Path, mmap: bool, system: str) -> None:
    reader = make_reader(tmp_path, [CONTENT], mmap=mmap)
    buffer = bytearray(b"\xaa" * 300)
    reader.read_into(0, 1_000, 100, (memoryview(buffer)[100:200],))
    assert buffer == b"\xaa" * 100 + CONTENT[1_000:1_100] + b"\xaa" * 100


def test_what_is_read_is_bytes_of_its_own(tmp_path: Path, mmap: bool) -> None:
    reader = make_reader(tmp_path, [CONTENT], mmap=mmap)
    data = reader.read(0, 0, 100)
    assert type(data) is bytes
    with Path(tmp_path, "shard-0").open("r+b") as file:
        file.write(bytes(100))
    assert data == CONTENT[:100]


@pytest.mark.parametrize(
    "shard, offset, size",
    [(0, 0, 100_001), (0, 99_999, 2), (0, 100_001, 0), (0, 2**63, 1), (0, 0, 2**64), (1, 0, 1), (2**32 - 1, 0, 0), (-1, 0, 1)],
)
def test_a_range_outside_the_container_is_refused_before_anything_is_allocated(
    tmp_path: Path, mmap: bool, shard: int, offset: int, size: int
) -> None:
    reader = make_reader(tmp_path, [CONTENT], mmap=mmap)
    with pytest.raises(CorruptDatasetError, match="not inside the container"):
        reader.read(shard, offset, size)
    assert reader.read(0, 0, 5) == CONTENT[:5]


def test_read_into_a_range_outside_the_container_is_refused(tmp_path: Path, mmap: bool) -> None:
    reader = make_reader(tmp_path, [CONTENT], mmap=mmap)
    with pytest.raises(CorruptDatasetError, match="not inside the container"):
        reader.read_into(0, 99_999, 2, (memoryview(bytearray(2)),))


def few_at_a_time(most: int) -> Callable[..., object]:
    """Reading calls that give at most so many bytes, as a network file system may."""
    real_pread, real_preadv, real_read = os.pread, os.preadv, os.read

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "pread", lambda file, size, offset: real_pread(file, min(size, most), offset))
        monkeypatch.setattr(
            os, "preadv", lambda file, buffers, *where: real_preadv(file, [buffer[:most] for buffer in buffers], *where)
        )
        monkeypatch.setattr(os, "read", lambda file, size: real_read(file, min(size, most)))

    return patch


@pytest.mark.skipif(not hasattr(os, "preadv"), reason="no preadv here")
@pytest.mark.parametrize("has_preadv", [True, False])
@pytest.mark.parametrize("most", [1, 1_000, 54_320])
def test_a_short_read_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_preadv: bool, most: int) -> None:
    """The kernel gives at most 2 GiB at once; taken for the whole payload that would be half a sample."""
    reader = make_reader(tmp_path, [CONTENT])
    monkeypatch.setattr(files, "_HAS_PREAD", has_preadv)
    few_at_a_time(most)(monkeypatch)
    assert reader.read(0, 12_345, 54_321) == CONTENT[12_345:66_666]
    buffer = bytearray(54_321)
    reader.read_into(0, 12_345, len(buffer), (memoryview(buffer),))
    assert buffer == CONTENT[12_345:66_666]


def test_a_file_that_became_shorter_is_an_exception(tmp_path: Path, system: str) -> None:
    reader = make_reader(tmp_path, [CONTENT])
    assert reader.read(0, 90_000, 10) == CONTENT[90_000:90_010]
    os.truncate(tmp_path / "shard-0", 50_000)
    with pytest.raises(TruncatedFileError) as caught:
        reader.read(0, 45_000, 10_000)
    assert caught.value.path == tmp_path / "shard-0"
    assert (caught.value.found, caught.value.expected) == (50_000, 100_000)
    with pytest.raises(TruncatedFileError):
        reader.read_into(0, 60_000, 10, (memoryview(bytearray(10)),))
    assert reader.read(0, 0, 50_000) == CONTENT[:50_000]


def test_the_size_named_for_a_shorter_file_is_its_size(tmp_path: Path) -> None:
    """The range lies wholly behind the new end; its own offset is not what the file has."""
    reader = make_reader(tmp_path, [CONTENT])
    reader.read(0, 0, 1)
    os.truncate(tmp_path / "shard-0", 50_000)
    with pytest.raises(TruncatedFileError) as caught:
        reader.read(0, 70_000, 10)
    assert caught.value.found == 50_000


@pytest.mark.parametrize("change", [-1, 1, -100_000])
def test_a_file_of_another_size_is_refused_when_the_reader_is_made(tmp_path: Path, mmap: bool, change: int) -> None:
    Path(tmp_path, "shard").write_bytes(CONTENT)
    with pytest.raises(TruncatedFileError) as caught:
        ExtentReader(tmp_path, (ShardEntry("shard", len(CONTENT) + change, 1, ""),), mmap=mmap)
    assert caught.value.path == tmp_path / "shard"
    assert (caught.value.found, caught.value.expected) == (len(CONTENT), len(CONTENT) + change)


def test_an_empty_file_is_read_as_no_bytes(tmp_path: Path, mmap: bool) -> None:
    reader = make_reader(tmp_path, [b""], mmap=mmap)
    assert reader.read(0, 0, 0) == b""
    with pytest.raises(CorruptDatasetError):
        reader.read(0, 0, 1)


def test_only_regular_files_of_the_folder_are_read(tmp_path: Path, mmap: bool) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    Path(tmp_path, "secret").write_bytes(CONTENT)
    (folder / "link").symlink_to("../secret")
    (folder / "inner").mkdir()
    os.mkfifo(folder / "fifo")
    for name in ("link", "inner", "fifo", "missing"):
        size = (folder / name).stat().st_size if name == "inner" else len(CONTENT)
        with pytest.raises(CorruptDatasetError, match=name):
            ExtentReader(folder, (ShardEntry(name, size, 1, ""),), mmap=mmap)


@pytest.mark.parametrize("name", ["x" * 300, "\ud800"], ids=["too long", "no text"])
def test_a_name_that_no_file_can_have_is_refused_as_damage(tmp_path: Path, name: str) -> None:
    """A name comes out of the manifest, which may be a stranger's."""
    with pytest.raises(CorruptDatasetError):
        ExtentReader(tmp_path, (ShardEntry(name, 1, 1, ""),))


def test_a_file_replaced_before_it_is_opened_is_noticed(tmp_path: Path, mmap: bool, system: str) -> None:
    reader = make_reader(tmp_path, [CONTENT, CONTENT], mmap=mmap)
    Path(tmp_path, "new").write_bytes(CONTENT[::-1])
    os.replace(tmp_path / "new", tmp_path / "shard-1")
    assert reader.read(0, 0, 10) == CONTENT[:10]
    with pytest.raises(DatasetChangedError, match="shard-1"):
        reader.read(1, 0, 10)


def test_a_file_replaced_after_it_was_opened_is_read_as_it_was(tmp_path: Path, mmap: bool, system: str) -> None:
    reader = make_reader(tmp_path, [CONTENT], mmap=mmap)
    reader.read(0, 0, 1)
    Path(tmp_path, "new").write_bytes(CONTENT[::-1])
    os.replace(tmp_path / "new", tmp_path / "shard-0")
    assert reader.read(0, 0, 100_000) == CONTENT


def test_a_file_written_to_before_it_is_opened_is_noticed(tmp_path: Path, mmap: bool) -> None:
    reader = make_reader(tmp_path, [CONTENT], mmap=mmap)
    time.sleep(0.02)  # the clock of a file system may tick every 10 ms
    with Path(tmp_path, "shard-0").open("r+b") as file:
        file.write(b"changed")
    with pytest.raises(DatasetChangedError, match="shard-0"):
        reader.read(0, 0, 10)


def test_a_file_removed_before_it_is_opened_is_noticed(tmp_path: Path, mmap: bool, system: str) -> None:
    reader = make_reader(tmp_path, [CONTENT, CONTENT], mmap=mmap)
    Path(tmp_path, "shard-1").unlink()
    assert reader.read(0, 0, 10) == CONTENT[:10]
    with pytest.raises(DatasetChangedError, match="shard-1"):
        reader.read(1, 0, 10)


def test_a_folder_replaced_meanwhile_is_noticed_and_not_mixed_in(tmp_path: Path, mmap: bool, system: str) -> None:
    folder, other = tmp_path / "folder", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    reader = make_reader(folder, [CONTENT, CONTENT], mmap=mmap)
    for path in folder.iterdir():  # the same files, names, inodes: only the folder is another one
        os.link(path, other / path.name)
    reader.read(0, 0, 1)
    folder.rename(tmp_path / "old")
    other.rename(folder)
    with pytest.raises(DatasetChangedError, match="replaced"):
        reader.read(1, 0, 10)
    assert reader.read(0, 0, 10) == CONTENT[:10]


def test_a_folder_removed_meanwhile_is_noticed(tmp_path: Path, mmap: bool, system: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    reader = make_reader(folder, [CONTENT, CONTENT], mmap=mmap)
    reader.read(0, 0, 1)
    folder.rename(tmp_path / "away")
    with pytest.raises(DatasetChangedError, match="removed"):
        reader.read(1, 0, 10)


@_needs_proc
def test_nothing_is_open_before_something_is_read(tmp_path: Path, mmap: bool) -> None:
    reader = make_reader(tmp_path, [CONTENT] * 3, mmap=mmap)
    assert open_in(tmp_path) == []
    reader.read(1, 0, 10)
    assert set(open_in(tmp_path)) == {"shard-1"}


@_needs_proc
def test_a_reader_that_is_dropped_closes_its_files(tmp_path: Path, mmap: bool) -> None:
    reader = make_reader(tmp_path, [CONTENT] * 3, mmap=mmap)
    for shard in range(3):
        reader.read(shard, 0, 10)
    del reader
    gc.collect()
    assert open_in(tmp_path) == []


@_needs_proc
def test_a_file_refused_on_opening_is_closed_again(tmp_path: Path, mmap: bool, system: str) -> None:
    reader = make_reader(tmp_path, [CONTENT], mmap=mmap)
    Path(tmp_path, "new").write_bytes(CONTENT)
    os.replace(tmp_path / "new", tmp_path / "shard-0")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        with pytest.raises(DatasetChangedError):
            reader.read(0, 0, 10)
    assert len(os.listdir("/proc/self/fd")) == before


@_needs_proc
def test_at_most_64_files_are_open_and_the_oldest_go_first(tmp_path: Path, mmap: bool) -> None:
    reader = make_reader(tmp_path, [b"%03d" % i for i in range(100)], mmap=mmap)
    for i in range(100):
        assert reader.read(i, 0, 3) == b"%03d" % i
        assert len(set(open_in(tmp_path))) <= _MAX_OPEN
    assert set(open_in(tmp_path)) == {f"shard-{i}" for i in range(100 - _MAX_OPEN, 100)}
    assert reader.read(0, 0, 3) == b"000"


def test_eviction_beside_reading_threads_never_gives_the_bytes_of_another_file(tmp_path: Path, mmap: bool) -> None:
    """A list that closed the oldest file under a reading thread gave another file's bytes in 121 reads of such a test."""
    shards, size = 100, 8_192
    reader = make_reader(tmp_path, [bytes([i]) * size for i in range(shards)], mmap=mmap)
    wrong: list[object] = []
    reads = itertools.count()
    stop = threading.Event()

    def read(seed: int) -> None:
        chosen = random.Random(seed)
        try:
            while not stop.is_set():
                shard = chosen.randrange(shards)
                if chosen.random() < 0.5:
                    data = reader.read(shard, 0, size)
                else:
                    buffer = bytearray(size)
                    reader.read_into(shard, 0, len(buffer), (memoryview(buffer),))
                    data = bytes(buffer)
                next(reads)
                if data != bytes([shard]) * size:
                    wrong.append((shard, set(data)))
        except BaseException as error:
            wrong.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    try:
        for thread in threads:
            thread.start()
        time.sleep(2)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)
    assert wrong == []
    assert next(reads) > 1_000


@pytest.mark.parametrize("has_preadv", [True, False])
def test_threads_that_share_one_file_each_get_their_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_preadv: bool
) -> None:
    """Where there is no pread, the position of the file is shared, and must be guarded."""
    monkeypatch.setattr(files, "_HAS_PREAD", has_preadv and hasattr(os, "preadv"))
    reader = make_reader(tmp_path, [CONTENT])
    wrong: list[object] = []

    def read(seed: int) -> None:
        chosen = random.Random(seed)
        try:
            for _ in range(1_500):
                offset = chosen.randrange(90_000)
                if reader.read(0, offset, 100) != CONTENT[offset : offset + 100]:
                    wrong.append(offset)
        except BaseException as error:
            wrong.append(error)

    in_six_threads(read)
    assert wrong == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_and_its_parent_read_through_one_descriptor(tmp_path: Path, mmap: bool) -> None:
    reader = make_reader(tmp_path, [CONTENT], mmap=mmap)
    reader.read(0, 0, 1)
    child = os.fork()
    if not child:
        right = all(reader.read(0, i * 100, 100) == CONTENT[i * 100 : i * 100 + 100] for i in range(900))
        os._exit(0 if right else 1)
    assert all(reader.read(0, i * 100, 100) == CONTENT[i * 100 : i * 100 + 100] for i in reversed(range(900)))
    assert os.waitpid(child, 0)[1] == 0


def test_a_reader_serves_ranges_in_any_order(tmp_path: Path, mmap: bool, system: str) -> None:
    reader = make_reader(tmp_path, [CONTENT], mmap=mmap)
    chosen = random.Random(3)
    for _ in range(200):
        offset = chosen.randrange(len(CONTENT))
        size = chosen.randrange(len(CONTENT) - offset)
        assert reader.read(0, offset, size) == CONTENT[offset : offset + size]


def test_an_error_of_the_file_system_is_passed_on_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = make_reader(tmp_path, [CONTENT])
    reader.read(0, 0, 1)

    def fail(*arguments: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(OSError, match="Input/output"):
        reader.read(0, 0, 10)


def test_paths_for_messages_are_those_of_the_files(tmp_path: Path) -> None:
    reader = make_reader(tmp_path, [b"a", b"b"])
    assert reader.path(1) == tmp_path / "shard-1"
    assert reader.path(2) == reader.path(-1) == tmp_path


def test_a_shallow_copy_can_outlive_its_original(tmp_path: Path, mmap: bool) -> None:
    reader = make_reader(tmp_path, [CONTENT], mmap=mmap)
    reader.read(0, 0, 1)
    other = copy.copy(reader)
    del reader
    gc.collect()
    assert other.read(0, 0, 100) == CONTENT[:100]


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system cannot be told")
def test_a_long_range_is_asked_for_in_pieces_that_every_device_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux cuts one call silently at the device's read-ahead limit, usually 128 KiB."""
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, offset, size, advice: calls.append((offset, size)))
    monkeypatch.setattr("packer.files._NOWAIT", None)  # or what is in memory would not be asked for
    reader = make_reader(tmp_path, [bytes(1_000_000)])
    reader.ask_ahead([(0, 5, 300_000), (0, 300_005, 400_000), (0, 999_999, 1)])
    assert max(size for _, size in calls) <= 128 << 10
    assert [offset for start, size in calls for offset in range(start, start + size)] == [*range(5, 700_005), 999_999]


# ------------------------------------------------------------------------------------------- several buffers, views, few files


@pytest.mark.parametrize("sizes", [(128, 96), (1, 0, 5), (0, 0, 7), (50_000, 50_000), (0, 0), (99_999, 1)], ids=str)
def test_several_buffers_are_filled_from_one_range(tmp_path: Path, mmap: bool, system: str, sizes: tuple[int, ...]) -> None:
    reader = make_reader(tmp_path, [CONTENT], mmap=mmap)
    offset = 100_000 - sum(sizes)
    memory = bytearray(b"\xaa" * (sum(sizes) + 20 * len(sizes)))
    buffers, wanted, start = [], bytearray(memory), 0
    for i, size in enumerate(sizes):
        buffers.append(memoryview(memory)[start : start + size])
        place = offset + sum(sizes[:i])
        wanted[start : start + size] = CONTENT[place : place + size]
        start += size + 20
    reader.read_into(0, offset, sum(sizes), buffers)
    assert memory == wanted
    with pytest.raises(CorruptDatasetError, match="not inside the container"):
        reader.read_into(0, offset + 1, sum(sizes), buffers)


@pytest.mark.skipif(not hasattr(os, "preadv"), reason="no preadv here")
@pytest.mark.parametrize("most", [1, 99, 100, 101, 250, 399])
def test_a_short_read_over_several_buffers_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """It may end in any of them, and at the end of one."""
    reader = make_reader(tmp_path, [CONTENT])
    real = os.preadv

    def few(descriptor: int, buffers: tuple[memoryview, ...], offset: int) -> int:
        left, parts = most, []
        for buffer in buffers:
            parts.append(buffer[:left])
            left -= len(parts[-1])
        return real(descriptor, parts, offset)

    monkeypatch.setattr(os, "preadv", few)
    memory = [bytearray(b"\xaa" * size) for size in (100, 0, 100, 200)]
    reader.read_into(0, 5_000, sum(map(len, memory)), [*map(memoryview, memory)])
    assert b"".join(memory) == CONTENT[5_000:5_400]


def test_a_file_that_ends_between_two_buffers_is_an_exception(tmp_path: Path, system: str) -> None:
    reader = make_reader(tmp_path, [CONTENT])
    reader.read(0, 0, 1)
    os.truncate(tmp_path / "shard-0", 1_000)
    with pytest.raises(TruncatedFileError) as caught:
        reader.read_into(0, 900, 150, (memoryview(bytearray(100)), memoryview(bytearray(50))))
    assert (caught.value.found, caught.value.expected) == (1_000, 100_000)


@pytest.mark.parametrize("offset, size", RANGES)
def test_a_view_shows_the_range_and_cannot_be_written(tmp_path: Path, mmap: bool, system: str, offset: int, size: int) -> None:
    reader = make_reader(tmp_path, [CONTENT], mmap=mmap)
    view = reader.view(0, offset, size)
    assert view == CONTENT[offset : offset + size]
    assert view.readonly
    del reader
    gc.collect()
    assert bytes(view) == CONTENT[offset : offset + size]
    with pytest.raises(TypeError, match="read-only"):
        view[:0] = b""


def test_a_view_outside_the_container_is_refused(tmp_path: Path, mmap: bool) -> None:
    reader = make_reader(tmp_path, [CONTENT], mmap=mmap)
    with pytest.raises(CorruptDatasetError, match="not inside the container"):
        reader.view(0, 99_999, 2)


def test_a_view_of_a_mapped_file_is_not_a_copy(tmp_path: Path) -> None:
    reader = make_reader(tmp_path, [CONTENT], mmap=True)
    view = reader.view(0, 100, 50)
    with Path(tmp_path, "shard-0").open("r+b") as file:
        file.seek(100)
        file.write(b"\xaa" * 50)
    assert view == b"\xaa" * 50


def test_a_view_stays_right_when_its_file_is_dropped_for_others(tmp_path: Path, mmap: bool) -> None:
    reader = make_reader(tmp_path, [b"%03d" % i for i in range(100)], mmap=mmap)
    view = reader.view(0, 0, 3)
    for i in range(1, 100):
        reader.read(i, 0, 3)
    assert view == b"000"


@pytest.mark.parametrize(
    "wrong",
    [(0, 99_999, 2), (5, 0, 1), (-1, 0, 1), (0, 2**63, 2**63), (0, 0, 2**64), (1, 0, 10), (2, 0, 10)],
    ids=["behind the end", "no such shard", "minus one", "far away", "too long", "removed", "replaced"],
)
def test_asking_ahead_never_fails_and_asks_for_the_others(
    tmp_path: Path, mmap: bool, monkeypatch: pytest.MonkeyPatch, wrong: tuple[int, int, int]
) -> None:
    reader = make_reader(tmp_path, [CONTENT] * 4, mmap=mmap)
    (tmp_path / "shard-1").unlink()
    Path(tmp_path, "new").write_bytes(CONTENT)
    os.replace(tmp_path / "new", tmp_path / "shard-2")
    asked: list[tuple[int, int]] = []
    kind = files.MappedFile if mmap else files.OpenFile
    monkeypatch.setattr(kind, "ask_ahead", lambda self, offset, size: asked.append((offset, size)))
    reader.ask_ahead([(3, 10, 5), wrong, (3, 90_000, 7)])
    assert asked == [(10, 5), (90_000, 7)]


def test_what_the_system_says_to_asking_ahead_does_not_matter(
    tmp_path: Path, mmap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(5, "Input/output error")

    kind = files.MappedFile if mmap else files.OpenFile
    monkeypatch.setattr(kind, "ask_ahead", fail)
    make_reader(tmp_path, [CONTENT], mmap=mmap).ask_ahead([(0, 0, 10)])


def asked_of(mmap: bool, monkeypatch: pytest.MonkeyPatch, cached: Callable[[int], bool]) -> list[tuple[int, int]]:
    """What is asked for from here on, where these bytes are in the system's memory."""
    asked: list[tuple[int, int]] = []
    kind = files.MappedFile if mmap else files.OpenFile
    monkeypatch.setattr(kind, "ask_ahead", lambda self, offset, size: asked.append((offset, size)))
    monkeypatch.setattr(kind, "has_cached", lambda self, offset: cached(offset))
    return asked


def test_what_is_in_memory_is_not_asked_for(tmp_path: Path, mmap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = make_reader(tmp_path, [bytes(1_000_000)], mmap=mmap)
    cold = {699_999}
    asked = asked_of(mmap, monkeypatch, lambda offset: offset not in cold)
    ranges = [(0, i * 100_000, 99_999 + i % 2) for i in range(0, 10, 2)]
    reader.ask_ahead(ranges)
    assert asked == []
    reader.ask_ahead([*ranges, (0, 600_000, 100_000)])
    assert (0, 99_999) in asked  # which of the others are there is not looked at then
    assert (600_000, 100_000) in asked


def test_after_a_thousand_in_memory_some_are_looked_at_until_one_is_missing(
    tmp_path: Path, mmap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = make_reader(tmp_path, [bytes(13_000_000)], mmap=mmap)
    looked: list[int] = []
    cold: set[int] = set()
    asked = asked_of(mmap, monkeypatch, lambda offset: looked.append(offset) or offset not in cold)
    apart = [(0, i * 100_000, 1) for i in range(128)]  # no two are joined
    for _ in range(8):
        reader.ask_ahead(apart)
    assert len(looked) == 1024
    reader.ask_ahead(apart)
    assert len(looked) == 1024 + 2
    cold.add(100_000)  # the second, which nobody looks at
    reader.ask_ahead(apart)
    assert asked == []
    cold.add(6_400_000)
    reader.ask_ahead(apart)
    assert asked == [(offset, size) for _, offset, size in apart]
    asked.clear()
    cold.clear()
    looked.clear()
    reader.ask_ahead(apart)
    assert (len(looked), asked) == (128, [])  # all are looked at again


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the system cannot be asked")
def test_a_file_that_was_just_written_is_in_memory(tmp_path: Path, mmap: bool) -> None:
    reader = make_reader(tmp_path, [CONTENT], mmap=mmap)
    file = reader._file(0, 0, 1)
    assert file.has_cached(99_999)
    assert not file.has_cached(100_000)  # behind the end there is nothing


def test_where_the_system_cannot_say_everything_is_asked_for(
    tmp_path: Path, mmap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over NFS, and on macOS and Windows."""
    monkeypatch.setattr(files, "_NOWAIT", None)
    kind, asked = files.MappedFile if mmap else files.OpenFile, list[tuple[int, int]]()
    monkeypatch.setattr(kind, "ask_ahead", lambda self, offset, size: asked.append((offset, size)))
    reader = make_reader(tmp_path, [CONTENT], mmap=mmap)
    for _ in range(1100):
        reader.ask_ahead([(0, 10, 10)])
    assert len(asked) == 1100


def test_neighbours_are_asked_for_at_once_and_distant_ranges_by_themselves(
    tmp_path: Path, mmap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = make_reader(tmp_path, [bytes(1_000_000)] * 2, mmap=mmap)
    asked = asked_of(mmap, monkeypatch, cached=lambda offset: False)
    ranges = [(0, 0, 100), (0, 100, 100), (0, 1_000, 50), (0, 500_000, 10), (0, 400_000, 10), (0, 400_000, 10), (1, 400_010, 5)]
    reader.ask_ahead(ranges)
    assert asked == [(0, 1_050), (500_000, 10), (400_000, 10), (400_000, 10), (400_010, 5)]
    asked.clear()
    reader.ask_ahead([(0, 0, 0), (1, 0, 0)])
    reader.ask_ahead([])
    assert asked == []


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
def test_with_too_many_files_open_the_reader_closes_its_own_and_goes_on(
    tmp_path: Path, mmap: bool, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    reader = make_reader(tmp_path, [b"%d" % i for i in range(5)], mmap=mmap)
    for i in range(4):
        reader.read(i, 0, 1)
    real = os.open

    def few(path: object, flags: int, *arguments: object, **options: object) -> int:
        if len(reader._files) > 0:
            raise OSError(error, os.strerror(error))
        return real(path, flags, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", few)
    assert reader.read(4, 0, 1) == b"4"
    assert reader.read(0, 0, 1) == b"0"


@_needs_proc
def test_files_that_are_dropped_for_want_of_descriptors_are_closed(
    tmp_path: Path, mmap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = make_reader(tmp_path, [b"%d" % i for i in range(5)], mmap=mmap)
    for i in range(4):
        reader.read(i, 0, 1)
    real, failures = reader._open, iter([OSError(errno.EMFILE, "Too many open files")])

    def open_once_refused(shard: int) -> files.OpenFile:
        for failure in failures:
            raise failure
        assert open_in(tmp_path) == []
        return real(shard)

    monkeypatch.setattr(reader, "_open", open_once_refused)
    assert reader.read(4, 0, 1) == b"4"


def test_too_many_files_open_elsewhere_is_an_error_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing that the reader could close."""
    reader = make_reader(tmp_path, [CONTENT])

    def fail(*arguments: object, **options: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(OSError, match="Too many open files") as caught:
        reader.read(0, 0, 10)
    assert caught.value.errno == errno.EMFILE


@_needs_proc
def test_another_error_on_opening_a_file_costs_the_others_nothing(
    tmp_path: Path, mmap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = make_reader(tmp_path, [CONTENT] * 3, mmap=mmap)
    reader.read(0, 0, 1)
    reader.read(1, 0, 1)

    def fail(*arguments: object, **options: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        with pytest.raises(OSError, match="Input/output"):
            reader.read(2, 0, 1)
    assert set(open_in(tmp_path)) == {"shard-0", "shard-1"}


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the system cannot be asked what it has in memory")
def test_a_long_range_that_is_in_memory_is_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mmap: bool) -> None:
    """It costs a tenth of reading an array of 600 kB."""
    calls: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: calls.append(arguments[1]))
    reader = make_reader(tmp_path, [bytes(1_000_000)], mmap=mmap)
    reader.read(0, 0, 1_000_000)
    reader.ask_ahead([(0, 5, 900_000)])
    assert calls == []
