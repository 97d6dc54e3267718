"""Models: found in a run, a study or an export, and giving the vectors that their run was evaluated with."""

import copy
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cl2r.config.methods import ADAPTERS, METHODS
from cl2r.config.schema import fields
from cl2r.engine.links import LinkStore
from cl2r.gallery import model as module
from cl2r.gallery.model import Model, ModelFiles, find_model, write_export
from cl2r.storage.path import ObjectPath, StoragePath
from cl2r.study.folder import StudyFolder
from tests.support.galleries import TASKS, Trained, below, refused, trained
from tests.support.object_server import upload

NEAR = {"rtol": 0, "atol": 1e-6}
ADAPTED = [f"er+{name}" for name in ADAPTERS]
SEVERAL_LINKS = ("er+slerp", "fan", "der_trunc", "er+procrustes")
WHOLE = ("cl2r", "er", "lucir", "fan", "der_trunc")
"""Methods whose chain of three is used by other tests too; for the rest two models suffice."""
OLDER = [(t, k) for t in range(1, TASKS + 1) for k in range(1, t)]


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    """PyTorch warns about read-only arrays, which galleries are full of."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


@pytest.fixture
def own(chain: Trained, tmp_path: Path) -> Trained:
    """A copy of the chain that may be damaged."""
    shutil.copytree(chain.storage, tmp_path / "results")
    return Trained(tmp_path / "results", chain.run, chain.plan)


def same(one: ModelFiles, other: ModelFiles) -> bool:
    """Check that two models are equal bit for bit."""
    assert one.card == other.card
    for mine, theirs in ((one.states, other.states), (one.supports, other.supports)):
        assert mine.keys() == theirs.keys()
        for task in mine:
            assert mine[task].keys() == theirs[task].keys()
            assert all(torch.equal(mine[task][name], theirs[task][name]) for name in mine[task])
    return True


def test_a_model_is_the_state_of_its_link(chain: Trained) -> None:
    found = find_model(f"{chain.run}@2", chain.storage)
    assert (found.card.run, found.card.task, found.card.name) == (chain.run, 2, f"{chain.run}@2")
    assert found.card.keys == tuple(chain.plan.keys[:2])
    assert (found.card.key, found.card.method) == (chain.plan.keys[1], "cl2r")
    assert (found.card.size, found.card.channels, found.card.num_outputs) == (16, 1, 12)
    assert found.card.classes == (4, 4)
    state = LinkStore(chain.storage).state(chain.plan.keys[1])
    assert list(found.states) == [2]
    assert all(torch.equal(tensor, found.states[2][name]) for name, tensor in state.items())


@pytest.mark.parametrize("mark", ["", "@1", "@3"])
def test_a_run_is_found_by_a_prefix_of_its_name_and_by_its_folder(
    chain: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    right = find_model(f"{chain.run}{mark}", chain.storage)
    assert right.card.task == int(mark[1:] or TASKS)
    assert same(find_model(f"tiny-cl2r{mark}", chain.storage), right)
    assert same(find_model(f"{chain.folder}{mark}", tmp_path), right)
    assert same(find_model(f"{chain.folder}/{mark}", tmp_path), right)
    for folder, name in ((chain.folder.parent, chain.run), (chain.folder, "."), (chain.storage, f"runs/{chain.run}")):
        monkeypatch.chdir(folder)
        assert same(find_model(f"{name}{mark}", tmp_path), right)


def task_rows(chain: Trained) -> list[dict[str, Any]]:
    """Return what the tasks frame of a study says about the links of a run."""
    return [{"task": task, "key": key} for task, key in enumerate(chain.plan.keys, 1)]


@pytest.mark.parametrize("name", ["cl2r", *SEVERAL_LINKS])
def test_a_run_of_a_study_is_found_in_its_ledger(tiny: Path, tmp_path: Path, name: str) -> None:
    chain = trained(tiny, name)
    (tmp_path / "links").symlink_to(chain.storage / "links")
    ledger = StudyFolder(tmp_path, "grid").ledger
    content = {"trial": 1, "variant": "", "config": fields(chain.plan.config)}
    ledger.write("failed", f"{chain.run}-other", content | {"reason": "no"})
    ledger.write("finished", chain.run, content | {"frames": {"tasks": task_rows(chain)}})
    assert same(find_model(f"{chain.run}@2", tmp_path), chain.files(2))
    assert same(find_model(chain.run[:-3], tmp_path), chain.files(3))
    with refused("did you mean", chain.run):
        find_model(f"{chain.run}-other", tmp_path)


def test_models_are_found_in_an_object_store(chain: Trained, remote: ObjectPath, tmp_path: Path) -> None:
    upload(chain.storage, remote)
    assert same(find_model(f"{chain.run}@2", remote), chain.files(2))
    address = str(remote / "runs" / chain.run)
    assert same(find_model(address, tmp_path), chain.files(3))
    assert same(find_model(address.replace("?", "@2?"), tmp_path), chain.files(2))
    ledger, entry = StudyFolder(remote, "grid").ledger, {"config": fields(chain.plan.config)}
    ledger.write("finished", "another", entry | {"frames": {"tasks": task_rows(chain)}})
    assert find_model("another@2", remote).card.name == "another@2"
    ledger.write("finished", "nothing", entry)
    with refused("nothing@2", "no links are recorded", "run the command that trained it again"):
        find_model("nothing@2", remote)


@pytest.mark.parametrize("name", SEVERAL_LINKS)
@pytest.mark.parametrize("task", [1, 3])
def test_a_model_includes_what_searching_older_galleries_needs(tiny: Path, name: str, task: int) -> None:
    """ψ_2 … ψ_t of FAN, all models for slerp, the support of every update for adapters."""
    files, older = trained(tiny, name).files(task), set(range(1, task))
    assert files.card.method == name
    states = {"er+slerp": {*older, task}, "fan": {*older, task} - {1} or {1}}.get(name, {task})
    assert set(files.states) == states
    assert set(files.supports) == (set(range(2, task + 1)) if "+" in name else set())


def test_an_unknown_run_is_refused_with_a_suggestion(chain: Trained, tmp_path: Path) -> None:
    mistyped = chain.run.replace("cl2r", "cl2l")
    with refused(f"--model {mistyped}", chain.run):
        find_model(f"{mistyped}@2", chain.storage)
    with refused("--model tiny", tmp_path / "nowhere"):
        find_model("tiny", tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("task", ["@0", "@", "@-1", "@x", "@1.5", "@²", "@4"])
def test_a_task_that_does_not_exist_is_refused(chain: Trained, task: str) -> None:
    with refused(f"{chain.run}{task}", "task"):
        find_model(f"{chain.run}{task}", chain.storage)
    with refused("@2", "RUN@t"):
        find_model("@2", chain.storage)


@pytest.mark.parametrize("objects", [False, True])
@pytest.mark.parametrize("file", ["state.safetensors", "features.safetensors", "record.json", "manifest.json"])
def test_a_damaged_or_missing_link_is_named_and_left_alone(
    own: Trained, file: str, objects: bool, request: pytest.FixtureRequest
) -> None:
    key = own.plan.keys[1]
    (path,) = (own.storage / "links" / key).list(f"*{file}")
    content = path.read_bytes()
    path.write_file(content[:40] + bytes([content[40] ^ 1]) + content[41:])
    storage: StoragePath = request.getfixturevalue("remote") if objects else own.storage
    if objects:
        upload(own.storage, storage)
    before = below(storage, "links")
    with refused(f"{own.run}@2", key, "task 2", "damaged"):
        find_model(f"{own.run}@2", storage)
    assert below(storage, "links") == before
    (storage / "links" / key).remove_tree()
    with refused(f"{own.run}@2", key, "task 2", "missing"):
        find_model(f"{own.run}@2", storage)
    for task in (1, 3):  # which do not need the link
        assert find_model(f"{own.run}@{task}", storage).card.task == task


@pytest.mark.parametrize(
    "content", [b"", b"[1]", b"a: [", b"\xff\xfe\xfa", b"!!python/object:os.system {}", b"seed: x"]
)
def test_a_config_that_is_none_is_refused(own: Trained, content: bytes) -> None:
    (own.folder / "config.yaml").write_file(content)
    with refused():
        find_model(f"{own.run}@1", own.storage)


@pytest.mark.parametrize("name", ["cl2r", *SEVERAL_LINKS])
def test_an_export_gives_the_same_bits(tiny: Path, anywhere: StoragePath, tmp_path: Path, name: str) -> None:
    chain = trained(tiny, name)
    write_export(chain.files(3), anywhere)
    found = find_model(str(anywhere), tmp_path / "nowhere")
    assert same(found, chain.files(3))
    mine, theirs, images = Model(found), chain.model(3), chain.images[:9]
    np.testing.assert_array_equal(mine.embed(images), theirs.embed(images))
    assert mine.version == theirs.version
    queries = mine.embed(images)
    np.testing.assert_array_equal(mine.to_space_of(1, queries, images), theirs.to_space_of(1, queries, images))
    np.testing.assert_array_equal(mine.map_gallery(1, queries[:, :64]), theirs.map_gallery(1, queries[:, :64]))


def test_a_model_is_exported_to_an_empty_folder_only(chain: Trained, anywhere: StoragePath, tmp_path: Path) -> None:
    if isinstance(anywhere, Path):
        anywhere.mkdir()
    write_export(chain.files(1), anywhere)
    before = below(anywhere.parent, anywhere.name)
    with refused(anywhere):
        write_export(chain.files(2), anywhere)
    assert below(anywhere.parent, anywhere.name) == before
    (tmp_path / "file").write_text("mine")
    with refused(tmp_path / "file"):
        write_export(chain.files(1), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("name", METHODS)
def test_vectors_are_the_features_of_the_link(tiny: Path, name: str) -> None:
    this, found = trained(tiny, name, *(() if name in WHOLE else ("scenario.stop_after=2",))), list[np.ndarray]()
    for task in range(1, len(this.plan.keys) + 1):
        model = this.model(task)
        vectors = model.embed(this.images)
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(vectors, this.vectors(task), **NEAR)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, **NEAR)
        assert model.dim == vectors.shape[1]
        assert model.maps_gallery == METHODS[name].maps_gallery
        found.append(vectors[:, : this.link(1)["open"].shape[1]])
    assert np.abs(found[0] - found[1]).max() > 1e-3 or METHODS[name].grows, "the models differ"


def test_images_are_normalised_with_the_statistics_of_the_evaluation(tiny: Path, chain: Trained) -> None:
    this = trained(tiny, "er", "eval.normalise=own", "scenario.stop_after=1")
    card = this.files(1).card
    assert (card.mean, card.std) == this.plan.dataset.open_moments != this.plan.dataset.moments
    np.testing.assert_allclose(this.model(1).embed(this.images), this.vectors(1), **NEAR)
    assert (chain.files(1).card.mean, chain.files(1).card.std) == this.plan.dataset.moments


def test_vectors_do_not_depend_on_batch_or_memory_layout(chain: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = chain.model(2), chain.images[:23].copy()
    whole = model.embed(images)
    images.flags.writeable = False
    np.testing.assert_allclose(model.embed(images[::-1])[::-1], whole, **NEAR)
    np.testing.assert_allclose(model.embed(images[:, :, ::-1]), model.embed(images[:, :, ::-1].copy()), **NEAR)
    for size in (1, 7, 23):
        monkeypatch.setattr(module, "BATCH", size)
        np.testing.assert_allclose(model.embed(images), whole, **NEAR)
    assert model.embed(images[:0]).shape == (0, model.dim)
    assert model.to_space_of(1, model.embed(images[:0])).dtype == np.float32


def test_images_of_another_shape_or_type_are_refused(chain: Trained) -> None:
    model, files = chain.model(1), chain.files(1)
    for shape in ((2, 16, 16), (2, 16, 16, 3), (2, 32, 32, 1), (2, 1, 16, 16), (16, 16, 1), (2, 16, 8, 1)):
        with refused(chain.run, "16", shape):
            model.embed(np.zeros(shape, np.uint8))
    for kind in (np.float32, np.int64, np.bool_):
        with refused("uint8"):
            model.embed(chain.images[:2].astype(kind))
    card = files.card.model_copy(update={"channels": 3, "mean": (0.5,) * 3, "std": (0.2,) * 3})
    with refused("uint8"):  # grey images are not taken for colour
        Model(ModelFiles(card, files.states, {})).embed(chain.images[:2])


@pytest.mark.parametrize("name", ADAPTED)
def test_adapted_queries_are_those_of_the_evaluation(tiny: Path, name: str) -> None:
    this = trained(tiny, name)
    evaluated = this.evaluated()
    for t, k in OLDER:
        model = this.model(t)
        queries = model.to_space_of(k, model.embed(this.images), this.images)
        np.testing.assert_allclose(queries, evaluated.query(t - 1, k - 1).unit(), rtol=0, atol=5e-6)
        assert queries.dtype == np.float32
        assert np.abs(queries - model.embed(this.images)).max() > 1e-3, "the map does something"


@pytest.mark.parametrize("name", ["cl2r", "lucir", *ADAPTED, "fan", "der_trunc"])
def test_nothing_is_mapped_unless_the_method_says_so(tiny: Path, name: str) -> None:
    this = trained(tiny, name)
    model = this.model(3)
    queries = model.embed(this.images[:5])
    np.testing.assert_array_equal(model.to_space_of(3, queries, this.images[:5]), queries)
    np.testing.assert_array_equal(model.map_gallery(3, queries), queries)
    if name == "er+slerp":
        with refused("slerp"):
            model.to_space_of(1, queries)
    if name in ("cl2r", "lucir", "fan"):
        for k in (1, 2):
            assert model.to_space_of(k, queries) is queries
            assert (model.map_gallery(k, queries) is queries) == (name != "fan")


def test_a_growing_query_is_cut_to_the_old_model(tiny: Path) -> None:
    this = trained(tiny, "der_trunc")
    for t, k in OLDER:
        model = this.model(t)
        queries = model.to_space_of(k, model.embed(this.images))
        assert queries.shape[1] == this.model(k).dim == k * model.dim // t
        np.testing.assert_allclose(queries, this.vectors(k), **NEAR)
        np.testing.assert_allclose(queries, this.evaluated().query(t - 1, k - 1).unit(), **NEAR)


@pytest.mark.parametrize("rows", [5, 8192])
def test_fan_maps_a_gallery_as_its_links_do(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    this = trained(tiny, "fan")
    monkeypatch.setattr(module, "MAPPED_AT_ONCE", rows)
    for t, k in OLDER:
        mapped = this.model(t).map_gallery(k, this.vectors(k).astype(np.float32))
        np.testing.assert_allclose(mapped, this.vectors(t, f"gallery_{k}"), **NEAR)
        assert np.abs(mapped - this.vectors(k)).max() > 1e-3, "ψ does something"
        assert mapped.dtype == np.float32
    two = this.model(2).map_gallery(1, this.vectors(1).astype(np.float32))
    np.testing.assert_allclose(this.model(3).map_gallery(2, two), this.vectors(3, "gallery_1"), **NEAR)
    np.save(tmp_path / "rows.npy", this.vectors(1).astype(np.float16))
    half = np.load(tmp_path / "rows.npy", mmap_mode="r")
    mapped = this.model(3).map_gallery(1, half)
    np.testing.assert_allclose(mapped, this.vectors(3, "gallery_1"), rtol=0, atol=2e-3)
    np.testing.assert_allclose(np.linalg.norm(mapped, axis=1), 1, **NEAR)
    assert this.model(3).map_gallery(1, half[:0]).shape == (0, half.shape[1])


@pytest.mark.parametrize("name", ["fan", "er+procrustes", "der_trunc"])
@pytest.mark.parametrize("task", [0, 3, -1])
def test_the_gallery_of_a_later_model_cannot_be_searched(tiny: Path, name: str, task: int) -> None:
    model = trained(tiny, name).model(2)
    rows = model.embed(trained(tiny, name).images[:2])
    for method in (model.to_space_of, model.map_gallery):
        with refused(f"φ_{task}"):
            method(task, rows)


def test_the_digest_depends_on_every_tensor(chain: Trained) -> None:
    files = chain.files(2)
    assert Model(files).digest == chain.model(2).digest != chain.model(1).digest
    for name in list(files.states[2]):
        states = {2: copy.deepcopy(dict(files.states[2]))}
        flat = states[2][name].view(-1)
        if len(flat):
            flat[-1] += 1
            assert Model(ModelFiles(files.card, states, {})).digest != chain.model(2).digest, name


@pytest.mark.parametrize("change", ["memory", "method/phi.0.conv1.weight", "shape", "more"])
def test_tensors_that_do_not_fit_the_config_are_refused(chain: Trained, change: str) -> None:
    files = chain.files(2)
    state = dict(files.states[2])
    if change in state:
        del state[change]
    elif change == "shape":
        state[max(state, key=lambda key: state[key].numel())] = torch.zeros(3, 5)
    else:
        state["method/phi.more"] = torch.zeros(3)
    with refused(f"{chain.run}@2", "tensors"):
        Model(ModelFiles(files.card, {2: state}, {})).embed(chain.images[:1])


@pytest.mark.parametrize("error", [RuntimeError("no"), MemoryError("no"), ValueError("no")])
def test_a_network_that_cannot_be_built_is_one_line(
    chain: Trained, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("cl2r.gallery.model.build_method", fail)
    with refused(f"{chain.run}@2", "(no)"):
        Model(chain.files(2)).embed(chain.images[:1])
