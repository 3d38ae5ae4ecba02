"""Linux: one process loads the decoders, and every checking worker is a fork of it.

Loading them takes a third of a second of a core, and a thousand look-ups on what may be a network folder; a fork takes two
milliseconds, also where a hostile file has ended its worker. The nursery itself never sees a file, and has one thread. What
it cannot do, the caller does without it: start a worker as a process of its own.

It is told on a Unix socket, one message each way: ``b"fork"`` with three descriptors (standard input, output and error of the
worker), answered by the worker itself with its process number on its standard output; and the number of a worker that has
ended or soon will, answered with its exit status as ``subprocess`` gives it, or nothing while it runs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import IO

from packer.children import end_child, start_child

__all__ = ["WORKER_MODULE", "ForkedWorker", "Nursery", "end_early", "serve", "start_early", "take_nursery"]

WORKER_MODULE = "packer.check.worker"
"""What a checking worker runs, and the nursery that workers are forks of."""

_MESSAGE_BYTES = 64
_ANSWER_S = 60.0  # the nursery answers at once, but the machine may be busy
_POLL_S = 0.002
_LOST = -int(signal.SIGKILL)  # status of a worker whose nursery is gone: both were ended from outside


class Nursery:
    """The process that workers are forks of, as the packing process sees it; started when the first is wanted."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the process, and do not wait until it serves.

        Raises:
            OSError: it cannot be started.
        """
        with self._lock:
            if self._process is None:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                descriptor = theirs.fileno()
                try:
                    self._process = start_child(
                        WORKER_MODULE, str(descriptor), stderr=subprocess.DEVNULL, pass_fds=(descriptor,)
                    )
                except OSError:
                    ours.close()
                    raise
                finally:
                    theirs.close()
                ours.settimeout(_ANSWER_S)
                self._socket = ours

    def fork(self, stderr: IO[bytes]) -> ForkedWorker:
        """Ask for a worker, and do not wait until it serves.

        Raises:
            OSError: the nursery is gone, or there are too many open files.
        """
        self.start()
        stdin, ours_in = os.pipe()
        try:
            ours_out, stdout = os.pipe()
        except OSError:
            os.close(stdin)
            os.close(ours_in)
            raise
        worker = ForkedWorker(self, os.fdopen(ours_in, "wb"), os.fdopen(ours_out, "rb"))
        try:
            with self._lock:
                if self._socket is None:
                    raise BrokenPipeError("the nursery has ended")
                socket.send_fds(self._socket, [b"fork"], [stdin, stdout, stderr.fileno()])
        except OSError:
            worker.close()
            raise
        finally:
            os.close(stdin)
            os.close(stdout)
        return worker

    def status(self, number: int) -> int | None:
        """Exit status of a worker by its process number, ``None`` while it runs."""
        with self._lock:
            try:
                if self._socket is None:
                    return _LOST
                self._socket.send(b"%d" % number)
                answer = self._socket.recv(_MESSAGE_BYTES)
            except OSError:
                return _LOST
        return None if answer == b"runs" else int(answer or _LOST)

    def close(self) -> None:
        """End the nursery, and so all its workers."""
        with self._lock:
            end_child(self._process)
            if self._socket is not None:
                self._socket.close()
                self._socket = None


_early: list[Nursery] = []


def start_early() -> None:
    """Start the nursery of the next pool now; what goes wrong shows when a pool wants it."""
    nursery = _new_nursery()
    if nursery:
        with contextlib.suppress(OSError):
            nursery.start()
            _early.append(nursery)


def end_early() -> None:
    """End what was started early and not taken: the job ended before it checked anything."""
    while _early:
        _early.pop().close()


def take_nursery() -> Nursery | None:
    """A nursery for one pool, which closes it; ``None`` where there is none."""
    return _early.pop() if _early else _new_nursery()


def _new_nursery() -> Nursery | None:
    return Nursery() if sys.platform.startswith("linux") else None  # a fork on macOS may crash in the system's own libraries


class ForkedWorker:
    """What ``subprocess.Popen`` is for a process of one's own.

    Attributes:
        stdin: writes to its standard input.
        stdout: reads from its standard output.
        pid: its process number, 0 until it has said it.
        returncode: its exit status, ``None`` while it runs or nobody has asked.
    """

    def __init__(self, nursery: Nursery, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self._nursery = nursery
        self.stdin = stdin
        self.stdout = stdout
        self.pid = 0
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit status, ``None`` while it runs."""
        if self.returncode is None and self.pid:
            self.returncode = self._nursery.status(self.pid)
        return self.returncode

    def wait(self) -> int:
        """Wait until it has ended; returns its exit status."""
        while self.poll() is None:
            if not self.pid:  # it never served: its pipe is closed, or it was given up
                self.returncode = _LOST
            time.sleep(_POLL_S)
        return self.returncode if self.returncode is not None else _LOST

    def kill(self) -> None:
        """End it at once, unless it has ended."""
        if not self.pid:
            self._nursery.close()  # what does not even start is worth nothing; its workers are started otherwise
        elif self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close its pipes."""
        for pipe in (self.stdin, self.stdout):
            with contextlib.suppress(OSError, ValueError):
                pipe.close()


def serve(control: int) -> None:
    """Serve until the packing process ends. Returns in each worker, with its pipes as standard streams.

    Args:
        control: descriptor of the socket.
    """
    with socket.socket(fileno=control) as channel:
        while True:
            message, descriptors, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, 3)
            if not message:
                os._exit(0)  # the packing process is done, or was killed
            if message != b"fork":
                number, status = os.waitpid(int(message), os.WNOHANG)
                channel.send(b"%d" % os.waitstatus_to_exitcode(status) if number else b"runs")
                continue
            try:
                number = os.fork()
            except OSError:  # too many processes; the one who asked sees that the pipes are closed
                number = -1
            if number == 0:
                os.setsid()
                for target, descriptor in enumerate(descriptors):
                    os.dup2(descriptor, target)
                    os.close(descriptor)
                return
            for descriptor in descriptors:
                os.close(descriptor)
