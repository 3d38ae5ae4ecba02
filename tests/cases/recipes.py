"""Files as other people's programs leave them, made byte by byte, and the way from such files to what became of them."""

from __future__ import annotations

import io
import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from packer import open_dataset
from packer.model import MODES, TYPES
from packer.options import Summary
from tests import inputs

__all__ = [
    "Packed",
    "as_file",
    "chunk",
    "damaged_at",
    "middle_of_scan",
    "npy_by_hand",
    "pack_files",
    "png_by_hand",
    "smooth",
    "through_webdataset",
    "turned",
    "with_segment",
]


# Pictures


def smooth(width: int = 96, height: int = 64) -> Image.Image:
    """A picture without any noise, so that a lossy encoder keeps every pixel to a few levels; its first one is black."""
    down, right = np.indices((height, width))
    return Image.fromarray(np.stack([right, down, (right + down) // 2], 2).astype(np.uint8))


def as_file(picture: Image.Image, kind: str, **options: Any) -> bytes:
    """A picture as a file of one of Pillow's formats; the options are those of ``Image.save``."""
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def middle_of_scan(data: bytes) -> int:
    """A place in the middle of a JPEG file's compressed pixels."""
    return (data.index(b"\xff\xda") + len(data)) // 2


def damaged_at(data: bytes, place: int, replacement: bytes) -> bytes:
    """The file with some bytes overwritten; its length stays."""
    return data[:place] + replacement + data[place + len(replacement) :]


def with_segment(data: bytes, body: bytes, marker: int = 0xE1) -> bytes:
    """A JPEG file with one more segment (Exif's APP1 unless told otherwise) right behind its first marker."""
    return data[:2] + bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body + data[2:]


def turned(orientation: int) -> Image.Exif:
    """An Exif block that says how the camera was held."""
    block = Image.Exif()
    block[0x0112] = orientation
    return block


def chunk(kind: bytes, body: bytes) -> bytes:
    """One chunk of a PNG file, its checksum right."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_by_hand(width: int, height: int, colour_type: int, bits: int, rows: bytes, between: bytes = b"") -> bytes:
    """A PNG file that Pillow does not write; ``rows`` with their filter bytes, ``between`` stands before the pixels."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour_type, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + between + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


# Arrays


def npy_by_hand(descr: str, shape: str, body: bytes, *, version: int = 1) -> bytes:
    """An ``.npy`` file with any header; ``descr`` and ``shape`` are Python source."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode("ascii")
    length = -(-(len(text) + 11) // 64) * 64 - 10
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H", length) + text.ljust(length - 1) + b"\n" + body


# What became of them


class Packed:
    """A dataset that was packed, seen as a user sees it: by its report, its index, and the reader.

    Attributes:
        summary: what ``pack_folder`` returned.
        output: the dataset's folder.
    """

    def __init__(self, summary: Summary) -> None:
        self.summary = summary
        self.output = summary.output

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The report."""
        return [json.loads(line) for line in (self.output / "report.jsonl").read_text("ascii").splitlines()]

    def outcome(self, name: str) -> list[tuple[str, str]]:
        """What the report says of a file: (outcome, code) of each row; nothing where it was kept as it is."""
        return [(row["outcome"], row["code"]) for row in self.rows if row["path"] == name]

    def unlike(self, names: Iterable[str | bytes], outcome: str, code: str) -> dict[str, list[tuple[str, str]]]:
        """Those of the files of which the report does not say exactly this, with what it says instead."""
        found = {str(name): self.outcome(str(name)) for name in names}
        return {name: said for name, said in found.items() if said != [(outcome, code)]}

    def detail(self, name: str) -> str:
        """The sentence in the one row that the report has for a file."""
        (row,) = [row for row in self.rows if row["path"] == name]
        return str(row["detail"])

    @cached_property
    def names(self) -> list[str]:
        """Names of the samples in their order."""
        return list(open_dataset(self.output).names)

    def read(self, **options: Any) -> dict[str, Any]:
        """What the reader gives for each sample, without its label, by name; all of it decoded."""
        data = open_dataset(self.output, **options)
        return {data.names[i]: data[i][0] if data.classes else data[i] for i in range(len(data))}

    def sample(self, name: str, **options: Any) -> Any:
        """What the reader gives for one sample, without its label."""
        data = open_dataset(self.output, **options)
        sample = data[self.names.index(name)]
        return sample[0] if data.classes else sample

    def labels(self) -> dict[str, int]:
        """The label of each sample."""
        data = open_dataset(self.output)
        return dict(zip(data.names, data.targets.tolist(), strict=True))

    def facts(self, name: str) -> dict[str, Any]:
        """What the index holds of a sample: type, mode, stored width and height, frames, orientation."""
        record = np.load(self.output / "index.npy")[self.names.index(name)]["data"]
        numbers = {field: int(record[field]) for field in ("width", "height", "frames", "orientation")}
        return {"type": TYPES[record["type"]].name, "mode": MODES[record["mode"]], **numbers}

    def at_stored_places(self) -> dict[str, bytes]:
        """The bytes that lie where the index says, read from the container's files without any library."""
        shards = json.loads((self.output / "manifest.json").read_text("ascii"))["shards"]
        records = np.load(self.output / "index.npy")["data"]
        found = {}
        for name, record in zip(self.names, records, strict=True):
            with (self.output / shards[record["shard"]]["file"]).open("rb") as file:
                file.seek(int(record["offset"]))
                found[name] = file.read(int(record["size"]))
        return found


def pack_files(folder: Path, files: Mapping[str | bytes, bytes], format_name: str = "lmdb", **options: Any) -> Packed:
    """Write files into ``folder/in`` and pack them; the options are those of ``PackOptions``.

    They are judged in this process, and in checking workers where the options say how many.
    """
    source = inputs.write_tree(folder / "in", files)
    output = folder / f"out.{format_name}"
    pack = inputs.pack if "workers" in options else inputs.pack_here
    return Packed(pack(source, format_name, **{"output": output, **options}))


def through_webdataset(output: Path) -> Iterator[dict[str, Any]]:
    """The samples as the library that the format is named after reads them."""
    import webdataset  # it loads torch, two seconds

    shards = sorted(os.fspath(path) for path in output.glob("*.tar"))
    yield from webdataset.WebDataset(shards, shardshuffle=False)
