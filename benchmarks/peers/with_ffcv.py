"""FFCV: pictures encoded anew as JPEG of quality 92, read as batches of their centres."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from child import BATCH, SIZE, Epoch, Peer, UnsupportedError, serve

sys.path.append(str(Path(__file__).parents[1]))
Source: Any = import_module("ffcv_child").Source


class Beton(Peer):
    """One file; a thread for each worker, and one where there are none."""

    distributions = ("ffcv", "numba", "numpy", "torch")
    crop = True

    def pack(self, files: Sequence[tuple[str, int]], output: Path) -> None:
        """In two worker processes: it has no way without."""
        fields: Any = import_module("ffcv.fields")
        image = fields.RGBImageField(write_mode="jpg", jpeg_quality=92)
        written = {"index": fields.IntField(), "target": fields.IntField(), "data": image}
        writer = import_module("ffcv.writer").DatasetWriter(str(output / "data.beton"), written, num_workers=2)
        writer.from_indexed_dataset(Source("pictures", files))

    def open(self, output: Path) -> None:
        """It has no files to give."""
        raise UnsupportedError("it gives decoded batches, not files")

    def pictures(self, output: Path, workers: int) -> Epoch:
        """Its own loader, in random order."""
        decoders: Any = import_module("ffcv.fields.decoders")
        transforms: Any = import_module("ffcv.transforms")
        ffcv: Any = import_module("ffcv.loader")
        crop = decoders.CenterCropRGBImageDecoder((SIZE, SIZE), ratio=1.0)
        numbers = [decoders.IntDecoder(), transforms.ToTensor(), transforms.Squeeze()]
        pictures = [crop, transforms.ToTensor(), transforms.ToTorchImage()]
        loader = ffcv.Loader(
            str(output / "data.beton"),
            batch_size=BATCH,
            num_workers=max(1, workers),
            os_cache=True,
            order=ffcv.OrderOption.RANDOM,
            drop_last=False,
            pipelines={"index": numbers, "target": list(numbers), "data": pictures},
        )

        def epoch(_order: Sequence[int]) -> Iterator[tuple[Any, Any, Any]]:
            for index, target, images in loader:
                yield images, target.clone(), index.clone()

        return epoch


if __name__ == "__main__":
    serve(Beton())
