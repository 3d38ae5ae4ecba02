"""Reads hostile datasets in processes with little memory and little time, and tells how each of them ended.

Standard input is one JSON object: ``sound`` (a packed dataset), ``link`` (a path that may be made a link), ``cases`` (folders).
For each case and each of ``WAYS`` one JSON line is printed: ``case``, ``way``, ``end``, ``growth`` (of the resident memory in
bytes). ``end`` is ``refused`` (packer's error at open), ``refused: 3, 4`` (at these samples), ``read``, ``status 1`` and the
like for commands, or ``wrong: `` and what happened.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import resource
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from packer import open_dataset
from packer.cli.app import run
from packer.errors import DatasetError, InputError
from packer.labels import load_classes

__all__ = ["MEMORY_BYTES", "WAYS", "main"]

MEMORY_BYTES = 1_500_000_000
"""Address space that a process gets in addition to what it has."""
_SECONDS = 20
ENDLESS = ("a sample of half a terabyte",)
"""Cases in which a file is so large that digesting all of it, as verifying does, takes minutes."""
_MOST_TEXT = 4_000  # of a message, in characters


def _read(path: str, mmap: bool) -> str:
    """Every sample in every way; the numbers of those that are refused in any."""
    failed = set()
    for output in ("bytes", "numpy", "pil"):
        data = open_dataset(path, output=output, mmap=mmap)
        for i in range(len(data)):
            ways: list[Callable[[], Any]] = [
                lambda i=i, data=data: data[i],
                lambda i=i, data=data: data.__getitems__([i]),
                lambda i=i, data=data: data[[i]],
                lambda i=i, data=data: data.view(i).__enter__()[:1],
                lambda i=i, data=data: data.names[i],
                lambda i=i, data=data: data.ask_ahead([i]),
            ]
            for way in ways:
                try:
                    way()
                except DatasetError as error:
                    _require_short(str(error))
                    failed.add(i)
    return "read" if not failed else f"refused: {', '.join(map(str, sorted(failed)))}"


def _require_short(text: str) -> None:
    if len(text) > _MOST_TEXT or "Traceback" in text:
        raise RuntimeError(f"a message of {len(text):,} characters: {text[:200]}")


def _command(*words: str) -> str:
    messages = Path("messages")
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stderr(stack.enter_context(messages.open("w"))))
        stack.enter_context(contextlib.redirect_stdout(stack.enter_context(Path(os.devnull).open("w"))))
        status = run(list(words))
    _require_short(messages.read_text())
    return f"status {status}"


WAYS: dict[str, Callable[[str, bytes], str]] = {
    "read": lambda path, pickled: _read(path, False),
    "mapped": lambda path, pickled: _read(path, True),
    "unpickled": lambda path, pickled: f"read {len(pickle.loads(pickled))}",
    "info": lambda path, pickled: _command("info", path),
    "info --json": lambda path, pickled: _command("info", path, "--json"),
    "ls": lambda path, pickled: _command("ls", path),
    "verify": lambda path, pickled: _command("verify", "--quiet", path),
    "classes-from": lambda path, pickled: f"read {len(load_classes(Path(path)).label_of)}",
}
"""What is done with a dataset: by the library, with one that arrives pickled, and by commands."""


def _one(way: str, path: str, pickled: bytes) -> str:
    try:
        return WAYS[way](path, pickled)
    except (DatasetError, InputError) as error:
        _require_short(str(error))
        return "refused"


def _in_child(ways: list[str], path: str, pickled: bytes) -> list[dict[str, Any]]:
    """One way after the other in a process of its own, which a hostile dataset may end; the answers up to there."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
            for way in ways:
                try:
                    end = _one(way, path, pickled)
                except BaseException as error:
                    end = f"wrong: {type(error).__name__}: {str(error)[:500]}"
                growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before  # of the ways until now
                os.write(writer, json.dumps({"end": end, "growth": growth}).encode() + b"\n")
        finally:
            os._exit(0)
    os.close(writer)
    answers: list[dict[str, Any]] = []
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while True:
            hangs = not select.select([pipe], [], [], _SECONDS)[0]
            if hangs:
                os.kill(child, signal.SIGKILL)
            told = pipe.readline()
            if not told:
                break
            answers.append(json.loads(told))
    _, status = os.waitpid(child, 0)
    if len(answers) < len(ways):
        how = f"not done after {_SECONDS} s" if hangs else f"ended by {signal.Signals(os.WTERMSIG(status)).name}"
        answers.append({"end": f"wrong: {how}", "growth": 0})
    return answers


def _point(link: Path, target: str) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def main() -> None:
    """Read what standard input asks for."""
    asked = json.load(sys.stdin)
    link = Path(asked["link"])
    os.chdir(link.parent)
    _point(link, asked["sound"])
    data = open_dataset(link, output="numpy")
    for command in ("info", "ls", "verify"):  # loads all that is loaded on first use
        _command(command, str(link))
    list(data)
    pickled = pickle.dumps(data)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_BYTES, size + MEMORY_BYTES))
    for case in asked["cases"]:
        _point(link, case)
        ways = [way for way in WAYS if not (way == "verify" and Path(case).name in ENDLESS)]
        while ways:
            for answer in _in_child(ways, case, pickled):
                sys.stdout.write(json.dumps({"case": Path(case).name, "way": ways.pop(0), **answer}) + "\n")
            sys.stdout.flush()
