"""What holds for any input: what went in comes out, and nothing that is read can do harm."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from packer import formats, open_dataset
from packer.check import CheckSettings, check_bytes
from packer.check.worker import decode_verdict, encode_verdict
from packer.cli.show import escape
from packer.decode import decode_array
from packer.index import RECORD, Index, IndexWriter, Names, Record
from packer.manifest import FileEntry, Manifest, ShardEntry, load_manifest
from packer.model import MODES, TYPES_BY_NAME, Extent, Kept, Skipped, Unfit, Verdict, display_name
from packer.npyheader import Header, parse_header
from packer.plan import ShardLimits
from tests.inputs import npy, pack, write_tree
from tests.strategies import (
    Folder,
    arrays,
    folders,
    hostile_headers,
    kept,
    npy_file,
    shard_limits,
    texts,
    uniform_arrays,
    verdicts,
)
from tests.test_format_conformance import assert_holds, expected_samples

# webdataset 1.0 leaves its shards for the garbage collector to close.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@contextmanager
def packed(files: dict[bytes, bytes], format_name: str, **options: Any) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        source = write_tree(Path(folder, "in"), files)
        summary = pack(source, format_name, **{"check": "none", "labels": "none", **options})
        assert summary.skipped == {}
        yield summary.output


def labels_of(folder: Folder) -> str:
    return "folder" if folder.labelled else "none"


# Round trips


@given(folder=folders(), limits=shard_limits)
@settings(max_examples=25)
def test_what_goes_in_comes_out_in_order(format_name: str, folder: Folder, limits: ShardLimits) -> None:
    options: dict[str, Any] = {"limits": limits} if formats.get(format_name).has_shards else {}
    with packed(folder.files, format_name, labels=labels_of(folder), **options) as output:
        assert_holds(output, expected_samples(folder.files, labels=folder.labelled))
        if options and limits.samples:
            counts = [shard.samples for shard in load_manifest(output).shards]
            assert 1 <= min(counts) <= max(counts) <= limits.samples


@given(folder=folders())
@settings(max_examples=8)
def test_the_content_digest_is_the_same_in_every_format(folder: Folder) -> None:
    digests = set()
    for name in formats.names():
        with packed(folder.files, name, labels=labels_of(folder)) as output:
            digests.add(load_manifest(output).content_digest)
    assert len(digests) == 1


@given(folder=folders())
@settings(max_examples=8)
def test_the_order_in_which_files_were_made_changes_no_byte(format_name: str, folder: Folder) -> None:
    outputs = []
    for files in (folder.files, dict(reversed(folder.files.items()))):
        with packed(files, format_name, labels=labels_of(folder)) as output:
            outputs.append({path.name: path.read_bytes() for path in output.iterdir()})
    assert outputs[0] == outputs[1]


@given(values=uniform_arrays() | st.lists(arrays, min_size=1, max_size=5))
@settings(max_examples=25)
def test_arrays_come_out_as_they_were_saved(format_name: str, values: list[NDArray[Any]]) -> None:
    with packed({b"%d.npy" % i: npy(array) for i, array in enumerate(values)}, format_name) as output:
        data = open_dataset(output, output="numpy")
        for i, array in enumerate(values):
            _assert_same_array(data[i], array)


def _assert_same_array(found: NDArray[Any], saved: NDArray[Any]) -> None:
    """The same bits, in native byte order and row-major."""
    assert (found.dtype, found.shape) == (saved.dtype.newbyteorder("="), saved.shape)
    assert found.flags.c_contiguous
    assert found.flags.writeable
    assert found.tobytes() == saved.astype(found.dtype).tobytes()


@given(verdict=verdicts)
@settings(max_examples=200)
def test_a_verdict_survives_the_way_from_the_worker(verdict: Verdict) -> None:
    line = json.dumps(encode_verdict(verdict), separators=(",", ":"))
    assert "\n" not in line
    assert line.isascii()
    assert decode_verdict(json.loads(line)) == verdict


EXTENTS = st.builds(Extent, st.integers(0, 2**32 - 1), st.integers(0, 2**63), st.integers(0, 2**62))
ROWS = st.tuples(st.binary(max_size=30), st.integers(-(2**63), 2**63 - 1), kept, EXTENTS)


@given(rows=st.lists(ROWS, min_size=1, max_size=6))
@settings(max_examples=40)
def test_an_index_gives_back_what_was_written(rows: list[tuple[bytes, int, Kept, Extent]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer = IndexWriter(Path(folder))
        for name, label, verdict, _ in rows:
            writer.append(name, label, verdict)
        assert writer.place(extent for *_, extent in rows) == range(len(rows))
        writer.finish()
        index = Index(Path(folder), len(rows))
        for i, (name, label, verdict, extent) in enumerate(rows):
            record = index[i]
            assert index.name(i) == name
            assert os.fsencode(Names(index)[i]) == name or not _utf8_file_names()
            assert (record.label, record.digest) == (label, verdict.digest)
            assert (record.type, record.mode) == (TYPES_BY_NAME[verdict.type].code, MODES.index(verdict.mode))
            assert (record.width, record.height, record.frames) == (verdict.width, verdict.height, verdict.frames)
            assert record.orientation == verdict.orientation
            assert (record.shard, record.offset, record.size) == (extent.shard, extent.offset, extent.size)

        loaded = np.load(Path(folder, "index.npy"))
        assert loaded.dtype == RECORD
        found = {name: loaded["data"][name] for name in RECORD["data"].names} | {n: loaded[n] for n in ("name_end", "label")}
        for i in range(len(rows)):
            assert {name: found[name][i] for name in Record._fields} == index[i]._asdict()
        assert not found["reserved"].any()
        assert not found["reserved2"].any()


def _utf8_file_names() -> bool:
    return os.fsencode("ä") == b"\xc3\xa4"


def test_an_index_whose_extents_do_not_match_its_samples_is_refused(tmp_path: Path) -> None:
    writer = IndexWriter(tmp_path)
    writer.append(b"a", 0, Kept("npy", 1, 1))
    writer.append(b"b", 0, Kept("npy", 1, 1))
    writer.place([Extent(0, 0, 1)])
    with pytest.raises(ValueError, match="1 payloads, 2 were packed"):
        writer.finish()


_DIGESTS = st.text("0123456789abcdef", min_size=32, max_size=32)
_ENTRIES = st.builds(FileEntry, st.integers(0, 2**62), _DIGESTS)
_JSON = st.dictionaries(texts, st.one_of(texts, st.integers(), st.booleans(), st.none()), max_size=3)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    counts = draw(st.lists(st.integers(0, 2**20), min_size=1, max_size=4).filter(any))
    classes = draw(st.lists(texts, unique=True, max_size=4))
    return Manifest(
        format=draw(texts),
        samples=sum(counts),
        classes=tuple(classes),
        labels="folder" if classes else "none",
        header=draw(st.binary(max_size=100)),
        shards=tuple(ShardEntry(f"part {i}", draw(st.integers(0, 2**62)), n, draw(_DIGESTS)) for i, n in enumerate(counts)),
        files={
            "index.npy": FileEntry(512 + 64 * sum(counts), draw(_DIGESTS)),
            "names.bin": FileEntry(draw(st.integers(0, sum(counts) << 17)), draw(_DIGESTS)),
            "report.jsonl": draw(_ENTRIES),
        },
        options=draw(_JSON),
        versions=draw(st.dictionaries(texts, texts, max_size=2)),
        content_digest=draw(_DIGESTS),
    )


@given(manifest=manifests())
@settings(max_examples=60)
def test_a_manifest_is_read_as_it_was_written(manifest: Manifest) -> None:
    data = manifest.to_json()
    assert data.isascii()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "manifest.json").write_bytes(data)
        found = load_manifest(Path(folder))
    assert found == manifest
    assert found.to_json() == data


@given(name=st.binary(max_size=60))
def test_a_name_as_text_gives_its_bytes_back(name: bytes) -> None:
    assert display_name(name).encode("utf-8", "surrogateescape") == name


@given(text=st.text(st.characters()))
@settings(max_examples=300)
@example("\x1b[2J\x9b\r\n\t\u202e\u2028\ud800\udcff\U000e0001")
def test_an_escaped_name_is_printable(text: str) -> None:
    shown = escape(text)
    assert shown.isprintable()
    shown.encode("utf-8")
    if text.isprintable():
        assert shown == text


# Hostile bytes

HUGE = "0x" + "f" * 4000  # more digits than Python turns into decimal text


@given(data=hostile_headers)
@settings(max_examples=250)
@example(npy_file(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({HUGE},)}}"))
@example(npy_file(f"{{'descr': '<f4', 'fortran_order': {HUGE}, 'shape': (1,)}}"))
@example(npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (-2, -3)}"))
@example(npy_file(f"{{'descr': {HUGE}, 'fortran_order': False, 'shape': (1,)}}"))
def test_a_header_is_parsed_or_refused_and_nothing_else_happens(data: bytes) -> None:
    header = _parsed_or_refused(data)
    if isinstance(header, Unfit):
        assert header.code in ("truncated", "bad_header", "object_dtype", "unsupported_dtype")
        assert len(header.detail) < 1000
    else:
        assert 10 < header.size_bytes <= len(data)
        assert all(length >= 0 for length in header.shape)


def _parsed_or_refused(data: bytes) -> Header | Unfit:
    try:
        return parse_header(data)
    except Unfit as unfit:
        return unfit


@given(array=arrays)
@settings(max_examples=100)
def test_a_header_says_what_numpy_wrote(array: NDArray[Any]) -> None:
    data = npy(array)
    header = parse_header(data)
    assert (header.dtype, header.shape) == (array.dtype, array.shape)
    assert header.fortran_order == (array.flags.f_contiguous and not array.flags.c_contiguous)
    assert header.size_bytes + header.body_bytes == len(data)
    _assert_same_array(decode_array(data), array)


LENGTHS = st.one_of(st.integers(0, 4), st.sampled_from([2**31, 2**32, 2**61, 2**62, 2**63 - 1]))
DESCRS = st.sampled_from(["<f4", ">f8", "|b1", "<c16", "|u1", "<f2", "=i4", "f4", "?", "B", "float32", "<f16", "|S1", "<U1"])


@given(
    descr=DESCRS,
    shape=st.lists(LENGTHS, max_size=5).map(tuple) | st.integers(0, 40).map(lambda n: (1,) * n),
    order=st.booleans(),
)
@settings(max_examples=300)
@example("<f4", (2**62, 0), False)
@example("|u1", (2**62, 2**62, 0), False)
def test_what_is_kept_as_an_array_can_be_decoded(descr: str, shape: tuple[int, ...], order: bool) -> None:
    text = f"{{'descr': {descr!r}, 'fortran_order': {order}, 'shape': {shape!r}, }}"
    size = int(np.prod(shape, dtype=object)) * 16
    data = npy_file(text, bytes(min(size, 4**5 * 16)))
    for length in _lengths(data, len(npy_file(text))):
        verdict = check_bytes(data[:length], b"a.npy", CheckSettings())
        if isinstance(verdict, Kept):
            found = decode_array(data[:length])
            assert found.shape == shape
            assert verdict.header == npy_file(text)


def _lengths(data: bytes, header: int) -> Iterator[int]:
    """Of the file with one, two, four ... sixteenths of a body of sixteen bytes an element."""
    for part in (1, 2, 4, 8, 16):
        yield header + (len(data) - header) * part // 16


@given(array=arrays, more=st.binary(min_size=1, max_size=40), data=st.data())
@settings(max_examples=100)
def test_an_array_of_another_length_is_skipped(array: NDArray[Any], more: bytes, data: st.DataObject) -> None:
    whole = npy(array)
    cut = data.draw(st.integers(0, len(whole) - 1))
    shorter = check_bytes(whole[:cut], b"a.npy", CheckSettings())
    longer = check_bytes(whole + more, b"a.npy", CheckSettings())
    assert isinstance(shorter, Skipped)
    assert shorter.code == ("truncated" if cut else "empty_file")
    assert isinstance(longer, Skipped)
    assert longer.code == "corrupt"
    assert isinstance(check_bytes(whole, b"a.npy", CheckSettings()), Kept)
