"""The scan: which files are candidates, in which order, under which label."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.errors import InputError
from packer.listing import Listing
from packer.model import NO_LABEL
from packer.names import CANDIDATE_SUFFIXES, SYSTEM_NAMES, suffix_of
from packer.scan import scan
from tests.check_hooks import as_nobody, environment, lines
from tests.inputs import npy, pack, write_tree

ODD_CLASSES = ["dog", "dog (copy)", "dog-small", "10", "9", "Ä", "a b"]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can enter, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="packer-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def names(listing: Listing) -> list[bytes]:
    return [source.name for source in listing]


def touch(folder: Path, *files: str | bytes) -> Path:
    return write_tree(folder, dict.fromkeys(files, b"x"))


def refusals(listing: Listing) -> dict[bytes, tuple[str, str]]:
    return {listing[index].name: (skipped.code, skipped.detail) for index, skipped in listing.refused.items()}


def note_codes(listing: Listing) -> list[tuple[bytes | None, str]]:
    return [(name, note.code) for name, note in listing.notes]


def image_folder(root: Path) -> tuple[list[str], list[tuple[str, int]]]:
    """Classes and (path, target) as torchvision documents ImageFolder: sorted first-level folders, each walked sorted."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    samples = [
        (os.path.relpath(os.path.join(folder, file), root), target)
        for target, name in enumerate(classes)
        for folder, _, files in sorted(os.walk(os.path.join(root, name), followlinks=True))
        for file in sorted(files)
    ]
    return classes, samples


# Order


def test_order_is_that_of_path_components_not_of_whole_paths(tmp_path: Path) -> None:
    touch(
        tmp_path, "dog (copy)/1.jpg", "dog-small/1.jpg", "dog/b/1.jpg", "dog/b-c/1.jpg", "dog/b.jpg", "dog/a.jpg", "cat/z.jpg"
    )
    assert names(scan(tmp_path)) == [
        b"cat/z.jpg",
        b"dog/a.jpg",
        b"dog/b/1.jpg",
        b"dog/b-c/1.jpg",
        b"dog/b.jpg",
        b"dog (copy)/1.jpg",
        b"dog-small/1.jpg",
    ]


COMPONENTS = st.sampled_from(["a", "a ", "a-", "a.", "aa", "A", "B", "b", "1", "10", "2", "ä", "é", "z", "\udcff", "日", "😀"])


@given(st.sets(st.lists(COMPONENTS, min_size=1, max_size=4).map(tuple), min_size=1, max_size=12))
def test_any_tree_is_listed_by_components_as_bytes(paths: set[tuple[str, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = sorted({"/".join(parts) + ".png" for parts in paths})
        touch(Path(folder), *files[::-1])
        expected = sorted((os.fsencode(name) for name in files), key=lambda name: name.split(b"/"))
        assert names(scan(Path(folder), "none")) == expected


def test_order_does_not_depend_on_the_order_of_creation(tmp_path: Path) -> None:
    files = [f"{name}/{i}.jpg" for name in ODD_CLASSES for i in range(12)]
    one, other = touch(tmp_path / "one", *files), touch(tmp_path / "other", *files[::-1])
    assert names(scan(one)) == names(scan(other))
    assert [source.label for source in scan(one)] == [source.label for source in scan(other)]


def test_sizes_and_times_are_those_of_the_files(tmp_path: Path) -> None:
    write_tree(tmp_path, {"a/1.jpg": b"x" * 7, "a/2.jpg": b""})
    os.utime(tmp_path / "a/1.jpg", ns=(1, 1_234_567_890_123_456_789))
    first, second = scan(tmp_path)
    assert (first.size_bytes, first.mtime_ns, second.size_bytes) == (7, 1_234_567_890_123_456_789, 0)
    assert scan(tmp_path).total_bytes == 7


def test_a_time_that_64_bits_of_ns_do_not_hold_costs_nothing(many_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = os.stat_result(range(10), {"st_mtime_ns": 2**63 + 5})
    monkeypatch.setattr(Entry, "INFO", far)
    first = scan(many_files / "classes")[0]
    assert (first.size_bytes, first.mtime_ns) == (6, 5 - 2**63)


# Labels


def test_labels_of_odd_class_names_are_those_of_imagefolder(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{name}/{i}.jpg" for name in ODD_CLASSES for i in (1, 10, 2)))
    listing = scan(tmp_path)
    classes, samples = image_folder(tmp_path)
    assert [os.fsdecode(name) for name in listing.classes] == classes
    assert [(os.fsdecode(source.name), source.label) for source in listing] == samples
    assert listing.labels_from == "folder"


def test_targets_of_nested_class_folders_are_those_of_imagefolder(tmp_path: Path) -> None:
    touch(tmp_path, "a/b_c/1.jpg", "a_b/c/2.jpg", "a/0.jpg", "a/b/1.jpg", "a/b-c/1.jpg", "B/x/y/z.png")
    listing = scan(tmp_path)
    classes, samples = image_folder(tmp_path)
    assert [os.fsdecode(name) for name in listing.classes] == classes == ["B", "a", "a_b"]
    assert sorted((os.fsdecode(source.name), source.label) for source in listing) == sorted(samples)
    assert [source.label for source in listing] == [target for _, target in samples]


def test_empty_class_keeps_its_label(tmp_path: Path) -> None:
    touch(tmp_path, "ant/1.jpg", "ant/2.jpg", "cat/1.jpg", "cat/2.jpg", "dog/1.jpg")
    (tmp_path / "bee").mkdir()
    (tmp_path / ".ipynb_checkpoints").mkdir()
    listing = scan(tmp_path)
    assert listing.classes == [b"ant", b"bee", b"cat", b"dog"]
    assert [source.label for source in listing] == [0, 0, 2, 2, 3]


def test_empty_class_is_named_in_the_report(tmp_path: Path, format_name: str) -> None:
    write_tree(tmp_path / "in", {"ant/1.npy": npy([1]), "cat/1.npy": npy([2]), "dog/1.npy": b"\x93NUMPY"})
    (tmp_path / "in/bee").mkdir()
    (tmp_path / "in/.ipynb_checkpoints").mkdir()
    summary = pack(tmp_path / "in", format_name, workers=1)
    assert summary.classes == ("ant", "bee", "cat", "dog")
    assert summary.warned == {"empty_class": 2}
    assert re.findall(r'"path": "(\w+)", .*"empty_class"', summary.report.read_text("ascii")) == ["bee", "dog"]


def test_numbered_classes_sort_as_text_and_say_so_once(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{name}/1.jpg" for name in ("0", "1", "2", "10")))
    listing = scan(tmp_path)
    assert listing.classes == [b"0", b"1", b"10", b"2"]
    assert [source.label for source in listing] == [0, 1, 2, 3]
    ((path, note),) = listing.notes
    assert (path, note.code) == (None, "numeric_classes")
    assert "10→2, 2→3" in note.detail
    assert "--labels number" in note.detail


def test_numbered_classes_whose_labels_are_the_numbers_need_no_warning(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{i}/1.jpg" for i in range(10)))
    assert scan(tmp_path).notes == []


def test_numbers_as_labels_keep_their_gaps(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{name}/1.jpg" for name in ("0", "1", "2", "10", "007")))
    listing = scan(tmp_path, "number")
    assert {source.name: source.label for source in listing} == {
        b"0/1.jpg": 0,
        b"1/1.jpg": 1,
        b"2/1.jpg": 2,
        b"10/1.jpg": 10,
        b"007/1.jpg": 7,
    }
    assert listing.notes == []
    assert listing.labels_from == "number"


@pytest.mark.parametrize(("folders", "phrase"), [(["1", "two"], "no numbers: two"), (["1", "01"], "the same number")])
def test_numbers_as_labels_are_refused_where_they_are_none(tmp_path: Path, folders: list[str], phrase: str) -> None:
    touch(tmp_path, *(f"{name}/1.jpg" for name in folders))
    with pytest.raises(InputError, match=phrase):
        scan(tmp_path, "number")


def test_no_labels_when_asked_for_none(tmp_path: Path) -> None:
    touch(tmp_path, "b/1.jpg", "a/1.jpg", "0.jpg")
    listing = scan(tmp_path, "none")
    assert (listing.classes, listing.labels_from) == ([], "none")
    assert [(source.name, source.label) for source in listing] == [
        (b"0.jpg", NO_LABEL),
        (b"a/1.jpg", NO_LABEL),
        (b"b/1.jpg", NO_LABEL),
    ]


def test_flat_folder_has_no_labels(tmp_path: Path) -> None:
    touch(tmp_path, "2.jpg", "10.jpg", "readme.txt")
    (tmp_path / "docs").mkdir()
    touch(tmp_path, "docs/readme.md")
    listing = scan(tmp_path)
    assert [(source.name, source.label) for source in listing] == [(b"10.jpg", NO_LABEL), (b"2.jpg", NO_LABEL)]
    assert listing.classes == []
    assert listing.ignored == {".txt": 1, ".md": 1}


@pytest.mark.parametrize("rule", ["folder", "number"])
def test_labels_from_folders_are_refused_in_a_flat_folder(tmp_path: Path, rule: str) -> None:
    touch(tmp_path, "1.jpg")
    with pytest.raises(InputError, match="--labels none"):
        scan(tmp_path, rule)


@pytest.mark.parametrize("rule", ["auto", "folder", "number"])
def test_files_beside_class_folders_are_refused_in_one_line_with_both_ways_out(tmp_path: Path, rule: str) -> None:
    touch(tmp_path, "1/x.jpg", "2/x.jpg", "loose.jpg", "readme.txt")
    with pytest.raises(InputError, match=r"loose\.jpg") as caught:
        scan(tmp_path, rule)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert "1 files" in message or "1 file" in message
    assert "Move" in message
    assert "--labels none" in message


def test_other_files_beside_class_folders_do_no_harm(tmp_path: Path) -> None:
    touch(tmp_path, "a/x.jpg", "readme.txt", "labels.csv", ".hidden.jpg", "noext")
    assert names(scan(tmp_path)) == [b"a/x.jpg"]


@pytest.mark.parametrize("folders", [["train", "val"], ["test"], ["Train", "TEST", "Validation"], ["dev", "eval", "train"]])
def test_split_folders_are_refused_with_the_commands_that_were_meant(tmp_path: Path, folders: list[str]) -> None:
    touch(tmp_path, *(f"{name}/cat/x.jpg" for name in folders))
    with pytest.raises(InputError, match="splits") as caught:
        scan(tmp_path)
    for name in folders:
        assert f"pack {tmp_path / name}" in str(caught.value)
    assert "--labels folder" in str(caught.value)
    assert len(scan(tmp_path, "folder").classes) == len(folders)
    assert len(scan(tmp_path, "none")) == len(folders)


def test_a_class_may_be_called_like_a_split_beside_others(tmp_path: Path) -> None:
    touch(tmp_path, "train/1.jpg", "plane/1.jpg")
    assert scan(tmp_path).classes == [b"plane", b"train"]


# Candidates


def test_extensions_count_in_any_case(tmp_path: Path) -> None:
    files = ["c/a.JPG", "c/b.Png", "c/c.JPEG", "c/d.NPY", "c/e.tIf", "c/f.jpg ", "c/g.Jpeg"]
    for name in files:
        write_tree(tmp_path, {name: name.encode()})
    assert [(source.name.decode(), source.size_bytes) for source in scan(tmp_path)] == [(name, len(name)) for name in files]


def test_what_systems_leave_behind_is_ignored_and_counted(tmp_path: Path) -> None:
    left = ["c/._a.jpg", "c/.DS_Store", "c/Thumbs.db", "c/desktop.ini", "__MACOSX/._b.jpg", "__MACOSX/b.jpg", "c/.~lock"]
    touch(tmp_path, "c/a.jpg", *left)
    listing = scan(tmp_path)
    assert names(listing) == [b"c/a.jpg"]
    assert listing.classes == [b"c"]
    assert not listing.refused
    assert listing.ignored == {"(hidden or system)": 6}


@pytest.mark.parametrize("layout", ["classes", "flat"])
def test_other_files_are_counted_once_by_extension(tmp_path: Path, layout: str) -> None:
    folder = "c/" if layout == "classes" else ""
    files = ["a.jpg", "a.txt", "b.TXT", "noext", "x.", ".x.jpg", "v1.0 (final)", "b.json", "archive.tar.gz", "c.\x1b[2J"]
    touch(tmp_path, *(folder + name for name in files))
    listing = scan(tmp_path)
    assert len(listing) == 1
    assert listing.ignored == {"(hidden or system)": 1, "(no extension)": 4, ".txt": 2, ".json": 1, ".gz": 1}


def test_no_system_file_is_named_like_a_candidate() -> None:
    """The scan asks for system names only where the extension is none of a candidate."""
    assert [name for name in SYSTEM_NAMES if suffix_of(name) in CANDIDATE_SUFFIXES] == []


def test_a_system_that_lists_no_descriptor_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path / "in", *(f"c/{part}/{i}.jpg" for part in ("", "d") for i in range(3)), "c/a.HeIc", "c/b.txt", "e/.x.jpg")
    touch(tmp_path / "in", b"c/\xff\xfe.jpg", "c/ \n.png", "c/ä.jpg", "c/Ä.jpg", "c/\U0001f600.jpg", "Ä/x.jpg")
    (tmp_path / "in/c/link.jpg").symlink_to("0.jpg")
    (tmp_path / "in/c/out.jpg").symlink_to(tmp_path)
    (tmp_path / "in/link").symlink_to("c/d")
    packed = pack(write_tree(tmp_path / "in/packed", {"a.npy": npy([1])}), output=tmp_path / "in/c/output")
    assert packed.samples == 1
    shutil.rmtree(tmp_path / "in/packed")
    assert os.scandir in os.supports_fd or sys.platform == "win32"
    by_name = scan(tmp_path / "in")
    monkeypatch.setattr(os, "supports_fd", os.supports_fd - {os.scandir})
    by_path = scan(tmp_path / "in")
    assert list(by_path) == list(by_name)
    assert len(by_name) > 10
    for part in ("classes", "refused", "ignored", "notes"):
        assert getattr(by_path, part) == getattr(by_name, part)
        assert getattr(by_name, part)


def test_dots_in_names_are_no_obstacle(tmp_path: Path) -> None:
    touch(tmp_path, "c/img.1.jpg", "c/img.2.jpg", "c/v1.0 (final).png", "c.v2/a.jpg")
    assert names(scan(tmp_path)) == [b"c/img.1.jpg", b"c/img.2.jpg", b"c/v1.0 (final).png", b"c.v2/a.jpg"]


def test_folder_named_like_a_picture_is_a_folder(tmp_path: Path) -> None:
    touch(tmp_path, "a/album.jpg/1.jpg", "b.png/1.jpg")
    assert names(scan(tmp_path)) == [b"a/album.jpg/1.jpg", b"b.png/1.jpg"]


def test_odd_names_come_through_as_bytes(tmp_path: Path) -> None:
    odd = [
        b"c/h\xe9.jpg", b'c/line\nbreak, tab\t and "quote".jpg', b"c/trailing space .jpg", b"c/back\\slash.jpg",
        b"c/\x1b[31mred.jpg", "c/日本.jpg".encode(), b"c/" + b"n" * 251 + b".jpg", b"c/*.jpg", b"c/-o.jpg", b"\xff/x.jpg",
    ]  # fmt: skip
    touch(tmp_path, *odd)
    listing = scan(tmp_path)
    assert set(names(listing)) == set(odd)
    assert listing.classes == [b"c", b"\xff"]


@pytest.mark.parametrize("spelling", ["{}", "{}/", "{}/../in", "{}/./"])
def test_spelling_of_the_input_changes_nothing(tmp_path: Path, spelling: str) -> None:
    root = touch(tmp_path / "in", "a/1.jpg", "b/1.jpg")
    assert names(scan(Path(spelling.format(root)))) == [b"a/1.jpg", b"b/1.jpg"]


# Refused inputs


def test_missing_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        scan(tmp_path / "none")


def test_file_as_input_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg")
    with pytest.raises(InputError, match="this is a file"):
        scan(tmp_path / "a.jpg")


def test_packed_dataset_as_input_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "manifest.json", "index.npy", "names.bin", "data.mdb")
    with pytest.raises(InputError, match="packed dataset already"):
        scan(tmp_path)


def test_packed_dataset_inside_the_input_is_no_class(tmp_path: Path, format_name: str) -> None:
    root = write_tree(tmp_path / "in", {"a/1.npy": npy([1]), "b/1.npy": npy([2])})
    pack(root, format_name, output=root / "packed", workers=1)
    pack(root, format_name, output=root / "a/packed too", workers=1)
    listing = scan(root)
    assert names(listing) == [b"a/1.npy", b"b/1.npy"]
    assert listing.classes == [b"a", b"b"]
    assert listing.ignored == {"(packed dataset)": 2}


def test_output_inside_the_input_is_left_out_by_its_real_path(tmp_path: Path) -> None:
    root = touch(tmp_path / "in", "a/1.jpg", "out/2.jpg", "out/3.jpg")
    (tmp_path / "link").symlink_to(root / "out")
    listing = scan(root, leave_out=[tmp_path / "link", tmp_path / "not there"])
    assert names(listing) == [b"a/1.jpg"]
    assert listing.classes == [b"a"]


# Links and special files


def test_links_to_files_inside_the_input_are_followed(tmp_path: Path) -> None:
    write_tree(tmp_path, {"a/1.jpg": b"12345"})
    (tmp_path / "a/2.jpg").symlink_to("1.jpg")
    (tmp_path / "a/3.jpg").symlink_to(tmp_path / "a/1.jpg")
    listing = scan(tmp_path)
    assert [(source.name, source.size_bytes) for source in listing] == [(b"a/1.jpg", 5), (b"a/2.jpg", 5), (b"a/3.jpg", 5)]
    assert not listing.refused


def test_dangling_link_is_unreadable(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg")
    (tmp_path / "a/x.jpg").symlink_to("gone.jpg")
    code, detail = refusals(scan(tmp_path))[b"a/x.jpg"]
    assert code == "unreadable"
    assert "gone.jpg" in detail


def test_link_to_itself_is_unreadable(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg")
    (tmp_path / "a/x.jpg").symlink_to("x.jpg")
    assert refusals(scan(tmp_path))[b"a/x.jpg"][0] == "unreadable"


def test_fifo_and_socket_are_unreadable_and_do_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "a/1.jpg")
    os.mkfifo(tmp_path / "a/y.jpg")
    monkeypatch.chdir(tmp_path / "a")  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("z.jpg")
        found = refusals(scan(tmp_path))
    assert found[b"a/y.jpg"] == ("unreadable", "not a regular file but a FIFO")
    assert found[b"a/z.jpg"] == ("unreadable", "not a regular file but a socket")


@pytest.mark.parametrize("target", ["out/1.jpg", "in-other/1.jpg"])
def test_link_to_a_file_outside_the_input_is_unreadable_unless_followed(tmp_path: Path, target: str) -> None:
    touch(tmp_path, "in/a/1.jpg", target)
    (tmp_path / "in/a/2.jpg").symlink_to(tmp_path / target)
    code, detail = refusals(scan(tmp_path / "in"))[b"a/2.jpg"]
    assert code == "unreadable"
    assert "leaves the input" in detail
    followed = scan(tmp_path / "in", follow_links=True)
    assert names(followed) == [b"a/1.jpg", b"a/2.jpg"]
    assert not followed.refused


def test_link_to_a_folder_outside_the_input_is_unreadable_unless_followed(tmp_path: Path) -> None:
    touch(tmp_path, "in/a/1.jpg", "out/1.jpg", "out/2.jpg")
    (tmp_path / "in/b").symlink_to(tmp_path / "out")
    listing = scan(tmp_path / "in")
    assert [(source.name, source.label) for source in listing] == [(b"a/1.jpg", 0), (b"b", 1)]
    assert refusals(listing)[b"b"][0] == "unreadable"
    followed = scan(tmp_path / "in", follow_links=True)
    assert names(followed) == [b"a/1.jpg", b"b/1.jpg", b"b/2.jpg"]


def test_input_that_is_a_link_itself_is_scanned(tmp_path: Path) -> None:
    touch(tmp_path, "in/a/1.jpg", "in/b/1.jpg")
    (tmp_path / "in/a/2.jpg").symlink_to("../b/1.jpg")
    (tmp_path / "link").symlink_to("in")
    listing = scan(tmp_path / "link")
    assert names(listing) == [b"a/1.jpg", b"a/2.jpg", b"b/1.jpg"]
    assert not listing.refused


def test_folder_link_that_leads_back_is_not_followed(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "a/sub/2.jpg")
    (tmp_path / "a/sub/up").symlink_to("..")
    (tmp_path / "a/sub/top").symlink_to(tmp_path)
    (tmp_path / "a/sub/here").symlink_to(".")
    listing = scan(tmp_path)
    assert names(listing) == [b"a/1.jpg", b"a/sub/2.jpg"]
    assert sorted(note_codes(listing)) == [
        (b"a/sub/here", "symlink_loop"),
        (b"a/sub/top", "symlink_loop"),
        (b"a/sub/up", "symlink_loop"),
    ]


def test_folder_that_several_links_lead_to_is_followed_once(tmp_path: Path) -> None:
    touch(tmp_path, "a/deep/1.jpg", "b/x.jpg")
    for name in ("b/one", "b/two", "b/three"):
        (tmp_path / name).symlink_to("../a/deep")
    listing = scan(tmp_path)
    assert names(listing) == [b"a/deep/1.jpg", b"b/one/1.jpg", b"b/x.jpg"]
    assert note_codes(listing) == [(b"b/three", "symlink_loop"), (b"b/two", "symlink_loop")]


def test_links_between_two_folders_end(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "b/1.jpg")
    (tmp_path / "a/to b").symlink_to("../b")
    (tmp_path / "b/to a").symlink_to("../a")
    listing = scan(tmp_path)
    assert {b"a/1.jpg", b"b/1.jpg"} <= set(names(listing))
    assert len(listing) < 10


# Random order


def test_shuffled_listing_is_a_permutation_that_the_seed_fixes(tmp_path: Path) -> None:
    files = [f"{name}/{i}.jpg" for name in "ab" for i in range(5)]
    root = write_tree(tmp_path, {name: name.encode() * i for i, name in enumerate(files)})
    listing = scan(root)
    shuffled = listing.shuffled(3)
    # On any machine and in any release: the shards of a dataset depend on it.
    assert b" ".join(names(shuffled)).decode() == (
        "a/0.jpg b/3.jpg b/0.jpg a/3.jpg a/1.jpg b/4.jpg b/2.jpg a/4.jpg a/2.jpg b/1.jpg"
    )
    facts = {source.name: (source.size_bytes, source.mtime_ns, source.label) for source in listing}
    assert {source.name: (source.size_bytes, source.mtime_ns, source.label) for source in shuffled} == facts
    assert [source.index for source in shuffled] == list(range(10))
    assert names(listing.shuffled(4)) != names(shuffled)
    assert (shuffled.classes, shuffled.class_labels, shuffled.labels_from, shuffled.total_bytes) == (
        listing.classes, listing.class_labels, listing.labels_from, listing.total_bytes
    )  # fmt: skip


def test_shuffled_order_does_not_depend_on_the_size_of_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, *(f"{'c' * i}/{i}.jpg" for i in range(1, 20)))
    listing = scan(tmp_path)
    expected = list(listing.shuffled(5))
    monkeypatch.setattr("packer.listing._BLOCK", 4)
    assert list(listing.shuffled(5)) == expected


def test_shuffled_order_does_not_depend_on_the_order_of_creation(tmp_path: Path) -> None:
    files = [f"c/{i}.jpg" for i in range(40)]
    one, other = touch(tmp_path / "one", *files), touch(tmp_path / "other", *files[::-1])
    assert names(scan(one).shuffled(0)) == names(scan(other).shuffled(0))


def test_what_the_scan_refused_is_refused_under_its_new_number(tmp_path: Path) -> None:
    touch(tmp_path, *(f"c/{i}.jpg" for i in range(20)))
    for i in range(3):
        (tmp_path / f"c/gone {i}.jpg").symlink_to(f"nothing {i}")
    listing = scan(tmp_path)
    assert refusals(listing.shuffled(1)) == refusals(listing)
    assert list(listing.shuffled(1).refused) == sorted(listing.shuffled(1).refused) != list(listing.refused)


def test_an_empty_listing_can_be_shuffled(tmp_path: Path) -> None:
    assert len(scan(tmp_path).shuffled(0)) == 0


# Rights


def test_unreadable_folder_costs_its_files_only(open_folder: Path) -> None:
    touch(open_folder, "in/a/1.jpg", "in/a/sub/2.jpg", "in/b/3.jpg")
    (open_folder / "in/a/sub").chmod(0)
    result = as_nobody(SHOW_SCAN, open_folder / "in", cwd=open_folder)
    (open_folder / "in/a/sub").chmod(0o755)
    assert result.stderr == ""
    assert result.stdout.splitlines() == ["a/1.jpg 0", "a/sub 0 unreadable folder: Permission denied", "b/3.jpg 1"]


def test_unreadable_class_folder_keeps_its_label(open_folder: Path) -> None:
    """The whole input was refused, since a folder without rights was taken for a file beside the class folders."""
    touch(open_folder, "in/a/1.jpg", "in/b/2.jpg", "in/c/3.jpg")
    (open_folder / "in/b").chmod(0)
    result = as_nobody(SHOW_SCAN, open_folder / "in", cwd=open_folder)
    (open_folder / "in/b").chmod(0o755)
    assert result.stderr == ""
    assert result.stdout.splitlines() == ["a/1.jpg 0", "b 1 unreadable folder: Permission denied", "c/3.jpg 2"]


def test_folder_that_can_be_listed_but_not_entered_costs_its_files_only(open_folder: Path) -> None:
    touch(open_folder, "in/a/1.jpg", "in/b/2.jpg")
    (open_folder / "in/b").chmod(0o744)
    result = as_nobody(SHOW_SCAN, open_folder / "in", cwd=open_folder)
    (open_folder / "in/b").chmod(0o755)
    assert result.stderr == ""
    first, second = result.stdout.splitlines()
    assert first == "a/1.jpg 0"
    assert re.fullmatch(r"b(/2\.jpg)? 1 unreadable .*Permission denied", second)


def test_unreadable_input_is_refused_in_one_line(open_folder: Path) -> None:
    touch(open_folder, "in/a/1.jpg")
    (open_folder / "in").chmod(0)
    result = as_nobody(SHOW_SCAN, open_folder / "in", cwd=open_folder)
    (open_folder / "in").chmod(0o755)
    assert lines(result.stderr)[-1] == f"packer.errors.InputError: {open_folder / 'in'}: Permission denied"


SHOW_SCAN = """
from pathlib import Path
from packer.scan import scan
listing = scan(Path(sys.argv[1]))
for source in listing:
    refused = listing.refused.get(source.index)
    print(source.name.decode(), source.label, *([refused.code, refused.detail] if refused else []))
"""


# Size


@contextmanager
def nested(root: Path, name: str, depth: int) -> Iterator[None]:
    """A file at the bottom of so many folders of one name; all gone in the end, since ``shutil.rmtree`` fails on them."""
    here = os.open(root, os.O_RDONLY)
    reached = 0
    try:
        for reached in range(1, depth + 1):  # noqa: B007 - how many there are to remove
            os.mkdir(name, dir_fd=here)
            here = _closing(here, os.open(name, os.O_RDONLY, dir_fd=here))
        os.mknod("x.jpg", dir_fd=here)
        yield
        os.unlink("x.jpg", dir_fd=here)
    finally:
        for _ in range(reached):
            here = _closing(here, os.open("..", os.O_RDONLY, dir_fd=here))
            os.rmdir(name, dir_fd=here)
        os.close(here)


def _closing(old: int, new: int) -> int:
    os.close(old)
    return new


def test_a_thousand_folders_deep_is_no_recursion_error(tmp_path: Path) -> None:
    root = touch(tmp_path, "c/a.jpg")
    with nested(root / "c", "d", 1_000):
        found = names(scan(root))
    assert found == [b"c/a.jpg", b"c/" + b"d/" * 1_000 + b"x.jpg"]


def test_a_path_longer_than_the_system_takes_costs_its_files_only(tmp_path: Path) -> None:
    root = touch(tmp_path, "a/1.jpg", "c/1.jpg")
    with nested(root / "c", "d" * 250, 20):
        listing = scan(root)
    assert names(listing)[:2] == [b"a/1.jpg", b"c/1.jpg"]
    ((code, detail),) = refusals(listing).values()
    assert (code, detail.split(": ")[-1]) == ("unreadable", "File name too long")


@pytest.mark.parametrize("layout", ["class folders", "flat", "flat beside other folders"])
def test_at_most_one_stat_a_file(tmp_path: Path, layout: str) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    folder = "c/" if layout == "class folders" else ""
    touch(tmp_path / "in", *(f"{folder}{i}.jpg" for i in range(300)))
    if layout == "flat beside other folders":
        touch(tmp_path / "in", "docs/readme.txt")
    code = "import sys; from pathlib import Path; from packer.scan import scan; print(len(scan(Path(sys.argv[1]))))"
    log = tmp_path / "calls"
    result = subprocess.run(
        ["strace", "-f", "-o", log, "-e", "trace=%%stat,/^statx$", sys.executable, "-c", code, tmp_path / "in"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode and "strace" in result.stderr:
        pytest.skip(result.stderr.splitlines()[0])
    assert result.stdout.strip() == "300"
    calls = [line for line in log.read_text("utf-8", "replace").splitlines() if '.jpg"' in line]
    assert len(calls) <= 300


class Entry:
    """What ``os.scandir`` gives for a file, without the file: making 100,000 takes a busy disk half a minute."""

    INFO = os.stat(__file__)

    def __init__(self, name: str) -> None:
        self.name = name

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return False

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return True

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return self.INFO


@pytest.fixture
def many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """100,000 files in the folder ``flat``, and 20 class folders of 1,000 files each in ``classes``."""
    (tmp_path / "flat").mkdir()
    for i in range(20):
        (tmp_path / f"classes/{i:02d}").mkdir(parents=True)
    scandir = os.scandir

    def listing(folder: str) -> Any:
        count = 100_000 if folder.endswith("/flat") else 1_000 if "/classes/" in folder else 0
        if not count:
            return scandir(folder)
        return nullcontext(Entry(f"picture_{i * 7919 % count:06d}.jpg") for i in range(count))

    monkeypatch.setattr(os, "scandir", listing)
    return tmp_path


def test_scan_takes_less_than_300_bytes_a_file(many_files: Path) -> None:
    tracemalloc.start()
    try:
        listing = scan(many_files / "flat")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(listing) == 100_000
    assert peak / len(listing) < 300


@pytest.mark.parametrize(("layout", "entries"), [("classes", 20_020), ("flat", 100_000)])
def test_progress_counts_every_entry_once_from_early_on(many_files: Path, layout: str, entries: int) -> None:
    seen: list[int] = []
    scan(many_files / layout, on_progress=seen.append)
    assert seen[0] <= 1_000
    assert seen == sorted(set(seen))
    assert max(b - a for a, b in itertools.pairwise(seen)) <= 1_000
    assert entries - 1_000 < seen[-1] <= entries


def test_progress_comes_within_two_seconds_on_a_slow_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, *(f"c/{i}.jpg" for i in range(1_200)))
    monkeypatch.setattr(os, "scandir", _slow_scandir(os.scandir))
    started = time.monotonic()
    first: list[float] = []
    scan(tmp_path, on_progress=lambda seen: first.append(time.monotonic() - started))
    assert first[0] < 2


def _slow_scandir(scandir):  # type: ignore[no-untyped-def]
    """A listing that gives one entry a millisecond, as a network folder may."""

    class Slow:
        def __init__(self, path: str) -> None:
            self._entries = scandir(path)

        def __enter__(self) -> Slow:
            return self

        def __exit__(self, *ignored: object) -> None:
            self._entries.close()

        def __iter__(self) -> Iterator[os.DirEntry[str]]:
            for entry in self._entries:
                time.sleep(0.001)
                yield entry

    return Slow
