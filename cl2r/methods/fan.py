"""FAN (Iscen et al., ECCV 2020), adapted: a network ψ_t maps the stored gallery from φ_{t-1} to φ_t.

    stage 1, φ_t and its classifier g_t:  L = CE(z, y; T_t) + λ_t · FD(T_t) [+ w · KD_2 on the old classes' logits]
    stage 2, ψ_t alone, v = φ_{t-1}(x):   L = α · mean(1 − cos(ψ_t(v), φ_t(x))) + CE(g_t(ψ_t(v)), y)

φ_t and g_t, a cosine classifier, are LUCIR's without the margin term, and so is λ_t = λ_base·√(k_0/k_n), because
stage 1 is LUCIR's; `method.lambda_rule=new_over_old` is the rule of CL²R. Every stored feature passes ψ_t after task t,
so that queries of φ_t are compared with ψ_t ∘ … ∘ ψ_{k+1} of a gallery of φ_k; queries are not mapped. Input and output
of ψ have length one.

Ours: ψ(v) = v + MLP(v) with the last layer zero at first. The original is an MLP without the shortcut, which has to
learn the identity before anything else; ours is the identity if the representation did not move.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from cl2r.batches import Batch
from cl2r.config.builtin import FanOptions
from cl2r.distillation import feature_distillation
from cl2r.memory import support_rows
from cl2r.methods.base import Losses, Outputs, Stage, StageAfterPhi, TaskData, TaskInfo, Tensors
from cl2r.methods.lucir import CosineMethod, CosineNetwork
from cl2r.seeding import derive

TEMPERATURE = 2.0  # of KD_2


class Adaptation(nn.Module):
    """ψ: a hidden layer of `width`·d units and a shortcut. Returns unit rows, whatever the length of its input."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(dim, width * dim), nn.Linear(width * dim, dim)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, features: Tensor) -> Tensor:
        unit = functional.normalize(features.float())
        return functional.normalize(unit + self.out(functional.relu(self.hidden(unit))).float())


@dataclass(frozen=True)
class AdaptedOutputs(Outputs):
    """φ_t(x), ψ_t(v), and the logits of ψ_t(v)."""

    adapted: Tensor


class AdaptingNetwork(CosineNetwork):
    """φ, its classifier, and from the second task on ψ."""

    def __init__(self, phi: nn.Module, classifier: nn.Module) -> None:
        super().__init__(phi, classifier)
        self.psi: nn.Module = nn.Identity()

    def forward(self, x: Tensor, old: Tensor | None = None) -> Outputs:
        """Return φ(x) and its logits; given the old features of x, also ψ of those, and the logits of that instead."""
        if old is None:
            return super().forward(x)
        with torch.no_grad():
            features = self.phi(x)
        adapted = self.psi(old)
        return AdaptedOutputs(features, self.classifier(adapted), adapted)


class Fan(CosineMethod[FanOptions]):
    """FAN; its options are `fan.*`, its distillation is `method.*`."""

    network: AdaptingNetwork
    network_type = AdaptingNetwork
    keeps_teacher = True  # ψ_t learns from φ_{t-1}, distillation or not

    def begin_task(self, task: TaskInfo, data: TaskData) -> None:
        super().begin_task(task, data)
        self.data = data
        if task.index > 1:
            self.network.psi = self._fresh_psi(task)

    def _fresh_psi(self, task: TaskInfo) -> nn.Module:
        """Return ψ_t before training; nothing of ψ_{t-1} is kept."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(self.config.seed, "psi", task.index))
            return Adaptation(self.feature_size, self.options.width).to(self.device)

    def stages(self) -> list[Stage]:
        network, options = self.network, self.options
        train = self.train_stage(network.phi, network.classifier)
        if self.task.index == 1:
            return [train]
        rows = self.data.new, self.data.memory if options.pairs == "task+memory" else self.data.memory[:0]
        psi, loss = network.psi.parameters, self.adaptation_loss
        return [
            train,
            StageAfterPhi("adapt", options.epochs, options.lr, psi, loss, rows, optimiser="adam", weight_decay=0.0),
        ]

    def loss(self, batch: Batch, network: nn.Module) -> Losses:
        out: Outputs = network(batch.x)
        losses = {"ce": self.cross_entropy(out.logits, batch), **self.distillation(batch, out.features)}
        if self.task.index > 1 and self.options.kd_weight > 0:
            losses["kd"] = self.options.kd_weight * self.logit_distillation(out.logits, batch, TEMPERATURE)
        return losses

    def adaptation_loss(self, batch: Batch, network: nn.Module) -> Losses:
        """Return α · mean(1 − cos(ψ_t(v), φ_t(x))) and CE(g_t(ψ_t(v)), y)."""
        out: AdaptedOutputs = network(batch.x, self.old_outputs(batch.x).features)
        align = feature_distillation(out.adapted, out.features) * batch.weight()
        return {"align": self.options.alpha * align, "adapted_ce": self.cross_entropy(out.logits, batch)}

    def end_task(self) -> None:
        if self.task.index == 1:
            return
        assert isinstance(self.teacher, AdaptingNetwork)
        rows = support_rows(self.data.new, self.data.memory, self.config.seed, self.task.index)
        old, now = self.data.apply(self.teacher.phi, rows), self.data.apply(self.extractor(), rows)
        self.values["adapt_cosine"] = float(functional.cosine_similarity(self.adapt_gallery(old), now).mean())

    def adapt_gallery(self, features: Tensor) -> Tensor:
        with torch.no_grad():
            adapted: Tensor = self.network.psi(features)
        return adapted

    def restore(self, tensors: Tensors, task: TaskInfo) -> None:
        # No later task needs ψ_t, but mapping a gallery to the space of φ_t does.
        self.network.psi = self._fresh_psi(task) if task.index > 1 else nn.Identity()
        super().restore(tensors, task)
