"""What a study will cost: counts against real runs and files, speeds, and sums by hand."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from cl2r.augment import Normalise
from cl2r.batches import Batch
from cl2r.config.methods import METHODS
from cl2r.engine import chain as run_module
from cl2r.engine import extraction
from cl2r.engine.chain import RunResult
from cl2r.engine.extraction import extract
from cl2r.engine.links import MANIFEST, RECORD, Link, LinkStore, content_name, owner
from cl2r.engine.loop import TaskLoop
from cl2r.engine.pixels import Pixels, Rows
from cl2r.engine.plan import Plan, plan_run
from cl2r.methods.rehearsal import Rehearsal
from cl2r.storage.path import sha256
from cl2r.storage.seal import sealed
from cl2r.study.cost import (
    CPU,
    GpuAssumption,
    LinkCost,
    StepTimer,
    link_costs,
    measure_flops,
    seconds_here,
    smallest_batch,
    stored_speeds,
)
from cl2r.study.dry_run import DryChain
from tests.support.quick import EPOCHS, blobs, quick_config, train

SHORT: dict[str, Any] = {
    "optim": {"epochs": 1, "lr": 0.01, "milestones": []},
    "eval": {"bootstrap": 0},
    "bic": {"bias_epochs": 3},
    "podnet": {"finetune_epochs": 1},
    "fan": {"epochs": 3},
}
LARGE_FIRST = {"initial": 6, "increment": 3, "n_tasks": None}
LAYERS: dict[str, dict[str, Any]] = {
    "natural": {"batches": {"batching": "natural"}},
    "no memory": {"memory": {"per_class": 0}},
    "all remembered": {"memory": {"per_class": 1000}},
    "odd batch": {"batches": {"size": 15}},
    "balanced, batch above all rows": {"batches": {"size": 200}},
    "natural, batch above all rows": {"batches": {"size": 200, "batching": "natural"}},
    "preallocated": {"method": {"name": "er_fd"}, "head": {"preallocate": True, "k_max": 20, "centre": True}},
    "no projection": {"method": {"name": "er_fdm"}, "head": {"projection": "none"}},
    "first two tasks": {"scenario": {"stop_after": 2}},
    "herding": {"memory": {"selection": "herding"}},
    **{name: {"method": {"name": name}} for name in METHODS},
}


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 classes of 2 to 13 images: some below the quota of 3."""
    x, y = blobs(12, np.random.default_rng(3))
    x_open, y_open = blobs(6, np.random.default_rng(4))
    keep = np.concatenate([np.flatnonzero(y == label)[: 2 + label] for label in range(12)])
    path = tmp_path_factory.mktemp("uneven") / "uneven.npz"
    np.savez(path, x_train=x[keep], y_train=y[keep], x_open=x_open, y_open=y_open + 100)
    return path


@pytest.fixture
def plan(tiny: Path) -> Plan:
    return plan_run(quick_config(tiny))


def assert_as_counted(result: RunResult, root: Path) -> list[LinkCost]:
    """Check counts against the records and files of real links."""
    costs = link_costs(result.plan)
    assert [(cost.task, cost.key) for cost in costs] == [(link.task, link.key) for link in result.links]
    for cost, link in zip(costs, result.links, strict=True):
        assert cost.images == link.record["images"]
        stored = sum(path.stat().st_size for path in (root / "links" / cost.key).glob("*.safetensors"))
        assert cost.disk_bytes == pytest.approx(stored, rel=0.05)
    return costs


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())
def test_counts_equal_a_real_run(
    layer: dict[str, Any], tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All FLOPs of a run within 2 %: natural batches leave out a few rows, and diagnostics take some more."""
    extracted: list[int] = []

    def noted(extractor: torch.nn.Module, pixels: Pixels, rows: Rows, normalise: Normalise) -> Tensor:
        extracted.append(len(rows))
        return extract(extractor, pixels, rows, normalise)

    for module in (run_module, extraction):
        monkeypatch.setattr(module, "extract", noted)
    with FlopCounterMode(display=False) as counter:
        result = train(quick_config(tiny, SHORT, layer), tmp_path)
    costs = assert_as_counted(result, tmp_path)
    assert sum(cost.extracted for cost in costs) == sum(extracted)
    total = sum(cost.flops + cost.extracted_flops for cost in costs)
    assert total == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_an_adapter_costs_nothing(tiny: Path) -> None:
    plain, adapted = (plan_run(quick_config(tiny, {"method": {"name": name}})) for name in ("er", "er+procrustes"))
    assert link_costs(adapted) == link_costs(plain)


def test_memory_of_classes_below_the_quota(uneven: Path, tmp_path: Path) -> None:
    result = train(quick_config(uneven, SHORT, {"seed": 5}), tmp_path)
    assert_as_counted(result, tmp_path)
    chain = DryChain(result.plan, CPU)
    assert [len(chain.begin().memory) for _ in result.links] == [link.record["memory"] for link in result.links]


def test_counts_by_hand(plan: Plan) -> None:
    """4 classes of 14 images per task, batches of 16: 3 from 56 rows, 4 from 56+12, 5 from 56+24."""
    costs = link_costs(plan)
    assert [cost.steps for cost in costs] == [3 * EPOCHS, 4 * EPOCHS, 5 * EPOCHS]
    assert [cost.images for cost in costs] == [3 * 16 * EPOCHS, 4 * 16 * EPOCHS, 5 * 16 * EPOCHS]
    assert [cost.extracted for cost in costs] == [84 + 56, 84 + 2 * 68, 84 + 2 * 80]


def test_links_of_one_speed_share_a_group(tiny: Path) -> None:
    def group(layer: dict[str, Any]) -> str:
        groups = {cost.speed_group for cost in link_costs(plan_run(quick_config(tiny, layer)))}
        assert len(groups) == 1
        return groups.pop()

    usual = group({})
    assert group({"seed": 3, "optim": {"lr": 0.01}, "memory": {"per_class": 5}}) == usual
    assert group({"method": {"name": "podnet"}}) == usual
    others: list[dict[str, Any]] = [
        {"backbone": {"name": "resnet20"}},
        {"batches": {"size": 32}},
        {"optim": {"precision": "bf16"}},
    ]
    assert len({usual, *map(group, others)}) == len(others) + 1


@pytest.mark.parametrize(
    ("layer", "rows"),
    [
        ({}, 16),
        ({"batches": {"size": 200}}, 56),
        ({"batches": {"size": 60, "batching": "natural"}, "memory": {"per_class": 1}}, 56),
        ({"batches": {"size": 60}, "scenario": {"n_tasks": 1}}, 60),
        ({"batches": {"size": 60}, "scenario": LARGE_FIRST}, 60),
        ({"batches": {"size": 60, "batching": "natural"}, "scenario": LARGE_FIRST}, 60),
        ({"batches": {"size": 60}, "memory": {"per_class": 0}, "scenario": LARGE_FIRST}, 42),
        ({"batches": {"size": 200}, "method": {"name": "bic"}}, 56),  # its bias has no batch norm and 8 rows per batch
    ],
)
def test_the_smallest_batch_by_hand(layer: dict[str, Any], rows: int, tiny: Path) -> None:
    assert smallest_batch(plan_run(quick_config(tiny, layer))) == rows


def invented(key: str, group: str = "g", images: int = 900) -> LinkCost:
    return LinkCost(key, 1, images, images // 100, 1e6 * images, 300, 1e8, 5_000_000, group)


def store_record(root: Path, key: str, text: str) -> None:
    store = LinkStore(root)
    store.save(key, Link({}, {}, {}))
    (old,) = (store.root / key).list(f"*{RECORD}")
    manifest = store.manifest(key) | {RECORD: sha256(text.encode())}
    old.with_name(content_name(manifest[RECORD], RECORD)).write_text(text)
    (store.root / key / MANIFEST).write_file(sealed(json.dumps(manifest).encode(), owner(key)))


def test_speeds_of_stored_links_by_group(tmp_path: Path) -> None:
    for key, seconds in {"a": 1.0, "b": 2.0, "c": 10.0, "d": 4.0}.items():
        store_record(tmp_path, key, json.dumps({"seconds": seconds}))
    store_record(tmp_path, "damaged", '{"images": 10')
    store_record(tmp_path, "timeless", '{"seconds": 0.0}')
    for key in ("shared-cpu2", "a-cpu2", "a-cuda1", "a-mixed0123456789ab"):
        store_record(tmp_path, key, '{"seconds": 3.0}')
    keys = ["a", "b", "c", "damaged", "timeless", "shared", "absent"]
    costs = [*map(invented, keys), invented("d", "h"), invented("e", "i")]
    found = {"g": [9e8, 4.5e8, 9e7], "h": [2.25e8]}
    assert stored_speeds(tmp_path, costs, "cpu") == found
    assert stored_speeds(tmp_path, costs, "cuda") == {"g": [3e8]}
    assert stored_speeds(tmp_path, [*costs, *[invented("a")] * 5], "cpu") == found, "a shared link counts once"
    assert stored_speeds(tmp_path / "none", costs, "cpu") == {}


def test_speed_of_a_real_run(finished: RunResult, finished_root: Path) -> None:
    costs = link_costs(finished.plan)
    speeds = [cost.flops / link.record["seconds"] for cost, link in zip(costs, finished.links, strict=True)]
    assert stored_speeds(finished_root, costs, "cpu") == {costs[0].speed_group: speeds}


@pytest.mark.parametrize(
    "layer",
    [
        {},
        {"method": {"name": "er"}},
        {"method": {"name": "bic"}},
        {"scenario": {"n_tasks": 1}},
        {"memory": {"per_class": 0}},
        {"optim": {"lr": 1e30}},
    ],
    ids=["cl2r", "er", "bic", "one task", "no memory", "huge learning rate"],
)
def test_calibration_trains_and_writes_nothing(
    layer: dict[str, Any], tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tasks: list[int] = []
    real = TaskLoop.batches

    def noted(loop: TaskLoop, task: int, *arguments: Any) -> Iterator[Batch]:
        tasks.append(task)
        return real(loop, task, *arguments)

    monkeypatch.setattr(TaskLoop, "batches", noted)
    plan = plan_run(quick_config(tiny, layer))
    before = torch.random.get_rng_state()
    assert measure_flops(plan, CPU, seconds=0.0) > 0
    steps = StepTimer.at_second_task(plan, CPU)
    weights = [parameter.clone() for parameter in steps.network.parameters()]
    assert steps.take(3).images > 0
    assert all(torch.equal(one, other) for one, other in zip(weights, steps.network.parameters(), strict=True))
    assert set(tasks) == {min(2, len(plan.keys))}
    assert list(tmp_path.iterdir()) == []
    assert torch.equal(before, torch.random.get_rng_state())


def test_calibration_is_flops_over_the_time_of_its_steps(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock advances one second per step; two steps count FLOPs and two warm up."""
    now, real = 0.0, Rehearsal.loss

    def slow(self: Rehearsal, *arguments: Any) -> Any:
        nonlocal now
        now += 1.0
        return real(self, *arguments)

    second = link_costs(plan)[1]
    step = pytest.approx(16 * second.flops / second.images)
    monkeypatch.setattr(Rehearsal, "loss", slow)
    monkeypatch.setattr("time.perf_counter", lambda: now)
    assert measure_flops(plan, CPU, seconds=4.5) == step
    assert now == 2 + 2 + 5
    assert measure_flops(plan, CPU, seconds=0.0) == step
    assert now == 9 + 2 + 2 + 3, "at least three steps"


def test_time_is_the_sum_of_links_at_the_median_speed_of_their_group() -> None:
    costs, speeds = [invented("a"), invented("b", "h", images=1900)], {"g": [1e8, 1.0, 1e9], "h": [5e7]}
    assert seconds_here(costs, speeds, 1) == pytest.approx(1000 / 100 + 2000 / 50)
    assert seconds_here(costs, speeds, 2) == seconds_here(costs, speeds, 1) / 2
    assert seconds_here([], {}, 1) == 0


def test_a_gpu_step_takes_its_flops_but_at_least_its_launches() -> None:
    assert GpuAssumption(sustained_flops=1e6).seconds(invented("a")) == pytest.approx(1000)
    assert GpuAssumption(sustained_flops=1e15, step_seconds=0.5).seconds(invented("a")) == pytest.approx(9 * 0.5)
