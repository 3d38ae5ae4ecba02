"""What the child scripts of the peers' benchmark share: the protocol, the timing, and pictures from a peer's samples.

A script is started with the arguments of its peer by the interpreter of that peer's environment. It says its versions, then
answers each line of JSON on standard input with one on standard output; ``do`` names what to do:

* ``pack``: write ``files`` (a JSON file of ``[[path, label], ...]``) as ``output``; answers ``seconds``, until all is on disk.
* ``close``: let go of everything, so that the pages can be dropped.
* ``random`` (with ``orders``), ``sequential``, ``shuffled`` (with ``passes``), all with ``cold``: read all files as bytes,
  opening the output first where it is not open; answers ``seconds``, ``labels``, ``digests`` (xxh3-64, taken in the time), and
  ``disk_bytes``.
* ``pictures`` (with ``orders``, ``workers``): batches of 64 pictures (3, 224, 224), uint8; answers ``seconds``, and of every
  picture ``indices``, ``labels``, ``values`` (the mean of the middle 28 x 28), and ``crop``: whether the centre was cut out.
  With ``proof`` naming a file, the pictures, 14 x 14 pixels averaged to one, are written there in the order of ``indices``.

What a peer cannot do is answered with ``unsupported`` and the reason. Where xxhash is missing, the script ends.
"""

from __future__ import annotations

import gc
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

from xxhash import xxh3_64_intdigest

BATCH = 64
SIZE = 224
POOLED = 14

Sample = tuple[Any, int]
"""The bytes of a file, in any object that is a buffer, and its label."""
Read = Callable[[Sequence[int]], Iterable[Sample]]
"""Gives up to 64 samples, in the order asked for."""
Epoch = Callable[[Sequence[int]], Iterable[tuple[Any, Any, Any]]]
"""Gives batches of pictures, labels and indices, in the order asked for, or where a peer has an order of its own, in that."""


class UnsupportedError(Exception):
    """This peer has no way to do it; the message says why."""


class Peer:
    """A way to keep and read files. Each script has a subclass; what it leaves out is done by what it has.

    Attributes:
        distributions: whose versions are told.
        crop: whether pictures are the centre of the file's, and not all of it.
        kept: the attributes that ``close`` leaves: arguments of the script.
    """

    distributions: tuple[str, ...] = ()
    crop = False
    kept: tuple[str, ...] = ()

    def pack(self, files: Sequence[tuple[str, int]], output: Path) -> None:
        """Write the files, in order, into the existing empty folder ``output``."""
        raise UnsupportedError("there is nothing to pack")

    def open(self, output: Path) -> None:
        """Open what was packed; ``close`` has been called before."""
        raise NotImplementedError

    def close(self) -> None:
        """Drop what was opened: nothing stays open or mapped."""
        for name in set(self.__dict__) - set(self.kept):
            del self.__dict__[name]
        gc.collect()

    def sample(self, index: int) -> Sample:
        """One sample, by its number."""
        raise UnsupportedError("it reads from the start to the end only")

    def read(self, indices: Sequence[int]) -> Iterable[Sample]:
        """Up to 64 samples, in the order asked for."""
        return map(self.sample, indices)

    def read_cold(self, indices: Sequence[int]) -> Iterable[Sample]:
        """The same, where they have to come from the disk."""
        return self.read(indices)

    def sequential(self, read: Read) -> Iterator[Sample]:
        """All samples, in order, by its own way from the start to the end, or else by ``read``."""
        count = self.count()
        for start in range(0, count, BATCH):
            yield from read(range(start, min(start + BATCH, count)))

    def shuffled(self, turn: int) -> Iterable[Sample]:
        """All samples, as the peer itself shuffles them."""
        raise UnsupportedError("it has no order of its own")

    def count(self) -> int:
        """The number of samples."""
        raise NotImplementedError

    def pictures(self, output: Path, workers: int) -> Epoch:
        """Epochs of decoded batches: where a peer has no loader of its own, Pillow in torch's."""
        return sample_epoch(PeerPictures(self, output), workers)


class PeerPictures:
    """A map-style dataset of a peer's samples, (picture, label, index), opened by each process itself: never before a fork."""

    def __init__(self, peer: Peer, output: Path) -> None:
        self.peer = peer
        self.output = output
        self.is_open = False

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, int, int]]:
        if not self.is_open:
            self.peer.open(self.output)
            self.is_open = True
        samples = zip(self.peer.read(indices), indices, strict=True)
        return [(decode(data), label, index) for (data, label), index in samples]

    def __getitem__(self, index: int) -> tuple[Any, int, int]:
        return self.__getitems__([index])[0]


class Order:
    """A sampler whose order is set before each epoch, so that worker processes can outlive an epoch."""

    def __init__(self) -> None:
        self.indices: Sequence[int] = ()

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


def sample_epoch(dataset: Any, workers: int) -> Epoch:
    """Epochs of a map-style dataset in torch's DataLoader, put together sample by sample."""
    from torch.utils.data import DataLoader

    order = Order()
    loader: DataLoader[Any] = DataLoader(
        dataset, sampler=order, batch_size=BATCH, num_workers=workers, persistent_workers=workers > 0
    )

    def epoch(indices: Sequence[int]) -> Iterator[tuple[Any, Any, Any]]:
        order.indices = indices
        return iter(loader)

    return epoch


def decode(data: Any) -> Any:
    """A picture as ImageFolder's users read it with Pillow: a tensor, uint8 (3, 224, 224)."""
    import numpy as np
    import torch
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        picture = image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def read_files(files: Sequence[tuple[str, int]]) -> Iterator[tuple[int, bytes, int]]:
    """Number, bytes and label of every file."""
    for index, (path, label) in enumerate(files):
        yield index, Path(path).read_bytes(), label


def shard_bytes(files: Sequence[tuple[str, int]]) -> int:
    """The size of a shard where there are to be at least eight, of up to 64 MB."""
    return min(64 << 20, sum(os.stat(path).st_size for path, _ in files) // 8)


def save_labels(files: Sequence[tuple[str, int]], output: Path) -> None:
    """Keep the labels beside a container that holds bytes alone, as its users do."""
    (output / "labels.json").write_text(json.dumps([label for _, label in files]), encoding="utf-8")


def load_labels(output: Path) -> list[int]:
    """The labels that ``save_labels`` kept."""
    labels: list[int] = json.loads((output / "labels.json").read_text(encoding="utf-8"))
    return labels


class Session:
    """Answers the requests to one peer."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.opened = False
        self.epoch: Epoch | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what a request asks for."""
        output = Path(request["output"])
        if request["do"] == "pack":
            return self.pack(json.loads(Path(request["files"]).read_text(encoding="utf-8")), output)
        if request["do"] == "close":
            self.close()
            return {}
        if request["do"] == "pictures":
            return self.pictures(request, output)
        return self.read(request, output)

    def close(self) -> None:
        """Close the peer."""
        self.peer.close()
        self.opened = False

    def pack(self, files: list[tuple[str, int]], output: Path) -> dict[str, Any]:
        """Pack, and sync what was written."""
        output.mkdir()
        start = perf_counter()
        self.peer.pack(files, output)
        for path in [output, *output.rglob("*")]:
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        return {"seconds": perf_counter() - start}

    def read(self, request: dict[str, Any], output: Path) -> dict[str, Any]:
        """Read all files as bytes."""
        do, digests, labels = request["do"], [], []
        before, start = disk_bytes_read(), perf_counter()
        if not self.opened:
            self.peer.open(output)
            self.opened = True
        for samples in self.passes(do, request):
            for data, label in samples:
                digests.append(xxh3_64_intdigest(data))
                labels.append(label)
        seconds = perf_counter() - start
        return {
            "seconds": seconds,
            "digests": digests,
            "labels": [int(label) for label in labels],
            "disk_bytes": disk_bytes_read() - before,
        }

    def passes(self, do: str, request: dict[str, Any]) -> Iterator[Iterable[Sample]]:
        """The samples of a request, in batches or in one go for each pass."""
        read = self.peer.read_cold if request["cold"] else self.peer.read
        if do == "random":
            for order in request["orders"]:
                for start in range(0, len(order), BATCH):
                    yield read(order[start : start + BATCH])
        for turn in range(request.get("passes", 0)):
            yield self.peer.sequential(read) if do == "sequential" else self.peer.shuffled(turn)

    def pictures(self, request: dict[str, Any], output: Path) -> dict[str, Any]:
        """Read batches of pictures; the loader and its processes stay for the next request, with as many workers."""
        import numpy as np

        if not self.epoch:
            self.epoch = self.peer.pictures(output, request["workers"])
        kept: list[tuple[Any, Any, Any]] = []
        pooled: list[Any] = []
        start = perf_counter()
        for order in request["orders"]:
            for images, labels, indices in self.epoch(order):
                middle = images[:, :, 98:126, 98:126].float().mean((1, 2, 3))
                kept.append((indices, labels, middle))
                if "proof" in request:
                    pooled.append(images.float().unflatten(3, (-1, POOLED)).unflatten(2, (-1, POOLED)).mean((3, 5)).numpy())
        seconds = perf_counter() - start
        if "proof" in request:
            np.save(request["proof"], np.concatenate(pooled))
        names = ("indices", "labels", "values")
        columns = zip(names, zip(*kept, strict=True), strict=True)
        lists = {name: [value for part in parts for value in np.asarray(part).tolist()] for name, parts in columns}
        return {"seconds": seconds, "crop": self.peer.crop, **lists}


def disk_bytes_read() -> int:
    """Bytes that this process has made the kernel read from disks so far; 0 where the system does not tell."""
    try:
        text = Path("/proc/self/io").read_text(encoding="ascii")
    except OSError:
        return 0
    return int(dict(line.split(": ") for line in text.splitlines())["read_bytes"])


def serve(peer: Peer) -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever the libraries print is no answer
    session = Session(peer)
    versions = {name: version(name) for name in peer.distributions}
    print(json.dumps(versions), file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer = session.answer(json.loads(line))
        except UnsupportedError as reason:
            answer = {"unsupported": str(reason)}
        print(json.dumps(answer), file=answers, flush=True)
