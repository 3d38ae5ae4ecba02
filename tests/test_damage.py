"""Damage a packed dataset on purpose: it is found, and named, and never becomes other data, another exception or a hang.

Every damage is one of three things: an error of packer when the dataset is opened, an error of packer at the sample that it
struck, or a finding of `verify_dataset`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import textwrap
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from packer import formats, open_dataset, verify_dataset
from packer.errors import CorruptDatasetError, CorruptSampleError, DatasetChangedError, DatasetError, TruncatedFileError
from packer.index import RECORD
from packer.plan import ShardLimits
from packer.verify import Finding
from tests.inputs import jpeg, npy, pack_here, photo, png, write_tree

pytestmark = pytest.mark.timeout(120)  # a hang is a failure

PAGE = 4096


@dataclass(frozen=True)
class Packed:
    """A sound dataset and what comes out of it."""

    format: str
    path: Path
    payloads: list[bytes]
    names: list[str]
    targets: list[int]

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.path.iterdir())

    @property
    def containers(self) -> list[str]:
        return [name for name in self.files if name not in ("manifest.json", "index.npy", "names.bin", "report.jsonl")]


def contents(seed: int) -> dict[str | bytes, bytes]:
    """Pictures and arrays of many sizes in two classes; one of them gives a row in the report."""
    files: dict[str | bytes, bytes] = {}
    for i in range(6):
        files[f"cat/{i}.jpg"] = jpeg(photo(40 + 8 * i, 48, seed=seed + i))
        files[f"dog/{i}.npy"] = npy(np.arange(40 + 300 * i, dtype=np.int16) + seed)
    files["dog/named wrong.jpg"] = png(photo(16, 16, seed=seed))
    return files


def pack_new(root: Path, format: str, files: dict[str | bytes, bytes], samples: int = 5) -> Packed:
    """Pack files; into several shards where the format has any."""
    limits = {"limits": ShardLimits(samples=samples)} if formats.get(format).has_shards else {}
    output = pack_here(write_tree(root / "in", files), format, **limits).output
    names = sorted(map(str, files), key=lambda name: name.encode().split(b"/"))
    classes = sorted({name.split("/")[0] for name in names})
    return Packed(format, output, [files[n] for n in names], names, [classes.index(n.split("/")[0]) for n in names])


@pytest.fixture(scope="module", params=formats.names())
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """A sound dataset in each format; tests work on copies."""
    found = pack_new(tmp_path_factory.mktemp(request.param), request.param, contents(0))
    assert (found.path / "report.jsonl").stat().st_size > 0
    assert judge(found, found.path) == ""
    return found


@pytest.fixture
def work(packed: Packed, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return copy_of(packed.path, tmp_path / "work")


def copy_of(source: Path, target: Path) -> Path:
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


def judge(packed: Packed, folder: Path) -> str:
    """What gives the damage away; an empty text where nothing does. Anything but packer's own errors passes through.

    Whatever is given out without an error must be what was packed, mapped or not.
    """
    found = ""
    for mmap in (False, True):
        try:
            data = open_dataset(folder, output="bytes", mmap=mmap)
        except DatasetError as error:
            found = found or f"open: {required(error, folder)}"
            continue
        assert data.classes == sorted(set(data.classes))
        if len(data) != len(packed.payloads):
            return f"other data: {len(data)} samples"
        for i, (payload, target) in enumerate(zip(packed.payloads, packed.targets, strict=True)):
            try:
                sample = data[i]
                name = data.names[i]
            except DatasetError as error:
                found = found or f"sample {i}: {required(error, folder, i, packed.names[i])}"
            else:
                if (sample, name) != ((payload, target), packed.names[i]):
                    return f"other data at sample {i}"
    findings = findings_in(folder)
    return found or (f"verify: {findings[0]}" if findings else "")


def required(error: DatasetError, folder: Path, index: int | None = None, name: str | None = None) -> DatasetError:
    """The error, which must name the folder, and be about the given sample where it is about one."""
    assert str(folder) in str(error)
    if isinstance(error, CorruptSampleError):
        assert (error.index, error.name) == (index, name)
    else:
        assert index is None or isinstance(error, CorruptDatasetError), error
    return error


def findings_in(folder: Path) -> list[Finding | str]:
    """What verifying finds; where there is no dataset at all, that it says so."""
    try:
        return list(verify_dataset(folder))
    except DatasetError as error:
        if (folder / "manifest.json").exists():
            raise
        return [str(error)]


def require_found(packed: Packed, folder: Path, what: object) -> None:
    """The damage was found, and nothing else than the right data came out."""
    verdict = judge(packed, folder)
    assert verdict, f"{what}: nothing gives it away"
    assert not verdict.startswith("other data"), f"{what}: {verdict}"


def regions(path: Path) -> Iterator[tuple[int, int]]:
    """Offsets and lengths that are worth a hit: the ends, the middle, the headers of what a container is made of."""
    size = path.stat().st_size
    places = {0, 1, 7, size // 4, size // 2, 3 * size // 4, size - 1, size - 2}
    if path.suffix == ".tar":
        with tarfile.open(path) as tar:  # name, mode, size, checksum, type and magic of the headers; the start of the data
            headers = [member.offset for member in tar.getmembers()[::2]]
        places |= {header + at for header in headers for at in (0, 100, 124, 148, 156, 257, 512)}
    elif size > 4 * PAGE:
        places |= {page * PAGE + at for page in range(size // PAGE) for at in (0, 8, 10, 16, 24, 40, PAGE - 8)}
        places |= set(random.Random(size).sample(range(size), 40))
    else:
        places |= set(range(0, size, max(1, size // 60)))
    for place in sorted(place for place in places if 0 <= place < size):
        yield place, min(8, size - place)


def damaged_in_place(path: Path, offset: int, data: bytes) -> Callable[[], None]:
    """Overwrite bytes of a file; returns what takes it back."""
    with path.open("r+b") as file:
        file.seek(offset)
        before = file.read(len(data))
        file.seek(offset)
        file.write(data)

    def undo() -> None:
        with path.open("r+b") as again:
            again.seek(offset)
            again.write(before)

    return undo


# ----------------------------------------------------------------------------------------------------------- bytes of a file


def test_a_flipped_bit_anywhere_is_found(packed: Packed, work: Path) -> None:
    bits = random.Random(0)
    for name in packed.files:
        content = (work / name).read_bytes()
        for offset, _ in list(regions(work / name)):
            flipped = bytes([content[offset] ^ 1 << bits.randrange(8)])
            undo = damaged_in_place(work / name, offset, flipped)
            require_found(packed, work, f"bit of byte {offset} of {name}")
            undo()
    assert judge(packed, work) == ""


def test_zeroed_bytes_anywhere_are_found(packed: Packed, work: Path) -> None:
    for name in packed.files:
        size = (work / name).stat().st_size
        content = (work / name).read_bytes()
        for offset, length in list(regions(work / name)):
            for count in (length, 512, size):
                zeroed = bytes(len(content[offset : offset + count]))
                if content[offset : offset + count] == zeroed:
                    continue  # they are zero as they stand
                undo = damaged_in_place(work / name, offset, zeroed)
                require_found(packed, work, f"{count} zeros from byte {offset} of {name}")
                undo()
                if count == 512 and not name.endswith(".tar"):
                    break  # whole blocks are what a tar reader could take for the end
    assert judge(packed, work) == ""


def test_every_byte_of_the_manifest_counts(packed: Packed, work: Path) -> None:
    content = (work / "manifest.json").read_bytes()
    bits = random.Random(1)
    for offset in range(len(content)):
        flipped = bytearray(content)
        flipped[offset] ^= 1 << bits.randrange(8)
        (work / "manifest.json").write_bytes(flipped)
        with pytest.raises(DatasetError, match=str(work)):
            open_dataset(work)


def test_every_byte_of_a_payload_counts_at_its_sample_and_no_other(packed: Packed, work: Path) -> None:
    """The error names index, original path, file and offset; the neighbours are read as before."""
    data = open_dataset(work, output="bytes")
    for number in (0, 5, len(data) - 1):
        record = data._store.index[number]
        path = work / data._store.manifest.shards[record.shard].file
        for offset in {record.offset, record.offset + record.size // 2, record.offset + record.size - 1}:
            undo = damaged_in_place(path, offset, bytes([path.read_bytes()[offset] ^ 0x40]))
            for mmap in (False, True):
                again = open_dataset(work, output="bytes", mmap=mmap)
                for i, payload in enumerate(packed.payloads):
                    if i != number:
                        assert again[i][0] == payload
                        continue
                    with pytest.raises(CorruptSampleError, match="digest differs") as caught:
                        again[i]
                    error = caught.value
                    assert (error.index, error.name, error.path) == (number, packed.names[number], path)
                    assert error.offset_bytes == record.offset
                    assert all(part in str(error) for part in (str(number), packed.names[number], str(path)))
            findings = list(verify_dataset(work))
            assert {(f.index, f.name) for f in findings} == {(number, packed.names[number]), (None, None)}
            assert {f.file for f in findings} == {path.name}
            undo()


def test_a_file_of_another_length_is_refused_at_open_with_both_sizes(packed: Packed, work: Path) -> None:
    for name in packed.files:
        content = (work / name).read_bytes()
        lengths = {0, 1, len(content) // 2, len(content) - 1, len(content) - 512, len(content) - PAGE, len(content) - 100}
        if name == "manifest.json":
            lengths.discard(len(content) - 1)  # a line end is no part of the JSON
        for length in sorted(length for length in lengths if 0 <= length < len(content)):
            (work / name).write_bytes(content[:length])
            with pytest.raises(DatasetError, match=name) as caught:
                open_dataset(work)
            if name != "manifest.json":
                assert f"{length:,}" in str(caught.value)
                assert f"{len(content):,}" in str(caught.value)
            require_found(packed, work, f"{name} cut to {length}")
        for more in (b"x", bytes(512), bytes(PAGE), content):
            (work / name).write_bytes(content + more)
            with pytest.raises(DatasetError, match=name):
                open_dataset(work)
            require_found(packed, work, f"{len(more)} bytes more in {name}")
        (work / name).write_bytes(content)
    assert judge(packed, work) == ""


def test_an_error_travels_pickled_with_its_text_and_fields(packed: Packed, work: Path) -> None:
    """As it does from a worker of `multiprocessing`; the default way fails where a field is required."""
    data = open_dataset(work, output="bytes")
    (work / packed.containers[0]).write_bytes(bytes((work / packed.containers[0]).stat().st_size))
    errors = [error_of(lambda: open_dataset(work, output="bytes")[0]), error_of(lambda: data[0])]
    (work / "names.bin").write_bytes(b"")
    errors += [error_of(lambda: open_dataset(work))]
    shutil.rmtree(work)
    errors += [error_of(lambda: open_dataset(work))]
    assert [type(error) for error in errors] == [CorruptSampleError, DatasetChangedError, TruncatedFileError, DatasetError]
    for error in errors:
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


def error_of(action: Callable[[], object]) -> DatasetError:
    with pytest.raises(DatasetError) as caught:
        action()
    return caught.value


# ------------------------------------------------------------------------------------------------------------- whole files


def test_two_files_in_each_others_place_are_found(packed: Packed, work: Path) -> None:
    names = packed.files
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            swap(work / one, work / other)
            require_found(packed, work, f"{one} and {other} swapped")
            swap(work / one, work / other)
    assert judge(packed, work) == ""


def swap(one: Path, other: Path) -> None:
    spare = one.with_name("spare")
    one.rename(spare)
    other.rename(one)
    spare.rename(other)


def test_shards_of_equal_size_in_each_others_place_are_found_at_the_samples(tmp_path: Path, format_name: str) -> None:
    """Their sizes give nothing away; the digests of the payloads do."""
    files: dict[str | bytes, bytes] = {f"{i}.npy": npy(np.full(50, i)) for i in range(8)}
    limits = {"limits": ShardLimits(samples=2)} if formats.get(format_name).has_shards else {}
    output = pack_here(write_tree(tmp_path / "in", files), format_name, **limits).output
    shards = [path for path in output.iterdir() if path.name.startswith("shard-")]
    if len(shards) < 2:
        pytest.skip("one file has no other to be mistaken for")
    swap(*sorted(shards)[:2])
    data = open_dataset(output, output="bytes")
    for i in range(4):
        with pytest.raises(CorruptSampleError, match="digest differs"):
            data[i]
    assert data[4] == files["4.npy"]
    assert len([finding for finding in verify_dataset(output) if finding.index is not None]) == 4


def test_a_file_of_another_dataset_is_found(tmp_path: Path, format_name: str) -> None:
    """One with the same names, sizes and number of samples; its index could be taken for the right one."""
    other = pack_new(tmp_path / "other", format_name, npy_only(1))
    same = pack_new(tmp_path / "same", format_name, npy_only(2))
    for name in same.files:
        copy = copy_of(same.path, tmp_path / f"copy {name}")
        shutil.copyfile(other.path / name, copy / name)
        if (copy / name).read_bytes() != (same.path / name).read_bytes():
            require_found(same, copy, f"{name} of another dataset")


def npy_only(seed: int) -> dict[str | bytes, bytes]:
    return {f"{'ab'[i % 2]}/{i}.npy": npy(np.full(100 + i, seed)) for i in range(7)}


def test_a_missing_file_is_refused_at_open_by_its_name(packed: Packed, work: Path) -> None:
    for name in packed.files:
        spare = work.with_name("spare")
        (work / name).rename(spare)
        with pytest.raises(DatasetError, match=name):
            open_dataset(work)
        require_found(packed, work, f"{name} missing")
        spare.rename(work / name)
    assert judge(packed, work) == ""


def test_a_folder_in_the_place_of_a_file_is_found(packed: Packed, work: Path) -> None:
    for name in packed.files:
        spare = work.with_name("spare")
        (work / name).rename(spare)
        (work / name).mkdir()
        require_found(packed, work, f"a folder called {name}")
        (work / name).rmdir()
        spare.rename(work / name)


def test_a_fifo_in_the_place_of_a_file_is_found_without_waiting_for_a_writer(packed: Packed, work: Path) -> None:
    for name in packed.files:
        spare = work.with_name("spare")
        (work / name).rename(spare)
        os.mkfifo(work / name)
        with within(20):
            require_found(packed, work, f"a FIFO called {name}")
        (work / name).unlink()
        spare.rename(work / name)


def test_a_link_in_the_place_of_a_file_gives_the_same_data_or_is_found(packed: Packed, work: Path) -> None:
    for name in packed.files:
        spare = work.with_name("spare")
        (work / name).rename(spare)
        for target in ("/dev/zero", "/dev/null", "nowhere", name, ".", *packed.files):
            (work / name).symlink_to(target)
            with within(20):
                require_found(packed, work, f"{name} -> {target}")
            (work / name).unlink()
        (work / name).symlink_to(spare)  # the very bytes, elsewhere
        verdict = judge(packed, work)
        assert not verdict.startswith("other data"), verdict
        if name in packed.containers:
            assert "no regular file" in verdict
        (work / name).unlink()
        spare.rename(work / name)
    assert judge(packed, work) == ""


class within:  # noqa: N801 - reads as a sentence
    """Interrupts what takes longer than some seconds: a hang must fail this test and not the whole run."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        def late(*arguments: object) -> None:
            pytest.fail(f"not done after {self._seconds} s", pytrace=True)

        self._handler = signal.signal(signal.SIGALRM, late)
        self._timer = signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, *arguments: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, *self._timer)
        signal.signal(signal.SIGALRM, self._handler)


@pytest.mark.parametrize("what", ["fifo", "/dev/zero", "folder"])
@pytest.mark.parametrize("name", ["report.jsonl"])
def test_what_has_no_bytes_is_not_taken_for_an_empty_file(tmp_path: Path, format_name: str, what: str, name: str) -> None:
    """The report of a clean run is empty, and so is a FIFO or a device as `stat` shows it: verifying read it for ever."""
    packed = pack_new(tmp_path, format_name, npy_only(3))
    assert (packed.path / name).stat().st_size == 0
    (packed.path / name).unlink()
    if what == "fifo":
        os.mkfifo(packed.path / name)
    elif what == "folder":
        (packed.path / name).mkdir()
    else:
        (packed.path / name).symlink_to(what)
    with within(5):
        require_found(packed, packed.path, what)


def test_a_folder_with_the_size_of_the_index_is_found(tmp_path: Path, format_name: str) -> None:
    (tmp_path / "folder").mkdir()
    samples, rest = divmod((tmp_path / "folder").stat().st_size - 512, RECORD.itemsize)
    if rest or not 1 <= samples <= 1_000:
        pytest.skip("no number of samples gives an index of the size that folders have here")
    files: dict[str | bytes, bytes] = {f"a/{i:03d}.npy": npy(np.arange(i)) for i in range(samples)}
    packed = pack_new(tmp_path, format_name, files, samples=1_000)
    (packed.path / "index.npy").unlink()
    (tmp_path / "folder").rename(packed.path / "index.npy")
    require_found(packed, packed.path, "a folder called index.npy")


def test_a_file_that_does_not_belong_is_a_finding(packed: Packed, work: Path) -> None:
    (work / "lock.mdb").write_bytes(b"")
    (work / "new").mkdir()
    os.mkfifo(work / "pipe")
    with within(20):
        findings = list(verify_dataset(work))
    assert [finding.file for finding in findings] == ["lock.mdb", "new", "pipe"]
    assert open_dataset(work, output="bytes")[0] == (packed.payloads[0], packed.targets[0])


def test_verify_is_silent_about_a_sound_dataset_and_tells_how_far_it_is(packed: Packed) -> None:
    assert list(verify_dataset(packed.path)) == []
    assert list(verify_dataset(str(packed.path))) == []


@pytest.mark.parametrize("what", ["missing", "file", "empty folder"])
def test_verify_of_what_is_no_dataset_is_an_error_that_names_it(tmp_path: Path, what: str) -> None:
    path = tmp_path / what
    if what == "file":
        path.write_bytes(b"x")
    elif what == "empty folder":
        path.mkdir()
    with pytest.raises(DatasetError, match=what):
        list(verify_dataset(path))


# ------------------------------------------------------------------------------------------- manifests and indices of strangers


def seal(folder: Path, content: Any) -> None:
    """Write a manifest with its right digest, as a stranger would."""
    content.pop("digest", None)
    text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    (folder / "manifest.json").write_text(json.dumps({**content, "digest": xxhash.xxh3_128_hexdigest(text)}))


def manifest_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_bytes())


def require_refused(folder: Path) -> DatasetError:
    """Refused at open, by an error that names the folder; verifying says so too, and raises nothing."""
    with pytest.raises(DatasetError, match=str(folder)) as caught:
        open_dataset(folder)
    with pytest.raises(DatasetError):
        open_dataset(folder, mmap=True)
    assert list(verify_dataset(folder))
    return caught.value


def test_the_manifest_that_these_tests_write_is_accepted_unchanged(packed: Packed, work: Path) -> None:
    """Otherwise everything below would be refused for its digest alone."""
    seal(work, manifest_of(work))
    assert judge(packed, work) == ""


NAMES_OF_STRANGERS = [
    "../x", "..", ".", "", "/etc/passwd", "a/b", "a\\b", "C:x", "a\0b", "\ud800", "x" * 300, "x" * 100_000, "missing",
    "index.npy", "names.bin", "report.jsonl", "manifest.json", None, 5, [], {}, True,
]  # fmt: skip
NO_COUNTS = [-1, -(2**63), 2**63, 2**64, 2**200, 1.5, 1e300, "5", None, True, [], {}]


@pytest.mark.parametrize("name", NAMES_OF_STRANGERS, ids=lambda name: repr(name)[:20])
def test_a_shard_is_a_plain_file_of_the_folder(packed: Packed, work: Path, name: Any) -> None:
    content = manifest_of(work)
    first = content["shards"][0]
    (work.parent / "x").write_bytes((work / first["file"]).read_bytes())  # what "../x" would find
    first["file"] = name
    seal(work, content)
    require_refused(work)


def test_one_shard_twice_is_refused(packed: Packed, work: Path) -> None:
    content = manifest_of(work)
    content["shards"].append(dict(content["shards"][0], samples=0))
    seal(work, content)
    require_refused(work)


@pytest.mark.parametrize("value", [*NO_COUNTS, 0, 1, 2**40, 2**62])
@pytest.mark.parametrize("place", ["samples", "bytes of a shard", "samples of a shard", "bytes of the index"])
def test_a_count_that_is_none_or_not_the_right_one_is_refused(packed: Packed, work: Path, place: str, value: Any) -> None:
    content = manifest_of(work)
    if place == "samples":
        content["samples"] = value
    elif place == "bytes of a shard":
        content["shards"][0]["bytes"] = value
    elif place == "samples of a shard":
        content["shards"][0]["samples"] = value
    else:
        content["files"]["index.npy"]["bytes"] = value
    seal(work, content)
    require_refused(work)


def test_a_negative_count_is_refused_where_another_makes_up_for_it(packed: Packed, work: Path) -> None:
    content = manifest_of(work)
    if len(content["shards"]) < 2:
        pytest.skip("one file has no other to make up for it")
    content["shards"][0]["samples"] -= 100
    content["shards"][1]["samples"] += 100
    seal(work, content)
    require_refused(work)


@pytest.mark.parametrize("change", [-1, 1, 2**38])
def test_a_number_of_samples_that_the_index_does_not_have_is_refused_at_open(packed: Packed, work: Path, change: int) -> None:
    """`len` goes into samplers before a sample is read: `torch.randperm(2**38)` asks for two terabytes."""
    content = manifest_of(work)
    content["samples"] += change
    content["shards"][0]["samples"] += change
    seal(work, content)
    require_refused(work)


CONTRADICTIONS: dict[str, Callable[[dict[str, Any]], object]] = {
    "layout 2": lambda m: m.update(layout=2),
    "layout 0": lambda m: m.update(layout=0),
    "layout as text": lambda m: m.update(layout="1"),
    "layout is null": lambda m: m.update(layout=None),
    "no layout": lambda m: m.pop("layout"),
    "no format": lambda m: m.pop("format"),
    "format is a number": lambda m: m.update(format=7),
    "no classes": lambda m: m.pop("classes"),
    "classes is a number": lambda m: m.update(classes=5),
    "a class is a number": lambda m: m.update(classes=["cat", 5]),
    "a class is null": lambda m: m.update(classes=[None, "dog"]),
    "a class twice": lambda m: m.update(classes=["cat", "cat"]),
    "classes is null": lambda m: m.update(classes=None),
    "labels of no kind": lambda m: m.update(labels="auto"),
    "labels is a list": lambda m: m.update(labels=[]),
    "labels is null": lambda m: m.update(labels=None),
    "labels are numbers that the classes are not": lambda m: m.update(labels="number"),
    "labels are numbers of a million digits": lambda m: m.update(labels="number", classes=["1" * 1_000_000, "2"]),
    "no labels but classes": lambda m: m.update(labels="none"),
    "labels but no classes": lambda m: m.update(classes=[]),
    "no fields": lambda m: m.update(fields=[]),
    "two fields": lambda m: m.update(fields=m["fields"] * 2),
    "fields is null": lambda m: m.update(fields=None),
    "fields is an object": lambda m: m.update(fields=m["fields"][0]),
    "another field": lambda m: m["fields"][0].update(name="mask"),
    "a field without a name": lambda m: m["fields"][0].pop("name"),
    "header is no base64": lambda m: m["fields"][0].update(header="!!!"),
    "header is cut base64": lambda m: m["fields"][0].update(header="AAA"),
    "header is no ASCII": lambda m: m["fields"][0].update(header="\u00e9\u00e9\u00e9\u00e9"),
    "header is a number": lambda m: m["fields"][0].update(header=5),
    "header is null": lambda m: m["fields"][0].update(header=None),
    "no shards": lambda m: m.update(shards=[]),
    "shards is null": lambda m: m.update(shards=None),
    "shards is an object": lambda m: m.update(shards={"0": m["shards"][0]}),
    "a shard is null": lambda m: m.update(shards=[None]),
    "a shard is text": lambda m: m.update(shards=["data.mdb"]),
    "a shard without a size": lambda m: m["shards"][0].pop("bytes"),
    "a shard's digest is a number": lambda m: m["shards"][0].update(digest=5),
    "no files": lambda m: m.update(files={}),
    "files is a list": lambda m: m.update(files=[]),
    "files is null": lambda m: m.update(files=None),
    "no names": lambda m: m["files"].pop("names.bin"),
    "one file more": lambda m: m["files"].update({"x.bin": {"bytes": 0, "digest": ""}}),
    "a file outside": lambda m: m["files"].update({"../x": m["files"].pop("names.bin")}),
    "a file's digest is null": lambda m: m["files"]["index.npy"].update(digest=None),
    "a file's digest is another": lambda m: m["files"]["index.npy"].update(digest="0" * 32),
    "options is a list": lambda m: m.update(options=[]),
    "versions is null": lambda m: m.update(versions=None),
    "content digest is null": lambda m: m.update(content_digest=None),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_manifest_that_contradicts_the_layout_is_refused(packed: Packed, work: Path, name: str) -> None:
    content = manifest_of(work)
    CONTRADICTIONS[name](content)
    seal(work, content)
    require_refused(work)


@pytest.mark.parametrize("layout", [2, 3, 99])
def test_a_later_layout_says_that_a_newer_packer_may_read_it(packed: Packed, work: Path, layout: int) -> None:
    content = manifest_of(work)
    content["layout"] = layout
    seal(work, content)
    assert f"layout version {layout}" in str(require_refused(work))
    assert "newer" in str(require_refused(work))


NO_MANIFESTS = {
    "nothing": b"",
    "zeros": bytes(1000),
    "text": b"hello",
    "a list": b"[]",
    "null": b"null",
    "a number": b"1",
    "text in quotes": b'"layout"',
    "an empty object": b"{}",
    "not a number": b"NaN",
    "infinity": b'{"layout": Infinity}',
    "no UTF-8": b'{"layout": "\xff\xfe\xfd"}',
    "a byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"layout": 1}'.encode("utf-16"),
    "half an object": b'{"layout": 1, "format": "lm',
    "two objects": b"{}{}",
    "deep lists": b"[" * 200_000,
    "deep objects": b'{"a":' * 200_000,
    "a number of many digits": b'{"layout": ' + b"1" * 10_000 + b"}",
    "a number with a great exponent": b'{"layout": 1e999999999}',
    "one byte less than too many": b" " * ((64 << 20) - 2) + b"{}",
}


@pytest.mark.parametrize("name", NO_MANIFESTS)
def test_what_is_no_manifest_is_refused(packed: Packed, work: Path, name: str) -> None:
    (work / "manifest.json").write_bytes(NO_MANIFESTS[name])
    assert "manifest.json" in str(require_refused(work))


def test_a_manifest_of_a_hundred_megabytes_is_refused_unread(packed: Packed, work: Path) -> None:
    os.truncate(work / "manifest.json", 100 << 20)
    tracemalloc.start()
    try:
        error = require_refused(work)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "104,857,600" in str(error)
    assert peak < 5_000_000


def test_a_shared_header_that_is_another_is_found_at_the_samples(packed: Packed, work: Path) -> None:
    content = manifest_of(work)
    content["fields"][0]["header"] = base64.b64encode(b"\x93NUMPY other").decode()
    seal(work, content)
    data = open_dataset(work, output="bytes")
    for i in range(len(data)):
        with pytest.raises(CorruptSampleError, match="digest differs"):
            data[i]


def forge_index(folder: Path, change: Callable[[np.ndarray], object]) -> None:
    """Change records of the index and put the digests right, as a stranger would."""
    content = (folder / "index.npy").read_bytes()
    records = np.frombuffer(content[512:], RECORD).copy()
    change(records)
    (folder / "index.npy").write_bytes(content[:512] + records.tobytes())
    manifest = manifest_of(folder)
    manifest["files"]["index.npy"]["digest"] = xxhash.xxh3_128_hexdigest((folder / "index.npy").read_bytes())
    seal(folder, manifest)


def put(field: str, value: int, number: int = 3) -> Callable[[np.ndarray], None]:
    """A change that sets one field of one record."""

    def change(records: np.ndarray) -> None:
        (records if field in records.dtype.names else records["data"])[field][number] = value

    return change


FORGED = [
    *[(field, value) for field in ("offset", "size") for value in (2**31, 2**40, 2**62, 2**63, 2**64 - 1)],
    *[("shard", value) for value in (1_000, 2**31, 2**32 - 1)],
    *[("type", value) for value in (0, 8, 9, 255)],
    *[("mode", value) for value in (24, 255)],
    *[("orientation", value) for value in (0, 9, 255)],
    *[("name_end", value) for value in (0, 2**31, 2**63, 2**64 - 1)],
    *[("label", value) for value in (2, -1, -(2**63), 2**63 - 1)],
]


@pytest.mark.parametrize("number", [0, 3, -1])
@pytest.mark.parametrize("field, value", FORGED)
def test_a_forged_record_is_an_error_of_packer_or_harmless(
    packed: Packed, work: Path, field: str, value: int, number: int
) -> None:
    """No other exception, no great allocation, nothing from outside the payloads, however it is read."""
    forge_index(work, put(field, value, number))
    for options in ({"output": "bytes"}, {"output": "pil"}, {"output": "numpy", "orient": True, "mode": None, "mmap": True}):
        try:
            data = open_dataset(work, **options)
        except DatasetError:
            continue
        for i in range(len(data)):
            with contextlib.suppress(DatasetError):
                data[i]
            with contextlib.suppress(DatasetError):
                data.names[i]
    findings_in(work)


@pytest.mark.parametrize("number", [0, 3, -1])
@pytest.mark.parametrize("field, value", [pair for pair in FORGED if pair[0] in ("offset", "size", "shard")])
def test_a_payload_outside_its_container_is_an_error_at_its_sample(
    packed: Packed, work: Path, field: str, value: int, number: int
) -> None:
    forge_index(work, put(field, value, number))
    data = open_dataset(work, output="bytes")
    with pytest.raises(CorruptSampleError, match="not inside the container") as caught:
        data[number]
    assert caught.value.index == number % len(data)
    assert [finding.index for finding in verify_dataset(work)] == [number % len(data)]


@pytest.mark.parametrize("number", [0, 3, -1])
@pytest.mark.parametrize("label", [2, -1, 2**40])
def test_a_label_without_a_class_is_found(packed: Packed, work: Path, label: int, number: int) -> None:
    """A target beyond the classes ends a run on a GPU with an assertion that names nothing."""
    forge_index(work, put("label", label, number))
    require_found(packed, work, f"label {label}")


@pytest.mark.parametrize("number", [0, 3, -1])
@pytest.mark.parametrize("end", [2**31, 2**64 - 1])
def test_a_name_outside_the_names_is_an_error_and_a_finding(packed: Packed, work: Path, end: int, number: int) -> None:
    forge_index(work, put("name_end", end, number))
    with pytest.raises(DatasetError, match=str(work)):
        list(open_dataset(work).names)
    assert findings_in(work)


def test_a_damaged_sample_with_a_damaged_name_is_still_a_finding(packed: Packed, work: Path) -> None:
    def change(records: np.ndarray) -> None:
        put("name_end", 2**40)(records)
        put("digest", 1)(records)

    forge_index(work, change)
    assert any(finding.index == 3 for finding in verify_dataset(work))


def test_labels_that_the_content_digest_does_not_cover_are_a_finding(packed: Packed, work: Path) -> None:
    """It is over order, names, labels and contents; here two labels are exchanged, and all other digests are put right."""

    def exchange(records: np.ndarray) -> None:
        records["label"][[0, -1]] = records["label"][[-1, 0]]

    forge_index(work, exchange)
    assert findings_in(work)


# ------------------------------------------------------------------------------------------------ changed while it is open


def read_all(data: Any) -> list[Any]:
    """Every sample with its name and target, or the error in its place."""
    found: list[Any] = []
    for i in range(len(data)):
        try:
            found.append((data[i], data.names[i], int(data.targets[i])))
        except DatasetChangedError as error:
            found.append(error)
    return found


def right_or_changed(packed: Packed, found: list[Any]) -> None:
    for i, entry in enumerate(found):
        if not isinstance(entry, DatasetChangedError):
            assert entry == ((packed.payloads[i], packed.targets[i]), packed.names[i], packed.targets[i]), i


@pytest.fixture(params=["untouched", "length", "one sample", "all samples"])
def reading(request: pytest.FixtureRequest) -> str:
    """How much was read before something changed."""
    return request.param


def begin(folder: Path, reading: str, mmap: bool) -> Any:
    data = open_dataset(folder, output="bytes", mmap=mmap)
    if reading == "length":
        assert len(data)
    elif reading == "one sample":
        assert data[0]
    elif reading == "all samples":
        assert list(data)
    return data


@pytest.fixture(scope="module")
def another(packed: Packed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with the same sizes and numbers of samples, names and shards, but with other labels, names and contents."""
    files: dict[str | bytes, bytes] = {}
    for name, payload in zip(packed.names, packed.payloads, strict=True):
        moved = name.replace("cat/", "tmp/").replace("dog/", "cat/").replace("tmp/", "dog/")
        files[moved] = payload[:-2] + bytes(2) if name.endswith(".npy") else payload
    other = pack_new(tmp_path_factory.mktemp("another"), packed.format, files)
    assert len(other.payloads) == len(packed.payloads)
    assert other.files == packed.files
    return other.path


@pytest.fixture
def other(another: Path, tmp_path: Path) -> Path:
    """A copy of the other dataset."""
    return copy_of(another, tmp_path / "other")


@pytest.mark.parametrize("mmap", [False, True])
def test_a_file_replaced_while_open_gives_the_right_bytes_or_an_error(
    packed: Packed, work: Path, other: Path, tmp_path: Path, reading: str, mmap: bool
) -> None:
    for name in packed.files:
        data = begin(work, reading, mmap)
        shutil.copyfile(work / name, tmp_path / "saved")
        shutil.copyfile(other / name, tmp_path / "new")
        os.replace(tmp_path / "new", work / name)
        right_or_changed(packed, read_all(data))
        with pytest.raises(DatasetError):
            pickle.loads(pickle.dumps(data))[0]
        os.replace(tmp_path / "saved", work / name)


@pytest.mark.parametrize("mmap", [False, True])
def test_an_index_of_the_same_size_replaced_while_open_does_not_relabel(
    packed: Packed, work: Path, tmp_path: Path, reading: str, mmap: bool
) -> None:
    """It is mapped when it is first needed, and so must be the one whose digest was taken."""
    data = begin(work, reading, mmap)
    content = (work / "index.npy").read_bytes()
    records = np.frombuffer(content[512:], RECORD).copy()
    records["label"] = 1 - records["label"]
    (tmp_path / "new").write_bytes(content[:512] + records.tobytes())
    os.replace(tmp_path / "new", work / "index.npy")
    right_or_changed(packed, read_all(data))


@pytest.mark.parametrize("mmap", [False, True])
def test_names_of_the_same_size_replaced_while_open_do_not_rename(
    packed: Packed, work: Path, tmp_path: Path, reading: str, mmap: bool
) -> None:
    data = begin(work, reading, mmap)
    (tmp_path / "new").write_bytes((work / "names.bin").read_bytes().replace(b"cat", b"cow"))
    os.replace(tmp_path / "new", work / "names.bin")
    right_or_changed(packed, read_all(data))


@pytest.mark.parametrize("mmap", [False, True])
def test_a_folder_replaced_while_open_gives_the_right_bytes_or_an_error(
    packed: Packed, work: Path, other: Path, tmp_path: Path, reading: str, mmap: bool
) -> None:
    data = begin(work, reading, mmap)
    work.rename(tmp_path / "away")
    other.rename(work)
    right_or_changed(packed, read_all(data))
    with pytest.raises(DatasetError):
        pickle.loads(pickle.dumps(data))


@pytest.mark.parametrize("mmap", [False, True])
def test_labels_and_names_of_a_folder_that_took_its_place_are_not_given_out(
    packed: Packed, work: Path, other: Path, tmp_path: Path, reading: str, mmap: bool
) -> None:
    """Asked for without reading a sample, as a weighted sampler does."""
    data = begin(work, reading, mmap)
    work.rename(tmp_path / "away")
    other.rename(work)
    try:
        targets, names = data.targets.tolist(), list(data.names)
    except DatasetChangedError:
        return
    assert targets == packed.targets
    assert names == packed.names


def test_packing_again_over_an_open_dataset_gives_the_old_bytes_or_an_error(
    tmp_path: Path, format_name: str, reading: str
) -> None:
    packed = pack_new(tmp_path, format_name, npy_only(1))
    data = begin(packed.path, reading, False)
    write_tree(tmp_path / "in", npy_only(2))
    pack_here(tmp_path / "in", format_name, overwrite=True)
    right_or_changed(packed, read_all(data))
    assert open_dataset(packed.path, output="bytes")[0][0] == npy_only(2)["a/0.npy"]


@pytest.mark.parametrize("mmap", [False, True])
def test_a_folder_deleted_while_open_gives_the_right_bytes_or_an_error(
    packed: Packed, work: Path, reading: str, mmap: bool
) -> None:
    data = begin(work, reading, mmap)
    shutil.rmtree(work)
    right_or_changed(packed, read_all(data))


@pytest.mark.parametrize("mmap", [False, True])
def test_a_file_deleted_while_open_gives_the_right_bytes_or_an_error(
    packed: Packed, work: Path, tmp_path: Path, reading: str, mmap: bool
) -> None:
    for name in packed.files:
        data = begin(work, reading, mmap)
        (work / name).rename(tmp_path / "saved")
        right_or_changed(packed, read_all(data))
        (tmp_path / "saved").rename(work / name)


@pytest.mark.parametrize("what", ["folder", "link", "fifo", "file in the place of the folder"])
def test_something_else_in_the_place_of_a_shard_while_open_is_an_error_of_packer(
    packed: Packed, work: Path, tmp_path: Path, what: str
) -> None:
    data = begin(work, "length", False)
    assert data.targets.tolist() == packed.targets
    path = work / packed.containers[0]
    if what == "file in the place of the folder":
        work.rename(tmp_path / "away")
        work.write_bytes(b"")
    else:
        path.rename(tmp_path / "spare")
        if what == "folder":
            path.mkdir()
        elif what == "link":
            path.symlink_to(tmp_path / "spare")
        else:
            os.mkfifo(path)
    with within(20), pytest.raises((DatasetChangedError, CorruptSampleError), match=str(work)):
        data[0]


def test_a_shard_cut_while_open_is_an_exception_that_names_sample_and_file(packed: Packed, work: Path) -> None:
    data = begin(work, "all samples", False)
    for name in packed.containers:
        os.truncate(work / name, 0)
    for i in range(len(data)):
        with pytest.raises(CorruptSampleError) as caught:
            data[i]
        assert (caught.value.index, caught.value.name) == (i, packed.names[i])
        assert caught.value.path.name in packed.containers


def test_a_shard_cut_in_half_while_open_gives_right_bytes_or_an_exception(packed: Packed, work: Path) -> None:
    data = begin(work, "all samples", False)
    for name in packed.containers:
        os.truncate(work / name, (work / name).stat().st_size // 2)
    failed = 0
    for i in range(len(data)):
        try:
            assert data[i] == (packed.payloads[i], packed.targets[i])
        except CorruptSampleError:
            failed += 1
    assert failed


def test_a_shard_written_to_while_open_is_found_by_its_digest(packed: Packed, work: Path) -> None:
    data = begin(work, "all samples", False)
    for name in packed.containers:
        (work / name).write_bytes(bytes((work / name).stat().st_size))
    for i in range(len(data)):
        with pytest.raises(CorruptSampleError, match="digest differs"):
            data[i]


CUT_WHILE_OPEN = """
    import os, sys
    sys.modules["torch"] = None
    from packer import PackerError, open_dataset
    folder, name, asked = sys.argv[1:]
    data = open_dataset(folder, output="bytes")
    print(data[0][1], data.names[0], data.targets[0])
    os.truncate(os.path.join(folder, name), 0)
    for ask in (lambda i: data[i], lambda i: data.names[i]):
        for i in range(len(data)):
            try:
                ask(i)
            except PackerError:
                pass
    print("alive")
"""


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("read_before", [False, True])
def test_an_index_that_is_written_to_while_open_gives_no_other_sample(
    packed: Packed, work: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool, read_before: bool
) -> None:
    """Shifted by one record, each number had the next sample's bytes, name and label, with the right digest."""
    if not in_memory:
        monkeypatch.setattr("packer.index._TABLE_BYTES", 0)
    data = open_dataset(work, output="bytes")
    truth = list(zip(packed.payloads, packed.targets, strict=True))
    if read_before:
        assert data[0] == truth[0]
    path = Path(work, "index.npy")
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.write(content[:512] + content[576:] + bytes(64))
    for i in range(len(data)):
        with contextlib.suppress(DatasetChangedError):
            assert data[i] == truth[i]
        with contextlib.suppress(DatasetChangedError):
            assert data.__getitems__([i]) == [truth[i]]
        with contextlib.suppress(DatasetChangedError):
            assert data.names[i] == packed.names[i]
    with contextlib.suppress(DatasetChangedError):
        assert data.targets.tolist() == packed.targets


@pytest.mark.parametrize("name", ["index.npy", "names.bin"])
def test_an_index_cut_while_open_is_no_signal(packed: Packed, work: Path, name: str) -> None:
    """Only mmap=True is documented to end the process with a bus error where a file is truncated under it."""
    command = [sys.executable, "-c", textwrap.dedent(CUT_WHILE_OPEN), str(work), name, ""]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, f"ended by signal {-result.returncode}"
    assert result.stdout.endswith("alive\n")


# ------------------------------------------------------------------------------------------------------------- many files

MANY = """
    import os, random, resource, sys, threading
    sys.modules["torch"] = None
    from packer import open_dataset

    folder, mmap = sys.argv[1], sys.argv[2] == "True"
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    data = open_dataset(folder, output="numpy", mmap=mmap)
    wrong, most, stop, done = [], [0], threading.Event(), [0]

    def read(seed):
        chosen = random.Random(seed)
        try:
            order = list(range(len(data)))
            for epoch in range(2):
                chosen.shuffle(order)
                for i in order:
                    array = data[i]
                    if array.tolist() != [i] * 20:
                        wrong.append((i, array.tolist()))
        except BaseException as error:
            wrong.append(repr(error))

    def open_shards():
        count = 0
        for name in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink("/proc/self/fd/" + name)
            except OSError:
                continue
            count += target.startswith(folder + "/shard-")
        return count

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    sys.setswitchinterval(1e-4)
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        most[0] = max(most[0], open_shards())
    for thread in threads:
        thread.join()
    print(len(data), wrong[:3], most[0] <= 64 + len(threads), open_shards() <= 64)
"""


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the open files of a process are seen in /proc")
@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("sharded", [name for name in formats.names() if formats.get(name).has_shards])
def test_many_shards_are_read_with_few_open_files(tmp_path: Path, sharded: str, mmap: bool) -> None:
    """300 shards, eight threads, `ulimit -n 128`: right bytes, and 64 files open at most (and one in each thread's hand)."""
    files: dict[str | bytes, bytes] = {f"{i:03d}.npy": npy(np.full(20, i, np.int16)) for i in range(300)}
    output = pack_here(write_tree(tmp_path / "in", files), sharded, limits=ShardLimits(samples=1)).output
    assert len(list(output.glob("shard-*"))) == 300
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(MANY), str(output), str(mmap)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (result.stdout, result.stderr) == ("300 [] True True\n", "")


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("index_is_open", [False, True])
def test_too_many_open_files_are_not_called_damage(packed: Packed, index_is_open: bool, mmap: bool) -> None:
    """The machine's limit is reached; "copy the dataset again" would send the user on a wrong way."""
    script = """
        import os, resource, sys
        sys.modules["torch"] = None
        from packer import CorruptDatasetError, CorruptSampleError, DatasetError, open_dataset
        data = open_dataset(sys.argv[1], output="bytes", mmap=sys.argv[3] == "True")
        if sys.argv[2] == "True":
            data.targets
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        held = []
        try:
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        try:
            data[0]
        except DatasetError as error:
            print(isinstance(error, (CorruptSampleError, CorruptDatasetError)), "Too many open files" in str(error))
        for descriptor in held:
            os.close(descriptor)
        print(len(data[0][0]))
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(packed.path), str(index_is_open), str(mmap)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.stdout, result.stderr) == (f"False True\n{len(packed.payloads[0])}\n", "")
