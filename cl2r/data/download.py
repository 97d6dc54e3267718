"""Fetching the archives of benchmarks that anyone may have; only `cl2r datasets --download` does it.

An archive is streamed aside, compared with its published MD5, unpacked aside and moved into place, so that a folder
is there as a whole or not at all. What is there already stays as it is.
"""

import hashlib
import http.client
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.request import urlopen

from cl2r.errors import InputError, nearest

CHUNK = 2**20
TIMEOUT = 60.0  # seconds without a byte
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Archive:
    """A file to fetch and what becomes of it below the root."""

    url: str
    md5: str
    target: str
    """The folder that it unpacks to, or the file itself."""
    or_at: str = ""
    """Another place where a user may have it."""

    @property
    def file(self) -> str:
        """Its name."""
        return self.url.rsplit("/", 1)[1]


_TORONTO, _UMASS = "https://www.cs.toronto.edu/~kriz", "http://vis-www.cs.umass.edu/lfw"
ARCHIVES: dict[str, tuple[Archive, ...]] = {
    "cifar100": (
        Archive(f"{_TORONTO}/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", "cifar-100-python"),
        Archive(f"{_TORONTO}/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", "cifar-10-batches-py"),
    ),
    "tiny_imagenet200": (
        Archive(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de", "tiny-imagenet-200"
        ),
    ),
    "lfw": (
        Archive(f"{_UMASS}/lfw.tgz", "a17d05bd522c52d84eca14327a23d494", "lfw"),
        Archive(f"{_UMASS}/pairs.txt", "9f1ba174e4e1c508ff7cdf10ac338a7d", "pairs.txt", or_at="lfw/pairs.txt"),
    ),
}

_IMAGENET = "ImageNet is to be asked for at https://image-net.org"
_CASIA = "CASIA-WebFace is to be asked for from its authors, or found in InsightFace's data-set zoo"
ELSEWHERE = {
    "icons": "it comes with the package",
    "imagenet900": _IMAGENET,
    "casia_lfw": f"{_CASIA}; `cl2r datasets --download lfw DIR` gets LFW",
    "casia_ijbc": f"{_CASIA}; IJB-C is to be asked for from NIST, https://www.nist.gov",
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
    root.mkdir(parents=True, exist_ok=True)
    for archive in ARCHIVES[name]:
        there = [root / place for place in (archive.target, archive.or_at) if place and (root / place).exists()]
        if there:
            say(f"{there[0]}: already there, left as it is")
        else:
            _fetch(archive, root, say)
    if name in OTHER_HALF:
        say(f"{name}: {OTHER_HALF[name]}")


def _fetch(archive: Archive, root: Path, say: Say) -> None:
    part, aside = root / f"{archive.file}.part", root / f"{archive.target}.unpacking"
    shutil.rmtree(aside, ignore_errors=True)  # of a download that was killed
    try:
        _require_md5(archive, _stream(archive, root, part, say))
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
    """Write `part`; its MD5."""
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with urlopen(archive.url, timeout=TIMEOUT) as response, part.open("wb") as file:
            say(f"{archive.url}: fetching {int(response.headers.get('Content-Length', 0)) / 1e6:.1f} MB")
            while chunk := response.read(CHUNK):
                digest.update(chunk)
                file.write(chunk)
    except (OSError, http.client.HTTPException) as error:
        by_hand = f"try again, or get {archive.target} by hand and put it into {root}"
        raise OSError(f"{archive.url}: cannot be fetched ({error}); {by_hand}") from error
    return digest.hexdigest()


def _require_md5(archive: Archive, md5: str) -> None:
    if md5 != archive.md5:
        raise InputError(f"{archive.url}: MD5 {md5}, expected {archive.md5}: not the published file, nothing is kept")


def _unpack(archive: Archive, path: Path, aside: Path) -> None:
    aside.mkdir()
    try:
        if archive.file.endswith(".zip"):
            _unzip(archive, path, aside)
        else:
            with tarfile.open(path) as tar:
                tar.extractall(aside, filter="data")
    except DAMAGED as error:
        why = " ".join(str(error).split())
        raise InputError(f"{archive.url}: cannot be unpacked ({why}), nothing is kept") from error
    if not (aside / archive.target).is_dir():
        raise InputError(f"{archive.url}: no folder {archive.target} in it, nothing is kept")


def _unzip(archive: Archive, path: Path, aside: Path) -> None:
    """Refuse what would land outside, which `zipfile` would silently move inside."""
    with zipfile.ZipFile(path) as packed:
        for name in packed.namelist():
            if ".." in PurePosixPath(name).parts or name.startswith("/") or "\\" in name or ":" in name:
                raise InputError(f"{archive.url}: member {name!r} would leave the folder, nothing is kept")
        packed.extractall(aside)
