"""Every method learns: after its first task its logits name the classes of its images, and little of its loss is left.

A method can pass all other tests of this folder although its classifier cannot express what its loss asks for.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cl2r.batches import Batch
from cl2r.config.layers import override
from cl2r.config.methods import METHODS
from cl2r.engine.chain import training_images
from cl2r.engine.loop import TaskLoop
from cl2r.engine.plan import plan_run
from cl2r.methods.base import TaskData, TaskInfo, build_method
from tests.support.quick import no_data, quick_config

EPOCHS = 6
ACCURACY = 0.95
LOSS_LEFT = 0.05
"""Largest share of the loss before the first step. All methods are below 0.01."""


def learnt(data: Path, name: str, centre: bool, precision: str, *settings: str) -> tuple[float, float]:
    """Train one task; return the accuracy of the logits on its images, and the share of the first loss that is left."""
    layer: dict[str, Any] = {"method": {"name": name}, "head": {"centre": centre}, "scenario": {"n_tasks": 1}}
    layer["optim"] = {"epochs": EPOCHS, "milestones": [EPOCHS - 2], "precision": precision}
    plan = plan_run(quick_config(data, layer, *map(override, settings)))
    method, images = build_method(plan.config, 1, plan.num_outputs), training_images(plan, torch.device("cpu"), 0)
    (task,), none = plan.scenario.tasks, np.empty(0, dtype=np.int64)
    (pixels,) = images.pixels.stream([task.rows])
    batch = Batch.of_one_worker(images.normalise(pixels), images.labels[torch.from_numpy(task.rows)], [])
    method.begin_task(
        TaskInfo(1, 0, len(task.labels), 0), TaskData(task.rows, none, plan.scenario.labels, no_data().apply)
    )

    def loss() -> float:
        with torch.no_grad():
            return float(sum(method.loss(batch, method.network.eval()).values()))

    before = loss()
    TaskLoop(plan.config, images, lambda report: None).run(method, task.rows, none, None, lambda saved: None)
    after = loss()
    with torch.no_grad():
        logits = method.network(batch.x).logits
    return float((logits.argmax(1) == batch.y).float().mean()), after / before


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("centre", [False, True], ids=["as it is", "centred"])
@pytest.mark.parametrize("name", METHODS)
def test_it_learns_its_first_task(name: str, centre: bool, precision: str, tiny: Path) -> None:
    accuracy, left = learnt(tiny, name, centre, precision)
    assert accuracy >= ACCURACY
    assert left <= LOSS_LEFT


def test_a_classifier_that_cannot_express_the_targets_is_found(tiny: Path) -> None:
    """iCaRL without bias on centred features: the highest logit is right, but no sigmoid can say no to most images."""
    accuracy, left = learnt(tiny, "icarl", True, "fp32", "head.bias=false")
    assert accuracy >= ACCURACY, "accuracy alone would not find it"
    assert left > 3 * LOSS_LEFT
