"""Indexing: every image that can be read is there exactly once, whatever was killed, added, changed or broken."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_gallery import (
    KilledError,
    Trained,
    assert_holds,
    below,
    embedded,
    ids_of,
    indexed,
    kill_index,
    killed_after,
    run_index,
    stored,
    trained,
    write_images,
)
from PIL import Image

from cl2r import claims
from cl2r.errors import InputError
from cl2r.files import place
from cl2r.objects import ObjectPath
from cl2r.search import indexing
from cl2r.search.gallery import Gallery
from cl2r.search.indexing import IndexReport, ShardPlan, extract_here
from cl2r.search.model import Model
from cl2r.search.shards import Shard
from cl2r.search.snapshot import write_export

PER_SHARD = 5
COUNT = 23


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "LARGEST_SHARD", PER_SHARD)
    monkeypatch.setattr(claims, "PAUSE_SECONDS", 0.02)


@pytest.fixture(scope="module")
def chain(tiny: Path) -> Trained:
    return trained(tiny)


@pytest.fixture(scope="module")
def model(chain: Trained) -> Model:
    return chain.model(1)


@pytest.fixture
def images(chain: Trained, tmp_path: Path) -> Path:
    """The first open images as files."""
    write_images(tmp_path / "images", chain.images[:COUNT])
    return tmp_path / "images"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "gallery"


# ---------------------------------------------------------------- undisturbed


def test_every_image_is_there_once(images: Path, root: Path, model: Model, chain: Trained) -> None:
    report = run_index(images, root, model)
    assert report == IndexReport(listed=COUNT, present=0, added=COUNT)
    gallery = Gallery(root)
    assert [shard.items for shard in gallery.commit.shards].count(PER_SHARD) == COUNT // PER_SHARD
    assert len(gallery.commit.shards) == COUNT // PER_SHARD + 1
    names = ids_of(images)
    assert_holds(root, dict(zip(names, chain.vectors(1)[:COUNT], strict=True)))
    items = gallery.items().set_index("id")
    assert items.loc["c01/i005.png", "label"] == "c01"
    assert items.loc["c01/i005.png", "path"] == "c01/i005.png"
    assert items.loc["c01/i005.png", "source"] == str(images)
    assert (items["bytes"] == [(images / name).stat().st_size for name in items.index]).all()
    assert (items["model"] == f"{chain.run}@1").all()
    assert gallery.orphans() == []


def test_a_second_time_there_is_nothing_to_do(images: Path, root: Path, model: Model) -> None:
    run_index(images, root, model)
    before = below(root, ".")
    assert run_index(images, root, model, killed_after(0)) == IndexReport(listed=COUNT, present=COUNT)
    assert below(root, ".") == before
    assert run_index(images, root, model, killed_after(0), reindex=True) == IndexReport(listed=COUNT, present=COUNT)


def test_new_files_are_added_and_missing_ones_stay(images: Path, root: Path, model: Model, chain: Trained) -> None:
    run_index(images, root, model)
    expected = stored(Gallery(root))
    (images / "c00" / "i000.png").unlink()
    new = write_images(images, chain.images[COUNT : COUNT + 3], start=COUNT)
    assert run_index(images, root, model) == IndexReport(listed=COUNT + 2, present=COUNT - 1, added=3)
    assert_holds(root, expected | embedded(images, model, new))


@pytest.mark.parametrize("make", ["relative", "slash"])
def test_where_images_lie_is_written_down_so_that_others_find_them(
    images: Path, root: Path, model: Model, monkeypatch: pytest.MonkeyPatch, make: str
) -> None:
    """Processes of a cluster have other working folders."""
    monkeypatch.chdir(images.parent)
    plans: list[ShardPlan] = []

    def extract(model: Model, made: Sequence[ShardPlan]) -> Iterable[Shard]:
        plans.extend(made)
        with monkeypatch.context() as elsewhere:
            elsewhere.chdir("/")
            return list(extract_here(model, made))

    given = {"relative": place("images"), "slash": place(f"{images}/")}[make]
    report = run_index(given, place("gallery"), model, extract)
    assert (report.added, report.bad) == (COUNT, [])
    assert {plan.source for plan in plans} == {str(images)}
    assert set(Gallery(root).items()["source"]) == {str(images)}


def test_half_precision(images: Path, root: Path, model: Model) -> None:
    run_index(images, root, model, kept="float16")
    assert {vector.dtype for vector in stored(Gallery(root)).values()} == {np.dtype("float16")}
    assert_holds(root, embedded(images, model, ids_of(images)), 5e-4)


def test_a_prefix_keeps_folders_apart(images: Path, root: Path, model: Model) -> None:
    run_index(images, root, model, prefix="a/")
    assert run_index(images, root, model, prefix="b/").added == COUNT
    names = ids_of(images)
    vectors = embedded(images, model, names)
    assert_holds(root, {f"{p}/{name}": vectors[name] for p in "ab" for name in names})
    assert set(Gallery(root).items()["path"]) == set(names)


# ---------------------------------------------------------------- killed


@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_killed_and_run_again_it_is_the_same_byte_for_byte(
    images: Path, root: Path, model: Model, tmp_path: Path, count: int
) -> None:
    run_index(images, tmp_path / "undisturbed", model)
    kill_index(images, root, model, count)
    done = min(count + 1, 5) if count else 1  # the shard that is cut off is written already
    report = run_index(images, root, model)
    assert report.taken_over == min(PER_SHARD * done, COUNT)
    assert (report.added, report.present, report.bad) == (COUNT, 0, [])
    assert below(root) == below(tmp_path / "undisturbed")
    assert Gallery(root).commit.shards == Gallery(tmp_path / "undisturbed").commit.shards
    assert_holds(root, embedded(images, model, ids_of(images)))


def test_killed_when_all_was_made(images: Path, root: Path, model: Model) -> None:
    kill_index(images, root, model, 5)
    assert run_index(images, root, model, killed_after(0)).taken_over == COUNT, "nobody is asked to make nothing"


def test_killed_again_and_again(images: Path, root: Path, model: Model, tmp_path: Path) -> None:
    run_index(images, tmp_path / "undisturbed", model)
    for _ in range(4):
        kill_index(images, root, model, 0)
    assert run_index(images, root, model).taken_over == 20
    assert below(root) == below(tmp_path / "undisturbed")


def test_shards_made_in_any_order_are_taken_over(images: Path, root: Path, model: Model, tmp_path: Path) -> None:
    run_index(images, tmp_path / "undisturbed", model)

    def every_other(model: Model, plans: Sequence[ShardPlan]) -> Iterable[Shard]:
        list(extract_here(model, plans[::-2]))
        raise KilledError

    with pytest.raises(KilledError):
        run_index(images, root, model, every_other)
    assert run_index(images, root, model).taken_over == 13
    assert below(root) == below(tmp_path / "undisturbed")


CHILD = """
import sys
from cl2r.files import place
from cl2r.search import indexing
from cl2r.search.gallery import Gallery
from cl2r.search.model import Model
from cl2r.search.snapshot import find_snapshot

images, root, model = map(place, sys.argv[1:])
indexing.LARGEST_SHARD = 5

def extract(model, plans):
    for number, shard in enumerate(indexing.extract_here(model, plans), 1):
        print(number, flush=True)
        if number == 3:
            sys.stdin.read()
        yield shard

indexing.index_images(images, Gallery.open_or_create(root), Model(find_snapshot(str(model), root)), extract)
"""


def test_a_killed_process_leaves_what_the_next_one_needs(
    images: Path, root: Path, model: Model, tmp_path: Path
) -> None:
    write_export(model.snapshot, tmp_path / "model")
    run_index(images, tmp_path / "undisturbed", model)
    words = [sys.executable, "-c", CHILD, str(images), str(root), str(tmp_path / "model")]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    while child.stdout.readline() != "3\n":
        assert child.poll() is None
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait(60) == -signal.SIGKILL
    assert Gallery(root).commit.number == 0
    assert run_index(images, root, model).taken_over == 15
    assert_holds(root, stored(Gallery(tmp_path / "undisturbed")))


def test_files_that_came_went_and_changed_after_the_kill(
    images: Path, root: Path, model: Model, chain: Trained
) -> None:
    kill_index(images, root, model, 2)  # three shards, images 0 to 14
    (images / "c00" / "i002.png").unlink()
    Image.fromarray(chain.images[60, ..., 0]).save(images / "c01" / "i006.png")  # as many bytes as before
    write_images(images, chain.images[COUNT : COUNT + 4], start=COUNT)
    Image.fromarray(chain.images[61, ..., 0]).save(images / "a-new-one.png")
    report = run_index(images, root, model)
    assert report.taken_over == 5, "the shard of images 10 to 14"
    assert_holds(root, embedded(images, model, ids_of(images)))
    assert report.added == COUNT + 4


def test_a_bad_image_that_was_mended_after_the_kill(images: Path, root: Path, model: Model) -> None:
    broken, good = images / "c00" / "i001.png", (images / "c00" / "i001.png").read_bytes()
    broken.write_bytes(good[:50])
    kill_index(images, root, model, 1)
    broken.write_bytes(good)
    assert run_index(images, root, model).bad == []
    assert_holds(root, embedded(images, model, ids_of(images)))


@pytest.mark.parametrize("change", ["metadata", "source", "dtype", "prefix", "weights", "model"])
def test_shards_of_another_job_are_not_taken_for_its_own(
    images: Path, root: Path, model: Model, chain: Trained, tmp_path: Path, change: str
) -> None:
    """Same ids, same sizes, same times; but something else is asked for."""
    images, names = tmp_path / "first", ["a.bmp", "b.bmp", "c.bmp", "d.bmp", "e.bmp", "f.bmp"]
    write_bitmaps(images, names, chain.images[:6])
    kill_index(images, root, model, 9, metadata=pd.DataFrame({"id": names, "year": 1990}))
    options: dict[str, Any] = {"metadata": pd.DataFrame({"id": names, "year": 1990})}
    if change == "metadata":
        options["metadata"]["year"] = 2000
    elif change == "source":
        images = tmp_path / "elsewhere"
        write_bitmaps(images, names, chain.images[6:12])
    elif change == "dtype":
        options["kept"] = "float16"
    elif change == "prefix":
        options = {"prefix": "p/"}
    elif change == "model":
        model = chain.model(2)
    else:
        model = other_weights(chain)
    report = run_index(images, root, model, **options)
    assert report.taken_over == 0
    gallery = Gallery(root)
    vectors = {options.get("prefix", "") + name: vector for name, vector in embedded(images, model, names).items()}
    assert_holds(root, vectors, 5e-4 if change == "dtype" else 1e-6)
    assert set(gallery.items()["source"]) == {str(images)}
    if "metadata" in options:
        assert set(gallery.items()["year"]) == {2000 if change == "metadata" else 1990}


def write_bitmaps(folder: Path, names: Sequence[str], pixels: np.ndarray) -> None:
    """Files that differ in nothing but their pixels."""
    folder.mkdir()
    for name, image in zip(names, pixels, strict=True):
        Image.fromarray(image[..., 0]).save(folder / name)
        os.utime(folder / name, (0, 0))


def other_weights(chain: Trained) -> Model:
    """The same link, trained elsewhere."""
    snapshot = chain.snapshot(1)
    for tensor in snapshot.states[1].values():
        if tensor.is_floating_point():
            tensor.mul_(1.5)
    return Model(snapshot)


# ---------------------------------------------------------------- newer models


def test_newer_models_add_and_older_vectors_stay(images: Path, root: Path, chain: Trained) -> None:
    run_index(images, root, chain.model(1))
    old = stored(Gallery(root))
    new = write_images(images, chain.images[COUNT : COUNT + 2], start=COUNT)
    assert run_index(images, root, chain.model(3)).added == 2
    assert_holds(root, old | embedded(images, chain.model(3), new))
    assert sorted(Gallery(root).items()["task"]) == [1] * COUNT + [3] * 2
    with pytest.raises(InputError, match="later model"):
        run_index(images, root, chain.model(2))


def test_reindexing_replaces_older_vectors_and_keeps_others(images: Path, root: Path, chain: Trained) -> None:
    run_index(images, root, chain.model(1), prefix="kept/")
    run_index(images, root, chain.model(1))
    before = stored(Gallery(root))
    for name in ("c00/i001.png", "c02/i010.png"):
        (images / name).unlink()
    (images / "c03" / "i013.png").write_bytes(b"words")
    renewed = {name for name in ids_of(images) if name != "c03/i013.png"}
    report = run_index(images, root, chain.model(2), reindex=True)
    assert (report.replaced, report.added, report.present) == (len(renewed), 0, 0)
    assert [name for name, _ in report.bad] == ["c03/i013.png"]
    kept = {name: vector for name, vector in before.items() if name not in renewed}
    assert_holds(root, kept | embedded(images, chain.model(2), renewed))
    items = Gallery(root).items().set_index("id")["task"]
    assert {name for name, task in items.items() if task == 2} == renewed


def test_reindexing_killed_midway(images: Path, root: Path, chain: Trained) -> None:
    run_index(images, root, chain.model(1))
    old = stored(Gallery(root))
    kill_index(images, root, chain.model(2), 2, reindex=True)
    assert_holds(root, old)
    report = run_index(images, root, chain.model(2), reindex=True)
    assert (report.taken_over, report.replaced, report.added) == (15, COUNT, 0)
    assert_holds(root, embedded(images, chain.model(2), ids_of(images)))


# ---------------------------------------------------------------- object stores, several writers


def test_images_and_gallery_in_an_object_store(
    images: Path, remote: ObjectPath, model: Model, chain: Trained, tmp_path: Path
) -> None:
    shutil.rmtree(images / "c03")
    shutil.rmtree(images / "c04")
    (remote / "images").upload(images)
    names = ids_of(images)
    kill_index(remote / "images", remote / "gallery", model, 1)
    report = run_index(remote / "images", remote / "gallery", model)
    assert (report.added, report.taken_over, report.bad) == (len(names), 10, [])
    assert_holds(remote / "gallery", embedded(images, model, names))
    assert run_index(remote / "images", remote / "gallery", model).present == len(names)
    assert set(Gallery(remote / "gallery").items()["source"]) == {str(remote / "images")}
    indexed(images, tmp_path / "local", model)
    for name, vector in stored(Gallery(tmp_path / "local")).items():
        np.testing.assert_array_equal(stored(Gallery(remote / "gallery"))[name], vector)


def test_two_jobs_at_once_add_every_image_once(images: Path, root: Path, chain: Trained) -> None:
    Gallery.open_or_create(root)
    reports: list[IndexReport] = []
    jobs = [threading.Thread(target=lambda: reports.append(run_index(images, root, chain.model(1)))) for _ in range(2)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(60)
    assert sorted((report.added, report.present) for report in reports) == [(0, COUNT), (COUNT, 0)]
    assert_holds(root, embedded(images, chain.model(1), ids_of(images)))


def test_a_shard_that_comes_twice_counts_once(images: Path, root: Path, model: Model) -> None:
    """Whoever tries again what was lost may hand it over again."""

    def twice(model: Model, plans: Sequence[ShardPlan]) -> Iterable[Shard]:
        made = list(extract_here(model, plans))
        return [*made, made[0]]

    assert run_index(images, root, model, twice).added == COUNT
    assert_holds(root, embedded(images, model, ids_of(images)))


def test_a_job_that_loses_a_shard_does_not_end_well(images: Path, root: Path, model: Model) -> None:
    with pytest.raises(RuntimeError, match="1 shard"):
        run_index(images, root, model, lambda model, plans: list(extract_here(model, plans))[1:])
    assert Gallery(root).commit.number == 0
