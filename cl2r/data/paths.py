"""Paths of a million files in one array.

As a million `str` they would be copied, page by page, into every forked process: to read one is to count a reference.
"""

from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt


class Paths(Sequence[str]):
    """Paths by row, held as an array of bytes."""

    def __init__(self, encoded: npt.NDArray[np.bytes_]) -> None:
        self.encoded = encoded

    @classmethod
    def of(cls, paths: Iterable[str]) -> "Paths":
        """The same paths, packed; names that are not UTF-8 come back as the file system gave them."""
        return cls(np.array([path.encode(errors="surrogateescape") for path in paths], np.bytes_))

    def __len__(self) -> int:
        return len(self.encoded)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> "Paths": ...
    def __getitem__(self, row: int | slice) -> "str | Paths":
        if isinstance(row, slice):
            return Paths(self.encoded[row])
        path: bytes = self.encoded[row]
        return path.decode(errors="surrogateescape")
