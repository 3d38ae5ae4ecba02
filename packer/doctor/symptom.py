"""What an exception, an exit status or a process says by itself, read into one form; nothing is concluded here."""

from __future__ import annotations

import multiprocessing.connection
import re
import signal
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

__all__ = ["FETCHING", "Symptom", "is_from_torch", "read_symptom", "signal_name"]

FETCHING = frozenset({"rebuild_storage_fd", "rebuild_storage_filename", "recv_handle"})
"""Functions in which the main process takes a batch out of a worker's memory."""

_MOST_EXCEPTIONS = 30  # of a chain
_MOST_FRAMES = 200
_MOST_TEXT = 200_000
_LAST_BREATH_S = 1.0  # between a worker's connections and the worker itself
_WINDOWS_CRASHES = {0xC0000005: "SIGSEGV", 0xC00000FD: "SIGSEGV", 0xC0000017: "SIGKILL"}  # NTSTATUS

_CAUGHT = re.compile(r"Caught (\w+) in (?:DataLoader worker process (\d+)|pin memory thread)")
_KILLED = re.compile(r"DataLoader worker \(pid (\d+)\) is killed by signal: ([^\n.]+)")
_EXITED = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) exited unexpectedly(?: with exit code (-?\d+))?")
_DIED = re.compile(r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal|exited unexpectedly)")
_RAISED = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt))(?::|$)", re.MULTILINE)
_ERRNO = re.compile(r"\[Errno (\d+)\]")
_FRAME = re.compile(r'^  File "[^"\n]*", line \d+, in ([\w<>.]+)', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Symptom:
    """What is known of an end.

    Attributes:
        text: messages, notes, and what they carry of a worker's own traceback.
        headline: the shortest message that says what happened, one line.
        kinds: names of the exceptions' classes and their bases, those from a worker's traceback included.
        numbers: error numbers of the system (``errno``).
        functions: names of the functions in the tracebacks.
        status: exit status as subprocess has it, negative for a signal; ``None`` where there is none.
        runs: a process was given, and it has not ended.
        workers: process ids of a loader's workers, as far as known.
        failed: those of them that ended.
        start_method: how these workers were started; empty where not known.
    """

    text: str = ""
    headline: str = ""
    kinds: frozenset[str] = frozenset()
    numbers: frozenset[int] = frozenset()
    functions: frozenset[str] = frozenset()
    status: int | None = None
    runs: bool = False
    workers: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    start_method: str = ""

    @property
    def signal(self) -> str:
        """Name of the signal that ended it, ``SIGKILL``; empty where it was none."""
        return signal_name(self.status) if self.status is not None else ""

    def says(self, pattern: str) -> bool:
        """Whether a message matches a regular expression."""
        return re.search(pattern, self.text) is not None


def read_symptom(what: object, *also: BaseException) -> Symptom:
    """Read an exception, an exit status, or a process that has ``exitcode`` or ``returncode``.

    Args:
        what: one of these.
        also: exceptions that belong to the first.

    Raises:
        TypeError: it is none of these.
    """
    if isinstance(what, BaseException):
        return _of_exception(what, *also)
    if isinstance(what, int) and not isinstance(what, bool):
        return Symptom(status=_as_subprocess(what), headline=f"exit status {what}")
    for name in ("exitcode", "returncode"):
        if hasattr(what, name):
            status = getattr(what, name)
            pid = getattr(what, "pid", None)
            pids = (pid,) if isinstance(pid, int) else ()
            text = _decoded(getattr(what, "stderr", None))
            found = _of_texts([text]) if text else Symptom()
            return Symptom(
                text=found.text,
                headline=f"exit status {status}",
                kinds=found.kinds,
                numbers=found.numbers,
                functions=found.functions,
                status=None if status is None else _as_subprocess(int(status)),
                runs=status is None,
                workers=pids,
                failed=() if status is None else pids,
                start_method=_start_method(what),
            )
    raise TypeError(f"explain takes an exception, an exit status or a process, not {type(what).__name__}")


def is_from_torch(error: BaseException) -> bool:
    """Whether torch raised it since a worker died: it does so in the main thread, whatever that is doing just then."""
    return isinstance(error, RuntimeError) and _DIED.match(str(error)) is not None


def signal_name(status: int) -> str:
    """``SIGKILL`` for -9; empty for a status that is no signal's."""
    if status >= 0:
        return ""
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def _as_subprocess(status: int) -> int:
    """A status as a shell (128 and the signal), Windows or subprocess gives it, as subprocess gives it."""
    crash = _WINDOWS_CRASHES.get(status & 0xFFFFFFFF)
    if crash is not None and not 0 <= status < 256:
        return -int(getattr(signal, crash, signal.SIGTERM))
    if 128 < status < 256 and signal_name(128 - status).startswith("SIG"):
        return 128 - status
    return status


def _of_exception(*errors: BaseException) -> Symptom:
    chain = list(_chain(*errors))
    texts = [_message(one) for one in chain]
    found = _of_texts(texts)
    kinds = {kind.__name__ for one in chain for kind in type(one).__mro__} - {"object"}
    numbers = {one.errno for one in chain if isinstance(one, OSError) and isinstance(one.errno, int)}
    functions: set[str] = set()
    methods: list[str] = []
    workers: dict[int, Any] = {}
    failed: dict[int, Any] = {}
    for frame in (frame for one in chain for frame in _frames(one.__traceback__)):
        functions.add(frame.f_code.co_name)
        methods.append(_start_method(frame.f_locals.get("self")))  # of a process that was being started
        _note_workers(frame.f_locals, workers, failed)
    status, dead = _status_in(texts)
    if status is None and not failed and functions & FETCHING:
        failed = _await_ends(workers)
    if status is None:
        codes = [code for code in (getattr(process, "exitcode", None) for process in failed.values()) if code]
        status = codes[0] if codes else None
    failed_pids = tuple(dict.fromkeys([*dead, *failed]))
    return Symptom(
        text=found.text,
        headline=_headline(texts),
        kinds=found.kinds | kinds,
        numbers=found.numbers | numbers,
        functions=found.functions | functions,
        status=status,
        workers=tuple(dict.fromkeys([*workers, *failed_pids])),
        failed=failed_pids,
        start_method=next(filter(None, [*map(_start_method, [*failed.values(), *workers.values()]), *methods]), ""),
    )


def _await_ends(workers: dict[int, Any]) -> dict[int, Any]:
    """Workers that have ended. The connection to one breaks before its exit status can be had."""
    sentinels = {process.sentinel: pid for pid, process in workers.items() if hasattr(process, "sentinel")}
    ended = {pid: workers[pid] for pid in map(sentinels.get, _ready(list(sentinels))) if pid is not None}
    for process in ended.values():
        process.join(_LAST_BREATH_S)  # its files close before it has an exit status
    return ended


def _ready(sentinels: list[int]) -> list[Any]:
    try:
        return multiprocessing.connection.wait(sentinels, _LAST_BREATH_S)
    except OSError:  # the loader has closed them
        return []


def _chain(*errors: BaseException) -> Iterator[BaseException]:
    """The exceptions, what caused them, and what was being handled, each once."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = list(errors)
    while waiting and len(seen) < _MOST_EXCEPTIONS:
        one = waiting.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting.append(one.__cause__)
        if not one.__suppress_context__:
            waiting.append(one.__context__)
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions


def _message(error: BaseException) -> str:
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - any class, of the user's: its message cannot be made
        message = ""
    notes = [note for note in error.__dict__.get("__notes__", ()) if isinstance(note, str)]
    return "\n".join([message, *notes])[:_MOST_TEXT]


def _of_texts(texts: list[str]) -> Symptom:
    text = "\n".join(texts)[:_MOST_TEXT]
    return Symptom(
        text=text,
        kinds=frozenset(_RAISED.findall(text)) | {kind for kind, _ in _CAUGHT.findall(text)},
        numbers=frozenset(int(number[:6]) for number in _ERRNO.findall(text)),
        functions=frozenset(_FRAME.findall(text)),
    )


def _headline(texts: list[str]) -> str:
    """Of a worker's exception the line that it ended with; else the first line of the first message."""
    for text in texts:
        if _CAUGHT.search(text):
            raised = [match.group(0) for match in re.finditer(r"^(?:[\w.]+\.)?\w*(?:Error|Exception)\b.*", text, re.MULTILINE)]
            if raised:
                return raised[-1][:300]
    return next((line.strip()[:300] for text in texts for line in text.splitlines() if line.strip()), "")


def _status_in(texts: list[str]) -> tuple[int | None, list[int]]:
    """The status that torch's message tells, and the workers that it is about."""
    pids: list[int] = []
    status: int | None = None
    for text in texts:
        for pid, name in _KILLED.findall(text):
            pids.append(int(pid))
            status = status or _signal_called(name.strip())
        for listed, code in _EXITED.findall(text):
            pids += [int(pid) for pid in listed.replace(",", " ").split()]
            if code and status is None:
                status = _as_subprocess(int(code))
    return status, pids


def _signal_called(description: str) -> int | None:
    """The status for a signal as the C library describes it: ``Bus error``."""
    wanted = description.lower()
    for number in signal.valid_signals():
        words = signal.strsignal(number) if hasattr(signal, "strsignal") else None
        if words and (words.lower() == wanted or words.lower().partition(":")[0] == wanted):
            return -int(number)
    match = re.fullmatch(r"(?:unknown signal|real-time signal) (\d+)", wanted)
    return -int(match.group(1)) if match else None


def _frames(tb: TracebackType | None) -> Iterator[Any]:
    for count, (frame, _) in enumerate(traceback.walk_tb(tb)):
        if count >= _MOST_FRAMES:
            return
        yield frame


def _note_workers(names: dict[str, Any], workers: dict[int, Any], failed: dict[int, Any]) -> None:
    """Processes that torch's iterator was waiting for, from the variables of its own functions."""
    iterator = names.get("self")
    if type(iterator).__name__ != "_MultiProcessingDataLoaderIter":
        return
    for found, processes in ((workers, getattr(iterator, "_workers", ())), (failed, names.get("failed_workers", ()))):
        if isinstance(processes, list):
            found.update({process.pid: process for process in processes if isinstance(getattr(process, "pid", None), int)})


def _start_method(process: object) -> str:
    # Of the class: an object that some function was about to make has no attributes yet, and its __getattr__ may raise.
    method = getattr(type(process), "_start_method", "")
    return method if isinstance(method, str) else ""


def _decoded(output: object) -> str:
    if isinstance(output, bytes):
        return output[-_MOST_TEXT:].decode("utf-8", "replace")
    return output[-_MOST_TEXT:] if isinstance(output, str) else ""
