"""Names and folders that cost other tools samples, labels or the whole run: what is found, and which label it gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unicodedata
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest

from packer import InputError, PackOptions, open_dataset, pack_folder
from packer.options import Progress
from tests.cases.recipes import Packed, as_file, pack_files, smooth, through_webdataset
from tests.check_hooks import environment, lines, pack_command, run_pack
from tests.inputs import jpeg, npy, pack_here, png, write_tree

SKIPPED = "skipped"
WARNED = "warned"

# webdataset 1.0 leaves its shards for the garbage collector to close.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def assert_webdataset_agrees(output: Path, files: dict[bytes, bytes]) -> None:
    """One sample a file, under its number, with the original path beside it: as the library itself reads the shards."""
    found = list(through_webdataset(output))
    assert [sample["__key__"] for sample in found] == [f"{number:09d}" for number in range(len(files))]
    for sample, (name, data) in zip(found, files.items(), strict=True):
        values = json.loads(sample["json"])
        path = values["path"].encode()
        assert (unquote_to_bytes(path) if values.get("encoding") == "percent" else path) == name
        assert [value for key, value in sample.items() if not key.startswith("__") and key not in ("cls", "json")] == [data]


def assert_kept(result: Packed, files: dict[bytes, bytes]) -> None:
    """These files and no others, in this order, by the reader and at the places that the index gives."""
    assert [os.fsencode(name) for name in result.names] == list(files)
    for found in (result.read(output="bytes"), result.at_stored_places()):
        assert [found[name] for name in result.names] == list(files.values())


# Dots, extensions, rubbish


def test_dots_in_names_neither_merge_nor_lose_a_file(tmp_path: Path, format_name: str) -> None:
    """WebDataset cuts a name at its first dot: two pictures became one sample with two fields, without any error."""
    kept = {
        b"c/img.1.jpg": jpeg(seed=1),
        b"c/img.2.jpg": jpeg(seed=2),
        b"c/v1.0 (final).png": png(seed=3),
        b"c.v2/a.jpg": jpeg(seed=4),
    }
    others: dict[str | bytes, bytes] = {"c/.x.jpg": jpeg(seed=5), "c/x.": jpeg(seed=6), "c/noext": jpeg(seed=7)}
    result = pack_files(tmp_path, {**kept, **others}, format_name)
    assert result.rows == []
    assert_kept(result, kept)
    assert result.summary.ignored == {"(hidden or system)": 1, "(no extension)": 2}
    assert open_dataset(result.output).classes == ["c", "c.v2"]
    assert list(result.labels().values()) == [0, 0, 0, 1]
    if format_name == "webdataset":
        assert_webdataset_agrees(result.output, kept)


def test_one_name_in_many_folders_and_with_many_extensions_is_many_samples(tmp_path: Path, format_name: str) -> None:
    """Where the base name is the key, the last one wins."""
    files = {
        b"A/1.png": png(seed=1),
        b"A/x.jpg": jpeg(seed=4),
        b"A/x.png": png(seed=5),
        b"B/1.png": png(seed=2),
        b"C/1.png": png(seed=3),
    }
    result = pack_files(tmp_path, dict(reversed(files.items())), format_name)
    assert result.rows == []
    assert_kept(result, files)
    assert list(result.labels().values()) == [0, 0, 0, 1, 2]
    if format_name == "webdataset":
        assert_webdataset_agrees(result.output, files)


def test_extensions_in_upper_case_are_found(tmp_path: Path, format_name: str) -> None:
    """A phone's own spelling is counted in one place and missed in the other."""
    files = {b"x/a.JPG": jpeg(seed=1), b"x/b.Png": png(seed=2), b"x/c.JPEG": jpeg(seed=3), b"x/d.NPY": npy([1])}
    source = write_tree(tmp_path / "in", {**files, "x/e.JpG": jpeg()[:300]})
    seen: list[Progress] = []
    options = PackOptions(format=format_name, output=tmp_path / "out", workers=1)
    result = Packed(pack_folder(source, options, seen.append))
    assert_kept(result, files)
    summary = result.summary
    assert {progress.total for progress in seen if progress.stage == "pack"} == {5}
    assert (summary.files, summary.samples, summary.skipped) == (5, 4, {"truncated": 1})
    assert summary.ignored == {}


def test_what_systems_leave_behind_is_neither_a_sample_nor_a_failure_nor_a_class(tmp_path: Path, format_name: str) -> None:
    """Thousands of "corrupt" files that are no pictures hide the real ones."""
    attributes = b"\0\5\x16\7\0\2\0\0Mac OS X" + bytes(4000)
    rubbish = ["._a.jpg", ".DS_Store", "Thumbs.db", "desktop.ini", "__MACOSX/._b.jpg", "__MACOSX/b.jpg", ".~lock"]
    files: dict[str | bytes, bytes] = {f"{folder}{name}": attributes for folder in ("", "c/") for name in rubbish}
    result = pack_files(tmp_path, {**files, "c/a.jpg": jpeg()}, format_name)
    assert_kept(result, {b"c/a.jpg": jpeg()})
    assert result.rows == []
    assert result.summary.classes == ("c",)
    assert result.summary.skipped == {}
    assert set(result.summary.ignored) == {"(hidden or system)"}


# Classes


def class_tree(folder: Path) -> Path:
    source = write_tree(
        folder / "in",
        {
            "ant/1.jpg": jpeg(seed=1),
            "ant/2.jpg": jpeg(seed=2),
            "cat/1.jpg": jpeg(seed=3),
            "cat/2.jpg": jpeg(seed=4),
            "dog/1.jpg": jpeg(seed=5)[:400],
        },
    )
    (source / ".ipynb_checkpoints").mkdir()
    (source / "bee").mkdir()
    return source


def test_hidden_and_empty_class_folders_move_no_label(tmp_path: Path, format_name: str) -> None:
    """A notebook's hidden folder sorts first, becomes class 0, and moves every label by one."""
    source = class_tree(tmp_path)
    result = Packed(pack_here(source, format_name))
    data = open_dataset(result.output)
    assert data.classes == ["ant", "bee", "cat", "dog"]
    assert data.class_to_idx == {"ant": 0, "bee": 1, "cat": 2, "dog": 3}
    assert data.targets.tolist() == [0, 0, 2, 2]
    assert result.outcome("bee") == [(WARNED, "empty_class")]
    assert result.outcome("dog") == [(WARNED, "empty_class")]
    assert result.outcome("dog/1.jpg") == [(SKIPPED, "truncated")]
    assert len(result.rows) == 3


def numbered_files() -> dict[str | bytes, bytes]:
    return {f"{name}/1.npy": npy([int(name)]) for name in ("0", "1", "2", "10")}


def test_numbered_class_folders_sort_as_text_and_say_so_once(tmp_path: Path, format_name: str) -> None:
    """The folder 2 gets another label than 2, and accuracy looks like chance with a good model."""
    result = pack_files(tmp_path, numbered_files(), format_name)
    data = open_dataset(result.output)
    assert data.classes == ["0", "1", "10", "2"]
    assert data.class_to_idx == {"0": 0, "1": 1, "10": 2, "2": 3}
    assert {name: int(array[0]) for name, array in result.read(output="numpy").items()} == {
        "0/1.npy": 0,
        "1/1.npy": 1,
        "10/1.npy": 10,
        "2/1.npy": 2,
    }
    assert list(result.labels().values()) == [0, 1, 2, 3]
    (row,) = result.rows
    assert (row["path"], row["outcome"], row["code"]) == (None, WARNED, "numeric_classes")
    assert "10→2" in row["detail"]
    assert "2→3" in row["detail"]
    assert "--labels number" in row["detail"]


def test_the_mapping_of_numbered_classes_is_shown_once_on_the_terminal(tmp_path: Path) -> None:
    write_tree(tmp_path / "in", numbered_files())
    done = run_pack("in", "-o", "out", "--workers", "1", cwd=tmp_path)
    assert done.returncode == 0
    assert (done.stdout + done.stderr).count("10→2") == 1


def test_the_folders_number_is_the_label_where_asked(tmp_path: Path, format_name: str) -> None:
    result = pack_files(tmp_path, numbered_files(), format_name, labels="number")
    data = open_dataset(result.output, output="numpy")
    assert data.class_to_idx == {"0": 0, "1": 1, "10": 10, "2": 2}
    assert [(int(array[0]), target) for array, target in data] == [(0, 0), (1, 1), (10, 10), (2, 2)]
    assert result.rows == []


@pytest.mark.parametrize("folders", [["0", "1", "2"], ["00", "01", "02", "10"], ["0", "1", "ten"]])
def test_numbers_whose_order_is_clear_need_no_warning(tmp_path: Path, folders: list[str]) -> None:
    files: dict[str | bytes, bytes] = {f"{name}/1.npy": npy([number]) for number, name in enumerate(folders)}
    codes = [row["code"] for row in pack_files(tmp_path, files).rows]
    assert codes == (["numeric_classes"] if folders[-1] == "10" else [])


def test_a_validation_set_that_lacks_a_class_gets_the_training_sets_labels(tmp_path: Path, format_name: str) -> None:
    """Each split numbers its own folders otherwise, and equal counts hide it."""
    train = pack_files(tmp_path / "train", {f"{name}/1.npy": npy([1]) for name in "abc"}, format_name)
    (tmp_path / "classes.txt").write_text("a\nb\nc\n", "utf-8")
    for number, known in enumerate((train.output, tmp_path / "classes.txt")):
        files: dict[str | bytes, bytes] = {f"{name}/1.npy": npy([2]) for name in "bc"}
        result = pack_files(tmp_path / f"validation {number}", files, format_name, classes_from=known)
        data = open_dataset(result.output)
        assert data.classes == ["a", "b", "c"]
        assert data.class_to_idx == {"a": 0, "b": 1, "c": 2}
        assert result.labels() == {"b/1.npy": 1, "c/1.npy": 2}


def test_labels_that_are_numbers_are_taken_over_as_they_are(tmp_path: Path) -> None:
    train = pack_files(tmp_path / "train", numbered_files(), labels="number")
    result = pack_files(tmp_path / "validation", {"2/1.npy": npy([1]), "10/1.npy": npy([2])}, classes_from=train.output)
    assert result.labels() == {"10/1.npy": 10, "2/1.npy": 2}
    assert open_dataset(result.output).class_to_idx == {"0": 0, "1": 1, "10": 10, "2": 2}


@pytest.mark.parametrize("kind", ["dataset", "file"])
def test_a_class_that_the_training_set_does_not_have_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    known = tmp_path / "classes.txt"
    known.write_text("a\nb\nc\n", "utf-8")
    if kind == "dataset":
        known = pack_files(tmp_path / "train", {f"{name}/1.npy": npy([1]) for name in "abc"}).output
    source = write_tree(tmp_path / "in", {f"{name}/1.npy": npy([2]) for name in ("b", "c", "dromedary")})
    with pytest.raises(InputError, match="dromedary"):
        pack_folder(source, PackOptions(output=tmp_path / "out", classes_from=known))
    done = run_pack("in", "-o", "out", "--classes-from", known, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = lines(done.stderr)
    assert "dromedary" in line
    assert not (tmp_path / "out").exists()
    assert [name for name in os.listdir(tmp_path) if "partial" in name] == []


def test_two_datasets_with_different_classes_can_be_told_apart_and_mapped(tmp_path: Path, format_name: str) -> None:
    train = pack_files(tmp_path / "train", {f"{name}/1.npy": npy([1]) for name in "abc"}, format_name)
    other = pack_files(tmp_path / "other", {f"{name}/1.npy": npy([1]) for name in "bcd"}, format_name)
    one, two = open_dataset(train.output), open_dataset(other.output)
    assert len(one.classes) == len(two.classes)
    assert one.class_to_idx != two.class_to_idx
    mapped = open_dataset(other.output, target_transform=[one.class_to_idx.get(name, -1) for name in two.classes].__getitem__)
    assert [mapped[number][1] for number in range(3)] == [1, 2, -1]


def test_nested_folders_that_spell_the_same_with_an_underscore_stay_two_classes(tmp_path: Path, format_name: str) -> None:
    files = {b"a/0.jpg": jpeg(seed=0), b"a/b_c/1.jpg": jpeg(seed=1), b"a_b/c/2.jpg": jpeg(seed=2)}
    result = pack_files(tmp_path, dict(files), format_name)
    assert_kept(result, files)
    assert open_dataset(result.output).classes == ["a", "a_b"]
    assert list(result.labels().values()) == [0, 0, 1]


# Names that are one name elsewhere


def test_names_that_differ_in_case_or_in_how_an_accent_is_written_are_kept_and_named(tmp_path: Path, format_name: str) -> None:
    composed, decomposed = (unicodedata.normalize(form, "é.jpg") for form in ("NFC", "NFD"))
    files = {
        b"c/IMG.jpg": jpeg(seed=1),
        b"c/e.jpg": jpeg(seed=2),
        f"c/{decomposed}".encode(): jpeg(seed=3),
        b"c/img.JPG": jpeg(seed=4),
        f"c/{composed}".encode(): jpeg(seed=5),
        b"d/IMG.jpg": jpeg(seed=6),
    }
    result = pack_files(tmp_path, dict(files), format_name)
    assert_kept(result, files)
    assert {(row["outcome"], row["code"]) for row in result.rows} == {(WARNED, "name_clash")}
    named = [
        {name for name in ("IMG.jpg", "img.JPG", composed, decomposed) if name in row["path"] + row["detail"]}
        for row in result.rows
    ]
    assert {frozenset(names) for names in named} == {frozenset({"IMG.jpg", "img.JPG"}), frozenset({composed, decomposed})}
    assert len(result.rows) == 2


def test_class_folders_that_differ_only_in_case_stay_two_classes_and_are_named(tmp_path: Path) -> None:
    result = pack_files(tmp_path, {"Cat/1.npy": npy([1]), "cat/1.npy": npy([2])})
    assert open_dataset(result.output).classes == ["Cat", "cat"]
    assert [(row["outcome"], row["code"]) for row in result.rows] == [(WARNED, "name_clash")]


# Names that are too long


def long_names() -> dict[bytes, bytes]:
    japanese = "画像の名前がとても長い" * 8
    wide = japanese.encode()[: 82 * 3] + b".jpg"
    assert len(wide) == 250
    return {
        "/".join([letter * 200 for letter in "abc"]).encode() + b"/" + b"d" * 200 + b".jpg": jpeg(seed=1),
        b"e/" + b"f" * 146 + b".jpg": jpeg(seed=2),
        b"g/" + wide: jpeg(seed=3),
        b"h/" + wide[:-4] + b".npy": npy([1]),
    }


def test_names_longer_than_a_store_takes_are_kept_and_found_at_their_places(tmp_path: Path, format_name: str) -> None:
    """One key above 511 bytes among millions ended the whole write; extra tar headers moved every offset behind them."""
    files = long_names()
    result = pack_files(tmp_path, dict(files), format_name)
    assert result.rows == []
    assert_kept(result, files)
    if format_name == "webdataset":
        assert_webdataset_agrees(result.output, files)


# Names that are no text

ODD = [b"h\xe9.jpg", b'line\nbreak, comma\ttab "quote".jpg', b"space .jpg", b"\xff\xfe\x80.png"]
CODED = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONWARNINGS": "error"}


def odd_files() -> dict[bytes, bytes]:
    """Kept clean, kept with a warning, and skipped: of each name three, in three folders."""
    files = {}
    for number, name in enumerate(ODD):
        files[b"c/" + name] = png(seed=number) if name.endswith(b".png") else jpeg(seed=number)
        files[b"d\xe9/" + name] = as_file(smooth(30 + number, 20), "BMP")
        files[b'e\n,"/' + name] = jpeg()[:300]
    return files


def test_names_that_are_no_text_come_back_byte_for_byte(tmp_path: Path, format_name: str) -> None:
    """One old name in Latin-1 ended the job while the index was written, after all the packing."""
    files = odd_files()
    result = pack_files(tmp_path, dict(files), format_name)
    kept = {name: files[name] for name in sorted(files, key=lambda name: name.split(b"/")) if not name.startswith(b"e\n")}
    assert_kept(result, kept)
    paths = [(os.fsencode(row["path"]), row["outcome"], row["code"]) for row in result.rows]
    expected = {(name, SKIPPED, "truncated") for name in files if name.startswith(b"e\n")}
    expected |= {(name, WARNED, "extension_mismatch") for name in files if name.startswith(b"d\xe9")}
    assert set(paths) - {(b'e\n,"', WARNED, "empty_class")} == expected
    assert len(paths) == len(expected) + 1
    assert [os.fsencode(name) for name in open_dataset(result.output).classes] == [b"c", b"d\xe9", b'e\n,"']
    if format_name == "webdataset":
        assert_webdataset_agrees(result.output, kept)


def test_spaces_at_the_end_of_a_name_lose_no_picture(tmp_path: Path, format_name: str) -> None:
    """Whether behind the extension, before it, or at the end of a class."""
    files = {b"c/ y .jpg": jpeg(seed=1), b"c/x.jpg ": jpeg(seed=2), b"c /z.jpg": jpeg(seed=3)}
    result = pack_files(tmp_path, dict(files), format_name)
    assert result.rows == []
    assert_kept(result, files)
    assert open_dataset(result.output).classes == ["c", "c "]


def test_nothing_on_a_terminal_of_plain_ascii_raises(tmp_path: Path, format_name: str) -> None:
    """With warnings as errors, in the C locale, without UTF-8 mode: every command, and every name in it."""
    files = odd_files()
    write_tree(tmp_path / "in", dict(files))

    def run(*arguments: str) -> str:
        command = [sys.executable, "-W", "error", *pack_command(*arguments)[1:]]
        done = subprocess.run(command, cwd=tmp_path, env=environment(**CODED), capture_output=True, check=False, timeout=120)
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout.decode("ascii")

    assert r"h\xe9.jpg" in run("in", "-f", format_name, "-o", "out", "--workers", "1", "-v")
    assert r"h\xe9.jpg" in run("ls", "out")
    listed = [os.fsencode(json.loads(line)["path"]) for line in run("ls", "out", "--json").splitlines()]
    assert sorted(listed) == sorted(name for name in files if not name.startswith(b"e\n"))
    assert r"d\xe9" in run("info", "out")
    run("verify", "out")
    report = (tmp_path / "out/report.jsonl").read_bytes().splitlines()
    assert len(report) == 1 + sum(not name.startswith(b"c/") for name in files)
    assert {os.fsencode(json.loads(line)["path"]) for line in report} > {name for name in files if name.startswith(b"e\n")}
