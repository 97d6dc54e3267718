"""Fixtures of the gallery tests: a trained chain, its images as files, and a place for a gallery."""

from pathlib import Path

import pytest

from cl2r.gallery import indexing
from cl2r.gallery.model import Model
from cl2r.storage import claims
from cl2r.storage.path import StoragePath
from tests.support.galleries import Trained, trained, write_images

COUNT, PER_SHARD = 23, 5
"""Images in `images`, and images per shard with `small_shards`."""


@pytest.fixture(scope="session")
def chain(tiny: Path) -> Trained:
    """A chain of three models by CL²R."""
    return trained(tiny)


@pytest.fixture(scope="session")
def model(chain: Trained) -> Model:
    return chain.model(1)


@pytest.fixture
def images(chain: Trained, tmp_path: Path) -> Path:
    """A folder with the first open images."""
    write_images(tmp_path / "images", chain.images[:COUNT])
    return tmp_path / "images"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where a gallery can be created."""
    return tmp_path / "gallery"


@pytest.fixture(params=["disk", "objects"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> StoragePath:
    """A folder that does not exist, on disk and in an object store."""
    return tmp_path / "here" if request.param == "disk" else request.getfixturevalue("remote") / "here"


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several shards for few images, and short waits for the lock."""
    monkeypatch.setattr(indexing, "LARGEST_SHARD", PER_SHARD)
    monkeypatch.setattr(claims, "PAUSE_SECONDS", 0.02)
