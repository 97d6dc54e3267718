"""IJB-C 1:1 verification after training on CASIA-WebFace, in the layout of InsightFace's release of IJB-C.

    DIR/ijbc/meta/ijbc_face_tid_mid.txt          name tid mid: image, its template, the photo or video it comes from
    DIR/ijbc/meta/ijbc_template_pair_label.txt   tid1 tid2 label: query template, gallery template, 1 if the same person
    DIR/ijbc/meta/ijbc_name_5pts_score.txt       name x1 y1 ... x5 y5 score: landmarks in the image
    DIR/ijbc/loose_crop/<name>                   or DIR/ijbc/aligned/<name>, then landmarks are not read

DIR itself may be such a folder, or CASIA-WebFace's: the other is then looked for beside it.
"""

import os
from pathlib import Path

from cl2r.data.casia import FOLDERS as CASIA_FOLDERS
from cl2r.data.casia import LAYOUT, PACKED, casia_train, check_casia
from cl2r.data.check import Check, find_folder, home
from cl2r.data.dataset import ImageSet
from cl2r.data.face_alignment import AlignedImages
from cl2r.data.ijbc_lists import (
    IMAGES_LIST,
    LANDMARKS_LIST,
    PAIRS_LIST,
    ImageList,
    read_images,
    read_landmarks,
    read_pairs,
)
from cl2r.data.images import ImageFiles, LazyImages
from cl2r.errors import InputError

NAME = "casia_ijbc"
FOLDERS = ("ijbc", "IJBC", "IJB-C")
PUBLISHED_IMAGES, PUBLISHED_TEMPLATES = 469_375, 23_124
PUBLISHED_SAME, PUBLISHED_DIFFERENT = 19_557, 15_638_932


def load_casia_ijbc(root: Path, size: int, channels: int) -> ImageSet:
    """CASIA-WebFace to train on, the templates of IJB-C to compare."""
    hint = f"`cl2r datasets --check {NAME} {root}` says how to get it"
    folder = _find_ijbc(root)
    if folder is None:
        raise InputError(f"{root / FOLDERS[0]}: no such folder; {hint}")
    listed = read_images(folder / IMAGES_LIST)
    pairs = read_pairs(folder / PAIRS_LIST, listed.row_of_tid)
    x_open = open_images(folder, listed.names, size, channels)
    x_train, y_train, class_names = casia_train(home(root, *FOLDERS), size, channels, f"{LAYOUT}; {hint}")
    templates = listed.templates
    return ImageSet(NAME, x_train, y_train, x_open, templates.template, class_names, pairs, templates)


def check_casia_ijbc(root: Path) -> Check:
    """What of CASIA-WebFace and IJB-C is there."""
    check, folder = Check(), _find_ijbc(root)
    check_casia(check, home(root, *FOLDERS))
    if folder is None:
        check.wrong.append(f"{root / FOLDERS[0]}: no such folder")
        return check
    listed = check.attempt(lambda: read_images(folder / IMAGES_LIST))
    if listed is not None:
        _check_images(check, folder, listed)
        _check_pairs(check, folder, listed)
    return check


def _find_ijbc(root: Path) -> Path | None:
    """IJB-C in `root`; where that is CASIA-WebFace's own folder, beside it."""
    return find_folder(home(root, *CASIA_FOLDERS, PACKED), *FOLDERS)


def open_images(folder: Path, names: list[str], size: int, channels: int) -> LazyImages:
    """The images of the list, aligned here unless they already are."""
    ready = (folder / "aligned").is_dir()
    files = ImageFiles(folder / ("aligned" if ready else "loose_crop"), names)
    _require_all(files.root, names)
    if ready:
        return LazyImages(files, size, channels, "whole")
    landmarks = read_landmarks(folder / LANDMARKS_LIST, names)
    return AlignedImages(files, size, channels, landmarks=landmarks)


def _require_all(folder: Path, names: list[str]) -> None:
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder, nor aligned/ beside it")
    outside = next((name for name in names if "/" in name or name in (".", "..")), None)
    if outside is not None:
        raise InputError(f"{folder}: {IMAGES_LIST} names {outside[:80]!r}, expected names of files in this folder")
    with os.scandir(folder) as entries:
        there = {entry.name for entry in entries}
    missing = [name for name in names if name not in there]
    if missing:
        raise InputError(f"{folder / missing[0]}: {IMAGES_LIST} names it, but it is missing ({len(missing)} such)")


def _check_images(check: Check, folder: Path, listed: ImageList) -> None:
    counts = f"{len(listed.names)} images of {len(listed.templates)} templates"
    usual = (len(listed.names), len(listed.templates)) == (PUBLISHED_IMAGES, PUBLISHED_TEMPLATES)
    published = f"{PUBLISHED_IMAGES} of {PUBLISHED_TEMPLATES}"
    check.found.append(f"{folder / IMAGES_LIST}: {counts}{_remark(usual, published)}")
    images = check.attempt(lambda: open_images(folder, listed.names, 112, 3))
    if images is not None:
        check.found.append(f"{images.encoded.name(0)} and {len(images) - 1} more images of the list")
        check.to_decode.append(images)


def _check_pairs(check: Check, folder: Path, listed: ImageList) -> None:
    path = folder / PAIRS_LIST
    pairs = check.attempt(lambda: read_pairs(path, listed.row_of_tid))
    if pairs is not None:
        same = int(pairs.same.sum())
        usual = (same, len(pairs) - same) == (PUBLISHED_SAME, PUBLISHED_DIFFERENT)
        published = f"{PUBLISHED_SAME} + {PUBLISHED_DIFFERENT}"
        counts = f"{len(pairs)} pairs = {same} same + {len(pairs) - same} different"
        check.found.append(f"{path}: {counts}{_remark(usual, published)}")


def _remark(usual: bool, published: str) -> str:
    return ", as published" if usual else f" (published: {published}; figures will not compare with published ones)"
