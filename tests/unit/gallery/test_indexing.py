"""Indexing: every readable image is in the gallery exactly once, whatever was killed, added, changed or broken."""

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
from PIL import Image

from cl2r.gallery.gallery import Gallery, Shard
from cl2r.gallery.indexing import IndexReport, ShardPlan, extract_here
from cl2r.gallery.model import Model, write_export
from cl2r.storage.path import ObjectPath, StoragePath, at
from tests.support.galleries import (
    Trained,
    assert_holds,
    below,
    declared_png,
    embedded,
    encoded,
    ids_of,
    kill_index,
    killed_after,
    refused,
    run_index,
    shards_below,
    stored,
    write_images,
)
from tests.support.object_server import upload
from tests.unit.gallery.conftest import COUNT, PER_SHARD

pytestmark = pytest.mark.usefixtures("small_shards")


def test_every_image_is_added_once(images: Path, root: Path, model: Model, chain: Trained) -> None:
    report = run_index(images, root, model)
    assert report == IndexReport(present=0, added=COUNT)
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
    before = below(root, ".")
    assert run_index(images, root, model, killed_after(0)) == IndexReport(present=COUNT), "nothing is left to do"
    assert below(root, ".") == before
    assert run_index(images, root, model, killed_after(0), reindex=True).present == COUNT


def test_new_files_are_added_and_removed_files_stay(images: Path, root: Path, model: Model, chain: Trained) -> None:
    run_index(images, root, model)
    expected = stored(Gallery(root))
    (images / "c00" / "i000.png").unlink()
    new = write_images(images, chain.images[COUNT : COUNT + 3], start=COUNT)
    assert run_index(images, root, model) == IndexReport(present=COUNT - 1, added=3)
    assert_holds(root, expected | embedded(images, model, new))


@pytest.mark.parametrize("form", ["images", "{images}/"])
def test_paths_are_stored_as_absolute(
    images: Path, root: Path, model: Model, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Because processes of a cluster have other working folders."""
    monkeypatch.chdir(images.parent)

    def extract(model: Model, plans: Sequence[ShardPlan]) -> Iterable[Shard]:
        with monkeypatch.context() as elsewhere:
            elsewhere.chdir("/")
            return list(extract_here(model, plans))

    report = run_index(at(form.format(images=images)), at("gallery"), model, extract)
    assert (report.added, report.bad) == (COUNT, [])
    assert set(Gallery(root).items()["source"]) == {str(images)}


def test_vectors_can_be_stored_in_half_precision(images: Path, root: Path, model: Model) -> None:
    run_index(images, root, model, stored_dtype="float16")
    assert {vector.dtype for vector in stored(Gallery(root)).values()} == {np.dtype("float16")}
    assert_holds(root, embedded(images, model, ids_of(images)), 5e-4)


def test_a_prefix_keeps_folders_apart(images: Path, root: Path, model: Model) -> None:
    run_index(images, root, model, prefix="a/")
    assert run_index(images, root, model, prefix="b/").added == COUNT
    names = ids_of(images)
    vectors = embedded(images, model, names)
    assert_holds(root, {f"{p}/{name}": vectors[name] for p in "ab" for name in names})
    assert set(Gallery(root).items()["path"]) == set(names)


@pytest.mark.parametrize("count", [0, 3, 5])
def test_a_resumed_job_gives_the_same_bytes(images: Path, root: Path, model: Model, tmp_path: Path, count: int) -> None:
    run_index(images, tmp_path / "undisturbed", model)
    kill_index(images, root, model, count)
    done = min(count + 1, 5)  # the shard at which it was killed is written
    report = run_index(images, root, model, extract_here if done < 5 else killed_after(0))
    assert report.taken_over == min(PER_SHARD * done, COUNT)
    assert (report.added, report.present, report.bad) == (COUNT, 0, [])
    assert shards_below(root) == shards_below(tmp_path / "undisturbed")
    assert Gallery(root).commit.shards == Gallery(tmp_path / "undisturbed").commit.shards
    for _ in range(4):
        kill_index(images, tmp_path / "often", model, 0)
    assert run_index(images, tmp_path / "often", model).taken_over == 20, "every attempt makes progress"
    assert shards_below(tmp_path / "often") == shards_below(root)


CHILD = """
import sys
from cl2r.storage.path import at
from cl2r.gallery import indexing
from cl2r.gallery.gallery import Gallery
from cl2r.gallery.model import Model, find_model

images, root, model = map(at, sys.argv[1:])
indexing.LARGEST_SHARD = 5

def extract(model, plans):
    for number, shard in enumerate(indexing.extract_here(model, plans), 1):
        print(number, flush=True)
        if number == 3:
            sys.stdin.read()
        yield shard

indexing.IndexJob(images, Gallery.open_or_create(root), Model(find_model(str(model), root)), extract).run()
"""


def test_the_shards_of_a_killed_process_are_reused(images: Path, root: Path, model: Model, tmp_path: Path) -> None:
    write_export(model.files, tmp_path / "model")
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


def test_files_may_be_added_removed_and_changed_before_resuming(
    images: Path, root: Path, model: Model, chain: Trained
) -> None:
    broken, good = images / "c00" / "i001.png", (images / "c00" / "i001.png").read_bytes()
    broken.write_file(good[:50])
    kill_index(images, root, model, 2)  # three shards, images 0 to 14
    broken.write_file(good)
    (images / "c00" / "i002.png").unlink()
    Image.fromarray(chain.images[60, ..., 0]).save(images / "c01" / "i006.png")  # as many bytes as before
    write_images(images, chain.images[COUNT : COUNT + 4], start=COUNT)
    Image.fromarray(chain.images[61, ..., 0]).save(images / "a-new-one.png")
    report = run_index(images, root, model)
    assert report.taken_over == 5, "the shard of images 10 to 14"
    assert report.bad == [], "nor the repaired image"
    assert_holds(root, embedded(images, model, ids_of(images)))
    assert report.added == COUNT + 4


@pytest.mark.parametrize("change", ["metadata", "source", "dtype", "prefix", "weights", "model"])
def test_shards_of_a_different_job_are_not_reused(root: Path, chain: Trained, tmp_path: Path, change: str) -> None:
    """Ids, sizes and times are equal, but something else differs."""
    names, model = ["a.bmp", "b.bmp", "c.bmp", "d.bmp", "e.bmp", "f.bmp"], chain.model(1)
    for folder, start in (("first", 0), ("second", 6)):
        (tmp_path / folder).mkdir()
        for row, name in enumerate(names, start):
            Image.fromarray(chain.images[row, ..., 0]).save(tmp_path / folder / name)
            os.utime(tmp_path / folder / name, (0, 0))
    known = pd.DataFrame({"id": names, "year": 1990})
    kill_index(tmp_path / "first", root, model, 9, metadata=known)
    if change == "weights":  # the same link as if it had been trained elsewhere
        files = chain.files(1)
        for tensor in files.states[1].values():
            if tensor.is_floating_point():
                tensor.mul_(1.5)
        model = Model(files)
    model = chain.model(2) if change == "model" else model
    images = tmp_path / ("second" if change == "source" else "first")
    options: dict[str, Any] = {
        "metadata": {"metadata": known.assign(year=2000)},
        "dtype": {"metadata": known, "stored_dtype": "float16"},
        "prefix": {"prefix": "p/"},
    }.get(change, {"metadata": known})
    assert run_index(images, root, model, **options).taken_over == 0
    items = Gallery(root).items()
    vectors = {options.get("prefix", "") + name: vector for name, vector in embedded(images, model, names).items()}
    assert_holds(root, vectors, 5e-4 if change == "dtype" else 1e-6)
    assert set(items["source"]) == {str(images)}
    assert change == "prefix" or set(items["year"]) == {2000 if change == "metadata" else 1990}


def test_newer_models_add_images_and_older_vectors_stay(images: Path, root: Path, chain: Trained) -> None:
    run_index(images, root, chain.model(1))
    old = stored(Gallery(root))
    new = write_images(images, chain.images[COUNT : COUNT + 2], start=COUNT)
    assert run_index(images, root, chain.model(3)).added == 2
    assert_holds(root, old | embedded(images, chain.model(3), new))
    assert sorted(Gallery(root).items()["task"]) == [1] * COUNT + [3] * 2
    with refused("later model"):
        run_index(images, root, chain.model(2))


def test_reindexing_replaces_older_vectors_only(images: Path, root: Path, chain: Trained) -> None:
    run_index(images, root, chain.model(1), prefix="kept/")
    run_index(images, root, chain.model(1))
    before = stored(Gallery(root))
    for name in ("c00/i001.png", "c02/i010.png"):
        (images / name).unlink()
    (images / "c03" / "i013.png").write_file(b"words")
    renewed = {name for name in ids_of(images) if name != "c03/i013.png"}
    report = run_index(images, root, chain.model(2), reindex=True)
    assert (report.replaced, report.added, report.present) == (len(renewed), 0, 0)
    assert [name for name, _ in report.bad] == ["c03/i013.png"]
    kept = {name: vector for name, vector in before.items() if name not in renewed}
    assert_holds(root, kept | embedded(images, chain.model(2), renewed))
    items = Gallery(root).items().set_index("id")["task"]
    assert {name for name, task in items.items() if task == 2} == renewed


def test_a_killed_reindexing_is_resumed(images: Path, root: Path, chain: Trained) -> None:
    run_index(images, root, chain.model(1))
    old = stored(Gallery(root))
    kill_index(images, root, chain.model(2), 2, reindex=True)
    assert_holds(root, old)
    report = run_index(images, root, chain.model(2), reindex=True)
    assert (report.taken_over, report.replaced, report.added) == (15, COUNT, 0)
    assert_holds(root, embedded(images, chain.model(2), ids_of(images)))


def test_images_and_gallery_in_an_object_store(
    images: Path, remote: ObjectPath, model: Model, chain: Trained, tmp_path: Path
) -> None:
    shutil.rmtree(images / "c03")
    shutil.rmtree(images / "c04")
    upload(images, remote / "images")
    names = ids_of(images)
    kill_index(remote / "images", remote / "gallery", model, 1)
    report = run_index(remote / "images", remote / "gallery", model)
    assert (report.added, report.taken_over, report.bad) == (len(names), 10, [])
    assert_holds(remote / "gallery", embedded(images, model, names))
    assert run_index(remote / "images", remote / "gallery", model).present == len(names)
    assert set(Gallery(remote / "gallery").items()["source"]) == {str(remote / "images")}
    run_index(images, tmp_path / "local", model)
    for name, vector in stored(Gallery(tmp_path / "local")).items():
        np.testing.assert_array_equal(stored(Gallery(remote / "gallery"))[name], vector)


def test_two_jobs_at_once_add_every_image_once(images: Path, root: Path, chain: Trained) -> None:
    reports: list[IndexReport] = []
    jobs = [threading.Thread(target=lambda: reports.append(run_index(images, root, chain.model(1)))) for _ in range(2)]
    Gallery.open_or_create(root)
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(60)
    assert sorted((report.added, report.present) for report in reports) == [(0, COUNT), (COUNT, 0)]
    assert_holds(root, embedded(images, chain.model(1), ids_of(images)))


def test_a_shard_may_be_made_twice_but_not_be_lost(images: Path, root: Path, model: Model, tmp_path: Path) -> None:
    """Ray may retry a shard that was made before."""
    with pytest.raises(RuntimeError, match="1 of 5 shards"):
        run_index(images, root, model, lambda model, plans: list(extract_here(model, plans))[1:])
    assert Gallery(root).commit.number == 0
    twice = tmp_path / "twice"
    assert run_index(images, twice, model, lambda model, plans: 2 * list(extract_here(model, plans))).added == COUNT
    assert_holds(twice, embedded(images, model, ids_of(images)))


BROKEN = {
    "c00/deep.png": (encoded(np.zeros((16, 16), np.uint16)), "8 bits"),
    "c00/empty.png": (b"", "no known format"),
    "c00/huge.png": (declared_png(20000, 10000), "pixels"),
    "c00/script.png": (b"%!PS-Adobe-3.0 EPSF-3.0\n", "no known format"),
    "c00/text.png": (b"these are words", "no known format"),
    "c00/torn.jpg": (encoded(np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8), "JPEG")[:900], "truncated"),
}


def test_bad_images_are_listed_with_their_reasons(images: Path, root: Path, model: Model) -> None:
    good = embedded(images, model, ids_of(images))
    for name, (content, _) in BROKEN.items():
        (images / name).write_file(content)
    broken = BROKEN | {"c00/lost.png": (b"", "no such file")}

    def extract(model: Model, plans: Sequence[ShardPlan]) -> Iterable[Shard]:
        (images / "c00" / "lost.png").unlink()
        return extract_here(model, plans)

    (images / "c00" / "lost.png").write_file(encoded(np.zeros((16, 16), np.uint8)))
    report = run_index(images, root, model, extract)
    assert (report.present, report.added) == (0, COUNT)
    assert [name for name, _ in report.bad] == sorted(broken)
    for name, why in report.bad:
        assert broken[name][1] in why
        assert "\n" not in why
        assert str(images) not in why
    assert_holds(root, good)


@pytest.mark.parametrize("same_size", [False, True])
def test_bad_images_are_tried_again(images: Path, root: Path, model: Model, same_size: bool) -> None:
    broken = images / "c01" / "i006.png"
    good = broken.read_bytes()
    broken.write_file(b"x" * len(good) if same_size else b"words")
    os.utime(broken, (0, 0))
    for _ in range(3):
        assert [name for name, _ in run_index(images, root, model).bad] == ["c01/i006.png"]
    assert Gallery(root).commit.number == 1, "nothing was added, so nothing is committed"
    broken.write_file(good)
    os.utime(broken, (0, 0))
    report = run_index(images, root, model)
    assert (report.added, report.bad) == (1, [])
    assert_holds(root, embedded(images, model, ids_of(images)))


@pytest.mark.parametrize("kind", ["disk", "objects"])
def test_a_store_that_does_not_answer_is_an_error(
    images: Path, root: Path, model: Model, kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    source: StoragePath = images
    if kind == "objects":
        source = request.getfixturevalue("remote") / "images"
        upload(images / "c00", source)
    read = type(source).read_bytes

    def away(path: Any) -> bytes:
        if path.name == "i002.png":
            raise OSError(5, "the store does not answer")
        return read(path)

    with monkeypatch.context() as patch:
        patch.setattr(type(source), "read_bytes", away)
        with pytest.raises(OSError, match="does not answer"):
            run_index(source, root, model)
    assert Gallery(root).commit.number == 0
    report = run_index(source, root, model)
    assert (report.bad, report.added) == ([], 4 if kind == "objects" else COUNT)


def test_metadata_is_joined_by_id(images: Path, root: Path, model: Model) -> None:
    names = ids_of(images)
    known = pd.DataFrame({"colour": ["red", "blue"], "id": [names[7], names[2]], "year": [1990, 2000]})
    (images / names[1]).write_file(b"words")
    run_index(images, root, model, metadata=known)
    items = Gallery(root).items().set_index("id")
    assert items["colour"].dropna().to_dict() == {names[7]: "red", names[2]: "blue"}
    assert items["year"].dropna().to_dict() == {names[7]: 1990, names[2]: 2000}
    assert items["year"].dtype == "Int64", "whole numbers stay whole"
    assert len(items) == COUNT - 1
    run_index(images, root, model, metadata=known)


GOOD = "c00/i000.png"


@pytest.mark.parametrize(
    ("metadata", "part"),
    [
        (dict(name=[GOOD]), "`id`"),
        (dict(id=[GOOD, GOOD]), "once"),
        (dict(id=[GOOD, "zzz"]), "'zzz'"),
        (dict(id=[GOOD, "zzz", None]), "2 ids"),
        (dict(id=[1, 2]), "2 ids"),
        (dict(id=[GOOD], label=["x"]), "'label'"),
        (dict(id=[GOOD], task=[1]), "'task'"),
        (dict(id=[GOOD], version=[1], bytes=[3]), "'bytes'"),
        (pd.DataFrame([[GOOD, 1, 2]], columns=["id", "a", "a"]), "'a'"),
        (pd.DataFrame([[GOOD, "b"]], columns=["id", "id"]), "'id'"),
        (pd.DataFrame([[GOOD, 1]], columns=["id", 5]), "5"),
        (dict(id=[GOOD, "c00/i001.png"], mixed=[1, "one"]), "mixed"),
        (dict(id=[GOOD], thing=[object()]), "thing"),
    ],
)
def test_wrong_metadata_is_refused_before_any_work(
    images: Path, root: Path, model: Model, metadata: Any, part: str
) -> None:
    with refused("--metadata", part):
        run_index(images, root, model, killed_after(0), metadata=pd.DataFrame(metadata))
