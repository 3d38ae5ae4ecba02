"""webdataset: tar files that are read from the start to the end, with its own shuffle within a buffer of 1,000 samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import webdataset
from child import BATCH, Epoch, Peer, Read, Sample, decode, read_files, serve, shard_bytes

BUFFER = 1000


class Tars(Peer):
    """At least eight shards, of up to 64 MB, so that each worker process has some."""

    distributions = ("webdataset",)

    def pack(self, files: Sequence[tuple[str, int]], output: Path) -> None:
        """One member for the bytes, one for the label."""
        with webdataset.ShardWriter(str(output / "%06d.tar"), maxsize=shard_bytes(files), verbose=0) as writer:
            for index, data, label in read_files(files):
                writer.write({"__key__": f"{index:08d}", "jpg": data, "cls": label})

    def open(self, output: Path) -> None:
        """Only the list of shards."""
        self.shards = [str(path) for path in sorted(output.glob("*.tar"))]

    def sequential(self, read: Read) -> Iterator[Sample]:
        """In the order of the tars."""
        for sample in webdataset.WebDataset(self.shards, shardshuffle=False):
            yield sample["jpg"], int(sample["cls"])

    def shuffled(self, turn: int) -> Iterator[Sample]:
        """Shards shuffled, and samples within the buffer."""
        dataset = webdataset.WebDataset(self.shards, shardshuffle=len(self.shards), seed=turn).shuffle(BUFFER)
        for sample in dataset:
            yield sample["jpg"], int(sample["cls"])

    def pictures(self, output: Path, workers: int) -> Epoch:
        """Its own loader: every worker has its shards, and puts batches together."""
        self.open(output)
        dataset = webdataset.WebDataset(self.shards, shardshuffle=len(self.shards))
        batches = dataset.shuffle(BUFFER).map(to_picture).batched(BATCH)
        loader = webdataset.WebLoader(batches, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
        return lambda _order: iter(loader)


def to_picture(sample: dict[str, Any]) -> tuple[Any, int, int]:
    """Decode a sample."""
    return decode(sample["jpg"]), int(sample["cls"]), int(sample["__key__"])


if __name__ == "__main__":
    serve(Tars())
