"""LUCIR (Hou et al., CVPR 2019): cosine classifier, FD on every row, margin ranking, imprinted rows.

    z_j = η · cos(φ_t(x), w_j),        L = CE(z, y; T_t) + λ_t · FD(T_t) + μ · MR,
    MR = mean over rows of old classes, and the k new classes nearest to each, of max(0, m − cos_y + cos_new).

η and the rows of the new classes are trained; the rows of the old classes are frozen. A new row starts as the mean
direction of its class under φ_{t-1}, with the mean length of the old rows. λ_t = λ_base·√(k_0/k_n).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from cl2r.batches import Batch
from cl2r.config.builtin import LucirOptions
from cl2r.methods.base import Losses, OptionsT, Outputs, TaskData, TaskInfo
from cl2r.methods.incremental import Incremental, Network
from cl2r.seeding import torch_stream


@dataclass(frozen=True)
class CosineOutputs(Outputs):
    """φ(x), the logits, and the cosines before the factor η."""

    cosines: Tensor


class CosineClassifier(nn.Module):
    """z_j = η · cos(f, w_j). Rows of old classes are a buffer, so no optimiser and no weight decay changes them."""

    old: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("old", torch.empty(0, dim))
        self.new = nn.Parameter(torch.empty(0, dim))
        self.scale = nn.Parameter(torch.ones(()))

    def grow(self, fresh: Tensor) -> None:
        """Freeze all existing rows and append trainable ones."""
        self.old = torch.cat([self.old, self.new.detach()])
        self.new = nn.Parameter(fresh.to(self.old.device))

    def cosines(self, features: Tensor) -> Tensor:
        """Return cos(f, w_j) for every class, in float32 also under autocast."""
        with torch.autocast(features.device.type, enabled=False):
            rows = functional.normalize(torch.cat([self.old, self.new]))
            return functional.linear(functional.normalize(features.float()), rows)

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * self.cosines(features)


class CosineNetwork(Network):
    """φ and a cosine classifier."""

    classifier: CosineClassifier

    def forward(self, x: Tensor) -> Outputs:
        features = self.phi(x)
        cosines = self.classifier.cosines(features)
        return CosineOutputs(features, self.classifier.scale * cosines, cosines)


class CosineMethod(Incremental[OptionsT]):
    """A method with a cosine classifier whose new rows are imprinted."""

    network: CosineNetwork
    network_type = CosineNetwork

    def build_classifier(self) -> nn.Module:
        return CosineClassifier(self.feature_size)

    def imprints(self, task: TaskInfo) -> bool:
        """Return whether new rows start from class means; the first task has no model to compute them with."""
        return task.index > 1

    def grow(self, task: TaskInfo, data: TaskData) -> None:
        classifier = self.network.classifier
        if not self.imprints(task):
            bound = 1 / math.sqrt(self.feature_size)
            generator = torch_stream(self.config.seed, "classifier", task.index)
            fresh = torch.empty(task.new_classes, self.feature_size)
            classifier.grow(fresh.uniform_(-bound, bound, generator=generator))
            return
        length = torch.cat([classifier.old, classifier.new.detach()]).norm(dim=1).mean()
        unit = functional.normalize(data.apply(self.extractor(), data.new))
        classifier.grow(length * functional.normalize(self.new_class_means(unit, task, data)))

    def diagnostics(self) -> dict[str, float]:
        return {"lambda": self.weight, "eta": self.network.classifier.scale.item(), **self.values}


class Lucir(CosineMethod[LucirOptions]):
    """LUCIR; its options are `lucir.*`, its distillation is `method.*`."""

    def imprints(self, task: TaskInfo) -> bool:
        return task.index > 1 and self.options.imprint

    def loss(self, batch: Batch, network: nn.Module) -> Losses:
        out: CosineOutputs = network(batch.x)
        losses = {"ce": self.cross_entropy(out.logits, batch), **self.distillation(batch, out.features)}
        options, rows = self.options, batch.memory
        if self.task.index > 1 and options.margin_weight > 0:
            first = self.task.old_classes if options.negatives == "new" else 0
            term = margin_ranking(out.cosines[rows], batch.y[rows], first, options.top, options.margin)
            losses["margin"] = options.margin_weight * term * batch.weight("memory")
        return losses


def margin_ranking(cosines: Tensor, labels: Tensor, first_negative: int, top: int, margin: float) -> Tensor:
    """Return the mean over rows and their `top` highest negatives of max(0, m − cos_y + cos_negative). No rows: 0.

    Negatives are the classes from `first_negative` on, except the row's own. If there are fewer, all are taken.
    """
    if len(labels) == 0:
        return cosines.sum()
    own = labels[:, None]
    rivals = cosines.scatter(1, own, -math.inf)[:, first_negative:]
    available = rivals.shape[1] - (first_negative == 0)
    nearest = rivals.topk(min(top, available), dim=1).values
    return functional.relu(margin - cosines.gather(1, own) + nearest).mean()
