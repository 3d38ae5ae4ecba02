"""Inputs made in memory, and the shortest way from them to a packed dataset."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike
from PIL import Image

import packer.checkers
from packer import PackOptions, pack_folder
from packer.check import CheckSettings, check_source, load_decoders
from packer.check.worker import decode_verdict, encode_verdict
from packer.model import Verdict
from packer.options import Summary

__all__ = ["in_six_threads", "jpeg", "judging_here", "npy", "pack", "pack_here", "photo", "png", "write_tree"]


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


def pack_here(source: str | os.PathLike[str], format: str = "lmdb", **options: Any) -> Summary:
    """As ``pack``, and no worker processes: for tests of what becomes of a dataset, and not of how it is made."""
    with judging_here():
        return pack(source, format, **options)


@contextlib.contextmanager
def judging_here() -> Iterator[None]:
    """Files are judged in this process meanwhile: with the same verdicts, and without the start of an interpreter.

    That takes a third of a second a job, which is more than all else in most tests.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packer.checkers, "Worker", _WorkerHere)
        yield


class _WorkerHere:
    """What a ``CheckPool`` asks of a ``Worker``, done by the thread that asks."""

    _turn = threading.Lock()  # what decoders print is looked for in one descriptor

    def __init__(self, greeting: bytes, timeout_s: float, nursery: object = None) -> None:
        self._root = json.loads(greeting)["root"]
        self._settings = CheckSettings(**json.loads(greeting)["settings"])

    def start(self) -> None:
        load_decoders()

    def ask(self, files: list[tuple[str, str]]) -> list[Verdict]:
        with self._turn:
            paths = [os.path.join(self._root, name).encode("latin-1") for name, _ in files]
            verdicts = [check_source(path, self._settings, checksum) for path, (_, checksum) in zip(paths, files, strict=True)]
        # By the way that an answer takes from a worker.
        return [decode_verdict(encode_verdict(verdict)) for verdict in verdicts]

    def tick(self, seconds: float) -> None:
        """Nothing is ended."""

    def stop(self) -> None:
        """Nothing was started."""


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
