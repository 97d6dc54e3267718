"""Properties of the six rehearsal cells on small random images: what they share and where exactly they differ."""

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch.nn import functional

from cl2r.batches import Batch
from cl2r.config.builtin import ABLATION_CELLS
from cl2r.config.layers import resolve
from cl2r.methods.base import TaskInfo, build_method
from tests.support.quick import no_data
from tests.support.slow_losses import slow_ce, slow_fd

OUTPUTS = 7
FIRST, SECOND = TaskInfo(1, 0, 2, 0), TaskInfo(2, 2, 3, 4)
FIXED = ["fixed", "fixed_fd", "cl2r"]
TRAINABLE = ["er", "er_fd", "er_fdm"]


def make(name, *layers, seed=3):
    small = {"seed": seed, "backbone": {"name": "resnet8s"}, "method": {"name": name}}
    return build_method(resolve([small, *layers]), channels=3, num_outputs=OUTPUTS)


def rows(count, labels, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, 8, 8, generator=generator)
    return x, torch.randint(labels.start, labels.stop, (count,), generator=generator)


def batch_of(task, memory=4, new=4, seed=0):
    """Return a batch with memory rows (classes 0, 1) before new rows; task 1 has no memory."""
    if task == 1:
        return Batch.of_one_worker(*rows(memory + new, range(2), seed))
    parts = zip(rows(memory, range(2), seed), rows(new, range(2, 5), seed + 1000), strict=True)
    return Batch.of_one_worker(*(torch.cat(pair) for pair in parts), range(memory))


def train(method, batches, lr=0.05):
    optimiser = torch.optim.SGD(method.network.parameters(), lr, momentum=0.9, weight_decay=2e-4)
    method.network.train()
    for batch in batches:
        optimiser.zero_grad()
        sum(method.loss(batch, method.network).values()).backward()
        optimiser.step()


def after_first(name, *layers):
    """Return a method at the end of task 1."""
    method = make(name, *layers)
    method.begin_task(FIRST, no_data())
    train(method, [batch_of(1, seed=s) for s in range(3)])
    return method


def in_second(name, *layers, steps=3, task=SECOND):
    """Return a method some steps into task 2, in eval mode; student and teacher differ unless `steps` is 0."""
    method = after_first(name, *layers)
    method.begin_task(task, no_data())
    train(method, [batch_of(2, seed=s) for s in range(10, 10 + steps)])
    method.network.eval()
    return method


def losses(method, batch):
    return {name: value.item() for name, value in method.loss(batch, method.network).items()}


def assert_same_tensors(first, second):
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def weights(method):
    return method.network.state_dict()


@cache
def initial_phi(name, projection="linear"):
    return {k: v.clone() for k, v in make(name, {"head": {"projection": projection}}).network.phi.state_dict().items()}


@pytest.mark.parametrize("projection", ["linear", "mlp"])
@pytest.mark.parametrize("name", ABLATION_CELLS)
def test_cells_share_their_initial_weights(name, projection):
    torch.manual_seed(len(name))
    assert_same_tensors(initial_phi(name, projection), initial_phi("er", projection))


def test_initial_weights_follow_the_seed_and_not_the_global_state():
    before = torch.get_rng_state()
    first, other = make("cl2r", seed=0), make("cl2r", seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(first.network.phi[0].conv1.weight, other.network.phi[0].conv1.weight)
    assert not torch.equal(first.network.phi[2].weight, other.network.phi[2].weight)


@pytest.mark.parametrize("names", [FIXED, TRAINABLE])
def test_the_first_task_does_not_depend_on_distillation(names):
    first = weights(after_first(names[0]))
    for name in names[1:]:
        method = after_first(name)
        assert method.teacher is None
        assert method.diagnostics() == {"lambda": 0}
        assert_same_tensors(weights(method), first)


def test_a_fixed_classifier_has_no_parameter():
    for name in FIXED:
        method = in_second(name, steps=0)
        assert all(key.startswith("phi.") for key in weights(method))
    trainable = [key for key, _ in in_second("er", steps=0).network.named_parameters() if not key.startswith("phi.")]
    assert trainable == ["classifier.weight"]


@pytest.mark.parametrize("name", ["cl2r", "fixed_fd", "er_fdm", "er_fd"])
def test_the_first_step_of_a_task_distils_nothing(name):
    method, batch = in_second(name, steps=0), batch_of(2)
    terms = method.loss(batch, method.network)
    assert abs(terms["fd"].item()) < 1e-6 * method.weight
    parameters = [method.network.phi[2].weight, method.network.phi[0].conv1.weight]
    pulls = torch.autograd.grad(terms["fd"], parameters, retain_graph=True)
    for pull, push in zip(pulls, torch.autograd.grad(terms["ce"], parameters), strict=True):
        assert pull.norm() < 1e-4 * push.norm()


@pytest.mark.parametrize(("name", "part"), [("cl2r", slice(0, 4)), ("fixed_fd", slice(0, 8))])
@pytest.mark.parametrize("rule", ["new_over_old", "old_over_new"])
def test_distillation_term_against_a_loop(name, part, rule):
    layer = {"method": {"lambda_base": 3.0, "lambda_rule": rule}}
    old_model, method, batch = after_first(name, layer).extractor(), in_second(name, layer), batch_of(2)
    with torch.no_grad():
        new, old = method.network(batch.x).features[part], old_model(batch.x)[part]
    weight = 3 * math.sqrt(3 / 2 if rule == "new_over_old" else 2 / 3)
    assert method.diagnostics() == {"lambda": pytest.approx(weight)}
    distance = slow_fd(new, old)
    assert distance > 1e-3
    assert losses(method, batch)["fd"] == pytest.approx(weight * distance, rel=1e-3)


def test_distillation_on_memory_ignores_new_images():
    on_memory, on_all, batch = in_second("cl2r"), in_second("fixed_fd"), batch_of(2)
    other = replace(batch, x=torch.cat([batch.x[:4], batch_of(2, seed=77).x[4:]]))
    before, after = losses(on_memory, batch), losses(on_memory, other)
    assert before["fd"] > 1e-3
    assert after["fd"] == pytest.approx(before["fd"], abs=1e-6)
    assert after["ce"] != pytest.approx(before["ce"], abs=1e-3)
    assert losses(on_all, other)["fd"] != pytest.approx(losses(on_all, batch)["fd"], abs=1e-4)


@pytest.mark.parametrize(("on_all", "on_memory"), [("fixed_fd", "cl2r"), ("er_fd", "er_fdm")])
def test_both_kinds_agree_on_a_batch_of_memory_only(on_all, on_memory):
    wide, narrow = in_second(on_all, steps=0), in_second(on_memory, steps=0)
    moved = weights(in_second(on_memory))
    wide.network.load_state_dict(moved)
    narrow.network.load_state_dict(moved)
    only_memory, mixed = batch_of(2, memory=8, new=0), batch_of(2)
    assert losses(wide, only_memory)["fd"] > 1e-3
    assert losses(wide, only_memory) == pytest.approx(losses(narrow, only_memory), abs=1e-6)
    assert losses(wide, mixed)["fd"] != pytest.approx(losses(narrow, mixed)["fd"], abs=1e-4)


@pytest.mark.parametrize("name", ABLATION_CELLS)
def test_memory_rows_may_have_any_position_in_a_batch(name):
    method, batch = in_second(name), batch_of(2)
    for order in (torch.arange(8).flip(0), torch.randperm(8, generator=torch.Generator().manual_seed(1))):
        shuffled = Batch.of_one_worker(batch.x[order], batch.y[order], (order < 4).nonzero()[:, 0].tolist())
        assert losses(method, shuffled) == pytest.approx(losses(method, batch), abs=1e-5)


@pytest.mark.parametrize("name", ["cl2r", "fixed_fd", "er_fdm", "er_fd"])
def test_without_memory_distillation_is_skipped_unless_configured(name):
    empty, batch = replace(SECOND, memory_rows=0), batch_of(2, memory=0, new=8)
    skipping = in_second(name, task=empty, steps=0)
    assert set(losses(skipping, batch)) == {"ce"}
    assert skipping.diagnostics() == {"lambda": 0}
    method = in_second(name, {"method": {"fd_when_no_memory": "on_new"}}, task=empty)
    old_model = after_first(name).extractor()
    with torch.no_grad():
        distance = slow_fd(method.network(batch.x).features, old_model(batch.x))
    assert losses(method, batch)["fd"] == pytest.approx(method.weight * distance, rel=1e-3)
    assert method.weight > 0


@pytest.mark.parametrize("name", ["er", "fixed"])
def test_cells_without_distillation_have_no_teacher(name):
    method = in_second(name, {"method": {"fd_when_no_memory": "on_new"}}, steps=0)
    assert method.teacher is None
    assert set(losses(method, batch_of(2))) == {"ce"}


@pytest.mark.parametrize(
    ("name", "head", "outputs"),
    [
        ("er", {}, 5),
        ("er", {"mask_unseen": True}, 5),
        ("er", {"preallocate": True}, OUTPUTS),
        ("er", {"preallocate": True, "mask_unseen": True}, 5),
        ("fixed", {}, OUTPUTS),
        ("fixed", {"preallocate": True}, OUTPUTS),
        ("fixed", {"mask_unseen": True}, 5),
        ("cl2r", {}, OUTPUTS),
        ("cl2r", {"mask_unseen": True}, 5),
        ("upper_bound", {}, OUTPUTS),
        ("upper_bound", {"mask_unseen": True}, 5),
        ("cores", {"mask_unseen": True}, 5),
    ],
)
def test_head_options_choose_the_outputs_of_the_softmax(name, head, outputs):
    method, batch = in_second(name, {"head": head}), batch_of(2)
    with torch.no_grad():
        logits = method.network(batch.x).logits
    values = {n: slow_ce(logits[:, :n], batch.y) for n in (5, logits.shape[1])}
    assert losses(method, batch)["ce"] == pytest.approx(values[outputs], abs=1e-5)
    if logits.shape[1] == OUTPUTS:
        assert values[5] < values[OUTPUTS] - 1e-3


@pytest.mark.parametrize("name", FIXED)
def test_fixed_logits_are_simplex_logits(name):
    out = in_second(name, {"simplex": {"scale": 2.0}}, steps=0).network(batch_of(2).x)
    k, f = OUTPUTS, out.features
    raw = torch.cat([torch.eye(k - 1), torch.full((1, k - 1), (1 - math.sqrt(k)) / (k - 1))])
    vertices = functional.normalize(raw - raw.mean(0))
    torch.testing.assert_close(out.logits, 2 * f @ vertices.T, atol=1e-4, rtol=1e-4)


def test_a_preallocated_head_never_grows():
    method = make("er", {"head": {"preallocate": True}})
    method.begin_task(FIRST, no_data())
    first = weights(method)["classifier.weight"].clone()
    method.begin_task(SECOND, no_data())
    assert first.shape == (OUTPUTS, OUTPUTS - 1)
    assert torch.equal(weights(method)["classifier.weight"], first)


@pytest.mark.parametrize("name", TRAINABLE)
def test_the_optimiser_of_a_task_sees_the_grown_head(name):
    method = in_second(name, {"optim": {"lr": 0.1, "lr_later": 0.02, "epochs": 7}}, steps=0)
    (stage,) = method.stages()
    assert (stage.epochs, stage.lr) == (7, 0.02)
    assert any(p is method.network.classifier.weight for p in stage.parameters())
    assert set(stage.loss(batch_of(2), method.network)) == set(losses(method, batch_of(2)))


def test_learning_rates_of_first_and_later_tasks():
    for later, rates in ((0.02, [0.1, 0.02]), (None, [0.1, 0.1])):
        method = make("cl2r", {"optim": {"lr": 0.1, "lr_later": later}})
        for task, rate in zip((FIRST, SECOND), rates, strict=True):
            method.begin_task(task, no_data())
            assert method.stages()[0].lr == rate


def test_without_projection_the_feature_is_the_backbones():
    method, x = in_second("er_fdm", {"head": {"projection": "none"}}), batch_of(2).x
    features = method.network(x).features
    assert features.shape == (8, 64)
    assert torch.equal(features, method.network.phi[0](x))
    assert method.extractor()(x).shape == (8, 64)


@pytest.mark.parametrize("name", ABLATION_CELLS)
def test_extractor_gives_the_features_of_the_network_in_eval_mode(name):
    method, x = in_second(name), batch_of(2).x
    expected = method.network(x).features.detach()
    method.network.train()
    extractor = method.extractor()
    assert expected.shape == (8, OUTPUTS - 1)
    torch.testing.assert_close(extractor(x), expected, atol=1e-5, rtol=1e-5)
    assert method.network.training
    assert all(p.requires_grad for p in method.network.parameters())


def test_carried_tensors_do_not_follow_later_training():
    method = after_first("er")
    carried = method.carry()
    before = {name: tensor.clone() for name, tensor in carried.items()}
    train(method, [batch_of(1, seed=9)])
    assert_same_tensors(carried, before)
    assert not any(tensor.requires_grad for tensor in carried.values())
    assert not torch.equal(weights(method)["phi.2.weight"], before["phi.2.weight"])
