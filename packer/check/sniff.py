"""Tell the type of a file by its first bytes. The name is never asked: a tenth of a crawl is named wrong."""

from __future__ import annotations

import re

from packer.model import Unfit

__all__ = ["sniff"]

_STARTS = (
    (b"\xff\xd8\xff", "jpeg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"II+\0", "tiff"),
    (b"MM\0+", "tiff"),
    (b"\x93NUMPY", "npy"),
)

# Formats that are images or arrays, but that packer does not keep: what they are, and what would help.
_UNSUPPORTED = (
    (b"PK\x03\x04", "a zip archive (.npz is one): save each array as .npy"),
    (b"PK\x05\x06", "an empty zip archive (.npz is one)"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000: convert it to PNG or JPEG"),
    (b"\xff\x4f\xff\x51", "a JPEG 2000 stream: convert it to PNG or JPEG"),
    (b"\xff\x0a", "JPEG XL: convert it to PNG or JPEG"),
    (b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL: convert it to PNG or JPEG"),
    (b"8BPS", "a Photoshop document: export it as PNG"),
    (b"DDS ", "a DirectDraw surface: convert it to PNG"),
    (b"#?RADIANCE", "a Radiance HDR picture: convert it to TIFF or .npy"),
    (b"v/1\x01", "OpenEXR: convert it to TIFF or .npy"),
    (b"\0\0\x01\0", "a Windows icon: convert it to PNG"),
    (b"\x01\xda", "an SGI picture: convert it to PNG"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file: save each array as .npy"),
    (b"SIMPLE  =", "a FITS file: save each array as .npy"),
    (b"icns", "a Mac icon: convert it to PNG"),
    (b"qoif", "a QOI picture: convert it to PNG"),
    (b"II\xbc\x01", "JPEG XR: convert it to PNG or TIFF"),
    (b"/* XPM */", "an XPM picture: convert it to PNG"),
    (b"\x8aMNG\r\n\x1a\n", "an MNG animation: convert it to PNG or GIF"),
)

_NOT_AN_IMAGE = (
    (b"%PDF", "a PDF document"),
    (b"\x1f\x8b", "a gzip file"),
    (b"Rar!", "a RAR archive"),
    (b"7z\xbc\xaf", "a 7-Zip archive"),
    (b"ID3", "an MP3 file"),
    (b"\0\x05\x16\x07", "an AppleDouble file with a Mac's file attributes"),
    (b"version https://git-lfs", "a Git LFS pointer: run `git lfs pull` to get the file itself"),
    (b"\x80\x03", "a Python pickle"),
    (b"\x80\x04", "a Python pickle"),
    (b"\x80\x05", "a Python pickle"),
)

_BRANDS = {
    b"avif": "avif", b"avis": "avif",
}  # fmt: skip
# Netpbm: P1 to P6, white space, and the width or a comment.
_NETPBM = re.compile(rb"P[1-6]\s+[0-9#]")
_HEIF_BRANDS = frozenset({b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1", b"mif2"})

# Bounded, or a page of nothing but "<title" costs the square of its length.
_TITLE = re.compile(rb"<title[^>]{0,200}>(.{1,200}?)</title", re.IGNORECASE | re.DOTALL)


def sniff(data: bytes) -> str:
    """Return the type's name in ``packer.model.TYPES``.

    Raises:
        Unfit: nothing that packer keeps; the sentence says what it is instead, where that can be told.
    """
    if not data:
        raise Unfit("empty_file", "0 bytes")
    for start, kind in _STARTS:
        if data.startswith(start):
            return kind
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[:2] == b"BM" and _is_bmp(data):
        return "bmp"
    if data[4:8] == b"ftyp":
        return _iso_media(data)
    _refuse(data)
    raise Unfit("not_an_image", f"unknown content, begins with {data[:12].hex(' ')}")


def _is_bmp(data: bytes) -> bool:
    # "BM" alone begins many a text; the size of the second header is one of a few numbers.
    return int.from_bytes(data[14:18], "little") in (12, 16, 40, 52, 56, 64, 108, 124) or len(data) < 18


def _iso_media(data: bytes) -> str:
    brand = data[8:12]
    if brand in _BRANDS:
        return _BRANDS[brand]
    compatible = {data[at : at + 4] for at in range(16, min(int.from_bytes(data[:4], "big"), 256), 4)}
    if brand in _HEIF_BRANDS:
        if not compatible.isdisjoint(_BRANDS):
            return "avif"
        raise Unfit("unsupported_format", "HEIC/HEIF: convert it to JPEG or PNG (the Python plug-in pillow-heif reads it)")
    name = brand.decode("ascii", "replace")
    raise Unfit("not_an_image", f"an ISO media file of brand {name!r}, probably a video or sound")


def _refuse(data: bytes) -> None:
    for start, what in _UNSUPPORTED:
        if data.startswith(start):
            raise Unfit("unsupported_format", what)
    if _NETPBM.match(data):
        raise Unfit("unsupported_format", "a Netpbm picture (.ppm, .pgm, .pbm): convert it to PNG")
    for start, what in _NOT_AN_IMAGE:
        if data.startswith(start):
            raise Unfit("not_an_image", what)
    if not data.strip(b"\0"):
        raise Unfit("corrupt", f"begins with {len(data):,} zero bytes, and nothing else was found")
    for start, kind in _STARTS[:-1]:
        at = data[:64].find(start)
        if at > 0:
            raise Unfit("corrupt", f"{kind} content after {at} foreign bytes ({data[:at][:12].hex(' ')})")
    for start, kind in _STARTS:
        if start.startswith(data):
            raise Unfit("truncated", f"{len(data)} bytes that could begin a {kind} file")
    text = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<body")) or b"<html" in text:
        title = _TITLE.search(data[:65536])
        shown = f", title {' '.join(title[1].decode('utf-8', 'replace').split())!r}" if title else ""
        raise Unfit("not_an_image", f"an HTML page{shown}")
    if text.startswith(b"<svg") or (text.startswith(b"<?xml") and b"<svg" in data[:4096].lower()):
        raise Unfit("not_an_image", "an SVG drawing: render it to PNG")
    if text.startswith((b"<?xml", b"<error")):
        raise Unfit("not_an_image", "an XML document")
    if text[:1] in (b"{", b"[") and b'"' in text:
        raise Unfit("not_an_image", "a JSON document")
    if text and all(byte >= 32 or byte in b"\t\r\n" for byte in data[:256]):
        raise Unfit("not_an_image", f"text, begins with {data[:40].decode('utf-8', 'replace')!r}")
