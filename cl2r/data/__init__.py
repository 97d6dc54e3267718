"""Data sets by name (embedded icons, the paper's benchmarks, plug-ins), or a user's own .npz file or folder by path.

Other packages join through the entry point group `cl2r.datasets`, which names a `Dataset` (see README.md).
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from cl2r.data.casia import CASIA_LFW
from cl2r.data.cifar import CIFAR100
from cl2r.data.dataset import Archive, Dataset, ImageSet, MissingDataError
from cl2r.data.folders import LAYOUT, load_folder
from cl2r.data.icons import ICONS
from cl2r.data.ijbc import CASIA_IJBC
from cl2r.data.imagenet import IMAGENET900, TINY_IMAGENET200
from cl2r.data.images import WHOLE, ArrayImages, LazyImages
from cl2r.data.lfw import LFW
from cl2r.data.npz import load_npz
from cl2r.data.published import stand_in
from cl2r.errors import InputError, nearest
from cl2r.runtime.plugins import Plugins

__all__ = ["DATASETS", "Archive", "ArrayImages", "Dataset", "ImageSet", "check_dataset", "load_dataset"]

BUILT_IN = (ICONS, CIFAR100, TINY_IMAGENET200, IMAGENET900, CASIA_LFW, CASIA_IJBC, LFW)
PROGRESS_EVERY = 10_000  # images decoded by a full check between two progress lines
SHOWN = 20  # undecodable images that a check names per part; the others are counted
ROUNDING = 0.01  # share by which a count may differ from a published one that is rounded
UNCROPPED = ": an uncropped photograph; papers use aligned crops, the same for training and test faces"


def _problem(entry: object, known: Mapping[str, Dataset]) -> str | None:
    if not isinstance(entry, Dataset):
        return "it is not a Dataset"
    return f"there is a data set {entry.name!r} already" if entry.name in known else None


DATASETS = Plugins("cl2r.datasets", lambda: {entry.name: entry for entry in BUILT_IN}, _problem)


def find_dataset(name: str) -> Dataset:
    """Return the entry of a data set; raise InputError if there is none of that name."""
    if name not in DATASETS:
        raise InputError(f"no data set {name!r}{nearest(name, DATASETS)}; data sets: {DATASETS}")
    return DATASETS[name]


def data_root(given: str | Path | None = None) -> Path:
    """Return the folder of the benchmarks: as given, or $CL2R_DATA, or `data`."""
    return Path(given or os.environ.get("CL2R_DATA") or "data").expanduser()


def load_dataset(name_or_path: str, size: int = 32, channels: int = 3, root: str | None = None) -> ImageSet:
    """Load a data set by name (below `root`), an .npz file or a folder; images in files become size × size."""
    folder, missing = data_root(root), _missing.get()
    try:
        return _load(name_or_path, size, channels, folder)
    except MissingDataError as error:
        if name_or_path not in DATASETS:
            raise InputError(str(error)) from error
        known = stand_in(DATASETS[name_or_path], size, channels) if missing is not None else None
        if missing is None or known is None:
            hint = f"`cl2r datasets check {name_or_path} {folder}` says how to get it"
            raise InputError(f"{error}; {hint}") from error
        missing.add(name_or_path)
        return known


_missing: ContextVar[set[str] | None] = ContextVar("missing", default=None)


@contextlib.contextmanager
def published_sizes() -> Iterator[None]:
    """Inside, `load_dataset` returns noise of the published size for a benchmark that is not there.

    Only for plans: nothing can be learnt from noise.
    """
    token = _missing.set(set())
    try:
        yield
    finally:
        _missing.reset(token)


def stand_ins() -> list[str]:
    """Return the names of the data sets that were replaced inside `published_sizes` so far."""
    return sorted(_missing.get() or ())


@lru_cache(maxsize=2)  # the runs of a study share their images
def _load(name_or_path: str, size: int, channels: int, root: Path) -> ImageSet:
    if name_or_path in DATASETS:
        return DATASETS[name_or_path].load(root, size, channels, True)
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return load_folder(path, size, channels)
    if path.suffix == ".npz":
        return load_npz(path)
    if path.exists():
        raise InputError(f"{path}: a data set is an .npz file, or a folder laid out as {LAYOUT}; give one of these")
    unknown = f"no data set, file or folder {name_or_path!r}{nearest(name_or_path, DATASETS)}; data sets: {DATASETS}"
    raise InputError(f"{unknown}; or give an .npz file, or a folder laid out as {LAYOUT}")


@dataclass
class Check:
    """What was found of a data set, and its problems: files that are missing or broken, and what was expected."""

    found: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether a run can use the data set."""
        return not self.problems


def check_dataset(
    name: str, root: Path, full: bool = False, report: Callable[[str], None] = lambda line: None
) -> Check:
    """Load a data set without decoding it, compare its counts with the published ones, and decode its images.

    Only the first image of each part is decoded, or all of them if `full`. `report` receives progress lines.
    """
    entry, check = find_dataset(name), Check()
    height, _, channels = entry.image_shape
    try:
        data = entry.load(root, height, channels, False)
    except InputError as error:
        check.problems.append(str(error))
        return check
    check.found.append(f"{len(data.y_train):,} training images of {data.num_classes:,} classes")
    kind = "classes" if data.templates is None else "templates"  # the label of an image is its template
    check.found.append(f"{len(data.y_open):,} open images of {len(np.unique(data.y_open)):,} {kind}")
    if data.pairs is not None:
        same, folds = int(data.pairs.same.sum()), int(data.pairs.folds.max()) + 1
        kinds = f"{same:,} same, {len(data.pairs) - same:,} different"
        check.found.append(f"{len(data.pairs):,} official pairs ({kinds}) in {folds} folds")
    difference = abs(len(data.y_train) + len(data.y_open) - entry.images)
    if data.num_classes != entry.classes or difference > (ROUNDING * entry.images if entry.about else 0):
        published = f"{entry.classes:,} classes, {entry.images_text}"
        check.found.append(f"counts differ from the published ones ({published}): results may not compare")
    check.found += data.notes
    for part, images in (("training", data.x_train), ("open", data.x_open)):
        if isinstance(images, LazyImages):
            with contextlib.suppress(InputError):  # a broken image is named below
                width, height = LazyImages.open(images, 0, WHOLE).size  # before any alignment
                hint = UNCROPPED if width == height == entry.uncropped else ""
                check.found.append(f"first {part} image: {images.encoded.name(0)}, {width} × {height} pixels{hint}")
            _decode(check, part, images, len(images) if full else 1, report)
    return check


def _decode(check: Check, part: str, images: LazyImages, count: int, report: Callable[[str], None]) -> None:
    """Decode the first `count` images and note those that are broken."""

    def problem(row: int) -> str | None:
        try:
            images.resized(row)
        except InputError as error:
            return str(error)
        return None

    problems: list[str] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, count, PROGRESS_EVERY):
            stop = min(start + PROGRESS_EVERY, count)
            problems += filter(None, pool.map(problem, range(start, stop)))
            if stop < count:
                report(f"{stop:,} of {count:,} {part} images decoded")
    check.problems += problems[:SHOWN]
    if len(problems) > SHOWN:
        check.problems.append(f"and {len(problems) - SHOWN} more {part} images that cannot be decoded")
    check.found.append(f"{count - len(problems):,} of {len(images):,} {part} images decoded")
