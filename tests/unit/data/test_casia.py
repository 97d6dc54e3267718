"""CASIA-WebFace from folders or InsightFace's train.rec, verified on LFW."""

import pickle
from pathlib import Path

import pytest

from cl2r.data import check_dataset
from cl2r.data.casia import find_casia, load_casia_lfw
from cl2r.data.images import images_of
from tests.support.miniatures import MINIATURES, full_check, greys, jpeg, refusal, write_casia, write_lfw, write_records


@pytest.mark.parametrize("name", ["casia-webface", "CASIA-WebFace", "casia_webface", "casia-112x112"])
def test_people_in_folders_of_any_known_name(tmp_path: Path, name: str) -> None:
    write_casia(tmp_path / name)
    for root in (tmp_path, tmp_path / name):
        casia = find_casia(root)
        assert greys(images_of(casia.images, 4, 3)) == [0, 1, 2, 50, 100, 101]
        assert casia.labels.tolist() == [0, 0, 0, 1, 2, 2]
        assert casia.names == ("0000045", "0000099", "0000100")


@pytest.mark.parametrize("name", ["faces_webface_112x112", "casia-webface"])
def test_people_in_records(tmp_path: Path, name: str) -> None:
    write_records(tmp_path / name, [4, 4, 0, 7])
    for root in (tmp_path, tmp_path / name):
        casia = find_casia(root)
        assert greys(images_of(casia.images, 4, 1)) == [0, 1, 2, 3]
        assert casia.labels.tolist() == [1, 1, 0, 2]
        assert casia.names == ("0", "4", "7")


def test_official_pairs_of_all_people_of_lfw(tmp_path: Path) -> None:
    MINIATURES["casia_lfw"].write(tmp_path)
    data = load_casia_lfw(tmp_path, 4, 3)
    assert (data.num_classes, len(data.x_open)) == (3, 4)
    assert data.pairs is not None
    assert data.pairs.query.tolist() == [0, 0, 2, 3]
    assert data.pairs.folds.tolist() == [0, 0, 1, 1]


def test_records_come_first_and_bring_their_own_pairs(tmp_path: Path) -> None:
    MINIATURES["casia_lfw"].write(tmp_path)
    packed = tmp_path / "faces_webface_112x112"
    write_records(packed, [0, 1, 1])
    data = load_casia_lfw(tmp_path, 4, 3)
    assert (len(data.y_train), len(data.y_open)) == (3, 4)
    (packed / "lfw.bin").write_bytes(pickle.dumps(([jpeg(9, (250, 250))] * 20, [True, False] * 5)))
    assert len(load_casia_lfw(tmp_path, 4, 3).y_open) == 20
    found = check_dataset("casia_lfw", tmp_path).found
    assert f"{tmp_path / 'casia-webface'}: not used, {packed / 'train.rec'} comes first" in found
    assert any(f"{packed / 'lfw.bin'}: " in line and "no tuning pairs" in line for line in found)
    assert any(line.startswith(f"{tmp_path / 'lfw'}: not used") for line in found)
    assert ["aligned crops" in line for line in found if "first" in line and "image:" in line] == [False, True]


def test_a_lfw_bin_without_its_train_rec_is_not_read(tmp_path: Path) -> None:
    write_casia(tmp_path / "casia-webface")
    for folder in (tmp_path, tmp_path / "casia-webface"):
        (folder / "lfw.bin").write_bytes(b"never read")
    message = refusal(lambda: load_casia_lfw(tmp_path, 4, 3))
    assert "no LFW" in message
    assert "lfw.bin beside train.rec" in message


def test_a_person_in_both_sets_is_refused(tmp_path: Path) -> None:
    write_casia(tmp_path / "casia-webface", {"Cy": 2, "Di": 2})
    write_lfw(tmp_path / "lfw")
    assert "'Cy'" in refusal(lambda: load_casia_lfw(tmp_path, 4, 3))


@pytest.mark.parametrize("given", ["casia-webface", "faces_webface_112x112", "lfw"])
def test_the_other_half_may_lie_beside_the_root(tmp_path: Path, given: str) -> None:
    if given == "faces_webface_112x112":
        write_records(tmp_path / given, [0, 1, 1])
    else:
        write_casia(tmp_path / "casia-webface")
    write_lfw(tmp_path / "lfw")
    (tmp_path / "lfw" / "pairs.txt").rename(tmp_path / "pairs.txt")
    whole = load_casia_lfw(tmp_path, 4, 3)
    assert load_casia_lfw(tmp_path / given, 4, 3).fingerprint == whole.fingerprint


def test_a_root_named_like_one_half_may_hold_both(tmp_path: Path) -> None:
    MINIATURES["casia_lfw"].write(tmp_path / "lfw")
    assert len(load_casia_lfw(tmp_path / "lfw", 4, 3).y_open) == 4


def test_a_damaged_image_in_records_is_named(tmp_path: Path) -> None:
    write_records(tmp_path / "faces_webface_112x112", [0, 0, 1], broken=1)
    write_lfw(tmp_path / "lfw")
    message = refusal(lambda: load_casia_lfw(tmp_path, 4, 3))
    assert "train.rec: record 2" in message
    assert ["train.rec: record 2" in line for line in full_check("casia_lfw", tmp_path).problems] == [True]


def test_two_record_files_are_refused(tmp_path: Path) -> None:
    for name in ("casia-webface", "faces_webface_112x112"):
        write_records(tmp_path / name, [0, 1])
    message = refusal(lambda: find_casia(tmp_path))
    assert "two copies" in message
    assert "faces_webface_112x112/train.rec" in message
