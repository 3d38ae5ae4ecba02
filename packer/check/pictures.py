"""Check pictures with Pillow: ``load()`` of every frame within a budget. (Its ``verify()`` looks at nothing but PNG chunks.)

Pillow is given only the one format that the content was sniffed as: its other plug-ins are not meant for strangers' files.
"""

from __future__ import annotations

import io
import re

from PIL import Image, ImageFile, UnidentifiedImageError

from packer.check.verdict import Finding, require_pixels
from packer.exif import orientation_or_note
from packer.model import Note, Unfit
from packer.pngchunks import without_metadata

__all__ = ["check", "count_frames", "mode_of_png", "open_picture"]

_PILLOW_FORMATS = {
    "jpeg": ("JPEG", "MPO"),
    "png": ("PNG",),
    "webp": ("WEBP",),
    "gif": ("GIF",),
    "bmp": ("BMP",),
    "tiff": ("TIFF",),
    "avif": ("AVIF",),
}

# What Pillow's decoders say of files that end too early; anything else is called corrupt.
_ENDS_EARLY = re.compile(r"truncated|unexpected end|not enough|buffer overrun|broken data stream|end of (file|data)", re.I)
# Decoders in C say so in words: Pillow of its own (-9) and libjpeg of "Insufficient memory (case 4)".
_NO_MEMORY = re.compile(r"out of memory|insufficient memory|memory error", re.I)
_TOO_MUCH_TEXT = re.compile(r"(text|iCCP|zTXt|iTXt|Decompressed).*(large|limit|MAX_TEXT)", re.I)


def check(data: bytes, kind: str, max_pixels: int, *, frames: int | None = None, notes: list[Note] | None = None) -> Finding:
    """Check a whole file.

    Args:
        data: the file.
        kind: what it was sniffed as.
        max_pixels: the limit for a picture, and for all of them together.
        frames: number of pictures where the caller has looked at all of them; then only the first is decoded.
        notes: what the caller has noted already.

    Raises:
        Unfit: ``truncated``, ``corrupt``, ``too_large``, ``unsupported_format``.
    """
    notes = [] if notes is None else notes
    try:
        with open_picture(data, kind) as picture:
            require_pixels(picture.width, picture.height, max_pixels)
            mode, width, height = picture.mode, picture.width, picture.height
            picture.load()
            frames = _visit_frames(picture, max_pixels) if frames is None else frames
            turned = _orientation(picture, notes)
    except (Unfit, MemoryError):  # lack of memory is no fault of the file
        raise
    # Pillow raises OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error and others on damaged files.
    except Exception as error:
        raise _unfit(error, kind) from error
    if frames > 1:
        notes.append(Note("multi_frame", f"{frames} pictures, the first is read"))
    return Finding(kind, mode, width, height, frames, turned, warnings=tuple(notes))


def mode_of_png(data: bytes, notes: list[Note]) -> str:
    """Pillow's mode of a PNG file whose pixels are known to be whole, and that the reader can open it.

    Raises:
        Unfit: it cannot.
    """
    try:
        with open_picture(data, "png") as picture:
            return picture.mode
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - SyntaxError, ValueError, OSError and others for blocks beside the pixels
        notes.append(Note("bad_metadata", f"Pillow cannot open it with its metadata: {error}"))
    try:
        with open_picture(without_metadata(data), "png") as picture:
            return picture.mode
    except MemoryError:
        raise
    except Exception as error:  # the same classes again
        raise _unfit(error, "png") from error


def count_frames(data: bytes, kind: str) -> int:
    """Number of pictures in a file; 1 where its index of pictures is broken."""
    try:
        with open_picture(data, kind) as picture:
            return int(getattr(picture, "n_frames", 1))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - the index is no part of the first picture, which was decoded
        return 1


def open_picture(data: bytes, kind: str) -> ImageFile.ImageFile:
    """Open a file as the one type that it was sniffed as; nothing is decoded yet.

    Raises:
        Exception: nearly any, as Pillow does on damaged files.
    """
    # The limit is ours (`require_pixels`), and is looked at before anything is decoded.
    Image.MAX_IMAGE_PIXELS = None
    return Image.open(io.BytesIO(data), formats=_PILLOW_FORMATS[kind])


def _visit_frames(picture: ImageFile.ImageFile, max_pixels: int) -> int:
    """Decode the frames after the first, to at most ``max_pixels`` in all; damage there shows nowhere else."""
    frames = int(getattr(picture, "n_frames", 1))
    spent = picture.width * picture.height
    for frame in range(1, frames):
        picture.seek(frame)
        spent += picture.width * picture.height
        if spent > max_pixels:
            break
        picture.load()
    picture.seek(0)
    return frames


def _orientation(picture: ImageFile.ImageFile, notes: list[Note]) -> int:
    block = picture.info.get("exif")
    if isinstance(block, bytes) and block:
        return orientation_or_note(block.removeprefix(b"Exif\0\0"), notes)
    return 1


def _unfit(error: Exception, kind: str) -> Unfit:
    if isinstance(error, UnidentifiedImageError):
        return Unfit("corrupt", f"its first bytes are those of {kind}, but the decoder cannot read the headers behind them")
    message = f"{type(error).__name__}: {error}"
    if _NO_MEMORY.search(message):
        raise MemoryError(message) from error
    if _TOO_MUCH_TEXT.search(message):
        return Unfit("too_large", f"the decoder says: {message}")
    if _ENDS_EARLY.search(message):
        return Unfit("truncated", f"the decoder says: {message}")
    return Unfit("corrupt", f"the decoder says: {message}")
