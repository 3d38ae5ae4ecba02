"""A small folder of varied pictures and arrays, a few of them damaged on purpose, to see what packing does to it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

__all__ = ["make_folder"]

_SIZE = 160  # pixels


def make_folder(folder: Path) -> None:
    """Make the folder, with class folders ``arrays``, ``circles`` and ``gradients``. The same bytes every time.

    Raises:
        FileExistsError: it exists already.
    """
    folder.mkdir()
    files = {**_circles(), **_gradients(), **_arrays()}
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)


def _circles() -> dict[str, bytes]:
    y, x = np.mgrid[0:_SIZE, 0:_SIZE] - _SIZE // 2
    files = {}
    for i, kind in enumerate(("JPEG", "PNG", "WEBP", "JPEG", "PNG", "JPEG")):
        ring = np.abs(np.hypot(x, y) - 20 - 8 * i)
        pixels = np.stack([255 - 20 * ring, 40 * i + ring, ring * 2], -1).clip(0, 255).astype(np.uint8)
        files[f"circles/circle.{i}.{_EXTENSIONS[kind]}"] = _encode(pixels, kind)
    whole = files["circles/circle.0.jpg"]
    files["circles/cut.jpg"] = whole[: len(whole) // 2]
    middle = len(whole) // 2
    files["circles/zeroed.jpg"] = whole[:middle] + bytes(600) + whole[middle + 600 :]
    return files


def _gradients() -> dict[str, bytes]:
    y, x = np.mgrid[0:_SIZE, 0:_SIZE]
    files = {}
    for i, kind in enumerate(("JPEG", "GIF", "BMP", "PNG", "JPEG")):
        pixels = np.stack([(x + 30 * i) % 256, (y * (i + 1)) % 256, (x + y) // 2], -1).astype(np.uint8)
        files[f"gradients/gradient {i}.{_EXTENSIONS[kind]}"] = _encode(pixels, kind)
    deep = (x * 400).astype(np.uint16)
    files["gradients/sixteen bits.tif"] = _encode(deep, "TIFF")
    files["gradients/named wrong.jpg"] = files["gradients/gradient 3.png"]
    files["gradients/empty.png"] = b""
    files["gradients/page.jpg"] = b"<!DOCTYPE html><html><head><title>404 Not Found</title></head></html>"
    files["gradients/notes.txt"] = b"not a candidate, so ignored\n"
    return files


def _arrays() -> dict[str, bytes]:
    random = np.random.default_rng(0)
    arrays: dict[str, NDArray[Any]] = {
        "features": random.standard_normal((64, 32)).astype(np.float32),
        "column order": np.asfortranarray(np.arange(60).reshape(3, 4, 5)),
        "big-endian": np.arange(10, dtype=">f8"),
        "scalar": np.array(3.5, np.float32),
        "not a number": np.array([1.0, np.nan, np.inf], np.float32),
    }
    files = {}
    for name, array in arrays.items():
        buffer = io.BytesIO()
        np.save(buffer, array)
        files[f"arrays/{name}.npy"] = buffer.getvalue()
    files["arrays/short.npy"] = files["arrays/features.npy"][:-1000]
    return files


_EXTENSIONS = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp", "GIF": "gif", "BMP": "bmp", "TIFF": "tif"}


def _encode(pixels: NDArray[Any], kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()
