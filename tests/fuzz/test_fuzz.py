"""A short run of every fuzz target, the same every time; ``python -m tests.fuzz`` runs them for as long as one likes."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings

pytest.importorskip("resource", reason="limits of time and memory are those of POSIX")

from tests.fuzz import loop
from tests.fuzz.mutate import repair_manifest
from tests.fuzz.seeds import jpegs, manifests
from tests.fuzz.targets import TARGETS
from tests.strategies import hostile_headers

VALID = {
    "npyheader": r"unsupported_dtype|\w \d axes",
    "npy": r"unsupported_dtype|kept",
    "png": "kept",
    "jpegmarkers": r"(\d components, unfinished \d, end \w+( / |$)){2}",
    "jpeg": "kept",
    "exif": r"orientation \d",
    "sniff": r"\w+",
    "any": r"kept|not_an_image|unsupported_format|corrupt",
    "gif": "kept",
    "webp": "kept",
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
