"""A data set in one .npz file: x_train, y_train, x_open, y_open and, optionally, class_names."""

import math
import tokenize
import zipfile
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cl2r.data.dataset import ImageSet, Labels, require_disjoint
from cl2r.data.images import ArrayImages
from cl2r.errors import InputError

REQUIRED = ("x_train", "y_train", "x_open", "y_open")
NO_ARRAY = (ValueError, EOFError, TypeError, OverflowError, MemoryError, RecursionError, tokenize.TokenError)
"""What numpy raises for a file that is not an array; it parses headers as Python."""
UNREADABLE = (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, *NO_ARRAY)
GROWTH = 100  # how many times larger than its file the content may be; drawings of few strokes reach 50
ALWAYS_BYTES = 2**32  # content of this size is never too large
MAGIC = b"\x93NUMPY"

Array = npt.NDArray[np.generic]


def load_npz(path: Path) -> ImageSet:
    """Read images (N,H,W) or (N,H,W,C) in uint8 and labels that are integers or strings."""
    arrays = _read(path)
    train_names, y_train = _labels(path, "y_train", arrays["y_train"])
    open_names, y_open = _labels(path, "y_open", arrays["y_open"])
    if (arrays["y_train"].dtype.kind in "iu") != (arrays["y_open"].dtype.kind in "iu"):
        raise InputError(f"{path}: y_train and y_open must both be integers or both be strings; store them alike")
    require_disjoint(str(path), train_names, open_names)
    names = arrays.get("class_names", np.array(train_names, np.str_))
    if names.dtype.kind != "U" or names.shape != (len(train_names),):
        expected = f"{len(train_names)} strings, one per training label in sorted order"
        raise InputError(f"{path}: class_names must be {expected}, found {names.dtype} of shape {names.shape}")
    x_train, x_open = (_images(path, key, arrays[key]) for key in ("x_train", "x_open"))
    return ImageSet(path.stem, x_train, y_train, x_open, y_open, tuple(map(str, names)))


def _read(path: Path) -> dict[str, Array]:
    """Return the known arrays of a file; no array is read before the sizes of all are checked."""
    expected = f"expected an .npz with {', '.join(REQUIRED)}"
    if not path.is_file():
        raise InputError(f"{path}: no such file; {expected}")
    try:
        file = path.open("rb")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error}); make it readable") from error
    with file:
        try:
            start = file.read(len(MAGIC))
            if start == MAGIC:
                raise InputError(f"{path}: holds a single array, {expected}")
            if not start.startswith((b"PK\3\4", b"PK\5\6")):
                raise ValueError("not a zip file")  # numpy's own message explains how to unpickle it
            file.seek(0)
            archive = np.load(file, allow_pickle=False)
        except InputError:
            raise
        except UNREADABLE as error:
            raise InputError(f"{path}: not a readable .npz archive; write it with numpy.savez ({error})") from error
        missing = [key for key in REQUIRED if key not in archive.files]
        if missing:
            present = ", ".join(archive.files) or "nothing"
            raise InputError(f"{path}: {', '.join(missing)} missing; the file holds {present}: write all of them")
        assert archive.zip is not None
        wanted, names = [key for key in (*REQUIRED, "class_names") if key in archive.files], archive.zip.namelist()
        members = [archive.zip.getinfo(f"{key}.npy" if f"{key}.npy" in names else key) for key in wanted]
        # sizes as declared; `zipfile` reads no more than that
        packed, total = path.stat().st_size, sum(member.file_size for member in members)
        if total > max(ALWAYS_BYTES, GROWTH * packed):
            grows = f"{total / 1e9:.1f} GB of arrays in a file of {packed / 1e6:.1f} MB"
            raise InputError(f"{path}: {grows}; if that is right, write it with numpy.savez, without compression")
        return {key: _read_array(path, archive, key, member) for key, member in zip(wanted, members, strict=True)}


def _read_array(path: Path, archive: np.lib.npyio.NpzFile, key: str, member: zipfile.ZipInfo) -> Array:
    assert archive.zip is not None
    try:
        with archive.zip.open(member) as stream:
            if stream.read(len(MAGIC)) != MAGIC:
                raise ValueError("not an array")
            first_version = stream.read(2)[:1] == b"\1"
            header = np.lib.format.read_array_header_1_0 if first_version else np.lib.format.read_array_header_2_0
            shape, _, dtype = header(stream)
            left = member.file_size - stream.tell()
        # numpy allocates what is claimed before it reads
        if not dtype.hasobject and math.prod(shape) * dtype.itemsize > left:
            raise ValueError(f"it claims the shape {shape} but has {left} bytes")
        array: Array = archive[key]
    except UNREADABLE as error:
        if "allow_pickle" in str(error):
            hint = "holds Python objects, which are never loaded: store plain numbers or strings"
        else:
            hint = f"is damaged; write the file again ({' '.join(str(error).split())[:300]})"
        raise InputError(f"{path}: {key} {hint}") from error
    return array


def _images(path: Path, key: str, x: Array) -> ArrayImages:
    if x.dtype != np.uint8:
        raise InputError(f"{path}: {key} is {x.dtype}, expected uint8 with pixel values 0..255")
    if x.ndim == 3:
        x = x[..., None]
    if x.ndim != 4 or x.shape[3] not in (1, 3):
        raise InputError(f"{path}: {key} has shape {x.shape}, expected (N,H,W) or (N,H,W,C) with C 1 or 3")
    return ArrayImages(x.astype(np.uint8, copy=False))


def _labels(path: Path, key: str, y: Array) -> tuple[list[str], Labels]:
    """Return the distinct labels in sorted order, and every label as its place in that order."""
    if y.dtype.kind not in "iuUS" or y.ndim != 1:
        found = f"{y.dtype} of shape {y.shape}"
        raise InputError(f"{path}: {key} must be integers or strings of shape (N,), found {found}")
    if y.dtype.kind == "S":
        try:
            y = np.char.decode(y.astype(np.bytes_), "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path}: {key} holds a label that is not UTF-8 ({error}); store labels as str or as integers"
            ) from error
    distinct, places = np.unique(y, return_inverse=True)
    return [str(label) for label in distinct], places.astype(np.int64)
