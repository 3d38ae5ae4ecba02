"""Reading a finished shard back: each payload is compared, and the whole file digested, whatever lies where in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from packer import proof
from packer.errors import TruncatedFileError
from packer.files import file_digest
from packer.index import RECORD
from packer.proof import read_back

CONTENT = np.random.default_rng(0).integers(0, 256, 5_000, np.uint8).tobytes()
PLACES = st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 3_000)), max_size=12)


def records(places: list[tuple[int, int]], header: bytes = b"") -> NDArray[Any]:
    """Records of payloads at these places (offset, size), with their digests as they are in ``CONTENT``."""
    made = np.zeros(len(places), RECORD)
    for record, (offset, size) in zip(made, places, strict=True):
        body = CONTENT[offset : offset + size]
        record["data"]["offset"], record["data"]["size"] = offset, len(body)
        record["data"]["digest"] = xxhash.xxh3_64_intdigest(header + body)
    return made


@pytest.fixture
def shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shard that is read in many small steps."""
    monkeypatch.setattr(proof, "_SPAN_BYTES", 256)
    path = tmp_path / "shard"
    path.write_bytes(CONTENT)
    return path


@settings(max_examples=100)
@given(blocks=st.lists(PLACES, max_size=3), header=st.sampled_from([b"", b"a header"]))
def test_payloads_anywhere_are_proved_and_the_digest_is_that_of_the_file(
    shard: Path, blocks: list[list[tuple[int, int]]], header: bytes
) -> None:
    found = read_back(shard, iter([records(places, header) for places in blocks]), header, lambda done: True)
    assert found == (None, file_digest(shard), len(CONTENT))


@settings(max_examples=100)
@given(blocks=st.lists(PLACES, min_size=1, max_size=3), data=st.data())
def test_the_one_that_differs_is_named(shard: Path, blocks: list[list[tuple[int, int]]], data: st.DataObject) -> None:
    places = sum(map(len, blocks))
    if not places:
        return
    wrong = data.draw(st.integers(0, places - 1))
    made = [records(block) for block in blocks]
    at = 0
    for block in made:
        if at <= wrong < at + len(block):
            block[wrong - at]["data"]["digest"] ^= np.uint64(1)
        at += len(block)
    assert read_back(shard, iter(made), b"", lambda done: True).wrong == wrong


def test_nobody_waits_for_a_proof_that_is_not_wanted(shard: Path) -> None:
    told: list[int] = []

    def keep_on(done: int) -> bool:
        told.append(done)
        return len(told) < 3

    found = read_back(shard, iter([records([(500 * i, 300) for i in range(10)])]), b"", keep_on)
    assert found.wrong is None
    assert len(told) == 3


def test_a_shard_that_is_cut_is_an_error(shard: Path) -> None:
    os.truncate(shard, 4_000)
    with pytest.raises(TruncatedFileError):
        read_back(shard, iter([records([(3_500, 1_000)])]), b"", lambda done: True)
