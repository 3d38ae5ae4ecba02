"""Where the payloads of a packed dataset lie, for reading them without a reader: what the machine allows."""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path

import numpy as np


class KnownRanges:
    """The files of a dataset, open and mapped, and the range of each payload.

    Attributes:
        descriptors: of the shards.
        maps: their bytes, read-only.
        ranges: shard, offset and size of each payload.
    """

    def __init__(self, output: Path) -> None:
        names = [shard["file"] for shard in json.loads((output / "manifest.json").read_bytes())["shards"]]
        self.descriptors = [os.open(output / name, os.O_RDONLY) for name in names]
        self.maps = [memoryview(mmap.mmap(file, 0, access=mmap.ACCESS_READ)) for file in self.descriptors]
        index = np.load(output / "index.npy")["data"]
        self.ranges = list(zip(index["shard"].tolist(), index["offset"].tolist(), index["size"].tolist(), strict=True))
