"""Images to index: which files count, and what is refused."""

import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from cl2r.gallery.gallery import Gallery
from cl2r.gallery.images import list_images
from cl2r.gallery.model import Model
from cl2r.storage.path import ObjectPath
from tests.support.galleries import refused, run_index
from tests.support.object_server import upload
from tests.unit.gallery.conftest import COUNT


def test_images_are_listed_by_extension_outside_hidden_folders(tmp_path: Path, remote: ObjectPath) -> None:
    files = "b/2.JPG b/1.png a.webp .hidden.png .git/x.png b/.git/y.png notes.txt b/png c/d/3.gif"
    for name in files.split():
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_file(b"12")
    (tmp_path / "images" / "linked").symlink_to(tmp_path / "images" / "b")
    upload(tmp_path / "images", remote)
    found = list_images(tmp_path / "images", "p/")
    assert found["path"].tolist() == ["a.webp", "b/1.png", "b/2.JPG", "c/d/3.gif"]
    assert found["id"].tolist() == ["p/a.webp", "p/b/1.png", "p/b/2.JPG", "p/c/d/3.gif"]
    assert found["label"].tolist() == ["", "b", "b", "d"]
    assert (set(found["bytes"]), set(found["source"])) == ({2}, {str(tmp_path / "images")})
    assert found["modified"].tolist() == [(tmp_path / "images" / path).stat().st_mtime_ns for path in found["path"]]
    there = list_images(remote, "p/")
    there = there[~there["path"].str.startswith("linked/")].reset_index(drop=True)
    pd.testing.assert_frame_equal(there, found.assign(source=pd.Series([str(remote)] * 4, dtype="string"), modified=0))


def test_a_folder_without_images_is_refused(tmp_path: Path, remote: ObjectPath, model: Model) -> None:
    (tmp_path / "file.png").write_file(b"1")
    (tmp_path / "empty").mkdir()
    (remote / "here.txt").write_file(b"1")
    for source in (tmp_path / "none", tmp_path / "empty", tmp_path / "file.png", remote, remote / "none"):
        with refused(source):
            run_index(source, tmp_path / "gallery", model)
    assert Gallery(tmp_path / "gallery").commit.number == 0


def test_a_dangling_link_is_a_bad_image(images: Path, root: Path, model: Model) -> None:
    (images / "c00" / "link.png").symlink_to("nowhere")
    report = run_index(images, root, model)
    assert report.bad == [("c00/link.png", "no such file")]
    assert report.added == COUNT


def test_a_file_name_that_is_not_utf8_is_refused(images: Path, root: Path, model: Model) -> None:
    with open(os.fsencode(images) + b"/c00/\xff.png", "wb"):
        pass
    with refused("UTF-8", "udcff"):
        run_index(images, root, model)


def test_an_unreadable_folder_is_refused(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = os.scandir

    def refuse(path: Any = ".") -> Any:
        if str(path).endswith("c02"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with refused("c02", "Permission denied"):
        list_images(images)
