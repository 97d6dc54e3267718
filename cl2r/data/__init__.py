"""Data sets: the embedded icons and the paper's benchmarks by name, or a user's own .npz file or folder by path."""

import importlib
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cl2r.data.check import Check
from cl2r.data.dataset import ImageSet
from cl2r.data.folder import LAYOUT, load_folder
from cl2r.data.npz import load_npz
from cl2r.errors import InputError, nearest

__all__ = ["DATASETS", "DatasetInfo", "ImageSet", "check_dataset", "data_root", "load_dataset"]

ROOT_VARIABLE, DEFAULT_ROOT = "CL2R_DATA", "data"


@dataclass(frozen=True)
class DatasetInfo:
    """What a listing of the data sets shows, and how to load and to check one. Counts are the published ones."""

    description: str
    classes: int
    open_set: str
    images: int
    image_shape: tuple[int, int, int]
    licence: str
    module: str
    """Of `cl2r.data`; has `load_<name>(root, size, channels)` and, where files can be missing, `check_<name>(root)`."""
    layout: str = ""
    """What is expected below the root; nothing for what comes with the package."""


DATASETS: dict[str, DatasetInfo] = {
    "icons": DatasetInfo(
        description="icon drawings: a class is a concept, an image one designer's drawing of it",
        classes=100,
        open_set="20 other concepts",
        images=10005,
        image_shape=(32, 32, 1),
        licence="MIT, Apache-2.0, ISC, BSD-3-Clause or Unlicense by icon set: embedded/icons120_sources.tsv",
        module="icons",
    ),
    "cifar100": DatasetInfo(
        description="CIFAR-100, verified on CIFAR-10",
        classes=100,
        open_set="10 classes, test images",
        images=60_000,
        image_shape=(32, 32, 3),
        licence="none stated by its authors",
        module="cifar",
        layout="cifar-100-python/{train,meta} and cifar-10-batches-py/test_batch",
    ),
    "tiny_imagenet200": DatasetInfo(
        description="Tiny-ImageNet, verified on 20 other classes of ImageNet",
        classes=200,
        open_set="20 classes, validation images",
        images=101_000,
        image_shape=(64, 64, 3),
        licence="ImageNet's terms of access",
        module="tiny_imagenet",
        layout="tiny-imagenet-200/train/<wnid>/images and imagenet/val/<wnid> (or imagenet20/<wnid>)",
    ),
    "imagenet900": DatasetInfo(
        description="900 classes of ImageNet, verified on the other 100",
        classes=900,
        open_set="100 classes, validation images",
        images=1_158_000,
        image_shape=(224, 224, 3),
        licence="ImageNet's terms of access",
        module="imagenet",
        layout="imagenet/train/<wnid> and imagenet/val/<wnid>",
    ),
    "casia_lfw": DatasetInfo(
        description="CASIA-WebFace, verified on LFW",
        classes=10_575,
        open_set="LFW's 6000 official pairs",
        images=507_647,
        image_shape=(112, 112, 3),
        licence="research use, by their owners' terms",
        module="casia",
        layout="casia-webface/<id> or faces_webface_112x112/train.rec; lfw/<name> with pairs.txt, "
        "or lfw.bin beside train.rec",
    ),
    "casia_ijbc": DatasetInfo(
        description="CASIA-WebFace, verified on IJB-C templates",
        classes=10_575,
        open_set="IJB-C's 15 658 489 official pairs of templates",
        images=963_789,
        image_shape=(112, 112, 3),
        licence="research use, by their owners' terms",
        module="ijbc",
        layout="CASIA-WebFace as above; ijbc/meta/*.txt with ijbc/loose_crop or ijbc/aligned",
    ),
    "lfw": DatasetInfo(
        description="LFW alone: the people with 20 images or more, verified on everybody else",
        classes=62,
        open_set="the official pairs without those people",
        images=13_233,
        image_shape=(64, 64, 3),
        licence="research use",
        module="lfw",
        layout="lfw/<name>/<name>_0001.jpg, and pairs.txt in lfw or beside it",
    ),
}


def data_root(given: str | Path | None = None) -> Path:
    """Where benchmarks lie: as given, or $CL2R_DATA, or `data`."""
    return Path(given or os.environ.get(ROOT_VARIABLE) or DEFAULT_ROOT).expanduser()


def check_dataset(name: str, root: Path) -> Check:
    """What a folder holds of a benchmark."""
    if name not in DATASETS:
        raise InputError(f"no data set {name!r}{nearest(name, DATASETS)}; data sets: {', '.join(DATASETS)}")
    info = DATASETS[name]
    if not info.layout:
        return Check(found=[f"{name} comes with the package"])
    checked: Check = getattr(importlib.import_module(f"cl2r.data.{info.module}"), f"check_{name}")(root)
    return checked


def load_dataset(name_or_path: str, size: int = 32, channels: int = 3, root: str | None = None) -> ImageSet:
    """Load a known data set, an .npz file or a folder; `root` is for benchmarks, the rest for what is decoded."""
    return _load(name_or_path, size, channels, data_root(root))


@lru_cache(maxsize=2)  # the runs of a study share their images
def _load(name_or_path: str, size: int, channels: int, root: Path) -> ImageSet:
    if name_or_path in DATASETS:
        module = importlib.import_module(f"cl2r.data.{DATASETS[name_or_path].module}")
        loaded: ImageSet = getattr(module, f"load_{name_or_path}")(root, size, channels)
        return loaded
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
