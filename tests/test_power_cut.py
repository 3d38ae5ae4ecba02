"""What a power cut may take away: the system calls of a whole job in order, as the kernel saw them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from packer import formats
from tests.check_hooks import environment, pack_command
from tests.inputs import npy, pack, write_tree

_WRITES = ("write", "pwrite64", "writev", "pwritev", "pwritev2", "ftruncate", "fallocate", "copy_file_range")
_SYNCS = ("fsync", "fdatasync", "msync", "sync_file_range")
_RENAMES = ("rename", "renameat", "renameat2")
_CALL = re.compile(r"^\d+ +(?:<\.\.\. )?(\w+)(?: resumed>|\()(.*)")

Call = tuple[str, str]


def traced(folder: Path, *arguments: str) -> list[Call]:
    """Pack under strace; each call that writes, syncs or renames something in a folder, with the names relative to it."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    log = folder / "strace.log"
    names = ",".join((*_WRITES, *_SYNCS, *_RENAMES))
    command = ["strace", "-f", "-y", "-qq", "-s", "0", "-e", "signal=none", "-e", f"trace={names}", "-o", str(log)]
    result = subprocess.run(
        [*command, *map(str, pack_command(*arguments))],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if "ptrace" in result.stderr:
        pytest.skip("no process may be traced here")
    assert (result.returncode, result.stderr) == (0, "")
    calls = []
    for line in log.read_text().splitlines():
        found = _CALL.match(line)
        if found is None or found[0].endswith("resumed>"):
            continue
        paths = re.findall(rf'[<"]{re.escape(str(folder))}/?([^>"]*)[>"]', found[2])
        if found[1] in _RENAMES:
            paths = [path for path in paths if path]  # not the folder that they are relative to
        if paths:
            calls.append((found[1], " ".join(path or "." for path in paths)))
    return calls


@pytest.mark.parametrize("overwrite", [False, True])
def test_everything_is_on_the_disk_before_the_manifest_and_the_manifest_before_the_name(
    tmp_path: Path, overwrite: bool, format_name: str
) -> None:
    source = {f"{'ab'[i % 2]}/{i:02d}.npy": npy(np.full(300 + i, i)) for i in range(12)}
    write_tree(tmp_path / "in", {**source, "a/bad.jpg": b"x"})
    arguments = ["in", "-f", format_name, "-o", "out", "--check", "none", "--overwrite"]
    arguments += ["--shard-samples", "5"] if formats.get(format_name).has_shards else []
    if overwrite:
        pack(tmp_path / "in", output=tmp_path / "out", check="none")
    calls = traced(tmp_path, *arguments)
    output = ".out.partial/output"
    last_sync = {paths: at for at, (name, paths) in enumerate(calls) if name in _SYNCS}
    last_write = {paths: at for at, (name, paths) in enumerate(calls) if name in _WRITES}
    (rename,) = [at for at, (name, paths) in enumerate(calls) if name in _RENAMES and paths.endswith(" out")]
    files = {f"{output}/{path.name}" for path in (tmp_path / "out").iterdir()}
    manifest = f"{output}/manifest.json"
    assert len(files) == (7 if formats.get(format_name).has_shards else 5)
    assert calls[rename][1] == f"{output} out"
    # each file is synced after its last byte was written, and the manifest is written after that
    first_of_manifest = min(at for at, (name, paths) in enumerate(calls) if paths == manifest)
    for file in files - {manifest}:
        assert last_write[file] < last_sync[file] < first_of_manifest, file
    shards = [last_sync[file] for file in files if not file.endswith((".npy", ".bin", ".json", ".jsonl"))]
    small = [last_sync[f"{output}/{name}"] for name in ("index.npy", "names.bin", "report.jsonl")]
    assert [max(shards), *small] == sorted([max(shards), *small])
    # then the manifest, its folder, the name, and the folder that has the name
    assert last_write[manifest] < last_sync[manifest] < last_sync[output] < rename < last_sync["."]
