"""Makes the inputs of the benchmarks: the same seed and count give the same files, whatever the number of processes.

    python benchmarks/data.py photos DIR --count 6000 [--damaged 60] [--encoding jpeg|png]
    python benchmarks/data.py arrays DIR --count 3000

Both write ten class folders, ``class_0`` to ``class_9``, of equal size. (Pixels, and so bytes, also depend on the
versions of Pillow and scikit-learn.)

Photographs are random crops of the two real photographs that scikit-learn carries, because noise or drawings
compress, and therefore decode, like no photograph does. Arrays are float32 (3, 224, 224), 602,240 bytes a file.

Damage is what people find in real folders: a file cut in the middle, an empty one, an HTML page where an image should
be, and a hole of zeros in the middle of the compressed pixels. Which file got which is written beside the folder, into
``DIR.damaged.json``, never into it.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from machine import count_cpus
from numpy.typing import NDArray
from options import positive_int
from PIL import Image

Encoding = Literal["jpeg", "png"]
Damage = Literal["cut", "emptied", "html", "zeroed"]
Task = TypeVar("Task")

CLASSES = 10
PHOTO_WIDTH = 500
PHOTO_HEIGHT = 375
JPEG_QUALITY = 92
ARRAY_SHAPE = (3, 224, 224)
SUFFIXES: dict[Encoding, str] = {"jpeg": "jpg", "png": "png"}
DAMAGES: tuple[Damage, ...] = ("cut", "emptied", "html", "zeroed")

# Two pages of a file system: what a lost write leaves behind.
ZEROED_BYTES = 8192
# Starting processes costs about 0.5 s, as much as making this many photographs in one.
FEW_FILES = 100
HTML_PAGE = b"<!DOCTYPE html>\n<html><head><title>404 Not Found</title></head><body>Not Found</body></html>\n"

# The two photographs, in each process: set once by _set_photographs, as sending them with each task would cost more
# than cropping them.
_photographs: list[Image.Image] = []


@dataclass(frozen=True, slots=True)
class PhotoTask:
    """One photograph to make: where, from which stream of random numbers, of how many tiles, how encoded and damaged."""

    path: Path
    seed: int
    index: int
    tiles: int
    encoding: Encoding
    damage: Damage | None


@dataclass(frozen=True, slots=True)
class ArrayTask:
    """One array to make: where, and from which stream of random numbers."""

    path: Path
    seed: int
    index: int


def make_photos(
    folder: Path,
    count: int,
    *,
    damaged: int = 0,
    encoding: Encoding = "jpeg",
    tiles: int = 1,
    seed: int = 0,
    workers: int | None = None,
) -> dict[str, Damage]:
    """Fill a new folder with photographs of 500 x 375 pixels, or of that many times as much, in ten class folders.

    Args:
        folder: made here; refused if it holds anything.
        count: number of files, the damaged ones among them.
        damaged: number of files to damage, evenly spread, the four kinds in turn; JPEG only.
        encoding: ``jpeg`` (quality 92, about 60 kB) or ``png`` (about 300 kB).
        tiles: number of photographs across and down that are put together to one: 4 gives 2000 x 1500 pixels, about 1 MB,
            with as much to decode in each part as a photograph has (one made larger has less).
        seed: any number of at least 0.
        workers: number of processes; None means one for each CPU that this process may use.

    Returns:
        The kind of damage for each damaged file, by its path relative to ``folder``. Where there is any, the same is
        in ``<folder>.damaged.json``.

    Raises:
        FileExistsError: ``folder`` holds something.
        ModuleNotFoundError: scikit-learn, whose photographs these are, is not installed.
        ValueError: more damage than files, or damage to something other than JPEG.
    """
    if damaged > count or (damaged and encoding != "jpeg"):
        raise ValueError(f"cannot damage {damaged} of {count} {encoding} files: only JPEG files, and at most all")
    photographs = load_photographs()
    names = _make_class_folders(folder, count, "img", SUFFIXES[encoding])
    # The middle of each of `damaged` equal runs of files, so that every class gets its share.
    damage_by_index = {(2 * turn + 1) * count // (2 * damaged): DAMAGES[turn % len(DAMAGES)] for turn in range(damaged)}
    tasks = [
        PhotoTask(folder / name, seed, index, tiles, encoding, damage_by_index.get(index)) for index, name in enumerate(names)
    ]
    _run(_make_photo, tasks, workers, photographs)
    damage_by_name = {names[index]: damage for index, damage in damage_by_index.items()}
    if damage_by_name:
        text = json.dumps(damage_by_name, indent=1) + "\n"
        folder.with_name(folder.name + ".damaged.json").write_text(text, encoding="utf-8")
    return damage_by_name


def make_arrays(folder: Path, count: int, *, seed: int = 0, workers: int | None = None) -> None:
    """Fill a new folder with float32 ``.npy`` files of shape (3, 224, 224) in ten class folders.

    Args:
        folder: made here; refused if it holds anything.
        count: number of files, 602,240 bytes each.
        seed: any number of at least 0.
        workers: number of processes; None means one for each CPU that this process may use.

    Raises:
        FileExistsError: ``folder`` holds something.
    """
    names = _make_class_folders(folder, count, "array", "npy")
    _run(_make_array, [ArrayTask(folder / name, seed, index) for index, name in enumerate(names)], workers, [])


def load_photographs() -> list[NDArray[np.uint8]]:
    """Load the two photographs of scikit-learn, RGB, shape (427, 640, 3).

    Raises:
        ModuleNotFoundError: scikit-learn is not installed; the message says how to install it.
    """
    try:
        from sklearn.datasets import load_sample_images
    except ModuleNotFoundError as error:
        message = f"the benchmarks take their photographs from scikit-learn ({error}): pip install scikit-learn"
        raise ModuleNotFoundError(message) from error
    return [np.asarray(image, dtype=np.uint8) for image in load_sample_images().images]


def damage_jpeg(data: bytes, damage: Damage) -> bytes:
    """Damage the bytes of a JPEG file in one of four ways; none of the results is a whole JPEG file."""
    if damage == "cut":
        return data[: len(data) // 2]
    if damage == "emptied":
        return b""
    if damage == "html":
        return HTML_PAGE
    scan_offset = data.index(b"\xff\xda")
    size = min(ZEROED_BYTES, (len(data) - scan_offset) // 2)
    start = (scan_offset + len(data) - size) // 2
    return data[:start] + bytes(size) + data[start + size :]


def _make_class_folders(folder: Path, count: int, stem: str, suffix: str) -> list[str]:
    """Make the class folders that ``count`` files need and return the files' relative paths, in order."""
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty: remove it or choose another folder")
    names = [f"class_{index * CLASSES // count}/{stem}_{index:06d}.{suffix}" for index in range(count)]
    for class_name in {name.partition("/")[0] for name in names}:
        (folder / class_name).mkdir(parents=True)
    return names


def _run(
    make: Callable[[Task], None],
    tasks: Sequence[Task],
    workers: int | None,
    photographs: list[NDArray[np.uint8]],
) -> None:
    """Make all files: in this process when they are few, otherwise in ``workers`` processes."""
    workers = workers or count_cpus()
    if workers == 1 or len(tasks) < FEW_FILES:
        _set_photographs(photographs)
        _exhaust(map(make, tasks))
        return
    # spawn, not fork: numpy has started threads here.
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, initializer=_set_photographs, initargs=(photographs,)) as pool:
        _exhaust(pool.imap_unordered(make, tasks, chunksize=16))


def _exhaust(results: Iterable[None]) -> None:
    """Run a lazy iterable to its end; what a task raised is raised here."""
    for _ in results:
        continue


def _set_photographs(photographs: list[NDArray[np.uint8]]) -> None:
    _photographs[:] = [Image.fromarray(photograph) for photograph in photographs]


def _make_photo(task: PhotoTask) -> None:
    """Put the tiles together, and save them."""
    random = np.random.default_rng([task.seed, task.index])
    image = Image.new("RGB", (PHOTO_WIDTH * task.tiles, PHOTO_HEIGHT * task.tiles))
    for row in range(task.tiles):
        for column in range(task.tiles):
            image.paste(_cut_photo(random), (PHOTO_WIDTH * column, PHOTO_HEIGHT * row))
    buffer = io.BytesIO()
    image.save(buffer, format=task.encoding, quality=JPEG_QUALITY)
    data = buffer.getvalue()
    task.path.write_bytes(damage_jpeg(data, task.damage) if task.damage else data)


def _cut_photo(random: np.random.Generator) -> Image.Image:
    """Cut out a random part, resize it to 500 x 375, and mirror every second one."""
    photograph = _photographs[int(random.integers(len(_photographs)))]
    largest_width = min(photograph.width, photograph.height * PHOTO_WIDTH // PHOTO_HEIGHT)
    width = int(random.integers(largest_width * 3 // 4, largest_width + 1))
    height = width * PHOTO_HEIGHT // PHOTO_WIDTH
    left = int(random.integers(photograph.width - width + 1))
    top = int(random.integers(photograph.height - height + 1))
    box = (left, top, left + width, top + height)
    image = photograph.resize((PHOTO_WIDTH, PHOTO_HEIGHT), Image.Resampling.LANCZOS, box=box)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.integers(2) else image


def _make_array(task: ArrayTask) -> None:
    random = np.random.default_rng([task.seed, task.index])
    np.save(task.path, random.standard_normal(ARRAY_SHAPE, dtype=np.float32))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description="Make the inputs of the benchmarks.")
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind, count in (("photos", 6000), ("arrays", 3000)):
        command = kinds.add_parser(kind)
        command.add_argument("folder", type=Path, metavar="DIR", help="a new or empty folder")
        command.add_argument("--count", type=positive_int, default=count, help=f"number of files (default {count})")
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--workers", type=positive_int, help="processes (default: one for each CPU)")
        if kind == "photos":
            command.add_argument("--damaged", type=int, default=0, help="number of files to damage (default 0)")
            command.add_argument("--encoding", choices=sorted(SUFFIXES), default="jpeg")
    options = parser.parse_args(arguments)
    try:
        if options.kind == "photos":
            make_photos(
                options.folder,
                options.count,
                damaged=options.damaged,
                encoding=options.encoding,
                seed=options.seed,
                workers=options.workers,
            )
        else:
            make_arrays(options.folder, options.count, seed=options.seed, workers=options.workers)
    except (FileExistsError, ModuleNotFoundError, ValueError) as error:
        print(f"data.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
