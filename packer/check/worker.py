"""A checking worker: reads lists of files from standard input, writes verdicts to standard output, until it is told to end.

One JSON document a line each way. Not pickle: a decoder that a hostile file has taken over must not be able to run code
in the process that packs. Bytes travel as Latin-1 text.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any, BinaryIO

from packer.check import CheckSettings, load_decoders
from packer.children import begin_child, end_with_parent
from packer.model import Kept, Note, Skipped, Verdict
from packer.nursery import serve

__all__ = ["decode_verdict", "encode_verdict", "main"]

_RLIMIT_BASE_BYTES = 512 << 20
_RLIMIT_BYTES_A_PIXEL = 10  # a progressive JPEG keeps 6 for its coefficients and Pillow 4; a lossless WebP 4 and 4
_RLIMIT_FILE_COPIES = 4
_COMMON_FILE_BYTES = 64 << 20

_FIRST_ARGUMENT = 3  # of a child process, see packer.children

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
    """Serve until standard input ends. The first line says how to check.

    With the number of a descriptor as argument, be a nursery instead (``packer.nursery``), and go on in each of its forks.
    """
    if len(sys.argv) > _FIRST_ARGUMENT:
        begin_child()
        load_decoders()
        serve(int(sys.argv[_FIRST_ARGUMENT]))
    answers = begin_child()
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    first = sys.stdin.buffer.readline()
    if not first:
        return
    start = json.loads(first)
    warnings.simplefilter("ignore")
    load_decoders()
    check = _resolve(start["check"])
    settings = CheckSettings(**start["settings"])
    root = start["root"].encode("latin-1")
    memory = _MemoryLimit(settings.max_pixels)
    threading.Thread(target=end_with_parent, args=(requests.put,), daemon=True).start()
    _answer(answers, os.getpid())
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


def _answer(answers: BinaryIO, value: object) -> None:
    answers.write(json.dumps(value, separators=(",", ":")).encode() + b"\n")
    answers.flush()


def _resolve(name: str) -> CheckFunction:
    module, _, attribute = name.partition(":")
    function: CheckFunction = getattr(importlib.import_module(module), attribute)
    return function
