"""What the tests run in other processes: check functions that misbehave, and packer's command line."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import packer
from packer.check import CheckSettings, check_source
from packer.model import Kept, Skipped, Verdict

__all__ = ["as_nobody", "misbehave", "pack_command", "run_pack"]

_NOBODY = 65534
# A job that a shell starts in the background ignores SIGINT, and so do its children; as from a terminal here.
_MAIN = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from packer.cli import main; main()"
# Everything is imported first: another user may not be allowed to read this interpreter's own folders.
_BECOME_NOBODY = f"""
import contextlib, importlib, os, pkgutil, shlex, sys
sys.modules["torch"] = None  # not needed here, and two seconds to load
import encodings.ascii, encodings.idna, encodings.latin_1, concurrent.futures.thread, email.parser, importlib.metadata
import lmdb, packer
for package in (packer, lmdb):  # lmdb, too, imports parts of itself late
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
os.umask(0o022)
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid({_NOBODY})
    os.setuid({_NOBODY})
"""


def pack_command(*arguments: str | bytes | os.PathLike[str]) -> list[str | bytes | os.PathLike[str]]:
    """The argument list that runs ``pack`` with this interpreter."""
    return [sys.executable, "-c", _MAIN, *arguments]


def environment(**variables: str) -> dict[str, str]:
    """This process's environment, in which a child finds the same ``packer`` as this process."""
    return {**os.environ, "PYTHONPATH": str(Path(packer.__file__).parents[1]), **variables}


def run_pack(
    *arguments: str | bytes | os.PathLike[str], cwd: Path | None = None, env: dict[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run ``pack`` to its end; output and errors as text, bytes that are no UTF-8 as surrogates."""
    return subprocess.run(
        pack_command(*arguments),
        cwd=cwd,
        env=environment(**(env or {})),
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        timeout=120,
        check=False,
        **options,
    )


def as_nobody(code: str, *arguments: str | os.PathLike[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run Python code, or ``pack`` where the code is empty, as a user without rights (as oneself, where one is not root).

    No process that the code starts can be relied on: see ``_BECOME_NOBODY``. So pack with ``--check none``.
    """
    return subprocess.run(
        [sys.executable, "-c", _BECOME_NOBODY + (code or _MAIN), *arguments],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def misbehave(path: bytes, settings: CheckSettings, checksum: str = "") -> Verdict:
    """Judge a file by its name: it says what happens to the process, ``fine`` and the like are kept."""
    what = os.path.basename(path).split(b".")[0].rstrip(b"0123456789").decode()
    if what != "fine":
        _DEEDS[what](path)
    return Kept("npy", settings.max_pixels, os.getpid())


def misbehave_or_check(path: bytes, settings: CheckSettings, checksum: str = "") -> Verdict:
    """Judge a file as always, unless its name begins with what is to happen to the process."""
    what = os.path.basename(path).split(b".")[0].rstrip(b"0123456789").decode()
    if what in _DEEDS:
        _DEEDS[what](path)
    return check_source(path, settings, checksum)


def skip_by_name(path: bytes, settings: CheckSettings, checksum: str = "") -> Verdict:
    """A verdict that only repeats the path."""
    return Skipped("corrupt", os.fsdecode(path))


def unprintable(path: bytes, settings: CheckSettings, checksum: str = "") -> Verdict:
    """A verdict whose text no terminal and no UTF-8 can hold."""
    return Skipped("corrupt", "\x1b[2J\udcff\ud800\n\0")


def _sleep_as_its_name_says(path: bytes) -> None:
    time.sleep(int(Path(os.fsdecode(path)).suffix[1:]) / 1000)


def _allocate(path: bytes) -> None:
    block = bytearray(200 << 20)
    block[:: 1 << 12] = bytes(len(block[:: 1 << 12]))


def _answer_itself(line: bytes) -> None:
    """As code that a hostile file has smuggled in could: into every pipe that is open."""
    for number in range(3, 30):
        with contextlib.suppress(OSError):
            os.write(number, line)
    time.sleep(60)


def _gulp(path: bytes) -> None:
    """Ten gigabytes, as a decoder asks for them that believes a header."""
    bytearray(10 << 30)[0] = 1


def _gulp_by_and_by(path: bytes) -> None:
    """Ten gigabytes in small pieces, all of them used."""
    blocks = [bytearray(16 << 20) for _ in range(640)]
    blocks[0][0] = 1


def _gulp_in_c(path: bytes) -> None:
    """The same by ``malloc``, whose caller looks at the result."""
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    if not library.malloc(ctypes.c_size_t(10 << 30)):
        raise MemoryError
    raise AssertionError("ten gigabytes were given")


def _hang_in_c(path: bytes) -> None:
    # PyDLL keeps Python's global lock, as a decoder's C extension may: no other thread of the worker runs any more.
    ctypes.PyDLL(None).sleep(600)


def _hang(path: bytes) -> None:
    while True:
        time.sleep(60)


def _raise(path: bytes) -> None:
    raise SyntaxError("as Pillow does")


def _print(path: bytes) -> None:
    print('["empty_file","a forged answer"]', flush=True)
    os.write(1, b'[["empty_file","another"]]\n')


def _complain(path: bytes) -> None:
    os.write(2, b"a decoder's warning\n" * 100_000)


def _signal(number: int) -> Any:
    return lambda path: os.kill(os.getpid(), number)


_DEEDS: dict[str, Any] = {
    "exit": lambda path: os._exit(0),
    "segv": _signal(signal.SIGSEGV),
    "kill": _signal(signal.SIGKILL),
    "hang": _hang,
    "chang": _hang_in_c,
    "raise": _raise,
    "print": _print,
    "complain": _complain,
    "allocate": _allocate,
    "nonsense": lambda path: _answer_itself(b"[1, 2\n"),
    "forge": lambda path: _answer_itself(b'[["corrupt","forged"],["corrupt","forged"]]\n'),
    "gulp": _gulp,
    "cgulp": _gulp_in_c,
    "swell": _gulp_by_and_by,
    "sleep": _sleep_as_its_name_says,
}


def lines(text: str) -> Sequence[str]:
    """The lines of a message, none of them empty."""
    return [line for line in text.splitlines() if line.strip()]
