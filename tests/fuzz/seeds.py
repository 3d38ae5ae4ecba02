"""Valid inputs that mutants are made of, and byte strings that mean something to the readers."""

from __future__ import annotations

import io
import struct
import tempfile
import zlib
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin

from packer.index import Index, IndexWriter
from packer.manifest import FileEntry, Manifest, ShardEntry, content_digest
from packer.model import Extent, Kept
from packer.npyheader import parse_header
from packer.store import payload_digest
from tests import inputs
from tests.fuzz.mutate import join_parts, repair_folder, split_parts
from tests.strategies import npy_file
from tests.test_check_lzw import compress, noise
from tests.tiff_inputs import packbits, page_of, write

__all__ = [
    "JPEG_WORDS",
    "MANIFEST_WORDS",
    "NPY_WORDS",
    "PNG_WORDS",
    "SNIFF_WORDS",
    "TIFF_WORDS",
    "arrays",
    "bmps",
    "datasets",
    "exif_blocks",
    "fax_streams",
    "files",
    "gifs",
    "jpegs",
    "lzw_streams",
    "manifests",
    "pngs",
    "scans",
    "tiffs",
    "webps",
]


@cache
def arrays() -> list[bytes]:
    ramp = np.arange(12)
    nan = np.array([1, np.nan, np.inf])
    fortran = np.asfortranarray(ramp.reshape(3, 4).astype(">f8"))
    values: list[NDArray[Any]] = [ramp.astype("<f4"), fortran, ramp > 4, np.array(1, np.float16), nan, nan.astype("c16")]
    fields = "'descr': '<i4', 'fortran_order': False, 'shape': (2L, 3), "
    return [
        *(inputs.npy(value) for value in values),
        inputs.npy(np.zeros((0, 3))),
        npy_file("{" + fields + "}", bytes(24)),
        npy_file("{'descr': '|u1', 'fortran_order': False, 'shape': (3,), }", bytes(3), version=2),
        npy_file("{'descr': '|u1', 'fortran_order': False, 'shape': (3,), }", bytes(3), version=3),
        npy_file("{'descr': [('a', '<f4'), ('b', '<i2', (2,))], 'fortran_order': False, 'shape': (1,), }", bytes(8)),
    ]


NPY_WORDS = tuple(
    b"'descr': |'fortran_order': |'shape': |True|False|None|(|)|()|(,)|[|]|{|}|-|1,|3L|0x|1_0|1j|'<f4'|'>f8'|'|b1'|'|O'|'<c16'"
    b"|'<M8[ns]'|'<U9'|'V2'|'f4,f4'|'(2,)f4'|'<f16'|'float32'|('<f4', (2,))|[('a', '<f4')]|\\x00|\\N{DIGIT ONE}|b''|...|#|\0|\n"
    .split(b"|")
)  # fmt: skip


def _exif_block(order: str, value: int) -> bytes:
    mark = b"II*\0" if order == "<" else b"MM\0*"
    entries = ((0x010F, 2, 4, 0), (0x0112, 3, 1, value << (16 if order == ">" else 0)))
    body = b"".join(struct.pack(f"{order}HHII", *entry) for entry in entries)
    return mark + struct.pack(f"{order}IH", 8, len(entries)) + body + bytes(4)


def exif_blocks() -> list[bytes]:
    return [_exif_block(order, value) for order in "<>" for value in (1, 6, 9)]


def _encoded(kind: str, picture: Image.Image | None = None, **options: Any) -> bytes:
    buffer = io.BytesIO()
    (picture or inputs.photo(13, 9)).save(buffer, kind, **options)
    return buffer.getvalue()


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


@cache
def pngs() -> list[bytes]:
    small = inputs.photo(13, 9)
    text = PngImagePlugin.PngInfo()
    text.add_text("a", "b", zip=True)
    text.add_itxt("c", "ä" * 9)
    deep = Image.fromarray(np.arange(30, dtype=np.uint16).reshape(5, 6) * 999)
    # Pillow writes no interlaced file: seven passes of a grey one of 5 × 5, each row behind its filter byte.
    rows = b"".join(bytes(1 + width) * height for width, height in ((1, 1), (1, 1), (2, 1), (1, 2), (3, 1), (2, 3), (5, 2)))
    interlaced = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", struct.pack(">IIBBBBB", 5, 5, 8, 0, 0, 0, 1))
    return [
        _encoded("PNG", small),
        _encoded("PNG", small.convert("P"), transparency=3),
        _encoded("PNG", small.convert("1")),
        _encoded("PNG", small.convert("RGBA")),
        _encoded("PNG", deep),
        _encoded("PNG", small.convert("L"), pnginfo=text, exif=b"Exif\0\0" + _exif_block("<", 6), icc_profile=bytes(200)),
        _encoded("PNG", small, save_all=True, append_images=[inputs.photo(13, 9, seed=1)]),
        interlaced + _chunk(b"IDAT", zlib.compress(rows)) + _chunk(b"IEND", b""),
    ]


@cache
def jpegs() -> list[bytes]:
    small = inputs.photo(24, 17)
    exif = b"Exif\0\0" + _exif_block(">", 8)
    return [
        _encoded("JPEG", small, exif=exif),
        _encoded("JPEG", small, progressive=True, icc_profile=bytes(200)),
        _encoded("JPEG", small.convert("L"), comment=b"a comment"),
        _encoded("JPEG", small.convert("CMYK")),
        _encoded("JPEG", small.convert("CMYK"), subsampling="4:2:0"),
        _encoded("JPEG", small, restart_marker_blocks=1, subsampling="4:4:4"),
        _encoded("MPO", small, save_all=True, append_images=[inputs.photo(24, 17, seed=1)]),
    ]


@cache
def scans() -> list[bytes]:
    """JPEG files with sequential and progressive scans, of one and of several components."""
    small = inputs.photo(24, 17)
    options: list[dict[str, Any]] = [{}, {"optimize": True}, {"progressive": True}, {"restart_marker_blocks": 2}]
    return [
        _encoded("JPEG", small.convert(mode), subsampling=sampling, **each)
        for mode, sampling in (("L", 0), ("RGB", 2), ("CMYK", 0), ("CMYK", 2))
        for each in options
    ]


@cache
def gifs() -> list[bytes]:
    small = inputs.photo(13, 9).quantize(16)
    return [
        _encoded("GIF", small),
        _encoded("GIF", small, interlace=0, transparency=3),
        _encoded("GIF", small, save_all=True, append_images=[inputs.photo(13, 9, seed=1)], duration=40, loop=0, comment=b"c"),
        _encoded("GIF", inputs.photo(90, 70).convert("1")),
    ]


@cache
def webps() -> list[bytes]:
    small = inputs.photo(13, 9)
    exif = b"Exif\0\0" + _exif_block(">", 8)
    return [
        _encoded("WEBP", small),
        _encoded("WEBP", small, lossless=True),
        _encoded("WEBP", small.convert("RGBA"), exif=exif, icc_profile=bytes(40), xmp=b"<x/>"),
        _encoded("WEBP", small, save_all=True, append_images=[inputs.photo(13, 9, seed=1)]),
    ]


@cache
def bmps() -> list[bytes]:
    small = inputs.photo(13, 9)
    made = [_encoded("BMP", small.convert(mode)) for mode in ("1", "L", "P", "RGB", "RGBA")]
    # Pillow writes no packed ones: 4 × 2 pixels of 8 bits, a run and a literal.
    rows = bytes.fromhex("04 01 00 00 00 03 01 02 03 00 01 00 00 01")
    header = struct.pack("<IiiHHIIiiII", 40, 4, 2, 1, 8, 1, len(rows), 0, 0, 4, 4)
    packed = b"BM" + struct.pack("<IHHI", 14 + 40 + 16 + len(rows), 0, 0, 14 + 40 + 16) + header + bytes(range(16)) + rows
    return [*made, packed]


@cache
def tiffs() -> list[bytes]:
    small = inputs.photo(13, 9)
    pixels = np.asarray(inputs.photo(40, 33))
    pack = partial(packbits, row=39)
    two = [page_of(pixels[:9, :13], zlib.compress, 8), page_of(pixels[:5, :6])]
    return [
        *(_encoded("TIFF", small, compression=name) for name in (None, "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg")),
        *(_encoded("TIFF", inputs.photo(90, 9).convert("1"), compression=name) for name in ("group3", "group4", "tiff_ccitt")),
        _encoded("TIFF", small.convert("P")),
        write(page_of(pixels, zlib.compress, 8, tile=(16, 16))),
        write(page_of(pixels[:9, :13], planar=True, rows=4, order=">"), order=">"),
        write(page_of(pixels[:9, :13, :1].astype("<u2") * 99), big=True),
        write(page_of(pixels[:9, :13], pack, 32773, rows=4)),
        write(*two),
    ]


@cache
def lzw_streams() -> list[bytes]:
    """A byte for the form, and a stream."""
    made = []
    for literal_bits, msb_first in ((2, False), (4, False), (8, False), (8, True)):
        for runs in (1, 40):
            stream = compress(noise(900, literal_bits, runs=runs), literal_bits, msb_first, 700)
            made.append(bytes([literal_bits | msb_first << 7]) + stream)
    return made


@cache
def fax_streams() -> list[bytes]:
    """A byte each for scheme, options and rows, and the codes; a row has 90 pixels."""
    made = []
    for scheme, name in ((2, "tiff_ccitt"), (3, "group3"), (4, "group4")):
        with Image.open(io.BytesIO(_encoded("TIFF", inputs.photo(90, 9).convert("1"), compression=name))) as picture:
            tags, data = picture.tag_v2, picture.fp.getvalue()  # type: ignore[attr-defined,union-attr]
        start, size = tags[273][0], tags[279][0]
        made.append(bytes([scheme, tags.get(292, 0), 9]) + data[start : start + size])
    return made


@cache
def files() -> list[bytes]:
    """One file of each type, and the beginnings of what is refused by name."""
    small = inputs.photo(13, 9)
    pictures = [_encoded(kind, small) for kind in ("GIF", "WEBP", "BMP", "TIFF")]
    texts = [
        b"<!DOCTYPE html><html lang=en><head><title lang=en>404 Not\nFound</title></head></html>",
        b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"></svg>',
        b'{"error": "not found"}',
        b"plain text, \xc3\xa4\n",
        b"version https://git-lfs.github.com/spec/v1\n",
        b"\0\0\0\x20ftypavif\0\0\0\0avifmif1miaf" + bytes(8),
        b"\0\0\0\x1cftypheic\0\0\0\0mif1heicavif" + bytes(8),
        b"\0\0\0\x18ftypisom\0\0\2\0isomiso2",
        bytes(64),
        b"\r\n" + jpegs()[0][:60],
    ]
    return [jpegs()[0], pngs()[0], *pictures, arrays()[0], *texts]


PNG_WORDS = tuple(b"IHDR PLTE IDAT IEND tRNS acTL fcTL fdAT eXIf tEXt zTXt iTXt iCCP gAMA sRGB pHYs sBIT zzZz QQQQ".split())
JPEG_WORDS = tuple(b"\xff" + bytes([marker]) for marker in (0, 1, 0xFF, *range(0xC0, 0xCF), *range(0xD0, 0xE3), 0xEE, 0xFE))
JPEG_WORDS += (b"Exif\0\0", b"MPF\0", b"Adobe\0d\0\0\0\0", b"ICC_PROFILE\0\1\1", b"\xff\xda\0\x08\x01\x01\0\0\x3f\0")
# Tags, and types with a count of one, in both orders of bytes.
TIFF_WORDS = tuple(
    struct.pack(f"{order}{'H' * len(values)}", *values)
    for order in "<>"
    for values in ((256,), (257,), (258,), (259,), (262,), (266,), (273,), (277,), (278,), (279,), (284,), (292,), (317,),
                   (320,), (322,), (324,), (339,), (347,), (530,), (34_665,), (3, 1), (4, 1), (16, 1), (32_773,), (34_712,))
)  # fmt: skip
SNIFF_WORDS = tuple(
    b"<title |<title>|</title|<html|<body|<svg|<?xml|ftyp|avif|heic|mif1|RIFF|WEBP|BM|GIF89a|II*\0|MM\0*|\xff\xd8\xff|PK\3\4"
    b"|\xef\xbb\xbf|\x89PNG\r\n\x1a\n|\x93NUMPY|%PDF|\0\0\1\0|{\"|\x80\4"
    .split(b"|")
)  # fmt: skip


def _packed(samples: list[bytes], labels: str, header: bytes = b"") -> bytes:
    """A small dataset of one shard, as packer writes it."""
    classes: tuple[str, ...] = () if labels == "none" else ("7", "12") if labels == "number" else ("a", "b\udcff")
    with tempfile.TemporaryDirectory() as folder:
        writer = IndexWriter(Path(folder))
        extents, offset = [], 0
        for number, sample in enumerate(samples):
            label = -1 if labels == "none" else int(classes[number % 2]) if labels == "number" else number % 2
            digest = payload_digest(header, sample)
            writer.append(b"%d/\xc3\xa4 %d.npy" % (number % 2, number), label, Kept("npy", len(sample), digest, header=header))
            extents.append(Extent(0, offset if sample else 0, len(sample)))
            offset += len(sample)
        writer.place(extents)
        writer.finish()
        digest_of_all = content_digest(Index(Path(folder), len(samples)), classes)
        index, names = Path(folder, "index.npy").read_bytes(), Path(folder, "names.bin").read_bytes()
    shard = ShardEntry("0.tar", offset, len(samples), "0" * 32)
    empty = FileEntry(0, "99aa06d3014798d86001c324468d497f")  # xxh3-128 of nothing
    beside = {"index.npy": FileEntry(len(index), ""), "names.bin": FileEntry(len(names), ""), "report.jsonl": empty}
    made = Manifest(
        format="webdataset",
        samples=len(samples),
        classes=classes,
        labels=labels,
        header=header,
        shards=(shard,),
        files=beside,
        options={"check": "full"},
        versions={"webdataset": "1"},
        content_digest=digest_of_all,
    )
    return repair_folder(join_parts(made.to_json(), index, names, b"".join(samples)))


@cache
def datasets() -> list[bytes]:
    made = arrays()
    header = made[0][: parse_header(made[0]).size_bytes]
    return [
        _packed(made[:4], "folder"),
        _packed(made[4:6], "number"),
        _packed([bytes(48), bytes(range(48)), b""], "none", header),
    ]


def manifests() -> list[bytes]:
    return [split_parts(data)[0] for data in datasets()]


MANIFEST_WORDS = tuple(
    b'null|true|false|[]|{}|""|-1|1.5|NaN|1e999|"none"|"folder"|"number"|"01"|"1"|"\\ud800"|"\\udc80"|"../x"|"index.npy"|"data"|"AA=="'
    b'|"layout": 1,|"labels": "none",|"classes": [],|"digest": "",|,|:|[|]|{|}|[[|\xef\xbb\xbf|\xff\xfe|\0'
    .split(b"|")
)  # fmt: skip
