"""What a user may ask of the input: which warnings are skips, how many skips are too many, which classes, which checksums."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packer.assembly
import packer.inspection
from packer import (
    InputError,
    InputOptions,
    OptionError,
    OutputError,
    PackOptions,
    TooManySkippedError,
    check_folder,
    manifest,
    open_dataset,
    pack_folder,
)
from packer.duplicates import Duplicates
from packer.files import file_digest
from packer.manifest import load_manifest
from packer.options import SKIPPABLE_CODES, allowed_skips
from packer.plan import ShardLimits
from packer.report import ReportWriter, report_rows
from tests.check_hooks import run_pack
from tests.inputs import jpeg, judging_here, npy, pack, pack_here, photo, png, write_tree

CUT = jpeg()[:700]
NOT_FINITE = npy(np.array([1.0, np.nan, np.inf], "f4"))


def checked(root: Path, **options: Any) -> list[dict[str, Any]]:
    """The rows of the report on a folder."""
    with judging_here():
        check_folder(root, root.parent / "report.jsonl", InputOptions(**options))
    return list(report_rows(root.parent / "report.jsonl"))


def codes(rows: list[dict[str, Any]], outcome: str = "skipped") -> dict[str, str]:
    return {row["path"]: row["code"] for row in rows if row["outcome"] == outcome}


# --skip


def test_warning_becomes_a_skip_and_no_other_file_is_touched(tmp_path: Path, format_name: str) -> None:
    root = write_tree(tmp_path / "in", {"a.npy": npy([1.0]), "b.npy": NOT_FINITE, "c.jpg": png(), "d.jpg": jpeg() + b"tail"})
    summary = pack_here(root, format_name, skip=["nonfinite", "extension_mismatch"])
    rows = list(report_rows(summary.report))
    assert codes(rows) == {"b.npy": "nonfinite", "c.jpg": "extension_mismatch"}
    assert codes(rows, "warned") == {"d.jpg": "trailing_bytes"}
    assert "1 NaN and 1 infinite of 3" in rows[0]["detail"]
    data = open_dataset(summary.output, output="bytes")
    assert {data.names[i]: data[i] for i in range(2)} == {"a.npy": npy([1.0]), "d.jpg": jpeg() + b"tail"}


def test_skip_holds_where_nothing_is_decoded(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "in", {"a.jpg": jpeg(), "c.jpg": png()})
    assert pack_here(root, check="none", skip=("extension_mismatch",)).skipped == {"extension_mismatch": 1}


@pytest.mark.parametrize("workers", [1, 3])
def test_copies_are_skipped_and_the_first_is_kept(tmp_path: Path, workers: int) -> None:
    same = png(photo(seed=5))
    files: dict[str | bytes, bytes] = {f"{name}/{i}.png": same for i in range(3) for name in "ab"}
    root = write_tree(tmp_path / "in", {**files, "a/other.png": png(photo(seed=6))})
    summary = pack(root, skip=("duplicate_content",), workers=workers)
    rows = list(report_rows(summary.report))
    assert summary.samples == 2
    assert codes(rows) == dict.fromkeys(["a/1.png", "a/2.png", "b/0.png", "b/1.png", "b/2.png"], "duplicate_content")
    assert all(f"the same {len(same):,} bytes as a/0.png" in row["detail"] for row in rows if row["outcome"] == "skipped")
    assert codes(rows, "warned") == {"b": "empty_class"}, "nothing is left twice, so nothing is to be warned of"


def test_equal_digests_do_not_make_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 bits can collide, by chance or by intent; a file is only left out when its bytes were compared."""
    import packer.check

    monkeypatch.setattr(packer.check.xxhash, "xxh3_64_intdigest", lambda data: 7)
    root = write_tree(tmp_path / "in", {"a.npy": npy([1]), "b.npy": npy([2]), "c.npy": npy([1])})
    summary = pack_here(root, check="none", skip=("duplicate_content",))
    assert (summary.samples, summary.skipped) == (2, {"duplicate_content": 1})


@pytest.mark.parametrize("code", ["truncated", "empty_class", "name_clash", "no_such", ""])
def test_skip_of_what_is_no_warning_about_a_file_is_refused(tmp_path: Path, code: str) -> None:
    root = write_tree(tmp_path / "in", {"a.npy": npy([1])})
    with pytest.raises(OptionError, match="multi_frame"):
        pack_here(root, skip=(code,))
    assert os.listdir(tmp_path) == ["in"]


def test_skip_on_the_command_line_takes_a_list_or_is_repeated(tmp_path: Path) -> None:
    write_tree(tmp_path / "in", {"a.npy": NOT_FINITE, "b.jpg": png(), "c.npy": npy([1]), "d.jpg": jpeg() + b"tail"})
    done = run_pack("in", "--skip", "nonfinite, trailing_bytes", "--skip", "extension_mismatch", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["skipped"] == {"nonfinite": 1, "extension_mismatch": 1, "trailing_bytes": 1}
    assert "skip ['extension_mismatch', 'nonfinite', 'trailing_bytes']" in run_pack("info", "in.lmdb", cwd=tmp_path).stdout
    refused = run_pack("in", "--skip", "all", "-o", "x", cwd=tmp_path)
    assert refused.returncode == 2
    assert all(code in refused.stderr for code in SKIPPABLE_CODES)


# --max-skipped and --strict


@pytest.mark.parametrize(
    ("limit", "files", "allowed"),
    [(0, 10, 0), ("0", 10, 0), (3, 10, 3), ("3", 1, 3), ("0%", 10, 0), ("100%", 10, 10), ("25 %", 10, 2), ("0.5%", 1000, 5)],
)
def test_limit_is_a_number_or_a_share(limit: int | str, files: int, allowed: int) -> None:
    assert allowed_skips(limit, files) == allowed


def test_share_is_exact() -> None:
    """In binary fractions 0.29 % of 10,000 and many others come out one too low."""
    wrong = [n for n in range(1, 10_000) if allowed_skips(f"{n / 100:.2f}%", 10_000) != n]
    assert wrong == []


@pytest.mark.parametrize("limit", ["-1", "101%", "5.5", "", "%", "many", "1e3", "nan%", "٣", -1])
def test_limit_that_makes_no_sense_is_refused(tmp_path: Path, limit: int | str) -> None:
    with pytest.raises(OptionError, match="max_skipped"):
        pack_here(write_tree(tmp_path / "in", {"a.npy": npy([1])}), max_skipped=limit)


@pytest.mark.parametrize(("limit", "fails"), [("1", True), ("2", False), ("49%", True), ("50%", False), ("100%", False)])
def test_more_skips_than_allowed_commit_nothing_and_leave_the_report(
    tmp_path: Path, format_name: str, limit: str, fails: bool
) -> None:
    root = write_tree(tmp_path / "in", {"a.jpg": CUT, "b.jpg": jpeg(), "c.jpg": CUT, "d.jpg": jpeg(seed=2)})
    if not fails:
        assert pack_here(root, format_name, max_skipped=limit).samples == 2
        return
    with pytest.raises(TooManySkippedError) as caught:
        pack_here(root, format_name, max_skipped=limit)
    assert caught.value.exit_status == 3
    report = tmp_path / f"in.{format_name}.report.jsonl"
    # The verdicts stay: with a higher limit nothing is checked again.
    assert sorted(os.listdir(tmp_path)) == [f".in.{format_name}.partial", "in", report.name]
    assert codes(list(report_rows(report))) == {"a.jpg": "truncated", "c.jpg": "truncated"}
    message = str(caught.value)
    assert all(part in message for part in ("2 of 4", "2 truncated", "a.jpg", str(report), limit))


def test_strict_on_the_command_line_ends_with_status_3_and_one_message(tmp_path: Path) -> None:
    write_tree(tmp_path / "in", {"a.jpg": CUT, "b.jpg": jpeg()})
    done = run_pack("in", "--strict", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert "in.lmdb.report.jsonl" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(os.listdir(tmp_path)) == [".in.lmdb.partial", "in", "in.lmdb.report.jsonl"]
    both = run_pack("in", "--strict", "--max-skipped", "3", cwd=tmp_path)
    assert both.returncode == 2
    (tmp_path / "in/a.jpg").unlink()
    assert run_pack("in", "--strict", cwd=tmp_path).returncode == 0


def test_an_output_of_before_survives_a_strict_run_that_fails(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "in", {"b.jpg": jpeg()})
    before = pack_here(root).content_digest
    write_tree(root, {"a.jpg": CUT})
    with pytest.raises(TooManySkippedError):
        pack_here(root, overwrite=True, max_skipped=0)
    assert load_manifest(tmp_path / "in.lmdb").content_digest == before


# More than half


@pytest.mark.parametrize("arguments", [(), ("-q",), ("--json",)])
def test_more_than_half_skipped_is_said_loudly(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    write_tree(tmp_path / "in", {"a.jpg": CUT, "b.jpg": jpeg(), "c.jpg": b""})
    done = run_pack("in", *arguments, cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1] == "pack: WARNING: 2 of 3 files were skipped, 67 %: 1 empty_file, 1 truncated"
    write_tree(tmp_path / "in", {"d.jpg": jpeg()})
    assert run_pack("in", *arguments, "--overwrite", cwd=tmp_path).stderr.count("WARNING") == 0


# --classes-from


def test_classes_of_another_dataset_give_the_labels(tmp_path: Path, format_name: str) -> None:
    train = pack_here(write_tree(tmp_path / "train", {f"{name}/1.npy": npy([1]) for name in "abc"}))
    root = write_tree(tmp_path / "in", {f"{name}/1.npy": npy([1]) for name in "bc"})
    summary = pack_here(root, format_name, classes_from=train.output)
    data = open_dataset(summary.output)
    assert (data.classes, data.class_to_idx) == (["a", "b", "c"], {"a": 0, "b": 1, "c": 2})
    assert list(data.targets) == [1, 2]
    assert codes(list(report_rows(summary.report)), "warned") == {"a": "empty_class", "b/1.npy": "duplicate_content"}


def test_classes_of_a_dataset_that_takes_numbers_keep_their_gaps(tmp_path: Path) -> None:
    train = pack_here(write_tree(tmp_path / "train", {f"{n}/1.npy": npy([1]) for n in (0, 2, 10)}), labels="number")
    root = write_tree(tmp_path / "in", {"10/1.npy": npy([1]), "2/1.npy": npy([2])})
    data = open_dataset(pack_here(root, classes_from=train.output).output)
    assert [(data.names[i], int(data.targets[i])) for i in range(2)] == [("10/1.npy", 10), ("2/1.npy", 2)]
    assert data.class_to_idx == {"0": 0, "10": 10, "2": 2}


def test_classes_from_a_list_in_its_own_order(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_bytes(b"\xef\xbb\xbfzebra\r\nh\xe9\r\n\r\n ant \r\n")
    root = write_tree(tmp_path / "in", {b"h\xe9/1.npy": npy([1]), b"zebra/1.npy": npy([2]), b" ant /1.npy": npy([3])})
    done = run_pack("in", "--classes-from", "list.txt", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    data = open_dataset(root.with_name("in.lmdb"))
    assert data.classes == ["zebra", "h\udce9", " ant "]
    assert list(data.targets) == [2, 1, 0]


def test_class_that_the_list_lacks_ends_the_job_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("b\nc\n")
    write_tree(tmp_path / "in", {f"{name}/1.npy": npy([1]) for name in "bcd"})
    done = run_pack("in", "--classes-from", "list.txt", cwd=tmp_path)
    assert done.returncode == 1
    assert "(d)" in done.stderr
    assert "list.txt" in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["in", "list.txt"]


@pytest.mark.parametrize("text", [b"", b"\n\n", b"b\nb\n"])
def test_list_of_no_class_or_of_one_twice_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "list.txt").write_bytes(text)
    root = write_tree(tmp_path / "in", {"b/1.npy": npy([1])})
    with pytest.raises(InputError, match=r"list\.txt"):
        pack_here(root, classes_from=tmp_path / "list.txt")


def test_classes_that_cannot_be_had_are_refused(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "in", {"b/1.npy": npy([1])})
    flat = pack_here(write_tree(tmp_path / "flat", {"1.npy": npy([1])}))
    for source in (tmp_path / "missing", tmp_path, flat.output):
        assert run_pack(root, "--classes-from", source, cwd=tmp_path).returncode == 1, source
    with pytest.raises(OptionError):
        pack_here(root, classes_from=flat.output, labels="none")
    with pytest.raises(InputError, match="no class folders"):
        pack_here(tmp_path / "flat", output=tmp_path / "x", classes_from=pack_here(root).output)


@pytest.mark.parametrize("name", [b"a/b", b"..", b".", b"x\0y", b"y" * 5000])
def test_class_that_no_folder_can_be_called_is_refused(tmp_path: Path, name: bytes) -> None:
    root = write_tree(tmp_path / "in", {"b/1.npy": npy([1])})
    (tmp_path / "list.txt").write_bytes(b"b\n" + name + b"\n")
    with pytest.raises(InputError, match=r"list\.txt.*no folder can be called"):
        pack_here(root, classes_from=tmp_path / "list.txt")


@pytest.mark.parametrize("name", ["c\ud800", "../c", "", "c\0"])
def test_forged_manifest_with_such_a_class_is_refused(tmp_path: Path, name: str) -> None:
    root = write_tree(tmp_path / "in", {"b/1.npy": npy([1])})
    path = pack_here(root).output / "manifest.json"
    content = json.loads(path.read_text())
    del content["digest"]
    content["classes"] = ["b", name]
    path.write_text(json.dumps({**content, "digest": manifest._self_digest(content)}))
    done = run_pack("check", "in", "--classes-from", "in.lmdb", cwd=tmp_path)
    assert done.returncode == 1
    assert "no folder can be called" in done.stderr
    assert "Traceback" not in done.stderr


def test_list_with_every_class_many_times_is_refused_at_once(tmp_path: Path) -> None:
    """Counting each line by itself took minutes for a list of some hundred thousand."""
    (tmp_path / "list.txt").write_bytes(b"b\nc\n" * 200_000)
    started = time.monotonic()
    with pytest.raises(InputError, match="names a class twice: b, c"):
        pack_here(write_tree(tmp_path / "in", {"b/1.npy": npy([1])}), classes_from=tmp_path / "list.txt")
    assert time.monotonic() - started < 5


def test_more_class_names_than_a_manifest_holds_are_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dataset with a larger manifest was written, and could not be opened."""
    root = write_tree(tmp_path / "in", {f"{i}/1.npy": npy([i]) for i in range(10)})
    monkeypatch.setattr(packer.assembly, "MAX_MANIFEST_BYTES", 2000)
    with pytest.raises(OutputError, match=r"10 shards.*--shard-samples"):
        pack_here(root, "webdataset", limits=ShardLimits(10**9, 1))
    monkeypatch.setattr(packer.inspection, "MAX_MANIFEST_BYTES", 100)
    with pytest.raises(InputError, match="10 classes are longer together"):
        pack_here(root)
    assert not (tmp_path / "in.webdataset").exists()
    assert not (tmp_path / "in.lmdb").exists()


def test_folders_named_like_splits_are_classes_where_the_list_says_so(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("train\ntest\n")
    root = write_tree(tmp_path / "in", {"test/1.npy": npy([1]), "train/1.npy": npy([2])})
    assert list(open_dataset(pack_here(root, classes_from=tmp_path / "list.txt").output).targets) == [1, 0]


# Duplicates


def test_copies_are_reported_once_per_content_with_their_labels(tmp_path: Path) -> None:
    same, pair = png(photo(seed=1)), npy([4.0])
    files: dict[str | bytes, bytes] = {f"{'abcd'[i % 4]}/{i:02d}.png": same for i in range(50)}
    files |= {f"a/x{i}.png": png(photo(seed=10 + i)) for i in range(20)} | {"b/1.npy": pair, "b/2.npy": pair}
    root = write_tree(tmp_path / "in", files)
    summary = pack_here(root)
    assert summary.samples == len(files)
    first, second = (row for row in report_rows(summary.report) if row["code"] == "duplicate_content")
    assert (first["path"], first["count"], first["classes"]) == ("a/00.png", 50, ["a", "b", "c", "d"])
    assert first["paths"] == ["a/00.png", "a/04.png", "a/08.png", "a/12.png", "a/16.png"]
    assert "50 files" in first["detail"]
    assert "4 labels" in first["detail"]
    assert len(first["digest"]) == 16
    assert (second["path"], second["count"], second["classes"]) == ("b/1.npy", 2, ["b"])
    assert "label" not in second["detail"]


def test_copies_are_found_among_many_and_sizes_tell_equal_digests_apart() -> None:
    found = Duplicates()
    for source, (size, digest) in enumerate([(1, 9), (2, 9), (1, 9), (5, 2**64 - 1), (1, 9), (5, 2**64 - 1), (7, 0)]):
        found.add(source, size, digest)
    assert [(group.digest, group.sources.tolist()) for group in found.groups()] == [(9, [0, 2, 4]), (2**64 - 1, [3, 5])]
    assert list(Duplicates().groups()) == []


def test_fifty_thousand_contents_in_twenty_thousand_classes_are_told_at_once(tmp_path: Path) -> None:
    """The table of class names was made again for each of them, a thousand million entries in all."""
    inspection = packer.inspection.Inspection(tmp_path, InputOptions(), lambda progress: None)
    listing = inspection.listing
    listing.classes, listing.class_labels = [b"%05d" % i for i in range(20_000)], list(range(20_000))
    for i in range(100_000):
        listing.append(b"%05d/%d.npy" % (i // 5, i), 10, 0, i // 5)
        inspection._duplicates.add(i, 10, i // 2)
    inspection.samples = len(listing)
    started = time.monotonic()
    with ReportWriter(tmp_path / "report.jsonl") as report:
        inspection.finish(report)
    assert report.warned["duplicate_content"] == 50_000
    assert time.monotonic() - started < 30


def test_report_that_a_full_disk_cuts_short_is_not_called_the_report(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        report = ReportWriter(tmp_path / "report.jsonl")
        report.skip(b"a.jpg", "corrupt", "why")
        with pytest.raises(OSError, match="too large"):
            report.__exit__(InputError, InputError("nothing could be packed"), None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# Names


def test_names_that_differ_in_case_or_accents_are_kept_apart_and_warned_of(tmp_path: Path, format_name: str) -> None:
    names = ["Cat/1.npy", "cat/1.npy", "cat/A.npy", "cat/a.npy", "cat/é.npy", "cat/e\u0301.npy", "cat/b.npy"]
    root = write_tree(tmp_path / "in", {name: npy([i]) for i, name in enumerate(names)})
    if len(list((root / "cat").iterdir())) != 6:
        pytest.skip("the file system itself merges them")
    summary = pack_here(root, format_name)
    data = open_dataset(summary.output, output="numpy")
    assert {data.names[i]: int(data[i][0][0]) for i in range(len(data))} == {name: i for i, name in enumerate(names)}
    assert codes(list(report_rows(summary.report)), "warned") == {
        "cat": "name_clash", "cat/a.npy": "name_clash", "cat/é.npy": "name_clash",
    }  # fmt: skip


# --checksums


def listed(files: dict[str, bytes], algorithm: str = "sha256", style: str = "{digest}  {name}") -> str:
    return "".join(
        style.format(digest=hashlib.new(algorithm, data).hexdigest(), name=name, tag=algorithm.upper()) + "\n"
        for name, data in files.items()
    )


@pytest.mark.parametrize("algorithm", ["md5", "sha1", "sha224", "sha256", "sha384", "sha512"])
@pytest.mark.parametrize("style", ["{digest}  {name}", "{digest} *./{name}", "{tag} ({name}) = {digest}"])
@pytest.mark.parametrize("check", ["full", "none"])
def test_flipped_bit_that_no_decoder_sees_shows_against_the_list(
    tmp_path: Path, algorithm: str, style: str, check: str
) -> None:
    files = {"a/1.npy": npy([1.0, 2.0]), "a/2 (x).npy": npy([3.0, 4.0]), "b/3.npy": npy([5.0])}
    root = write_tree(tmp_path / "in", {**files})
    flipped = bytearray(files["a/2 (x).npy"])
    flipped[-4] ^= 1
    (root / "a/2 (x).npy").write_bytes(flipped)
    (tmp_path / "SUMS").write_text(listed(files, algorithm, style))
    summary = pack(root, checksums=tmp_path / "SUMS", check=check, workers=1)
    (row,) = report_rows(summary.report)
    assert (row["path"], row["outcome"], row["code"]) == ("a/2 (x).npy", "skipped", "checksum")
    assert hashlib.new(algorithm, flipped).hexdigest() in row["detail"]
    assert hashlib.new(algorithm, files["a/2 (x).npy"]).hexdigest() in row["detail"]


def test_damage_that_a_decoder_sees_keeps_its_own_reason(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "in", {"a.jpg": CUT})
    (root / "SUMS").write_text(listed({"a.jpg": jpeg()}))
    assert codes(checked_or_refused(root)) == {"a.jpg": "truncated"}


def checked_or_refused(root: Path) -> list[dict[str, Any]]:
    report = root.parent / "report.jsonl"
    with pytest.raises(InputError, match="nothing could be packed"):
        check_folder(root, report, InputOptions(workers=1, checksums=root / "SUMS"))
    return list(report_rows(report))


@pytest.mark.parametrize("place", ["in", "above", "elsewhere", "absolute", "beside", "below"])
def test_names_in_the_list_are_found_from_where_it_lies(tmp_path: Path, place: str) -> None:
    files = {"a/1.npy": npy([1.0]), "a/h\udce9 \n.npy": npy([3.0])}
    root = write_tree(tmp_path / "in", {os.fsencode(name): data for name, data in files.items()})
    prefix = {"above": "in/", "absolute": f"{root}/", "beside": "../in/", "below": "../"}.get(place, "")
    lines = listed({f"{prefix}a/1.npy": files["a/1.npy"]}) + "\\" + listed({f"{prefix}a/h\udce9 \\n.npy": npy([0.0])})
    where = {"in": root, "above": tmp_path, "below": root / "a"}.get(place, tmp_path / "x")
    where.mkdir(exist_ok=True)
    (where / "SUMS").write_bytes(os.fsencode(lines))
    assert codes(checked(root, checksums=where / "SUMS")) == {"a/h\udce9 \n.npy": "checksum"}


def test_files_that_are_not_listed_and_files_that_are_gone_are_warned_of(tmp_path: Path) -> None:
    files = {"a.npy": npy([1.0]), "b.npy": npy([2.0])}
    root = write_tree(tmp_path / "in", {**files, "README.txt": b"x"})
    (root / "SUMS").write_text("# made in spring\n\n" + listed({"a.npy": files["a.npy"], "README.txt": b"x", "lost.npy": b""}))
    rows = checked(root, checksums=root / "SUMS")
    assert codes(rows, "warned") == {"b.npy": "checksum", "lost.npy": "checksum"}
    assert "no such file" in rows[-1]["detail"]


@pytest.mark.parametrize("text", ["hello\n", "abc  a.npy\n", "0" * 40 + "0  a.npy\n", "\0" * 100])
def test_list_that_is_none_is_refused_with_the_line(tmp_path: Path, text: str) -> None:
    root = write_tree(tmp_path / "in", {"a.npy": npy([1.0])})
    (tmp_path / "SUMS").write_text(listed({"a.npy": npy([1.0])}) + text)
    done = run_pack("in", "--checksums", "SUMS", cwd=tmp_path)
    assert done.returncode == 1
    assert "line 2" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["SUMS", "in"]
    assert root.exists()


def test_list_about_other_files_is_refused_before_any_work(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "in", {"a.npy": npy([1.0])})
    (tmp_path / "SUMS").write_text(listed({"other/a.npy": npy([1.0])}))
    with pytest.raises(InputError, match=r"names none of the 1 files, the first of which is a\.npy"):
        pack_here(root, checksums=tmp_path / "SUMS")
    with pytest.raises(InputError, match="No such file"):
        pack_here(root, checksums=tmp_path / "missing")


def test_list_of_windows_is_read(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "in", {"a.npy": npy([1.0])})
    (tmp_path / "SUMS").write_bytes(
        b"\xef\xbb\xbf" + listed({"a.npy": npy([1.0])}).upper().replace("A.NPY\n", "a.npy\r\n").encode()
    )
    assert checked(root, checksums=tmp_path / "SUMS") == []


def test_list_that_contradicts_itself_is_refused_and_one_of_two_kinds_is_not(tmp_path: Path) -> None:
    """The last line won, so which of the two it was hung on their order."""
    root = write_tree(tmp_path / "in", {"a.npy": npy([1.0])})
    right, wrong = listed({"a.npy": npy([1.0])}), listed({"./a.npy": npy([2.0])})
    (tmp_path / "SUMS").write_text(right + right + wrong)
    with pytest.raises(InputError, match=r"SUMS: line 3 gives a\.npy another checksum"):
        checked(root, checksums=tmp_path / "SUMS")
    for text in (right + listed({"a.npy": npy([1.0])}, "md5"), listed({"a.npy": npy([1.0])}, "md5") + right):
        (tmp_path / "SUMS").write_text(text)
        assert checked(root, checksums=tmp_path / "SUMS") == []


@pytest.mark.parametrize("tag", ["SHA3-256", "SHA512/256", "SM3"])
def test_checksum_of_another_kind_with_as_many_digits_is_refused(tmp_path: Path, tag: str) -> None:
    """Read as SHA-256 it would condemn every file."""
    root = write_tree(tmp_path / "in", {"a.npy": npy([1.0])})
    (tmp_path / "SUMS").write_text(f"{tag} (a.npy) = {'0' * 64}\n")
    with pytest.raises(InputError, match=rf"line 1 has a {tag} checksum"):
        checked(root, checksums=tmp_path / "SUMS")


def test_list_that_is_deleted_while_the_job_runs_costs_nothing(tmp_path: Path) -> None:
    """Its digest was read at the end, and hours of work were lost with it."""
    root = write_tree(tmp_path / "in", {"a.npy": npy([1.0])})
    (tmp_path / "SUMS").write_text(listed({"a.npy": npy([1.0])}))
    expected = file_digest(tmp_path / "SUMS")
    options = PackOptions(checksums=tmp_path / "SUMS", workers=1)
    summary = pack_folder(root, options, lambda progress: (tmp_path / "SUMS").unlink(missing_ok=True))
    assert load_manifest(summary.output).options["checksums"] == expected
