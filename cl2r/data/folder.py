"""A data set in a folder: train/<class>/ and open/<class>/ full of images, optionally with an LFW pair list.

    DIR/train/<class>/*.jpg      classes to learn
    DIR/open/<class>/*.jpg       other classes, for verification
    DIR/pairs.txt                optional (or DIR/open/pairs.txt): official pairs of open images

Images become `size` x `size`: the centre square, scaled by an antialiased bilinear filter.
"""

import os
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from cl2r.data.dataset import Images, ImageSet, Labels, Pairs, require_disjoint
from cl2r.data.pair_list import read_pair_list
from cl2r.errors import InputError

LAYOUT = "DIR/train/<class>/*.jpg and DIR/open/<class>/*.jpg, optionally DIR/pairs.txt"
EXTENSIONS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
MODES = {1: "L", 3: "RGB"}
BLOCK = 256  # images decoded by one job of the thread pool

UNDECODABLE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


@dataclass(frozen=True)
class Listing:
    """The images of train/ or open/ in sorted order, each with the place of its class among `classes`."""

    classes: tuple[str, ...]
    paths: tuple[Path, ...]
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
        x_train=_decode_all(train.paths, size, channels),
        y_train=train.labels,
        x_open=_decode_all(open_set.paths, size, channels),
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
    images = [_images_of_class(folder / name) for name in classes]
    labels = np.repeat(np.arange(len(classes), dtype=np.int64), [len(paths) for paths in images])
    return Listing(tuple(classes), tuple(path for paths in images for path in paths), labels)


def _images_of_class(folder: Path) -> list[Path]:
    paths = [p for p in folder.rglob("*") if p.suffix.lower() in EXTENSIONS and not p.name.startswith(".")]
    if not paths:
        known = " ".join(sorted(EXTENSIONS))
        raise InputError(f"{folder}: class folder without images ({known}); add some or remove the folder")
    return sorted(paths, key=lambda path: path.relative_to(folder).as_posix())


def _official_pairs(root: Path, open_set: Listing) -> Pairs | None:
    found = [path for path in (root / "pairs.txt", root / "open" / "pairs.txt") if path.is_file()]
    if len(found) > 1:
        raise InputError(f"{found[0]} and {found[1]}: two pair lists, remove one")
    if not found:
        return None
    names = (open_set.classes[label] for label in open_set.labels)
    stems = (path.stem for path in open_set.paths)
    rows: dict[tuple[str, str], int] = {}
    for row, key in enumerate(zip(names, stems, strict=True)):
        if key in rows:
            raise InputError(f"{open_set.paths[row]}: a second image of that name; {found[0]} would not know which")
        rows[key] = row
    return read_pair_list(found[0], rows)


def _decode_all(paths: tuple[Path, ...], size: int, channels: int) -> Images:
    images = np.empty((len(paths), size, size, channels), np.uint8)

    def decode_block(start: int) -> None:
        for row in range(start, min(start + BLOCK, len(paths))):
            images[row] = _decode(paths[row], size, channels)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(decode_block, range(0, len(paths), BLOCK)):
            pass
    return images


def _decode(path: Path, size: int, channels: int) -> Images:
    try:
        with Image.open(path) as image:
            image.draft(MODES[channels], (size, size))  # a JPEG is then decoded at a fraction of its size
            _refuse_deep(path, image.mode)
            square = ImageOps.fit(image.convert(MODES[channels]), (size, size), Image.Resampling.BILINEAR)
    except InputError:
        raise
    except UNDECODABLE as error:
        raise InputError(f"{path}: not a readable image, replace or remove it ({error})") from error
    return np.asarray(square, np.uint8).reshape(size, size, channels)


def _refuse_deep(path: Path, mode: str) -> None:
    """Pillow would clip such images to white instead of scaling them."""
    if mode == "F" or mode.startswith("I"):
        raise InputError(f"{path}: more than 8 bits a channel (mode {mode}), save it with 8 bits")
