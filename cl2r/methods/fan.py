"""FAN (Iscen et al., ECCV 2020), adapted: a network ψ_t carries the stored gallery from φ_{t-1} to φ_t.

    stage 1, φ_t and its classifier g_t:  L = CE(z, y; T_t) + λ_t · FD(T_t) [+ w · KD_2 on the old classes' logits]
    stage 2, ψ_t alone, v = φ_{t-1}(x):   L = α · mean(1 − cos(ψ_t(v), φ_t(x))) + CE(g_t(ψ_t(v)), y)

φ_t and g_t, a cosine classifier, are LUCIR's without the margin term. Every stored feature passes ψ_t after task t, so
that a gallery of φ_k meets queries of φ_t as ψ_t ∘ … ∘ ψ_{k+1}; queries are untouched. Input and output of ψ have
length one.

Ours: ψ(v) = v + MLP(v) with the last layer zero at first. The original is an MLP without the shortcut, which has to
learn the identity before anything else; ours is the identity where the representation did not move.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from cl2r.config import Config
from cl2r.distillation import feature_distillation
from cl2r.engine.figures import support_rows
from cl2r.errors import InputError
from cl2r.methods.base import Batch, Losses, Outputs, Stage, TaskData, TaskInfo
from cl2r.methods.lucir import CosineClassifier, CosineNetwork, Lucir
from cl2r.methods.options import FanOptions
from cl2r.seeding import derive

TEMPERATURE = 2.0  # of KD_2
PSI = "psi."


class Adaptation(nn.Module):
    """ψ: a hidden layer of `width`·d units beside a shortcut; unit rows out, whatever the length of the rows in."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(dim, width * dim), nn.Linear(width * dim, dim)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, features: Tensor) -> Tensor:
        """ψ(v), of length one."""
        unit = functional.normalize(features.float())
        return functional.normalize(unit + self.out(functional.relu(self.hidden(unit))).float())


@dataclass(frozen=True)
class AdaptedOutputs(Outputs):
    """φ_t(x), ψ_t(v), and the logits of ψ_t(v)."""

    adapted: Tensor


class AdaptingNetwork(CosineNetwork):
    """φ, its classifier, and ψ, which is nothing in the first task."""

    def __init__(self, phi: nn.Module, classifier: CosineClassifier) -> None:
        super().__init__(phi, classifier)
        self.psi: nn.Module = nn.Identity()

    def forward(self, x: Tensor, old: Tensor | None = None) -> Outputs:
        """φ(x) and its logits; with the old model's features of x also ψ of them, and logits of that instead."""
        if old is None:
            return super().forward(x)
        with torch.no_grad():
            features = self.phi(x)
        adapted = self.psi(old)
        return AdaptedOutputs(features, self.classifier(adapted), adapted)


class Fan(Lucir):
    """FAN; its options are `fan.*`, its distillation is `method.*`."""

    network: AdaptingNetwork

    def __init__(self, config: Config, channels: int, num_outputs: int) -> None:
        super().__init__(config, channels, num_outputs)
        self.options = config.section(FanOptions)
        self.figures: dict[str, float] = {}

    def build_network(self, phi: nn.Module, classifier: CosineClassifier) -> AdaptingNetwork:
        """What the loop trains."""
        return AdaptingNetwork(phi, classifier)

    @property
    def imprints(self) -> bool:
        """Always, as LUCIR does by default."""
        return True

    def needs_teacher(self, task: TaskInfo) -> bool:
        """ψ_t learns from φ_{t-1}, distillation or not."""
        return True

    def begin_task(self, task: TaskInfo, data: TaskData) -> None:
        """As LUCIR; and a fresh ψ_t, which owes nothing to ψ_{t-1}."""
        super().begin_task(task, data)
        self.data, self.figures = data, {}
        if task.index > 1:
            self.network.psi = self._fresh_psi(task)

    def _fresh_psi(self, task: TaskInfo) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(self.config.seed, "psi", task.index))
            return Adaptation(self.feature_size, self.options.width).to(self.device)

    def stages(self) -> list[Stage]:
        """φ_t with its classifier, then, where there is an old model, ψ_t with all else frozen."""
        train = Stage("train", self.config.optim.epochs, self.learning_rate, self._model_parameters, self.loss)
        return [train] if self.task.index == 1 else [train, self._adapt()]

    def _model_parameters(self) -> list[nn.Parameter]:
        return [*self.network.phi.parameters(), *self.network.classifier.parameters()]

    def _adapt(self) -> Stage:
        new, memory = self.data.new, self.data.memory
        return Stage(
            "adapt",
            self.options.epochs,
            self.options.lr,
            self.network.psi.parameters,
            self.adaptation_loss,
            rows=(new, memory if self.options.pairs == "task+memory" else memory[:0]),
            batching="natural",
            statistics=False,
            schedule="constant",
            optimiser="adam",
            weight_decay=0.0,
        )

    def loss(self, batch: Batch, network: nn.Module) -> Losses:
        """CE + λ_t · FD, and KD_2 where it has a weight."""
        out: Outputs = network(batch.x)
        losses = {"ce": self.cross_entropy(out.logits, batch), **self.distillation(batch, out.features)}
        if self.task.index == 1 or self.options.kd_weight == 0:
            return losses
        return {**losses, "kd": self.options.kd_weight * self.logit_distillation(out.logits, batch, TEMPERATURE)}

    def adaptation_loss(self, batch: Batch, network: nn.Module) -> Losses:
        """α · mean(1 − cos(ψ_t(v), φ_t(x))) + CE(g_t(ψ_t(v)), y)."""
        out: AdaptedOutputs = network(batch.x, self.old_outputs(batch.x).features)
        align = feature_distillation(out.adapted, out.features) * batch.weight(len(batch.y))
        return {"align": self.options.alpha * align, "adapted_ce": self.cross_entropy(out.logits, batch)}

    def end_task(self) -> None:
        """See how near ψ_t brings old features to new ones, on images of T_t without augmentation."""
        if self.task.index == 1:
            return
        assert isinstance(self.teacher, AdaptingNetwork)
        rows = support_rows(self.data.new, self.data.memory, self.config.seed, self.task.index)
        old = self.data.apply(self.teacher.phi, rows)
        now = self.data.apply(self.extractor(), rows)
        cosine = functional.cosine_similarity(self.adapt_gallery(old), now).mean()
        self.figures = {"adapt_cosine": float(cosine)}

    def metrics(self) -> dict[str, float]:
        """λ_t, η, and from task 2 on the mean of cos(ψ_t(v), φ_t(x))."""
        return {**super().metrics(), **self.figures}

    def adapt_gallery(self, features: Tensor) -> Tensor:
        """ψ_t of stored features, of length one; the features themselves at task 1."""
        if self.task.index > 1 and not isinstance(self.network.psi, Adaptation):
            raise InputError(f"link {self.task.index} of this run keeps no ψ (an earlier version wrote it): train anew")
        with torch.no_grad():
            adapted: Tensor = self.network.psi(features)
        return adapted

    def restore(self, tensors: dict[str, Tensor], task: TaskInfo) -> None:
        """As LUCIR, and ψ_t, which no later task needs, but whoever brings a gallery to the space of φ_t."""
        has_psi = any(name.startswith(PSI) for name in tensors)
        self.network.psi = self._fresh_psi(task) if has_psi else nn.Identity()
        super().restore(tensors, task)
