"""The embedded default: drawings of 100 concepts to train on and of 20 others for verification."""

from importlib.resources import files
from pathlib import Path

import numpy as np

from cl2r.data.dataset import ImageSet


def load_icons(root: Path | None = None, size: int = 32, channels: int = 1) -> ImageSet:
    """Read the icons that ship with the package; they have one place, size and colour."""
    resource = files("cl2r.data").joinpath("embedded", "icons120.npz")
    with resource.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        x, y = archive["x"], archive["y"].astype(np.int64)
        names = [str(name) for name in archive["classes"]]
        open_from = int(archive["open_from"])
    is_open = y >= open_from
    return ImageSet(
        name="icons",
        x_train=x[~is_open],
        y_train=y[~is_open],
        x_open=x[is_open],
        y_open=y[is_open] - open_from,
        class_names=tuple(names[:open_from]),
        open_names=tuple(names[open_from:]),
    )
