"""wids: random access to the samples of webdataset's tar files."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import webdataset
from child import Peer, Sample, read_files, serve, shard_bytes

wids: Any = import_module("wids")


class IndexedTars(Peer):
    """At least eight shards, of up to 64 MB; opening one reads all its headers."""

    distributions = ("webdataset",)

    def pack(self, files: Sequence[tuple[str, int]], output: Path) -> None:
        """One member for the bytes, one for the label."""
        with webdataset.ShardWriter(str(output / "%06d.tar"), maxsize=shard_bytes(files), verbose=0) as writer:
            counts: dict[str, int] = {}
            for index, data, label in read_files(files):
                writer.write({"__key__": f"{index:08d}", "jpg": data, "cls": label})
                counts[writer.fname] = counts.get(writer.fname, 0) + 1
        lines = [f"{count} {path}\n" for path, count in counts.items()]
        (output / "shards.txt").write_text("".join(lines), encoding="utf-8")

    def open(self, output: Path) -> None:
        """Open the list of shards, which are on this disk: nothing is downloaded."""
        lines = (output / "shards.txt").read_text(encoding="utf-8").splitlines()
        shards = [{"nsamples": int(count), "url": path} for count, _, path in (line.partition(" ") for line in lines)]
        self.data = wids.ShardListDataset(
            shards, localname=str, transformations=[], keep=True, lru_size=len(shards), dataset_name="tars"
        )

    def sample(self, index: int) -> Sample:
        """Look up one file."""
        found = self.data[index]
        return found[".jpg"].read(), int(found[".cls"].read())

    def count(self) -> int:
        """The number of samples."""
        return len(self.data)

    def close(self) -> None:
        """Unmap the shards."""
        if hasattr(self, "data"):
            self.data.close()
        super().close()


if __name__ == "__main__":
    serve(IndexedTars())
