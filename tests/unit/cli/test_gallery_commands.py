"""`cl2r index`, `search`, `gallery`, `upgrade-check` and `export` as users type them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.shell_completion import ShellComplete
from PIL import Image

from cl2r.cli.main import cli
from cl2r.gallery.gallery import Gallery
from cl2r.study.folder import StudyFolder
from tests.support.command_line import Command
from tests.support.galleries import Trained, trained, write_images


@pytest.fixture(scope="module")
def chain(tiny: Path) -> Trained:
    return trained(tiny)


@pytest.fixture(scope="module")
def other(tiny: Path) -> Trained:
    """The chain of another run, trained before any test reads what is printed."""
    return trained(tiny, "er")


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
    """Hits are ranked by all cosines; new images are added by the new model."""
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
    (images / "c01" / "<b onload=alert(1)>.png").write_bytes((images / "c01" / "i005.png").read_bytes())
    cl2r("index", images, *at(chain, 1), "--gallery", gallery)
    (images / "c01" / "i005.png").unlink()
    queries = ["--query", images / "c00" / "i001.png", "--query", images / "c02" / "i009.png"]
    code, out, err = cl2r("search", gallery, *queries, *at(chain, 2), "--top", 25, "--html", tmp_path / "sheet.html")
    assert code == 0
    assert out.count("vector by") == 2
    assert out.count(f"{chain.run}@1") == 50
    assert err == f"contact sheet: {tmp_path / 'sheet.html'}\n"
    page = (tmp_path / "sheet.html").read_text()
    assert page.count("data:image/png") == 2 + 48
    assert page.count("no longer there") == 2, "an image that is gone leaves an empty frame in both sections"
    assert "http" not in page.replace("http-equiv", "")
    assert "<b onload" not in page
    assert "&lt;b onload=alert(1)&gt;" in page


def test_metadata_is_joined_and_bad_images_are_listed(
    chain: Trained, images: Path, tmp_path: Path, cl2r: Command
) -> None:
    ids = [str(path.relative_to(images)) for path in sorted(images.rglob("*.png"))]
    pd.DataFrame({"id": ids, "price": range(24)}).to_csv(tmp_path / "known.csv", index=False)
    for number in range(12):
        (images / f"text{number:02d}.png").write_text("no image")
    words = ["index", images, *at(chain, 1), "--gallery", tmp_path / "g", "--metadata", tmp_path / "known.csv"]
    code, out, err = cl2r(*words)
    assert (code, out.split(" by")[0]) == (0, "24 images added")
    assert err.count("bad: text") == 10
    assert "12 images could not be read" in err
    assert "bad      12 images could not be read" in cl2r("gallery", "info", tmp_path / "g")[1]
    _, out, _ = cl2r("search", tmp_path / "g", "--query", images / ids[7], *at(chain, 1), "--top", 1, "--json")
    assert json.loads(out)[0]["hits"][0]["metadata"] == {"price": "7"}


def test_info_verify_export_and_build(gallery: Path, chain: Trained, tmp_path: Path, cl2r: Command) -> None:
    _, out, _ = cl2r("gallery", "info", gallery)
    assert f"  {chain.run}@1: 24 vectors of 11 × float32, 0.0 MB" in out
    assert cl2r("gallery", "verify", gallery)[:2] == (0, "24 images in 1 shards, 0 problems\n")
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
    (path,) = (gallery / "shards").glob("*/vectors.npy")
    path.write_bytes(path.read_bytes()[:-1])
    code, out, _ = cl2r("gallery", "verify", gallery)
    assert code == 1
    assert f"problem: {path}" in out
    assert "1 problems" in out


def test_without_a_verb_the_help_is_printed(cl2r: Command) -> None:
    code, out, err = cl2r("gallery")
    assert (code, out, err) == cl2r("gallery", "--help")
    assert code == 0
    assert {"adapt", "build", "export", "info", "verify"} <= {line.split()[0] for line in out.splitlines() if line}


def test_replaced_shards_are_pruned(gallery: Path, chain: Trained, images: Path, cl2r: Command) -> None:
    code, out, _ = cl2r("index", images, *at(chain, 2), "--gallery", gallery, "--reindex")
    assert code == 0
    assert "0 images added" in out
    assert "24 replaced" in out
    assert "1 shards no longer count" in cl2r("gallery", "verify", gallery)[1]
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


INDEX = "index {images} --model {run}@1 --gallery {gallery}"


@pytest.mark.parametrize(
    ("command", "part"),
    [
        (
            "search {gallery} --query {images}/no.png --model {run}@3",
            "--query {images}/no.png: no such image; give an image file",
        ),
        ("search {gallery} --query {images} --model {run}@3", "--query {images}"),
        ("search {images} --query {image} --model {run}@3", "{images}: no gallery"),
        ("search {gallery} --query {image} --model {run}@3 --top 0", "--top 0"),
        ("search {gallery} --query {image} --model nobody@3", "--model nobody"),
        ("search {gallery} --query {large} --model {run}@3", "{large}: more than 89 million pixels"),
        (
            "search {gallery} --query {image} --model {other}@3",
            "not in the chain of {other}@3; give a model of its run, {run}@t",
        ),
        ("index {images} --model {run}@1 --gallery {images}", "{images}: no gallery, and not empty"),
        ("index {image} --model {run}@1 --gallery {gallery}", "{image}: a file"),
        (f"{INDEX} --index tree", "--index tree"),
        (f"{INDEX} --index-option depth=3", "--index-option depth=3"),
        (f"{INDEX} --metadata {{image}}", "--metadata {image}"),
        (
            f"{INDEX} --metadata {{images}}/none.csv",
            "--metadata {images}/none.csv: no such file; give a CSV or Parquet file",
        ),
        ("gallery adapt {gallery} --model {run}@3", "{run}@3"),
        ("upgrade-check {gallery} --old {run}@3 --new {run}@2", "--new {run}@2: not a later model"),
        ("upgrade-check {gallery} --old {run}@2 --new {run}@3", "which has {run}@1; give a model that indexed it"),
        (
            "upgrade-check {gallery} --old {run}@1 --new {run}@3 --price -1",
            "--price -1.0: give a number that is not below 0",
        ),
        ("upgrade-check {gallery} --old {run}@1 --new {run}@3 --tolerance nan", "--tolerance nan: give a number"),
        ("upgrade-check {gallery} --old nobody@1 --new {run}@3", "--old nobody: no run below"),
        ("upgrade-check {gallery} --old {run}@1 --new {run}@4", "--new {run}@4: {run} has 3 tasks; give a task from 1"),
        ("export {run}@3 {images}", "{images}: not empty"),
        ("export {run}@4 {gallery}", "model {run}@4: {run} has 3 tasks"),
    ],
)
def test_bad_input_is_refused_with_one_line(
    gallery: Path, chain: Trained, other: Trained, images: Path, tmp_path: Path, cl2r: Command, command: str, part: str
) -> None:
    image, large = images / "c00" / "i001.png", tmp_path / "large.png"
    if "{large}" in command:
        Image.new("1", (20000, 10000)).save(large)
    storage = other.storage if "{other}" in command else chain.storage
    names = {"gallery": gallery, "images": images, "image": image, "run": chain.run, "large": large, "other": other.run}
    before = Gallery(gallery).commit
    code, out, err = cl2r(*command.format(**names).split(), "--storage", storage)
    assert (code, out) == (2, "")
    assert part.format(**names) in err
    assert err.count("\n") == 1
    assert Gallery(gallery).commit == before


def test_models_of_a_study_complete_in_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    StudyFolder(tmp_path, "grid").ledger.write("finished", "other-er-T2-s0-01234567", {})
    for storage, expected in (
        (tmp_path, ["other-er-T2-s0-01234567@1", "other-er-T2-s0-01234567@2"]),
        (tmp_path / "none", []),
    ):
        monkeypatch.setenv("CL2R_STORAGE", str(storage))
        for words in (["search", "--model"], ["index", "--model"], ["export"], ["upgrade-check", "--new"]):
            complete = ShellComplete(cli, {}, "cl2r", "_CL2R_COMPLETE")
            assert [item.value for item in complete.get_completions(words, "")][:2] == expected


def test_open_images_of_a_data_set(tiny: Path, tmp_path: Path, cl2r: Command) -> None:
    code, out, _ = cl2r("datasets", "open-images", "icons", tmp_path / "icons")
    assert (code, out) == (0, f"1,600 images: {tmp_path / 'icons'}\n")
    assert (tmp_path / "icons" / "airplane").is_dir()
    code, _, err = cl2r("datasets", "open-images", "icons", tmp_path / "icons")
    assert (code, err) == (2, f"cl2r: {tmp_path / 'icons'}: not empty; give a folder of its own\n")


@pytest.mark.parametrize(
    "place",
    ["gallery.json", "commits/00000001.json", "commits", "shards", "shards/*/vectors.npy", "shards/*/items.parquet"],
)
@pytest.mark.parametrize("damage", ["cut", "kind"])
def test_a_damaged_gallery_ends_every_command_in_one_line(
    gallery: Path, chain: Trained, images: Path, tmp_path: Path, cl2r: Command, place: str, damage: str
) -> None:
    (path,) = gallery.glob(place)
    if path.is_dir():
        shutil.rmtree(path)
        if damage == "kind":
            path.write_text("a file")
    else:
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content[:-9]) if damage == "cut" else (path / "x").mkdir(parents=True)
    write_images(images, chain.images[24:26], start=24)
    run, storage = chain.run, ("--storage", str(chain.storage))
    commands = [
        ("search", gallery, "--query", images / "c00" / "i001.png", *at(chain, 3)),
        ("gallery", "verify", gallery),
        ("gallery", "export", gallery, tmp_path / "all.parquet"),
        ("gallery", "build", gallery, "--index", "hnsw"),
        ("index", images, *at(chain, 1), "--gallery", gallery),
        ("upgrade-check", gallery, "--old", f"{run}@1", "--new", f"{run}@3", *storage),
    ]
    for words in commands:
        if (words[0] in ("index", "upgrade-check") and "vectors" in place) or (
            words[1] == "build" and "items" in place
        ):
            continue  # they do not read it
        code, out, err = cl2r(*words)
        said = out if words[1] == "verify" and code == 1 else err
        assert code == (1 if said is out else 2), words
        assert str(gallery) in said.splitlines()[0]
        assert len(err.splitlines()) <= 1, "no traceback"
        assert out == "" or said is out
    assert not (tmp_path / "all.parquet").exists()


def test_a_damaged_index_is_named_and_the_search_is_right(
    gallery: Path, chain: Trained, images: Path, cl2r: Command
) -> None:
    assert cl2r("gallery", "build", gallery, "--index", "hnsw")[0] == 0
    words = ["search", gallery, "--query", images / "c00" / "i001.png", *at(chain, 3), "--top", 5]
    _, right, _ = cl2r(*words, "--exact")
    (path,) = (gallery / "index").glob("*.faiss")
    content = path.read_bytes()
    path.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    assert cl2r("gallery", "verify", gallery)[0] == 1
    code, out, err = cl2r(*words)
    assert (code, out) == (0, right)
    assert str(path) in err
    assert "cl2r gallery build" in err
    assert cl2r(*words)[1:] == (right, "")
    assert cl2r("gallery", "build", gallery, "--index", "hnsw")[0] == 0
    assert cl2r("gallery", "verify", gallery)[:2] == (0, "24 images in 1 shards, 0 problems\n")
