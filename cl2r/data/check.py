"""What `cl2r datasets --check` says of a folder: what was found, what is missing, how to get it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cl2r.data.images import LazyImages
from cl2r.errors import InputError


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

    def expect(self, there: bool, found: str, wrong: str) -> bool:
        """Note either of two sentences; `there` again."""
        (self.found if there else self.wrong).append(found if there else wrong)
        return there

    def decode(self, every: bool) -> None:
        """Decode the first image of each set, or all of them, and note what cannot be."""
        for images in self.to_decode:
            count = len(images) if every else min(1, len(images))
            self.wrong += _undecodable(images, range(count))
            self.found.append(f"{count} of {len(images)} images decoded")


def _undecodable(images: LazyImages, rows: Iterable[int]) -> list[str]:
    complaints = []
    for row in rows:
        try:
            images.fitted(row)
        except InputError as error:
            complaints.append(str(error))
    return complaints


def find_folder(root: Path, *names: str) -> Path | None:
    """The first of `names` that is a folder below `root`, or `root` itself if it has such a name."""
    for name in names:
        if (root / name).is_dir():
            return root / name
    return root if root.is_dir() and root.resolve().name in {Path(name).name for name in names} else None
