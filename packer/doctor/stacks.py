"""The Python stack of another process, by py-spy where that is installed."""

from __future__ import annotations

import shutil
import subprocess

__all__ = ["python_stack"]

_MOST_S = 10.0
_MOST_LINES = 30


def python_stack(pid: int) -> tuple[str, ...]:
    """The functions that a process is in, a line each; what py-spy says where it may not look; nothing where it is absent."""
    program = shutil.which("py-spy")
    if program is None:
        return ()
    try:
        done = subprocess.run(
            [program, "dump", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_MOST_S,
            encoding="utf-8",
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return (f"py-spy: {error}",)
    lines = [line.rstrip() for line in (done.stdout if done.returncode == 0 else done.stderr).splitlines() if line.strip()]
    if done.returncode:
        return (f"py-spy: {lines[-1] if lines else f'ended with status {done.returncode}'}",)
    return tuple(lines[:_MOST_LINES])
