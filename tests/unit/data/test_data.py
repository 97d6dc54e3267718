"""Data sets by name or path: the registry, loading, and the check of a folder."""

from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

from cl2r import data as data_module
from cl2r.data import DATASETS, SHOWN, Check, ImageSet, check_dataset, data_root, find_dataset, load_dataset
from cl2r.data.icons import load_icons
from cl2r.data.images import ArrayImages, ImageFiles, LazyImages
from cl2r.runtime.plugins import Plugins
from tests.support.miniatures import jpeg, refusal


def test_icons_are_as_listed() -> None:
    icons, entry = load_icons(), DATASETS["icons"]
    assert icons.num_classes == entry.classes == 100
    assert len(np.unique(icons.y_open)) == 20
    assert entry.open_set.startswith("20 ")
    assert len(icons.y_train) + len(icons.y_open) == entry.images
    assert icons.x_train.shape[1:] == entry.image_shape
    assert icons.y_open.min() == 0
    assert icons.class_names[0] == "archive"
    assert "umbrella" not in icons.class_names, "an open concept"
    assert check_dataset("icons", Path("nowhere")).complete
    assert load_dataset("icons") is load_dataset("icons"), "loaded once"


def test_unknown_names_suggest_the_nearest(tmp_path: Path) -> None:
    for look in (load_dataset, find_dataset, lambda name: check_dataset(name, tmp_path)):
        assert "did you mean 'icons'?" in refusal(lambda look=look: look("icon"))  # type: ignore[misc]
        assert "did you mean" not in refusal(lambda look=look: look("zzz"))  # type: ignore[misc]


def test_paths_reach_their_loader(tmp_path: Path) -> None:
    assert f"{tmp_path / 'train'}: no such folder" in refusal(lambda: load_dataset(str(tmp_path)))
    assert "data.npz: no such file" in refusal(lambda: load_dataset(str(tmp_path / "data.npz")))
    (tmp_path / "notes.txt").write_text("x")
    assert "notes.txt" in refusal(lambda: load_dataset(str(tmp_path / "notes.txt")))


def test_the_root_is_given_or_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CL2R_DATA", raising=False)
    assert data_root() == Path("data")
    monkeypatch.setenv("CL2R_DATA", "/of/environment")
    assert data_root() == Path("/of/environment")
    assert data_root("~/mine") == Path.home() / "mine"


def test_every_data_set_says_how_to_get_it() -> None:
    for name, entry in DATASETS.items():
        assert entry.instructions
        assert "\n" not in entry.instructions
        assert (f"cl2r datasets download {name}" in entry.instructions) == bool(entry.archives)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set `toy` of the files in a folder, two classes of half of them each."""

    def load(root: Path, size: int, channels: int, decode: bool) -> ImageSet:
        files = ImageFiles(root, sorted(path.name for path in root.iterdir()))
        labels = np.arange(len(files), dtype=np.int64) % 2
        held = ArrayImages(np.zeros((4, 8, 8, 3), np.uint8))
        return ImageSet("toy", LazyImages(files, 8, 3), labels, held, np.arange(4), ("a", "b"))

    entry = replace(DATASETS["icons"], name="toy", classes=2, images=8, image_shape=(8, 8, 3), load=load)
    monkeypatch.setattr(data_module, "DATASETS", {"toy": entry})
    for name in "abcd":
        (tmp_path / f"{name}.jpg").write_bytes(jpeg(3))
    return tmp_path


def names(check: Check) -> list[str]:
    return [Path(line.split(": ")[0]).name for line in check.problems]


def test_a_complete_data_set(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = check_dataset("toy", toy)
    assert check.complete
    assert not any("published" in line for line in check.found)
    assert "1 of 4 training images decoded" in check.found
    monkeypatch.setattr(data_module, "PROGRESS_EVERY", 2)
    lines: list[str] = []
    assert "4 of 4 training images decoded" in check_dataset("toy", toy, True, lines.append).found
    assert lines == ["2 of 4 training images decoded"]


@pytest.mark.parametrize(
    ("about", "images", "published"),
    [(False, 8, ""), (False, 9, "2 classes, 9 images"), (True, 8, ""), (True, 9, "2 classes, about 9 images")],
)
def test_other_counts_than_the_published_ones_are_no_problem(
    toy: Path, monkeypatch: pytest.MonkeyPatch, about: bool, images: int, published: str
) -> None:
    entry = replace(data_module.DATASETS["toy"], images=images, about=about)
    monkeypatch.setattr(data_module, "DATASETS", {"toy": entry})
    check = check_dataset("toy", toy)
    assert check.complete
    assert ["counts differ" in line and published in line for line in check.found].count(True) == bool(published)
    monkeypatch.setattr(data_module, "ROUNDING", 0.2)
    assert any("counts differ" in line for line in check_dataset("toy", toy).found) == (images == 9 and not about)


def test_uncropped_photographs_are_told_from_aligned_crops(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_module, "DATASETS", {"toy": replace(data_module.DATASETS["toy"], uncropped=9)})
    for side, hinted in ((8, False), (9, True)):
        (toy / "a.jpg").write_bytes(jpeg(3, (side, side)))
        [line] = [line for line in check_dataset("toy", toy).found if "first training image" in line]
        assert f"a.jpg, {side} × {side} pixels" in line
        assert ("aligned crops" in line) == hinted


def test_a_full_check_names_every_broken_image(toy: Path) -> None:
    for name in "bd":
        (toy / f"{name}.jpg").write_bytes(b"garbage")
    assert check_dataset("toy", toy).complete, "a quick check decodes the first image"
    assert names(check_dataset("toy", toy, full=True)) == ["b.jpg", "d.jpg"]
    (toy / "a.jpg").write_bytes(b"garbage")
    assert names(check_dataset("toy", toy)) == ["a.jpg"]


@pytest.mark.parametrize("more", [0, 3])
def test_many_broken_images_are_counted(toy: Path, more: int) -> None:
    for number in range(SHOWN + more):
        (toy / f"z{number:02d}.jpg").write_bytes(b"garbage")
    check = check_dataset("toy", toy, full=True)
    assert names(check)[:SHOWN] == [f"z{number:02d}.jpg" for number in range(SHOWN)]
    assert [f"{more} more" in line for line in check.problems[SHOWN:]] == [True] * (more > 0)


def test_a_check_does_not_hide_other_errors(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object) -> ImageSet:
        raise ZeroDivisionError

    monkeypatch.setattr(data_module, "DATASETS", {"toy": replace(data_module.DATASETS["toy"], load=load)})
    with pytest.raises(ZeroDivisionError):
        check_dataset("toy", toy)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("cl2r.data.icons:ICONS", "already"),
        ("cl2r.data.icons:load_icons", "not a Dataset"),
        ("cl2r.data.icons:NOTHING", "AttributeError"),
        ("nowhere:ENTRY", "ModuleNotFoundError"),
    ],
)
def test_a_faulty_entry_point_is_named_and_stops_nothing(
    value: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = EntryPoint("mine", value, DATASETS.group)
    monkeypatch.setattr("cl2r.runtime.plugins.entry_points", lambda group: [point])
    registry = Plugins(DATASETS.group, DATASETS.built_in, DATASETS.problem)
    monkeypatch.setattr(data_module, "DATASETS", registry)
    assert set(registry) == {entry.name for entry in data_module.BUILT_IN}
    [line] = registry.errors
    assert f"mine ({value})" in line
    assert reason in line
    assert line in refusal(lambda: find_dataset("mine"))
