"""BiC: distillation from bias-corrected logits, then a linear correction of the new outputs on held-out rows.

Each task keeps a pair (α, β) for the outputs of its classes. With z the logits after the pairs of all tasks, ẑ° those
of the model before, n old and m new classes and λ = n/(n+m):

    stage 1, paper:     L = (1−λ) · CE(z, y) + λ · KD_T(z, ẑ°; old)
    stage 1, inclearn:  L = CE(z, y) + mean over rows and old classes of BCE(σ(z/T), σ(ẑ°/T))
    stage 2:            L = CE(z, y) + d · β²/2

The new pair is (1, 0) in stage 1, and stage 2 trains it alone, on as many rows of an old class as of a new one, none of
which stage 1 sees; then it is fixed. As in the authors' code stage 2 lowers its rate as stage 1 does (here stretched
over its epochs), does not augment images, and has its own rows: those of a class are set apart in the class's own task
already. Two exceptions: the first task, which BiC shares with other methods, trains on all its rows, and a herded
memory, which is not known before φ_t is, may keep others than those set apart. Old pairs are part of both models: if
only the teacher had them, the network would learn them, and the next teacher would apply them a second time. No pair
changes φ.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cl2r.batches import Batch
from cl2r.config.builtin import BicOptions
from cl2r.distillation import logit_distillation
from cl2r.memory import sample_task
from cl2r.methods.base import Losses, Outputs, Rows, Stage, StageAfterPhi, TaskData, TaskInfo, Tensors
from cl2r.methods.incremental import Incremental, Network
from cl2r.seeding import numpy_stream

SAVE_EVERY = 20  # epochs of stage 2: each is one or two batches, so saving every one would take longer than training it


class Correction(nn.Module):
    """(α, β) of every task: fixed for old tasks, stored once per class; trained for the new one."""

    old_alpha: Tensor
    old_beta: Tensor

    def __init__(self, old_alpha: Tensor, old_beta: Tensor) -> None:
        super().__init__()
        self.register_buffer("old_alpha", old_alpha.detach().clone())
        self.register_buffer("old_beta", old_beta.detach().clone())
        self.alpha = nn.Parameter(torch.ones(1, device=old_alpha.device))
        self.beta = nn.Parameter(torch.zeros(1, device=old_alpha.device))

    def forward(self, logits: Tensor) -> Tensor:
        """Return α z + β, each output with the pair of its task."""
        known = len(self.old_alpha)
        old, new = logits[:, :known].float(), logits[:, known:].float()
        return torch.cat([self.old_alpha * old + self.old_beta, self.alpha * new + self.beta], 1)

    def all_classes(self, classes: int) -> tuple[Tensor, Tensor]:
        """Return α and β of every class seen, for the time when the current task is an old one."""
        new = classes - len(self.old_alpha)
        alpha, beta = self.alpha.detach().expand(new), self.beta.detach().expand(new)
        return torch.cat([self.old_alpha, alpha]), torch.cat([self.old_beta, beta])


class CorrectedNetwork(Network):
    """φ, a classifier, and from task 2 on the correction of its logits."""

    def __init__(self, phi: nn.Module, classifier: nn.Module) -> None:
        super().__init__(phi, classifier)
        self.correction: Correction | None = None

    def forward(self, x: Tensor) -> Outputs:
        out = super().forward(x)
        return out if self.correction is None else Outputs(out.features, self.correction(out.logits))


@dataclass(frozen=True)
class Split:
    """T_t in two: new and memory rows for stage 1 and for stage 2."""

    training: tuple[Rows, Rows]
    validation: tuple[Rows, Rows]


class Bic(Incremental[BicOptions]):
    """Both variants: `bic.variant` chooses the loss of stage 1."""

    network: CorrectedNetwork
    network_type = CorrectedNetwork
    keeps_teacher = True
    split: Split | None = None

    def begin_task(self, task: TaskInfo, data: TaskData) -> None:
        super().begin_task(task, data)
        self.split = None
        if task.index == 1:
            return
        self.weight = task.old_classes / task.seen_classes if self.options.variant == "paper" else 1.0
        before, old, device = self.network.correction, task.old_classes, self.device
        # The first task has nothing to correct.
        pairs = before.all_classes(old) if before else (torch.ones(old, device=device), torch.zeros(old, device=device))
        self.network.correction = Correction(*pairs)
        if self.options.bias_epochs:
            quota, seed = self.config.memory.per_class, self.config.seed
            kept = sample_task(data.new, data.labels[data.new], quota, "random", seed, task.index)
            self.split = hold_out(data, kept, self.options.validation, seed)

    def stages(self) -> list[Stage]:
        network, options, split = self.network, self.options, self.split
        first = self.train_stage(network.phi, network.classifier, rows=split.training if split else None)
        if split is None:
            return [first]
        assert network.correction is not None
        epochs, lr, pair = options.bias_epochs, options.bias_lr, network.correction.parameters
        loss, rows = self.bias_loss, split.validation
        return [
            first,
            StageAfterPhi(
                *("bias", epochs, lr, pair, loss, rows),
                schedule="optim",
                augmented=False,
                weight_decay=0.0,
                save_every=SAVE_EVERY,
            ),
        ]

    def loss(self, batch: Batch, network: nn.Module) -> Losses:
        """Return CE and logit distillation, the loss of stage 1."""
        if self.teacher is None:
            return super().loss(batch, network)
        out: Outputs = network(batch.x)
        old = self.old_outputs(batch.x)
        paper = self.options.variant == "paper"
        distil, kept = (logit_distillation, 1 - self.weight) if paper else (sigmoid_distillation, 1.0)
        distance = distil(out.logits[:, : self.task.old_classes], old.logits, self.options.temperature)
        return {"ce": kept * self.cross_entropy(out.logits, batch), "kd": self.weight * distance * batch.weight()}

    def bias_loss(self, batch: Batch, network: nn.Module) -> Losses:
        """Return CE of the corrected logits and d · β²/2, the loss of stage 2."""
        out: Outputs = network(batch.x)
        assert self.network.correction is not None
        total = functional.cross_entropy(out.logits.float(), batch.y, reduction="sum")
        # The same on every worker, with rows or without.
        decay = self.options.bias_decay * self.network.correction.beta.square().sum() / 2
        return {"bias_ce": total / max(len(batch.y), 1) * batch.weight(), "bias_decay": decay}

    def diagnostics(self) -> dict[str, float]:
        correction = self.network.correction
        pair = {} if correction is None else {"alpha": correction.alpha.item(), "beta": correction.beta.item()}
        return super().diagnostics() | pair

    def restore(self, tensors: Tensors, task: TaskInfo) -> None:
        # A first task has no correction, whichever method trained it.
        shape = tensors.get("correction.old_alpha")
        self.network.correction = None if shape is None else Correction(torch.ones_like(shape), torch.zeros_like(shape))
        super().restore(tensors, task)


def sigmoid_distillation(new: Tensor, old: Tensor, temperature: float) -> Tensor:
    """Return the mean over rows and classes of BCE(σ(z/T), σ(z°/T)). No rows: 0."""
    with torch.autocast(new.device.type, enabled=False):
        target = torch.sigmoid(old.float() / temperature)
        total = functional.binary_cross_entropy_with_logits(new.float() / temperature, target, reduction="sum")
        return total / max(new.numel(), 1)


def hold_out(data: TaskData, kept: Rows, share: float, seed: int) -> Split | None:
    """Split off a share of the memory rows of every old class and of the `kept` rows of every new class.

    `kept` are the rows of D_t that the memory will keep. Return None if there are no rows to spare. A class gives at
    least one row if it has two, and keeps at least one. Every class has its own random stream, so that its exemplars
    are split alike in every task.
    """
    held = []
    for rows in (kept, data.memory):
        parts = [rows[:0]]
        for label in np.unique(data.labels[rows]):
            own = rows[data.labels[rows] == label]
            count = min(max(1, round(share * len(own))), len(own) - 1)
            parts.append(numpy_stream(seed, "bic validation", int(label)).permutation(own)[:count])
        held.append(np.concatenate(parts))
    new, memory = held
    if not len(new) or not len(memory):
        return None
    return Split((data.new[~np.isin(data.new, new)], data.memory[~np.isin(data.memory, memory)]), (new, memory))
