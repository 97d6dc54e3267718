"""Data sets: the embedded icons by name, or a user's own .npz file or folder by path."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cl2r.data.dataset import ImageSet
from cl2r.data.folder import LAYOUT, load_folder
from cl2r.data.icons import load_icons
from cl2r.data.npz import load_npz
from cl2r.errors import InputError, nearest

__all__ = ["DATASETS", "DatasetInfo", "ImageSet", "load_dataset"]


@dataclass(frozen=True)
class DatasetInfo:
    """What a listing of the data sets shows, and how to load one."""

    description: str
    classes: int
    open_classes: int
    images: int
    image_shape: tuple[int, int, int]
    licence: str
    load: Callable[[], ImageSet]


DATASETS: dict[str, DatasetInfo] = {
    "icons": DatasetInfo(
        description="icon drawings: a class is a concept, an image one designer's drawing of it",
        classes=100,
        open_classes=20,
        images=10005,
        image_shape=(32, 32, 1),
        licence="MIT, Apache-2.0, ISC, BSD-3-Clause or Unlicense by icon set: embedded/icons120_sources.tsv",
        load=load_icons,
    ),
}


@lru_cache(maxsize=2)  # the runs of a study share their images
def load_dataset(name_or_path: str, size: int = 32, channels: int = 3) -> ImageSet:
    """Load a known data set, an .npz file or a folder; `size` and `channels` apply to folders only."""
    if name_or_path in DATASETS:
        return DATASETS[name_or_path].load()
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return load_folder(path, size, channels)
    if path.suffix == ".npz":
        return load_npz(path)
    if path.exists():
        raise InputError(f"{path}: a data set is an .npz file or a folder")
    hint, known = nearest(name_or_path, DATASETS), ", ".join(DATASETS)
    own = f"or give an .npz file, or a folder laid out as {LAYOUT}"
    raise InputError(f"no data set, file or folder {name_or_path!r}{hint}; data sets: {known}; {own}")
