"""``size=(height, width)``: what Pillow's ``resize`` gives, faster, for every kind of picture."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torch.utils.data import DataLoader

from packer import formats, open_dataset, resize, tensors
from packer.decode import ReadOptions, decode_picture
from packer.errors import OptionError
from packer.index import Record
from packer.model import TYPES_BY_NAME
from packer.resize import resize_array, resize_picture
from tests.inputs import jpeg, pack_here, photo, png, write_tree

BILINEAR = Image.Resampling.BILINEAR
PHOTO = photo(97, 61, seed=3)
ALPHA = photo(97, 61, seed=4).convert("L")
RGBA = PHOTO.copy()
RGBA.putalpha(ALPHA)
DEEP = (np.arange(61 * 97).reshape(61, 97) * 11).astype(np.uint16)
SIZES = [(61, 97), (30, 40), (1, 1), (7, 97), (61, 5), (122, 194), (200, 10), (3, 300)]  # smaller, larger, both


@pytest.fixture(params=[True, False], ids=["with torch", "without torch"])
def has_torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both ways to resize."""
    monkeypatch.setattr(tensors, "_HAS_TORCH", request.param)
    return request.param


def by_pillow(picture: Image.Image, size: tuple[int, int]) -> np.ndarray:
    return np.asarray(picture.resize(size[::-1], BILINEAR))


def farthest(one: Any, other: Any) -> float:
    """The largest difference between two pictures of one shape and dtype."""
    one, other = np.asarray(one), np.asarray(other)
    assert (one.shape, one.dtype) == (other.shape, other.dtype)
    return float(np.abs(one.astype(float) - other.astype(float)).max())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_pixels_are_within_one_of_pillows(mode: str, size: tuple[int, int], has_torch: bool) -> None:
    picture = PHOTO.convert(mode)
    assert farthest(resize_array(np.array(picture), size), by_pillow(picture, size)) <= (1 if has_torch else 0)
    assert farthest(resize_picture(picture, size), by_pillow(picture, size)) <= (1 if has_torch else 0)


lengths = st.integers(1, 70)


@pytest.mark.parametrize("mode", ["RGB", "L"])
@given(lengths, lengths, lengths, lengths, st.integers(0, 99))
@example(1, 1, 50, 50, 0)
@example(70, 70, 1, 1, 0)
def test_noise_of_any_size_is_within_one_of_pillows(
    mode: str, height: int, width: int, new_height: int, new_width: int, seed: int
) -> None:
    shape = (height, width, 3) if mode == "RGB" else (height, width)
    pixels = np.random.default_rng(seed).integers(0, 2, shape, np.uint8) * np.uint8(255)
    size = (new_height, new_width)
    assert farthest(resize_array(pixels, size), by_pillow(Image.fromarray(pixels), size)) <= 1


@pytest.mark.parametrize("size", [(30, 40), (122, 194)])
@pytest.mark.parametrize("mode", ["RGBA", "LA", "CMYK", "YCbCr", "HSV", "LAB", "I", "F", "I;16", "RGBX"])
def test_other_modes_are_resized_by_pillow_and_keep_their_mode(mode: str, size: tuple[int, int], has_torch: bool) -> None:
    picture = {"LA": RGBA.convert("LA"), "RGBA": RGBA, "I;16": Image.fromarray(DEEP)}.get(mode) or PHOTO.convert(mode)
    resized = resize_picture(picture, size)
    assert resized.mode == mode
    assert np.array_equal(np.asarray(resized), by_pillow(picture, size))


def test_sixteen_bits_of_the_other_byte_order_are_resized_as_what_they_are() -> None:
    """Pillow 13 makes noise of them, and says nothing."""
    picture = Image.frombytes("I;16B", (97, 61), DEEP.astype(">u2").tobytes())
    picture.info["exif"] = b"Exif\0\0"
    resized = resize_picture(picture, (30, 40))
    assert np.array_equal(np.asarray(resized), by_pillow(Image.fromarray(DEEP), (30, 40)))
    assert resized.info == picture.info


@pytest.mark.parametrize(
    "picture, mode",
    [
        (PHOTO.quantize(16), "RGB"),
        (PHOTO.convert("L").convert("1"), "L"),
        (PHOTO.convert("P").convert("PA"), "RGBA"),
    ],
    ids=["palette", "one bit", "PA"],
)
@pytest.mark.parametrize("size", [(30, 40), (61, 97)])
def test_indices_become_colours_and_bits_become_grey_whether_the_size_changes_or_not(
    picture: Image.Image, mode: str, size: tuple[int, int]
) -> None:
    """One of another kind in a batch, because it had the size before, would be an error once in a while."""
    wanted = picture.convert(mode)
    resized = resize_picture(picture, size)
    assert resized.mode == mode
    assert farthest(resized, by_pillow(wanted, size) if size != (61, 97) else wanted) <= 1


def test_a_clear_colour_of_a_palette_is_transparent_afterwards() -> None:
    picture = PHOTO.quantize(16)
    picture.info["transparency"] = 3
    assert resize_picture(picture, (30, 40)).mode == "RGBA"


def test_a_picture_keeps_what_is_known_of_it() -> None:
    picture = PHOTO.copy()
    picture.info["exif"] = b"Exif\0\0"
    for mode in ("RGB", "L", "CMYK", "RGBA"):
        assert resize_picture(picture.convert(mode), (10, 10)).info["exif"] == b"Exif\0\0"


def test_a_picture_of_the_right_size_is_left_as_it_is() -> None:
    pixels = np.array(PHOTO)
    assert resize_array(pixels, (61, 97)) is pixels
    assert resize_picture(PHOTO, (61, 97)) is PHOTO


# ----------------------------------------------------------------------------------------------------------- in a dataset


def encoded(picture: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def turning(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


FILES: dict[str | bytes, bytes] = {
    "rgb.jpg": jpeg(photo(640, 480)),
    "grey.jpg": jpeg(photo(640, 480).convert("L")),
    "cmyk.jpg": jpeg(photo(640, 480).convert("CMYK")),
    "progressive.jpg": jpeg(photo(333, 222), progressive=True),
    **{f"turned {n}.jpg": jpeg(photo(96, 64), exif=turning(n)) for n in (3, 6, 8)},
    "turned grey.jpg": jpeg(photo(96, 64).convert("L"), exif=turning(6)),
    "turned.png": png(photo(96, 64), exif=turning(6)),
    "rgb.png": png(PHOTO),
    "rgba.png": png(RGBA),
    "grey.png": png(PHOTO.convert("L")),
    "la.png": png(RGBA.convert("LA")),
    "palette.png": png(PHOTO.quantize(16)),
    "clear palette.png": png(PHOTO.quantize(16), transparency=3),
    "one.png": png(PHOTO.convert("1")),
    "deep.png": png(Image.fromarray(DEEP)),
    "deep big-endian.tif": encoded(Image.fromarray(DEEP.astype(">u2")), "TIFF"),
    "float.tif": encoded(Image.fromarray(DEEP.astype(np.float32)), "TIFF"),
    "cmyk.tif": encoded(PHOTO.convert("CMYK"), "TIFF"),
    "rgb.webp": encoded(PHOTO, "WEBP", lossless=True),
    "rgb.gif": encoded(PHOTO, "GIF"),
    "rgb.bmp": encoded(PHOTO, "BMP"),
    "one pixel.png": png(photo(1, 1)),
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("resize")
    source = write_tree(root / "in", FILES)
    outputs = {}
    for name in formats.names():
        summary = pack_here(source, name)
        assert summary.skipped == {}
        outputs[name] = summary.output
    return outputs


def original(name: str, *, orient: bool = False) -> Image.Image:
    picture = Image.open(io.BytesIO(FILES[name]))
    picture.load()
    return ImageOps.exif_transpose(picture) if orient else picture


@pytest.mark.parametrize("size", [(24, 40), (150, 100)])
@pytest.mark.parametrize("orient", [False, True])
@pytest.mark.parametrize("mode", ["RGB", "L", None])
def test_every_picture_has_the_size_asked_for_in_every_output(
    paths: dict[str, Path], format_name: str, mode: str | None, orient: bool, size: tuple[int, int]
) -> None:
    options: dict[str, Any] = {"mode": mode, "orient": orient, "size": size}
    as_array, as_tensor, as_pil = (
        open_dataset(paths[format_name], output=output, **options) for output in ("numpy", "torch", "pil")
    )
    for i, name in enumerate(as_array.names):
        array = as_array[i]
        assert array.shape[:2] == size
        assert array.flags.c_contiguous
        assert array.flags.writeable
        planes = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
        assert np.array_equal(as_tensor[i].numpy(), planes), name
        assert as_pil[i].size == size[::-1]
        assert np.array_equal(np.asarray(as_pil[i]), array), name
        batch = as_array[[i, i]]
        assert np.array_equal(batch, np.stack([array, array])), name
        assert torch.equal(as_tensor[[i]][0], as_tensor[i])


@pytest.mark.parametrize(
    "name", [name for name in FILES if not str(name).endswith((".jpg", ".tif")) and "deep" not in str(name)]
)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_picture_is_converted_and_then_resized(paths: dict[str, Path], format_name: str, name: str, mode: str) -> None:
    data = open_dataset(paths[format_name], output="numpy", mode=mode, size=(24, 40))
    picture = original(name)
    if picture.mode == "P":
        picture = picture.convert("RGBA")
    assert farthest(data[list(data.names).index(name)], by_pillow(picture.convert(mode), (24, 40))) <= 1


@pytest.mark.parametrize("name", ["rgb.jpg", "grey.jpg", "cmyk.jpg", "progressive.jpg"])
def test_a_jpeg_decoded_at_a_smaller_scale_looks_as_the_whole_one_resized(
    paths: dict[str, Path], format_name: str, name: str
) -> None:
    for size in ((100, 100), (60, 200), (200, 20)):
        data = open_dataset(paths[format_name], output="numpy", size=size)
        small = data[list(data.names).index(name)].astype(float)
        whole = by_pillow(original(name).convert("RGB"), size).astype(float)
        assert np.abs(small - whole).mean() < 3


def record_of(orientation: int) -> Record:
    """A record of a JPEG, as the decoder looks at it."""
    return Record._make([0] * len(Record._fields))._replace(type=TYPES_BY_NAME["jpeg"].code, orientation=orientation)


sides = st.integers(1, 130)


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("mode", ["RGB", "CMYK"], ids=["by simplejpeg", "by Pillow"])
@given(stored=st.tuples(sides, sides), size=st.tuples(sides, sides), least=st.none() | st.tuples(sides, sides))
@example(stored=(64, 96), size=(32, 48), least=None)
@example(stored=(64, 96), size=(33, 1), least=None)
@example(stored=(128, 128), size=(16, 16), least=(100, 10))
def test_a_jpeg_is_never_decoded_smaller_than_what_it_becomes(
    orientation: int, mode: str, stored: tuple[int, int], size: tuple[int, int], least: tuple[int, int] | None
) -> None:
    seen: list[tuple[int, ...]] = []
    data = jpeg(Image.new(mode, stored[::-1], 77))
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((resize, "resize_array"), (resize, "resize_picture")):
            real: Callable[..., Any] = getattr(module, name)

            def look(picture: Any, size: tuple[int, int], real: Callable[..., Any] = real) -> Any:
                seen.append(picture.size[::-1] if isinstance(picture, Image.Image) else picture.shape[:2])
                return real(picture, size)

            patch.setattr(f"packer.decode.{name}", look)
        options = ReadOptions("numpy", orient=True, size=size, min_size=least)
        assert decode_picture(data, record_of(orientation), options).shape == (*size, 3)
    upright = stored if orientation == 1 else stored[::-1]
    wanted = [max(pair) for pair in zip(size, least or (1, 1), strict=True)]
    for found, whole, needed in zip(seen[0], upright, wanted, strict=True):
        assert found >= min(whole, needed)


def test_a_large_jpeg_is_decoded_at_a_smaller_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half as many pixels each way, where those are enough."""
    seen: list[tuple[int, ...]] = []
    monkeypatch.setattr("packer.decode.resize_array", lambda pixels, size: seen.append(pixels.shape[:2]) or pixels)
    for least in ((60, 60), (61, 60), (120, 10), (480, 640), (481, 10)):
        decode_picture(FILES["rgb.jpg"], record_of(1), ReadOptions("numpy", size=least))
    assert seen == [(60, 80), (120, 160), (120, 160), (480, 640), (480, 640)]


@pytest.mark.parametrize("output", ["numpy", "torch", "pil"])
@pytest.mark.parametrize("name", [name for name in FILES if "turned" in str(name)])
def test_a_picture_is_turned_first_and_then_has_the_size_asked_for(
    paths: dict[str, Path], format_name: str, name: str, output: str
) -> None:
    data = open_dataset(paths[format_name], output=output, orient=True, size=(40, 20))
    found = np.asarray(data[list(data.names).index(name)])
    upright = by_pillow(original(name, orient=True).convert("RGB"), (40, 20)).astype(float)
    found = found.transpose(1, 2, 0) if output == "torch" else found
    assert found.shape == (40, 20, 3)
    assert np.abs(found - upright).mean() < 3


def test_a_picture_that_was_not_turned_can_still_be_turned_by_its_exif(paths: dict[str, Path], format_name: str) -> None:
    data = open_dataset(paths[format_name], size=(40, 20))
    for name in ("turned 6.jpg", "turned grey.jpg", "turned.png"):
        picture = data[list(data.names).index(name)]
        assert picture.size == (20, 40)
        assert ImageOps.exif_transpose(picture).size == (40, 20)
    upright = open_dataset(paths[format_name], size=(40, 20), orient=True)
    for name in ("turned 6.jpg", "turned grey.jpg", "turned.png"):
        assert ImageOps.exif_transpose(upright[list(data.names).index(name)]).size == (20, 40)


def test_a_size_may_be_a_list_and_is_for_pictures_only(paths: dict[str, Path]) -> None:
    data = open_dataset(paths["lmdb"], output="numpy", size=[12, 34])
    assert data[0].shape == (12, 34, 3)
    raw = open_dataset(paths["lmdb"], output="bytes", size=(12, 34))
    assert raw[0] == FILES[raw.names[0]]


@pytest.mark.parametrize("size", [12, (12,), (1, 2, 3), (0, 5), (5, -1), (1.5, 2), (True, 5), "12", (2**31 + 1, 1), ("1", "2")])
def test_a_size_that_is_none_is_refused_when_the_dataset_is_opened(paths: dict[str, Path], size: Any) -> None:
    with pytest.raises(OptionError, match="size="):
        open_dataset(paths["lmdb"], size=size)


# ---------------------------------------------------------------------------------------------------------------------- forks


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_fork_after_a_resize_leaves_no_lock_behind() -> None:
    """Large enough that torch uses its threads, which a forked child has not."""
    pixels = np.random.default_rng(0).integers(0, 256, (2000, 1500, 3), np.uint8)
    wanted = resize_array(pixels, (700, 900))
    child = os.fork()
    if not child:
        signal.alarm(30)
        os._exit(0 if np.array_equal(resize_array(pixels, (700, 900)), wanted) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_forked_workers_resize_as_the_parent_did_before(paths: dict[str, Path], format_name: str) -> None:
    data = open_dataset(paths[format_name], output="torch", size=(300, 400))
    before = data[range(len(data))]
    loader = DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork", timeout=120)
    assert torch.equal(torch.cat(list(loader)), before)
