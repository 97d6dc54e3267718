"""CASIA-WebFace from folders or InsightFace's train.rec, verified on LFW."""

import pickle
import shutil
import struct
from pathlib import Path

import miniatures
import numpy as np
import pytest
from miniatures import greys, jpeg, write_lfw, wrongs

from cl2r.data import images
from cl2r.data.casia import casia_train, check_casia_lfw, load_casia_lfw
from cl2r.data.images import LazyImages

PEOPLE = {"0000045": 3, "0000099": 1, "0000100": 2}


def write_folders(folder: Path, people: dict[str, int]) -> None:
    for number, (name, count) in enumerate(people.items()):
        (folder / name).mkdir(parents=True)
        for image in range(count):
            (folder / name / f"{image + 1:03d}.jpg").write_bytes(jpeg(50 * number + image))


def write_records(folder: Path, labels: list[float], broken: int | None = None) -> None:
    """InsightFace's: record 0, then images of levels 0, 1, .. with these labels."""
    folder.mkdir()
    payloads = [struct.pack("<IfQQff", 2, 0, 0, 0, len(labels) + 1, len(labels) + 1)]
    for row, label in enumerate(labels):
        payloads.append(struct.pack("<IfQQ", 0, label, row, 0) + jpeg(row)[: 300 if row == broken else None])
    body, index = b"", ""
    for key, payload in enumerate(payloads):
        index += f"{key}\t{len(body)}\n"
        body += struct.pack("<II", 0xCED7230A, len(payload)) + payload + bytes(-len(payload) % 4)
    (folder / "train.rec").write_bytes(body)
    (folder / "train.idx").write_text(index)


@pytest.mark.parametrize("name", ["casia-webface", "CASIA-WebFace", "casia_webface", "casia-112x112"])
def test_folders(tmp_path: Path, name: str) -> None:
    write_folders(tmp_path / name, PEOPLE)
    for root in (tmp_path, tmp_path / name):
        x, y, names = casia_train(root, 4, 3)
        assert greys(x) == [0, 1, 2, 50, 100, 101]
        assert y.tolist() == [0, 0, 0, 1, 2, 2]
        assert names == tuple(PEOPLE)


@pytest.mark.parametrize("name", ["faces_webface_112x112", "casia-webface"])
def test_records(tmp_path: Path, name: str) -> None:
    write_records(tmp_path / name, [4, 4, 0, 7])
    for root in (tmp_path, tmp_path / name):
        x, y, names = casia_train(root, 4, 1)
        assert greys(x) == [0, 1, 2, 3]
        assert y.tolist() == [1, 1, 0, 2]
        assert names == ("0", "4", "7")


def test_large_sets_stay_on_disk_and_can_be_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "IN_MEMORY_BYTES", 100)
    write_records(tmp_path / "faces_webface_112x112", [0, 0, 1, 1])
    x, _, _ = casia_train(tmp_path, 8, 1)
    assert isinstance(x, LazyImages)
    assert pickle.loads(pickle.dumps(x)).decode(np.array([3, 1]))[:, 4, 4, 0].tolist() == [3, 1]


def test_casia_and_lfw(tmp_path: Path) -> None:
    write_folders(tmp_path / "casia-webface", PEOPLE)
    write_lfw(tmp_path / "lfw")
    data = load_casia_lfw(tmp_path, 4, 3)
    assert (data.name, data.num_classes, len(data.x_open)) == ("casia_lfw", 3, 4)
    assert data.pairs is not None
    assert data.pairs.query.tolist() == [0, 0, 2, 3]
    assert data.pairs.folds.tolist() == [0, 0, 1, 1]
    check = check_casia_lfw(tmp_path)
    check.decode(every=True)
    assert check.complete
    assert "6 of 6 images decoded" in check.found
    assert "4 of 4 images decoded" in check.found
    assert "6 images of 3 people (10575 people as published, 10572 in" in check.found[0]


def test_records_come_first_with_the_pairs_beside_them(tmp_path: Path) -> None:
    write_folders(tmp_path / "casia-webface", PEOPLE)
    write_lfw(tmp_path / "lfw")
    packed = tmp_path / "faces_webface_112x112"
    write_records(packed, [0, 1, 1])
    assert len(load_casia_lfw(tmp_path, 4, 3).y_open) == 4
    (packed / "lfw.bin").write_bytes(pickle.dumps(([jpeg(9)] * 20, [True, False] * 5)))
    data = load_casia_lfw(tmp_path, 4, 3)
    assert (len(data.y_train), len(data.y_open)) == (3, 20)
    check = check_casia_lfw(tmp_path)
    assert check.complete
    assert f"{tmp_path / 'casia-webface'}: not used, {packed / 'train.rec'} comes first" in check.found
    assert f"{tmp_path / 'lfw'}: not used, lfw.bin is cropped like train.rec" in check.found


def test_person_in_both_sets(tmp_path: Path) -> None:
    write_folders(tmp_path / "casia-webface", {"Cy": 2, "Di": 2})
    write_lfw(tmp_path / "lfw")
    assert "class 'Cy' is in both" in miniatures.refusal(lambda: load_casia_lfw(tmp_path, 4, 3))


def refusal(root: Path) -> str:
    """What both the loading and the check say."""
    message = miniatures.refusal(lambda: load_casia_lfw(root, 4, 3))
    assert message.removesuffix(f"; see `cl2r datasets --check casia_lfw {root}`") in wrongs(check_casia_lfw(root))
    return message


def test_missing_casia_names_the_layouts_and_the_check_goes_on_to_lfw(tmp_path: Path) -> None:
    write_lfw(tmp_path / "lfw")
    message = refusal(tmp_path)
    assert message.startswith(f"{tmp_path}: no CASIA-WebFace in it; expected ROOT/casia-webface|")
    assert message.endswith(f"train.idx; see `cl2r datasets --check casia_lfw {tmp_path}`")
    assert "4 official pairs in 2 folds" in check_casia_lfw(tmp_path).found


def test_missing_lfw_tells_where_a_lfw_bin_is_read(tmp_path: Path) -> None:
    write_folders(tmp_path / "casia-webface", PEOPLE)
    (tmp_path / "lfw.bin").write_bytes(b"never read")
    message = refusal(tmp_path)
    assert message.startswith(f"{tmp_path}: no LFW in it; expected ROOT/lfw|")
    assert message.endswith(f"or lfw.bin beside train.rec; see `cl2r datasets --check casia_lfw {tmp_path}`")


@pytest.mark.parametrize("given", ["casia-webface", "faces_webface_112x112", "lfw"])
def test_a_sub_folder_with_the_other_half_beside_it(tmp_path: Path, given: str) -> None:
    if given == "faces_webface_112x112":
        write_records(tmp_path / given, [0, 1, 1])
    else:
        write_folders(tmp_path / "casia-webface", PEOPLE)
    write_lfw(tmp_path / "lfw")
    (tmp_path / "lfw" / "pairs.txt").rename(tmp_path / "pairs.txt")
    whole = load_casia_lfw(tmp_path, 4, 3)
    assert load_casia_lfw(tmp_path / given, 4, 3).fingerprint == whole.fingerprint
    check = check_casia_lfw(tmp_path / given)
    assert check.complete
    assert "4 official pairs in 2 folds" in check.found
    shutil.rmtree(tmp_path / ("casia-webface" if given == "lfw" else "lfw"))
    assert f"{tmp_path}: no {'CASIA-WebFace' if given == 'lfw' else 'LFW'} in it" in refusal(tmp_path / given)


def test_a_root_named_like_one_half_may_hold_both(tmp_path: Path) -> None:
    root = tmp_path / "lfw"
    write_folders(root / "casia-webface", PEOPLE)
    write_lfw(root / "lfw")
    assert check_casia_lfw(root).complete
    assert len(load_casia_lfw(root, 4, 3).y_open) == 4


def test_a_broken_train_rec_does_not_hide_its_lfw_bin(tmp_path: Path) -> None:
    packed = tmp_path / "faces_webface_112x112"
    write_records(packed, [0, 1, 1])
    (packed / "train.idx").unlink()
    (packed / "lfw.bin").write_bytes(pickle.dumps(([jpeg(9)] * 20, [True, False] * 5)))
    check = check_casia_lfw(tmp_path)
    assert len(check.wrong) == 1
    assert any("lfw.bin: 10 official pairs" in line for line in check.found)


def test_empty_person(tmp_path: Path) -> None:
    write_folders(tmp_path / "casia-webface", PEOPLE | {"0000200": 0})
    write_lfw(tmp_path / "lfw")
    assert f"{tmp_path / 'casia-webface' / '0000200'}: folder without images" in refusal(tmp_path)


def test_truncated_image(tmp_path: Path) -> None:
    write_folders(tmp_path / "casia-webface", PEOPLE)
    write_lfw(tmp_path / "lfw")
    path = tmp_path / "casia-webface" / "0000045" / "002.jpg"
    path.write_bytes(path.read_bytes()[:-60])
    assert refusal(tmp_path).startswith(f"{path}: not a readable image")


def test_truncated_image_in_records(tmp_path: Path) -> None:
    write_records(tmp_path / "faces_webface_112x112", [0, 0, 1], broken=1)
    write_lfw(tmp_path / "lfw")
    assert "train.rec: record 2: not a readable image" in refusal(tmp_path)


def test_records_without_index(tmp_path: Path) -> None:
    write_records(tmp_path / "faces_webface_112x112", [0, 0, 1])
    write_lfw(tmp_path / "lfw")
    (tmp_path / "faces_webface_112x112" / "train.idx").unlink()
    assert "train.idx: missing" in refusal(tmp_path)


def test_two_copies(tmp_path: Path) -> None:
    write_lfw(tmp_path / "lfw")
    write_folders(tmp_path / "casia-webface", PEOPLE)
    write_folders(tmp_path / "casia_webface", PEOPLE)
    assert "two copies of CASIA-WebFace" in refusal(tmp_path)


def test_two_record_files(tmp_path: Path) -> None:
    write_lfw(tmp_path / "lfw")
    write_records(tmp_path / "casia-webface", [0, 1])
    write_records(tmp_path / "faces_webface_112x112", [0, 1])
    assert "faces_webface_112x112/train.rec and " in refusal(tmp_path)
