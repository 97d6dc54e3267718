"""The embedded default: drawings of 100 concepts to train on and of 20 others for verification."""

from importlib.resources import files
from pathlib import Path

import numpy as np

from cl2r.data.dataset import Dataset, ImageSet
from cl2r.data.images import ArrayImages


def load_icons(root: Path | None = None, size: int = 32, channels: int = 1, decode: bool = True) -> ImageSet:
    """Return the icons that ship with the package; all arguments are ignored, they have one place and size."""
    resource = files("cl2r.data").joinpath("embedded", "icons120.npz")
    with resource.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        x, y = archive["x"], archive["y"].astype(np.int64)
        names = [str(name) for name in archive["classes"]]
        open_from = int(archive["open_from"])
    is_open = y >= open_from
    x_train, x_open = ArrayImages(x[~is_open]), ArrayImages(x[is_open])
    y_train, y_open, open_names = y[~is_open], y[is_open] - open_from, tuple(names[open_from:])
    return ImageSet("icons", x_train, y_train, x_open, y_open, tuple(names[:open_from]), open_names=open_names)


ICONS = Dataset(
    name="icons",
    description="icon drawings: a class is a concept, an image one designer's drawing of it",
    classes=100,
    images=10_005,
    open_set="20 other concepts",
    image_shape=(32, 32, 1),
    licence="MIT, Apache-2.0, ISC, BSD-3-Clause or Unlicense by icon set: embedded/icons120_sources.tsv",
    load=load_icons,
)
