"""Pooled templates, factored features, float16, FLOPs, and runs on images that are decoded while they train."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from cl2r.augment import Normalise
from cl2r.backbones import build_backbone
from cl2r.data import images as images_module
from cl2r.data.dataset import ImageSet, Templates
from cl2r.data.folders import load_folder
from cl2r.data.images import ArrayImages
from cl2r.engine import extraction
from cl2r.engine.chain import RunResult
from cl2r.engine.extraction import extract_templates, flops, in_precision, split_projection
from cl2r.engine.links import LinkStore
from cl2r.engine.pixels import pixels_of
from cl2r.errors import TrainingError
from tests.support.quick import quick_config, train

CPU = torch.device("cpu")
SHORT = {"scenario": {"n_tasks": 2}, "optim": {"epochs": 1, "milestones": []}}


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
    pixels = pixels_of(ArrayImages(rng.integers(0, 256, (30, 4, 4, 1), np.uint8)), 0, CPU)
    body, projection = nn.Sequential(nn.Flatten(), nn.Linear(16, 5)), nn.Linear(5, 9, bias=False)
    template = np.sort(np.concatenate([np.arange(10), rng.integers(0, 10, 20)]))
    whole, templates = nn.Sequential(*body, projection), Templates(template, rng.integers(0, 2, 30))
    normalise = Normalise((0.5,), (1.0,), CPU)
    with torch.no_grad():
        (every,) = pixels.stream([np.arange(30)])
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


def test_float16_rounds_to_eleven_bits_and_refuses_larger_values() -> None:
    features = {"open": torch.tensor([[1.0 + 2**-12, 1.0 + 2**-10]])}
    assert in_precision(features, "float16")["open"].tolist() == [[1.0, 1.0 + 2**-10]]
    assert in_precision(features, "float32") is features
    with pytest.raises(TrainingError, match=r"eval\.features=float16: open"):
        in_precision({"open": torch.tensor([[7e4]])}, "float16")


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (nn.Linear(7, 11, bias=False), (1, 7), 2 * 7 * 11),
        (nn.Linear(7, 11), (5, 7), 2 * 7 * 11),
        (nn.Conv2d(3, 8, 3, stride=2, padding=1), (2, 3, 16, 16), 2 * (3 * 3 * 3) * 8 * (8 * 8)),
    ],
)
def test_flops_are_two_per_multiply_add_of_a_row(layer: nn.Module, shape: tuple[int, ...], expected: int) -> None:
    assert flops(layer, torch.zeros(shape)) == expected
    assert layer.weight.grad is None


def test_flops_of_a_backbone_grow_with_depth() -> None:
    x = torch.zeros(1, 3, 16, 16)
    small, large = (flops(build_backbone(name, 3).eval(), x) for name in ("resnet20", "resnet32"))
    assert 1.5 < large / small < 1.8  # 30 of 18 convolutions, besides the stem


def test_a_factored_run_has_the_matrix_of_a_plain_one(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = train(quick_config(tiny, SHORT), tmp_path / "plain")
    monkeypatch.setattr(extraction, "FACTORED_ABOVE", 4)
    factored = train(quick_config(tiny, SHORT), tmp_path / "factored")
    np.testing.assert_array_equal(plain.report.matrix, factored.report.matrix)
    stored = LinkStore(tmp_path / "factored").features(factored.plan.keys[1])
    assert set(stored) == {"open", "projection"}
    metrics = [result.links[1].record["metrics"] for result in (plain, factored)]
    for name in ("drift_cosine", "common_direction", "vertex_cosine", "feature_size"):
        assert metrics[0][name] == pytest.approx(metrics[1][name], rel=1e-4), name


def test_links_in_float16_have_half_the_bytes_and_about_the_same_matrix(tiny: Path, tmp_path: Path) -> None:
    results = {}
    for kind in ("float32", "float16"):
        result = results[kind] = train(quick_config(tiny, SHORT, {"eval": {"features": kind}}), tmp_path / kind)
        key = result.plan.keys[-1]
        (path,) = (tmp_path / kind / "links" / key).glob("*-features.safetensors")
        stored = load_file(path)
        assert {tensor.dtype for tensor in stored.values()} == {getattr(torch, kind)}
        read = LinkStore(tmp_path / kind).features(key)
        assert {tensor.dtype for tensor in read.values()} == {torch.float32}
    plain, half = results["float32"], results["float16"]
    np.testing.assert_allclose(half.report.matrix, plain.report.matrix, atol=0.02)
    losses = [[link.record["curves"][-1]["loss_ce"] for link in result.links] for result in (plain, half)]
    assert losses[0] == losses[1], "training does not depend on the precision of stored features"


def written(data: ImageSet, root: Path) -> Path:
    """Write a data set as a folder of PNG files."""
    for part, x, y in (("train", data.x_train, data.y_train), ("open", data.x_open, data.y_open)):
        for row, (image, label) in enumerate(zip(x.all(), y, strict=True)):
            path = root / part / f"{part}{label:02d}" / f"{row:04d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[..., 0]).save(path)
    return root


@pytest.mark.parametrize("crop", ["padded", "resized"])
def test_images_decoded_while_training_give_the_same_models(
    crop: str, finished: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(finished.plan.dataset, tmp_path / "folder")
    layers = [SHORT, {"data": {"size": 16, "channels": 1, "loaders": 1}, "augment": {"crop": crop}}]
    held = train(quick_config(folder, *layers), tmp_path / "held")
    monkeypatch.setattr(images_module, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr("cl2r.data._load", lambda *args: load_folder(folder, 16, 1))
    lazy = train(quick_config(folder, *layers), tmp_path / "lazy")
    assert isinstance(lazy.plan.dataset.x_train, images_module.LazyImages)
    np.testing.assert_array_equal(held.report.matrix, lazy.report.matrix)
    assert held.links[1].record["curves"][0]["loss_ce"] == lazy.links[1].record["curves"][0]["loss_ce"]
