"""Folders of images: own data sets, and how folders of data sets are found."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cl2r.data import load_dataset
from cl2r.data.folders import dataset_parent, find_folder, load_folder
from cl2r.data.images import LazyImages
from tests.support.miniatures import refusal, write


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
    assert data.x_train.all()[1:, 0, 0, 0].tolist() == [10, 20, 30]
    assert data.y_open.tolist() == [0, 0, 0, 1, 1, 2]
    assert data.x_open.all()[:, 2, 3].tolist() == [[0, 4, 1], [0, 4, 2], [0, 4, 3], [0, 2, 1], [0, 2, 2], [0, 2, 1]]
    assert data.pairs is None


@pytest.mark.parametrize("place", ["pairs.csv", "open/pairs.csv", "pairs.txt"])
def test_a_folder_may_hold_a_table_of_pairs(root: Path, place: str) -> None:
    rows = ["Al_B/Al_B_0001.png,Al_B/Al_B_0003.png,1", "open/Cy/Cy_0001.png,Cy/Cy_0002.png,1"]
    rows += ["Al_B/Al_B_0001.png,Cy/Cy_0001.png,0", "Di/Di_0001.png,Cy/Cy_0001.png,0"]
    text = "\n".join(rows)
    (root / place).write_text(text.replace("open/", "") if place.startswith("open") else text)
    pairs = load_folder(root, size=4).pairs
    assert pairs is not None
    assert (pairs.query.tolist(), pairs.gallery.tolist()) == ([0, 3, 0, 5], [2, 4, 3, 3])


def test_grey_images_have_one_channel(root: Path) -> None:
    data = load_folder(root, size=4, channels=1)
    assert data.x_train.shape == (4, 4, 4, 1)
    assert data.x_train.all()[3, 0, 0, 0] == 9  # luma of (30, 0, 0)


def test_images_may_lie_in_subfolders(root: Path) -> None:
    paint(root / "train" / "cat" / "images" / "9.png", (90, 0, 0))
    assert load_folder(root, size=4).x_train.all()[1:, 0, 0, 0].tolist() == [10, 20, 30, 90]


@pytest.mark.parametrize("mode", ["RGBA", "P", "L", "1", "CMYK"])
def test_images_of_all_modes_become_rgb(root: Path, mode: str) -> None:
    suffix = "jpg" if mode == "CMYK" else "png"
    Image.new("RGB", (8, 8), (255, 255, 255)).convert(mode).save(root / "train" / "ant" / f"y.{suffix}")
    assert load_folder(root, size=4).x_train.all()[1].min() >= 253


def test_large_folders_are_decoded_when_used(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load_folder(root, size=4)
    monkeypatch.setattr("cl2r.data.images.IN_MEMORY_BYTES", whole.x_train.all().nbytes)
    data = load_folder(root, size=4)
    assert data.x_train.in_memory
    assert isinstance(data.x_open, LazyImages)
    np.testing.assert_array_equal(data.x_open.all(), whole.x_open.all())
    assert data.x_open.encoded.name(0) == str(root / "open" / "Al_B" / "Al_B_0001.png")


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda root: (root / "open").rename(root / "test"), r"open: no such folder; expected DIR/train/<class>"),
        (lambda root: write(root / "train" / "bee" / "list.csv", b"x"), r"train/bee: "),
        (lambda root: write(root / "open" / "Cy" / "Cy_0002.png", b"garbage"), r"open/Cy/Cy_0002\.png: "),
        (lambda root: paint(root / "open" / "cat" / "c.png", (0, 0, 0)), r"'cat'"),
        (lambda root: (root / "train" / "cat").rename(root / "cat"), r"1 training classes"),
        (lambda root: [write(place / "pairs.txt", b"1\n") for place in (root, root / "open")], r"two pair lists"),
        (lambda root: [write(root / name, b"1\n") for name in ("pairs.txt", "pairs.csv")], r"two pair lists"),
    ],
)
def test_broken_folders_are_refused(root: Path, damage: Callable[[Path], object], named: str) -> None:
    damage(root)
    assert re.search(named, refusal(lambda: load_folder(root)))


def test_a_folder_without_class_folders_is_refused(root: Path) -> None:
    (root / "train").rename(root / "old")
    paint(root / "train" / "flat.png", (0, 0, 0))
    assert re.search("train: .*put one folder per class there: DIR/train", refusal(lambda: load_folder(root)))


@pytest.mark.parametrize(("size", "channels"), [(0, 3), (32, 2)])
def test_impossible_sizes_are_refused(root: Path, size: int, channels: int) -> None:
    assert f"size {size} and channels {channels}" in refusal(lambda: load_folder(root, size, channels))


def test_a_folder_without_permission_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def guarded(path: str | Path) -> object:
        if Path(path).name == "cat":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    assert refusal(lambda: load_folder(root)).startswith(f"{root / 'train' / 'cat'}: ")


def test_the_first_folder_of_several_names_is_found(tmp_path: Path) -> None:
    for name in ("two", "three"):
        (tmp_path / name).mkdir()
    (tmp_path / "one").write_text("a file")
    assert find_folder(tmp_path, "one", "two", "three") == tmp_path / "two"
    assert find_folder(tmp_path, "four") is None
    assert "two copies" in refusal(lambda: find_folder(tmp_path, "two", "three", only="it"))
    (tmp_path / "copy").symlink_to(tmp_path / "two")
    assert find_folder(tmp_path, "two", "copy", only="it") == tmp_path / "two"


def test_the_root_may_be_the_folder_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_folder(tmp_path / "lfw", "lfw") is None
    (tmp_path / "lfw").mkdir()
    assert find_folder(tmp_path / "lfw", "lfw") == tmp_path / "lfw"
    assert find_folder(tmp_path / "lfw", "casia") is None
    assert dataset_parent(tmp_path, "lfw", "casia") == tmp_path
    assert dataset_parent(tmp_path / "lfw", "casia", "lfw") == tmp_path
    assert dataset_parent(tmp_path / "lfw", "casia") == tmp_path / "lfw"
    monkeypatch.chdir(tmp_path / "lfw")
    assert find_folder(Path("."), "lfw") == Path(".")
    assert dataset_parent(Path("."), "lfw") == tmp_path
