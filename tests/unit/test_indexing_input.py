"""What an index job is given: files that are no images, odd names, folders, metadata; and what it says of them."""

import dataclasses
import io
import os
import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_gallery import (
    Trained,
    assert_holds,
    embedded,
    ids_of,
    killed_after,
    one_line,
    run_index,
    trained,
    write_images,
)
from PIL import Image

from cl2r import claims
from cl2r.errors import InputError
from cl2r.files import Place
from cl2r.objects import ObjectPath
from cl2r.search import indexing
from cl2r.search.gallery import Gallery
from cl2r.search.image_source import list_images
from cl2r.search.indexing import ShardPlan, extract_here
from cl2r.search.model import Model
from cl2r.search.shards import Shard

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
    good = embedded(images, model, ids_of(images))
    for name, (content, _) in BROKEN.items():
        (images / name).write_bytes(content())
    report = run_index(images, root, model)
    assert (report.listed, report.added) == (COUNT + len(BROKEN), COUNT)
    assert [name for name, _ in report.bad] == sorted(BROKEN)
    for name, why in report.bad:
        assert one_line(why, BROKEN[name][1])
        assert str(images) not in why
    assert_holds(root, good)
    assert sum(len(shard.bad) for shard in Gallery(root).commit.shards) <= len(BROKEN)


def test_a_file_that_goes_while_it_is_indexed_is_bad(images: Path, root: Path, model: Model) -> None:
    def extract(model: Model, plans: Sequence[ShardPlan]) -> Iterable[Shard]:
        (images / "c01" / "i005.png").unlink()
        return extract_here(model, plans)

    assert run_index(images, root, model, extract).bad == [("c01/i005.png", "no such file")]
    assert_holds(root, embedded(images, model, ids_of(images)))


@pytest.mark.parametrize("same_size", [False, True])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_bad_images_are_tried_again(images: Path, root: Path, model: Model, times: int, same_size: bool) -> None:
    broken = images / "c01" / "i006.png"
    good = broken.read_bytes()
    broken.write_bytes(b"x" * len(good) if same_size else b"words")
    os.utime(broken, (0, 0))
    for _ in range(times):
        report = run_index(images, root, model)
        assert [name for name, _ in report.bad] == ["c01/i006.png"]
    assert Gallery(root).commit.number == 1, "what adds nothing is no change"
    broken.write_bytes(good)
    os.utime(broken, (0, 0))
    report = run_index(images, root, model)
    assert (report.added, report.bad) == (1, [])
    assert_holds(root, embedded(images, model, ids_of(images)))


def test_bad_images_only(tmp_path: Path, root: Path, model: Model) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(b"words")
    report = run_index(tmp_path / "images", root, model)
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
            run_index(source, root, model)
    assert Gallery(root).commit.number == 0
    report = run_index(source, root, model)
    assert (report.bad, report.added) == ([], report.listed)


# ---------------------------------------------------------------- listing


def test_what_counts_as_an_image(tmp_path: Path, remote: ObjectPath) -> None:
    files = [
        "b/2.JPG",
        "b/1.png",
        "a.webp",
        ".hidden.png",
        ".git/x.png",
        "b/.git/y.png",
        "notes.txt",
        "b/png",
        "c/d/3.gif",
    ]
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
            run_index(source, tmp_path / "gallery", model)
        assert one_line(error.value, str(source))
    assert Gallery(tmp_path / "gallery").commit.number == 0


def test_a_link_to_nothing_is_a_bad_image(images: Path, root: Path, model: Model) -> None:
    (images / "c00" / "link.png").symlink_to("nowhere")
    report = run_index(images, root, model)
    assert report.bad == [("c00/link.png", "no such file")]
    assert report.added == COUNT


def test_a_name_that_is_no_text_is_refused_by_name(images: Path, root: Path, model: Model) -> None:
    with open(os.fsencode(images) + b"/c00/\xff.png", "wb") as file:
        file.write(jpeg())
    with pytest.raises(InputError) as error:
        run_index(images, root, model)
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


# ---------------------------------------------------------------- metadata


def test_metadata_is_joined_by_id(images: Path, root: Path, model: Model) -> None:
    names = ids_of(images)
    known = pd.DataFrame({"colour": ["red", "blue"], "id": [names[7], names[2]], "year": [1990, 2000]})
    (images / names[1]).write_bytes(b"words")
    run_index(images, root, model, metadata=known)
    items = Gallery(root).items().set_index("id")
    assert items["colour"].dropna().to_dict() == {names[7]: "red", names[2]: "blue"}
    assert items["year"].dropna().to_dict() == {names[7]: 1990, names[2]: 2000}
    assert items["year"].dtype == "Int64", "2000, not 2000.0"
    assert len(items) == COUNT - 1
    run_index(images, root, model, metadata=known)


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
        run_index(images, root, model, killed_after(0), metadata=metadata)
    assert one_line(error.value, "--metadata", part), error.value
