"""Algorithm 1 as a whole, on a data set that trains in a second."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cl2r.config.builtin import ABLATION_CELLS
from cl2r.config.layers import override
from cl2r.config.schema import fields, matters_from
from cl2r.engine.chain import RunResult
from cl2r.engine.evaluation import Evaluation
from cl2r.engine.links import LinkStore
from cl2r.errors import TrainingError
from cl2r.memory import support_rows
from cl2r.simplex import simplex_vertices
from tests.support.quick import (
    EPOCHS,
    TASKS,
    Recorder,
    assert_same_chain,
    chain_tensors,
    open_features,
    quick_config,
    train,
)

SHORT: dict[str, Any] = {"optim": {"epochs": 1}, "eval": {"bootstrap": 0}}


def assert_matrix(evaluation: Evaluation, tasks: int) -> None:
    """Finite on and below the diagonal, NaN above it."""
    matrix = evaluation.matrix
    assert matrix.shape == (tasks, tasks)
    lower = np.tri(tasks, dtype=bool)
    assert np.isfinite(matrix[lower]).all()
    assert ((matrix[lower] >= 0) & (matrix[lower] <= 1)).all()
    assert np.isnan(matrix[~lower]).all()


def test_a_run_learns_and_fills_the_lower_triangle(finished: RunResult) -> None:
    assert finished.tuning is not None
    for evaluation in (finished.report, finished.tuning):
        assert_matrix(evaluation, TASKS)
        assert all(map(math.isfinite, evaluation.values.values()))
        assert evaluation.cells is not None
    assert finished.report.matrix[-1, -1] > 0.8, "the classes are easy to tell apart"
    assert [(link.task, link.reused) for link in finished.links] == [(1, False), (2, False), (3, False)]
    assert [link.record["memory"] for link in finished.links] == [0, 12, 24], "the memory grows by its quota"


def test_every_task_and_every_seed_gives_another_model(
    finished: RunResult, finished_root: Path, tiny: Path, tmp_path: Path
) -> None:
    other = train(quick_config(tiny, {"seed": 1, **SHORT}), tmp_path)
    assert not set(other.plan.keys) & set(finished.plan.keys)
    models = open_features(finished, finished_root) + open_features(other, tmp_path)
    assert {model.shape for model in models} == {(84, 11)}
    assert not any(np.array_equal(one, two) for one, two in itertools.combinations(models, 2))


def test_the_same_seed_gives_the_same_bits_and_a_listener_receives_every_epoch(
    finished: RunResult, finished_root: Path, tiny: Path, tmp_path: Path
) -> None:
    recorder = Recorder()
    again = train(quick_config(tiny), tmp_path, recorder)
    assert again.plan.keys == finished.plan.keys
    np.testing.assert_array_equal(again.report.matrix, finished.report.matrix)
    assert_same_chain(finished.plan, finished_root, tmp_path)
    assert recorder.begun == [1, 2, 3]
    received = [(report.task, report.epoch, report.epochs) for report in recorder.reports]
    assert received == [(task, epoch, EPOCHS) for task in (1, 2, 3) for epoch in (1, 2, 3)]
    assert [report.lr for report in recorder.reports[:EPOCHS]] == pytest.approx([0.1, 0.1, 0.01])
    assert [set(report.losses) for report in recorder.reports[::EPOCHS]] == [{"ce"}, {"ce", "fd"}, {"ce", "fd"}]
    assert all(report.images % 16 == 0 and report.images > 0 for report in recorder.reports)


def test_fields_that_matter_later_do_not_change_the_first_model(
    finished: RunResult, finished_root: Path, tiny: Path, tmp_path: Path
) -> None:
    """Link keys rely on this; here every such field is changed at once."""
    settings = {
        "method.name": "fixed_fd",  # and with it method.fd
        "method.lambda_base": 1,
        "method.lambda_rule": "const",
        "method.fd_when_no_memory": "on_new",
        "memory.per_class": 0,
        "memory.selection": "herding",
        "batches.batching": "natural",
        "optim.lr_later": 0.01,
        "eval.positives": 50,
        "eval.pairs_seed": 1,
        "data.size": 64,
    }
    later = {name for name in fields(finished.plan.config) if (matters_from()[name] or 0) > 1}
    assert later - {"method.fd"} <= settings.keys()
    layers = [override(f"{name}={value}") for name, value in settings.items()]
    other = train(quick_config(tiny, *layers), tmp_path)
    assert other.plan.keys[0] == finished.plan.keys[0]
    assert other.plan.keys[1] != finished.plan.keys[1]
    models = zip(open_features(other, tmp_path), open_features(finished, finished_root), strict=True)
    assert [np.array_equal(one, two) for one, two in models] == [True, False, False]


@pytest.mark.parametrize(
    ("settings", "tasks"),
    [
        (["scenario.n_tasks=12", "method.name=er"], 12),
        (["memory.selection=herding"], TASKS),
        (["batches.batching=natural"], TASKS),
        (["memory.per_class=99"], TASKS),
        (["eval.tuning_share=0"], TASKS),
    ],
)
def test_other_settings_fill_the_matrix_too(tiny: Path, tmp_path: Path, settings: list[str], tasks: int) -> None:
    result = train(quick_config(tiny, SHORT, *map(override, settings)), tmp_path)
    assert_matrix(result.report, tasks)
    assert (result.tuning is None) == ("eval.tuning_share=0" in settings)


@pytest.mark.parametrize(
    ("method", "weights"),
    [
        ({"name": "fixed"}, [0, 0, 0]),
        ({"name": "fixed_fd"}, [0, 0, 0]),
        ({"name": "cl2r"}, [0, 0, 0]),
        ({"fd_when_no_memory": "on_new"}, [0, 5, 5 * math.sqrt(0.5)]),
    ],
)
def test_without_memory_nothing_is_distilled_unless_on_new_images(
    tiny: Path, tmp_path: Path, method: dict[str, str], weights: list[float]
) -> None:
    result = train(quick_config(tiny, {"memory": {"per_class": 0}, "method": method}, SHORT), tmp_path)
    assert_matrix(result.report, TASKS)
    assert [link.record["memory"] for link in result.links] == [0, 0, 0]
    assert [link.record["metrics"]["lambda"] for link in result.links] == pytest.approx(weights)


@pytest.mark.parametrize("method", ["cl2r", "er"])
def test_room_for_more_classes(tiny: Path, tmp_path: Path, method: str) -> None:
    layer = {"head": {"k_max": 20, "preallocate": True}, "method": {"name": method}}
    result = train(quick_config(tiny, layer, SHORT), tmp_path)
    assert_matrix(result.report, TASKS)
    assert {features.shape for features in open_features(result, tmp_path)} == {(84, 19)}


def test_cells_share_first_links_and_a_repeated_study_trains_nothing(tiny: Path, tmp_path: Path) -> None:
    def study() -> list[list[bool]]:
        configs = [quick_config(tiny, {"method": {"name": cell}}, SHORT) for cell in ABLATION_CELLS]
        return [[link.reused for link in train(config, tmp_path).links] for config in configs]

    alone, shared = [False] * TASKS, [True] + [False] * (TASKS - 1)
    assert study() == [alone, shared, shared, alone, shared, shared]
    assert study() == [[True] * TASKS] * 6


def test_a_reused_run_reports_it_and_gives_the_same(finished: RunResult, finished_root: Path, tiny: Path) -> None:
    recorder = Recorder()
    again = train(quick_config(tiny), finished_root, recorder)
    assert all(key in line and "reused" in line for key, line in zip(again.plan.keys, recorder.lines, strict=True))
    assert (recorder.begun, recorder.reports) == ([], [])
    np.testing.assert_array_equal(again.report.matrix, finished.report.matrix)
    assert [link.record for link in again.links] == [link.record for link in finished.links]


def test_a_longer_chain_continues_a_shorter_one(tiny: Path, tmp_path: Path) -> None:
    short = {"scenario": {"n_tasks": None, "initial": 6, "increment": 6}}
    long = {"scenario": {"n_tasks": None, "initial": 6, "increment": 3}}
    train(quick_config(tiny, short, SHORT), tmp_path)
    result = train(quick_config(tiny, long, SHORT), tmp_path)
    assert [link.reused for link in result.links] == [True, False, False]
    assert [len(task.classes) for task in result.plan.scenario.tasks] == [6, 3, 3]
    assert_matrix(result.report, 3)


def test_a_loss_that_is_not_a_number_names_task_and_epoch(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"task 1, epoch 1: .*'ce' is (nan|inf)"):
        train(quick_config(tiny, {"optim": {"lr": 1e30}}), tmp_path)
    with pytest.raises(TrainingError, match=r"task 2, epoch 1"):
        train(quick_config(tiny, {"optim": {"lr_later": 1e30}}), tmp_path)


def test_a_model_destroyed_by_its_last_step_is_not_stored(tiny: Path, tmp_path: Path) -> None:
    """With one batch per epoch the last loss is finite, but the weights after it are not."""
    layer = {"scenario": {"n_tasks": 1}, "batches": {"size": 168}, "optim": {"lr": 1e30, "epochs": 1}}
    with pytest.raises(TrainingError, match="task 1"):
        train(quick_config(tiny, layer), tmp_path)
    assert not list(tmp_path.rglob("manifest.json"))


def test_stopping_early_trains_a_prefix_that_the_full_run_reuses(
    tiny: Path, tmp_path: Path, finished: RunResult
) -> None:
    first = train(quick_config(tiny, {"scenario": {"stop_after": 2}}), tmp_path)
    assert first.plan.keys == finished.plan.keys[:2]
    np.testing.assert_array_equal(first.report.matrix, finished.report.matrix[:2, :2])
    full = train(quick_config(tiny), tmp_path)
    assert [link.reused for link in full.links] == [True, True, False]


def test_without_a_learning_rate_only_the_running_statistics_move(tiny: Path, tmp_path: Path) -> None:
    result = train(quick_config(tiny, {"optim": {"lr_later": 0.0}, "memory": {"per_class": 3}}), tmp_path)
    states = [LinkStore(tmp_path).state(key) for key in result.plan.keys]
    for before, after in itertools.pairwise(states):
        moved = {name for name in before if name != "memory" and not torch.equal(before[name], after[name])}
        assert moved
        assert all("running_" in name or "num_batches" in name for name in moved)


def test_milestones_after_the_last_epoch_are_reported(tiny: Path, tmp_path: Path) -> None:
    recorder = Recorder()
    train(quick_config(tiny, {"optim": {"epochs": 1}, "scenario": {"stop_after": 1}}), tmp_path, recorder)
    assert "optim.milestones" in recorder.lines[0]


def test_the_common_direction_of_the_open_images_is_recorded(finished: RunResult, finished_root: Path) -> None:
    for link in finished.links:
        rows = LinkStore(finished_root).features(link.key)["open"].numpy().astype(np.float64)
        unit = np.array([row / np.sqrt((row**2).sum()) for row in rows])
        assert link.record["metrics"]["common_direction"] == pytest.approx(np.sqrt((unit.mean(0) ** 2).sum()), rel=1e-5)


def test_the_accuracy_on_support_images_is_that_of_the_classifier(finished: RunResult, finished_root: Path) -> None:
    store, scenario = LinkStore(finished_root), finished.plan.scenario
    vertices = torch.from_numpy(simplex_vertices(finished.plan.num_outputs))
    for link, task in zip(finished.links, scenario.tasks, strict=True):
        memory = store.state(link.key)["memory"].numpy()
        rows = support_rows(task.rows, memory, finished.plan.config.seed, link.task)
        logits = store.features(link.key)["support"].double() @ vertices.T
        found = (logits.argmax(1).numpy() == scenario.labels[rows]).mean()
        assert link.record["metrics"]["train_accuracy"] == pytest.approx(found)


def test_bf16_trains_other_links_and_stores_them_in_fp32(
    finished: RunResult, finished_root: Path, tiny: Path, tmp_path: Path
) -> None:
    result = train(quick_config(tiny, {"optim": {"precision": "bf16"}}), tmp_path)
    assert not set(result.plan.keys) & set(finished.plan.keys)
    chains = [chain_tensors(result.plan, tmp_path), chain_tensors(finished.plan, finished_root)]
    for rounded, plain in zip(*chains, strict=True):
        weights = {name for name, tensor in rounded.items() if tensor.is_floating_point()}
        assert {rounded[name].dtype for name in weights} == {torch.float32}
        assert any(not torch.equal(rounded[name], plain[name]) for name in weights)
    assert result.report.matrix[-1, -1] > 0.8, "it also learns"
    first = [record.record["curves"][0]["loss_ce"] for record in (result.links[0], finished.links[0])]
    assert first[0] == pytest.approx(first[1], rel=0.05)
