"""Batches of pixels, from a set held on the device as uint8 or from one that other processes decode ahead of time.

The caller decides which rows a batch has and how they are cropped: nothing depends on the number of processes.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cl2r.augment import crop_box
from cl2r.batches import Rows
from cl2r.data.dataset import ImageSet
from cl2r.data.images import Images, LazyImages
from cl2r.errors import InputError, TrainingError

Request = tuple[Rows, Tensor | None]
PREFETCHED = 2  # batches that every decoding process keeps ready


class Pixels(Protocol):
    """Images of a set as batches on the device."""

    def __len__(self) -> int: ...

    def stream(self, batches: Sequence[Rows], boxes: Sequence[Tensor] = ()) -> Iterator[Tensor]:
        """Yield (B, H, W, C) uint8 images on the device for every batch of rows, in order; one stream at a time.

        With `boxes`, one tensor per batch and one entry per row, every image is cropped to its `crop_box` and scaled.
        """


@lru_cache(maxsize=2)  # the runs of a job share them
def training_pixels(dataset: ImageSet, loaders: int, device: torch.device) -> Pixels:
    return pixels_of(dataset.x_train, loaders, device)


@lru_cache(maxsize=2)
def open_pixels(dataset: ImageSet, loaders: int, device: torch.device) -> Pixels:
    return pixels_of(dataset.x_open, loaders, device)


def pixels_of(images: Images, loaders: int, device: torch.device) -> Pixels:
    """Return an array held on the device, or images that `loaders` processes decode."""
    if isinstance(images, LazyImages):
        return DecodedPixels(images, loaders, device)
    return HeldPixels(torch.from_numpy(images.all()).to(device))


@dataclass(frozen=True)
class HeldPixels:
    """The whole set as one tensor on the device."""

    images: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def stream(self, batches: Sequence[Rows], boxes: Sequence[Tensor] = ()) -> Iterator[Tensor]:
        rows_of_batches = moved([torch.from_numpy(rows) for rows in batches], self.images.device)
        for rows, box in itertools.zip_longest(rows_of_batches, boxes):
            images = self.images.index_select(0, rows)
            yield images if box is None else torch.stack(list(map(cropped, images, box)))


class DecodedPixels:
    """Images decoded by processes that live as long as this object."""

    def __init__(self, images: LazyImages, loaders: int, device: torch.device) -> None:
        self.device, self._count, self._streams = device, len(images), 0
        self._requests: list[Request] = []  # the batches of the current stream
        self._loader: DataLoader[Tensor | str] = DataLoader(
            _Decoder(images),
            batch_size=None,  # every request is a whole batch
            sampler=self._requests,
            num_workers=loaders,
            prefetch_factor=PREFETCHED if loaders else None,
            persistent_workers=loaders > 0,
            pin_memory=device.type == "cuda",
            generator=torch.Generator(),  # it would draw from the global stream otherwise
        )

    def __len__(self) -> int:
        return self._count

    def stream(self, batches: Sequence[Rows], boxes: Sequence[Tensor] = ()) -> Iterator[Tensor]:
        self._requests[:] = itertools.zip_longest(batches, boxes)
        self._streams += 1
        mine = self._streams
        for images in self._decoded():
            if isinstance(images, str):
                raise InputError(images)
            yield images.to(self.device, non_blocking=True)
            if mine != self._streams:  # the loader has one set of processes: the first stream would just end
                raise RuntimeError("a second stream of these images was begun before the first had ended")

    def _decoded(self) -> Iterator[Tensor | str]:
        try:
            yield from self._loader
        except RuntimeError as error:
            line = " ".join(str(error).split())
            raise TrainingError(
                f"a decoding process died ({line}); lower data.loaders, or give this machine more shared memory"
            ) from error


@dataclass(frozen=True)
class _Decoder(Dataset[Tensor | str]):
    """Decode whole batches. An error is returned as text, since a DataLoader would bury it in a traceback."""

    images: LazyImages

    def __getitem__(self, request: Request) -> Tensor | str:
        rows, boxes = request
        try:
            if boxes is None:
                return torch.from_numpy(self.images.decode(rows))
            found, size = [], self.images.size
            for row, box in zip(rows, boxes, strict=True):
                # From twice the resolution, so that a small box still has pixels of its own.
                image = np.array(self.images.open(int(row), 2 * size), np.uint8)
                found.append(cropped(torch.from_numpy(image.reshape(*image.shape[:2], -1)), box, size))
            return torch.stack(found)
        except InputError as error:
            return str(error)


def cropped(image: Tensor, box: Tensor, size: int | None = None) -> Tensor:
    """Return the box of an (H, W, C) image at full size, or `size` × `size`, by an antialiased bilinear filter."""
    # imported here: torchvision takes seconds, which every process of a study would spend
    from torchvision.transforms.v2 import functional as transforms

    height, width, _ = image.shape
    target = [height, width] if size is None else [size, size]
    corner = crop_box(height, width, box)
    result: Tensor = transforms.resized_crop(image.permute(2, 0, 1), *corner, size=target, antialias=True)
    return result.permute(1, 2, 0)


def moved(parts: Sequence[Tensor], device: torch.device) -> Sequence[Tensor]:
    """Move tensors to the device by one copy."""
    return torch.split(torch.cat(list(parts)).to(device), [len(part) for part in parts]) if parts else ()
