"""Fixtures of the gallery tests: a trained chain, its images as files, and a place for a gallery."""

from pathlib import Path

import pytest

from cl2r.gallery import indexing
from cl2r.gallery.model import Model
from cl2r.gallery.older import Older
from cl2r.gallery.service import Service
from cl2r.storage import claims
from cl2r.storage.path import StoragePath
from tests.support.galleries import Trained, trained, write_images
from tests.support.services import Pictures, build, opened

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


@pytest.fixture(scope="session")
def models(chain: Trained) -> list[Model]:
    return [chain.model(task) for task in (1, 2, 3)]


@pytest.fixture(scope="session")
def pictures(chain: Trained) -> Pictures:
    """24 images, four per class."""
    pixels = chain.images[..., 0]
    return [(f"class {row // 4}/é {row:03d}.png", pixels[14 * (row // 4) + row % 4]) for row in range(24)]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, pictures: Pictures, models: list[Model]) -> Path:
    """A gallery that tests only read."""
    return build(tmp_path_factory.mktemp("shared"), pictures, models)


@pytest.fixture(scope="session")
def service(shared: Path, models: list[Model]) -> Service:
    """φ_3 searches `shared`, with φ_1 beside it."""
    return opened(shared, models[2], Older(models[0].files))
