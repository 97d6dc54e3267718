"""A model by its name: found in a run, a study or an export, on a disk and in an object store; else one clear line."""

import contextlib
import hashlib
import json
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_gallery import TASKS, Trained, below, changed, damages, one_line, trained

from cl2r.config import fields
from cl2r.engine.store import LinkStore
from cl2r.errors import InputError
from cl2r.files import Place, place
from cl2r.objects import ObjectPath
from cl2r.search.model import Model
from cl2r.search.snapshot import CARD, SUPPORTS, Snapshot, find_snapshot, read_export, write_export
from cl2r.study.folder import StudyFolder

ADAPTED = ("er+slerp", "fan", "der_trunc", "er+procrustes")


@pytest.fixture(scope="module")
def chain(tiny: Path) -> Trained:
    return trained(tiny)


@pytest.fixture
def own(chain: Trained, tmp_path: Path) -> Trained:
    """A copy of the chain that may be damaged."""
    shutil.copytree(chain.storage, tmp_path / "results")
    return Trained(tmp_path / "results", chain.run, chain.plan)


@pytest.fixture(params=["disk", "objects"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return tmp_path / "exported" if request.param == "disk" else request.getfixturevalue("remote") / "exported"


def same(snapshot: Snapshot, other: Snapshot) -> bool:
    """Bit for bit."""
    assert snapshot.card == other.card
    for mine, theirs in ((snapshot.states, other.states), (snapshot.supports, other.supports)):
        assert mine.keys() == theirs.keys()
        for task in mine:
            assert mine[task].keys() == theirs[task].keys()
            assert all(torch.equal(mine[task][name], theirs[task][name]) for name in mine[task])
    return True


def refused(text: str, storage: Place, *parts: str) -> None:
    with pytest.raises(InputError) as error:
        find_snapshot(text, storage)
    assert one_line(error.value, *parts), error.value


# ---------------------------------------------------------------- found


def test_by_name_it_is_what_the_link_carries(chain: Trained) -> None:
    found = find_snapshot(f"{chain.run}@2", chain.storage)
    assert (found.card.run, found.card.task, found.card.name) == (chain.run, 2, f"{chain.run}@2")
    assert found.card.keys == tuple(chain.plan.keys[:2])
    assert found.card.key == chain.plan.keys[1]
    assert found.card.method == "cl2r"
    assert found.card.classes == (4, 4)
    assert (found.card.size, found.card.channels, found.card.num_outputs) == (16, 1, 12)
    state = LinkStore(chain.storage, print).state(chain.plan.keys[1])
    assert list(found.states) == [2]
    assert all(torch.equal(tensor, found.states[2][name]) for name, tensor in state.items())


@pytest.mark.parametrize("mark", ["", "@1", "@3"])
def test_by_the_beginning_of_its_name_and_by_its_folder(
    chain: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    right = find_snapshot(f"{chain.run}{mark}", chain.storage)
    assert right.card.task == int(mark[1:] or TASKS)
    assert same(find_snapshot(f"tiny-cl2r{mark}", chain.storage), right)
    assert same(find_snapshot(f"{chain.folder}{mark}", tmp_path), right)
    assert same(find_snapshot(f"{chain.folder}/{mark}", tmp_path), right)
    monkeypatch.chdir(chain.folder.parent)
    assert same(find_snapshot(f"{chain.run}{mark}", tmp_path), right)
    monkeypatch.chdir(chain.folder)
    assert same(find_snapshot(f".{mark}", tmp_path), right)
    monkeypatch.chdir(chain.storage)
    assert same(find_snapshot(f"runs/{chain.run}{mark}", tmp_path), right)


def test_a_whole_name_wins_over_the_beginning_of_another(own: Trained) -> None:
    shutil.copytree(own.folder, own.folder.with_name(f"{own.run}-b"))
    assert find_snapshot(f"{own.run}@1", own.storage).card.run == own.run
    refused("tiny-cl2r@1", own.storage, "--model tiny-cl2r", "2 runs", own.run, f"{own.run}-b")


@pytest.mark.parametrize("name", ["cl2r", *ADAPTED])
def test_a_run_of_a_study_is_found_in_its_ledger(tiny: Path, tmp_path: Path, name: str) -> None:
    chain = trained(tiny, name)
    (tmp_path / "links").symlink_to(chain.storage / "links")
    ledger = StudyFolder(tmp_path, "grid").ledger
    content = {"trial": 1, "variant": "", "config": fields(chain.plan.config)}
    ledger.write("failed", f"{chain.run}-other", content | {"reason": "no"})
    ledger.write("finished", chain.run, content | {"frames": {}})
    assert same(find_snapshot(f"{chain.run}@2", tmp_path), chain.snapshot(2))
    assert same(find_snapshot(chain.run[:-3], tmp_path), chain.snapshot(3))
    refused(f"{chain.run}-other", tmp_path, "no such run", "did you mean", chain.run)


def test_in_an_object_store(chain: Trained, remote: ObjectPath, tmp_path: Path) -> None:
    remote.upload(chain.storage)
    assert same(find_snapshot(f"{chain.run}@2", remote), chain.snapshot(2))
    address = str(remote / "runs" / chain.run)
    assert same(find_snapshot(address, tmp_path), chain.snapshot(3))
    assert same(find_snapshot(address.replace("?", "@2?"), tmp_path), chain.snapshot(2))
    StudyFolder(remote, "grid").ledger.write("finished", "another", {"config": fields(chain.plan.config)})
    found = find_snapshot("another@2", remote)
    assert found.card.name == "another@2"
    assert all(torch.equal(found.states[2][name], tensor) for name, tensor in chain.snapshot(2).states[2].items())


@pytest.mark.parametrize("name", ADAPTED)
@pytest.mark.parametrize("task", [1, 3])
def test_what_meets_older_galleries_comes_along(tiny: Path, name: str, task: int) -> None:
    """ψ_2 … ψ_t of FAN, all models for slerp, the support of every update for adapters."""
    snapshot, older = trained(tiny, name).snapshot(task), set(range(1, task))
    assert snapshot.card.method == name
    states = {"er+slerp": {*older, task}, "fan": {*older, task} - {1} or {1}}.get(name, {task})
    assert set(snapshot.states) == states
    assert set(snapshot.supports) == (set(range(2, task + 1)) if "+" in name else set())


# ---------------------------------------------------------------- not found


def test_no_such_run(chain: Trained, tmp_path: Path) -> None:
    mistyped = chain.run.replace("cl2r", "cl2l")
    refused(f"{mistyped}@2", chain.storage, f"--model {mistyped}", "no such run", f"did you mean {chain.run!r}")
    refused("tiny", tmp_path / "nowhere", "--model tiny", "no such run", str(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("task", ["@0", "@", "@-1", "@x", "@1.5", "@²"])
def test_tasks_that_are_none(chain: Trained, task: str) -> None:
    refused(f"{chain.run}{task}", chain.storage, f"{chain.run}{task}", "RUN@t")
    refused("@2", chain.storage, "@2", "RUN@t")


def test_a_task_too_large(chain: Trained) -> None:
    refused(f"{chain.run}@4", chain.storage, f"{chain.run}@4", "3 tasks")


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("disk", "state.safetensors"),
        ("disk", "features.safetensors"),
        ("disk", "record.json"),
        ("disk", "manifest.json"),
        ("objects", "state.safetensors"),
    ],
)
def test_a_damaged_link_is_named_and_stays(own: Trained, kind: str, file: str, request: pytest.FixtureRequest) -> None:
    key = own.plan.keys[1]
    path = own.storage / "links" / key / file
    content = path.read_bytes()
    path.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
    storage: Place = own.storage
    if kind == "objects":
        storage = request.getfixturevalue("remote")
        storage.upload(own.storage)
    before = below(storage, "links")
    refused(f"{own.run}@2", storage, f"link {key} is damaged", "train")
    assert below(storage, "links") == before
    assert find_snapshot(f"{own.run}@1", storage).card.task == 1


def test_a_missing_link_is_named(own: Trained) -> None:
    key = own.plan.keys[1]
    shutil.rmtree(own.storage / "links" / key)
    refused(f"{own.run}@2", own.storage, f"{own.run}@2", key, "task 2")
    assert find_snapshot(f"{own.run}@3", own.storage).card.task == 3


def test_slerp_needs_every_link_of_its_chain(tiny: Path, tmp_path: Path) -> None:
    chain = trained(tiny, "er+slerp")
    shutil.copytree(chain.storage, tmp_path / "results")
    shutil.rmtree(tmp_path / "results" / "links" / chain.plan.keys[0])
    refused(f"{chain.run}@3", tmp_path / "results", chain.plan.keys[0], "task 1")


@pytest.mark.parametrize(
    "content", [b"", b"[1]", b"a: [", b"\xff\xfe\xfa", b"!!python/object:os.system {}", b"seed: x"]
)
def test_a_config_that_is_none(own: Trained, content: bytes) -> None:
    (own.folder / "config.yaml").write_bytes(content)
    refused(f"{own.run}@1", own.storage)


# ---------------------------------------------------------------- exported


@pytest.mark.parametrize("name", ["cl2r", *ADAPTED])
def test_an_export_gives_the_same_bits(tiny: Path, target: Place, tmp_path: Path, name: str) -> None:
    chain = trained(tiny, name)
    write_export(chain.snapshot(3), target)
    found = find_snapshot(str(target), tmp_path / "nowhere")
    assert same(found, chain.snapshot(3))
    assert same(read_export(place(str(target))), found)
    mine, theirs, images = Model(found), chain.model(3), chain.images[:9]
    np.testing.assert_array_equal(mine.embed(images), theirs.embed(images))
    assert (mine.digest, mine.dim) == (theirs.digest, theirs.dim)
    queries = mine.embed(images)
    np.testing.assert_array_equal(mine.toward(queries, 1, images), theirs.toward(queries, 1, images))
    np.testing.assert_array_equal(mine.carry(queries[:, :64], 1), theirs.carry(queries[:, :64], 1))


def test_it_goes_to_a_folder_of_its_own(chain: Trained, target: Place) -> None:
    snapshot = chain.snapshot(1)
    if isinstance(target, Path):
        target.mkdir()  # an empty one will do
    write_export(snapshot, target)
    before = below(target.parent, target.name)
    with pytest.raises(InputError, match="not empty"):
        write_export(chain.snapshot(2), target)
    assert below(target.parent, target.name) == before


def test_a_file_is_no_folder(chain: Trained, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError) as error:
        write_export(chain.snapshot(1), tmp_path / "file")
    assert one_line(error.value, str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.fixture(scope="module")
def exported(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with every kind of file; put back as it was by whoever changes it."""
    folder = tmp_path_factory.mktemp("export") / "er"
    write_export(trained(tiny, "er+slerp").snapshot(3), folder)
    return folder


FILES = ("task1.safetensors", "task2.safetensors", "task3.safetensors", SUPPORTS)


def test_its_files(exported: Path) -> None:
    assert {path.name for path in exported.iterdir()} == {*FILES, CARD}


@pytest.mark.parametrize("name", FILES)
def test_without_a_file_it_is_not_whole(exported: Path, tmp_path: Path, name: str) -> None:
    with changed(exported / name, None):
        refused(str(exported), tmp_path, str(exported), name)


def test_without_its_card_it_is_no_model(exported: Path, tmp_path: Path) -> None:
    with changed(exported / CARD, None):
        refused(str(exported), tmp_path, str(exported), "no exported model")


@pytest.mark.parametrize("name", [*FILES, CARD])
def test_a_flipped_bit_is_never_another_model(exported: Path, name: str, tmp_path: Path) -> None:
    for damaged in damages((exported / name).read_bytes(), 120 if name == CARD else 12):
        with changed(exported / name, damaged):
            refused(str(exported), tmp_path, str(exported))


@pytest.mark.parametrize("name", [*FILES, CARD])
@pytest.mark.parametrize("keep", [0, 7, -1])
def test_a_torn_file_is_refused(exported: Path, tmp_path: Path, name: str, keep: int) -> None:
    with changed(exported / name, (exported / name).read_bytes()[:keep]):
        refused(str(exported), tmp_path, str(exported))


def test_of_another_format(exported: Path, tmp_path: Path) -> None:
    entry = json.loads((exported / CARD).read_bytes()) | {"format": 2}
    with changed(exported / CARD, json.dumps(entry).encode()):
        refused(str(exported), tmp_path, str(exported / CARD), "another version of cl2r")


@pytest.mark.parametrize("content", [b"[]", b"null", b"3", b"{}", b'{"format": 1}', b"[" * 100_000, b"\xff"])
def test_a_card_that_is_none(exported: Path, tmp_path: Path, content: bytes) -> None:
    with changed(exported / CARD, content):
        refused(str(exported), tmp_path, str(exported))


class Boom:
    """Whoever unpickles it leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_nothing_in_it_is_executed(exported: Path, tmp_path: Path) -> None:
    """Not even where all checksums are right: whoever offers a model for download computes them too."""
    for name in FILES:
        with forged(exported, {name: pickle.dumps(Boom(tmp_path / "boom"))}):
            refused(str(exported), tmp_path)
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"task": "3/../../er/task3"},
        {"task": 10**15},
        {"task": 0},
        {"task": 2},
        {"task": True},
        {"keys": []},
        {"keys": ["../x", "../y", "../z"]},
        {"classes": [4, 4]},
        {"config": {}},
        {"config": []},
        {"config": {"method": {"name": "er"}, "adapter": "slerp"}},
        {"config": {"method": {"name": "nothing"}}},
        {"size": 0},
        {"size": "16"},
        {"channels": 2},
        {"mean": [0.5, 0.5, 0.5]},
        {"std": []},
        {"fit": "somehow"},
    ],
)
def test_a_card_that_makes_no_sense(exported: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    with forged(exported, {}, **change):
        refused(str(exported), tmp_path, str(exported))


@contextlib.contextmanager
def forged(folder: Path, files: dict[str, bytes], **change: Any) -> Iterator[None]:
    """An export with other content and right checksums, for a while."""
    entry = json.loads((folder / CARD).read_bytes())
    entry["files"] |= {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    entry["card"] |= change
    said = {"files": entry["files"], "card": entry["card"]}
    entry["sha256"] = hashlib.sha256(json.dumps(said).encode()).hexdigest()
    with contextlib.ExitStack() as stack:
        for name, content in (files | {CARD: json.dumps(entry).encode()}).items():
            stack.enter_context(changed(folder / name, content))
        yield


def test_a_forged_card_that_makes_sense_is_read(exported: Path, tmp_path: Path) -> None:
    """So that the refusals above are of what was forged."""
    with forged(exported, {}, run="another"):
        assert find_snapshot(str(exported), tmp_path).card.name == "another@3"
