"""PODNet: a classifier of several proxies a class, and distillation of pooled maps of every stage.

With s_{c,p} = −‖φ̂ − ŵ_{c,p}‖² = 2cos − 2, the score of a class is s_c = Σ_p softmax_p(s_c)·s_{c,p} and its logit
z_c = η·s_c with a trained η. With m of N_t classes new,

    L = LSC(z, y) + √(N_t/m) · (λ_c · spatial + λ_f · flat),
    LSC, code:    −ẑ_y + log(1 + Σ_{j≠y} e^{ẑ_j}),    ẑ = z − max z,
    LSC, paper:   max(0, −log(e^{η(s_y−δ)} / Σ_{j≠y} e^{η·s_j})),
    spatial:      mean over maps h of ‖p(h_t) − p(h_{t-1})‖,    p(h) = (Σ_W h², Σ_H h²) / ‖·‖,
    flat:         1 − cos(φ_t, φ_{t-1}).

In the released code δ is subtracted from every class and cancels: `podnet.margin` is of the paper's form only.

New proxies are imprinted: k-means centres of the class's normalised features under φ_{t-1}, times the mean length of
the old ones. While φ is trained the old proxies are held; then, as in the released code, a stage of a constant rate
trains the proxies alone, old and new but not η, on as many images of every class. It draws them at random also where
memory is herded: its rows must be known before φ_t is. They are those that a random memory will keep of the task.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cl2r.backbones.base import Backbone
from cl2r.clustering import cluster_centres
from cl2r.config import Config
from cl2r.distillation import distillation_weight, feature_distillation
from cl2r.memory import sample_task
from cl2r.methods.base import Batch, Losses, Outputs, Rows, Stage, TaskData, TaskInfo
from cl2r.methods.incremental import Incremental, Network
from cl2r.methods.options import PodnetOptions
from cl2r.seeding import numpy_stream, torch_stream


@dataclass(frozen=True)
class PodOutputs(Outputs):
    """φ(x), the logits, the backbone's maps before ReLU, and η."""

    maps: list[Tensor]
    scale: Tensor


class ProxyClassifier(nn.Module):
    """The local similarity classifier: class × proxy × dimension, old classes before new ones, and η."""

    def __init__(self, dim: int, proxies: int) -> None:
        super().__init__()
        self.proxies, self.dim = proxies, dim
        self.old = nn.Parameter(torch.empty(0, proxies, dim))
        self.new = nn.Parameter(torch.empty(0, proxies, dim))
        self.scale = nn.Parameter(torch.ones(()))

    def add(self, proxies: Tensor) -> None:
        """Proxies of new classes; those there were are old ones now, bit for bit."""
        kept = torch.cat([self.old, self.new]).detach()
        self.old, self.new = nn.Parameter(kept), nn.Parameter(proxies.to(kept))

    def fresh(self, classes: int, generator: torch.Generator) -> Tensor:
        """Random proxies of length 1 or so."""
        return torch.randn(classes, self.proxies, self.dim, generator=generator) / math.sqrt(self.dim)

    def mean_length(self) -> Tensor:
        """Of all proxies there are."""
        lengths: Tensor = torch.linalg.vector_norm(torch.cat([self.old, self.new]).detach(), dim=-1)
        return lengths.mean()

    def forward(self, features: Tensor) -> Tensor:
        """s_c of every class, in float32 also under autocast."""
        with torch.autocast(features.device.type, enabled=False):
            proxies = functional.normalize(torch.cat([self.old, self.new]), dim=-1)
            cosines = functional.normalize(features.float(), dim=-1) @ proxies.flatten(0, 1).T
            scores = (2 * cosines - 2).view(len(features), *proxies.shape[:2])
            return torch.sum(functional.softmax(scores, -1) * scores, -1)


class PodNetwork(Network):
    """φ and the proxies; the maps come with φ(x) in one pass."""

    phi: nn.Sequential
    classifier: ProxyClassifier

    def forward(self, x: Tensor) -> PodOutputs:
        """φ(x), logits, maps and η."""
        backbone, centre, projection = self.phi
        assert isinstance(backbone, Backbone)
        output, maps = backbone.with_maps(x)
        features = projection(centre(output))
        scale = self.classifier.scale
        return PodOutputs(features, scale * self.classifier(features), maps, scale)


class Podnet(Incremental):
    """PODNet. `weight` is √(N_t/m)."""

    network: PodNetwork

    def __init__(self, config: Config, channels: int, num_outputs: int) -> None:
        self.options = config.section(PodnetOptions)
        super().__init__(config, channels, num_outputs)
        self.network = PodNetwork(self.network.phi, self.network.classifier)
        self.balanced: tuple[Rows, Rows] | None = None

    def build_classifier(self) -> ProxyClassifier:
        """Without proxies yet."""
        return ProxyClassifier(self.feature_size, self.options.proxies)

    def needs_teacher(self, task: TaskInfo) -> bool:
        """Also without memory: both terms are over all rows."""
        return self.options.spatial > 0 or self.options.flat > 0

    def begin_task(self, task: TaskInfo, data: TaskData) -> None:
        """Teacher, new proxies, √(N_t/m) and the rows of the last stage."""
        super().begin_task(task, data)
        if self.teacher is not None:
            self.weight = distillation_weight(1, "total_over_new", task.new_classes, task.old_classes)
        self.balanced = self._balanced(data) if task.index > 1 and task.memory_rows else None

    def grow(self, task: TaskInfo, data: TaskData) -> None:
        """Random proxies in task 1, imprinted ones later."""
        classifier, seed = self.network.classifier, self.config.seed
        if task.index == 1:
            classifier.add(classifier.fresh(task.new_classes, torch_stream(seed, "classifier", task.index)))
            return
        features = functional.normalize(data.apply(self.extractor(), data.new).double(), dim=1).cpu().numpy()
        labels = data.labels[data.new]
        centres = [
            cluster_centres(features[labels == label], classifier.proxies, numpy_stream(seed, "proxies", int(label)))
            for label in range(task.old_classes, task.seen_classes)
        ]
        imprinted = torch.from_numpy(np.stack(centres)).to(self.device, torch.float32)
        classifier.add(classifier.mean_length() * imprinted)

    def _balanced(self, data: TaskData) -> tuple[Rows, Rows]:
        """The memory, and its quota of every new class."""
        quota, labels = self.config.memory.per_class, data.labels[data.new]
        new = sample_task(data.new, labels, quota, "random", self.config.seed, self.task.index)
        return new, data.memory

    def stages(self) -> list[Stage]:
        """All but the old proxies on the whole loss; then, where there is memory, all proxies on LSC."""
        options, classifier = self.options, self.network.classifier
        epochs, clamp = self.config.optim.epochs, options.clamp
        train = Stage("train", epochs, self.learning_rate, self._all_but_old, self.loss, clamp=clamp)
        if self.balanced is None:
            return [train]
        finetune = Stage(
            "finetune",
            options.finetune_epochs,
            options.finetune_lr,
            lambda: [classifier.old, classifier.new],
            self.proxy_loss,
            rows=self.balanced,
            batching="natural",
            statistics=False,
            schedule="constant",
            clamp=clamp,
        )
        return [train, finetune]

    def _all_but_old(self) -> Iterator[nn.Parameter]:
        old = self.network.classifier.old
        return (parameter for parameter in self.network.parameters() if parameter is not old)

    def loss(self, batch: Batch, network: nn.Module) -> Losses:
        """LSC and, for t > 1, the two distillation terms."""
        out: PodOutputs = network(batch.x)
        weight = batch.weight(len(batch.y))
        losses = {"lsc": self._lsc(out, batch.y), **self._pod(out, batch.x)}
        return {name: loss * weight for name, loss in losses.items()}

    def proxy_loss(self, batch: Batch, network: nn.Module) -> Losses:
        """LSC alone: where φ is held the other terms have no gradient."""
        return {"lsc": self._lsc(network(batch.x), batch.y) * batch.weight(len(batch.y))}

    def _lsc(self, out: PodOutputs, labels: Tensor) -> Tensor:
        if self.options.nca == "code":
            return mean(nca_of_code(out.logits, labels))
        return mean(nca_of_paper(out.logits, labels, out.scale * self.options.margin))

    def _pod(self, out: PodOutputs, x: Tensor) -> Losses:
        """Both terms are over all rows; one whose weight is 0 is left out."""
        if self.teacher is None:
            return {}
        with torch.no_grad():
            old: PodOutputs = self.teacher(x)
        losses, options = {}, self.options
        if options.spatial > 0:
            losses["spatial"] = self.weight * options.spatial * mean(pod_spatial(out.maps, old.maps))
        if options.flat > 0:
            losses["flat"] = self.weight * options.flat * feature_distillation(out.features, old.features)
        return losses

    def metrics(self) -> dict[str, float]:
        """√(N_t/m), 0 where nothing is distilled, and η."""
        return {**super().metrics(), "scale": float(self.network.classifier.scale.detach())}

    def restore(self, tensors: dict[str, Tensor], task: TaskInfo) -> None:
        """As many proxies as there were, then all weights."""
        classifier = self.network.classifier
        classifier.old = nn.Parameter(torch.empty_like(tensors["classifier.old"]))
        classifier.new = nn.Parameter(torch.empty_like(tensors["classifier.new"]))
        super().restore(tensors, task)


# ---------------------------------------------------------------- terms of the loss, a value a row


def mean(values: Tensor) -> Tensor:
    """Over the rows; no rows: 0, with a gradient of 0."""
    return values.sum() / max(len(values), 1)


def nca_of_code(logits: Tensor, labels: Tensor) -> Tensor:
    """−ẑ_y + log(1 + Σ_{j≠y} e^{ẑ_j}); the maximum that ẑ takes off has its share of the gradient."""
    shifted = logits - logits.max(1, keepdim=True).values
    own = labels[:, None]
    return torch.logsumexp(shifted.scatter(1, own, 0.0), 1) - shifted.gather(1, own)[:, 0]


def nca_of_paper(logits: Tensor, labels: Tensor, margin: Tensor) -> Tensor:
    """max(0, ηδ − z_y + log Σ_{j≠y} e^{z_j}), `margin` = ηδ."""
    own = labels[:, None]
    others = torch.logsumexp(logits.scatter(1, own, -torch.inf), 1)
    return (margin - logits.gather(1, own)[:, 0] + others).clamp(min=0)


def pod_spatial(new: Sequence[Tensor], old: Sequence[Tensor]) -> Tensor:
    """Mean over the maps of ‖p(h_t) − p(h_{t-1})‖."""
    gaps = [torch.linalg.vector_norm(_strips(one) - _strips(two), dim=1) for one, two in zip(new, old, strict=True)]
    return torch.stack(gaps).mean(0)


def _strips(maps: Tensor) -> Tensor:
    """p(h): squares summed along each of the two axes, side by side, of length 1."""
    # Channels last, as the maps are in memory: their gradient then comes in the layout that batch norm is fast in.
    squares = maps.float().square().permute(0, 2, 3, 1)
    return functional.normalize(torch.cat([squares.sum(2).flatten(1), squares.sum(1).flatten(1)], 1), dim=1)
