"""The search service: images of the gallery as queries, an older model beside the new one, whether to upgrade."""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from cl2r.gallery.gallery import Gallery
from cl2r.gallery.model import Model, write_export
from cl2r.gallery.older import Older, oldest_of
from cl2r.gallery.search import Searcher
from cl2r.gallery.service import Service, ServiceOptions
from cl2r.gallery.upgrade import UpgradeCheck, draw_pairs
from cl2r.rayrun import serve
from tests.support.galleries import Trained, encoded, free_port, indexed
from tests.support.services import Pictures, ask, build, like, opened, put, saved_answer, search


def test_an_image_of_the_gallery_is_not_its_own_hit(service: Service, pictures: Pictures) -> None:
    name, pixels = pictures[5]
    uploaded = search(service, encoded(pixels), "top=100").json["hits"]
    answer = like(service, name, "top=100").json
    assert answer["query"] == {"id": name, "label": name.split("/")[0]}
    others = [hit for hit in uploaded if hit["id"] != name]
    assert len(others) == 19
    assert answer["hits"] == [hit | {"rank": rank} for rank, hit in enumerate(others, 1)]
    assert [hit["rank"] for hit in like(service, name, "top=3").json["hits"]] == [1, 2, 3]


def test_a_query_is_either_uploaded_or_an_image_of_the_gallery(service: Service, pictures: Pictures) -> None:
    name, pixels = pictures[5]
    assert search(service, encoded(pixels), f"id={quote(name)}").refuses(400, "POST", "GET")
    assert ask(service, "GET", "/search").refuses(400, "POST", "GET")
    for text in ("2", "yes", ""):
        assert like(service, name, f"old={text}").refuses(400, "old"), text


def test_the_old_model_searches_what_it_or_a_model_before_it_indexed(
    service: Service, shared: Path, pictures: Pictures, models: list[Model]
) -> None:
    query = pictures[21][1]
    plain = search(service, encoded(query), "top=20").json
    assert "hits" not in plain["old"], "only if it is asked for"
    answer = search(service, encoded(query), "top=20&old=1").json
    assert answer["hits"] == plain["hits"]
    vector = models[0].embed(query[None, ..., None])[0]
    cosines = {path: float(models[0].embed(pixels[None, ..., None])[0] @ vector) for path, pixels in pictures[:16]}
    old = answer["old"]
    assert (old["model"], old["task"], old["items"]) == (models[0].card.name, 1, 16)
    assert [hit["id"] for hit in old["hits"]] == sorted(cosines, key=lambda path: -cosines[path])
    assert [hit["score"] for hit in old["hits"]] == pytest.approx(sorted(cosines.values(), reverse=True), abs=1e-5)
    middle = opened(shared, models[2], Older(models[1].files))
    assert len(search(middle, encoded(query), "top=100&old=1").json["old"]["hits"]) == 20, "φ_2 searches vectors by φ_1"


def test_both_models_share_one_table_of_images(service: Service) -> None:
    assert service.gallery is not None
    both = service.gallery()
    assert both.old is not None
    assert len(both.old.items) == 16
    assert np.shares_memory(both.old.items["bytes"].to_numpy(), both.searcher.items["bytes"].to_numpy())
    assert both.old.parts[0] is both.searcher.parts[0]


def test_examples_are_spread_over_the_labels(
    service: Service, tmp_path: Path, models: list[Model], pictures: Pictures
) -> None:
    found = ask(service, "GET", "/examples").json["examples"]
    assert len({example["id"] for example in found}) == 8
    assert {example["label"] for example in found} == {f"class {number}" for number in range(5)}
    assert found == sorted(found, key=lambda example: (example["label"], example["id"]))
    for example in found:
        path, _, query = example["image"].partition("?")
        assert ask(service, "GET", f"/{path}", query=query).status == like(service, example["id"]).status == 200
    put(tmp_path / "images", [(f"{number:02d}/x.png", pictures[0][1]) for number in range(30)])
    indexed(tmp_path / "images", tmp_path / "gallery", models[0])
    many = ask(opened(tmp_path / "gallery", models[0]), "GET", "/examples").json["examples"]
    assert [example["label"] for example in many] == ["00", "04", "08", "12", "17", "21", "25", "29"]
    put(tmp_path / "few", [(f"{number}.png", pictures[0][1]) for number in range(3)])
    indexed(tmp_path / "few", tmp_path / "small", models[0])
    few = ask(opened(tmp_path / "small", models[0]), "GET", "/examples").json["examples"]
    assert [(example["id"], example["label"]) for example in few] == [("0.png", ""), ("1.png", ""), ("2.png", "")]


def test_the_upgrade_is_measured_as_upgrade_check_does(shared: Path, models: list[Model]) -> None:
    service = opened(shared, models[2], Older(models[0].files))
    assert ask(service, "GET", "/upgrade").json == {"status": "measuring", "commit": 2}
    service.measure()
    gallery, (old, _, new) = Gallery(shared), models
    check = UpgradeCheck(gallery, old, new)
    expected = check.answer(check.sample(draw_pairs(gallery, 2000)), 0.01).model_dump()
    expected |= {"status": "known", "saved": False, "commit": 2}
    found = ask(service, "GET", "/upgrade").json
    assert found.pop("images_per_second") > 0
    expected.pop("images_per_second")
    assert found == json.loads(json.dumps(expected, default=vars))


def test_an_upgrade_that_cannot_be_measured_says_why_without_paths(
    tmp_path: Path, models: list[Model], pictures: Pictures
) -> None:
    root = build(tmp_path, pictures, models)
    put(tmp_path / "flat", [(f"{number}.png", pixels) for number, (_, pixels) in enumerate(pictures[:4])])
    indexed(tmp_path / "flat", tmp_path / "unlabelled", models[0])
    unlabelled = opened(tmp_path / "unlabelled", models[2], Older(models[0].files))
    indirect = opened(tmp_path / "unlabelled", models[2], Older(models[1].files))
    broken = opened(root, models[2], Older(models[0].files))
    (tmp_path / "images" / pictures[0][0]).unlink()
    alone = opened(root, models[2], Older(why="it was switched off"))
    for service, words in (
        (unlabelled, "fewer than two labels"),
        (indirect, f"no vectors by it in unlabelled, which has {models[0].card.name}"),
        (broken, f"{pictures[0][0]} can no longer be read"),
        (alone, "it was switched off"),
    ):
        service.measure()
        answer = ask(service, "GET", "/upgrade")
        assert answer.json["status"] == "unknown"
        assert words in answer.json["why"]
        assert str(tmp_path) not in answer.body.decode()


def test_an_unexpected_error_while_measuring_is_logged_and_ends_the_wait(
    shared: Path, models: list[Model], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = opened(shared, models[2], Older(models[0].files))
    monkeypatch.setattr(UpgradeCheck, "sample", lambda *_: 1 / 0)
    service.measure()
    assert ask(service, "GET", "/upgrade").json["why"] == "it could not be measured; the log of the service says more"
    assert "ZeroDivisionError" in caplog.text


def test_a_saved_check_is_shown_and_not_measured_again(
    shared: Path, models: list[Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UpgradeCheck, "sample", lambda *_: pytest.fail("measured"))
    saved = saved_answer(models[0].card.name, models[2].card.name)
    service = opened(shared, models[2], Older(models[0].files, check=saved))
    service.measure()
    found = ask(service, "GET", "/upgrade").json
    assert (found["status"], found["verdict"], found["sentence"]) == ("known", "safe", "All is well.")
    assert found["change"] == {"value": 0.1, "low": 0.05, "high": 0.15}
    assert found["saved"] is True


def test_the_upgrade_is_measured_again_in_the_background_when_the_gallery_has_changed(
    tmp_path: Path, models: list[Model], pictures: Pictures
) -> None:
    root = build(tmp_path, pictures, models)
    service = opened(root, models[2], Older(models[0].files))
    service.measure()
    first = ask(service, "GET", "/upgrade").json
    assert (first["status"], first["commit"]) == ("known", 2)
    put(tmp_path / "images", pictures[20:30])
    indexed(tmp_path / "images", root, models[2])
    assert ask(service, "GET", "/upgrade").json == {"status": "measuring", "commit": 3}
    end = time.monotonic() + 60
    while (second := ask(service, "GET", "/upgrade").json)["status"] == "measuring" and time.monotonic() < end:
        time.sleep(0.05)
    assert (second["status"], second["commit"]) == ("known", 3)
    assert second["pairs"] > first["pairs"], "there are more images to draw pairs from"


@pytest.mark.parametrize(("beside", "saved"), [(True, False), (True, True), (False, True)])
def test_no_verdict_remains_when_the_new_model_has_indexed_all_images(
    tmp_path: Path, models: list[Model], pictures: Pictures, beside: bool, saved: bool
) -> None:
    root, old = build(tmp_path, pictures, models), models[0]
    check = saved_answer(old.card.name, models[2].card.name) if saved else None
    service = opened(root, models[2], Older(old.files if beside else None, check=check))
    service.measure()
    assert ask(service, "GET", "/upgrade").json["status"] == "known"
    indexed(tmp_path / "images", root, models[2], reindex=True)
    found = ask(service, "GET", "/upgrade").json
    assert (found["status"], found["commit"]) == ("unknown", 3)
    assert "verdict" not in found
    assert old.card.name in found["why"]


def test_the_old_column_ends_when_its_images_were_indexed_again(
    tmp_path: Path, models: list[Model], pictures: Pictures
) -> None:
    root = build(tmp_path, pictures, models)
    service = opened(root, models[2], Older(models[0].files))
    assert ask(service, "GET", "/health").json["old"]["items"] == 16
    indexed(tmp_path / "images", root, models[2], reindex=True)
    answer = search(service, encoded(pictures[0][1]), "old=1").json
    assert (answer["commit"], len(answer["hits"])) == (3, 12)
    assert list(answer["old"]) == ["why"]
    assert models[0].card.name in answer["old"]["why"]
    assert str(root) not in answer["old"]["why"]


def test_the_oldest_model_of_the_gallery_is_found_in_its_run(
    shared: Path, chain: Trained, models: list[Model], tmp_path: Path
) -> None:
    searcher = Searcher(Gallery(shared), models[2])
    write_export(models[2].files, tmp_path / "model")
    for model, storage in (
        (f"{chain.run}@3", chain.storage),
        (chain.run, chain.storage),
        (f"{chain.folder}@3", tmp_path),
        (str(tmp_path / "model"), chain.storage),
    ):
        found = oldest_of(searcher, model, storage)
        assert found.files is not None
        assert found.files.card.name == f"{chain.run}@1"
    missing = oldest_of(searcher, str(tmp_path / "model"), tmp_path)
    assert missing.files is None
    assert f"{chain.run}@1" in missing.why
    assert str(tmp_path) not in missing.why
    assert str(tmp_path) in missing.reason


@pytest.mark.parametrize(("old", "task"), [("{run}@2", 2), (None, 1), ("none", None)])
def test_the_command_names_the_model_beside_or_leaves_it_out(
    shared: Path,
    chain: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    old: str | None,
    task: int | None,
) -> None:
    deployed: list[Older] = []

    @contextlib.contextmanager
    def deploy(options: ServiceOptions, port: int, files: Any, older: Older, *rest: Any) -> Iterator[None]:
        deployed.append(older)
        yield

    monkeypatch.setattr(serve, "set_environment", lambda *_: None)
    monkeypatch.setattr(serve, "cluster", lambda *_: contextlib.nullcontext(1))
    monkeypatch.setattr(serve, "_deployed", deploy)
    monkeypatch.setattr(serve.threading, "Event", Interrupted)
    saved = saved_answer(f"{chain.run}@{task or 1}", f"{chain.run}@3")
    (tmp_path / "check.json").write_text(saved.model_dump_json())
    asked = old.format(run=chain.run) if old else None
    options = ServiceOptions(str(shared), "127.0.0.1")
    words = (options, f"{chain.run}@3", chain.storage, free_port(), 1, False, asked, tmp_path / "check.json")
    assert serve.serve(*words) == 0
    (older,) = deployed
    assert (older.files.card.task if older.files else None) == task
    assert older.check == saved
    line = (
        f"{chain.run}@{task} beside it" if task else "no older model beside it: the service was started with --old none"
    )
    assert line in capsys.readouterr().err.splitlines()


class Interrupted:
    """Stands for an event that Ctrl-C ends at once."""

    def wait(self) -> None:
        raise KeyboardInterrupt


def test_a_gallery_of_the_model_itself_has_no_older_model(
    tmp_path: Path, chain: Trained, models: list[Model], pictures: Pictures
) -> None:
    put(tmp_path / "images", pictures[:3])
    gallery = indexed(tmp_path / "images", tmp_path / "gallery", models[2])
    found = oldest_of(Searcher(gallery, models[2]), f"{chain.run}@3", chain.storage)
    assert found.files is None
    assert found.why.endswith("so there is no older model to compare with")
