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

from packer.check import CheckSettings
from packer.model import Kept, Note, Skipped, Verdict

__all__ = ["decode_verdict", "encode_verdict", "main"]

_PR_SET_PDEATHSIG = 1  # prctl(2)

CheckFunction = Callable[[bytes, CheckSettings], Verdict]


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
    answers = _take_over_stdout()
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    first = sys.stdin.buffer.readline()
    if not first:
        return
    start = json.loads(first)
    check = _resolve(start["check"])
    settings = CheckSettings(**start["settings"])
    root = start["root"].encode("latin-1")
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()
    _answer(answers, "ready")
    while True:
        names = json.loads(requests.get())
        _answer(answers, [encode_verdict(check(os.path.join(root, name.encode("latin-1")), settings)) for name in names])


def _die_with_parent() -> None:
    """Linux: be killed when the packing process is, even while a decoder hangs without ever letting another thread run."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


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
