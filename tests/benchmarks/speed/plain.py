"""The reference: the usual research code for data, training and verification.

Each image goes through PIL and torchvision's transforms in a DataLoader. Training is fp32 NCHW with a dense simplex and
a copy of the model as teacher that sees the whole batch. Both sides of a cell are extracted for it, and the thresholds
0 to 4 by 0.001 are tried one by one in Python. `exhaustive_accuracy` is no reference but a check of the engine.
"""

import copy
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Sampler
from torchvision import transforms

from cl2r.backbones import build_backbone
from cl2r.config.schema import Config
from cl2r.data.dataset import Labels
from cl2r.data.images import Pixels
from cl2r.engine.plan import Plan
from cl2r.methods.base import TaskData

Moments = tuple[tuple[float, ...], tuple[float, ...]]
Item = tuple[Tensor, int]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
PADDING = 4
THRESHOLDS = np.arange(0, 4, 0.001)
CHUNK = 512
"""Number of thresholds that the exhaustive search tries at a time."""


# Data


class PilImages(Dataset[Item]):
    """Rows of an array, transformed one by one."""

    def __init__(self, images: Pixels, labels: Labels, rows: Labels, transform: Any) -> None:
        self.images, self.labels, self.rows, self.transform = images, labels, rows, transform

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Item:
        row = self.rows[place]
        return self.transform(Image.fromarray(self.images[row])), int(self.labels[row])


def training_images(plan: Plan, rows: Labels) -> PilImages:
    """Return rows of the training set, padded, cropped, flipped and normalised."""
    dataset = plan.dataset
    steps = [transforms.RandomCrop(dataset.image_size[0], padding=PADDING), transforms.RandomHorizontalFlip()]
    transform = transforms.Compose([*steps, transforms.ToTensor(), transforms.Normalize(*dataset.moments)])
    return PilImages(dataset.x_train.all(), plan.scenario.labels, rows, transform)


class BalancedSampler(Sampler[list[int]]):
    """Batches of places; half of them are among the first `memory` ones, which are the memory."""

    def __init__(self, memory: int, new: int, size: int, seed: int = 0) -> None:
        self.memory, self.new, self.size, self.rng = memory, new, size, np.random.default_rng(seed)

    def __len__(self) -> int:
        return max(1, (self.memory + self.new) // self.size)

    def __iter__(self) -> Iterator[list[int]]:
        half = self.size // 2
        for _ in range(len(self)):
            old = self.rng.choice(self.memory, half, replace=self.memory < half)
            new = self.rng.choice(self.new, self.size - half, replace=self.new < self.size - half)
            yield [*old.tolist(), *(self.memory + new).tolist()]


def _endless(loader: "DataLoader[Any]") -> Iterator[Any]:
    while True:
        yield from loader


# Training


def dense_simplex(classes: int) -> Tensor:
    """Return the K × (K−1) matrix of the unit vectors and a·(1, …, 1), a = (1 − √K)/(K − 1), centred, of length 1."""
    vertices = torch.zeros(classes, classes - 1)
    vertices.fill_diagonal_(1)
    vertices[-1] = (1 - math.sqrt(classes)) / (classes - 1)
    vertices -= vertices.mean(0)
    vertices /= vertices.norm(dim=1, keepdim=True)
    return vertices


class DenseSimplex(nn.Module):
    """The fixed classifier as a matrix."""

    weight: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.register_buffer("weight", dense_simplex(classes))

    def forward(self, features: Tensor) -> Tensor:
        """Return all K logits."""
        return functional.linear(features, self.weight)


class PlainNetwork(nn.Module):
    """Backbone, linear projection to K−1 dimensions, classifier."""

    def __init__(self, config: Config, channels: int, outputs: int, seen: int) -> None:
        super().__init__()
        self.backbone = build_backbone(config.backbone.name, channels)
        self.projection = nn.Linear(self.backbone.dim, outputs - 1, bias=False)
        fixed = config.method.classifier == "fixed"
        self.classifier = DenseSimplex(outputs) if fixed else nn.Linear(outputs - 1, seen, bias=False)

    def features(self, x: Tensor) -> Tensor:
        """Return φ(x)."""
        projected: Tensor = self.projection(self.backbone(x))
        return projected

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return φ(x) and the logits."""
        features = self.features(x)
        return features, self.classifier(features)


class PlainTraining:
    """Training at task 2 of a plan, on the rows of `data`."""

    def __init__(self, plan: Plan, data: TaskData) -> None:
        config, optim = plan.config, plan.config.optim
        old, new = (len(task.labels) for task in plan.scenario.tasks[:2])
        self.fd, self.old_classes = config.method.fd, old
        self.weight = config.method.lambda_base * math.sqrt(new / old)  # λ_t
        self.network = PlainNetwork(config, plan.dataset.channels, plan.num_outputs, old + new)
        self.teacher = copy.deepcopy(self.network).eval()
        self.optimiser = torch.optim.SGD(
            self.network.parameters(), optim.lr, optim.momentum, weight_decay=optim.weight_decay
        )
        images = training_images(plan, np.concatenate([data.memory, data.new]))
        sampler = BalancedSampler(len(data.memory), len(data.new), config.batches.size)
        self.batches = _endless(DataLoader(images, batch_sampler=sampler))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return CE + λ_t · mean of 1 − cos(φ_t(x), φ_{t-1}(x)) over all rows, or over the rows of the memory."""
        features, logits = self.network(x)
        loss = functional.cross_entropy(logits, y)
        if self.fd == "none":
            return loss
        with torch.no_grad():
            old = self.teacher.features(x)
        apart = 1 - functional.cosine_similarity(features, old)
        return loss + self.weight * (apart if self.fd == "all" else apart[y < self.old_classes]).mean()

    def step(self) -> None:
        """Train on the next batch."""
        x, y = next(self.batches)
        self.network.train()
        loss = self.loss(x, y)
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()


# Verification


def plain_features(network: nn.Module, images: Pixels, rows: Labels, moments: Moments, batch: int) -> Floats:
    """Return φ of the given rows, normalised to length 1; a row that is given twice is computed twice."""
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize(*moments)])
    loader: DataLoader[Item] = DataLoader(PilImages(images, np.zeros(len(images), np.int64), rows, transform), batch)
    network.eval()
    with torch.no_grad():
        features = torch.cat([network(x) for x, _ in loader]).numpy().astype(np.float64)
    lengths: Floats = np.linalg.norm(features, axis=1, keepdims=True)
    return features / lengths


def plain_accuracy(distances: Floats, same: Bools, folds: Labels) -> float:
    """Return the mean accuracy over folds, each judged by the threshold that is best on the other folds."""
    accuracies = []
    for fold in range(int(folds.max()) + 1):
        others, held_out = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        # Indexed again for every threshold, as it is usually written.
        scores = [_accuracy_at(threshold, distances[others], same[others]) for threshold in THRESHOLDS]
        best = THRESHOLDS[np.argmax(scores)]
        accuracies.append(_accuracy_at(best, distances[held_out], same[held_out]))
    return float(np.mean(accuracies))


def _accuracy_at(threshold: float, distances: Floats, same: Bools) -> float:
    judged = np.less(distances, threshold)
    true_positives = np.sum(np.logical_and(judged, same))
    true_negatives = np.sum(np.logical_and(np.logical_not(judged), np.logical_not(same)))
    return float(true_positives + true_negatives) / len(distances)


def exhaustive_accuracy(distances: Floats, same: Bools, folds: Labels) -> float:
    """Return the accuracy with the lowest of the best thresholds, trying each at which a judgement can change."""
    accuracies = []
    for fold in range(int(folds.max()) + 1):
        others, held_out = folds != fold, folds == fold
        values = np.unique(distances[others])
        thresholds = np.concatenate([[-np.inf], values[:-1] + np.diff(values) / 2, [np.inf]])
        right = [
            np.count_nonzero((distances[others] < thresholds[start : start + CHUNK, None]) == same[others], axis=1)
            for start in range(0, len(thresholds), CHUNK)
        ]
        best = thresholds[int(np.argmax(np.concatenate(right)))]
        accuracies.append(np.mean(np.less(distances[held_out], best) == same[held_out]))
    return float(np.mean(accuracies))
