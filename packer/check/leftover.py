"""Find pictures whose decoder does not need the end of their own data, which is what damage before it leaves.

WebP and AVIF code a picture without gaps, so that every sequence of bytes is a picture. But a decoder that damaged bytes led
astray mostly arrives with data left over, as one of JPEG does ("extraneous bytes"). Of these it says nothing; it says
where data end too early. So it is asked again with the last bytes cut off: of a whole picture it needs them.

A run of one byte at the end may be padding, and is no fault where what is before it is needed. But a file whose end was lost
and filled up looks the same: its decoder makes pixels of the filling, as much as it needs, and has the rest of it left.

An arithmetic decoder makes zeros of what is missing, and if these happen to be an end, it has no need to complain; and the last
bytes of a small picture may be about what is beyond its edges. So it must be content with every one of several cuts, and the
same pixels must come out when the bytes are changed: nothing depends on them.
"""

from __future__ import annotations

from collections.abc import Callable

import xxhash

from packer.check.pictures import open_picture

__all__ = ["count_unneeded", "digest_of_pixels", "flipped"]

_CUTS = (16, 20, 24, 28, 32)
"""Bytes. Encoders end with up to three that say nothing, and decoders read some bits beyond the end before they complain."""

_LEAST = 64
"""Bytes that must stay, or nothing is said: a flat picture has only a few."""

_FILLING = 64  # bytes in a run that may be more than padding

_HEAD = 48  # bytes in which a header may be
_MASKS = (0xFF, 0x55)


def count_unneeded(coded: bytes, kind: str, frame: int, file_with: Callable[[bytes], bytes]) -> int:
    """How many bytes at the end of a picture's data its decoder does not need; 0 where it needs them, or nothing is told.

    Args:
        coded: the data as they are in the file.
        kind: of the file, as it was sniffed.
        frame: number of the picture, from 0.
        file_with: makes the file with other data, which are as long or shorter.
    """
    run = len(coded) - len(coded.rstrip(coded[-1:]))
    padding = run if run > 1 else 0
    if _is_unneeded(coded, padding, kind, frame, file_with):
        return padding + _CUTS[0]
    if run < _FILLING or digest_of_pixels(file_with(coded[: _CUTS[0] - run]), kind, frame) is not None:
        return 0
    return _CUTS[0] if _is_unneeded(coded, 0, kind, frame, file_with) else 0


def _is_unneeded(coded: bytes, padding: int, kind: str, frame: int, file_with: Callable[[bytes], bytes]) -> bool:
    """Nothing depends on what is cut off before, and with, so many bytes at the end."""
    if len(coded) - padding - max(_CUTS) < _LEAST:
        return False
    for cut in _CUTS:
        if digest_of_pixels(file_with(coded[: -padding - cut]), kind, frame) is None:
            return False
    pixels = digest_of_pixels(file_with(coded), kind, frame)
    unneeded = padding + _CUTS[0]
    for mask in _MASKS:
        changed = coded[:-unneeded] + flipped(coded[-unneeded:], mask)
        if digest_of_pixels(file_with(changed), kind, frame) != pixels:
            return False
    # And they do depend on what comes first: what is changed here is what the decoder looks at.
    begun = coded[:_HEAD] + flipped(coded[_HEAD:-unneeded]) + coded[-unneeded:]
    return digest_of_pixels(file_with(begun), kind, frame) != pixels


def flipped(data: bytes, mask: int = _MASKS[0]) -> bytes:
    """The bytes with some of their bits turned over."""
    return bytes(byte ^ mask for byte in data)


def digest_of_pixels(data: bytes, kind: str, frame: int = 0) -> str | None:
    """A digest of one picture of a file, ``None`` where Pillow does not decode it."""
    try:
        with open_picture(data, kind) as picture:
            picture.seek(frame)
            return xxhash.xxh3_128_hexdigest(picture.tobytes())
    except Exception:  # noqa: BLE001 - whether there is one, of any class, is all that is asked
        return None
