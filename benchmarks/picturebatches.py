"""Batches of 64 pictures (3, 224, 224), uint8, from JPEG photographs of 500 x 375 and of 2000 x 1500 pixels.

* The packed dataset gives them with ``size=(224, 224), output="torch"``: in torch's DataLoader, and by ``packer.Loader`` with
  a thread for each CPU.
* The baseline is what an ImageFolder does, written here: Pillow opens the file, converts to RGB and resizes bilinearly; a
  DataLoader with ``batch_size=64`` puts the samples together.
* FFCV decodes its own JPEG of the same pictures (of quality 92, as the source), crops the centre and resizes.

Everyone has the same cores: this process alone, or a worker process for each CPU, whichever is faster for whom; FFCV a
thread for each CPU. All are warm, and all workers run before the clock does. Each picture must differ from Pillow's by at
most ``TOLERANCE`` levels on average: decoders at a reduced scale and other filters differ by one or two, another picture
by dozens.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from data import make_photos
from epochs import SourceFiles, Truth, batch_epoch, loader_epoch, sample_epoch, timed
from ffcv_side import start_ffcv
from machine import count_cpus
from PIL import Image
from timing import Measure, Pair, Result, compare_pairs, settings_of
from torch.utils.data import Dataset

from packer import PackOptions, open_dataset, pack_folder

SIZE = (224, 224)
TOLERANCE = 4.0
FFCV_BUDGET = 1.3
# Tiles across and down, the budget against Pillow, and the share of the count: 2000 x 1500 takes ten times as long.
SIZES = {"500 x 375": (1, 1.7, 1), "2000 x 1500": (4, 3.0, 4)}


class PillowPictures(Dataset[tuple[torch.Tensor, int]]):
    """Picture files as ImageFolder with Pillow reads them."""

    def __init__(self, files: SourceFiles) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.files.paths[index]) as image:
            picture = image.convert("RGB").resize(SIZE[::-1], Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(picture)).permute(2, 0, 1), self.files.targets[index]


def compare_pictures(
    work: Path, *, count: int, repeat: int, formats: Sequence[str], workers: int, ffcv_python: Path | None
) -> tuple[list[Result], dict[str, object]]:
    """Make the photographs, pack them into each format, and time epochs of shuffled batches.

    Args:
        work: an existing folder; what is made in it stays.
        count: number of photographs of 500 x 375, about 60 kB each; of 2000 x 1500 there are a fifth, 1 MB each.
        repeat: number of rounds.
        formats: those to pack into.
        workers: number of worker processes, where there are any.
        ffcv_python: the interpreter of an environment with FFCV; None leaves FFCV out.

    Returns:
        The results, and the versions of FFCV's environment.

    Raises:
        WrongDataError: an epoch lacked a sample, or had another picture or target than the source files.
    """
    results: list[Result] = []
    settings: dict[str, object] = {}
    for label, (tiles, budget, share) in SIZES.items():
        folder = work / f"pictures-{tiles}"
        make_photos(folder, max(1, count // share), tiles=tiles)
        files = SourceFiles.of(folder)
        pillow = PillowPictures(files)
        truth = Truth(torch.stack([pillow[index][0] for index in range(len(files))]), torch.tensor(files.targets), TOLERANCE)
        baseline = f"Pillow {label}"
        counts = (0, workers)
        ways = [timed(f"{baseline}, {n} workers", sample_epoch(pillow, workers=n), truth) for n in counts]
        contenders = settings_of(baseline, ways)
        pairs: list[Pair] = []
        with ExitStack() as stack:
            if ffcv_python:
                ffcv, versions = stack.enter_context(
                    start_ffcv(ffcv_python, "pictures", files, work, threads=[count_cpus()], tolerance=TOLERANCE)
                )
                settings["ffcv"] = versions
                contenders += ffcv
            for format_name in formats:
                output = work / f"pictures-{tiles}.{format_name}"
                pack_folder(folder, PackOptions(format=format_name, output=output, check="none"))
                data = open_dataset(output, output="torch", size=SIZE)
                name = f"batches {label}, {format_name}"
                ways = [timed(f"{name}, {n} workers", batch_epoch(data, workers=n), truth) for n in counts]
                threads = f"packer.Loader {label}, {format_name}"
                contenders += [*settings_of(name, ways), timed(threads, loader_epoch(data), truth)]
                pairs += [Pair(name, baseline, budget), Pair(threads, baseline, budget)]
                if ffcv_python:
                    pairs += [Pair(name, "FFCV", FFCV_BUDGET), Pair(threads, "FFCV", FFCV_BUDGET)]
            if ffcv_python:
                pairs.append(Pair("FFCV", baseline))
            results += compare_pairs(contenders, pairs, measure=Measure.RATE, files=len(files), repeat=repeat)
    return results, settings
