"""Pictures that are cut, damaged, no pictures, too large or surrounded by rubbish: which stay out, which stay in, and why."""

from __future__ import annotations

import io
import json
import re
import struct
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from packer import CorruptSampleError, open_dataset
from tests.cases.recipes import (
    Packed,
    as_file,
    chunk,
    damaged_at,
    middle_of_scan,
    pack_files,
    png_by_hand,
    smooth,
    with_segment,
)
from tests.check_hooks import environment, pack_command
from tests.inputs import jpeg, photo, png, write_tree

PICTURE = smooth(256, 256)
WHOLE = as_file(PICTURE, "JPEG", quality=90)
SKIPPED = "skipped"
WARNED = "warned"


# Cut

FORMATS = {"jpg": "JPEG", "png": "PNG", "bmp": "BMP", "webp": "WEBP", "tif": "TIFF", "gif": "GIF", "avif": "AVIF"}


def test_pictures_cut_in_the_middle_stay_out_and_are_named(tmp_path: Path, format_name: str) -> None:
    """A loader dies hours into training on such a file, and never says which of a million it was."""
    tiff = as_file(PICTURE, "TIFF")
    files: dict[str | bytes, bytes] = {
        "c/cut.jpg": WHOLE[: middle_of_scan(WHOLE)],
        "c/half.png": (data := as_file(PICTURE, "PNG"))[: len(data) // 2],
        "c/half.bmp": (data := as_file(PICTURE, "BMP"))[: len(data) // 2],
        "c/half.webp": (data := as_file(PICTURE, "WEBP"))[: len(data) // 2],
        "c/cut.tif": tiff[:3000],
    }
    result = pack_files(tmp_path, {**files, "c/whole.jpg": WHOLE}, format_name)
    assert result.unlike(files, SKIPPED, "truncated") == {}
    assert result.read(output="bytes") == {"c/whole.jpg": WHOLE}


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_picture_of_any_format_cut_anywhere_stays_out(tmp_path: Path, suffix: str) -> None:
    files: dict[str | bytes, bytes] = {}
    for number, picture in enumerate((PICTURE, photo(200, 150), photo(31, 17), photo(120, 80).convert("L"))):
        data = as_file(picture, FORMATS[suffix])
        files |= {f"{number} to {part}%.{suffix}": data[: len(data) * part // 100] for part in (25, 50, 75, 95)}
    result = pack_files(tmp_path, {**files, "whole.png": png()})
    assert result.names == ["whole.png"]
    if suffix != "avif":  # its decoder does not say which of the two it is
        assert result.unlike(files, SKIPPED, "truncated") == {}


# Damaged in the middle: what another decoder only warns of, or passes in silence


def damages(data: bytes) -> dict[str, bytes]:
    middle = middle_of_scan(data)
    return {
        "400 zero bytes": damaged_at(data, middle, bytes(400)),
        "a foreign marker": damaged_at(data, middle, b"\xff\xe2"),
        "40 bytes turned over": damaged_at(data, middle, bytes(byte ^ 0x55 for byte in data[middle : middle + 40])),
    }


def test_a_damaged_jpeg_scan_stays_out_though_other_decoders_pass_it(tmp_path: Path) -> None:
    """The picture is right at the top, and flat grey or smeared below; a model would be trained on it."""
    files: dict[str | bytes, bytes] = {}
    for what, data in {
        "baseline": WHOLE,
        "progressive": as_file(PICTURE, "JPEG", quality=90, progressive=True),
        "grey": as_file(PICTURE.convert("L"), "JPEG", quality=90),
        "coarse": as_file(PICTURE, "JPEG", quality=60),
        "without subsampling": as_file(PICTURE, "JPEG", quality=90, subsampling=0),
        "oblong": as_file(smooth(403, 207), "JPEG", quality=90),
    }.items():
        files |= {f"{what}, {damage}.jpg": damaged for damage, damaged in damages(data).items()}
    result = pack_files(tmp_path, {**files, "whole.jpg": WHOLE})
    assert result.unlike(files, SKIPPED, "corrupt") == {}
    assert result.names == ["whole.jpg"]


# The last bytes


def test_only_a_picture_with_its_end_is_whole_and_what_follows_the_end_is_kept(tmp_path: Path, format_name: str) -> None:
    tail = bytes(1000) + b"junk"
    files: dict[str | bytes, bytes] = {
        "no end.jpg": WHOLE[:-2],
        "tail.jpg": WHOLE + tail,
        "no end.png": png()[:-12],
        "tail.png": png() + tail,
    }
    result = pack_files(tmp_path, files, format_name)
    assert result.outcome("no end.jpg") == [(SKIPPED, "truncated")]
    assert result.outcome("no end.png") == [(SKIPPED, "truncated")]
    for name in ("tail.jpg", "tail.png"):
        assert result.outcome(name) == [(WARNED, "trailing_bytes")]
        assert "1,004 bytes" in result.detail(name)
    assert result.read(output="bytes") == {name: files[name] for name in ("tail.jpg", "tail.png")}
    assert np.array_equal(result.sample("tail.png", output="numpy"), np.asarray(photo()))


# No picture at all


def without_height(data: bytes) -> bytes:
    """A JPEG whose frame header says that it has no rows."""
    return damaged_at(data, data.index(b"\xff\xc0") + 5, b"\0\0")


NO_PICTURE: dict[str, tuple[str | bytes, bytes, str, str]] = {
    "an empty file": ("empty.jpg", b"", "empty_file", ""),
    "a web page": (
        "page.jpg",
        b"<!DOCTYPE html>\n<html><head><title>404 Not Found</title></head><body>gone</body></html>",
        "not_an_image",
        "HTML.*404 Not Found",
    ),
    "a web page that begins with blank lines": ("lines.jpg", b"\r\n\r\n  <HTML><body>x", "not_an_image", "HTML"),
    "a document": ("paper.jpg", b"%PDF-1.4\n1 0 obj\n", "not_an_image", "PDF"),
    "a drawing": (
        "drawing.png",
        b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg" width="8" height="8"/>',
        "not_an_image",
        "SVG",
    ),
    "a byte-order mark before a JPEG": ("mark.jpg", b"\xef\xbb\xbf" + WHOLE, "corrupt", "jpeg.* 3 foreign bytes"),
    "a JPEG without rows": ("flat.jpg", without_height(WHOLE), "corrupt", "256 × 0"),
}


@pytest.fixture(scope="module")
def no_pictures(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    files = {name: data for name, data, _, _ in NO_PICTURE.values()}
    return pack_files(tmp_path_factory.mktemp("none"), {**files, "whole.jpg": WHOLE})


@pytest.mark.parametrize("what", NO_PICTURE)
def test_what_is_no_picture_stays_out_and_is_called_what_it_is(no_pictures: Packed, what: str) -> None:
    name, _, code, phrase = NO_PICTURE[what]
    assert no_pictures.outcome(str(name)) == [(SKIPPED, code)]
    assert re.search(phrase, no_pictures.detail(str(name)))


def test_no_row_shows_the_address_of_an_object_in_place_of_a_path(no_pictures: Packed) -> None:
    assert [row["path"] for row in no_pictures.rows] == sorted(str(name) for name, *_ in NO_PICTURE.values())
    assert not [row for row in no_pictures.rows if re.search(r"0x[0-9a-f]{6}|object at", row["detail"])]
    assert no_pictures.names == ["whole.jpg"]


# Good pixels among broken metadata


def tiny_png(*extra: bytes) -> bytes:
    return png_by_hand(32, 32, 2, 8, b"".join(b"\0" + bytes(range(96)) for _ in range(32)), b"".join(extra))


BROKEN_BLOCKS: dict[str | bytes, bytes] = {
    "empty exif.jpg": with_segment(WHOLE, b"Exif\0\0"),
    "doubled exif.jpg": with_segment(WHOLE, b"Exif\0\0Exif\0\0II*\0\x08\0\0\0\0\0"),
    "exif that points far away.jpg": with_segment(WHOLE, b"Exif\0\0II*\0\xff\xff\xff\x7f"),
    "exif without a start.png": tiny_png(chunk(b"eXIf", b"\0\x08\0\x02\x01\x12\0\x03")),
    "profile that does not inflate.png": tiny_png(chunk(b"iCCP", b"x\0\0notzlib")),
    "profile of two megabytes.png": tiny_png(chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(2 << 20)))),
}


def test_good_pixels_among_broken_metadata_are_kept_and_read(tmp_path: Path, format_name: str) -> None:
    result = pack_files(tmp_path, BROKEN_BLOCKS, format_name)
    assert result.unlike(BROKEN_BLOCKS, WARNED, "bad_metadata") == {}
    assert result.read(output="bytes") == BROKEN_BLOCKS
    sound = {"jpg": np.asarray(as_read(WHOLE)), "png": np.asarray(as_read(tiny_png()))}
    for orient in (False, True):
        for name, pixels in result.read(output="numpy", orient=orient).items():
            assert np.array_equal(pixels, sound[name[-3:]]), name
    for name, picture in result.read(orient=True).items():
        assert picture.size == sound[name[-3:]].shape[1::-1]


def as_read(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def test_seventy_megabytes_of_text_in_a_picture_stay_out(tmp_path: Path) -> None:
    text = chunk(b"tEXt", b"Comment\0" + b"x" * ((1 << 20) - 8))
    result = pack_files(tmp_path, {"text.png": tiny_png(*[text] * 70), "whole.png": tiny_png()})
    assert result.outcome("text.png") == [(SKIPPED, "too_large")]
    assert result.names == ["whole.png"]


# More pixels than anyone meant


def bilevel(side: int) -> bytes:
    """A black square of one bit a pixel, which takes next to nothing as a file."""
    return png_by_hand(side, side, 0, 1, (b"\0" + bytes(-(-side // 8))) * side)


BOMB = png_by_hand(20_000, 20_000, 2, 8, b"")


def test_a_picture_that_promises_too_much_stays_out_before_it_takes_memory(tmp_path: Path) -> None:
    """Asked of a new process, whose memory can only grow."""
    write_tree(tmp_path, {"bomb.png": BOMB, "small.png": png()})
    code = """
    import json, resource, sys
    from packer.check import CheckSettings, check_source
    check_source(sys.argv[2].encode(), CheckSettings())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    verdict = check_source(sys.argv[1].encode(), CheckSettings())
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps([verdict.code, verdict.detail, grown]))
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "bomb.png"), str(tmp_path / "small.png")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True, timeout=60)
    verdict, detail, grown_kib = json.loads(done.stdout)
    assert verdict == "too_large"
    for number in ("20000", "400,000,000", "178,956,970"):
        assert number in detail
    assert grown_kib < 50_000


def test_a_hundred_megapixels_are_kept_also_where_warnings_are_errors(tmp_path: Path) -> None:
    write_tree(tmp_path / "in", {"c/large.png": bilevel(10_000), "c/bomb.png": BOMB, "c/small.png": png()})
    command = [sys.executable, "-W", "error", *pack_command("in", "-o", "out", "--json")[1:]]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(PYTHONWARNINGS="error"), capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads(done.stdout)
    assert (summary["samples"], summary["skipped"], summary["warned"]) == (2, {"too_large": 1}, {})
    picture, _ = open_dataset(tmp_path / "out", mode=None)[0]
    assert picture.size == (10_000, 10_000)


def test_the_limit_of_pixels_is_an_option(tmp_path: Path) -> None:
    files: dict[str | bytes, bytes] = {
        "a.png": png(photo(100, 100)),
        "b.png": png(photo(101, 100)),
        "c.jpg": jpeg(photo(99, 102)),
    }
    result = pack_files(tmp_path, files, max_pixels=10_000)
    assert result.names == ["a.png"]
    for name, size in {"b.png": "101 × 100", "c.jpg": "99 × 102"}.items():
        assert result.outcome(name) == [(SKIPPED, "too_large")]
        assert size in result.detail(name)
        assert "10,000" in result.detail(name)


def test_the_limit_of_pixels_holds_on_the_command_line_and_when_reading(tmp_path: Path) -> None:
    write_tree(tmp_path / "in", {"a.png": png(photo(100, 100)), "b.png": png(photo(101, 100))})
    done = subprocess.run(
        pack_command("in", "-o", "out", "--json", "--max-pixels", "10000"),
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["skipped"] == {"too_large": 1}
    with pytest.raises(CorruptSampleError, match="the limit is 9,999"):
        open_dataset(tmp_path / "out", max_pixels=9_999)[0]


# A format that needs a plug-in


def test_heic_under_a_jpegs_name_is_called_heic_and_not_damage(tmp_path: Path, format_name: str) -> None:
    heic = struct.pack(">I4s4sI4s4s", 24, b"ftyp", b"heic", 0, b"mif1", b"heic") + bytes(100)
    result = pack_files(tmp_path, {"p.jpg": heic, "q.heic": WHOLE, "r.heic": heic}, format_name)
    for name in ("p.jpg", "r.heic"):
        assert result.outcome(name) == [(SKIPPED, "unsupported_format")]
        assert "HEIC" in result.detail(name)
        assert "pillow-heif" in result.detail(name)
    assert result.outcome("q.heic") == [(WARNED, "extension_mismatch")]
    assert result.read(output="bytes") == {"q.heic": WHOLE}
    assert result.facts("q.heic")["type"] == "jpeg"
    assert result.sample("q.heic").size == (256, 256)
