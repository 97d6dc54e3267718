"""IJB-C: miniatures in the layout of its release, good and broken; pooling weights of templates."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from miniatures import jpeg, refusal
from PIL import Image

from cl2r.data import ijbc, ijbc_lists
from cl2r.data.check import Check
from cl2r.data.dataset import Images, ImageSet, Labels, Templates
from cl2r.data.face_alignment import REFERENCE, AlignedImages
from cl2r.data.ijbc import check_casia_ijbc, load_casia_ijbc
from cl2r.data.ijbc_lists import IMAGES_LIST, LANDMARKS_LIST, PAIRS_LIST
from cl2r.errors import InputError

# template 30 has a photo and a video of three frames, 7 two photos, 12 one
MEDIA = [("1.jpg", 30, 501), ("2.jpg", 30, 502), ("3.jpg", 30, 502), ("4.jpg", 30, 502)]
MEDIA += [("5.jpg", 7, 503), ("6.jpg", 7, 504), ("7.jpg", 12, 502)]
PAIRS = [(30, 7, 1), (7, 12, 0), (12, 30, 0)]


def casia(root: Path, size: int, channels: int, expected: str) -> tuple[Images, Labels, tuple[str, ...]]:
    return np.zeros((4, size, size, channels), np.uint8), np.array([0, 0, 1, 1]), ("a", "b")


def no_casia(check: Check, root: Path) -> None:
    check.wrong.append(f"{root}: no CASIA")


def lines(rows: list[tuple[object, ...]]) -> str:
    return "".join(" ".join(map(str, row)) + "\n" for row in rows)


def landmarks(name: str) -> str:
    return f"{name} " + " ".join(f"{number:.3f}" for number in (REFERENCE + 4).ravel()) + " 0.987\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(ijbc, "casia_train", casia)
    monkeypatch.setattr(ijbc, "check_casia", lambda check, root: check.found.append("CASIA"))
    folder = tmp_path / "ijbc"
    (folder / "meta").mkdir(parents=True)
    (folder / "loose_crop").mkdir()
    (folder / IMAGES_LIST).write_text(lines([*MEDIA]))
    (folder / PAIRS_LIST).write_text(lines([*PAIRS]))
    (folder / LANDMARKS_LIST).write_text("".join(landmarks(name) for name, _, _ in reversed(MEDIA)))
    draw = np.random.default_rng(0)
    for name, _, _ in MEDIA:
        Image.fromarray(draw.integers(0, 256, (130, 120, 3), np.uint8)).save(folder / "loose_crop" / name)
    return tmp_path


def load(root: Path) -> ImageSet:
    return load_casia_ijbc(root, 24, 3)


def replace(root: Path, list_of: str, old: str, new: str) -> None:
    path = root / "ijbc" / list_of
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def complaint(root: Path) -> str:
    return refusal(lambda: load(root))


def test_a_good_folder(root: Path) -> None:
    data = load(root)
    assert data.name == "casia_ijbc"
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
    assert pairs.folds.strides == (0,)  # one number stands for 16 million
    assert data.class_names == ("a", "b")


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
    assert not isinstance(images, AlignedImages | np.ndarray)
    whole = Image.open(folder / "aligned" / "6.jpg").resize((24, 24), Image.Resampling.BILINEAR)
    difference = images.fitted(5).astype(int) - np.asarray(whole).astype(int)
    assert np.abs(difference).mean() < 8  # a JPEG may be decoded at a fraction of its size first


def test_spaces_and_empty_lines_do_not_matter(root: Path) -> None:
    path = root / "ijbc" / PAIRS_LIST
    path.write_bytes(b"\n30 7 1 \r\n\r\n 7\t12  0\r\n12 30 0\r\n\r\n")
    pairs = load(root).pairs
    assert pairs is not None
    assert pairs.query.tolist() == [2, 0, 1]


def test_lists_longer_than_a_block(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load(root)
    monkeypatch.setattr(ijbc_lists, "LINES_AT_A_TIME", 2)
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
    replace(root, list_of, old, new)
    with pytest.raises(InputError, match=message) as caught:
        load(root)
    assert str(caught.value).startswith(str(root / "ijbc" / list_of))
    assert "\n" not in str(caught.value)


def test_a_name_that_is_not_text_is_named(root: Path) -> None:
    path = root / "ijbc" / IMAGES_LIST
    path.write_bytes(path.read_bytes().replace(b"3.jpg", b"\xff\xfe.jpg"))
    assert "line 3 must be `name tid mid`" in complaint(root)


def test_a_missing_image_is_named(root: Path) -> None:
    for name in ("6.jpg", "4.jpg"):
        (root / "ijbc" / "loose_crop" / name).unlink()
    message = complaint(root)
    assert message.startswith(str(root / "ijbc" / "loose_crop" / "4.jpg"))
    assert "(2 such)" in message


@pytest.mark.parametrize("list_of", [IMAGES_LIST, PAIRS_LIST, LANDMARKS_LIST])
def test_a_missing_or_empty_list_is_named(root: Path, list_of: str) -> None:
    path = root / "ijbc" / list_of
    path.write_text("")
    assert complaint(root).startswith(f"{path}: empty")
    path.unlink()
    assert complaint(root).startswith(f"{path}: no such file")


def test_missing_folders_are_named(root: Path) -> None:
    (root / "ijbc" / "loose_crop").rename(root / "elsewhere")
    assert complaint(root).startswith(f"{root / 'ijbc' / 'loose_crop'}: no such folder, nor aligned/")
    (root / "ijbc").rename(root / "ijb")
    hint = f"`cl2r datasets --check casia_ijbc {root}` says how to get it"
    assert complaint(root) == f"{root / 'ijbc'}: no such folder; {hint}"


def test_check_of_a_good_folder(root: Path) -> None:
    check = check_casia_ijbc(root)
    assert check.complete
    found = " | ".join(check.found)
    assert "CASIA" in found
    assert "7 images of 3 templates (published: 469375 of 23124" in found
    assert "3 pairs = 1 same + 2 different (published: 19557 + 15638932" in found
    check.decode(every=True)
    assert "7 of 7 images decoded" in check.found
    assert check.complete


def test_check_says_what_is_as_published(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("IMAGES", 7), ("TEMPLATES", 3), ("SAME", 1), ("DIFFERENT", 2)):
        monkeypatch.setattr(ijbc, f"PUBLISHED_{name}", number)
    found = check_casia_ijbc(root).found
    assert sum(sentence.endswith("as published") for sentence in found) == 2


def test_check_names_all_that_is_wrong(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ijbc, "check_casia", no_casia)
    (root / "ijbc" / "loose_crop" / "5.jpg").unlink()
    replace(root, PAIRS_LIST, "7 12 0\n", "7 13 0\n")
    wrong = check_casia_ijbc(root).wrong
    assert len(wrong) == 3
    for words, sentence in zip(("CASIA", "5.jpg", "template 13"), wrong, strict=True):
        assert words in sentence


def test_check_without_the_folder(root: Path) -> None:
    (root / "ijbc").rename(root / "ijb")
    assert check_casia_ijbc(root).wrong == [f"{root / 'ijbc'}: no such folder"]


@pytest.mark.parametrize("folder", ["ijbc", "casia-webface"])
def test_the_other_half_lies_beside_the_folder_that_is_the_root(
    root: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    for person, grey in (("0", 10), ("1", 90)):
        (root / "casia-webface" / person).mkdir(parents=True)
        (root / "casia-webface" / person / "a.jpg").write_bytes(jpeg(grey))
    assert load(root / folder).fingerprint == load(root).fingerprint
    assert check_casia_ijbc(root / folder).complete


def test_missing_casia_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    said = complaint(root / "ijbc")
    assert said.startswith(f"{root}: no CASIA-WebFace in it; expected ")
    assert said.endswith(f"; `cl2r datasets --check casia_ijbc {root / 'ijbc'}` says how to get it")
    (wrong,) = check_casia_ijbc(root).wrong
    assert wrong.startswith(f"{root}: no CASIA-WebFace in it; expected ")
    assert "cl2r datasets" not in wrong


def test_check_finds_an_image_that_cannot_be_decoded(root: Path) -> None:
    path = root / "ijbc" / "loose_crop" / "6.jpg"
    path.write_bytes(path.read_bytes()[:300])
    check = check_casia_ijbc(root)
    assert check.complete
    check.decode(every=True)
    assert len(check.wrong) == 1
    assert str(path) in check.wrong[0]


def nested_mean(features: npt.NDArray[np.float64], templates: list[int], media: list[int], which: int) -> float:
    """Mean over the media of a template of the mean over the frames of each."""
    frames: dict[int, list[float]] = {}
    for feature, template, medium in zip(features.tolist(), templates, media, strict=True):
        if template == which:
            frames.setdefault(medium, []).append(feature)
    means = [sum(values) / len(values) for values in frames.values()]
    return sum(means) / len(means)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-2, 3)), min_size=1, max_size=30), st.integers(0, 2**31))
def test_weights_are_those_of_the_nested_mean(images: list[tuple[int, int]], seed: int) -> None:
    rows = sorted({template for template, _ in images})
    template, media = [rows.index(t) for t, _ in images], [m for _, m in images]
    features = np.random.default_rng(seed).normal(size=len(images))
    pooled = Templates(np.array(template, np.int64), np.array(media, np.int64))
    weighted = np.bincount(pooled.template, pooled.weights * features)
    expected = [nested_mean(features, template, media, which) for which in range(len(rows))]
    assert len(pooled) == len(rows)
    np.testing.assert_allclose(weighted, expected, atol=1e-12)
