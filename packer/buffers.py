"""Memory for batches that is used again as soon as nobody holds the batch.

Fresh memory is zeroed page by page by the kernel while it is filled: a batch in a fresh ``np.empty`` costs 1.8 times one in
memory that was used before, in a fresh ``torch.empty`` 5 times (38 MB, two cores).
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BufferPool"]

_MAX_FREE = 4  # one batch is being filled, one trained on, and a pinning thread holds a few
_MOST_TIMES = 4  # that a buffer may be larger than what is asked for


class _Lease:
    """What every view of a buffer that was given out leads back to; when it goes, the buffer is free."""

    # A finaliser on an array would not do: numpy lets a view of a view refer to the first array's owner and not to the first
    # array, which then goes while slices of it live, and a batch that somebody holds is overwritten. Of an object of another
    # class than its own numpy makes no such short cut.
    __slots__ = ("__array_interface__", "__weakref__")

    def __init__(self, buffer: NDArray[np.uint8], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        address = buffer.__array_interface__["data"][0]
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": dtype.str, "data": (address, False)}


class BufferPool:
    """Gives out arrays, and keeps the memory of some that were let go of: up to four, unless it is asked for more.

    Threads can share it, and a forked child has a pool of its own.
    """

    def __init__(self) -> None:
        # Its single steps are atomic. No lock: a finaliser may run at any moment, in the thread that holds it.
        self._free: deque[NDArray[np.uint8]] = deque(maxlen=_MAX_FREE)
        self._too_large = 0  # requests in a row for which all that is free was

    def keep(self, count: int) -> None:
        """Keep at least so many from now on: as somebody holds at once. Of more, some would be made anew in each epoch."""
        if count > (self._free.maxlen or 0):
            self._free = deque(self._free, count)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array of a native dtype, row-major, with any content. Nobody else gets its memory while a view of it lives.

        Raises:
            MemoryError: there is not so much.
        """
        size = math.prod(shape) * dtype.itemsize
        buffer = self._take(size)
        lease = _Lease(buffer, shape, dtype)
        # Not at exit: what is held then is not given out again.
        weakref.finalize(lease, self._give_back, buffer).atexit = False
        return np.asarray(lease)

    def _give_back(self, buffer: NDArray[np.uint8]) -> None:
        free = self._free
        with contextlib.suppress(IndexError):  # taken meanwhile
            # The short batch at the end of an epoch must not drive out a whole one, which the next epoch would make anew: a
            # tenth of its time with 24 batches of 38 MB.
            if len(free) == free.maxlen and len(buffer) < len(free[0]):
                return
        free.append(buffer)

    def _take(self, size: int) -> NDArray[np.uint8]:
        while True:
            try:
                buffer = self._free.pop()  # the one that was let go of last is in the processor's caches
            except IndexError:
                return _allocate(size)
            if size <= len(buffer) <= _MOST_TIMES * size:
                self._too_large = 0
                return buffer
            if len(buffer) > size:
                # For a larger batch. Small ones that somebody collects would otherwise each hold the memory of a large one.
                self._free.append(buffer)
                self._too_large += 1
                if self._too_large > 2 * (self._free.maxlen or 0):  # no larger one comes any more
                    self._free.clear()
                return _allocate(size)
            # Batches have grown: it would never fit again.


def _allocate(size: int) -> NDArray[np.uint8]:
    try:
        return np.empty(size, np.uint8)
    except ValueError:  # more bytes than an address has
        raise MemoryError(f"{size:,} bytes") from None
