"""Valid files of every format, made in memory: photographs of about 300 x 200 pixels, and arrays. One seed, one set.

Of each variant there are several copies: other crops, sizes that are no multiple of anything, and for JPEG and AVIF colour at
half and at full resolution in turn. (Bytes also depend on the versions of Pillow and scikit-learn.)
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from data import load_photographs
from encoders import encode_interlaced_png, encode_rle8_bmp, encode_tiled_tiff
from numpy.typing import NDArray
from PIL import Image

COPIES = 4
WIDTH, HEIGHT = 300, 200
FRAMES = 3
_TURN_FRAMES = 7  # pixels that each frame of an animation is shifted by
_ARRAY_SHAPE = (3, 61, 83)


@dataclass(frozen=True, slots=True)
class Specimen:
    """One valid file.

    Attributes:
        format: a key of ``VARIANTS``.
        variant: a key of ``VARIANTS[format]``.
        copy: its number among those of its variant.
        data: its bytes.
    """

    format: str
    variant: str
    copy: int
    data: bytes

    @property
    def name(self) -> str:
        """A file name that no other specimen has."""
        return f"{self.format}-{self.variant.replace(' ', '_')}-{self.copy}.{SUFFIXES[self.format]}"


@dataclass(frozen=True, slots=True)
class Subject:
    """What a specimen is made of.

    Attributes:
        picture: a crop of a photograph, RGB.
        copy: the number of the copy; encoders choose by it.
        random: for everything else.
    """

    picture: Image.Image
    copy: int
    random: np.random.Generator

    @property
    def subsampling(self) -> str:
        """Resolution of the colours in JPEG and AVIF."""
        return ("4:2:0", "4:4:4")[self.copy % 2]

    @property
    def quality(self) -> int:
        """Of lossy encoders."""
        return (85, 92, 75, 90)[self.copy % 4]

    @property
    def frames(self) -> list[Image.Image]:
        """The pictures of an animation, each two thirds as wide and high."""
        pixels = np.asarray(self.picture)
        size = (self.picture.width * 2 // 3, self.picture.height * 2 // 3)
        shifted = [np.roll(pixels, _TURN_FRAMES * number, axis=1) for number in range(FRAMES)]
        return [Image.fromarray(part).resize(size) for part in shifted]


def _save(picture: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def _jpeg(subject: Subject, *, mode: str = "RGB", **options: Any) -> bytes:
    exif = Image.Exif()
    exif[0x010F], exif[0x0112] = "camera", 1
    if mode != "L":
        options["subsampling"] = subject.subsampling
    return _save(subject.picture.convert(mode), "JPEG", quality=subject.quality, exif=exif, **options)


def _jpeg_restart(subject: Subject) -> bytes:
    options = {"restart_marker_rows": 1} if subject.copy < 2 else {"restart_marker_blocks": 5}
    return _save(subject.picture, "JPEG", quality=subject.quality, subsampling=subject.subsampling, **options)


def _animated(subject: Subject, kind: str, **options: Any) -> bytes:
    first, *others = subject.frames
    return _save(first, kind, save_all=True, append_images=others, **options)


def _mpo(subject: Subject) -> bytes:
    return _animated(subject, "MPO", quality=subject.quality, subsampling=subject.subsampling)


def _palette(subject: Subject) -> Image.Image:
    return subject.picture.quantize((256, 64, 255, 17)[subject.copy % 4])


def _with_alpha(subject: Subject) -> Image.Image:
    alpha = np.asarray(subject.picture.convert("L").point(lambda value: min(255, value * 2)))
    picture = subject.picture.copy()
    picture.putalpha(Image.fromarray(alpha))
    return picture


def _grey16(subject: Subject) -> Image.Image:
    grey = np.asarray(subject.picture.convert("L")).astype(np.uint16)
    return Image.fromarray(grey * 257 + subject.random.integers(0, 64, grey.shape, np.uint16))


def _rle8(subject: Subject) -> bytes:
    picture = subject.picture.quantize(12, dither=Image.Dither.NONE)
    colours = bytes(picture.getpalette() or ()).ljust(768, b"\0")
    return encode_rle8_bmp(np.array(picture), colours)


def _tiff(subject: Subject, compression: str) -> bytes:
    return _save(subject.picture, "TIFF", compression=compression)


def _tiff_group4(subject: Subject) -> bytes:
    dither = (Image.Dither.NONE, Image.Dither.FLOYDSTEINBERG)[subject.copy % 2]
    return _save(subject.picture.convert("1", dither=dither), "TIFF", compression="group4")


def _avif(subject: Subject) -> bytes:
    return _save(subject.picture, "AVIF", quality=subject.quality, subsampling=subject.subsampling, speed=8, max_threads=1)


def _npy(array: NDArray[Any], version: tuple[int, int] = (1, 0)) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version=version)
    return buffer.getvalue()


def _floats(subject: Subject) -> NDArray[np.float32]:
    return subject.random.standard_normal(_ARRAY_SHAPE, dtype=np.float32)


Maker = Callable[[Subject], bytes]

VARIANTS: Mapping[str, Mapping[str, Maker]] = {
    "jpeg": {
        "baseline": _jpeg,
        "optimized": partial(_jpeg, optimize=True),
        "restart markers": _jpeg_restart,
        "progressive": partial(_jpeg, progressive=True),
        "grey": partial(_jpeg, mode="L"),
        "cmyk": partial(_jpeg, mode="CMYK"),
    },
    "mpo": {"three pictures": _mpo},
    "png": {
        "rgb": lambda subject: _save(subject.picture, "PNG"),
        "rgba": lambda subject: _save(_with_alpha(subject), "PNG"),
        "palette": lambda subject: _save(_palette(subject), "PNG"),
        "grey 16 bits": lambda subject: _save(_grey16(subject), "PNG"),
        "interlaced": lambda subject: encode_interlaced_png(np.array(subject.picture)),
        "animated": lambda subject: _animated(subject, "PNG"),
    },
    "webp": {
        "lossy": lambda subject: _save(subject.picture, "WEBP", quality=subject.quality),
        "lossy with alpha": lambda subject: _save(_with_alpha(subject), "WEBP", quality=subject.quality),
        "lossless": lambda subject: _save(subject.picture, "WEBP", lossless=True, quality=30),
        "animated": lambda subject: _animated(subject, "WEBP", quality=subject.quality, lossless=subject.copy == 3),
    },
    "gif": {
        "still": lambda subject: _save(_palette(subject), "GIF", interlace=0),
        "interlaced": lambda subject: _save(_palette(subject), "GIF", interlace=1),
        "animated": lambda subject: _animated(subject, "GIF"),
    },
    "bmp": {
        "24 bits": lambda subject: _save(subject.picture, "BMP"),
        "8 bits": lambda subject: _save(_palette(subject), "BMP"),
        "run lengths": _rle8,
    },
    "tiff": {
        "raw": partial(_tiff, compression="raw"),
        "lzw": partial(_tiff, compression="tiff_lzw"),
        "deflate": partial(_tiff, compression="tiff_adobe_deflate"),
        "packbits": partial(_tiff, compression="packbits"),
        "jpeg": partial(_tiff, compression="jpeg"),
        "group 4": _tiff_group4,
        "tiles raw": lambda subject: encode_tiled_tiff(np.array(subject.picture), deflate=False),
        "tiles deflate": lambda subject: encode_tiled_tiff(np.array(subject.picture), deflate=True),
    },
    "avif": {"still": _avif},
    "npy": {
        "float32": lambda subject: _npy(_floats(subject)),
        "uint8": lambda subject: _npy(np.array(subject.picture)),
        "version 2.0": lambda subject: _npy(np.array(subject.picture), (2, 0)),
        "fortran order": lambda subject: _npy(np.asfortranarray(_floats(subject))),
    },
}
"""Formats, and what makes a file of each of their variants."""

SUFFIXES = {
    "jpeg": "jpg", "mpo": "mpo", "png": "png", "webp": "webp", "gif": "gif", "bmp": "bmp", "tiff": "tif", "avif": "avif",
    "npy": "npy",
}  # fmt: skip


@cache
def make_specimen(format_name: str, variant: str, copy: int, seed: int) -> Specimen:
    """Make one valid file.

    Args:
        format_name: a key of ``VARIANTS``.
        variant: a key of ``VARIANTS[format_name]``.
        copy: a number below ``COPIES``.
        seed: any number of at least 0.

    Raises:
        ModuleNotFoundError: scikit-learn, whose photographs these are, is not installed.
    """
    random = np.random.default_rng([seed, zlib.crc32(f"{format_name}/{variant}".encode()), copy])
    subject = Subject(_crop(random), copy, random)
    return Specimen(format_name, variant, copy, VARIANTS[format_name][variant](subject))


@cache
def _photographs() -> list[Image.Image]:
    return [Image.fromarray(photograph) for photograph in load_photographs()]


def _crop(random: np.random.Generator) -> Image.Image:
    """A random part of a photograph at about half its scale."""
    photograph = _photographs()[int(random.integers(2))]
    width, height = WIDTH + int(random.integers(-9, 10)), HEIGHT + int(random.integers(-9, 10))
    scale = float(random.uniform(1.5, 2.0))
    left = float(random.uniform(0, photograph.width - width * scale))
    top = float(random.uniform(0, photograph.height - height * scale))
    box = (left, top, left + width * scale, top + height * scale)
    return photograph.resize((width, height), Image.Resampling.LANCZOS, box=box)
