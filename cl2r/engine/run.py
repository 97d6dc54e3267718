"""Algorithm 1: one run, a chain of tasks, each link trained once and found again ever after."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from cl2r.augment import Normalise
from cl2r.config import Config, link_keys
from cl2r.data import ImageSet, load_dataset
from cl2r.data.dataset import Pairs
from cl2r.data.pairs import tuning_and_report_pairs
from cl2r.data.scenario import Scenario, build_scenario, class_increments, class_order
from cl2r.engine.evaluation import Evaluation, evaluate, extract
from cl2r.engine.store import LinkStore, Tensors, check_writable
from cl2r.engine.task_loop import EpochReport, TaskLoop, TrainingImages
from cl2r.errors import InputError, TrainingError
from cl2r.memory import sample_task
from cl2r.methods.base import Method, TaskInfo
from cl2r.methods.registry import build_method
from cl2r.verification import pair_correctness

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Plan:
    """A run before any training: everything that can be wrong with its input has been checked."""

    config: Config
    dataset: ImageSet
    scenario: Scenario
    num_outputs: int
    keys: list[str]
    tuning_pairs: Pairs | None
    report_pairs: Pairs


@dataclass(frozen=True)
class LinkInfo:
    """One task of a finished run."""

    task: int
    key: str
    reused: bool
    record: dict[str, Any]


@dataclass(frozen=True)
class RunResult:
    """A finished run."""

    plan: Plan
    links: list[LinkInfo]
    tuning: Evaluation | None
    report: Evaluation
    seconds: float


class Listener(Protocol):
    """Who hears of a run."""

    def say(self, line: str) -> None:
        """One line worth keeping: a link reused, trained, damaged."""

    def begin(self, tasks: list[int]) -> None:
        """The tasks that will be trained."""

    def epoch(self, report: EpochReport) -> None:
        """An epoch is done."""


def plan_run(config: Config) -> Plan:
    """Load the data, lay out tasks and pairs, name the links. Raises InputError; writes nothing."""
    dataset = load_dataset(config.data.name, config.data.size, config.data.channels)
    spec = config.scenario
    increments = class_increments(dataset.num_classes, spec.n_tasks, spec.initial, spec.increment)
    order = class_order(dataset.num_classes, config.seed, spec.class_order)
    scenario = build_scenario(dataset.y_train, increments, order)
    for task in scenario.tasks:
        if len(task.rows) < 2:
            raise InputError(f"task {task.index} has {len(task.rows)} image, batch norm needs 2: use fewer tasks")
    outputs = config.head.k_max or dataset.num_classes
    if outputs < dataset.num_classes:
        raise InputError(f"head.k_max={outputs} is below the {dataset.num_classes} classes of {dataset.name}")
    if spec.stop_after is not None and spec.stop_after > len(scenario.tasks):
        raise InputError(f"scenario.stop_after={spec.stop_after} exceeds the {len(scenario.tasks)} tasks")
    classes = [task.classes for task in scenario.tasks[: spec.stop_after]]
    keys = link_keys(config, dataset.fingerprint, classes, outputs)
    evaluation = config.eval
    tuning, report = tuning_and_report_pairs(
        dataset,
        evaluation.positives,
        evaluation.negatives,
        evaluation.folds,
        evaluation.pairs_seed,
        evaluation.tuning_share,
    )
    # Folds that cannot be cross-validated must be refused now, not after hours of training.
    pair_correctness(np.zeros(len(report)), report.same, report.folds)
    return Plan(config, dataset, scenario, outputs, keys, tuning, report)


def execute(plan: Plan, root: Path, listener: Listener) -> RunResult:
    """Train the links that are missing below `root`, then evaluate the chain from stored features."""
    began = time.perf_counter()
    check_writable(root)
    store = LinkStore(root, listener.say)
    if plan.config.threads:
        torch.set_num_threads(plan.config.threads)
    late = [epoch for epoch in plan.config.optim.milestones if epoch >= plan.config.optim.epochs]
    if late:
        listener.say(f"note: optim.milestones {late} lie beyond optim.epochs={plan.config.optim.epochs}: no effect")
    trained = Chain(plan, store, listener).train_missing()
    tasks = enumerate(plan.keys, start=1)
    links = [LinkInfo(task, key, task not in trained, store.record(key)) for task, key in tasks]
    features = [store.features(key).numpy() for key in plan.keys]
    tuning = evaluate(features, plan.tuning_pairs, plan.config.eval) if plan.tuning_pairs else None
    report = evaluate(features, plan.report_pairs, plan.config.eval)
    return RunResult(plan, links, tuning, report, time.perf_counter() - began)


class Chain:
    """Walks the tasks in order, training only those whose link is not in the store."""

    def __init__(self, plan: Plan, store: LinkStore, listener: Listener) -> None:
        self.plan, self.store, self.listener = plan, store, listener
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        dataset = plan.dataset
        self.normalise = Normalise(dataset.mean, dataset.std, self.device)

    def train_missing(self) -> set[int]:
        """Train what is missing; returns the numbers of the tasks trained."""
        present = [self.store.has(key) for key in self.plan.keys]
        for task, key in enumerate(self.plan.keys, start=1):
            if present[task - 1]:
                self.listener.say(f"task {task}: reused link {key}")
        missing = {task for task, there in enumerate(present, start=1) if not there}
        if missing:
            self.listener.begin(sorted(missing))
            loop = TaskLoop(self.plan.config, self._training_images(), self.listener.epoch)
            for task in sorted(missing):
                if self.store.has(self.plan.keys[task - 1]):
                    missing.discard(task)  # another process was faster
                else:
                    self._train(task, loop)
        return missing

    def _training_images(self) -> TrainingImages:
        dataset, scenario = self.plan.dataset, self.plan.scenario
        return TrainingImages(
            torch.from_numpy(dataset.x_train).to(self.device),
            torch.from_numpy(scenario.labels).to(self.device),
            torch.from_numpy(scenario.task_of_row).to(self.device),
            self.normalise,
        )

    def _train(self, task: int, loop: TaskLoop) -> None:
        key = self.plan.keys[task - 1]
        method, memory = self._state_before(task)
        method.begin_task(self._info(task, len(memory)))
        partial = self.store.partial(key)
        if partial:
            self.listener.say(f"task {task}: resumed link {key} after epoch {partial.epoch}")
        rows = self.plan.scenario.tasks[task - 1].rows
        record = loop.run(method, rows, memory, partial, lambda p: self.store.save_partial(key, p))
        method.end_task()
        self._save(key, method, memory, vars(record) | {"metrics": method.metrics(), "memory": len(memory)})
        self.listener.say(f"task {task}: trained link {key} in {record.seconds:.1f} s")

    def _save(self, key: str, method: Method, memory: Rows, record: dict[str, Any]) -> None:
        open_images = torch.from_numpy(self.plan.dataset.x_open).to(self.device)
        began = time.perf_counter()
        features = extract(method.extractor(), open_images, self.normalise)
        if not torch.isfinite(features).all():
            raise TrainingError(f"task {method.task.index}: the features are not finite; try a lower optim.lr")
        state: Tensors = {f"method/{name}": tensor for name, tensor in method.carry().items()}
        state["memory"] = torch.from_numpy(memory)
        record["extract_seconds"] = time.perf_counter() - began
        record["common_direction"] = float(functional.normalize(features).mean(0).norm())
        self.store.save(key, state, {"open": features}, record)

    def _info(self, task: int, memory_rows: int) -> TaskInfo:
        labels = self.plan.scenario.tasks[task - 1].labels
        return TaskInfo(task, labels.start, len(labels), memory_rows)

    def _state_before(self, task: int) -> tuple[Method, Rows]:
        """The method as it was after task t-1, and M_t."""
        plan = self.plan
        method = build_method(plan.config, plan.dataset.channels, plan.num_outputs)
        method.network.to(self.device)
        if task == 1:
            return method, np.empty(0, dtype=np.int64)
        state = self.store.state(plan.keys[task - 2])
        memory: Rows = state.pop("memory").numpy()
        method.restore(
            {name.removeprefix("method/"): tensor.to(self.device) for name, tensor in state.items()},
            self._info(task - 1, len(memory)),
        )
        return method, np.concatenate([memory, self._sampled(task - 1, method)])

    def _sampled(self, task: int, method: Method) -> Rows:
        """Sampling(D_t), by φ_t where herding asks for it."""
        config, rows = self.plan.config, self.plan.scenario.tasks[task - 1].rows
        features = None
        if config.memory.selection == "herding":
            images = torch.from_numpy(self.plan.dataset.x_train[rows]).to(self.device)
            features = extract(method.extractor(), images, self.normalise).numpy()
        labels = self.plan.scenario.labels[rows]
        return sample_task(rows, labels, config.memory.per_class, config.memory.selection, config.seed, task, features)
