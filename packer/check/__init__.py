"""Turn a source file into a verdict: kept with what it holds, or skipped with a code and a reason.

Kept clean means that every pixel or element which the header promises came from the file, undamaged as far as its
format can tell. ``check_source`` is a function of small picklable values; it runs in worker processes
(``packer.checkers``), because decoders crash and hang on hostile bytes. Such a worker loads neither torch, lmdb nor h5py.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import NamedTuple

import xxhash

from packer.check import npy
from packer.check.sniff import sniff
from packer.check.verdict import Finding
from packer.checksums import require_checksum
from packer.files import read_regular_file
from packer.model import DEFAULT_MAX_PIXELS, TYPES, TYPES_BY_NAME, Kept, Note, Skipped, Unfit, Verdict
from packer.names import suffix_of

__all__ = ["CheckSettings", "check_bytes", "check_source", "load_decoders"]

_ADDRESS = re.compile(r"\s*<[^<>]* object at 0x[0-9a-fA-F]+>|\s*\b0x[0-9a-fA-F]{8,}")

_ENDINGS = {kind.name: tuple(f".{suffix}".encode() for suffix in kind.suffixes) for kind in TYPES}
_IGNORE_ALL = [("ignore", None, Warning, None, 0)]  # as a worker has it from its start, so that no file need ask for it
_SENTENCES = 5  # in one row of the report; a hostile file can give a hundred thousand


class CheckSettings(NamedTuple):
    """How files are checked.

    Attributes:
        level: ``"full"`` decodes every file, ``"none"`` looks at the first bytes only.
        max_pixels: a picture with more is skipped, before a decoder sees it.
        max_bytes: a file with more is skipped: what the container can hold as one value.
    """

    level: str = "full"
    max_pixels: int = DEFAULT_MAX_PIXELS
    max_bytes: int = 2**63


def load_decoders() -> None:
    """Import what checks the types: 0.1 s that the packing process, which decodes nothing, does without."""
    for kind in TYPES[1:]:
        _module(kind.name)


def _module(kind: str) -> ModuleType:
    name = f"{__name__}.{kind}"
    return sys.modules.get(name) or importlib.import_module(name)


def check_source(path: bytes, settings: CheckSettings, checksum: str = "") -> Verdict:
    """Read a file and judge it.

    Args:
        path: the file; its extension is compared with its content.
        settings: how it is checked.
        checksum: what the user's list of checksums says of it, in hexadecimal digits; empty where there is none.
    """
    try:
        data = read_regular_file(path, settings.max_bytes, sniff)
    except Unfit as unfit:
        return Skipped(unfit.code, unfit.detail)
    return check_bytes(data, path, settings, checksum)


def check_bytes(data: bytes, path: bytes, settings: CheckSettings, checksum: str = "") -> Verdict:
    """Judge the bytes of a file; ``path`` is only looked at for its extension, the rest is as in ``check_source``."""
    try:
        finding = _look(data, settings)
        if checksum:
            require_checksum(data, checksum)
    except Unfit as unfit:
        return Skipped(unfit.code, _strip_address(unfit.detail))
    except MemoryError:
        return Skipped("too_large", f"{len(data):,} bytes, and checking them takes more memory than a worker may have")
    # Decoders raise SyntaxError, ValueError, struct.error, RecursionError, MemoryError and more on damaged files; the
    # one that is not foreseen must cost its file, not the job.
    except Exception as error:  # noqa: BLE001
        return Skipped("corrupt", f"{type(error).__name__}: {_strip_address(str(error))}")
    return Kept(
        type=finding.type,
        size_bytes=len(data),
        digest=xxhash.xxh3_64_intdigest(data),
        mode=finding.mode,
        width=finding.width,
        height=finding.height,
        frames=finding.frames,
        orientation=finding.orientation,
        header=finding.header,
        warnings=_extension_mismatch(finding.type, path) + (_one_a_code(finding.warnings) if finding.warnings else ()),
    )


def _look(data: bytes, settings: CheckSettings) -> Finding:
    kind = sniff(data)
    if kind == "npy":
        return npy.check(data, count_nonfinite=settings.level == "full")
    if settings.level == "none":
        return Finding(kind)
    check: Callable[[bytes, int], Finding] = _module(kind).check
    if warnings.filters[:1] == _IGNORE_ALL:
        return check(data, settings.max_pixels)
    # Decoders warn of much that the verdict says already, and with warnings as errors a sound file would be lost.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return check(data, settings.max_pixels)


def _extension_mismatch(kind: str, path: bytes) -> tuple[Note, ...]:
    if path.endswith(_ENDINGS[kind]):
        return ()
    suffix = suffix_of(os.path.basename(path)).decode("ascii", "replace")
    if suffix in TYPES_BY_NAME[kind].suffixes:
        return ()
    return (Note("extension_mismatch", f"named .{suffix}, but the content is {kind}"),)


def _one_a_code(notes: Iterable[Note]) -> tuple[Note, ...]:
    """One row a file and code: two broken blocks are one reason to look at the file."""
    details: dict[str, dict[str, None]] = {}
    for note in notes:
        details.setdefault(note.code, {})[_strip_address(note.detail)] = None
    return tuple(Note(code, _joined(list(found))) for code, found in details.items())


def _joined(sentences: list[str]) -> str:
    more = f"; {len(sentences) - _SENTENCES:,} more" if len(sentences) > _SENTENCES else ""
    return "; ".join(sentences[:_SENTENCES]) + more


def _strip_address(text: str) -> str:
    """Pillow's "cannot identify image file <_io.BytesIO object at 0x7f...>": an address would make two reports differ."""
    return _ADDRESS.sub("", text)
