"""Tiny-ImageNet200 with ImageNet20: miniatures in the real layout, sound and broken."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from miniatures import greys, jpeg, refusal

from cl2r.data import images
from cl2r.data.imagenet import IMAGENET20
from cl2r.data.images import LazyImages
from cl2r.data.tiny_imagenet import check_tiny_imagenet200, load_tiny_imagenet200

WNIDS = ("n02124075", "n04067472", "n01443537")  # as in wnids.txt, not sorted
HINT = "`cl2r datasets --check tiny_imagenet200"


def paint(path: Path, grey: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(jpeg(grey))


def write_tiny(folder: Path) -> None:
    """Two images a class, in grey 50·k + i for the class at place k of wnids.txt."""
    for k, wnid in enumerate(WNIDS):
        for i in range(2):
            paint(folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", 50 * k + i)
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text("0 0 63 63\n")
    (folder / "wnids.txt").write_text("\n".join(WNIDS) + "\n")


def write_imagenet20(folder: Path) -> None:
    for k, wnid in enumerate(IMAGENET20):
        paint(folder / wnid / "ILSVRC2012_val_00000001.JPEG", 10 * k)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_tiny(tmp_path / "tiny-imagenet-200")
    write_imagenet20(tmp_path / "imagenet" / "val")
    paint(tmp_path / "imagenet" / "val" / "n01440764" / "x.JPEG", 7)
    return tmp_path


def complaint(root: Path) -> str:
    return refusal(lambda: load_tiny_imagenet200(root, 4, 3))


def test_labels_and_order(root: Path) -> None:
    data = load_tiny_imagenet200(root, 4, 3)
    assert data.name == "tiny_imagenet200"
    assert data.class_names == ("n01443537", "n02124075", "n04067472")
    assert data.y_train.tolist() == [0, 0, 1, 1, 2, 2]
    assert greys(data.x_train) == [100, 101, 0, 1, 50, 51]
    assert data.y_open.tolist() == list(range(20))
    grey = {wnid: 10 * k for k, wnid in enumerate(IMAGENET20)}
    assert greys(data.x_open) == [grey[wnid] for wnid in sorted(IMAGENET20)]


def test_without_wnids_txt_the_folders_are_the_classes(root: Path) -> None:
    tiny = root / "tiny-imagenet-200"
    paint(tiny / "train" / "n01629819" / "images" / "n01629819_0.JPEG", 9)
    assert load_tiny_imagenet200(root, 4, 3).num_classes == 3
    (tiny / "wnids.txt").unlink()
    assert load_tiny_imagenet200(root, 4, 3).class_names == tuple(sorted((*WNIDS, "n01629819")))


def test_prepared_imagenet20(root: Path) -> None:
    (root / "imagenet" / "val").rename(root / "imagenet20")
    shutil.rmtree(root / "imagenet")
    assert len(load_tiny_imagenet200(root, 4, 3).y_open) == 20
    assert check_tiny_imagenet200(root).complete


def test_the_folder_itself_as_root(root: Path) -> None:
    tiny = root / "tiny-imagenet-200"
    data = load_tiny_imagenet200(tiny, 4, 1)
    assert data.x_train.shape == (6, 4, 4, 1)
    assert len(data.y_open) == 20
    assert check_tiny_imagenet200(tiny).complete
    shutil.rmtree(root / "imagenet")
    assert complaint(tiny).startswith(f"{root}: no ImageNet20")


def test_lazy_or_array(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = load_tiny_imagenet200(root, 4, 3)
    monkeypatch.setattr(images, "IN_MEMORY_BYTES", 10 * 4 * 4 * 3)
    lazy = load_tiny_imagenet200(root, 4, 3)
    assert isinstance(lazy.x_train, np.ndarray)
    assert isinstance(lazy.x_open, LazyImages)  # 20 images, 10 would fit
    assert np.array_equal(lazy.x_open.all(), np.asarray(array.x_open))


def test_check_remarks_on_fewer(root: Path) -> None:
    check = check_tiny_imagenet200(root)
    assert check.complete
    found = "\n".join(check.found)
    assert "train: 6 images of 3 classes (the whole set has 200); 3 classes have fewer than 500 images" in found
    assert "val: 20 images of 20 classes; 20 classes have fewer than 50 images" in found
    assert [len(part) for part in check.to_decode] == [6, 20]


def test_no_tiny_imagenet(root: Path) -> None:
    shutil.rmtree(root / "tiny-imagenet-200")
    none = f"{root}: no folder tiny-imagenet-200 in it"
    assert complaint(root) == f"{none}; {HINT} {root}` says how to get it"
    check = check_tiny_imagenet200(root)
    assert check.wrong == [none]
    assert any("20 images of 20 classes" in line for line in check.found)


def test_no_imagenet20(root: Path) -> None:
    shutil.rmtree(root / "imagenet")
    none = f"{root}: no ImageNet20, expected imagenet/val/<wnid>/*.JPEG or imagenet20/<wnid>/*.JPEG"
    assert complaint(root) == f"{none}; {HINT} {root}` says how to get it"
    check = check_tiny_imagenet200(root)
    assert check.wrong == [none]
    assert any("6 images of 3 classes" in line for line in check.found)


def test_flat_val(root: Path) -> None:
    val = root / "imagenet" / "val"
    shutil.rmtree(val)
    paint(val / "ILSVRC2012_val_00000007.JPEG", 1)
    assert f"{val}: its images (ILSVRC2012_val_00000007.JPEG, ...) must be sorted into wnid folders" in complaint(root)


def test_missing_class_of_imagenet20(root: Path) -> None:
    shutil.rmtree(root / "imagenet" / "val" / IMAGENET20[3])
    assert f"val: 1 of 20 class folders are missing, the first is {IMAGENET20[3]}" in complaint(root)
    assert not check_tiny_imagenet200(root).complete


def test_missing_and_empty_training_classes(root: Path) -> None:
    train = root / "tiny-imagenet-200" / "train"
    shutil.rmtree(train / WNIDS[0])
    for image in (train / WNIDS[1] / "images").iterdir():
        image.unlink()
    assert f"{train}: 1 of 3 class folders are missing, the first is {WNIDS[0]}/images; {HINT}" in complaint(root)
    assert len(check_tiny_imagenet200(root).wrong) == 2
    (train / WNIDS[0] / "images").mkdir(parents=True)
    paint(train / WNIDS[0] / "images" / "x.JPEG", 3)
    assert f"{train / WNIDS[1] / 'images'}: class folder without images" in complaint(root)


def test_no_training_folders(root: Path) -> None:
    train = root / "tiny-imagenet-200" / "train"
    shutil.rmtree(train)
    train.mkdir()
    assert f"{train}: no wnid folders in it" in complaint(root)
    assert len(check_tiny_imagenet200(root).wrong) == 1


def test_truncated_jpeg_is_named(root: Path) -> None:
    path = root / "tiny-imagenet-200" / "train" / WNIDS[1] / "images" / f"{WNIDS[1]}_1.JPEG"
    path.write_bytes(path.read_bytes()[:-40])
    assert f"{path}: not a readable image" in complaint(root)


def test_a_class_of_imagenet20_in_training(root: Path) -> None:
    tiny = root / "tiny-imagenet-200"
    paint(tiny / "train" / IMAGENET20[5] / "images" / "x.JPEG", 3)
    (tiny / "wnids.txt").unlink()
    assert f"{tiny}: class {IMAGENET20[5]!r} is in both the training and the open set" in complaint(root)
    assert any(IMAGENET20[5] in line for line in check_tiny_imagenet200(root).wrong)
