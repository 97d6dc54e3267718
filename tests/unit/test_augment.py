"""Augmentation of whole batches against one image at a time."""

import numpy as np
import pytest
import torch
from torchvision.transforms import functional as transforms

from cl2r.augment import Augmentation, Normalise, crop_and_flip, draw
from cl2r.config.schema import AugmentConfig

PADDING = 3


def stream(seed):
    return torch.Generator().manual_seed(seed)


def drawn(count, padding, flip, seed):
    return draw(count, AugmentConfig(padding=padding, flip=flip), stream(seed))


def images(count=12, height=8, width=6, channels=3, seed=0):
    return torch.randint(1, 256, (count, height, width, channels), dtype=torch.uint8, generator=stream(seed))


def slow_crop_and_flip(batch, augmentation, padding):
    """Pixel by pixel: where does each output pixel come from?"""
    source = batch.numpy()
    out = np.zeros_like(source)
    count, height, width, _ = source.shape
    for i in range(count):
        dy, dx = augmentation.offsets[i].tolist()
        for y in range(height):
            for x in range(width):
                column = width - 1 - x if augmentation.flips[i] else x
                from_y, from_x = y + dy - padding, column + dx - padding
                if 0 <= from_y < height and 0 <= from_x < width:
                    out[i, y, x] = source[i, from_y, from_x]
    return out


@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("channels", [1, 3])
def test_agrees_with_a_pixel_loop(padding, channels):
    batch, augmentation = images(channels=channels), drawn(12, padding, True, padding)
    result = crop_and_flip(batch, augmentation, padding)
    assert result.dtype == torch.uint8
    np.testing.assert_array_equal(result.numpy(), slow_crop_and_flip(batch, augmentation, padding))


def test_agrees_with_torchvision():
    batch, augmentation = images(), drawn(12, PADDING, True, 1)
    result = crop_and_flip(batch, augmentation, PADDING).permute(0, 3, 1, 2)
    assert 0 < augmentation.flips.sum() < 12
    for i, image in enumerate(batch.permute(0, 3, 1, 2)):
        top, left = augmentation.offsets[i].tolist()
        expected = transforms.crop(transforms.pad(image, [PADDING]), top, left, 8, 6)
        if augmentation.flips[i]:
            expected = transforms.hflip(expected)
        assert torch.equal(result[i], expected)


def test_padding_is_zero():
    corner = Augmentation(torch.tensor([[0, 2 * PADDING]]), torch.tensor([False]), torch.arange(0))
    (result,) = crop_and_flip(images(1), corner, PADDING)
    assert not result[:PADDING].any()
    assert not result[:, -PADDING:].any()
    assert result[PADDING:, :-PADDING].all()


def test_the_middle_offset_is_the_image_itself():
    batch = images()
    middle = Augmentation(torch.full((12, 2), PADDING), torch.zeros(12, dtype=torch.bool), torch.arange(0))
    assert torch.equal(crop_and_flip(batch, middle, PADDING), batch)


def test_offsets_and_flips_are_uniform():
    augmentation = drawn(9000, 1, True, 0)
    cells = torch.bincount(augmentation.offsets[:, 0] * 3 + augmentation.offsets[:, 1], minlength=9)
    assert len(cells) == 9
    assert (cells - 1000).abs().max() < 150
    assert abs(int(augmentation.flips.sum()) - 4500) < 250


def test_without_flip_nothing_is_flipped_and_the_crops_stay():
    with_flips, without = drawn(500, PADDING, True, 4), drawn(500, PADDING, False, 4)
    assert with_flips.flips.any()
    assert not without.flips.any()
    assert torch.equal(with_flips.offsets, without.offsets)


def test_without_padding_and_flip_nothing_changes():
    batch = images()
    assert torch.equal(crop_and_flip(batch, drawn(12, 0, False, 0), 0), batch)


def test_same_generator_same_augmentation():
    first, again = drawn(40, 4, True, 8), drawn(40, 4, True, 8)
    other = drawn(40, 4, True, 9)
    assert torch.equal(first.offsets, again.offsets)
    assert torch.equal(first.flips, again.flips)
    assert not torch.equal(first.offsets, other.offsets)
    assert not torch.equal(first.flips, other.flips)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_worker_augments_its_rows_as_the_global_batch_would(world):
    batch, augmentation = images(), drawn(12, PADDING, True, 2)
    whole = crop_and_flip(batch, augmentation, PADDING)
    for rank in range(world):
        rows = slice(rank, None, world)
        mine = crop_and_flip(batch[rows], augmentation.part(rows), PADDING)
        assert torch.equal(mine, whole[rows])


@pytest.mark.parametrize(("mean", "std"), [((0.5, 0.2, 0.9), (0.1, 0.25, 0.3)), ((0.4,), (0.2,))])
def test_normalise_is_the_formula(mean, std):
    batch = images(4, channels=len(mean))
    result = Normalise(mean, std, torch.device("cpu"))(batch)
    assert result.shape == (4, len(mean), 8, 6)
    assert result.dtype == torch.float32
    for c, (m, s) in enumerate(zip(mean, std, strict=True)):
        expected = (batch[..., c].double().numpy() / 255 - m) / s
        np.testing.assert_allclose(result[:, c].numpy(), expected, atol=2e-6)


def test_normalised_images_are_channels_last():
    result = Normalise((0.5,) * 3, (0.2,) * 3, torch.device("cpu"))(images())
    assert result.is_contiguous(memory_format=torch.channels_last)


def test_the_data_set_has_zero_mean_and_unit_deviation():
    batch = images(50)
    pixels = batch.double().reshape(-1, 3) / 255
    mean, std = tuple(pixels.mean(0).tolist()), tuple(pixels.std(0, correction=0).tolist())
    result = Normalise(mean, std, torch.device("cpu"))(batch).double()
    torch.testing.assert_close(result.mean((0, 2, 3)), torch.zeros(3).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(result.std((0, 2, 3), correction=0), torch.ones(3).double(), atol=1e-5, rtol=0)


def test_mean_and_deviation_need_one_length():
    with pytest.raises(ValueError, match="shorter"):
        Normalise((0.5, 0.5), (0.2,), torch.device("cpu"))
