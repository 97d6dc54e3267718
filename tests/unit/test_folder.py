"""Data sets in folders, with and without an LFW pair list, sound and broken."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from miniatures import refusal
from PIL import Image

from cl2r.data import load_dataset
from cl2r.data.folder import load_folder
from cl2r.data.images import LazyImages
from cl2r.errors import InputError


def paint(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (8, 8)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two training classes and three people to verify, every image in its own colour."""
    folder = tmp_path / "mini"
    for i in (3, 1, 2):
        paint(folder / "train" / "cat" / f"{i}.png", (10 * i, 0, 0))
    paint(folder / "train" / "ant" / "x.JPEG", (0, 200, 0))
    for person, count in (("Al_B", 3), ("Cy", 2), ("Di", 1)):
        for i in range(1, count + 1):
            paint(folder / "open" / person / f"{person}_{i:04d}.png", (0, len(person), i))
    return folder


def test_sorted_classes_and_images(root: Path) -> None:
    data = load_dataset(str(root), size=4)
    assert data.name == "mini"
    assert data.class_names == ("ant", "cat")
    assert data.y_train.tolist() == [0, 1, 1, 1]
    assert data.x_train[1:, 0, 0, 0].tolist() == [10, 20, 30]
    assert data.y_open.tolist() == [0, 0, 0, 1, 1, 2]
    assert data.x_open[:, 2, 3].tolist() == [[0, 4, 1], [0, 4, 2], [0, 4, 3], [0, 2, 1], [0, 2, 2], [0, 2, 1]]
    assert data.pairs is None


def test_one_channel(root: Path) -> None:
    data = load_folder(root, size=4, channels=1)
    assert data.x_train.shape == (4, 4, 4, 1)
    assert data.x_train[3, 0, 0, 0] == 9  # luma of (30, 0, 0)


def test_other_files_are_ignored(root: Path) -> None:
    (root / "train" / "cat" / "notes.txt").write_text("not an image")
    (root / "train" / "cat" / "._1.png").write_bytes(b"resource fork")
    (root / "train" / ".cache").mkdir()
    (root / "train" / "README.md").write_text("x")
    assert len(load_folder(root, size=4).y_train) == 4


def test_images_may_lie_deeper(root: Path) -> None:
    paint(root / "train" / "cat" / "images" / "9.png", (90, 0, 0))
    assert load_folder(root, size=4).x_train[1:, 0, 0, 0].tolist() == [10, 20, 30, 90]


@pytest.mark.parametrize("shape", [(40, 20), (20, 40), (21, 20)])
def test_centre_square_of_the_shorter_side(root: Path, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    path = root / "train" / "ant" / "y.png"
    Image.fromarray(rng.integers(0, 256, (shape[1], shape[0], 3), np.uint8)).save(path)
    read = load_folder(root, size=10).x_train[1].astype(int)
    left, top = (shape[0] - 20) / 2, (shape[1] - 20) / 2
    with Image.open(path) as image:
        expected = image.resize((10, 10), Image.Resampling.BILINEAR, box=(left, top, left + 20, top + 20))
    assert np.abs(read - np.asarray(expected).astype(int)).max() <= 1


def test_downscaling_is_antialiased(root: Path) -> None:
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    Image.fromarray(stripes).save(root / "train" / "ant" / "y.png")
    grey = load_folder(root, size=8).x_train[1]
    assert 110 < grey.min() <= grey.max() < 145  # without a filter it would be 0 or 255


@pytest.mark.parametrize("mode", ["RGBA", "P", "L", "1", "CMYK"])
def test_modes_become_rgb(root: Path, mode: str) -> None:
    suffix = "jpg" if mode == "CMYK" else "png"
    Image.new("RGB", (8, 8), (255, 255, 255)).convert(mode).save(root / "train" / "ant" / f"y.{suffix}")
    assert load_folder(root, size=4).x_train[1].min() >= 253


def test_deep_images_are_refused(root: Path) -> None:
    Image.fromarray(np.full((8, 8), 40000, np.uint16)).save(root / "train" / "ant" / "y.png")
    with pytest.raises(InputError, match=r"y\.png: more than 8 bits a channel"):
        load_folder(root)


def test_more_images_than_one_decoding_block(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load_folder(root, size=4)
    monkeypatch.setattr("cl2r.data.images.BLOCK", 2)
    assert load_folder(root, size=4).fingerprint == whole.fingerprint


def test_large_folders_are_decoded_when_used(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load_folder(root, size=4)
    monkeypatch.setattr("cl2r.data.images.IN_MEMORY_BYTES", whole.x_train.nbytes)
    data = load_folder(root, size=4)
    assert isinstance(data.x_train, np.ndarray)
    assert isinstance(data.x_open, LazyImages)
    np.testing.assert_array_equal(data.x_open.all(), whole.x_open)
    assert data.x_open.encoded.name(0) == str(root / "open" / "Al_B" / "Al_B_0001.png")


def remove_open(root: Path) -> None:
    (root / "open").rename(root / "test")


def empty_class(root: Path) -> None:
    (root / "train" / "bee").mkdir()
    (root / "train" / "bee" / "list.csv").write_text("x")


def no_classes(root: Path) -> None:
    (root / "train").rename(root / "old")
    (root / "train").mkdir()
    paint(root / "train" / "flat.png", (0, 0, 0))


def garbage_image(root: Path) -> None:
    (root / "open" / "Cy" / "Cy_0002.png").write_bytes(b"garbage")


def truncated_image(root: Path) -> None:
    path = root / "train" / "cat" / "2.png"
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:500])


def empty_image(root: Path) -> None:
    (root / "train" / "cat" / "2.png").write_bytes(b"")


def shared_class(root: Path) -> None:
    paint(root / "open" / "cat" / "c.png", (0, 0, 0))


def one_class(root: Path) -> None:
    (root / "train" / "cat").rename(root / "cat")


def two_lists(root: Path) -> None:
    (root / "pairs.txt").write_text("1\n")
    (root / "open" / "pairs.txt").write_text("1\n")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove_open, r"open: no such folder; expected DIR/train/<class>/\*\.jpg and DIR/open/<class>"),
        (empty_class, r"train/bee: folder without images"),
        (no_classes, r"train: no folders of images in it; expected DIR/train"),
        (garbage_image, r"open/Cy/Cy_0002\.png: not a readable image"),
        (truncated_image, r"train/cat/2\.png: not a readable image"),
        (empty_image, r"train/cat/2\.png: not a readable image"),
        (shared_class, r"class 'cat' is in both the training and the open set"),
        (one_class, r"1 training classes, at least 2"),
        (two_lists, r"two pair lists"),
    ],
)
def test_broken_folders_are_refused(root: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(root)
    assert re.search(message, refusal(lambda: load_folder(root)))


@pytest.mark.parametrize(("size", "channels"), [(0, 3), (32, 2)])
def test_impossible_sizes(root: Path, size: int, channels: int) -> None:
    with pytest.raises(InputError, match=f"size {size} and channels {channels}"):
        load_folder(root, size, channels)


FOLDS = "2\t1\nAl_B\t1\t3\nCy\t2\tDi\t1\nCy\t1\t2\nDi\t1\tAl_B\t2\n"


@pytest.mark.parametrize("place", ["pairs.txt", "open/pairs.txt"])
def test_pair_list_with_folds(root: Path, place: str) -> None:
    (root / place).write_text(FOLDS)
    pairs = load_folder(root, size=4).pairs
    assert pairs is not None
    assert pairs.query.tolist() == [0, 4, 3, 5]
    assert pairs.gallery.tolist() == [2, 5, 4, 1]
    assert pairs.same.tolist() == [True, False, True, False]
    assert pairs.folds.tolist() == [0, 0, 1, 1]


def test_pair_list_without_folds(root: Path) -> None:
    for i in range(1, 13):
        paint(root / "open" / "Eve" / f"Eve_{i:04d}.jpg", (0, 0, i))
    positive = [f"Eve\t{i}\t{i + 1}" for i in range(1, 12)]
    negative = [f"Eve\t{i}\tDi\t1" for i in range(1, 12)]
    (root / "pairs.txt").write_text("\n".join(["11", *positive, *negative]) + "\n\n")
    data = load_folder(root, size=4)
    assert data.pairs is not None
    assert data.pairs.same.tolist() == [True] * 11 + [False] * 11
    assert data.pairs.folds.tolist() == [*range(10), 0] * 2
    same = data.y_open[data.pairs.query] == data.y_open[data.pairs.gallery]
    np.testing.assert_array_equal(same, data.pairs.same)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FOLDS.replace("Al_B\t2", "Al_B\t7"), "line 5 names image Al_B_0007, which is missing in ROOT/open/Al_B"),
        (FOLDS.replace("Al_B\t2", "Zoe\t2"), "line 5 names image Zoe_0002"),
        (FOLDS.replace("Cy\t1\t2", "Cy\t1\ttwo"), "line 4: image number 'two' of Cy"),
        (FOLDS.replace("Cy\t1\t2", "Cy 1 2"), "line 4 must be `name<TAB>i<TAB>j`"),
        (FOLDS.replace("Cy\t1\t2", "Cy\t1\tDi\t1"), "line 4 must be `name<TAB>i<TAB>j`"),
        (FOLDS.replace("Cy\t1\t2", "Cy\t2\t2"), "line 4 must name two images of one class"),
        (FOLDS.replace("Cy\t2\tDi\t1", "Cy\t2\tCy\t1"), "line 3 must name images of two classes"),
        (FOLDS.replace("2\t1\n", "3\t1\n", 1), "announces 6 pairs, the list has 4"),
        (FOLDS + "Al_B\t1\t2\n", "announces 4 pairs, the list has 5"),
        (FOLDS.replace("2\t1\n", "", 1), "first line must be `folds<TAB>pairs` or `pairs`"),
        ("0\n", "first line must be"),
        ("", "first line must be"),
    ],
)
def test_broken_pair_lists_are_refused(root: Path, text: str, message: str) -> None:
    (root / "pairs.txt").write_text(text)
    refused = refusal(lambda: load_folder(root, size=4))
    assert refused.startswith(f"{root / 'pairs.txt'}: ")
    assert message.replace("ROOT", str(root)) in refused


def test_two_images_of_one_name(root: Path) -> None:
    (root / "pairs.txt").write_text(FOLDS)
    paint(root / "open" / "Cy" / "Cy_0002.jpg", (0, 0, 0))
    with pytest.raises(
        InputError, match=r"open/Cy/Cy_0002\.jpg and .*\.png: two images of one name, .*pairs\.txt would"
    ):
        load_folder(root, size=4)


def test_pair_list_in_another_encoding(root: Path) -> None:
    (root / "pairs.txt").write_bytes("1\nJosé\t1\t2\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"pairs\.txt: not UTF-8"):
        load_folder(root, size=4)


def test_a_folder_that_may_not_be_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def guarded(path: str | Path) -> object:
        if Path(path).name == "cat":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    assert refusal(lambda: load_folder(root)) == f"{root / 'train' / 'cat'}: cannot be read (Permission denied)"
