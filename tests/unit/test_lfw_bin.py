"""InsightFace's lfw.bin: images, pairs and folds; nothing in it is run, and what is broken is named."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from miniatures import greys, jpeg, refusal, write_lfw, wrongs

from cl2r.data.check import Check
from cl2r.data.lfw import check_lfw_open, lfw_open
from cl2r.data.lfw_bin import read_packed

SAME = [pair % 3 != 2 for pair in range(20)]
FORTY = tuple(jpeg(level) for level in range(40))


def write_bin(path: Path, images: object = FORTY, same: object = SAME) -> None:
    path.write_bytes(pickle.dumps((images, same), 2))


@pytest.mark.parametrize("as_arrays", [False, True])
def test_packed_pairs(tmp_path: Path, as_arrays: bool) -> None:
    images = [np.frombuffer(jpeg(level), np.uint8) if as_arrays else jpeg(level) for level in range(40)]
    write_bin(tmp_path / "lfw.bin", images)
    faces = lfw_open(tmp_path, 4, 3, beside=tmp_path)
    assert greys(faces.images) == list(range(40))
    assert faces.pairs.query.tolist() == list(range(0, 40, 2))
    assert faces.pairs.gallery.tolist() == list(range(1, 40, 2))
    assert faces.pairs.same.tolist() == SAME
    assert faces.pairs.folds.tolist() == [fold for fold in range(10) for _ in range(2)]
    alike = faces.labels[faces.pairs.query] == faces.labels[faces.pairs.gallery]
    assert alike.tolist() == SAME
    assert len(set(faces.labels.tolist())) == 40 - sum(SAME)


@pytest.mark.parametrize("same", [tuple(SAME), [int(flag) for flag in SAME], np.array(SAME), np.array(SAME, np.int64)])
def test_flags_in_other_forms(tmp_path: Path, same: object) -> None:
    write_bin(tmp_path / "lfw.bin", FORTY, same)
    assert read_packed(tmp_path / "lfw.bin").same.tolist() == SAME


def test_packed_pairs_come_before_folders_and_the_check_says_so(tmp_path: Path) -> None:
    root = tmp_path
    write_lfw(root / "lfw")
    (root / "packed").mkdir()
    write_bin(root / "packed" / "lfw.bin")
    assert len(lfw_open(root, 4, 3, root / "packed").labels) == 40
    assert len(lfw_open(root, 4, 3, root).labels) == 4
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
    message = refusal(lambda: lfw_open(tmp_path, 4, 3, tmp_path))
    assert "lfw.bin: not a readable pickle of plain data (holds posix.mkdir" in message
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize(
    ("images", "same", "message"),
    [
        ([jpeg(1)] * 39, SAME, "39 images for 20 pairs"),
        ([jpeg(1)] * 8, [True] * 4, "8 images for 4 pairs, expected 2 a pair and 10 pairs"),
        ([jpeg(1)] * 38 + ["text", b"x"], SAME, "image 38 must be the bytes of an image file, found str"),
        ([jpeg(1)] * 40, [2] * 20, "must be a list of True and False"),
        ([jpeg(1)] * 40, [[True], [True, False]], "must be a list of True and False"),
        ([jpeg(1)] * 40, [1.0] * 20, "must be a list of True and False"),
        ([jpeg(1)] * 40, np.ones((20, 1), np.bool_), "must be a list of True and False"),
        ([jpeg(1)] * 40, np.array(True), "must be a list of True and False"),
        ([jpeg(1)] * 40, np.ones(20), "must be a list of True and False"),
        ([jpeg(1)] * 40, np.full(20, 2), "must be a list of True and False"),
        ([jpeg(1)] * 40, {True: 1}, "must be a list of True and False"),
        ([jpeg(1)] * 40, "no", "must be a list of True and False"),
        ({}, SAME, "expected a pickled (images, same)"),
        ([jpeg(1)] * 39 + [jpeg(2)[:-60]], SAME, "lfw.bin: image 39: not a readable image"),
    ],
)
def test_broken_packed_pairs(tmp_path: Path, images: object, same: object, message: str) -> None:
    write_bin(tmp_path / "lfw.bin", images, same)
    check = Check()
    check_lfw_open(check, tmp_path, tmp_path)
    assert wrongs(check) == [refusal(lambda: lfw_open(tmp_path, 4, 3, tmp_path))]
    assert message in check.wrong[0]
