"""BiC: distillation from bias-corrected logits, then a linear correction of the new outputs on held-out rows.

Each task keeps a pair (α, β) for the outputs of its classes. With z the logits after the pairs of all tasks, ẑ° those
of the model before, n old and m new classes and λ = n/(n+m):

    stage 1, paper:     L = (1−λ) · CE(z, y) + λ · KD_T(z, ẑ°; old)
    stage 1, inclearn:  L = CE(z, y) + mean over rows and old classes of BCE(σ(z/T), σ(ẑ°/T))
    stage 2:            L = CE(z, y) + d · β²/2

The new pair is (1, 0) in stage 1, and stage 2 trains it alone, on as many rows of an old class as of a new one, none of
which stage 1 sees; then it is fixed for good. Old pairs are part of both models: if they were the teacher's only, the
network would learn them, and the next teacher would apply them a second time. No pair touches φ.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from cl2r.config import Config
from cl2r.distillation import logit_distillation
from cl2r.methods.base import Batch, Losses, Outputs, Rows, Stage, TaskData, TaskInfo
from cl2r.methods.incremental import Incremental, Network
from cl2r.methods.options import BicOptions
from cl2r.seeding import numpy_stream

SAVE_EVERY = 20
"""Epochs of stage 2: each is one batch or two, and writing them down would take longer than training them."""


class Correction(nn.Module):
    """(α, β) of every task: fixed for the old ones, where each class has a copy of its task's; trained for the new."""

    old_alpha: Tensor
    old_beta: Tensor

    def __init__(self, old_alpha: Tensor, old_beta: Tensor) -> None:
        super().__init__()
        self.register_buffer("old_alpha", old_alpha.detach().clone())
        self.register_buffer("old_beta", old_beta.detach().clone())
        self.alpha = nn.Parameter(torch.ones(1, device=old_alpha.device))
        self.beta = nn.Parameter(torch.zeros(1, device=old_alpha.device))

    def forward(self, logits: Tensor) -> Tensor:
        """α z + β, each output with its task's."""
        known = len(self.old_alpha)
        old, new = logits[:, :known].float(), logits[:, known:].float()
        return torch.cat([self.old_alpha * old + self.old_beta, self.alpha * new + self.beta], 1)

    def all_classes(self, classes: int) -> tuple[Tensor, Tensor]:
        """α and β of each of the classes seen, once the current task is an old one."""
        new = classes - len(self.old_alpha)
        alpha, beta = self.alpha.detach().expand(new), self.beta.detach().expand(new)
        return torch.cat([self.old_alpha, alpha]), torch.cat([self.old_beta, beta])


class CorrectedNetwork(Network):
    """φ, a classifier, and from task 2 on the correction of its logits; before, the state is that of any method."""

    def __init__(self, phi: nn.Module, classifier: nn.Module) -> None:
        super().__init__(phi, classifier)
        self.correction: Correction | None = None

    def forward(self, x: Tensor) -> Outputs:
        """φ(x) and its corrected logits."""
        out = super().forward(x)
        return out if self.correction is None else Outputs(out.features, self.correction(out.logits))


@dataclass(frozen=True)
class Split:
    """T_t in two: new and memory rows of stage 1, and those of stage 2."""

    training: tuple[Rows, Rows]
    validation: tuple[Rows, Rows]


class Bic(Incremental):
    """Both variants: `bic.variant` chooses the loss of stage 1."""

    network: CorrectedNetwork

    def __init__(self, config: Config, channels: int, num_outputs: int) -> None:
        super().__init__(config, channels, num_outputs)
        self.network = CorrectedNetwork(self.network.phi, self.network.classifier)
        self.options = config.section(BicOptions)
        self._paper = self.options.variant == "paper"
        self.split: Split | None = None

    def needs_teacher(self, task: TaskInfo) -> bool:
        """Always: its corrected logits are distilled."""
        return True

    def begin_task(self, task: TaskInfo, data: TaskData) -> None:
        """The pair of task t-1 becomes an old one, the new task's starts as (1, 0)."""
        super().begin_task(task, data)
        self.split = None
        if task.index == 1:
            return
        self.weight = task.old_classes / task.seen_classes if self._paper else 1.0
        self.network.correction = self._next_correction(task.old_classes)
        if self.options.bias_epochs:
            self.split = hold_out(data, self.options.validation, self.config.seed)

    def _next_correction(self, old_classes: int) -> Correction:
        before = self.network.correction
        if before is None:  # the first task has nothing to correct
            return Correction(torch.ones(old_classes, device=self.device), torch.zeros(old_classes, device=self.device))
        return Correction(*before.all_classes(old_classes))

    def stages(self) -> list[Stage]:
        """The network, then (α, β); without rows to spare the network only."""
        network, epochs = self.network, self.config.optim.epochs
        trained = [*network.phi.parameters(), *network.classifier.parameters()]
        rows = self.split.training if self.split else None
        first = Stage("train", epochs, self.learning_rate, lambda: trained, self.loss, rows)
        return [first, self._bias_stage(self.split)] if self.split else [first]

    def _bias_stage(self, split: Split) -> Stage:
        assert self.network.correction is not None
        return Stage(
            "bias",
            self.options.bias_epochs,
            self.options.bias_lr,
            self.network.correction.parameters,
            self.bias_loss,
            split.validation,
            batching="natural",
            statistics=False,
            schedule="constant",
            weight_decay=0.0,
            save_every=SAVE_EVERY,
        )

    def loss(self, batch: Batch, network: nn.Module) -> Losses:
        """Stage 1: CE and logit distillation."""
        if self.teacher is None:
            return super().loss(batch, network)
        out: Outputs = network(batch.x)
        old = self.old_outputs(batch.x)
        distil, kept = (logit_distillation, 1 - self.weight) if self._paper else (sigmoid_distillation, 1.0)
        distance = distil(out.logits[:, : self.task.old_classes], old.logits, self.options.temperature)
        return {
            "ce": kept * self.cross_entropy(out.logits, batch),
            "kd": self.weight * distance * batch.weight(len(batch.y)),
        }

    def bias_loss(self, batch: Batch, network: nn.Module) -> Losses:
        """Stage 2: CE with the new pair in training; β²/2 is the same on every worker, rows or not."""
        out: Outputs = network(batch.x)
        assert self.network.correction is not None
        total = functional.cross_entropy(out.logits.float(), batch.y, reduction="sum")
        decay = self.options.bias_decay * self.network.correction.beta.square().sum() / 2
        return {"bias_ce": total / max(len(batch.y), 1) * batch.weight(len(batch.y)), "bias_decay": decay}

    def metrics(self) -> dict[str, float]:
        """The weight of the distillation, and (α, β) of the task."""
        correction = self.network.correction
        if correction is None:
            return super().metrics()
        return {**super().metrics(), "alpha": correction.alpha.item(), "beta": correction.beta.item()}

    def restore(self, tensors: dict[str, Tensor], task: TaskInfo) -> None:
        """The first task leaves no correction, in whatever method it was trained."""
        shape = tensors.get("correction.old_alpha")
        self.network.correction = None if shape is None else Correction(torch.ones_like(shape), torch.zeros_like(shape))
        super().restore(tensors, task)


def sigmoid_distillation(new: Tensor, old: Tensor, temperature: float) -> Tensor:
    """Mean over rows and classes of BCE(σ(z/T), σ(z°/T)). No rows: 0."""
    with torch.autocast(new.device.type, enabled=False):
        target = torch.sigmoid(old.float() / temperature)
        total = functional.binary_cross_entropy_with_logits(new.float() / temperature, target, reduction="sum")
        return total / max(new.numel(), 1)


def hold_out(data: TaskData, share: float, seed: int) -> Split | None:
    """A share of the memory rows of every old class, and of every new class as many; None if there are none to spare.

    A class gives at least one row if it has two, and keeps at least one. Where old classes give different numbers, new
    ones give their mean. A class has a stream of its own, so that its exemplars are split alike in every task.
    """
    old = {label: _to_spare(rows, share) for label, rows in _by_class(data.memory, data.labels).items()}
    if not any(old.values()):
        return None
    mean = max(1, round(sum(old.values()) / len(old)))
    new = {label: min(mean, len(rows) - 1) for label, rows in _by_class(data.new, data.labels).items()}
    if not any(new.values()):
        return None
    held = _draw(data.new, data.labels, new, seed), _draw(data.memory, data.labels, old, seed)
    return Split((data.new[~np.isin(data.new, held[0])], data.memory[~np.isin(data.memory, held[1])]), held)


def _to_spare(rows: Rows, share: float) -> int:
    return min(max(1, round(share * len(rows))), len(rows) - 1)


def _by_class(rows: Rows, labels: npt.NDArray[np.int64]) -> dict[int, Rows]:
    return {int(label): rows[labels[rows] == label] for label in np.unique(labels[rows])}


def _draw(rows: Rows, labels: npt.NDArray[np.int64], counts: dict[int, int], seed: int) -> Rows:
    """So many rows of each class."""
    drawn = [
        numpy_stream(seed, "bic validation", label).permutation(members)[: counts[label]]
        for label, members in _by_class(rows, labels).items()
    ]
    return np.concatenate(drawn)
