"""array_record: one file of records, read by its data source."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from child import Peer, Sample, load_labels, read_files, save_labels, serve

module: Any = import_module("array_record.python.array_record_module")
source: Any = import_module("array_record.python.array_record_data_source")


class Records(Peer):
    """Groups of one record, which random access needs, read one by one, which was faster than its threads; labels beside it."""

    distributions = ("array_record",)

    def pack(self, files: Sequence[tuple[str, int]], output: Path) -> None:
        """With the compression that is the default."""
        writer = module.ArrayRecordWriter(str(output / "data.array_record"), "group_size:1")
        for _, data, _ in read_files(files):
            writer.write(data)
        writer.close()
        save_labels(files, output)

    def open(self, output: Path) -> None:
        """Open the file."""
        self.data = source.ArrayRecordDataSource(str(output / "data.array_record"))
        self.labels = load_labels(output)

    def sample(self, index: int) -> Sample:
        """Read one file."""
        return self.data[index], self.labels[index]

    def count(self) -> int:
        """The number of samples."""
        return len(self.labels)


if __name__ == "__main__":
    serve(Records())
