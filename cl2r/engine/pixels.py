"""Where batches of pixels come from: a set held on the device as uint8, or one that other processes decode ahead.

Which rows a batch has and how they are cropped is decided by who asks, never here: so batches do not depend on the
number of processes, and an interrupted epoch can be drawn again.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from cl2r.augment import crop_box
from cl2r.data.dataset import Images, ImageSet
from cl2r.data.images import LazyImages
from cl2r.errors import InputError, TrainingError

Rows = npt.NDArray[np.int64]
PREFETCHED = 2  # batches that every decoding process has ready


class Look(NamedTuple):
    """One batch asked for: rows of the set and, where images are to be cropped and scaled, the draw of each box."""

    rows: Rows
    boxes: Tensor | None = None


class Pixels(Protocol):
    """A set of images on its way to the device."""

    def __len__(self) -> int:
        """Images of the set."""

    def stream(self, looks: Iterable[Look]) -> Iterator[Tensor]:
        """uint8 (B, H, W, C) on the device for every look, in order. One stream at a time, read to its end."""


@lru_cache(maxsize=2)  # the runs of a job share them
def training_pixels(dataset: ImageSet, loaders: int, device: torch.device) -> Pixels:
    """Those of the training images."""
    return pixels_of(dataset.x_train, loaders, device)


@lru_cache(maxsize=2)
def open_pixels(dataset: ImageSet, loaders: int, device: torch.device) -> Pixels:
    """Those of the open images."""
    return pixels_of(dataset.x_open, loaders, device)


def pixels_of(images: Images | LazyImages, loaders: int, device: torch.device) -> Pixels:
    """Hold an array on the device, or decode by `loaders` processes."""
    if isinstance(images, LazyImages):
        return DecodedPixels(images, loaders, device)
    return HeldPixels(torch.from_numpy(images).to(device))


@dataclass(frozen=True)
class HeldPixels:
    """The whole set as one tensor on the device."""

    images: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def stream(self, looks: Iterable[Look]) -> Iterator[Tensor]:
        """Rows of the tensor."""
        for rows, boxes in looks:
            images = self.images.index_select(0, torch.from_numpy(rows).to(self.images.device))
            yield images if boxes is None else torch.stack(list(map(cropped, images, boxes)))


class DecodedPixels:
    """Decoded by processes that live as long as this object."""

    def __init__(self, images: LazyImages, loaders: int, device: torch.device) -> None:
        self.device, self._count, self._schedule, self._streams = device, len(images), _Schedule(), 0
        self._loader: DataLoader[Tensor | str] = DataLoader(
            _Decoder(images),
            batch_size=None,  # the schedule asks for whole batches
            sampler=self._schedule,
            num_workers=loaders,
            prefetch_factor=PREFETCHED if loaders else None,
            persistent_workers=loaders > 0,
            pin_memory=device.type == "cuda",
            generator=torch.Generator(),  # it would draw from the global stream otherwise
        )

    def __len__(self) -> int:
        return self._count

    def stream(self, looks: Iterable[Look]) -> Iterator[Tensor]:
        """Decoded, scaled to one size, and sent to the device."""
        self._schedule.looks = looks
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


class _Schedule(Sampler[Look]):
    """The looks of the current stream."""

    looks: Iterable[Look] = ()

    def __iter__(self) -> Iterator[Look]:
        return iter(self.looks)


@dataclass(frozen=True)
class _Decoder(Dataset[Tensor | str]):
    """A look becomes its batch; a complaint comes as text, since a DataLoader would bury it in a traceback."""

    images: LazyImages

    def __getitem__(self, look: Look) -> Tensor | str:
        try:
            if look.boxes is None:
                return torch.from_numpy(self.images.decode(look.rows))
            return torch.stack(list(map(self._cropped, look.rows.tolist(), look.boxes)))
        except InputError as error:
            return str(error)

    def _cropped(self, row: int, box: Tensor) -> Tensor:
        """From twice the resolution, so that a small box still has pixels of its own."""
        image = np.array(self.images.open(row, 2 * self.images.size), np.uint8)
        return cropped(torch.from_numpy(image.reshape(*image.shape[:2], -1)), box, self.images.size)


def cropped(image: Tensor, box: Tensor, size: int | None = None) -> Tensor:
    """(H, W, C) -> its box at full size, or `size` × `size`, by an antialiased bilinear filter."""
    # imported here: torchvision takes seconds, which every process of a study would spend
    from torchvision.transforms.v2 import functional as transforms

    height, width, _ = image.shape
    place = crop_box(height, width, box)
    target = [height, width] if size is None else [size, size]
    result: Tensor = transforms.resized_crop(image.permute(2, 0, 1), *place, size=target, antialias=True)
    return result.permute(1, 2, 0)
