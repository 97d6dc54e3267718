"""LFW: images, official pairs and folds, from folders or from InsightFace's lfw.bin."""

import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cl2r.data.images import images_of
from cl2r.data.lfw import find_lfw, load_lfw, read_packed
from tests.support.miniatures import full_check, greys, jpeg, refusal, write_lfw_alone


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_lfw_alone(tmp_path)
    return tmp_path


def test_people_with_many_images_are_trained_on(root: Path) -> None:
    data = load_lfw(root, 4, 3)
    assert data.class_names == ("Ann", "Cy_D")
    assert data.y_train.tolist() == [0] * 20 + [1] * 21
    assert data.y_open.tolist() == [0] * 3 + [1] * 2 + [2] * 19
    assert greys(data.x_open) == [41, 42, 43, 121, 122, *range(161, 180)]
    assert greys(data.x_train) == [*range(1, 21), *range(81, 102)]


def test_official_pairs_of_all_others_keep_their_folds(root: Path) -> None:
    data = load_lfw(root, 4, 1)
    assert data.pairs is not None
    grey = np.array(greys(data.x_open))
    assert grey[data.pairs.query].tolist() == [41, 42, 122, 121]
    assert grey[data.pairs.gallery].tolist() == [43, 121, 179, 122]
    assert data.pairs.same.tolist() == [True, False, False, True]
    assert data.pairs.folds.tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize("name", ["lfw-deepfunneled", "lfw_funneled", "lfw64", "lfw-112x112"])
def test_all_of_lfw_by_other_names_of_the_folder(root: Path, name: str) -> None:
    (root / "lfw").rename(root / name)
    assert len(find_lfw(root / name)[0].labels) == 65
    (root / name / "pairs.txt").rename(root / "pairs.txt")
    people, pairs = find_lfw(root)
    assert people.classes == ("Ann", "Bo", "Cy_D", "Di", "Ed")
    assert np.bincount(people.labels).tolist() == [20, 3, 21, 2, 19]
    assert pairs.folds.tolist() == [0, 0, 1, 1, 2, 2]
    assert (people.labels[pairs.query] == people.labels[pairs.gallery]).tolist() == [True, False] * 3


@pytest.mark.parametrize("as_dot", [False, True])
def test_the_folder_itself_with_the_pairs_beside_it(root: Path, monkeypatch: pytest.MonkeyPatch, as_dot: bool) -> None:
    (root / "lfw" / "pairs.txt").rename(root / "pairs.txt")
    monkeypatch.chdir(root / "lfw")
    given = Path(".") if as_dot else root / "lfw"
    assert load_lfw(given, 4, 3).fingerprint == load_lfw(root, 4, 3).fingerprint
    os.link(root / "pairs.txt", root / "lfw" / "pairs.txt")
    assert len(find_lfw(given)[1]) == 6, "one list by two names"
    (root / "lfw" / "pairs.txt").unlink()
    shutil.copy(root / "pairs.txt", root / "lfw")
    assert "two pair lists" in refusal(lambda: load_lfw(given, 4, 3))


def test_a_root_that_is_named_like_its_folder(root: Path) -> None:
    (root / "lfw").rename(root / "inner")
    (root / "lfw").mkdir()
    (root / "inner").rename(root / "lfw" / "lfw")
    (root / "lfw" / "lfw" / "pairs.txt").rename(root / "lfw" / "pairs.txt")
    assert len(find_lfw(root / "lfw")[0].labels) == 65


def one_trainable(lfw: Path) -> None:
    (lfw / "Cy_D" / "Cy_D_0001.jpg").unlink()
    (lfw / "Cy_D" / "Cy_D_0002.jpg").unlink()


def fold_of_trained_people(lfw: Path) -> None:
    text = (lfw / "pairs.txt").read_text()
    (lfw / "pairs.txt").write_text(text.replace("Di\t2\tEd\t19", "Di\t2\tAnn\t19"))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (one_trainable, r"lfw: 1 people with at least 20 images"),
        (fold_of_trained_people, r"lfw: fold 2 "),
    ],
)
def test_load_and_check_name_the_same_fault(root: Path, damage: Callable[[Path], None], named: str) -> None:
    damage(root / "lfw")
    message = refusal(lambda: load_lfw(root, 4, 3))
    assert re.search(named, message)
    assert full_check("lfw", root).problems == [message]


SAME = [pair % 3 != 2 for pair in range(20)]
FORTY = tuple(jpeg(level) for level in range(40))


def write_bin(folder: Path, images: object = FORTY, same: object = SAME) -> Path:
    (folder / "lfw.bin").write_bytes(pickle.dumps((images, same), 2))
    return folder / "lfw.bin"


@pytest.mark.parametrize("as_arrays", [False, True])
def test_packed_pairs(tmp_path: Path, as_arrays: bool) -> None:
    images = [np.frombuffer(image, np.uint8) if as_arrays else image for image in FORTY]
    packed = read_packed(write_bin(tmp_path, images))
    assert greys(images_of(packed, 4, 3)) == list(range(40))
    assert packed.pairs.query.tolist() == list(range(0, 40, 2))
    assert packed.pairs.gallery.tolist() == list(range(1, 40, 2))
    assert packed.pairs.same.tolist() == SAME
    assert packed.pairs.folds.tolist() == [fold for fold in range(10) for _ in range(2)]
    assert (packed.labels[packed.pairs.query] == packed.labels[packed.pairs.gallery]).tolist() == SAME
    assert len(set(packed.labels.tolist())) == 40 - sum(SAME)


@pytest.mark.parametrize("same", [tuple(SAME), [int(flag) for flag in SAME], np.array(SAME), np.array(SAME, np.int64)])
def test_flags_in_other_forms(tmp_path: Path, same: object) -> None:
    assert read_packed(write_bin(tmp_path, FORTY, same)).pairs.same.tolist() == SAME


@pytest.mark.parametrize(
    ("images", "same", "named"),
    [
        (FORTY[:39], SAME, "39 images for 20 pairs"),
        (FORTY[:8], [True] * 4, "8 images for 4 pairs"),
        ([*FORTY[:38], "text", b"x"], SAME, "image 38 .* str"),
        *((FORTY, same, "True and False") for same in ([2] * 20, [[True], [True, False]], [1.0] * 20, {True: 1}, "no")),
        *(
            (FORTY, same, "True and False")
            for same in (np.ones((20, 1), np.bool_), np.array(True), np.ones(20), np.full(20, 2))
        ),
        ({}, SAME, "images, same"),
    ],
)
def test_damaged_packed_pairs(tmp_path: Path, images: object, same: object, named: str) -> None:
    path = write_bin(tmp_path, images, same)
    message = refusal(lambda: read_packed(path))
    assert message.startswith(f"{path}: ")
    assert re.search(named, message)
