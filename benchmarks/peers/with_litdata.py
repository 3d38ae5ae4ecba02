"""litdata: chunks of 64 MB, read by its StreamingDataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from child import BATCH, Epoch, Peer, Sample, decode, serve

litdata: Any = import_module("litdata")


def to_item(file: tuple[int, str, int]) -> dict[str, Any]:
    """What is kept of a file."""
    index, path, label = file
    return {"image": Path(path).read_bytes(), "label": label, "index": index}


class Pictures(litdata.StreamingDataset):  # type: ignore[misc] # of an environment that the type checker does not see
    """Decoded samples."""

    def __getitem__(self, index: Any) -> tuple[Any, int, int]:
        item = super().__getitem__(index)
        return decode(item["image"]), item["label"], item["index"]


class Chunks(Peer):
    """One folder of chunks."""

    distributions = ("litdata", "torch")

    def pack(self, files: Sequence[tuple[str, int]], output: Path) -> None:
        """In one worker process, so that the order stays."""
        inputs = [(index, path, label) for index, (path, label) in enumerate(files)]
        litdata.optimize(to_item, inputs, str(output / "chunks"), chunk_bytes="64MB", num_workers=1, verbose=False)

    def open(self, output: Path) -> None:
        """Open it in the order of the files."""
        self.folder = str(output / "chunks")
        self.data = litdata.StreamingDataset(self.folder)

    def sample(self, index: int) -> Sample:
        """Read one file."""
        item = self.data[index]
        return item["image"], item["label"]

    def shuffled(self, turn: int) -> Iterator[Sample]:
        """Its own shuffle."""
        for item in litdata.StreamingDataset(self.folder, shuffle=True, seed=turn):
            yield item["image"], item["label"]

    def count(self) -> int:
        """The number of samples."""
        return len(self.data)

    def pictures(self, output: Path, workers: int) -> Epoch:
        """Its own loader and shuffle."""
        dataset = Pictures(str(output / "chunks"), shuffle=True)
        loader = litdata.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers, persistent_workers=workers > 0)
        return lambda _order: iter(loader)


if __name__ == "__main__":
    serve(Chunks())
