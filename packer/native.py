"""Read a packed dataset through its container's own library, in a process of its own: the second road to every payload.

The C libraries under lmdb and h5py crash on crafted files, and some wait for ever. So a child process reads, digests and
compares, and says so in lines of JSON: a number for each sample that was read, ``[number, problem]`` for what is not as the
index says (the number is ``null`` where it is about the container), ``"end"`` at the end. Payloads never travel. The last
number that arrived says how far it came when it dies.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer import formats
from packer.children import TICK_S, begin_child, end_child, end_with_parent, how_it_ended, start_child
from packer.errors import DatasetError, PackerError
from packer.index import Index
from packer.manifest import Manifest, load_manifest
from packer.model import display_name
from packer.store import Store

__all__ = ["main", "native_findings"]

_SILENCE_S = 600.0  # without a sample; one may be many gigabytes on a slow server, and a library may sort before the first
_MAX_LINE_BYTES = 1 << 16
_MAX_PROBLEM = 500  # characters; a library may repeat what a crafted file holds
_MEMORY_BASE_BYTES = 2 << 30
_MEMORY_COPIES = 4  # of the container: its map, and a sample that is all of it, twice
_END = "end"
_READY = "ready"


# ------------------------------------------------------------------------------------------------ the process that asks


def native_findings(store: Store, wrong: NDArray[np.bool_]) -> Iterator[int | tuple[int | None, str]]:
    """Have every sample read through the container's own library, and compared with the index.

    Args:
        store: the dataset.
        wrong: which samples are known to be damaged, and are not named again: bool, shape (samples,).

    Yields:
        The number of each sample read, and before it what is wrong with that sample: number and problem. The number is
        ``None`` where it is about the container as a whole, such as a library that crashed, hangs or gives up; then that is
        the last.

    Raises:
        PackerError: the process that reads cannot be started.
    """
    manifest = store.manifest
    if manifest.format not in formats.names():
        yield None, f"no format {manifest.format!r} is known; there are {', '.join(formats.names())}"
        return
    try:
        process = start_child(__name__, os.fspath(store.path), stderr=subprocess.DEVNULL)
    except OSError as error:
        raise PackerError(f"the process that reads cannot be started ({sys.executable}): {error.strerror}") from error
    with _Listener(process) as listener:
        if listener.next() != _READY:
            raise PackerError(f"the process that reads did not start: it {listener.how_it_ended()}")
        for said in _told(listener, manifest):
            if isinstance(said, int) or said[0] is None or not wrong[said[0]]:
                yield said


def _told(listener: _Listener, manifest: Manifest) -> Iterator[int | tuple[int | None, str]]:
    read = 0
    named = -1
    while True:
        # Nothing else than what must come now: a file that has taken the process over must not talk for ever.
        match listener.next():
            case int(number) if number == read < manifest.samples:
                read += 1
                yield number
            case [int(number), str(problem)] if named < number == read < manifest.samples:
                named = number
                yield number, problem
            case [None, str(problem)]:
                yield None, problem
                return
            case "end" if read == manifest.samples:
                return
            case _:
                break
    place = f"behind sample {read - 1}" if read else "before the first sample"
    yield (
        None,
        f"the process that reads through {manifest.format} {listener.how_it_ended()} {place}; "
        f"{manifest.samples - read:,} of {manifest.samples:,} samples were not reached",
    )


class _Listener:
    """Reads what a process says; kills it when it says nothing for too long, and when the context ends.

    Short waits are counted, and no clock is read, so that a job which stood still for an hour (Ctrl-Z) finds nothing too slow;
    and they are counted only while somebody listens.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._remaining = _SILENCE_S
        self._is_listening = False
        self._is_over = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> _Listener:
        try:
            self._thread.start()
        except RuntimeError as error:
            end_child(self._process)
            raise PackerError(f"the process that reads cannot be watched: {error}") from error
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        end_child(self._process)
        self._thread.join()

    def next(self) -> Any:
        """The next value, ``None`` where the process has ended or says what makes no sense."""
        if self._process.stdout is None:
            return None
        self._remaining = _SILENCE_S
        self._is_listening = True
        line = self._process.stdout.readline(_MAX_LINE_BYTES)
        self._is_listening = False
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            return None

    def how_it_ended(self) -> str:
        """For a process from which nothing more is to come."""
        if not self._is_over:
            # Its pipe closes a moment before it has ended. What still runs says nonsense: a file has taken it over.
            try:
                return how_it_ended(self._process.wait(TICK_S * 10))
            except subprocess.TimeoutExpired:
                return "said what makes no sense"
        return f"read nothing for {_SILENCE_S:g} s"

    def _watch(self) -> None:
        while not self._done.wait(TICK_S):
            if self._is_listening:
                self._remaining -= TICK_S
                if self._remaining <= 0:
                    self._is_over = True
                    self._process.kill()
                    return


# ----------------------------------------------------------------------------------------------- the process that reads


def main() -> None:
    """Read the dataset given as the last argument, and say on standard output what is wrong with it."""
    answers = begin_child()
    out = answers.fileno()
    sys.modules["torch"] = None  # type: ignore[assignment]  # webdataset loads it where it can, and takes seconds for it
    threading.Thread(target=end_with_parent, daemon=True).start()
    folder = Path(sys.argv[-1])
    manifest = load_manifest(folder)
    container = formats.get(manifest.format)
    _say(out, _READY)
    try:
        _limit_memory(manifest)
        index = Index(folder, manifest.samples)
        samples = container.read_native(folder, [shard.file for shard in manifest.shards], manifest.header)
        _compare(out, index, samples, manifest.format)
    # Any class may come out of a library that reads a crafted file.
    except Exception as error:  # noqa: BLE001
        problem = error.problem if isinstance(error, DatasetError) else f"{type(error).__name__}: {error}"
        _say(out, [None, f"{manifest.format} cannot read on: {problem}"[:_MAX_PROBLEM]])
    _say(out, _END)
    os._exit(0)  # what a library does at the end of a process is no part of reading


def _compare(out: int, index: Index, samples: Iterator[Any], via: str) -> None:
    count = 0
    for number, sample in enumerate(samples):
        if number == len(index):
            _say(out, [None, f"{via} reads more samples than the {len(index):,} in the index"])
            return
        count += 1
        record = index[number]
        problem = ""
        if xxhash.xxh3_64_intdigest(sample.payload) != record.digest:
            problem = f"through {via}, its bytes are not those that were packed (the digest differs)"
        elif sample.label is not None and sample.label != record.label:
            problem = f"through {via}, its label is {sample.label}, the index says {record.label}"
        elif sample.name is not None and sample.name != index.name(number):
            problem = f"through {via}, its name is {display_name(sample.name)!r}"
        if problem:
            _say(out, [number, problem[:_MAX_PROBLEM]])
        _say(out, number)
    if count < len(index):
        _say(out, [None, f"{via} reads only {count:,} of {len(index):,} samples"])


def _say(out: int, value: object) -> None:
    # Unbuffered: after a crash, what was said last is how far it came.
    os.write(out, json.dumps(value).encode() + b"\n")


def _limit_memory(manifest: Manifest) -> None:
    """Linux: a crafted file must not have the system end another process for want of memory."""
    if sys.platform.startswith("linux"):
        import resource

        with Path("/proc/self/statm").open() as statm:
            at_rest = int(statm.read().split()[0]) * resource.getpagesize()
        wanted = at_rest + _MEMORY_BASE_BYTES + _MEMORY_COPIES * manifest.size_bytes
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        if hard == resource.RLIM_INFINITY or wanted < hard:
            resource.setrlimit(resource.RLIMIT_AS, (min(wanted, sys.maxsize), hard))
