"""PODNet: a classifier with several proxies per class, and distillation of pooled maps of every stage.

With s_{c,p} = −‖φ̂ − ŵ_{c,p}‖² = 2cos − 2, the score of a class is s_c = Σ_p softmax_p(s_c)·s_{c,p} and its logit
z_c = η·s_c with a trained η. With m of N_t classes new,

    L = LSC(z, y) + √(N_t/m) · (λ_c · spatial + λ_f · flat),
    LSC, code:    −ẑ_y + log(1 + Σ_{j≠y} e^{ẑ_j}),    ẑ = z − max z,
    LSC, paper:   max(0, −log(e^{η(s_y−δ)} / Σ_{j≠y} e^{η·s_j})),
    spatial:      mean over maps h of ‖p(h_t) − p(h_{t-1})‖,    p(h) = (Σ_W h², Σ_H h²) / ‖·‖,
    flat:         1 − cos(φ_t, φ_{t-1}).

In the released code δ is subtracted from every class and cancels: `podnet.margin` has an effect in the paper's form
only.

New proxies are imprinted: k-means centres of the class's normalised features under φ_{t-1}, times the mean length of
the old ones. While φ is trained the old proxies are fixed; then, as in the released code, a stage with a constant rate
trains only the proxies, old and new but not η, on equally many images of every class. It draws them at random even if
memory is herded, because its rows must be known before φ_t is; a random memory will keep exactly these of the task.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from cl2r.backbones import build_backbone
from cl2r.backbones.base import MappedBackbone
from cl2r.batches import Batch
from cl2r.config.builtin import PodnetOptions
from cl2r.config.schema import Config
from cl2r.distillation import distillation_weight, feature_distillation
from cl2r.errors import InputError
from cl2r.memory import sample_task
from cl2r.methods.base import Losses, Outputs, Rows, Stage, StageAfterPhi, TaskData, TaskInfo
from cl2r.methods.incremental import Incremental, Network
from cl2r.seeding import numpy_stream, torch_stream

Points = npt.NDArray[np.float64]
ROUNDS = 100  # most rounds of k-means; it converges long before
JITTER = 0.01
"""Standard deviation of the noise added to every entry of a repeated centre, so that equal proxies can separate."""


@dataclass(frozen=True)
class PodOutputs(Outputs):
    """φ(x), the logits, the backbone's maps before ReLU, and η."""

    maps: list[Tensor]
    scale: Tensor


class ProxyClassifier(nn.Module):
    """The local similarity classifier: class × proxy × dimension, old classes before new ones, and η."""

    def __init__(self, dim: int, proxies: int) -> None:
        super().__init__()
        self.old = nn.Parameter(torch.empty(0, proxies, dim))
        self.new = nn.Parameter(torch.empty(0, proxies, dim))
        self.scale = nn.Parameter(torch.ones(()))

    def add(self, proxies: Tensor) -> None:
        """Append proxies of new classes; all others become old ones, bit for bit."""
        kept = torch.cat([self.old, self.new]).detach()
        self.old, self.new = nn.Parameter(kept), nn.Parameter(proxies.to(kept))

    def forward(self, features: Tensor) -> Tensor:
        """Return s_c of every class, in float32 also under autocast."""
        with torch.autocast(features.device.type, enabled=False):
            proxies = functional.normalize(torch.cat([self.old, self.new]), dim=-1)
            cosines = functional.normalize(features.float(), dim=-1) @ proxies.flatten(0, 1).T
            scores = (2 * cosines - 2).view(len(features), *proxies.shape[:2])
            return torch.sum(functional.softmax(scores, -1) * scores, -1)


class PodNetwork(Network):
    """φ and the proxies; one pass computes the maps and φ(x)."""

    phi: nn.Sequential
    classifier: ProxyClassifier

    def forward(self, x: Tensor) -> PodOutputs:
        backbone, centre, projection = self.phi
        assert isinstance(backbone, MappedBackbone)
        output, maps = backbone.with_maps(x)
        features = projection(centre(output))
        scale = self.classifier.scale
        return PodOutputs(features, scale * self.classifier(features), maps, scale)


class Podnet(Incremental[PodnetOptions]):
    """PODNet. `weight` is √(N_t/m)."""

    network: PodNetwork
    network_type = PodNetwork
    balanced: tuple[Rows, Rows] | None = None  # rows of the last stage

    @classmethod
    def check(cls, config: Config) -> None:
        super().check(config)
        with torch.random.fork_rng(devices=[]):
            backbone = build_backbone(config.backbone.name, config.data.channels, config.backbone.last_relu)
        if not isinstance(backbone, MappedBackbone):
            raise InputError(f"backbone.name={config.backbone.name} has no maps, which podnet distils: use another one")

    def build_classifier(self) -> ProxyClassifier:
        return ProxyClassifier(self.feature_size, self.options.proxies)

    def needs_teacher(self, task: TaskInfo) -> bool:
        return self.options.spatial > 0 or self.options.flat > 0

    def begin_task(self, task: TaskInfo, data: TaskData) -> None:
        super().begin_task(task, data)
        if self.teacher is not None:
            self.weight = distillation_weight(1, "total_over_new", task.new_classes, task.old_classes)
        self.balanced = None
        if task.index > 1 and task.memory_rows:
            quota, labels = self.config.memory.per_class, data.labels[data.new]
            new = sample_task(data.new, labels, quota, "random", self.config.seed, task.index)
            self.balanced = new, data.memory

    def grow(self, task: TaskInfo, data: TaskData) -> None:
        classifier, seed, proxies = self.network.classifier, self.config.seed, self.options.proxies
        if task.index == 1:  # proxies of length 1 on average
            shape, generator = (task.new_classes, proxies, self.feature_size), torch_stream(seed, "classifier", 1)
            classifier.add(torch.randn(shape, generator=generator) / math.sqrt(self.feature_size))
            return
        features = functional.normalize(data.apply(self.extractor(), data.new).double(), dim=1).cpu().numpy()
        labels = data.labels[data.new]
        centres = [
            cluster_centres(features[labels == label], proxies, numpy_stream(seed, "proxies", label))
            for label in range(task.old_classes, task.seen_classes)
        ]
        imprinted = torch.from_numpy(np.stack(centres)).to(self.device, torch.float32)
        lengths = torch.linalg.vector_norm(torch.cat([classifier.old, classifier.new]).detach(), dim=-1)
        classifier.add(lengths.mean() * imprinted)

    def stages(self) -> list[Stage]:
        options, classifier = self.options, self.network.classifier
        all_but_old = [parameter for parameter in self.network.parameters() if parameter is not classifier.old]
        train = replace(self.train_stage(), parameters=lambda: all_but_old, clamp=options.clamp)
        if self.balanced is None:
            return [train]
        proxies, epochs, lr = [classifier.old, classifier.new], options.finetune_epochs, options.finetune_lr
        loss, rows, clamp = self.proxy_loss, self.balanced, options.clamp
        return [train, StageAfterPhi("finetune", epochs, lr, lambda: proxies, loss, rows, clamp=clamp)]

    def loss(self, batch: Batch, network: nn.Module) -> Losses:
        out: PodOutputs = network(batch.x)
        losses, options = {"lsc": self._lsc(out, batch.y)}, self.options
        if self.teacher is not None:
            old = self.old_outputs(batch.x)
            assert isinstance(old, PodOutputs)
            if options.spatial > 0:
                losses["spatial"] = self.weight * options.spatial * mean(pod_spatial(out.maps, old.maps))
            if options.flat > 0:
                losses["flat"] = self.weight * options.flat * feature_distillation(out.features, old.features)
        return {name: loss * batch.weight() for name, loss in losses.items()}

    def proxy_loss(self, batch: Batch, network: nn.Module) -> Losses:
        """Return LSC alone: the other terms have no gradient while φ is fixed."""
        return {"lsc": self._lsc(network(batch.x), batch.y) * batch.weight()}

    def _lsc(self, out: PodOutputs, labels: Tensor) -> Tensor:
        if self.options.nca == "code":
            return mean(nca_of_code(out.logits, labels))
        return mean(nca_of_paper(out.logits, labels, out.scale * self.options.margin))

    def diagnostics(self) -> dict[str, float]:
        return {"lambda": self.weight, "scale": self.network.classifier.scale.item()}


def mean(values: Tensor) -> Tensor:
    """Return the mean over the rows. No rows: 0, with a gradient of 0."""
    return values.sum() / max(len(values), 1)


def nca_of_code(logits: Tensor, labels: Tensor) -> Tensor:
    """Return −ẑ_y + log(1 + Σ_{j≠y} e^{ẑ_j}) per row; the gradient includes the subtracted maximum."""
    shifted = logits - logits.max(1, keepdim=True).values
    own = labels[:, None]
    return torch.logsumexp(shifted.scatter(1, own, 0.0), 1) - shifted.gather(1, own)[:, 0]


def nca_of_paper(logits: Tensor, labels: Tensor, margin: Tensor) -> Tensor:
    """Return max(0, ηδ − z_y + log Σ_{j≠y} e^{z_j}) per row, `margin` = ηδ."""
    own = labels[:, None]
    others = torch.logsumexp(logits.scatter(1, own, -torch.inf), 1)
    return (margin - logits.gather(1, own)[:, 0] + others).clamp(min=0)


def pod_spatial(new: Sequence[Tensor], old: Sequence[Tensor]) -> Tensor:
    """Return the mean over the maps of ‖p(h_t) − p(h_{t-1})‖ per row."""
    gaps = [torch.linalg.vector_norm(_strips(one) - _strips(two), dim=1) for one, two in zip(new, old, strict=True)]
    return torch.stack(gaps).mean(0)


def _strips(maps: Tensor) -> Tensor:
    """Return p(h): squares summed along each of the two axes, concatenated and normalised."""
    # Channels last, as the maps are in memory: their gradient then comes in the layout that batch norm is fast in.
    squares = maps.float().square().permute(0, 2, 3, 1)
    return functional.normalize(torch.cat([squares.sum(2).flatten(1), squares.sum(1).flatten(1)], 1), dim=1)


def cluster_centres(points: Points, count: int, rng: np.random.Generator) -> Points:
    """Return `count` centres by Lloyd's algorithm from k-means++ seeds.

    If there are fewer distinct points, each is a centre, and centres are repeated in turn with a little noise. SciPy's
    k-means draws differently and divides by 0 in that case.
    """
    chosen = [int(rng.integers(len(points)))]
    gaps = _squared_distances(points, points[chosen])[:, 0]
    while len(chosen) < count and gaps.any():
        chosen.append(int(rng.choice(len(points), p=gaps / gaps.sum())))
        gaps = np.minimum(gaps, _squared_distances(points, points[chosen[-1:]])[:, 0])
    centres = points[chosen]
    nearest = _squared_distances(points, centres).argmin(1)
    for _ in range(ROUNDS):
        groups = [points[nearest == number] for number in range(len(centres))]
        # A centre that loses all its points stays.
        centres = np.stack([group.mean(0) if len(group) else c for group, c in zip(groups, centres, strict=True)])
        before, nearest = nearest, _squared_distances(points, centres).argmin(1)
        if np.array_equal(before, nearest):
            break
    repeated = centres[np.arange(count) % len(centres)]
    repeated[len(centres) :] += rng.normal(0, JITTER, repeated[len(centres) :].shape)
    return repeated


def _squared_distances(points: Points, centres: Points) -> Points:
    # Differences are squared directly, so that the distance of a point to itself is exactly 0.
    distances: Points = np.square(points[:, None] - centres).sum(-1)
    return distances
