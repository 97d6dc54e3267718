"""Backward-compatible training: new features must also be classified by the old classifier.

    L = CE(W_t φ_t(x), y) + λ_b · CE(W_{t-1} φ_t(x), y)

W_{t-1} is frozen, and its term is the mean over the rows whose class it knows. BCT trains a fresh φ_t and W_t on all
data seen; lifelong BCT goes on from φ_{t-1} and W_{t-1} with D_t ∪ M_t, so that only memory rows have the second term.
`bct.new_classes=synth` lets all rows have it: each new class gets a row in the frozen W_{t-1}, its mean feature under
φ_{t-1}, scaled to the mean norm of the rows that are there, so that old and new logits are of one size.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from cl2r.config import Config
from cl2r.heads import TrainableClassifier
from cl2r.methods.base import Batch, Losses, Outputs, TaskData, TaskInfo
from cl2r.methods.incremental import Incremental
from cl2r.methods.options import BctOptions


class LifelongBct(Incremental):
    """ER and the influence loss."""

    scratch = False
    """Whether every task starts from fresh weights."""

    def __init__(self, config: Config, channels: int, num_outputs: int) -> None:
        super().__init__(config, channels, num_outputs)
        self.options = config.section(BctOptions)
        self.old_head: Tensor | None = None

    def begin_task(self, task: TaskInfo, data: TaskData) -> None:
        """Keep the old classifier apart from the one that is trained; both may start with the same rows."""
        later = task.index > 1
        self.old_head = self._frozen_head(task, data) if later and self.options.weight else None
        if later and self.scratch:
            self._start_anew(task)
        super().begin_task(task, data)

    def _frozen_head(self, task: TaskInfo, data: TaskData) -> Tensor:
        """W_{t-1}; it follows from what is carried, so no state needs to hold it."""
        rows = self._classifier.weight.detach().clone()
        if self.options.new_classes == "ignore":
            return rows
        return torch.cat([rows, self._prototypes(task, data) * rows.norm(dim=1).mean()])

    def _prototypes(self, task: TaskInfo, data: TaskData) -> Tensor:
        """Directions of the new classes' means under φ_{t-1}."""
        features, labels = data.apply(self.extractor(), data.new), data.labels[data.new]
        classes = range(task.old_classes, task.seen_classes)
        means = [features[torch.from_numpy(labels == label).to(features.device)].mean(0) for label in classes]
        return functional.normalize(torch.stack(means), dim=1)

    def _start_anew(self, task: TaskInfo) -> None:
        """Into the modules that are there: they keep their device, memory format and kind of batch norm."""
        self.network.phi.load_state_dict(self.initial_phi(task.index).state_dict())
        self._classifier.weight = nn.Parameter(self._classifier.weight.detach()[:0].clone())

    @property
    def _classifier(self) -> TrainableClassifier:
        classifier = self.network.classifier
        assert isinstance(classifier, TrainableClassifier)
        return classifier

    def loss(self, batch: Batch, network: nn.Module) -> Losses:
        """CE, and λ_b · the influence loss."""
        out: Outputs = network(batch.x)
        return {"ce": self.cross_entropy(out.logits, batch), **self.influence(batch, out.features)}

    def influence(self, batch: Batch, features: Tensor) -> Losses:
        """λ_b · CE of the old classifier's logits over the rows whose class it knows."""
        if self.old_head is None:
            return {}
        known = batch.y < len(self.old_head)
        labels = batch.y[known]
        with torch.autocast(features.device.type, enabled=False):
            logits = functional.linear(features[known].float(), self.old_head)
            total = functional.cross_entropy(logits, labels, reduction="sum")
        return {"influence": self.options.weight * total / max(len(labels), 1) * batch.weight(len(labels))}


class Bct(LifelongBct):
    """BCT itself: a reference that sees all data, not a lifelong method."""

    scratch = True
