"""The folder ``images/`` that the README's commands are run on."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image


def make_images(folder: Path) -> None:
    """Three classes of twenty 96 × 72 photographs, two of them damaged, and a file that is no candidate."""
    y, x = np.mgrid[0:72, 0:96]
    for label, name in enumerate(("cat", "dog", "owl")):
        (folder / name).mkdir(parents=True)
        for i in range(20):
            pixels = np.stack([x * (label + 1) + 3 * i, y * 2 + 5 * i, (x + y) * (i % 3)], -1) % 256
            buffer = io.BytesIO()
            Image.fromarray(pixels.astype(np.uint8)).save(buffer, "JPEG", quality=92)
            (folder / name / f"IMG_{i:04d}.JPG").write_bytes(buffer.getvalue())
    cut = folder / "dog" / "IMG_0007.JPG"
    cut.write_bytes(cut.read_bytes()[:700])
    (folder / "owl" / "IMG_0012.JPG").write_bytes(b"<html><title>429 Too Many Requests</title></html>")
    (folder / "owl" / "notes.txt").write_text("not a picture\n")
