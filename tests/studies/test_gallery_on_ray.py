"""Galleries made through Ray Data: the same bytes as without Ray, also when the job is killed on the way."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from made_gallery import Trained, below, indexed, stored, trained, write_images

from cl2r.objects import ObjectPath
from cl2r.rayrun.gallery import extract_on_ray
from cl2r.rayrun.resources import Resources
from cl2r.search import indexing
from cl2r.search.gallery import Gallery
from cl2r.search.indexing import index_images

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


@pytest.fixture(autouse=True)
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "LARGEST_SHARD", PIECE)


def test_ray_makes_the_same_gallery(small_ray: None, chain: Trained, images: Path, tmp_path: Path) -> None:
    """Shards, names and bytes; the image that is none is skipped and told."""
    plain = indexed(images, tmp_path / "plain", chain.model(2))
    gallery = Gallery.open_or_create(tmp_path / "on_ray")
    report = index_images(
        images, gallery, chain.model(2), lambda model, plans: extract_on_ray(model, plans, Resources(), verbose=False)
    )
    assert (report.added, [name for name, _ in report.bad]) == (48, ["c03/broken.png"])
    assert len(gallery.commit.shards) == 13
    assert below(gallery.root) == below(plain.root)
    assert gallery.commit.shards == plain.commit.shards


def test_an_object_store(small_ray: None, chain: Trained, images: Path, remote: ObjectPath, tmp_path: Path) -> None:
    """Images and gallery there."""
    (remote / "images").upload(images)
    gallery = Gallery.open_or_create(remote / "gallery")
    report = index_images(
        remote / "images", gallery, chain.model(1), lambda *given: extract_on_ray(*given, Resources(), verbose=False)
    )
    assert (report.added, len(report.bad)) == (48, 1)
    plain = stored(indexed(images, tmp_path / "plain", chain.model(1)))
    found = stored(Gallery(remote / "gallery"))
    assert {name: vector.tobytes() for name, vector in found.items()} == {
        name: vector.tobytes() for name, vector in plain.items()
    }


def test_a_killed_job_goes_on(small_ray: None, chain: Trained, images: Path, tmp_path: Path) -> None:
    """SIGKILL of the command and its Ray after the first shards; then the same command: none twice, none missing."""
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
    lines: list[str] = []
    plain = indexed(images, tmp_path / "plain", chain.model(1))
    report = index_images(
        images,
        left,
        chain.model(1),
        lambda *given: extract_on_ray(*given, Resources(), verbose=False),
        say=lines.append,
    )
    assert report.taken_over > 0
    assert lines == [f"{report.taken_over} images were extracted before; going on with the rest"]
    assert below(left.root) == below(plain.root)
    assert {name: vector.tobytes() for name, vector in stored(left).items()} == {
        name: vector.tobytes() for name, vector in stored(plain).items()
    }
