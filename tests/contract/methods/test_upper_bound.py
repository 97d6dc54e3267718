"""UB and CoReS: fresh weights at every task, all old images as memory, FD to φ_{t-1} on old classes or none."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from cl2r.engine.chain import RunResult
from cl2r.engine.plan import plan_run
from cl2r.methods.rehearsal import Rehearsal
from cl2r.methods.upper_bound import UpperBound
from tests.support.method_case import PER_CLASS, Case, case, fingerprint
from tests.support.quick import EPOCHS, chain_tensors, quick_config, train
from tests.support.slow_losses import slow_ce, slow_fd

BOTH = ["upper_bound", "cores"]


def after_first(name: str, *overrides: str) -> Case:
    """Return a case some steps into task 1."""
    made = case(name, *overrides)
    made.begin(1)
    for _ in range(3):
        made.step(made.batch_of(1, made.tasks[0]))
    return made


def in_second(name: str, *overrides: str) -> Case:
    """Return a case at the start of task 2, with all old images as memory."""
    made = after_first(name, *overrides)
    made.begin(2, memory_per_class=PER_CLASS)
    return made


def phi(made: Case) -> nn.Module:
    assert isinstance(made.method, Rehearsal)
    return made.method.network.phi


# ---------------------------------------------------------------- weights


@pytest.mark.parametrize("name", BOTH)
def test_every_task_starts_from_its_own_weights(name: str) -> None:
    made = case(name)
    made.begin(1)
    seen = [fingerprint(phi(made))]
    for task in (2, 3):
        made.step(made.batch_of(task - 1, made.tasks[0]))
        seen.append(fingerprint(phi(made)))
        made.begin(task, PER_CLASS)
        seen.append(fingerprint(phi(made)))
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("name", BOTH)
def test_fresh_weights_do_not_depend_on_the_previous_model(name: str) -> None:
    """This includes the statistics of batch norm."""
    trained, untrained = in_second(name), case(name)
    untrained.begin(1)
    untrained.begin(2, PER_CLASS)
    assert fingerprint(phi(trained)) == fingerprint(phi(untrained))
    assert isinstance(trained.method, UpperBound)
    assert fingerprint(phi(trained)) == fingerprint(trained.method.initial_phi(2))


def test_fresh_weights_follow_the_seed() -> None:
    assert fingerprint(phi(in_second("cores"))) != fingerprint(phi(in_second("cores", "seed=1")))


def test_fresh_weights_keep_layout_and_kind_of_modules() -> None:
    """`Workers.prepare` and `Incremental` set them before."""
    made = after_first("upper_bound")
    nn.SyncBatchNorm.convert_sync_batchnorm(made.method.network)
    before = {name: parameter.stride() for name, parameter in made.method.network.named_parameters()}
    kinds = [type(module) for module in made.method.network.modules()]
    made.begin(2, PER_CLASS)
    assert before == {name: parameter.stride() for name, parameter in made.method.network.named_parameters()}
    assert kinds == [type(module) for module in made.method.network.modules()]
    assert nn.SyncBatchNorm in kinds
    wide = [p for p in made.method.network.parameters() if p.ndim == 4 and p.shape[1] > 1 and p.shape[2] > 1]
    assert wide
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in wide)


# ---------------------------------------------------------------- loss


def test_old_classes_are_distilled_from_the_previous_model() -> None:
    made = after_first("upper_bound", "method.lambda_base=3")
    old_model = made.method.extractor()
    made.begin(2, PER_CLASS)
    batch = made.batch_of(2, range(8))
    made.method.network.eval()
    losses = made.method.loss(batch, made.method.network)
    rows = batch.y < 4
    expected = 3 * slow_fd(phi(made)(batch.x[rows]), old_model(batch.x[rows]))
    assert expected > 0.1, "fresh weights are far from the old model"
    assert losses["fd"].item() == pytest.approx(expected, abs=1e-5)
    assert set(losses) == {"ce", "fd"}
    assert made.method.diagnostics() == {"lambda": 3.0}


def test_weight_follows_the_classes() -> None:
    made = case("upper_bound")
    for task, weight in ((1, 0.0), (2, 5.0), (3, 5 * math.sqrt(4 / 8))):
        made.begin(task, PER_CLASS)
        assert made.method.diagnostics()["lambda"] == pytest.approx(weight)


def test_cores_is_cross_entropy_over_all_outputs() -> None:
    made = in_second("cores")
    batch = made.batch_of(2, range(8))
    made.method.network.eval()
    losses = made.method.loss(batch, made.method.network)
    assert set(losses) == {"ce"}
    logits = made.method.network(batch.x).logits
    assert logits.shape[1] == 12
    assert losses["ce"].item() == pytest.approx(slow_ce(logits, batch.y), abs=1e-5)


def test_tasks_of_cores_are_independent() -> None:
    """A task ends in the same bits, whatever the previous model."""
    ends = []
    for name in ("cores", "cores"):
        made = case(name)
        made.begin(1)
        if ends:
            for _ in range(3):
                made.step(made.batch_of(1, made.tasks[0]), lr=1.0)
        made.begin(2, PER_CLASS)
        for _ in range(2):
            made.step(made.batch_of(2, range(8)))
        ends.append(fingerprint(made.method.network))
    assert ends[0] == ends[1]


def test_tasks_of_the_upper_bound_depend_on_the_previous_model() -> None:
    ends = set()
    for steps in (0, 3):
        made = case("upper_bound")
        made.begin(1)
        for _ in range(steps):
            made.step(made.batch_of(1, made.tasks[0]), lr=1.0)
        made.begin(2, PER_CLASS)
        made.step(made.batch_of(2, range(8)))
        ends.add(fingerprint(made.method.network))
    assert len(ends) == 2


# ---------------------------------------------------------------- runs


@pytest.fixture(scope="module")
def runs(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[RunResult, Path]]:
    """Return a run of each method, each in its own store."""
    found = {}
    for name in BOTH:
        root = tmp_path_factory.mktemp(name)
        found[name] = train(quick_config(tiny, {"method": {"name": name}}), root), root
    return found


@pytest.mark.parametrize("name", BOTH)
def test_a_run_has_all_old_images_as_memory(runs: dict[str, tuple[RunResult, Path]], name: str) -> None:
    result, root = runs[name]
    assert np.isfinite(result.report.matrix[np.tri(3, dtype=bool)]).all()
    tasks = result.plan.scenario.tasks
    for link, tensors in zip(result.links, chain_tensors(result.plan, root), strict=True):
        old = [task.rows for task in tasks[: link.task - 1]]
        expected = np.concatenate(old) if old else np.empty(0, dtype=np.int64)
        np.testing.assert_array_equal(np.sort(tensors["memory"].numpy()), np.sort(expected))
        total = len(expected) + len(tasks[link.task - 1].rows)
        assert link.record["images"] == EPOCHS * (total // 16) * 16, "an epoch is one over all images"
    losses = {key for row in result.links[1].record["curves"] for key in row if key.startswith("loss_")}
    assert losses == ({"loss_ce", "loss_fd"} if name == "upper_bound" else {"loss_ce"})


def test_the_two_differ_from_the_second_task_on(runs: dict[str, tuple[RunResult, Path]]) -> None:
    (one, _), (two, _) = (runs[name] for name in BOTH)
    assert one.plan.keys[0] == two.plan.keys[0]
    assert not set(one.plan.keys[1:]) & set(two.plan.keys[1:])


def test_memory_fields_do_not_change_the_keys(tiny: Path, runs: dict[str, tuple[RunResult, Path]]) -> None:
    other = {"method": {"name": "upper_bound"}, "memory": {"per_class": 0, "selection": "herding"}}
    assert plan_run(quick_config(tiny, other)).keys == runs["upper_bound"][0].plan.keys
