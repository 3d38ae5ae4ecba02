"""The disk is asked early to take what is written, which changes no byte and can fail without harm."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer import assembly, syncing
from packer.syncing import begin_sync
from tests.inputs import npy, pack_here, write_tree


def test_the_disk_is_asked_to_take_a_container_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_name: str
) -> None:
    root = tmp_path / "in"
    write_tree(root, {f"{i}.npy": npy(np.arange(1000) + i) for i in range(40)})
    plain = pack_here(root, format_name).output
    before = {path.name: path.read_bytes() for path in plain.iterdir()}
    asked: list[tuple[str, int]] = []

    def note(path: Path) -> None:
        asked.append((path.name, path.stat().st_size))
        begin_sync(path)

    monkeypatch.setattr(assembly, "begin_sync", note)
    monkeypatch.setattr(assembly, "_BEGIN_SYNC_BYTES", 80_000)
    plain.rename(tmp_path / "before")
    output = pack_here(root, format_name).output
    assert {path.name: path.read_bytes() for path in output.iterdir()} == before
    assert len(asked) == 4  # of 325 kB
    assert {name for name, _ in asked} <= set(before) - {"index.npy", "names.bin", "manifest.json", "report.jsonl"}


@pytest.mark.parametrize("place", ["missing", "folder", "file"])
def test_asking_early_never_fails(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"content")
    begin_sync(tmp_path / place)


def test_where_the_system_has_no_such_call_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Without:
        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

    (tmp_path / "file").write_bytes(b"content")
    monkeypatch.setattr(syncing.ctypes, "CDLL", lambda name: Without())
    begin_sync(tmp_path / "file")


def test_no_descriptor_is_too_few_to_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*arguments: Any) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    (tmp_path / "file").write_bytes(b"content")
    monkeypatch.setattr(syncing.os, "open", none_left)
    begin_sync(tmp_path / "file")
