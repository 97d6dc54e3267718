"""Adapters on finished runs: nothing is trained, the diagonal stays, the cells below it use adapted queries."""

from pathlib import Path

import numpy as np
import pytest

from cl2r.adapters import adapter_flops
from cl2r.config.methods import ADAPTERS, METHODS
from cl2r.engine.chain import RunResult
from cl2r.engine.frames import frames
from cl2r.engine.links import LinkStore
from cl2r.features import unit_rows
from cl2r.verification import pair_correctness, squared_distances
from tests.support.quick import TASKS, quick_config, train

BASE = "er"


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapted")


def run(tiny: Path, storage: Path, name: str) -> RunResult:
    return train(quick_config(tiny, {"method": {"name": name}, "eval": {"bootstrap": 0}}), storage)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_trains_nothing_and_keeps_the_diagonal(tiny: Path, storage: Path, adapter: str) -> None:
    plain, adapted = run(tiny, storage, BASE), run(tiny, storage, f"{BASE}+{adapter}")
    assert all(link.reused for link in adapted.links)
    assert [link.key for link in adapted.links] == [link.key for link in plain.links]
    np.testing.assert_array_equal(np.diag(adapted.report.matrix), np.diag(plain.report.matrix))
    below = np.tri(TASKS, k=-1, dtype=bool)
    assert (adapted.report.matrix[below] != plain.report.matrix[below]).any()


def test_the_cell_is_that_of_queries_rotated_step_by_step(tiny: Path, storage: Path) -> None:
    """C[3, 1] with procrustes, from the stored features and nothing else."""
    result, store = run(tiny, storage, f"{BASE}+procrustes"), LinkStore(storage)
    links = [{name: t.numpy() for name, t in store.features(link.key).items()} for link in result.links]
    queries = unit_rows(links[2]["open"])
    for link in (links[2], links[1]):
        left, _, right = np.linalg.svd(unit_rows(link["support"]).T @ unit_rows(link["support_old"]))
        queries = queries @ (left @ right)
    pairs = result.plan.report_pairs
    distances = squared_distances(queries[pairs.query].astype(np.float32), links[0]["open"][pairs.gallery])
    correct = pair_correctness(distances, pairs.same, pairs.folds)
    expected = np.mean([correct[pairs.folds == fold].mean() for fold in np.unique(pairs.folds)])
    assert result.report.matrix[2, 0] == pytest.approx(expected, abs=0.01), "a pair at the threshold may tip"


def test_support_images_are_at_hand_at_the_update(tiny: Path, storage: Path) -> None:
    """They are images of T_t: the open images, which stand for the service's, take no part in any fit."""
    result, store = run(tiny, storage, BASE), LinkStore(storage)
    for link in result.links:
        features = store.features(link.key)
        seen = len(result.plan.scenario.tasks[link.task - 1].rows) + link.record["memory"]
        assert len(features["support"]) == seen
        assert ("support_old" in features) == (link.task > 1)


@pytest.mark.parametrize("name", [BASE, *(f"{BASE}+{adapter}" for adapter in ADAPTERS), "fan"])
def test_the_cost_of_adaptation_is_in_the_row(tiny: Path, storage: Path, name: str) -> None:
    result = run(tiny, storage, name)
    (row,) = frames(result, "x")["runs"]
    size = store_size(result, storage)
    if name == "fan":
        items = len(result.plan.dataset.x_open)
        width = result.plan.config.model_dump()["fan"]["width"]
        assert row["gallery_items_touched"] == (TASKS - 1) * items
        assert row["adapter_flops"] == 2 * (size * width * size + width * size * size)
    else:
        adapter = result.plan.config.adapter
        forward = result.links[-1].record["metrics"]["forward_flops"]
        assert row["adapter_flops"] == adapter_flops(adapter, size, TASKS - 1, forward)
        assert row["gallery_items_touched"] == 0
    assert (row["adapter_flops"] > 0) == (name != BASE)
    assert METHODS["fan"].maps_gallery


def store_size(result: RunResult, storage: Path) -> int:
    return LinkStore(storage).features(result.links[0].key)["open"].shape[1]
