"""The contenders for a folder: its sample as loose files, and packed into every format."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from packer import formats
from packer.bench.contenders import Contender, Decoder, are_uniform, decoding_alone, files_of, read_file
from packer.bench.proof import Truth, WrongDataError
from packer.bench.results import ARRAY_READER, LOOSE, PILLOW, Packing
from packer.bench.sample import Drawn
from packer.bench.scratch import Scratch
from packer.options import OnProgress, PackOptions, Progress
from packer.pack import pack_folder
from packer.store import Store

__all__ = ["folder_contenders", "pack_all"]

_ROUNDS = 3
_HEAD_BYTES = 4096


def pack_all(scratch: Scratch, drawn: Drawn, seconds: float, on_progress: OnProgress) -> list[Packing]:
    """Pack the sample into each format, in turns; three times where one turn takes less than so many seconds.

    Raises:
        OutputError: there is no room for it.
    """
    times: dict[str, list[float]] = {name: [] for name in formats.names()}
    sizes: dict[str, int] = {}
    rounds = 1
    turn = 0
    while turn < rounds:
        for name in times:
            target = scratch.dataset(name)
            shutil.rmtree(target, ignore_errors=True)
            options = PackOptions(format=name, output=target, check="none", labels="none", follow_links=True)
            done = len(drawn.paths) * sum(map(len, times.values()))
            total = len(drawn.paths) * len(times) * rounds
            summary = pack_folder(scratch.files, options, _as_one_stage(on_progress, done, total))
            times[name].append(summary.seconds)
            sizes[name] = sum(path.stat().st_size for path in files_of(target))
        if turn == 0 and sum(sum(some) for some in times.values()) < seconds:
            rounds = _ROUNDS
        turn += 1
    return [Packing(name, name, sizes[name], len(drawn.paths), tuple(some)) for name, some in times.items()]


def folder_contenders(scratch: Scratch, drawn: Drawn, packings: list[Packing]) -> list[Contender]:
    """Who is compared; the last one decodes alone.

    Raises:
        WrongDataError: a dataset does not hold the sample.
    """
    store = Store(scratch.dataset(packings[0].format))
    records = [store.index[number] for number in range(len(store))]
    heads = (_head(path) for path in drawn.paths)
    decoder = Decoder(records, drawn.is_pictures, drawn.is_pictures or are_uniform(heads))
    paths = drawn.paths
    truth = Truth(drawn.sizes, drawn.digests, lambda number: decoder.one(number, read_file(paths[number])))
    everything = np.arange(len(paths))
    files = tuple(map(Path, paths))
    others = PILLOW if drawn.is_pictures else ARRAY_READER
    contenders = [Contender(name, files, truth, everything, everything, decoder, paths=paths) for name in (others, LOOSE)]
    for packing in packings:
        dataset = scratch.dataset(packing.format)
        _require_same(Store(dataset), drawn)
        contenders.append(Contender(packing.contender, files_of(dataset), truth, everything, everything, decoder, dataset))
    alone = decoding_alone(contenders[0], lambda number: read_file(paths[number]))
    return [*contenders, alone]


def _as_one_stage(on_progress: OnProgress, before: int, total: int) -> OnProgress:
    """Tell of one of several packings as of a part of them all."""
    return lambda progress: on_progress(Progress("pack", before + (progress.done if progress.stage == "pack" else 0), total))


def _require_same(store: Store, drawn: Drawn) -> None:
    """That a dataset holds the sample, in its order: what is read from it is compared with the digests in its index."""
    found = np.array([record.digest for _, record in store.records()], np.uint64)
    if len(found) != len(drawn.digests) or (found != drawn.digests).any():
        raise WrongDataError.at(
            store.path, f"{len(found):,} samples were packed, not the {len(drawn.digests):,} that were drawn"
        )


def _head(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123 - one of thousands
        return file.read(_HEAD_BYTES)
