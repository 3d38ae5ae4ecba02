"""Loaders hold no more memory after twenty epochs than after a few, in the process and in its workers."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from packer import Loader, buffers, open_dataset
from tests.cases.processes import run_script
from tests.inputs import pack_here
from tests.loading import array_tree, picture_tree

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc for private memory")

EPOCHS = 20
SETTLED = 8
"""Epochs in which pools fill, and allocators find out how much is used."""

SCRIPT = """
    import json, sys
    from pathlib import Path
    from packer import Loader, make_loader, open_dataset
    from tests.loading import brightness_and_draws, fails_at

    def private_mb(process):
        # Not what smaps calls private: a page that was shared since the fork becomes so when it is next written to.
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

    arrays = open_dataset(sys.argv[1])
    damaged = open_dataset(sys.argv[4], transform=fails_at(3, 4))
    pictures = open_dataset(sys.argv[2], output="torch", size=(64, 64), transform=brightness_and_draws)
    workers = dict(multiprocessing_context="fork", timeout=60)
    for name, loader in {
        "arrays, threads": Loader(arrays, 8, shuffle=True, threads=2),
        "pictures, threads": Loader(pictures, 8, shuffle=True, threads=2),
        "skipped, threads": Loader(damaged, 8, shuffle=True, threads=2, on_error="skip"),
        "arrays, no workers": make_loader(arrays, 8, shuffle=True, num_workers=0),
        "arrays, a worker": make_loader(arrays, 8, shuffle=True, num_workers=1, on_error="skip", **workers),
        "pictures, workers": make_loader(pictures, 8, shuffle=True, num_workers=2, **workers),
    }.items():
        rows = []
        for _ in range(int(sys.argv[3])):
            for batch in loader:
                pass
            children = loader._iterator._workers if getattr(loader, "num_workers", 0) else []
            rows.append([private_mb(process) for process in ("self", *(child.pid for child in children))])
        print(json.dumps([name, rows]))
    """


def test_private_memory_is_flat_over_twenty_epochs(tmp_path: Path) -> None:
    arrays = pack_here(array_tree(tmp_path / "arrays", 48, length=30_000), "lmdb").output
    small = pack_here(array_tree(tmp_path / "small", 48), "webdataset").output
    pictures = pack_here(picture_tree(tmp_path / "pictures", 48), "hdf5").output
    lines = run_script(
        "import logging\nlogging.disable()\n" + SCRIPT.replace("\n    ", "\n"), arrays, pictures, EPOCHS, small, torch=True
    )
    found = dict(json.loads(line) for line in lines.splitlines())
    assert [len(rows[0]) for rows in found.values()] == [1, 1, 1, 1, 2, 3]
    for name, rows in found.items():
        slopes = np.polyfit(np.arange(EPOCHS - SETTLED), np.array(rows[SETTLED:]), 1)[0]
        assert max(slopes) < 0.1, (name, rows)


def test_threads_use_the_memory_of_their_batches_again_in_later_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory is zeroed by the kernel while a batch is read into it, which takes longer than the reading."""
    data = open_dataset(pack_here(array_tree(tmp_path / "arrays", 48), "hdf5").output)
    fresh: list[int] = []
    real = buffers._allocate
    monkeypatch.setattr(buffers, "_allocate", lambda size: (fresh.append(size), real(size))[1])
    loader = Loader(data, 4, threads=5)
    for _ in range(6):
        for batch in loader:
            del batch
            time.sleep(0.002)  # as a training does, meanwhile batches wait
    assert 5 < len(fresh) <= 5 + 2 + 1  # one for each thread, two that wait, and that of the loop
