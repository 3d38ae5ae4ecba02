"""Sound pictures that other tools lose, clip or turn: what is stored of them, and what the reader gives."""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
import xxhash
from PIL import Image

from tests.cases.recipes import Packed, as_file, pack_files, png_by_hand, smooth, through_webdataset, turned
from tests.check_hooks import run_pack
from tests.inputs import jpeg, photo, png, write_tree

WARNED = "warned"
SKIPPED = "skipped"

# webdataset 1.0 leaves its shards for the garbage collector to close.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


# Names that lie

MISNAMED: dict[str | bytes, bytes] = {
    "c/really avif.jpg": as_file(smooth(), "AVIF"),
    "c/really gif.jpg": as_file(smooth(), "GIF"),
    "c/really jpeg.png": as_file(smooth(), "JPEG"),
    "c/really png.jpg": as_file(smooth(), "PNG"),
    "c/really webp.JPG": as_file(smooth(), "WEBP"),
}


def really(name: str | bytes) -> str:
    """The type that a file above is of."""
    return str(name).split()[1].partition(".")[0]


def test_a_picture_under_another_formats_name_is_kept_as_what_it_is(tmp_path: Path, format_name: str) -> None:
    """A decoder chosen by the name fails in the last minute of a conversion."""
    result = pack_files(tmp_path, MISNAMED, format_name)
    assert result.unlike(MISNAMED, WARNED, "extension_mismatch") == {}
    assert result.names == list(MISNAMED)
    assert result.read(output="bytes") == MISNAMED
    for name, picture in result.read().items():
        assert result.facts(name)["type"] == really(name)
        assert really(name) in result.detail(name)
        expected = np.asarray(Image.open(io.BytesIO(MISNAMED[name])).convert("RGB"))
        assert np.array_equal(np.asarray(picture), expected), name


def test_members_of_a_tar_are_named_by_the_content(tmp_path: Path) -> None:
    output = pack_files(tmp_path, MISNAMED, "webdataset").output
    with tarfile.open(output / "shard-000000.tar") as tar:
        members = [member.name for member in tar if not member.name.endswith((".json", ".cls"))]
    assert members == [
        f"{number:09d}.{'jpg' if really(name) == 'jpeg' else really(name)}" for number, name in enumerate(MISNAMED)
    ]
    for sample, name in zip(through_webdataset(output), MISNAMED, strict=True):
        assert json.loads(sample["json"])["path"] == name
        assert MISNAMED[name] in sample.values()


# One picture under many names


def placeholder_files(*, one_class: bool) -> dict[str | bytes, bytes]:
    """Fifty times the picture that says "no longer available", among twenty others."""
    gone = png(smooth(60, 40))
    folders = ["a"] if one_class else ["a", "b", "c", "d"]
    copies = {f"{folders[number % len(folders)]}/gone {number:02d}.png": gone for number in range(50)}
    others = {f"{folders[number % len(folders)]}/own {number:02d}.png": png(seed=number) for number in range(20)}
    return {**others, **copies}


@pytest.mark.parametrize("one_class", [False, True])
def test_a_placeholder_under_fifty_names_is_kept_and_told_once(tmp_path: Path, one_class: bool, format_name: str) -> None:
    files = placeholder_files(one_class=one_class)
    result = pack_files(tmp_path, files, format_name)
    assert result.summary.samples == 70
    assert result.summary.skipped == {}
    assert result.read(output="bytes") == files
    (row,) = [row for row in result.rows if row["code"] == "duplicate_content"]
    copies = [name for name in result.names if "gone" in name]
    assert (row["path"], row["outcome"], row["count"]) == (copies[0], WARNED, 50)
    assert row["paths"] == copies[:5]
    assert row["classes"] == (["a"] if one_class else ["a", "b", "c", "d"])
    digest = xxhash.xxh3_64_hexdigest(files[copies[0]])
    assert digest in str(row["digest"])
    assert ("label" in row["detail"]) is not one_class
    assert result.summary.warned == {"duplicate_content": 1}


def test_each_content_that_comes_twice_has_a_row_of_its_own(tmp_path: Path) -> None:
    files: dict[str | bytes, bytes] = {
        "a/1.png": png(seed=1),
        "a/2.png": png(seed=2),
        "a/3.png": png(seed=1),
        "b/1.png": png(seed=2),
        "b/2.png": png(seed=3),
        "b/3.jpg": b"\xff\xd8\xff twice, but damaged",
        "b/4.jpg": b"\xff\xd8\xff twice, but damaged",
    }
    rows = [row for row in pack_files(tmp_path, files).rows if row["code"] == "duplicate_content"]
    assert [(row["path"], row["count"], row["paths"]) for row in rows] == [
        ("a/1.png", 2, ["a/1.png", "a/3.png"]),
        ("a/2.png", 2, ["a/2.png", "b/1.png"]),
    ]
    assert ["label" in row["detail"] for row in rows] == [False, True]


# Four colours


def test_jpegs_of_four_colours_have_three_channels_as_rgb_and_four_as_they_are(tmp_path: Path, format_name: str) -> None:
    """About twenty files of a well-known data set are such; loaders crash on the shape, or give inverted colours."""
    source = smooth()
    cmyk = as_file(source.convert("CMYK"), "JPEG", quality=75)
    adobe = cmyk.index(b"Adobe")
    assert cmyk[adobe + 11] == 0
    start = adobe - 4
    length = 2 + int.from_bytes(cmyk[start + 2 : start + 4], "big")
    files: dict[str | bytes, bytes] = {
        "cmyk.jpg": cmyk,
        "nobody says.jpg": cmyk[:start] + cmyk[start + length :],
        "ycck.jpg": cmyk[: adobe + 11] + b"\2" + cmyk[adobe + 12 :],
    }
    result = pack_files(tmp_path, files, format_name)
    assert result.rows == []
    assert {name: result.facts(name)["mode"] for name in result.names} == {str(name): "CMYK" for name in files}
    assert result.read(output="bytes") == files
    rgb = result.read(output="numpy", mode="RGB")
    assert {name: pixels.shape for name, pixels in rgb.items()} == {str(name): (64, 96, 3) for name in files}
    assert np.abs(rgb["cmyk.jpg"][0, 0].astype(int) - source.getpixel((0, 0))).max() <= 3
    assert np.abs(rgb["cmyk.jpg"].astype(int) - np.asarray(source)).mean() < 3
    native = result.read(output="numpy", mode=None)
    assert {name: pixels.shape for name, pixels in native.items()} == {str(name): (64, 96, 4) for name in files}
    assert {name: picture.mode for name, picture in result.read(mode=None).items()} == {str(name): "CMYK" for name in files}


# Sixteen bits

DEEP = (np.arange(4096).reshape(64, 64) * 16).astype(np.uint16)


def deep_png(colours: int) -> bytes:
    """The values above as a PNG of 16 bits a channel, grey or the same in three colours."""
    rows = (b"\0" + np.repeat(row, colours).astype(">u2").tobytes() for row in DEEP)
    return png_by_hand(64, 64, 0 if colours == 1 else 2, 16, b"".join(rows))


def test_sixteen_bits_of_grey_come_as_they_are_and_are_scaled_where_eight_are_asked_for(
    tmp_path: Path, format_name: str
) -> None:
    """Depth maps and X-ray pictures come out almost white where every value above 255 is clipped."""
    files: dict[str | bytes, bytes] = {"deep.png": deep_png(1), "deep.tif": as_file(Image.fromarray(DEEP), "TIFF")}
    result = pack_files(tmp_path, files, format_name)
    assert result.rows == []
    assert result.read(output="bytes") == files
    for name, pixels in result.read(output="numpy", mode=None).items():
        assert (pixels.dtype, pixels.max()) == (np.uint16, 65520), name
        assert np.array_equal(pixels, DEEP), name
    for name, pixels in result.read(output="numpy", mode="RGB").items():
        assert np.array_equal(pixels, np.repeat((DEEP >> 8)[..., None], 3, axis=2)), name
    for name, pixels in result.read(output="numpy", mode="L").items():
        assert np.array_equal(pixels, DEEP >> 8), name
    for name, tensor in result.read(output="torch", mode=None).items():
        assert np.array_equal(tensor.numpy()[0], DEEP), name


def test_sixteen_bits_of_colour_are_kept_with_a_warning_that_eight_are_read(tmp_path: Path, format_name: str) -> None:
    data = deep_png(3)
    result = pack_files(tmp_path, {"deep.png": data}, format_name)
    assert result.outcome("deep.png") == [(WARNED, "depth_reduced")]
    assert result.sample("deep.png", output="bytes") == data
    pixels = result.sample("deep.png", output="numpy")
    assert np.array_equal(pixels, np.repeat((DEEP >> 8)[..., None], 3, axis=2))


# Transparency, palettes, one bit


def clear_files() -> dict[str | bytes, bytes]:
    invisible = Image.new("RGBA", (32, 24), (255, 0, 0, 0))
    grey = Image.merge("LA", [smooth(32, 24).convert("L"), smooth(24, 32).resize((32, 24)).convert("L")])
    return {
        "grey with alpha.png": png(grey),
        "half clear palette.png": png(photo(32, 24).quantize(16), transparency=bytes([0] * 8 + [255] * 8)),
        "invisible.png": png(invisible),
        "mask.png": png(photo(32, 24).convert("1")),
    }


CLEAR = clear_files()
CLEAR_MODES = {
    "grey with alpha.png": "LA",
    "half clear palette.png": "P",
    "invisible.png": "RGBA",
    "mask.png": "1",
}


@pytest.fixture(scope="module")
def clear(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return pack_files(tmp_path_factory.mktemp("clear"), CLEAR)


def by_pillow(data: bytes, mode: str | None) -> Image.Image:
    picture = Image.open(io.BytesIO(data))
    if picture.mode == "P" and mode == "RGB":
        picture = picture.convert("RGBA")  # else Pillow warns, and gives the same colours
    return picture.convert(mode) if mode else picture


def test_transparent_palette_and_one_bit_pictures_are_kept_with_their_modes(clear: Packed) -> None:
    assert clear.rows == []
    assert clear.read(output="bytes") == CLEAR
    assert {name: clear.facts(name)["mode"] for name in clear.names} == CLEAR_MODES


def test_as_rgb_they_are_what_imagefolder_gives_and_nobody_is_warned(clear: Packed) -> None:
    """Warnings are errors in these tests, and Pillow has one for palettes whose transparency is bytes."""
    for name, picture in clear.read(mode="RGB").items():
        assert picture.mode == "RGB"
        assert np.array_equal(np.asarray(picture), np.asarray(by_pillow(CLEAR[name], "RGB"))), name
    assert (clear.sample("invisible.png", output="numpy") == (255, 0, 0)).all()


def test_on_a_background_what_is_clear_has_its_colour(clear: Packed) -> None:
    white = clear.read(output="numpy", background=(255, 255, 255))
    assert (white["invisible.png"] == 255).all()
    palette = np.asarray(by_pillow(CLEAR["half clear palette.png"], None).convert("RGBA"))
    assert (white["half clear palette.png"][palette[..., 3] == 0] == 255).all()
    opaque = palette[..., 3] == 255
    assert np.array_equal(white["half clear palette.png"][opaque], palette[opaque][:, :3])
    grey, alpha = np.asarray(by_pillow(CLEAR["grey with alpha.png"], None)).astype(float).transpose(2, 0, 1)
    expected = (grey * alpha + 255 * (255 - alpha)) / 255
    assert np.abs(white["grey with alpha.png"][..., 0] - expected).max() <= 1
    assert np.array_equal(white["mask.png"], clear.sample("mask.png", output="numpy"))
    blue = clear.sample("invisible.png", output="numpy", background=(1, 2, 200))
    assert (blue == (1, 2, 200)).all()


def test_without_a_mode_they_have_their_own(clear: Packed) -> None:
    assert {name: picture.mode for name, picture in clear.read(mode=None).items()} == CLEAR_MODES
    arrays = clear.read(output="numpy", mode=None)
    assert {name: array.shape for name, array in arrays.items()} == {
        "grey with alpha.png": (24, 32, 2),
        "half clear palette.png": (24, 32, 4),  # its colours; its indices are no pixels
        "invisible.png": (24, 32, 4),
        "mask.png": (24, 32),
    }


def test_a_mask_is_0_and_255_and_never_bool(clear: Packed) -> None:
    mask = np.asarray(by_pillow(CLEAR["mask.png"], None))
    for mode in (None, "1", "L"):
        array = clear.sample("mask.png", output="numpy", mode=mode)
        assert array.dtype == np.uint8
        assert np.array_equal(array, mask * np.uint8(255))


def test_palette_indices_come_only_where_they_are_asked_for(clear: Packed) -> None:
    name = "half clear palette.png"
    indices = np.asarray(by_pillow(CLEAR[name], None))
    assert np.array_equal(clear.sample(name, output="numpy", mode="P"), indices)
    for mode in (None, "RGB", "RGBA", "L"):
        assert not np.array_equal(clear.sample(name, output="numpy", mode=mode).reshape(24, 32, -1)[..., 0], indices)


# Several pictures in a file


def test_a_camera_file_with_a_second_picture_is_a_jpeg(tmp_path: Path, format_name: str) -> None:
    """Phones write a preview behind the photo, and Pillow calls that MPO: a third of somebody's photos was rejected."""
    data = as_file(photo(), "MPO", save_all=True, append_images=[photo().rotate(90)])
    result = pack_files(tmp_path, {"x.jpg": data}, format_name)
    assert result.rows == []
    assert result.facts("x.jpg") == {"type": "jpeg", "mode": "RGB", "width": 64, "height": 48, "frames": 2, "orientation": 1}
    assert result.sample("x.jpg", output="bytes") == data
    first = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert np.array_equal(result.sample("x.jpg", output="numpy"), first)


def animations() -> dict[str | bytes, bytes]:
    files: dict[str | bytes, bytes] = {}
    for kind in ("gif", "png", "webp"):
        for seed, name in enumerate((f"a.{kind}", f"named {kind}.jpg")):
            frames = [photo(48, 40, seed=seed).rotate(angle) for angle in (0, 10, 20)]
            files[name] = as_file(frames[0], kind, save_all=True, append_images=frames[1:])
    return files


def test_of_an_animation_the_first_frame_is_read_and_the_report_counts_them(tmp_path: Path, format_name: str) -> None:
    """Never four axes beside three: that is a crash hours later."""
    files = animations()
    result = pack_files(tmp_path, files, format_name)
    for name in result.names:
        expected = {(WARNED, "multi_frame")} | ({(WARNED, "extension_mismatch")} if name.endswith(".jpg") else set())
        assert set(result.outcome(name)) == expected
        (detail,) = [row["detail"] for row in result.rows if row["path"] == name and row["code"] == "multi_frame"]
        assert "3" in detail
        assert result.facts(name)["frames"] == 3
    assert result.read(output="bytes") == files
    for name, pixels in result.read(output="numpy").items():
        assert pixels.shape == (40, 48, 3)
        assert np.array_equal(pixels, np.asarray(Image.open(io.BytesIO(files[name])).convert("RGB"))), name
    for tensor in result.read(output="torch").values():
        assert tensor.shape == (3, 40, 48)


def test_animations_are_skipped_where_asked(tmp_path: Path) -> None:
    result = pack_files(tmp_path, {**animations(), "still.png": png()}, skip=("multi_frame",))
    assert result.names == ["still.png"]
    assert result.unlike(animations(), SKIPPED, "multi_frame") == {}
    assert "3" in result.detail("a.gif")


def test_of_a_tiff_with_two_pages_the_first_is_read(tmp_path: Path, format_name: str) -> None:
    data = as_file(photo(), "TIFF", save_all=True, append_images=[photo(10, 10, seed=1)])
    result = pack_files(tmp_path, {"pages.tif": data}, format_name)
    assert result.outcome("pages.tif") == [(WARNED, "multi_frame")]
    assert result.facts("pages.tif")["frames"] == 2
    assert result.sample("pages.tif", output="bytes") == data
    assert np.array_equal(result.sample("pages.tif", output="numpy"), np.asarray(photo()))


def test_a_float_tiff_is_read_unclipped_and_a_cut_one_stays_out(tmp_path: Path, format_name: str) -> None:
    values = np.linspace(-3, 5000, 6144).reshape(64, 96).astype("f4")
    data = as_file(Image.fromarray(values), "TIFF")
    result = pack_files(tmp_path, {"cut.tif": data[:3000], "whole.tif": data}, format_name)
    assert [(row["path"], row["code"]) for row in result.rows] == [("cut.tif", "truncated")]
    pixels = result.sample("whole.tif", output="numpy", mode=None)
    assert (pixels.dtype, pixels.max()) == (np.float32, 5000.0)
    assert np.array_equal(pixels, values)
    eight = result.sample("whole.tif", output="numpy", mode="L")
    assert (eight.min(), eight.max()) == (0, 255)
    assert 120 < eight.mean() < 135  # clipped, it would be 248


# Cameras held sideways


def test_orientation_is_noted_and_applied_only_where_asked(tmp_path: Path, format_name: str) -> None:
    """Boxes drawn on the upright picture do not match the stored one, and the other way round."""
    stored = photo(96, 64)
    files: dict[str | bytes, bytes] = {
        "nine.jpg": jpeg(stored, exif=turned(9)),
        "none.jpg": jpeg(stored),
        "sideways.jpg": jpeg(stored, exif=turned(6)),
        "upside down.jpg": jpeg(stored, exif=turned(3)),
    }
    result = pack_files(tmp_path, files, format_name)
    assert result.read(output="bytes") == files
    facts = {name: result.facts(name) for name in result.names}
    assert {name: fact["orientation"] for name, fact in facts.items()} == {
        "nine.jpg": 1,
        "none.jpg": 1,
        "sideways.jpg": 6,
        "upside down.jpg": 3,
    }
    assert {(fact["width"], fact["height"]) for fact in facts.values()} == {(96, 64)}
    assert {picture.size for picture in result.read().values()} == {(96, 64)}
    upright = result.read(orient=True)
    assert {name: picture.size for name, picture in upright.items()} == {
        "nine.jpg": (96, 64),
        "none.jpg": (96, 64),
        "sideways.jpg": (64, 96),
        "upside down.jpg": (96, 64),
    }
    as_stored = result.read(output="numpy")
    assert np.array_equal(np.asarray(upright["sideways.jpg"]), np.rot90(as_stored["sideways.jpg"], -1))
    assert np.array_equal(np.asarray(upright["upside down.jpg"]), np.rot90(as_stored["upside down.jpg"], 2))
    assert np.array_equal(np.asarray(upright["nine.jpg"]), as_stored["nine.jpg"])


def test_pictures_that_are_not_upright_are_counted(tmp_path: Path) -> None:
    """Whoever has boxes for them must know: by the summary, the report or ``pack info``, whichever says it."""
    files: dict[str | bytes, bytes] = {f"{number}.jpg": jpeg(exif=turned(number), seed=number) for number in range(1, 10)}
    write_tree(tmp_path / "in", files)
    packed = run_pack("in", "-o", "out", "--workers", "1", cwd=tmp_path)
    info = run_pack("info", "out", cwd=tmp_path)
    assert (packed.returncode, info.returncode) == (0, 0)
    shown = packed.stdout + info.stdout + (tmp_path / "out/report.jsonl").read_text("ascii")
    assert re.search(r"\b7\b.*(orient|upright)|(orient|upright).*\b7\b", shown)
