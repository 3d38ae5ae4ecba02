"""Check PNG files by their chunks: Pillow's ``load()`` looks neither at the checksums nor at the length of the pixels.

Facts: W3C, Portable Network Graphics (third edition), sections 5 (chunks), 8 (interlacing), 9 (filters), 10 (compression).
Checksums and inflation are the standard library's. Nothing is unfiltered, since every filter undoes to some pixel; so this is
faster than decoding.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from packer import exif
from packer.check import pictures
from packer.check.pngmetadata import CHUNKS, Metadata
from packer.check.verdict import Finding, require_pixels
from packer.model import Note, Unfit
from packer.pngchunks import Chunk, chunks

__all__ = ["check"]

_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))  # x, y, steps
_KNOWN_CRITICAL = frozenset({b"IHDR", b"PLTE", b"IDAT", b"IEND"})
_MATTER = _KNOWN_CRITICAL | {b"tRNS", b"acTL", b"fcTL", b"fdAT"}
_TEXT = frozenset({b"tEXt", b"zTXt", b"iTXt"})
_MAX_TEXT_BYTES = 64 << 20  # Pillow's own limit (PngImagePlugin.MAX_TEXT_MEMORY), which it enforces when it reads
_BLOCK = 1 << 20  # bytes inflated in one go: a bomb never gets further than the length that its header promises
_SLICE = 64 << 10  # compressed bytes given to zlib in one go


@dataclass(slots=True)
class _Frame:
    """One picture: its size, and the pieces of its compressed pixels."""

    width: int
    height: int
    pieces: list[memoryview] = field(default_factory=list)


@dataclass(slots=True)
class _Walk:
    """What the chunks say."""

    width: int = 0
    height: int = 0
    depth: int = 0
    colour: int = 0
    interlaced: bool = False
    palette: bool = False
    animated: bool = False
    promised_frames: int = 1
    frame_headers: int = 0
    numbered: int = 0
    misnumbered: str = ""
    text_bytes: int = 0
    exif: bytes | None = None
    frames: list[_Frame] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    metadata: Metadata = field(default_factory=Metadata)
    faulty: set[bytes] = field(default_factory=set)
    last: bytes = b""
    end: int = 0


def check(data: bytes, max_pixels: int) -> Finding:
    """Check a whole file.

    Raises:
        Unfit: ``truncated``, ``corrupt``, ``too_large``.
    """
    found = _walk_chunks(data, max_pixels)
    spent = 0
    for number, frame in enumerate(found.frames):
        spent += frame.width * frame.height
        if number and spent > max_pixels:
            break  # an animation of 1,500 large frames would cost minutes; the checksums of all its chunks were compared
        _inflate(found, frame, "" if not number else f"frame {number}: ")
    notes = found.notes
    mode = pictures.mode_of_png(data, notes)
    turned = exif.orientation_or_note(found.exif, notes)
    if found.depth == 16 and not mode.startswith("I"):
        notes.append(Note("depth_reduced", f"16 bits a channel, the reader gives 8 ({mode})"))
    if found.promised_frames > 1:
        notes.append(Note("multi_frame", f"{found.promised_frames} pictures, the first is read"))
    return Finding("png", mode, found.width, found.height, found.promised_frames, turned, warnings=tuple(notes))


def _walk_chunks(data: bytes, max_pixels: int) -> _Walk:
    found = _Walk()
    view = memoryview(data)
    for chunk in chunks(data):
        if not found.last:
            if chunk.type != b"IHDR" or chunk.length != 13:
                raise Unfit("corrupt", f"the first chunk is {_name(chunk)} of {chunk.length:,} bytes, IHDR of 13 is expected")
            if chunk.whole:
                _read_header(found, data[chunk.start : chunk.start + 13])
                require_pixels(found.width, found.height, max_pixels)
        if not chunk.whole:
            left = len(data) - chunk.start
            raise Unfit(
                "truncated", f"chunk {_name(chunk)} at byte {chunk.start:,} has {chunk.length:,} bytes, {left:,} are left"
            )
        is_sound = _has_checksum(found, view, chunk)
        _take(found, view, chunk)
        if is_sound and chunk.type in CHUNKS:
            _look_at_metadata(found, view, chunk)
        found.last, found.end = chunk.type, chunk.start + chunk.length + 4
    if found.last != b"IEND":
        raise Unfit("truncated", f"ends after chunk {found.last.decode('latin-1') or 'nothing'}, there is no IEND")
    if not found.frames:
        raise Unfit("corrupt", "no IDAT chunk, so no pixels")
    if found.colour == 3 and not found.palette:
        raise Unfit("corrupt", "a palette picture without a palette")
    if found.frame_headers and not found.animated:
        found.notes.append(Note("bad_metadata", f"{found.frame_headers} frames (fcTL) of an animation that nothing announces"))
        del found.frames[1:]
    elif found.frame_headers and found.frame_headers != found.promised_frames:
        raise Unfit("corrupt", f"an animation of {found.promised_frames} frames that has {found.frame_headers}")
    elif found.misnumbered:
        found.notes.append(Note("bad_metadata", found.misnumbered))
    if found.end < len(data):
        found.notes.append(Note("trailing_bytes", f"{len(data) - found.end:,} bytes after the end of the picture"))
    return found


def _read_header(found: _Walk, header: bytes) -> None:
    width, height, depth, colour, compression, filtering, interlacing = struct.unpack(">IIBBBBB", header)
    if depth not in _DEPTHS.get(colour, ()):
        raise Unfit("corrupt", f"colour type {colour} with {depth} bits a channel does not exist")
    if compression or filtering or interlacing > 1:
        raise Unfit("corrupt", f"compression {compression}, filter {filtering}, interlace {interlacing} in the header")
    found.width, found.height, found.depth, found.colour, found.interlaced = width, height, depth, colour, bool(interlacing)


def _has_checksum(found: _Walk, view: memoryview, chunk: Chunk) -> bool:
    end = chunk.start + chunk.length
    stored = int.from_bytes(view[end : end + 4], "big")
    if zlib.crc32(view[chunk.start - 4 : end]) == stored:
        return True
    if chunk.type in _MATTER:
        raise Unfit("corrupt", f"chunk {_name(chunk)} at byte {chunk.start:,} has a wrong checksum")
    found.notes.append(Note("bad_metadata", f"chunk {_name(chunk)} has a wrong checksum"))
    return False


def _look_at_metadata(found: _Walk, view: memoryview, chunk: Chunk) -> None:
    if chunk.type in found.faulty:  # one note for each type: a file can have thousands of texts
        return
    fault = found.metadata.fault(chunk.type, bytes(view[chunk.start : chunk.start + chunk.length]))
    if fault:
        found.faulty.add(chunk.type)
        found.notes.append(Note("bad_metadata", f"chunk {_name(chunk)} at byte {chunk.start:,} cannot be read: {fault}"))


def _take(found: _Walk, view: memoryview, chunk: Chunk) -> None:
    kind, body = chunk.type, view[chunk.start : chunk.start + chunk.length]
    if kind == b"IDAT":
        if found.last != b"IDAT":
            if found.frames:
                raise Unfit("corrupt", "its IDAT chunks do not follow one another")
            found.frames.append(_Frame(found.width, found.height))
        found.frames[0].pieces.append(body)
    elif kind == b"PLTE":
        if found.palette or found.frames or not chunk.length or chunk.length % 3 or chunk.length > 768:
            raise Unfit("corrupt", f"a palette of {chunk.length} bytes after {found.last.decode('latin-1')}")
        found.palette = True
    elif kind == b"IHDR":
        if found.last:
            raise Unfit("corrupt", "two IHDR chunks")
    elif kind == b"acTL" and chunk.length == 8 and not found.frames:
        found.animated = True
        found.promised_frames = max(1, int.from_bytes(body[:4], "big"))
    elif kind == b"fcTL" and chunk.length == 26:
        _count_number(found, body)
        found.frame_headers += 1
        if found.frames:  # the one before IDAT is about the picture itself
            found.frames.append(_frame_of(found, body))
    elif kind == b"fdAT":
        if len(found.frames) < 2 or chunk.length < 4:
            raise Unfit("corrupt", "a frame without its header")
        _count_number(found, body)
        found.frames[-1].pieces.append(body[4:])
    elif kind == b"eXIf":
        found.exif = bytes(body)
    elif kind in _TEXT:
        found.text_bytes += chunk.length
        if found.text_bytes > _MAX_TEXT_BYTES:
            raise Unfit("too_large", f"more than {_MAX_TEXT_BYTES:,} bytes of text in it")
    elif kind[0] & 32 == 0 and kind not in _KNOWN_CRITICAL:
        raise Unfit("corrupt", f"a chunk {_name(chunk)} that the standard does not know, and without which it cannot be read")


def _count_number(found: _Walk, body: memoryview) -> None:
    """The chunks of an animation are numbered; the data of its frames are looked at all the same."""
    number = int.from_bytes(body[:4], "big")
    if number != found.numbered and not found.misnumbered:
        found.misnumbered = f"chunk {found.numbered} of an animation has the number {number}, later pictures may be unreadable"
    found.numbered += 1


def _frame_of(found: _Walk, body: memoryview) -> _Frame:
    width, height, x, y = struct.unpack_from(">IIII", body, 4)
    if not width or not height or x + width > found.width or y + height > found.height:
        raise Unfit("corrupt", f"a frame of {width} × {height} at {x}, {y} does not fit into {found.width} × {found.height}")
    return _Frame(width, height)


def _inflate(found: _Walk, frame: _Frame, where: str) -> None:
    """Inflate the pixels without keeping them, and compare their length and filters with what the header promises."""
    rows = _Rows(_passes(found, frame))
    stream = zlib.decompressobj()
    try:
        for piece in _slices(frame.pieces):
            rest: bytes | memoryview = piece
            while rest and not stream.eof:
                rows.add(stream.decompress(rest, _BLOCK))
                if rows.missing < 0:
                    raise Unfit("corrupt", f"{where}more pixels than {frame.width} × {frame.height}")
                rest = stream.unconsumed_tail
        while not stream.eof and (last := stream.decompress(stream.unconsumed_tail, _BLOCK)):
            rows.add(last)
    except zlib.error as error:
        raise Unfit("corrupt", f"{where}its pixels do not inflate: {error}") from None
    if rows.missing > 0:
        raise Unfit("truncated", f"{where}{rows.missing:,} of {rows.expected:,} bytes of pixels are missing")
    if rows.missing < 0:
        raise Unfit("corrupt", f"{where}more pixels than {frame.width} × {frame.height}")
    if not stream.eof:
        raise Unfit("truncated", f"{where}the compressed pixels end without their checksum")


def _slices(pieces: list[memoryview]) -> Iterator[memoryview]:
    """Pieces of bounded length: zlib copies all that it has not used yet, so one chunk of 50 MB took ten times as long."""
    for piece in pieces:
        for start in range(0, len(piece), _SLICE):
            yield piece[start : start + _SLICE]


def _passes(found: _Walk, frame: _Frame) -> list[tuple[int, int]]:
    """Bytes a row, its filter byte included, and rows, of each pass."""
    bits = found.depth * _CHANNELS[found.colour]
    sizes: Iterable[tuple[int, int]] = [(frame.width, frame.height)]
    if found.interlaced:
        sizes = [(-(-(frame.width - x) // dx), -(-(frame.height - y) // dy)) for x, y, dx, dy in _ADAM7]
    return [((width * bits + 7) // 8 + 1, height) for width, height in sizes if width > 0 and height > 0]


class _Rows:
    """Counts inflated bytes, and looks at the filter byte that every row begins with."""

    def __init__(self, passes: list[tuple[int, int]]) -> None:
        self.expected = sum(stride * rows for stride, rows in passes)
        self.missing = self.expected
        self._passes = passes
        self._position = 0  # in the first of the passes left

    def add(self, block: bytes) -> None:
        self.missing -= len(block)
        at = 0
        while at < len(block) and self._passes:
            stride, rows = self._passes[0]
            end = min(len(block), at + stride * rows - self._position)
            filters = block[at + -self._position % stride : end : stride]
            if filters and max(filters) > 4:
                raise Unfit("corrupt", f"a row has filter type {max(filters)}, there are 0 to 4")
            self._position += end - at
            at = end
            if self._position == stride * rows:
                self._passes, self._position = self._passes[1:], 0


def _name(chunk: Chunk) -> str:
    return chunk.type.decode("latin-1")
