"""What is fuzzed: each reader of strangers' bytes, what may come out of it, and valid inputs to begin from.

A target takes any bytes and gives a word on what became of them. It raises on a finding: an exception that is not documented,
or something kept that is not what it claims to be. Time and memory are looked after by ``tests.fuzz.loop``.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

from packer.check import CheckSettings, bmp, check_bytes, fax, gif, jpeg, lzw, npy, png, tiff, webp
from packer.check.jpegmarkers import walk
from packer.check.jpegwalk import require_sound_scans
from packer.check.sniff import sniff
from packer.check.verdict import Finding
from packer.decode import ReadOptions, decode_array, decode_picture
from packer.errors import DatasetError
from packer.exif import BrokenTagsError, orientation
from packer.index import Record
from packer.manifest import Manifest, load_manifest
from packer.model import MODES, SKIP_CODES, TYPES_BY_NAME, Kept, Unfit
from packer.npyheader import parse_header
from packer.store import Store, payload_digest
from packer.verify import verify_dataset
from tests.fuzz import seeds
from tests.fuzz.mutate import repair_folder, repair_manifest, repair_png, split_parts
from tests.test_check_lzw import agree

__all__ = ["MAX_PIXELS", "TARGETS", "Target"]

MAX_PIXELS = 1 << 18
"""Of one picture: what a decoder does with more is a matter of its speed."""


@dataclass(frozen=True, slots=True)
class Target:
    """One reader.

    Attributes:
        run: takes any bytes, gives a word on what became of them, raises on a finding.
        seeds: gives valid inputs.
        words: byte strings that mean something to the reader.
        repair: corrects the checksums of a mutant.
        runs: mutants in the short run of the test suite, about a second.
    """

    run: Callable[[bytes], str]
    seeds: Callable[[], list[bytes]]
    words: tuple[bytes, ...] = ()
    repair: Callable[[bytes], bytes] = field(default=bytes)
    runs: int = 2_000


def _refused(unfit: Unfit, codes: Iterable[str]) -> str:
    assert unfit.code in codes, f"the code {unfit.code!r} is not one of those that are documented: {unfit.detail}"
    assert len(unfit.detail) < 1_000, f"a sentence of {len(unfit.detail):,} characters"
    # Where it was raised tells outcomes apart better than a sentence that repeats parts of the input.
    frames = traceback.extract_tb(unfit.__traceback__)
    return f"{unfit.code} by {frames[-1].name} {frames[-1].lineno}" if frames else unfit.code


# .npy files

_NPY_CODES = ("truncated", "corrupt", "bad_header", "object_dtype", "unsupported_dtype")


def _npy_header(data: bytes) -> str:
    try:
        header = parse_header(data)
    except Unfit as unfit:
        return _refused(unfit, _NPY_CODES)
    assert 10 < header.size_bytes <= len(data)
    assert all(type(length) is int and length >= 0 for length in header.shape)
    assert header.body_bytes >= 0
    assert not header.dtype.hasobject
    return f"{header.dtype.kind} {len(header.shape)} axes"


def _npy(data: bytes) -> str:
    try:
        found = npy.check(data, count_nonfinite=True)
    except Unfit as unfit:
        if _numpy_reads(data):
            raise AssertionError(f"numpy reads what is refused: {unfit}") from None
        return _refused(unfit, _NPY_CODES)
    header = parse_header(data)
    assert header.size_bytes + header.body_bytes == len(data)
    assert found.header == data[: header.size_bytes]
    array = decode_array(data)
    assert (array.shape, array.dtype) == (header.shape, header.dtype.newbyteorder("="))
    return f"kept {[note.code for note in found.warnings]}"


def _numpy_reads(data: bytes) -> bool:
    """Whether numpy finds numbers of an ordinary type in the file, exactly as many as it holds."""
    if int.from_bytes(data[8:10], "little") > 500:
        return False  # numpy takes 12 s to refuse 8 kB in which a quotation mark is not closed
    file = io.BytesIO(data)
    reader: dict[tuple[int, int], Callable[..., Any]] = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shape, _, dtype = reader[np.lib.format.read_magic(file)](file)
    except Exception:  # numpy raises nearly anything on hostile text
        return False
    ordinary = dtype.kind in "biufc" and dtype.itemsize <= (16 if dtype.kind == "c" else 8) and dtype.subdtype is None
    # numpy takes True for a length; its own writer gives up at 64 axes, packer at 32.
    plain = len(shape) <= 32 and all(type(length) is int and 0 < length < 2**63 for length in shape)
    size = dtype.itemsize
    for length in shape:
        size *= length
    return ordinary and plain and size == len(data) - file.tell()


# Pictures

_PICTURE_CODES = ("truncated", "corrupt", "too_large")


def _picture(data: bytes, check: Callable[[bytes, int], Finding], codes: Iterable[str] = _PICTURE_CODES) -> str:
    """A picture that is kept must be given out by the reader in the size that was promised."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = check(data, MAX_PIXELS)
    except Unfit as unfit:
        return _refused(unfit, codes)
    assert 0 < found.width * found.height <= MAX_PIXELS
    assert 1 <= found.orientation <= 8
    assert 1 <= found.frames < 2**32
    assert found.mode in MODES[1:]
    place = (0, 0, 0, TYPES_BY_NAME[found.type].code, MODES.index(found.mode), found.orientation)
    record = Record(*place, found.width, found.height, found.frames, 0, len(data), 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        picture = decode_picture(data, record, ReadOptions(mode=None, max_pixels=MAX_PIXELS))
    assert isinstance(picture, Image.Image)
    assert picture.size == (found.width, found.height) or found.orientation > 1
    return f"kept {found.mode} {[note.code for note in found.warnings]}"


def _png(data: bytes) -> str:
    return _picture(data, png.check)


def _jpeg(data: bytes) -> str:
    return _picture(data, jpeg.check, (*_PICTURE_CODES, "unsupported_format"))


def _gif(data: bytes) -> str:
    return _picture(data, gif.check)


def _webp(data: bytes) -> str:
    return _picture(data, webp.check)


def _bmp(data: bytes) -> str:
    return _picture(data, bmp.check, (*_PICTURE_CODES, "unsupported_format"))


def _tiff(data: bytes) -> str:
    return _picture(data, tiff.check, (*_PICTURE_CODES, "unsupported_format"))


def _lzw(data: bytes) -> str:
    form = data[0] if data else 0
    literal_bits, msb_first, stream = min(max(1, form & 15), 11), form > 127, data[1:]
    for expected in (0, 900):
        found = lzw.walk(stream, literal_bits, msb_first=msb_first, expected=expected)
        assert found.unpacked >= 0
        assert 0 <= found.used <= len(stream)
        assert 0 <= found.highest < 1 << literal_bits
        assert found.filled_at is None or 0 <= found.filled_at <= len(stream)
    if literal_bits <= 8:
        agree(stream[:2_000], literal_bits, msb_first)
    return f"ended {found.ended}, bad {found.bad_code_at is not None}, filled {found.filled_at is not None}"


def _fax(data: bytes) -> str:
    scheme, options, rows = (data + bytes(3))[:3]
    scheme = scheme if scheme in (fax.HUFFMAN, fax.T4, fax.T6) else 2 + scheme % 3
    found = fax.walk(data[3:], scheme, options & 7, 90, rows, rows + 9)
    assert 0 <= found.rows <= rows + 9
    assert 0 <= found.used <= max(0, len(data) - 3)
    return f"{scheme} {found.fault} ended {found.ended}"


def _jpeg_markers(data: bytes) -> str:
    outcomes = []
    for whole in (False, True):
        try:
            found = walk(data, whole=whole)
        except Unfit as unfit:
            outcomes.append(_refused(unfit, (*_PICTURE_CODES, "unsupported_format")))
            continue
        assert found.end == -1 or (found.end <= len(data) and data[: found.end].endswith(b"\xff\xd9"))
        assert 1 <= found.scans <= 1_000
        assert 1 <= found.components <= 255
        assert 0 <= found.unfinished <= found.components
        assert 0 <= found.width < 65_536
        assert 0 <= found.height < 65_536
        outcomes.append(f"{found.components} components, unfinished {found.unfinished}, end {found.end != -1}")
    return " / ".join(outcomes)


# What the strict decoder says of damage to the codes. Where it speaks of the end marker, it is of padding or not, which the
# check decides.
_DAMAGED_CODES = re.compile(
    "premature end of data|bad Huffman|extraneous bytes before marker 0x(?!d9)|instead of RST|progression"
)
_NOT_HUFFMAN = re.compile(rb"\xff[\xc3\xc5-\xc7\xc9-\xcb\xcd-\xcf]")


def _jpeg_walk(data: bytes) -> str:
    try:
        found = walk(data, whole=True)
        require_sound_scans(data)
    except Unfit as unfit:
        return _refused(unfit, (*_PICTURE_CODES, "unsupported_format"))
    if found.precision != 8 or found.components not in (1, 3, 4) or found.width * found.height > MAX_PIXELS:
        return f"walked, precision {found.precision}, {found.components} components"
    if _NOT_HUFFMAN.search(data):
        return "walked, perhaps up to a frame that is left to others"
    try:
        simplejpeg.decode_jpeg(data, colorspace="CMYK" if found.components == 4 else "GRAY", strict=True)
    except ValueError as error:
        message = str(error)
    else:
        return f"walked, {found.components} components, {min(found.scans, 3)} scans"
    assert not _DAMAGED_CODES.search(message), f"the strict decoder finds what the walk does not: {message}"
    return "walked, " + re.sub(r"\d+", "N", message)[:60]


def _exif(data: bytes) -> str:
    try:
        found = orientation(data)
    except BrokenTagsError as error:
        return str(error).split(" that ")[-1][:13]
    assert 1 <= found <= 8
    return f"orientation {found}"


def _sniff(data: bytes) -> str:
    try:
        found = sniff(data)
    except Unfit as unfit:
        return _refused(unfit, SKIP_CODES)
    assert found in TYPES_BY_NAME
    assert found != "unknown"
    return found


def _any_file(data: bytes) -> str:
    """The whole check, which catches what a decoder raises: what it keeps is what it says, and nothing else comes out."""
    for level in ("none", "full"):
        verdict = check_bytes(data, b"a.jpg", CheckSettings(level, max_pixels=MAX_PIXELS))
    if not isinstance(verdict, Kept):
        return _refused(Unfit(verdict.code, verdict.detail), SKIP_CODES)
    assert verdict.size_bytes == len(data)
    return f"kept {verdict.type} {verdict.mode} {[note.code for note in verdict.warnings]}"


# Packed datasets


@cache
def _folder(name: str) -> Path:
    """A folder that is written over and over; it goes when the process ends."""
    # In memory where there is such a place: a file system that flushes what is written over takes 0.7 ms a file.
    holder = tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-", dir=_IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None)
    _HOLDERS.append(holder)
    return Path(holder.name)


_IN_MEMORY = "/dev/shm"
_HOLDERS: list[tempfile.TemporaryDirectory[str]] = []


def _load(data: bytes) -> Manifest:
    folder = _folder("manifest")
    (folder / "manifest.json").write_bytes(data)
    return load_manifest(folder)


def _problem(error: DatasetError) -> str:
    assert len(error.problem) < 1_000, f"a sentence of {len(error.problem):,} characters"
    return error.problem


def _manifest(data: bytes) -> str:
    try:
        manifest = _load(data)
    except DatasetError as error:
        return _problem(error)
    written = manifest.to_json()
    again = _load(written)
    assert again.to_json() == written
    assert (again.shards, again.files, again.classes) == (manifest.shards, manifest.files, manifest.classes)
    assert again.header == manifest.header
    labels = manifest.class_to_idx
    assert len(set(labels.values())) == len(manifest.classes), "two classes with the same label"
    assert all(label in manifest.valid_labels for label in labels.values())
    assert manifest.size_bytes >= 0
    for shard in manifest.shards:
        assert Path("/d", shard.file).resolve().parent == Path("/d").resolve()
    return f"read, labels {manifest.labels}, {len(manifest.classes)} classes, {len(manifest.shards)} shards"


def _dataset(data: bytes) -> str:
    manifest, index, names, container = split_parts(data)
    folder = _folder("dataset")
    files = {"manifest.json": manifest, "index.npy": index, "names.bin": names, "report.jsonl": b"", "0.tar": container}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    outcomes = set()
    try:
        store = Store(folder)
        assert len(store) == len(store.index) == len(store.targets)
        for number, record in store.records():
            try:
                payload = store.payload(number, record)
                assert payload_digest(b"", payload) == record.digest
                assert store.manifest.header + container[record.offset : record.offset + record.size] == payload
                store.name(number)
                outcomes.add("payload")
            except DatasetError as error:
                outcomes.add(_problem(error))
        outcomes |= {finding.problem for finding in verify_dataset(folder)}
    except DatasetError as error:
        outcomes.add(_problem(error))
    return "; ".join(sorted(outcomes))


TARGETS: dict[str, Target] = {
    "npyheader": Target(_npy_header, seeds.arrays, seeds.NPY_WORDS),
    "npy": Target(_npy, seeds.arrays, seeds.NPY_WORDS),
    "png": Target(_png, seeds.pngs, seeds.PNG_WORDS, repair_png),
    "jpegmarkers": Target(_jpeg_markers, seeds.jpegs, seeds.JPEG_WORDS),
    "jpegwalk": Target(_jpeg_walk, seeds.scans, seeds.JPEG_WORDS, runs=1_000),
    "jpeg": Target(_jpeg, seeds.jpegs, seeds.JPEG_WORDS),
    "exif": Target(_exif, seeds.exif_blocks, (b"II*\0", b"MM\0*", b"\x01\x12", b"\x12\x01")),
    "sniff": Target(_sniff, seeds.files, seeds.SNIFF_WORDS),
    "any": Target(_any_file, seeds.files, seeds.SNIFF_WORDS),
    "gif": Target(_gif, seeds.gifs, (b"!\xf9\4", b"!\xfe", b"!\xff\x0bNETSCAPE2.0", b",\0\0\0\0", b";"), runs=1_000),
    "webp": Target(_webp, seeds.webps, tuple(b"RIFF WEBP VP8 VP8L VP8X ALPH ANIM ANMF EXIF ICCP XMP_".split()), runs=500),
    "bmp": Target(
        _bmp, seeds.bmps, (b"BM", b"\0\0\0\x01\0\4", *(bytes([n, 0, 0, 0]) for n in (12, 40, 64, 108, 124))), runs=1_000
    ),
    "tiff": Target(_tiff, seeds.tiffs, seeds.TIFF_WORDS, runs=700),
    "lzw": Target(_lzw, seeds.lzw_streams, runs=400),
    "fax": Target(_fax, seeds.fax_streams),
    "manifest": Target(_manifest, seeds.manifests, seeds.MANIFEST_WORDS, repair_manifest),
    "dataset": Target(_dataset, seeds.datasets, seeds.MANIFEST_WORDS, repair_folder, runs=400),
}
"""Every target by its name on the command line."""
