"""What random damage the check lets through, on a few mutants of every format; the page in docs is made from thousands."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.inputs import photo

pytest.importorskip("sklearn", reason="the photographs come with scikit-learn")

ROOT = Path(__file__).parents[1]
MUTANTS = 24
FORMATS = ("jpeg", "mpo", "png", "webp", "gif", "bmp", "tiff", "avif", "npy")


def run_campaign(folder: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], Any]:
    results = folder / "results.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "damage.py"), "--workers", "2", "--json", str(results), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert results.exists(), done.stderr
    return done, json.loads(results.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("campaign")
    done, found = run_campaign(folder, "--mutants", str(MUTANTS), "--write", str(folder / "page.md"))
    assert done.returncode == bool(found["faults"]), done.stderr
    return {**found, "page": (folder / "page.md").read_text(encoding="utf-8")}


@pytest.fixture(scope="module")
def benchmarks() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import encoders
        import mutants

        yield {"encoders": encoders, "mutants": mutants}
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


def cells(campaign: Any, format_name: str, kind: str = "") -> list[Any]:
    found = [cell for cell in campaign["cells"] if cell["format"] == format_name and cell["kind"] == (kind or cell["kind"])]
    assert found
    return found


@pytest.mark.parametrize("file_type", FORMATS)
def test_every_mutant_is_judged_and_none_ends_a_worker(campaign: Any, file_type: str) -> None:
    assert sum(cell["mutants"] for cell in cells(campaign, file_type)) == MUTANTS
    assert {"worker_died", "timeout"}.isdisjoint(campaign["codes"])
    assert campaign["peak_bytes"] < 300e6


@pytest.mark.parametrize("file_type", FORMATS)
def test_no_decoder_notices_damage_in_what_was_kept(campaign: Any, file_type: str) -> None:
    faults = [fault for fault in campaign["faults"] if f"@{file_type}-" in fault["name"]]
    assert [fault for fault in faults if fault["what"] != "untold"] == []


def test_damage_to_later_pictures_of_a_jpeg_file_is_told(campaign: Any) -> None:
    assert [fault for fault in campaign["faults"] if fault["what"] == "untold"] == []


@pytest.mark.parametrize("file_type", FORMATS)
def test_no_cut_file_is_kept_with_other_pixels(campaign: Any, file_type: str) -> None:
    assert sum(cell["other"] for cell in cells(campaign, file_type, "cut")) == 0


def test_no_png_is_kept_with_other_pixels(campaign: Any) -> None:
    assert sum(cell["other"] for cell in cells(campaign, "png")) == 0
    assert sum(cell["mutants"] - cell["skipped"] for cell in cells(campaign, "png", "flipped bit")) == 0


def test_no_deflated_tiff_is_kept_with_other_pixels(campaign: Any) -> None:
    deflated = [cell for cell in cells(campaign, "tiff") if "deflate" in cell["variant"]]
    assert deflated
    assert sum(cell["other"] for cell in deflated) == 0


@pytest.mark.parametrize("kind", ["doubled", "removed"])
def test_no_array_of_another_length_is_kept(campaign: Any, kind: str) -> None:
    assert sum(cell["mutants"] - cell["skipped"] for cell in cells(campaign, "npy", kind)) == 0


def test_the_page_has_a_row_for_every_variant_and_the_way_out(campaign: Any) -> None:
    page = campaign["page"]
    for format_name, variant in {(cell["format"], cell["variant"]) for cell in campaign["cells"]}:
        assert f"| {format_name} | {variant} |" in page
    assert "--checksums SHA256SUMS" in page


def test_a_check_that_sees_nothing_is_found_out(tmp_path: Path) -> None:
    """Or an empty list of faults would be worth nothing."""
    options = ("--check", "none", "--formats", "jpeg,npy", "--mutants", "24", "--keep", str(tmp_path / "kept"))
    done, found = run_campaign(tmp_path, *options)
    assert done.returncode == 1
    complaints = [fault for fault in found["faults"] if fault["what"] == "noticed"]
    assert any("simplejpeg" in fault["said"] for fault in complaints)
    assert any("reader" in fault["said"] for fault in complaints)
    kept = {path.name for path in (tmp_path / "kept").iterdir()}
    assert kept == {fault["name"] for fault in found["faults"]} | {"faults.jsonl"}


def test_the_same_seed_gives_the_same_mutants(benchmarks: Any) -> None:
    make = benchmarks["mutants"].make_mutant
    first = [make("gif", number, 5) for number in range(24)]
    again = [make("gif", number, 5) for number in reversed(range(24))]
    assert first == again[::-1]
    assert len({mutant.data for mutant in first}) == 24
    assert all(mutant.data != mutant.original.data for mutant in first)
    assert {mutant.kind for mutant in first} == set(benchmarks["mutants"].DAMAGE)
    assert first != [make("gif", number, 6) for number in range(24)]


@pytest.mark.parametrize("size", [(1, 1), (5, 3), (64, 48), (131, 67)])
def test_hand_written_files_hold_the_picture(benchmarks: Any, size: tuple[int, int]) -> None:
    encoders = benchmarks["encoders"]
    picture = photo(*size)
    pixels = np.array(picture)
    for data in (
        encoders.encode_interlaced_png(pixels),
        encoders.encode_tiled_tiff(pixels, deflate=False),
        encoders.encode_tiled_tiff(pixels, deflate=True),
    ):
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))), pixels)
    indexed = picture.quantize(7, dither=Image.Dither.NONE)
    colours = bytes(indexed.getpalette() or ()).ljust(768, b"\0")
    bmp = encoders.encode_rle8_bmp(np.array(indexed), colours)
    assert Image.open(io.BytesIO(bmp)).convert("RGB").tobytes() == indexed.convert("RGB").tobytes()
