"""Findings shown while they are found: a million damaged samples must not be a million objects in memory."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from typing import Any

from packer.cli.show import emit, escape

__all__ = ["Findings"]


class Findings:
    """Prints what is wrong with a dataset to standard output, a line each; or one JSON object with all of it.

    Made before a progress display begins, which takes standard output over while it is shown on a terminal.

    Args:
        head: the first values of the JSON object.
        as_json: print that object.
        quiet: print nothing.

    Attributes:
        count: number of findings so far.
    """

    def __init__(self, head: dict[str, Any], *, as_json: bool, quiet: bool = False) -> None:
        self.count = 0
        self._head = json.dumps(head)[:-1] + ', "findings": ['
        self._as_json = as_json
        self._quiet = quiet
        self._stdout = sys.stdout

    def add(self, index: int | None, name: str | None, path: str, problem: str) -> None:
        """Show one: number and original name of the sample, where it is about one; the file of the dataset; the problem."""
        self.count += 1
        if self._as_json:
            start = ",\n" if self.count > 1 else f"{self._head}\n"
            row = {"index": index, "name": name, "path": path, "problem": problem}
            self._print(start + json.dumps(row))
        elif not self._quiet:
            sample = "" if index is None else f" sample {index} ({escape(name or '')})"
            self._print(f"{escape(path)}{sample}: {escape(problem)}")

    def end(self, tail: dict[str, Any]) -> None:
        """Complete the JSON object with its last values; there is nothing to do for lines."""
        if self._as_json:
            emit(f"{'' if self.count else self._head}], {json.dumps(tail)[1:]}")

    def _print(self, line: str) -> None:
        # A display on a terminal shows lines above itself, but on standard error: what goes elsewhere must still go there.
        shown = sys.stdout if self._stdout.isatty() else self._stdout
        with redirect_stdout(shown):
            emit(line)
