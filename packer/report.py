"""The report: one row for each file skipped, or kept with a warning.

Layout, version 1
=================
``report.jsonl`` has one ASCII JSON object a line, ended by a line feed, with ``, `` between members and ``: `` behind keys; it
is empty where there is nothing to say. Files come in the order in which they were packed or skipped (that of the scan, or the
shuffled one), then rows about what only shows when all files were seen. A row has these keys, in this order:

===========  ===============================================================================================================
key          value
===========  ===============================================================================================================
path         relative path of the file or folder; bytes that are no UTF-8 as surrogates (``packer.manifest``);
             null where the row is about the whole input
outcome      ``"skipped"`` or ``"warned"``
code         a word of ``packer.model.SKIP_CODES`` or ``WARNING_CODES``: what a program looks at
detail       a sentence for a person; its words may change with any version
===========  ===============================================================================================================

A row of ``duplicate_content`` is about a content, ``path`` is the first file that has it, and these keys follow: ``digest``
(xxh3-64, 16 hexadecimal digits), ``count`` (files that have it), ``paths`` (the first few of them), ``classes`` (the names of
those that it appears in). A reader ignores keys and codes that it does not know. No absolute path, process number or time
stands in it: the same input gives the same report.

Example (see ``packer.index``)::

    {"path": "dog/void.jpg", "outcome": "skipped", "code": "empty_file", "detail": "0 bytes"}
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from packer.errors import PackerError
from packer.files import discard
from packer.model import display_name

__all__ = ["ReportWriter", "report_rows"]

_EXAMPLES = 3


class ReportWriter:
    """Writes the report, and counts what is in it.

    Attributes:
        path: the file, which is made.
        skipped: number of files skipped, by code.
        warned: number of warnings, by code.
        examples: the first few paths of each code that files were skipped with.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("x", encoding="ascii", newline="\n")
        self.skipped: Counter[str] = Counter()
        self.warned: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}

    def __enter__(self) -> ReportWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is None or isinstance(error, PackerError):
            self._file.close()  # who is told why nothing was packed reads the report, so it must be whole
        else:
            discard(self._file)

    def skip(self, name: bytes, code: str, detail: str) -> None:
        """Add a file that stays out."""
        self.skipped[code] += 1
        examples = self.examples.setdefault(code, [])
        if len(examples) < _EXAMPLES:
            examples.append(display_name(name))
        self._write(name, "skipped", code, detail)

    def warn(self, name: bytes | None, code: str, detail: str, **more: Any) -> None:
        """Add a warning about a kept file, or about the whole input (``None``); ``more`` are further values of the row."""
        self.warned[code] += 1
        self._write(name, "warned", code, detail, **more)

    def _write(self, name: bytes | None, outcome: str, code: str, detail: str, **more: Any) -> None:
        path = None if name is None else display_name(name)
        self._file.write(json.dumps({"path": path, "outcome": outcome, "code": code, "detail": detail, **more}) + "\n")


def report_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a report, read one by one."""
    with path.open(encoding="ascii") as lines:
        for line in lines:
            row: dict[str, Any] = json.loads(line)
            yield row
