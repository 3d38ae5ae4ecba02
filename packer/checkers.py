"""A pool of checking workers whose death or hang costs one file.

A worker is a plain child process that reads names and writes verdicts (``packer.check.worker``); each is driven by one
thread here. Files go out in chunks; a chunk whose worker dies or exceeds its time is run again file by file, and a file is
convicted only when it fails alone. Verdicts come back in the order of the files, and run ahead of their consumer by a
bounded distance.

Why not multiprocessing or pebble: both start their workers through ``__main__``, which runs a user's script again where it
has no ``if __name__ == "__main__"`` (pebble then raises BrokenProcessPool), and both leave a resource tracker that prints
when the parent is killed. Measured on two cores: 20 deaths in a row cost pebble 1.03 s.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any

from packer.check import CheckSettings
from packer.check.worker import decode_verdict
from packer.checksums import Checksums
from packer.errors import PackerError
from packer.model import Skipped, Source, Verdict

__all__ = ["CheckPool"]

_CHUNK_FILES = 32
_CHUNK_BYTES = 4 << 20
_AHEAD_PER_WORKER = 16  # chunks; with the default chunk that is at most 64 MB a worker in the page cache
_MAX_ERROR_BYTES = 1 << 20
_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from packer.check.worker import main; main()"

# A session of its own: Ctrl-C in a terminal goes to the packing process alone, which then ends its workers.
_PLATFORM: dict[str, Any] = (
    {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
    if sys.platform == "win32"
    else {"start_new_session": True}
)


class CheckPool:
    """Judges the files of one folder in worker processes.

    Args:
        root: the folder that names are relative to.
        settings: how files are checked.
        workers: number of worker processes.
        timeout_s: seconds that one file may take.
        check: ``module:function`` that judges one file, as ``packer.check.check_source`` does.
        checksums: what the user's list says of the files.
    """

    def __init__(
        self,
        root: bytes,
        settings: CheckSettings,
        workers: int,
        timeout_s: float,
        check: str = "packer.check:check_source",
        checksums: Checksums | None = None,
    ) -> None:
        start = {"root": root.decode("latin-1"), "settings": dataclasses.asdict(settings), "check": check}
        self._checksums = checksums
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._workers = [_Worker(json.dumps(start).encode() + b"\n", timeout_s) for _ in range(workers)]
        try:
            for worker in self._workers:
                worker.start()  # all at once, and before the scan: loading the decoders takes a quarter of a second
                self._idle.put(worker)
        except PackerError:
            for worker in self._workers:
                worker.stop()
            raise
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="packer-check")

    def close(self) -> None:
        """End all workers, whatever they are doing."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.stop()
        self._threads.shutdown(wait=True)

    def verdicts(self, sources: Iterable[Source]) -> Iterator[tuple[Source, Verdict]]:
        """Judge files in parallel; results come in the order of the files."""
        pending: deque[tuple[list[Source], Future[list[Verdict]]]] = deque()
        for chunk in _chunks(sources):
            pending.append((chunk, self._threads.submit(self._judge, [source.name for source in chunk])))
            while len(pending) >= _AHEAD_PER_WORKER * len(self._workers):
                yield from _settle(*pending.popleft())
        while pending:
            yield from _settle(*pending.popleft())

    def recheck(self, name: bytes) -> Verdict:
        """Judge one file now."""
        return self._threads.submit(self._judge, [name]).result()[0]

    def _judge(self, names: list[bytes]) -> list[Verdict]:
        worker = self._idle.get()
        try:
            try:
                return self._ask(worker, names)
            except _WorkerFailure:
                return [self._judge_alone(worker, name) for name in names]
        finally:
            self._idle.put(worker)

    def _judge_alone(self, worker: _Worker, name: bytes) -> Verdict:
        try:
            return self._ask(worker, [name])[0]
        except _WorkerFailure as failure:
            return failure.verdict

    def _ask(self, worker: _Worker, names: list[bytes]) -> list[Verdict]:
        expected = self._checksums.expected if self._checksums else lambda name: ""
        return worker.ask([(name.decode("latin-1"), expected(name)) for name in names])


def _chunks(sources: Iterable[Source]) -> Iterator[list[Source]]:
    chunk: list[Source] = []
    size = 0
    for source in sources:
        if chunk and (len(chunk) == _CHUNK_FILES or size + source.size_bytes > _CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(source)
        size += source.size_bytes
    if chunk:
        yield chunk


def _settle(chunk: list[Source], future: Future[list[Verdict]]) -> Iterator[tuple[Source, Verdict]]:
    return zip(chunk, future.result(), strict=True)


class _WorkerFailure(Exception):  # noqa: N818 - a verdict on the file
    def __init__(self, verdict: Skipped) -> None:
        super().__init__(verdict.detail)
        self.verdict = verdict


class _Worker:
    """One child process, started anew after each death."""

    def __init__(self, greeting: bytes, timeout_s: float) -> None:
        self._greeting = greeting
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._stopped = False
        self._lock = threading.Lock()  # a worker that is being stopped must not be started again by its thread
        self._errors: IO[bytes] = tempfile.TemporaryFile()

    def start(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._stopped:
                raise PackerError("the checking workers were stopped")
            _end(self._process)
            self._ready = False
            try:
                self._process = process = subprocess.Popen(
                    [sys.executable, "-c", _BOOT, json.dumps(sys.path)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._errors,
                    **_PLATFORM,
                )
            except OSError as error:
                raise PackerError(f"a checking worker cannot be started ({sys.executable}): {error.strerror}") from error
        _write(process, self._greeting)
        return process

    def ask(self, files: list[tuple[str, str]]) -> list[Verdict]:
        """Have files judged, each given by its name and its checksum.

        Raises:
            _WorkerFailure: the process died, or had to be killed since it took too long.
        """
        process = self._process
        if process is None or process.poll() is not None:
            process = self.start()
        self._await_ready(process)
        request = json.dumps(files, separators=(",", ":")).encode() + b"\n"
        late = threading.Event()
        timer = threading.Timer(self._timeout_s, _kill_late, (process, late))
        timer.daemon = True
        timer.start()
        try:
            _write(process, request)
            answer = _read_line(process)
        finally:
            timer.cancel()
        if answer.endswith(b"\n"):
            self._forget_words()
            return [decode_verdict(values) for values in json.loads(answer)]
        process.wait()
        if late.is_set():
            raise _WorkerFailure(Skipped("timeout", f"not checked within {self._timeout_s:g} s"))
        raise _WorkerFailure(Skipped("worker_died", f"the process that checked it {_how_it_ended(process.returncode)}"))

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
        _end(self._process)
        self._errors.close()

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        if self._ready:
            return
        if not _read_line(process).endswith(b"\n"):
            process.wait()
            raise PackerError(f"a checking worker did not start: it {_how_it_ended(process.returncode)}{self._last_words()}")
        self._ready = True

    def _forget_words(self) -> None:
        """Decoders print their complaints by the million; the file is shared with the worker, its position included."""
        with contextlib.suppress(ValueError):  # closed: the job is being ended
            if self._errors.seek(0, os.SEEK_END) > _MAX_ERROR_BYTES:
                self._errors.seek(0)
                self._errors.truncate()

    def _last_words(self) -> str:
        if self._stopped:
            return ""
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return f" ({lines[-1]})" if lines else ""


def _write(process: subprocess.Popen[bytes], line: bytes) -> None:
    with contextlib.suppress(OSError):  # a process that died shows as an empty answer as well
        if process.stdin is not None:
            process.stdin.write(line)
            process.stdin.flush()


def _read_line(process: subprocess.Popen[bytes]) -> bytes:
    return process.stdout.readline() if process.stdout is not None else b""


def _end(process: subprocess.Popen[bytes] | None) -> None:
    """Kill a process, if it still runs, and close its pipes."""
    if process is None:
        return
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError, ValueError):
                pipe.close()


def _kill_late(process: subprocess.Popen[bytes], late: threading.Event) -> None:
    late.set()
    process.kill()


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = ", probably for lack of memory" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"
