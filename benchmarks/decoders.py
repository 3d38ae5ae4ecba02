"""Decoders that know nothing of packer: each is given a file, and raises or prints where it notices anything."""

from __future__ import annotations

import importlib
import importlib.util
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

OPTIONAL = {"cv2": "OpenCV", "imagecodecs": "imagecodecs", "tifffile": "tifffile"}
"""Decoders that are asked where they are installed: module, name."""


@dataclass(frozen=True, slots=True)
class Known:
    """Complaints that the check leaves out knowingly.

    Attributes:
        format: of the mutants.
        decoder: that complains.
        words: what is found in its complaint.
        why: a sentence.
    """

    format: str
    decoder: str
    words: re.Pattern[str]
    why: str


KNOWN = (
    Known(
        "avif", "OpenCV", re.compile(r"gives no (picture|animation)\b"),
        "OpenCV decodes AV1 with libaom, which looks at the bits where arithmetic decoding stops. The packages of Pillow on "
        "PyPI decode it with dav1d, which does not: the check sees data that are left over, but not fewer than 32 bytes, nor "
        "where nearly all of them are.",
    ),
)  # fmt: skip
"""Each of these would be a fault of the check, was there not a reason."""

_PICTURES = frozenset({"jpeg", "png", "webp", "gif", "bmp", "tiff", "avif"})
_ANIMATED = frozenset({"gif", "png", "webp", "avif"})  # or can be


@cache
def opinions() -> dict[str, Callable[[bytes, str], object]]:
    """Decoders by name; each takes bytes and type, and raises or prints where it notices anything."""
    found: dict[str, Callable[[bytes, str], object]] = {
        "Pillow": _ask_pillow,
        "simplejpeg": _ask_simplejpeg,
        "numpy": _ask_numpy,
    }
    asked = {"cv2": _ask_opencv, "imagecodecs": _ask_imagecodecs, "tifffile": _ask_tifffile}
    for module, name in OPTIONAL.items():
        if importlib.util.find_spec(module) is not None:
            found[name] = asked[module]
    return found


def _ask_pillow(data: bytes, kind: str) -> None:
    if kind not in _PICTURES:
        return
    with Image.open(io.BytesIO(data)) as picture:
        for number in range(int(getattr(picture, "n_frames", 1)) if kind in _ANIMATED else 1):
            picture.seek(number)
            picture.load()


def _ask_simplejpeg(data: bytes, kind: str) -> None:
    """At full size, raising on every warning."""
    if kind == "jpeg":
        components = simplejpeg.decode_jpeg_header(data)[2]
        simplejpeg.decode_jpeg(
            data, colorspace={"Gray": "GRAY", "CMYK": "CMYK", "YCCK": "CMYK"}.get(components, "RGB"), strict=True
        )


def _ask_numpy(data: bytes, kind: str) -> None:
    if kind == "npy":
        load_npy(data)


def load_npy(data: bytes) -> NDArray[Any]:
    """An array as numpy reads it."""
    array: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    return array


def _ask_opencv(data: bytes, kind: str) -> None:
    if kind not in _PICTURES:
        return
    cv2 = importlib.import_module("cv2")
    buffer = np.frombuffer(data, np.uint8)
    if cv2.imdecode(buffer, cv2.IMREAD_UNCHANGED) is None:
        raise ValueError("OpenCV gives no picture")
    if kind in _ANIMATED and hasattr(cv2, "imdecodeanimation") and not cv2.imdecodeanimation(buffer)[0]:
        raise ValueError("OpenCV gives no animation")


def _ask_imagecodecs(data: bytes, kind: str) -> None:
    if kind in _PICTURES:
        getattr(importlib.import_module("imagecodecs"), f"{kind}_decode")(data)


def _ask_tifffile(data: bytes, kind: str) -> None:
    if kind == "tiff":
        with importlib.import_module("tifffile").TiffFile(io.BytesIO(data)) as file:
            for page in file.pages:
                page.asarray()


def known_of(format_name: str, decoder: str, said: str) -> Known | None:
    """Why a complaint is no fault of the check, ``None`` where it is one."""
    for known in KNOWN:
        if (known.format, known.decoder) == (format_name, decoder) and known.words.search(said):
            return known
    return None
