"""Strategies for hypothesis: names, payloads, arrays, whole input folders, and hostile ``.npy`` headers."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from packer.model import MODES, SKIP_CODES, TYPES, WARNING_CODES, Kept, Note, Skipped, Verdict
from packer.plan import ShardLimits
from tests.inputs import npy

__all__ = [
    "Folder",
    "arrays",
    "file_names",
    "folders",
    "hostile_headers",
    "kept",
    "npy_file",
    "payloads",
    "shard_limits",
    "texts",
    "uniform_arrays",
    "verdicts",
]

_SUFFIXES = sorted(suffix for kind in TYPES[1:] for suffix in kind.suffixes)
_MAGICS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"II*\0", b"RIFF....WEBP")
_ONLY_TEXT = sys.platform in ("darwin", "win32")  # their file systems refuse names that are no text

texts = st.text(st.characters(exclude_categories=["Cs"]) | st.integers(0xDC80, 0xDCFF).map(chr), max_size=30)
"""Text as packer shows it: any character, and bytes that are no UTF-8 as surrogates."""


def _parts(max_size: int) -> st.SearchStrategy[bytes]:
    if _ONLY_TEXT:
        return st.text("abcXYZ019 -_", min_size=1, max_size=max_size).map(lambda text: f"{text.strip()}x".encode())
    anything = st.lists(st.sampled_from([byte for byte in range(1, 256) if byte != ord("/")]), min_size=1, max_size=max_size)
    usual = st.text("ab.-_ (1)é", min_size=1, max_size=max_size).map(str.encode)
    return st.one_of(usual, anything.map(bytes)).filter(lambda part: not part.startswith(b"."))


@st.composite
def file_names(draw: st.DrawFn) -> bytes:
    """The last part of a path, as a candidate has it: not hidden, with a known extension in any case."""
    suffix = draw(st.sampled_from(_SUFFIXES))
    return draw(_parts(40)) + b"." + draw(st.sampled_from([suffix, suffix.upper(), suffix.title()])).encode()


@st.composite
def _names(draw: st.DrawFn, *, labelled: bool) -> list[bytes]:
    parents = st.lists(_parts(8), min_size=int(labelled), max_size=3)
    found = draw(st.lists(st.tuples(parents, file_names()), min_size=1, max_size=8))
    names = dict.fromkeys(b"/".join([*folders, name]) for folders, name in found)
    # A file cannot also be a folder.
    return [name for name in names if not any(other.startswith(name + b"/") for other in names)]


_DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(sizes=(16, 32, 64), endianness="?"),
    hnp.complex_number_dtypes(sizes=(64, 128), endianness="?"),
)
_SHAPES = st.one_of(st.just(()), hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5))


def _array(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int, *, fortran: bool) -> NDArray[Any]:
    data = np.random.default_rng(seed).bytes(int(np.prod(shape)) * dtype.itemsize)
    if dtype.kind == "b":
        data = bytes(byte & 1 for byte in data)
    array = np.frombuffer(data, dtype).reshape(shape)
    return np.asfortranarray(array) if fortran else array


arrays = st.builds(_array, _DTYPES, _SHAPES, st.integers(0, 2**32), fortran=st.booleans())
"""Arrays of every dtype that is kept, with any bits in them, of 0 to 4 axes, in both orders."""


@st.composite
def uniform_arrays(draw: st.DrawFn) -> list[NDArray[Any]]:
    """A few arrays of one dtype, shape and order."""
    dtype, shape, fortran = draw(_DTYPES), draw(_SHAPES), draw(st.booleans())
    return [_array(dtype, shape, draw(st.integers(0, 2**32)), fortran=fortran) for _ in range(draw(st.integers(1, 5)))]


payloads = st.one_of(
    arrays.map(npy),
    st.builds(
        lambda magic, rest, tail: magic + rest + bytes(tail), st.sampled_from(_MAGICS), st.binary(), st.integers(0, 6000)
    ),
)
"""Files that are kept by their first bytes, without a look at the rest."""


class Folder(NamedTuple):
    """An input folder: files by name, and the labels that it is packed with."""

    files: dict[bytes, bytes]
    labelled: bool


@st.composite
def folders(draw: st.DrawFn) -> Folder:
    """Files of one kind or of all kinds under any names."""
    labelled = draw(st.booleans())
    names = draw(_names(labelled=labelled))
    if draw(st.booleans()):
        like = draw(uniform_arrays())
        return Folder({name: npy(like[i % len(like)]) for i, name in enumerate(names)}, labelled)
    return Folder({name: draw(payloads) for name in names}, labelled)


shard_limits = st.builds(ShardLimits, st.one_of(st.integers(1, 100_000), st.just(10**9)), st.integers(0, 6))


def _notes() -> st.SearchStrategy[tuple[Note, ...]]:
    return st.lists(st.builds(Note, st.sampled_from(WARNING_CODES), texts), max_size=3).map(tuple)


_UINT32 = st.integers(0, 2**32 - 1)
kept: st.SearchStrategy[Kept] = st.builds(
    Kept,
    type=st.sampled_from([kind.name for kind in TYPES]),
    size_bytes=st.integers(0, 2**62),
    digest=st.integers(0, 2**64 - 1),
    mode=st.sampled_from(MODES),
    width=_UINT32,
    height=_UINT32,
    frames=_UINT32,
    orientation=st.integers(1, 8),
    header=st.binary(max_size=200),
    warnings=_notes(),
)
verdicts: st.SearchStrategy[Verdict] = kept | st.builds(Skipped, st.sampled_from(SKIP_CODES), texts)


def npy_file(text: str, body: bytes = b"", *, version: int = 1) -> bytes:
    """An ``.npy`` file whose header is any text at all."""
    content = text.encode("latin-1" if version < 3 else "utf-8", "replace")
    return b"\x93NUMPY" + bytes([version, 0]) + len(content).to_bytes(2 if version == 1 else 4, "little") + content + body


_LITERALS = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.binary(max_size=8),
        st.sampled_from(["<f4", "|b1", "O", "V8", "S3", "U2", "M8[ns]", "<f2,<i4", "(3,)f4", "f16", "=f8"]),
    ).map(repr) | st.integers(0, 6000).map(lambda digits: f"0x{'f' * digits}"),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda parts: f"[{', '.join(parts)}]"),
        st.lists(inner, max_size=4).map(lambda parts: f"({''.join(part + ', ' for part in parts)})"),
        st.tuples(inner, inner).map(lambda parts: f"{{{parts[0]}: {parts[1]}}}"),
        inner.map(lambda part: f"-{part}"),
    ),
    max_leaves=8,
)  # fmt: skip
_DICTS = st.builds(
    lambda descr, order, shape: f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}",
    st.one_of(st.just("'<f4'"), _LITERALS),
    st.one_of(st.just("False"), _LITERALS),
    st.one_of(st.just("(2,)"), _LITERALS),
)


@st.composite
def _mutants(draw: st.DrawFn) -> bytes:
    data = bytearray(npy(draw(arrays)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, min(len(data), 140)))
        data[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(data)


hostile_headers = st.one_of(
    st.binary(max_size=300),
    st.builds(npy_file, st.text(max_size=100), st.binary(max_size=20), version=st.integers(0, 255)),
    st.builds(npy_file, _LITERALS | _DICTS, st.binary(max_size=20), version=st.integers(1, 3)),
    _mutants(),
)
"""Bytes that begin as an ``.npy`` file, more or less."""
