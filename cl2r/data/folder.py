"""A data set in a folder: train/<class>/ and open/<class>/ full of images, optionally with an LFW pair list.

    DIR/train/<class>/*.jpg      classes to learn
    DIR/open/<class>/*.jpg       other classes, for verification
    DIR/pairs.txt                optional (or DIR/open/pairs.txt): official pairs of open images

Images become `size` x `size`: the centre square, scaled by an antialiased bilinear filter. A folder too large for
memory is decoded as it is used.
"""

from dataclasses import dataclass
from pathlib import Path, PurePath

import numpy as np

from cl2r.data.dataset import ImageSet, Labels, Pairs, require_disjoint
from cl2r.data.images import MODES, ImageFiles, images_of
from cl2r.data.pair_list import read_pair_list
from cl2r.errors import InputError

LAYOUT = "DIR/train/<class>/*.jpg and DIR/open/<class>/*.jpg, optionally DIR/pairs.txt"
EXTENSIONS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})


@dataclass(frozen=True)
class Listing:
    """The images of train/ or open/ in sorted order, each with the place of its class among `classes`."""

    classes: tuple[str, ...]
    files: ImageFiles
    labels: Labels


def load_folder(root: str | Path, size: int = 32, channels: int = 3) -> ImageSet:
    """Read every image below train/ and open/ as `size` x `size`, grey (1 channel) or colour (3)."""
    root = Path(root)
    if size < 1 or channels not in MODES:
        raise InputError(f"data size {size} and channels {channels}: size must be at least 1, channels 1 or 3")
    train, open_set = _list_images(root, "train"), _list_images(root, "open")
    require_disjoint(str(root), train.classes, open_set.classes)
    pairs = _official_pairs(root, open_set)
    return ImageSet(
        name=root.resolve().name,
        x_train=images_of(train.files, size, channels),
        y_train=train.labels,
        x_open=images_of(open_set.files, size, channels),
        y_open=open_set.labels,
        class_names=train.classes,
        pairs=pairs,
    )


def _list_images(root: Path, part: str) -> Listing:
    folder = root / part
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; expected {LAYOUT}")
    classes = sorted(d.name for d in folder.iterdir() if d.is_dir() and not d.name.startswith("."))
    if not classes:
        raise InputError(f"{folder}: no class folders in it; expected {LAYOUT}")
    images = [_images_of_class(folder, name) for name in classes]
    labels = np.repeat(np.arange(len(classes), dtype=np.int64), [len(paths) for paths in images])
    return Listing(tuple(classes), ImageFiles(folder, [path for paths in images for path in paths]), labels)


def _images_of_class(part: Path, name: str) -> list[str]:
    """Paths below `part` in sorted order."""
    folder = part / name
    paths = [p for p in folder.rglob("*") if p.suffix.lower() in EXTENSIONS and not p.name.startswith(".")]
    if not paths:
        known = " ".join(sorted(EXTENSIONS))
        raise InputError(f"{folder}: class folder without images ({known}); add some or remove the folder")
    return sorted(path.relative_to(part).as_posix() for path in paths)


def _official_pairs(root: Path, open_set: Listing) -> Pairs | None:
    found = [path for path in (root / "pairs.txt", root / "open" / "pairs.txt") if path.is_file()]
    if len(found) > 1:
        raise InputError(f"{found[0]} and {found[1]}: two pair lists, remove one")
    if not found:
        return None
    names = (open_set.classes[label] for label in open_set.labels)
    stems = (PurePath(path).stem for path in open_set.files.paths)
    rows: dict[tuple[str, str], int] = {}
    for row, key in enumerate(zip(names, stems, strict=True)):
        if key in rows:
            raise InputError(
                f"{open_set.files.name(row)}: a second image of that name; {found[0]} would not know which"
            )
        rows[key] = row
    return read_pair_list(found[0], rows)
