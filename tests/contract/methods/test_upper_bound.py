"""UB and CoReS: fresh weights at every task, all old images as memory, FD to φ_{t-1} on old classes or none."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.method_case import PER_CLASS, advanced, case, ended, fingerprint
from tests.support.quick import EPOCHS, chain_tensors, quick_config, train
from tests.support.slow_losses import slow_ce, slow_fd

BOTH = ["upper_bound", "cores"]
everything = partial(advanced, steps=0, memory=PER_CLASS)


@pytest.mark.parametrize("name", [*BOTH, "bct"])
def test_every_task_starts_from_weights_of_its_own(name: str) -> None:
    """They depend on seed and task only, statistics of batch norm included."""
    starts = [everything(name, task=task).method for task in (1, 2, 3)]
    prints = [fingerprint(method.network.phi) for method in starts]
    assert prints[0] == fingerprint(starts[0].initial_phi())
    assert prints[1:] == [fingerprint(starts[0].initial_phi(task)) for task in (2, 3)]
    other = fingerprint(everything(name, "seed=1").method.network.phi)
    assert len({*prints, other, fingerprint(everything(name, task=1, steps=2).method.network.phi)}) == 5


@pytest.mark.parametrize(
    ("name", "depends"), [("upper_bound", True), ("cores", False), ("bct", True), ("bct bct.weight=0", False)]
)
def test_only_the_second_term_makes_a_task_depend_on_the_previous_model(name: str, depends: bool) -> None:
    ends = set()
    for steps in (0, 3):
        made = case(*name.split())
        made.begin(1)
        for _ in range(steps):
            made.step(made.batch_of(1, made.tasks[0]), lr=1.0)
        made.begin(2, PER_CLASS)
        for _ in range(2):
            made.step(made.batch_of(2, range(8)))
        ends.add(fingerprint(made.method.network))
    assert len(ends) == (2 if depends else 1)


def test_fresh_weights_keep_layout_and_kind_of_modules() -> None:
    """`Workers.prepare` and `Incremental` set them before."""
    made = everything("upper_bound", task=1)
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


def test_old_classes_are_distilled_from_the_previous_model() -> None:
    made = ended("upper_bound", "method.lambda_base=3")
    old_model = made.method.extractor()
    made.begin(2, PER_CLASS)
    batch = made.batch_of(2, range(8))
    made.method.network.eval()
    losses, rows = made.losses(batch), batch.y < 4
    expected = 3 * slow_fd(made.method.network.phi(batch.x[rows]), old_model(batch.x[rows]))
    assert expected > 0.1, "fresh weights are far from the old model"
    assert losses["fd"] == pytest.approx(expected, abs=1e-5)
    assert set(losses) == {"ce", "fd"}
    assert made.method.diagnostics() == {"lambda": 3.0}


def test_weight_follows_the_classes() -> None:
    made = case("upper_bound")
    for task, weight in ((1, 0.0), (2, 5.0), (3, 5 * math.sqrt(4 / 8))):
        made.begin(task, PER_CLASS)
        assert made.method.diagnostics()["lambda"] == pytest.approx(weight)


def test_cores_is_cross_entropy_over_all_outputs() -> None:
    made = everything("cores")
    batch = made.batch_of(2, range(8))
    logits = made.method.network(batch.x).logits
    assert logits.shape[1] == 12
    assert made.losses(batch) == {"ce": pytest.approx(slow_ce(logits, batch.y), abs=1e-5)}


@pytest.mark.parametrize("name", [*BOTH, "bct"])
def test_a_run_has_all_old_images_as_memory(tiny: Path, tmp_path: Path, name: str) -> None:
    result = train(quick_config(tiny, {"method": {"name": name}, "eval": {"bootstrap": 0}}), tmp_path)
    tasks = result.plan.scenario.tasks
    for link, tensors in zip(result.links, chain_tensors(result.plan, tmp_path), strict=True):
        old = [task.rows for task in tasks[: link.task - 1]]
        expected = np.concatenate(old) if old else np.empty(0, dtype=np.int64)
        np.testing.assert_array_equal(np.sort(tensors["memory"].numpy()), np.sort(expected))
        total = len(expected) + len(tasks[link.task - 1].rows)
        assert link.record["images"] == EPOCHS * (total // 16) * 16, "an epoch is one over all images"
