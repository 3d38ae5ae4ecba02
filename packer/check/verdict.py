"""What the checker of one format returns."""

from __future__ import annotations

from typing import NamedTuple

from packer.model import Note, Unfit

__all__ = ["Finding", "require_pixels"]


class Finding(NamedTuple):
    """What a sound file holds; the fields are those of ``packer.model.Kept``."""

    type: str
    mode: str = ""
    width: int = 0
    height: int = 0
    frames: int = 0
    orientation: int = 0
    header: bytes = b""
    warnings: tuple[Note, ...] = ()


def require_pixels(width: int, height: int, max_pixels: int) -> None:
    """Refuse a picture by its header, before anything of its size is allocated.

    Raises:
        Unfit: no pixels at all (``corrupt``), or more than ``max_pixels`` (``too_large``).
    """
    if width <= 0 or height <= 0:
        raise Unfit("corrupt", f"the header says {width} × {height} pixels")
    if width * height > max_pixels:
        raise Unfit("too_large", f"{width} × {height} = {width * height:,} pixels, the limit is {max_pixels:,}")
