"""Several workers train one model: same rows, same loss, same gradient as one."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from quick import Recorder, no_data, quick_config
from two_workers import WORLD, spawned

from cl2r.config import Config
from cl2r.data import load_dataset
from cl2r.engine.plan import plan_run
from cl2r.engine.run import Chain
from cl2r.engine.task_loop import TaskLoop
from cl2r.engine.workers import ALONE, Workers
from cl2r.errors import InputError, TrainingError
from cl2r.methods.base import Batch, Method, TaskInfo
from cl2r.methods.registry import build_method

CELLS = ("er", "er_fd", "er_fdm", "fixed", "fixed_fd", "cl2r")


# ---------------------------------------------------------------- gradients


def moved_method(config: Config) -> Method:
    """At the start of task 2, moved away from its teacher so that FD has a gradient."""
    method = build_method(config, 1, 12)
    method.begin_task(TaskInfo(1, 0, 4, 0), no_data())
    method.begin_task(TaskInfo(2, 4, 4, 5), no_data())
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in method.network.parameters():
            parameter += 0.1 * parameter.std().nan_to_num(1.0) * torch.randn(parameter.shape, generator=generator)
    return method


def global_batch(arrangement: str) -> Batch:
    """15 rows, 5 of memory; `apart` puts all of those on the first worker (8 rows, the other 7), `none` has none."""
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(15, 1, 16, 16, generator=generator)
    old = torch.zeros(15, dtype=torch.bool)
    old[{"first": slice(0, 5), "apart": slice(0, 10, 2), "none": slice(0, 0)}[arrangement]] = True
    y = torch.where(old, torch.arange(15) % 4, 4 + torch.arange(15) % 4)
    return Batch(x, y, torch.where(old, 1, 2), 2)


def gradients(workers: Workers, cases: list[tuple[str, str]]) -> list[dict[str, torch.Tensor]]:
    """The gradient of the first step with batch norm in eval mode, and the loss terms, of every case."""
    found = []
    for cell, arrangement in cases:
        method = moved_method(quick_config(Path("unused"), {"method": {"name": cell, "lambda_base": 5}}))
        batch, part = global_batch(arrangement), slice(workers.rank, None, workers.world)
        local = Batch(batch.x[part], batch.y[part], batch.task_id[part], 2, workers)
        method.network.eval()
        network = workers.wrap(method.network)  # kept: gradients are averaged as long as the wrapper lives
        losses = method.loss(local, network)
        torch.stack(list(losses.values())).sum().backward()
        entry = {name: p.grad.clone() for name, p in method.network.named_parameters() if p.grad is not None}
        means = workers.mean({name: value.item() for name, value in losses.items()})
        found.append(entry | {f"loss {name}": torch.tensor(value) for name, value in means.items()})
    return found


def test_two_workers_take_the_step_of_one() -> None:
    cases = [(cell, "apart") for cell in CELLS] + [("cl2r", "first"), ("er_fdm", "none")]
    one = gradients(ALONE, cases)
    for other in spawned(gradients, cases):
        for case, expected, got in zip(cases, one, other, strict=True):
            assert expected.keys() == got.keys()
            for name, tensor in expected.items():
                scale = float(tensor.abs().max())
                torch.testing.assert_close(got[name], tensor, rtol=1e-4, atol=1e-5 * scale + 1e-8, msg=f"{case} {name}")


# ---------------------------------------------------------------- the parts


def talk(workers: Workers, _: None) -> dict[str, Any]:
    """Every way of speaking to the others."""

    def fail() -> None:
        raise TrainingError("only the first worker saw it")

    heard: dict[str, Any] = {"value": workers.from_first(lambda: {"rank": workers.rank})}
    try:
        workers.from_first(fail)
    except TrainingError as error:
        heard["error"] = str(error)
    heard["weights"] = [float(workers.weight(rows)) for rows in (3, 2 + workers.rank, 4 * workers.rank, 0)]
    heard["mean"] = workers.mean({"a": 1.0 + workers.rank, "b": 2.0})
    heard["rows"] = workers.rows_of_all(torch.arange(2 + workers.rank) + 10 * workers.rank).tolist()
    heard["together"] = workers.together(lambda: workers.rank)
    try:
        workers.together(lambda: load_dataset("/nowhere.npz" if workers.rank else "icons"))
    except InputError as error:
        heard["complaint"] = str(error)
    heard["first"] = workers.first
    return heard


def test_what_workers_tell_each_other() -> None:
    first, second = spawned(talk, None)
    for heard in (first, second):
        assert heard["value"] == {"rank": 0}
        assert heard["error"] == "only the first worker saw it"
        assert heard["mean"] == {"a": 1.5, "b": 2.0}
        assert heard["complaint"].startswith("worker 1: "), "a node without the data must not leave the others waiting"
        assert "/nowhere.npz" in heard["complaint"]
    assert (first["together"], second["together"]) == (0, 1)
    assert first["rows"] == [0, 1, 10, 11, 12]
    assert second["rows"] == [10, 11, 12, 0, 1], "one's own come first"
    assert first["weights"] == pytest.approx([1, 0.8, 0, 0])
    assert second["weights"] == pytest.approx([1, 1.2, 2, 0])
    assert (first["first"], second["first"]) == (True, False)


def test_one_worker_needs_nobody() -> None:
    assert not dist.is_initialized()
    network = torch.nn.Linear(2, 2)
    assert ALONE.wrap(network) is network
    assert ALONE.weight(7) == 1.0
    assert ALONE.together(lambda: 5) == 5
    assert ALONE.rows_of_all(torch.arange(3)).tolist() == [0, 1, 2]
    assert ALONE.from_first(lambda: 5) == 5
    assert ALONE.mean({"a": 2.0}) == {"a": 2.0}


def test_synchronised_batch_norm_is_refused_without_gpus() -> None:
    with pytest.raises(TrainingError, match="needs GPUs"):
        Workers(0, 2, sync_batchnorm=True).prepare(torch.nn.Linear(2, 2))


# ---------------------------------------------------------------- a whole run


def rows_seen(workers: Workers, arguments: tuple[str, str]) -> list[list[int]]:
    """Labels of every batch of task 2 that this worker trains on."""
    data, batching = arguments
    plan = plan_run(quick_config(Path(data), {"batches": {"batching": batching}}))
    chain = Chain(plan, Path(data).parent / f"rows-{batching}", Recorder(), "test", workers)
    loop: TaskLoop = chain._loop
    memory = plan.scenario.tasks[0].rows[:9]
    return [batch.y.tolist() for batch in loop.batches(2, plan.scenario.tasks[1].rows, memory, 0, 0)]


@pytest.mark.parametrize("batching", ["balanced", "natural"])
def test_workers_share_the_rows_of_one(tiny: Path, batching: str) -> None:
    alone = rows_seen(ALONE, (str(tiny), batching))
    parts = [rows_seen(Workers(rank, WORLD), (str(tiny), batching)) for rank in range(WORLD)]
    for whole, first, second in zip(alone, *parts, strict=True):
        assert whole[0::2] == first
        assert whole[1::2] == second


def whole_run(workers: Workers, arguments: tuple[Path, Path]) -> tuple[list[str], list[int]]:
    """Train a chain of three tasks."""
    data, root = arguments
    recorder = Recorder()
    plan = plan_run(quick_config(data))
    chain = Chain(plan, root, recorder, "owner", workers)
    for task in chain.tasks:
        chain.reach(task)
    return recorder.lines, [report.images for report in recorder.reports]


def test_two_workers_finish_a_run_and_only_the_first_one_writes(tiny: Path, tmp_path: Path) -> None:
    (lines, images), (silent, nothing) = spawned(whole_run, (tiny, tmp_path))
    assert silent == []
    assert nothing == []
    assert [line.split(" link")[0] for line in lines] == [f"task {task}: trained" for task in (1, 2, 3)]
    one_lines, one_images = whole_run(ALONE, (tiny, tmp_path / "alone"))
    assert len(one_lines) == 3
    assert images == one_images, "the global batch does not depend on the number of workers"
    plan = plan_run(quick_config(tiny))
    records = [Chain(plan, root, Recorder(), "x").store.record(plan.keys[2]) for root in (tmp_path, tmp_path / "alone")]
    assert [record["workers"] for record in records] == [2, 1]
