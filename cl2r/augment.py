"""Augmentation of whole batches of uint8 images: crop after padding, flip, normalise; and boxes to crop and scale."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from cl2r.config.schema import AugmentConfig

SMALLEST_AREA, WIDEST, TRIES = 0.08, 4 / 3, 10


@dataclass(frozen=True)
class Augmentation:
    """Crop offsets (y, x) and flips, one entry per row of a batch."""

    offsets: Tensor
    flips: Tensor
    flipped: Tensor  # positions of the rows that are flipped: counting them on the device would stall it
    boxes: Tensor | None = None
    """Numbers in 0..1 from which `crop_box` computes a box per row, if images are cropped and scaled."""

    def part(self, rows: slice) -> "Augmentation":
        """Return the augmentation of some of the rows."""
        flips = self.flips[rows]
        boxes = None if self.boxes is None else self.boxes[rows]
        return Augmentation(self.offsets[rows], flips, flips.nonzero()[:, 0], boxes)


def draw(count: int, spec: AugmentConfig, generator: torch.Generator) -> Augmentation:
    """Draw offsets in 0..2·padding or boxes, and a fair coin per row that decides about its flip."""
    offsets, boxes = torch.zeros(count, 2, dtype=torch.int64), None
    if spec.crop == "padded":
        offsets = torch.randint(0, 2 * spec.padding + 1, (count, 2), generator=generator)
    else:
        boxes = torch.rand(count, 2 + 2 * TRIES, generator=generator)
    flips = torch.randint(0, 2, (count,), generator=generator).bool() & spec.flip
    return Augmentation(offsets, flips, flips.nonzero()[:, 0], boxes)


def crop_box(height: int, width: int, drawn: Tensor) -> tuple[int, int, int, int]:
    """Return top, left, height and width of a box with 8 to 100 % of the image's area and sides from 3:4 to 4:3.

    Uniform in area and in the logarithm of the ratio; the first of several tries that fits, else the whole image.
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
    """Crop every row of (B, H, W, C) uint8 images at its offset from the zero-padded image; the shape stays the same.

    One line of a crop is a run of W·C bytes somewhere in the padded images, so all lines of a batch are copied by one
    `index_select`, which moves whole runs (indexing would move bytes). A flipped crop is a crop of the mirrored image.
    All tensors are on the device of the images, and the device is never waited for.
    """
    count, height, width, channels = images.shape
    flipped, device = augmentation.flipped, images.device
    padded = functional.pad(images, (0, 0, padding, padding, padding, padding)).contiguous()
    sources = torch.cat([padded, padded.index_select(0, flipped).flip(2)])
    mirrored = count + torch.arange(len(flipped), device=device)
    source = torch.arange(count, device=device).index_copy_(0, flipped, mirrored)
    y, x = augmentation.offsets.unbind(1)
    x = torch.where(augmentation.flips, 2 * padding - x, x)
    tall, wide = padded.shape[1:3]
    starts = ((source * tall + y)[:, None] + torch.arange(height, device=device)) * wide + x[:, None]
    lines = sources.as_strided((len(sources) * tall * wide - width + 1, width * channels), (channels, 1))
    return lines.index_select(0, starts.view(-1)).view(images.shape)


class Normalise:
    """Map uint8 (B, H, W, C) to float (B, C, H, W) with zero mean and unit deviation, in channels-last memory."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> None:
        self.scale = torch.tensor([1 / (255 * s) for s in std], device=device)
        self.shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=device)

    def __call__(self, images: Tensor) -> Tensor:
        _, _, width, channels = images.shape
        lines = images.reshape(*images.shape[:2], width * channels).float()  # long runs: a loop over channels is slow
        lines = lines.mul_(self.scale.repeat(width)).add_(self.shift.repeat(width))
        return lines.view(images.shape).permute(0, 3, 1, 2)
