"""Packing jobs that cost others a day: stores that are full or far too large, and hours without a word.

What else goes wrong with packing jobs has a file of its own, for every format: kills, interrupts and terminations in
``test_kills``, and at every single step of the end of a job in ``test_commit``; full disks and limits in ``test_disk_full``;
going on in ``test_resume``. In ``test_pack`` there are outputs that exist already, or lie in the input
(``test_overwriting_...``, ``test_output_inside_...``), order (``test_same_bytes_whatever_...``, ``test_locale_...``), files
that cannot be read (``test_unreadable_file_...``, ``test_special_files_...``, ``test_file_deleted_...``), inputs with
nothing in them (``test_nothing_usable_...``), and shards beside failures (``test_shards_are_full_...``).
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer import PackOptions, open_dataset, pack_folder
from packer.cli.progress import progress_display
from packer.formats import lmdb
from packer.index import Index
from packer.manifest import load_manifest
from packer.plan import ShardLimits
from tests.inputs import npy, pack_here, write_tree

# A store that is full, and one that is far too large


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2,000 arrays of 3 kB, and one of 20 MB among them."""
    files: dict[str | bytes, bytes] = {f"{i:04d}.npy": npy(np.full(360, i, "f8")) for i in range(2_000)}
    return write_tree(tmp_path_factory.mktemp("uneven") / "in", {**files, "1000 x.npy": npy(np.arange(5_000_000, dtype="f4"))})


def test_a_large_file_among_small_ones_fills_no_store(uneven: Path, tmp_path: Path, format_name: str) -> None:
    data = open_dataset(pack_here(uneven, format_name, output=tmp_path / "out", check="none").output, output="numpy")
    assert len(data) == 2_001
    assert data.names[1_000] == "1000 x.npy"
    assert [int(data[i][-1]) for i in (0, 999, 1_000, 1_001, 2_000)] == [0, 999, 4_999_999, 1_000, 1_999]
    assert sum(data[i].nbytes for i in range(2_001)) == 2_000 * 2_880 + 20_000_000


def test_the_map_of_an_lmdb_grows_by_itself_where_the_plan_was_too_small(
    uneven: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a plan can foresee is not what is packed where files grow meanwhile; here all of them seem to have done so."""
    monkeypatch.setattr(lmdb, "_SPARE", 1 << 16)
    planned = lmdb._space
    sizes: list[int] = []

    def too_small(size: int) -> int:
        sizes.append(size)
        return 0 if len(sizes) <= 2_001 else planned(size)

    monkeypatch.setattr(lmdb, "_space", too_small)
    output = pack_here(uneven, "lmdb", output=tmp_path / "out", check="none").output
    assert len(sizes) > 2_001
    assert len(open_dataset(output)) == 2_001


@pytest.mark.parametrize("length", [100, 3_000, 1_000_000])
def test_a_container_is_hardly_larger_than_what_is_in_it_and_has_no_holes(
    tmp_path: Path, length: int, format_name: str
) -> None:
    count = min(2_000, 8_000_000 // length)
    source = write_tree(tmp_path / "in", {f"{i:04d}.npy": npy(np.full(length, i % 256, "u1")) for i in range(count)})
    limits = ShardLimits(size_bytes=2 << 20) if format_name == "webdataset" else None
    output = pack_here(source, format_name, check="none", limits=limits).output
    manifest = load_manifest(output)
    payload = sum(Index(output, count)[i].size for i in range(count))
    in_blocks = 2 if length == 100 else 1.5  # a tar has a block of 512 bytes for a name, and whole blocks for what it names
    files = [(output / shard.file).stat() for shard in manifest.shards]
    assert sum(file.st_size for file in files) < max(1.5 * payload, in_blocks * 2_048 * count) + (1 << 20) + 20_480
    for file in files:
        assert file.st_size - file.st_blocks * 512 < (1 << 20) + 4_096


# A scan of hours without a word


def test_a_slow_scan_says_within_two_seconds_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A network folder that takes a millisecond a file, by a clock that nobody waits for."""
    clock = [1_000.0]
    scandir = os.scandir
    source = write_tree(tmp_path / "in", {f"{c}/{i:04d}.npy": npy([i]) for c in "abcdefgh" for i in range(300)})
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    shown: list[tuple[float, str]] = []

    @contextlib.contextmanager
    def slow_scandir(folder: str) -> Iterator[Any]:
        with scandir(folder) as entries:

            def one_by_one() -> Iterator[Any]:
                for entry in entries:
                    clock[0] += 0.001
                    yield entry

            yield one_by_one()

    monkeypatch.setattr(os, "scandir", lambda folder=".": slow_scandir(folder))
    with progress_display(quiet=False) as show:

        def on_progress(progress: Any) -> None:
            show(progress)
            if text := capsys.readouterr().err:
                shown.append((clock[0] - 1_000.0, text))

        pack_folder(source, PackOptions(check="none"), on_progress)
    first_s, first = shown[0]
    assert first_s <= 2.0
    assert re.fullmatch(r"scanning: 1,\d{3} files.*\n", first)
