"""Samples that were read once come from the cache, one copy for all; and nothing that happens to it gives another byte.

To see where a sample comes from, the shards are overwritten with zeros behind the dataset's back: what is still right was
cached, and all else is an error.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import logging
import multiprocessing
import os
import pickle
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader

from packer import CorruptSampleError, OptionError, PackedDataset, cachefile, formats, open_dataset
from packer.cachefile import CacheFile, memory_limit
from packer.cgroup import memory_group
from packer.plan import ShardLimits
from tests.cases.loaders import METHODS, private_bytes
from tests.cases.processes import run_script
from tests.inputs import in_six_threads, jpeg, npy, pack_here, write_tree

resource = pytest.importorskip("resource")  # and no cache where there is none

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "preadv"), reason="a cache needs preadv"),
    # Python 3.12 and later warn of any fork beside threads; torch itself has some.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
]

SAMPLES = 24
LENGTH = 3000  # int32: three pages of 4 kB
KINDS = ("memory", "disk")
BAD_SPACE = [errno.ENOSPC, errno.EDQUOT, errno.EIO]


def contents(i: int) -> np.ndarray[Any, Any]:
    return np.arange(LENGTH, dtype=np.int32) + 10_000 * i


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """24 arrays in four classes; several shards where the format has any."""
    files: dict[str | bytes, bytes] = {f"{i // 6}/{i:02d}.npy": npy(contents(i)) for i in range(SAMPLES)}
    source = write_tree(tmp_path_factory.mktemp("cache") / "in", files)
    limits = {name: {"limits": ShardLimits(samples=5)} if formats.get(name).has_shards else {} for name in formats.names()}
    return {name: pack_here(source, name, **limits[name]).output for name in formats.names()}


class Place:
    """A dataset of one's own, and a folder for its cache."""

    def __init__(self, root: Path, source: Path) -> None:
        self.folder = root / "cached"
        self.path = root / source.name
        shutil.copytree(source, self.path)

    def open(self, kind: str | None, **options: Any) -> PackedDataset:
        if kind == "disk":
            options.setdefault("cache_folder", self.folder)
        return open_dataset(self.path, **{"output": "numpy", **options}, cache=kind)

    @property
    def private(self) -> Path:
        return self.folder / f"packer-cache-{os.getuid()}"

    @property
    def file(self) -> Path:
        (file,) = self.private.iterdir()
        return file

    def blind(self) -> None:
        """From now on nothing can be read from the dataset itself, though all files seem to be the same."""
        for shard in [*self.path.glob("data.*"), *self.path.glob("shard-*")]:
            overwrite(shard, 0, bytes(shard.stat().st_size))


def overwrite(path: Path, offset: int, data: bytes) -> None:
    info = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


@pytest.fixture
def place(tmp_path: Path, outputs: dict[str, Path], format_name: str) -> Place:
    return Place(tmp_path, outputs[format_name])


@pytest.fixture
def tar(tmp_path: Path, outputs: dict[str, Path]) -> Place:
    """For what does not depend on the format; it has five shards."""
    return Place(tmp_path, outputs["webdataset"])


def wrong(data: PackedDataset, numbers: range = range(SAMPLES)) -> list[int]:
    """Samples that are not what they should be, one by one."""
    return [i for i in numbers if not np.array_equal(np.asarray(data[i][0]), contents(i)) or data[i][1] != i // 6]


def kept(data: PackedDataset) -> list[int]:
    """Samples that can be read although the dataset cannot."""
    found = []
    for i in range(SAMPLES):
        with contextlib.suppress(CorruptSampleError):
            assert np.array_equal(data[i][0], contents(i))
            found.append(i)
    return found


def used_bytes(data: PackedDataset) -> int:
    file = data._store.cache.file
    return os.fstat(file._descriptor).st_blocks * 512


def in_child(work: Callable[[], object]) -> int:
    """Run something in a forked process; gives its exit status, negative for a signal."""
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(60)
    assert process.exitcode is not None
    return process.exitcode


# ---------------------------------------------------------------------------------------------------------------- what it does


@pytest.mark.parametrize("kind", KINDS)
def test_after_one_epoch_all_ways_of_reading_come_from_the_cache(place: Place, kind: str) -> None:
    data, raw = place.open(kind), place.open(kind, output="bytes")
    files = [raw[i][0] for i in range(SAMPLES)]
    assert files == [npy(contents(i)) for i in range(SAMPLES)]
    assert wrong(data) == []
    place.blind()
    assert wrong(data) == []
    assert [raw[i][0] for i in range(SAMPLES)] == files
    rows, targets = data[[7, 3, 23]]
    assert np.array_equal(rows, [contents(7), contents(3), contents(23)])
    assert targets.tolist() == [1, 0, 3]
    assert [np.array_equal(array, contents(i)) for i, (array, _) in zip((5, 6), data.__getitems__([5, 6]), strict=True)] == [
        True, True
    ]  # fmt: skip
    with data.view(4) as view:
        assert bytes(view) == files[4]
        assert view.readonly


@pytest.mark.parametrize("kind", KINDS)
def test_after_one_epoch_of_batches_the_next_comes_from_the_cache(place: Place, kind: str) -> None:
    data = place.open(kind)
    for _ in range(2):
        rows, _ = data[range(SAMPLES)]
        assert np.array_equal(rows, [contents(i) for i in range(SAMPLES)])
        data._store.extents = None  # type: ignore[assignment] # not even the header of the first
        data._store.ask_ahead = lambda numbers, records: None  # type: ignore[method-assign]


def test_pictures_come_from_the_cache(tmp_path: Path, format_name: str) -> None:
    source = write_tree(tmp_path / "in", {f"{i}.jpg": jpeg(seed=i) for i in range(4)})
    place = Place(tmp_path / "own", pack_here(source, format_name).output)
    data, batches = place.open("memory", output="pil"), place.open("memory", size=(20, 30))
    expected, batch = [data[i].tobytes() for i in range(4)], batches[range(4)].copy()
    place.blind()
    assert [data[i].tobytes() for i in range(4)] == expected
    assert np.array_equal(batches[range(4)], batch)


def test_an_array_of_another_shape_comes_from_the_cache_too(tmp_path: Path, format_name: str) -> None:
    """The first of a batch says which header is expected; of the second it is another one, and as long."""
    arrays = [np.full(shape, i, np.int16) for i, shape in enumerate([(60, 50), (50, 60)])]
    source = write_tree(tmp_path / "in", {f"{i}.npy": npy(array) for i, array in enumerate(arrays)})
    place = Place(tmp_path / "own", pack_here(source, format_name).output)
    data = place.open("memory", transform=np.ravel)
    plain = place.open("memory")
    for _ in range(2):
        assert data[[0, 1]].tolist() == [array.ravel().tolist() for array in arrays]
        with pytest.raises(ValueError, match="50, 60"):
            plain[[0, 1]]
        place.blind()


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_is_not_kept_is_asked_for_ahead(
    place: Place, kind: str, monkeypatch: pytest.MonkeyPatch, format_name: str
) -> None:
    """Else the slow storage would be asked for the whole dataset each epoch, and nobody would see why it is slow."""
    data = place.open(kind)
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(data._store.extents, "ask_ahead", asked.extend)
    assert wrong(data, range(0, SAMPLES, 2)) == []
    data[range(8)]
    records = [data._store.index[i] for i in (1, 3, 5, 7)]
    assert asked == [(record.shard, record.offset, record.size) for record in records]
    asked.clear()
    data[range(8)]
    assert asked == []


def test_what_is_kept_on_a_disk_is_asked_for_ahead_there(tar: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tar.open("disk")
    data[range(SAMPLES)]
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(CacheFile, "ask_ahead", lambda self, offset, size: asked.append((offset, size)))
    data[[0, 1, 9]]
    cache, records = data._store.cache, [data._store.index[i] for i in (0, 1, 9)]
    first, second, far = (cache._bases[record.shard] + record.offset for record in records)
    assert asked == [(first, second + records[1].size - first), (far, records[2].size)]


def test_without_the_option_there_is_no_cache(tar: Place) -> None:
    data = tar.open(None)
    assert wrong(data) == []
    assert data._store.cache is None
    tar.blind()
    assert kept(data) == []


def test_parts_of_a_dataset_share_its_cache(tar: Place) -> None:
    data = tar.open("memory")
    assert wrong(data) == []
    tar.blind()
    first, second = data.split(0.5, 0.5)
    part = data.subset(indices=[20, 3])
    assert sorted(int(array[0]) // 10_000 for array, _ in itertools.chain(first, second)) == list(range(SAMPLES))
    assert [int(array[0]) // 10_000 for array, _ in part] == [20, 3]


# ------------------------------------------------------------------------------------------------------------ one copy for all


class Mix:
    """A transform that holds the dataset, as MixUp does: the dataset is then pickled twice for each process."""

    def __init__(self, data: PackedDataset) -> None:
        self.data = data

    def __call__(self, value: Any) -> Any:
        number = int(value[0]) // 10_000
        return torch.stack([value, self.data[number][0]])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("stays", [True, False])
def test_worker_processes_share_one_copy_in_memory(tar: Place, method: str, stays: bool) -> None:
    """Other workers read a sample in the second epoch than in the first, and the process that started them reads all."""
    if method == "spawn" and not stays:
        pytest.skip("takes two seconds a worker, and differs from forkserver in nothing here")
    data = tar.open("memory", output="torch")
    data.transform = Mix(tar_copy := pickle.loads(pickle.dumps(data)))
    loader = DataLoader(
        data, 4, shuffle=True, num_workers=2, multiprocessing_context=method, persistent_workers=stays, timeout=100
    )
    for _ in range(2):
        seen = []
        for values, _ in loader:
            assert all(torch.equal(value[0], value[1]) for value in values)
            seen += [int(value[0, 0]) // 10_000 for value in values]
        assert sorted(seen) == list(range(SAMPLES))
        tar.blind()
    data.transform = None
    assert wrong(data) == []
    assert wrong(tar_copy) == []
    assert used_bytes(data) < 1.3 * SAMPLES * 4 * LENGTH
    del loader


def read_all(data: PackedDataset | bytes, numbers: range = range(SAMPLES)) -> None:
    opened = pickle.loads(data) if isinstance(data, bytes) else data
    if wrong(opened, numbers):
        os._exit(3)


@pytest.mark.skipif("forkserver" not in METHODS, reason="needs forkserver")
def test_a_process_that_is_started_later_finds_the_disk_cache(tar: Place) -> None:
    data = tar.open("disk")
    assert wrong(data) == []
    tar.blind()
    process = multiprocessing.get_context("forkserver").Process(target=read_all, args=(data,))
    process.start()
    process.join(60)
    assert process.exitcode == 0


@pytest.mark.skipif("forkserver" not in METHODS or not Path("/proc/self/fd").exists(), reason="needs forkserver and /proc")
def test_what_was_pickled_for_a_queue_finds_the_memory_of_the_process_it_comes_from(tar: Place) -> None:
    data = tar.open("memory")
    assert wrong(data) == []
    tar.blind()
    process = multiprocessing.get_context("forkserver").Process(target=read_all, args=(pickle.dumps(data),))
    process.start()
    process.join(60)
    assert process.exitcode == 0


def test_what_was_pickled_by_a_process_that_ended_begins_with_an_empty_cache(tar: Place) -> None:
    data = tar.open("memory")
    assert wrong(data) == []
    sent = pickle.dumps(data)
    number = data._store.cache.file._descriptor
    del data
    gc.collect()
    taken = os.open(tar.path / "manifest.json", os.O_RDONLY)
    if taken != number:
        os.dup2(taken, number)
        os.close(taken)
    with os.fdopen(number, "rb"):  # which now means another file
        arrived = pickle.loads(sent)
    assert used_bytes(arrived) < 4096
    assert wrong(arrived) == []
    assert used_bytes(arrived) > SAMPLES * 4 * LENGTH


class Twice:
    """Holds the dataset twice, once of it pickled by itself while the process is started."""

    def __init__(self, data: PackedDataset) -> None:
        self.data = data

    def __getstate__(self) -> dict[str, Any]:
        return {"data": self.data, "pickled": bytes(ForkingPickler.dumps(self.data))}

    def read(self) -> None:
        other = pickle.loads(self.pickled)  # type: ignore[attr-defined]
        read_all(other)
        del other
        gc.collect()
        with Path(os.devnull).open("rb"):  # gets the number that was closed
            read_all(self.data)


@pytest.mark.skipif("forkserver" not in METHODS, reason="needs forkserver")
def test_two_copies_in_one_process_do_not_close_each_others_cache(tar: Place) -> None:
    data = tar.open("memory")
    assert wrong(data) == []
    tar.blind()
    process = multiprocessing.get_context("forkserver").Process(target=Twice(data).read)
    process.start()
    process.join(60)
    assert process.exitcode == 0


def test_private_memory_of_workers_stays_flat_over_epochs(tmp_path: Path) -> None:
    """16 MB, which are in none of the processes but beside them."""
    source = write_tree(tmp_path / "in", {f"{i}.npy": npy(np.full(50_000, i, np.int32)) for i in range(80)})
    data = open_dataset(pack_here(source, "hdf5").output, output="bytes", transform=memory_of_worker, cache="memory")
    loader = DataLoader(
        data, sampler=BatchSampler(range(80), 8, False), batch_size=None, num_workers=2,
        multiprocessing_context="fork", persistent_workers=True, timeout=100,
    )  # fmt: skip
    first, *later = [[int(value) for batch in loader for value in batch] for _ in range(4)]
    assert used_bytes(data) > 16_000_000
    assert max(max(first), *map(max, later)) - min(first) < 4_000_000, (first[::8], later[-1][::8])
    del loader


def memory_of_worker(value: bytes) -> int:
    return private_bytes()


def test_threads_share_a_dataset_with_a_cache(tar: Place) -> None:
    data = tar.open("disk")
    found: list[object] = []

    def read(seed: int) -> None:
        numbers = list(range(SAMPLES)) * 4
        random.Random(seed).shuffle(numbers)
        try:
            found.extend(i for i in numbers if wrong(data, range(i, i + 1)))
        except BaseException as error:
            found.append(error)

    in_six_threads(read)
    assert found == []
    tar.blind()
    assert wrong(data) == []


def test_two_jobs_fill_one_disk_cache_at_once(tar: Place) -> None:
    fork = multiprocessing.get_context("fork")
    start = fork.Barrier(3)

    def job(order: range) -> None:
        data = tar.open("disk")
        start.wait(60)
        read_all(data, order)

    jobs = [fork.Process(target=job, args=(order,)) for order in (range(SAMPLES), range(SAMPLES)[::-1], range(SAMPLES))]
    for process in jobs:
        process.start()
    for process in jobs:
        process.join(60)
    assert [process.exitcode for process in jobs] == [0, 0, 0]
    tar.blind()
    assert wrong(tar.open("disk")) == []


def test_the_same_dataset_at_another_path_shares_the_disk_cache(tar: Place, tmp_path: Path) -> None:
    other = Place(tmp_path / "other", tar.path)
    other.folder = tar.folder
    assert wrong(tar.open("disk")) == []
    other.blind()
    assert wrong(other.open("disk")) == []


@pytest.mark.parametrize("method", ["memfd", "a temporary file"])
def test_a_memory_cache_leaves_nothing_behind(tar: Place, monkeypatch: pytest.MonkeyPatch, method: str, tmp_path: Path) -> None:
    """Not even where the system has no files in memory."""
    monkeypatch.setattr(cachefile.tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    if method != "memfd":
        monkeypatch.delattr(os, "memfd_create", raising=False)
        monkeypatch.setattr(cachefile.sys, "platform", "darwin")
    data = tar.open("memory")
    assert wrong(data) == []
    assert list((tmp_path / "temporary").iterdir()) == []
    tar.blind()
    assert wrong(data) == []
    assert wrong(pickle.loads(pickle.dumps(data))) == []


# ---------------------------------------------------------------------------------------------------------- what happens to it


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_that_is_killed_in_the_middle_of_a_write_leaves_nothing_half(place: Place, kind: str) -> None:
    """At each of the first twelve writes: of payloads and of their marks."""
    for write in range(12):
        shutil.rmtree(place.folder, ignore_errors=True)
        data = place.open(kind)
        count = itertools.count()
        whole = CacheFile.write

        def half(
            self: CacheFile, offset: int, *parts: Any, count: Iterator[int] = count, whole: Any = whole, last: int = write
        ) -> None:
            if next(count) == last:
                joined = b"".join(parts)
                whole(self, offset, joined[: len(joined) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            whole(self, offset, *parts)

        def fill(data: PackedDataset = data, half: Any = half) -> None:
            CacheFile.write = half  # type: ignore[method-assign]
            read_all(data)

        assert in_child(fill) == -signal.SIGKILL
        cache = data._store.cache
        marked = [i for i in range(SAMPLES) if cache.read(i, data._store.index[i]) is not None]
        assert marked == list(range(write // 2))
        assert wrong(data) == []
    place.blind()
    assert wrong(data) == []


def test_jobs_that_are_killed_at_any_moment_leave_a_cache_that_is_right(tar: Place) -> None:
    chosen = random.Random(7)
    fork = multiprocessing.get_context("fork")
    for _ in range(12):
        process = fork.Process(target=lambda: [read_all(tar.open("disk")) for _ in range(1000)])
        process.start()
        process.join(chosen.uniform(0.002, 0.04))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert wrong(tar.open("disk")) == []
        tar.file.unlink()


@pytest.mark.parametrize("kind", KINDS)
def test_the_limit_is_kept(place: Place, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    data = place.open(kind, cache_bytes=150_000)
    copy = pickle.loads(pickle.dumps(data))
    for _ in range(2):
        assert wrong(data) == []
        assert wrong(copy) == []
    assert 100_000 < used_bytes(data) <= 150_000
    assert [(record.levelno, record.name) for record in caplog.records] == [(logging.WARNING, "packer")]
    assert "150,000 bytes" in caplog.text
    place.blind()
    assert 5 < len(kept(data)) < 12


def test_a_sample_that_is_larger_than_the_limit_does_not_keep_out_others(tmp_path: Path) -> None:
    sizes = [100_000, 300, 300]
    source = write_tree(tmp_path / "in", {f"{i}.npy": npy(np.zeros(size, np.uint8)) for i, size in enumerate(sizes)})
    place = Place(tmp_path / "own", pack_here(source, "lmdb").output)
    data = place.open("memory", cache_bytes=40_000)
    assert [len(array) for array in data] == sizes
    place.blind()
    assert [len(data[i]) for i in (1, 2)] == sizes[1:]
    with pytest.raises(CorruptSampleError):
        data[0]


def test_a_memory_cache_has_a_limit_also_where_none_is_given(tar: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cachefile, "memory_limit", lambda: 100_000)
    data = tar.open("memory")
    copy = pickle.loads(pickle.dumps(data))
    monkeypatch.undo()
    assert wrong(data) == wrong(copy) == []
    assert 70_000 < used_bytes(data) <= 100_000


def test_workers_together_keep_the_limit_to_within_a_sample_each(tar: Place) -> None:
    data = tar.open("memory", cache_bytes=100_000)
    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=read_all, args=(data,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert 70_000 < used_bytes(data) <= 100_000 + 3 * 20_000


def test_a_tenth_of_the_disk_stays_free(tar: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    data = tar.open("disk")
    assert wrong(data, range(3)) == []
    true = os.fstatvfs(data._store.cache.file._descriptor)
    free = true.f_blocks // 10
    monkeypatch.setattr(cachefile.os, "fstatvfs", lambda _: os.statvfs_result((*true[:4], free, *true[5:])))
    assert wrong(data) == []
    assert "a tenth of the disk" in caplog.text
    tar.blind()
    assert kept(data) == [0, 1, 2]


@pytest.mark.parametrize("error", BAD_SPACE)
@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_is_a_warning_and_no_more(
    tar: Place, kind: str, error: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = tar.open(kind)
    count, write = itertools.count(), os.pwrite

    def full(descriptor: int, part: Any, offset: int) -> int:
        if next(count) < 6:
            return write(descriptor, part, offset)
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(cachefile.os, "pwrite", full)
    for _ in range(2):
        assert wrong(data) == []
    assert len(caplog.records) == 1
    assert os.strerror(error) in caplog.text
    assert next(count) < 9  # it is not tried again for each sample
    tar.blind()
    assert kept(data) == [0, 1, 2]


FULL = """
    import logging, resource, sys
    from packer import open_dataset

    logging.basicConfig(stream=sys.stdout, format="%(levelname)s")
    data = open_dataset(sys.argv[1], output="numpy", cache=sys.argv[2])
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    for _ in range(2):
        print([i for i in range(len(data)) if data[i][0][0] != 10_000 * i])
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_must_not_grow_is_a_warning_and_no_more(tar: Place, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tar.path.parent))
    assert run_script(FULL, tar.path, kind) == "WARNING\n[]\n[]\n"
    assert kind == "memory" or len(list(tar.path.parent.glob("packer-cache-*/*"))) == 1


def flip(place: Place) -> None:
    """Every byte behind the marks; as where a machine went down before the payloads were on the disk."""
    data = place.file.read_bytes()
    place.file.write_bytes(data[:8192] + bytes(255 - byte for byte in data[8192:]))


def mark_all(place: Place) -> None:
    place.file.write_bytes(bytes(4096) + b"\1" * 4096)


def link_folder(place: Place) -> None:
    place.private.rename(place.folder / "elsewhere")
    place.private.symlink_to(place.folder / "elsewhere")


def link_file(place: Place) -> None:
    name = place.file
    name.rename(place.folder / "elsewhere")
    name.symlink_to(place.folder / "elsewhere")


def link_file_hard(place: Place) -> None:
    (place.folder / "elsewhere").hardlink_to(place.file)


def give_away(place: Place) -> None:
    if os.getuid():
        pytest.skip("only root can give a folder away")
    os.chown(place.private, 12345, -1)


def give_file_away(place: Place) -> None:
    if os.getuid():
        pytest.skip("only root can give a file away")
    os.chown(place.file, 12345, -1)


def put_fifo(place: Place) -> None:
    name = place.file
    name.unlink()
    os.mkfifo(name)


def put_folder(place: Place) -> None:
    name = place.file
    name.unlink()
    name.mkdir()


HEALED: list[Callable[[Place], object]] = [
    flip,
    mark_all,
    lambda place: os.truncate(place.file, 0),
    lambda place: os.truncate(place.file, 4100),
    lambda place: os.truncate(place.file, 60_000),
    lambda place: place.file.write_bytes(b"\1" * 600_000),
    lambda place: place.file.unlink(),
    lambda place: shutil.rmtree(place.folder),
]
REFUSED: list[Callable[[Place], object]] = [
    link_folder, link_file, link_file_hard, give_away, give_file_away, put_fifo, put_folder,
    lambda place: place.private.chmod(0o777),
    lambda place: place.file.chmod(0o620),
]  # fmt: skip


@pytest.mark.parametrize("damage", HEALED)
@pytest.mark.parametrize("verify", [True, False])
def test_a_damaged_cache_gives_no_wrong_byte_and_is_made_good(place: Place, damage: Any, verify: bool, caplog: Any) -> None:
    """Also without ``verify``, which is about the dataset."""
    running = place.open("disk", verify=verify)
    assert wrong(running) == []
    damage(place)
    rows, _ = running[range(SAMPLES)]
    assert np.array_equal(rows, [contents(i) for i in range(SAMPLES)])
    assert wrong(running) == []
    later = place.open("disk", verify=verify)
    assert wrong(later) == []
    place.blind()
    assert wrong(later) == []
    assert caplog.text == ""


@pytest.mark.parametrize("damage", REFUSED)
def test_a_cache_that_others_may_have_their_hands_in_is_not_used(tar: Place, damage: Any, caplog: Any) -> None:
    assert wrong(tar.open("disk"), range(3)) == []
    damage(tar)
    data = tar.open("disk")
    assert wrong(data) == []
    assert data._store.cache is None
    assert len(caplog.records) == 1
    assert "no cache in" in caplog.text
    elsewhere = tar.folder / "elsewhere"
    if elsewhere.is_file():  # nothing was added to it
        assert elsewhere.read_bytes()[4096:].startswith(b"\1\1\1\0")


@pytest.mark.parametrize(
    "forged",
    [
        {"shard": 99},
        {"offset": 2**64 - 1},
        {"offset": 2**62},
        {"size": 2**63},
        {"offset": 70_000},
    ],
)
def test_a_record_that_points_elsewhere_finds_nothing_in_a_cache_that_is_marked(tar: Place, forged: dict[str, int]) -> None:
    """Of a stranger's dataset, or of a damaged cache."""
    data = tar.open("memory")
    assert wrong(data) == []
    cache, record = data._store.cache, data._store.index[3]._replace(**forged)
    assert tar.path.joinpath("shard-000000.tar").stat().st_size < 82_000
    assert cache.read(3, record) is None
    assert cache.ask_ahead([3], [record]) == [record]


def test_folder_and_file_of_a_cache_are_nobody_elses(tar: Place) -> None:
    before = os.umask(0)
    try:
        tar.open("disk")
    finally:
        os.umask(before)
    assert [oct(path.stat().st_mode & 0o777) for path in (tar.private, tar.file)] == ["0o700", "0o600"]


def test_without_a_folder_the_disk_cache_lies_among_temporary_files(tar: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cachefile.tempfile, "tempdir", str(tar.folder))
    assert wrong(tar.open("disk", cache_folder=None)) == []
    assert tar.file.stat().st_size > SAMPLES * 4 * LENGTH


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verify", [True, False])
def test_a_damaged_sample_is_never_kept(place: Place, kind: str, verify: bool) -> None:
    data = place.open(kind, verify=verify)
    record = data._store.index[9]
    path = data._store.extents.path(record.shard)
    sound = path.read_bytes()[record.offset + record.size - 4 :][:4]
    overwrite(path, record.offset + record.size - 4, b"\xff\xff\xff\xff")
    for _ in range(2):
        if verify:
            for read in (lambda: data[9], lambda: data[[8, 9]], lambda: place.open(None)[9]):
                with pytest.raises(CorruptSampleError, match=r"sample 9 .*the digest differs"):
                    read()
        else:
            assert (data[9][0][-1], data[[8, 9]][0][1, -1]) == (-1, -1)
        assert data._store.cache.read(9, record) is None
    overwrite(path, record.offset + record.size - 4, sound)
    assert wrong(data) == []


def test_a_dataset_that_took_the_place_of_another_gets_none_of_its_bytes(tmp_path: Path, format_name: str) -> None:
    outputs = []
    for number in range(2):  # alike in all but the values
        source = write_tree(tmp_path / str(number) / "in", {f"{i}.npy": npy(np.full(3000, i + 9 * number)) for i in range(5)})
        outputs.append(pack_here(source, format_name).output)
    place = Place(tmp_path / "own", outputs[0])
    assert [int(array[0]) for array in place.open("disk")] == [0, 1, 2, 3, 4]
    shutil.rmtree(place.path)
    shutil.copytree(outputs[1], place.path)
    assert [int(array[0]) for array in place.open("disk")] == [9, 10, 11, 12, 13]
    place.blind()
    assert [int(array[0]) for array in place.open("disk")] == [9, 10, 11, 12, 13]
    shutil.rmtree(place.path)
    shutil.copytree(outputs[0], place.path)  # it comes back, and nobody took its cache meanwhile
    place.blind()
    assert [int(array[0]) for array in place.open("disk")] == [0, 1, 2, 3, 4]


MANY_SHARDS = """
    import resource, sys
    from packer import open_dataset

    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    datasets = [open_dataset(sys.argv[1], output="numpy", cache=kind, cache_folder=folder)
                for kind, folder in (("memory", None), ("disk", sys.argv[2]), ("memory", None))]
    for _ in range(2):
        print([i for i in range(len(datasets[0])) for data in datasets if int(data[i][0]) != i])
"""


def test_a_cache_takes_one_descriptor_whatever_the_number_of_shards(tmp_path: Path) -> None:
    source = write_tree(tmp_path / "in", {f"{i:03d}.npy": npy(np.full(20, i, np.int16)) for i in range(60)})
    output = pack_here(source, "webdataset", limits=ShardLimits(samples=1)).output
    assert run_script(MANY_SHARDS, output, tmp_path / "cached") == "[]\n[]\n"


def test_a_process_that_can_open_no_more_files_goes_without_a_cache(tar: Place, caplog: pytest.LogCaptureFixture) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    data = tar.open("disk")
    sent = pickle.dumps(data._store.cache.file)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
        assert pickle.loads(sent) is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert os.strerror(errno.EMFILE) in caplog.text


# --------------------------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    "options, found",
    [
        ({"cache": "ram"}, "'ram'"),
        ({"cache": True}, "True"),
        ({"cache": "memory", "cache_bytes": 0}, "cache_bytes=0"),
        ({"cache": "memory", "cache_bytes": 5e9}, "cache_bytes=5000000000.0"),
        ({"cache": "memory", "cache_bytes": True}, "cache_bytes=True"),
        ({"cache_bytes": 5}, "say cache="),
        ({"cache_folder": "x"}, "say cache='disk'"),
        ({"cache": "memory", "cache_folder": "x"}, "say cache='disk'"),
    ],
)
def test_options_that_make_no_sense_are_refused(tar: Place, options: dict[str, Any], found: str) -> None:
    with pytest.raises(OptionError, match=found):
        open_dataset(tar.path, **options)


def test_where_a_cache_cannot_work_the_option_is_refused(tar: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cachefile, "_HAS_PWRITE", False)
    with pytest.raises(OptionError, match="this system lacks"):
        tar.open("memory")
    assert wrong(tar.open(None)) == []


@pytest.mark.parametrize(
    "text, file",
    [
        ("0::/job_1/step_0\n", "job_1/memory.max"),
        ("0::/../other\n", "memory.max"),
        ("4:cpu:/job_1\n3:memory:/job_1/step_0\n0::/\n", "memory/job_1/step_0/memory.limit_in_bytes"),
        ("3:memory:/of/the/host\n", "memory/memory.limit_in_bytes"),
        ("0::/\n", "memory.max"),
    ],
)
def test_a_memory_cache_takes_half_of_what_the_cgroup_grants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, file: str
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    used = "memory.usage_in_bytes" if "limit_in" in file else "memory.current"
    group = {"job_1/step_0/memory.max": b"max\n", file: b"300000000\n", f"{Path(file).parent}/{used}": b"1\n"}
    write_tree(tmp_path, {"proc/self/cgroup": text.encode(), **{f"sys/fs/cgroup/{name}": what for name, what in group.items()}})
    monkeypatch.setattr(cachefile, "memory_group", lambda: memory_group(tmp_path))
    assert memory_limit() == 150_000_000
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert memory_limit() == 50_000_000


def test_without_a_cgroup_a_memory_cache_takes_half_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(cachefile, "memory_group", lambda: memory_group(tmp_path))
    assert memory_limit() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
