"""Decode every sample of a packed dataset in worker processes, of which a crafted sample may end one."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from packer.check import CheckSettings
from packer.checkers import CheckPool
from packer.cpus import available_cpus
from packer.errors import DatasetError
from packer.model import DEFAULT_MAX_PIXELS, TYPES_BY_NAME, Kept, Skipped, Source, Verdict
from packer.store import Store

__all__ = ["decode_findings", "decode_sample"]

_TIMEOUT_S = 300.0  # of a chunk of samples
_MOST_PIXELS = 10 * DEFAULT_MAX_PIXELS  # that the word of a dataset is taken for
_LARGE_BYTES = 64 << 20  # a smaller sample is within what a worker may have anyway
_COPIES = 4
_SOUND = Kept("", 0, 0)


def decode_findings(store: Store, wrong: NDArray[np.bool_]) -> Iterator[int | tuple[int, str]]:
    """Decode the samples of a dataset, pictures to the pixels in the file and arrays to an array.

    Args:
        store: the dataset.
        wrong: which samples need no decoding, since they are known to be damaged: bool, shape (samples,).

    Yields:
        The number of each sample that was decoded, and before it that number and the problem where it could not be.

    Raises:
        PackerError: no process can be started.
    """
    sources = (
        Source(number, b"%d" % number, record.size, 0, record.label) for number, record in store.records() if not wrong[number]
    )
    pool = CheckPool(
        os.fsencode(store.path),
        CheckSettings(max_pixels=_max_pixels(store)),
        min(available_cpus(), len(store)),
        _TIMEOUT_S,
        "packer.decodable:decode_sample",
    )
    try:
        for source, verdict in pool.verdicts(sources):
            if isinstance(verdict, Skipped):
                yield source.index, f"cannot be decoded: {verdict.detail}"
            yield source.index
    finally:
        pool.close()


def _max_pixels(store: Store) -> int:
    """What it was packed with: more than the reader takes by itself is then no damage."""
    packed_with = store.manifest.options.get("max_pixels")
    if not isinstance(packed_with, int):
        return DEFAULT_MAX_PIXELS
    return max(DEFAULT_MAX_PIXELS, min(packed_with, _MOST_PIXELS))


def decode_sample(path: bytes, settings: CheckSettings, checksum: str = "") -> Verdict:
    """Decode one sample; runs in a checking worker, in the place of ``packer.check.check_source``.

    Args:
        path: the dataset's folder, and in it the number of the sample.
        settings: their limit of pixels is the one that holds.
        checksum: there is none.
    """
    folder, number = os.path.split(path)
    try:
        _decode(_opened(os.fsdecode(folder)), int(number), settings.max_pixels)
    except DatasetError as error:
        return Skipped("unreadable", error.problem)
    except MemoryError:
        return Skipped("too_large", "decoding it takes more memory than a worker may have")
    # Any class may come out of a decoder.
    except Exception as error:  # noqa: BLE001
        return Skipped("corrupt", f"{type(error).__name__}: {error}"[:500])
    return _SOUND


@functools.lru_cache(maxsize=1)
def _opened(folder: str) -> Store:
    """The dataset, once in a worker. Without torch, which takes seconds to load and does nothing here but resize."""
    if "packer.tensors" not in sys.modules:
        sys.modules["torch"] = None  # type: ignore[assignment]
    return Store(folder)


def _decode(store: Store, number: int, max_pixels: int) -> None:
    from packer.decode import ReadOptions, decode_array, decode_picture

    record = store.index[number]
    with _room_for(len(store.manifest.header) + record.size):
        payload = store.payload(number, record)
        if record.type == TYPES_BY_NAME["npy"].code:
            decode_array(payload)
        else:
            decode_picture(payload, record, ReadOptions(output="numpy", mode=None, max_pixels=max_pixels))


@contextmanager
def _room_for(size: int) -> Iterator[None]:
    """Linux: the limit of a worker's memory does not know how large the sample is."""
    if size <= _LARGE_BYTES or not sys.platform.startswith("linux"):
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        wanted = soft + _COPIES * size
        resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
