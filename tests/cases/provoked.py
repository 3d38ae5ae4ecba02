"""Ways for a loader's worker to die, each provoked for real; what ``explain`` says of each is printed as one JSON object.

Run as a script, since torch's handlers, limits and killed processes have no place in a test's own process.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from packer import SystemSnapshot, explain

MAPPED = Path("mapped.bin")
ODD = 3
HELD: list[mmap.mmap] = []


class Samples:
    """Eight samples, of which one does something."""

    def __init__(self, deed: Callable[[], object], shape: tuple[int, ...] = (4,)) -> None:
        self.deed, self.shape = deed, shape

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        if index == ODD:
            self.deed()
        return torch.zeros(self.shape)


class Transformed(Samples):
    def __getitem__(self, index: int) -> Any:
        return self.transform(super().__getitem__(index)) if index == ODD else torch.zeros(self.shape)

    def transform(self, sample: Any) -> Any:
        raise ValueError("no such colour")


def be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def be_terminated() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def fault() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)


def give_up() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()


def leave() -> None:
    os._exit(7)


def outgrow() -> None:
    """The limit is set in the worker, which is gone afterwards."""
    resource.setrlimit(resource.RLIMIT_AS, (64 << 20, 64 << 20))
    bytearray(1 << 30)


def take_all() -> None:
    """Of the memory of the control group: more than there is."""
    held = [bytearray(os.urandom(1 << 20) * 64) for _ in range(100)]
    del held


def open_many() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    opened = [open(os.devnull) for _ in range(99)]  # noqa: PTH123
    del opened


def read_cut_file() -> None:
    """A file is mapped, and then somebody truncates it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    MAPPED.write_bytes(b"x" * 65_536)
    with MAPPED.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        os.truncate(MAPPED, 0)
        print(view[40_000])


def nothing() -> None: ...


def told(loader: Callable[[], object]) -> dict[str, Any]:
    """What ``explain`` says of how a loader ends."""
    before = SystemSnapshot.take()
    try:
        loader()
    except Exception as error:
        try:
            found = explain(error, since=before)
        except RuntimeError as late:  # torch raises a second time between two lines of this function, once in a hundred runs
            found = explain(late, since=before)
        return {"cause": found.cause, "likelihood": found.likelihood, "evidence": found.evidence, "text": str(found)}
    return {"cause": "it went well"}


def loaded(data: Any, **options: Any) -> Callable[[], object]:
    return lambda: list(DataLoader(data, **{"num_workers": 1, **options}))


def kept_batches() -> None:
    """Every batch is held, and so is the descriptor of its memory."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 16, limits[1]))
    try:
        loaded(list(torch.zeros(100, 4)))()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def mapped_before() -> None:
    """The parent has the file mapped, too, so that it can be told which one it was."""
    MAPPED.write_bytes(b"x" * 65_536)
    with MAPPED.open("rb") as file:
        HELD.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    os.truncate(MAPPED, 0)
    loaded(Samples(lambda: print(HELD[0][40_000])))()


CASES: dict[str, Callable[[], object]] = {
    "killed": loaded(Samples(be_killed)),
    "terminated": loaded(Samples(be_terminated)),
    "segmentation fault": loaded(Samples(fault)),
    "abort": loaded(Samples(give_up)),
    "exit": loaded(Samples(leave)),
    "memory limit": loaded(Samples(outgrow)),
    "memory of the group": loaded(Samples(take_all)),
    "files in the worker": loaded(Samples(open_many)),
    "files in the parent": kept_batches,
    "truncated file": loaded(Samples(read_cut_file)),
    "truncated file of the parent": mapped_before,
    "transform": loaded(Transformed(nothing)),
    "dataset": loaded(Samples(lambda: [][0])),
    "sizes": loaded([torch.zeros(2), torch.zeros(3)], batch_size=2),
    "hang": loaded(Samples(lambda: time.sleep(2)), timeout=0.5),
    "unpicklable": loaded(Samples(lambda: None), multiprocessing_context="spawn"),
    "large batches": loaded(Samples(nothing, (1 << 20,)), prefetch_factor=8),
}

if __name__ == "__main__":
    torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.5  # it waits for five seconds for a worker that does not end
    json.dump({name: told(CASES[name]) for name in sys.argv[1:]}, sys.stdout)
