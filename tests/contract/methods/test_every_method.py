"""Properties of every method."""

import contextlib
import itertools
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cl2r.batches import Batch
from cl2r.config.layers import override
from cl2r.config.methods import METHODS
from cl2r.config.schema import Config
from cl2r.engine.chain import Chain, RunResult, training_images
from cl2r.engine.loop import TaskLoop
from cl2r.engine.plan import plan_run
from cl2r.engine.workers import ALONE, Workers
from cl2r.errors import InputError
from cl2r.methods.base import Method, build_method
from cl2r.methods.bic import SAVE_EVERY
from cl2r.runtime.progress import EpochReport
from tests.benchmarks.loss_shares import shares
from tests.support.method_case import advanced, case, fingerprint, mixed
from tests.support.pretended import pretended
from tests.support.quick import TASKS, Interrupter, Recorder, assert_same_chain, chain_tensors, quick_config, train
from tests.support.two_workers import part, spawned

SHORT: dict[str, Any] = {
    "optim": {"epochs": 2, "milestones": [1]},
    "eval": {"bootstrap": 0},
    "bic": {"bias_epochs": 22},
    "podnet": {"finetune_epochs": 2},
    "fan": {"epochs": 2},
    "foster": {"boost_epochs": 2, "compress_epochs": 2},
}
OF_THE_CLASSIFIER = {"bic": "bias", "bic_inclearn": "bias", "podnet": "finetune", "fan": "adapt"}
"""Stages that do not train φ."""
NO_TERM_OF_THEIR_OWN = ("er", "fixed", "cores")


def short(data: Path, name: str, *layers: dict[str, Any]) -> Config:
    return quick_config(data, {"method": {"name": name}}, SHORT, *layers)


@pytest.fixture(scope="module")
def undisturbed(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a finished run of a method and the folder of its links; every method is trained once."""

    @cache
    def run(name: str) -> tuple[RunResult, Path]:
        root = tmp_path_factory.mktemp(name)
        return train(short(tiny, name), root), root

    return run


def stage_names(result: RunResult, task: int) -> list[str]:
    return list(dict.fromkeys(row["stage"] for row in result.links[task - 1].record["curves"]))


@pytest.mark.parametrize("name", METHODS)
def test_it_fills_the_lower_triangle(undisturbed: Any, name: str) -> None:
    result, _ = undisturbed(name)
    lower = np.tri(TASKS, dtype=bool)
    assert np.isfinite(result.report.matrix[lower]).all()
    assert np.isnan(result.report.matrix[~lower]).all()
    assert result.report.matrix[-1, -1] > 0.55, "it learns something"


@pytest.mark.parametrize("name", METHODS)
def test_it_has_a_term_of_its_own(undisturbed: Any, name: str) -> None:
    """A method adds terms to the cross-entropy that are not negligible beside it, except three without any.

    Those three differ in classifier or data. The default preset is checked by its kept measurements (loss_shares.json).
    """
    result, _ = undisturbed(name)
    for link in result.links[1:]:
        first, *_ = shares(link.record["curves"])
        assert bool(first.own) != (name in NO_TERM_OF_THEIR_OWN)
        assert all(abs(value) > 0 for value in first.own.values())
        assert first.share >= (0 if name in NO_TERM_OF_THEIR_OWN else 0.02)
    if name == "cores":
        assert result.links[1].record["memory"] == len(result.plan.scenario.tasks[0].rows)


@pytest.mark.parametrize("name", METHODS)
def test_the_feature_size_is_constant(undisturbed: Any, name: str) -> None:
    result, root = undisturbed(name)
    sizes = [tensors["features/open"].shape[1] for tensors in chain_tensors(result.plan, root)]
    if METHODS[name].grows:
        assert sizes == [sizes[0] * t for t in range(1, TASKS + 1)]
    else:
        assert len(set(sizes)) == 1


@pytest.mark.parametrize("name", METHODS)
def test_the_same_seed_gives_the_same_links(undisturbed: Any, name: str, tiny: Path, tmp_path: Path) -> None:
    result, root = undisturbed(name)
    again = train(short(tiny, name), tmp_path)
    assert_same_chain(again.plan, root, tmp_path)
    np.testing.assert_array_equal(again.report.matrix, result.report.matrix)
    other = train(short(tiny, name, {"seed": 1, "scenario": {"stop_after": 1}}), tmp_path)
    assert other.plan.keys[0] != result.plan.keys[0]


@pytest.mark.parametrize("name", METHODS)
def test_stopped_after_any_epoch_it_ends_in_the_same_bits(
    undisturbed: Any, name: str, tiny: Path, tmp_path: Path
) -> None:
    """Stop once in every stage of task 2, after its first saved epoch, and between tasks."""
    result, root = undisturbed(name)
    first = len(result.links[0].record["curves"])
    epochs = result.links[1].record["curves"]
    begins = [n for n, row in enumerate(epochs) if row["epoch"] == 1]
    assert len(begins) == len(stage_names(result, 2))
    train(short(tiny, name, {"scenario": {"stop_after": 1}}), tmp_path)
    trained = first
    for begin in begins:
        # The epoch after the first saved one of the stage is interrupted.
        saved = begin + (SAVE_EVERY if epochs[begin]["stage"] == "bias" else 1)
        wanted = first + saved + 1 - trained
        with pytest.raises(KeyboardInterrupt):
            train(short(tiny, name), tmp_path, Interrupter(after=wanted))
        trained = first + saved
    recorder = Recorder()
    train(short(tiny, name), tmp_path, recorder)
    assert any("resumed link" in line for line in recorder.lines)
    assert_same_chain(result.plan, root, tmp_path)


class Continuing(Chain):
    """A chain that never reads back what it carried: the method object continues with the next task."""

    method: Method | None = None

    def _state_before(self, task: int) -> tuple[Method, Any]:
        method, memory = super()._state_before(task)
        self.method = method if self.method is None else self.method
        return self.method, memory


@pytest.mark.parametrize("name", METHODS)
def test_what_is_carried_is_all_that_matters(undisturbed: Any, name: str, tiny: Path, tmp_path: Path) -> None:
    """Continuing with the object in memory gives the same links as restoring it from its tensors."""
    result, root = undisturbed(name)
    chain = Continuing(plan_run(short(tiny, name)), tmp_path, Recorder(), "test")
    for task in chain.tasks:
        chain.ensure_link(task)
    assert_same_chain(result.plan, root, tmp_path)


@pytest.mark.parametrize("name", METHODS)
def test_state_round_trips(undisturbed: Any, name: str) -> None:
    result, root = undisturbed(name)
    chain = Chain(result.plan, root, Recorder(), "test")
    for task, key in enumerate(result.plan.keys, 1):
        stored = chain.store.state(key)
        memory = stored.pop("memory")
        method = build_method(result.plan.config, 1, result.plan.num_outputs)
        tensors = {name.removeprefix("method/"): tensor for name, tensor in stored.items()}
        method.restore(tensors, chain._task_info(task, len(memory)))
        carried = method.carry()
        assert carried.keys() == tensors.keys()
        assert all(torch.equal(carried[name], tensors[name]) for name in tensors)
        assert not any(tensor.requires_grad for tensor in carried.values())
        open_images = torch.from_numpy(result.plan.dataset.x_open.all())
        features = method.extractor()(chain._link_features.normalise(open_images)).detach()
        assert torch.equal(features, chain.store.features(key)["open"])


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("change", ["no memory", "one task", "bf16"])
def test_it_runs_with(name: str, change: str, tiny: Path, tmp_path: Path) -> None:
    layer = {
        "no memory": {"memory": {"per_class": 0}},
        "one task": {"scenario": {"n_tasks": 1}},
        "bf16": {"optim": {"precision": "bf16"}, "scenario": {"stop_after": 2}},
    }[change]
    result = train(short(tiny, name, {"optim": {"epochs": 1, "milestones": []}}, layer), tmp_path)
    tasks = len(result.links)
    assert np.isfinite(result.report.matrix[np.tri(tasks, dtype=bool)]).all()
    if change == "no memory" and METHODS[name].memory == "quota":
        assert [link.record["memory"] for link in result.links] == [0] * tasks


class Watching(Recorder):
    """Record a fingerprint of φ after every epoch, and whether the stage trains φ."""

    def __init__(self) -> None:
        super().__init__()
        self.method: Method | None = None
        self.prints: list[tuple[bool, str]] = []
        self.still: set[str] = set()

    def epoch(self, report: EpochReport) -> None:
        assert self.method is not None
        (stage,) = (stage for stage in self.method.stages() if stage.name == report.stage)
        phi = self.method.network.get_submodule("phi")
        still = not {id(parameter) for parameter in stage.parameters()} & {id(p) for p in phi.parameters()}
        self.still |= {stage.name} if still else set()
        self.prints.append((still, fingerprint(self.method.extractor())))


@pytest.mark.parametrize("name", METHODS)
def test_stages_of_the_classifier_do_not_change_the_extractor(name: str, tiny: Path, tmp_path: Path) -> None:
    plan, watching = plan_run(short(tiny, name)), Watching()
    chain = Continuing(plan, tmp_path, watching, "test")
    watching.method = chain.method = build_method(plan.config, 1, plan.num_outputs)
    chain.ensure_link(1)
    chain.ensure_link(2)
    for (_, before), (still, after) in itertools.pairwise(watching.prints):
        assert before == after or not still
    assert OF_THE_CLASSIFIER.get(name) in (None, *watching.still)
    assert watching.prints[1][1] != watching.prints[-1][1], "φ_2 is not φ_1"


@pytest.mark.parametrize("name", METHODS)
def test_a_stage_trains_only_its_parameters(name: str) -> None:
    """Everything else has the same bits after a step, except statistics of batch norm."""
    quick = case(name)
    quick.begin(1)
    quick.step(quick.batch_of(1, range(4)))
    quick.method.end_task()
    quick.begin(2)
    for number, stage in enumerate(quick.method.stages()):
        trained = {id(parameter) for parameter in stage.parameters()}
        network = quick.method.network
        before = {key: tensor.clone() for key, tensor in network.state_dict().items()}
        free = {key for key, parameter in network.named_parameters() if id(parameter) in trained}
        quick.step(quick.batch_of(2, range(8)), stage=number)
        moved = {key for key, tensor in network.state_dict().items() if not torch.equal(tensor, before[key])}
        statistics = {key for key in moved if "running_" in key or "num_batches" in key}
        assert moved - statistics <= free
        assert moved & free, stage.name
        assert stage.statistics or not statistics


@pytest.mark.parametrize("name", [name for name, info in METHODS.items() if info.first_task])
def test_the_first_task_is_that_of_another_family(name: str, tiny: Path) -> None:
    """Same key, same tensors, same diagnostics: the two families share their first links."""
    info = METHODS[name]
    lender = {"trainable": "er", "fixed": "fixed"}[info.defaults["method.classifier"]]
    lender = lender if info.first_task == "rehearsal" else "lucir"
    brought = [f"{key}={value}" for key, value in info.defaults.items() if key.startswith(("head.", "backbone."))]
    layers = [override(setting) for setting in brought]
    assert plan_run(short(tiny, name)).keys[0] == plan_run(short(tiny, lender, *layers)).keys[0]
    one, two = case(name), case(lender, *brought)
    for made in (one, two):
        made.begin(1)
        for _ in range(2):
            made.step(made.batch_of(1, range(4)))
        made.method.end_task()
    mine, theirs = one.method.carry(), two.method.carry()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[key], tensor) for key, tensor in theirs.items())
    assert one.method.diagnostics() == two.method.diagnostics()


@pytest.mark.parametrize(
    ("name", "settings", "other"),
    [
        ("lwf", ["lwf.weight=0", "lwf.ce=seen", "memory.per_class=3"], "er"),
        ("lifelong_bct", ["bct.weight=0"], "er"),
        ("hoc", ["hoc.weight=1"], "fixed"),
        ("cl2r", ["method.lambda_base=0"], "fixed"),
    ],
)
def test_without_its_own_term_it_is_another_method(
    name: str, settings: list[str], other: str, tiny: Path, tmp_path: Path
) -> None:
    brought = {key: value for key, value in METHODS[name].defaults.items() if key.startswith(("head.", "batches."))}
    layers = [override(f"{key}={value}") for key, value in brought.items()]
    one, two = short(tiny, name, *map(override, settings)), short(tiny, other, *layers)
    ours, theirs = (train(config, tmp_path / config.method.name).plan for config in (one, two))
    chains = chain_tensors(ours, tmp_path / name), chain_tensors(theirs, tmp_path / other)
    for mine, its in zip(*chains, strict=True):
        assert mine.keys() == its.keys()
        assert all(torch.equal(mine[key], tensor) for key, tensor in its.items())


WITHOUT_TEACHER = {"er", "fixed", "cores", "bct", "lifelong_bct", "der_trunc"}


@pytest.mark.parametrize("name", METHODS)
def test_the_teacher_is_the_model_before_and_does_not_move(name: str) -> None:
    made = advanced(name, task=1)
    made.method.end_task()
    before, x = made.method.extractor(), made.batch_of(2, range(8)).x
    made.begin(2)
    teacher: Any = getattr(made.method, "teacher", None)
    assert (teacher is None) == (name in WITHOUT_TEACHER)
    if teacher is None:
        return
    start = fingerprint(teacher)
    for stage in range(len(made.method.stages())):
        made.step(mixed(made, 2), stage=stage)
    assert fingerprint(teacher) == start
    assert not any(module.training for module in teacher.modules() if list(module.buffers(recurse=False)))
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    out = teacher(x)
    torch.testing.assert_close(getattr(out, "features", out), before(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_terms_are_float32_under_autocast(name: str) -> None:
    made = advanced(name)
    for stage in made.method.stages():
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            rounded = stage.loss(mixed(made, 2), made.method.network)
        with torch.no_grad():
            exact = stage.loss(mixed(made, 2), made.method.network)
        assert {value.dtype for value in rounded.values()} == {torch.float32}
        for term, value in exact.items():
            assert rounded[term].item() == pytest.approx(value.item(), rel=0.1, abs=0.05), term


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("classes", [range(4), range(4, 8)], ids=["only memory", "no memory"])
def test_a_kind_without_rows_has_a_finite_gradient(name: str, classes: range) -> None:
    """Natural batches, or one worker's part of a batch, may hold rows of one kind only."""
    made = advanced(name)
    for stage in range(len(made.method.stages())):
        losses = made.step(made.batch_of(2, classes), stage=stage)
        assert all(value.isfinite() for value in losses.values())
        assert all(parameter.isfinite().all() for parameter in made.method.network.parameters())


class NoTraffic(TorchDispatchMode):
    """Refuse operations that copy between host and device or wait for the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        found = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, torch.Tensor) and leaf.ndim]
        if {leaf.device.type for leaf in found} == {"cpu", "meta"}:
            raise AssertionError(f"{func} copies between host and device")
        return out


@pytest.mark.parametrize("name", METHODS)
def test_steps_neither_wait_for_the_device_nor_copy_to_it(
    name: str, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values on the meta device do not exist, so whatever needs one fails."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())  # it refuses this device
    plan, meta = plan_run(short(tiny, name)), torch.device("meta")
    made = advanced(name)
    method, data = made.method, training_images(plan, meta, 0)
    loop = TaskLoop(method.config, data, print)
    on_device(method)
    for number, stage in enumerate(method.stages()):
        optimiser = loop.optimiser(method, stage)
        method.network.train(stage.statistics)
        rows = stage.rows or (made.data(2).new, made.data(2).memory)
        batches = loop.batches(2, *rows, number, 0, stage.batching)
        first = next(batches)  # all but the pixels of an epoch is copied before its first step
        loop.steps(method.network, stage, optimiser, iter([first]))  # optimisers make their state in the first step
        with NoTraffic():
            steps, images, _ = loop.steps(method.network, stage, optimiser, batches)
        assert images == steps * len(first.y)


def on_device(method: Method) -> None:
    """Move all tensors of a method in the middle of a task to the meta device."""
    for name, value in vars(method).items():
        if isinstance(value, torch.nn.Module | torch.Tensor):
            setattr(method, name, value.to("meta"))


ARRANGEMENTS = {"memory on the first": range(0, 10, 2), "no memory": range(0), "only memory": range(15)}
"""Positions of memory rows in a batch of 15 rows; the first worker has the even ones."""


def global_batch(arrangement: str) -> Batch:
    memory = list(ARRANGEMENTS[arrangement])
    y = 4 + torch.arange(15) % 4
    y[memory] -= 4
    return Batch.of_one_worker(torch.randn(15, 1, 16, 16, generator=torch.Generator().manual_seed(11)), y, memory)


def gradients(workers: Workers, names: list[str]) -> dict[str, dict[str, torch.Tensor]]:
    """Return losses and gradients of one step of every stage of task 2, with batch norm in eval mode."""
    found = {}
    for name in names:
        quick = case(name)
        quick.begin(1)
        quick.method.end_task()
        quick.begin(2)
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter in quick.method.network.parameters():
                parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
        for stage, arrangement in itertools.product(quick.method.stages(), ARRANGEMENTS):
            local = part(global_batch(arrangement), workers)
            loop = TaskLoop(quick.method.config, None, print, workers)  # type: ignore[arg-type]  # no data needed
            optimiser = loop.optimiser(quick.method, stage)
            quick.method.network.eval()
            network = workers.wrap(quick.method.network)
            optimiser.zero_grad()
            losses = stage.loss(local, network)
            torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]
            grads = [parameter.grad for parameter in optimiser.param_groups[0]["params"]]
            assert all(gradient is not None for gradient in grads), f"{name}, {stage.name}: an unused parameter"
            entry = {str(number): gradient.clone() for number, gradient in enumerate(grads)}
            means = workers.mean({term: value.item() for term, value in losses.items()})
            found[f"{name}, {stage.name}, {arrangement}"] = entry | {
                term: torch.tensor(value) for term, value in means.items()
            }
    return found


def test_two_workers_take_the_step_of_one() -> None:
    names = list(METHODS)
    one = gradients(ALONE, names)
    for other in spawned(gradients, names):
        assert one.keys() == other.keys()
        for place, expected in one.items():
            assert expected.keys() == other[place].keys()
            for name, tensor in expected.items():
                scale, got = float(tensor.abs().max()), other[place][name]
                torch.testing.assert_close(got, tensor, rtol=1e-4, atol=1e-5 * scale + 1e-7, msg=f"{place}: {name}")


def whole_runs(workers: Workers, arguments: tuple[Path, Path, list[str]]) -> int:
    """Train two tasks with every method and return the number of links."""
    data, root, names = arguments
    links = 0
    for name in names:
        plan = plan_run(short(data, name, {"scenario": {"stop_after": 2}, "optim": {"epochs": 1, "milestones": []}}))
        chain = Chain(plan, root, Recorder(), "test", workers)
        for task in chain.tasks:
            chain.ensure_link(task)
        links += len(chain.tasks)
    return links


def test_two_workers_train_every_method(tiny: Path, tmp_path: Path) -> None:
    names = list(METHODS)
    assert spawned(whole_runs, (tiny, tmp_path, names)) == [2 * len(names)] * 2
    for name in names:
        plan = plan_run(short(tiny, name, {"scenario": {"stop_after": 2}, "optim": {"epochs": 1, "milestones": []}}))
        result = Chain(plan, tmp_path, Recorder(), "other", pretended(2)).result(0.0)
        assert np.isfinite(result.report.matrix[np.tri(2, dtype=bool)]).all()
        assert result.links[1].record["workers"] == 2


def test_a_tensor_that_was_stored_smaller_than_it_is_built_is_named() -> None:
    first, third = advanced("er", task=1), advanced("er", task=3)
    with pytest.raises(InputError, match=r"restore\(\) builds classifier\.weight of size \[12, 11\], but \[4, 11\]"):
        third.method.restore(first.method.carry(), first.method.task)
    fresh = case("er")
    fresh.method.restore(third.method.carry(), third.method.task)
    assert fingerprint(fresh.method.network) == fingerprint(third.method.network)
