"""Running the same command again: what is not done twice, what is, and that the output is that of an undisturbed run."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packer.assembly
import packer.checkers
from packer import OutputError, PackOptions, formats, open_dataset, pack_folder
from packer.checkers import CheckPool
from packer.errors import TooManySkippedError
from packer.intake import Intake
from packer.model import Source, Verdict
from packer.options import Progress, Summary
from packer.plan import ShardLimits
from tests.inputs import judging_here, npy, write_tree

COUNT = 20
FILES = {f"{'ab'[i >= 11]}/{i:02d}.npy": npy(np.full(1 + i % 3, i)) for i in range(COUNT)}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "in", FILES)


@pytest.fixture(autouse=True)
def no_processes() -> Iterator[None]:
    with judging_here():
        yield


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are checked four at a time, and hardly ahead of the writer, so that a job can be stopped between them."""
    monkeypatch.setattr(packer.checkers, "_CHUNK_FILES", 4)
    monkeypatch.setattr(packer.checkers, "_AHEAD_PER_WORKER", 1)


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Names of the files that were checked, by a worker or right here, as it happens."""
    names: list[bytes] = []
    judge, look_at = CheckPool._judge, Intake._look_at

    def recording_judge(self: CheckPool, sources: list[Source]) -> list[Verdict]:
        verdicts = judge(self, sources)
        names.extend(one.name for one in sources)
        return verdicts

    def recording_look(self: Intake, name: bytes) -> tuple[Verdict, bytes]:
        names.append(name)
        return look_at(self, name)

    monkeypatch.setattr(CheckPool, "_judge", recording_judge)
    monkeypatch.setattr(Intake, "_look_at", recording_look)
    return names


def options(format_name: str, **values: Any) -> PackOptions:
    limits = ShardLimits(samples=4) if formats.get(format_name).has_shards else None
    return PackOptions(**{"format": format_name, "check": "none", "workers": 1, "limits": limits, **values})


def run(source: Path, format_name: str, on_progress: Any = None, **values: Any) -> Summary:
    return pack_folder(source, options(format_name, **values), on_progress)


def stop(source: Path, format_name: str, at: int, stage: str = "pack", **values: Any) -> Path:
    """Run until so much is done and then end it; returns the partial folder."""

    def on_progress(progress: Progress) -> None:
        if progress.stage == stage and progress.done == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(source, format_name, on_progress, **values)
    return source.with_name(f".{source.name}.{format_name}.partial")


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def undisturbed(source: Path, format_name: str, **values: Any) -> dict[str, str]:
    """What a run gives that begins with nothing."""
    output = source.with_name("undisturbed")
    found = digests(run(source, format_name, output=output, **values).output)
    shutil.rmtree(output)
    return found


def identities(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of each finished shard of an unfinished output."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in sorted(folder.glob("*.tar"))}


def rows(output: Path) -> list[tuple[str, str]]:
    parsed = [json.loads(line) for line in (output / "report.jsonl").read_text("ascii").splitlines()]
    return [(row["path"], row["code"]) for row in parsed]


def put(path: Path, data: bytes, like: os.stat_result | None = None) -> None:
    path.write_bytes(data)
    if like:
        os.utime(path, ns=(like.st_atime_ns, like.st_mtime_ns))


# Verdicts


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("workers", [(1, 1), (1, 2), (2, 1)], ids=str)
def test_no_unchanged_file_is_checked_twice(
    source: Path, tmp_path: Path, workers: tuple[int, int], checked: list[bytes]
) -> None:
    stop(source, "lmdb", 10, check="full", workers=workers[0])
    first = checked.copy()
    checked.clear()
    assert 10 <= len(first) < COUNT
    summary = run(source, "lmdb", check="full", workers=workers[1])
    assert sorted(first + checked) == sorted(map(str.encode, FILES))
    assert summary.resumed == len(first)
    assert digests(summary.output) == undisturbed(source, "lmdb", check="full")
    assert sorted(os.listdir(tmp_path)) == ["in", "in.lmdb"]


@pytest.mark.usefixtures("small_steps")
def test_what_was_stopped_gives_the_bytes_of_an_undisturbed_run(source: Path, tmp_path: Path, format_name: str) -> None:
    write_tree(source, {"a/00 empty.npy": b"", "b/cut.npy": npy([1])[:-1], "b/nan.npy": npy([np.nan])})
    stop(source, format_name, 13, check="full")
    stop(source, format_name, 17, check="full")
    summary = run(source, format_name, check="full")
    assert summary.resumed
    assert digests(summary.output) == undisturbed(source, format_name, check="full")
    assert sorted(os.listdir(tmp_path)) == ["in", f"in.{format_name}"]


@pytest.mark.usefixtures("small_steps")
def test_input_that_changed_between_the_runs_is_packed_as_it_is_now(source: Path, format_name: str) -> None:
    stop(source, format_name, 14, check="full")
    (source / "a/02.npy").unlink()
    write_tree(source, {"a/05 new.npy": npy([50]), "b/15.npy": npy([1, 2, 3]), "b/new.npy": npy([51])})
    put(source / "a/07.npy", FILES["a/07.npy"][:-1])
    summary = run(source, format_name, check="full")
    assert ("a/07.npy", "truncated") in rows(summary.output)
    assert (summary.samples, digests(summary.output)) == (COUNT, undisturbed(source, format_name, check="full"))


@pytest.mark.usefixtures("small_steps")
def test_damage_that_left_size_and_time_alone_is_found_when_the_bytes_are_read(source: Path, format_name: str) -> None:
    stop(source, format_name, 14, check="full")
    file = source / "b/13.npy"  # it was checked, and lies in no finished shard
    put(file, b"\x00" * len(FILES["b/13.npy"]), file.stat())
    summary = run(source, format_name, check="full")
    assert rows(summary.output) == [("b/13.npy", "corrupt")]
    assert summary.samples == COUNT - 1


@pytest.mark.parametrize("check", ["full", "none"])
def test_too_many_skips_are_allowed_later_without_a_file_being_checked_again(
    source: Path, tmp_path: Path, check: str, checked: list[bytes], format_name: str
) -> None:
    write_tree(source, {"a/bad.jpg": b"x", "b/bad.jpg": b"y"})
    with pytest.raises(TooManySkippedError) as caught:
        run(source, format_name, check=check, max_skipped=1)
    if check == "full":
        assert "run the same command again" in "".join(caught.value.__notes__)
    assert f"in.{format_name}" not in os.listdir(tmp_path)
    checked.clear()
    summary = run(source, format_name, check=check, max_skipped=2)
    if check == "full":
        assert checked == []
    assert digests(summary.output) == undisturbed(source, format_name, check=check)


@pytest.mark.parametrize("at", [5, 14])
def test_copies_are_found_over_the_border_of_two_runs(source: Path, at: int, format_name: str) -> None:
    same = npy([1, 2, 3, 4, 5, 6])
    write_tree(source, {"a/03 x.npy": same, "a/05 x.npy": same, "b/12 x.npy": same, "b/zz.npy": same})
    stop(source, format_name, at, skip=["duplicate_content"])
    summary = run(source, format_name, skip=["duplicate_content"])
    assert summary.skipped == {"duplicate_content": 3}
    assert digests(summary.output) == undisturbed(source, format_name, skip=["duplicate_content"])


# Shards


@pytest.fixture
def sharded() -> str:
    return next(name for name in formats.names() if formats.get(name).has_shards)


def test_finished_shards_are_taken_over_as_they_are(source: Path, sharded: str) -> None:
    before = identities(stop(source, sharded, 14) / "output")
    assert len(before) >= 2
    summary = run(source, sharded)
    after = identities(summary.output)
    assert len(after) == 5
    assert {name: after[name] for name in before} == before
    assert digests(summary.output) == undisturbed(source, sharded)


def test_stop_while_shards_are_taken_over_loses_none(source: Path, sharded: str) -> None:
    before = identities(stop(source, sharded, 14) / "output")
    partial = stop(source, sharded, 3, stage="resume")
    assert identities(partial / "output") == before
    assert digests(run(source, sharded).output) == undisturbed(source, sharded)


def test_unfinished_shard_is_not_left_behind(source: Path, sharded: str) -> None:
    output = stop(source, sharded, 11) / "output"
    assert sorted(os.listdir(output)) == [f"shard-{i:06d}.tar" for i in range(len(identities(output)))]


def _flip(partial: Path, source: Path) -> None:
    path = partial / "output/shard-000001.tar"
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)


CHANGES: dict[str, Callable[[Path, Path], object]] = {
    "file added": lambda partial, source: put(source / "a/04 new.npy", npy([1])),
    "file removed": lambda partial, source: (source / "a/05.npy").unlink(),
    "file changed": lambda partial, source: put(source / "a/05.npy", npy([9, 9, 9])),
    "file renamed": lambda partial, source: (source / "a/05.npy").rename(source / "a/05 x.npy"),
    "file damaged": lambda partial, source: put(source / "a/05.npy", b"x"),
    "shard flipped": _flip,
    "shard cut": lambda partial, source: os.truncate(partial / "output/shard-000001.tar", 2048),
    "shard gone": lambda partial, source: (partial / "output/shard-000001.tar").unlink(),
    "shard is a link": lambda partial, source: (
        (partial / "output/shard-000001.tar").rename(source.with_name("moved"))
        and (partial / "output/shard-000001.tar").symlink_to(source.with_name("moved"))
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_shard_is_made_anew_where_something_changed_in_it(source: Path, change: str, sharded: str) -> None:
    partial = stop(source, sharded, 14)
    before = identities(partial / "output")
    CHANGES[change](partial, source)
    summary = run(source, sharded)
    after = identities(summary.output)
    assert after["shard-000000.tar"] == before["shard-000000.tar"]
    assert after["shard-000001.tar"] != before["shard-000001.tar"]
    assert not (summary.output / "shard-000001.tar").is_symlink()
    assert digests(summary.output) == undisturbed(source, sharded)


def test_all_shards_are_made_anew_where_labels_moved(source: Path, sharded: str) -> None:
    before = identities(stop(source, sharded, 14) / "output")
    (source / "0").mkdir()
    summary = run(source, sharded)
    assert not set(identities(summary.output).items()) & set(before.items())
    assert digests(summary.output) == undisturbed(source, sharded)


# Options


@pytest.mark.parametrize("check", ["full", "none"])
def test_unfinished_output_without_anything_to_go_on_from_is_called_started_over(
    source: Path, check: str, format_name: str
) -> None:
    """It said that it went on, and that no files had been looked at already."""

    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):  # nothing may go on in the copy
            run(source, format_name, lambda progress: os._exit(9), check=check)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert source.with_name(f".in.{format_name}.partial").exists()
    summary = run(source, format_name, check=check)
    assert (summary.resumed, summary.replaced_unfinished) == (None, True)


def test_no_resume_starts_over_and_says_so(source: Path, sharded: str, checked: list[bytes]) -> None:
    before = identities(stop(source, sharded, 14) / "output")
    checked.clear()
    summary = run(source, sharded, resume=False)
    assert (summary.resumed, summary.replaced_unfinished, len(checked)) == (None, True, COUNT)
    assert not set(identities(summary.output).items()) & set(before.items())
    assert digests(summary.output) == undisturbed(source, sharded)


@pytest.mark.usefixtures("small_steps")
def test_no_resume_is_the_way_out_of_other_options(source: Path, format_name: str) -> None:
    stop(source, format_name, 14, check="full")
    with pytest.raises(OutputError, match=r'check "full" then and "none" now.*--no-resume'):
        run(source, format_name)
    assert digests(run(source, format_name, resume=False).output) == undisturbed(source, format_name)


@pytest.mark.usefixtures("small_steps")
def test_another_input_is_another_job(source: Path, tmp_path: Path) -> None:
    stop(source, "lmdb", 14, check="full")
    other = write_tree(tmp_path / "other", FILES)
    with pytest.raises(OutputError, match=rf'input "{source}" then and "{other}" now'):
        run(other, "lmdb", check="full", output=tmp_path / "in.lmdb")


@pytest.mark.usefixtures("small_steps")
def test_old_output_stays_over_the_border_of_two_runs(source: Path, format_name: str) -> None:
    output = run(source, format_name).output
    old = digests(output)
    write_tree(source, {"b/new.npy": npy([7])})
    stop(source, format_name, 14, check="full", overwrite=True)
    assert digests(output) == old
    with pytest.raises(OutputError, match="exists already"):
        run(source, format_name, check="full")
    assert run(source, format_name, check="full", overwrite=True).resumed
    assert len(open_dataset(output)) == COUNT + 1


@pytest.mark.usefixtures("small_steps")
def test_partial_folder_inside_the_input_is_no_input(source: Path, format_name: str) -> None:
    output = source / "b/out"
    with pytest.raises(KeyboardInterrupt):
        run(source, format_name, _stop_at(14), check="full", output=output)
    assert (source / "b/.out.partial/journal.jsonl").exists()
    assert run(source, format_name, check="full", output=output).samples == COUNT


def _stop_at(done: int) -> Callable[[Progress], None]:
    def on_progress(progress: Progress) -> None:
        if progress.stage == "pack" and progress.done == done:
            raise KeyboardInterrupt

    return on_progress


def test_too_many_open_files_is_said_with_its_cure_and_gone_on_from(
    source: Path, monkeypatch: pytest.MonkeyPatch, format_name: str
) -> None:
    """It was told as an output that cannot be written, beside gigabytes that are free."""

    def no_descriptor(path: Path, *arguments: object) -> str:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(packer.assembly, "read_back", no_descriptor)
        with pytest.raises(OutputError, match=r"Too many open files.*fewer --workers.*ulimit") as caught:
            run(source, format_name, check="full")
    assert "run the same command again" in " ".join(caught.value.__notes__)
    assert run(source, format_name, check="full").resumed == COUNT
