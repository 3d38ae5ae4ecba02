"""FFCV as a contender: a child process in the interpreter of its own environment does the work, see ``ffcv_child.py``."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from epochs import BATCH, SourceFiles
from proof import WrongDataError
from timing import Contender, settings_of

_CHILD = Path(__file__).with_name("ffcv_child.py")


@contextmanager
def start_ffcv(
    python: Path, kind: str, files: SourceFiles, work: Path, *, threads: Sequence[int], tolerance: float
) -> Iterator[tuple[list[Contender], dict[str, str]]]:
    """Write the files in FFCV's format and start a process that reads them, one for each number of threads.

    Args:
        python: the interpreter of an environment in which FFCV is installed.
        kind: ``arrays`` or ``pictures``.
        files: the source files.
        work: an existing folder for FFCV's files.
        threads: the numbers of threads to try; the best one counts.
        tolerance: the mean difference of a picture from Pillow's that is let through.

    Yields:
        FFCV with each number of threads, as settings of the contender ``FFCV``, and the versions that run.

    Raises:
        WrongDataError: FFCV could not be started. Its runs raise it where a sample is missing or differs.
    """
    listing = work / f"ffcv-{kind}.json"
    listing.write_text(json.dumps(list(zip(files.paths, files.targets, strict=True))), encoding="utf-8")
    expected = sorted(enumerate(files.targets))
    contenders: list[Contender] = []
    versions: dict[str, str] = {}
    with ExitStack() as stack:
        for count in threads:
            ask, versions = stack.enter_context(_child(python, kind, listing, work / f"{kind}-{count}.beton", count))
            name = f"FFCV, {count} threads"
            contenders.append(Contender(name, partial(_run, name, ask, expected, tolerance)))
        yield settings_of("FFCV", contenders), versions


@contextmanager
def _child(
    python: Path, kind: str, listing: Path, beton: Path, threads: int
) -> Iterator[tuple[Callable[[], dict[str, Any]], dict[str, str]]]:
    """A running child: what asks it for an epoch, and its versions."""
    command = [str(python), "-W", "ignore", str(_CHILD), kind, str(listing), str(beton)]
    command += ["--batch", str(BATCH), "--threads", str(threads)]
    errors = beton.with_suffix(".log")
    with (
        errors.open("w+", encoding="utf-8") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as child,
    ):
        stdin, stdout = child.stdin, child.stdout

        def answer() -> Any:
            line = stdout.readline() if stdout else ""
            if not line:
                raise WrongDataError(f"FFCV ended: {errors.read_text(encoding='utf-8')[-2000:]}")
            return json.loads(line)

        def ask() -> Any:
            if stdin:
                stdin.write("epoch\n")
                stdin.flush()
            return answer()

        try:
            yield ask, answer()
        finally:
            child.kill()


def _run(name: str, ask: Callable[[], dict[str, Any]], expected: list[tuple[int, int]], tolerance: float) -> float:
    """Ask for a timed and a compared epoch; returns the seconds of the first."""
    answer = ask()
    for epoch in ("seen", "checked"):
        if sorted(map(tuple, answer[epoch])) != expected:
            raise WrongDataError(f"{name}: samples are missing, too many or have another target")
    if not answer["worst"] <= tolerance:
        raise WrongDataError(f"{name}: a sample differs by {answer['worst']:.2f} on average, {tolerance} is let through")
    return float(answer["seconds"])
