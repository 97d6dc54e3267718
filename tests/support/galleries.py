"""For tests of galleries: chains that are trained once, images in folders, galleries of few vectors, slow oracles."""

import contextlib
import io
import json
import socket
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
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

from cl2r.config.layers import override
from cl2r.engine.chain import Chain, execute
from cl2r.engine.evaluation import ChainFeatures
from cl2r.engine.frames import write_run
from cl2r.engine.links import LinkStore, Tensors
from cl2r.engine.plan import Plan, plan_run
from cl2r.errors import InputError
from cl2r.gallery.gallery import MANIFEST, Gallery, Shard, Version, shard_name
from cl2r.gallery.images import decode_one
from cl2r.gallery.indexing import IndexJob, IndexReport, ShardPlan, extract_here
from cl2r.gallery.model import Model, ModelFiles, from_links
from cl2r.storage.path import StoragePath
from cl2r.storage.seal import owner_of, sealed, unsealed
from tests.support.quick import Recorder, quick_config

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
    """A finished run of three tasks; its storage is shared and must not be changed."""

    storage: Path
    run: str
    plan: Plan

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return self.storage / "runs" / self.run

    @property
    def images(self) -> npt.NDArray[np.uint8]:
        """The open images."""
        return self.plan.dataset.x_open.all()

    def link(self, task: int) -> Tensors:
        """Return the features that link `task` keeps."""
        return LinkStore(self.storage).features(self.plan.keys[task - 1])

    def vectors(self, task: int, name: str = "open") -> Floats:
        """Return one kind of them with length one."""
        return unit(self.link(task)[name].numpy())

    def files(self, task: int) -> ModelFiles:
        """Return φ_t as data."""
        facts = self.plan.model_facts(self.plan.keys[:task])
        return from_links(self.run, self.plan.config, facts, LinkStore(self.storage))

    def model(self, task: int) -> Model:
        """Return φ_t."""
        return Model(self.files(task))

    def evaluated(self) -> ChainFeatures:
        """Return the features from which the compatibility matrix is computed."""
        return Chain(self.plan, self.storage, Recorder(), "test").features(TASKS)


@cache
def trained(data: Path, name: str = "cl2r", *overrides: str) -> Trained:
    """Train a chain of method `name` on `data`, one epoch per task."""
    root = Path(tempfile.mkdtemp(dir=_STORAGE.name))
    config = quick_config(data, {"method": {"name": name}}, CHEAP, *map(override, overrides))
    result = execute(plan_run(config), root, Recorder())
    return Trained(root, write_run(result, root).name, result.plan)


def unit(rows: Floats) -> Floats:
    """Return rows of length one, in double precision."""
    rows = np.asarray(rows, np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def write_images(folder: Path, images: npt.NDArray[np.uint8], per_class: int = 4, start: int = 0) -> list[str]:
    """Write PNGs in folders of `per_class` and return their paths."""
    paths = [f"c{row // per_class:02d}/i{row:03d}.png" for row in range(start, start + len(images))]
    for path, image in zip(paths, images, strict=True):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image).save(folder / path)
    return paths


def run_index(images: Any, root: Any, model: Model, extract: Any = extract_here, **options: Any) -> IndexReport:
    """Run an index job from beginning to end."""
    return IndexJob(images, Gallery.open_or_create(root), model, extract, **options).run()


def indexed(folder: StoragePath, root: StoragePath, model: Model, **options: Any) -> Gallery:
    """Return the gallery at `root` with the images of `folder` by `model`."""
    run_index(folder, root, model, **options)
    return Gallery(root)


class KilledError(Exception):
    """Stands for the end of the process."""


def killed_after(count: int) -> Any:
    """Return an extraction that makes `count` shards and then ends."""

    def extract(model: Model, plans: Sequence[ShardPlan]) -> Iterable[Shard]:
        for number, shard in enumerate(extract_here(model, plans), 1):
            if number > count:
                raise KilledError
            yield shard
        raise KilledError

    return extract


def kill_index(images: StoragePath, root: StoragePath, model: Model, count: int, **options: Any) -> None:
    """Run a job that ends while it writes shard `count` + 1, and check that nothing was committed."""
    before = Gallery.open_or_create(root).commit
    with pytest.raises(KilledError):
        run_index(images, root, model, killed_after(count), **options)
    assert Gallery(root).commit == before


def ids_of(images: Path) -> list[str]:
    """Return the ids of the PNGs below a folder."""
    return sorted(str(path.relative_to(images)) for path in images.rglob("*.png"))


def embedded(images: Path, model: Model, ids: Iterable[str]) -> dict[str, np.ndarray]:
    """Return the vectors of files, computed one by one."""
    return {name: model.embed(decode_one((images / name).read_bytes(), name, model.card))[0] for name in ids}


def assert_holds(root: StoragePath, expected: dict[str, np.ndarray], tolerance: float = 1e-6) -> None:
    """Check that a gallery holds these images with these vectors, each once, and no others."""
    found = stored(Gallery(root))
    assert found.keys() == expected.keys()
    for name, vector in expected.items():
        np.testing.assert_allclose(found[name].astype(np.float32), vector, rtol=0, atol=tolerance)


def stored(gallery: Gallery) -> dict[str, Floats]:
    """Return every vector of a gallery by its id; check that none is there twice."""
    found: dict[str, Floats] = {}
    for shard in gallery.commit.shards:
        ids = gallery.items([shard])["id"]
        assert not found.keys() & set(ids)
        assert len(set(ids)) == shard.items
        found |= dict(zip(ids, np.asarray(gallery.shards.vectors(shard)), strict=True))
    return found


def below(root: StoragePath, part: str = "shards") -> dict[str, bytes]:
    """Return the content of every file below a part of a gallery, by path."""
    folder = root / part
    if isinstance(folder, Path):
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: (folder / name).read_bytes() for name, *_ in folder.walk_files()}


def shards_below(root: StoragePath) -> dict[str, bytes]:
    """Return the same for the shards without the seals of their manifests, which name the gallery."""
    files = below(root)
    return {path: data.partition(b"\n")[2] if path.endswith(MANIFEST) else data for path, data in files.items()}


def unit_rows(count: int, dim: int = 12, seed: int = 0) -> Floats:
    """Return drawn vectors of length one."""
    return unit(np.random.default_rng(seed).normal(size=(count, dim))).astype(np.float32)


def item_rows(names: Sequence[str], **metadata: Any) -> pd.DataFrame:
    """Return the items of images that need not exist."""
    own = {"id": names, "source": "nowhere", "label": "some", "bytes": np.arange(len(names)) + 100, "path": names}
    return pd.DataFrame(own | metadata)


def made_version(task: int, chain: str = "key", digest: str = "bits") -> Version:
    """Return a version of a chain that was never trained, for vectors of four dimensions."""
    keys = tuple(f"{chain}{k}" for k in range(1, task + 1))
    known = {"name": f"run@{task}", "task": task, "method": "cl2r", "dim": 4, "digest": f"{digest}{task}"}
    return Version(key=keys[-1], keys=keys, **known)


def filled(root: StoragePath, *versions: Version) -> Gallery:
    """Return a gallery with three more images by each of `versions`."""
    gallery = Gallery.open_or_create(root)
    for each in versions:
        commit_vectors(gallery, each, unit_rows(3, 4, each.task), [f"{each.key}/{n}" for n in range(3)])
    return gallery


def add_vectors(gallery: Gallery, version: str, vectors: Floats, names: Sequence[str], **metadata: Any) -> Shard:
    """Write a shard of given vectors without committing it."""
    items = item_rows(names, **metadata)
    name = shard_name(version, names, items["bytes"].tolist(), "float32")
    return gallery.shards.write(name, version, vectors, items, [], "float32")


def commit_vectors(gallery: Gallery, version: Version, vectors: Floats, names: Sequence[str], **metadata: Any) -> None:
    """Add given vectors to a gallery."""
    shard = add_vectors(gallery, version.key, vectors, names, **metadata)
    gallery.change({version.key: version}, [*gallery.commit.shards, shard], "made by hand")


def encoded(pixels: npt.NDArray[Any], kind: str = "PNG") -> bytes:
    """Return an image file."""
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, kind)
    return content.getvalue()


def declared_png(width: int, height: int) -> bytes:
    """Return a PNG file of a few bytes that declares so many pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(100))), (b"IEND", b"")]
    body = (struct.pack(">I", len(c)) + k + c + struct.pack(">I", zlib.crc32(k + c)) for k, c in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


def free_port() -> int:
    """Return a port of this machine at which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def resealed(content: bytes, change: Callable[[Any], Any]) -> bytes:
    """Return a sealed record with another content and a seal that fits it, as a forger would write it."""
    owner = owner_of(content)
    return sealed(json.dumps(change(json.loads(unsealed(content, owner)))).encode(), owner)


@contextlib.contextmanager
def refused(*parts: object) -> Iterator[None]:
    """Check that the block raises an InputError of one line that names all `parts`."""
    with pytest.raises(InputError) as error:
        yield
    assert "\n" not in str(error.value)
    assert all(str(part) in str(error.value) for part in parts), error.value
