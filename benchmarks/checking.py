"""How fast one process checks files, against ``load()`` of Pillow on the same files.

Both sides open the file by its path, from a warm cache. Pillow's side stands for the usual check in scripts, which sees
less: no broken checksum of a PNG's later chunks, and grey pixels for a damaged JPEG.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

from data import DAMAGES, PHOTO_HEIGHT, PHOTO_WIDTH, SUFFIXES, Encoding, make_photos
from PIL import Image
from proof import WrongDataError
from timing import Contender, Measure, Result, compare

from packer.check import CheckSettings, check_source
from packer.model import Kept, Skipped

BUDGETS: dict[Encoding, float] = {"jpeg": 1.6, "png": 1.2}
# A PNG takes 60 ms to make and 8 ms to check; a JPEG 7 ms and 0.7 ms.
MOST_FILES: dict[Encoding, int] = {"jpeg": 1000, "png": 150}


def compare_checking(work: Path, *, count: int, repeat: int) -> list[Result]:
    """Time the check of one core beside Pillow's ``load()``, for JPEG and for PNG.

    Args:
        work: an existing folder, in which the photographs are made.
        count: number of files, at most 1000 JPEG and 150 PNG.
        repeat: number of rounds.

    Raises:
        WrongDataError: a sound file was not kept clean, or a damaged one was kept.
    """
    _prove_damage_is_seen(work / "damaged")
    results: list[Result] = []
    for encoding in SUFFIXES:
        folder = work / f"checked-{encoding}"
        make_photos(folder, min(count, MOST_FILES[encoding]), encoding=encoding, seed=1)
        paths = sorted(str(path) for path in folder.rglob("*") if path.is_file())
        results += compare(
            Contender(f"Pillow load() {encoding}", _timed(_load_all, paths)),
            [Contender(f"check {encoding}, one process", _timed(_check_all, paths), BUDGETS[encoding])],
            measure=Measure.RATE,
            files=len(paths),
            repeat=repeat,
        )
    return results


def _timed(treat_all: Callable[[Sequence[str]], list[tuple[int, int]]], paths: Sequence[str]) -> Callable[[], float]:
    """A run that treats all files, and then looks whether each had the size of the photographs."""

    def run() -> float:
        os.sync()
        start = perf_counter()
        sizes = treat_all(paths)
        seconds = perf_counter() - start
        for path, size in zip(paths, sizes, strict=True):
            if size != (PHOTO_WIDTH, PHOTO_HEIGHT):
                raise WrongDataError(f"{Path(path).name}: {size} pixels, not {(PHOTO_WIDTH, PHOTO_HEIGHT)}")
        return seconds

    return run


def _check_all(paths: Sequence[str]) -> list[tuple[int, int]]:
    settings = CheckSettings()
    sizes: list[tuple[int, int]] = []
    for path in paths:
        verdict = check_source(os.fsencode(path), settings)
        if not isinstance(verdict, Kept) or verdict.warnings:
            raise WrongDataError(f"{Path(path).name} is sound, but the verdict is {verdict}")
        sizes.append((verdict.width, verdict.height))
    return sizes


def _load_all(paths: Sequence[str]) -> list[tuple[int, int]]:
    sizes: list[tuple[int, int]] = []
    for path in paths:
        with Image.open(path) as image:
            image.load()
            sizes.append(image.size)
    return sizes


def _prove_damage_is_seen(folder: Path) -> None:
    """A check that keeps damaged files may be as fast as it likes: look at each kind of damage first."""
    for name, damage in make_photos(folder, 2 * len(DAMAGES), damaged=2 * len(DAMAGES)).items():
        verdict = check_source(os.fsencode(folder / name), CheckSettings())
        if not isinstance(verdict, Skipped):
            raise WrongDataError(f"{name} is damaged ({damage}), but the verdict is {verdict}")
