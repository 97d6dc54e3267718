"""What `cl2r datasets --check` says of a folder: what was found, and what is missing or broken."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from cl2r.data.images import LazyImages
from cl2r.errors import InputError

T = TypeVar("T")
Say = Callable[[str], None]
BLOCK = 10_000  # images between two words about a long decoding
SHOWN = 20  # complaints about images; the others are counted


@dataclass
class Check:
    """Findings about one data set. It is complete when nothing is missing or broken."""

    found: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """Missing or broken: each names a file or folder and what was expected."""
    to_decode: list[LazyImages] = field(default_factory=list)
    """Images that a full check decodes."""

    @property
    def complete(self) -> bool:
        """Whether a run can use the folder."""
        return not self.wrong

    def attempt(self, look: Callable[[], T]) -> T | None:
        """What `look` finds; bad input is noted as wrong, and nothing is found."""
        try:
            return look()
        except InputError as error:
            self.wrong.append(str(error))
            return None

    def decode(self, every: bool, say: Say = lambda line: None) -> None:
        """Decode the first image of each set, or all of them, and note what cannot be."""
        for images in self.to_decode:
            count = len(images) if every else min(1, len(images))
            complaints = _undecodable(images, count, say)
            self.wrong += complaints[:SHOWN]
            if len(complaints) > SHOWN:
                self.wrong.append(f"and {len(complaints) - SHOWN} more images that do not decode")
            self.found.append(f"{count - len(complaints)} of {len(images)} images decoded")


def _undecodable(images: LazyImages, count: int, say: Say) -> list[str]:
    def complaint(row: int) -> str | None:
        try:
            images.fitted(row)
        except InputError as error:
            return str(error)
        return None

    complaints: list[str] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, count, BLOCK):
            stop = min(start + BLOCK, count)
            complaints += [text for text in pool.map(complaint, range(start, stop)) if text is not None]
            if stop < count:
                say(f"{stop} of {count} images looked at")
    return complaints


def find_folder(root: Path, *names: str) -> Path | None:
    """The first of `names` that is a folder below `root`, or `root` itself if it has such a name."""
    for name in names:
        if (root / name).is_dir():
            return root / name
    return root if root.is_dir() and _is_one_of(root, names) else None


def home(root: Path, *names: str) -> Path:
    """Where other data sets lie: `root`, or its parent if `root` itself is one of `names`."""
    return root.resolve().parent if _is_one_of(root, names) else root


def _is_one_of(root: Path, names: tuple[str, ...]) -> bool:
    return root.resolve().name in {Path(name).name for name in names}
