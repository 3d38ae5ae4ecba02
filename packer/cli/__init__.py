"""The command line: one module a command, and the only place that prints."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line and end the process with its status."""
    from packer.cli.app import run

    raise SystemExit(run())
