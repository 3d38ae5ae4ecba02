"""Scripts that the tests run in an interpreter of their own, since they end it, limit it, or count what it does."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import packer

__all__ = ["NO_TORCH", "run_script", "script_command"]

NO_TORCH = "import sys\nsys.modules['torch'] = None  # not needed here, and two seconds to load\n"
"""What a script begins with that reads without torch."""


def script_command(script: str, *arguments: object, warnings: Sequence[str] = ("error",)) -> list[str]:
    """The argument list that runs a script with this interpreter; each of ``warnings`` is one of Python's options ``-W``."""
    options = [part for action in warnings for part in ("-W", action)]
    # By its source and not as a file, so that a spawned worker does not run it again.
    path = f"import sys\nsys.path.insert(0, {str(Path(packer.__file__).parents[1])!r})\n"
    return [sys.executable, *options, "-c", path + textwrap.dedent(script), *map(str, arguments)]


def run_script(
    script: str,
    *arguments: object,
    torch: bool = False,
    warnings: Sequence[str] = ("error",),
    under: Sequence[str] = (),
    timeout_s: float = 120,
) -> str:
    """Run a script to its end and give what it printed; an error where it failed, was killed, or wrote to its stderr.

    Args:
        script: its source; may be indented.
        arguments: what it finds in ``sys.argv[1:]``, as text.
        torch: whether it may load torch.
        warnings: Python's options ``-W``.
        under: a command that runs it, such as ``strace``.
        timeout_s: when it counts as hung.
    """
    source = ("" if torch else NO_TORCH) + textwrap.dedent(script)
    command = [*under, *script_command(source, *arguments, warnings=warnings)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert (done.returncode, done.stderr) == (0, ""), f"{done.stdout}{done.stderr}"
    return done.stdout
