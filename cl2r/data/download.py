"""Fetching the archives of benchmarks that anyone may have; only `cl2r datasets --download` does it.

An archive is streamed aside, compared with its published digest, unpacked aside and moved into place, so that a folder
is there as a whole or not at all. What is there already stays as it is.
"""

import hashlib
import http.client
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.request import urlopen

from cl2r.data import lfw
from cl2r.data.check import Say, home
from cl2r.data.pair_list import PAIR_LIST
from cl2r.data.unpack import unpack
from cl2r.errors import InputError, nearest

CHUNK = 2**20
TIMEOUT = 60.0  # seconds without a byte
LARGEST = 2**31
"""Bytes of an archive; those below have an eighth of it."""


@dataclass(frozen=True)
class Archive:
    """A file to fetch and what becomes of it below the root."""

    file: str
    """Its name, which a URL need not tell."""
    url: str
    digest: str
    target: str
    """The folder that it unpacks to, or the file itself."""
    or_at: tuple[str, ...] = ()
    """Other places where a user may have it."""
    algorithm: Literal["md5", "sha256"] = "md5"
    """Of the digest."""

    @property
    def places(self) -> tuple[str, ...]:
        """Where it may be below the root."""
        return self.target, *self.or_at

    def found(self, root: Path) -> Path | None:
        """What is there already."""
        return next((root / place for place in self.places if (root / place).exists()), None)


_TORONTO, _STANFORD = "https://www.cs.toronto.edu/~kriz", "http://cs231n.stanford.edu"
_FIGSHARE = "https://ndownloader.figshare.com/files"  # scikit-learn's copies of LFW; LFW's own server is gone
ARCHIVES: dict[str, tuple[Archive, ...]] = {
    "cifar100": (
        Archive(
            "cifar-100-python.tar.gz",
            f"{_TORONTO}/cifar-100-python.tar.gz",
            "eb9058c3a382ffc7106e4002c42a8d85",
            "cifar-100-python",
        ),
        Archive(
            "cifar-10-python.tar.gz",
            f"{_TORONTO}/cifar-10-python.tar.gz",
            "c58f30108f718f92721af3b95e74349a",
            "cifar-10-batches-py",
        ),
    ),
    "tiny_imagenet200": (
        Archive(
            "tiny-imagenet-200.zip",
            f"{_STANFORD}/tiny-imagenet-200.zip",
            "90528d7ca1a48142e341f4ef8d21d0de",
            "tiny-imagenet-200",
        ),
    ),
    "lfw": (
        Archive(
            "lfw.tgz",
            f"{_FIGSHARE}/5976018",
            "055f7d9c632d7370e6fb4afc7468d40f970c34a80d4c6f50ffec63f5a8d536c0",
            "lfw",
            or_at=lfw.FOLDERS,
            algorithm="sha256",
        ),
        Archive(
            PAIR_LIST,
            f"{_FIGSHARE}/5976006",
            "ea42330c62c92989f9d7c03237ed5d591365e89b3e649747777b70e692dc1592",
            PAIR_LIST,
            or_at=tuple(f"{folder}/{PAIR_LIST}" for folder in lfw.FOLDERS),
            algorithm="sha256",
        ),
    ),
}

_IMAGENET = "ImageNet is to be asked for at https://image-net.org/download"
_CASIA = (
    "CASIA-WebFace is among InsightFace's data sets, "
    "https://github.com/deepinsight/insightface/tree/master/recognition/_datasets_"
)
_IJBC = (
    "IJB-C is to be asked for from NIST, https://www.nist.gov/programs-projects/face-challenges; "
    "recognition/_evaluation_/ijb of InsightFace tells of its release with meta/ and loose_crop/"
)
ELSEWHERE = {
    "icons": "it comes with the package",
    "imagenet900": _IMAGENET,
    "casia_lfw": f"{_CASIA}; `cl2r datasets --download lfw DIR` fetches LFW",
    "casia_ijbc": f"{_CASIA}; {_IJBC}",
}
"""Data sets that nothing is fetched of, and where they are."""
OTHER_HALF = {"tiny_imagenet200": f"its open set is part of ImageNet: {_IMAGENET}"}


def how_to_get(name: str) -> str:
    """Where a data set comes from."""
    if name in ELSEWHERE:
        return ELSEWHERE[name]
    other = f"; {OTHER_HALF[name]}" if name in OTHER_HALF else ""
    return f"`cl2r datasets --download {name} DIR` fetches it{other}"


def download(name: str, root: Path, say: Say) -> None:
    """Fetch the archives of a data set into `root`, except what is there already."""
    if name in ELSEWHERE:
        raise InputError(f"{name}: nothing to download; {ELSEWHERE[name]}")
    if name not in ARCHIVES:
        raise InputError(f"no data set {name!r} to download{nearest(name, ARCHIVES)}; there are {', '.join(ARCHIVES)}")
    for archive in ARCHIVES[name]:
        _refuse_the_set_itself(archive, root)
    root.mkdir(parents=True, exist_ok=True)
    for archive in ARCHIVES[name]:
        there = archive.found(root)
        if there is not None:
            say(f"{there}: already there, left as it is")
        else:
            _fetch(archive, root, say)
    if name in OTHER_HALF:
        say(f"{name}: {OTHER_HALF[name]}")


def _refuse_the_set_itself(archive: Archive, root: Path) -> None:
    """What is fetched into it would pass for a part of it."""
    holder = home(root, *archive.places)
    if holder != root and archive.found(root) is None and root.is_dir() and any(root.iterdir()):
        raise InputError(f"{root}: is the data set itself, give the folder that holds it: {holder}")


def _fetch(archive: Archive, root: Path, say: Say) -> None:
    part, aside = root / f"{archive.file}.part", root / f"{archive.target}.unpacking"
    shutil.rmtree(aside, ignore_errors=True)  # of a download that was killed
    try:
        _require_digest(archive, _stream(archive, root, part, say))
        if archive.file == archive.target:
            part.rename(root / archive.target)
        else:
            _unpack(archive, part, aside)
            (aside / archive.target).rename(root / archive.target)
        say(f"{root / archive.target}: done")
    finally:
        part.unlink(missing_ok=True)
        shutil.rmtree(aside, ignore_errors=True)


def _stream(archive: Archive, root: Path, part: Path, say: Say) -> str:
    """Write `part`; its digest."""
    digest = hashlib.new(archive.algorithm, usedforsecurity=False)
    try:
        with urlopen(archive.url, timeout=TIMEOUT) as response, part.open("wb") as file:
            size = int(response.headers.get("Content-Length", 0)) / 1e6
            say(f"{archive.url}: fetching {archive.file}, {size:.1f} MB")
            while chunk := response.read(CHUNK):
                _refuse_endless(archive, file.tell() + len(chunk))
                digest.update(chunk)
                file.write(chunk)
    except (OSError, http.client.HTTPException) as error:
        by_hand = f"try again, or get {archive.target} by hand and put it into {root}"
        raise OSError(f"{archive.url}: cannot be fetched ({error}); {by_hand}") from error
    return digest.hexdigest()


def _refuse_endless(archive: Archive, size: int) -> None:
    if size > LARGEST:
        raise InputError(
            f"{archive.url}: more than {LARGEST / 1e9:.1f} GB: not the published {archive.file}, nothing is kept"
        )


def _require_digest(archive: Archive, digest: str) -> None:
    if digest != archive.digest:
        differs = f"{archive.algorithm} {digest}, expected {archive.digest}"
        raise InputError(f"{archive.url}: {differs}: not the published {archive.file}, nothing is kept")


def _unpack(archive: Archive, path: Path, aside: Path) -> None:
    aside.mkdir()
    unpack(path, aside, archive.url, archive.file.endswith(".zip"))
    if not (aside / archive.target).is_dir():
        raise InputError(f"{archive.url}: no folder {archive.target} in it, nothing is kept")
