"""blobpack: stored zip files, read at known offsets."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from child import Peer, Sample, load_labels, read_files, save_labels, serve

blobpack: Any = import_module("blobpack")


class Blobs(Peer):
    """One key a file; labels beside it."""

    distributions = ("blobpack",)

    def pack(self, files: Sequence[tuple[str, int]], output: Path) -> None:
        """One blob a file."""
        with blobpack.PackWriter(output / "packs") as writer:
            for index, data, _ in read_files(files):
                writer.add(f"{index:08d}", data)
        save_labels(files, output)

    def open(self, output: Path) -> None:
        """Open the packs."""
        self.data = blobpack.PackSet(output / "packs")
        self.labels = load_labels(output)

    def close(self) -> None:
        """Close the packs."""
        if hasattr(self, "data"):
            self.data.close()
        super().close()

    def sample(self, index: int) -> Sample:
        """Read one file."""
        return self.data.read(f"{index:08d}"), self.labels[index]

    def count(self) -> int:
        """The number of samples."""
        return len(self.labels)


if __name__ == "__main__":
    serve(Blobs())
