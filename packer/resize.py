"""Resize pictures to one size, so that they make a batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from packer.tensors import resize_pixels

__all__ = ["resize_array", "resize_picture", "without_palette"]


def resize_array(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Resize grey or RGB pixels to (height, width): bilinear, averaged over all pixels where it becomes smaller.

    Args:
        pixels: uint8, shape (height, width) or (height, width, 3).
        size: (height, width) wanted.
    """
    if pixels.shape[:2] == size:
        return pixels
    resized = resize_pixels(pixels, size)
    if resized is None:
        resized = np.array(Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BILINEAR))
    return resized


def without_palette(picture: Image.Image) -> Image.Image:
    """Palettes as their colours, with alpha where there is any, and one-bit pictures as grey; others as they are."""
    if picture.mode in ("P", "PA"):
        return picture.convert("RGBA" if "transparency" in picture.info or picture.mode == "PA" else "RGB")
    return picture.convert("L") if picture.mode == "1" else picture


def resize_picture(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Resize a picture of any mode to (height, width). Palettes become colours and one-bit pictures grey, since
    between two of their values there is none; also where the size is right, or not all of a batch would have one mode.
    """
    picture = without_palette(picture)
    if picture.size == size[::-1]:
        return picture
    if picture.mode in ("L", "RGB"):
        resized = Image.fromarray(np.ascontiguousarray(resize_array(np.array(picture), size)))
    elif picture.mode in ("I;16B", "I;16L", "I;16N"):
        # Pillow 13 resizes the big-endian one to noise.
        resized = Image.fromarray(np.asarray(picture).astype(np.uint16)).resize(size[::-1], Image.Resampling.BILINEAR)
    else:
        return picture.resize(size[::-1], Image.Resampling.BILINEAR)
    resized.info.update(picture.info)
    return resized
