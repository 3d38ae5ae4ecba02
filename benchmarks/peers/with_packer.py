"""packer itself: ``with_packer.py FORMAT CHECK``; defaults of the reader; one by one where files are warm, which is faster."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from child import BATCH, SIZE, Epoch, Order, Peer, Sample, serve

from packer import EpochSampler, PackOptions, open_dataset, pack_folder


class Packer(Peer):
    """One format, packed with or without decoding every file."""

    distributions = ("packer", "numpy", "simplejpeg", "lmdb", "h5py", "webdataset")
    kept = ("format_name", "check")

    def __init__(self, format_name: str, check: str) -> None:
        self.format_name = format_name
        self.check = check

    def pack(self, files: Sequence[tuple[str, int]], output: Path) -> None:
        """Pack the folder that the files lie in."""
        folder = Path(files[0][0]).parents[1]
        pack_folder(folder, PackOptions(format=self.format_name, output=output / "packed", check=self.check))

    def open(self, output: Path) -> None:
        """Open it for bytes."""
        self.data: Any = open_dataset(output / "packed", output="bytes")

    def sample(self, index: int) -> Sample:
        """Read one file."""
        data, label = self.data[index]
        return data, label

    def read_cold(self, indices: Sequence[int]) -> list[Sample]:
        """Read a batch, asked for ahead, as torch's DataLoader does."""
        samples: list[Sample] = self.data.__getitems__(list(indices))
        return samples

    def shuffled(self, turn: int) -> Iterator[Sample]:
        """In the order of its sampler."""
        yield from map(self.sample, EpochSampler(self.data, seed=turn))

    def count(self) -> int:
        """The number of samples."""
        return len(self.data)

    def pictures(self, output: Path, workers: int) -> Epoch:
        """Whole batches, decoded by packer."""
        from torch.utils.data import BatchSampler, DataLoader

        order = Order()
        data: Any = open_dataset(output / "packed", output="torch", size=(SIZE, SIZE))
        batches: Any = BatchSampler(order, BATCH, drop_last=False)
        loader: DataLoader[Any] = DataLoader(
            data, sampler=batches, batch_size=None, num_workers=workers, persistent_workers=workers > 0
        )

        def epoch(indices: Sequence[int]) -> Iterator[tuple[Any, Any, Any]]:
            order.indices = indices
            for start, (images, labels) in zip(range(0, len(indices), BATCH), loader, strict=True):
                yield images, labels, indices[start : start + BATCH]

        return epoch


if __name__ == "__main__":
    serve(Packer(*sys.argv[1:3]))
