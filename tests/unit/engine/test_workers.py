"""Several workers train one model on the rows of one; they exchange values and errors."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from cl2r.batches import draw_epoch
from cl2r.data import load_dataset
from cl2r.engine.chain import Chain
from cl2r.engine.links import LinkStore
from cl2r.engine.loop import TaskLoop
from cl2r.engine.plan import plan_run
from cl2r.engine.workers import ALONE, Workers
from cl2r.errors import InputError, TrainingError
from tests.support.quick import Recorder, quick_config
from tests.support.two_workers import WORLD, spawned


def talk(workers: Workers, _: None) -> tuple[Any, ...]:
    """Call every collective function."""

    def fail() -> None:
        raise TrainingError("only the first worker saw it")

    with pytest.raises(TrainingError, match="only the first worker saw it"):
        workers.from_first(fail)
    with pytest.raises(InputError, match=r"^worker 1: .*/nowhere\.npz"):  # no worker may wait for one without the data
        workers.together(lambda: load_dataset("/nowhere.npz" if workers.rank else "icons"))
    assert workers.from_first(lambda: {"rank": workers.rank}) == {"rank": 0}
    assert workers.mean({"a": 1.0 + workers.rank, "b": 2.0}) == {"a": 1.5, "b": 2.0}
    rows = workers.gather(torch.arange(3 - workers.rank) + 10 * workers.rank, 5).tolist()
    return workers.first, workers.together(lambda: workers.rank), rows


def test_workers_exchange_values_and_errors() -> None:
    """A worker's own rows come first."""
    assert spawned(talk, None) == [(True, 0, [0, 1, 2, 10, 11]), (False, 1, [10, 11, 0, 1, 2])]


def test_one_worker_needs_no_process_group() -> None:
    assert not dist.is_initialized()
    network = torch.nn.Linear(2, 2)
    assert ALONE.wrap(network) is network
    assert ALONE.together(lambda: 5) == 5
    assert ALONE.gather(torch.arange(3), 3).tolist() == [0, 1, 2]
    assert ALONE.from_first(lambda: 5) == 5
    assert ALONE.mean({"a": 2.0}) == {"a": 2.0}


def test_synchronised_batch_norm_is_refused_without_gpus() -> None:
    with pytest.raises(TrainingError, match="needs GPUs"):
        Workers(0, 2, sync_batchnorm=True).prepare(torch.nn.Linear(2, 2))


def rows_seen(workers: Workers, arguments: tuple[str, str]) -> list[list[int]]:
    """Labels of every batch of task 2 that this worker trains on."""
    data, batching = arguments
    plan = plan_run(quick_config(Path(data), {"batches": {"batching": batching}}))
    chain = Chain(plan, Path(data).parent / f"rows-{batching}", Recorder(), "test", workers)
    loop: TaskLoop = chain._loop
    memory = plan.scenario.tasks[0].rows[:9]
    return [batch.y.tolist() for batch in loop.batches(2, plan.scenario.tasks[1].rows, memory, 0, 0)]


@pytest.mark.parametrize("crop", ["padded", "resized"])
def test_a_stage_can_do_without_augmentation(tiny: Path, crop: str) -> None:
    """Same rows in the same order, but the images themselves; crops move nearly all of them."""
    plan = plan_run(quick_config(tiny, {"augment": {"crop": crop, "padding": 3}}))
    loop: TaskLoop = Chain(plan, tiny.parent / "plain", Recorder(), "test")._loop
    rows = plan.scenario.tasks[1].rows, plan.scenario.tasks[0].rows[:9]
    drawn = draw_epoch(plan.config, *rows, (2, 1, 0), "natural")
    for augmented in (True, False):
        batches = list(loop.batches(2, *rows, 1, 0, "natural", augmented))
        for batch, known in zip(batches, drawn, strict=True):
            images = torch.from_numpy(plan.dataset.x_train.all()[known.rows])
            assert torch.equal(batch.x, loop.data.normalise(images)) != augmented
            assert batch.y.tolist() == plan.scenario.labels[known.rows].tolist()


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
    chain = Chain(plan_run(quick_config(data)), root, recorder, "test", workers)
    for task in chain.tasks:
        chain.ensure_link(task)
    return recorder.lines, [report.images for report in recorder.reports]


def test_two_workers_finish_a_run_and_only_the_first_one_writes(tiny: Path, tmp_path: Path) -> None:
    (lines, images), second = spawned(whole_run, (tiny, tmp_path))
    assert second == ([], [])
    assert [line.split(" link")[0] for line in lines] == [f"task {task}: trained" for task in (1, 2, 3)]
    one_lines, one_images = whole_run(ALONE, (tiny, tmp_path))
    assert [line.split(" link")[0] for line in one_lines] == [f"task {task}: trained" for task in (1, 2, 3)], (
        "in the same store: links of two workers are not those of one"
    )
    assert images == one_images, "the global batch does not depend on the number of workers"
    keys, store = plan_run(quick_config(tiny)).keys, LinkStore(tmp_path)
    assert store.keys() == {*keys, *(f"{key}-cpu2" for key in keys)}
    assert [store.record(key)["workers"] for key in (f"{keys[2]}-cpu2", keys[2])] == [2, 1]
    state, other = store.state(keys[0]), store.state(f"{keys[0]}-cpu2")
    assert any(not torch.equal(tensor, other[name]) for name, tensor in state.items())
