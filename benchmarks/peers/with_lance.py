"""pylance: a Lance dataset with a binary column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from child import BATCH, Peer, Read, Sample, read_files, serve

lance: Any = import_module("lance")
pyarrow: Any = import_module("pyarrow")


class Lance(Peer):
    """One dataset, rows by number."""

    distributions = ("pylance", "pyarrow")

    def pack(self, files: Sequence[tuple[str, int]], output: Path) -> None:
        """A stream of record batches."""
        schema = pyarrow.schema([("image", pyarrow.large_binary()), ("label", pyarrow.int64())])

        def batches() -> Iterator[Any]:
            samples = read_files(files)
            while rows := list(islice(samples, BATCH)):
                columns = [[data for _, data, _ in rows], [label for _, _, label in rows]]
                yield pyarrow.record_batch(columns, schema=schema)

        lance.write_dataset(pyarrow.RecordBatchReader.from_batches(schema, batches()), str(output / "data.lance"))

    def open(self, output: Path) -> None:
        """Open the dataset."""
        self.data = lance.dataset(str(output / "data.lance"))

    def read(self, indices: Sequence[int]) -> Iterable[Sample]:
        """Take a batch of rows."""
        table = self.data.take(list(indices))
        return zip((value.as_buffer() for value in table["image"]), table["label"].to_pylist(), strict=True)

    def sequential(self, read: Read) -> Iterator[Sample]:
        """Scan from the first row on."""
        for batch in self.data.to_batches(batch_size=BATCH):
            yield from zip((value.as_buffer() for value in batch["image"]), batch["label"].to_pylist(), strict=True)

    def count(self) -> int:
        """The number of samples."""
        return int(self.data.count_rows())


if __name__ == "__main__":
    serve(Lance())
