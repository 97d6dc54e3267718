"""What a check of a folder says, and how a folder is found."""

from pathlib import Path

import pytest
from PIL import Image

from cl2r.data.check import Check, find_folder
from cl2r.data.images import ImageFiles, LazyImages


def test_complete_until_something_is_wrong() -> None:
    check = Check()
    assert check.expect(True, "there", "missing")
    assert check.complete
    assert not check.expect(False, "there", "missing")
    assert not check.complete
    assert (check.found, check.wrong) == (["there"], ["missing"])


def test_findings_are_not_shared() -> None:
    Check().found.append("x")
    assert Check().found == []


@pytest.fixture
def images(tmp_path: Path) -> LazyImages:
    """Four, of which the second and the last are broken."""
    for name in "abcd":
        Image.new("RGB", (4, 4)).save(tmp_path / f"{name}.png")
    for name in "bd":
        (tmp_path / f"{name}.png").write_bytes(b"garbage")
    return LazyImages(ImageFiles(tmp_path, [f"{name}.png" for name in "abcd"]), 4, 3)


def test_a_full_check_names_every_broken_image(images: LazyImages) -> None:
    check = Check(to_decode=[images])
    check.decode(every=True)
    assert [line.split(": ")[0].rsplit("/", 1)[1] for line in check.wrong] == ["b.png", "d.png"]
    assert check.found == ["4 of 4 images decoded"]


def test_a_quick_check_looks_at_the_first(images: LazyImages) -> None:
    check = Check(to_decode=[images])
    check.decode(every=False)
    assert check.complete
    assert check.found == ["1 of 4 images decoded"]


def test_a_quick_check_of_no_images(tmp_path: Path) -> None:
    check = Check(to_decode=[LazyImages(ImageFiles(tmp_path, []), 4, 3)])
    check.decode(every=False)
    assert check.found == ["0 of 0 images decoded"]


def test_first_folder_of_several_names(tmp_path: Path) -> None:
    for name in ("two", "three"):
        (tmp_path / name).mkdir()
    (tmp_path / "one").write_text("a file")
    assert find_folder(tmp_path, "one", "two", "three") == tmp_path / "two"
    assert find_folder(tmp_path, "four") is None


def test_root_may_be_the_folder_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lfw").mkdir()
    assert find_folder(tmp_path / "lfw", "lfw") == tmp_path / "lfw"
    assert find_folder(tmp_path / "lfw", "casia") is None
    monkeypatch.chdir(tmp_path / "lfw")
    assert find_folder(Path("."), "lfw") == Path(".")


def test_a_missing_root_of_the_right_name(tmp_path: Path) -> None:
    assert find_folder(tmp_path / "lfw", "lfw") is None
