"""The open images of a data set as files, to index and to search."""

from pathlib import Path

import numpy as np
from PIL import Image

from cl2r.data.dataset import ImageSet
from cl2r.data.images import LazyImages
from cl2r.errors import InputError

BLOCK = 1024


def write_open_images(dataset: ImageSet, folder: Path) -> int:
    """`folder`/<class>/<number>.png, pixel by pixel what a model of this data set sees; how many."""
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder}: not empty; give a folder of its own")
    names = dataset.open_names or tuple(f"class{label:04d}" for label in range(int(dataset.y_open.max()) + 1))
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for start in range(0, len(dataset.y_open), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(dataset.y_open)))
        images = (
            dataset.x_open.decode_by_threads(rows) if isinstance(dataset.x_open, LazyImages) else dataset.x_open[rows]
        )
        for row, image in zip(rows.tolist(), images, strict=True):
            picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
            picture.save(folder / names[dataset.y_open[row]] / f"{row:06d}.png")
    return len(dataset.y_open)
