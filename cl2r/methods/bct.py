"""Backward-compatible training: new features must also be classified by the old classifier.

    L = CE(W_t φ_t(x), y) + λ_b · CE(W_{t-1} φ_t(x), y)

W_{t-1} is frozen, and its term is the mean over the rows whose class it knows. BCT trains a fresh φ_t and W_t on all
data seen; lifelong BCT continues from φ_{t-1} and W_{t-1} with D_t ∪ M_t, so that only memory rows have the second
term. `bct.new_classes=synth` gives it to all rows: each new class gets a row in the frozen W_{t-1}, its mean feature
under φ_{t-1}, scaled to the mean norm of the existing rows, so that old and new logits have the same size. The
classifier has a bias, as in the authors' code (`head.bias`): the frozen one keeps it, and a row of a new class gets the
mean of the old ones.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from cl2r.batches import Batch, RowKind
from cl2r.config.builtin import BctOptions
from cl2r.heads import TrainableClassifier
from cl2r.methods.base import Losses, Outputs, TaskData, TaskInfo
from cl2r.methods.incremental import Incremental


class LifelongBct(Incremental[BctOptions]):
    """ER and the influence loss."""

    scratch = False  # whether every task starts from fresh weights
    old_head: Tensor | None = None  # W_{t-1}. It follows from what is carried, so no state needs to hold it
    old_bias: Tensor | None = None  # its bias, if `head.bias`

    def begin_task(self, task: TaskInfo, data: TaskData) -> None:
        classifier = self.network.classifier
        assert isinstance(classifier, TrainableClassifier)
        later = task.index > 1
        keeps, bias = later and self.options.weight > 0, classifier.bias
        self.old_head = classifier.weight.detach().clone() if keeps else None
        self.old_bias = bias.detach().clone() if keeps and bias is not None else None
        if self.old_head is not None and self.options.new_classes == "synth":
            means = self.new_class_means(data.apply(self.extractor(), data.new), task, data)
            fresh = functional.normalize(means, dim=1) * self.old_head.norm(dim=1).mean()
            self.old_head = torch.cat([self.old_head, fresh])
            if self.old_bias is not None:
                self.old_bias = torch.cat([self.old_bias, self.old_bias.mean().expand(task.new_classes)])
        if later and self.scratch:
            self.restart_phi(task)
            classifier.clear()
        super().begin_task(task, data)

    def loss(self, batch: Batch, network: nn.Module) -> Losses:
        out: Outputs = network(batch.x)
        losses = {"ce": self.cross_entropy(out.logits, batch)}
        if self.old_head is not None:
            kind: RowKind = "memory" if self.options.new_classes == "ignore" else "all"
            rows = batch.rows(kind)
            with torch.autocast(batch.x.device.type, enabled=False):
                logits = functional.linear(out.features[rows].float(), self.old_head, self.old_bias)
                total = functional.cross_entropy(logits, batch.y[rows], reduction="sum")
            losses["influence"] = self.options.weight * total / max(len(rows), 1) * batch.weight(kind)
        return losses


class Bct(LifelongBct):
    """BCT itself: a reference that sees all data, not a lifelong method."""

    scratch = True
