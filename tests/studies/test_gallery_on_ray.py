"""Galleries made by Ray Data have the same bytes as without Ray, even if the job was killed once."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from cl2r.gallery import indexing
from cl2r.gallery.gallery import Gallery, Shard
from cl2r.gallery.indexing import IndexJob, ShardPlan
from cl2r.gallery.model import Model
from cl2r.rayrun.extract import extract_on_ray
from cl2r.storage.path import ObjectPath
from cl2r.study.resources import Resources
from tests.support.galleries import Trained, indexed, shards_below, stored, trained, write_images
from tests.support.object_server import upload

PIECE = 4
PATIENCE_SECONDS = 240
SCRIPT = Path(__file__).with_name("index_in_pieces.py")


@pytest.fixture(scope="module")
def chain(tiny: Path) -> Trained:
    return trained(tiny)


@pytest.fixture
def images(chain: Trained, tmp_path: Path) -> Path:
    write_images(tmp_path / "images", chain.images[:48])
    (tmp_path / "images" / "c03" / "broken.png").write_text("no image")
    return tmp_path / "images"


def on_ray(model: Model, plans: Sequence[ShardPlan]) -> Iterable[Shard]:
    return extract_on_ray(model, plans, Resources(), verbose=False)


@pytest.fixture(autouse=True)
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "LARGEST_SHARD", PIECE)


def test_ray_makes_the_same_gallery(small_ray: None, chain: Trained, images: Path, tmp_path: Path) -> None:
    plain = indexed(images, tmp_path / "plain", chain.model(2))
    gallery = Gallery.open_or_create(tmp_path / "on_ray")
    report = IndexJob(images, gallery, chain.model(2), on_ray).run()
    assert (report.added, [name for name, _ in report.bad]) == (48, ["c03/broken.png"])
    assert len(gallery.commit.shards) == 13
    assert shards_below(gallery.root) == shards_below(plain.root)
    assert gallery.commit.shards == plain.commit.shards


def test_images_and_gallery_in_an_object_store(
    small_ray: None, chain: Trained, images: Path, remote: ObjectPath, tmp_path: Path
) -> None:
    upload(images, remote / "images")
    gallery = Gallery.open_or_create(remote / "gallery")
    report = IndexJob(remote / "images", gallery, chain.model(1), on_ray).run()
    assert (report.added, len(report.bad)) == (48, 1)
    plain = stored(indexed(images, tmp_path / "plain", chain.model(1)))
    found = stored(Gallery(remote / "gallery"))
    assert {name: vector.tobytes() for name, vector in found.items()} == {
        name: vector.tobytes() for name, vector in plain.items()
    }


def test_a_killed_job_is_resumed(small_ray: None, chain: Trained, images: Path, tmp_path: Path) -> None:
    """SIGKILL the command and its Ray after the first shards; then no image is missing or there twice."""
    words = ["index", str(images), "--model", f"{chain.run}@1", "--storage", str(chain.storage)]
    words += ["--gallery", str(tmp_path / "killed"), "--workers", "1"]
    alone = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    command = [sys.executable, str(SCRIPT), str(PIECE), *words]
    job = subprocess.Popen(command, start_new_session=True, env=alone)
    shards = tmp_path / "killed" / "shards"
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not list(shards.glob("[!.]*")):
        assert job.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    left = Gallery(tmp_path / "killed")
    assert left.commit.items == 0, "the commit comes last"
    assert len(left.orphans()) > 0
    plain = indexed(images, tmp_path / "plain", chain.model(1))
    assert IndexJob(images, left, chain.model(1), on_ray).run().taken_over > 0
    assert shards_below(left.root) == shards_below(plain.root)
    assert {name: vector.tobytes() for name, vector in stored(left).items()} == {
        name: vector.tobytes() for name, vector in stored(plain).items()
    }
