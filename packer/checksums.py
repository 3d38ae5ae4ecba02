"""A list of checksums that the user has: damage that no decoder can see shows against it.

Read are the lines of ``sha256sum`` and its sisters (GNU coreutils: ``DIGEST  NAME``, ``DIGEST *NAME``, a leading backslash
where the name holds an escaped line break) and of ``shasum --tag`` (``SHA256 (NAME) = DIGEST``). Which sum it is, the
number of digits says.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import xxhash

from packer.errors import InputError
from packer.files import read_regular_file
from packer.model import Unfit, display_name

__all__ = ["Checksums", "require_checksum"]

_ALGORITHMS = {32: "md5", 40: "sha1", 56: "sha224", 64: "sha256", 96: "sha384", 128: "sha512"}  # by hexadecimal digits
_LINE = re.compile(rb"(\\?)([0-9a-fA-F]{32,128}) [ *](.+)", re.DOTALL)
_TAGGED = re.compile(rb"(\\?)([A-Z0-9/-]{2,12}) \((.+)\) = ([0-9a-fA-F]{32,128})", re.DOTALL)
_ESCAPES = {b"\\\\": b"\\", b"\\n": b"\n", b"\\r": b"\r"}
_MAX_LIST_BYTES = 8 << 30


class Checksums:
    """The list as a table from name to digest.

    Args:
        path: the list.
        root: the input. Names in the list are absolute, or relative to the list's own folder, or relative to the input.

    Raises:
        InputError: the list cannot be read, has a line that is none of a checksum list, or contradicts itself.

    Attributes:
        digest: xxh3-128 of the list.
    """

    def __init__(self, path: Path, root: Path) -> None:
        try:
            text = read_regular_file(os.fsencode(path), _MAX_LIST_BYTES)
        except Unfit as unfit:
            raise InputError(f"{path}: {unfit.detail}") from None
        self.digest = xxhash.xxh3_128_hexdigest(text)
        self._prefixes = tuple(_prefixes(path, root))
        self._expected: dict[bytes, bytes] = {}
        self._met: set[bytes] = set()
        for number, line in enumerate(text.removeprefix(codecs.BOM_UTF8).split(b"\n"), 1):
            if line.strip() and not line.startswith(b"#"):
                self._add(path, number, line.removesuffix(b"\r"))

    def expected(self, name: bytes) -> str:
        """The digest of a file in hexadecimal digits, empty where the list does not name it."""
        digest = self._expected.get(name)
        if digest is None:
            return ""
        self._met.add(name)
        return digest.hex()

    def missing(self) -> Iterator[bytes]:
        """Names that are in the list and were never asked for."""
        return (name for name in self._expected if name not in self._met)

    def _add(self, path: Path, number: int, line: bytes) -> None:
        if match := _LINE.fullmatch(line):
            escaped, digits, name = match.groups()
        elif match := _TAGGED.fullmatch(line):
            escaped, tag, name, digits = match.groups()
            if tag.decode().lower() != _ALGORITHMS.get(len(digits)):  # SHA3-256 has as many digits as SHA256
                raise InputError(f"{path}: line {number:,} has a {tag.decode()} checksum; {_known()} are known")
        else:
            raise InputError(f"{path}: line {number:,} is no checksum with a name ({display_name(line[:60])})")
        if len(digits) not in _ALGORITHMS:
            raise InputError(f"{path}: line {number:,} has a checksum of {len(digits)} digits; {_known()} are known")
        if escaped:
            name = re.sub(rb"\\.", lambda found: _ESCAPES.get(found[0], found[0]), name)
        name = re.sub(rb"^(\./+)+", b"", name)
        prefix = next((prefix for prefix in self._prefixes if name.startswith(prefix)), b"")
        name, digest = name[len(prefix) :], bytes.fromhex(digits.decode())
        before = self._expected.setdefault(name, digest)
        if before != digest and len(before) == len(digest):
            raise InputError(f"{path}: line {number:,} gives {display_name(name)} another checksum than a line before")
        if len(before) < len(digest):
            self._expected[name] = digest  # lists of two kinds in one: the longer says more


def require_checksum(data: bytes, expected: str) -> None:
    """Compare the bytes of a file with the digest in the user's list.

    Raises:
        Unfit: ``checksum``, with both digests.
    """
    algorithm = _ALGORITHMS[len(expected)]
    import hashlib  # loads OpenSSL, which few jobs need

    found = hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()
    if found != expected:
        raise Unfit("checksum", f"{algorithm} is {found}, the list says {expected}: not the bytes that were listed")


def _prefixes(path: Path, root: Path) -> Iterator[bytes]:
    """What a name in the list may begin with before the part that is relative to the input."""
    real_root = os.path.realpath(root)
    folders = [real_root, os.path.abspath(root)]
    with contextlib.suppress(ValueError):  # Windows: on another drive
        folders.append(os.path.relpath(real_root, os.path.realpath(path.parent)))
    for folder in folders:
        prefix = os.fsencode(folder).replace(os.fsencode(os.sep), b"/").rstrip(b"/")
        if prefix != b".":
            yield prefix + b"/"


def _known() -> str:
    return ", ".join(f"{digits} ({name})" for digits, name in _ALGORITHMS.items())
