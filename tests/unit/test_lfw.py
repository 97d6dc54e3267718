"""LFW: images, official pairs and folds from folders or lfw.bin; what is broken is named."""

import io
import os
import pickle
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cl2r.data.check import Check
from cl2r.data.lfw import PEOPLE_WITH, check_lfw, check_lfw_open, lfw_open, load_lfw
from cl2r.errors import InputError

PEOPLE = {"Ann": 20, "Bo": 3, "Cy_D": 21, "Di": 2, "Ed": 19}
PAIRS = [
    ("Bo\t1\t3", "Bo\t2\tDi\t1"),
    ("Ann\t1\t2", "Di\t2\tEd\t19"),
    ("Di\t1\t2", "Cy_D\t21\tBo\t1"),
]


@cache
def jpeg(level: int, size: int = 8) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (size, size), (level, level, level)).save(stream, "JPEG")
    return stream.getvalue()


def write_lfw(folder: Path, people: dict[str, int] = PEOPLE, size: int = 8) -> None:
    for number, (name, count) in enumerate(people.items()):
        (folder / name).mkdir(parents=True)
        for image in range(1, count + 1):
            (folder / name / f"{name}_{image:04d}.jpg").write_bytes(jpeg(40 * number + image, size))


def write_pairs(path: Path) -> None:
    path.write_text(f"{len(PAIRS)}\t1\n" + "".join(f"{same}\n{different}\n" for same, different in PAIRS))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_lfw(tmp_path / "lfw")
    write_pairs(tmp_path / "lfw" / "pairs.txt")
    return tmp_path


def levels(images: object) -> list[int]:
    assert isinstance(images, np.ndarray)
    return images[:, 1, 1, 0].tolist()  # type: ignore[no-any-return]


def test_lfw_alone(root: Path) -> None:
    data = load_lfw(root, 4, 3)
    assert data.name == "lfw"
    assert data.class_names == ("Ann", "Cy_D")
    assert data.y_train.tolist() == [0] * 20 + [1] * 21
    assert data.y_open.tolist() == [0] * 3 + [1] * 2 + [2] * 19
    assert levels(data.x_open) == [41, 42, 43, 121, 122, *range(161, 180)]
    assert levels(data.x_train) == [*range(1, 21), *range(81, 102)]


def test_official_pairs_of_untrained_people_keep_their_folds(root: Path) -> None:
    data = load_lfw(root, 4, 1)
    assert data.pairs is not None
    ends = [
        (levels(data.x_open)[q], levels(data.x_open)[g])
        for q, g in zip(data.pairs.query, data.pairs.gallery, strict=True)
    ]
    assert ends == [(41, 43), (42, 121), (122, 179), (121, 122)]
    assert data.pairs.same.tolist() == [True, False, False, True]
    assert data.pairs.folds.tolist() == [0, 0, 1, 2]


def test_all_of_lfw_as_open_set(root: Path) -> None:
    faces = lfw_open(root, 4, 3)
    assert faces.names == tuple(PEOPLE)
    assert np.bincount(faces.labels).tolist() == list(PEOPLE.values())
    assert faces.pairs.folds.tolist() == [0, 0, 1, 1, 2, 2]
    same = faces.labels[faces.pairs.query] == faces.labels[faces.pairs.gallery]
    assert same.tolist() == faces.pairs.same.tolist() == [True, False] * 3


@pytest.mark.parametrize("name", ["lfw-deepfunneled", "lfw_funneled", "lfw64", "lfw-112x112"])
def test_other_names_and_the_folder_itself(root: Path, name: str) -> None:
    (root / "lfw").rename(root / name)
    assert len(lfw_open(root / name, 4, 3).labels) == 65
    (root / name / "pairs.txt").rename(root / "pairs.txt")
    assert len(lfw_open(root, 4, 3).labels) == 65


def empty_person(root: Path) -> None:
    (root / "lfw" / "Zoe").mkdir()


def truncated_image(root: Path) -> None:
    path = root / "lfw" / "Di" / "Di_0002.jpg"
    path.write_bytes(path.read_bytes()[:-60])


def missing_image(root: Path) -> None:
    (root / "lfw" / "Ed" / "Ed_0019.jpg").unlink()


def no_pairs(root: Path) -> None:
    (root / "lfw" / "pairs.txt").unlink()


def two_lists(root: Path) -> None:
    shutil.copy(root / "lfw" / "pairs.txt", root)


def two_copies(root: Path) -> None:
    (root / "lfw64").mkdir()


def two_formats(root: Path) -> None:
    (root / "lfw" / "Bo" / "Bo_0002.png").write_bytes(jpeg(3))


def no_lfw(root: Path) -> None:
    shutil.rmtree(root / "lfw")


def nobody(root: Path) -> None:
    no_lfw(root)
    (root / "lfw").mkdir()


def one_trainable(root: Path) -> None:
    (root / "lfw" / "Cy_D" / "Cy_D_0001.jpg").unlink()
    (root / "lfw" / "Cy_D" / "Cy_D_0002.jpg").unlink()


def fold_of_trained_people(root: Path) -> None:
    text = (root / "lfw" / "pairs.txt").read_text()
    (root / "lfw" / "pairs.txt").write_text(text.replace("Di\t2\tEd\t19", "Di\t2\tAnn\t19"))


DAMAGES = [
    (empty_person, r"lfw/Zoe: folder without images"),
    (truncated_image, r"lfw/Di/Di_0002\.jpg: not a readable image"),
    (missing_image, r"pairs\.txt: line 5 names image Ed_0019, which is missing in .*/lfw/Ed$"),
    (no_pairs, r"lfw/pairs\.txt: LFW's list of official pairs is missing"),
    (two_lists, r"lfw/pairs\.txt and .*pairs\.txt: two pair lists"),
    (two_copies, r"lfw and .*lfw64: two copies of LFW"),
    (two_formats, r"lfw/Bo: two images named Bo_0002"),
    (no_lfw, r"no LFW in it; expected ROOT/lfw\|.*cl2r datasets --check lfw"),
    (nobody, r"lfw: no folders of people in it"),
    (one_trainable, r"lfw: 1 people with at least 20 images, training needs 2"),
    (fold_of_trained_people, r"lfw: fold 2 of the pair list has no pair without the 2 people with at least 20 images"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_broken_folders_are_refused(root: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(root)
    with pytest.raises(InputError, match=message) as caught:
        load_lfw(root, 4, 3)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_check_names_the_same_faults(root: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(root)
    with pytest.raises(InputError) as caught:
        load_lfw(root, 4, 3)
    check = check_lfw(root)
    check.decode(every=True)
    assert check.wrong == [str(caught.value)]


def test_check_of_a_good_folder(root: Path) -> None:
    check = check_lfw(root)
    check.decode(every=False)
    assert check.complete
    assert check.found == [
        f"{root / 'lfw'}: 65 images of 5 people (LFW as published has 13233 of 5749)",
        "the first image has 8 × 8 pixels",
        "6 official pairs in 3 folds",
        f"2 people with {PEOPLE_WITH} images or more to train on",
        "4 pairs without them (2 same, 2 different)",
        "1 of 65 images decoded",
    ]


def test_check_tells_uncropped_photographs(tmp_path: Path) -> None:
    write_lfw(tmp_path / "lfw", {"Ann": 1}, size=250)
    assert "train and test faces should be cropped alike" in check_lfw(tmp_path).found[1]


SAME = [pair % 3 != 2 for pair in range(20)]


FORTY = tuple(jpeg(level) for level in range(40))


def write_bin(path: Path, images: object = FORTY, same: object = SAME) -> None:
    path.write_bytes(pickle.dumps((images, same), 2))


@pytest.mark.parametrize("as_arrays", [False, True])
def test_packed_pairs(tmp_path: Path, as_arrays: bool) -> None:
    images = [np.frombuffer(jpeg(level), np.uint8) if as_arrays else jpeg(level) for level in range(40)]
    write_bin(tmp_path / "lfw.bin", images)
    faces = lfw_open(tmp_path, 4, 3, beside=tmp_path)
    assert levels(faces.images) == list(range(40))
    assert faces.pairs.query.tolist() == list(range(0, 40, 2))
    assert faces.pairs.gallery.tolist() == list(range(1, 40, 2))
    assert faces.pairs.same.tolist() == SAME
    assert faces.pairs.folds.tolist() == [fold for fold in range(10) for _ in range(2)]
    alike = faces.labels[faces.pairs.query] == faces.labels[faces.pairs.gallery]
    assert alike.tolist() == SAME
    assert len(set(faces.labels.tolist())) == 40 - sum(SAME)


def test_packed_pairs_come_before_folders_and_the_check_says_so(root: Path) -> None:
    (root / "packed").mkdir()
    write_bin(root / "packed" / "lfw.bin")
    assert len(lfw_open(root, 4, 3, root / "packed").labels) == 40
    assert len(lfw_open(root, 4, 3, root).labels) == 65
    check = Check()
    check_lfw_open(check, root, root / "packed")
    check.decode(every=True)
    assert check.complete
    assert f"{root / 'lfw'}: not used, lfw.bin is cropped like train.rec" in check.found
    assert "40 of 40 images decoded" in check.found


class Malicious:
    """Would make a folder when unpickled."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.victim),)


def test_malicious_pickle_is_refused(tmp_path: Path) -> None:
    write_bin(tmp_path / "lfw.bin", [Malicious(tmp_path / "victim")])
    with pytest.raises(InputError, match=r"lfw\.bin: not a readable pickle of plain data \(holds posix\.mkdir"):
        lfw_open(tmp_path, 4, 3, tmp_path)
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize(
    ("images", "same", "message"),
    [
        ([jpeg(1)] * 39, SAME, "39 images for 20 pairs"),
        ([jpeg(1)] * 8, [True] * 4, "8 images for 4 pairs, expected 2 a pair and 10 pairs"),
        ([jpeg(1)] * 38 + ["text", b"x"], SAME, "image 38 must be the bytes of an image file, found str"),
        ([jpeg(1)] * 40, [2] * 20, "must be a list of True and False"),
        ([jpeg(1)] * 40, [[True], [True, False]], "must be a list of True and False"),
        ([jpeg(1)] * 40, "no", "must be a list of True and False"),
        ({}, SAME, r"expected a pickled \(images, same\)"),
        ([jpeg(1)] * 39 + [jpeg(2)[:-60]], SAME, "lfw.bin: image 39: not a readable image"),
    ],
)
def test_broken_packed_pairs(tmp_path: Path, images: object, same: object, message: str) -> None:
    write_bin(tmp_path / "lfw.bin", images, same)
    with pytest.raises(InputError, match=message) as caught:
        lfw_open(tmp_path, 4, 3, tmp_path)
    check = Check()
    check_lfw_open(check, tmp_path, tmp_path)
    check.decode(every=True)
    assert check.wrong == [str(caught.value)]
