"""Images are decoded at once or by row, cropped to the centre square or squeezed, and refused if broken."""

import os
import pickle
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cl2r.data.images import ArrayImages, Crop, ImageFiles, LazyImages, images_of, resized
from tests.support.miniatures import refusal

SHAPES = [(40, 20), (20, 40), (33, 31), (8, 8), (5, 3), (1, 1)]
NAMES = [f"{width}x{height}.{suffix}" for width, height in SHAPES for suffix in ("png", "jpg")]


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), np.uint8))


@pytest.fixture
def files(tmp_path: Path) -> ImageFiles:
    for name in NAMES:
        width, height = map(int, name.split(".")[0].split("x"))
        noise(width, height).save(tmp_path / name)
    return ImageFiles(tmp_path, NAMES)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("crop", ["centre", "whole"])
def test_an_array_is_what_lazy_images_decode(
    files: ImageFiles, channels: int, crop: Crop, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = images_of(files, 8, channels, crop)
    assert isinstance(held, ArrayImages)
    assert held.shape == (len(NAMES), 8, 8, channels)
    monkeypatch.setattr("cl2r.data.images.IN_MEMORY_BYTES", held.pixels.nbytes)
    assert images_of(files, 8, channels, crop).in_memory
    monkeypatch.setattr("cl2r.data.images.IN_MEMORY_BYTES", held.pixels.nbytes - 1)
    monkeypatch.setattr("cl2r.data.images.BLOCK", 5)
    lazy = images_of(files, 8, channels, crop)
    assert isinstance(lazy, LazyImages)
    assert (lazy.shape, len(lazy), lazy.in_memory, lazy.crop) == (held.shape, len(held), False, crop)
    rows = np.array([7, 0, 7, 11, 2, 2])
    for threads in (1, 3, None):
        np.testing.assert_array_equal(lazy.decode(rows, threads), held.decode(rows, threads))
    np.testing.assert_array_equal(lazy.all(), held.all())


def triangle(size: int, start: float, length: float, pixels: int) -> np.ndarray:
    """Return the weights (size, pixels) of the antialiased bilinear filter on `length` pixels from `start` on."""
    scale = length / size
    reach = max(scale, 1.0)
    weights = np.zeros((size, pixels))
    for i in range(size):
        centre = start + (i + 0.5) * scale
        for j in range(pixels):
            inside = int(centre - reach + 0.5) <= j < int(centre + reach + 0.5)
            weights[i, j] = max(0.0, 1 - abs(j + 0.5 - centre) / reach) * inside
    return weights / weights.sum(1, keepdims=True)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("crop", ["centre", "whole"])
@pytest.mark.parametrize("size", [6, 8, 21])
def test_scaling_equals_a_slow_filter(shape: tuple[int, int], crop: Crop, size: int) -> None:
    width, height = shape
    image = noise(width, height)
    across, down = (min(shape), min(shape)) if crop == "centre" else shape
    columns = triangle(size, (width - across) / 2, across, width)
    rows = triangle(size, (height - down) / 2, down, height)
    expected = np.einsum("ih,hwc,jw->ijc", rows, np.asarray(image).astype(float), columns)
    assert np.abs(np.asarray(resized(image, size, crop)) - expected).max() <= 1.5


def test_an_image_of_the_right_size_is_left_alone(files: ImageFiles) -> None:
    row = NAMES.index("8x8.png")
    np.testing.assert_array_equal(LazyImages(files, 8, 3).resized(row), np.asarray(noise(8, 8)))


def test_large_jpegs_are_decoded_at_a_fraction(tmp_path: Path) -> None:
    noise(400, 240).save(tmp_path / "a.jpg")
    lazy = LazyImages(ImageFiles(tmp_path, ["a.jpg"]), 28, 3)
    assert lazy.open(0, 28).size == (50, 30)
    assert lazy.open(0, 240).size == (400, 240)


@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_broken_and_missing_images_are_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"half.{suffix}"
    noise(64, 64).save(path)
    noise(64, 64).save(tmp_path / "whole.png")
    for content in (b"", path.read_bytes()[:1500], b"<html>404</html>"):
        path.write_bytes(content)
        message = refusal(lambda: images_of(ImageFiles(tmp_path, ["whole.png", path.name]), 8, 3))
        assert message.startswith(f"{path}: not a readable image")
        assert "0x" not in message, "an address of memory"
    path.unlink()
    assert refusal(lambda: images_of(ImageFiles(tmp_path, [path.name]), 8, 3)).startswith(f"{path}: ")


@pytest.mark.parametrize("tag", [256, 257, 258, 259, 262, 273, 277, 278])
def test_a_tiff_with_text_for_a_number_is_named(tmp_path: Path, tag: int) -> None:
    """Pillow would compute with the text of tag 273, which says where the pixels lie."""
    path = tmp_path / "a.tif"
    Image.new("RGB", (8, 8)).save(path)
    damaged = bytearray(path.read_bytes())
    place = damaged.index(struct.pack("<H", tag), 8)
    struct.pack_into("<H", damaged, place + 2, 2)
    path.write_bytes(damaged)
    message = refusal(lambda: images_of(ImageFiles(tmp_path, ["a.tif"]), 8, 3))
    assert message.startswith(f"{path}: not a readable image")


@pytest.mark.parametrize("array", [np.full((8, 8), 40000, np.uint16), np.zeros((8, 8), np.float32)])
def test_images_of_more_than_8_bits_are_refused(tmp_path: Path, array: np.ndarray) -> None:
    Image.fromarray(array).save(tmp_path / "deep.tif")
    assert "deep.tif: more than 8 bits" in refusal(lambda: images_of(ImageFiles(tmp_path, ["deep.tif"]), 8, 3))


def test_identity_covers_names_sizes_and_crop(files: ImageFiles) -> None:
    def identity(size: int = 8, channels: int = 3, crop: Crop = "centre", paths: list[str] = NAMES) -> list[bytes]:
        return list(LazyImages(ImageFiles(files.root, paths), size, channels, crop).identity())

    others = [identity(), identity(9), identity(channels=1), identity(crop="whole"), identity(paths=NAMES[::-1])]
    assert len(set(map(tuple, others))) == 5
    before = identity()
    moved = shutil.copytree(files.root, files.root / "moved")
    assert list(LazyImages(ImageFiles(moved, NAMES), 8, 3).identity()) == identity() == before
    path = files.root / NAMES[3]
    path.write_bytes(path.read_bytes() + b"\0")
    assert identity() != before


def test_identity_is_path_and_size_of_every_file_in_order(files: ImageFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = b"".join(f"{name}\0{(files.root / name).stat().st_size}\0".encode() for name in NAMES)
    assert b"".join(files.identity()) == expected
    monkeypatch.setattr("cl2r.data.images.STAT_BLOCK", 5)
    assert len(list(files.identity())) == 3
    assert b"".join(files.identity()) == expected
    (files.root / NAMES[7]).unlink()
    assert refusal(lambda: list(files.identity())).startswith(f"{files.root / NAMES[7]}: ")


ODD = ["a/b.jpg", "é/ß.png", "longer/than/the/others.JPEG", os.fsdecode(b"\xff.jpg")]


def test_paths_are_packed_and_read_as_text(tmp_path: Path) -> None:
    files = ImageFiles(tmp_path, ODD)
    for held in (files, pickle.loads(pickle.dumps(files))):
        assert held.packed.dtype.kind == "S"
        assert [held.path(row) for row in range(len(held))] == ODD
        assert held.name(0) == str(tmp_path / "a" / "b.jpg")
        with pytest.raises(IndexError):
            held.path(4)
    assert len(ImageFiles(tmp_path, [])) == 0


def test_a_name_that_is_not_utf8_is_read(tmp_path: Path) -> None:
    noise(8, 8).save(tmp_path / "a.png")
    (tmp_path / "a.png").rename(tmp_path / ODD[3])
    files = ImageFiles(tmp_path, [ODD[3]])
    np.testing.assert_array_equal(images_of(files, 8, 3).all()[0], np.asarray(noise(8, 8)))
    size = (tmp_path / ODD[3]).stat().st_size
    assert b"".join(files.identity()) == b"\xff.jpg\0%d\0" % size
