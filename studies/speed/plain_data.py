"""The usual way to batches: every image by itself through PIL and torchvision's transforms, in a DataLoader."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler
from torchvision import transforms

from cl2r.data.dataset import Images, Labels
from cl2r.engine.plan import Plan

Moments = tuple[tuple[float, ...], tuple[float, ...]]
Item = tuple[Tensor, int]
PADDING = 4


def training_transform(size: int, moments: Moments) -> Any:
    """Crop after padding, flip, normalise."""
    augmented = [transforms.RandomCrop(size, padding=PADDING), transforms.RandomHorizontalFlip()]
    return transforms.Compose([*augmented, transforms.ToTensor(), transforms.Normalize(*moments)])


def evaluation_transform(moments: Moments) -> Any:
    """Normalise."""
    return transforms.Compose([transforms.ToTensor(), transforms.Normalize(*moments)])


class PilImages(Dataset[Item]):
    """Rows of an array, transformed one by one."""

    def __init__(self, images: Images, labels: Labels, rows: Labels, transform: Any) -> None:
        self.images, self.labels, self.rows, self.transform = images, labels, rows, transform

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Item:
        row = self.rows[place]
        return self.transform(Image.fromarray(self.images[row])), int(self.labels[row])


def training_images(plan: Plan, rows: Labels) -> PilImages:
    """Rows of the training set, augmented."""
    dataset = plan.dataset
    assert isinstance(dataset.x_train, np.ndarray)
    transform = training_transform(dataset.image_size[0], dataset.moments)
    return PilImages(dataset.x_train, plan.scenario.labels, rows, transform)


class BalancedSampler(Sampler[list[int]]):
    """Batches of places, half of them among the first `memory` ones, which are the memory."""

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


def endless(loader: "DataLoader[Any]") -> Iterator[Any]:
    """Epoch after epoch."""
    while True:
        yield from loader
