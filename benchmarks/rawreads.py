"""Random reads of whole files as bytes, warm and cold, from a packed dataset and from the loose files.

In the time, every contender takes xxh3-64 of all bytes once: that is their use. A verified warm read has done so by itself;
what it gave is hashed, and compared with the files, in a second pass over the same order outside the time.

``pread and digest alone`` and ``mapped, digest alone`` are what the machine allows: a loop over known ranges, without a reader.

* Warm: single samples in a random order. A loose file is read in the fastest plain way: its path is known, ``os.open``, one
  ``os.read`` of the size that ``os.fstat`` tells, ``os.close``.
* Cold: before each run the files that it reads are dropped from the page cache, and the run is void (``WrongDataError``) if
  pages were left there, or the kernel read less from the disk than the samples are large. Where files cannot be dropped
  (``tmpfs``), or the kernel does not count what it reads (network file systems), the part is left out. The packed samples
  come in batches of 64 through ``data.__getitems__``, as torch's DataLoader asks for them, the loose files one by one, in
  the same order. The names and inodes of the loose files stay in memory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from data import make_photos
from epochs import BATCH, SourceFiles
from pagecache import cached_share, disk_bytes_read, drop
from proof import WrongDataError, prove_packed
from ranges import KnownRanges
from timing import Contender, Measure, Pair, Result, compare_pairs
from xxhash import xxh3_64_intdigest

from packer import PackOptions, open_dataset, pack_folder
from packer.datasets import PackedDataset

PRIVATE_BUDGET = 1.15
MAPPED_BUDGET = 1.6
VIEW_BUDGET = 2.5
COLD_BUDGET = 2.5
LOOSE = "loose files"
# Of the pages that were dropped; and of the samples' bytes that a cold run reads from the disk.
MOST_CACHED = 0.01
LEAST_COUNTED = 0.95
# A warm epoch of 6,000 photographs takes a tenth of a second.
WARM_EPOCHS = 3

Digests = Callable[[Sequence[int]], list[int]]
"""Reads the samples of an order and returns xxh3-64 of each."""
Reads = Callable[[Sequence[int]], None]
"""Reads the samples of an order, and by itself takes xxh3-64 of each."""


def compare_warm(work: Path, *, count: int, repeat: int, formats: Sequence[str]) -> list[Result]:
    """Time random reads of single samples from the page cache.

    Args:
        work: an existing folder; what is made in it stays, and is used again by ``compare_cold``.
        count: number of photographs, about 60 kB each.
        repeat: number of rounds.
        formats: those to pack into.

    Raises:
        WrongDataError: a sample had other bytes or another target than its file.
    """
    folder, files, outputs = _make_inputs(work, count, formats)
    truth = [xxh3_64_intdigest(Path(path).read_bytes()) for path in files.paths]
    contenders = [Contender(LOOSE, partial(_run_warm, LOOSE, partial(read_loose, files.paths), truth, _orders(count)))]
    pairs: list[Pair] = []
    known = KnownRanges(next(iter(outputs.values())))
    for name, in_map in (("pread and digest alone", False), ("mapped, digest alone", True)):
        contenders.append(Contender(name, partial(_run_warm, name, partial(read_ranges, known, in_map), truth, _orders(count))))
        pairs.append(Pair(name, LOOSE))
    for format_name, output in outputs.items():
        prove_packed(output, folder)
        mapped = open_dataset(output, output="bytes", mmap=True)
        unverified = open_dataset(output, output="bytes", mmap=True, verify=False)
        private = open_dataset(output, output="bytes")
        ways: list[tuple[str, Digests, Reads | None, float]] = [
            ("private bytes", partial(read_samples, private), partial(read_verified, private), PRIVATE_BUDGET),
            ("mmap", partial(read_samples, mapped), partial(read_verified, mapped), MAPPED_BUDGET),
            ("views, mmap, unverified", partial(read_views, unverified), None, VIEW_BUDGET),
        ]
        for way, digests, timed, budget in ways:
            name = f"{way}, {format_name}"
            contenders.append(Contender(name, partial(_run_warm, name, digests, truth, _orders(count), timed)))
            pairs.append(Pair(name, LOOSE, budget))
    return compare_pairs(contenders, pairs, measure=Measure.RATE, files=WARM_EPOCHS * count, repeat=repeat)


def compare_cold(work: Path, *, count: int, repeat: int, formats: Sequence[str]) -> tuple[list[Result], dict[str, object]]:
    """Time random batches when nothing is in the page cache; arguments and errors are those of ``compare_warm``.

    Returns:
        The results, none where files cannot be dropped from the page cache, and what was dropped and read.
    """
    _, files, outputs = _make_inputs(work, count, formats)
    truth = [xxh3_64_intdigest(Path(path).read_bytes()) for path in files.paths]
    loose = [Path(path) for path in files.paths]
    containers = [path for output in outputs.values() for path in output.iterdir()]
    drop([*loose, *containers])
    left, before = cached_share([path for path in [*loose, *containers] if path.stat().st_size]), disk_bytes_read()
    read_loose(files.paths, range(min(BATCH, count)))
    counted = (disk_bytes_read() - before) / sum(path.stat().st_size for path in loose[:BATCH])
    facts: dict[str, object] = {"cached_after_dropping": round(left, 4)}
    if left > MOST_CACHED or counted < LEAST_COUNTED:
        cause = (
            f"{left:.0%} of the pages stay in the cache when they are dropped, {counted:.0%} of what is read comes from a disk"
        )
        print(f"cold reads are left out: {cause}", file=sys.stderr)
        return [], {"cold": {**facts, "left_out": cause}}
    read: dict[str, int] = {}
    size, random = files.size_bytes, _orders(count)
    run_loose = partial(_run_cold, LOOSE, partial(read_loose, files.paths), truth, size, random, loose, read)
    contenders = [Contender(LOOSE, run_loose)]
    pairs: list[Pair] = []
    for format_name, output in outputs.items():
        paths = [path for path in output.iterdir() if path.stat().st_size]
        data = open_dataset(output, output="bytes")
        ways: list[tuple[str, Digests, float | None]] = [
            ("cold batches", partial(read_batches, data), COLD_BUDGET),
            ("cold samples, not asked ahead", partial(read_samples, data), None),
        ]
        for way, digests, budget in ways:
            name = f"{way}, {format_name}"
            contenders.append(Contender(name, partial(_run_cold, name, digests, truth, size, _orders(count), paths, read)))
            pairs.append(Pair(name, LOOSE, budget))
    results = compare_pairs(contenders, pairs, measure=Measure.RATE, files=count, repeat=repeat)
    return results, {"cold": {**facts, "sample_bytes": size, "least_disk_bytes_read": read}}


def read_ranges(known: KnownRanges, mapped: bool, order: Sequence[int]) -> list[int]:
    """What a reader that costs nothing would take: nothing but reading (or having mapped) and digesting known ranges."""
    found: list[int] = []
    for number in order:
        shard, offset, size = known.ranges[number]
        view = known.maps[shard][offset : offset + size] if mapped else os.pread(known.descriptors[shard], size, offset)
        found.append(xxh3_64_intdigest(view))
    return found


def read_loose(paths: Sequence[str], order: Sequence[int]) -> list[int]:
    """Read loose files one by one."""
    digests: list[int] = []
    for index in order:
        descriptor = os.open(paths[index], os.O_RDONLY)
        digests.append(xxh3_64_intdigest(os.read(descriptor, os.fstat(descriptor).st_size)))
        os.close(descriptor)
    return digests


def read_samples(data: PackedDataset, order: Sequence[int]) -> list[int]:
    """Read samples one by one."""
    return [xxh3_64_intdigest(data[index][0]) for index in order]


def read_verified(data: PackedDataset, order: Sequence[int]) -> None:
    """Read samples one by one; the reader compares their digests."""
    for index in order:
        data[index]


def read_views(data: Any, order: Sequence[int]) -> list[int]:
    """Look at samples one by one, without a copy."""
    digests: list[int] = []
    for index in order:
        with data.view(index) as view:
            digests.append(xxh3_64_intdigest(view))
    return digests


def read_batches(data: Any, order: Sequence[int]) -> list[int]:
    """Read samples as a DataLoader does, 64 at once."""
    digests: list[int] = []
    for start in range(0, len(order), BATCH):
        digests += [xxh3_64_intdigest(payload) for payload, _ in data.__getitems__(order[start : start + BATCH])]
    return digests


def _make_inputs(work: Path, count: int, formats: Sequence[str]) -> tuple[Path, SourceFiles, dict[str, Path]]:
    """Photographs and what they are packed into, made where they are not there yet."""
    folder = work / f"photos-{count}"
    if not folder.exists():
        make_photos(folder, count)
    outputs = {name: work / f"photos-{count}.{name}" for name in formats}
    for name, output in outputs.items():
        if not output.exists():
            pack_folder(folder, PackOptions(format=name, output=output, check="none"))
    return folder, SourceFiles.of(folder), outputs


def _orders(count: int) -> Iterator[list[int]]:
    """Random orders without end, the same ones for each contender."""
    random = np.random.default_rng(0)
    while True:
        yield random.permutation(count).tolist()


def _run_warm(name: str, digests: Digests, truth: list[int], orders: Iterator[list[int]], timed: Reads | None = None) -> float:
    seconds = 0.0
    for _ in range(WARM_EPOCHS):
        order = next(orders)
        start = perf_counter()
        if timed:
            timed(order)
            seconds += perf_counter() - start
            given = digests(order)
        else:
            given = digests(order)
            seconds += perf_counter() - start
        _prove_digests(name, given, order, truth)
    return seconds


def _run_cold(
    name: str,
    digests: Digests,
    truth: list[int],
    size_bytes: int,
    orders: Iterator[list[int]],
    paths: Sequence[Path],
    read: dict[str, int],
) -> float:
    order = next(orders)
    drop(paths)
    cached, before = cached_share(paths), disk_bytes_read()
    start = perf_counter()
    given = digests(order)
    seconds = perf_counter() - start
    from_disk = disk_bytes_read() - before
    _prove_digests(name, given, order, truth)
    if cached > MOST_CACHED or from_disk < LEAST_COUNTED * size_bytes:
        raise WrongDataError(f"{name}: not cold: {cached:.1%} was cached, {from_disk:,} of {size_bytes:,} bytes were read")
    read[name] = min(from_disk, read.get(name, from_disk))
    return seconds


def _prove_digests(name: str, given: list[int], order: list[int], truth: list[int]) -> None:
    if given != [truth[index] for index in order]:
        raise WrongDataError(f"{name}: the bytes of a sample differ from those of its file")
