"""Check ``.npy`` files: the length of the body to the byte, and what the elements are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.check.verdict import Finding
from packer.model import Note, Unfit
from packer.npyheader import PYTHON2_LONG, parse_header

__all__ = ["check"]

_BLOCK = 1 << 20  # elements looked at in one go


def check(data: bytes, *, count_nonfinite: bool) -> Finding:
    """Check a whole file.

    Raises:
        Unfit: ``truncated``, ``corrupt`` (more bytes than the header says), ``bad_header``, ``object_dtype``,
            ``unsupported_dtype``.
    """
    header = parse_header(data)
    found, expected = len(data) - header.size_bytes, header.body_bytes
    if found < expected:
        raise Unfit(
            "truncated",
            f"shape {header.shape} of {header.dtype} needs {expected:,} bytes after the header, found {found:,}",
        )
    if found > expected:
        # A newline translation or a wrong shape looks the same, so this is no harmless tail.
        raise Unfit(
            "corrupt",
            f"shape {header.shape} of {header.dtype} needs {expected:,} bytes after the header, found {found:,}",
        )
    warnings = []
    if expected == 0:
        # A zero among the lengths makes the body empty, but no library makes an array whose other lengths overflow.
        if header.dtype.itemsize * math.prod(length or 1 for length in header.shape) >= 2**63:
            raise Unfit("bad_header", f"shape {header.shape} is larger than any memory")
        warnings.append(Note("empty_array", f"shape {header.shape}"))
    if PYTHON2_LONG.search(data[: header.size_bytes].decode("latin-1")):
        warnings.append(Note("bad_metadata", "the shape is written as by Python 2 (with L)"))
    if count_nonfinite and header.dtype.kind in "fc" and expected:
        nan, infinite = _count_nonfinite(np.frombuffer(data, header.dtype, offset=header.size_bytes))
        if nan or infinite:
            warnings.append(
                Note("nonfinite", f"{nan:,} NaN and {infinite:,} infinite of {expected // header.dtype.itemsize:,}")
            )
    return Finding("npy", header=data[: header.size_bytes], warnings=tuple(warnings))


def _count_nonfinite(values: NDArray[Any]) -> tuple[int, int]:
    nan = infinite = 0
    for start in range(0, values.size, _BLOCK):
        block = values[start : start + _BLOCK]
        finite = np.isfinite(block)
        if not finite.all():
            odd = block[~finite]
            with np.errstate(invalid="ignore"):
                found = int(np.isnan(odd).sum())
            nan += found
            infinite += odd.size - found
    return nan, infinite
