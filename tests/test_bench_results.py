"""What is made of a benchmark's findings: the advice, and that table, JSON, page and picture say the same."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import shutil
import subprocess
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from packer.bench.advice import advise
from packer.bench.figure import draw_png
from packer.bench.page import make_page
from packer.bench.results import LIMIT, LOOSE, PILLOW, THREADS, Cache, Findings, Packing, Sample, Setting, Timing
from packer.cli import bench as command

FORMATS = ("hdf5", "lmdb", "webdataset")
COLD, WARM = "cold", "warm"
_CACHE = Cache(True, 0.001, "")
Rates = dict[tuple[str, str, str, int], float | tuple[float, ...]]


def alike(work: str, cache: str, workers: int, packed: float, **others: float) -> Rates:
    """One rate for all formats, and those of others: ``loose``, ``pillow``, ``alone``."""
    names = {"loose": LOOSE, "pillow": PILLOW, "alone": LIMIT}
    found: Rates = {(name, work, cache, workers): packed for name in FORMATS}
    return found | {(names[name], work, cache, workers): rate for name, rate in others.items()}


def made(rates: Rates, **values: Any) -> Findings:
    """Findings with these rates, shuffled; a single number is spread by 2 %."""
    timings = []
    for (name, work, state, workers), rate in rates.items():
        several = rate if isinstance(rate, tuple) else (rate * 0.98, rate, rate * 1.02)
        timings.append(Timing(name, Setting(work, state, "shuffled", workers), several))
    defaults: dict[str, Any] = {
        "source": "images",
        "sample": Sample("pictures", 3000, 60_000.0, 6000, 360_000_000, {"truncated": 2}, 1234.5, False),
        "packings": tuple(Packing(name, name, 181_000_000, 3000, (0.5, 0.6, 0.55)) for name in FORMATS),
        "timings": tuple(timings),
        "cache": _CACHE,
        "batches": {"raw": 64, "decoded": 32},
        "size": (224, 224),
        "has_torch": True,
        "seed": 0,
        "machine": {
            "cpu": "a CPU",
            "cpus": 2,
            "memory_bytes": 24_000_000_000,
            "file_system": "ext4",
            "disk": "not rotating",
            "system": "Linux 6.1",
            "machine": "x86_64",
        },
        "versions": {"python": "3.11.7", "packer": "0.1.0"},
        "notes": ("something to know",),
        "seconds": 140.0,
    }
    return Findings(**{**defaults, **values})


WARM_BOUND = alike("decoded", WARM, 2, 1560, loose=1520, alone=1600, pillow=700)
COLD_GAIN = alike("raw", COLD, 0, 20_000, loose=7000) | alike("decoded", COLD, 2, 1500, loose=800)


# ------------------------------------------------------------------------------------------------------------ the advice


def test_warm_and_bound_by_decoding_it_says_that_the_format_hardly_matters_and_by_how_much() -> None:
    text = advise(made(WARM_BOUND))
    assert "Packing will not make batches of these pictures much faster" in text
    assert "the format hardly matters: decoding takes 95% of the time" in text
    assert "a format which costs nothing would be 5% faster" in text


def test_warm_and_not_bound_by_decoding_it_does_not_say_so() -> None:
    text = advise(made(alike("decoded", WARM, 0, 3000, loose=1000, alone=9000)))
    assert "hardly matters" not in text
    assert "3.0 times as fast as from loose files (3,000 against 1,000 samples/s)" in text


def test_cold_raw_reads_show_the_gain() -> None:
    text = advise(made(COLD_GAIN | WARM_BOUND))
    assert re.search(r"When nothing is in memory, raw reads from \w+ are 2\.9 times as fast as from loose files", text)
    assert "1.9 times as fast as from loose files (1,500 against 800 samples/s)" in text


def test_threads_are_named_where_they_are_faster_than_workers() -> None:
    faster = advise(made(WARM_BOUND | {(THREADS, "decoded", WARM, 0): 2028.0}))
    assert "packer.Loader, which needs no worker processes, is 1.3 times as fast as torch's DataLoader at its best" in faster
    assert THREADS not in advise(made(WARM_BOUND | {(THREADS, "decoded", WARM, 0): 1600.0}))


def test_threads_have_no_share_of_decoding_in_one_process() -> None:
    found = made(WARM_BOUND | {(THREADS, "decoded", WARM, 2): 2028.0})
    assert [found.decode_share(timing) for timing in found.timings if timing.contender == THREADS] == [None]


def test_the_fastest_format_is_taken() -> None:
    rates = COLD_GAIN | {("lmdb", "decoded", COLD, 2): 2500.0}
    assert advise(made(rates)).startswith("Take lmdb with num_workers=2 and ")


def test_formats_within_the_spread_are_called_equal() -> None:
    rates = COLD_GAIN | {("lmdb", "decoded", COLD, 2): (1400.0, 1600.0, 1700.0), ("hdf5", "decoded", COLD, 2): 900.0}
    assert advise(made(rates)).startswith("Take any of lmdb or webdataset, which are equal within the spread, ")


def test_a_gain_within_the_spread_is_none() -> None:
    rates = alike("decoded", COLD, 2, 1500, loose=1000) | {(LOOSE, "decoded", COLD, 2): (900.0, 1000.0, 1501.0)}
    text = advise(made(rates))
    assert text.startswith("Packing will not make batches")
    assert re.search(r"decoded batches from \w+ and from loose files are equal within the spread", text)


def test_loose_files_that_are_faster_are_said_to_be() -> None:
    text = advise(made(alike("decoded", WARM, 0, 500, loose=1000, alone=5000)))
    assert text.startswith("Packing will not make batches")
    assert "are slower than from loose files (500 against 1,000 samples/s)" in text


def test_no_more_workers_are_recommended_than_are_of_use() -> None:
    rates = alike("decoded", COLD, 4, 1500, loose=800) | alike("decoded", COLD, 2, 1490, loose=800)
    rates |= alike("decoded", COLD, 0, 700, loose=400)
    assert " with num_workers=2 and " in advise(made(rates))


def test_the_gain_of_the_decoder_is_told_apart_from_that_of_the_format() -> None:
    assert f"Against {PILLOW} all of this is 2.2 times as fast by the decoder alone" in advise(made(WARM_BOUND))


def test_what_could_not_be_cold_is_not_spoken_of_as_cold() -> None:
    text = advise(made(COLD_GAIN | WARM_BOUND, cache=Cache(False, 1.0, "nothing was dropped")))
    assert "could not be measured here" in text
    assert "2.9 times" not in text


@pytest.mark.parametrize(("total", "said"), [(360_000_000, "later ones are warm"), (50_000_000_000, "every epoch is cold")])
def test_it_says_which_figures_hold_for_files_of_that_size(total: int, said: str) -> None:
    sample = dataclasses.replace(made({}).sample, total_bytes=total)
    assert said in advise(made(COLD_GAIN | WARM_BOUND, sample=sample))


def test_of_datasets_the_fastest_is_named_with_how_much_faster_it_is() -> None:
    rates: Rates = {
        ("a.lmdb", "decoded", WARM, 0): 3000.0,
        ("b.hdf5", "decoded", WARM, 0): 1500.0,
        (LIMIT, "decoded", WARM, 0): 3100.0,
    }
    packings = tuple(Packing(name, name[2:], 1000, 10) for name in ("a.lmdb", "b.hdf5"))
    text = advise(made(rates, packings=packings))
    assert "Warm, a.lmdb is fastest: 3,000 samples/s with num_workers=0, 2.0 times as fast as b.hdf5." in text
    assert "Decoding takes 97% of that time" in text


def test_nothing_measured_is_no_advice() -> None:
    assert "Too little was measured" in advise(made({}))


# --------------------------------------------------------------------------------------------- table, JSON, page, picture


class Page(HTMLParser):
    """The text of a page, its tables by their titles, and all tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.text: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self._rows: list[list[str]] = []
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attributes if name in ("src", "href", "xlink:href")]
        self._open = tag
        if tag == "tr":
            self._rows.append([])

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self._open == "h2":
            self.tables[data] = self._rows = []
        elif self._open in ("td", "th") and data.strip():
            self._rows[-1].append(data)

    def handle_endtag(self, tag: str) -> None:
        self._open = ""


def full() -> Findings:
    rates = (
        COLD_GAIN
        | WARM_BOUND
        | alike("raw", WARM, 0, 90_000, loose=52_000)
        | alike("decoded", WARM, 0, 811, loose=805, alone=840)
    )
    return made(rates)


@cache
def full_page() -> str:
    """A page takes a second to draw."""
    return make_page(full())


def shown_in_terminal(findings: Findings, capsys: pytest.CaptureFixture[str]) -> str:
    command._show(findings, quiet=False)
    return capsys.readouterr().out


def cells(title: str, rows: list[list[str]]) -> dict[tuple[str, ...], str]:
    """The cells of a table by what they are of."""
    columns = rows[0][2:]
    return {(title, *row[:2], column): value for row in rows[1:] for column, value in zip(columns, row[2:], strict=True)}


def of_json(values: dict[str, Any]) -> dict[tuple[str, ...], str]:
    """What the tables must show, made from the numbers in the JSON alone."""
    found = {}
    for one in values["timings"]:
        what = {"raw": "Raw bytes", "decoded": "Decoded batches"}[one["work"]]
        column = f"{one['workers']} workers"
        found[f"{what}, {one['cache']}: samples/s, median (min–max)", one["contender"], one["order"], column] = (
            f"{one['median']:,.0f} ({one['min']:,.0f}–{one['max']:,.0f})"
        )
        if one["decode_share"] is not None and one["contender"] != LIMIT and one["order"] == "shuffled":
            title = "Share of the time that decoding takes, shuffled"
            found[title, one["contender"], one["cache"], column] = f"{one['decode_share']:.0%}"
    return found


def test_page_and_json_have_the_same_numbers() -> None:
    findings = full()
    page = Page(full_page())
    shown = {
        key: text
        for title, rows in page.tables.items()
        if not title.startswith("Packing")
        for key, text in cells(title, rows).items()
    }
    expected = of_json(json.loads(json.dumps(findings.as_values())))
    assert len(expected) > 25
    assert {key: text for key, text in shown.items() if text != "–"} == expected


def test_terminal_and_page_have_the_same_tables(capsys: pytest.CaptureFixture[str]) -> None:
    findings = full()
    lines = shown_in_terminal(findings, capsys).splitlines()
    for title, rows in Page(full_page()).tables.items():
        start = lines.index(title) + 1
        assert [re.split(r"\s{2,}", line.strip()) for line in lines[start : start + len(rows)]] == rows


def test_sizes_and_rates_of_packing_are_those_of_the_json() -> None:
    rows = Page(full_page()).tables["Packing and size (--check full judges 1,234 files/s)"]
    assert rows[1] == ["hdf5", "hdf5", "3,000", "181.0 MB", "+0.6%", "5,455 (5,000–6,000)"]


def test_advice_and_facts_are_the_same_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    findings = full()
    terminal = " ".join(shown_in_terminal(findings, capsys).split())
    page = " ".join("".join(Page(full_page()).text).split())
    for text in (
        advise(findings),
        "a CPU, 2 CPUs, 24.0 GB memory",
        "ext4, not rotating",
        "Linux 6.1",
        "2 truncated",
        "something to know",
    ):
        assert text in terminal
        assert text in page


@pytest.mark.parametrize(
    ("cache", "said"),
    [
        (Cache(False, 0.4, "40% stayed"), "NOT COLD: 40% stayed"),
        (Cache(None, 0.0, "nobody knows"), "NOT CHECKED: pages were dropped before each run, but nobody knows"),
    ],
)
def test_every_output_says_that_cold_may_not_have_been_cold(
    cache: Cache, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = dataclasses.replace(full(), cache=cache)
    assert said in shown_in_terminal(findings, capsys)
    assert findings.as_values()["cache"]["why"] == cache.why
    if cache.dropped is None:
        return  # the page, which takes a second, is made of the same sentence
    page = make_page(findings)
    assert page.count(said) == 2  # among the facts, and as the comment that stands for the letters in the picture
    assert "Raw bytes, cold (see: cold): samples/s, median (min–max)" in Page(page).tables


def test_cold_that_was_left_out_is_called_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    findings = made(WARM_BOUND, cache=Cache(False, 1.0, "no way to drop pages"))
    assert "NOT MEASURED: no way to drop pages" in shown_in_terminal(findings, capsys)


def test_the_page_needs_no_network() -> None:
    page = Page(full_page())
    assert page.tags.isdisjoint({"script", "link", "img", "iframe", "object"})
    assert [link for link in page.links if not link.startswith("#")] == []
    assert "svg" in page.tags


def test_a_name_that_is_html_or_a_formula_does_no_harm_to_the_page() -> None:
    name = "--><script>alert(1)</script>&$x^{$"
    rates: Rates = {(name, "decoded", WARM, 0): 3000.0}
    page = Page(make_page(made(rates, source=name, packings=(Packing(name, "lmdb", 1000, 10),))))
    assert "script" not in page.tags
    assert name in "".join(page.text)


def test_the_picture_opens_and_is_not_blank(tmp_path: Path) -> None:
    draw_png(full(), tmp_path / "x.png")
    with Image.open(io.BytesIO((tmp_path / "x.png").read_bytes())) as picture:
        assert picture.width > 800
        colours = picture.convert("RGB").getcolors(1 << 24)
    assert colours is not None
    shares = {colour: count for count, colour in colours}
    # Bars of each of the formats.
    assert all(shares.get(colour, 0) > 500 for colour in ((0x00, 0x72, 0xB2), (0xE6, 0x9F, 0x00), (0x00, 0x9E, 0x73)))


def test_the_page_opens_in_a_browser(tmp_path: Path) -> None:
    browser = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
    if browser is None:
        pytest.skip("no Chromium here")
    (tmp_path / "x.html").write_text(full_page(), encoding="utf-8")
    arguments = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--window-size=1200,2400",
    ]
    target = tmp_path / "x.png"
    done = subprocess.run(
        [browser, *arguments, f"--screenshot={target}", (tmp_path / "x.html").as_uri()],
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert target.exists(), done.stderr.decode()
    with Image.open(target) as picture:
        colours = picture.convert("RGB").getcolors(1 << 24)
    assert colours is not None
    assert {(0x00, 0x72, 0xB2), (0xE6, 0x9F, 0x00), (0x00, 0x9E, 0x73)} <= {colour for count, colour in colours if count > 500}
