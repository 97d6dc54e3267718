"""Features of templates, features kept as b(x) and projection, and sets decoded on the way: whole runs of each kind."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from quick import Recorder, quick_config, train
from torch import nn

from cl2r.augment import Normalise
from cl2r.data import images as images_module
from cl2r.data import load_dataset
from cl2r.data.dataset import ImageSet, Pairs, Templates
from cl2r.engine import extraction
from cl2r.engine.extraction import extract_templates, split_projection
from cl2r.engine.pixels import pixels_of
from cl2r.engine.plan import Plan, plan_run
from cl2r.engine.records import frames, summary
from cl2r.engine.run import RunResult, execute
from cl2r.engine.store import LinkStore
from cl2r.errors import InputError
from cl2r.pair_distances import pair_distances
from cl2r.verification import tar_at_far

CPU = torch.device("cpu")
SHORT = {"scenario": {"n_tasks": 2}, "optim": {"epochs": 1, "milestones": []}}
FAR = [0.2, 0.1]


def templates_of(count: int, rng: np.random.Generator) -> Templates:
    """Three or four images a template, photos and short videos."""
    template = np.sort(np.concatenate([np.arange(count // 3), rng.integers(0, count // 3, count - count // 3)]))
    return Templates(template, rng.integers(0, 2, count))


# ---------------------------------------------------------------- pooling


def slow_pool(features: np.ndarray, templates: Templates) -> np.ndarray:
    rows = []
    for number in range(len(templates)):
        mine = templates.template == number
        media = [
            np.mean([f / np.linalg.norm(f) for f in features[mine & (templates.media == medium)]], axis=0)
            for medium in sorted(set(templates.media[mine]))
        ]
        rows.append(np.mean(media, axis=0))
    return np.stack(rows)


@pytest.mark.parametrize("factored", [False, True])
def test_templates_are_means_of_media(factored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extraction, "EXTRACTION_BATCH", 7)  # a template may lie in two batches
    rng = np.random.default_rng(0)
    pixels = pixels_of(rng.integers(0, 256, (30, 4, 4, 1), np.uint8), 0, CPU)
    body, projection = nn.Sequential(nn.Flatten(), nn.Linear(16, 5)), nn.Linear(5, 9, bias=False)
    whole, templates, normalise = (
        nn.Sequential(*body, projection),
        templates_of(30, rng),
        Normalise((0.5,), (1.0,), CPU),
    )
    with torch.no_grad():
        (every,) = pixels.stream([extraction.Look(np.arange(30))])
        expected = slow_pool(whole(normalise(every)).numpy(), templates)
        if factored:
            pooled = extract_templates(body, projection.weight, pixels, templates, normalise) @ projection.weight.T
        else:
            pooled = extract_templates(whole, None, pixels, templates, normalise)
    assert pooled.numpy() == pytest.approx(expected, abs=1e-5)


def test_only_wide_linear_projections_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extraction, "FACTORED_ABOVE", 6)
    wide, narrow = (nn.Sequential(nn.Flatten(), nn.Linear(4, n, bias=False)) for n in (7, 6))
    body, projection = split_projection(wide)
    assert projection is not None
    x = torch.rand(3, 4)
    assert torch.allclose(body(x) @ projection.T, wide(x))
    assert split_projection(narrow) == (narrow, None)
    biased = nn.Sequential(nn.Flatten(), nn.Linear(4, 7))
    assert split_projection(biased) == (biased, None)


# ---------------------------------------------------------------- whole runs


def test_a_factored_run_has_the_matrix_of_a_plain_one(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = train(quick_config(tiny, SHORT), tmp_path / "plain")
    monkeypatch.setattr(extraction, "FACTORED_ABOVE", 4)
    factored = train(quick_config(tiny, SHORT), tmp_path / "factored")
    np.testing.assert_array_equal(plain.report.matrix, factored.report.matrix)
    stored = LinkStore(tmp_path / "factored", print).features(factored.plan.keys[1])
    assert set(stored) == {"open", "projection"}
    metrics = [result.links[1].record["metrics"] for result in (plain, factored)]
    for name in ("drift_cosine", "common_direction", "vertex_cosine", "feature_size"):
        assert metrics[0][name] == pytest.approx(metrics[1][name], rel=1e-4), name


def test_adapters_are_refused_where_features_are_factored(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cl2r.engine.plan.FACTORED_ABOVE", 4)
    with pytest.raises(InputError, match=r"adapter\.name=procrustes cannot take features of 11 dimensions"):
        plan_run(quick_config(tiny, SHORT, {"method": {"name": "cl2r+procrustes"}}))


def with_templates(data: ImageSet) -> ImageSet:
    """The open images in templates of one class each, all pairs of them."""
    rng = np.random.default_rng(2)
    template = np.unique(data.y_open * 100 + rng.integers(0, 5, len(data.y_open)), return_inverse=True)[1]
    owner = np.empty(template.max() + 1, np.int64)
    owner[template] = data.y_open
    query, gallery = np.triu_indices(len(owner), k=1)
    pairs = Pairs(query, gallery, owner[query] == owner[gallery], np.zeros(len(query), np.int64))
    return dataclasses.replace(data, pairs=pairs, templates=Templates(template, rng.integers(0, 2, len(template))))


def templates_plan(tiny: Path, monkeypatch: pytest.MonkeyPatch, **spec: object) -> Plan:
    data = with_templates(load_dataset(str(tiny)))
    monkeypatch.setattr("cl2r.engine.plan.load_dataset", lambda *args: data)
    return plan_run(quick_config(tiny, SHORT, {"eval": {"metric": "tar", "far": FAR, **spec}}))


@pytest.fixture(scope="module")
def by_templates(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunResult, Path]:
    root = tmp_path_factory.mktemp("templates")
    with pytest.MonkeyPatch.context() as patch:
        plan = templates_plan(tiny, patch)
    assert plan.tuning_pairs is None
    return execute(plan, root, Recorder()), root


def test_templates_have_no_accuracy(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"tiny compares templates and has no folds: it needs eval\.metric=tar"):
        templates_plan(tiny, monkeypatch, metric="accuracy")


def test_accept_rates_of_templates(by_templates: tuple[RunResult, Path]) -> None:
    result, root = by_templates
    store, pairs = LinkStore(root, print), result.plan.report_pairs
    first, second = (store.features(key)["open"].numpy() for key in result.plan.keys)
    assert len(first) == result.plan.dataset.num_items < len(result.plan.dataset.y_open)
    assert result.report.metric == "TAR@0.2"
    for far in FAR:
        distances = pair_distances(second, first, pairs.query, pairs.gallery)
        assert result.report.at[far].matrix[1, 0] == tar_at_far(distances, pairs.same, far)
    np.testing.assert_array_equal(result.report.matrix, result.report.at[0.2].matrix)
    bounds = result.report.intervals
    assert bounds is not None
    assert bounds.low[1, 0] <= result.report.matrix[1, 0] <= bounds.high[1, 0]


def test_accept_rates_in_frames(by_templates: tuple[RunResult, Path]) -> None:
    result, _ = by_templates
    tables = frames(result, "x")
    (row,) = tables["runs"]
    assert row["AC"] == row["AC@0.2"]
    assert row["BC@0.1"] == result.report.at[0.1].bc
    assert [cell["metric"] for cell in tables["matrix"]] == ["TAR@0.2"] * 3 + ["TAR@0.1"] * 3
    assert summary(result, "x")["report@0.1"]["metric"] == "TAR@0.1"


def test_a_rate_below_one_pair_is_refused(tiny: Path) -> None:
    with pytest.raises(InputError, match=r"eval\.far=0\.0001 needs at least 10000 negative pairs, there are 60"):
        plan_run(quick_config(tiny, {"eval": {"metric": "tar", "far": [1e-4]}}))


def written(data: ImageSet, root: Path) -> Path:
    """A data set as a folder of PNG files."""
    assert isinstance(data.x_train, np.ndarray)
    assert isinstance(data.x_open, np.ndarray)
    for part, x, y in (("train", data.x_train, data.y_train), ("open", data.x_open, data.y_open)):
        for row, (image, label) in enumerate(zip(x, y, strict=True)):
            path = root / part / f"{part}{label:02d}" / f"{row:04d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[..., 0]).save(path)
    return root


@pytest.mark.parametrize("crop", ["padded", "resized"])
def test_a_set_decoded_on_the_way_trains_the_same_models(
    crop: str, finished: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(finished.plan.dataset, tmp_path / "folder")
    layers = [SHORT, {"data": {"size": 16, "channels": 1, "loaders": 1}, "augment": {"crop": crop}}]
    held = train(quick_config(folder, *layers), tmp_path / "held")
    monkeypatch.setattr(images_module, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr("cl2r.data._load", lambda *args: images_folder(folder))
    lazy = train(quick_config(folder, *layers), tmp_path / "lazy")
    assert isinstance(lazy.plan.dataset.x_train, images_module.LazyImages)
    np.testing.assert_array_equal(held.report.matrix, lazy.report.matrix)
    assert held.links[1].record["curves"][0]["loss_ce"] == lazy.links[1].record["curves"][0]["loss_ce"]


def images_folder(folder: Path) -> ImageSet:
    from cl2r.data.folder import load_folder

    return load_folder(folder, 16, 1)
