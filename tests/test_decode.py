"""What a stored file looks like when it is read: Pillow's values, nothing clipped, no warning, no refusal of a sound file."""

from __future__ import annotations

import io
import math
import struct
import subprocess
import sys
import textwrap
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image, ImageOps, features

from packer import formats, open_dataset
from packer.datasets import PackedDataset
from packer.decode import ReadOptions, decode_array, decode_picture
from packer.errors import CorruptSampleError, OptionError
from packer.index import Record
from packer.model import MODES, TYPES_BY_NAME
from tests.inputs import jpeg, npy, pack_here, photo, png, write_tree


def encoded(picture: Image.Image, kind: str, **options: Any) -> bytes:
    """A picture as a file of one of Pillow's formats."""
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def raw_png(width: int, height: int, color_type: int, bits: int, rows: bytes, extra: bytes = b"") -> bytes:
    """A PNG file made by hand, for what Pillow does not write; ``rows`` with their filter bytes."""
    header = struct.pack(">IIBBBBB", width, height, bits, color_type, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    return start + extra + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def exif(orientation: int) -> Image.Exif:
    """An Exif block with an orientation."""
    block = Image.Exif()
    block[0x0112] = orientation
    return block


def with_background(picture: Image.Image, color: tuple[int, int, int]) -> Image.Image:
    """A transparent picture on a colour, by Pillow's own means."""
    backdrop = Image.new("RGBA", picture.size, (*color, 255))
    return Image.alpha_composite(backdrop, picture.convert("RGBA")).convert("RGB")


PICTURE = photo(97, 61, seed=3)  # odd lengths: the last blocks of a JPEG are not full
ALPHA = photo(97, 61, seed=4).convert("L")
RGBA = PICTURE.copy()
RGBA.putalpha(ALPHA)
GREY = PICTURE.convert("L")
LA = RGBA.convert("LA")
PALETTE = PICTURE.quantize(16)
ONE = GREY.convert("1")
CMYK = jpeg(photo().convert("CMYK"), quality=75)
DEEP = (np.arange(4096).reshape(64, 64) * 16).astype(np.uint16)
DEEP_ROWS = b"".join(b"\0" + row.astype(">u2").tobytes() for row in DEEP)
DEEP_COLOUR = raw_png(64, 64, 2, 16, b"".join(b"\0" + np.repeat(row, 3).astype(">u2").tobytes() for row in DEEP))
FLOAT = np.linspace(-3, 5000, 6144, dtype=np.float32).reshape(64, 96)
INT32 = np.arange(-2048, 2048, dtype=np.int32).reshape(64, 64) * 1000
FRAMES = [photo(48, 40).rotate(angle) for angle in (0, 10, 20)]
HALF_CLEAR = photo(32, 32).quantize(16)
ANIMATION = {"save_all": True, "append_images": FRAMES[1:]}

ORDINARY: dict[str | bytes, bytes] = {
    **{f"subsampling {n}.jpg": jpeg(PICTURE, subsampling=n) for n in (0, 1, 2)},
    **{f"quality {n}.jpg": jpeg(PICTURE, quality=n) for n in (5, 50, 100)},
    "progressive.jpg": jpeg(PICTURE, progressive=True),
    "grey.jpg": jpeg(GREY),
    "grey progressive.jpg": jpeg(GREY, progressive=True),
    "restart markers.jpg": jpeg(PICTURE, restart_marker_rows=1),
    "one pixel.jpg": jpeg(photo(1, 1)),
    "one row.jpg": jpeg(photo(301, 1)),
    "stored as rgb.jpg": jpeg(PICTURE, keep_rgb=True),
    "trailing.jpg": jpeg(PICTURE) + bytes(1000) + b"junk",
    "rgb.png": png(PICTURE),
    "rgba.png": png(RGBA),
    "grey.png": png(GREY),
    "la.png": png(LA),
    "palette.png": png(PALETTE),
    "one.png": png(ONE),
    "one pixel.png": png(photo(1, 1)),
    "rgb with a clear colour.png": png(PICTURE, transparency=(10, 20, 30)),
    "grey with a clear value.png": png(GREY, transparency=100),
    "palette with a clear entry.png": png(PALETTE, transparency=3),
    "palette with alpha.png": png(PALETTE, transparency=bytes(range(0, 256, 16))),
    "colour of sixteen bits.png": DEEP_COLOUR,
    "lossy.webp": encoded(PICTURE, "WEBP", quality=80),
    "lossless.webp": encoded(PICTURE, "WEBP", lossless=True),
    "alpha.webp": encoded(RGBA, "WEBP"),
    "rgb.gif": encoded(PICTURE, "GIF"),
    "grey.gif": encoded(GREY, "GIF"),
    "clear.gif": encoded(PALETTE, "GIF", transparency=2),
    "rgb.bmp": encoded(PICTURE, "BMP"),
    "grey.bmp": encoded(GREY, "BMP"),
    "palette.bmp": encoded(PALETTE, "BMP"),
    "one.bmp": encoded(ONE, "BMP"),
    "rgb.tif": encoded(PICTURE, "TIFF"),
    "rgba.tif": encoded(RGBA, "TIFF"),
    "grey.tif": encoded(GREY, "TIFF"),
    "la.tif": encoded(LA, "TIFF"),
    "one.tif": encoded(ONE, "TIFF"),
    "palette.tif": encoded(PALETTE, "TIFF"),
    "cmyk.tif": encoded(PICTURE.convert("CMYK"), "TIFF"),
    "lzw.tif": encoded(PICTURE, "TIFF", compression="tiff_lzw"),
    "deflate.tif": encoded(PICTURE, "TIFF", compression="tiff_adobe_deflate"),
    "fax.tif": encoded(ONE, "TIFF", compression="group4"),
}
if features.check("avif"):
    ORDINARY |= {"rgb.avif": encoded(PICTURE, "AVIF"), "alpha.avif": encoded(RGBA, "AVIF")}

SPECIAL: dict[str | bytes, bytes] = {
    "png in.jpg": png(PICTURE),
    "webp in.jpg": encoded(PICTURE, "WEBP"),
    "gif in.jpg": encoded(PICTURE, "GIF"),
    "jpeg in.png": jpeg(PICTURE),
    "cmyk.jpg": CMYK,
    "ycck.jpg": CMYK.replace(b"Adobe\0\x64\0\0\0\0\0", b"Adobe\0\x64\0\0\0\0\x02"),
    "plain cmyk.jpg": CMYK[: CMYK.index(b"\xff\xee")] + CMYK[CMYK.index(b"\xff\xee") + 16 :],
    "deep.png": raw_png(64, 64, 0, 16, DEEP_ROWS),
    "deep.tif": encoded(Image.fromarray(DEEP), "TIFF"),
    "deep big-endian.tif": encoded(Image.fromarray(DEEP.astype(">u2")), "TIFF"),
    "deep with a clear value.png": raw_png(64, 64, 0, 16, DEEP_ROWS, chunk(b"tRNS", b"\xff\xf0")),
    "float.tif": encoded(Image.fromarray(FLOAT), "TIFF"),
    "int.tif": encoded(Image.fromarray(INT32), "TIFF"),
    "flat float.tif": encoded(Image.fromarray(np.full((8, 8), 7.5, np.float32)), "TIFF"),
    "nan.tif": encoded(Image.fromarray(np.array([[np.nan, 0.0, 20.0, 100.0, np.inf, -np.inf]], np.float32)), "TIFF"),
    "clear red.png": png(Image.new("RGBA", (20, 10), (255, 0, 0, 0))),
    "half clear.png": png(HALF_CLEAR, transparency=bytes([0] * 8 + [255] * 8)),
    "camera.jpg": encoded(photo(), "MPO", save_all=True, append_images=[photo().rotate(90)], quality=92),
    "animated.gif": encoded(FRAMES[0], "GIF", **ANIMATION),
    "animated.webp": encoded(FRAMES[0], "WEBP", lossless=True, **ANIMATION),
    "animated.png": encoded(FRAMES[0], "PNG", **ANIMATION),
    "animated in.jpg": encoded(FRAMES[0], "GIF", **ANIMATION),
    "pages.tif": encoded(PICTURE, "TIFF", save_all=True, append_images=[photo(10, 10)]),
    "turned 9.jpg": jpeg(photo(96, 64), exif=exif(9)),
    **{f"turned {n}.jpg": jpeg(photo(96, 64), exif=exif(n)) for n in range(1, 9)},
    **{f"turned {n}.png": png(photo(96, 64), exif=exif(n)) for n in range(1, 9)},
    "turned grey.jpg": jpeg(photo(96, 64).convert("L"), exif=exif(6)),
    "turned cmyk.jpg": jpeg(photo(96, 64).convert("CMYK"), exif=exif(6)),
    "turned.webp": encoded(photo(96, 64), "WEBP", lossless=True, exif=exif(6)),
    "turned.tif": encoded(photo(96, 64), "TIFF", exif=exif(6)),
}
if features.check("avif"):
    SPECIAL |= {"avif in.jpg": encoded(PICTURE, "AVIF")}
# Sound pixels beside metadata that decoders warn of or fail on.
ODD: dict[str | bytes, bytes] = {
    # A description that is said to be a gigabyte long; an index of further pictures that is none.
    "senseless tag.tif": encoded(PICTURE, "TIFF", tiffinfo={270: "x" * 100}).replace(
        struct.pack("<HHI", 270, 2, 101), struct.pack("<HHI", 270, 2, 10**9)
    ),
    "senseless index.jpg": jpeg(PICTURE)[:2] + b"\xff\xe2\0\x10MPF\0" + bytes(10) + jpeg(PICTURE)[2:],
    "broken exif.jpg": jpeg(PICTURE)[:2] + b"\xff\xe1\0\x08Exif\0\0" + jpeg(PICTURE)[2:],
    "senseless animation.png": raw_png(2, 1, 0, 8, b"\0\x10\x20", chunk(b"acTL", struct.pack(">II", 0, 0))),
    "broken exif.png": raw_png(2, 1, 0, 8, b"\0\x10\x20", chunk(b"eXIf", b"\0\x08\0\x02\x01\x12\0\x03")),
    "broken profile.png": raw_png(2, 1, 0, 8, b"\0\x10\x20", chunk(b"iCCP", b"x\0\0notzlib")),
}
PICTURES = {**ORDINARY, **SPECIAL, **ODD}


class Files:
    """One packed dataset whose samples are asked for by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._numbers = {name: i for i, name in enumerate(open_dataset(path).names)}

    def record(self, name: str) -> Record:
        return open_dataset(self.path)._store.index[self._numbers[name]]

    def read(self, name: str, **options: Any) -> Any:
        data: PackedDataset = open_dataset(self.path, **{"output": "numpy", **options})
        return data[self._numbers[name]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all pictures of this module."""
    return write_tree(tmp_path_factory.mktemp("source") / "in", PICTURES)


@pytest.fixture(scope="module")
def files(source: Path) -> Files:
    """All pictures packed in one format: decoding knows nothing of formats, and one test below compares them all."""
    summary = pack_here(source, formats.names()[0])
    assert summary.skipped == {}
    return Files(summary.output)


def by_pillow(data: bytes, mode: str | None = "RGB") -> Image.Image:
    """What Pillow, and so ImageFolder, makes of a file."""
    with Image.open(io.BytesIO(data)) as picture:
        picture.load()
        if picture.mode == "P" and "transparency" in picture.info:
            picture = picture.convert("RGBA")  # the same colours without a warning
        return picture.convert(mode) if mode else picture.copy()


def equal(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays have the same dtype, shape and values; NaN is equal to NaN."""
    return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


# ------------------------------------------------------------------------------------------------------------- Pillow's values


def test_every_format_gives_the_same_pixels(files: Files, source: Path, format_name: str, tmp_path: Path) -> None:
    others = Files(pack_here(source, format_name, output=tmp_path / "out").output)
    for name in (*ORDINARY, *SPECIAL):
        for options in ({}, {"mode": None, "orient": True}, {"mmap": True}):
            assert equal(others.read(name, **options), files.read(name, **options)), name


@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_file_gives_the_pixels_that_pillow_gives(files: Files, name: str) -> None:
    wanted = by_pillow(ORDINARY[name])
    picture = files.read(name, output="pil")
    assert isinstance(picture, Image.Image)
    assert (picture.mode, picture.size) == ("RGB", wanted.size)
    assert np.array_equal(np.asarray(picture), np.asarray(wanted))
    array = files.read(name)
    assert (array.dtype, array.shape) == (np.uint8, (wanted.height, wanted.width, 3))
    assert np.array_equal(array, np.asarray(wanted))
    tensor = files.read(name, output="torch")
    assert np.array_equal(tensor.permute(1, 2, 0).numpy(), np.asarray(wanted))


@pytest.mark.parametrize("mode", ["L", "RGBA", "CMYK", "YCbCr"])
@pytest.mark.parametrize("name", ORDINARY)
def test_another_mode_is_what_pillow_converts_to(files: Files, name: str, mode: str) -> None:
    picture = files.read(name, output="pil", mode=mode)
    wanted = by_pillow(ORDINARY[name], mode)
    assert (picture.mode, picture.size) == (mode, wanted.size)
    assert np.array_equal(np.asarray(picture), np.asarray(wanted))
    assert np.array_equal(files.read(name, mode=mode), np.asarray(wanted))


@pytest.mark.parametrize("name", ORDINARY)
def test_without_a_mode_a_picture_keeps_its_own(files: Files, name: str) -> None:
    with Image.open(io.BytesIO(ORDINARY[name])) as original:
        picture = files.read(name, output="pil", mode=None)
        assert (picture.mode, picture.size) == (original.mode, original.size)
        assert np.array_equal(np.asarray(picture), np.asarray(original))
        assert MODES[files.record(name).mode] == original.mode


@pytest.mark.parametrize("name", [*ORDINARY, *SPECIAL])
def test_an_array_is_private_writable_and_native(files: Files, name: str) -> None:
    for mode in ("RGB", "L", None):
        array = files.read(name, mode=mode)
        assert array.flags.writeable
        assert array.flags.c_contiguous
        assert array.dtype.isnative
        assert array.dtype != bool
        array[...] = 0
        tensor = files.read(name, mode=mode, output="torch")
        assert tensor.ndim == 3
        assert tuple(tensor.shape[1:]) == array.shape[:2]


@pytest.mark.parametrize("mode", ["RGB", None])
@pytest.mark.parametrize("name", [*ORDINARY, *SPECIAL])
def test_orientation_and_background_never_refuse_a_sound_file(files: Files, name: str, mode: str | None) -> None:
    for options in ({"orient": True}, {"background": (1, 2, 3)}, {"orient": True, "background": (1, 2, 3), "min_size": (5, 5)}):
        for output in ("pil", "numpy", "torch"):
            assert files.read(name, mode=mode, output=output, **options) is not None


# the extension says nothing


@pytest.mark.parametrize("name", [name for name in SPECIAL if " in." in str(name)])
def test_the_content_decides_and_not_the_extension(files: Files, name: str) -> None:
    assert np.array_equal(files.read(name), np.asarray(by_pillow(SPECIAL[name])))


# four colours


def test_a_cmyk_jpeg_gives_its_colours(files: Files) -> None:
    array = files.read("cmyk.jpg")
    assert array.shape == (48, 64, 3)
    source = np.asarray(photo().convert("CMYK").convert("RGB")).astype(int)
    assert np.abs(array[0, 0] - source[0, 0]).max() <= 8  # quality 75, and some noise
    assert np.abs(array - source).mean() < 6
    assert np.array_equal(array, np.asarray(by_pillow(CMYK)))


@pytest.mark.parametrize("name", ["cmyk.jpg", "ycck.jpg", "plain cmyk.jpg"])
def test_a_jpeg_of_four_colours_has_three_or_four_channels(files: Files, name: str) -> None:
    assert MODES[files.record(name).mode] == "CMYK"
    assert files.read(name).shape == (48, 64, 3)
    assert files.read(name, mode=None).shape == (48, 64, 4)
    assert tuple(files.read(name, mode=None, output="torch").shape) == (4, 48, 64)
    assert np.array_equal(files.read(name), np.asarray(by_pillow(SPECIAL[name])))


# depth: no clipping


@pytest.mark.parametrize("name", ["deep.png", "deep.tif", "deep big-endian.tif", "deep with a clear value.png"])
def test_sixteen_bits_come_as_they_are_without_a_mode(files: Files, name: str) -> None:
    array = files.read(name, mode=None)
    assert array.dtype == np.uint16
    assert array.max() == 65_520
    assert np.array_equal(array, DEEP)
    tensor = files.read(name, mode=None, output="torch")
    assert tensor.dtype == torch.uint16
    assert np.array_equal(tensor[0].numpy(), DEEP)


@pytest.mark.parametrize("name", ["deep.png", "deep.tif", "deep big-endian.tif", "deep with a clear value.png"])
def test_sixteen_bits_are_scaled_to_eight_and_never_clipped(files: Files, name: str) -> None:
    """Pillow's own conversion makes everything above 255 white: the mean of this picture would be 254.5."""
    assert np.array_equal(files.read(name, mode="L"), DEEP >> 8)
    assert np.array_equal(files.read(name), np.repeat((DEEP >> 8)[:, :, None], 3, 2))
    assert np.array_equal(np.asarray(files.read(name, output="pil", mode="L")), DEEP >> 8)
    assert np.array_equal(files.read(name, mode="RGBA")[:, :, 0], DEEP >> 8)


def test_sixteen_bits_keep_their_values_in_wider_modes(files: Files) -> None:
    for mode, dtype in (("I", np.int32), ("F", np.float32)):
        array = files.read("deep.png", mode=mode)
        assert array.dtype == dtype
        assert np.array_equal(array, DEEP)


@pytest.mark.parametrize("name", ["deep with a clear value.png"])
def test_sixteen_bits_are_not_clipped_where_there_is_a_background(files: Files, name: str) -> None:
    """0xfff0 is the clear value and becomes the background; everything else is scaled."""
    array = files.read(name, background=(1, 2, 3))
    clear = DEEP == 0xFFF0
    assert clear.sum() == 1
    assert (array[clear] == (1, 2, 3)).all()
    assert np.array_equal(array[~clear], np.repeat((DEEP >> 8)[~clear][:, None], 3, 1))


def test_sixteen_bits_without_transparency_are_untouched_by_a_background(files: Files) -> None:
    assert np.array_equal(files.read("deep.png", background=(1, 2, 3))[:, :, 0], DEEP >> 8)


def test_floats_come_as_they_are_without_a_mode(files: Files) -> None:
    array = files.read("float.tif", mode=None)
    assert array.dtype == np.float32
    assert (array.min(), array.max()) == (-3.0, 5000.0)
    assert np.array_equal(array, FLOAT)
    assert np.array_equal(files.read("int.tif", mode=None), INT32)


@pytest.mark.parametrize("name, values", [("float.tif", FLOAT), ("int.tif", INT32)])
def test_floats_and_long_integers_are_scaled_from_least_to_largest(files: Files, name: str, values: np.ndarray) -> None:
    array = files.read(name, mode="L")
    low, high = float(values.min()), float(values.max())
    assert (array.min(), array.max()) == (0, 255)
    assert np.abs(array - (values.astype(float) - low) * 255 / (high - low)).max() <= 0.51
    assert np.array_equal(files.read(name), np.repeat(array[:, :, None], 3, 2))


def test_a_float_picture_of_one_value_is_black_and_no_error(files: Files) -> None:
    assert files.read("flat float.tif").max() == 0


def test_floats_that_are_no_numbers_do_not_spoil_the_others(files: Files) -> None:
    array = files.read("nan.tif", mode="L")
    assert array[0, 1:4].tolist() == [0, 51, 255]
    assert np.isnan(files.read("nan.tif", mode=None)[0, 0])


# palettes, transparency, bits


def test_transparency_is_dropped_as_pillow_drops_it_or_put_on_a_background(files: Files) -> None:
    assert files.read("clear red.png")[0, 0].tolist() == [255, 0, 0]
    assert files.read("clear red.png", background=(255, 255, 255))[0, 0].tolist() == [255, 255, 255]
    assert files.read("clear red.png", mode=None)[0, 0].tolist() == [255, 0, 0, 0]
    assert files.read("clear red.png", mode="L", background=(255, 255, 255))[0, 0] == 255


TRANSPARENT = [name for name in ORDINARY if any(word in str(name) for word in ("rgba", "la.", "clear", "alpha"))]


@pytest.mark.parametrize("name", TRANSPARENT)
def test_a_background_shows_where_a_picture_is_clear(files: Files, name: str) -> None:
    with Image.open(io.BytesIO(ORDINARY[name])) as original:
        wanted = with_background(original, (250, 240, 10))
    assert np.array_equal(files.read(name, background=(250, 240, 10)), np.asarray(wanted))
    assert np.array_equal(files.read(name, background=(250, 240, 10), mode="L"), np.asarray(wanted.convert("L")))


@pytest.mark.parametrize("name", ["rgb.png", "grey.png", "palette.png", "one.png", "rgb.tif", "progressive.jpg", "rgb.gif"])
def test_a_background_changes_nothing_where_nothing_is_clear(files: Files, name: str) -> None:
    assert np.array_equal(files.read(name, background=(9, 9, 9)), files.read(name))


def test_a_palette_gives_colours_and_never_indices_unless_asked(files: Files) -> None:
    colours = np.asarray(PALETTE.convert("RGB"))
    assert np.array_equal(files.read("palette.png"), colours)
    assert np.array_equal(files.read("palette.png", mode=None), colours)
    assert np.array_equal(files.read("palette.png", mode="P"), np.asarray(PALETTE))
    assert files.read("palette.png", mode=None, output="pil").mode == "P"
    assert np.array_equal(files.read("palette with alpha.png", mode=None).shape, (61, 97, 4))


def test_a_half_clear_palette_gives_colours_without_a_warning(files: Files) -> None:
    """Pillow warns of transparency given as bytes; here every warning is an error."""
    wanted = HALF_CLEAR.convert("RGB")
    assert np.array_equal(files.read("half clear.png"), np.asarray(wanted))
    white = files.read("half clear.png", background=(255, 255, 255))
    clear = np.asarray(HALF_CLEAR) < 8
    assert (white[clear] == 255).all()
    assert np.array_equal(white[~clear], np.asarray(wanted)[~clear])


@pytest.mark.parametrize("name", ["one.png", "one.bmp", "one.tif", "fax.tif"])
def test_one_bit_comes_as_0_and_255_and_never_as_bool(files: Files, name: str) -> None:
    for options in ({"mode": None}, {"mode": "1"}, {"mode": "L"}):
        array = files.read(name, **options)
        assert array.dtype == np.uint8
        assert np.array_equal(array, np.asarray(ONE).astype(np.uint8) * 255)
    assert files.read(name, mode=None, output="torch").dtype == torch.uint8
    assert files.read(name, mode=None, output="pil").mode == "1"


# several pictures in one file


def test_of_a_camera_file_with_two_pictures_the_first_is_read(files: Files) -> None:
    assert files.record("camera.jpg").frames == 2
    assert files.read("camera.jpg", output="bytes") == SPECIAL["camera.jpg"]
    assert np.array_equal(files.read("camera.jpg"), np.asarray(by_pillow(jpeg(photo()))))
    assert np.array_equal(files.read("camera.jpg", mode="L"), np.asarray(by_pillow(jpeg(photo()), "L")))


@pytest.mark.parametrize("name", ["animated.gif", "animated.webp", "animated.png", "animated in.jpg"])
def test_of_an_animation_the_first_frame_is_read_in_three_axes(files: Files, name: str) -> None:
    assert files.record(name).frames == 3
    array = files.read(name)
    assert array.shape == (40, 48, 3)
    assert np.array_equal(array, np.asarray(by_pillow(SPECIAL[name])))
    assert np.abs(array.astype(int) - np.asarray(FRAMES[0])).mean() < 6  # a GIF has 256 colours


def test_of_several_pages_the_first_is_read(files: Files) -> None:
    assert files.record("pages.tif").frames == 2
    assert np.array_equal(files.read("pages.tif"), np.asarray(PICTURE))


# orientation


@pytest.mark.parametrize("kind", ["jpg", "png"])
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("output", ["numpy", "pil", "torch"])
def test_a_picture_is_turned_upright_only_where_asked(files: Files, kind: str, orientation: int, output: str) -> None:
    name = f"turned {orientation}.{kind}"
    with Image.open(io.BytesIO(SPECIAL[name])) as original:
        stored, upright = np.asarray(original), np.asarray(ImageOps.exif_transpose(original))
    assert upright.shape == ((64, 96, 3) if orientation < 5 else (96, 64, 3))
    as_array: Callable[[Any], np.ndarray] = (lambda t: t.permute(1, 2, 0).numpy()) if output == "torch" else np.asarray
    assert np.array_equal(as_array(files.read(name, output=output)), stored)
    assert np.array_equal(as_array(files.read(name, output=output, orient=False)), stored)
    assert np.array_equal(as_array(files.read(name, output=output, orient=True)), upright)
    record = files.record(name)
    assert (record.width, record.height, record.orientation) == (96, 64, orientation)


@pytest.mark.parametrize("name", ["turned grey.jpg", "turned cmyk.jpg", "turned.webp", "turned.tif"])
@pytest.mark.parametrize("mode", ["RGB", "L", None])
def test_pictures_of_every_type_are_turned_upright(files: Files, name: str, mode: str | None) -> None:
    with Image.open(io.BytesIO(SPECIAL[name])) as original:
        upright = ImageOps.exif_transpose(original)
        wanted = np.asarray(upright.convert(mode) if mode else upright)
    assert np.array_equal(files.read(name, orient=True, mode=mode), wanted)


def test_an_orientation_that_does_not_exist_counts_as_upright(files: Files) -> None:
    assert files.record("turned 9.jpg").orientation == 1
    assert np.array_equal(files.read("turned 9.jpg", orient=True), files.read("turned 9.jpg", orient=False))
    assert files.read("turned 9.jpg", orient=True).shape == (64, 96, 3)


@pytest.mark.parametrize("name", ["turned 6.jpg", "turned 6.png", "turned.webp", "turned.tif"])
def test_a_picture_that_was_turned_is_not_turned_again_by_its_exif(files: Files, name: str) -> None:
    """The Exif block went along: a transform with `ImageOps.exif_transpose` turned the upright picture over."""
    picture = files.read(name, output="pil", orient=True)
    assert picture.size == (64, 96)
    assert ImageOps.exif_transpose(picture).size == (64, 96)


# odd but sound


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("orient", [False, True])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_broken_metadata_around_good_pixels_is_no_matter(files: Files, name: str, orient: bool, mode: str) -> None:
    """Pillow warns of some of it, and its exif_transpose raises SyntaxError: a training run with -W error must not end."""
    array = files.read(name, orient=orient, mode=mode)
    if name.endswith(".png"):
        assert (array[:, :, 0] if mode == "RGB" else array).tolist() == [[0x10, 0x20]]
    else:
        whole = PICTURE if name.endswith(".tif") else by_pillow(jpeg(PICTURE))
        assert np.array_equal(array, np.asarray(whole.convert(mode)))


# ----------------------------------------------------------------------------------------------------------------- min_size


def scales(stored: tuple[int, int]) -> list[tuple[int, int]]:
    """The sizes that the documentation names, largest first."""
    return [(math.ceil(stored[0] / n), math.ceil(stored[1] / n)) for n in (1, 2, 4, 8)]


def record_of(mode: str, orientation: int = 1) -> Record:
    empty = Record._make([0] * len(Record._fields))
    return empty._replace(type=TYPES_BY_NAME["jpeg"].code, mode=MODES.index(mode), orientation=orientation)


@pytest.mark.parametrize("mode", ["RGB", "L"])
@given(stored=st.tuples(st.integers(1, 130), st.integers(1, 130)), least=st.tuples(st.integers(1, 150), st.integers(1, 150)))
@example(stored=(64, 96), least=(64, 96))
@example(stored=(64, 96), least=(32, 48))
@example(stored=(64, 96), least=(33, 1))
@example(stored=(64, 96), least=(1, 49))
@example(stored=(64, 96), least=(65, 97))
@example(stored=(9, 9), least=(2, 2))
def test_min_size_gives_the_smallest_scale_that_is_large_enough(
    mode: str, stored: tuple[int, int], least: tuple[int, int]
) -> None:
    data = jpeg(Image.new(mode, stored[::-1], 77))
    array = decode_picture(data, record_of(mode), ReadOptions("numpy", mode=None, min_size=least))
    height, width = array.shape[:2]
    wanted = [size for size in scales(stored) if size[0] >= least[0] and size[1] >= least[1]]
    assert height >= min(least[0], stored[0])  # there is no more than is stored
    assert width >= min(least[1], stored[1])
    if wanted:
        assert height <= wanted[-1][0]
        assert width <= wanted[-1][1]


@pytest.mark.parametrize("orientation", range(1, 9))
@given(least=st.tuples(st.integers(1, 130), st.integers(1, 130)))
@example(least=(120, 60))
@example(least=(60, 120))
@example(least=(12, 24))
def test_min_size_is_that_of_the_picture_given_out_turned_or_not(orientation: int, least: tuple[int, int]) -> None:
    """Compared with the size before turning, half of all tall crops of wide pictures came too small."""
    data = jpeg(Image.new("RGB", (96, 128) if orientation > 4 else (128, 96), (1, 200, 3)))
    options = ReadOptions("numpy", orient=True, min_size=least)
    height, width, _ = decode_picture(data, record_of("RGB", orientation), options).shape
    assert height >= min(least[0], 96)
    assert width >= min(least[1], 128)


def test_min_size_shrinks_by_averaging_and_keeps_the_colours(files: Files) -> None:
    full = files.read("subsampling 0.jpg").astype(float)
    small = files.read("subsampling 0.jpg", min_size=(30, 40))
    assert small.shape == (31, 49, 3)
    averaged = full[:60, :96].reshape(30, 2, 48, 2, 3).mean((1, 3))
    assert np.abs(small[:30, :48] - averaged).mean() < 4


@pytest.mark.parametrize("name", [*ORDINARY])
@pytest.mark.parametrize("mode", ["RGB", "L", None])
def test_min_size_never_gives_less_than_asked_in_any_type(files: Files, name: str, mode: str | None) -> None:
    full = files.read(name, mode=mode)
    shrunk = files.read(name, mode=mode, min_size=(20, 20))
    assert shrunk.shape[0] >= min(20, full.shape[0])
    assert shrunk.shape[1] >= min(20, full.shape[1])
    if not name.endswith(".jpg"):
        assert np.array_equal(shrunk, full)


@pytest.mark.parametrize("name", ["subsampling 2.jpg", "grey.jpg", "cmyk.jpg"])
@pytest.mark.parametrize("mode", ["RGB", "L", None])
def test_min_size_holds_for_every_jpeg_and_mode(files: Files, name: str, mode: str | None) -> None:
    """The option says "decode JPEG at the smallest scale", and nothing of colours."""
    assert files.read(name, mode=mode, min_size=(5, 5)).shape[:2] in {(8, 13), (6, 8)}


# ---------------------------------------------------------------------------------------------------------- packed unchecked


@pytest.fixture(scope="module")
def unchecked(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The same files, packed by looking at their first bytes only: the index knows neither mode nor orientation."""
    output = tmp_path_factory.mktemp("unchecked") / "out"
    return Files(pack_here(source, formats.names()[0], check="none", output=output).output)


@pytest.mark.parametrize("name", [*ORDINARY, *SPECIAL])
@pytest.mark.parametrize("mode", ["RGB", "L", None])
def test_unchecked_files_give_the_same_pixels(unchecked: Files, files: Files, name: str, mode: str | None) -> None:
    assert equal(unchecked.read(name, mode=mode), files.read(name, mode=mode))


@pytest.mark.parametrize("name", [name for name in SPECIAL if str(name).startswith("turned")])
def test_unchecked_files_are_turned_upright_all_the_same(unchecked: Files, name: str) -> None:
    """Without a word they came as they lie: the index held 1 for an orientation that nobody had looked for."""
    with Image.open(io.BytesIO(SPECIAL[name])) as original:
        wanted = np.asarray(ImageOps.exif_transpose(original).convert("RGB"))
    assert np.array_equal(unchecked.read(name, orient=True), wanted)


@pytest.mark.parametrize("name", ["subsampling 2.jpg", "grey.jpg", "progressive.jpg"])
def test_unchecked_files_are_decoded_at_a_smaller_scale_too(unchecked: Files, name: str) -> None:
    assert unchecked.read(name, min_size=(5, 5)).shape == (8, 13, 3)


# -------------------------------------------------------------------------------------------------------------------- limits


ONE_OF_EACH = ["progressive.jpg", "grey.jpg", "cmyk.jpg", "rgb.png", "lossy.webp", "rgb.gif", "rgb.tif", "rgb.bmp"]


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_picture_above_max_pixels_is_refused_with_both_numbers(files: Files, name: str) -> None:
    pixels = math.prod(by_pillow(PICTURES[name]).size)
    assert files.read(name, max_pixels=pixels) is not None
    with pytest.raises(CorruptSampleError, match="max_pixels") as caught:
        files.read(name, max_pixels=pixels - 1)
    assert caught.value.name == name
    assert f"{pixels:,}" in str(caught.value)
    assert f"{pixels - 1:,}" in str(caught.value)
    assert files.read(name, output="bytes", max_pixels=1) == PICTURES[name]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the memory of a process is seen in /proc")
def test_a_picture_that_promises_too_much_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    tall = bytearray(jpeg())
    frame = tall.index(b"\xff\xc0")
    tall[frame + 5 : frame + 9] = struct.pack(">HH", 65_500, 65_500)
    bombs: dict[str | bytes, bytes] = {
        "a.png": raw_png(20_000, 20_000, 2, 8, b""),
        "b.jpg": bytes(tall),
        "c.png": raw_png(16_000, 16_000, 0, 1, (b"\0" + bytes(2_000)) * 16_000),  # and it is all there: 256 MB decoded
    }
    output = pack_here(write_tree(tmp_path / "in", bombs), formats.names()[0], check="none").output
    script = """
        import re, sys
        from pathlib import Path
        from packer import CorruptSampleError, open_dataset
        data = open_dataset(sys.argv[1], output="numpy", orient=True)
        def peak():  # not ru_maxrss: that one begins at what the parent process had
            return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
        before = peak()
        for i in range(3):
            try:
                data[i]
            except CorruptSampleError as error:
                assert "max_pixels" in str(error), error
            else:
                raise AssertionError(i)
        print((peak() - before) // 1024)
    """
    grown = run(script, output)
    assert int(grown) < 50  # MiB


def run(script: str, *arguments: object) -> str:
    """Run a script in an interpreter of its own, without torch and with every warning an error; what it prints."""
    command = [sys.executable, "-W", "error", "-c", "import sys; sys.modules['torch'] = None\n" + textwrap.dedent(script)]
    result = subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, timeout=200, check=False)
    assert result.stderr == ""
    return result.stdout


def test_a_hundred_megapixels_of_one_bit_are_read_without_a_warning(tmp_path: Path) -> None:
    """Between half of Pillow's limit and the limit it warns, which ends a run under -W error."""
    row = b"\0" + b"\xf0" * 1250
    source = write_tree(tmp_path / "in", {"a.png": raw_png(10_000, 10_000, 0, 1, row * 10_000)})
    summary = pack_here(source, formats.names()[0])
    assert summary.skipped == {}
    script = """
        import sys
        from packer import open_dataset
        array = open_dataset(sys.argv[1], output="numpy", mode="L")[0]
        print(array.shape, array.dtype, array[5000, :8].tolist(), int(array.mean()))
    """
    assert run(script, summary.output) == "(10000, 10000) uint8 [255, 255, 255, 255, 0, 0, 0, 0] 127\n"


def test_reading_leaves_pillows_own_limits_alone(files: Files) -> None:
    """They are state of the user's whole process."""
    before = Image.MAX_IMAGE_PIXELS
    for name in ("rgb.png", "cmyk.jpg", "one.tif"):
        files.read(name)
    assert before == Image.MAX_IMAGE_PIXELS


def test_a_picture_that_cannot_be_decoded_names_sample_and_place(tmp_path: Path) -> None:
    broken: dict[str | bytes, bytes] = {
        "a.jpg": jpeg()[:200],
        "b.png": png()[:100],
        "c.gif": b"GIF89a",
        "d.tif": b"II*\0" + b"\xff" * 40,
        "e.webp": b"RIFF\x10\0\0\0WEBPVP8 ",
    }
    output = pack_here(write_tree(tmp_path / "in", broken), formats.names()[0], check="none").output
    data = open_dataset(output)
    for i, name in enumerate(broken):
        with pytest.raises(CorruptSampleError, match="cannot be decoded") as caught:
            data[i]
        assert (caught.value.index, caught.value.name) == (i, name)
        assert str(caught.value.path) in str(caught.value)
        assert caught.value.__cause__ is not None


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode])
def test_a_mode_that_pillow_cannot_make_is_never_called_damage(files: Files, mode: str) -> None:
    """The user asked for too much; "copy the dataset again" would send them on a wrong way."""
    try:
        PICTURE.convert(mode)
    except ValueError:
        with pytest.raises((OptionError, ValueError)) as caught:
            files.read("rgb.png", mode=mode)
        assert not isinstance(caught.value, CorruptSampleError)
    else:
        assert files.read("rgb.png", mode=mode) is not None


# arrays


ARRAYS = {
    "column order": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "big-endian": np.arange(4, dtype=">f4"),
    "big-endian in column order": np.asfortranarray(np.arange(24, dtype=">i8").reshape(2, 3, 4)),
    "scalar": np.array(3.5, np.float32),
    "empty": np.zeros((0, 4), np.float32),
    "empty in column order": np.zeros((4, 0, 2), np.float64, order="F"),
    **{f"of {name}": np.arange(5).astype(name) for name in ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32")},
    **{f"of {name}": np.arange(5).astype(name) for name in ("int64", "uint64", "float16", "float32", "float64")},
    **{f"of {name}": (np.arange(5) * 1j).astype(name) for name in ("complex64", "complex128")},
    "of many axes": np.arange(2**8, dtype=np.int16).reshape((2,) * 8),
    "not numbers": np.array([np.nan, np.inf, -0.0, 1.0]),
}


def of_version(array: np.ndarray, version: tuple[int, int]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version=version)
    return buffer.getvalue()


@pytest.fixture(scope="module", params=formats.names())
def arrays(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """All arrays of this module in one dataset of each format."""
    root = tmp_path_factory.mktemp(f"{request.param}-arrays")
    contents: dict[str | bytes, bytes] = {f"{name}.npy": npy(array) for name, array in ARRAYS.items()}
    contents["version 2.npy"] = of_version(np.arange(7), (2, 0))
    contents["version 3.npy"] = of_version(np.arange(7), (3, 0))
    summary = pack_here(write_tree(root / "in", contents), request.param)
    assert summary.skipped == {}
    return Files(summary.output)


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_keeps_values_shape_and_dtype_in_native_row_order(arrays: Files, name: str, mmap: bool) -> None:
    wanted = ARRAYS[name]
    array = arrays.read(f"{name}.npy", mmap=mmap)
    assert array.shape == wanted.shape
    assert array.dtype == wanted.dtype.newbyteorder("=")
    assert array.dtype.isnative
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.tobytes() == wanted.astype(wanted.dtype.newbyteorder("="), order="C").tobytes()
    for output in ("torch", "pil"):
        tensor = arrays.read(f"{name}.npy", output=output, mmap=mmap)
        assert isinstance(tensor, torch.Tensor)
        assert tuple(tensor.shape) == wanted.shape
        assert equal(tensor.numpy(), array)


@pytest.mark.parametrize("name", ["version 2.npy", "version 3.npy"])
def test_every_version_of_the_format_is_read(arrays: Files, name: str) -> None:
    assert arrays.read(name).tolist() == list(range(7))


def test_values_of_cases_19_and_21(arrays: Files) -> None:
    assert arrays.read("column order.npy").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert arrays.read("column order.npy").dtype == np.int64
    assert arrays.read("big-endian.npy").dtype == np.dtype("=f4")
    assert arrays.read("scalar.npy").item() == 3.5
    assert arrays.read("scalar.npy").shape == ()
    assert arrays.read("empty.npy").shape == (0, 4)


@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: b + b"\0", lambda b: b[:70], lambda b: b[:5], lambda b: b""])
def test_an_array_of_another_length_than_its_header_says_is_an_error(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(Exception, match="bytes"):
        decode_array(change(npy(np.arange(100))))


def test_options_leave_arrays_alone(arrays: Files) -> None:
    plain = partial(arrays.read, "column order.npy")
    for options in ({"mode": None}, {"orient": True}, {"background": (0, 0, 0)}, {"min_size": (1, 1)}, {"max_pixels": 1}):
        assert np.array_equal(plain(**options), plain())


def test_a_deep_picture_keeps_its_exif_when_it_is_scaled(tmp_path: Path) -> None:
    """A transform that turns pictures by it would leave these lying."""
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    Image.fromarray(np.full((4, 6), 40_000, np.uint16)).save(buffer, "PNG", exif=exif)
    output = pack_here(write_tree(tmp_path / "in", {"a.png": buffer.getvalue()}), "lmdb").output
    picture = open_dataset(output)[0]
    assert (picture.mode, picture.getpixel((0, 0))) == ("RGB", (156, 156, 156))
    assert picture.getexif()[0x0112] == 6
