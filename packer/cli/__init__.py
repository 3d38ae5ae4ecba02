"""The command line: one module a command, and the only place that prints."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line and end the process with its status."""
    try:
        from packer.cli.app import run
    except KeyboardInterrupt:  # Ctrl-C right away: there is nothing yet that could be told
        raise SystemExit(130) from None
    raise SystemExit(run())
