"""Generated images, and the config of a run on them: task 2 of CIFAR-100 in ten tasks, with images that are made up."""

from pathlib import Path
from typing import Any

import numpy as np

from cl2r.config.layers import override, resolve
from cl2r.config.schema import Config
from cl2r.data.dataset import Labels
from cl2r.data.images import Pixels
from tests.benchmarks.speed.harness import Sizes

SIDE, TILES, HALF = 32, 4, 128
CLASSES, OPEN_CLASSES = 20, 10
MEMORY_PER_CLASS = 20


def mosaics(classes: int, count: int, rng: np.random.Generator) -> tuple[Pixels, Labels]:
    """Return `count` colour images: each class is a random mosaic of tiles, each image that mosaic with noise."""
    labels = np.arange(count, dtype=np.int64) % classes
    tiles = rng.integers(0, HALF, (classes, TILES, TILES, 3), dtype=np.uint8)
    large = tiles.repeat(SIDE // TILES, axis=1).repeat(SIDE // TILES, axis=2)
    return large[labels] + rng.integers(0, HALF, (count, SIDE, SIDE, 3), dtype=np.uint8), labels


def write_training_set(folder: Path, sizes: Sizes) -> Path:
    """Write an .npz file with the classes of two tasks and the few open images that a dataset needs."""
    path = folder / "generated.npz"
    rng = np.random.default_rng(7)
    x_train, y_train = mosaics(CLASSES, CLASSES * sizes.per_class, rng)
    x_open, y_open = mosaics(2, 40, rng)
    np.savez(path, x_train=x_train, y_train=y_train, x_open=x_open, y_open=y_open + CLASSES)
    return path


def config_of(data: Path, sizes: Sizes, method: str, *overrides: str) -> Config:
    """Return a cell of the ablation at the paper's settings, with lr 0 so that all steps are alike."""
    layer: dict[str, Any] = {
        "data": {"name": str(data)},
        "scenario": {"n_tasks": 2},
        "backbone": {"name": sizes.backbone},
        "head": {"k_max": sizes.outputs},
        "memory": {"per_class": MEMORY_PER_CLASS},
        "batches": {"size": sizes.batch},
        "optim": {"lr": 0.0},
        "eval": {"positives": 10, "negatives": 10, "folds": 2, "tuning_share": 0.0, "bootstrap": 0},
    }
    return resolve([layer, override(f"method.name={method}"), *map(override, overrides)])
