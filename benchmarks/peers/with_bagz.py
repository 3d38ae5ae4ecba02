"""bagz: one file of records."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from child import Peer, Sample, load_labels, read_files, save_labels, serve

bagz: Any = import_module("bagz")


class Bag(Peer):
    """Not compressed, read one by one, which was faster than its threads; labels beside it."""

    distributions = ("bagz",)

    def pack(self, files: Sequence[tuple[str, int]], output: Path) -> None:
        """One record a file."""
        with bagz.Writer(str(output / "data.bag")) as writer:
            for _, data, _ in read_files(files):
                writer.write(data)
        save_labels(files, output)

    def open(self, output: Path) -> None:
        """Open the file."""
        self.data = bagz.Reader(str(output / "data.bag"))
        self.labels = load_labels(output)

    def sample(self, index: int) -> Sample:
        """Read one file."""
        return self.data[index], self.labels[index]

    def count(self) -> int:
        """The number of samples."""
        return len(self.labels)


if __name__ == "__main__":
    serve(Bag())
