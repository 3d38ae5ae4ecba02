"""Turn the bytes of a file into a picture or an array, by the rules that the reader's options set.

Rules for pictures:

* ``mode="RGB"`` (or another of Pillow's modes) gives what Pillow's ``convert`` and so torchvision's ``ImageFolder`` give, with
  one exception: 16-bit grey is scaled by 1/256 and float or 32-bit pixels from their least to their largest value, where Pillow
  clips everything above 255 to white.
* ``mode=None`` gives the mode and depth of the file. As arrays, one-bit pictures are 0 and 255, and palette pictures are their
  colours, never indices (``mode="P"`` gives those).
* ``background`` puts transparent pictures on a colour; without it transparency is dropped, as Pillow drops it.
* ``orient`` turns a picture upright as its Exif orientation says; without it the pixels are as stored.
* ``size`` is what a picture has in the end: turned first where ``orient`` asks for it, then resized, whatever its proportions
  were. Bilinear, averaged over all pixels where it becomes smaller, as torchvision's ``Resize`` and Pillow's ``resize`` do.
* Of several frames the first is decoded.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from packer.errors import OptionError
from packer.exif import orientation
from packer.index import Record
from packer.model import DEFAULT_MAX_PIXELS, MODES, TYPES
from packer.npyheader import parse_header
from packer.pngchunks import chunks, without_metadata
from packer.resize import resize_array, resize_picture, without_palette

__all__ = ["OUTPUTS", "ReadOptions", "decode_array", "decode_picture"]

OUTPUTS = ("pil", "numpy", "torch", "bytes")

# Loaded here and not on first use: a process that is forked while a thread imports waits for the import's lock for ever.
_FACTORIES: dict[str, Callable[[io.BytesIO, str], ImageFile.ImageFile]] = {
    "jpeg": JpegImagePlugin.jpeg_factory,
    "png": PngImagePlugin.PngImageFile,
    "webp": WebPImagePlugin.WebPImageFile,
    "gif": GifImagePlugin.GifImageFile,
    "bmp": BmpImagePlugin.BmpImageFile,
    "tiff": TiffImagePlugin.TiffImageFile,
    "avif": AvifImagePlugin.AvifImageFile,
}
_FAST_JPEG = {
    ("RGB", "RGB"): "RGB",
    ("L", "L"): "GRAY",
    ("L", "RGB"): "RGB",
}  # mode in the file, mode wanted: colour space
_ORIENTATION = 0x0112  # Exif tag
_EXIF_BLOCKS = ("exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp")  # keys of Image.info
_FIRST_SIDEWAYS = 5  # orientations from here on exchange width and height
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How samples are given out.

    Attributes:
        output: ``"pil"`` (pictures as PIL images, arrays as tensors, or numpy arrays where torch is missing), ``"numpy"``,
            ``"torch"`` or ``"bytes"`` (the original file).
        mode: Pillow's name of the pixel layout to convert pictures to, ``None`` for the one in the file.
        background: colour (red, green, blue) that transparent pictures are put on, ``None`` to drop transparency.
        orient: turn pictures upright as their Exif orientation says.
        min_size: (height, width) in pixels; JPEG is decoded at the smallest scale (1, 1/2, 1/4, 1/8) that is at least that
            large. Other types are decoded whole.
        size: (height, width) in pixels that every picture is resized to after decoding. JPEG is decoded at the smallest scale
            that is at least that large.
        max_pixels: a picture whose header promises more is refused before it is decoded.
    """

    output: str = "pil"
    mode: str | None = "RGB"
    background: tuple[int, int, int] | None = None
    orient: bool = False
    min_size: tuple[int, int] | None = None
    size: tuple[int, int] | None = None
    max_pixels: int = DEFAULT_MAX_PIXELS

    def __post_init__(self) -> None:
        if self.output not in OUTPUTS:
            raise OptionError(f"output={self.output!r}; there are {', '.join(OUTPUTS)}")
        if self.mode is not None and self.mode not in MODES[1:]:
            raise OptionError(f"mode={self.mode!r} is none of Pillow's modes")
        if not _are_numbers((self.max_pixels,), 1, 1, 2**62):
            raise OptionError(f"max_pixels={self.max_pixels!r}; a number of pixels is expected")
        for name, size in (("min_size", self.min_size), ("size", self.size)):
            if size is not None and not _are_numbers(size, 2, 1, 2**31):
                raise OptionError(f"{name}={size!r}; (height, width) in pixels is expected")
            object.__setattr__(self, name, size and tuple(size))
        if self.size is not None and self.size[0] * self.size[1] > self.max_pixels:
            raise OptionError(f"size={self.size!r} is more than max_pixels={self.max_pixels:,}")
        if self.background is not None and not _are_numbers(self.background, 3, 0, 255):
            raise OptionError(f"background={self.background!r}; (red, green, blue), 0 to 255 each, is expected")

    @property
    def least_size(self) -> tuple[int, int] | None:
        """(height, width) that a picture must have after decoding; ``None`` for all of it."""
        if self.min_size is None or self.size is None:
            return self.min_size or self.size
        return max(self.min_size[0], self.size[0]), max(self.min_size[1], self.size[1])


def _are_numbers(values: object, count: int, least: int, most: int) -> bool:
    """Whether these are so many integers in a range; the option comes from a user's script, whatever its type says."""
    if not isinstance(values, (tuple, list)) or len(values) != count:
        return False
    return all(isinstance(value, int) and not isinstance(value, bool) and least <= value <= most for value in values)


def decode_array(payload: bytes) -> NDArray[Any]:
    """An ``.npy`` file as a private array: writable, row-major, native byte order, the file's shape and dtype.

    Raises:
        Exception: the bytes are no such file.
    """
    header = parse_header(payload)
    if len(payload) - header.size_bytes != header.body_bytes:
        raise ValueError(f"{len(payload) - header.size_bytes:,} bytes behind the header, {header.body_bytes:,} are expected")
    flat = np.frombuffer(payload, header.dtype, offset=header.size_bytes)
    shaped = flat.reshape(header.shape, order="F" if header.fortran_order else "C")
    return np.array(shaped, header.dtype.newbyteorder("="), order="C", copy=True)


def decode_picture(payload: bytes, record: Record, options: ReadOptions) -> Image.Image | NDArray[np.generic]:
    """A picture: a PIL image for ``output="pil"``, otherwise a private array (height, width[, channels]).

    Raises:
        OptionError: Pillow cannot convert this picture to the mode asked for.
        Exception: the bytes are no such picture. Decoders raise nearly any class.
    """
    kind = TYPES[record.type].name if record.type < len(TYPES) else ""
    if kind not in _FACTORIES:
        raise ValueError(f"a type {record.type} that is no picture")
    turned = record.orientation
    if not turned and (options.orient or options.output == "pil"):
        turned = _stored_orientation(payload, kind)
    min_size = options.least_size
    if min_size and options.orient and turned >= _FIRST_SIDEWAYS:
        min_size = min_size[::-1]  # the size asked for is that of the picture given out
    pixels = _decode_jpeg(payload, options, min_size) if kind == "jpeg" else None
    if pixels is not None:
        if options.size and not (options.orient and turned in _TURNS):
            pixels = resize_array(pixels, options.size)
        if options.output != "pil" and not (options.orient and turned in _TURNS):
            return pixels
        picture = Image.fromarray(np.ascontiguousarray(pixels))
    else:
        picture = _load(payload, kind, options.max_pixels, min_size)
    if turned in _TURNS:
        if options.orient:
            picture = picture.transpose(_TURNS[turned])
            for block in _EXIF_BLOCKS:  # or a transform would turn it once more
                picture.info.pop(block, None)
        elif pixels is not None:
            # As in a picture that Pillow opened, for a transform that turns pictures by itself.
            exif = Image.Exif()
            exif[_ORIENTATION] = turned
            picture.info["exif"] = exif.tobytes()
    if pixels is None:
        picture = _convert(picture, options)
        if isinstance(picture, ImageFile.ImageFile):
            picture = picture.copy()  # a plain picture, as ImageFolder gives it, and not the opened file with its decoder
    if options.size:
        picture = resize_picture(picture, options.size)
    return picture if options.output == "pil" else _as_array(picture, options.mode)


def _decode_jpeg(payload: bytes, options: ReadOptions, min_size: tuple[int, int] | None) -> NDArray[np.uint8] | None:
    """With simplejpeg, where that gives what Pillow gives, in less than half the time; otherwise ``None``.

    What simplejpeg refuses, also where it is not strict, is left to Pillow: it refuses sound pictures for a broken colour
    profile, for sampling factors that TurboJPEG has no name for (with a KeyError, at times), for bytes between segments.
    """
    try:
        height, width, stored, _ = simplejpeg.decode_jpeg_header(payload, strict=False)
    except (ValueError, KeyError):
        return None
    _require_pixels(width, height, options.max_pixels)
    stored_mode = {"Gray": "L", "YCbCr": "RGB", "RGB": "RGB"}.get(stored, "")
    colorspace = _FAST_JPEG.get((stored_mode, options.mode or stored_mode))
    if colorspace is None:
        return None
    least_height, least_width = min_size or (0, 0)  # 0 is the whole picture
    try:
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(
            payload,
            colorspace=colorspace,
            min_height=min(least_height, height),
            min_width=min(least_width, width),
            min_factor=2,  # 7/8 to 5/8 cost as much as the whole picture
            strict=False,
        )
    except (ValueError, KeyError):
        return None
    return pixels[:, :, 0] if pixels.shape[-1] == 1 else pixels


def _stored_orientation(payload: bytes, kind: str) -> int:
    """Where the file was packed without being looked at. Pillow itself turns TIFF when it loads it."""
    if kind == "tiff":
        return 1
    try:
        if kind == "png":
            # Not by Pillow, which decodes the whole picture to look for Exif behind it.
            found = (payload[c.start : c.start + c.length] for c in chunks(payload) if c.type == b"eXIf" and c.whole)
            block = next(found, None)
        else:
            block = _FACTORIES[kind](io.BytesIO(payload), "").info.get("exif")
        return orientation(block.removeprefix(b"Exif\0\0")) if block else 1
    except Exception:  # noqa: BLE001 - Exif is no part of the picture, and may be broken in any way
        return 1


def _load(payload: bytes, kind: str, max_pixels: int, min_size: tuple[int, int] | None) -> Image.Image:
    try:
        return _load_once(payload, kind, max_pixels, min_size)
    except Warning:
        # Warnings are errors in this process, and Pillow warns of blocks beside the pixels. Not ignored from the start, since
        # the list of filters belongs to all threads.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _load_once(payload, kind, max_pixels, min_size)


def _load_once(payload: bytes, kind: str, max_pixels: int, min_size: tuple[int, int] | None) -> Image.Image:
    try:
        picture = _open(payload, kind, max_pixels)
        if min_size and kind == "jpeg":
            picture.draft(None, min_size[::-1])  # the smallest scale that is at least as large
        picture.load()
    # Any class: Pillow refuses sound pixels for a block beside them, such as a colour profile that inflates to over 1 MiB.
    except Exception as error:
        if kind != "png" or isinstance(error, Warning):
            raise
        picture = _open(without_metadata(payload), kind, max_pixels)
        picture.load()
    return picture


def _open(payload: bytes, kind: str, max_pixels: int) -> ImageFile.ImageFile:
    """Open with the one plug-in meant. Not ``Image.open``: its limit and its warning are global state of the user's process."""
    picture = _FACTORIES[kind](io.BytesIO(payload), "")
    _require_pixels(picture.width, picture.height, max_pixels)
    return picture


def _require_pixels(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise ValueError(f"{width} × {height} = {width * height:,} pixels, the limit is {max_pixels:,} (max_pixels=)")


def _convert(picture: Image.Image, options: ReadOptions) -> Image.Image:
    transparent = picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info
    if options.background is not None and transparent and picture.mode[0] in "IF":
        return _deep_on_background(picture, options, options.background)
    if options.background is not None and transparent:
        backdrop = Image.new("RGBA", picture.size, (*options.background, 255))
        picture = Image.alpha_composite(backdrop, picture.convert("RGBA")).convert("RGB")
    mode = options.mode
    if mode is None or picture.mode == mode:
        return picture
    if picture.mode[0] in "IF" and mode[0] not in "IF":
        scaled = Image.fromarray(_to_eight_bits(np.asarray(picture)))
        scaled.info.update(picture.info)
        scaled.info.pop("transparency", None)  # a value of the other depth
        picture = scaled
    try:
        return _to_mode(picture, mode, transparent)
    except ValueError as error:
        raise OptionError(f"mode={mode!r}: Pillow cannot convert a picture of mode {picture.mode} to it ({error})") from None


def _deep_on_background(picture: Image.Image, options: ReadOptions, colour: tuple[int, int, int]) -> Image.Image:
    """A deep grey picture, one value of which means transparent: scaled like any other, and then put on the colour."""
    values = np.asarray(picture)
    pixels = np.repeat(_to_eight_bits(values)[:, :, None], 3, axis=2)
    pixels[values == picture.info["transparency"]] = colour
    return _convert(Image.fromarray(pixels), options)


def _to_mode(picture: Image.Image, mode: str, transparent: bool) -> Image.Image:
    if picture.mode == "P" and transparent:
        # Straight to RGB, Pillow warns of transparency given as bytes; by way of RGBA it gives the same colours.
        picture = picture.convert("RGBA")
    return picture.convert(mode)


def _to_eight_bits(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    if pixels.dtype.kind == "u" and pixels.dtype.itemsize == 2:
        return (pixels >> 8).astype(np.uint8)
    values = np.nan_to_num(pixels.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    return np.rint((values - low) * (255.0 / (high - low) if high > low else 0.0)).astype(np.uint8)


def _as_array(picture: Image.Image, mode: str | None) -> NDArray[np.generic]:
    if mode is None or picture.mode == "1":
        picture = without_palette(picture)
    array = np.array(picture)
    return array.astype(array.dtype.newbyteorder("="), copy=False)
