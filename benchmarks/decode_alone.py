"""The baseline of packing with all checks: read and strictly decode every JPEG file of a folder, nothing else.

    python benchmarks/decode_alone.py DIR --workers 2

A command of its own, because ``pack`` is one: both pay for the start of an interpreter and of the worker processes.
It prints the number of files and the number of decoded pixels, so that a run which decoded less is noticed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Sequence
from pathlib import Path

import simplejpeg

# Enough to make passing tasks cheap, few enough that all processes end together.
FILES_PER_TASK = 16


def decode(path: str) -> int:
    """Read and decode one file in grey at 1/8 of its size; returns the number of decoded pixels.

    Raises:
        ValueError: libjpeg found anything wrong.
    """
    # The smallest of libjpeg's scales (8/8 to 1/8) whose sides reach the minimum is taken: with 1, always 1/8.
    # With 0, simplejpeg's default, the picture is not scaled.
    image = simplejpeg.decode_jpeg(Path(path).read_bytes(), colorspace="GRAY", min_height=1, min_width=1, strict=True)
    return int(image.size)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description="Strictly decode every .jpg file of a folder.")
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--workers", type=int, required=True, help="number of processes")
    options = parser.parse_args(arguments)
    paths = [str(path) for path in options.folder.rglob("*.jpg")]
    # fork: the cheapest start, so the strongest baseline.
    with multiprocessing.get_context("fork").Pool(options.workers) as pool:
        pixels = sum(pool.imap_unordered(decode, paths, chunksize=FILES_PER_TASK))
    print(len(paths), pixels)
    return 0


if __name__ == "__main__":
    sys.exit(main())
