"""Fixtures of the command line's tests."""

import tempfile
from pathlib import Path

import pytest
from PIL import Image

from cl2r.storage import seal
from cl2r.storage.path import LocalPath
from tests.support.made_ledger import Page, record_pages
from tests.support.one_of_each import one_of_each


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A valid folder of images with a valid list of pairs."""
    root = tmp_path / "images"
    for part, classes in (("train", "abcd"), ("open", "wxyz")):
        for number, name in enumerate(classes):
            (root / part / name).mkdir(parents=True)
            for i in range(1, 13):
                Image.new("L", (16, 16), 10 * i + number).save(root / part / name / f"{name}_{i:04d}.png")
    (root / "pairs.txt").write_text("2\t2\n" + "w\t1\t2\nx\t1\t2\nw\t1\tx\t1\nw\t2\tx\t2\n" * 2)
    return root


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a study is started; measure no speed."""
    monkeypatch.setattr("cl2r.rayrun.driver.run", lambda *_: pytest.fail("a study was started"))
    monkeypatch.setattr("cl2r.study.plan.measure_flops", lambda *_: 1000.0)


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[Page]:
    """The pages that are written."""
    return record_pages(monkeypatch)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No pauses, and a temporary directory without the leftovers of others."""
    monkeypatch.setattr(seal, "PAUSE_SECONDS", 0)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


@pytest.fixture
def storage(tmp_path: LocalPath, elsewhere: None) -> LocalPath:
    """A sound storage with one of everything."""
    return one_of_each(tmp_path / "storage")
