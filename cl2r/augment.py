"""Augmentation of whole batches of uint8 images: crop after padding, flip, normalise; and boxes to crop and scale."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Crop = Literal["padded", "resized"]
SMALLEST_AREA, WIDEST, TRIES = 0.08, 4 / 3, 10


@dataclass(frozen=True)
class Augmentation:
    """Crop offsets (y, x) and flips of each row of a global batch; numbers of 0..1 where boxes are cropped."""

    offsets: Tensor
    flips: Tensor
    boxes: Tensor | None = None

    def shard(self, rank: int, world: int) -> "Augmentation":
        """The rows of one worker, as `batches.shard` deals them."""
        boxes = None if self.boxes is None else self.boxes[rank::world]
        return Augmentation(self.offsets[rank::world], self.flips[rank::world], boxes)


def draw(count: int, padding: int, flip: bool, generator: torch.Generator, crop: Crop = "padded") -> Augmentation:
    """Random offsets in 0..2·padding, or boxes, and, where `flip`, a fair coin a row."""
    offsets, boxes = torch.zeros(count, 2, dtype=torch.int64), None
    if crop == "padded":
        offsets = torch.randint(0, 2 * padding + 1, (count, 2), generator=generator)
    else:
        boxes = torch.rand(count, 2 + 2 * TRIES, generator=generator)
    coins = torch.randint(0, 2, (count,), generator=generator).bool()
    return Augmentation(offsets, coins & flip, boxes)


def crop_box(height: int, width: int, drawn: Tensor) -> tuple[int, int, int, int]:
    """Top, left, height and width of a box with 8 to 100 % of the image's area and sides from 3:4 to 4:3.

    Uniform in area and in the logarithm of the ratio; of several tries the first that fits, else all of the image.
    """
    (y, x), *tries = drawn.view(-1, 2).tolist()
    tall, wide = height, width
    for area, ratio in tries:
        pixels = (SMALLEST_AREA + (1 - SMALLEST_AREA) * area) * height * width
        aspect = WIDEST ** (2 * ratio - 1)
        box = round(math.sqrt(pixels / aspect)), round(math.sqrt(pixels * aspect))
        if 0 < box[0] <= height and 0 < box[1] <= width:
            tall, wide = box
            break
    return int(y * (height - tall + 1)), int(x * (width - wide + 1)), tall, wide


def crop_and_flip(images: Tensor, augmentation: Augmentation, padding: int) -> Tensor:
    """(B, H, W, C) uint8 -> the same shape, each row cropped at its offset from the zero-padded image.

    A line of a crop is a run of W·C bytes somewhere in the padded images, so all lines of a batch are copied by one
    `index_select`, which moves whole runs (indexing would move bytes). A flipped crop is a crop of the mirrored image.
    """
    count, height, width, channels = images.shape
    padded = functional.pad(images, (0, 0, padding, padding, padding, padding)).contiguous()
    flipped = augmentation.flips.nonzero()[:, 0]
    sources = torch.cat([padded, padded.index_select(0, flipped.to(images.device)).flip(2)])
    source = torch.arange(count).index_copy_(0, flipped, count + torch.arange(len(flipped)))
    y, x = augmentation.offsets.unbind(1)
    x = torch.where(augmentation.flips, 2 * padding - x, x)
    tall, wide = padded.shape[1:3]
    starts = ((source * tall + y)[:, None] + torch.arange(height)) * wide + x[:, None]
    lines = sources.as_strided((len(sources) * tall * wide - width + 1, width * channels), (channels, 1))
    return lines.index_select(0, starts.view(-1).to(images.device)).view(images.shape)


class Normalise:
    """uint8 (B, H, W, C) -> float (B, C, H, W) with zero mean and unit deviation, in channels-last memory."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> None:
        self.scale = torch.tensor([1 / (255 * s) for s in std], device=device)
        self.shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=device)

    def __call__(self, images: Tensor) -> Tensor:
        """Normalised images."""
        _, _, width, channels = images.shape
        lines = images.reshape(*images.shape[:2], width * channels).float()  # long runs: a loop over channels is slow
        lines = lines.mul_(self.scale.repeat(width)).add_(self.shift.repeat(width))
        return lines.view(images.shape).permute(0, 3, 1, 2)
