"""DER, cut to the old dimensions: a diagnostic of a representation that never re-indexes and never improves.

φ_t = [b_1; …; b_t]: task t > 1 freezes b_1..b_{t-1} with their batch norms, adds b_t, which starts from b_{t-1} as in
published code, and trains

    L = CE(z, y; T_t) + w · CE(A b_t, a),    z = W φ_t,    a = 0 for every old class, 1..m for the new ones.

W keeps the old classifier as the block of old classes and old dimensions, and its bias; the rest is drawn at random,
new biases are 0. The auxiliary
classifier A makes b_t separate the new classes from each other and from the old ones. At the end of task t > 1 the new
rows of W are scaled to the mean length of the old ones. The pruning of DER's paper is left out.

The first k·d entries of φ_t are φ_k, bit for bit: hence C[t,k] = C[k,k], BC = 0 and, counted strictly, AC = 0.
"""

import copy
from collections.abc import Iterable
from typing import Self

import torch
from torch import Tensor, nn

from cl2r.backbones import folded
from cl2r.batches import Batch
from cl2r.config.builtin import DerOptions
from cl2r.heads import TrainableClassifier
from cl2r.methods.base import AuxiliaryOutputs, Losses, Stage, TaskData, TaskInfo, Tensors
from cl2r.methods.incremental import Incremental, Network
from cl2r.seeding import torch_stream


class Concatenation(nn.Module):
    """[b_1(x); …; b_t(x)]."""

    def __init__(self, extractors: Iterable[nn.Module]) -> None:
        super().__init__()
        self.extractors = nn.ModuleList(extractors)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([extractor(x) for extractor in self.extractors], dim=1)


class Expanded(Network):
    """b_1..b_{t-1} frozen, b_t as `phi`, the classifier over all of them, and A during the task."""

    def __init__(self, frozen: Iterable[nn.Module], phi: nn.Module, classifier: nn.Module) -> None:
        super().__init__(phi, classifier)
        self.frozen = nn.ModuleList(frozen).requires_grad_(False)
        self.auxiliary: nn.Module = nn.Identity()
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        """Set the mode of everything except the frozen extractors, which keep their own statistics."""
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x: Tensor) -> AuxiliaryOutputs:
        new = self.phi(x)
        with torch.no_grad():
            old = [extractor(x) for extractor in self.frozen]
        features = torch.cat([*old, new], dim=1)
        return AuxiliaryOutputs(features, self.classifier(features), self.auxiliary(new))


class DerTrunc(Incremental[DerOptions]):
    """DER; the evaluation cuts its queries to the dimensions of the gallery."""

    @property
    def extractors(self) -> list[nn.Module]:
        """b_1..b_t."""
        network = self.network
        return [*network.frozen, network.phi] if isinstance(network, Expanded) else [network.phi]

    def grow(self, task: TaskInfo, data: TaskData) -> None:
        if task.index == 1:
            super().grow(task, data)
            return
        device, old = self.device, self.network.classifier
        assert isinstance(old, TrainableClassifier)
        classifier = self._fresh(len(self.extractors) + 1, task.seen_classes, "classifier", task.index)
        with torch.no_grad():
            rows, columns = old.weight.shape
            classifier.weight[:rows, :columns] = old.weight
            if classifier.bias is not None and old.bias is not None:
                classifier.bias[:rows] = old.bias
        expanded = Expanded(self.extractors, copy.deepcopy(self.network.phi), classifier)
        expanded.auxiliary = self._fresh(1, task.new_classes + 1, "auxiliary classifier", task.index)
        self.network = expanded.to(device)

    def _fresh(self, extractors: int, outputs: int, stream: str, task: int) -> TrainableClassifier:
        classifier = TrainableClassifier(extractors * self.feature_size, self.config.head.bias)
        classifier.grow_to(outputs, torch_stream(self.config.seed, stream, task))
        return classifier

    def stages(self) -> list[Stage]:
        network = self.network
        auxiliary = [network.auxiliary] if isinstance(network, Expanded) else []
        return [self.train_stage(network.phi, network.classifier, *auxiliary)]

    def loss(self, batch: Batch, network: nn.Module) -> Losses:
        if self.task.index == 1:
            return super().loss(batch, network)
        out: AuxiliaryOutputs = network(batch.x)
        target = (batch.y - self.task.old_classes + 1).clamp(min=0)  # all old classes are one
        auxiliary = nn.functional.cross_entropy(out.auxiliary.float(), target) * batch.weight()
        return {"ce": self.cross_entropy(out.logits, batch), "auxiliary": self.options.auxiliary * auxiliary}

    def end_task(self) -> None:
        network = self.network
        if isinstance(network, Expanded):
            network.auxiliary = nn.Identity()
            assert isinstance(network.classifier, TrainableClassifier)
            self.values["gamma"] = network.classifier.align(self.task.old_classes)

    def extractor(self) -> nn.Module:
        return folded(Concatenation(self.extractors))  # folding an extractor again at a later task gives the same bits

    def restore(self, tensors: Tensors, task: TaskInfo) -> None:
        phi = self.network.phi
        if task.index > 1:
            frozen = [copy.deepcopy(phi) for _ in range(task.index - 1)]
            self.network = Expanded(frozen, phi, self.network.classifier)
        super().restore(tensors, task)
