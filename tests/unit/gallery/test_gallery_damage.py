"""Seeded damages to every kind of file of a gallery and of an exported model: the right result, or one line."""

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cl2r.errors import InputError
from cl2r.gallery import index as indexes
from cl2r.gallery import indexing
from cl2r.gallery.gallery import ITEMS, MANIFEST, MARK, VECTORS, Gallery, intact
from cl2r.gallery.index import IndexOptions, build_indexes, descriptions
from cl2r.gallery.maintenance import export, info_lines, verify
from cl2r.gallery.model import CARD, Model, read_export, write_export
from cl2r.gallery.search import Searcher
from cl2r.gallery.upgrade import draw_pairs
from cl2r.storage import seal
from cl2r.storage.path import ASIDE, LocalPath, ObjectPath, at
from tests.support.galleries import (
    Trained,
    commit_vectors,
    indexed,
    refused,
    run_index,
    trained,
    unit_rows,
    write_images,
)

Damage = Callable[["Whole", Path], None]
"""Does something to the file or folder at a path."""
HNSW = IndexOptions("hnsw")
NEEDED, SPARE, INDEX = "needed", "not needed to search", "index"


@dataclass(frozen=True)
class Whole:
    """An intact gallery, another one of the same models, and what is found in the first."""

    root: LocalPath
    other: LocalPath
    images: Path
    models: tuple[Model, Model]
    queries: Any
    expected: Any  # hits before the images of `images` were indexed
    grown: Any  # hits afterwards

    def search(self, root: Path) -> Any:
        return found_in(root, self.models[1], self.queries)


def found_in(root: Path, model: Model, queries: Any) -> Any:
    """Return ids and scores of the ten best hits of every query."""
    searcher = Searcher(Gallery(root), model)
    scores, rows = searcher.rows_of(queries, 10)
    return searcher.items["id"].to_numpy()[rows].tolist(), scores


def same(mine: Any, theirs: Any) -> bool:
    return bool(mine[0] == theirs[0] and np.allclose(mine[1], theirs[1], atol=1e-5))


@pytest.fixture(scope="module")
def whole(chain: Trained, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    """Two galleries of two commits, four shards and two indexes each."""
    folder, models = LocalPath(tmp_path_factory.mktemp("whole")), (chain.model(1), chain.model(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexing, "LARGEST_SHARD", 6)
        for number, name in enumerate(("gallery", "other")):
            for step, model in enumerate(models):
                start = 24 * number + 12 * step
                write_images(folder / f"{name}{step}", chain.images[start : start + 12], start=start)
                indexed(folder / f"{name}{step}", folder / name, model)
            build_indexes(Gallery(folder / name), HNSW)
        write_images(folder / "more", chain.images[48:50], start=48)
        queries = models[1].embed(chain.images[50:56])
        before = found_in(folder / "gallery", models[1], queries)
        shutil.copytree(folder / "gallery", folder / "grown")
        run_index(folder / "more", folder / "grown", models[1])
        after = found_in(folder / "grown", models[1], queries)
        assert not same(before, after)
        yield Whole(folder / "gallery", folder / "other", folder / "more", models, queries, before, after)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(indexes, "PAUSE_SECONDS", 0)


KINDS = {
    "mark": (MARK, NEEDED),
    "newest commit": ("commits/00000002.json", NEEDED),
    "older commit": ("commits/00000001.json", SPARE),
    "manifest": (f"shards/*/{MANIFEST}", SPARE),
    "vectors": (f"shards/*/{VECTORS}", NEEDED),
    "items": (f"shards/*/{ITEMS}", NEEDED),
    "description": ("index/*.json", INDEX),
    "faiss": ("index/*.faiss", INDEX),
}
"""Files of a gallery, and whether a search needs them."""


def chosen(root: Path, kind: str, seed: int) -> Path:
    """Return one of the files of a kind."""
    files = sorted(root.glob(KINDS[kind][0]))
    return files[seed % len(files)]


def flip(seed: int) -> Damage:
    def damage(_: Whole, path: Path) -> None:
        content, rng = bytearray(path.read_bytes()), np.random.default_rng(seed)
        content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
        path.write_bytes(content)

    return damage


def truncate(share: float) -> Damage:
    def damage(_: Whole, path: Path) -> None:
        os.truncate(path, min(int(path.stat().st_size * share), path.stat().st_size - 2))

    return damage


def zero(share: float) -> Damage:
    def damage(_: Whole, path: Path) -> None:
        content = path.read_bytes()
        kept = int(len(content) * (1 - share))
        path.write_bytes(content[:kept] + bytes(len(content) - kept))

    return damage


def replace(whole: Whole, path: Path) -> None:
    """Put the other gallery's file of this kind in its place."""
    root = next(parent for parent in path.parents if (parent / "commits").is_dir())
    (kind,) = [kind for kind, (pattern, _) in KINDS.items() if path.relative_to(root).match(pattern)]
    shutil.copy(chosen(whole.other, kind, 0), path)


def exchange(_: Whole, path: Path) -> None:
    """Exchange it with a file of the same kind."""
    if path.name in (VECTORS, ITEMS, MANIFEST):
        (sibling, *_) = [file for file in path.parents[1].glob(f"[!.]*/{path.name}") if file != path]
    else:
        (sibling, *_) = [file for file in path.parent.glob(f"[!.]*{path.suffix}") if file != path]
    mine, theirs = path.read_bytes(), sibling.read_bytes()
    path.write_bytes(theirs)
    sibling.write_bytes(mine)


def remove(_: Whole, path: Path) -> None:
    path.unlink()


def folder_instead(_: Whole, path: Path) -> None:
    path.unlink()
    (path / "inside").mkdir(parents=True)


def file_instead(_: Whole, path: Path) -> None:
    """Put a file in the place of its folder."""
    shutil.rmtree(path.parent)
    path.parent.write_bytes(b"a file")


DAMAGES: dict[str, Damage] = {
    **{f"bit {seed}": flip(seed) for seed in range(9)},
    **{f"cut to {share}": truncate(share) for share in (0, 0.3, 0.7, 1)},
    **{f"zeros {share}": zero(share) for share in (1, 0.5, 0.1)},
    "replaced": replace,
    "exchanged": exchange,
    "removed": remove,
    "folder": folder_instead,
    "no folder": file_instead,
}
ALSO_INDEXED = ("bit 0", "cut to 0", "zeros 1", "replaced", "removed", "folder", "no folder")
CASES = [
    (kind, name)
    for kind in KINDS
    for name in DAMAGES
    if not (kind == "mark" and name in ("exchanged", "no folder")) and not (kind == "manifest" and name == "no folder")
]


def outcome(work: Callable[[], Any], root: Path) -> Any:
    """Return a result, or None after an InputError of one line that names a file of the gallery and says what to do."""
    try:
        return work()
    except InputError as error:
        message = str(error)
    assert "\n" not in message
    assert str(root) in message
    assert "; " in message
    return None


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_of_a_gallery_never_changes_a_result(
    whole: Whole, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    intact_frame = exported(whole.root, tmp_path / "intact.parquet")
    for seed, name in enumerate(name for case, name in CASES if case == kind):
        root = LocalPath(tmp_path / str(seed))
        shutil.copytree(whole.root, root)
        path = chosen(root, kind, seed)
        DAMAGES[name](whole, path)
        use = NEEDED if kind == "older commit" and name in ("exchanged", "no folder") else KINDS[kind][1]
        caplog.clear()

        opened = outcome(lambda root=root: Gallery(root), root)
        lines = outcome(lambda opened=opened: info_lines(opened), root) if opened else []
        problems = outcome(lambda opened=opened: verify(opened, prune=False), root) if opened else [""]
        frame = outcome(lambda root=root, seed=seed: exported(root, tmp_path / f"{seed}.parquet"), root)
        pairs = outcome(lambda opened=opened: draw_pairs(opened, 20), root) if opened else None
        assert not caplog.records, "so far, nothing was set aside"
        found = outcome(lambda root=root: whole.search(root), root)
        grown = outcome(lambda root=root: grow(whole, root), root) if name in ALSO_INDEXED else None

        assert found is None or same(found, whole.expected), name
        assert grown is None or same(grown, whole.grown), name
        assert frame is None or frame.equals(intact_frame), name
        if use == SPARE:
            assert found is not None, name
            assert lines is not None
            assert pairs is not None
            assert problems == [] if kind == "older commit" else problems, name
        elif use == INDEX:
            gone = name == "no folder" or (kind == "description" and name == "removed")
            assert found is not None, name
            assert gone or problems, name
            assert gone or any("cl2r gallery build" in record.getMessage() for record in caplog.records), name
            if name in ALSO_INDEXED:
                assert grown is not None
                assert_built_again(whole, root, path)
        else:
            assert found is None, name
            assert problems, name


def exported(root: LocalPath, out: Path) -> pd.DataFrame:
    """Return what `cl2r gallery export` writes."""
    export(Gallery(root), at(out))
    return pd.read_parquet(out)


def grow(whole: Whole, root: LocalPath) -> Any:
    """Index two more images as `cl2r index` does, and search."""
    run_index(whole.images, root, whole.models[1])
    return whole.search(root)


def assert_built_again(whole: Whole, root: LocalPath, path: Path) -> None:
    """Check that nothing that was damaged is left in its place, and that `cl2r gallery build` makes all indexes."""
    gallery = Gallery(root)
    assert len(build_indexes(gallery, HNSW, again=True)) == 2
    searcher = Searcher(gallery, whole.models[1])
    assert all(part.near is not None for part in searcher.parts), path
    assert same(whole.search(root), whole.grown)
    assert verify(gallery, prune=False) == []


def test_there_are_many_damages() -> None:
    assert len(CASES) >= 150


def test_a_damaged_index_is_set_aside_and_every_vector_compared(
    whole: Whole, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = LocalPath(shutil.copytree(whole.root, tmp_path / "gallery"))
    path = descriptions(root / "index")[0]
    (file,) = path.parent.list(f"{path.name.removesuffix('.json')}-*.faiss")
    flip(1)(whole, Path(file))
    with caplog.at_level(logging.WARNING):
        assert same(whole.search(root), whole.expected)
    (record,) = caplog.records
    assert str(file) in record.getMessage()
    assert not path.exists()
    assert not file.exists()
    assert len((root / "index").list(f"{ASIDE}*")) == 2
    caplog.clear()
    assert same(whole.search(root), whole.expected)
    assert not caplog.records, "it was said once, and is no longer there"


def test_an_index_that_cannot_be_set_aside_is_not_used_either(
    whole: Whole, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: LocalPath) -> LocalPath:
        raise OSError(30, "Read-only file system")

    root = LocalPath(shutil.copytree(whole.root, tmp_path / "gallery"))
    path = descriptions(root / "index")[0]
    truncate(0.5)(whole, Path(path))
    monkeypatch.setattr(LocalPath, "set_aside", refuse)
    assert same(whole.search(root), whole.expected)
    assert "Read-only" in caplog.text
    assert str(path) in caplog.text


def test_foreign_and_hidden_files_are_ignored_with_one_note_per_folder(
    whole: Whole, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = LocalPath(shutil.copytree(whole.root, tmp_path / "gallery"))
    for name in (
        "commits/x.json",
        "commits/._00000003.json",
        "commits/99999999.json.bak",
        "index/x.json",
        "shards/a b",
    ):
        (root / name).write_file(b"mine")
    (root / "shards" / "._x" / MANIFEST).write_file(b"mine")
    (root / "commits" / f".00000003.json.{'0' * 32}").write_file(b"half")  # left by a process that was killed
    (root / "shards" / f"{ASIDE}x.{'0' * 32}" / MANIFEST).write_file(b"damaged")
    for _ in range(2):
        assert same(whole.search(root), whole.expected)
        assert verify(Gallery(root), prune=True) == []
    assert len(caplog.records) == 3
    assert all(any(str(root / part) in one.getMessage() for one in caplog.records) for part in ("commits", "shards"))
    assert same(grow(whole, root), whole.grown)
    assert (root / "shards" / "a b").exists(), "what is not ours is not removed"


@pytest.mark.parametrize("place", ["claims", "claims/write"])
@pytest.mark.parametrize("folder", [False, True])
def test_whatever_is_in_the_place_of_the_lock_is_set_aside(
    whole: Whole, tmp_path: Path, place: str, folder: bool
) -> None:
    root = LocalPath(shutil.copytree(whole.root, tmp_path / "gallery"))
    shutil.rmtree(root / "claims")
    (root / place / "x" if folder else root / place).write_file(b"mine")
    assert same(grow(whole, root), whole.grown)


@pytest.mark.parametrize("part", ["commits", "shards"])
def test_a_file_in_place_of_a_folder_of_an_empty_gallery_is_named(tmp_path: Path, part: str) -> None:
    Gallery.open_or_create(tmp_path)
    (tmp_path / part).write_text("a file")
    for opening in (Gallery, Gallery.open_or_create):
        with refused(tmp_path / part, "restore"):
            opening(tmp_path)


def test_a_gallery_that_lost_its_mark_is_not_made_again(whole: Whole, tmp_path: Path) -> None:
    root = LocalPath(shutil.copytree(whole.root, tmp_path / "gallery"))
    (root / MARK).unlink()
    for opening in (Gallery, Gallery.open_or_create):
        with refused(root / MARK, "missing", "restore"):
            opening(root)


def test_a_commit_that_was_written_before_its_process_was_killed_counts(whole: Whole, tmp_path: Path) -> None:
    """The mark is written after the commit."""
    root = LocalPath(shutil.copytree(whole.root, tmp_path / "gallery"))
    before = (root / MARK).read_bytes()
    assert same(grow(whole, root), whole.grown)
    (root / MARK).write_bytes(before)
    assert same(whole.search(root), whole.grown)


def test_vectors_are_read_once_per_process_and_again_after_a_change(
    tmp_path: Path, chain: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery, read = Gallery.open_or_create(tmp_path), list[str]()
    commit_vectors(gallery, chain.model(1).version, unit_rows(9), [str(row) for row in range(9)])
    (shard,), checksum = gallery.commit.shards, LocalPath.checksum
    path = gallery.shards.folder / shard.name / VECTORS
    monkeypatch.setattr(LocalPath, "checksum", lambda path: read.append(path.name) or checksum(path))
    for _ in range(3):
        gallery.shards.vectors(shard)
        Gallery(tmp_path).shards.vectors(shard)
    assert read == [VECTORS]
    with monkeypatch.context() as patch:
        again, read_bytes = list[str](), LocalPath.read_bytes
        patch.setattr(LocalPath, "read_bytes", lambda path: again.append(path.name) or read_bytes(path))
        gallery.shards.vectors(shard, check=True)
    assert again == [VECTORS]
    content = path.read_bytes()
    path.write_file(content[:-1] + bytes([content[-1] ^ 1]))
    with refused(path, "checksum"):
        gallery.shards.vectors(shard)
    path.write_file(content)
    np.testing.assert_array_equal(gallery.shards.vectors(shard), unit_rows(9))


def test_a_damaged_copy_of_an_object_is_fetched_again(remote: ObjectPath) -> None:
    (remote / "some.npy").write_file(b"content")
    digest = (remote / "some.npy").checksum()
    copy = intact(remote / "some.npy", digest)
    copy.write_bytes(b"contenT")
    assert intact(remote / "some.npy", digest).read_bytes() == b"content"


EXPORT_DAMAGES = {
    name: damage for name, damage in DAMAGES.items() if name not in ("replaced", "exchanged", "no folder")
}


@pytest.mark.parametrize("name", [CARD, CARD + seal.SUFFIX, "task2.safetensors", "supports.safetensors"])
def test_a_damaged_file_of_an_exported_model_is_refused(whole: Whole, tiny: Path, tmp_path: Path, name: str) -> None:
    folder = LocalPath(tmp_path / "model")
    write_export(trained(tiny, "er+slerp").files(2), folder)
    write_export(trained(tiny, "er+slerp").files(3), LocalPath(tmp_path / "other"))
    before = read_export(folder)
    content = (folder / name).read_bytes()
    for damage in EXPORT_DAMAGES.values():
        damage(whole, folder / name)
        with refused(folder, "export it again"):
            read_export(folder)
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).write_file(content)
    (folder / name).write_file((tmp_path / "other" / name.replace("task2", "task3")).read_bytes())
    with refused(folder, name.removesuffix(seal.SUFFIX), "export it again"):
        read_export(folder)
    (folder / name).write_file(content)
    assert read_export(folder).card == before.card


def test_a_file_in_place_of_an_exported_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"a file")
    with refused(tmp_path / "model"):
        read_export(LocalPath(tmp_path / "model"))
