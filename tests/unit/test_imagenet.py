"""ImageNet by wnid folders: miniatures in the layouts people have, sound and broken."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from miniatures import greys, jpeg, refusal
from PIL import Image

from cl2r.data import images
from cl2r.data.imagenet import IMAGENET20, check_imagenet900, imagenet100_places, load_imagenet900
from cl2r.data.images import LazyImages

TRAIN = ("n01440764", "n02119789", "n03000000")
OPEN = ("n01500000", "n04000000")
LAYOUTS = ("imagenet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC")


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def write_imagenet(folder: Path) -> None:
    """Class k of train/ has k + 1 images in grey 50·k + their number, class k of val/ two in grey 200 + 10·k + it."""
    for k, wnid in enumerate(TRAIN):
        for i in range(k + 1):
            write(folder / "train" / wnid / f"{wnid}_{i}.JPEG", jpeg(50 * k + i))
    for k, wnid in enumerate(OPEN):
        for i in range(2):
            write(folder / "val" / wnid / f"ILSVRC2012_val_{i:08d}.JPEG", jpeg(200 + 10 * k + i))


def write_lists(root: Path) -> None:
    (root / "imagenet900.txt").write_text("\n".join(reversed(TRAIN)) + "\n\n")
    (root / "imagenet100.txt").write_text("\n".join(OPEN))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_imagenet(tmp_path / "imagenet")
    write_lists(tmp_path)
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


def complaint(root: Path) -> str:
    return refusal(lambda: load_imagenet900(root, 4, 3))


def test_labels_and_order(root: Path) -> None:
    data = load_imagenet900(root, 4, 3)
    assert data.name == "imagenet900"
    assert data.class_names == TRAIN
    assert data.y_train.tolist() == [0, 1, 1, 2, 2, 2]
    assert greys(data.x_train) == [0, 50, 51, 100, 101, 102]
    assert data.y_open.tolist() == [0, 0, 1, 1]
    assert greys(data.x_open) == [200, 201, 210, 211]
    assert check_imagenet900(root).complete


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(tmp_path: Path, layout: str) -> None:
    write_imagenet(tmp_path / layout)
    write_lists(tmp_path)
    write_lists(tmp_path / layout)
    assert len(load_imagenet900(tmp_path, 4, 1).y_train) == 6
    assert load_imagenet900(tmp_path / layout, 4, 1).x_train.shape == (6, 4, 4, 1)


def test_other_files_are_not_images(root: Path) -> None:
    train = root / "imagenet" / "train"
    write(train / TRAIN[0] / "._n01440764_0.JPEG", b"resource fork")
    write(train / TRAIN[0] / "notes.txt", b"x")
    write(train / "n09999999" / "x.JPEG", b"a class of neither list")
    write(train / "stray.JPEG", b"beside the class folders")
    assert len(load_imagenet900(root, 4, 3).y_train) == 6


def test_lazy_or_array(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = load_imagenet900(root, 4, 3)
    monkeypatch.setattr(images, "IN_MEMORY_BYTES", 5 * 4 * 4 * 3)
    lazy = load_imagenet900(root, 4, 3)
    assert isinstance(lazy.x_train, LazyImages)  # 6 images, 5 would fit
    assert isinstance(lazy.x_open, np.ndarray)
    assert lazy.x_train.fit == "centre"
    assert np.array_equal(lazy.x_train.all(), np.asarray(array.x_train))
    assert lazy.x_train.encoded.name(1) == str(root / "imagenet" / "train" / TRAIN[1] / f"{TRAIN[1]}_0.JPEG")


def test_centre_square(root: Path) -> None:
    wide = np.zeros((8, 24, 3), np.uint8)
    wide[:, 8:16] = 255
    Image.fromarray(wide).save(root / "imagenet" / "train" / TRAIN[0] / f"{TRAIN[0]}_0.JPEG", quality=100)
    assert np.asarray(load_imagenet900(root, 8, 3).x_train)[0].min() > 240


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


def test_check_counts(whole: tuple[Path, list[str]]) -> None:
    root, wnids = whole
    check = check_imagenet900(root)
    assert check.complete
    found = "\n".join(check.found)
    assert "permutation 1993" in found
    assert "train: 900 images of 900 classes; with those of ImageNet100 1000, the whole set has 1281167" in found
    first = wnids[min(imagenet100_places())]
    assert (
        f"val: 200 images of 100 classes; 100 classes have fewer than 50 images, the first is {first} with 2" in found
    )
    assert [len(part) for part in check.to_decode] == [900, 200]


def beside(whole: Path, root: Path) -> Path:
    """A root of its own for lists, with all of ImageNet in it."""
    (root / "imagenet").symlink_to(whole / "imagenet")
    return root


def test_one_list_alone(whole: tuple[Path, list[str]], tmp_path: Path) -> None:
    root, wnids = beside(whole[0], tmp_path), whole[1]
    own = [wnids[place] for place in imagenet100_places()[:2]]
    (root / "imagenet100.txt").write_text("\n".join(own))
    data = load_imagenet900(root, 2, 1)
    assert data.class_names == tuple(wnid for wnid in wnids if wnid not in own)
    assert len(data.y_open) == 4
    (root / "imagenet100.txt").unlink()
    (root / "imagenet900.txt").write_text("\n".join([wnids[0], wnids[54]]))
    assert f"{root / 'imagenet900.txt'}: {wnids[54]} is in both" in complaint(root)


def test_other_than_1000_classes(tmp_path: Path) -> None:
    wnids = [f"n{place:08d}" for place in range(1001)]
    train, val = tmp_path / "imagenet" / "train", tmp_path / "imagenet" / "val"
    for wnid in wnids[:54] + wnids[56:1000]:
        (train / wnid).mkdir(parents=True)
    (val / wnids[54]).mkdir(parents=True)
    said = complaint(tmp_path)
    assert f"{train}: 998 class folders instead of 1000, 2 are missing, the first is {wnids[54]}" in said
    assert check_imagenet900(tmp_path).wrong == [said]
    for wnid in (wnids[54], wnids[55], wnids[1000]):
        (train / wnid).mkdir()
    assert "1001 class folders instead of 1000, 1 are too many" in complaint(tmp_path)


@pytest.mark.parametrize("layout", ["imagenet", "ILSVRC2012"])
def test_lists_beside_the_folder_that_is_the_root(tmp_path: Path, layout: str) -> None:
    write_imagenet(tmp_path / layout)
    write_lists(tmp_path)
    assert load_imagenet900(tmp_path / layout, 4, 3).class_names == TRAIN
    assert check_imagenet900(tmp_path / layout).complete


def test_lists_in_the_folder(root: Path) -> None:
    for name in ("imagenet100.txt", "imagenet900.txt"):
        (root / name).rename(root / "imagenet" / name)
    assert load_imagenet900(root, 4, 3).class_names == TRAIN
    assert load_imagenet900(root / "imagenet", 4, 3).class_names == TRAIN


@pytest.mark.parametrize("inside", ["", "imagenet"])
def test_two_lists_must_be_the_same(root: Path, inside: str) -> None:
    own = root / "imagenet" / "imagenet900.txt"
    own.write_text("\n".join(TRAIN))  # the other has them in another order
    assert load_imagenet900(root / inside, 4, 3).class_names == TRAIN
    own.write_text("\n".join(TRAIN[:2]))
    said = complaint(root / inside)
    assert said == f"{root / 'imagenet900.txt'} and {own}: two lists of other classes, remove one"
    assert check_imagenet900(root / inside).wrong == [said]


def test_missing_class_folder(root: Path) -> None:
    shutil.rmtree(root / "imagenet" / "train" / TRAIN[1])
    said = complaint(root)
    assert f"{root / 'imagenet' / 'train'}: 1 of 3 class folders are missing, the first is {TRAIN[1]}" in said
    assert said.endswith(f"; `cl2r datasets --check imagenet900 {root}` says how to get it")
    (wrong,) = check_imagenet900(root).wrong
    assert said.startswith(f"{wrong}; ")


def test_empty_classes(root: Path) -> None:
    for k in (1, 0):
        shutil.rmtree(root / "imagenet" / "val" / OPEN[k])
        (root / "imagenet" / "val" / OPEN[k]).mkdir()
    assert f"{root / 'imagenet' / 'val' / OPEN[0]}: class folder without images (.jpeg .jpg .png), 2 such" in complaint(
        root
    )
    check = check_imagenet900(root)
    assert len(check.wrong) == 1
    check.decode(every=True)
    assert "0 of 0 images decoded" in check.found


def test_flat_val(root: Path) -> None:
    val = root / "imagenet" / "val"
    shutil.rmtree(val)
    write(val / "ILSVRC2012_val_00000001.JPEG", jpeg(1))
    said = complaint(root)
    assert f"{val}: its images (ILSVRC2012_val_00000001.JPEG, ...) must be sorted into wnid folders" in said
    assert "valprep" in said
    assert check_imagenet900(root).wrong == [said]
    assert any("train: 6 images of 3 classes" in line for line in check_imagenet900(root).found)


def test_no_folders(root: Path) -> None:
    val = root / "imagenet" / "val"
    shutil.rmtree(val)
    assert f"{val}: no such folder" in complaint(root)
    val.mkdir()
    assert f"{val}: no wnid folders in it" in complaint(root)
    shutil.rmtree(root / "imagenet")
    none = f"{root}: none of the folders imagenet, ILSVRC2012, ILSVRC/Data/CLS-LOC in it"
    assert complaint(root) == f"{none}; `cl2r datasets --check imagenet900 {root}` says how to get it"
    assert check_imagenet900(root).wrong == [none]


def test_truncated_jpeg_is_named(root: Path) -> None:
    path = root / "imagenet" / "train" / TRAIN[2] / f"{TRAIN[2]}_1.JPEG"
    path.write_bytes(path.read_bytes()[:-40])
    assert f"{path}: not a readable image" in complaint(root)
    check = check_imagenet900(root)
    assert check.complete
    check.decode(every=False)
    assert check.complete
    check.decode(every=True)
    assert [line.split(":")[0] for line in check.wrong] == [str(path)]


def test_overlap_of_lists(root: Path) -> None:
    (root / "imagenet100.txt").write_text("\n".join((*OPEN, TRAIN[2], TRAIN[1])))
    said = complaint(root)
    assert f"{root / 'imagenet900.txt'}: {TRAIN[1]} is in both ImageNet900 and ImageNet100 (2 such)" in said
    assert check_imagenet900(root).wrong == [said]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("n01500000\ntench\n", "imagenet100.txt, line 2: 'tench' is not a wnid"),
        ("n01500000\nn04000000\nn01500000\n", "imagenet100.txt, line 3: n01500000 a second time"),
        ("\n \n", "imagenet100.txt: no wnids in it"),
    ],
)
def test_broken_list(root: Path, text: str, said: str) -> None:
    (root / "imagenet100.txt").write_text(text)
    assert said in complaint(root)


def test_imagenet20_is_the_list_of_the_paper() -> None:
    listed = """
        n01728572 n01818515 n01873310 n02114855 n02276258 n02804414 n02817516 n03220513 n03345487 n03532672
        n03769881 n03776460 n03814906 n03916031 n03929855 n04252225 n04266014 n04442312 n04589890 n13037406
    """
    assert sorted(IMAGENET20) == listed.split()
