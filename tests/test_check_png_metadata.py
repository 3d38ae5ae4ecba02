"""Broken profiles and texts of PNG files are noted; the picture beside them is kept."""

from __future__ import annotations

import struct
import tracemalloc
import zlib

import pytest
from PIL import ImageCms

from packer.check import CheckSettings, check_bytes
from packer.model import Kept
from tests.inputs import png

P = png()
PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def faults(*chunks: tuple[bytes, bytes]) -> list[str]:
    data = P[:33] + b"".join(chunk(*one) for one in chunks) + P[33:]
    verdict = check_bytes(data, b"x.png", CheckSettings())
    assert isinstance(verdict, Kept), verdict
    assert {note.code for note in verdict.warnings} <= {"bad_metadata"}
    said = [sentence for note in verdict.warnings for sentence in note.detail.split("; ")]  # one note has them all
    return [sentence for sentence in said if not sentence.startswith("Pillow cannot open")]


@pytest.mark.parametrize(
    "kind, body",
    [
        (b"iCCP", b"sRGB\0\0" + zlib.compress(PROFILE)),
        (b"tEXt", b"Title\0a picture"),
        (b"tEXt", b"Title\0"),
        (b"zTXt", b"Title\0\0" + zlib.compress(b"a picture")),
        (b"zTXt", b"Title\0\0" + zlib.compress(b"")),
        (b"iTXt", b"Title\0\0\0en\0Titel\0a picture"),
        (b"iTXt", b"Title\0\1\0\0\0" + zlib.compress(b"a picture")),
    ],
)
def test_sound_metadata_are_no_news(kind: bytes, body: bytes) -> None:
    assert faults((kind, body)) == []


@pytest.mark.parametrize(
    "kind, body, fault",
    [
        (b"iCCP", b"x\0\0notzlib", "0 bytes inflate, then it breaks: Error -3"),
        (b"iCCP", b"x\0", "nothing follows its name"),
        (b"iCCP", b"x", "its 1 bytes do not begin with a name"),
        (b"iCCP", b"x\0\1" + zlib.compress(PROFILE), "its compression method is 1"),
        (b"iCCP", b"x\0\0" + zlib.compress(b"junk"), "its 4 bytes are no ICC profile"),
        (
            b"iCCP",
            b"x\0\0" + zlib.compress(PROFILE[:-9]),
            f"an ICC profile of {len(PROFILE):,} bytes, of which {len(PROFILE) - 9:,}",
        ),
        (b"zTXt", b"k\0\0" + zlib.compress(b"a picture")[:-5], "compressed bytes end too early, after 9 inflated ones"),
        (b"zTXt", b"k\0\0" + zlib.compress(b"a picture")[:-4] + b"zzzz", "then it breaks"),
        (b"iTXt", b"k\0\1\0en\0k\0notzlib", "then it breaks"),
        (b"iTXt", b"k\0\1\0en", "4 bytes follow its name, where language and translation"),
        (b"iTXt", b"k\0\7\0en\0k\0text", "its compression flag is 7"),
        (b"tEXt", b"no separator", "its 12 bytes do not begin with a name of 1 to 79 bytes"),
        (b"tEXt", b"\0no name", "its 8 bytes do not begin with a name"),
    ],
)
def test_broken_metadata_are_noted_with_their_place(kind: bytes, body: bytes, fault: str) -> None:
    (noted,) = faults((kind, body))
    assert noted.startswith(f"chunk {kind.decode()} at byte 41 cannot be read: ")
    assert fault in noted


def test_one_note_for_each_type() -> None:
    assert len(faults(*[(b"tEXt", b"broken")] * 50, (b"zTXt", b"broken"))) == 2


def test_inflation_is_bounded() -> None:
    bomb = zlib.compress(bytes(100 << 20))
    tracemalloc.start()
    try:
        assert faults(*[(b"zTXt", b"k\0\0" + bomb)] * 30) == []
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
