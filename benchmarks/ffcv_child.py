"""Runs FFCV on the files of a benchmark, in the interpreter of FFCV's own environment; ``ffcv_side.py`` starts it.

    PYTHON benchmarks/ffcv_child.py arrays|pictures LIST.json FILE.beton --batch 64 --threads 2

``LIST.json`` holds ``[[path, target], ...]``. FFCV's file is written and everything is compiled by one epoch, then a line
of JSON says the versions. For each line on standard input one epoch in random order is timed, a second one is compared with
the source files, and one line of JSON comes back: ``seconds``, ``seen`` (index and target of every sample of the timed
epoch), ``checked`` (the same of the compared one), and ``worst``: the largest difference of a sample.

Arrays are an ``NDArrayField``; the difference is 0, or infinite where a sample is not equal. Pictures are an
``RGBImageField`` written as JPEG of quality 92, and read as FFCV's users read a validation set: ``CenterCropRGBImageDecoder``
to 224 x 224, ``ToTensor``, ``ToTorchImage``. The difference is the mean over the pixels to Pillow's centre crop of the
source file; FFCV averages areas where Pillow interpolates.

What the environment needs (Debian 12, Python 3.11): the packages libturbojpeg0-dev, libopencv-dev and pkg-config, then
``pip install 'numpy<2' numba opencv-python-headless torch pillow setuptools wheel assertpy fastargs psutil tqdm terminaltables
pytorch_pfn_extras`` and ``pip install --no-build-isolation --no-deps ffcv``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIZE = 224
JPEG_QUALITY = 92


class Source:
    """The source files as FFCV's writer wants them: ``source[i]`` is (index, target, array or picture)."""

    def __init__(self, kind: str, files: Sequence[tuple[str, int]]) -> None:
        self.kind = kind
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[int, int, Any]:
        path, target = self.files[index]
        return index, target, np.load(path) if self.kind == "arrays" else Image.open(path).convert("RGB")

    def expected(self, index: int) -> NDArray[Any]:
        """What FFCV should give for a sample: the array, or uint8 (3, 224, 224)."""
        data = self[index][2]
        if self.kind == "arrays":
            return np.asarray(data)
        side = min(data.size)
        left, top = (data.width - side) // 2, (data.height - side) // 2
        picture = data.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
        return np.asarray(picture).transpose(2, 0, 1)

    def difference(self, index: int, given: NDArray[Any]) -> float:
        """How far a sample is from what it should be."""
        expected = self.expected(index)
        if given.shape != expected.shape or given.dtype != expected.dtype:
            return float("inf")
        if self.kind == "arrays":
            return 0.0 if np.array_equal(given, expected) else float("inf")
        return float(np.abs(given.astype(np.int16) - expected).mean())


def make_loader(source: Source, beton: Path, *, batch: int, threads: int) -> Any:
    """Write FFCV's file and open it: batches of (data, index, target) in random order, from the page cache."""
    fields, decoders = import_module("ffcv.fields"), import_module("ffcv.fields.decoders")
    transforms, loader = import_module("ffcv.transforms"), import_module("ffcv.loader")
    if source.kind == "arrays":
        array = source.expected(0)
        field = fields.NDArrayField(dtype=array.dtype, shape=array.shape)
        pipeline = [decoders.NDArrayDecoder(), transforms.ToTensor()]
    else:
        field = fields.RGBImageField(write_mode="jpg", jpeg_quality=JPEG_QUALITY)
        crop = decoders.CenterCropRGBImageDecoder((SIZE, SIZE), ratio=1.0)
        pipeline = [crop, transforms.ToTensor(), transforms.ToTorchImage()]
    written = {"index": fields.IntField(), "target": fields.IntField(), "data": field}
    import_module("ffcv.writer").DatasetWriter(str(beton), written, num_workers=threads).from_indexed_dataset(source)
    numbers = [decoders.IntDecoder(), transforms.ToTensor(), transforms.Squeeze()]
    return loader.Loader(
        str(beton),
        batch_size=batch,
        num_workers=threads,
        os_cache=True,
        order=loader.OrderOption.RANDOM,
        drop_last=False,
        pipelines={"index": numbers, "target": list(numbers), "data": pipeline},
    )


def timed_epoch(loader: Any) -> dict[str, Any]:
    """Run one epoch; the numbers are copied in the time, the data are not looked at."""
    seen: list[tuple[Any, Any]] = []
    start = perf_counter()
    for index, target, _data in loader:
        seen.append((index.tolist(), target.tolist()))
    seconds = perf_counter() - start
    return {"seconds": seconds, "seen": [pair for indices, targets in seen for pair in zip(indices, targets, strict=True)]}


def compared_epoch(loader: Any, source: Source) -> dict[str, Any]:
    """Run one epoch and compare every sample."""
    checked: list[tuple[int, int]] = []
    worst = 0.0
    for indices, targets, data in loader:
        for index, target, given in zip(indices.tolist(), targets.tolist(), data.numpy(), strict=True):
            checked.append((index, target))
            worst = max(worst, source.difference(index, given))
    return {"checked": checked, "worst": worst}


def main() -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description="Run FFCV for a benchmark.")
    parser.add_argument("kind", choices=("arrays", "pictures"))
    parser.add_argument("list", type=Path)
    parser.add_argument("beton", type=Path)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    answers, sys.stdout = sys.stdout, sys.stderr  # FFCV's writer shows its progress
    source = Source(options.kind, json.loads(options.list.read_text(encoding="utf-8")))
    loader = make_loader(source, options.beton, batch=options.batch, threads=options.threads)
    timed_epoch(loader)
    versions = {name: version(name) for name in ("ffcv", "numba", "numpy", "torch")}
    print(json.dumps(versions), file=answers, flush=True)
    for _ in sys.stdin:
        print(json.dumps({**compared_epoch(loader, source), **timed_epoch(loader)}), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
