"""LFW pair lists: folds, rows, and lines that are refused by number."""

from pathlib import Path

import numpy as np
import pytest

from cl2r.data.folders import Listing, list_folders
from cl2r.data.pair_list import official_pairs
from cl2r.verification import Pairs
from tests.support.miniatures import jpeg, refusal, write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for person, count in (("Al_B", 3), ("Cy", 2), ("Di", 1)):
        for i in range(1, count + 1):
            write(tmp_path / person / f"{person}_{i:04d}.png", jpeg(1))
    return tmp_path


def people(root: Path) -> Listing:
    return list_folders(root, "")


def read(root: Path) -> Pairs:
    pairs = official_pairs([root / "pairs.txt"], people(root))
    assert pairs is not None
    return pairs


FOLDS = "2\t1\nAl_B\t1\t3\nCy\t2\tDi\t1\nCy\t1\t2\nDi\t1\tAl_B\t2\n"


def test_a_list_with_folds(root: Path) -> None:
    (root / "pairs.txt").write_text(FOLDS)
    pairs = read(root)
    assert pairs.query.tolist() == [0, 4, 3, 5]
    assert pairs.gallery.tolist() == [2, 5, 4, 1]
    assert pairs.same.tolist() == [True, False, True, False]
    assert pairs.folds.tolist() == [0, 0, 1, 1]


def test_a_list_without_folds_gets_ten(root: Path) -> None:
    for i in range(1, 13):
        write(root / "Eve" / f"Eve_{i:04d}.jpg", jpeg(i))
    positive = [f"Eve\t{i}\t{i + 1}" for i in range(1, 12)]
    negative = [f"Eve\t{i}\tDi\t1" for i in range(1, 12)]
    (root / "pairs.txt").write_text("\n".join(["11", *positive, *negative]) + "\n\n")
    pairs, labels = read(root), people(root).labels
    assert pairs.same.tolist() == [True] * 11 + [False] * 11
    assert pairs.folds.tolist() == [*range(10), 0] * 2
    np.testing.assert_array_equal(labels[pairs.query] == labels[pairs.gallery], pairs.same)


def test_there_is_no_list_or_only_one(root: Path) -> None:
    places = [root / "pairs.txt", root / "Cy" / "pairs.txt"]
    assert official_pairs(places, people(root)) is None
    for path in places:
        path.write_text(FOLDS)
    message = refusal(lambda: official_pairs(places, people(root)))
    assert all(str(path) in message for path in places)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (FOLDS.replace("Al_B\t2", "Al_B\t7"), "line 5 names image Al_B_0007, which is missing in ROOT/Al_B"),
        (FOLDS.replace("Al_B\t2", "Zoe\t2"), "line 5 names image Zoe_0002"),
        (FOLDS.replace("Cy\t1\t2", "Cy\t1\ttwo"), "line 4: image number 'two' of Cy"),
        (FOLDS.replace("Cy\t1\t2", "Cy 1 2"), "line 4 "),
        (FOLDS.replace("Cy\t1\t2", "Cy\t1\tDi\t1"), "line 4 "),
        (FOLDS.replace("Cy\t1\t2", "Cy\t2\t2"), "line 4 must name two images of one class"),
        (FOLDS.replace("Cy\t2\tDi\t1", "Cy\t2\tCy\t1"), "line 3 must name images of two classes"),
        (FOLDS.replace("2\t1\n", "3\t1\n", 1), "announces 6 pairs, the list has 4"),
        (FOLDS + "Al_B\t1\t2\n", "announces 4 pairs, the list has 5"),
        (FOLDS.replace("2\t1\n", "", 1), "first line"),
        ("0\n", "first line"),
        ("", "first line"),
        ("1\nJosé\t1\t2\n", "not UTF-8"),
    ],
)
def test_broken_lists_are_refused(root: Path, text: str, named: str) -> None:
    (root / "pairs.txt").write_bytes(text.encode("latin-1"))
    message = refusal(lambda: read(root))
    assert message.startswith(f"{root / 'pairs.txt'}: ")
    assert named.replace("ROOT", str(root)) in message


def test_two_images_of_one_name_are_refused(root: Path) -> None:
    (root / "pairs.txt").write_text(FOLDS)
    write(root / "Cy" / "Cy_0002.jpg", jpeg(0))
    message = refusal(lambda: read(root))
    assert "Cy_0002.jpg" in message
    assert "Cy_0002.png" in message
