"""What decoders make of a damaged file: the reader of packed datasets, Pillow, and others that know nothing of either.

``examine`` runs in the processes of ``packer.checkers.CheckPool``, so that a decoder that crashes or hangs costs one file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import logging
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import simplejpeg
import xxhash
from decoders import load_npy, opinions
from numpy.typing import NDArray
from PIL import Image

from packer.check import CheckSettings
from packer.check.sniff import sniff
from packer.decode import ReadOptions, decode_array, decode_picture
from packer.index import Record
from packer.model import TYPES_BY_NAME, Skipped

EXAMINE = "opinions:examine"
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}|\[[^\]]*\d+:\d+@[\d.]+\]|@[\d.]+")

Frames = tuple[tuple[object, ...], ...]


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen in one mutant; the words are ``refused``, ``equal`` and ``other`` (than the original's pixels).

    Attributes:
        pillow: of the first picture by ``Image.open(...).load()``, as scripts do it.
        reader: of all pictures by the reader of packed datasets, empty where the check had skipped the file.
        noticed: what decoders complained of, by their names, where the reader saw other pixels or none.
        later: what is wrong with the later pictures of a JPEG file, which the reader never gives; empty where nothing is.
    """

    pillow: str
    reader: str = ""
    noticed: dict[str, str] = field(default_factory=dict)
    later: str = ""


def examine(path: bytes, settings: CheckSettings, checksum: str = "") -> Skipped:
    """Look at one mutant, ``.../kept|skipped/NUMBER@ORIGINAL``, whose original is ``.../originals/ORIGINAL``."""
    mutant = Path(os.fsdecode(path))
    original = mutant.parents[1] / "originals" / mutant.name.partition("@")[2]
    data = mutant.read_bytes()
    look = Look(_compare(_pillow_first, data, original))
    if mutant.parent.name == "kept":
        reader = _compare(_reader_frames, data, original)
        noticed = {}
        if reader != "equal":
            noticed = {name: said for name in opinions() if (said := _complaint(name, data, original))}
        if reader == "refused":
            noticed["the reader"] = _error_of(_reader_frames, data)
        look = Look(look.pillow, reader, noticed, _later_pictures(data, original))
    return Skipped("look", json.dumps(dataclasses.asdict(look)))


def parse_look(text: str) -> Look:
    """The look in the detail of what ``examine`` returned."""
    return Look(**json.loads(text))


def _compare(decode: Callable[[bytes], Frames], data: bytes, original: Path) -> str:
    try:
        with _quiet():
            frames = decode(data)
    # Whatever comes out of a decoder of damaged bytes, it is a refusal.
    except Exception:  # noqa: BLE001
        return "refused"
    return "equal" if frames == _original_frames(decode, original) else "other"


@lru_cache(maxsize=512)
def _original_frames(decode: Callable[[bytes], Frames], original: Path) -> Frames:
    return decode(original.read_bytes())


def _error_of(decode: Callable[[bytes], Frames], data: bytes) -> str:
    try:
        decode(data)
    except Exception as error:  # noqa: BLE001 - the same again, to tell of it
        return f"{type(error).__name__}: {error}"
    return "refused once and not again"


def _summary(pixels: NDArray[Any], *more: object) -> tuple[object, ...]:
    return (pixels.shape, pixels.dtype.str, xxhash.xxh3_128_hexdigest(np.ascontiguousarray(pixels).data), *more)


def _pillow_first(data: bytes) -> Frames:
    if sniff(data) == "npy":
        return (_summary(load_npy(data)),)
    with Image.open(io.BytesIO(data)) as picture:
        picture.load()
        return (_picture_summary(picture),)


def _picture_summary(picture: Image.Image) -> tuple[object, ...]:
    if picture.mode in ("P", "PA"):
        return _summary(np.asarray(picture.convert("RGBA")), picture.mode)
    return _summary(np.asarray(picture), picture.mode)


def _reader_frames(data: bytes) -> Frames:
    """The first picture as packed datasets give it in its own mode, and those of an animation by Pillow."""
    kind = sniff(data)
    if kind == "npy":
        return (_summary(decode_array(data)),)
    record = Record(*[0] * len(Record._fields))._replace(type=TYPES_BY_NAME[kind].code)
    first = decode_picture(data, record, ReadOptions("numpy", mode=None))
    frames = [_summary(np.asarray(first))]
    if kind == "jpeg":
        return tuple(frames)
    with Image.open(io.BytesIO(data)) as picture:
        for number in range(1, int(getattr(picture, "n_frames", 1))):
            picture.seek(number)
            frames.append(_picture_summary(picture))
    return tuple(frames)


def _later_pictures(data: bytes, original: Path) -> str:
    """What is wrong with the pictures of a JPEG file (MPO) after the first, as far as Pillow and simplejpeg tell."""
    if sniff(data) != "jpeg" or not (wanted := _count_pictures(original)) > 1:
        return ""
    try:
        with _quiet(), Image.open(io.BytesIO(data)) as picture:
            found = int(getattr(picture, "n_frames", 1))
            if found < wanted:
                return f"{found} of {wanted} pictures are found"
            starts = []
            for number in range(1, found):
                picture.seek(number)
                picture.load()
                starts.append(int(getattr(picture, "offset", 0)))
        for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
            simplejpeg.decode_jpeg(data[start:end], strict=True)
    except Exception as error:  # noqa: BLE001 - of any class
        return f"{type(error).__name__}: {error}"
    return ""


@cache
def _count_pictures(original: Path) -> int:
    with Image.open(original) as picture:
        return int(getattr(picture, "n_frames", 1))


def _complaint(name: str, data: bytes, original: Path) -> str:
    """What a decoder raised or printed; empty where it said nothing, or says something of the original as well."""
    if _words_about_original(name, original):
        return ""
    return _words(name, data)


@lru_cache(maxsize=2048)
def _words_about_original(name: str, original: Path) -> str:
    return _words(name, original.read_bytes())


def _words(name: str, data: bytes) -> str:
    with _heard() as heard:
        try:
            opinions()[name](data, sniff(data))
        except Exception as error:  # noqa: BLE001 - of any class
            heard.append(f"{type(error).__name__}: {error}")
    return _ADDRESS.sub("", " ".join(heard).strip())[:300]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _heard() -> Iterator[list[str]]:
    """What is printed to standard error (C libraries do), warned of or logged meanwhile."""
    said: list[str] = []
    file = _ear()
    file.seek(0)
    file.truncate()
    kept = os.dup(2)
    os.dup2(file.fileno(), 2)
    handler = logging.StreamHandler(_Lines(said))
    handler.setLevel(logging.WARNING)
    logging.getLogger().addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield said
        said += [str(warning.message) for warning in caught]
    finally:
        logging.getLogger().removeHandler(handler)
        os.dup2(kept, 2)
        os.close(kept)
    file.seek(0)
    said += file.read().decode("utf-8", "replace").splitlines()


@cache
def _ear() -> IO[bytes]:
    return tempfile.TemporaryFile(buffering=0)


class _Lines(io.TextIOBase):
    """A stream that appends to a list."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def write(self, text: str) -> int:
        self._lines.append(text)
        return len(text)
