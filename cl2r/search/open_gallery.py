"""A gallery that is open for searches while others add to it: what the service asks."""

import io
import logging
import math
import threading
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

import pandas as pd
from PIL import Image

from cl2r.data.images import FORMATS, LazyImages
from cl2r.errors import InputError
from cl2r.files import Place, listed, place
from cl2r.privacy import without_secrets
from cl2r.search.gallery import Gallery, commit_name
from cl2r.search.image_source import Images, SourceImages, decode_one
from cl2r.search.model import Model
from cl2r.search.searching import Hit, Searcher

LOG = logging.getLogger(__name__)
THUMBNAIL = 256
"""Pixels of the longer side of a gallery image that is sent."""


class RefusedError(Exception):
    """A request that gets no answer but a status and a line."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


class OpenGallery:
    """One commit of a gallery, opened for the queries of a model."""

    def __init__(self, root: Place, model: Model) -> None:
        self.searcher = Searcher(Gallery(root), model)
        self.commit = self.searcher.gallery.commit
        self._rows = pd.Index(self.searcher.items["id"].astype(object))

    def search(self, content: bytes, top: int) -> list[dict[str, Any]]:
        """Hits of an encoded image."""
        return [_plain(hit) for hit in self.searcher.search(self._decoded(content), top)[0]]

    def _decoded(self, content: bytes) -> Images:
        card = self.searcher.model.card
        try:
            return decode_one(content, "the image", card.size, card.channels, card.fit)
        except InputError as error:
            if error.__cause__ is None or isinstance(error.__cause__, Image.DecompressionBombError):
                raise RefusedError(422, str(error)) from error  # it is an image, but too large or too deep
            raise RefusedError(415, f"not a readable image; send one of {', '.join(FORMATS)}") from error

    def thumbnail(self, name: str) -> bytes:
        """An image of the gallery as PNG. Whatever its file is, nothing but pixels leaves this function."""
        row = int(self._rows.get_indexer_for([name])[0])
        if row < 0:
            raise RefusedError(404, "no image of the gallery has this id")
        source, path = (str(value) for value in self.searcher.items.iloc[row][["source", "path"]])
        parts = PurePosixPath(path)
        if parts.is_absolute() or ".." in parts.parts:
            raise RefusedError(404, "the gallery has the image outside of its source")
        try:
            image = LazyImages(SourceImages(place(source), [path]), THUMBNAIL, 3).open(0, THUMBNAIL)
        except InputError as error:
            raise RefusedError(404, "the image is not, or not readable, where it was when it was indexed") from error
        image.thumbnail((THUMBNAIL, THUMBNAIL))
        encoded = io.BytesIO()
        image.save(encoded, "PNG")
        return encoded.getvalue()

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What it holds, and which model asks."""
        versions = sorted(self.commit.versions.values(), key=lambda version: version.task)
        counts = [sum(shard.items for shard in self.commit.of(version.key)) for version in versions]
        card = self.searcher.model.card
        return {
            "model": card.name,
            "task": card.task,
            "items": self.commit.items,
            "commit": self.commit.number,
            "versions": [
                {"model": version.name, "task": version.task, "items": count}
                for version, count in zip(versions, counts, strict=True)
            ],
        }


@dataclass
class NewestGallery:
    """The gallery as its newest commit has it. Who asks when it is time looks for one; others are not kept waiting."""

    root: Place
    model: Model
    refresh: float
    warning: str = ""
    """Why a commit that is there cannot be used; until it can, the one before it answers."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._opened = OpenGallery(self.root, self.model)
        self._next = time.monotonic() + self.refresh

    def __call__(self) -> OpenGallery:
        """Look, if the last look is a while ago."""
        if time.monotonic() >= self._next and self._lock.acquire(blocking=False):
            try:
                self._look()
                self._next = time.monotonic() + self.refresh
            finally:
                self._lock.release()
        return self._opened

    def _look(self) -> None:
        try:
            names = [path.name for path in listed(self.root / "commits", "*.json")]
            if names[-1:] != [commit_name(self._opened.commit.number)]:
                self._opened = OpenGallery(self.root, self.model)
            self.warning = ""
        except (InputError, OSError) as error:
            why = without_secrets(str(error)).replace(str(self.root), self.root.name)
            self.warning = f"commit {self._opened.commit.number} answers; the newest cannot be opened ({why})"
            LOG.warning(self.warning)


def _plain(hit: Hit) -> dict[str, Any]:
    """What others may know of a hit: not where its file is."""
    return {
        "rank": hit.rank,
        "score": hit.score,
        "id": hit.id,
        "label": hit.label,
        "model": hit.model,
        "task": hit.task,
        "metadata": {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in hit.metadata.items()
        },
        "image": f"image?id={quote(hit.id, safe='')}",
    }
