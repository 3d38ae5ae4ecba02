"""Run a target on mutants: within its time and memory, and every finding in a file."""

from __future__ import annotations

import hashlib
import math
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.fuzz.mutate import mutant
from tests.fuzz.targets import TARGETS, Target

__all__ = ["FINDINGS", "Result", "describe", "examine", "fuzz", "hostile", "place", "save"]

MAX_SECONDS = 2.0
"""Of processor time for one input; other programs on the machine do not count."""

FINDINGS = Path(tempfile.gettempdir(), "packer-fuzz")
"""Where inputs with findings are saved."""

_MAX_GROWTH = 256 << 20  # bytes by which one input of at most 64 kB may raise the most that the process ever held
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024
_MAX_POOL = 2_000
_VARYING = re.compile(r"[0-9,.]+|'.*'|\".*\"|[^ -~]+")


class _TooSlowError(BaseException):
    """Not caught by what catches any ``Exception``."""


@dataclass(slots=True)
class Result:
    """What a run came to: inputs tried, different outcomes seen, and a line on each finding."""

    runs: int = 0
    outcomes: set[str] = field(default_factory=set)
    findings: dict[str, str] = field(default_factory=dict)


def examine(target: Target, data: bytes, max_seconds: float = MAX_SECONDS) -> str:
    """What became of an input.

    Raises:
        AssertionError: it took too long or too much memory, or is not what the target says it is.
        Exception: anything else that the reader does not document.
    """
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with _limited(max_seconds):
            outcome = target.run(data)
    except _TooSlowError as error:
        raise AssertionError(f"more than {max_seconds} s for {len(data):,} bytes") from error
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held) * _RSS_UNIT
    assert grown <= _MAX_GROWTH, f"{grown:,} bytes of memory for {len(data):,} bytes"
    return outcome


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def stop(number: int, frame: object) -> None:
        raise _TooSlowError

    # Processor time, and not the alarm that pytest-timeout uses.
    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def hostile(random: Random, target: Target, seeds: list[bytes]) -> bytes:
    """A mutant, in three of four cases with its checksums repaired."""
    data = mutant(random, seeds, target.words)
    return target.repair(data) if random.random() < 0.75 else data


def fuzz(name: str, *, runs: float = math.inf, seconds: float = math.inf, corpus: Path | None = None, seed: int = 0) -> Result:
    """Try mutants until so many are done or the time is over; those with a new outcome are mutated on.

    Args:
        name: the target.
        runs: number of mutants; with it, the same mutants every time.
        seconds: of time on the clock.
        corpus: folder that is read for more inputs to begin from, and that mutants with a new outcome are written to.
        seed: of the random numbers.
    """
    target, random, result = TARGETS[name], Random(seed), Result()
    pool = target.seeds()
    if corpus:
        corpus.mkdir(parents=True, exist_ok=True)
        pool += [path.read_bytes() for path in sorted(corpus.iterdir())]
    waiting, end = list(pool), time.monotonic() + seconds
    while result.runs < runs and time.monotonic() < end:
        fresh = not waiting
        data = hostile(random, target, pool) if fresh else waiting.pop()
        result.runs += 1
        try:
            outcome = _VARYING.sub("", examine(target, data))[:200]
        except Exception as error:
            if (where := place(error)) not in result.findings:
                result.findings[where] = describe(name, data, error)
            continue
        if outcome not in result.outcomes:
            result.outcomes.add(outcome)
            if fresh and len(pool) < _MAX_POOL:
                pool.append(data)
                if corpus:
                    save(corpus, data)
    return result


def place(error: Exception) -> str:
    """The same for the same fault: the class, and the innermost function of packer or of the target."""
    frames = traceback.extract_tb((error.__cause__ or error).__traceback__)
    ours = [frame for frame in frames if "packer" in frame.filename or "targets" in frame.filename]
    return f"{type(error).__name__} in {ours[-1].name if ours else '?'}: {_VARYING.sub('', str(error))[:60]}"


def save(folder: Path, data: bytes, prefix: str = "") -> Path:
    """Write an input under a name made of its content."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{prefix}{hashlib.sha256(data).hexdigest()[:16]}"
    path.write_bytes(data)
    return path


def describe(name: str, data: bytes, error: BaseException) -> str:
    """Save an input with a finding; the finding, its file, and how to see it again."""
    path = save(FINDINGS, data, f"{name}-")
    what = " ".join(traceback.format_exception_only(error)[-1].split())[:500]
    return f"{what}\n  input: {path} ({len(data):,} bytes)\n  again: python -m tests.fuzz {name} --input {path}"
