"""A checking worker: reads lists of files from standard input, writes verdicts to standard output, until it is told to end.

One JSON document a line each way. Not pickle: a decoder that a hostile file has taken over must not be able to run code
in the process that packs. Bytes travel as Latin-1 text.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, BinaryIO

from packer.check import CheckSettings, load_decoders
from packer.model import Kept, Note, Skipped, Verdict

__all__ = ["decode_verdict", "encode_verdict", "main"]

_PR_SET_PDEATHSIG = 1  # prctl(2)

_RLIMIT_BASE_BYTES = 512 << 20
_RLIMIT_BYTES_A_PIXEL = 10  # a progressive JPEG keeps 6 for its coefficients and Pillow 4; a lossless WebP 4 and 4
_RLIMIT_FILE_COPIES = 4
_COMMON_FILE_BYTES = 64 << 20
_MAX_FILE_BYTES = 16 << 20  # of standard error, the only file that a worker writes

CheckFunction = Callable[[bytes, CheckSettings, str], Verdict]


def encode_verdict(verdict: Verdict) -> list[Any]:
    """A verdict as plain JSON values."""
    if isinstance(verdict, Skipped):
        return [verdict.code, verdict.detail]
    return [
        verdict.type,
        verdict.size_bytes,
        verdict.digest,
        verdict.mode,
        verdict.width,
        verdict.height,
        verdict.frames,
        verdict.orientation,
        verdict.header.decode("latin-1"),
        [(note.code, note.detail) for note in verdict.warnings],
    ]


def decode_verdict(values: list[Any]) -> Verdict:
    """The inverse of ``encode_verdict``."""
    if len(values) == 2:
        return Skipped(*values)
    kind, size_bytes, digest, mode, width, height, frames, orientation, header, notes = values
    warnings = tuple(Note(*note) for note in notes)
    return Kept(kind, size_bytes, digest, mode, width, height, frames, orientation, header.encode("latin-1"), warnings)


def main() -> None:
    """Serve until standard input ends. The first line says how to check."""
    _die_with_parent()
    _write_no_large_file()
    answers = _take_over_stdout()
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    first = sys.stdin.buffer.readline()
    if not first:
        return
    start = json.loads(first)
    load_decoders()
    check = _resolve(start["check"])
    settings = CheckSettings(**start["settings"])
    root = start["root"].encode("latin-1")
    memory = _MemoryLimit(settings.max_pixels)
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()
    _answer(answers, "ready")
    while True:
        verdicts = []
        for name, checksum in json.loads(requests.get()):
            path = os.path.join(root, name.encode("latin-1"))
            memory.allow(path)
            try:
                verdict = check(path, settings, checksum)
            except MemoryError:
                verdict = Skipped("too_large", "checking it takes more memory than a worker may have")
            verdicts.append(encode_verdict(verdict))
        _answer(answers, verdicts)


class _MemoryLimit:
    """Linux: bounds what one file may make its decoder allocate, beyond what the worker holds anyway.

    A few bytes can ask for all the memory of the machine, and then the kernel ends any process of the user, often the wrong
    one. With the limit the decoder fails, and costs its file. Elsewhere nothing is bounded.
    """

    def __init__(self, max_pixels: int) -> None:
        self._base = 0
        self._current = 0
        if not sys.platform.startswith("linux"):
            return
        import resource

        with open("/proc/self/statm") as statm:  # noqa: PTH123
            at_rest = int(statm.read().split()[0]) * resource.getpagesize()
        self._base = at_rest + _RLIMIT_BASE_BYTES + _RLIMIT_BYTES_A_PIXEL * max_pixels
        self._physical = os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()
        self._hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        self._set = resource.setrlimit
        self._what = resource.RLIMIT_AS
        self._unlimited = resource.RLIM_INFINITY

    def allow(self, path: bytes) -> None:
        """Set the limit for a file; a larger one may take more."""
        if not self._base:
            return
        try:
            size = os.stat(path).st_size
        except OSError:
            size = 0
        wanted = self._base + _RLIMIT_FILE_COPIES * (size if size > _COMMON_FILE_BYTES else _COMMON_FILE_BYTES)
        wanted = min(wanted, self._base + self._physical)  # what is larger than the memory cannot be read, only swapped
        if self._hard != self._unlimited:
            wanted = min(wanted, self._hard)
        if wanted != self._current:
            self._set(self._what, (wanted, self._hard))
            self._current = wanted


def _die_with_parent() -> None:
    """Linux: be killed when the packing process is, even while a decoder hangs without ever letting another thread run."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _write_no_large_file() -> None:
    """A hundred crashes must not fill the disk with the memory of a hundred workers, nor one decoder with its complaints."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        if hard == resource.RLIM_INFINITY or hard > _MAX_FILE_BYTES:
            resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_FILE_BYTES, _MAX_FILE_BYTES))


def _read_requests(requests: queue.SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        requests.put(line)
    # The packing process is done, or was killed: end at once, even in the middle of a file whose decoder hangs.
    os._exit(0)


def _take_over_stdout() -> BinaryIO:
    """Keep the pipe to ourselves and point descriptor 1 at standard error: C libraries print, and must not into it."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def _answer(answers: BinaryIO, value: object) -> None:
    answers.write(json.dumps(value, separators=(",", ":")).encode() + b"\n")
    answers.flush()


def _resolve(name: str) -> CheckFunction:
    module, _, attribute = name.partition(":")
    function: CheckFunction = getattr(importlib.import_module(module), attribute)
    return function
