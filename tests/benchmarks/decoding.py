"""How fast large sets of JPEGs come: our loader beside the customary one, side by side in one run.

    python tests/benchmarks/decoding.py [--images 600] [--side 500] [--size 224] [--loaders 0 2] [--rounds 5]

Both give batches of 256 random boxes of the image, scaled to `size`. Customary: torchvision's ImageFolder with
RandomResizedCrop and ToTensor in a DataLoader. Ours ends in uint8 batches, which are normalised on the device.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from cl2r.augment import draw
from cl2r.config.schema import AugmentConfig
from cl2r.data.images import ImageFiles, LazyImages
from cl2r.engine.pixels import DecodedPixels

BATCH = 256


def write_images(root: Path, count: int, side: int) -> None:
    """Smooth random pictures, as large as ImageNet's in pixels and about as large in bytes."""
    rng = np.random.default_rng(0)
    (root / "class").mkdir()
    for number in range(count):
        small = Image.fromarray(rng.integers(0, 256, (side // 8, side // 6, 3), np.uint8))
        small.resize((side, side * 3 // 4), Image.Resampling.BICUBIC).save(root / "class" / f"{number:05d}.jpg")


def ours(root: Path, size: int, loaders: int) -> Callable[[], int]:
    """One epoch of our loader."""
    names = sorted(f"class/{path.name}" for path in (root / "class").iterdir())
    pixels = DecodedPixels(LazyImages(ImageFiles(root, names), size, 3), loaders, torch.device("cpu"))

    def epoch() -> int:
        boxes = draw(len(names), AugmentConfig(crop="resized"), torch.Generator().manual_seed(0)).boxes
        assert boxes is not None
        starts = range(0, len(names), BATCH)
        batches = [np.arange(start, min(start + BATCH, len(names))) for start in starts]
        return sum(len(batch) for batch in pixels.stream(batches, boxes.split(BATCH)))

    return epoch


def customary(root: Path, size: int, loaders: int) -> Callable[[], int]:
    """One epoch of torchvision's."""
    steps = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    images = datasets.ImageFolder(str(root), transforms.Compose(steps))
    loader = DataLoader(images, BATCH, shuffle=True, num_workers=loaders, persistent_workers=loaders > 0)
    return lambda: sum(len(batch) for batch, _ in loader)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"--images": 600, "--side": 500, "--size": 224, "--rounds": 5}.items():
        parser.add_argument(name, type=int, default=value)
    parser.add_argument("--loaders", type=int, nargs="+", default=[0, 2])
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder), args.images, args.side)
        kinds = {"customary": customary, "ours": ours}
        ways = {(n, name): make(Path(folder), args.size, n) for n in args.loaders for name, make in kinds.items()}
        rates: dict[tuple[int, str], list[float]] = {way: [] for way in ways}
        for number in range(args.rounds + 1):
            for way, epoch in ways.items():
                began = time.perf_counter()
                images = epoch()
                if number:  # the first round starts the processes
                    rates[way].append(images / (time.perf_counter() - began))
    for n in args.loaders:
        ratio = statistics.median(a / b for a, b in zip(rates[n, "ours"], rates[n, "customary"], strict=True))
        medians = ", ".join(f"{name} {statistics.median(rates[n, name]):.0f}" for name in kinds)
        print(f"{n} loaders, images/s (median): {medians}; ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
