"""The six cells once more, the slow and obvious way, against the engine.

The oracle shares only the addresses of the random streams and the initial weights with the engine. It multiplies with
the dense simplex matrix, runs an unfolded teacher on the whole batch, finds memory rows by looking them up in the
memory, crops image by image, walks torch's own SGD and scheduler, and keeps everything in the default memory layout.
"""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cl2r.augment import draw
from cl2r.batches import epoch_batches
from cl2r.config.builtin import ABLATION_CELLS
from cl2r.data.scenario import Task
from cl2r.engine.links import LinkStore
from cl2r.engine.plan import Plan
from cl2r.memory import sample_task
from cl2r.methods.base import build_method
from cl2r.seeding import numpy_stream, torch_stream
from tests.support.quick import quick_config, train

LEARNING_RATES = (0.003, 0.002, 0.004)  # low, since training amplifies rounding
TOLERANCE = 1e-3
"""A share of the length of a feature. Most runs end within 4e-6 of the plain loop; but rounding may flip a ReLU, on
another machine elsewhere, and one run in ten then ends far off. A wrong formula is off at every learning rate."""


def dense_simplex(num_classes: int) -> Tensor:
    n = num_classes - 1
    alpha = (1 - np.sqrt(n + 1)) / n
    vertices = torch.cat([torch.eye(n), alpha * torch.ones(1, n)])
    vertices = vertices - vertices.mean(0)
    return vertices / vertices.norm(dim=1, keepdim=True)


def augmented(plan: Plan, rows: np.ndarray, generator: torch.Generator) -> Tensor:
    dataset, padding = plan.dataset, plan.config.augment.padding
    choice = draw(len(rows), plan.config.augment, generator)
    images = []
    for row, (y, x) in zip(rows, choice.offsets.tolist(), strict=True):
        padded = np.pad(dataset.x_train.all()[row], ((padding, padding), (padding, padding), (0, 0)))
        height, width = dataset.image_size
        images.append(padded[y : y + height, x : x + width])
    batch = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous().float() / 255
    mean, std = (torch.tensor(v)[None, :, None, None] for v in dataset.moments)
    return (batch - mean) / std


def grown(classifier: Tensor, task: Task, seed: int) -> Tensor:
    """Rows for the classes of the task, uniform within 1/√d as in torch's own linear layer; the old rows first."""
    dim, bound = classifier.shape[1], classifier.shape[1] ** -0.5
    stream = torch_stream(seed, "classifier", task.index)
    fresh = torch.empty(len(task.labels), dim).uniform_(-bound, bound, generator=stream)
    old = classifier.detach() if task.index > 1 else torch.empty(0, dim)
    return torch.cat([old, fresh]).requires_grad_()


def plain_chain(plan: Plan) -> nn.Module:
    """φ_T by Algorithm 1."""
    config = plan.config
    phi = copy.deepcopy(build_method(config, plan.dataset.channels, plan.num_outputs).network.phi)
    phi = phi.to(memory_format=torch.contiguous_format)
    classifier, memory = dense_simplex(plan.num_outputs), np.empty(0, dtype=np.int64)
    trainable = config.method.classifier == "trainable"
    labels = torch.from_numpy(plan.scenario.labels)
    for task in plan.scenario.tasks:
        teacher = copy.deepcopy(phi).eval()
        if trainable:
            classifier = grown(classifier, task, config.seed)
        optimiser = torch.optim.SGD(
            [*phi.parameters(), *([classifier] if trainable else [])],
            config.optim.lr,
            momentum=config.optim.momentum,
            weight_decay=config.optim.weight_decay,
        )
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, list(config.optim.milestones), config.optim.gamma)
        for epoch in range(config.optim.epochs):
            phi.train()
            rng = numpy_stream(config.seed, "batches", task.index, 0, epoch)
            generator = torch_stream(config.seed, "augmentation", task.index, 0, epoch)
            for rows in epoch_batches(config.batches.batching, task.rows, memory, config.batches.size, rng):
                x, y = augmented(plan, rows, generator), labels[rows]
                features = phi(x)
                loss = functional.cross_entropy(features @ classifier.T, y)
                is_memory = torch.from_numpy(np.isin(rows, memory))
                if task.index > 1 and config.method.fd != "none":
                    with torch.no_grad():
                        old = teacher(x)
                    gap = 1 - functional.cosine_similarity(features, old)
                    weight = config.method.lambda_base * np.sqrt(len(task.labels) / task.labels.start)
                    loss = loss + weight * (gap if config.method.fd == "all" else gap[is_memory]).mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            schedule.step()
        quota = config.memory.per_class
        new = sample_task(task.rows, plan.scenario.labels[task.rows], quota, "random", config.seed, task.index)
        memory = np.concatenate([memory, new])
    return phi.eval()


def open_features(phi: nn.Module, plan: Plan) -> Tensor:
    dataset = plan.dataset
    mean, std = (torch.tensor(v)[None, :, None, None] for v in dataset.moments)
    with torch.no_grad():
        features: Tensor = phi((torch.from_numpy(dataset.x_open.all()).permute(0, 3, 1, 2).float() / 255 - mean) / std)
    return features


def gap(one: Tensor, two: Tensor) -> float:
    """The largest difference of a row, in lengths of a mean row."""
    return float((one - two).norm(dim=1).max() / two.norm(dim=1).mean())


def trained(tiny: Path, root: Path, method: str, centre: bool, rate: float = LEARNING_RATES[0]) -> tuple[Plan, Tensor]:
    head, optim = {"centre": centre}, {"lr": rate}
    plan = train(quick_config(tiny, {"method": {"name": method}, "head": head, "optim": optim}), root).plan
    return plan, LinkStore(root).features(plan.keys[-1])["open"]


@pytest.mark.parametrize("method", ABLATION_CELLS)
@pytest.mark.parametrize("centre", [False, True])
def test_the_engine_trains_what_a_plain_loop_trains(tiny: Path, tmp_path: Path, method: str, centre: bool) -> None:
    def off(rate: float) -> float:
        plan, features = trained(tiny, tmp_path, method, centre, rate)
        return gap(features, open_features(plain_chain(plan), plan))

    assert any(off(rate) < TOLERANCE for rate in LEARNING_RATES)


def test_the_tolerance_tells_cells_apart(tiny: Path, tmp_path: Path) -> None:
    fixed, all_rows, memory_rows = (trained(tiny, tmp_path, name, True)[1] for name in ("fixed", "fixed_fd", "cl2r"))
    for one, two in ((fixed, all_rows), (fixed, memory_rows), (all_rows, memory_rows)):
        assert gap(one, two) > 3 * TOLERANCE
