"""The header of an ``.npy`` file, parsed as a literal; never a pickle, and nothing allocated by what it says.

Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html, versions 1.0, 2.0 and 3.0.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from packer.model import Unfit

__all__ = ["PYTHON2_LONG", "Header", "parse_header"]

_MAGIC = b"\x93NUMPY"
_MAX_HEADER_BYTES = 1 << 20  # a record dtype of 1,000 fields takes 20 kB, and is refused by name rather than by length
_MAX_DIMENSIONS = 32
# What both numpy and torch have; longdouble and the like fall to the size.
_ITEM_SIZES = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16)}
PYTHON2_LONG = re.compile(r"(\d)L\b")
"""An integer as Python 2 wrote it into headers; valid, says numpy, but odd."""


class Header(NamedTuple):
    """What the first bytes of an ``.npy`` file say.

    Attributes:
        dtype: type of the elements, byte order as in the file.
        shape: lengths of the axes.
        fortran_order: whether the body is in column-major order.
        size_bytes: where the body begins.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool
    size_bytes: int

    @property
    def body_bytes(self) -> int:
        """Exact size of the body."""
        return math.prod(self.shape) * self.dtype.itemsize  # Python's integers: a hostile shape overflows numpy's


def parse_header(data: bytes | memoryview) -> Header:
    """Parse the header at the front of ``data``; nothing is allocated by what it says.

    Raises:
        Unfit: as ``check``, but for the length of the body.
    """
    start = bytes(data[:12])
    if len(start) < 10:
        raise Unfit("truncated", f"{len(start)} bytes, the header alone takes more")
    if start[:6] != _MAGIC:
        raise Unfit("bad_header", "does not begin as an .npy file")
    major, minor = start[6], start[7]
    if major not in (1, 2, 3) or minor != 0:
        raise Unfit("bad_header", f"format version {major}.{minor}, known are 1.0, 2.0 and 3.0")
    at = 10 if major == 1 else 12
    if len(start) < at:
        raise Unfit("truncated", f"{len(start)} bytes, the header alone takes more")
    size = at + int.from_bytes(start[8:at], "little")
    if size > _MAX_HEADER_BYTES:
        raise Unfit("bad_header", f"a header of {size:,} bytes, at most {_MAX_HEADER_BYTES:,} are sensible")
    if len(data) < size:
        raise Unfit("truncated", f"{len(data):,} bytes, the header alone takes {size:,}")
    return _parse(bytes(data[:size]), at, "latin-1" if major < 3 else "utf-8")


@lru_cache(maxsize=64)
def _parse(header: bytes, at: int, encoding: str) -> Header:
    try:
        text = header[at:].decode(encoding).strip()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python's parser, about text that is no sensible literal
            try:
                fields = ast.literal_eval(text)
            except SyntaxError:
                fields = ast.literal_eval(PYTHON2_LONG.sub(r"\1", text))
    # literal_eval raises nearly anything on hostile text: ValueError, SyntaxError, RecursionError, MemoryError.
    except Exception as error:  # noqa: BLE001
        raise Unfit("bad_header", f"the header is no literal: {type(error).__name__}") from None
    if not isinstance(fields, dict) or set(fields) != {"descr", "fortran_order", "shape"}:
        raise Unfit("bad_header", "the header has not the keys descr, fortran_order and shape")
    shape, fortran_order = fields["shape"], fields["fortran_order"]
    if not isinstance(fortran_order, bool):
        raise Unfit("bad_header", f"fortran_order is {_short(fortran_order)}, True or False is expected")
    if not isinstance(shape, tuple) or not all(type(n) is int and 0 <= n < 2**63 for n in shape):
        raise Unfit("bad_header", f"shape is {_short(shape)}, non-negative integers are expected")
    if len(shape) > _MAX_DIMENSIONS:
        raise Unfit("unsupported_dtype", f"{len(shape)} dimensions, at most {_MAX_DIMENSIONS} are kept")
    return Header(_dtype(fields["descr"]), shape, fortran_order, len(header))


def _dtype(descr: object) -> np.dtype[Any]:
    if not isinstance(descr, (str, list)):
        raise Unfit("bad_header", f"descr is {_short(descr)}")
    try:
        dtype: np.dtype[Any] = np.dtype(_tuples(descr))  # type: ignore[call-overload]  # any literal may stand in the file
    except Exception as error:  # noqa: BLE001 - numpy raises TypeError, ValueError, SyntaxError, RecursionError ...
        raise Unfit("bad_header", f"descr {_short(descr)} is no dtype: {_short(error)}") from None
    if dtype.hasobject:
        raise Unfit("object_dtype", "holds Python objects, that is a pickle, which is never loaded: save plain numbers")
    if dtype.itemsize not in _ITEM_SIZES.get(dtype.kind, ()) or dtype.subdtype is not None:
        hint = " (bfloat16 and float8 are saved so: save as float32)" if dtype.kind == "V" and not dtype.names else ""
        raise Unfit("unsupported_dtype", f"elements of dtype {_short(dtype)}{hint}: save numbers, bool or complex")
    return dtype


def _tuples(descr: object) -> object:
    """As numpy does: fields are tuples in the literal already, nested lists are record dtypes."""
    return (
        [tuple(_tuples(part) if i == 1 else part for i, part in enumerate(field)) for field in descr]
        if isinstance(descr, list)
        else descr
    )


def _short(value: object) -> str:
    try:
        text = str(value) if isinstance(value, (np.dtype, BaseException)) else repr(value)
    except ValueError:  # Python refuses to print an integer of more than 4,300 digits
        return "a number too long to print"
    return text if len(text) <= 120 else f"{text[:117]}..."
