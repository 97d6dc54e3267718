"""FAN: two stages, ψ that leaves φ_t alone, and galleries that pass exactly one ψ per task."""

import copy
import math
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn
from torch.nn import functional

from cl2r.engine.chain import RunResult
from cl2r.engine.evaluation import ChainFeatures, Evaluator
from cl2r.engine.links import LinkStore
from cl2r.features import Features
from cl2r.methods.fan import Fan
from tests.support.method_case import Case, advanced, case, fingerprint, mixed
from tests.support.quick import EPOCHS, quick_config, train
from tests.support.slow_losses import slow_ce, slow_fd, slow_kd

ADAPT_EPOCHS = 2
FAN = {"method": {"name": "fan"}, "fan": {"epochs": ADAPT_EPOCHS, "width": 2}}
fan = partial(advanced, "fan")


def scramble(module: nn.Module, seed: int = 0, scale: float = 1.0) -> None:
    """Set random weights, so that ψ is far from the identity."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))


def adapt(made: Case, epochs: int) -> None:
    """Train stage 2 as the loop does, on one batch of all rows."""
    stage = made.method.stages()[1]
    optimiser = torch.optim.Adam(list(stage.parameters()), stage.lr)
    made.method.network.requires_grad_(False)
    made.method.network.psi.requires_grad_(True)
    made.method.network.train(stage.statistics)
    batch = made.batch(2, np.concatenate(stage.rows))
    for _ in range(epochs):
        optimiser.zero_grad()
        torch.stack(list(stage.loss(batch, made.method.network).values())).sum().backward()
        optimiser.step()


def unit(rows) -> npt.NDArray[np.float64]:
    rows = np.asarray(rows, dtype=np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def slow_psi(psi: nn.Module, features) -> npt.NDArray[np.float64]:
    """ψ(v) = unit(v + W_2 max(0, W_1 v + b_1) + b_2), v of length one."""
    weights = {name: tensor.double().numpy() for name, tensor in psi.state_dict().items()}
    v = unit(features)
    hidden = np.maximum(0, v @ weights["hidden.weight"].T + weights["hidden.bias"])
    return unit(v + hidden @ weights["out.weight"].T + weights["out.bias"])


def test_terms_of_stage_one_with_logit_distillation_against_a_loop():
    settings = "fan.kd_weight=0.6", "method.lambda_base=3"
    old_model, made = fan(*settings, task=1).method.network, fan(*settings)
    batch = mixed(made, 2)
    with torch.no_grad():
        old, new = old_model(batch.x), made.method.network(batch.x)
    losses = made.losses(batch)
    assert set(losses) == {"ce", "fd", "kd"}
    assert losses["ce"] == pytest.approx(slow_ce(new.logits, batch.y), rel=1e-4)
    # k_0 = k_n, so that every rule gives λ_base
    assert losses["fd"] == pytest.approx(3 * slow_fd(new.features, old.features), rel=1e-3)
    assert losses["kd"] == pytest.approx(0.6 * slow_kd(new.logits, old.logits, 2.0), rel=1e-4)


@pytest.mark.parametrize(("settings", "weight"), [((), 5 * 3), (("method.lambda_rule=new_over_old",), 5 / 3)])
def test_the_weight_of_distillation_is_that_of_lucir_unless_another_rule_is_set(settings, weight):
    """Nine classes are old and one is new: LUCIR's rule gives 5·√9, that of CL²R 5·√(1/9)."""
    made, lucir = (case(name, *settings, tasks=10) for name in ("fan", "lucir"))
    for one in (made, lucir):
        for index in range(1, 11):
            one.begin(index)
        assert one.method.diagnostics()["lambda"] == pytest.approx(weight)


def test_stage_one_has_no_margin_term_and_leaves_psi_alone():
    made = fan(steps=0)
    psi = fingerprint(made.method.network.psi)
    losses = made.step(mixed(made, 2))
    assert set(losses) == {"ce", "fd"}
    assert fingerprint(made.method.network.psi) == psi
    chosen = {id(p) for p in made.method.stages()[0].parameters()}
    own = {id(p) for name, p in made.method.network.named_parameters() if not name.startswith("psi.")}
    assert chosen == own


def test_the_loss_of_psi_against_a_loop():
    settings = "fan.alpha=7", "fan.width=2"
    phi, made = fan(*settings, task=1).method.extractor(), fan(*settings)
    network = made.method.network
    scramble(network.psi, scale=0.1)
    batch = mixed(made, 2)
    with torch.no_grad():
        old, new = phi(batch.x), made.method.extractor()(batch.x)
        losses = made.method.stages()[1].loss(batch, network)
    adapted = slow_psi(network.psi, old)
    align = 7 * np.mean(1 - (adapted * unit(new)).sum(1))
    rows = unit(torch.cat([network.classifier.old, network.classifier.new]).detach())
    logits = network.classifier.scale.item() * adapted @ rows.T
    ce = slow_ce(torch.from_numpy(logits), batch.y)
    assert set(losses) == {"align", "adapted_ce"}
    assert losses["align"].item() == pytest.approx(align, rel=1e-3)
    assert losses["adapted_ce"].item() == pytest.approx(ce, rel=1e-4)


@pytest.mark.parametrize("pairs", ["task", "task+memory"])
def test_rows_of_stage_two(pairs):
    made = fan(f"fan.pairs={pairs}", "fan.epochs=5", "fan.lr=0.02", steps=0)
    stage, data = made.method.stages()[1], made.data(2)
    assert (stage.name, stage.epochs, stage.lr, stage.statistics) == ("adapt", 5, 0.02, False)
    assert (stage.optimiser, stage.schedule, stage.weight_decay, stage.batching) == ("adam", "constant", 0, "natural")
    assert {id(p) for p in stage.parameters()} == {id(p) for p in made.method.network.psi.parameters()}
    new, memory = stage.rows
    np.testing.assert_array_equal(new, data.new)
    np.testing.assert_array_equal(memory, data.memory if pairs == "task+memory" else [])


def test_psi_learns_how_phi_moved():
    made = fan(steps=4)
    old, now = made.method.teacher.phi, made.method.extractor()
    rows = made.rows(range(8))
    v, target = made.apply(old, rows), unit(made.apply(now, rows))
    before = (unit(v) * target).sum(1).mean()
    adapt(made, 60)
    after = (made.method.adapt_gallery(v).double().numpy() * target).sum(1).mean()
    assert before < 0.98
    assert after > before + 0.3 * (1 - before)
    made.method.end_task()
    used = np.concatenate([made.data(2).new, made.data(2).memory])
    cosines = (made.method.adapt_gallery(made.apply(old, used)).double().numpy() * unit(made.apply(now, used))).sum(1)
    assert made.method.diagnostics()["adapt_cosine"] == pytest.approx(cosines.mean(), abs=1e-5)


def test_psi_is_close_to_the_identity_if_phi_did_not_move(tiny: Path, whole: "Run") -> None:
    made = fan(steps=2, task=1)
    made.begin(2)  # and no step of stage 1: φ_2 = φ_1
    features = made.apply(made.method.extractor(), made.rows(range(12)))
    torch.testing.assert_close(made.method.adapt_gallery(features), nn.functional.normalize(features))
    adapt(made, 60)
    adapted = made.method.adapt_gallery(features)
    cosines = (adapted.double().numpy() * unit(features)).sum(1)
    assert cosines.min() > 0.97
    pairs, spec = whole.result.plan.report_pairs, whole.result.plan.config.eval
    stored = torch.from_numpy(whole.opened(1))
    galleries = {(1, 0): Features(made.method.adapt_gallery(stored).numpy())}
    matrix = Evaluator(pairs, spec)(ChainFeatures([Features(stored.numpy())] * 2, galleries)).matrix
    assert matrix[1, 0] == pytest.approx(matrix[0, 0], abs=0.05)


def test_psi_normalises_its_input_and_its_output():
    made = fan(steps=0)
    scramble(made.method.network.psi, scale=0.1)
    features = torch.randn(9, 64, generator=torch.Generator().manual_seed(1))
    adapted = made.method.adapt_gallery(features)
    np.testing.assert_allclose(adapted.numpy(), slow_psi(made.method.network.psi, features), atol=1e-5)
    torch.testing.assert_close(adapted.norm(dim=1), torch.ones(9))
    torch.testing.assert_close(made.method.adapt_gallery(5 * features), adapted)
    assert not adapted.requires_grad
    assert made.method.network.psi.hidden.weight.shape == (16 * 64, 64)


def test_the_first_task_has_no_psi():
    made = fan(task=1)
    features = torch.randn(3, 64)
    assert torch.equal(made.method.adapt_gallery(features), features)
    assert [stage.name for stage in made.method.stages()] == ["train"]
    assert not any(name.startswith("psi") for name in made.method.network.state_dict())
    made.method.end_task()
    assert set(made.method.diagnostics()) == {"lambda", "eta"}


def test_psi_is_fresh_every_task_and_draws_from_its_own_stream():
    state = torch.get_rng_state()
    made = fan(task=1)
    made.begin(2)
    assert torch.equal(torch.get_rng_state(), state)
    second = copy.deepcopy(made.method.network.psi)
    scramble(made.method.network.psi)
    made.begin(3)
    third, again = made.method.network.psi, fan(task=3).method.network.psi
    assert fingerprint(third) == fingerprint(again)
    assert not torch.equal(third.hidden.weight, second.hidden.weight)
    assert not third.out.weight.any()


def test_a_restored_method_has_the_same_psi():
    trained, restored = fan(), fan(steps=1)  # a method that has a ψ of its own can also be restored
    adapt(trained, 2)
    carried = trained.method.carry()
    assert any(name.startswith("psi.") for name in carried)
    restored.method.restore(carried, trained.method.task)
    stored = torch.randn(3, 64)
    assert torch.equal(restored.method.adapt_gallery(stored), trained.method.adapt_gallery(stored))
    assert not torch.equal(restored.method.adapt_gallery(stored), functional.normalize(stored))


def test_without_memory_psi_still_has_its_pairs():
    made = fan(memory=0, steps=0)
    batch = made.batch_of(2, range(4, 8))
    assert set(made.step(batch)) == {"ce", "fd"}
    assert set(made.step(batch, stage=1)) == {"align", "adapted_ce"}


@dataclass
class Run:
    """A finished run, its store, and ψ_2, ψ_3 as they were used."""

    result: RunResult
    root: Path
    maps: dict[int, nn.Module] = field(default_factory=dict)

    def stored(self, task: int, name: str) -> npt.NDArray[np.float32]:
        """Return features stored with link `task`."""
        store = LinkStore(self.root)
        return store.features(self.result.plan.keys[task - 1])[name].numpy()

    def opened(self, task: int) -> npt.NDArray[np.float32]:
        """Return φ_t of the open images."""
        return self.stored(task, "open")


def run(data: Path, root: Path, before_saving=None) -> Run:
    """Train FAN; `before_saving` may change ψ_t when stage 2 is done."""
    maps: dict[int, nn.Module] = {}
    end_task = Fan.end_task

    def remember(method: Fan) -> None:
        if before_saving and method.task.index > 1:
            before_saving(method)
        maps[method.task.index] = copy.deepcopy(method.network.psi)
        end_task(method)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fan, "end_task", remember)
        return Run(train(quick_config(data, FAN), root), root, maps)


@pytest.fixture(scope="module")
def whole(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return an uninterrupted run of three tasks."""
    return run(tiny, tmp_path_factory.mktemp("fan"))


def test_a_run_of_three_tasks(whole: Run) -> None:
    result = whole.result
    assert np.isfinite(result.report.matrix[np.tril_indices(3)]).all()
    for link in result.links[1:]:
        stages = [row["stage"] for row in link.record["curves"]]
        assert stages == ["train"] * EPOCHS + ["adapt"] * ADAPT_EPOCHS
        assert link.record["curves"][-1]["lr"] == 1e-3
        assert 0.5 < link.record["metrics"]["adapt_cosine"] <= 1
        assert link.record["metrics"]["gallery_flops"] == 2 * 2 * (2 * 64) * 64
    assert "adapt_cosine" not in result.links[0].record["metrics"]
    # LUCIR's rule λ_base·√(k_0/k_n), which rises; that of CL²R falls.
    assert [link.record["metrics"]["lambda"] for link in result.links] == pytest.approx([0, 5, 5 * math.sqrt(2)])


def test_progressive_galleries_are_the_composed_maps(whole: Run) -> None:
    """A gallery passes exactly t - k maps in order, ψ_{k+1} first."""
    psi_2, psi_3 = (whole.maps[task] for task in (2, 3))
    expected = {
        (2, 1): slow_psi(psi_2, whole.opened(1)),
        (3, 2): slow_psi(psi_3, whole.opened(2)),
        (3, 1): slow_psi(psi_3, slow_psi(psi_2, whole.opened(1))),
    }
    for (task, k), gallery in expected.items():
        np.testing.assert_allclose(whole.stored(task, f"gallery_{k}"), gallery, atol=1e-5)
    for wrong in (slow_psi(psi_3, whole.opened(1)), slow_psi(psi_2, slow_psi(psi_3, whole.opened(1)))):
        assert np.abs(whole.stored(3, "gallery_1") - wrong).max() > 1e-3
    store = LinkStore(whole.root)
    names = [{name for name in store.features(key) if name.startswith("gallery")} for key in whole.result.plan.keys]
    assert names == [set(), {"gallery_1"}, {"gallery_1", "gallery_2"}]


def test_the_matrix_compares_queries_to_adapted_galleries(whole: Run) -> None:
    models = [Features(whole.opened(task)) for task in (1, 2, 3)]
    galleries = {(t - 1, k - 1): Features(whole.stored(t, f"gallery_{k}")) for t in (2, 3) for k in range(1, t)}
    plan = whole.result.plan
    matrix = Evaluator(plan.report_pairs, plan.config.eval)(ChainFeatures(models, galleries)).matrix
    np.testing.assert_array_equal(whole.result.report.matrix, matrix)


def test_a_random_psi_leaves_self_tests_as_they_are_and_makes_cross_tests_a_guess(
    tiny: Path, tmp_path: Path, whole: Run
) -> None:
    wild = run(tiny, tmp_path, lambda method: scramble(method.network.psi, method.task.index, 3.0))
    matrix = wild.result.report.matrix
    np.testing.assert_array_equal(np.diag(matrix), np.diag(whole.result.report.matrix))
    for task in (1, 2, 3):
        np.testing.assert_array_equal(wild.opened(task), whole.opened(task))
    assert np.diag(matrix).min() > 0.7
    plan, models = wild.result.plan, [Features(whole.opened(1)), Features(whole.opened(2))]
    guesses = [matrix[1, 0], matrix[2, 0], matrix[2, 1]]
    psi = copy.deepcopy(wild.maps[2])
    for seed in range(20):
        scramble(psi, 100 + seed, 3.0)
        galleries = {(1, 0): Features(slow_psi(psi, models[0].body).astype(np.float32))}
        spec = plan.config.eval.model_copy(update={"bootstrap": 0})
        guesses.append(Evaluator(plan.report_pairs, spec)(ChainFeatures(models, galleries)).matrix[1, 0])
    assert np.mean(guesses) == pytest.approx(0.5, abs=0.1)
