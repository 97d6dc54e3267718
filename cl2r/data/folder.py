"""A data set in a folder: train/<class>/ and open/<class>/ full of images, optionally with an LFW pair list.

    DIR/train/<class>/*.jpg      classes to learn
    DIR/open/<class>/*.jpg       other classes, for verification
    DIR/pairs.txt                optional (or DIR/open/pairs.txt): official pairs of open images

Images become `size` x `size`: the centre square, scaled by an antialiased bilinear filter. A folder too large for
memory is decoded as it is used.
"""

from pathlib import Path

from cl2r.data.dataset import ImageSet, require_disjoint
from cl2r.data.images import MODES, images_of
from cl2r.data.listing import list_folders
from cl2r.data.pair_list import PAIR_LIST, official_pairs
from cl2r.errors import InputError

LAYOUT = "DIR/train/<class>/*.jpg and DIR/open/<class>/*.jpg, optionally DIR/pairs.txt"


def load_folder(root: str | Path, size: int = 32, channels: int = 3) -> ImageSet:
    """Read every image below train/ and open/ as `size` x `size`, grey (1 channel) or colour (3)."""
    root = Path(root)
    if size < 1 or channels not in MODES:
        raise InputError(f"data size {size} and channels {channels}: size must be at least 1, channels 1 or 3")
    train, open_set = (list_folders(root / part, LAYOUT, deep=True) for part in ("train", "open"))
    require_disjoint(str(root), train.classes, open_set.classes)
    pairs = official_pairs([root / PAIR_LIST, root / "open" / PAIR_LIST], open_set)
    return ImageSet(
        name=root.resolve().name,
        x_train=images_of(train.files, size, channels),
        y_train=train.labels,
        x_open=images_of(open_set.files, size, channels),
        y_open=open_set.labels,
        class_names=train.classes,
        pairs=pairs,
        open_names=open_set.classes,
    )
