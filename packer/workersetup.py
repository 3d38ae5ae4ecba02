"""What a worker process of a DataLoader is told when it starts; the head of ``packer.torchloader`` gives the reasons."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

# As in packer.tensors: not on first use.
if TYPE_CHECKING:
    import torch
    from torch.utils.data import get_worker_info
else:
    try:
        import torch
        from torch.utils.data import get_worker_info
    except (ImportError, OSError):
        torch = None

__all__ = ["WorkerSetup", "leave_if_orphaned", "share_by_name_where_descriptors_are_short"]

_DESCRIPTORS_A_BATCH = 2  # the tensor and its targets


class WorkerSetup:
    """Sets a worker up when it starts. One that is not forked is told what it would have inherited."""

    def __init__(self, then: Callable[[int], object] | None) -> None:
        self._then = then
        self._handled: Iterable[int] | None = None
        self._sharing: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        sharing = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
        return {**self.__dict__, "_handled": list(_handled_signals()), "_sharing": sharing}

    def __call__(self, worker: int) -> None:
        """Set up this worker, the one of this number."""
        leave_if_orphaned()
        with contextlib.suppress(AttributeError, OSError, ValueError):  # a standard error stream that is none
            faulthandler.enable()
        _leave_to_parent(_handled_signals() if self._handled is None else self._handled)
        if self._sharing is not None:
            torch.multiprocessing.set_sharing_strategy(self._sharing)  # type: ignore[no-untyped-call]
        # For an OpenCV that is loaded later, by a transform; and for one that is there already.
        os.environ.setdefault("OPENCV_FOR_THREADS_NUM", "1")
        if "cv2" in sys.modules:
            sys.modules["cv2"].setNumThreads(0)
        info: Any = get_worker_info()
        if info is not None:
            info.dataset.begin_worker(worker)
        if self._then is not None:
            self._then(worker)

    def __repr__(self) -> str:
        return f"<sets a worker up{'' if self._then is None else f', then {self._then!r}'}>"


def leave_if_orphaned() -> None:
    """End this worker where its parent is gone already. torch looks later who its parent is and waits for that one's end, which
    after a parent that was killed at this moment is the system's first process: the worker would never end.
    """
    parent = multiprocessing.parent_process()
    # A server's children have the server for a parent, which ends with the process that it serves.
    if parent is not None and multiprocessing.get_start_method() != "forkserver" and os.getppid() != parent.pid:
        os._exit(0)


def _handled_signals() -> Iterator[int]:
    """The signals for which this process has a handler in Python."""
    return (number for number in signal.valid_signals() if callable(signal.getsignal(number)))


def _leave_to_parent(handled: Iterable[int]) -> None:
    """A terminal and a scheduler send their signals to all processes, and each worker would print a traceback or write a
    checkpoint of its own, or where it does not know the training's handler, be ended.
    """
    for number in {signal.SIGINT, *handled}:
        # SIGTERM: torch has set a handler in C, which ends a worker that is stuck, too.
        if number != signal.SIGTERM:
            is_of_children = number == getattr(signal, "SIGCHLD", None)  # ignored, it would take exit statuses away
            signal.signal(number, signal.SIG_DFL if is_of_children else signal.SIG_IGN)


def share_by_name_where_descriptors_are_short(batches: int) -> None:
    """Have tensors travel by name from now on, where so many batches at once would take a quarter of all descriptors."""
    if sys.platform == "win32":
        return
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = batches * _DESCRIPTORS_A_BATCH
    if limit != resource.RLIM_INFINITY and needed > limit // 4:
        torch.multiprocessing.set_sharing_strategy("file_system")  # type: ignore[no-untyped-call]
