"""The names of the commands, and what can be said of a command line before the library that parses it is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

__all__ = ["COMMANDS", "DEFAULT_COMMAND", "will_decode"]

DEFAULT_COMMAND = "pack"
COMMANDS = (DEFAULT_COMMAND, "check", "verify", "unpack", "convert", "info", "ls", "bench", "doctor", "demo")
_DECODING = (DEFAULT_COMMAND, "check")


def will_decode(arguments: Sequence[str]) -> bool:
    """Whether a command decodes the files of a folder, as far as a glance can tell.

    Args:
        arguments: of the command line, without the name of the program.
    """
    if not arguments or (arguments[0] in COMMANDS and arguments[0] not in _DECODING):
        return False
    unchecked = "--check=none" in arguments or ("--check", "none") in pairwise(arguments)
    return not unchecked and {"-h", "--help", "--version", "--dry-run"}.isdisjoint(arguments)
