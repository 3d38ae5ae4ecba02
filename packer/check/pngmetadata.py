"""Whether the colour profile and the texts of a PNG file can be read. They are no part of the picture, so damage is noted only.

Facts: W3C, Portable Network Graphics (third edition), section 11.3 (iCCP, tEXt, zTXt, iTXt); ICC.1:2022, section 7.2 (header).
"""

from __future__ import annotations

import zlib

__all__ = ["CHUNKS", "Metadata"]

CHUNKS = frozenset({b"iCCP", b"tEXt", b"zTXt", b"iTXt"})
"""Types of the chunks that are looked at here."""

_MAX_BYTES = 64 << 20
_BLOCK = 1 << 20
_MAX_KEYWORD = 79
_PROFILE_HEADER = 128


class _BrokenError(ValueError):
    """What is wrong with a chunk."""


class Metadata:
    """Looks at the chunks of one file; 64 MiB are inflated in all, since small chunks can hold endless texts."""

    def __init__(self) -> None:
        self._left = _MAX_BYTES

    def fault(self, kind: bytes, body: bytes) -> str:
        """What is wrong with a chunk of one of ``CHUNKS``; empty where it can be read."""
        try:
            keyword, separator, rest = body.partition(b"\0")
            if not separator or not 1 <= len(keyword) <= _MAX_KEYWORD:
                raise _BrokenError(
                    f"its {len(body):,} bytes do not begin with a name of 1 to {_MAX_KEYWORD} bytes and a zero byte"
                )
            if kind == b"iTXt":
                self._international(rest)
            elif kind == b"zTXt":
                self._inflate(rest)
            elif kind == b"iCCP":
                self._profile(rest)
        except _BrokenError as error:
            return str(error)
        return ""

    def _international(self, rest: bytes) -> None:
        if len(rest) < 2 or rest.count(b"\0", 2) < 2:
            raise _BrokenError(
                f"{len(rest):,} bytes follow its name, where language and translation with their ends are expected"
            )
        text = rest[2:].split(b"\0", 2)[2]
        if rest[0] == 1:
            self._inflate(rest[1:2] + text)
        elif rest[0]:
            raise _BrokenError(f"its compression flag is {rest[0]}, there are 0 and 1")

    def _profile(self, rest: bytes) -> None:
        if self._left <= 0:
            return
        header, length = self._inflate(rest)
        if length < _PROFILE_HEADER or header[36:40] != b"acsp":
            raise _BrokenError(f"its {length:,} bytes are no ICC profile")
        said = int.from_bytes(header[:4], "big")
        if said > length:
            raise _BrokenError(f"an ICC profile of {said:,} bytes, of which {length:,} are there")

    def _inflate(self, rest: bytes) -> tuple[bytes, int]:
        """Inflate what follows the byte of the method, and return the first bytes and how many there are."""
        if not rest or rest[0]:
            raise _BrokenError(f"its compression method is {rest[0]}, there is only 0" if rest else "nothing follows its name")
        stream, pending, head, length = zlib.decompressobj(), rest[1:], b"", 0
        try:
            while self._left > 0 and not stream.eof:
                block = stream.decompress(pending, _BLOCK)
                pending = stream.unconsumed_tail
                self._left -= len(block)
                length += len(block)
                head = head or block[:_PROFILE_HEADER]
                if not block and not pending:
                    break
        except zlib.error as error:
            raise _BrokenError(f"{length:,} bytes inflate, then it breaks: {error}") from None
        if not stream.eof and self._left > 0:
            raise _BrokenError(f"its {len(rest) - 1:,} compressed bytes end too early, after {length:,} inflated ones")
        return head, length
