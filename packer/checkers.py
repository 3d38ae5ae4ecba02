"""A pool of checking workers whose death or hang costs one file.

A worker is a plain child process that reads names and writes verdicts (``packer.check.worker``); each is driven by one
thread here. Files go out in chunks; a chunk whose worker dies or exceeds its time is run again file by file. A file is
convicted when its worker takes too long, or crashes with nothing else behind it: one that has judged other files may die of
what they did to its memory, and one that got SIGKILL or the like was ended from outside, so both are tried again. Verdicts
come back in the order of the files, and run ahead of their consumer by a bounded distance.
"""

from __future__ import annotations

import json
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from packer.check import CheckSettings
from packer.checksums import Checksums
from packer.children import TICK_S
from packer.model import Source, Verdict
from packer.nursery import Nursery, take_nursery
from packer.workers import Worker, WorkerFailure, no_thread

__all__ = ["CheckPool"]

_CHUNK_FILES = 128
_FIRST_FILES = 8  # of a chunk; each is twice the one before, so that few files are work for all workers
_CHUNK_BYTES = 8 << 20
_AHEAD_PER_WORKER = 8  # chunks; with the default chunk that is at most 64 MB a worker in the page cache
Known = Callable[[Source], Verdict | None]
_TRIES = 3  # of a file whose worker dies, each in a new process


class CheckPool:
    """Judges the files of one folder in worker processes.

    Args:
        root: the folder that names are relative to.
        settings: how files are checked.
        workers: number of worker processes.
        timeout_s: seconds that one file may take.
        check: ``module:function`` that judges one file, as ``packer.check.check_source`` does.
        checksums: what the user's list says of the files.
        record: called with files and their verdicts as soon as these are there, from any thread and in any order.
    """

    def __init__(
        self,
        root: bytes,
        settings: CheckSettings,
        workers: int,
        timeout_s: float,
        check: str = "packer.check:check_source",
        checksums: Checksums | None = None,
        record: Callable[[list[Source], list[Verdict]], None] = lambda sources, verdicts: None,
    ) -> None:
        start = {"root": root.decode("latin-1"), "settings": settings._asdict(), "check": check}
        self._checksums = checksums
        self._record = record
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._nursery: Nursery | None = take_nursery()
        greeting = json.dumps(start).encode() + b"\n"
        self._workers = [Worker(greeting, timeout_s, self._nursery) for _ in range(workers)]
        self._ends = threading.Event()
        self._clock = threading.Thread(target=self._tick, args=(min(TICK_S, timeout_s / 2),), daemon=True)
        try:
            # Before the scan, and all at once: loading the decoders takes a third of a second.
            for worker in self._workers:
                worker.start()
                self._idle.put(worker)
            try:
                self._clock.start()
            except RuntimeError as error:
                raise no_thread(error) from error
        except BaseException:
            self._stop_workers()
            raise
        # Two for each: while one takes in what a worker has found, the other has given it the next files.
        self._threads = ThreadPoolExecutor(2 * workers, thread_name_prefix="packer-check")

    def close(self) -> None:
        """End all workers, whatever they are doing."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._stop_workers()
        self._threads.shutdown(wait=True)
        self._clock.join()

    def _tick(self, seconds: float) -> None:
        """Tell the workers how time passes."""
        while not self._ends.wait(seconds):
            for worker in self._workers:
                worker.tick(seconds)

    def _stop_workers(self) -> None:
        self._ends.set()
        for worker in self._workers:
            worker.stop()
        if self._nursery:
            self._nursery.close()

    def verdicts(self, sources: Iterable[Source], known: Known = lambda source: None) -> Iterator[tuple[Source, Verdict]]:
        """Judge files in parallel, but for those whose verdict is known; results come in the order of the files."""
        pending: deque[tuple[list[Source], Future[list[Verdict]] | list[Verdict]]] = deque()
        try:
            for chunk, found in _chunks(sources, known):
                pending.append((chunk, found or self._submit(chunk)))
                while len(pending) >= _AHEAD_PER_WORKER * len(self._workers):
                    yield from _settle(*pending.popleft())
            while pending:
                yield from _settle(*pending.popleft())
        finally:
            for _, verdicts in pending:  # who leaves early may ask for the same files again
                if isinstance(verdicts, Future):
                    verdicts.cancel()

    def recheck(self, source: Source) -> Verdict:
        """Judge one file now."""
        return self._submit([source]).result()[0]

    def _submit(self, sources: list[Source]) -> Future[list[Verdict]]:
        try:
            return self._threads.submit(self._judge, sources)
        except RuntimeError as error:
            raise no_thread(error) from error

    def _judge(self, sources: list[Source]) -> list[Verdict]:
        names = [source.name for source in sources]
        worker = self._idle.get()
        try:
            try:
                verdicts = self._ask(worker, names)
            except WorkerFailure:
                verdicts = [self._judge_alone(worker, name) for name in names]
        finally:
            self._idle.put(worker)
        self._record(sources, verdicts)
        return verdicts

    def _judge_alone(self, worker: Worker, name: bytes, tries: int = _TRIES) -> Verdict:
        try:
            return self._ask(worker, [name])[0]
        except WorkerFailure as failure:
            if failure.sure or tries == 1:
                return failure.verdict
            return self._judge_alone(worker, name, tries - 1)

    def _ask(self, worker: Worker, names: list[bytes]) -> list[Verdict]:
        expected = self._checksums.expected if self._checksums else lambda name: ""
        return worker.ask([(name.decode("latin-1"), expected(name)) for name in names])


def _chunks(sources: Iterable[Source], known: Known) -> Iterator[tuple[list[Source], list[Verdict]]]:
    """Files in a row with their verdicts, where these are known, or without any."""
    chunk: list[Source] = []
    verdicts: list[Verdict] = []
    size = 0
    most = min(_FIRST_FILES, _CHUNK_FILES)
    for source in sources:
        verdict = known(source)
        is_other = (verdict is None) == bool(verdicts)
        if chunk and (is_other or len(chunk) == most or size + source.size_bytes > _CHUNK_BYTES):
            yield chunk, verdicts
            chunk, verdicts, size, most = [], [], 0, min(2 * most, _CHUNK_FILES)
        chunk.append(source)
        if verdict is not None:
            verdicts.append(verdict)
        size += source.size_bytes
    if chunk:
        yield chunk, verdicts


def _settle(chunk: list[Source], verdicts: Future[list[Verdict]] | list[Verdict]) -> Iterator[tuple[Source, Verdict]]:
    return zip(chunk, verdicts if isinstance(verdicts, list) else verdicts.result(), strict=True)
