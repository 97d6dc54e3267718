"""LUCIR (Hou et al., CVPR 2019): cosine classifier, FD on every row, margin ranking, imprinted rows.

    z_j = η · cos(φ_t(x), w_j),        L = CE(z, y; T_t) + λ_t · FD(T_t) + μ · MR,
    MR = mean over rows of old classes, and the k new classes nearest to each, of max(0, m − cos_y + cos_new).

η and the rows of the new classes are trained, those of the old classes are frozen. A new row starts as the mean
direction of its class as φ_{t-1} sees it, with the mean length of the old rows. λ_t = λ_base·√(k_0/k_n).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from cl2r.config import Config
from cl2r.methods.base import Batch, Losses, Outputs, TaskData, TaskInfo
from cl2r.methods.incremental import Incremental, Network
from cl2r.methods.options import LucirOptions
from cl2r.seeding import torch_stream


@dataclass(frozen=True)
class CosineOutputs(Outputs):
    """φ(x), the logits, and the cosines they are η times of."""

    cosines: Tensor


class CosineClassifier(nn.Module):
    """z_j = η · cos(f, w_j). Rows of old classes are a buffer: no optimiser, no weight decay ever sees them."""

    old: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("old", torch.empty(0, dim))
        self.new = nn.Parameter(torch.empty(0, dim))
        self.scale = nn.Parameter(torch.ones(()))

    def grow(self, fresh: Tensor) -> None:
        """Freeze all rows there are, and append trainable ones."""
        self.old = torch.cat([self.old, self.new.detach()])
        self.new = nn.Parameter(fresh.to(self.old.device))

    def resize(self, old: int, new: int) -> None:
        """Room for the rows of a saved state."""
        self.old = self.old.new_empty(old, self.old.shape[1])
        self.new = nn.Parameter(self.new.detach().new_empty(new, self.new.shape[1]))

    def cosines(self, features: Tensor) -> Tensor:
        """cos(f, w_j) of every class, in float32 also under autocast."""
        with torch.autocast(features.device.type, enabled=False):
            rows = functional.normalize(torch.cat([self.old, self.new]))
            return functional.linear(functional.normalize(features.float()), rows)

    def forward(self, features: Tensor) -> Tensor:
        """One logit a row."""
        return self.scale * self.cosines(features)


class CosineNetwork(Network):
    """φ and a cosine classifier."""

    classifier: CosineClassifier

    def forward(self, x: Tensor) -> Outputs:
        """φ(x), logits and cosines."""
        features = self.phi(x)
        cosines = self.classifier.cosines(features)
        return CosineOutputs(features, self.classifier.scale * cosines, cosines)


def imprinted(features: Tensor, labels: Tensor, classes: range, length: Tensor) -> Tensor:
    """A row a class: the direction of the mean of its unit features, at that length."""
    unit = functional.normalize(features)
    means = torch.stack([unit[labels == label].mean(0) for label in classes])
    return length * functional.normalize(means)


def margin_ranking(cosines: Tensor, labels: Tensor, first_negative: int, top: int, margin: float) -> Tensor:
    """Mean over rows and their `top` highest negatives of max(0, m − cos_y + cos_negative). No rows: 0.

    Negatives are the classes from `first_negative` on, except the row's own. Where there are fewer, all are taken.
    """
    if len(labels) == 0:
        return cosines.sum()
    own = labels[:, None]
    rivals = cosines.scatter(1, own, -math.inf)[:, first_negative:]
    available = rivals.shape[1] - (first_negative == 0)
    nearest = rivals.topk(min(top, available), dim=1).values
    return functional.relu(margin - cosines.gather(1, own) + nearest).mean()


class Lucir(Incremental):
    """LUCIR; its options are `lucir.*`, its distillation is `method.*`."""

    network: CosineNetwork

    def __init__(self, config: Config, channels: int, num_outputs: int) -> None:
        super().__init__(config, channels, num_outputs)
        self.network = self.build_network(self.network.phi, CosineClassifier(self.feature_size))

    def build_network(self, phi: nn.Module, classifier: CosineClassifier) -> CosineNetwork:
        """What the loop trains."""
        return CosineNetwork(phi, classifier)

    @property
    def imprints(self) -> bool:
        """Whether new rows start from class means."""
        return self.config.section(LucirOptions).imprint

    def grow(self, task: TaskInfo, data: TaskData) -> None:
        """Freeze the old rows; imprint the new ones with φ_{t-1}, or draw them, as always at task 1."""
        classifier = self.network.classifier
        if task.index > 1 and self.imprints:
            classifier.grow(self._imprinted(task, data))
            return
        bound = 1 / math.sqrt(self.feature_size)
        generator = torch_stream(self.config.seed, "classifier", task.index)
        fresh = torch.empty(task.new_classes, self.feature_size)
        classifier.grow(fresh.uniform_(-bound, bound, generator=generator))

    def _imprinted(self, task: TaskInfo, data: TaskData) -> Tensor:
        classifier = self.network.classifier
        length = torch.cat([classifier.old, classifier.new.detach()]).norm(dim=1).mean()
        features = data.apply(self.extractor(), data.new)
        labels = torch.from_numpy(data.labels[data.new]).to(features.device)
        return imprinted(features, labels, range(task.old_classes, task.seen_classes), length)

    def loss(self, batch: Batch, network: nn.Module) -> Losses:
        """CE + λ_t · FD + μ · MR."""
        out: CosineOutputs = network(batch.x)
        losses = {"ce": self.cross_entropy(out.logits, batch), **self.distillation(batch, out.features)}
        return {**losses, **self.margin_term(batch, out.cosines)}

    def margin_term(self, batch: Batch, cosines: Tensor) -> Losses:
        """μ · MR over the rows of old classes."""
        options = self.config.section(LucirOptions)
        if self.task.index == 1 or options.margin_weight == 0:
            return {}
        rows = (batch.y < self.task.old_classes).nonzero()[:, 0]
        first = self.task.old_classes if options.negatives == "new" else 0
        term = margin_ranking(cosines[rows], batch.y[rows], first, options.top, options.margin)
        return {"margin": options.margin_weight * term * batch.weight(len(rows))}

    def metrics(self) -> dict[str, float]:
        """λ_t and η."""
        return {**super().metrics(), "eta": self.network.classifier.scale.item()}

    def restore(self, tensors: dict[str, Tensor], task: TaskInfo) -> None:
        """Frozen and trained rows first, then all weights."""
        self.network.classifier.resize(len(tensors["classifier.old"]), len(tensors["classifier.new"]))
        super().restore(tensors, task)
