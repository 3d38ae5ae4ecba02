"""Loose files, read by the fastest plain way; pictures as an ImageFolder reads them with Pillow."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from child import Peer, Sample, serve


class LooseFiles(Peer):
    """The files as they lie, their paths known."""

    distributions = ("pillow",)

    def pack(self, files: Sequence[tuple[str, int]], output: Path) -> None:
        """Only the list of files: they lie there already."""
        (output / "files.json").write_text(json.dumps(files), encoding="utf-8")

    def open(self, output: Path) -> None:
        """Load the list of files."""
        self.files = json.loads((output / "files.json").read_text(encoding="utf-8"))

    def sample(self, index: int) -> Sample:
        """Read one file."""
        path, label = self.files[index]
        descriptor = os.open(path, os.O_RDONLY)
        data = os.read(descriptor, os.fstat(descriptor).st_size)
        os.close(descriptor)
        return data, label

    def shuffled(self, turn: int) -> Iterator[Sample]:
        """In a random order."""
        yield from map(self.sample, Random(turn).sample(range(self.count()), self.count()))

    def count(self) -> int:
        """The number of files."""
        return len(self.files)


if __name__ == "__main__":
    serve(LooseFiles())
