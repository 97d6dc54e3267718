"""DER, truncated: what was learnt first stays as it is, bit for bit."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cl2r.engine.chain import RunResult
from tests.support.method_case import Case, advanced, ended, fingerprint, mixed
from tests.support.quick import chain_tensors, quick_config, train

D = 64
LAYER: dict[str, Any] = {"method": {"name": "der_trunc"}}


def weight_of(this: Case) -> Tensor:
    return this.method.network.classifier.weight.detach()


def bias_of(this: Case) -> Tensor:
    return this.method.network.classifier.bias.detach()


def extractors(this: Case) -> list[str]:
    return [fingerprint(extractor) for extractor in this.method.extractors]


def test_the_old_classifier_is_a_block_of_the_new_one() -> None:
    this = ended("der_trunc", task=2)
    old, biases = weight_of(this).clone(), bias_of(this).clone()
    this.begin(3)
    new = weight_of(this)
    assert biases.any()
    assert torch.equal(bias_of(this), torch.cat([biases, torch.zeros(4)]))
    assert old.shape == (8, 2 * D)
    assert new.shape == (12, 3 * D)
    assert torch.equal(new[:8, : 2 * D], old)
    for block in (new[8:, : 2 * D], new[:8, 2 * D :], new[8:, 2 * D :]):
        assert 0 < block.abs().max() <= 1 / math.sqrt(3 * D)


def test_the_new_extractor_starts_from_the_last_one() -> None:
    this = ended("der_trunc", task=2)
    first, second = extractors(this)
    this.begin(3)
    assert extractors(this) == [first, second, second]
    assert first != second


def test_old_extractors_are_frozen_with_their_batch_norms() -> None:
    this = ended("der_trunc", task=2)
    before = extractors(this)
    this.begin(3)
    network = this.method.network
    network.train()
    assert not any(module.training for module in network.frozen.modules())
    assert network.phi.training
    this.step(mixed(this, 3))
    trained = {id(parameter) for stage in this.method.stages() for parameter in stage.parameters()}
    assert not trained & {id(parameter) for parameter in network.frozen.parameters()}
    assert trained | {id(p) for p in network.frozen.parameters()} == {id(p) for p in network.parameters()}
    this.method.end_task()
    assert extractors(this)[:2] == before
    assert extractors(this)[2] not in before


@pytest.mark.parametrize("centre", [False, True])
def test_truncated_features_are_the_old_ones_bit_for_bit(centre: bool) -> None:
    made = [ended("der_trunc", f"head.centre={centre}", task=task) for task in (1, 2, 3)]
    features = [this.apply(this.method.extractor(), this.rows(range(12))) for this in made]
    for t, new in enumerate(features, 1):
        assert new.shape == (72, t * D)
        for k, old in enumerate(features[:t], 1):
            assert torch.equal(new[:, : k * D], old)
    assert not torch.equal(features[2][:, D : 2 * D], features[2][:, 2 * D :])


@pytest.mark.parametrize("weight", [0.0, 1.0, 2.5])
def test_loss(weight: float) -> None:
    this = advanced("der_trunc", f"der_trunc.auxiliary={weight}")
    network, batch = this.method.network, this.batch_of(2, range(8), 1)
    with torch.no_grad():
        out = network(batch.x)
        old, new = network.frozen[0](batch.x), network.phi(batch.x)
    torch.testing.assert_close(out.features, torch.cat([old, new], 1))
    torch.testing.assert_close(out.logits, out.features @ weight_of(this).T + bias_of(this))
    assert out.auxiliary.shape == (8, 5)
    ce = auxiliary = 0.0
    for z, a, y in zip(out.logits.tolist(), out.auxiliary.tolist(), batch.y.tolist(), strict=True):
        ce += (math.log(sum(map(math.exp, z))) - z[y]) / 8
        lumped = {4: 1, 5: 2, 6: 3, 7: 4}.get(y, 0)
        auxiliary += weight * (math.log(sum(map(math.exp, a))) - a[lumped]) / 8
    assert this.losses(batch) == pytest.approx({"ce": ce, "auxiliary": auxiliary}, rel=1e-4)


def test_the_auxiliary_classifier_sees_the_new_extractor_only() -> None:
    this = advanced("der_trunc", steps=0)
    network, x = this.method.network, this.images[:3]
    with torch.no_grad():
        before = network(x)
        for parameter in network.frozen.parameters():
            parameter.mul_(2)
        after = network(x)
    assert torch.equal(before.auxiliary, after.auxiliary)
    assert not torch.equal(before.logits, after.logits)


def test_new_rows_are_scaled_to_the_length_of_old_ones() -> None:
    this = advanced("der_trunc")
    before, phi = weight_of(this).clone(), fingerprint(this.method.network.phi)
    this.method.end_task()
    after = weight_of(this)
    assert torch.equal(after[:4], before[:4])
    lengths = [float(row.norm()) for row in after]
    assert sum(lengths[:4]) / 4 == pytest.approx(sum(lengths[4:]) / 4, rel=1e-5)
    gamma = this.method.diagnostics()["gamma"]
    assert gamma != pytest.approx(1, abs=1e-3)
    torch.testing.assert_close(after[4:], gamma * before[4:])
    assert fingerprint(this.method.network.phi) == phi


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("der")


@pytest.fixture(scope="module")
def hard(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tiny data set with so much noise that no model is perfect; columns of ones would test nothing."""
    rng, path = np.random.default_rng(3), tmp_path_factory.mktemp("hard") / "hard.npz"
    arrays = dict(np.load(tiny))
    for name in ("x_train", "x_open"):
        noisy = arrays[name] + rng.normal(0, 80, arrays[name].shape)
        arrays[name] = np.clip(noisy, 0, 255).astype(np.uint8)
    np.savez(path, **arrays)
    return path


@pytest.fixture(scope="module")
def undisturbed(hard: Path, root: Path) -> RunResult:
    return train(quick_config(hard, LAYER), root)


def test_a_run_never_changes_a_column(undisturbed: RunResult, root: Path) -> None:
    for evaluation in (undisturbed.report, undisturbed.tuning):
        assert evaluation is not None
        matrix, diagonal = evaluation.matrix, np.diag(evaluation.matrix)
        assert np.isfinite(matrix[np.tri(3, dtype=bool)]).all()
        for t in range(3):
            for k in range(t):
                assert matrix[t, k] == matrix[k, k]
        assert evaluation.values["AC"] == 0
        assert evaluation.values["BC"] == 0
        assert evaluation.values["FC"] == pytest.approx(np.mean(diagonal[:-1] - diagonal[1:]))
        assert ((diagonal > 0.6) & (diagonal < 1)).all()
        assert len(set(diagonal)) == 3
    features = [tensors["features/open"] for tensors in chain_tensors(undisturbed.plan, root)]
    assert [rows.shape[1] for rows in features] == [D, 2 * D, 3 * D]
    assert torch.equal(features[2][:, : 2 * D], features[1])
    assert torch.equal(features[1][:, :D], features[0])


def test_ties_counted_as_compatible_would_reward_it(undisturbed: RunResult, root: Path, hard: Path) -> None:
    result = train(quick_config(hard, LAYER, {"eval": {"ties": True}}), root)
    assert all(link.reused for link in result.links)
    assert result.report.values["AC"] == 1
