"""One checking process (``packer.check.worker``) as the packing process sees it: started, asked, timed, ended."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from typing import IO

from packer.check.worker import decode_verdict
from packer.children import Child, end_child, how_it_ended, start_child
from packer.errors import PackerError
from packer.model import Skipped, Verdict
from packer.nursery import WORKER_MODULE, ForkedWorker, Nursery

__all__ = ["Worker", "WorkerFailure", "no_thread"]

_MAX_ERROR_BYTES = 1 << 20
_STARTS = 10  # of a worker that is ended from outside while it starts
_START_S = 300.0  # until a worker has loaded its decoders; a network folder may be slow
_ENDED_FROM_OUTSIDE = frozenset({-1, -2, -9, -15})  # SIGHUP, SIGINT, SIGKILL (also for lack of memory), SIGTERM


class WorkerFailure(Exception):  # noqa: N818 - a verdict on the file
    """A worker died, or was killed since it took too long.

    Attributes:
        verdict: on the file, where there was only one.
        sure: whether the file is at fault then.
    """

    def __init__(self, verdict: Skipped, *, sure: bool) -> None:
        super().__init__(verdict.detail)
        self.verdict = verdict
        self.sure = sure


class _TimeLimit:
    """Kills a process that takes too long. It is told of the time that passes, by ticks, and reads no clock."""

    def __init__(self) -> None:
        self._process: Child | None = None
        self._left = 0.0
        self._is_over = False
        self._lock = threading.Lock()

    def begin(self, process: Child, seconds: float) -> None:
        """Count from here on."""
        with self._lock:
            self._process, self._left, self._is_over = process, seconds, False

    def end(self) -> bool:
        """Count no more; returns whether the process was killed."""
        with self._lock:
            self._process = None
            return self._is_over

    def tick(self, seconds: float) -> None:
        """So much time has passed since the last tick; some of it maybe before ``begin``, so that it counts one tick later."""
        with self._lock:
            if self._process is not None and not self._is_over:
                self._is_over = self._left <= 0
                self._left -= seconds
                if self._is_over:
                    self._process.kill()


class Worker:
    """One child process, started anew after each death.

    Args:
        greeting: the line that says how to check.
        timeout_s: seconds that one request may take.
        nursery: gives the process where there is one; without, it is an interpreter of its own.
    """

    def __init__(self, greeting: bytes, timeout_s: float, nursery: Nursery | None = None) -> None:
        self._greeting = greeting
        self._timeout_s = timeout_s
        self._nursery = nursery
        self._process: Child | None = None
        self._ready = False
        self._files = 0  # that the process has judged
        self._stopped = False
        self._lock = threading.Lock()  # a worker that is being stopped must not be started again by its thread
        self._limit = _TimeLimit()
        self._errors = _memory_file()

    def start(self) -> Child:
        """Start the process, the old one's end included, and do not wait until it serves.

        Raises:
            PackerError: it cannot be started, or ``stop`` was called.
        """
        with self._lock:
            if self._stopped:
                raise PackerError("the checking workers were stopped")
            end_child(self._process)
            self._ready, self._files = False, 0
            try:
                self._process = process = self._new_process()
            except OSError as error:
                raise PackerError(
                    f"a checking worker cannot be started ({sys.executable}): {error.strerror}. Fewer --workers may help."
                ) from error
        _write(process, self._greeting)
        return process

    def _new_process(self) -> Child:
        if self._nursery:
            try:
                return self._nursery.fork(self._errors)
            except OSError:
                self._nursery = None  # it has ended
        return start_child(WORKER_MODULE, stderr=self._errors)

    def ask(self, files: list[tuple[str, str]]) -> list[Verdict]:
        """Have files judged, each given by its name and its checksum.

        Raises:
            WorkerFailure: the process died, or had to be killed since it took too long.
            PackerError: it cannot be started.
        """
        process = self._serving()
        is_new = not self._files
        self._limit.begin(process, self._timeout_s)
        _write(process, json.dumps(files, separators=(",", ":")).encode() + b"\n")
        answer = _read_line(process)
        is_over = self._limit.end()
        if answer.endswith(b"\n"):
            verdicts = _verdicts(answer)
            if len(verdicts) == len(files):
                self._files += len(files)
                self._forget_words()
                return verdicts
            process.kill()  # a decoder that a hostile file has taken over, or that wrote into memory that is not its own
        status = process.wait()
        if is_over:
            raise WorkerFailure(Skipped("timeout", f"not checked within {self._timeout_s:g} s"), sure=True)
        how = Skipped("worker_died", f"the process that checked it {how_it_ended(status)}")
        raise WorkerFailure(how, sure=is_new and status not in _ENDED_FROM_OUTSIDE)

    def tick(self, seconds: float) -> None:
        """So much time has passed since the last call: what takes too long is ended; from any thread."""
        self._limit.tick(seconds)

    def stop(self) -> None:
        """End the process for good, whatever it is doing."""
        with self._lock:
            self._stopped = True
        end_child(self._process)
        self._errors.close()

    def _serving(self) -> Child:
        """The process, started anew where it has died, once it has loaded its decoders."""
        for _ in range(_STARTS):
            process = self._process
            if process is None or process.poll() is not None:
                process = self.start()
            if self._ready:
                return process
            self._limit.begin(process, _START_S)
            line = _read_line(process)
            is_over = self._limit.end()
            self._ready = line.endswith(b"\n")
            if isinstance(process, ForkedWorker):
                process.pid = int(line or 0)
                if not self._ready:
                    self._nursery = None  # something is wrong with it
            if self._ready:
                return process
            status = process.wait()
            if is_over:
                raise PackerError(f"a checking worker did not start within {_START_S:g} s")
            if status not in _ENDED_FROM_OUTSIDE:
                break
        raise PackerError(f"a checking worker did not start: it {how_it_ended(status)}{self._last_words()}")

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


def _verdicts(answer: bytes) -> list[Verdict]:
    """What a worker answered, empty where it makes no sense."""
    try:
        return [decode_verdict(values) for values in json.loads(answer)]
    except (ValueError, TypeError, RecursionError):
        return []


def _write(process: Child, line: bytes) -> None:
    with contextlib.suppress(OSError):  # a process that died shows as an empty answer as well
        if process.stdin is not None:
            process.stdin.write(line)
            process.stdin.flush()


def _read_line(process: Child) -> bytes:
    return process.stdout.readline() if process.stdout is not None else b""


def _memory_file() -> IO[bytes]:
    """Where a worker's complaints go: memory on Linux, since a job must not need a folder for temporary files."""
    try:
        if hasattr(os, "memfd_create"):
            return os.fdopen(os.memfd_create("packer-worker-errors"), "w+b")
        import tempfile  # which loads OpenSSL

        return tempfile.TemporaryFile()
    except OSError as error:
        raise PackerError(f"a checking worker cannot be started: {error.strerror}. Fewer --workers may help.") from error


def no_thread(error: RuntimeError) -> PackerError:
    """The error of a system that gives no more threads."""
    return PackerError(f"a checking worker cannot be served: {error}. Fewer --workers may help.")
