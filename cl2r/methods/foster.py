"""FOSTER: a second backbone learns what the old model gets wrong, then both are compressed into one of the old size.

Task 1 is that of Experience Replay. In task t > 1 the old model b° is frozen, and a new b¹, which starts from it, joins
it: z = F [b°; b¹], with F's rows of old classes copied on b° and drawn at random on b¹, as in the released code. With
`foster.old_on_new=zero` they start at 0 there, so that z = z° for old classes at first.

    boost      L = CE(z/ω, y) + CE(A b¹, y) + w · KD_T(z, z°; old classes)             trains b¹, F, A
    compress   L = −mean Σ_j p_j log softmax(z^s/T)_j,   p_j ∝ ω'_j · softmax(z/T)_j     trains the student b^s, z^s
    ω_c ∝ 1/E_c,   E_c = (1 − β^{n_c}) / (1 − β),   mean of ω over the classes = 1,   n_c rows of class c in T_t.

E_c is the effective number of images of a class. A class with few images has ω > 1: the boosting loss sees its logit
scaled down and so drives the logit itself up, and it is the logit itself that KD and the student see. Compression goes
the same way: a class with few images gets more of the target than the boosted model gave it. This is the direction of
the paper and of the released code, which takes n_c from the data set's name instead of counting. A class without any
row (memory of 0) counts as one with a single row: 1/E_c would be infinite.

The student starts from b° and its classifier and is the model of task t: φ_t keeps its size.
"""

import copy
import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from cl2r.backbones import folded
from cl2r.batches import Batch
from cl2r.config.builtin import FosterOptions
from cl2r.distillation import logit_distillation
from cl2r.heads import TrainableClassifier
from cl2r.methods.base import AuxiliaryOutputs, Losses, Outputs, Stage, TaskData, TaskInfo
from cl2r.methods.incremental import Incremental, Network
from cl2r.seeding import torch_stream


class BoostedClassifier(TrainableClassifier):
    """F over [b°; b¹]."""

    mask: Tensor

    def __init__(
        self, old: TrainableClassifier, classes: int, generator: torch.Generator, options: FosterOptions
    ) -> None:
        rows, dim = old.weight.shape
        super().__init__(2 * dim, old.bias is not None)
        self.weight = nn.Parameter(torch.cat([old.weight.detach(), torch.zeros_like(old.weight)], dim=1))
        if old.bias is not None:
            self.bias = nn.Parameter(old.bias.detach().clone())
        self.grow_to(classes, generator)
        if options.old_on_new == "random":
            bound = 1 / math.sqrt(2 * dim)  # as for the new rows
            drawn = torch.empty(rows, dim).uniform_(-bound, bound, generator=generator)
            self.weight.detach()[:rows, dim:] = drawn
        mask = torch.ones_like(self.weight.detach())
        if options.new_on_old == "zero":
            mask[rows:, :dim] = 0
        self.weight.detach().mul_(mask)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Return z. Masked entries have no gradient, so they stay at zero."""
        return functional.linear(features, self.weight * self.mask, self.bias)


class Boosted(nn.Module):
    """The part that boosting trains: b¹, F and the auxiliary classifier A. Its input includes b°(x)."""

    def __init__(self, phi: nn.Module, classifier: nn.Module, auxiliary: nn.Module) -> None:
        super().__init__()
        self.phi, self.classifier, self.auxiliary = phi, classifier, auxiliary

    def forward(self, x: Tensor, old: Tensor) -> AuxiliaryOutputs:
        """Return b¹(x), the logits of both backbones together, and of the new one alone."""
        features = self.phi(x)
        return AuxiliaryOutputs(features, self.classifier(torch.cat([old, features], dim=1)), self.auxiliary(features))


class WithBoosted(Network):
    """The student, which remains after the task, and the boosted part, which does not."""

    def __init__(self, student: Network, boosted: Boosted) -> None:
        super().__init__(student.phi, student.classifier)
        self.boosted = boosted

    def forward(self, x: Tensor, old: Tensor | None = None) -> Outputs:
        """Return the boosted outputs if b°(x) is given, else the student's."""
        if old is None:
            return super().forward(x)
        outputs: AuxiliaryOutputs = self.boosted(x, old)
        return outputs


def class_weights(counts: npt.NDArray[np.int64], beta: float) -> npt.NDArray[np.float64]:
    """Return ω, the inverse effective numbers with mean 1."""
    inverse = (1 - beta) / (1 - beta ** np.maximum(counts, 1))
    return np.asarray(inverse / inverse.mean(), dtype=np.float64)


def shared_epochs(epochs: int) -> tuple[int, int]:
    """Split epochs between boosting and compression 4 : 3, as 40 + 30 of 70; each gets at least one."""
    boost = max(1, round(epochs * 4 / 7))
    return boost, max(1, epochs - boost)


class Foster(Incremental[FosterOptions]):
    """FOSTER. `teacher` is the old model, b° and z°."""

    keeps_teacher = True  # b° is half of the boosted network
    _boosted: nn.Module | None = None

    def grow(self, task: TaskInfo, data: TaskData) -> None:
        options, seed, classes = self.options, self.config.seed, task.seen_classes
        old = copy.deepcopy(self.network.classifier)
        super().grow(task, data)
        if task.index == 1:
            return
        assert isinstance(old, TrainableClassifier)
        classifier = BoostedClassifier(old, classes, torch_stream(seed, "boosted classifier", task.index), options)
        auxiliary = TrainableClassifier(self.feature_size, self.config.head.bias)
        auxiliary.grow_to(classes, torch_stream(seed, "auxiliary classifier", task.index))
        boosted = Boosted(copy.deepcopy(self.network.phi), classifier, auxiliary).to(self.device)
        self.network, self._boosted = WithBoosted(self.network, boosted), None
        counts = np.bincount(data.labels[np.concatenate([data.new, data.memory])], minlength=classes)
        self.boost_weights, self.compress_weights = (
            torch.from_numpy(class_weights(counts, beta)).float().to(self.device)
            for beta in (options.beta_boost, options.beta_compress)
        )

    def stages(self) -> list[Stage]:
        if self.task.index == 1:
            return super().stages()
        boost, compress = shared_epochs(self.config.optim.epochs)
        boost, compress = self.options.boost_epochs or boost, self.options.compress_epochs or compress
        network, lr = self.network, self.learning_rate
        assert isinstance(network, WithBoosted)
        student = [*network.phi.parameters(), *network.classifier.parameters()]
        return [
            Stage("boost", boost, lr, network.boosted.parameters, self.boost),
            Stage("compress", compress, lr, lambda: student, self.compress, weight_decay=0.0),
        ]

    def boost(self, batch: Batch, network: nn.Module) -> Losses:
        """Return the loss of the first stage."""
        self._boosted = None
        old = self.old_outputs(batch.x)
        out: AuxiliaryOutputs = network(batch.x, old=old.features)
        kd = logit_distillation(out.logits[:, : self.task.old_classes], old.logits, self.options.temperature)
        return {
            "ce": self.cross_entropy(out.logits.float() / self.boost_weights, batch),
            "auxiliary": self.cross_entropy(out.auxiliary, batch),
            "kd": self.options.weight * kd * batch.weight(),
        }

    def compress(self, batch: Batch, network: nn.Module) -> Losses:
        """Return the loss of the second stage: ω' · softmax(z/T), renormalised, is softmax((z + T log ω')/T)."""
        out: Outputs = network(batch.x)
        temperature = self.options.temperature
        target = self.boosted_logits(batch.x).float() + temperature * self.compress_weights.log()
        return {"bkd": logit_distillation(out.logits, target, temperature) * batch.weight()}

    def boosted_logits(self, x: Tensor) -> Tensor:
        """Return z of the boosted network in eval mode."""
        if self._boosted is None:  # it no longer changes, so a frozen copy is made at the first batch
            assert isinstance(self.network, WithBoosted)
            self._boosted = folded(self.network.boosted)
        with torch.no_grad():
            out: AuxiliaryOutputs = self._boosted(x, self.old_outputs(x).features)
        return out.logits

    def end_task(self) -> None:
        self.network = Network(self.network.phi, self.network.classifier)  # the student is the model of the task
        self.teacher = self._boosted = None

    def diagnostics(self) -> dict[str, float]:
        return {"lambda": self.options.weight if self.task.index > 1 else 0.0}
