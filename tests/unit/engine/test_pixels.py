"""Batches of pixels: held on the device, or decoded by other processes; the same batches either way."""

import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from cl2r.augment import crop_box, draw
from cl2r.config.schema import AugmentConfig
from cl2r.data.images import ArrayImages, LazyImages
from cl2r.engine.pixels import DecodedPixels, HeldPixels, cropped, pixels_of
from cl2r.errors import InputError
from cl2r.seeding import torch_stream

CPU, SIZE, COUNT = torch.device("cpu"), 12, 9


@dataclass(frozen=True)
class Encoded:
    """PNG files in memory; one of them may be cut short."""

    images: tuple[bytes, ...]

    def __len__(self) -> int:
        return len(self.images)

    def read(self, row: int) -> bytes:
        return self.images[row]

    def name(self, row: int) -> str:
        return f"picture {row}"

    def identity(self) -> Iterator[bytes]:
        yield from self.images


def encoded(broken: int | None = None) -> Encoded:
    rng, files = np.random.default_rng(0), []
    for row in range(COUNT):
        buffer = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (SIZE, SIZE, 3), np.uint8)).save(buffer, "PNG")
        files.append(buffer.getvalue()[: 60 if row == broken else None])
    return Encoded(tuple(files))


@pytest.fixture
def lazy() -> LazyImages:
    return LazyImages(encoded(), SIZE, 3)


BATCHES = [np.array(rows) for rows in ([3, 1, 4], [1, 5, 8, 2], [0])]


@pytest.mark.parametrize("loaders", [0, 2])
def test_decoded_batches_equal_the_array(lazy: LazyImages, loaders: int) -> None:
    held, decoded = pixels_of(ArrayImages(lazy.all()), loaders, CPU), pixels_of(lazy, loaders, CPU)
    assert (type(held), type(decoded)) == (HeldPixels, DecodedPixels)
    for _ in range(2):  # the processes live on from one epoch to the next
        for mine, theirs in zip(decoded.stream(BATCHES), held.stream(BATCHES), strict=True):
            assert torch.equal(mine, theirs)
    assert len(decoded) == len(held) == COUNT


def test_boxes_are_cropped_alike_from_memory_and_from_files(lazy: LazyImages) -> None:
    boxes = torch.rand(COUNT, 22, generator=torch.Generator().manual_seed(1))
    rows, images = [np.arange(COUNT)], torch.from_numpy(lazy.all())
    (held,) = HeldPixels(images).stream(rows, [boxes])
    (decoded,) = DecodedPixels(lazy, 0, CPU).stream(rows, [boxes])
    assert torch.equal(held, decoded)
    assert held.shape == (COUNT, SIZE, SIZE, 3)
    assert not torch.equal(held, images)


def test_the_whole_box_is_the_image(lazy: LazyImages) -> None:
    image = torch.from_numpy(lazy.resized(0).copy())
    whole = torch.tensor([0.0, 0.0, 1.0, 0.5])
    assert crop_box(SIZE, SIZE, whole) == (0, 0, SIZE, SIZE)
    assert torch.equal(cropped(image, whole), image)


def test_boxes_are_distributed_as_in_torchvision() -> None:
    """Areas and ratios of many boxes have the quantiles of RandomResizedCrop's."""
    height, width, count = 90, 120, 3000
    drawn = draw(count, AugmentConfig(crop="resized"), torch_stream(0, "boxes")).boxes
    assert drawn is not None
    mine = np.array([crop_box(height, width, box) for box in drawn])
    torch.manual_seed(0)
    params = [v2.RandomResizedCrop(8).make_params([torch.empty(3, height, width)]) for _ in range(count)]
    theirs = np.array([[p["top"], p["left"], p["height"], p["width"]] for p in params])
    for measure in (lambda b: b[:, 2] * b[:, 3] / (height * width), lambda b: np.log(b[:, 3] / b[:, 2])):
        shares = [0.1, 0.3, 0.5, 0.7, 0.9]
        assert np.quantile(measure(mine), shares) == pytest.approx(np.quantile(measure(theirs), shares), abs=0.03)
    assert (mine[:, 0] + mine[:, 2] <= height).all()
    assert (mine[:, 1] + mine[:, 3] <= width).all()
    assert mine.min() >= 0


@pytest.mark.parametrize("loaders", [0, 1])
@pytest.mark.parametrize("boxes", [(), (torch.full((1, 22), 0.5),)])
def test_an_image_that_does_not_decode_is_named_in_one_line(loaders: int, boxes: tuple[torch.Tensor, ...]) -> None:
    pixels = DecodedPixels(LazyImages(encoded(broken=4), SIZE, 3), loaders, CPU)
    with pytest.raises(InputError, match=r"^picture 4: not a readable image[^\n]*$"):
        list(pixels.stream([np.array([4])], boxes))


def test_an_abandoned_or_failed_stream_does_not_affect_the_next() -> None:
    lazy = LazyImages(encoded(broken=4), SIZE, 3)
    pixels = DecodedPixels(lazy, 2, CPU)
    for _ in pixels.stream(BATCHES[1:]):
        break
    with pytest.raises(InputError, match="picture 4"):
        list(pixels.stream([np.array([4]), *BATCHES[1:]]))
    for images, rows in zip(pixels.stream(BATCHES[1:]), BATCHES[1:], strict=True):
        np.testing.assert_array_equal(images.numpy(), lazy.decode(rows))


@pytest.mark.parametrize("loaders", [0, 2])
def test_a_stream_inside_a_stream_is_refused(lazy: LazyImages, loaders: int) -> None:
    pixels = DecodedPixels(lazy, loaders, CPU)
    outer = pixels.stream(BATCHES * 3)
    next(outer)
    list(pixels.stream(BATCHES))
    with pytest.raises(RuntimeError, match="a second stream"):
        next(outer)


def test_decoding_draws_nothing_from_the_global_stream(lazy: LazyImages) -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    list(DecodedPixels(lazy, 0, CPU).stream(BATCHES))
    assert torch.equal(before, torch.random.get_rng_state())
