"""ImageNet and Tiny-ImageNet by wnid folders: miniatures in the layouts people have, sound and broken."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cl2r.data import check_dataset, imagenet
from cl2r.data.imagenet import IMAGENET20, imagenet100_places, load_imagenet900, load_tiny_imagenet200
from tests.support import miniatures
from tests.support.miniatures import TINY_WNIDS, TRAIN_WNIDS, full_check, greys, jpeg, refusal, write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    miniatures.write_imagenet900(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """1000 class folders with an image each in train/, two in val/, and the sorted wnids. No test changes these."""
    root = tmp_path_factory.mktemp("whole")
    wnids = [f"n{1_000_000 + 7 * place:08d}" for place in range(1000)]
    for place, wnid in enumerate(wnids):
        write(root / "imagenet" / "train" / wnid / "a.JPEG", jpeg(place // 4))
    for place in imagenet100_places():
        for name in ("a.JPEG", "b.JPEG"):
            write(root / "imagenet" / "val" / wnids[place] / name, jpeg(place // 4))
    return root, wnids


def fault(root: Path) -> str:
    """Return what the loader refuses, which the check must name too."""
    message = refusal(lambda: load_imagenet900(root, 4, 3))
    assert full_check("imagenet900", root).problems == [message]
    return message


def test_labels_and_order(root: Path) -> None:
    data = load_imagenet900(root, 4, 3)
    assert data.class_names == TRAIN_WNIDS
    assert data.y_train.tolist() == [0, 1, 1, 2, 2, 2]
    assert greys(data.x_train) == [0, 50, 51, 100, 101, 102]
    assert data.y_open.tolist() == [0, 0, 1, 1]
    assert greys(data.x_open) == [200, 201, 210, 211]


@pytest.mark.parametrize("layout", ["imagenet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC"])
def test_layouts(tmp_path: Path, layout: str) -> None:
    miniatures.write_imagenet900(tmp_path, layout)
    miniatures.write_wnid_lists(tmp_path / layout)
    write(tmp_path / layout / "train" / "n09999999" / "x.JPEG", b"a class of neither list")
    write(tmp_path / layout / "train" / "stray.JPEG", b"beside the class folders")
    for root in (tmp_path, tmp_path / layout):
        assert load_imagenet900(root, 4, 1).x_train.shape == (6, 4, 4, 1)


def test_the_centre_square_is_shown(root: Path) -> None:
    wide = np.zeros((8, 24, 3), np.uint8)
    wide[:, 8:16] = 255
    path = root / "imagenet" / "train" / TRAIN_WNIDS[0] / f"{TRAIN_WNIDS[0]}_0.JPEG"
    Image.fromarray(wide).save(path, quality=100)
    assert load_imagenet900(root, 8, 3).x_train.all()[0].min() > 240


def test_imagenet100_is_the_permutation_of_seed_1993(whole: tuple[Path, list[str]]) -> None:
    root, wnids = whole
    shuffled = np.arange(1000)
    np.random.RandomState(1993).shuffle(shuffled)
    assert imagenet100_places() == shuffled[:100].tolist()
    assert imagenet100_places()[:10] == [54, 7, 894, 512, 126, 337, 988, 11, 284, 493]
    data = load_imagenet900(root, 2, 1)
    places100 = np.sort(shuffled[:100])
    places900 = np.setdiff1d(np.arange(1000), places100)
    assert data.class_names == tuple(wnids[place] for place in places900)
    assert np.array_equal(data.y_train, np.arange(900))
    assert greys(data.x_train) == (places900 // 4).tolist()
    assert np.array_equal(data.y_open, np.repeat(np.arange(100), 2))
    assert greys(data.x_open)[::2] == (places100 // 4).tolist()


def test_exact_counts_are_compared_with_the_published_ones(
    whole: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    train, val = (whole[0] / "imagenet" / part for part in ("train", "val"))
    found = check_dataset("imagenet900", whole[0]).found
    assert any(f"{train}: 1,000 images of 1000 classes, published are 1,281,167" in line for line in found)
    assert any(f"{val}: 200 images of 100 classes, published are 5,000" in line for line in found)
    assert any("900 classes, about 1,158,000 images" in line for line in found)
    monkeypatch.setattr(imagenet, "TRAIN_IMAGES", 1000)
    monkeypatch.setattr(imagenet, "VAL_IMAGES", 2)
    assert sum("as published" in line for line in check_dataset("imagenet900", whole[0]).found) == 2


def test_one_list_alone(whole: tuple[Path, list[str]], tmp_path: Path) -> None:
    (tmp_path / "imagenet").symlink_to(whole[0] / "imagenet")
    wnids = whole[1]
    own = [wnids[place] for place in imagenet100_places()[:2]]
    (tmp_path / "imagenet100.txt").write_text("\n".join(own))
    data = load_imagenet900(tmp_path, 2, 1)
    assert data.class_names == tuple(wnid for wnid in wnids if wnid not in own)
    assert len(data.y_open) == 4
    (tmp_path / "imagenet100.txt").unlink()
    (tmp_path / "imagenet900.txt").write_text("\n".join([wnids[0], wnids[54]]))
    assert wnids[54] in fault(tmp_path)


def test_other_than_1000_classes(tmp_path: Path) -> None:
    wnids = [f"n{place:08d}" for place in range(1001)]
    train, val = tmp_path / "imagenet" / "train", tmp_path / "imagenet" / "val"
    for wnid in wnids[:54] + wnids[56:1000]:
        (train / wnid).mkdir(parents=True)
    (val / wnids[54]).mkdir(parents=True)
    message = fault(tmp_path)
    assert all(part in message for part in (str(train), "998", "2 are missing", wnids[54]))
    for wnid in (wnids[54], wnids[55], wnids[1000]):
        (train / wnid).mkdir()
    assert "1 are too many" in fault(tmp_path)


@pytest.mark.parametrize("given", ["", "imagenet"])
def test_lists_lie_in_the_folder_or_beside_it_and_two_must_be_the_same(root: Path, given: str) -> None:
    own = root / "imagenet" / "imagenet900.txt"
    own.write_text("\n".join(TRAIN_WNIDS))  # the other has them in another order
    assert load_imagenet900(root / given, 4, 3).class_names == TRAIN_WNIDS
    own.write_text("\n".join(TRAIN_WNIDS[:2]))
    message = fault(root / given)
    assert str(own) in message
    assert str(root / "imagenet900.txt") in message
    for name in ("imagenet100.txt", "imagenet900.txt"):
        (root / name).rename(root / "imagenet" / name)
    assert load_imagenet900(root / given, 4, 3).class_names == TRAIN_WNIDS


def test_images_of_val_that_are_not_sorted_into_folders(root: Path) -> None:
    val = root / "imagenet" / "val"
    shutil.rmtree(val)
    write(val / "ILSVRC2012_val_00000001.JPEG", jpeg(1))
    message = fault(root)
    assert all(part in message for part in (str(val), "ILSVRC2012_val_00000001.JPEG", "valprep"))
    (val / "ILSVRC2012_val_00000001.JPEG").unlink()
    assert f"{val}: no wnid folders" in fault(root)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("n01500000\ntench\n", r"imagenet100\.txt.*line 2: 'tench'"),
        ("n01500000\nn04000000\nn01500000\n", r"imagenet100\.txt.*line 3: n01500000"),
        ("\n \n", r"imagenet100\.txt.*no wnids"),
        ("\n".join((*miniatures.OPEN_WNIDS, TRAIN_WNIDS[2], TRAIN_WNIDS[1])), rf"imagenet900\.txt.*{TRAIN_WNIDS[1]}"),
    ],
)
def test_broken_lists(root: Path, text: str, named: str) -> None:
    (root / "imagenet100.txt").write_text(text)
    assert re.search(named, fault(root))


@pytest.fixture
def tiny_root(tmp_path: Path) -> Path:
    miniatures.write_tiny_imagenet200(tmp_path)
    return tmp_path


def test_labels_and_order_of_tiny_imagenet(tiny_root: Path) -> None:
    data = load_tiny_imagenet200(tiny_root, 4, 3)
    assert data.class_names == tuple(sorted(TINY_WNIDS))
    assert data.y_train.tolist() == [0, 0, 1, 1, 2, 2]
    assert greys(data.x_train) == [100, 101, 0, 1, 50, 51]
    assert data.y_open.tolist() == list(range(20))
    grey = {wnid: 10 * k for k, wnid in enumerate(IMAGENET20)}
    assert greys(data.x_open) == [grey[wnid] for wnid in sorted(IMAGENET20)]


def test_without_wnids_txt_the_folders_are_the_classes(tiny_root: Path) -> None:
    tiny = tiny_root / "tiny-imagenet-200"
    write(tiny / "train" / "n01629819" / "images" / "n01629819_0.JPEG", jpeg(9))
    assert load_tiny_imagenet200(tiny_root, 4, 3).num_classes == 3
    (tiny / "wnids.txt").unlink()
    assert load_tiny_imagenet200(tiny_root, 4, 3).class_names == tuple(sorted((*TINY_WNIDS, "n01629819")))
    write(tiny / "train" / IMAGENET20[5] / "images" / "x.JPEG", jpeg(3))
    assert IMAGENET20[5] in refusal(lambda: load_tiny_imagenet200(tiny_root, 4, 3)), "it is verified on"


def test_prepared_imagenet20_needs_no_imagenet(tiny_root: Path) -> None:
    whole = load_tiny_imagenet200(tiny_root, 4, 3).fingerprint
    (tiny_root / "imagenet" / "val").rename(tiny_root / "imagenet20")
    shutil.rmtree(tiny_root / "imagenet")
    assert load_tiny_imagenet200(tiny_root, 4, 3).fingerprint == whole
    assert full_check("tiny_imagenet200", tiny_root / "tiny-imagenet-200").complete


def test_imagenet20_is_the_list_of_the_paper() -> None:
    listed = """
        n01728572 n01818515 n01873310 n02114855 n02276258 n02804414 n02817516 n03220513 n03345487 n03532672
        n03769881 n03776460 n03814906 n03916031 n03929855 n04252225 n04266014 n04442312 n04589890 n13037406
    """
    assert sorted(IMAGENET20) == listed.split()
