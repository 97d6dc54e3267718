"""Algorithm 2: queries by φ_t against vectors of φ_1..φ_t, as a loop over all pairs would rank them."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_gallery import Trained, add_vectors, changed, indexed, one_line, trained, unit, write_images

from cl2r.errors import InputError
from cl2r.files import Place, listed
from cl2r.search import indexing
from cl2r.search.gallery import Gallery, Version
from cl2r.search.index import IndexOptions, exact_search
from cl2r.search.indexing import without
from cl2r.search.model import Model
from cl2r.search.searching import Searcher, build_indexes, covering_index

GROUPS = ((1, 0, 20), (2, 20, 31), (3, 31, 45))
"""Task, and which images it indexed."""
QUERIES = slice(45, 65)


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "LARGEST_SHARD", 7)


def version_of(model: Model) -> Version:
    return Version.of(model.card, model.dim, model.digest)


def mixed(chain: Trained, folder: Path, kept: Any = "float32", upto: int = 3) -> Gallery:
    """A gallery whose images three models have seen."""
    for task, start, stop in GROUPS[:upto]:
        write_images(folder / "images", chain.images[start:stop], start=start)
        gallery = indexed(folder / "images", folder / "gallery", chain.model(task), kept=kept)
    return Gallery(gallery.root)


def row_of(name: str) -> int:
    """The number of an image among the open ones."""
    return int(Path(name).stem[1:])


def slow_scores(chain: Trained, upto: int = 3) -> dict[int, np.ndarray]:
    """By image the cosine with every query, from what the links keep: how the evaluation would compare them."""
    features, found = chain.evaluated(), dict[int, np.ndarray]()
    for task, start, stop in GROUPS[:upto]:
        queries = unit(features.query(upto - 1, task - 1))[QUERIES]
        rows = unit(features.gallery(upto - 1, task - 1))
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
            assert hit.score == pytest.approx(right[image][query], abs=tolerance), "or another that is as near"
            assert hit.task == next(task for task, start, stop in GROUPS if start <= mine < stop)
        assert len({hit.id for hit in hits}) == len(hits)


# ---------------------------------------------------------------- mixed versions


@pytest.mark.parametrize(
    "name", ["cl2r", "er", "fan", "der_trunc", "er+procrustes", "er+aligner", "er+query_drift", "er+slerp"]
)
def test_mixed_versions_are_ranked_as_a_loop_would(tiny: Path, tmp_path: Path, name: str) -> None:
    chain = trained(tiny, name)
    gallery = mixed(chain, tmp_path)
    assert sorted({version.task for version in gallery.commit.versions.values()}) == [1, 2, 3]
    searcher = Searcher(gallery, chain.model(3))
    assert_ranked(chain, searcher, 12)
    assert_ranked(chain, searcher, 100)
    assert searcher.carried == (31 if name == "fan" else 0)


def test_without_the_map_the_ranking_is_another(tiny: Path, tmp_path: Path) -> None:
    """So that the test above can fail."""
    chain = trained(tiny, "fan")
    gallery, model = mixed(chain, tmp_path), chain.model(3)
    model.carry = lambda vectors, task: vectors  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        assert_ranked(chain, Searcher(gallery, model), 12)


def test_an_adapter_may_come_later_than_the_gallery(tiny: Path, tmp_path: Path) -> None:
    """It shares its links with the method it joins."""
    plain, adapted = trained(tiny, "er"), trained(tiny, "er+procrustes")
    assert plain.plan.keys == adapted.plan.keys
    assert_ranked(adapted, Searcher(mixed(plain, tmp_path), adapted.model(3)), 12)


def test_half_precision(tiny: Path, tmp_path: Path) -> None:
    chain = trained(tiny, "fan")
    assert_ranked(chain, Searcher(mixed(chain, tmp_path, "float16"), chain.model(3)), 12, tolerance=2e-3)


def test_in_an_object_store(tiny: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    chain, remote = trained(tiny), request.getfixturevalue("remote")
    mixed(chain, tmp_path)
    remote.upload(tmp_path / "gallery")
    gallery = Gallery(remote)
    assert_ranked(chain, Searcher(gallery, chain.model(3)), 12)
    build_indexes(gallery, IndexOptions("hnsw"))
    searcher = Searcher(Gallery(remote), chain.model(3))
    assert all(part.near is not None for part in searcher.parts)
    assert_ranked(chain, searcher, 12)


@pytest.mark.parametrize(
    ("name", "kind"), [("cl2r", "ivf"), ("cl2r", "hnsw"), ("fan", "hnsw"), ("der_trunc", "hnsw"), ("er+slerp", "ivf")]
)
def test_with_an_index_of_every_version(tiny: Path, tmp_path: Path, name: str, kind: Any) -> None:
    """All cells are searched, so that nothing is missed; vectors that FAN maps have no index."""
    chain = trained(tiny, name)
    gallery = mixed(chain, tmp_path)
    made = build_indexes(gallery, IndexOptions(kind))
    assert sorted(built.rows for built in made) == [11, 14, 20]
    searcher = Searcher(gallery, chain.model(3))
    assert [part.near is not None for part in searcher.parts] == [name != "fan", name != "fan", True]
    assert_ranked(chain, searcher, 12)
    exact = Searcher(gallery, chain.model(3), exact=True)
    assert all(part.near is None for part in exact.parts)
    assert_ranked(chain, exact, 12)


def test_an_older_model_searches_its_own_gallery_only(tiny: Path, tmp_path: Path) -> None:
    chain = trained(tiny)
    gallery = mixed(chain, tmp_path, upto=2)
    assert_ranked(chain, Searcher(gallery, chain.model(2)), 50, upto=2)
    for model, part in ((chain.model(1), "later model"), (trained(tiny, "fan").model(3), "no model of its chain")):
        with pytest.raises(InputError) as error:
            Searcher(gallery, model)
        assert one_line(error.value, str(gallery.root), part)


# ---------------------------------------------------------------- made up


@pytest.fixture(scope="module")
def chain(tiny: Path) -> Trained:
    return trained(tiny)


def made(root: Place, chain: Trained, *groups: tuple[int, np.ndarray], **metadata: Any) -> Gallery:
    """A gallery of given vectors, by task; images are called by their number."""
    gallery, start = Gallery.open_or_create(root), 0
    for task, vectors in groups:
        version = version_of(chain.model(task))
        names = [f"{number:03d}" for number in range(start, start + len(vectors))]
        chosen = {name: values[start : start + len(vectors)] for name, values in metadata.items()}
        shard = add_vectors(gallery, version.key, vectors, names, **chosen)
        gallery.change({version.key: version}, [*gallery.commit.shards, shard], "made")
        start += len(vectors)
    return gallery


def rows_like(chain: Trained, count: int, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=(count, chain.model(1).dim))
    return unit(drawn).astype(np.float32)


def test_equal_images_come_in_the_order_of_the_gallery(chain: Trained, tmp_path: Path) -> None:
    """Across shards and versions, whoever else is asked for, however many hits."""
    rows = rows_like(chain, 3)
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


def test_more_hits_than_images(chain: Trained, tmp_path: Path) -> None:
    searcher = Searcher(made(tmp_path, chain, (1, rows_like(chain, 4)), (3, rows_like(chain, 2, 1))), chain.model(3))
    (hits,) = searcher.search(chain.images[:1], 50)
    assert len(hits) == 6
    assert sorted(hit.id for hit in hits) == [f"{n:03d}" for n in range(6)]
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    _, rows = searcher.rows(chain.images[:1], 50)
    assert rows.shape == (1, 50)
    assert (rows[0, 6:] == -1).all()
    assert len(searcher.search(chain.images[:1], 10**12)[0]) == 6


@pytest.mark.parametrize("top", [0, -1, -(10**9)])
def test_no_hits_cannot_be_asked_for(chain: Trained, tmp_path: Path, top: int) -> None:
    searcher = Searcher(made(tmp_path, chain, (1, rows_like(chain, 4))), chain.model(1))
    for ask in (searcher.search, searcher.rows):
        with pytest.raises(InputError, match=f"--top {top}"):
            ask(chain.images[:1], top)


def test_no_queries_have_no_hits(chain: Trained, tmp_path: Path) -> None:
    gallery = made(tmp_path, chain, (1, rows_like(chain, 40)))
    for _ in range(2):
        searcher = Searcher(gallery, chain.model(2))
        assert searcher.search(chain.images[:0], 5) == []
        build_indexes(gallery, IndexOptions("hnsw"))


def test_an_empty_gallery_is_refused(chain: Trained, tmp_path: Path) -> None:
    gallery = Gallery.open_or_create(tmp_path)
    with pytest.raises(InputError) as error:
        Searcher(gallery, chain.model(1))
    assert one_line(error.value, str(tmp_path), "empty")


def test_queries_of_another_dimension_are_refused(chain: Trained, tmp_path: Path) -> None:
    searcher = Searcher(made(tmp_path, chain, (1, rows_like(chain, 4))), chain.model(2))
    with pytest.raises(InputError, match="dimensions"):
        searcher.rows_of(rows_like(chain, 2)[:, :-1], 3)


# ---------------------------------------------------------------- hits


def test_a_hit_says_what_is_known_of_the_image(chain: Trained, tmp_path: Path) -> None:
    known = {
        "colour": ["red", None, "blue"],
        "year": pd.array([1990, None, 2000], dtype="Int64"),
        "price": [1.5, float("nan"), 2.5],
        "sold": pd.array([True, None, False], dtype="boolean"),
        "when": pd.to_datetime(["2020-01-02", None, "2021-03-04"]),
        "tags": [["a", "b"], None, []],
        "box": [{"x": 1}, None, {"x": 3}],
    }
    gallery = made(tmp_path, chain, (2, rows_like(chain, 3)), **known)
    found = Searcher(gallery, chain.model(3)).search(chain.images[:1], 3)[0]
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
    assert all(value is None for value in hits["001"].metadata.values())
    assert list(hits["002"].metadata["tags"]) == []
    assert json.loads(json.dumps([dataclasses.asdict(hit) for hit in found], default=str))[0]["rank"] == 1
    plain = {type(first.metadata[name]) for name in ("year", "sold", "price", "tags", "box")}
    assert plain == {int, bool, float, list, dict}, "so that JSON can say them"


def test_metadata_that_only_some_images_have(chain: Trained, tmp_path: Path) -> None:
    gallery = made(tmp_path, chain, (1, rows_like(chain, 2)))
    version = version_of(chain.model(1))
    shard = add_vectors(
        gallery, version.key, rows_like(chain, 2, 5), ["x", "y"], year=pd.array([1990, 2000], dtype="Int64")
    )
    gallery.change({}, [*gallery.commit.shards, shard], "more")
    hits = {hit.id: hit.metadata for hit in Searcher(gallery, chain.model(1)).search(chain.images[:1], 9)[0]}
    assert hits == {"000": {"year": None}, "001": {"year": None}, "x": {"year": 1990}, "y": {"year": 2000}}
    assert type(hits["x"]["year"]) is int


# ---------------------------------------------------------------- indexes of a gallery


def grown(gallery: Gallery, chain: Trained, vectors: np.ndarray, prefix: str) -> None:
    version = version_of(chain.model(1))
    shard = add_vectors(gallery, version.key, vectors, [f"{prefix}{n}" for n in range(len(vectors))])
    gallery.change({version.key: version}, [*gallery.commit.shards, shard], "grown")


@pytest.fixture
def large(chain: Trained, tmp_path: Path) -> Gallery:
    gallery = Gallery.open_or_create(tmp_path)
    for number in range(3):
        grown(gallery, chain, rows_like(chain, 100, number), f"{number}/")
    return gallery


def test_rows_that_came_later_are_found_exactly(large: Gallery, chain: Trained) -> None:
    build_indexes(large, IndexOptions("ivf", nlist=4, nprobe=4))
    grown(large, chain, rows_like(chain, 30, 9), "later/")
    searcher = Searcher(Gallery(large.root), chain.model(1))
    (part,) = searcher.parts
    assert (part.covered, len(part.shards), part.near is not None) == (3, 4, True)
    queries = np.concatenate([rows_like(chain, 30, 9), rows_like(chain, 20, 10)])
    scores, rows = searcher.rows_of(queries, 8)
    right, expected = Searcher(large, chain.model(1), exact=True).rows_of(queries, 8)
    np.testing.assert_allclose(scores, right, atol=1e-6)
    plain = Searcher(large, chain.model(1), exact=True).items["id"].to_numpy()
    np.testing.assert_array_equal(searcher.items["id"].to_numpy()[rows], plain[expected])
    assert searcher.items["id"].to_numpy()[rows[:30, 0]].tolist() == [f"later/{n}" for n in range(30)]


def test_an_index_in_another_order_than_the_shards(large: Gallery, chain: Trained) -> None:
    """The gallery may list its shards otherwise than the index has them."""
    build_indexes(large, IndexOptions("hnsw"))
    large.change({}, large.commit.shards[::-1], "turned")
    queries = rows_like(chain, 100, 1)
    searcher = Searcher(Gallery(large.root), chain.model(1))
    assert searcher.parts[0].near is not None
    found = searcher.items["id"].to_numpy()[searcher.rows_of(queries, 1)[1][:, 0]]
    assert found.tolist() == [f"1/{n}" for n in range(100)]


def test_an_index_of_images_that_are_gone_is_not_used(large: Gallery, chain: Trained) -> None:
    build_indexes(large, IndexOptions("hnsw"))
    smaller = [part for shard in large.commit.shards for part in without(large, shard, {"1/3"})]
    large.change({}, smaller, "one away")
    searcher = Searcher(Gallery(large.root), chain.model(1))
    assert searcher.parts[0].near is None
    found = searcher.search(chain.images[:3], 400)
    assert {len(hits) for hits in found} == {299}
    assert "1/3" not in {hit.id for hits in found for hit in hits}
    assert covering_index(large, version_of(chain.model(1)).key) is None
    (built,) = build_indexes(large, IndexOptions("hnsw"))
    assert built.rows == 299
    assert Searcher(large, chain.model(1)).parts[0].near is not None


def test_an_index_is_built_again_when_much_has_come(large: Gallery, chain: Trained) -> None:
    options = IndexOptions("hnsw")
    assert [built.rows for built in build_indexes(large, options)] == [300]
    assert build_indexes(large, options) == []
    grown(large, chain, rows_like(chain, 70, 7), "few/")
    assert build_indexes(large, options) == []
    grown(large, chain, rows_like(chain, 10, 8), "more/")
    assert [built.rows for built in build_indexes(large, options)] == [380]
    found = covering_index(large, version_of(chain.model(1)).key)
    assert found is not None
    assert found[1].rows == 380


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("second", [IndexOptions("pq"), IndexOptions("ivf"), IndexOptions("hnsw", ef_search=5)])
def test_the_index_that_was_asked_for_last_is_used(
    large: Gallery, chain: Trained, second: IndexOptions, again: bool
) -> None:
    for first in (IndexOptions("hnsw"), IndexOptions("ivf", nprobe=1)):
        assert len(build_indexes(large, first, again)) == 1
    assert build_indexes(large, IndexOptions()) == [], "what was asked for stays"
    (built,) = build_indexes(large, second, again)
    assert built.options == second.chosen(300, chain.model(1).dim)
    near = Searcher(Gallery(large.root), chain.model(1)).parts[0].near
    assert near is not None
    assert near.options == built.options
    assert len(listed(large.root / "index", "*")) == 2, "others are of no use any more"


def test_few_images_have_no_index(large: Gallery, chain: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build_indexes(large, IndexOptions()) == []
    assert build_indexes(large, IndexOptions("exact")) == []
    monkeypatch.setattr("cl2r.search.index.EXACT_BELOW", 300)
    assert [built.options.kind for built in build_indexes(large, IndexOptions())] == ["ivf"]


def test_a_version_too_small_for_codes_is_searched_exactly(large: Gallery, chain: Trained) -> None:
    version = version_of(chain.model(2))
    shard = add_vectors(large, version.key, rows_like(chain, 20, 3), [f"new/{n}" for n in range(20)])
    large.change({version.key: version}, [*large.commit.shards, shard], "a new model")
    assert [built.rows for built in build_indexes(large, IndexOptions("pq"))] == [300]
    searcher = Searcher(large, chain.model(2))
    assert [part.near is not None for part in searcher.parts] == [True, False]
    assert len(searcher.search(chain.images[:1], 5)[0]) == 5


def test_a_damaged_index_is_named_and_not_passed_over(large: Gallery, chain: Trained) -> None:
    build_indexes(large, IndexOptions("hnsw"))
    for pattern in ("*.json", "*.faiss"):
        (path,) = listed(large.root / "index", pattern)
        assert isinstance(path, Path)
        with changed(path, b"words"), pytest.raises(InputError) as error:
            Searcher(large, chain.model(1))
        assert one_line(error.value, str(path), "cl2r gallery build")
    assert Searcher(large, chain.model(1)).parts[0].near is not None


def test_exactly_means_exactly(large: Gallery, chain: Trained) -> None:
    """An index that misses much is not asked."""
    build_indexes(large, IndexOptions("ivf", nlist=7, nprobe=1))
    queries = rows_like(chain, 50, 11)
    blocks = [large.vectors(shard) for shard in large.commit.shards]
    _, right = exact_search(blocks, queries, 10)
    np.testing.assert_array_equal(Searcher(large, chain.model(1), exact=True).rows_of(queries, 10)[1], right)
    assert (Searcher(large, chain.model(1)).rows_of(queries, 10)[1] != right).any()
