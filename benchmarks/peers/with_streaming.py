"""mosaicml-streaming: MDS shards of 64 MB, read by its StreamingDataset."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from child import BATCH, Epoch, Peer, Sample, decode, read_files, serve

# Its ready-made vision datasets alone need torchvision, whose wheels go with a torch of several GB.
sys.modules["streaming.vision"] = ModuleType("streaming.vision")
streaming: Any = import_module("streaming")
COLUMNS = {"image": "bytes", "label": "int", "index": "int"}


class Pictures(streaming.StreamingDataset):  # type: ignore[misc] # of an environment that the type checker does not see
    """Decoded samples."""

    def __getitem__(self, index: Any) -> tuple[Any, int, int]:
        item = super().__getitem__(index)
        return decode(item["image"]), item["label"], item["index"]


class Shards(Peer):
    """One folder of shards."""

    distributions = ("mosaicml-streaming", "torch")

    def pack(self, files: Sequence[tuple[str, int]], output: Path) -> None:
        """Without compression, as it is by default."""
        with streaming.MDSWriter(out=str(output / "shards"), columns=COLUMNS, size_limit=64 << 20) as writer:
            for index, data, label in read_files(files):
                writer.write({"image": data, "label": label, "index": index})

    def open(self, output: Path) -> None:
        """Open it in the order of the files."""
        self.folder = str(output / "shards")
        self.data = streaming.StreamingDataset(local=self.folder, shuffle=False, batch_size=BATCH)

    def sample(self, index: int) -> Sample:
        """Read one file."""
        item = self.data[index]
        return item["image"], item["label"]

    def shuffled(self, turn: int) -> Iterator[Sample]:
        """Its own shuffle."""
        data = streaming.StreamingDataset(local=self.folder, shuffle=True, shuffle_seed=turn, batch_size=BATCH)
        for item in data:
            yield item["image"], item["label"]

    def count(self) -> int:
        """The number of samples."""
        return len(self.data)

    def pictures(self, output: Path, workers: int) -> Epoch:
        """Its own dataset and shuffle in torch's loader."""
        from torch.utils.data import DataLoader

        dataset = Pictures(local=str(output / "shards"), shuffle=True, batch_size=BATCH)
        loader: DataLoader[Any] = DataLoader(dataset, batch_size=BATCH, num_workers=workers, persistent_workers=workers > 0)
        return lambda _order: iter(loader)


if __name__ == "__main__":
    serve(Shards())
