"""Pair lists, LFW's and comma-separated ones: folds, rows, and lines that are refused by number."""

from collections.abc import Callable
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


ANN, CY = ("Al_B/Al_B_0001.png", "Al_B/Al_B_0002.png", "Al_B/Al_B_0003.png"), ("Cy/Cy_0001.png", "Cy/Cy_0002.png")
TABLE = f"path,path,same\n{ANN[0]},{ANN[2]},1\n{CY[1]},Di/Di_0001.png,0\n{CY[0]},{CY[1]},true\n{ANN[1]},{CY[0]},False\n"


@pytest.mark.parametrize("name", ["pairs.txt", "pairs.csv"])
@pytest.mark.parametrize(
    "change",
    [
        lambda text: text,
        lambda text: text.split("\n", 1)[1],
        lambda text: text.replace("path,path,same", "Query, Gallery ,SAME"),
        lambda text: "\ufeff" + text.replace("\n", "\r\n") + "\r\n \r\n",
        lambda text: text.replace(",", " , "),
        lambda text: text.replace("Al_B/Al_B_0001.png", '"Al_B/Al_B_0001.png"'),
        lambda text: text.replace("Cy/", "./Di/../Cy/"),
    ],
)
def test_a_table_of_pairs(root: Path, name: str, change: Callable[[str], str]) -> None:
    (root / name).write_bytes(change(TABLE).encode())
    pairs = official_pairs([root / name], people(root))
    assert pairs is not None
    assert pairs.query.tolist() == [0, 4, 3, 1]
    assert pairs.gallery.tolist() == [2, 5, 4, 3]
    assert pairs.same.tolist() == [True, False, True, False]
    assert pairs.folds.tolist() == [0, 0, 1, 1], "as many as there are pairs of a kind"


def test_paths_may_begin_at_the_folder_of_the_table(root: Path) -> None:
    listing = people(root)
    path = root.parent / "pairs.csv"
    path.write_text(TABLE.replace("Cy/", f"{root.name}/Cy/"))
    pairs = official_pairs([path], listing)
    assert pairs is not None
    assert pairs.query.tolist() == [0, 4, 3, 1]


def test_a_long_table_has_ten_folds(root: Path) -> None:
    for i in range(1, 13):
        write(root / "Eve" / f"{i}.jpg", jpeg(i))
    same = [f"Eve/{i}.jpg,Eve/{i + 1}.jpg,1" for i in range(1, 12)]
    other = [f"Eve/{i}.jpg,Di/Di_0001.png,0" for i in range(1, 13)]
    (root / "pairs.csv").write_text("\n".join(same + other))
    pairs = official_pairs([root / "pairs.csv"], people(root))
    assert pairs is not None
    assert pairs.folds.tolist() == [*range(10), 0, *range(10), 0, 1]


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("Cy/Cy_0002.png,true", "Cy/Cy_0009.png,true", "line 4: no image 'Cy/Cy_0009.png' in ROOT; give its path"),
        ("Cy/Cy_0002.png,true", "../secret.png,true", "line 4: no image '../secret.png' in ROOT"),
        ("Cy/Cy_0002.png,true", "/etc/passwd,true", "line 4: no image '/etc/passwd'"),
        (",true", ",yes", "line 4: must be `path,path,same` with 0 or 1"),
        (",true", "", "line 4: must be `path,path,same`"),
        (",true", ",1,0", "line 4: must be `path,path,same`"),
        (",true", ",0", "line 4: same is 0, but the images are of one class (Cy)"),
        ("0001.png,0", "0001.png,1", "line 3: same is 1, but the images are of two classes (Cy and Di)"),
        ("Cy/Cy_0002.png,true", "Cy/Cy_0001.png,true", "line 4: Cy/Cy_0001.png is paired with itself; remove"),
        (f"{ANN[1]},{CY[0]},False", f"{CY[1]},{CY[0]},1", "line 5: the pair is on line 4 already; remove"),
        (f"{ANN[1]},{CY[0]},False", "", "2 pairs with same 1 and 1 with same 0; at least 2"),
        ("path,path,same", "image,other,alike", "line 1: must be `path,path,same`"),
        ("Cy/Cy_0001.png", '"Cy/Cy_0001.png', "line 5: not comma-separated values"),
    ],
)
def test_broken_tables_are_refused_by_line(root: Path, old: str, new: str, named: str) -> None:
    assert old in TABLE
    (root / "pairs.csv").write_text(TABLE.replace(old, new, 1))
    message = refusal(lambda: official_pairs([root / "pairs.csv"], people(root)))
    assert message.startswith(f"{root / 'pairs.csv'}: ")
    assert named.replace("ROOT", str(root)) in message
