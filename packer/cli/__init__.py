"""The command line: one module a command, and the only place that prints."""

from __future__ import annotations

import contextlib
import os
import sys

from packer.cli.commands import will_decode
from packer.cli.streams import stand_by_streams

__all__ = ["main"]


def main() -> None:
    """Run the command line and end the process with its status."""
    stand_by_streams()
    # numpy's library for matrices otherwise starts a thread a core; each spins for a tenth of a second, and nothing uses them.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        if will_decode(sys.argv[1:]):
            from packer.nursery import start_early

            start_early()  # it loads the decoders while this process loads all that it needs itself
        from packer.cli.app import run
    except KeyboardInterrupt:  # Ctrl-C right away: there is nothing yet that could be told
        raise SystemExit(130) from None
    status = run()
    if sys.warnoptions:  # who asks for warnings wants those of the end as well: what was left open
        raise SystemExit(status)
    # Not through Python's own end, which takes every module of every library apart: a tenth of a second, a quarter of a small
    # job. All files are closed by now, and all threads and processes ended.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # one that is closed
            stream.flush()
    os._exit(status)
