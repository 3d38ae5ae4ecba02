"""The verdict on a file: what is kept, what is skipped and why, and that no file can break the check."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import struct
import tracemalloc
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer import open_dataset
from packer.check import CheckSettings, check_bytes, check_source
from packer.model import DEFAULT_MAX_PIXELS, SKIP_CODES, TYPES_BY_NAME, WARNING_CODES, Kept, Skipped, Verdict
from tests.check_hooks import run_pack
from tests.inputs import jpeg, npy, pack, photo, png, write_tree

SETTINGS = CheckSettings()
EOI = b"\xff\xd9"


def judge(data: bytes, name: str = "x.jpg", settings: CheckSettings = SETTINGS) -> Verdict:
    return check_bytes(data, os.fsencode(name), settings)


def codes(verdict: Verdict) -> list[str]:
    assert isinstance(verdict, Kept), verdict
    return [note.code for note in verdict.warnings]


# Files


def ramp() -> Image.Image:
    """A smooth picture of 256 × 256: damage to its JPEG shows to a decoder, which that to a noisy one may not."""
    slope = Image.linear_gradient("L")
    return Image.merge("RGB", [slope, slope.rotate(90), slope.rotate(180)])


def encoded(picture: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def raw_png(width: int, height: int, color: int, bits: int, rows: bytes, extra: bytes = b"") -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + extra + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def with_app1(data: bytes, payload: bytes) -> bytes:
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(payload) + 2) + payload + data[2:]


def raw_npy(descr: str, shape: str, body: bytes, version: bytes = b"\x01\x00", order: str = "False") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode("latin-1")
    header += b" " * (-(11 + len(header)) % 64) + b"\n"
    length = struct.pack("<H" if version[:1] == b"\x01" else "<I", len(header))
    return b"\x93NUMPY" + version + length + header + body


def scan_of(data: bytes) -> int:
    """Where the entropy-coded data of a JPEG begin."""
    start = data.index(b"\xff\xda")
    return start + 2 + int.from_bytes(data[start + 2 : start + 4], "big")


def damaged(data: bytes, change: Callable[[bytearray, int], None]) -> bytes:
    """The file with a change at the middle of its picture data."""
    changed = bytearray(data)
    change(changed, (scan_of(data) + len(data)) // 2)
    return bytes(changed)


def zero(data: bytearray, at: int) -> None:
    data[at : at + 400] = bytes(400)


def put_marker(data: bytearray, at: int) -> None:
    data[at : at + 2] = b"\xff\xe2"


def xor(data: bytearray, at: int) -> None:
    data[at : at + 40] = bytes(byte ^ 0x55 for byte in data[at : at + 40])


J = jpeg(ramp(), quality=90)
PROGRESSIVE = jpeg(ramp(), quality=90, progressive=True)
P = png(ramp())
ARRAY = npy(np.arange(1000, dtype=np.float32).reshape(10, 100))
FRAMES = [ramp().rotate(angle) for angle in (0, 10, 20)]
ROWS = b"".join(b"\0" + bytes(96) for _ in range(32))


def without_height() -> bytes:
    at = J.index(b"\xff\xc0")
    return J[: at + 5] + b"\0\0" + J[at + 7 :]


def with_precision(bits: int) -> bytes:
    at = J.index(b"\xff\xc0")
    return J[: at + 4] + bytes([bits]) + J[at + 5 :]


def with_adobe_transform(data: bytes, value: int) -> bytes:
    at = data.index(b"Adobe") + 11
    return data[:at] + bytes([value]) + data[at + 1 :]


def without_adobe(data: bytes) -> bytes:
    at = data.index(b"\xff\xee")
    return data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4], "big") :]


def with_orientation(value: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = value
    return jpeg(photo(96, 64), exif=exif)


def without_last_scan() -> bytes:
    return PROGRESSIVE[: PROGRESSIVE.rindex(b"\xff\xda")] + EOI


def with_broken_profile() -> bytes:
    segment = b"ICC_PROFILE\0\x05\x02" + bytes(30)
    return J[:2] + b"\xff\xe2" + struct.pack(">H", len(segment) + 2) + segment + J[2:]


def late_frame() -> bytes:
    """A PNG with a frame of an animation behind its picture, but not the header of one; Pillow refuses it."""
    header = struct.pack(">IIIIIHHBB", 1, 32, 32, 0, 0, 1, 10, 0, 0)
    frame = chunk(b"fcTL", header) + chunk(b"fdAT", bytes(4) + zlib.compress(ROWS))
    whole = raw_png(32, 32, 2, 8, ROWS)
    return whole[:-12] + frame + whole[-12:]


def with_rare_sampling() -> bytes:
    """A grey picture of 48 × 16 with three luma blocks beside each other a chroma block, coded by hand: legal and rare."""
    plain = bytearray(jpeg(Image.new("RGB", (48, 16), (128, 128, 128)), subsampling=0))
    plain[plain.index(b"\xff\xc0") + 11] = 0x31
    bits = ("001010" * 3 + "0000" * 2) * 4  # of the standard tables: no difference, end of block
    bits += "1" * (-len(bits) % 8)
    coded = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    return bytes(plain[: scan_of(bytes(plain))]) + coded + EOI


def npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, a=np.zeros(3))
    return buffer.getvalue()


def objects() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}, 2], dtype=object))
    return buffer.getvalue()


def with_value(value: float, dtype: str) -> bytes:
    array = np.zeros((8, 8), dtype)
    array[2, 3] = value
    return npy(array)


SKIPPED = {
    "cut JPEG": ("x.jpg", J[: len(J) // 2], "truncated", r"no end marker in [\d,]+ bytes"),
    "cut PNG": ("x.png", P[: len(P) // 2], "truncated", ""),
    "cut BMP": ("x.bmp", encoded(ramp(), "BMP")[:99_000], "truncated", r"\d+ bytes"),
    "cut TIFF": ("x.tif", encoded(ramp(), "TIFF")[:3000], "truncated", r"\d+ bytes"),
    "JPEG with 400 zero bytes": ("x.jpg", damaged(J, zero), "corrupt", "premature end|extraneous"),
    "JPEG with a marker in its data": ("x.jpg", damaged(J, put_marker), "corrupt", ""),
    "JPEG with 40 bytes changed": ("x.jpg", damaged(J, xor), "corrupt", ""),
    "progressive JPEG with 400 zero bytes": ("x.jpg", damaged(PROGRESSIVE, zero), "corrupt", ""),
    "JPEG that is zero from the middle to the end marker": (
        "x.jpg", J[: len(J) // 2] + bytes(len(J) - len(J) // 2 - 2) + EOI, "corrupt", "",
    ),
    "JPEG cut, filled up with zeros, and ended": ("x.jpg", J[: len(J) // 2] + bytes(5 * len(J)) + EOI, "corrupt", ""),
    "JPEG cut, filled up with zeros": ("x.jpg", J[: len(J) // 2] + bytes(len(J)), "truncated", ""),
    "JPEG cut and ended": ("x.jpg", J[: len(J) // 2] + EOI, "corrupt", "premature end"),
    "JPEG without its end marker": ("x.jpg", J[:-2], "truncated", "no end marker"),
    "PNG without its end": ("x.png", P[:-12], "truncated", ""),
    "progressive JPEG without its last scan": ("x.jpg", without_last_scan(), "truncated", r"\d+ scans leave 1 of 3 components"),
    "nothing": ("e.jpg", b"", "empty_file", "0 bytes"),
    "web page": ("h.jpg", b"<!DOCTYPE html><html><title>404\n Not Found</title></html>", "not_an_image", "HTML.*404 Not Found"),
    "PDF": ("p.jpg", b"%PDF-1.4", "not_an_image", "PDF"),
    "SVG": ("s.png", b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>', "not_an_image", "SVG"),
    "text": ("t.jpg", b"not found\n", "not_an_image", "'not found"),
    "LFS pointer": ("l.png", b"version https://git-lfs.github.com/spec/v1\n", "not_an_image", "git lfs pull"),
    "video": ("v.jpg", b"\0\0\0\x18ftypisom\0\0\2\0isomiso2" + bytes(50), "not_an_image", "isom.*video"),
    "random bytes": ("r.jpg", bytes(range(7, 200)), "not_an_image", "07 08 09"),
    "zeros": ("z.jpg", bytes(5000), "corrupt", "5,000 zero bytes"),
    "JPEG behind a byte order mark": ("b.jpg", b"\xef\xbb\xbf" + J, "corrupt", "jpeg content after 3 foreign bytes"),
    "JPEG of height 0": ("0.jpg", without_height(), "corrupt", "256 × 0"),
    "two bytes of a JPEG": ("2.jpg", b"\xff\xd8", "truncated", "jpeg"),
    "JPEG start alone": ("3.jpg", b"\xff\xd8\xff\xd9", "corrupt", "no frame header"),
    "JPEG with 12 bits": ("12.jpg", with_precision(12), "unsupported_format", "12 bits"),
    "400 megapixels": ("x.png", raw_png(20_000, 20_000, 2, 8, b""), "too_large", "20000 × 20000.*178,956,970"),
    "HEIC": ("p.jpg", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100), "unsupported_format", "HEIC.*pillow-heif"),
    "objects": ("x.npy", objects(), "object_dtype", "pickle"),
    "record with an object": ("x.npy", raw_npy("[('a', '<f4'), ('b', '|O')]", "(2,)", bytes(24)), "object_dtype", "pickle"),
    "pickle": ("x.npy", pickle.dumps({"a": 1}), "not_an_image", "pickle"),
    "half an array": ("x.npy", ARRAY[: len(ARRAY) // 2], "truncated", r"\(10, 100\).*needs 4,000 bytes.*found 1,936"),
    "array short of a byte": ("x.npy", ARRAY[:-1], "truncated", "4,000.*3,999"),
    "cut array header": ("x.npy", ARRAY[:60], "truncated", "60 bytes, the header alone takes 128"),
    "six bytes of an array": ("x.npy", ARRAY[:6], "truncated", "6 bytes"),
    "array with two bytes more": ("x.npy", ARRAY + b"xx", "corrupt", "4,000.*4,002"),
    "a trillion": ("x.npy", raw_npy("'<f4'", "(1000000000000,)", bytes(16)), "truncated", "4,000,000,000,000.*found 16"),
    "8 TiB of elements": ("x.npy", raw_npy("'<f8'", f"({2**40},)", b""), "truncated", "found 0"),
    "overflowing shape": ("x.npy", raw_npy("'<f8'", f"({2**62}, {2**62})", bytes(8)), "truncated", "found 8"),
    "negative shape": ("x.npy", raw_npy("'<f4'", "(-1,)", bytes(16)), "bad_header", r"\(-1,\)"),
    "shape that is no tuple": ("x.npy", raw_npy("'<f4'", "4", bytes(16)), "bad_header", "shape is 4"),
    "shape of bools": ("x.npy", raw_npy("'<f4'", "(True,)", bytes(4)), "bad_header", "True"),
    "order that is no bool": ("x.npy", raw_npy("'<f4'", "(4,)", bytes(16), order="0"), "bad_header", "fortran_order is 0"),
    "version 4": ("x.npy", raw_npy("'<f4'", "(4,)", bytes(16), b"\x04\x00"), "bad_header", r"4\.0.*1\.0, 2\.0 and 3\.0"),
    "header that is code": ("x.npy", raw_npy("__import__('os').abort()", "(4,)", bytes(16)), "bad_header", "literal"),
    "header nested a thousand deep": ("x.npy", raw_npy("(" * 1000 + ")" * 1000, "(4,)", b""), "bad_header", ""),
    "33 dimensions": ("x.npy", raw_npy("'|u1'", str((1,) * 33), b"x"), "unsupported_dtype", "33 dimensions"),
    "1,000 fields": ("x.npy", npy(np.zeros(2, [(f"f{i}", "f4") for i in range(1000)])), "unsupported_dtype", "f0"),
    "two raw bytes an element": ("x.npy", raw_npy("'|V2'", "(4,)", bytes(8)), "unsupported_dtype", r"\|V2.*bfloat16"),
    "<f1": ("x.npy", raw_npy("'<f1'", "(4,)", bytes(4)), "bad_header", "<f1"),
    "bfloat16 by name": ("x.npy", raw_npy("'bfloat16'", "(4,)", bytes(8)), "bad_header", "bfloat16"),
    "byte strings": ("x.npy", npy(np.zeros(3, "S5")), "unsupported_dtype", "S5"),
    "strings": ("x.npy", npy(np.zeros(3, "U5")), "unsupported_dtype", "U5"),
    "dates": ("x.npy", npy(np.zeros(3, "datetime64[ns]")), "unsupported_dtype", r"datetime64\[ns\]"),
    "long doubles": ("x.npy", npy(np.zeros(3, np.longdouble)), "unsupported_dtype", str(np.dtype(np.longdouble))),
    "records": ("x.npy", npy(np.zeros(3, [("a", "f4")])), "unsupported_dtype", "'a'"),
    "npz": ("a.npz", npz(), "unsupported_format", "npz.*npy"),
    "npz named npy": ("b.npy", npz(), "unsupported_format", "npz.*npy"),
}  # fmt: skip

KEPT = {
    "JPEG": ("x.jpg", J, []),
    "progressive JPEG": ("x.jpg", PROGRESSIVE, []),
    "JPEG with restart markers": ("x.jpg", jpeg(ramp(), restart_marker_rows=1), []),
    "JPEG with 4:4:4": ("x.jpeg", jpeg(ramp(), subsampling=0), []),
    "grey JPEG": ("x.JPG", jpeg(ramp().convert("L")), []),
    "PNG": ("x.png", P, []),
    "GIF": ("x.gif", encoded(ramp(), "GIF"), []),
    "WebP": ("x.webp", encoded(ramp(), "WEBP"), []),
    "lossless WebP": ("x.webp", encoded(ramp(), "WEBP", lossless=True), []),
    "BMP": ("x.bmp", encoded(ramp(), "BMP"), []),
    "TIFF": ("x.tif", encoded(ramp(), "TIFF"), []),
    "deflated TIFF": ("x.tiff", encoded(ramp(), "TIFF", compression="tiff_deflate"), []),
    "JPEG with a tail": ("x.jpg", J + bytes(1000) + b"junk", ["trailing_bytes"]),
    "JPEG with a tail that ends like a JPEG": ("x.jpg", J + b"junk" * 100 + EOI, ["trailing_bytes"]),
    "JPEG with a second JPEG behind it": ("x.jpg", J + jpeg(seed=1), ["trailing_bytes"]),
    "JPEG with padding before its end marker": ("x.jpg", J[:-2] + bytes(40) + EOI, []),
    "PNG named jpg": ("a.jpg", P, ["extension_mismatch"]),
    "WebP named jpg": ("a.jpg", encoded(ramp(), "WEBP"), ["extension_mismatch"]),
    "GIF named jpg": ("a.jpg", encoded(ramp(), "GIF"), ["extension_mismatch"]),
    "JPEG named png": ("b.png", J, ["extension_mismatch"]),
    "JPEG named npy": ("b.npy", J, ["extension_mismatch"]),
    "array named png": ("b.png", ARRAY, ["extension_mismatch"]),
    "JPEG named heic": ("q.heic", J, ["extension_mismatch"]),
    "CMYK": ("x.jpg", jpeg(ramp().convert("CMYK")), []),
    "YCCK": ("x.jpg", with_adobe_transform(jpeg(ramp().convert("CMYK")), 2), []),
    "CMYK without Adobe": ("x.jpg", without_adobe(jpeg(ramp().convert("CMYK"))), []),
    "16-bit TIFF": ("x.tif", encoded(Image.fromarray(np.arange(4096, dtype=np.uint16).reshape(64, 64) * 16), "TIFF"), []),
    "RGBA": ("x.png", png(Image.new("RGBA", (8, 8), (255, 0, 0, 0))), []),
    "palette": ("x.png", png(ramp().quantize(16), transparency=bytes([0] * 8 + [255] * 8)), []),
    "grey with alpha": ("x.png", png(ramp().convert("LA")), []),
    "one bit": ("x.png", png(ramp().convert("1")), []),
    "camera JPEG": ("x.jpg", encoded(ramp(), "MPO", save_all=True, append_images=FRAMES[1:2]), []),
    "animated GIF": ("x.gif", encoded(FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:]), ["multi_frame"]),
    "animated WebP": ("x.webp", encoded(FRAMES[0], "WEBP", save_all=True, append_images=FRAMES[1:]), ["multi_frame"]),
    "animated PNG": ("x.png", encoded(FRAMES[0], "PNG", save_all=True, append_images=FRAMES[1:]), ["multi_frame"]),
    "animated GIF named jpg": (
        "x.jpg", encoded(FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:]), ["extension_mismatch", "multi_frame"],
    ),
    "orientation 6": ("x.jpg", with_orientation(6), []),
    "orientation 9": ("x.jpg", with_orientation(9), []),
    "empty Exif": ("x.jpg", with_app1(J, b"Exif\0\0"), ["bad_metadata"]),
    "doubled Exif": ("x.jpg", with_app1(J, b"Exif\0\0Exif\0\0II*\0\x08\0\0\0\0\0"), ["bad_metadata"]),
    "wild Exif": ("x.jpg", with_app1(J, b"Exif\0\0II*\0\xff\xff\xff\x7f"), ["bad_metadata"]),
    "wild Exif in a PNG": (
        "x.png", raw_png(32, 32, 2, 8, ROWS, chunk(b"eXIf", b"\0\x08\0\x02\x01\x12\0\x03")), ["bad_metadata"],
    ),
    "frame headers of an animation that nothing announces": (
        "x.png", late_frame(), ["bad_metadata"],
    ),
    "broken colour profile": ("x.jpg", with_broken_profile(), ["bad_metadata"]),
    "sampling that has no name": ("x.jpg", with_rare_sampling(), []),
    "100 megapixels": ("x.png", raw_png(10_000, 10_000, 0, 1, b"".join(b"\0" + bytes(1250) for _ in range(10_000))), []),
    "float TIFF": ("x.tif", encoded(Image.fromarray(np.linspace(-3, 5000, 6144, dtype="f4").reshape(64, 96)), "TIFF"), []),
    "two pages": (
        "x.tif", encoded(ramp(), "TIFF", save_all=True, append_images=[Image.new("RGB", (10, 10))]), ["multi_frame"],
    ),
    "array": ("x.npy", ARRAY, []),
    "version 2": ("x.npy", raw_npy("'<f4'", "(4,)", bytes(16), b"\x02\x00"), []),
    "version 3": ("x.npy", raw_npy("'<f4'", "(4,)", bytes(16), b"\x03\x00"), []),
    "integers of Python 2": ("x.npy", raw_npy("'<f4'", "(2L, 2L)", bytes(16)), ["bad_metadata"]),
    "Fortran order": ("x.npy", npy(np.asfortranarray(np.arange(6).reshape(2, 3))), []),
    "big-endian": ("x.npy", npy(np.arange(4, dtype=">f4")), []),
    "big-endian in Fortran order": ("x.npy", npy(np.asfortranarray(np.arange(24, dtype=">i2").reshape(2, 3, 4))), []),
    **{f"array of {kind}": ("x.npy", npy(np.ones(3, kind)), []) for kind in (
        "bool", "int8", "uint8", "uint16", "uint32", "uint64", "int64", "float16", "float64", "complex64", "complex128",
    )},
    "scalar": ("x.npy", npy(np.float32(3.5)), []),
    "empty array": ("x.npy", npy(np.zeros((0, 4), "f4")), ["empty_array"]),
    "NaN": ("x.npy", with_value(np.nan, "f4"), ["nonfinite"]),
    "minus infinity": ("x.npy", with_value(-np.inf, "f4"), ["nonfinite"]),
    "infinity in float16": ("x.npy", with_value(np.inf, "f2"), ["nonfinite"]),
    "NaN in complex": ("x.npy", with_value(np.nan, "c8"), ["nonfinite"]),
    "largest float16": ("x.npy", with_value(65504, "f2"), []),
}  # fmt: skip


@pytest.mark.parametrize("case", SKIPPED)
def test_file_is_skipped_with_its_code_and_a_reason(case: str) -> None:
    name, data, code, phrase = SKIPPED[case]
    verdict = judge(data, name)
    assert isinstance(verdict, Skipped), verdict
    assert verdict.code == code, verdict
    assert re.search(phrase, verdict.detail), verdict
    assert verdict.detail


@pytest.mark.parametrize("case", KEPT)
def test_file_is_kept_with_these_warnings_and_no_other(case: str) -> None:
    name, data, expected = KEPT[case]
    verdict = judge(data, name)
    assert codes(verdict) == expected, verdict
    assert isinstance(verdict, Kept)
    assert verdict.size_bytes == len(data)


def test_every_file_that_is_kept_can_be_read_in_every_way(tmp_path: Path) -> None:
    """A JPEG with a broken colour profile was kept, with a warning, and then failed in the training run."""
    cases = list(KEPT)
    names = [f"{i:03d}{Path(KEPT[case][0]).suffix}" for i, case in enumerate(cases)]
    root = write_tree(tmp_path / "in", {name: KEPT[case][1] for name, case in zip(names, cases, strict=True)})
    output = pack(root).output
    for options in ({}, {"mode": None}, {"output": "numpy"}, {"orient": True}, {"min_size": (8, 8)}, {"background": (9, 9, 9)}):
        data = open_dataset(output, **options)
        assert [data.names[i] for i in range(len(data))] == names
        for i, case in enumerate(cases):
            assert data[i] is not None, (case, options)


@pytest.mark.parametrize("case", [*SKIPPED, *KEPT])
def test_verdict_does_not_depend_on_what_python_does_with_warnings(case: str) -> None:
    """A user's ``PYTHONWARNINGS=error`` reaches the workers; Pillow warns of much that is no damage."""
    name, data = (SKIPPED.get(case) or KEPT[case])[:2]
    verdicts = []
    for action in ("error", "ignore"):
        with warnings.catch_warnings():
            warnings.simplefilter(action)  # type: ignore[arg-type]
            verdicts.append(judge(data, name))
    assert verdicts[0] == verdicts[1]


@pytest.mark.parametrize(
    ("case", "facts"),
    [
        ("JPEG", ("jpeg", "RGB", 256, 256, 1, 1)),
        ("grey JPEG", ("jpeg", "L", 256, 256, 1, 1)),
        ("CMYK", ("jpeg", "CMYK", 256, 256, 1, 1)),
        ("YCCK", ("jpeg", "CMYK", 256, 256, 1, 1)),
        ("PNG named jpg", ("png", "RGB", 256, 256, 1, 1)),
        ("palette", ("png", "P", 256, 256, 1, 1)),
        ("one bit", ("png", "1", 256, 256, 1, 1)),
        ("16-bit TIFF", ("tiff", "I;16", 64, 64, 1, 1)),
        ("float TIFF", ("tiff", "F", 96, 64, 1, 1)),
        ("camera JPEG", ("jpeg", "RGB", 256, 256, 2, 1)),
        ("animated GIF", ("gif", "P", 256, 256, 3, 1)),
        ("two pages", ("tiff", "RGB", 256, 256, 2, 1)),
        ("orientation 6", ("jpeg", "RGB", 96, 64, 1, 6)),
        ("orientation 9", ("jpeg", "RGB", 96, 64, 1, 1)),
        ("array named png", ("npy", "", 0, 0, 0, 0)),
    ],
)
def test_what_a_file_holds_is_noted(case: str, facts: tuple[object, ...]) -> None:
    name, data, _ = KEPT[case]
    verdict = judge(data, name)
    assert isinstance(verdict, Kept)
    assert (verdict.type, verdict.mode, verdict.width, verdict.height, verdict.frames, verdict.orientation) == facts


def test_header_of_an_array_is_all_that_stands_before_its_body() -> None:
    verdict = judge(ARRAY, "x.npy")
    assert isinstance(verdict, Kept)
    assert verdict.header == ARRAY[:-4000]


def test_nonfinite_values_are_counted() -> None:
    array = np.zeros(3_000_000, "f4")
    array[[1, 1_500_000]] = np.nan
    array[[2, 3, 2_999_999]] = np.inf, -np.inf, np.inf
    verdict = judge(npy(array), "x.npy")
    assert isinstance(verdict, Kept)
    assert [note.detail for note in verdict.warnings] == ["2 NaN and 3 infinite of 3,000,000"]


def test_warnings_name_what_was_found() -> None:
    details = {
        case: [note.detail for note in judge(data, name).warnings]  # type: ignore[union-attr]
        for case, (name, data, _) in KEPT.items()
    }
    assert details["JPEG with a tail"] == ["1,004 bytes after the end of the picture"]
    assert details["PNG named jpg"] == ["named .jpg, but the content is png"]
    assert details["animated GIF"][0].startswith("3 pictures")


@pytest.mark.parametrize("options", [{}, {"subsampling": 0}, {"restart_marker_rows": 1}], ids=["420", "444", "restart"])
def test_zeros_that_stand_for_half_a_picture_are_not_padding(options: dict[str, int]) -> None:
    """Zeros are valid Huffman codes: the decoder filled the picture with them and called only the rest of them extraneous."""
    passed = []
    for seed in range(6):
        data = jpeg(photo(160, 120, seed=seed), **options)
        for part in (0.02, 0.1, 0.3, 0.5, 0.7, 0.9):
            cut = int(scan_of(data) + (len(data) - scan_of(data)) * part)
            for filler in (b"\0", b"\xff"):
                verdict = judge(data[:cut] + filler * (5 * len(data)) + EOI)
                if isinstance(verdict, Kept):
                    passed.append((seed, part, filler))
    assert passed == []


# Limits


def test_limit_of_pixels_is_an_option() -> None:
    for data, name in ((J, "x.jpg"), (P, "x.png")):
        assert isinstance(judge(data, name, SETTINGS._replace(max_pixels=256 * 256)), Kept)
        verdict = judge(data, name, SETTINGS._replace(max_pixels=256 * 256 - 1))
        assert isinstance(verdict, Skipped)
        assert verdict.code == "too_large"
        assert "256 × 256 = 65,536 pixels, the limit is 65,535" in verdict.detail


def test_default_limit_of_pixels_is_pillows() -> None:
    assert SETTINGS.max_pixels == DEFAULT_MAX_PIXELS == 178_956_970


@pytest.mark.parametrize("case", ["a trillion", "8 TiB of elements", "overflowing shape", "400 megapixels"])
def test_what_a_header_says_allocates_nothing(case: str) -> None:
    name, data = SKIPPED[case][:2]
    tracemalloc.start()
    try:
        judge(data, name)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10_000_000


def test_check_none_looks_at_the_first_bytes_only() -> None:
    settings = SETTINGS._replace(level="none")
    assert isinstance(judge(J[: len(J) // 2], "x.jpg", settings), Kept)
    assert judge(SKIPPED["web page"][1], "x.jpg", settings) == judge(SKIPPED["web page"][1], "x.jpg")
    assert judge(ARRAY[:-1], "x.npy", settings) == judge(ARRAY[:-1], "x.npy")
    assert judge(b"", "x.npy", settings) == Skipped("empty_file", "0 bytes")


# The file itself


def test_verdict_is_on_the_file_read(tmp_path: Path) -> None:
    write_tree(tmp_path, {b"h\xe9.jpg": J})
    path = os.path.join(os.fsencode(tmp_path), b"h\xe9.jpg")
    assert check_source(path, SETTINGS) == judge(J)


@pytest.mark.parametrize(
    ("make", "phrase"),
    [
        (lambda path: None, "No such file"),
        (lambda path: path.mkdir(), "not a regular file"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to("/dev/null"), "not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
        (lambda path: path.symlink_to(path), "symbolic links"),
    ],
    ids=["missing", "folder", "FIFO", "/dev/null", "/dev/zero", "link to itself"],
)
def test_what_is_no_regular_file_is_unreadable_and_blocks_nothing(
    tmp_path: Path, make: Callable[[Path], None], phrase: str
) -> None:
    path = tmp_path / "x.jpg"
    make(path)
    verdict = check_source(os.fsencode(path), SETTINGS)
    assert isinstance(verdict, Skipped)
    assert verdict.code == "unreadable"
    assert phrase in verdict.detail


def test_file_larger_than_the_container_takes_is_skipped_unread(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    verdict = check_source(os.fsencode(path), CheckSettings(max_bytes=2**32 - 1))
    assert isinstance(verdict, Skipped)
    assert verdict.code == "too_large"
    assert "1,099,511,627,776" in verdict.detail


# Nothing breaks the check


def mutants(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Damage of the kinds that disks, networks and programs do, at random places."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        at, length = int(random.integers(len(data))), int(random.integers(1, 600))
        kind = random.integers(7)
        if kind == 0:
            yield data[:at]
        elif kind == 1:
            yield data[:at] + bytes([data[at] ^ (1 << int(random.integers(8)))]) + data[at + 1 :]
        elif kind == 2:
            yield data[:at] + bytes(min(length, len(data) - at)) + data[at + length :]
        elif kind == 3:
            yield data[:at] + random.bytes(length) + data[at + length :]
        elif kind == 4:
            yield data[:at] + data[at + length :]
        elif kind == 5:
            yield data[:at] + data[at : at + length] + data[at:]
        else:
            early = int(random.integers(min(64, len(data))))
            yield data[:early] + random.bytes(1) + data[early + 1 :]


VICTIMS = {
    "jpeg": jpeg(photo()),
    "progressive": jpeg(photo(), progressive=True),
    "mpo": encoded(photo(), "MPO", save_all=True, append_images=[photo(seed=1)], exif=b"Exif\0\0II*\0\x08\0\0\0\0\0"),
    "png": png(photo()),
    "apng": encoded(photo(), "PNG", save_all=True, append_images=[photo(seed=1)]),
    "webp": encoded(photo(), "WEBP"),
    "animated webp": encoded(photo(), "WEBP", save_all=True, append_images=[photo(seed=1)]),
    "gif": encoded(photo(), "GIF", save_all=True, append_images=[photo(seed=1)]),
    "bmp": encoded(photo(), "BMP"),
    "tiff": encoded(photo(), "TIFF"),
    "packed tiff": encoded(photo(), "TIFF", compression="tiff_lzw", save_all=True, append_images=[photo(seed=1)]),
    "npy": npy(np.arange(300, dtype="f4").reshape(20, 15)),
    "version 2": raw_npy("[('a', '<f4', (2,)), ('b', '>i2')]", "(2, 3)", bytes(60), b"\x02\x00"),
}


@pytest.mark.parametrize("victim", VICTIMS)
def test_no_mutant_raises_and_each_verdict_can_be_reported(victim: str) -> None:
    for data in mutants(VICTIMS[victim], 300, seed=list(VICTIMS).index(victim)):
        verdict = judge(data)
        if isinstance(verdict, Skipped):
            assert verdict.code in SKIP_CODES
            assert verdict.detail
            texts = [verdict.detail]
        else:
            assert verdict.type in TYPES_BY_NAME
            assert (verdict.width > 0 and verdict.height > 0) or verdict.type == "npy"
            assert verdict.orientation in range(1, 9) or verdict.type == "npy"
            assert {note.code for note in verdict.warnings} <= set(WARNING_CODES)
            texts = [note.detail for note in verdict.warnings]
        for text in texts:
            assert not holds_address(text), text
            json.dumps(text).encode("ascii")


@pytest.mark.parametrize("victim", VICTIMS)
def test_verdicts_on_mutants_do_not_depend_on_what_python_does_with_warnings(victim: str) -> None:
    for data in mutants(VICTIMS[victim], 100, seed=7):
        verdicts = []
        for action in ("error", "ignore"):
            with warnings.catch_warnings():
                warnings.simplefilter(action)  # type: ignore[arg-type]
                verdicts.append(judge(data))
        assert verdicts[0] == verdicts[1]


def holds_address(text: str) -> bool:
    return bool(re.search(r"0x[0-9a-f]{6,}|<_io|object at", text))


def test_unforeseen_exception_costs_the_file_and_shows_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    class OddError(RuntimeError):
        pass

    def fail(*ignored: object) -> None:
        raise OddError(f"cannot read {io.BytesIO()!r}")

    monkeypatch.setattr("packer.check.npy.check", fail)
    monkeypatch.setattr("packer.check.png.check", fail)
    monkeypatch.setattr("packer.check.jpeg.check", fail)
    for name, data in (("x.png", P), ("x.jpg", J)):
        verdict = judge(data, name)
        assert isinstance(verdict, Skipped)
        assert verdict.code == "corrupt"
        assert "OddError" in verdict.detail
        assert not holds_address(verdict.detail)


class Bait:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (self.marker,)


def baits(marker: Path) -> dict[str, bytes]:
    buffer = io.BytesIO()
    np.save(buffer, np.array([Bait(marker), 1], dtype=object))
    zipped = io.BytesIO()
    np.savez(zipped, a=np.array([Bait(marker)], dtype=object))
    pickled = pickle.dumps(Bait(marker))
    return {
        "array.npy": buffer.getvalue(),
        "archive.npz": zipped.getvalue(),
        "plain.npy": pickled,
        "old.npy": pickle.dumps(Bait(marker), 0),
        "picture.jpg": pickled,
        "lying.npy": raw_npy("'<f4'", "(2,)", pickled),
    }


def test_bait_would_work(tmp_path: Path) -> None:
    np.load(io.BytesIO(baits(tmp_path / "marker")["array.npy"]), allow_pickle=True)
    assert (tmp_path / "marker").exists()


def test_pickle_is_never_loaded(tmp_path: Path, format_name: str) -> None:
    marker = tmp_path / "marker"
    write_tree(tmp_path / "in", {**baits(marker), "good.npy": ARRAY})
    for name in os.listdir(tmp_path / "in"):
        check_source(os.fsencode(tmp_path / "in" / name), SETTINGS)
    summary = pack(tmp_path / "in", format_name, workers=1)
    assert summary.samples == 1
    assert not marker.exists()


# The same in a job


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """All files above, packed together; the report's rows by path."""
    root = tmp_path_factory.mktemp("check") / "in"
    write_tree(root, {file_of(case): data for case, (_, data, *_) in {**SKIPPED, **KEPT}.items()})
    summary = pack(root, workers=2)
    rows: dict[str, dict[str, Any]] = {}
    for line in summary.report.read_text("ascii").splitlines():
        row = json.loads(line)
        rows.setdefault(row["path"], {"outcome": row["outcome"], "rows": []})["rows"].append((row["code"], row["detail"]))
    return rows


def file_of(case: str) -> str:
    name = (SKIPPED.get(case) or KEPT[case])[0]
    number = [*SKIPPED, *KEPT].index(case)
    return f"{number:03d}{os.path.splitext(name)[1]}"


@pytest.mark.parametrize("case", SKIPPED)
def test_report_has_one_row_for_a_skipped_file(packed: dict[str, dict[str, Any]], case: str) -> None:
    name, data = SKIPPED[case][:2]
    verdict = judge(data, name)
    assert isinstance(verdict, Skipped)
    assert packed[file_of(case)] == {"outcome": "skipped", "rows": [(verdict.code, verdict.detail)]}


@pytest.mark.parametrize("case", KEPT)
def test_report_has_one_row_for_each_warning(packed: dict[str, dict[str, Any]], case: str) -> None:
    name, data, _ = KEPT[case]
    verdict = judge(data, name)
    assert isinstance(verdict, Kept)
    expected = [(note.code, note.detail) for note in verdict.warnings]
    rows = packed.get(file_of(case), {"rows": []})["rows"]
    assert [row for row in rows if row[0] != "duplicate_content"] == expected


def test_report_holds_no_address_and_no_absolute_path(packed: dict[str, dict[str, Any]]) -> None:
    text = json.dumps(packed)
    assert not holds_address(text)
    assert not re.search(r'[" (]/(tmp|home|root|var)/', text)


def test_bombs_and_warnings_as_errors_end_no_job(tmp_path: Path) -> None:
    write_tree(
        tmp_path / "in",
        {"a.png": KEPT["100 megapixels"][1], "b.png": SKIPPED["400 megapixels"][1], "c.tif": KEPT["two pages"][1]},
    )
    result = run_pack("in", "--json", cwd=tmp_path, env={"PYTHONWARNINGS": "error"})
    assert (result.returncode, result.stderr) == (0, "")
    summary = json.loads(result.stdout)
    assert (summary["samples"], summary["skipped"], summary["warned"]) == (2, {"too_large": 1}, {"multi_frame": 1})


def test_what_decoders_print_is_not_shown(tmp_path: Path) -> None:
    """libtiff writes "Using code not yet in table" and the like to standard error."""
    files = {f"{i}.tif": data for i, data in enumerate(mutants(VICTIMS["packed tiff"], 60, seed=7))}
    write_tree(tmp_path / "in", files | {f"sound{i}.npy": npy([i]) for i in range(61)})
    result = run_pack("in", "-q", cwd=tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_many_broken_blocks_are_one_warning_of_bounded_length() -> None:
    whole = raw_png(32, 32, 2, 8, ROWS)
    names = [b"a%sZ%s" % (bytes([65 + i % 26]), bytes([97 + i // 26])) for i in range(200)]
    broken = b"".join(struct.pack(">I", 1) + name + b"x" + bytes(4) for name in names)
    verdict = judge(whole[:33] + broken + whole[33:], "x.png")
    assert isinstance(verdict, Kept)
    (note,) = verdict.warnings
    assert note.code == "bad_metadata"
    assert note.detail.startswith("chunk aAZa has a wrong checksum; chunk aBZa")
    assert note.detail.endswith("; 196 more")  # the last is what Pillow says
