"""The journal of an unfinished job: which of its lines count, for which file, and for which command."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import packer.job
import packer.journal
from packer import OutputError, PackOptions, formats, pack_folder
from packer.journal import Chain, FinishedShard, Journal
from packer.manifest import ShardEntry
from packer.model import Kept, Note, Skipped, Source, Verdict
from packer.plan import ShardLimits
from tests.inputs import npy, write_tree

SETTINGS = {"check": "full", "format": "lmdb"}
ODD_NAMES = [b"h\xe9.jpg", b"line\nbreak\r\n.png", b'"quote" \\ ,]', "日本.npy".encode(), b"\x1b[2J", b"\xff\xfe", b"a" * 4000]


@contextmanager
def journal(path: Path, settings: dict[str, Any] = SETTINGS) -> Iterator[Journal]:
    opened = Journal(path, settings)
    try:
        yield opened
    finally:
        opened.close()


def source(name: bytes | str, size_bytes: int = 10, mtime_ns: int = 1_700_000_000_123_456_789) -> Source:
    return Source(0, os.fsencode(name), size_bytes, mtime_ns, 0)


def kept(digest: int = 7, **values: Any) -> Kept:
    return Kept("npy", 10, digest, **values)


def write(path: Path, verdicts: dict[str, Verdict]) -> list[bytes]:
    """Write one run's journal, and give its lines."""
    with journal(path) as opened:
        for name, verdict in verdicts.items():
            opened.add([source(name)], [verdict])
    return path.read_bytes().splitlines(keepends=True)


def digests(path: Path, *names: str) -> list[int | str | None]:
    """What a later run finds about each file: a digest, the code of a skip, or nothing."""
    with journal(path) as opened:
        found = [opened.find(source(name)) for name in names]
    return [verdict.digest if isinstance(verdict, Kept) else verdict and verdict.code for verdict in found]


# Which lines count


def test_verdicts_come_back_as_they_were(tmp_path: Path) -> None:
    verdicts: list[Verdict] = [
        kept(2**64 - 1, mode="RGB", width=3, height=4, frames=2, orientation=6, header=b"\x93NUMPY\xff\n"),
        kept(1, warnings=(Note("trailing_bytes", "3 bytes \udce9 follow\n"), Note("nonfinite", "2 of 3"))),
        Skipped("truncated", "no end marker \x1b[2J \ud800"),
    ]
    sources = [source(f"{i}") for i in range(3)]
    with journal(tmp_path / "j") as first:
        first.add(sources, verdicts)
    with journal(tmp_path / "j") as second:
        assert [second.find(one) for one in sources] == verdicts
        assert (second.is_resumed, second.verdicts) == (True, 3)


def test_fresh_journal_knows_nothing(tmp_path: Path) -> None:
    with journal(tmp_path / "j") as opened:
        assert opened.find(source("a")) is None
        assert (opened.is_resumed, opened.verdicts, opened.shards) == (False, 0, [])


def test_line_that_was_cut_anywhere_is_no_fact_and_not_in_the_way_of_the_next(tmp_path: Path) -> None:
    lines = write(tmp_path / "j", {"a": kept(1), "b": kept(2)})
    for length in range(len(lines[2])):
        (tmp_path / "j").write_bytes(b"".join(lines[:2]) + lines[2][:length])
        with journal(tmp_path / "j") as opened:
            assert opened.verdicts == 1
            opened.add([source("c")], [kept(3)])
        assert digests(tmp_path / "j", "a", "b", "c") == [1, None, 3]


def test_line_that_is_damaged_anywhere_costs_itself_only(tmp_path: Path) -> None:
    lines = write(tmp_path / "j", {"a": kept(1), "b": kept(2), "c": kept(3)})
    for at in {*range(len(lines[2]) - 1)} - {16}:  # there is a space, which says nothing
        damaged = bytearray(lines[2])
        damaged[at] ^= 0x15
        (tmp_path / "j").write_bytes(lines[0] + lines[1] + bytes(damaged) + lines[3])
        assert digests(tmp_path / "j", "a", "b", "c") == [1, None, 3], at


@pytest.mark.parametrize("junk", [b"\n", b"\xff" * 20 + b"\n", b"0" * 300 + b"\n", b"%016x 5\n" % 0x1234], ids=len)
def test_line_that_is_no_line_of_a_journal_costs_nothing(tmp_path: Path, junk: bytes) -> None:
    lines = write(tmp_path / "j", {"a": kept(1), "b": kept(2)})
    (tmp_path / "j").write_bytes(lines[0] + lines[1] + junk + lines[2])
    assert digests(tmp_path / "j", "a", "b") == [1, 2]


@pytest.mark.parametrize("keep", [0, 5, None], ids=["empty", "cut", "damaged"])
def test_journal_whose_settings_are_lost_starts_anew(tmp_path: Path, keep: int | None) -> None:
    """Verdicts that nobody knows the settings of are none."""
    lines = write(tmp_path / "j", {"a": kept(1)})
    content = b"x" + b"".join(lines)[1:] if keep is None else lines[0][:keep]
    (tmp_path / "j").write_bytes(content)
    with journal(tmp_path / "j") as opened:
        assert (opened.is_resumed, opened.verdicts, opened.find(source("a"))) == (False, 0, None)
        opened.add([source("b")], [kept(2)])
    assert digests(tmp_path / "j", "a", "b") == [None, 2]
    with pytest.raises(OutputError, match="other settings"), journal(tmp_path / "j", {}):
        pass


def test_last_verdict_on_a_path_counts(tmp_path: Path) -> None:
    with journal(tmp_path / "j") as opened:
        for digest in (1, 2, 3):
            opened.add([source("a"), source("b")], [kept(digest), kept(10 * digest)])
    assert digests(tmp_path / "j", "a", "b") == [3, 30]


def test_many_threads_may_write(tmp_path: Path) -> None:
    with journal(tmp_path / "j") as opened:

        def work(number: int) -> None:
            for i in range(50):
                opened.add([source(f"{number}/{i}")], [kept(100 * number + i)])
                opened.refresh()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        opened.refresh()
        names = [f"{number}/{i}" for number in range(4) for i in range(50)]
        assert [opened.find(source(name)) for name in names] == [kept(100 * n + i) for n in range(4) for i in range(50)]
    assert digests(tmp_path / "j", *names) == [100 * n + i for n in range(4) for i in range(50)]


def test_verdict_is_found_while_others_are_written(tmp_path: Path) -> None:
    """A write moved the position that was read from, and the file was checked again."""
    names = [f"{i}" for i in range(300)]
    write(tmp_path / "j", {name: kept(int(name)) for name in names})
    with journal(tmp_path / "j") as opened:
        readline = opened._reader.readline

        class Reader:
            seek = opened._reader.seek
            close = opened._reader.close

            def readline(self) -> bytes:
                opened.add([source("new")], [kept()])
                return readline()

        opened._reader = Reader()  # type: ignore[assignment]
        assert [opened.find(source(name)) for name in reversed(names)] == [kept(int(name)) for name in reversed(names)]


def test_closed_journal_takes_nothing_any_more(tmp_path: Path) -> None:
    """Workers may still be at something, and another file may have its descriptor's number."""
    with journal(tmp_path / "j") as opened:
        opened.add([source("a")], [kept(1)])
    opened.add([source("b")], [kept(2)])
    assert digests(tmp_path / "j", "a", "b") == [1, None]


# Whether a file is as it was


@pytest.mark.parametrize("change", [{"size_bytes": 11}, {"mtime_ns": 1_700_000_000_123_456_788}, {"name": b"A"}], ids=str)
def test_file_of_another_size_time_or_name_is_another_file(tmp_path: Path, change: dict[str, Any]) -> None:
    with journal(tmp_path / "j") as opened:
        opened.add([source("a")], [kept()])
        opened.refresh()
        assert opened.find(source("a")) == kept()
        assert opened.find(dataclasses.replace(source("a"), **change)) is None


def test_names_of_any_bytes_are_found_and_told_apart(tmp_path: Path) -> None:
    sources = [source(name) for name in ODD_NAMES]
    with journal(tmp_path / "j") as opened:
        opened.add(sources, [kept(i) for i in range(len(sources))])
    with journal(tmp_path / "j") as opened:
        assert [opened.find(one) for one in sources] == [kept(i) for i in range(len(sources))]


def test_names_with_one_digest_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = packer.journal.xxhash.xxh3_64_intdigest
    monkeypatch.setattr(packer.journal.xxhash, "xxh3_64_intdigest", lambda data: 5 if len(data) == 1 else digest(data))
    write(tmp_path / "j", {"a": kept(1), "b": kept(2), "c": kept(3)})
    assert digests(tmp_path / "j", "c", "b", "a", "d") == [3, 2, 1, None]


@pytest.mark.parametrize("code", ["unreadable", "changed", "worker_died", "timeout", "too_large"])
def test_verdict_about_the_moment_counts_in_its_own_run_only(tmp_path: Path, code: str) -> None:
    with journal(tmp_path / "j") as opened:
        opened.add([source("a")], [Skipped(code, "just now")])
        opened.refresh()
        assert opened.find(source("a")) == Skipped(code, "just now")
    assert digests(tmp_path / "j", "a") == [None]


@pytest.mark.parametrize("code", ["truncated", "corrupt", "not_an_image", "empty_file", "bad_header", "checksum"])
def test_verdict_about_the_file_counts_for_ever(tmp_path: Path, code: str) -> None:
    write(tmp_path / "j", {"a": Skipped(code, "its bytes say so")})
    assert digests(tmp_path / "j", "a") == [code]


# Shards


def test_finished_shards_come_back_in_order_and_the_last_word_on_each_counts(tmp_path: Path) -> None:
    shards = [FinishedShard(ShardEntry(f"shard-{i:06d}.tar", 10 + i, 3, f"{i}" * 16), f"{i}" * 32) for i in range(3)]
    changed = shards[1]._replace(chain="f" * 32)
    with journal(tmp_path / "j") as opened:
        for shard in (shards[1], shards[0], changed, shards[2]):
            opened.add_shard(shard)
    with journal(tmp_path / "j") as opened:
        assert opened.shards == [shards[0], changed, shards[2]]


def test_chain_tells_apart_all_that_a_shard_depends_on() -> None:
    def chain(
        *samples: tuple[bytes, int, Kept], classes: Sequence[bytes] = (b"a", b"b"), labels: Sequence[int] = (0, 1)
    ) -> str:
        made = Chain(classes, labels)
        for sample in samples:
            made.add(*sample)
        return made.digest()

    first, second = (b"a/1", 0, kept(1)), (b"b/2", 1, kept(2))
    found = [
        chain(),
        chain(first),
        chain(first, second),
        chain(second, first),
        chain((b"a/3", 0, kept(1)), second),
        chain((b"a/1", 1, kept(1)), second),
        chain((b"a/1", 0, kept(3)), second),
        chain((b"a/1", 0, Kept("npy", 11, 1)), second),
        chain((b"a/1", 0, Kept("png", 10, 1)), second),
        chain(first, second, classes=(b"a", b"c")),
        chain(first, second, labels=(0, 2)),
        chain(first, second, classes=(b"ab", b""), labels=(0, 1)),
    ]
    assert len(set(found)) == len(found)
    assert chain(first, second) == found[2]


# Other settings


def test_other_settings_are_refused_with_exactly_what_differs(tmp_path: Path) -> None:
    then = {"check": "full", "same": 1, "version of": {"numpy": "1", "pillow": "2"}, "skip": ["a"]}
    now = {"check": "none", "same": 1, "version of": {"numpy": "1", "pillow": "3"}, "shuffle": 5}
    (tmp_path / "p").mkdir()
    with journal(tmp_path / "p/j", then) as opened:
        opened.add([source("a")], [kept()])
    before = (tmp_path / "p/j").read_bytes()
    with pytest.raises(OutputError) as caught, journal(tmp_path / "p/j", now):
        pass
    assert str(caught.value) == (
        f'{tmp_path / "p"}: an unfinished output of a job with other settings: check "full" then and "none" now; '
        'shuffle not given then and 5 now; skip ["a"] then and not given now; version of pillow "2" then and "3" now. '
        "Run it with those to go on, or add --no-resume to start over."
    )
    assert (tmp_path / "p/j").read_bytes() == before


OTHER = {
    "check": ({"check": "full"}, "check"),
    "labels": ({"labels": "none"}, "labels"),
    "pixels": ({"max_pixels": 10**6}, "max_pixels"),
    "links": ({"follow_links": True}, "follow_links"),
    "skip": ({"skip": ["nonfinite"]}, "skip"),
    "shuffle": ({"shuffle": 1}, "shuffle"),
    "shard samples": ({"limits": ShardLimits(samples=3)}, "shard_samples"),
    "shard size": ({"limits": ShardLimits(size_bytes=10**6)}, "shard_bytes"),
    "format": ({"format": "lmdb"}, "format"),
}
FIRST = {"check": "none", "limits": ShardLimits(samples=2), "format": "webdataset", "workers": 1}


def stopped(root: Path, **options: Any) -> Path:
    """A job that ended after its first shards; returns its partial folder."""
    write_tree(root / "in", {f"{i}.npy": npy([i]) for i in range(8)})

    def stop(progress: Any) -> None:
        if progress.stage == "pack" and progress.done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack_folder(root / "in", PackOptions(output=root / "out", **{**FIRST, **options}), stop)
    return root / ".out.partial"


@pytest.mark.parametrize("case", OTHER)
def test_other_option_is_refused_by_name_and_nothing_is_touched(tmp_path: Path, case: str) -> None:
    options, phrase = OTHER[case]
    partial = stopped(tmp_path)
    before = {path: path.read_bytes() for path in partial.rglob("*") if path.is_file() and path.name != "lock"}
    assert len(before) >= 3
    options = {**FIRST, **options}
    if not formats.get(options["format"]).has_shards:
        del options["limits"]
    with pytest.raises(OutputError, match=rf"other settings: .*{phrase}.*--no-resume"):
        pack_folder(tmp_path / "in", PackOptions(output=tmp_path / "out", **options))
    assert {path: path.read_bytes() for path in partial.rglob("*") if path.is_file() and path.name != "lock"} == before


@pytest.mark.parametrize("distribution", ["packer", "numpy", "pillow", "simplejpeg"])
def test_other_version_of_a_library_is_refused_by_name(
    tmp_path: Path, distribution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(tmp_path)
    monkeypatch.setattr(f"{packer.job._DECIDING[distribution]}.__version__", "0.0")
    with pytest.raises(OutputError, match=rf'other settings: version of {distribution} "[^"]+" then and "0\.0" now\. Run'):
        pack_folder(tmp_path / "in", PackOptions(output=tmp_path / "out", **FIRST))


@pytest.mark.parametrize("options", [{"workers": 2}, {"max_skipped": 0}, {"timeout_s": 5.0}, {"overwrite": True}], ids=str)
def test_option_that_changes_no_byte_of_the_output_is_no_other_setting(tmp_path: Path, options: dict[str, Any]) -> None:
    stopped(tmp_path)
    summary = pack_folder(tmp_path / "in", PackOptions(output=tmp_path / "out", **{**FIRST, **options}))
    assert (summary.samples, summary.resumed is None) == (8, False)
