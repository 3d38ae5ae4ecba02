"""Make the golden datasets: ``python -m tests.golden.make [NAME ...]``.

They were packed once, when the layout became version 1, and every later version reads them: one that is there is never made
again. A new container format, or a new layout version, gets one more.
"""

from __future__ import annotations

import struct
import sys
import tempfile
from base64 import b64decode
from pathlib import Path

from packer import PackOptions, pack_folder
from tests.inputs import write_tree

__all__ = ["FOLDER", "GOLDEN", "INPUTS", "make", "pack_again"]

FOLDER = Path(__file__).parent


def _npy(descr: str, shape: tuple[int, ...], body: bytes) -> bytes:
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00v\x00" + header.ljust(117) + b"\n" + body


# Literals, since encoders change: 16 × 12 in colour, 20 × 8 in grey with Exif orientation 6, 7 × 5 in grey.
_PHOTO = b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDACAWGBwYFCAcGhwkIiAmMFA0MCwsMGJGSjpQdGZ6eHJmcG6AkLicgIiuim5woNqirr7EztDOfJri8uDI8LjK"
    "zsb/2wBDASIkJDAqMF40NF7GhHCExsbGxsbGxsbGxsbGxsbGxsbGxsbGxsbGxsbGxsbGxsbGxsbGxsbGxsbGxsbGxsbGxsb/wAARCAAMABADAREAAhEB"
    "AxEB/8QAFAABAAAAAAAAAAAAAAAAAAAABP/EABsQAAICAwEAAAAAAAAAAAAAAAADAgQBIVFh/8QAFwEAAwEAAAAAAAAAAAAAAAAAAgMEBf/EABcRAAMB"
    "AAAAAAAAAAAAAAAAAAABAwL/2gAMAwEAAhEDEQA/AArq7xoB0BnUUup4LdC+dRilx4T60zBnpi1LjwW2zQnpn//Z"
)
_TURNED = b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/4QAiRXhpZgAATU0AKgAAAAgAAQESAAMAAAABAAYAAAAAAAD/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBC"
    "YFVlZF9VXVtqeJmBanGQc1tdhbWGkJ6jq62rZ4C8ybqmx5moq6T/wAALCAAIABQBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAABP/EAB0QAAECBwAAAAAA"
    "AAAAAAAAAAADBQECESExMmH/2gAIAQEAAD8AMk2cFJtmLCJWusNT/9k="
)
_DRAWING = b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAcAAAAFCAAAAACs8akEAAAAHElEQVR42mNgCF31nyF0FZT6zwClGCBUKANUAgBW3xDwAbqhdgAAAABJRU5ErkJggg=="
)

_MIXED = {
    "cat/2.png": _DRAWING,
    "cat/Kätzchen.jpg": _PHOTO,
    "dog/1.jpg": _TURNED,
    "dog/3.npy": _npy("<f4", (25, 30), struct.pack("<750f", *range(750))),  # in an overflow page of LMDB
    "dog/cut.jpg": _PHOTO[:200],
    "fox/": b"",
}
_ARRAYS = {f"{i}.npy": _npy("<i2", (2, 3), struct.pack("<6h", *range(i, i + 6))) for i in range(3)}

INPUTS = {"mixed": _MIXED, "arrays": _ARRAYS}
"""Files by path; a path that ends with ``/`` is an empty folder."""

GOLDEN = {
    "lmdb": ("lmdb", "mixed"),
    "hdf5": ("hdf5", "mixed"),
    "webdataset": ("webdataset", "mixed"),
    "hdf5-arrays": ("hdf5", "arrays"),
}
"""Format and input of each golden dataset by the name of its folder."""


def pack_again(name: str, source: Path, output: Path) -> Path:
    """Pack the input of a golden dataset, which is written to ``source``, to ``output``; returns ``output``."""
    container, files = GOLDEN[name][0], INPUTS[GOLDEN[name][1]]
    write_tree(source, {path: data for path, data in files.items() if not path.endswith("/")})
    for path in files:
        if path.endswith("/"):
            Path(source, path).mkdir(exist_ok=True)
    return pack_folder(source, PackOptions(format=container, output=output, workers=1)).output


def make(name: str, scratch: Path) -> None:
    """Make a golden dataset.

    Args:
        name: a key of ``GOLDEN``.
        scratch: an empty folder for its input.

    Raises:
        FileExistsError: it is there.
    """
    target = FOLDER / name
    if target.exists():
        raise FileExistsError(f"{target} is there. Golden datasets are never made again: what reads them must be put right.")
    pack_again(name, scratch / name, target)


def main() -> None:
    """Make those that are named, or all."""
    with tempfile.TemporaryDirectory() as scratch:
        for name in sys.argv[1:] or GOLDEN:
            make(name, Path(scratch))


if __name__ == "__main__":
    main()
