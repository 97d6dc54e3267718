"""LFW: images, official pairs and folds from folders; what is broken is named."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from miniatures import greys, jpeg, refusal, write_lfw, write_people, wrongs

from cl2r.data.lfw import PEOPLE_WITH, check_lfw, lfw_open, load_lfw

PEOPLE = {"Ann": 20, "Bo": 3, "Cy_D": 21, "Di": 2, "Ed": 19}
PAIRS = [
    ("Bo\t1\t3", "Bo\t2\tDi\t1"),
    ("Ann\t1\t2", "Di\t2\tEd\t19"),
    ("Di\t1\t2", "Cy_D\t21\tBo\t1"),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_lfw(tmp_path / "lfw", PEOPLE, PAIRS)
    return tmp_path


def test_lfw_alone(root: Path) -> None:
    data = load_lfw(root, 4, 3)
    assert data.name == "lfw"
    assert data.class_names == ("Ann", "Cy_D")
    assert data.y_train.tolist() == [0] * 20 + [1] * 21
    assert data.y_open.tolist() == [0] * 3 + [1] * 2 + [2] * 19
    assert greys(data.x_open) == [41, 42, 43, 121, 122, *range(161, 180)]
    assert greys(data.x_train) == [*range(1, 21), *range(81, 102)]


def test_official_pairs_of_untrained_people_keep_their_folds(root: Path) -> None:
    data = load_lfw(root, 4, 1)
    assert data.pairs is not None
    ends = [
        (greys(data.x_open)[q], greys(data.x_open)[g])
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


@pytest.mark.parametrize("as_dot", [False, True])
def test_the_folder_itself_with_the_pairs_beside_it(root: Path, monkeypatch: pytest.MonkeyPatch, as_dot: bool) -> None:
    (root / "lfw" / "pairs.txt").rename(root / "pairs.txt")
    monkeypatch.chdir(root / "lfw")
    given = Path(".") if as_dot else root / "lfw"
    assert load_lfw(given, 4, 3).fingerprint == load_lfw(root, 4, 3).fingerprint
    assert check_lfw(given).complete
    shutil.copy(root / "pairs.txt", root / "lfw")
    assert "two pair lists" in refusal(lambda: load_lfw(given, 4, 3))


def test_a_root_that_is_named_like_its_folder(root: Path) -> None:
    (root / "lfw").rename(root / "inner")
    (root / "lfw").mkdir()
    (root / "inner").rename(root / "lfw" / "lfw")
    (root / "lfw" / "lfw" / "pairs.txt").rename(root / "lfw" / "pairs.txt")
    assert len(lfw_open(root / "lfw", 4, 3).labels) == 65


def test_one_list_by_two_names(root: Path) -> None:
    os.link(root / "lfw" / "pairs.txt", root / "pairs.txt")
    assert len(lfw_open(root, 4, 3).pairs) == 6


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


def nested(root: Path) -> None:
    (root / "lfw" / "Bo").rename(root / "Bo")
    (root / "lfw" / "Bo").mkdir()
    (root / "Bo").rename(root / "lfw" / "Bo" / "Bo")


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
    (no_pairs, r"lfw/pairs\.txt: LFW's list .* is missing; `cl2r datasets --download lfw [^ ]+(?<!lfw)` fetches it$"),
    (nested, r"lfw/Bo: folder without images"),
    (two_lists, r"lfw/pairs\.txt and .*pairs\.txt: two pair lists"),
    (two_copies, r"lfw and .*lfw64: two copies of LFW"),
    (two_formats, r"lfw/Bo/Bo_0002\.jpg and .*lfw/Bo/Bo_0002\.png: two images of one name, .*pairs\.txt would not"),
    (no_lfw, r"no LFW in it; expected ROOT/lfw\|"),
    (nobody, r"lfw: no folders of images in it; expected ROOT/lfw\|"),
    (one_trainable, r"lfw: 1 people with at least 20 images, training needs 2"),
    (fold_of_trained_people, r"lfw: fold 2 of the pair list has no pair without the 2 people with at least 20 images"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_load_and_check_name_the_same_fault(root: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(root)
    [wrong] = wrongs(check_lfw(root))
    assert re.search(message, wrong)
    hint = f"; see `cl2r datasets --check lfw {root}`" if damage is no_lfw else ""
    assert refusal(lambda: load_lfw(root, 4, 3)) == wrong + hint


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
    write_people(tmp_path / "lfw", {"Ann": 1}, size=(250, 250))
    assert "train and test faces should be cropped alike" in check_lfw(tmp_path).found[1]
