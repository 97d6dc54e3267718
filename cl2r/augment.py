"""Augmentation of whole batches of uint8 images: crop after zero padding, flip, normalise."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Augmentation:
    """Crop offsets (y, x) and flips of each row of a global batch."""

    offsets: Tensor
    flips: Tensor

    def shard(self, rank: int, world: int) -> "Augmentation":
        """The rows of one worker, as `batches.shard` deals them."""
        return Augmentation(self.offsets[rank::world], self.flips[rank::world])


def draw(count: int, padding: int, flip: bool, generator: torch.Generator) -> Augmentation:
    """Random offsets in 0..2·padding and, where `flip`, a fair coin a row."""
    offsets = torch.randint(0, 2 * padding + 1, (count, 2), generator=generator)
    coins = torch.randint(0, 2, (count,), generator=generator).bool()
    return Augmentation(offsets, coins & flip)


def crop_and_flip(images: Tensor, augmentation: Augmentation, padding: int) -> Tensor:
    """(B, H, W, C) uint8 -> the same shape, each row cropped at its offset from the zero-padded image."""
    count, height, width, _ = images.shape
    device = images.device
    offsets, flips = augmentation.offsets.to(device), augmentation.flips.to(device)
    padded = functional.pad(images, (0, 0, padding, padding, padding, padding))
    y = offsets[:, 0, None] + torch.arange(height, device=device)
    columns = torch.arange(width, device=device).expand(count, width)
    x = offsets[:, 1, None] + torch.where(flips[:, None], columns.flip(1), columns)
    rows = torch.arange(count, device=device)[:, None, None]
    return padded[rows, y[:, :, None], x[:, None, :]]


class Normalise:
    """uint8 (B, H, W, C) -> float (B, C, H, W) with zero mean and unit deviation, in channels-last memory."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> None:
        self.scale = torch.tensor([1 / (255 * s) for s in std], device=device)
        self.shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=device)

    def __call__(self, images: Tensor) -> Tensor:
        """Normalised images."""
        return (images.float() * self.scale + self.shift).permute(0, 3, 1, 2)
