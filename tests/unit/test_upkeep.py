"""A gallery that a method maps to newer models' spaces (FAN), step by step."""

from pathlib import Path

import numpy as np
import pytest
from made_gallery import Trained, indexed, stored, trained, write_images

from cl2r.search.gallery import Gallery
from cl2r.search.searching import Searcher
from cl2r.search.upkeep import adapt, carry_flops, verify


@pytest.fixture(scope="module")
def chain(tiny: Path) -> Trained:
    return trained(tiny, "fan")


@pytest.fixture
def gallery(chain: Trained, tmp_path: Path) -> Gallery:
    """Some images by φ_1, some by φ_2."""
    write_images(tmp_path / "images", chain.images[:8])
    indexed(tmp_path / "images", tmp_path / "gallery", chain.model(1))
    write_images(tmp_path / "images", chain.images[8:12], start=8)
    return indexed(tmp_path / "images", tmp_path / "gallery", chain.model(2))


def test_vectors_are_those_that_the_links_have(gallery: Gallery, chain: Trained) -> None:
    """ψ_3 ∘ ψ_2 of φ_1's, ψ_3 of φ_2's: what the run itself stored of its galleries after task 3."""
    said: list[str] = []
    done = adapt(gallery, chain.model(3), said.append)
    assert done.vectors == 12
    assert said == ["8 vectors mapped", "12 vectors mapped"] or said == ["4 vectors mapped", "12 vectors mapped"]
    found = np.stack([vector for _, vector in sorted(stored(gallery).items())])
    expected = np.concatenate([chain.vectors(3, "gallery_1")[:8], chain.vectors(3, "gallery_2")[8:12]])
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert set(gallery.items()["task"]) == {3}
    assert verify(gallery, prune=False) == []


def test_what_it_costs(gallery: Gallery, chain: Trained) -> None:
    model = chain.model(3)
    dim, width = model.dim, 2
    step = 2 * 2 * dim * width * dim  # two layers, two operations a weight
    assert carry_flops(model, 2) == step
    assert carry_flops(model, 1) == 2 * step
    assert adapt(gallery, model, lambda line: None).flops == 8 * 2 * step + 4 * step


def test_a_stopped_adaptation_goes_on(gallery: Gallery, chain: Trained) -> None:
    """Half of it is done; searching meets both halves, and the rest is mapped later."""
    model = chain.model(3)
    before = Searcher(gallery, model).rows(chain.images[:5], 12)

    def stop(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adapt(gallery, model, stop)
    halfway = Gallery(gallery.root)
    assert len(set(halfway.items()["task"])) == 2
    searcher = Searcher(halfway, model)
    assert 0 < searcher.carried < 12
    np.testing.assert_allclose(searcher.rows(chain.images[:5], 12)[0], before[0], atol=2e-6)
    rest = adapt(halfway, model, lambda line: None)
    assert rest.vectors in (4, 8)
    after = Searcher(halfway, model)
    assert after.carried == 0
    np.testing.assert_allclose(after.rows(chain.images[:5], 12)[0], before[0], atol=2e-6)
    assert adapt(halfway, model, lambda line: None).vectors == 0
