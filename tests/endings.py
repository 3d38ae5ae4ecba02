"""Scripts that end in every way there is, each in a process and session of its own, and what they leave behind.

An interpreter that has loaded torch and waits for scripts forks for each of them: loading it takes two seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cases.processes import script_command

__all__ = ["LIMIT_S", "End", "Stem"]

LIMIT_S = 8
"""From the mark to the end of a script; what waits for torch's workers, or for a whole batch, takes twice as long."""

_STEM = """
    import json, os, sys, time
    import gc, multiprocessing, threading
    import torch
    from packer import Loader, make_loader, open_dataset
    from tests.loading import *

    def mark():
        print("begun", flush=True)

    print("ready", flush=True)
    source = None
    for line in sys.stdin:
        path, source = json.loads(line)
        child = os.fork()
        if not child:
            os.setsid()
            where = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
            nothing = os.open(os.devnull, os.O_RDONLY)
            for number, file in enumerate((nothing, where, where)):
                os.dup2(file, number)
            break
        print("session", child, flush=True)
        print("ended", os.waitpid(child, 0)[1], flush=True)
        source = None
    if source:
        exec(source)
    """


@dataclass(frozen=True)
class End:
    """How a script ended: as ``subprocess`` gives it, what it wrote, and the processes that it left."""

    code: int
    text: str
    left: list[int]

    @property
    def tracebacks(self) -> int:
        return sum(line.startswith("Traceback") for line in self.text.splitlines())


class Stem:
    """The interpreter that waits for scripts.

    Args:
        folder: for what they write.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        command = script_command(_STEM, warnings=["error"])
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._line(60) == "ready"

    def run(self, source: str, send: signal.Signals | None = None) -> End:
        """Run a script, and send it and all that it started a signal when it has called ``mark``."""
        self._count += 1
        written = self._folder / f"{self._count}.txt"
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([str(written), source]).encode() + b"\n")
        self._process.stdin.flush()
        child = self._number("session", 60)
        try:
            begun = time.monotonic()
            while not (written.exists() and "begun" in written.read_text()):
                assert time.monotonic() < begun + 60, written.read_text()
                if select.select([self._process.stdout], [], [], 0.02)[0]:
                    break  # it has ended
            if send is not None:
                os.killpg(child, send)
            status = os.waitstatus_to_exitcode(self._number("ended", LIMIT_S))
            text = written.read_text()
            assert "begun" in text, text
            return End(status, text.replace("begun\n", ""), _alive_in_session(child))
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            raise

    def end(self) -> None:
        self._process.communicate(timeout=60)

    def _number(self, what: str, limit_s: float) -> int:
        """What the next line says; one of a script that did not end in time is passed over."""
        while True:
            found, number = self._line(limit_s).split()
            if found == what:
                assert what != "session" or int(number) > 1  # 0 and 1 are everybody's
                return int(number)

    def _line(self, limit_s: float) -> str:
        stdout: Any = self._process.stdout
        text = bytearray()
        while not text.endswith(b"\n"):  # not readline(), which reads on into a buffer that select does not see
            assert select.select([stdout], [], [], limit_s)[0], f"no end within {limit_s} s"
            byte = os.read(stdout.fileno(), 1)
            assert byte, "the interpreter that waits for scripts has ended"
            text += byte
        return text.decode().strip()


def _alive_in_session(session: int) -> list[int]:
    """Processes of a session that have not ended; workers that are ending are given a moment."""
    for _ in range(100):
        found = []
        for name in os.listdir("/proc"):
            if name.isdecimal():
                try:
                    fields = Path("/proc", name, "stat").read_text().rsplit(")", 1)[1].split()
                except OSError:
                    continue
                if int(fields[3]) == session and fields[0] not in "ZX":
                    found.append(int(name))
        if not found:
            break
        time.sleep(0.02)
    return found
