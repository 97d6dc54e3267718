"""`cl2r index`, `search`, `gallery`, `upgrade-check` and `export`, as a person types them."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import Command
from made_gallery import Trained, trained, write_images
from PIL import Image

from cl2r.search.gallery import Gallery


@pytest.fixture(scope="module")
def chain(tiny: Path) -> Trained:
    return trained(tiny)


@pytest.fixture
def images(chain: Trained, tmp_path: Path) -> Path:
    write_images(tmp_path / "images", chain.images[:24])
    return tmp_path / "images"


@pytest.fixture
def gallery(chain: Trained, images: Path, tmp_path: Path, cl2r: Command) -> Path:
    code, out, err = cl2r("index", images, *at(chain, 1), "--gallery", tmp_path / "gallery")
    assert (code, err) == (0, "")
    assert out.startswith(f"24 images added by {chain.run}@1, 0 were there; ")
    return tmp_path / "gallery"


def at(chain: Trained, task: int) -> tuple[str, ...]:
    return "--model", f"{chain.run}@{task}", "--storage", str(chain.storage)


def test_an_old_gallery_is_searched_with_a_new_model(
    chain: Trained, gallery: Path, images: Path, cl2r: Command
) -> None:
    """The hits are those of all cosines; new images enter with the new model."""
    write_images(images, chain.images[24:28], start=24)
    code, out, _ = cl2r("index", images, *at(chain, 3), "--gallery", gallery)
    assert (code, out.split(";")[0]) == (0, f"4 images added by {chain.run}@3, 24 were there")
    query = images / "c00" / "i001.png"
    code, out, err = cl2r("search", gallery, "--query", query, *at(chain, 3), "--top", 28, "--json")
    assert (code, err) == (0, "")
    ((entry),) = json.loads(out)
    mixed = np.concatenate([chain.vectors(1)[:24], chain.vectors(3)[24:28]])
    scores = mixed @ chain.vectors(3)[1]
    assert [hit["id"] for hit in entry["hits"]] == [f"c{row // 4:02d}/i{row:03d}.png" for row in np.argsort(-scores)]
    assert [hit["rank"] for hit in entry["hits"]] == list(range(1, 29))
    np.testing.assert_allclose([hit["score"] for hit in entry["hits"]], np.sort(scores)[::-1], atol=1e-5)
    assert {hit["task"] for hit in entry["hits"]} == {1, 3}


def test_the_table_and_the_contact_sheet(
    chain: Trained, gallery: Path, images: Path, tmp_path: Path, cl2r: Command
) -> None:
    (images / "c01" / "i005.png").unlink()
    queries = ["--query", images / "c00" / "i001.png", "--query", images / "c02" / "i009.png"]
    code, out, err = cl2r("search", gallery, *queries, *at(chain, 2), "--top", 24, "--html", tmp_path / "sheet.html")
    assert code == 0
    assert out.count("vector by") == 2
    assert out.count(f"{chain.run}@1") == 48
    assert err == f"contact sheet: {tmp_path / 'sheet.html'}\n"
    page = (tmp_path / "sheet.html").read_text()
    assert page.count("data:image/png") == 2 + 46
    assert page.count("not there any more") == 2, "an image that is gone leaves an empty frame in both"
    assert "http" not in page.replace("http-equiv", "")


def test_names_of_images_are_text_on_the_sheet(chain: Trained, images: Path, tmp_path: Path, cl2r: Command) -> None:
    (images / "c00" / "<b onload=alert(1)>.png").write_bytes((images / "c00" / "i000.png").read_bytes())
    cl2r("index", images, *at(chain, 1), "--gallery", tmp_path / "g")
    query = images / "c00" / "i000.png"
    cl2r("search", tmp_path / "g", "--query", query, *at(chain, 1), "--top", 30, "--html", tmp_path / "sheet.html")
    assert "<b onload" not in (tmp_path / "sheet.html").read_text()
    assert "&lt;b onload=alert(1)&gt;" in (tmp_path / "sheet.html").read_text()


def test_bad_images_are_listed_and_skipped(chain: Trained, images: Path, tmp_path: Path, cl2r: Command) -> None:
    for number in range(12):
        (images / f"text{number:02d}.png").write_text("no image")
    code, out, err = cl2r("index", images, *at(chain, 1), "--gallery", tmp_path / "g")
    assert (code, out.split(" by")[0]) == (0, "24 images added")
    assert err.count("bad: text") == 10
    assert "12 images could not be read and are not in the gallery, these are the first 10" in err
    assert "bad      12 images could not be read" in cl2r("gallery", "info", tmp_path / "g")[1]


def test_metadata_comes_back_with_hits(chain: Trained, images: Path, tmp_path: Path, cl2r: Command) -> None:
    ids = [str(path.relative_to(images)) for path in sorted(images.rglob("*.png"))]
    pd.DataFrame({"id": ids, "price": range(24)}).to_csv(tmp_path / "known.csv", index=False)
    words = ["index", images, *at(chain, 1), "--gallery", tmp_path / "g", "--metadata", tmp_path / "known.csv"]
    assert cl2r(*words)[0] == 0
    _, out, _ = cl2r("search", tmp_path / "g", "--query", images / ids[7], *at(chain, 1), "--top", 1, "--json")
    assert json.loads(out)[0]["hits"][0]["metadata"] == {"price": "7"}


def test_info_verify_export_and_build(gallery: Path, chain: Trained, tmp_path: Path, cl2r: Command) -> None:
    _, out, _ = cl2r("gallery", "info", gallery)
    assert f"  {chain.run}@1: 24 vectors of 11 × float32, 0.0 MB" in out
    assert cl2r("gallery", "verify", gallery)[:2] == (0, "24 images in 1 shards, 0 wrong\n")
    code, out, _ = cl2r("gallery", "export", gallery, tmp_path / "all.parquet")
    assert (code, out) == (0, f"24 images: {tmp_path / 'all.parquet'}\n")
    exported = pd.read_parquet(tmp_path / "all.parquet")
    assert list(exported["model"]) == [f"{chain.run}@1"] * 24
    np.testing.assert_allclose(np.stack(exported["vector"].to_numpy()), chain.vectors(1)[:24], atol=1e-6)
    assert cl2r("gallery", "build", gallery)[1] == "nothing to build: so few vectors are searched exactly\n"
    code, out, _ = cl2r("gallery", "build", gallery, "--index", "hnsw", "--index-option", "links=8")
    assert code == 0
    assert f"hnsw of {chain.run}@1: 24 vectors" in out
    assert "index    hnsw of" in cl2r("gallery", "info", gallery)[1]


def test_verify_names_what_is_wrong(gallery: Path, cl2r: Command) -> None:
    (path,) = (gallery / "shards").glob("*/vectors.npy")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    code, out, _ = cl2r("gallery", "verify", gallery)
    assert code == 1
    assert f"wrong: {path} is damaged (the checksum differs)" in out
    assert "1 wrong" in out


def test_what_was_replaced_is_pruned(gallery: Path, chain: Trained, images: Path, cl2r: Command) -> None:
    code, out, _ = cl2r("index", images, *at(chain, 2), "--gallery", gallery, "--reindex")
    assert code == 0
    assert "0 images added" in out
    assert "24 replaced" in out
    assert "1 shards no longer count, --prune removes them" in cl2r("gallery", "verify", gallery)[1]
    assert "--prune" not in cl2r("gallery", "verify", gallery, "--prune")[1]
    assert len(list((gallery / "shards").iterdir())) == 1
    assert set(Gallery(gallery).items()["task"]) == {2}


def test_an_exported_model_searches_without_its_run(
    gallery: Path, chain: Trained, images: Path, tmp_path: Path, cl2r: Command
) -> None:
    words = ["search", gallery, "--query", images / "c00" / "i001.png", "--json"]
    _, here, _ = cl2r(*words, *at(chain, 3))
    code, out, _ = cl2r("export", f"{chain.run}@3", tmp_path / "model", "--storage", chain.storage)
    assert (code, out) == (0, f"{chain.run}@3: {tmp_path / 'model'}\n")
    assert cl2r(*words, "--model", tmp_path / "model", "--storage", tmp_path / "nowhere")[1] == here


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["search", "{gallery}", "--query", "{images}/no.png", "--model", "{run}@3"], "--query {images}/no.png: no"),
        (["search", "{gallery}", "--query", "{images}", "--model", "{run}@3"], "--query {images}: no such image"),
        (["search", "{images}", "--query", "{image}", "--model", "{run}@3"], "{images}: no gallery; `cl2r index"),
        (["search", "{gallery}", "--query", "{image}", "--model", "{run}@3", "--top", "0"], "--top 0: at least 1"),
        (["search", "{gallery}", "--query", "{image}", "--model", "nobody@3"], "--model nobody: no such run below"),
        (["index", "{images}", "--model", "{run}@1", "--gallery", "{images}"], "{images}: no gallery, and not empty"),
        (["index", "{image}", "--model", "{run}@1", "--gallery", "{gallery}"], "{image}: a file; give the folder"),
        (["index", "{images}", "--model", "{run}@1", "--gallery", "{gallery}", "--index", "tree"], "--index tree: one"),
        (
            ["index", "{images}", "--model", "{run}@1", "--gallery", "{gallery}", "--index-option", "depth=3"],
            "--index-option depth=3: NAME=NUMBER with one of nlist, nprobe",
        ),
        (
            ["index", "{images}", "--model", "{run}@1", "--gallery", "{gallery}", "--metadata", "{image}"],
            "--metadata {image}: does not parse",
        ),
        (["gallery", "adapt", "{gallery}", "--model", "{run}@3"], "{run}@3: cl2r leaves galleries as they are"),
        (["upgrade-check", "{gallery}", "--old", "{run}@3", "--new", "{run}@2"], "--new {run}@2: not a later model"),
        (["upgrade-check", "{gallery}", "--old", "{run}@2", "--new", "{run}@3"], "--old {run}@2: no vectors by it"),
        (["export", "{run}@3", "{images}"], "{images}: not empty"),
    ],
)
def test_bad_input_is_one_line(
    gallery: Path, chain: Trained, images: Path, cl2r: Command, words: list[str], complaint: str
) -> None:
    names = {"gallery": gallery, "images": images, "image": images / "c00" / "i001.png", "run": chain.run}
    before = Gallery(gallery).commit
    code, out, err = cl2r(
        *(word.format(**names) for word in words),
        *([] if words[0] == "gallery" and words[1] != "adapt" else ["--storage", chain.storage]),
    )
    assert (code, out) == (2, "")
    assert err.startswith(f"cl2r: {complaint.format(**names)}")
    assert err.count("\n") == 1
    assert Gallery(gallery).commit == before


def test_a_wrong_dimension_and_a_wrong_model(gallery: Path, tiny: Path, images: Path, cl2r: Command) -> None:
    other = trained(tiny, "er")
    code, _, err = cl2r("search", gallery, "--query", images / "c00" / "i001.png", *at(other, 3))
    assert code == 2
    assert f"to {other.run}@3 that is no model of its chain" in err


def test_a_query_that_is_too_large(gallery: Path, chain: Trained, tmp_path: Path, cl2r: Command) -> None:
    Image.new("1", (20000, 10000)).save(tmp_path / "large.png")
    code, _, err = cl2r("search", gallery, "--query", tmp_path / "large.png", *at(chain, 3))
    assert code == 2
    assert err == f"cl2r: {tmp_path / 'large.png'}: more than 89 million pixels; scale it down\n"


def test_open_images_of_a_data_set(tiny: Path, tmp_path: Path, cl2r: Command) -> None:
    code, out, _ = cl2r("datasets", "icons", "--open-images", tmp_path / "icons")
    assert (code, out) == (0, f"1,600 images: {tmp_path / 'icons'}\n")
    assert (tmp_path / "icons" / "airplane").is_dir()
    code, _, err = cl2r("datasets", "icons", "--open-images", tmp_path / "icons")
    assert (code, err) == (2, f"cl2r: {tmp_path / 'icons'}: not empty; give a folder of its own\n")
