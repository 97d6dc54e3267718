"""What holds for every data set: it loads, its check agrees with its loader, and faults are named."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from cl2r.data import BUILT_IN, DATASETS, ImageSet, check_dataset, images, load_dataset
from cl2r.data.images import LazyImages
from tests.support.miniatures import MINIATURES, Miniature, full_check, refusal

SIZE = 32
every = pytest.mark.parametrize("case", MINIATURES.values(), ids=MINIATURES)


def load(case: Miniature, root: Path, decode: bool = True) -> ImageSet:
    return DATASETS[case.dataset].load(root, SIZE, 3, decode)


def contents(root: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.stat().st_mtime_ns) for path in root.rglob("*"))


def fault(case: Miniature, root: Path) -> str:
    """Return what the loader refuses, which the check must name as its only problem."""
    message = refusal(lambda: load(case, root))
    assert full_check(case.dataset, root).problems == [message]
    return message


def test_every_data_set_has_a_miniature() -> None:
    assert {case.dataset for case in MINIATURES.values()} == {entry.name for entry in BUILT_IN if entry.layout}


@every
def test_it_loads_and_its_check_finds_no_problem(case: Miniature, tmp_path: Path) -> None:
    case.write(tmp_path)
    before = contents(tmp_path)
    data = load_dataset(case.dataset, SIZE, 3, str(tmp_path))
    assert data.name == case.dataset
    assert data.x_train.shape == (len(data.y_train), SIZE, SIZE, 3)
    assert data.x_open.shape == (len(data.y_open), SIZE, SIZE, 3)
    if data.pairs is not None and data.templates is None:
        same = data.y_open[data.pairs.query] == data.y_open[data.pairs.gallery]
        np.testing.assert_array_equal(same, data.pairs.same)
    check = full_check(case.dataset, tmp_path)
    assert check.complete
    assert any(f"{len(data.y_train)} training images of {data.num_classes} classes" in line for line in check.found)
    assert any(f"{len(data.y_open)} open images" in line for line in check.found)
    assert any("published" in line for line in check.found), "a miniature has other counts"
    assert contents(tmp_path) == before, "nothing is written"


@every
def test_a_listed_set_is_the_decoded_one(case: Miniature, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case.write(tmp_path)
    decoded, listed = load(case, tmp_path), load(case, tmp_path, decode=False)
    monkeypatch.setattr(images, "IN_MEMORY_BYTES", 0)
    large = load(case, tmp_path)
    for other in (listed, large):
        assert isinstance(other.x_train, LazyImages) == (case.dataset != "cifar100")
        np.testing.assert_array_equal(other.x_train.all(), decoded.x_train.all())
        np.testing.assert_array_equal(other.x_open.all(), decoded.x_open.all())
        np.testing.assert_array_equal(other.y_train, decoded.y_train)
        np.testing.assert_array_equal(other.y_open, decoded.y_open)
        assert other.class_names == decoded.class_names
    assert large.fingerprint == listed.fingerprint


@every
def test_a_folder_of_the_set_may_be_the_root(case: Miniature, tmp_path: Path) -> None:
    case.write(tmp_path)
    whole = load(case, tmp_path).fingerprint
    for folder in case.roots:
        assert load(case, tmp_path / folder).fingerprint == whole
        assert check_dataset(case.dataset, tmp_path / folder).complete


@every
@pytest.mark.parametrize("exists", [False, True], ids=["no root", "empty root"])
def test_without_the_set_the_user_is_told_how_to_get_it(case: Miniature, exists: bool, tmp_path: Path) -> None:
    root = tmp_path / "root"
    if exists:
        root.mkdir()
    message = refusal(lambda: load_dataset(case.dataset, SIZE, 3, str(root)))
    assert str(root) in message
    assert f"cl2r datasets check {case.dataset} {root}" in message
    assert len(check_dataset(case.dataset, root).problems) == 1
    assert root.exists() == exists


@pytest.mark.parametrize(
    ("case", "path"),
    [pytest.param(case, path, id=f"{name}-{path}") for name, case in MINIATURES.items() for path in case.needed],
)
def test_a_missing_part_is_named(case: Miniature, path: str, tmp_path: Path) -> None:
    case.write(tmp_path)
    gone = tmp_path / path
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    message = fault(case, tmp_path)
    assert str(tmp_path) in message


@pytest.mark.parametrize("case", [case for case in MINIATURES.values() if case.empty], ids=lambda case: case.dataset)
def test_an_empty_class_is_named(case: Miniature, tmp_path: Path) -> None:
    case.write(tmp_path)
    shutil.rmtree(tmp_path / case.empty)
    (tmp_path / case.empty).mkdir()
    assert str(tmp_path / case.empty) in fault(case, tmp_path)


@every
@pytest.mark.parametrize("kept", [0, 300])
def test_a_damaged_file_is_named(case: Miniature, kept: int, tmp_path: Path) -> None:
    case.write(tmp_path)
    path = tmp_path / case.damaged
    path.write_bytes(path.read_bytes()[:kept])
    if case.decodes:
        assert check_dataset(case.dataset, tmp_path).complete, "a quick check decodes only the first images"
        assert [line.split(": ")[0] for line in full_check(case.dataset, tmp_path).problems] == [str(path)]
    else:
        assert fault(case, tmp_path).startswith(str(path))


@pytest.mark.parametrize("case", [case for case in MINIATURES.values() if case.twin], ids=lambda case: case.dataset)
def test_two_copies_are_refused(case: Miniature, tmp_path: Path) -> None:
    case.write(tmp_path)
    assert case.twin
    first, second = (tmp_path / name for name in case.twin)
    shutil.copytree(first, second)
    message = fault(case, tmp_path)
    assert str(first) in message
    assert str(second) in message


@every
def test_other_files_are_not_images(case: Miniature, tmp_path: Path) -> None:
    case.write(tmp_path)
    before = load(case, tmp_path).fingerprint
    for folder in [path for path in tmp_path.rglob("*") if path.is_dir()]:
        (folder / "notes.txt").write_text("not an image")
        (folder / "._1.jpg").write_bytes(b"resource fork")
        (folder / ".cache").mkdir()
    assert load(case, tmp_path).fingerprint == before


@every
def test_grey_images_have_one_channel(case: Miniature, tmp_path: Path) -> None:
    case.write(tmp_path)
    if case.dataset == "cifar100":
        assert "channels" in refusal(lambda: DATASETS["cifar100"].load(tmp_path, SIZE, 1, True))
        assert "size" in refusal(lambda: DATASETS["cifar100"].load(tmp_path, 64, 3, True))
    else:
        assert DATASETS[case.dataset].load(tmp_path, 4, 1, True).x_open.shape[1:] == (4, 4, 1)
