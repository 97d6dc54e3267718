"""The usual training step of such papers: fp32 NCHW, a dense simplex, the teacher a copy that sees the whole batch."""

import copy
import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from cl2r.backbones import build_backbone
from cl2r.config import Config
from cl2r.engine.plan import Plan
from cl2r.methods.base import TaskData
from studies.speed.plain_data import BalancedSampler, endless, training_images


def dense_simplex(classes: int) -> Tensor:
    """K × (K−1): the unit vectors and a·(1, …, 1), a = (1 − √K)/(K − 1), about their mean and of length one."""
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
        """All K logits."""
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
        """φ(x)."""
        projected: Tensor = self.projection(self.backbone(x))
        return projected

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """φ(x) and the logits."""
        features = self.features(x)
        return features, self.classifier(features)


class PlainTraining:
    """Task 2 of a plan, on the rows of `data`."""

    def __init__(self, plan: Plan, data: TaskData) -> None:
        config = plan.config
        old, new = (len(task.labels) for task in plan.scenario.tasks[:2])
        self.fd, self.old_classes = config.method.fd, old
        self.weight = config.method.lambda_base * math.sqrt(new / old)  # λ_t
        self.network = PlainNetwork(config, plan.dataset.channels, plan.num_outputs, old + new)
        self.teacher = copy.deepcopy(self.network).eval()
        optim = config.optim
        self.optimiser = torch.optim.SGD(
            self.network.parameters(), optim.lr, optim.momentum, weight_decay=optim.weight_decay
        )
        images = training_images(plan, np.concatenate([data.memory, data.new]))
        sampler = BalancedSampler(len(data.memory), len(data.new), config.batches.size)
        self.batches = endless(DataLoader(images, batch_sampler=sampler))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """CE + λ_t · mean of 1 − cos(φ_t(x), φ_{t-1}(x)) over all rows, or over those of the memory."""
        features, logits = self.network(x)
        loss = functional.cross_entropy(logits, y)
        if self.fd == "none":
            return loss
        with torch.no_grad():
            old = self.teacher.features(x)
        apart = 1 - functional.cosine_similarity(features, old)
        return loss + self.weight * (apart if self.fd == "all" else apart[y < self.old_classes]).mean()

    def step(self) -> None:
        """On the next batch."""
        x, y = next(self.batches)
        self.network.train()
        loss = self.loss(x, y)
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
