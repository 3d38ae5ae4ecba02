"""HuggingFace datasets: Arrow files with a binary column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from child import Peer, Sample, read_files, serve

datasets: Any = import_module("datasets")


def rows(files: Sequence[tuple[str, int]]) -> Iterator[dict[str, Any]]:
    """A row a file."""
    for _, data, label in read_files(files):
        yield {"image": data, "label": label}


class Arrow(Peer):
    """What ``Dataset.from_generator`` writes, mapped."""

    distributions = ("datasets", "pyarrow")

    def pack(self, files: Sequence[tuple[str, int]], output: Path) -> None:
        """Write the Arrow files into the output as a cache."""
        features = datasets.Features({"image": datasets.Value("binary"), "label": datasets.Value("int64")})
        # A tuple in a tuple: a list would be taken for shards.
        datasets.Dataset.from_generator(
            rows, features=features, cache_dir=str(output), gen_kwargs={"files": tuple(map(tuple, files))}
        )

    def open(self, output: Path) -> None:
        """Map the Arrow files."""
        parts = [datasets.Dataset.from_file(str(path)) for path in sorted(output.rglob("*.arrow"))]
        self.data = datasets.concatenate_datasets(parts)

    def sample(self, index: int) -> Sample:
        """Read one row."""
        row = self.data[index]
        return row["image"], row["label"]

    def read(self, indices: Sequence[int]) -> Iterable[Sample]:
        """Read a batch of rows."""
        found = self.data[list(indices)]
        return zip(found["image"], found["label"], strict=True)

    def count(self) -> int:
        """The number of samples."""
        return len(self.data)


if __name__ == "__main__":
    serve(Arrow())
