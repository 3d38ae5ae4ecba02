"""Readers that are broken on purpose, so that what judges readers can be seen to notice."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import packer.datasets
import packer.verify
from packer.errors import CorruptSampleError

__all__ = ["LIARS", "lie"]


def _altered(got: Any) -> Any:
    data, target = got
    return (data[:-1] + bytes([data[-1] ^ 1]) if isinstance(data, bytes) and data else data), target


def lie(name: str) -> None:
    """Break the reader, or verifying, of this process in the way of that name."""
    kind = packer.datasets.PackedDataset
    method = {"other bytes in a list": "__getitems__", "other bytes in a view": "view"}.get(name, "__getitem__")
    honest = getattr(kind, method)

    def lying(self: Any, index: Any) -> Any:
        return LIARS[name](honest, self, index)

    if name == "silent verify":
        packer.verify.verify_dataset = lambda *_: iter(())
    else:
        setattr(kind, method, lying)


def _batch(honest: Any, self: Any, index: Any) -> Any:
    got = honest(self, index)
    return ([_altered((row, 0))[0] for row in got[0]], got[1]) if isinstance(index, list) else got


def _viewed(honest: Any, self: Any, index: Any) -> Any:
    with honest(self, index) as view:
        return contextlib.nullcontext(bytes(view)[::-1])


def _foreign(honest: Any, self: Any, index: Any) -> Any:
    try:
        return honest(self, index)
    except CorruptSampleError as error:
        raise KeyError(str(error)) from None


def _silent(honest: Any, self: Any, index: Any) -> Any:
    try:
        return honest(self, index)
    except CorruptSampleError:
        return b"", 0


def _too_many(honest: Any, self: Any, index: Any) -> Any:
    try:
        return honest(self, index)
    except CorruptSampleError as error:
        other = (error.index + 1) % len(self)
        raise CorruptSampleError.of(other, self.names[other], error.path, 0, error.problem) from None


def _killed(honest: Any, self: Any, index: Any) -> Any:
    try:
        return honest(self, index)
    except CorruptSampleError:
        os.kill(os.getpid(), signal.SIGBUS)


def _hanging(honest: Any, self: Any, index: Any) -> Any:
    try:
        return honest(self, index)
    except CorruptSampleError:
        signal.alarm(1)
        time.sleep(60)


LIARS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "other bytes": lambda honest, self, index: _altered(honest(self, index)),
    "other bytes in a list": lambda honest, self, index: [_altered(one) for one in honest(self, index)],
    "other bytes in a batch": _batch,
    "other bytes in a view": _viewed,
    "another label": lambda honest, self, index: (honest(self, index)[0], 7),
    "the sample before": lambda honest, self, index: honest(self, index - 1),
    "no error": _silent,
    "a foreign exception": _foreign,
    "an error at another sample": _too_many,
    "a bus error": _killed,
    "a hang": _hanging,
    "silent verify": lambda honest, self, index: honest(self, index),
}
