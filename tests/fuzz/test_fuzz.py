"""A short run of every fuzz target, the same every time; ``python -m tests.fuzz`` runs them for as long as one likes."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings

pytest.importorskip("resource", reason="limits of time and memory are those of POSIX")

from tests.fuzz import loop
from tests.fuzz.mutate import MAX_BYTES, repair_manifest
from tests.fuzz.seeds import jpegs, manifests
from tests.fuzz.targets import TARGETS, Target
from tests.strategies import hostile_headers

VALID = {
    "npyheader": r"unsupported_dtype|\w \d axes",
    "npy": r"unsupported_dtype|kept",
    "png": "kept",
    "jpegmarkers": r"(\d components, unfinished \d, end \w+( / |$)){2}",
    "jpegwalk": r"walked, (\d components, \d scans|.*subsampling)",
    "jpeg": "kept",
    "exif": r"orientation \d",
    "sniff": r"\w+",
    "any": r"kept|not_an_image|unsupported_format|corrupt",
    "gif": "kept",
    "webp": "kept",
    "bmp": "kept",
    "tiff": "kept",
    "lzw": "ended True, bad False",
    "fax": r"\d  ended False",
    "manifest": "read",
    "dataset": "payload$",
}
"""What the seeds of each target become."""


@pytest.mark.parametrize("name", TARGETS)
def test_the_seeds_are_valid(name: str) -> None:
    """Or the mutants would all fail at the first look."""
    for seed in TARGETS[name].seeds():
        assert re.match(VALID[name], loop.examine(TARGETS[name], seed))


@pytest.mark.parametrize("name", TARGETS)
def test_a_short_run_finds_nothing(name: str) -> None:
    result = loop.fuzz(name, runs=TARGETS[name].runs)
    assert not result.findings, "\n" + "\n".join(result.findings.values())
    assert result.runs == TARGETS[name].runs


FOUND: dict[str, tuple[str, Callable[[], bytes]]] = {
    "a JPEG filled up with 0xff": ("jpegmarkers", lambda: jpegs()[0][:600] + b"\xff" * 60_000 + b"\0"),
    "a page of nothing but unfinished titles": ("sniff", lambda: b"<html>" + b"<title" * 10_000),
    "two class names that are the same number": (
        "manifest",
        lambda: repair_manifest(manifests()[1].replace(b'"12"', b'"07"')),
    ),
    "a manifest whose mistake is long": (
        "manifest",
        lambda: repair_manifest(manifests()[0].replace(b'"folder"', b'"%s"' % (b"0" * 5_000))),
    ),
    "fields of a manifest that are one long list": (
        "manifest",
        lambda: repair_manifest(manifests()[0].replace(b'"samples": 4', b'"samples": [%s]' % b",".join([b"0"] * 5_000))),
    ),
}
"""Inputs of earlier findings: a target, and how the input is made."""


@pytest.mark.parametrize("what", FOUND)
def test_what_was_found_once_stays_away(what: str) -> None:
    name, make = FOUND[what]
    examine(name, make())


# The harness itself


def test_a_finding_is_saved_with_the_command_that_shows_it_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(data: bytes) -> str:
        return {b"s": "as it should be"}[data[:1]]

    monkeypatch.setattr(loop, "FINDINGS", tmp_path)
    monkeypatch.setitem(TARGETS, "broken", Target(run, lambda: [b"seed"]))
    result = loop.fuzz("broken", runs=60)
    (finding,) = result.findings.values()
    assert finding.startswith("KeyError: ")
    (saved,) = tmp_path.iterdir()
    assert f"python -m tests.fuzz broken --input {saved}" in finding
    with pytest.raises(KeyError):
        loop.examine(TARGETS["broken"], saved.read_bytes())


def test_what_never_ends_is_stopped_though_every_exception_is_caught() -> None:
    def run(data: bytes) -> str:
        while True:
            with contextlib.suppress(Exception):
                sum(range(100))

    with pytest.raises(AssertionError, match=r"more than 0\.1 s for 3 bytes"):
        loop.examine(Target(run, list), b"abc", max_seconds=0.1)


def test_a_regular_expression_is_stopped_too() -> None:
    with pytest.raises(AssertionError, match=r"more than 0\.1 s"):
        loop.examine(Target(lambda data: str(re.match(rb"(a*)*b", data)), list), b"a" * 40, max_seconds=0.1)


@pytest.mark.parametrize("name", ["png", "manifest", "dataset"])
def test_what_is_repaired_gets_past_the_checksums(name: str) -> None:
    """A byte that no checksum may hide: of the pixels' size, and of a name."""
    old, new = {
        "png": (b"\0\0\0\x0d\0\0\0\x09", b"\0\0\0\x0d\0\0\0\x08"),
        "manifest": (b'"a"', b'"z"'),
        "dataset": (b"0/\xc3\xa4", b"0/\xc3\xa5"),
    }[name]
    target = TARGETS[name]
    changed = target.seeds()[0].replace(old, new, 1)
    assert changed not in target.seeds()
    assert re.search("digest|checksum", target.run(changed))
    assert not re.search("digest differs|checksum", target.run(target.repair(changed)))


def test_the_same_seed_gives_the_same_mutants() -> None:
    target = TARGETS["png"]
    first, second = ([loop.hostile(Random(seed), target, target.seeds()) for seed in range(50)] for _ in range(2))
    assert first == second
    assert len(set(first)) > 40
    assert max(map(len, first)) <= MAX_BYTES


def test_the_command_line_runs_a_target_and_a_single_file(tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "tests.fuzz", "exif", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2]).stdout

    said = run("--engine", "own", "--seconds", "0.2", "--seed", "1", "--corpus", str(tmp_path))
    assert re.match(r"exif: [0-9,]+ inputs in 0 s, \d+ outcomes, 0 findings\n$", said)
    grown = next((tmp_path / "exif").iterdir())
    assert re.match(r"exif: .+: 0\.\d+ s\n$", run("--input", str(grown)))


@pytest.mark.parametrize("name", ["npy", "any"])
def test_hostile_headers_find_nothing(name: str) -> None:
    @given(data=hostile_headers)
    @settings(max_examples=100)
    def check(data: bytes) -> None:
        examine(name, data)

    check()


def examine(name: str, data: bytes) -> None:
    try:
        loop.examine(TARGETS[name], data)
    except Exception as error:
        pytest.fail(loop.describe(name, data, error))
