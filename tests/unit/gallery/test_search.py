"""Algorithm 2: queries by φ_t against vectors of φ_1..φ_t are ranked as a loop over all pairs would rank them."""

import dataclasses
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cl2r.gallery import indexing
from cl2r.gallery.gallery import Gallery
from cl2r.gallery.index import IndexOptions, build_indexes, covering_index, exact_search
from cl2r.gallery.indexing import without
from cl2r.gallery.search import Searcher
from cl2r.storage.path import ObjectPath, StoragePath
from tests.support.galleries import Trained, commit_vectors, indexed, refused, trained, unit_rows, write_images
from tests.support.object_server import upload

GROUPS = ((1, 0, 20), (2, 20, 31), (3, 31, 45))
"""Task, and the images that its model indexed."""
QUERIES = slice(45, 65)
drawn = partial(unit_rows, dim=11)  # as many dimensions as the models of `chain` have


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "LARGEST_SHARD", 7)


@pytest.fixture(scope="session")
def galleries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mixed")


@pytest.fixture
def mixed(galleries: Path, tmp_path: Path) -> Any:
    """A function that returns a copy of a gallery whose images were indexed by the models of a chain."""

    def made(chain: Trained, stored_dtype: Any = "float32", upto: int = 3) -> Gallery:
        folder = galleries / f"{chain.run}-{stored_dtype}"
        for task, start, stop in () if folder.exists() else GROUPS:
            write_images(folder / "images", chain.images[start:stop], start=start)
            indexed(folder / "images", folder / "gallery", chain.model(task), stored_dtype=stored_dtype)
            shutil.copytree(folder / "gallery", folder / f"upto{task}")
        shutil.copytree(folder / f"upto{upto}", tmp_path / "mixed")
        return Gallery(tmp_path / "mixed")

    return made


def row_of(name: str) -> int:
    """Return the number of an image among the open ones."""
    return int(Path(name).stem[1:])


def slow_scores(chain: Trained, upto: int = 3) -> dict[int, np.ndarray]:
    """Return the cosine with every query, by image, from the features in the links, as the evaluation compares them."""
    features, found = chain.evaluated(), dict[int, np.ndarray]()
    for task, start, stop in GROUPS[:upto]:
        queries = features.query(upto - 1, task - 1).unit()[QUERIES]
        rows = features.gallery(upto - 1, task - 1).unit()
        for image in range(start, stop):
            found[image] = queries @ rows[image]
    return found


def assert_ranked(chain: Trained, searcher: Searcher, top: int, upto: int = 3, tolerance: float = 1e-5) -> None:
    right = slow_scores(chain, upto)
    for query, hits in enumerate(searcher.search(chain.images[QUERIES], top)):
        best = sorted(right, key=lambda image: (-right[image][query], image))[:top]
        assert len(hits) == len(best)
        assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))
        for hit, image in zip(hits, best, strict=True):
            mine = row_of(hit.id)
            assert hit.score == pytest.approx(right[mine][query], abs=tolerance)
            assert hit.score == pytest.approx(right[image][query], abs=tolerance), "or another one as near"
            assert hit.task == next(task for task, start, stop in GROUPS if start <= mine < stop)
        assert len({hit.id for hit in hits}) == len(hits)


@pytest.mark.parametrize(
    "name",
    [
        "cl2r",
        "er",
        "fan",
        "der_trunc",
        "er+procrustes",
        "er+aligner",
        "er+query_drift",
        "er+slerp",
        "er+low_rank",
        "er+residual_mlp",
        "er+orthogonal",
    ],
)
def test_mixed_versions_are_ranked_like_a_loop_over_all_pairs(tiny: Path, mixed: Any, name: str) -> None:
    chain = trained(tiny, name)
    gallery = mixed(chain)
    assert [version.task for version in gallery.commit.by_task] == [1, 2, 3]
    searcher = Searcher(gallery, chain.model(3))
    assert_ranked(chain, searcher, 12)
    assert_ranked(chain, searcher, 100)
    assert searcher.mapped == (31 if name == "fan" else 0)


@pytest.mark.parametrize("name", ["cl2r", "fan", "der_trunc", "er+slerp"])
@pytest.mark.parametrize("kind", ["exact", "hnsw"])
def test_an_older_model_searches_the_vectors_up_to_its_own(tiny: Path, mixed: Any, name: str, kind: Any) -> None:
    chain = trained(tiny, name)
    gallery = mixed(chain)
    assert len(build_indexes(gallery, IndexOptions(kind))) == (3 if kind == "hnsw" else 0)
    newest = Searcher(gallery, chain.model(3))
    assert_ranked(chain, newest.earlier(chain.model(2)), 100, upto=2)
    assert_ranked(chain, newest, 100)
    for task in (1, 2):
        assert {hit.task for hit in newest.earlier(chain.model(task)).search(chain.images[:1], 100)[0]} <= {1, task}


def test_a_model_that_is_not_older_or_has_no_vectors_cannot_be_beside(
    tiny: Path, chain: Trained, mixed: Any, tmp_path: Path
) -> None:
    newest = Searcher(mixed(chain), chain.model(3))
    for other in (chain.model(3), trained(tiny, "er").model(1)):
        with refused(f"--old {other.card.name}", "not an earlier model", "below 3"):
            newest.earlier(other)
    write_images(tmp_path / "images", chain.images[:3])
    by_second = Searcher(indexed(tmp_path / "images", tmp_path / "gallery", chain.model(2)), chain.model(3))
    with refused(f"--old {chain.run}@1", "no vectors", f"{chain.run}@2"):
        by_second.earlier(chain.model(1))


def test_an_adapter_can_search_a_gallery_made_without_it(tiny: Path, mixed: Any) -> None:
    plain, adapted = trained(tiny, "er"), trained(tiny, "er+procrustes")
    assert plain.plan.keys == adapted.plan.keys
    assert_ranked(adapted, Searcher(mixed(plain), adapted.model(3)), 12)


def test_vectors_in_half_precision_are_searched(tiny: Path, mixed: Any) -> None:
    chain = trained(tiny, "fan")
    assert_ranked(chain, Searcher(mixed(chain, "float16"), chain.model(3)), 12, tolerance=2e-3)


def test_a_gallery_in_an_object_store_is_searched(chain: Trained, mixed: Any, remote: ObjectPath) -> None:
    upload(mixed(chain).root, remote)
    gallery = Gallery(remote)
    assert_ranked(chain, Searcher(gallery, chain.model(3)), 12)
    build_indexes(gallery, IndexOptions("hnsw"))
    searcher = Searcher(Gallery(remote), chain.model(3))
    assert all(part.near is not None for part in searcher.parts)
    assert_ranked(chain, searcher, 12)


@pytest.mark.parametrize(
    ("name", "kind"), [("cl2r", "ivf"), ("cl2r", "hnsw"), ("fan", "hnsw"), ("der_trunc", "hnsw"), ("er+slerp", "ivf")]
)
def test_every_version_can_have_an_index(tiny: Path, mixed: Any, name: str, kind: Any) -> None:
    """All cells are searched, so nothing is missed; vectors that FAN maps have no index."""
    chain = trained(tiny, name)
    gallery = mixed(chain)
    made = build_indexes(gallery, IndexOptions(kind))
    assert sorted(built.rows for built in made) == [11, 14, 20]
    searcher = Searcher(gallery, chain.model(3))
    assert [part.near is not None for part in searcher.parts] == [name != "fan", name != "fan", True]
    assert_ranked(chain, searcher, 12)
    assert all(part.near is None for part in Searcher(gallery, chain.model(3), exact=True).parts)


def test_models_that_cannot_search_the_gallery_are_refused(tiny: Path, chain: Trained, mixed: Any) -> None:
    gallery = mixed(chain, upto=2)
    assert_ranked(chain, Searcher(gallery, chain.model(2)), 50, upto=2)
    for model, part in ((chain.model(1), "later model"), (trained(tiny, "fan").model(3), "not in the chain")):
        with refused(gallery.root, part):
            Searcher(gallery, model)


def made(root: StoragePath, chain: Trained, *groups: tuple[int, np.ndarray], **metadata: Any) -> Gallery:
    """Return a gallery of given vectors, by task; images are named by their number."""
    gallery, start = Gallery.open_or_create(root), 0
    for task, vectors in groups:
        names = [f"{number:03d}" for number in range(start, start + len(vectors))]
        chosen = {name: values[start : start + len(vectors)] for name, values in metadata.items()}
        commit_vectors(gallery, chain.model(task).version, vectors, names, **chosen)
        start += len(vectors)
    return gallery


def test_ties_are_in_gallery_order_across_shards_and_versions(chain: Trained, tmp_path: Path) -> None:
    rows = drawn(3)
    groups = ((1, rows[[0, 1, 0, 2]]), (2, rows[[2, 0, 0]]), (1, rows[[0, 1, 0]]), (3, rows[[1, 0]]))
    searcher = Searcher(made(tmp_path, chain, *groups), chain.model(3))
    order = searcher.items["id"].tolist()
    assert order == ["000", "001", "002", "003", "007", "008", "009", "004", "005", "006", "010", "011"]
    equal = [name for name in order if name in {"000", "002", "005", "006", "007", "009", "011"}]
    for top in range(1, 8):
        for queries in (rows[:1], np.repeat(rows[:1], 30, axis=0)):
            scores, found = searcher.rows_of(queries, top)
            assert {tuple(order[row] for row in hits) for hits in found.tolist()} == {tuple(equal[:top])}
            np.testing.assert_allclose(scores, 1, atol=1e-6)


def test_there_are_at_most_as_many_hits_as_images(chain: Trained, tmp_path: Path) -> None:
    searcher = Searcher(made(tmp_path, chain, (1, drawn(4)), (3, drawn(2, seed=1))), chain.model(3))
    (hits,) = searcher.search(chain.images[:1], 50)
    assert len(hits) == 6
    assert sorted(hit.id for hit in hits) == [f"{n:03d}" for n in range(6)]
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    _, rows = searcher.rows_of(searcher.model.embed(chain.images[:1]), 50)
    assert rows.shape == (1, 50)
    assert (rows[0, 6:] == -1).all()
    assert len(searcher.search(chain.images[:1], 10**12)[0]) == 6
    assert searcher.search(chain.images[:0], 5) == []


def test_wrong_queries_are_refused(chain: Trained, tmp_path: Path) -> None:
    searcher = Searcher(made(tmp_path / "some", chain, (1, drawn(4))), chain.model(2))
    for top in (0, -1):
        with refused(f"--top {top}"):
            searcher.search(chain.images[:1], top)
    with refused("dimensions"):
        searcher.rows_of(drawn(2)[:, :-1], 3)
    with refused(tmp_path / "empty", "empty"):
        Searcher(Gallery.open_or_create(tmp_path / "empty"), chain.model(1))


def test_a_hit_has_the_metadata_of_its_image(chain: Trained, tmp_path: Path) -> None:
    known = {
        "colour": ["red", None, "blue"],
        "year": pd.array([1990, None, 2000], dtype="Int64"),
        "price": [1.5, float("nan"), 2.5],
        "sold": pd.array([True, None, False], dtype="boolean"),
        "when": pd.to_datetime(["2020-01-02", None, "2021-03-04"]),
        "tags": [["a", "b"], None, []],
        "box": [{"x": 1}, None, {"x": 3}],
    }
    gallery = made(tmp_path, chain, (2, drawn(3)), **known)
    commit_vectors(gallery, chain.model(3).version, drawn(1, seed=5), ["x"])
    found = Searcher(gallery, chain.model(3)).search(chain.images[:1], 4)[0]
    hits = {hit.id: hit for hit in found}
    first = hits["000"]
    own = (first.label, first.task, first.model, first.source, first.path)
    assert own == ("some", 2, f"{chain.run}@2", "nowhere", "000")
    assert isinstance(first.score, float)
    assert first.metadata.keys() == known.keys()
    for name, right in {"colour": "red", "year": 1990, "price": 1.5, "sold": True, "box": {"x": 1}}.items():
        assert first.metadata[name] == right, name
    assert first.metadata["when"] == pd.Timestamp("2020-01-02")
    assert list(first.metadata["tags"]) == ["a", "b"]
    for other in ("001", "x"):  # without values, and without the columns
        assert hits[other].metadata == dict.fromkeys(known)
    assert list(hits["002"].metadata["tags"]) == []
    assert json.loads(json.dumps([dataclasses.asdict(hit) for hit in found], default=str))[0]["rank"] == 1
    plain = {type(first.metadata[name]) for name in ("year", "sold", "price", "tags", "box")}
    assert plain == {int, bool, float, list, dict}, "values that JSON can hold"


@pytest.fixture
def large(chain: Trained, tmp_path: Path) -> Gallery:
    gallery = Gallery.open_or_create(tmp_path)
    for number in range(3):
        grow(gallery, chain, 100, number)
    return gallery


def grow(gallery: Gallery, chain: Trained, count: int, seed: int, task: int = 1) -> None:
    """Add drawn vectors; the images are called SEED/0, SEED/1, …"""
    names = [f"{seed}/{n}" for n in range(count)]
    commit_vectors(gallery, chain.model(task).version, drawn(count, seed=seed), names)


def test_shards_added_after_the_index_are_searched_exactly(large: Gallery, chain: Trained) -> None:
    build_indexes(large, IndexOptions("ivf", nlist=4, nprobe=4))
    grow(large, chain, 30, 9)
    searcher = Searcher(Gallery(large.root), chain.model(1))
    (part,) = searcher.parts
    assert (part.covered, len(part.shards), part.near is not None) == (3, 4, True)
    queries = np.concatenate([drawn(30, seed=9), drawn(20, seed=10)])
    scores, rows = searcher.rows_of(queries, 8)
    right, expected = Searcher(large, chain.model(1), exact=True).rows_of(queries, 8)
    np.testing.assert_allclose(scores, right, atol=1e-6)
    plain = Searcher(large, chain.model(1), exact=True).items["id"].to_numpy()
    np.testing.assert_array_equal(searcher.items["id"].to_numpy()[rows], plain[expected])
    assert searcher.items["id"].to_numpy()[rows[:30, 0]].tolist() == [f"9/{n}" for n in range(30)]


def test_shards_may_be_listed_in_another_order_than_in_the_index(large: Gallery, chain: Trained) -> None:
    build_indexes(large, IndexOptions("hnsw"))
    large.change({}, large.commit.shards[::-1], "turned")
    queries = drawn(100, seed=1)
    searcher = Searcher(Gallery(large.root), chain.model(1))
    assert searcher.parts[0].near is not None
    found = searcher.items["id"].to_numpy()[searcher.rows_of(queries, 1)[1][:, 0]]
    assert found.tolist() == [f"1/{n}" for n in range(100)]


def test_an_index_of_removed_images_is_not_used(large: Gallery, chain: Trained) -> None:
    build_indexes(large, IndexOptions("hnsw"))
    smaller = [part for shard in large.commit.shards for part in without(large, shard, {"1/3"})]
    large.change({}, smaller, "one away")
    searcher = Searcher(Gallery(large.root), chain.model(1))
    assert searcher.parts[0].near is None
    found = searcher.search(chain.images[:3], 400)
    assert {len(hits) for hits in found} == {299}
    assert "1/3" not in {hit.id for hits in found for hit in hits}
    assert covering_index(large, chain.model(1).version.key) is None
    (built,) = build_indexes(large, IndexOptions("hnsw"))
    assert built.rows == 299
    assert Searcher(large, chain.model(1)).parts[0].near is not None


def test_an_index_is_rebuilt_when_it_covers_too_little(large: Gallery, chain: Trained) -> None:
    options = IndexOptions("hnsw")
    assert [built.rows for built in build_indexes(large, options)] == [300]
    assert build_indexes(large, options) == []
    grow(large, chain, 70, 7)
    assert build_indexes(large, options) == []
    grow(large, chain, 10, 8)
    assert [built.rows for built in build_indexes(large, options)] == [380]
    found = covering_index(large, chain.model(1).version.key)
    assert found is not None
    assert found[1].rows == 380


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("second", [IndexOptions("pq"), IndexOptions("ivf"), IndexOptions("hnsw", ef_search=5)])
def test_the_last_index_asked_for_is_used(large: Gallery, chain: Trained, second: IndexOptions, again: bool) -> None:
    for first in (IndexOptions("hnsw"), IndexOptions("ivf", nprobe=1)):
        assert len(build_indexes(large, first, again)) == 1
    assert build_indexes(large, IndexOptions()) == [], "the index that was asked for stays"
    (built,) = build_indexes(large, second, again)
    assert built.options == second.chosen(300, chain.model(1).dim)
    near = Searcher(Gallery(large.root), chain.model(1)).parts[0].near
    assert near is not None
    assert near.options == built.options
    assert len((large.root / "index").list("*")) == 2, "other indexes are removed"


def test_small_galleries_have_no_index(large: Gallery, chain: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build_indexes(large, IndexOptions()) == []
    assert build_indexes(large, IndexOptions("exact")) == []
    monkeypatch.setattr("cl2r.gallery.index.EXACT_BELOW", 300)
    assert [built.options.kind for built in build_indexes(large, IndexOptions())] == ["ivf"]
    grow(large, chain, 20, 3, task=2)
    assert [built.rows for built in build_indexes(large, IndexOptions("pq"))] == [300], "20 are too few for codes"
    searcher = Searcher(large, chain.model(2))
    assert [part.near is not None for part in searcher.parts] == [True, False]
    assert len(searcher.search(chain.images[:1], 5)[0]) == 5


def test_an_exact_search_ignores_the_index(large: Gallery, chain: Trained) -> None:
    build_indexes(large, IndexOptions("ivf", nlist=7, nprobe=1))
    queries = drawn(50, seed=11)
    blocks = [large.shards.vectors(shard) for shard in large.commit.shards]
    _, right = exact_search(blocks, queries, 10)
    np.testing.assert_array_equal(Searcher(large, chain.model(1), exact=True).rows_of(queries, 10)[1], right)
    assert (Searcher(large, chain.model(1)).rows_of(queries, 10)[1] != right).any()
