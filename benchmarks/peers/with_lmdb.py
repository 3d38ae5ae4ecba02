"""A plain script with lmdb: ``with_lmdb.py bytes`` keeps the files' bytes, ``pickled`` a tuple of bytes and label."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from child import Peer, Read, Sample, read_files, serve

lmdb: Any = import_module("lmdb")
LABELS = b"labels"


class PlainLMDB(Peer):
    """One environment; keys are numbers, values as ``kind`` says, a transaction for each read."""

    distributions = ("lmdb",)
    kept = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def pack(self, files: Sequence[tuple[str, int]], output: Path) -> None:
        """One transaction for a thousand files."""
        with lmdb.open(str(output / "data"), map_size=1 << 40) as environment:
            transaction = environment.begin(write=True)
            for index, data, label in read_files(files):
                value = pickle.dumps((data, label)) if self.kind == "pickled" else data
                transaction.put(b"%08d" % index, value)
                if index % 1000 == 999:
                    transaction.commit()
                    transaction = environment.begin(write=True)
            transaction.put(LABELS, json.dumps([label for _, label in files]).encode())
            transaction.commit()

    def open(self, output: Path) -> None:
        """As every guide opens it for reading."""
        self.environment = lmdb.open(str(output / "data"), readonly=True, lock=False, readahead=False, meminit=False)
        with self.environment.begin() as transaction:
            self.labels = json.loads(transaction.get(LABELS))

    def close(self) -> None:
        """Unmap the file."""
        if hasattr(self, "environment"):
            self.environment.close()
        super().close()

    def sample(self, index: int) -> Sample:
        """A transaction for one file."""
        with self.environment.begin() as transaction:
            value = transaction.get(b"%08d" % index)
        if self.kind == "pickled":
            data, label = pickle.loads(value)
            return data, label
        return value, self.labels[index]

    def sequential(self, read: Read) -> Iterator[Sample]:
        """A cursor from the first key on."""
        with self.environment.begin() as transaction:
            values = transaction.cursor().iternext(keys=False)
            for label, value in zip(self.labels, values, strict=False):
                yield pickle.loads(value) if self.kind == "pickled" else (value, label)

    def count(self) -> int:
        """The number of samples."""
        return len(self.labels)


if __name__ == "__main__":
    serve(PlainLMDB(sys.argv[1]))
