"""Plain scripts with h5py: ``with_h5py.py variable`` (a row of variable length a file), ``chunked`` or ``contiguous``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
from child import Peer, Sample, read_files, serve


class PlainHDF5(Peer):
    """One file with ``data``, ``offset`` and ``label``; numbers are kept in memory, payloads are sliced."""

    distributions = ("h5py", "numpy")
    kept = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def pack(self, files: Sequence[tuple[str, int]], output: Path) -> None:
        """Sizes first, then every file into its place."""
        offsets = np.cumsum([0, *(os.stat(path).st_size for path, _ in files)])
        with h5py.File(output / "data.h5", "w") as file:
            file["label"], file["offset"] = [label for _, label in files], offsets
            if self.kind == "variable":
                data = file.create_dataset("data", (len(files),), h5py.vlen_dtype(np.uint8))
            else:
                data = file.create_dataset("data", (offsets[-1],), np.uint8, chunks=True if self.kind == "chunked" else None)
            for index, payload, _ in read_files(files):
                place = index if self.kind == "variable" else slice(offsets[index], offsets[index + 1])
                data[place] = np.frombuffer(payload, np.uint8)

    def open(self, output: Path) -> None:
        """Load the numbers."""
        self.file = h5py.File(output / "data.h5", "r")
        self.data = self.file["data"]
        self.offsets, self.labels = self.file["offset"][:].tolist(), self.file["label"][:].tolist()

    def close(self) -> None:
        """Close the file."""
        if hasattr(self, "file"):
            self.file.close()
        super().close()

    def sample(self, index: int) -> Sample:
        """Slice one file."""
        place = index if self.kind == "variable" else slice(self.offsets[index], self.offsets[index + 1])
        return self.data[place], self.labels[index]

    def count(self) -> int:
        """The number of samples."""
        return len(self.labels)


if __name__ == "__main__":
    serve(PlainHDF5(sys.argv[1]))
