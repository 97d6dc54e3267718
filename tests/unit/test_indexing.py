"""Indexing: every image that can be read is there exactly once, whatever was killed, added, changed or broken."""

import dataclasses
import io
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_gallery import Trained, below, indexed, one_line, stored, trained, write_images
from PIL import Image

from cl2r import claims
from cl2r.errors import InputError
from cl2r.files import Place, place
from cl2r.objects import ObjectPath
from cl2r.search import indexing
from cl2r.search.gallery import Gallery
from cl2r.search.image_source import decode_one, list_images
from cl2r.search.indexing import IndexReport, ShardPlan, extract_here, index_images
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


def run(images: Place, root: Place, model: Model, extract: Any = extract_here, **options: Any) -> IndexReport:
    return index_images(images, Gallery.open_or_create(root), model, extract, say=lambda line: None, **options)


def kill(images: Place, root: Place, model: Model, count: int, **options: Any) -> None:
    before = Gallery.open_or_create(root).commit
    with pytest.raises(KilledError):
        run(images, root, model, killed_after(count), **options)
    assert Gallery(root).commit == before


def ids_of(images: Path) -> list[str]:
    return sorted(str(path.relative_to(images)) for path in images.rglob("*.png"))


def right(images: Path, model: Model, ids: Iterable[str]) -> dict[str, np.ndarray]:
    """One by one."""
    card, found = model.card, {}
    for name in ids:
        pixels = decode_one((images / name).read_bytes(), name, card.size, card.channels, card.fit)
        found[name] = model.embed(pixels)[0]
    return found


def assert_right(root: Place, expected: dict[str, np.ndarray], tolerance: float = 1e-6) -> None:
    found = stored(Gallery(root))
    assert found.keys() == expected.keys()
    for name, vector in expected.items():
        np.testing.assert_allclose(found[name].astype(np.float32), vector, rtol=0, atol=tolerance)


# ---------------------------------------------------------------- undisturbed


def test_every_image_is_there_once(images: Path, root: Path, model: Model, chain: Trained) -> None:
    report = run(images, root, model)
    assert report == IndexReport(listed=COUNT, present=0, added=COUNT)
    gallery = Gallery(root)
    assert [shard.items for shard in gallery.commit.shards].count(PER_SHARD) == COUNT // PER_SHARD
    assert len(gallery.commit.shards) == COUNT // PER_SHARD + 1
    names = ids_of(images)
    assert_right(root, dict(zip(names, chain.vectors(1)[:COUNT], strict=True)))
    items = gallery.items().set_index("id")
    assert items.loc["c01/i005.png", "label"] == "c01"
    assert items.loc["c01/i005.png", "path"] == "c01/i005.png"
    assert items.loc["c01/i005.png", "source"] == str(images)
    assert (items["bytes"] == [(images / name).stat().st_size for name in items.index]).all()
    assert (items["model"] == f"{chain.run}@1").all()
    assert gallery.orphans() == []


def test_a_second_time_there_is_nothing_to_do(images: Path, root: Path, model: Model) -> None:
    run(images, root, model)
    before = below(root, ".")
    assert run(images, root, model, killed_after(0)) == IndexReport(listed=COUNT, present=COUNT)
    assert below(root, ".") == before
    assert run(images, root, model, killed_after(0), reindex=True) == IndexReport(listed=COUNT, present=COUNT)


def test_new_files_are_added_and_missing_ones_stay(images: Path, root: Path, model: Model, chain: Trained) -> None:
    run(images, root, model)
    expected = stored(Gallery(root))
    (images / "c00" / "i000.png").unlink()
    new = write_images(images, chain.images[COUNT : COUNT + 3], start=COUNT)
    assert run(images, root, model) == IndexReport(listed=COUNT + 2, present=COUNT - 1, added=3)
    assert_right(root, expected | right(images, model, new))


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
    report = run(given, place("gallery"), model, extract)
    assert (report.added, report.bad) == (COUNT, [])
    assert {plan.source for plan in plans} == {str(images)}
    assert set(Gallery(root).items()["source"]) == {str(images)}


def test_half_precision(images: Path, root: Path, model: Model) -> None:
    run(images, root, model, kept="float16")
    assert {vector.dtype for vector in stored(Gallery(root)).values()} == {np.dtype("float16")}
    assert_right(root, right(images, model, ids_of(images)), 5e-4)


def test_a_prefix_keeps_folders_apart(images: Path, root: Path, model: Model) -> None:
    run(images, root, model, prefix="a/")
    assert run(images, root, model, prefix="b/").added == COUNT
    names = ids_of(images)
    vectors = right(images, model, names)
    assert_right(root, {f"{p}/{name}": vectors[name] for p in "ab" for name in names})
    assert set(Gallery(root).items()["path"]) == set(names)


# ---------------------------------------------------------------- killed


@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_killed_and_run_again_it_is_the_same_byte_for_byte(
    images: Path, root: Path, model: Model, tmp_path: Path, count: int
) -> None:
    run(images, tmp_path / "undisturbed", model)
    kill(images, root, model, count)
    done = min(count + 1, 5) if count else 1  # the shard that is cut off is written already
    report = run(images, root, model)
    assert report.taken_over == min(PER_SHARD * done, COUNT)
    assert (report.added, report.present, report.bad) == (COUNT, 0, [])
    assert below(root) == below(tmp_path / "undisturbed")
    assert Gallery(root).commit.shards == Gallery(tmp_path / "undisturbed").commit.shards
    assert_right(root, right(images, model, ids_of(images)))


def test_killed_again_and_again(images: Path, root: Path, model: Model, tmp_path: Path) -> None:
    run(images, tmp_path / "undisturbed", model)
    for _ in range(4):
        kill(images, root, model, 0)
    assert run(images, root, model).taken_over == 20
    assert below(root) == below(tmp_path / "undisturbed")


def test_shards_made_in_any_order_are_taken_over(images: Path, root: Path, model: Model, tmp_path: Path) -> None:
    run(images, tmp_path / "undisturbed", model)

    def every_other(model: Model, plans: Sequence[ShardPlan]) -> Iterable[Shard]:
        list(extract_here(model, plans[::-2]))
        raise KilledError

    with pytest.raises(KilledError):
        run(images, root, model, every_other)
    assert run(images, root, model).taken_over == 13
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
    run(images, tmp_path / "undisturbed", model)
    words = [sys.executable, "-c", CHILD, str(images), str(root), str(tmp_path / "model")]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    while child.stdout.readline() != "3\n":
        assert child.poll() is None
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait(60) == -signal.SIGKILL
    assert Gallery(root).commit.number == 0
    assert run(images, root, model).taken_over == 15
    assert_right(root, stored(Gallery(tmp_path / "undisturbed")))


def test_files_that_came_went_and_changed_after_the_kill(
    images: Path, root: Path, model: Model, chain: Trained
) -> None:
    kill(images, root, model, 2)  # three shards, images 0 to 14
    (images / "c00" / "i002.png").unlink()
    Image.fromarray(chain.images[60, ..., 0]).save(images / "c01" / "i006.png")  # as many bytes as before
    write_images(images, chain.images[COUNT : COUNT + 4], start=COUNT)
    Image.fromarray(chain.images[61, ..., 0]).save(images / "a-new-one.png")
    report = run(images, root, model)
    assert report.taken_over == 5, "the shard of images 10 to 14"
    assert_right(root, right(images, model, ids_of(images)))
    assert report.added == COUNT + 4


def test_a_bad_image_that_was_mended_after_the_kill(images: Path, root: Path, model: Model) -> None:
    broken, good = images / "c00" / "i001.png", (images / "c00" / "i001.png").read_bytes()
    broken.write_bytes(good[:50])
    kill(images, root, model, 1)
    broken.write_bytes(good)
    assert run(images, root, model).bad == []
    assert_right(root, right(images, model, ids_of(images)))


@pytest.mark.parametrize("change", ["metadata", "source", "dtype", "prefix", "weights", "model"])
def test_shards_of_another_job_are_not_taken_for_its_own(
    images: Path, root: Path, model: Model, chain: Trained, tmp_path: Path, change: str
) -> None:
    """Same ids, same sizes, same times; but something else is asked for."""
    images, names = tmp_path / "first", ["a.bmp", "b.bmp", "c.bmp", "d.bmp", "e.bmp", "f.bmp"]
    write_bitmaps(images, names, chain.images[:6])
    kill(images, root, model, 9, metadata=pd.DataFrame({"id": names, "year": 1990}))
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
    report = run(images, root, model, **options)
    assert report.taken_over == 0
    gallery = Gallery(root)
    vectors = {options.get("prefix", "") + name: vector for name, vector in right(images, model, names).items()}
    assert_right(root, vectors, 5e-4 if change == "dtype" else 1e-6)
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


# ---------------------------------------------------------------- bad images


def huge_png() -> bytes:
    """A few bytes that declare 20000 × 10000 pixels."""
    header = struct.pack(">IIBBBBB", 20000, 10000, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0")), (b"IEND", b"")]
    body = (struct.pack(">I", len(c)) + k + c + struct.pack(">I", zlib.crc32(k + c)) for k, c in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


def jpeg(keep: int | None = None) -> bytes:
    encoded = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8)).save(encoded, "JPEG")
    return encoded.getvalue()[:keep]


BROKEN = {
    "c00/deep.png": (lambda: deep_png(), "8 bits"),
    "c00/empty.png": (lambda: b"", "no known format"),
    "c00/huge.png": (huge_png, "pixels"),
    "c00/script.png": (lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n", "no known format"),
    "c00/text.png": (lambda: b"these are words", "no known format"),
    "c00/torn.jpg": (lambda: jpeg(900), "truncated"),
}


def deep_png() -> bytes:
    encoded = io.BytesIO()
    Image.fromarray(np.arange(256, dtype=np.uint16).reshape(16, 16) * 200).save(encoded, "PNG")
    return encoded.getvalue()


def test_bad_images_are_listed_with_their_reasons(images: Path, root: Path, model: Model) -> None:
    good = right(images, model, ids_of(images))
    for name, (content, _) in BROKEN.items():
        (images / name).write_bytes(content())
    report = run(images, root, model)
    assert (report.listed, report.added) == (COUNT + len(BROKEN), COUNT)
    assert [name for name, _ in report.bad] == sorted(BROKEN)
    for name, why in report.bad:
        assert one_line(why, BROKEN[name][1])
        assert str(images) not in why
    assert_right(root, good)
    assert sum(len(shard.bad) for shard in Gallery(root).commit.shards) <= len(BROKEN)


def test_a_file_that_goes_while_it_is_indexed_is_bad(images: Path, root: Path, model: Model) -> None:
    def extract(model: Model, plans: Sequence[ShardPlan]) -> Iterable[Shard]:
        (images / "c01" / "i005.png").unlink()
        return extract_here(model, plans)

    assert run(images, root, model, extract).bad == [("c01/i005.png", "no such file")]
    assert_right(root, right(images, model, ids_of(images)))


@pytest.mark.parametrize("same_size", [False, True])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_bad_images_are_tried_again(images: Path, root: Path, model: Model, times: int, same_size: bool) -> None:
    broken = images / "c01" / "i006.png"
    good = broken.read_bytes()
    broken.write_bytes(b"x" * len(good) if same_size else b"words")
    for _ in range(times):
        report = run(images, root, model)
        assert [name for name, _ in report.bad] == ["c01/i006.png"]
    assert Gallery(root).commit.number == 1, "what adds nothing is no change"
    broken.write_bytes(good)
    report = run(images, root, model)
    assert (report.added, report.bad) == (1, [])
    assert_right(root, right(images, model, ids_of(images)))


def test_bad_images_only(tmp_path: Path, root: Path, model: Model) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(b"words")
    report = run(tmp_path / "images", root, model)
    assert (report.added, len(report.bad)) == (0, 1)
    assert Gallery(root).commit.items == 0


@pytest.mark.parametrize("kind", ["disk", "objects"])
def test_a_store_that_does_not_answer_is_no_bad_image(
    images: Path, root: Path, model: Model, kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    source: Place = images
    if kind == "objects":
        source = request.getfixturevalue("remote") / "images"
        source.upload(images / "c00")
    read = type(source).read_bytes

    def away(path: Any) -> bytes:
        if path.name == "i002.png":
            raise OSError(5, "the store does not answer")
        return read(path)

    with monkeypatch.context() as patch:
        patch.setattr(type(source), "read_bytes", away)
        with pytest.raises(OSError, match="does not answer"):
            run(source, root, model)
    assert Gallery(root).commit.number == 0
    report = run(source, root, model)
    assert (report.bad, report.added) == ([], report.listed)


# ---------------------------------------------------------------- listing


def test_what_counts_as_an_image(tmp_path: Path, remote: ObjectPath) -> None:
    files = ["b/2.JPG", "b/1.png", "a.webp", ".hidden.png", ".git/x.png", "b/.git/y.png", "notes.txt", "b/png", "c/d/3.gif"]
    for name in files:
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_bytes(b"12")
    (tmp_path / "images" / "linked").symlink_to(tmp_path / "images" / "b")
    remote.upload(tmp_path / "images")
    found = list_images(tmp_path / "images", "p/")
    assert [entry.path for entry in found] == ["a.webp", "b/1.png", "b/2.JPG", "c/d/3.gif"]
    assert [entry.id for entry in found] == ["p/a.webp", "p/b/1.png", "p/b/2.JPG", "p/c/d/3.gif"]
    assert [entry.label for entry in found] == ["", "b", "b", "d"]
    assert {entry.bytes for entry in found} == {2}
    there = [entry for entry in list_images(remote, "p/") if not entry.path.startswith("linked/")]
    assert there == [dataclasses.replace(entry, modified=0) for entry in found]


def test_a_place_without_images_is_refused_before_any_work(tmp_path: Path, remote: ObjectPath, model: Model) -> None:
    (tmp_path / "file.png").write_bytes(b"1")
    (tmp_path / "empty").mkdir()
    (remote / "here.txt").write_bytes(b"1")
    for source in (tmp_path / "none", tmp_path / "empty", tmp_path / "file.png", remote, remote / "none"):
        with pytest.raises(InputError) as error:
            run(source, tmp_path / "gallery", model)
        assert one_line(error.value, str(source))
    assert Gallery(tmp_path / "gallery").commit.number == 0


def test_a_link_to_nothing_is_a_bad_image(images: Path, root: Path, model: Model) -> None:
    (images / "c00" / "link.png").symlink_to("nowhere")
    report = run(images, root, model)
    assert report.bad == [("c00/link.png", "no such file")]
    assert report.added == COUNT


def test_a_name_that_is_no_text_is_refused_by_name(images: Path, root: Path, model: Model) -> None:
    with open(os.fsencode(images) + b"/c00/\xff.png", "wb") as file:
        file.write(jpeg())
    with pytest.raises(InputError) as error:
        run(images, root, model)
    assert one_line(error.value, "UTF-8", "\\xff" if "\\xff" in str(error.value) else "udcff")
    str(error.value).encode()


def test_a_folder_that_cannot_be_read_is_not_left_out(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = os.scandir

    def refuse(path: Any = ".") -> Any:
        if str(path).endswith("c02"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(InputError, match=r"c02.*Permission denied"):
        list_images(images)


# ---------------------------------------------------------------- newer models


def test_newer_models_add_and_older_vectors_stay(images: Path, root: Path, chain: Trained) -> None:
    run(images, root, chain.model(1))
    old = stored(Gallery(root))
    new = write_images(images, chain.images[COUNT : COUNT + 2], start=COUNT)
    assert run(images, root, chain.model(3)).added == 2
    assert_right(root, old | right(images, chain.model(3), new))
    assert sorted(Gallery(root).items()["task"]) == [1] * COUNT + [3] * 2
    with pytest.raises(InputError, match="later model"):
        run(images, root, chain.model(2))


def test_reindexing_replaces_older_vectors_and_keeps_others(images: Path, root: Path, chain: Trained) -> None:
    run(images, root, chain.model(1), prefix="kept/")
    run(images, root, chain.model(1))
    before = stored(Gallery(root))
    for name in ("c00/i001.png", "c02/i010.png"):
        (images / name).unlink()
    (images / "c03" / "i013.png").write_bytes(b"words")
    renewed = {name for name in ids_of(images) if name != "c03/i013.png"}
    report = run(images, root, chain.model(2), reindex=True)
    assert (report.replaced, report.added, report.present) == (len(renewed), 0, 0)
    assert [name for name, _ in report.bad] == ["c03/i013.png"]
    kept = {name: vector for name, vector in before.items() if name not in renewed}
    assert_right(root, kept | right(images, chain.model(2), renewed))
    items = Gallery(root).items().set_index("id")["task"]
    assert {name for name, task in items.items() if task == 2} == renewed


def test_reindexing_killed_midway(images: Path, root: Path, chain: Trained) -> None:
    run(images, root, chain.model(1))
    old = stored(Gallery(root))
    kill(images, root, chain.model(2), 2, reindex=True)
    assert_right(root, old)
    report = run(images, root, chain.model(2), reindex=True)
    assert (report.taken_over, report.replaced, report.added) == (15, COUNT, 0)
    assert_right(root, right(images, chain.model(2), ids_of(images)))


# ---------------------------------------------------------------- metadata


def test_metadata_is_joined_by_id(images: Path, root: Path, model: Model) -> None:
    names = ids_of(images)
    known = pd.DataFrame({"colour": ["red", "blue"], "id": [names[7], names[2]], "year": [1990, 2000]})
    (images / names[1]).write_bytes(b"words")
    run(images, root, model, metadata=known)
    items = Gallery(root).items().set_index("id")
    assert items["colour"].dropna().to_dict() == {names[7]: "red", names[2]: "blue"}
    assert items["year"].dropna().to_dict() == {names[7]: 1990, names[2]: 2000}
    assert items["year"].dtype == "Int64", "2000, not 2000.0"
    assert len(items) == COUNT - 1
    run(images, root, model, metadata=known)


def frame(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame(columns)


GOOD = "c00/i000.png"


@pytest.mark.parametrize(
    ("metadata", "part"),
    [
        (frame(name=[GOOD]), "`id`"),
        (frame(id=[GOOD, GOOD]), "once"),
        (frame(id=[GOOD, "zzz"]), "'zzz'"),
        (frame(id=[GOOD, "zzz", None]), "2 ids"),
        (frame(id=[1, 2]), "2 ids"),
        (frame(id=[GOOD], label=["x"]), "'label'"),
        (frame(id=[GOOD], task=[1]), "'task'"),
        (frame(id=[GOOD], version=[1], bytes=[3]), "'bytes'"),
        (pd.DataFrame([[GOOD, 1, 2]], columns=["id", "a", "a"]), "'a'"),
        (pd.DataFrame([[GOOD, "b"]], columns=["id", "id"]), "'id'"),
        (pd.DataFrame([[GOOD, 1]], columns=["id", 5]), "5"),
        (frame(id=[GOOD, "c00/i001.png"], mixed=[1, "one"]), "mixed"),
        (frame(id=[GOOD], thing=[object()]), "thing"),
    ],
)
def test_wrong_metadata_is_refused_before_any_work(
    images: Path, root: Path, model: Model, metadata: pd.DataFrame, part: str
) -> None:
    with pytest.raises(InputError) as error:
        run(images, root, model, killed_after(0), metadata=metadata)
    assert one_line(error.value, "--metadata", part), error.value


# ---------------------------------------------------------------- object stores, several writers


def test_images_and_gallery_in_an_object_store(
    images: Path, remote: ObjectPath, model: Model, chain: Trained, tmp_path: Path
) -> None:
    shutil.rmtree(images / "c03")
    shutil.rmtree(images / "c04")
    (remote / "images").upload(images)
    names = ids_of(images)
    kill(remote / "images", remote / "gallery", model, 1)
    report = run(remote / "images", remote / "gallery", model)
    assert (report.added, report.taken_over, report.bad) == (len(names), 10, [])
    assert_right(remote / "gallery", right(images, model, names))
    assert run(remote / "images", remote / "gallery", model).present == len(names)
    assert set(Gallery(remote / "gallery").items()["source"]) == {str(remote / "images")}
    indexed(images, tmp_path / "local", model)
    for name, vector in stored(Gallery(tmp_path / "local")).items():
        np.testing.assert_array_equal(stored(Gallery(remote / "gallery"))[name], vector)


def test_two_jobs_at_once_add_every_image_once(images: Path, root: Path, chain: Trained) -> None:
    Gallery.open_or_create(root)
    reports: list[IndexReport] = []
    jobs = [threading.Thread(target=lambda: reports.append(run(images, root, chain.model(1)))) for _ in range(2)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(60)
    assert sorted((report.added, report.present) for report in reports) == [(0, COUNT), (COUNT, 0)]
    assert_right(root, right(images, chain.model(1), ids_of(images)))


def test_a_shard_that_comes_twice_counts_once(images: Path, root: Path, model: Model) -> None:
    """Whoever tries again what was lost may hand it over again."""

    def twice(model: Model, plans: Sequence[ShardPlan]) -> Iterable[Shard]:
        made = list(extract_here(model, plans))
        return [*made, made[0]]

    assert run(images, root, model, twice).added == COUNT
    assert_right(root, right(images, model, ids_of(images)))


def test_a_job_that_loses_a_shard_does_not_end_well(images: Path, root: Path, model: Model) -> None:
    with pytest.raises(RuntimeError, match="1 shard"):
        run(images, root, model, lambda model, plans: list(extract_here(model, plans))[1:])
    assert Gallery(root).commit.number == 0
