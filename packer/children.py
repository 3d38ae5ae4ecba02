"""Child processes that read what may crash them: how they are started, what they do first, and how they ended.

Why not multiprocessing or pebble: both start their workers through ``__main__``, which runs a user's script again where it
has no ``if __name__ == "__main__"`` (pebble then raises BrokenProcessPool), and both leave a resource tracker that prints
when the parent is killed. Measured on two cores: 20 deaths in a row cost pebble 1.03 s.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection
from typing import IO, Any, BinaryIO, Protocol

__all__ = ["TICK_S", "Child", "begin_child", "end_child", "end_with_parent", "how_it_ended", "start_child"]

TICK_S = 0.5
"""Time limits count waits of this length and read no clock: a job that is stopped for an hour (Ctrl-Z, a batch system that
suspends it) and then goes on must not find everything too slow."""

_PR_SET_PDEATHSIG = 1  # prctl(2)
_MAX_FILE_BYTES = 16 << 20  # of standard error, the only file that a child writes
_BOOT = "import importlib, json, sys; sys.path[:] = json.loads(sys.argv[1]); importlib.import_module(sys.argv[2]).main()"

# A session of its own: Ctrl-C in a terminal goes to the parent alone, which then ends its children.
_PLATFORM: dict[str, Any] = (
    {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
    if sys.platform == "win32"
    else {"start_new_session": True}
)


# --------------------------------------------------------------------------------------------------------- in the parent


def start_child(
    module: str, *arguments: str, stderr: IO[bytes] | int, pass_fds: Collection[int] = ()
) -> subprocess.Popen[bytes]:
    """Start an interpreter that calls ``main()`` of a module, with pipes to its standard input and output.

    Args:
        module: full name.
        arguments: found in ``sys.argv`` from place 3 on.
        stderr: where its standard error goes.
        pass_fds: descriptors that it gets as well.

    Raises:
        OSError: it cannot be started.
    """
    return subprocess.Popen(
        [sys.executable, "-c", _BOOT, json.dumps(sys.path), module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        pass_fds=tuple(pass_fds),
        # numpy's library for matrices otherwise starts a thread a core in each of them, which nobody uses.
        env={"OPENBLAS_NUM_THREADS": "1", **os.environ},
        **_PLATFORM,
    )


class Child(Protocol):
    """What is asked of a child process; ``subprocess.Popen`` is one."""

    @property
    def stdin(self) -> IO[bytes] | None:
        """Writes to its standard input."""

    @property
    def stdout(self) -> IO[bytes] | None:
        """Reads from its standard output."""

    def poll(self) -> int | None:
        """Its exit status, ``None`` while it runs."""

    def wait(self) -> int:
        """Wait until it has ended; returns its exit status."""

    def kill(self) -> None:
        """End it at once, unless it has ended."""


def end_child(process: Child | None) -> None:
    """Kill a process, if it still runs, and close its pipes."""
    if process is None:
        return
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError, ValueError):
                pipe.close()


def how_it_ended(status: int) -> str:
    """The status of a process in words that follow its name."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = ", probably for lack of memory" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"


# ---------------------------------------------------------------------------------------------------------- in the child


def begin_child() -> BinaryIO:
    """What a child does first; returns the pipe for its answers.

    It dies with its parent, leaves no core dump, writes no large file, and keeps the pipe to itself: C libraries print.
    """
    if sys.platform.startswith("linux"):
        # Also while a library hangs without ever letting another thread run.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if sys.platform != "win32":
        import resource

        # A hundred crashes must not fill the disk with the memory of a hundred processes, nor one library with its complaints.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        if hard == resource.RLIM_INFINITY or hard > _MAX_FILE_BYTES:
            resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_FILE_BYTES, _MAX_FILE_BYTES))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def end_with_parent(take: Callable[[bytes], object] = bool) -> None:
    """Take lines from standard input until it ends, and then end the process; runs in a thread of its own.

    Args:
        take: called with each line.
    """
    for line in sys.stdin.buffer:
        take(line)
    # The parent is done, or was killed: end at once, even in the middle of a file whose library hangs.
    os._exit(0)
