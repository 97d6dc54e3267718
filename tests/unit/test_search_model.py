"""φ_t at work for search gives what its run was evaluated with: for every method, adapter and older gallery."""

import copy
import dataclasses
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from made_gallery import TASKS, Trained, one_line, trained, unit

from cl2r.errors import InputError
from cl2r.methods.catalog import ADAPTERS, METHODS
from cl2r.search import model as models
from cl2r.search.model import Model
from cl2r.search.snapshot import Snapshot

NEAR = {"rtol": 0, "atol": 1e-6}
ADAPTED = [f"er+{name}" for name in ADAPTERS]
WHOLE = ("cl2r", "er", "lucir", "fan", "der_trunc")
"""Methods whose chain of three other tests need too; of the rest two models will do."""
OLDER = [(t, k) for t in range(1, TASKS + 1) for k in range(1, t)]


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    """PyTorch warns of arrays that cannot be written to, which galleries are full of."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


@pytest.fixture(scope="module")
def chain(tiny: Path) -> Trained:
    return trained(tiny)


# ---------------------------------------------------------------- images to vectors


@pytest.mark.parametrize("name", METHODS)
def test_vectors_are_the_features_of_the_link(tiny: Path, name: str) -> None:
    this, found = trained(tiny, name, *(() if name in WHOLE else ("scenario.stop_after=2",))), list[np.ndarray]()
    for task in range(1, len(this.plan.keys) + 1):
        model = this.model(task)
        vectors = model.embed(this.images)
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(vectors, this.vectors(task), **NEAR)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, **NEAR)
        assert model.dim == vectors.shape[1]
        assert model.carries_gallery == METHODS[name].gallery
        assert not model.adapts_queries
        found.append(vectors[:, : this.link(1)["open"].shape[1]])
    assert np.abs(found[0] - found[1]).max() > 1e-3 or METHODS[name].grows, "the models are not all the same"


def test_with_the_statistics_of_the_open_images(tiny: Path, chain: Trained) -> None:
    this = trained(tiny, "er", "eval.normalise=own", "scenario.stop_after=1")
    card = this.snapshot(1).card
    assert (card.mean, card.std) == this.plan.dataset.open_moments != this.plan.dataset.moments
    np.testing.assert_allclose(this.model(1).embed(this.images), this.vectors(1), **NEAR)
    assert (chain.snapshot(1).card.mean, chain.snapshot(1).card.std) == this.plan.dataset.moments


def test_a_batch_may_be_of_any_size(chain: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = chain.model(2), chain.images[:23]
    whole = model.embed(images)
    for size in (1, 7, 23):
        monkeypatch.setattr(models, "BATCH", size)
        np.testing.assert_allclose(model.embed(images), whole, **NEAR)
    turned = np.array([model.embed(images[row : row + 1])[0] for row in range(23)])
    np.testing.assert_allclose(turned, whole, **NEAR)


def test_of_no_images_there_are_no_vectors(chain: Trained) -> None:
    model = chain.model(2)
    assert model.embed(chain.images[:0]).shape == (0, model.dim)
    assert model.embed(chain.images[:0]).dtype == np.float32
    assert model.toward(model.embed(chain.images[:0]), 1).shape == (0, model.dim)


def test_images_that_cannot_be_written_to_or_lie_backwards(chain: Trained) -> None:
    model, images = chain.model(1), chain.images[:6].copy()
    right = model.embed(images)
    images.flags.writeable = False
    np.testing.assert_array_equal(model.embed(images), right)
    np.testing.assert_allclose(model.embed(images[::-1])[::-1], right, **NEAR)
    np.testing.assert_allclose(model.embed(images[:, :, ::-1]), model.embed(images[:, :, ::-1].copy()), **NEAR)


@pytest.mark.parametrize(
    "shape", [(2, 16, 16), (2, 16, 16, 3), (2, 32, 32, 1), (2, 1, 16, 16), (16, 16, 1), (2, 16, 8, 1)]
)
def test_images_of_another_shape_are_refused(chain: Trained, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError) as error:
        chain.model(1).embed(np.zeros(shape, np.uint8))
    assert one_line(error.value, chain.run, "16", str(shape))


def test_grey_images_are_not_taken_for_colour(tiny: Path, chain: Trained) -> None:
    """Normalisation would spread one channel over three without a word."""
    card = dataclasses.replace(chain.snapshot(1).card, channels=3, mean=(0.5,) * 3, std=(0.2,) * 3)
    with pytest.raises(InputError):
        Model(dataclasses.replace(chain.snapshot(1), card=card)).embed(chain.images[:2])


@pytest.mark.parametrize("kind", [np.float32, np.int64, np.bool_])
def test_pixels_are_bytes(chain: Trained, kind: type) -> None:
    with pytest.raises(InputError, match="uint8"):
        chain.model(1).embed(chain.images[:2].astype(kind))


# ---------------------------------------------------------------- queries toward older galleries


@pytest.mark.parametrize("name", ADAPTED)
def test_adapted_queries_are_those_of_the_evaluation(tiny: Path, name: str) -> None:
    this = trained(tiny, name)
    evaluated = this.evaluated()
    for t, k in OLDER:
        model = this.model(t)
        assert model.adapts_queries
        queries = model.toward(model.embed(this.images), k, this.images)
        np.testing.assert_allclose(queries, unit(evaluated.query(t - 1, k - 1)), rtol=0, atol=5e-6)
        assert queries.dtype == np.float32
        assert np.abs(queries - model.embed(this.images)).max() > 1e-3, "the map does something"


@pytest.mark.parametrize("name", ["cl2r", *ADAPTED, "fan", "der_trunc"])
def test_toward_its_own_gallery_nothing_is_mapped(tiny: Path, name: str) -> None:
    this = trained(tiny, name)
    queries = this.model(3).embed(this.images[:5])
    np.testing.assert_array_equal(this.model(3).toward(queries, 3, this.images[:5]), queries)
    np.testing.assert_array_equal(this.model(3).carry(queries, 3), queries)


@pytest.mark.parametrize("name", ["cl2r", "lucir", "fan"])
def test_most_queries_meet_older_galleries_as_they_are(tiny: Path, name: str) -> None:
    this = trained(tiny, name)
    model = this.model(3)
    queries = model.embed(this.images)
    for k in (1, 2):
        assert model.toward(queries, k) is queries
        assert (model.carry(queries, k) is queries) == (name != "fan")


def test_slerp_needs_the_images(tiny: Path) -> None:
    model = trained(tiny, "er+slerp").model(2)
    with pytest.raises(InputError, match="slerp"):
        model.toward(model.embed(trained(tiny, "er+slerp").images[:2]), 1)


def test_a_growing_query_is_cut_to_the_old_model(tiny: Path) -> None:
    this = trained(tiny, "der_trunc")
    for t, k in OLDER:
        model = this.model(t)
        queries = model.toward(model.embed(this.images), k)
        assert queries.shape[1] == this.model(k).dim == k * model.dim // t
        np.testing.assert_allclose(queries, this.vectors(k), **NEAR)
        np.testing.assert_allclose(queries, unit(this.evaluated().query(t - 1, k - 1)), **NEAR)


# ---------------------------------------------------------------- galleries toward newer models


@pytest.mark.parametrize("rows", [5, 8192])
def test_fan_carries_a_gallery_as_its_links_do(tiny: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    this = trained(tiny, "fan")
    monkeypatch.setattr(models, "CARRIED", rows)
    for t, k in OLDER:
        carried = this.model(t).carry(this.vectors(k).astype(np.float32), k)
        np.testing.assert_allclose(carried, this.vectors(t, f"gallery_{k}"), **NEAR)
        assert np.abs(carried - this.vectors(k)).max() > 1e-3, "ψ does something"
        assert carried.dtype == np.float32
    two = this.model(2).carry(this.vectors(1).astype(np.float32), 1)
    np.testing.assert_allclose(this.model(3).carry(two, 2), this.vectors(3, "gallery_1"), **NEAR)


def test_fan_carries_what_lies_in_a_file(tiny: Path, tmp_path: Path) -> None:
    """Memory-mapped, for reading only, also in half precision."""
    this = trained(tiny, "fan")
    for kind, tolerance in ((np.float32, 1e-6), (np.float16, 2e-3)):
        np.save(tmp_path / "rows.npy", this.vectors(1).astype(kind))
        rows = np.load(tmp_path / "rows.npy", mmap_mode="r")
        carried = this.model(3).carry(rows, 1)
        np.testing.assert_allclose(carried, this.vectors(3, "gallery_1"), rtol=0, atol=tolerance)
        np.testing.assert_allclose(np.linalg.norm(carried, axis=1), 1, **NEAR)
        assert this.model(3).carry(rows[:0], 1).shape == (0, rows.shape[1])


@pytest.mark.parametrize("name", ["fan", "er+procrustes", "der_trunc"])
@pytest.mark.parametrize("task", [0, 3, -1])
def test_a_gallery_of_a_later_model_cannot_be_met(tiny: Path, name: str, task: int) -> None:
    model = trained(tiny, name).model(2)
    rows = model.embed(trained(tiny, name).images[:2])
    with pytest.raises(InputError, match=f"φ_{task}"):
        model.toward(rows, task)
    with pytest.raises(InputError, match=f"φ_{task}"):
        model.carry(rows, task)


# ---------------------------------------------------------------- what it is


def test_its_digest_is_that_of_its_weights(chain: Trained) -> None:
    snapshot = chain.snapshot(2)
    assert Model(snapshot).digest == chain.model(2).digest != chain.model(1).digest
    for name in list(snapshot.states[2]):
        states = {2: copy.deepcopy(dict(snapshot.states[2]))}
        flat = states[2][name].view(-1)
        if len(flat):
            flat[-1] += 1
            assert Model(Snapshot(snapshot.card, states, {})).digest != chain.model(2).digest, name


@pytest.mark.parametrize("change", ["memory", "method/phi.0.conv1.weight", "shape", "more"])
def test_tensors_that_do_not_fit_are_named(chain: Trained, change: str) -> None:
    snapshot = chain.snapshot(2)
    state = dict(snapshot.states[2])
    if change in state:
        del state[change]
    elif change == "shape":
        state[max(state, key=lambda key: state[key].numel())] = torch.zeros(3, 5)
    else:
        state["method/phi.more"] = torch.zeros(3)
    with pytest.raises(InputError) as error:
        Model(Snapshot(snapshot.card, {2: state}, {})).embed(chain.images[:1])
    assert one_line(error.value, f"{chain.run}@2", "tensors do not fit")
