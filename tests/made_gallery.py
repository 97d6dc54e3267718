"""For tests of search: chains that are trained once, images in folders, galleries of few vectors, slow oracles."""

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from PIL import Image
from quick import Recorder, quick_config

from cl2r.engine.evaluation import ChainFeatures
from cl2r.engine.plan import Plan, plan_run
from cl2r.engine.records import write_run
from cl2r.engine.run import Chain, execute
from cl2r.engine.store import LinkStore, Tensors
from cl2r.files import Place
from cl2r.layers import override
from cl2r.search.gallery import Commit, Gallery
from cl2r.search.image_source import ImageEntry, decode_one
from cl2r.search.indexing import IndexReport, ShardPlan, extract_here, index_images, item_frame
from cl2r.search.model import Model
from cl2r.search.shards import Kept, Shard, shard_name, write_shard
from cl2r.search.snapshot import Snapshot, from_links

faiss.omp_set_num_threads(1)  # small arrays: threads that wait for each other cost more than they bring

Floats = npt.NDArray[np.floating]
TASKS = 3
CHEAP: dict[str, Any] = {
    "optim": {"epochs": 1, "milestones": []},
    "eval": {"bootstrap": 0},
    "bic": {"bias_epochs": 1},
    "podnet": {"finetune_epochs": 1},
    "fan": {"epochs": 2, "width": 2},
    "foster": {"boost_epochs": 1, "compress_epochs": 1},
}
_STORAGE = tempfile.TemporaryDirectory(prefix="cl2r-chains-")


@dataclass(frozen=True)
class Trained:
    """A finished run of three tasks; its storage is shared, and for reading only."""

    storage: Path
    run: str
    plan: Plan

    @property
    def folder(self) -> Path:
        """Of the run."""
        return self.storage / "runs" / self.run

    @property
    def images(self) -> npt.NDArray[np.uint8]:
        """The open images."""
        return np.asarray(self.plan.dataset.x_open)

    def link(self, task: int) -> Tensors:
        """The features that link `task` keeps."""
        return LinkStore(self.storage, print).features(self.plan.keys[task - 1])

    def vectors(self, task: int, name: str = "open") -> Floats:
        """Of these, one kind, with length one."""
        return unit(self.link(task)[name].numpy())

    def snapshot(self, task: int) -> Snapshot:
        """φ_t as data."""
        return from_links(self.plan, self.run, task, LinkStore(self.storage, print))

    def model(self, task: int) -> Model:
        """φ_t."""
        return Model(self.snapshot(task))

    def evaluated(self) -> ChainFeatures:
        """What the compatibility matrix is computed from."""
        return Chain(self.plan, self.storage, Recorder(), "test").features(TASKS)


@cache
def trained(data: Path, name: str = "cl2r", *overrides: str) -> Trained:
    """A chain of method `name` on `data`, one epoch a task."""
    root = Path(tempfile.mkdtemp(dir=_STORAGE.name))
    config = quick_config(data, {"method": {"name": name}}, CHEAP, *map(override, overrides))
    result = execute(plan_run(config), root, Recorder())
    return Trained(root, write_run(result, root).name, result.plan)


def unit(rows: Floats) -> Floats:
    """Rows of length one, in double precision."""
    rows = np.asarray(rows, np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def write_images(folder: Path, images: npt.NDArray[np.uint8], per_class: int = 4, start: int = 0) -> list[str]:
    """PNGs in folders of `per_class`, in the order of their paths, which are given."""
    paths = [f"c{row // per_class:02d}/i{row:03d}.png" for row in range(start, start + len(images))]
    for path, image in zip(paths, images, strict=True):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image).save(folder / path)
    return paths


def indexed(folder: Place, root: Place, model: Model, **options: Any) -> Gallery:
    """The gallery at `root` with the images of `folder` by `model`."""
    gallery = Gallery.open_or_create(root)
    index_images(folder, gallery, model, extract_here, say=lambda line: None, **options)
    return gallery


class KilledError(Exception):
    """The process ends here."""


def killed_after(count: int) -> Any:
    """Makes so many shards, then ends."""

    def extract(model: Model, plans: Sequence[ShardPlan]) -> Iterable[Shard]:
        for number, shard in enumerate(extract_here(model, plans), 1):
            if number > count:
                raise KilledError
            yield shard
        raise KilledError

    return extract


def run_index(images: Place, root: Place, model: Model, extract: Any = extract_here, **options: Any) -> IndexReport:
    """A job from its beginning to its end."""
    return index_images(images, Gallery.open_or_create(root), model, extract, say=lambda line: None, **options)


def kill_index(images: Place, root: Place, model: Model, count: int, **options: Any) -> None:
    """A job that ends while it writes shard `count` + 1; nothing of it counts yet."""
    before = Gallery.open_or_create(root).commit
    with pytest.raises(KilledError):
        run_index(images, root, model, killed_after(count), **options)
    assert Gallery(root).commit == before


def ids_of(images: Path) -> list[str]:
    """Of the PNGs below a folder."""
    return sorted(str(path.relative_to(images)) for path in images.rglob("*.png"))


def embedded(images: Path, model: Model, ids: Iterable[str]) -> dict[str, np.ndarray]:
    """The vectors of files, one by one."""
    card, found = model.card, {}
    for name in ids:
        pixels = decode_one((images / name).read_bytes(), name, card.size, card.channels, card.fit)
        found[name] = model.embed(pixels)[0]
    return found


def assert_holds(root: Place, expected: dict[str, np.ndarray], tolerance: float = 1e-6) -> None:
    """These images with these vectors, each once, and no others."""
    found = stored(Gallery(root))
    assert found.keys() == expected.keys()
    for name, vector in expected.items():
        np.testing.assert_allclose(found[name].astype(np.float32), vector, rtol=0, atol=tolerance)


def stored(gallery: Gallery, commit: Commit | None = None) -> dict[str, Floats]:
    """Every vector of a gallery by its id; none may be there twice."""
    found: dict[str, Floats] = {}
    for shard in (commit or gallery.commit).shards:
        ids = gallery.items([shard])["id"]
        assert not found.keys() & set(ids)
        assert len(set(ids)) == shard.items
        found |= dict(zip(ids, np.asarray(gallery.vectors(shard)), strict=True))
    return found


def below(root: Place, part: str = "shards") -> dict[str, bytes]:
    """Every file below a part of a gallery."""
    folder = root / part
    if isinstance(folder, Path):
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: (folder / name).read_bytes() for name in folder.below()}


def entries(names: Sequence[str]) -> list[ImageEntry]:
    """Images that need not exist."""
    return [ImageEntry(name, name, "some", 100 + number) for number, name in enumerate(names)]


def add_vectors(
    gallery: Gallery, version: str, vectors: Floats, names: Sequence[str], kept: Kept = "float32", **metadata: Any
) -> Shard:
    """A shard of vectors that no model made; it is in no commit yet."""
    rows = entries(names)
    items = item_frame(rows, "nowhere", pd.DataFrame(metadata) if metadata else None)
    name = shard_name(version, names, [row.bytes for row in rows], kept)
    return write_shard(gallery.shards, name, version, vectors, items, [], kept)


def nearest_slowly(scores: Floats, top: int) -> npt.NDArray[np.int64]:
    """Of a row of scores each the `top` best columns; of equal ones the first."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :top]


def damages(content: bytes, count: int = 12) -> Iterator[bytes]:
    """The same with a bit flipped at one of `count` places, the first and the last byte among them."""
    for place in sorted({round(at) for at in np.linspace(0, len(content) - 1, count)}):
        yield content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]


@contextlib.contextmanager
def changed(path: Path, content: bytes | None) -> Iterator[None]:
    """A file with other content, or away, for a while."""
    before = path.read_bytes()
    path.unlink() if content is None else path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


def one_line(message: object, *parts: str) -> bool:
    """Whether a message is one line that names all `parts`."""
    text = str(message)
    return "\n" not in text and all(part in text for part in parts)
