"""FLOPs of untrained chains against multiply-adds counted by hand, and what is counted only once."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cl2r.engine.plan import Plan, plan_run
from cl2r.methods.base import build_method
from cl2r.methods.rehearsal import Rehearsal
from cl2r.study.cost import CPU, link_costs
from cl2r.study.dry_run import DryChain, FlopCache
from tests.support.quick import quick_config

NEW_CLASSES, OUTPUTS = 4, 12


def plan_of(data: Path, name: str, **layer: Any) -> Plan:
    return plan_run(quick_config(data, {"method": {"name": name}}, layer))


def macs_of_phi(plan: Plan) -> tuple[int, int]:
    """Return the multiply-adds of φ, and of its first convolution, from the shapes that pass through."""
    method = build_method(plan.config, plan.dataset.channels, plan.num_outputs)
    assert isinstance(method, Rehearsal)
    macs: list[int] = []

    def count(module: nn.Module, _: Any, out: torch.Tensor) -> None:
        assert isinstance(module, nn.Conv2d | nn.Linear)
        positions = out[0, 0].numel() if isinstance(module, nn.Conv2d) else 1
        macs.append(positions * module.weight.numel())

    for module in method.network.phi.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(count)
    height, width, channels = plan.dataset.x_open.shape[1:]
    method.network.phi.eval()(torch.zeros(1, channels, height, width))
    return sum(macs), macs[0]


def row_flops(plan: Plan) -> list[float]:
    """Return FLOPs per row of the only stage in the first two tasks."""
    chain, counted = DryChain(plan, CPU), []
    for _ in range(2):
        chain.begin()
        counted.append(chain.row_flops(0, chain.stages()[0]))
        chain.method.end_task()
    return counted


@pytest.mark.parametrize("backbone", ["resnet8s", "resnet32"])
@pytest.mark.parametrize(
    ("name", "layer", "share"),
    [
        ("er", {}, 0.0),
        ("er_fd", {}, 1.0),
        ("er_fdm", {}, 0.5),
        ("cl2r", {"batches": {"size": 17}}, 8 / 17),
        ("cl2r", {"batches": {"batching": "natural"}}, 12 / 68),
        ("cl2r", {"memory": {"per_class": 0}}, 0.0),
        ("cl2r", {"memory": {"per_class": 0}, "method": {"fd_when_no_memory": "on_new"}}, 1.0),
        ("fixed_fd", {"method": {"lambda_base": 0.0}}, 0.0),
    ],
)
def test_a_step_is_three_passes_and_one_of_the_teacher(
    name: str, layer: dict[str, Any], share: float, backbone: str, tiny: Path
) -> None:
    """Two FLOPs per multiply-add; no gradient reaches the images, and the d-Simplex needs no products."""
    plan = plan_run(quick_config(tiny, {"method": {"name": name}, "backbone": {"name": backbone}}, layer))
    phi, stem = macs_of_phi(plan)
    trainable = plan.config.method.classifier == "trainable"
    heads = [3 * k * (OUTPUTS - 1) for k in (NEW_CLASSES, 2 * NEW_CLASSES)] if trainable else [0, 0]
    first, second = row_flops(plan)
    assert first == 2 * (3 * phi - stem + heads[0])
    assert second == pytest.approx(2 * (3 * phi - stem + heads[1] + share * phi))


def test_a_method_gets_noise_of_the_right_shape(tiny: Path) -> None:
    plan = plan_of(tiny, "er")
    chain = DryChain(plan, CPU)
    data = chain.begin()
    assert (chain.features().shape, chain.features().flops) == ((OUTPUTS - 1,), 2 * macs_of_phi(plan)[0])
    assert isinstance(chain.method, Rehearsal)
    seen: list[int] = []
    phi = chain.method.network.phi
    phi.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    assert data.apply(phi, data.new).shape == (56, OUTPUTS - 1)
    assert data.apply(phi, data.new[:5]).shape == (5, OUTPUTS - 1)
    assert data.apply(phi, data.new[:0]).shape == (0, OUTPUTS - 1)
    assert seen == [2]
    assert data.apply(nn.Flatten(), data.new[:3]).shape == (3, 256)
    assert chain.extracted_rows == 64
    assert chain.extracted_flops == 61 * 2 * macs_of_phi(plan)[0]


def test_the_global_random_state_is_untouched(tiny: Path) -> None:
    before = torch.random.get_rng_state()
    link_costs(plan_of(tiny, "lucir"))
    assert torch.equal(before, torch.random.get_rng_state())


def counted(data: Path, *layers: dict[str, Any]) -> list[int]:
    """Return how many entries the cache has after each run."""
    known: FlopCache = {}
    sizes = []
    for layer in layers:
        link_costs(plan_run(quick_config(data, layer)), known)
        sizes.append(len(known))
    return sizes


def test_equal_steps_are_counted_once(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known: FlopCache = {}
    costs = link_costs(plan_of(tiny, "cl2r"), known)
    monkeypatch.setattr(Rehearsal, "loss", lambda *_: pytest.fail("counted again"))
    assert link_costs(plan_of(tiny, "cl2r"), known) == costs
    other = link_costs(
        plan_of(tiny, "cl2r", seed=1, optim={"lr": 0.5}, method={"name": "cl2r", "lambda_base": 2.0}), known
    )
    assert [cost.flops for cost in other] == [cost.flops for cost in costs]
    assert not {cost.key for cost in other} & {cost.key for cost in costs}


@pytest.mark.parametrize(
    "layer",
    [
        {"method": {"name": "er"}},
        {"method": {"name": "cl2r", "lambda_base": 0.0}},
        {"memory": {"per_class": 0}},
        {"backbone": {"name": "resnet20"}},
        {"head": {"k_max": 50}},
    ],
)
def test_other_work_is_counted_separately(layer: dict[str, Any], tiny: Path) -> None:
    one, two = counted(tiny, {}, layer)
    assert two > one


def test_methods_with_an_equal_first_task_share_its_count(tiny: Path) -> None:
    """Task 1: a step and the features. Later: the same of two kinds of rows, shared by tasks 2 and 3."""
    assert counted(tiny, {"method": {"name": "lwf_er"}}, {"method": {"name": "wa"}}) == [5, 8]


def test_a_network_that_grows_is_counted_at_every_task(tiny: Path) -> None:
    assert counted(tiny, {"method": {"name": "der_trunc"}}) == [8]
    costs = link_costs(plan_of(tiny, "der_trunc"))
    per_row = [cost.flops / cost.images for cost in costs]
    assert per_row[2] - per_row[1] == pytest.approx(per_row[1] - per_row[0], rel=0.02), "one more forward pass per task"
