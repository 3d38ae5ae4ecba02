"""Inputs made in memory, and the shortest way from them to a packed dataset."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from packer import PackOptions, pack_folder
from packer.options import Summary

__all__ = ["jpeg", "npy", "pack", "photo", "png", "write_tree"]


def photo(width: int = 64, height: int = 48, *, seed: int = 0) -> Image.Image:
    """An RGB picture with slopes and some noise, so that encoders have something to do; each seed gives another."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    slopes = np.stack([x * 255 / max(width - 1, 1), y * 255 / max(height - 1, 1), (x + y + 40 * seed) % 256], -1)
    noise = random.integers(-16, 17, slopes.shape)
    return Image.fromarray((slopes + noise).clip(0, 255).astype(np.uint8))


def jpeg(picture: Image.Image | None = None, *, seed: int = 0, **options: Any) -> bytes:
    """A picture (``photo(seed=seed)`` where none is given) as a JPEG file; options are Pillow's, ``quality`` 92."""
    return _encoded(picture or photo(seed=seed), "JPEG", {"quality": 92, **options})


def png(picture: Image.Image | None = None, *, seed: int = 0, **options: Any) -> bytes:
    """A picture (``photo(seed=seed)`` where none is given) as a PNG file; options are Pillow's."""
    return _encoded(picture or photo(seed=seed), "PNG", options)


def npy(array: ArrayLike) -> bytes:
    """An array as an ``.npy`` file, as ``numpy.save`` writes it."""
    buffer = io.BytesIO()
    np.save(buffer, np.asanyarray(array))
    return buffer.getvalue()


def write_tree(folder: str | os.PathLike[str], files: Mapping[str | bytes, bytes]) -> Path:
    """Write files into a folder, in the order given, with the folders that their names need; returns the folder."""
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        path = os.path.join(os.fsencode(root), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:  # noqa: PTH123 - a Path holds no bytes
            file.write(data)
    return root


def pack(source: str | os.PathLike[str], format: str = "lmdb", **options: Any) -> Summary:
    """Pack a folder into a format; the options are those of ``PackOptions``."""
    return pack_folder(source, PackOptions(format=format, **options))


def _encoded(picture: Image.Image, kind: str, options: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def in_six_threads(work: Callable[[int], object]) -> None:
    """Run something in six threads at once, which take turns as often as Python lets them; each is given its number."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    try:
        for thread in threads:
            thread.start()
    finally:
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)
