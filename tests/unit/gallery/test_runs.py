"""Runs by short names: the newest is taken and said, on disk, in object storage and in studies."""

import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cl2r.config.schema import fields
from cl2r.data import _load
from cl2r.engine.links import MODEL, Link, LinkStore
from cl2r.gallery.model import find_model, find_models, write_export
from cl2r.gallery.runs import StoredRun, find_runs
from cl2r.storage.path import StoragePath
from cl2r.storage.seal import run_owner, sealed, write_beside
from cl2r.study.folder import StudyFolder
from cl2r.study.ledger import owner
from tests.support.command_line import Command, quick_options
from tests.support.galleries import Trained, refused, trained, write_images
from tests.support.object_server import upload

HOUR = 3600


def add_run(storage: StoragePath, name: str, hour: int | None, tasks: int = 5) -> None:
    """Write the files of a run that finished at some hour; None: they do not say when."""
    entry: dict[str, object] = {"links": [{"task": task, "key": f"{name}{task}"} for task in range(1, tasks + 1)]}
    if hour is not None:
        entry["finished"] = datetime.fromtimestamp(hour * HOUR, UTC).isoformat()
    for file, content in (("config.yaml", b"{}"), ("result.json", json.dumps(entry).encode())):
        write_beside(storage / "runs" / name / file, content, run_owner(name, file))


def add_study_run(storage: StoragePath, study: str, name: str, hour: int) -> None:
    path = StudyFolder(storage, study).ledger.folder / f"{hour * HOUR * 10**9:020d}.finished.{name}.01234567.json"
    content = json.dumps({"config": {}, "frames": {"tasks": [{"key": f"{name}1"}]}}).encode()
    path.write_file(sealed(content, owner("", path.name)))


def found(storage: StoragePath, **names: str) -> list[str]:
    return [run.name for run in find_runs({f"--{option}": name for option, name in names.items()}, storage).values()]


def test_the_run_that_finished_last_is_taken_and_said(anywhere: StoragePath, caplog: pytest.LogCaptureFixture) -> None:
    add_run(anywhere, "icons-er-T5-s0-aa", 3)
    add_run(anywhere, "icons-er-T5-s1-bb", 2)
    add_study_run(anywhere, "grid", "icons-er-T5-s2-cc", 1)
    caplog.set_level("INFO", "cl2r")
    assert found(anywhere, model="icons-er") == ["icons-er-T5-s0-aa"]
    assert caplog.messages == ["model: icons-er-T5-s0-aa (newest of 3 runs that match icons-er)"]
    add_study_run(anywhere, "another", "icons-er-T5-s2-cc", 4)  # the same run in a later study
    assert found(anywhere, model="icons-er-T5") == ["icons-er-T5-s2-cc"]
    caplog.clear()
    assert found(anywhere, model="icons-er-T5-s1-bb") == ["icons-er-T5-s1-bb"]
    assert found(anywhere, model="icons-er-T5-s1") == ["icons-er-T5-s1-bb"]
    assert caplog.messages == [], "nothing was chosen"


def test_a_repeated_run_is_as_new_as_its_last_time(anywhere: StoragePath) -> None:
    add_run(anywhere, "icons-er-T5-s0-aa", 1)
    add_study_run(anywhere, "grid", "icons-er-T5-s0-aa", 5)
    add_run(anywhere, "icons-er-T5-s1-bb", 4)
    assert found(anywhere, model="icons-er") == ["icons-er-T5-s0-aa"]


def test_without_a_stated_time_the_time_of_the_file_counts(tmp_path: StoragePath) -> None:
    for number, name in enumerate(["icons-er-T5-s0-aa", "icons-er-T5-s1-bb", "icons-er-T5-s2-cc"]):
        add_run(tmp_path, name, None)
        seconds = (5, 9, 7)[number] * HOUR
        os.utime(Path(str(tmp_path)) / "runs" / name / "result.json", (seconds, seconds))
    add_run(tmp_path, "icons-er-T5-s3-dd", 8)
    assert found(tmp_path, model="icons-er") == ["icons-er-T5-s1-bb"]
    os.utime(Path(str(tmp_path)) / "runs" / "icons-er-T5-s1-bb" / "result.json", (HOUR, HOUR))
    assert found(tmp_path, model="icons-er") == ["icons-er-T5-s3-dd"]


def test_an_object_has_a_time_too(remote: StoragePath) -> None:
    add_run(remote, "icons-er-T5-s0-aa", 10)  # of 1970
    add_run(remote, "icons-er-T5-s1-bb", None)
    assert found(remote, model="icons-er") == ["icons-er-T5-s1-bb"]


def test_a_short_name_does_not_end_inside_a_word_if_there_is_a_choice(tmp_path: StoragePath) -> None:
    add_run(tmp_path, "icons-er-T5-s0-aa", 1)
    add_run(tmp_path, "icons-er_ace-T5-s0-bb", 2)
    add_run(tmp_path, "icons-er+slerp-T5-s0-cc", 3)
    assert found(tmp_path, model="icons-er") == ["icons-er-T5-s0-aa"]
    assert found(tmp_path, model="icons-er-") == ["icons-er-T5-s0-aa"]
    assert found(tmp_path, model="icons-er_") == ["icons-er_ace-T5-s0-bb"]
    assert found(tmp_path, model="icons-e") == ["icons-er+slerp-T5-s0-cc"]


def test_old_and_new_are_of_one_run(tmp_path: StoragePath, caplog: pytest.LogCaptureFixture) -> None:
    for name, hour in (("icons-er-T5-s0-aa", 1), ("icons-er-T5-s1-bb", 2), ("icons-er-T2-s0-cc", 3)):
        add_run(tmp_path, name, hour)
    caplog.set_level("INFO", "cl2r")
    assert found(tmp_path, old="icons-er", new="icons-er") == ["icons-er-T2-s0-cc"] * 2
    assert caplog.messages == ["model: icons-er-T2-s0-cc (newest of 3 runs that match icons-er)"], "said once"
    assert found(tmp_path, old="icons-er", new="icons-er-T5") == ["icons-er-T5-s1-bb"] * 2
    assert found(tmp_path, old="icons-er-T5-s0-aa", new="icons-er") == ["icons-er-T5-s0-aa"] * 2
    both = "of 3 runs that match icons-er, the newest that both models can be of"
    assert caplog.messages[-1] == f"model: icons-er-T5-s0-aa ({both})"
    assert found(tmp_path, old="icons-er-T2", new="icons-er-T5") == ["icons-er-T2-s0-cc", "icons-er-T5-s1-bb"]


@pytest.mark.parametrize("content", [b"{", b"[1]", b'{"links": [1]}', b'{"finished": "never"}', b'{"finished": 3}'])
def test_a_damaged_result_is_named(tmp_path: StoragePath, content: bytes) -> None:
    add_run(tmp_path, "icons-er-T5-s0-aa", 1)
    folder = tmp_path / "runs" / "icons-er-T5-s0-aa"
    write_beside(folder / "result.json", content, run_owner(folder.name, "result.json"))
    run = StoredRun(folder.name, tmp_path, folder)
    with refused(folder / "result.json", "damaged", "again"):
        print(run.keys, run.finished_ns)


def test_a_storage_without_runs_says_how_to_make_one(tmp_path: StoragePath) -> None:
    with refused("--model icons-er", tmp_path, "`cl2r run`"):
        find_model("icons-er@1", tmp_path)


def test_a_short_name_with_a_task_that_the_newest_run_lacks(tmp_path: StoragePath) -> None:
    add_run(tmp_path, "icons-er-T5-s0-aa", 1)
    add_run(tmp_path, "icons-er-T2-s0-cc", 2, tasks=2)
    with refused("--model icons-er@5", "icons-er-T2-s0-cc has 2 tasks", "from 1 to 2"):
        find_model("icons-er@5", tmp_path)


def test_an_exported_model_says_which_run_is_meant(chain: Trained, tmp_path: StoragePath) -> None:
    shutil.copytree(chain.storage, tmp_path / "results")
    shutil.copytree(chain.folder, tmp_path / "results" / "runs" / f"{chain.run}-newer")
    newer = tmp_path / "results" / "runs" / f"{chain.run}-newer"
    later = json.loads((newer / "result.json").read_text()) | {"finished": datetime.now(UTC).isoformat()}
    for name, content in (
        ("result.json", json.dumps(later).encode()),
        ("config.yaml", (newer / "config.yaml").read_bytes()),
    ):
        write_beside(newer / name, content, run_owner(newer.name, name))
    write_export(chain.files(1), tmp_path / "model")
    named = {"--old": str(tmp_path / "model"), "--new": "tiny-cl2r@3"}
    assert [files.card.run for files in find_models(named, tmp_path / "results")] == [chain.run] * 2
    assert find_model("tiny-cl2r@3", tmp_path / "results").card.run == f"{chain.run}-newer"
    assert find_model(f"{chain.run}@3", tmp_path / "results").card.run == chain.run, "a whole name comes first"


def moved(data: Path, tmp_path: Path, name: str = "cl2r") -> tuple[Trained, Path]:
    """Train on a copy of the data, and return the run and the copy in another place."""
    shutil.copy(data, tmp_path / "mine.npz")
    chain = trained(tmp_path / "mine.npz", name)
    os.rename(tmp_path / "mine.npz", tmp_path / "moved.npz")
    _load.cache_clear()  # a new process would not have it
    return chain, tmp_path / "moved.npz"


@pytest.mark.parametrize("name", ["cl2r", "er+slerp", "er+procrustes", "fan", "der_trunc"])
def test_a_link_is_enough(tiny: Path, tmp_path: Path, name: str) -> None:
    """Models of runs and of studies are found when the training data have gone."""
    chain, _ = moved(tiny, tmp_path, name)
    (tmp_path / "study" / "links").parent.mkdir()
    (tmp_path / "study" / "links").symlink_to(chain.storage / "links")
    rows = [{"task": task, "key": key} for task, key in enumerate(chain.plan.keys, 1)]
    entry = {"config": fields(chain.plan.config), "frames": {"tasks": rows}}
    StudyFolder(tmp_path / "study", "grid").ledger.write("finished", chain.run, entry)
    for storage in (chain.storage, tmp_path / "study"):
        for task in (1, 3):
            files, expected = find_model(f"{chain.run}@{task}", storage), chain.files(task)
            assert files.card == expected.card
            assert files.states.keys() == expected.states.keys()
            assert files.supports.keys() == expected.supports.keys()


def test_facts_that_make_no_sense_are_refused(chain: Trained, tmp_path: StoragePath) -> None:
    shutil.copytree(chain.storage, tmp_path / "results")
    store, key = LinkStore(tmp_path / "results"), chain.plan.keys[1]
    link = Link(store.state(key), store.features(key), store.record(key))
    facts = link.record[MODEL]
    for broken in ([], {}, facts | {"keys": ["../../etc"] * 2}, facts | {"mean": []}, facts | {"image_size": 16}):
        link.record[MODEL] = broken
        (store.root / key).remove_tree()
        store.save(key, link)
        with refused(f"--model {chain.run}@2", "makes no sense", "again"):
            find_model(f"{chain.run}@2", tmp_path / "results")
    link.record[MODEL] = facts | {"image_size": [16, 12]}
    (store.root / key).remove_tree()
    store.save(key, link)
    with refused("16 × 12", "square"):
        find_model(f"{chain.run}@2", tmp_path / "results")


def test_what_links_keep_is_in_no_frame(chain: Trained) -> None:
    assert LinkStore(chain.storage).record(chain.plan.keys[0])[MODEL] == chain.plan.model_facts(chain.plan.keys[:1])
    assert MODEL not in pd.read_parquet(chain.folder / "tasks.parquet").columns


def test_a_folder_of_images_may_go_after_training(
    tiny: Path, tmp_path: Path, cl2r: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Train on a folder given by a relative path, move it away, then index, search and export elsewhere."""
    with np.load(tiny) as held:
        for part in ("train", "open"):
            write_images(tmp_path / "photos" / part, held[f"x_{part}"], per_class=14)
    for folder in sorted((tmp_path / "photos" / "open").iterdir()):
        folder.rename(folder.with_name(f"open-{folder.name}"))
    monkeypatch.chdir(tmp_path)
    options = quick_options(Path("photos"), optim__epochs=1, optim__milestones=[], data__size=16, data__channels=1)
    code, _, err = cl2r("run", *options, "--storage", tmp_path / "results")
    assert code == 0, err
    os.rename(tmp_path / "photos", tmp_path / "away")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    _load.cache_clear()
    images, storage = tmp_path / "away" / "open", ["--storage", tmp_path / "results"]
    for words in (
        ["index", images, "--model", "photos-cl2r@1", "--gallery", "gallery"],
        ["search", "gallery", "--query", images / "open-c00" / "i000.png", "--model", "photos-cl2r@3"],
        ["upgrade-check", "gallery", "--old", "photos-cl2r@1", "--new", "photos-cl2r@3", "--tolerance", 1],
        ["export", "photos-cl2r@3", "model"],
    ):
        code, out, err = cl2r(*words, *storage)
        assert (code, err) == (0, ""), err
        assert "photos-cl2r-T3-s0-" in out or words[0] == "search"


def test_a_model_in_an_object_store_needs_no_data(tiny: Path, tmp_path: Path, remote: StoragePath) -> None:
    chain, _ = moved(tiny, tmp_path)
    upload(chain.storage, remote)
    assert find_model("mine-cl2r@2", remote).card == chain.files(2).card
