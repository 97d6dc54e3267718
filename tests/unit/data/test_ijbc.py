"""IJB-C: lists of images, template pairs and landmarks in the layout of its release; a bad line is named."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cl2r.data import ImageSet, ijbc
from cl2r.data.face_alignment import REFERENCE, AlignedImages
from cl2r.data.ijbc import IMAGES_LIST, LANDMARKS_LIST, PAIRS_LIST, load_casia_ijbc
from cl2r.data.images import LazyImages
from cl2r.errors import InputError
from tests.support.miniatures import check_dataset, full_check, landmarks, refusal, write_casia_ijbc


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_casia_ijbc(tmp_path)
    return tmp_path


def load(root: Path) -> ImageSet:
    return load_casia_ijbc(root, 24, 3)


def test_templates_and_pairs(root: Path) -> None:
    data = load(root)
    assert isinstance(data.x_open, AlignedImages)
    assert data.x_open.shape == (7, 24, 24, 3)
    assert data.templates is not None
    assert data.templates.template.tolist() == data.y_open.tolist() == [2, 2, 2, 2, 0, 0, 1]
    assert data.templates.media.tolist() == [501, 502, 502, 502, 503, 504, 502]
    np.testing.assert_allclose(data.templates.weights, [1 / 2, 1 / 6, 1 / 6, 1 / 6, 1 / 2, 1 / 2, 1])
    pairs = data.pairs
    assert pairs is not None
    assert pairs.query.tolist() == [2, 0, 1]
    assert pairs.gallery.tolist() == [0, 1, 2]
    assert pairs.same.tolist() == [True, False, False]
    assert pairs.folds.tolist() == [0, 0, 0]
    assert pairs.folds.dtype == np.int64
    assert pairs.folds.strides == (0,), "one number stands for 16 million"
    found = " ".join(check_dataset("casia_ijbc", root).found)
    assert "7 open images of 3 templates" in found
    assert "1 same, 2 different" in found


@pytest.mark.parametrize("name", ["IJBC", "IJB-C"])
def test_other_names_of_the_folder(root: Path, name: str) -> None:
    (root / "ijbc").rename(root / name)
    assert load(root).num_items == load(root / name).num_items == 3


def test_landmarks_belong_to_names_not_to_places(root: Path) -> None:
    path = root / "ijbc" / LANDMARKS_LIST
    moved = "3.jpg " + " ".join(f"{number:.3f}" for number in (REFERENCE * 0.5).ravel()) + " 0.5\n"
    path.write_text(landmarks("99.jpg") + path.read_text().replace(landmarks("3.jpg"), moved))
    images = load(root).x_open
    assert isinstance(images, AlignedImages)
    np.testing.assert_allclose(images.landmarks[2], REFERENCE * 0.5, atol=1e-3)
    np.testing.assert_allclose(images.landmarks[[0, 6]], np.stack([REFERENCE + 4] * 2), atol=1e-3)


def test_aligned_images_need_no_landmarks(root: Path) -> None:
    folder = root / "ijbc"
    (folder / "loose_crop").rename(folder / "aligned")
    (folder / LANDMARKS_LIST).unlink()
    images = load(root).x_open
    assert type(images) is LazyImages
    whole = Image.open(folder / "aligned" / "6.jpg").resize((24, 24), Image.Resampling.BILINEAR)
    difference = images.resized(5).astype(int) - np.asarray(whole).astype(int)
    assert np.abs(difference).mean() < 8  # a JPEG may be decoded at a fraction of its size first


def test_spaces_and_empty_lines_do_not_matter(root: Path) -> None:
    (root / "ijbc" / PAIRS_LIST).write_bytes(b"\n30 7 1 \r\n\r\n 7\t12  0\r\n12 30 0\r\n\r\n")
    pairs = load(root).pairs
    assert pairs is not None
    assert pairs.query.tolist() == [2, 0, 1]


def test_lists_longer_than_a_block(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load(root)
    monkeypatch.setattr(ijbc, "LINES_AT_A_TIME", 2)
    found = load(root)
    assert found.fingerprint == expected.fingerprint
    assert found.pairs is not None
    assert expected.pairs is not None
    np.testing.assert_array_equal(found.pairs.gallery, expected.pairs.gallery)


BROKEN_LINES = [
    (PAIRS_LIST, "7 12 0\n", "7 13 0\n", "line 2: no image of .* belongs to template 13"),
    (PAIRS_LIST, "7 12 0\n", "\n31 12 0\n", "line 3: no image of .* belongs to template 31"),
    (PAIRS_LIST, "7 12 0\n", "-1 12 0\n", "line 2: no image of .* belongs to template -1"),
    (PAIRS_LIST, "7 12 0\n", "7 2000000000 0\n", "line 2: no image of .* belongs to template 2000000000"),
    (PAIRS_LIST, "12 30 0\n", "12 30 2\n", "line 3: label 2 is neither"),
    (PAIRS_LIST, "30 7 1\n", "30 7 0\n", "every label is 0"),
    (PAIRS_LIST, "7 12 0\n", "7 12\n", "line 2 must be `tid1 tid2 label`, found '7 12'"),
    (PAIRS_LIST, "30 7 1\n", "30 7 1 1\n", "line 1 must be `tid1 tid2 label`, found '30 7 1 1'"),
    (PAIRS_LIST, "7 12 0\n", "7 12 0 0\n", "line 2 must be `tid1 tid2 label`, found '7 12 0 0'"),
    (PAIRS_LIST, "7 12 0\n", "7 x 0\n", "line 2 must be `tid1 tid2 label`, found '7 x 0'"),
    (PAIRS_LIST, "7 12 0\n", "7 99999999999 0\n", "line 2 must be `tid1 tid2 label`"),
    (IMAGES_LIST, "5.jpg 7 503\n", "5.jpg 503\n", "line 5 must be `name tid mid`, found '5.jpg 503'"),
    (IMAGES_LIST, "5.jpg 7 503\n", "5.jpg 20000000 503\n", "line 5: template id 20000000 is not in"),
    (LANDMARKS_LIST, landmarks("4.jpg"), "4.jpg 1 2 3 4 5 6 7 8 9 ten 1\n", "line 4 must be `name x1 y1 .* score`"),
    (LANDMARKS_LIST, landmarks("4.jpg"), "4.jpg 1 2 3\n", "line 4 must be `name x1 y1 .* score`, found '4.jpg 1 2 3'"),
    (LANDMARKS_LIST, landmarks("4.jpg"), f"4.jpg {'5 ' * 10} 1\n", "line 4: no face .* landmarks of 4.jpg"),
    (LANDMARKS_LIST, landmarks("4.jpg"), f"4.jpg {'nan ' * 10} 1\n", "line 4 must be `name x1 y1 .* score`"),
    (LANDMARKS_LIST, landmarks("4.jpg"), f"4.jpg {'inf ' * 10} 1\n", "line 4: no face .* landmarks of 4.jpg"),
    (LANDMARKS_LIST, landmarks("4.jpg"), "", r"no landmarks of 4.jpg \(1 such\)"),
]


@pytest.mark.parametrize(("list_of", "old", "new", "message"), BROKEN_LINES)
def test_a_broken_line_is_named(root: Path, list_of: str, old: str, new: str, message: str) -> None:
    path = root / "ijbc" / list_of
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(InputError, match=message) as caught:
        load(root)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_name_that_is_not_text_is_named(root: Path) -> None:
    path = root / "ijbc" / IMAGES_LIST
    path.write_bytes(path.read_bytes().replace(b"3.jpg", b"\xff\xfe.jpg"))
    assert "line 3 must be `name tid mid`" in refusal(lambda: load(root))


def test_missing_images_are_named_and_counted(root: Path) -> None:
    for name in ("6.jpg", "4.jpg"):
        (root / "ijbc" / "loose_crop" / name).unlink()
    message = refusal(lambda: load(root))
    assert message.startswith(str(root / "ijbc" / "loose_crop" / "4.jpg"))
    assert "(2 such)" in message


@pytest.mark.parametrize("list_of", [IMAGES_LIST, PAIRS_LIST, LANDMARKS_LIST])
@pytest.mark.parametrize("empty", [False, True])
def test_a_missing_or_empty_list_is_named(root: Path, list_of: str, empty: bool) -> None:
    path = root / "ijbc" / list_of
    path.write_text("") if empty else path.unlink()
    assert refusal(lambda: load(root)).startswith(f"{path}: ")
    assert not full_check("casia_ijbc", root).complete
