"""What a check of a folder says, and how a folder is found."""

import threading
from pathlib import Path

import pytest
from PIL import Image

from cl2r.data.check import SHOWN, Check, find_folder, home
from cl2r.data.images import ImageFiles, LazyImages
from cl2r.errors import InputError


def test_an_attempt_that_succeeds() -> None:
    check = Check()
    assert check.attempt(lambda: 3) == 3
    assert check.complete


def test_an_attempt_that_meets_bad_input() -> None:
    def look() -> int:
        raise InputError("pairs.txt: missing")

    check = Check(found=["there"])
    assert check.attempt(look) is None
    assert not check.complete
    assert (check.found, check.wrong) == (["there"], ["pairs.txt: missing"])


def test_an_attempt_does_not_hide_other_errors() -> None:
    check = Check()
    with pytest.raises(ZeroDivisionError):
        check.attempt(lambda: 1 // 0)
    assert check.complete


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
    assert check.found == ["2 of 4 images decoded"]


def broken(folder: Path, names: list[str]) -> LazyImages:
    for name in names:
        (folder / name).write_bytes(b"garbage")
    return LazyImages(ImageFiles(folder, names), 4, 3)


@pytest.mark.parametrize("more", [0, 1, 5])
def test_many_broken_images_are_counted(tmp_path: Path, images: LazyImages, more: int) -> None:
    names = [f"{number:02d}.png" for number in range(SHOWN + more)]
    check = Check(to_decode=[broken(tmp_path, names), images])
    check.decode(every=True)
    shown = [line.split(": ")[0].rsplit("/", 1)[1] for line in check.wrong if ": " in line]
    assert shown == [*names[:SHOWN], "b.png", "d.png"]
    counted = [f"and {more} more images that do not decode"] if more else []
    assert [line for line in check.wrong if ": " not in line] == counted
    assert check.found == [f"0 of {len(names)} images decoded", "2 of 4 images decoded"]


def test_a_quick_check_of_a_broken_first_image(tmp_path: Path) -> None:
    check = Check(to_decode=[broken(tmp_path, ["a.png", "b.png"])])
    check.decode(every=False)
    assert len(check.wrong) == 1
    assert check.found == ["0 of 2 images decoded"]


def test_a_long_check_says_how_far_it_is(images: LazyImages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cl2r.data.check.BLOCK", 2)
    said: list[str] = []
    Check(to_decode=[images, images]).decode(True, said.append)
    assert said == ["2 of 4 images looked at"] * 2


def test_images_are_decoded_by_several_threads(images: LazyImages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    together = threading.Barrier(4, timeout=10)

    def fitted(self: LazyImages, row: int) -> None:
        together.wait()
        if row == 2:
            raise InputError("c.png: broken")

    monkeypatch.setattr(LazyImages, "fitted", fitted)
    check = Check(to_decode=[images])
    check.decode(every=True)
    assert check.wrong == ["c.png: broken"]


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


def test_home_of_a_root_and_of_a_sub_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lfw").mkdir()
    assert home(tmp_path, "lfw", "casia") == tmp_path
    assert home(tmp_path / "lfw", "casia", "lfw") == tmp_path
    assert home(tmp_path / "lfw", "casia") == tmp_path / "lfw"
    monkeypatch.chdir(tmp_path / "lfw")
    assert home(Path("."), "lfw") == tmp_path
