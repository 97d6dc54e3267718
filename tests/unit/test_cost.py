"""What a study will cost: counts against what real runs recorded, sizes against real files, sums against plain ones."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from quick import EPOCHS, TASKS, blobs, quick_config, train
from torch import nn

from cl2r.engine.run import Plan, RunResult, plan_run, training_images
from cl2r.engine.task_loop import TaskLoop
from cl2r.methods.base import Batch, TaskInfo
from cl2r.methods.registry import build_method
from cl2r.methods.rehearsal import Rehearsal
from cl2r.study import cost as costs_module
from cl2r.study.cost import (
    Estimate,
    GpuAssumption,
    LinkCost,
    calibrate,
    describe,
    estimate,
    flops_per_image,
    link_costs,
    link_flops,
    measured_speed,
    memory_rows,
    speed_source,
)

SHORT: dict[str, Any] = {"optim": {"epochs": 2}, "eval": {"bootstrap": 0}}
LAYERS: dict[str, dict[str, Any]] = {
    "balanced": {},
    "natural": {"batches": {"batching": "natural"}},
    "no memory": {"memory": {"per_class": 0}},
    "all remembered": {"memory": {"per_class": 1000}},
    "odd batch": {"batches": {"size": 15}},
    "balanced, batch above all rows": {"batches": {"size": 200}},
    "natural, batch above all rows": {"batches": {"size": 200, "batching": "natural"}},
    "trainable classifier": {"method": {"name": "er"}},
    "preallocated": {"method": {"name": "er_fd"}, "head": {"preallocate": True, "k_max": 20, "centre": True}},
    "no projection": {"method": {"name": "er_fdm"}, "head": {"projection": "none"}},
    "first two tasks": {"scenario": {"stop_after": 2}},
    "herding": {"memory": {"selection": "herding"}},
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


def tensor_bytes(root: Path, key: str) -> int:
    return sum(path.stat().st_size for path in (root / "links" / key).glob("*.safetensors"))


def assert_as_counted(result: RunResult, root: Path) -> None:
    """Every link took what was foreseen."""
    costs = link_costs(result.plan)
    assert [(cost.task, cost.key) for cost in costs] == [(link.task, link.key) for link in result.links]
    for cost, link in zip(costs, result.links, strict=True):
        assert cost.images == link.record["images"]
        assert memory_rows(result.plan, cost.task) == link.record["memory"]
        assert cost.disk_bytes == pytest.approx(tensor_bytes(root, cost.key), rel=0.02)


# ---------------------------------------------------------------- counts


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())
def test_a_real_run_takes_what_was_counted(layer: dict[str, Any], tiny: Path, tmp_path: Path) -> None:
    assert_as_counted(train(quick_config(tiny, SHORT, layer), tmp_path), tmp_path)


def test_small_classes_give_all_they_have_to_the_memory(uneven: Path, tmp_path: Path) -> None:
    result = train(quick_config(uneven, SHORT, {"seed": 5}), tmp_path)
    assert_as_counted(result, tmp_path)
    sizes = np.bincount(result.plan.dataset.y_train)
    old = [label for task in result.plan.scenario.tasks[:2] for label in task.classes]
    assert memory_rows(result.plan, 3) == sum(min(3, int(sizes[label])) for label in old)


def test_counts_by_hand(plan: Plan) -> None:
    """4 classes of 14 images a task, batches of 16: 3 from 56 rows, 4 from 56+12, 5 from 56+24."""
    assert [cost.images for cost in link_costs(plan)] == [3 * 16 * EPOCHS, 4 * 16 * EPOCHS, 5 * 16 * EPOCHS]
    assert {cost.open_images for cost in link_costs(plan)} == {84}


def rows_seen(plan: Plan, task: int) -> Iterator[int]:
    """How many rows of each batch the teacher of a real method is shown."""
    method = build_method(plan.config, plan.dataset.channels, plan.num_outputs)
    assert isinstance(method, Rehearsal)
    memory = np.concatenate([np.empty(0, np.int64), *map(first_rows(plan), plan.scenario.tasks[: task - 1])])
    labels = plan.scenario.tasks[task - 1].labels
    method.begin_task(TaskInfo(task, labels.start, len(labels), len(memory)))
    seen: list[int] = []
    if method.teacher is not None:
        method.teacher.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    for batch in epoch(plan, task, memory):
        method.loss(batch, method.network)
        yield seen.pop() if seen else 0


def first_rows(plan: Plan) -> Any:
    """The first images of each class of a task, as many as the quota."""
    quota, labels = plan.config.memory.per_class, plan.scenario.labels
    return lambda task: np.concatenate([task.rows[labels[task.rows] == label][:quota] for label in task.labels])


def epoch(plan: Plan, task: int, memory: Any) -> list[Batch]:
    loop = TaskLoop(plan.config, training_images(plan, torch.device("cpu")), report=lambda _: None)
    return list(loop.batches(task, plan.scenario.tasks[task - 1].rows, memory, 0, 0))


@pytest.mark.parametrize("name", ["er", "er_fd", "cl2r"])
@pytest.mark.parametrize(
    "layer",
    [
        {},
        {"batches": {"size": 17}},
        {"batches": {"batching": "natural", "size": 8}},
        {"memory": {"per_class": 0}},
        {"memory": {"per_class": 0}, "method": {"fd_when_no_memory": "on_new"}},
        {"method": {"lambda_base": 0.0}},
    ],
    ids=["balanced", "odd", "natural", "no memory", "on new", "no weight"],
)
def test_the_teacher_of_a_real_method_sees_its_share(name: str, layer: dict[str, Any], tiny: Path) -> None:
    plan = plan_run(quick_config(tiny, {"method": {"name": name}}, layer))
    size, natural = plan.config.batches.size, plan.config.batches.batching == "natural"
    for cost in link_costs(plan):
        share = float(np.mean(list(rows_seen(plan, cost.task)))) / size
        # natural batches leave the last few rows out, memory rows among them
        assert share == pytest.approx(cost.teacher_share, abs=0.06 if natural else 0)


def test_links_of_one_speed_share_a_group(plan: Plan, tiny: Path) -> None:
    def group(layer: dict[str, Any]) -> str:
        groups = {cost.speed_group for cost in link_costs(plan_run(quick_config(tiny, layer)))}
        assert len(groups) == 1
        return groups.pop()

    usual = group({})
    assert group({"seed": 3, "optim": {"lr": 0.01}, "memory": {"per_class": 5}}) == usual
    others: list[dict[str, Any]] = [
        {"backbone": {"name": "resnet20"}},
        {"batches": {"size": 32}},
        {"method": {"name": "fixed"}},
        {"method": {"name": "fixed_fd"}},
        {"optim": {"precision": "bf16"}},
        {"head": {"k_max": 500}},
    ]
    assert len({usual, *map(group, others)}) == len(others) + 1
    assert group({"method": {"lambda_base": 0.0}}) == group({"method": {"name": "fixed"}})


# ---------------------------------------------------------------- FLOPs


def macs_by_shape(plan: Plan) -> int:
    """Multiply-adds of every convolution and matrix, from the shapes that pass through."""
    method = build_method(plan.config, plan.dataset.channels, plan.num_outputs)
    method.begin_task(TaskInfo(1, 0, plan.num_outputs, 0))
    total = 0

    def count(module: nn.Module, _: Any, out: torch.Tensor) -> None:
        nonlocal total
        assert isinstance(module, nn.Conv2d | nn.Linear)
        positions = out[0, 0].numel() if isinstance(module, nn.Conv2d) else 1
        total += positions * module.weight.numel()

    for module in method.network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(count)
    height, width, channels = plan.dataset.x_open.shape[1:]
    method.network.eval()(torch.zeros(1, channels, height, width))
    return total


@pytest.mark.parametrize("backbone", ["resnet8s", "resnet32"])
def test_flops_are_two_a_multiply_add(backbone: str, tiny: Path) -> None:
    plan = plan_run(quick_config(tiny, {"backbone": {"name": backbone}}))
    assert flops_per_image(plan) == 2 * macs_by_shape(plan)


def test_a_trainable_classifier_counts_all_its_outputs(plan: Plan, tiny: Path) -> None:
    trainable = plan_run(quick_config(tiny, {"method": {"name": "er"}}))
    assert flops_per_image(trainable) - flops_per_image(plan) == 2 * 11 * 12


def test_training_is_three_passes_and_the_teachers() -> None:
    cost = LinkCost("k", 2, 1000, 10, 60, 0, 0.5, "g")
    assert link_flops(cost, 7.0) == 7 * (3 * 1000 + 500 + 60)


# ---------------------------------------------------------------- speed


def invented(key: str, group: str = "g", images: int = 900) -> LinkCost:
    return LinkCost(key, 1, images, images // 100, 300, 5_000_000, 0.0, group)


def store_record(root: Path, key: str, text: str) -> None:
    folder = root / "links" / key
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(text)


def test_speed_is_the_median_of_the_links_of_a_group(tmp_path: Path) -> None:
    for key, seconds in {"a": 1.0, "b": 2.0, "c": 10.0, "d": 4.0}.items():
        store_record(tmp_path, key, json.dumps({"images": 1000, "seconds": seconds}))
    store_record(tmp_path, "damaged", '{"images": 10')
    costs = [*map(invented, ["a", "b", "c", "damaged", "absent"]), invented("d", "h"), invented("e", "i")]
    assert measured_speed(tmp_path, costs) == {"g": 500.0, "h": 250.0}
    assert measured_speed(tmp_path, [*costs, *[invented("a")] * 5]) == {"g": 500.0, "h": 250.0}, "shared by runs"
    assert measured_speed(tmp_path / "none", costs) == {}


def test_speed_of_a_real_run(finished: RunResult, finished_root: Path) -> None:
    costs = link_costs(finished.plan)
    speeds = [link.record["images"] / link.record["seconds"] for link in finished.links]
    assert measured_speed(finished_root, costs) == {costs[0].speed_group: sorted(speeds)[1]}
    assert speed_source(finished_root, costs, []) == f"from {TASKS} stored links"


def test_the_source_of_the_speeds_is_told(tmp_path: Path) -> None:
    costs = [invented("a"), invented("b", "h")]
    assert speed_source(tmp_path, costs, ["g", "h"]) == "calibrated in 2 s"
    store_record(tmp_path, "a", '{"images": 10, "seconds": 1}')
    assert speed_source(tmp_path, costs, ["h"]) == "from 1 stored link and calibrated in 2 s"


@pytest.mark.parametrize(
    "layer",
    [{}, {"method": {"name": "er"}}, {"scenario": {"n_tasks": 1}}, {"memory": {"per_class": 0}}],
    ids=["cl2r", "er", "one task", "no memory"],
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
    assert calibrate(plan, torch.device("cpu"), seconds=0.0) > 0
    assert set(tasks) == {min(2, len(plan.keys))}
    assert list(tmp_path.iterdir()) == []
    assert torch.equal(before, torch.random.get_rng_state())


def test_calibration_counts_rows_over_the_time_of_its_steps(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only training moves, a second a step."""
    now, real = 0.0, Rehearsal.loss

    def slow(self: Rehearsal, *arguments: Any) -> Any:
        nonlocal now
        now += 1.0
        return real(self, *arguments)

    monkeypatch.setattr(Rehearsal, "loss", slow)
    monkeypatch.setattr("time.perf_counter", lambda: now)
    assert calibrate(plan, torch.device("cpu"), seconds=4.5) == 16.0
    assert now == 2 + 5
    assert calibrate(plan, torch.device("cpu"), seconds=0.0) == 16.0
    assert now == 7 + 2 + 3, "a few steps at least"


def test_calibration_trains_the_second_task(plan: Plan) -> None:
    method, memory = costs_module._begun(plan, torch.device("cpu"))
    assert isinstance(method, Rehearsal)
    assert method.teacher is not None
    assert len(memory) == method.task.memory_rows == memory_rows(plan, 2)


# ---------------------------------------------------------------- estimate and text


def example(costs: Sequence[LinkCost], concurrency: int = 2) -> Estimate:
    gpu = GpuAssumption("A100", sustained_flops=1e6, dollars_per_hour=2.0)
    return estimate(costs, {"g": 100.0, "h": 50.0}, concurrency, gpu, {"g": 1e6, "h": 3e6})


def test_an_estimate_adds_up() -> None:
    total = example([invented("a"), invented("b", "h", images=1900)])
    assert (total.links, total.images, total.open_images, total.disk_bytes) == (2, 2800, 600, 10_000_000)
    assert total.seconds_here == pytest.approx((1000 / 100 + 2000 / 50) / 2)
    assert total.gpu_hours == pytest.approx((3000 + 3 * 6000) / 3600)
    assert total.gpu_price == pytest.approx(2 * total.gpu_hours)


def test_a_gpu_step_takes_at_least_its_launches() -> None:
    gpu = GpuAssumption("A100", sustained_flops=1e15, step_seconds=0.5, dollars_per_hour=2.0)
    total = estimate([invented("a")], {"g": 100.0}, 1, gpu, {"g": 1e6})
    assert total.gpu_hours == pytest.approx(9 * 0.5 / 3600)


def test_a_shared_link_is_trained_once() -> None:
    assert example([invented("a"), invented("b"), invented("a")]) == example([invented("a"), invented("b")])


def test_nothing_to_train_costs_nothing() -> None:
    total = estimate([], {}, 1, GpuAssumption(), {})
    assert (total.images, total.seconds_here, total.gpu_hours, total.gpu_price, total.disk_bytes) == (0, 0, 0, 0, 0)
    assert "0 s" in describe(total, 3, 9, 9)
    assert "0.00 GPU-hours, about $0.00" in describe(total, 3, 9, 9)


def test_a_group_without_speed_is_refused() -> None:
    with pytest.raises(KeyError, match="unknown"):
        example([invented("a", "unknown")])


def test_the_description() -> None:
    total = replace(example([]), links=40, images=1234567, open_images=8400, seconds_here=290, disk_bytes=120_400_000)
    total = replace(total, gpu=GpuAssumption(), gpu_hours=0.02, gpu_price=0.082)
    assert describe(total, 12, 60, 20, "from 20 stored links").splitlines() == [
        "runs          12",
        "links         40 to train, 20 of 60 present",
        "images        1,234,567 to train on, 8,400 to extract",
        "this machine  4 min 50 s (2 at a time; speed from 20 stored links)",
        "A100          0.02 GPU-hours, about $0.08 "
        "(an assumption, not measured: 10 TFLOP/s, at least 8 ms a step, $4.10 an hour)",
        "disk          120 MB",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.2, "under 1 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (290, "4 min 50 s"),
        (3599.7, "1.0 h"),
        (4680, "1.3 h"),
        (3.6e6, "1,000.0 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert costs_module._duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (120_000_000, "120 MB"),
        (999_600_000, "1.0 GB"),
        (2_340_000_000, "2.3 GB"),
        (5 * 10**12, "5,000 GB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert costs_module._size(count) == text


@pytest.mark.parametrize(
    ("hours", "text"),
    [
        (1e-6, "under 0.01 GPU-hours, under $0.01"),
        (0.005, "under 0.01 GPU-hours, about $0.02"),
        (1200.0, "1,200.00 GPU-hours, about $4,920.00"),
    ],
)
def test_gpu_hours_and_price(hours: float, text: str) -> None:
    total = replace(example([]), gpu_hours=hours, gpu_price=hours * 4.1)
    assert costs_module._gpu(total) == text
