"""Maintenance: a gallery that FAN maps to a newer model's space, shard by shard; duplicated ids and wrong lengths."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from cl2r.gallery.gallery import Gallery
from cl2r.gallery.maintenance import adapt, map_flops, verify
from cl2r.gallery.search import Searcher
from tests.support.galleries import Trained, commit_vectors, indexed, stored, trained, write_images


@pytest.fixture(scope="module")
def chain(tiny: Path) -> Trained:
    return trained(tiny, "fan")


@pytest.fixture
def gallery(chain: Trained, tmp_path: Path) -> Gallery:
    """A gallery with eight images by φ_1 and four by φ_2."""
    write_images(tmp_path / "images", chain.images[:8])
    indexed(tmp_path / "images", tmp_path / "gallery", chain.model(1))
    write_images(tmp_path / "images", chain.images[8:12], start=8)
    return indexed(tmp_path / "images", tmp_path / "gallery", chain.model(2))


def adapted(gallery: Gallery, chain: Trained) -> tuple[int, float]:
    """Return the number of mapped vectors and the FLOPs."""
    return [(0, 0.0), *adapt(gallery, chain.model(3))][-1]


def test_mapped_vectors_are_those_in_the_links(gallery: Gallery, chain: Trained) -> None:
    """ψ_3 ∘ ψ_2 of φ_1's vectors, ψ_3 of φ_2's: the galleries that the run stored after task 3."""
    assert sorted(vectors for vectors, _ in adapt(gallery, chain.model(3))) in ([4, 12], [8, 12])
    found = np.stack([vector for _, vector in sorted(stored(gallery).items())])
    expected = np.concatenate([chain.vectors(3, "gallery_1")[:8], chain.vectors(3, "gallery_2")[8:12]])
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert set(gallery.items()["task"]) == {3}
    assert verify(gallery, prune=False) == []


def test_the_cost_of_mapping(gallery: Gallery, chain: Trained) -> None:
    model = chain.model(3)
    step = 2 * 2 * model.dim * 2 * model.dim  # two layers of width 2·dim, two operations per weight
    assert (map_flops(model, 2), map_flops(model, 1)) == (step, 2 * step)
    assert adapted(gallery, chain)[1] == 8 * 2 * step + 4 * step


def test_a_stopped_adaptation_is_searched_and_resumed(gallery: Gallery, chain: Trained) -> None:
    model = chain.model(3)
    queries = model.embed(chain.images[:5])
    before, _ = Searcher(gallery, model).rows_of(queries, 12)
    list(islice(adapt(gallery, model), 1))
    halfway = Gallery(gallery.root)
    assert len(set(halfway.items()["task"])) == 2
    assert 0 < Searcher(halfway, model).mapped < 12
    np.testing.assert_allclose(Searcher(halfway, model).rows_of(queries, 12)[0], before, atol=2e-6)
    assert adapted(halfway, chain)[0] in (4, 8)
    assert Searcher(halfway, model).mapped == 0
    np.testing.assert_allclose(Searcher(halfway, model).rows_of(queries, 12)[0], before, atol=2e-6)
    assert adapted(halfway, chain)[0] == 0


def test_verify_finds_wrong_lengths_and_duplicated_ids(chain: Trained, tmp_path: Path) -> None:
    gallery, rows = Gallery.open_or_create(tmp_path), np.eye(3, 11, dtype=np.float32)
    commit_vectors(gallery, chain.model(1).version, rows, ["a", "b", "c"])
    assert verify(gallery, prune=False) == []
    commit_vectors(gallery, chain.model(1).version, rows[:1], ["b"])
    assert [line.split(":")[0] for line in verify(gallery, prune=False)] == ["b"]
    commit_vectors(gallery, chain.model(1).version, np.full((2, 11), [[1], [np.nan]], np.float32), ["d", "e"])
    (problem,) = verify(gallery, prune=False)
    assert "2 vectors" in problem
