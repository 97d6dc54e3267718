"""Algorithm 1: one run, a chain of tasks, each link trained once and found again ever after."""

import contextlib
import time
import uuid
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cl2r.adapters import QueryAdapter, Support
from cl2r.augment import Normalise
from cl2r.config import Config
from cl2r.data import ImageSet, load_dataset
from cl2r.data.dataset import Pairs
from cl2r.data.pairs import tuning_and_report_pairs
from cl2r.data.scenario import Scenario, build_scenario, class_increments, class_order
from cl2r.engine.evaluation import ChainFeatures, Evaluation, evaluate, extract
from cl2r.engine.figures import common_direction, drift_figures, flops, support_rows, vertex_figures
from cl2r.engine.store import LinkStore, Tensors, check_writable
from cl2r.engine.task_loop import EpochReport, TaskLoop, TaskRecord, TrainingImages
from cl2r.engine.workers import ALONE, Workers
from cl2r.errors import InputError, TrainingError
from cl2r.link_keys import link_keys
from cl2r.memory import sample_task
from cl2r.methods.base import Method, TaskData, TaskInfo
from cl2r.methods.catalog import method_info
from cl2r.methods.registry import build_method, method_class
from cl2r.verification import pair_correctness

Rows = npt.NDArray[np.int64]
GALLERY = "gallery_{}"  # of φ_k, as it is stored after this task


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
        """One line worth keeping: a link reused, resumed, trained."""

    def warn(self, line: str) -> None:
        """One line that must be seen: a link is damaged."""

    def begin(self, tasks: list[int]) -> None:
        """The tasks that will be trained."""

    def epoch(self, report: EpochReport) -> None:
        """An epoch is done."""


def plan_run(config: Config) -> Plan:
    """Load the data, lay out tasks and pairs, name the links. Raises InputError; touches no store."""
    method_class(config.method.name)
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


def training_images(plan: Plan, device: torch.device) -> TrainingImages:
    """The training set of a plan, on the device."""
    dataset, scenario = plan.dataset, plan.scenario
    return TrainingImages(
        torch.from_numpy(dataset.x_train).to(device),
        torch.from_numpy(scenario.labels).to(device),
        torch.from_numpy(scenario.task_of_row).to(device),
        Normalise(dataset.mean, dataset.std, device),
    )


def execute(plan: Plan, root: Path, listener: Listener) -> RunResult:
    """Train the links that are missing below `root`, then evaluate the chain from stored features."""
    began = time.perf_counter()
    chain = Chain(plan, root, listener, owner=uuid.uuid4().hex)
    for task in chain.tasks:
        chain.reach(task)
    return chain.result(time.perf_counter() - began)


class Chain:
    """Walks the tasks in order, training only those whose link is not in the store.

    `owner` is written into the links that are trained, so that a frame can tell them from those found.
    """

    def __init__(self, plan: Plan, root: Path, listener: Listener, owner: str, workers: Workers = ALONE) -> None:
        self.plan, self.listener, self.owner, self.workers = plan, listener, owner, workers
        if self.workers.first:
            check_writable(root)
        if plan.config.threads:
            torch.set_num_threads(plan.config.threads)
        self.store = LinkStore(root, listener.warn)
        self.info = method_info(plan.config.method.name)
        self.device = self.workers.device
        self.normalise = Normalise(plan.dataset.mean, plan.dataset.std, self.device)
        self.tasks = range(1, len(plan.keys) + 1)
        if self.workers.first:
            self._announce()

    def _announce(self) -> None:
        optim = self.plan.config.optim
        late = [epoch for epoch in optim.milestones if epoch >= optim.epochs]
        if late:
            self.listener.say(f"note: optim.milestones {late} lie beyond optim.epochs={optim.epochs}: no effect")
        self.listener.begin([task for task in self.tasks if not self.store.present(self.plan.keys[task - 1])])

    def reach(self, task: int) -> None:
        """Have link `task`: find it, wait for another process that trains it, or train it. Links before it exist."""
        key = self.plan.keys[task - 1]
        if self._found(key):
            self._say(f"task {task}: reused link {key}")
            return
        with self.store.claim(key) if self.workers.first else contextlib.nullcontext():
            if self._found(key):
                self._say(f"task {task}: reused link {key}, just trained by another process")
            else:
                self._train(task)

    def result(self, seconds: float) -> RunResult:
        """Evaluate the whole chain; all its links exist."""
        plan = self.plan
        links = []
        for task, key in zip(self.tasks, plan.keys, strict=True):
            record = self.store.record(key)
            links.append(LinkInfo(task, key, record.pop("owner", None) != self.owner, record))
        features = self._features(len(plan.keys))
        tuning = evaluate(features, plan.tuning_pairs, plan.config.eval) if plan.tuning_pairs else None
        return RunResult(plan, links, tuning, evaluate(features, plan.report_pairs, plan.config.eval), seconds)

    def tuning_so_far(self, task: int) -> Evaluation:
        """C of the first `task` models on the tuning pairs (the report pairs where there are none), no intervals."""
        spec = self.plan.config.eval.model_copy(update={"bootstrap": 0})
        return evaluate(self._features(task), self.plan.tuning_pairs or self.plan.report_pairs, spec)

    def _features(self, tasks: int) -> ChainFeatures:
        """What the first `tasks` links say of the open images."""
        links = [self.store.features(key) for key in self.plan.keys[:tasks]]
        models = [link["open"].numpy() for link in links]
        galleries = {
            (t, k): links[t][GALLERY.format(k + 1)].numpy() for t in range(tasks) for k in range(t) if self.info.gallery
        }
        spec, adapter = self.plan.config.adapter, None
        if spec.name != "none":
            adapter = QueryAdapter(
                spec, [Support(link["support"].numpy(), link["support_old"].numpy()) for link in links[1:]]
            )
        return ChainFeatures(models, galleries, adapter, self.info.grows)

    def _found(self, key: str) -> bool:
        return self.workers.from_first(lambda: self.store.has(key))

    def _say(self, line: str) -> None:
        if self.workers.first:
            self.listener.say(line)

    @cached_property
    def _loop(self) -> TaskLoop:
        return TaskLoop(self.plan.config, training_images(self.plan, self.device), self.listener.epoch, self.workers)

    def _train(self, task: int) -> None:
        key = self.plan.keys[task - 1]
        method, memory = self._state_before(task)
        previous = method.extractor() if task > 1 else None
        data = self._data(task, memory)
        method.begin_task(self._info(task, len(memory)), data)
        partial = self.workers.from_first(lambda: self.store.partial(key))
        if partial:
            self._say(f"task {task}: resumed link {key} after epoch {partial.epoch}")
        record = self._loop.run(method, data.new, memory, partial, lambda p: self.store.save_partial(key, p))
        method.end_task()
        self.workers.from_first(lambda: self._save(key, method, previous, data, record))
        self._say(f"task {task}: trained link {key} in {record.seconds:.1f} s")

    def _data(self, task: int, memory: Rows) -> TaskData:
        scenario = self.plan.scenario
        return TaskData(scenario.tasks[task - 1].rows, memory, scenario.labels, self._apply)

    def _apply(self, module: nn.Module, rows: Rows) -> Tensor:
        return extract(module, self._loop.data.images[torch.from_numpy(rows)], self.normalise).to(self.device)

    def _save(self, key: str, method: Method, previous: nn.Module | None, data: TaskData, trained: TaskRecord) -> None:
        began = time.perf_counter()
        carried: Tensors = {f"method/{name}": tensor for name, tensor in method.carry().items()}
        features, figures = self._link_features(method, previous, data)
        images = self.plan.dataset.x_train
        record = vars(trained) | {
            "metrics": method.metrics() | figures,
            "memory": len(data.memory),
            "stored_bytes": len(data.memory) * images[0].nbytes + sum(tensor.nbytes for tensor in carried.values()),
            "workers": self.workers.world,
            "sync_batchnorm": self.workers.sync_batchnorm,
            "extract_seconds": time.perf_counter() - began,
            "owner": self.owner,
        }
        self.store.save(key, {**carried, "memory": torch.from_numpy(data.memory)}, features, record)

    def _link_features(
        self, method: Method, previous: nn.Module | None, data: TaskData
    ) -> tuple[Tensors, dict[str, float]]:
        """What the link keeps of features, and the figures read off them."""
        task, extractor = method.task.index, method.extractor()
        open_images = torch.from_numpy(self.plan.dataset.x_open).to(self.device)
        rows = support_rows(data.new, data.memory, self.plan.config.seed, task)
        features = {"open": extract(extractor, open_images, self.normalise), "support": self._apply(extractor, rows)}
        if not torch.isfinite(features["open"]).all():
            raise TrainingError(f"task {task}: the features are not finite; try a lower optim.lr")
        figures = {
            "common_direction": common_direction(features["open"]),
            "feature_size": float(features["open"].shape[1]),
            "model_bytes": float(sum(tensor.nbytes for tensor in extractor.state_dict().values())),
            "forward_flops": flops(extractor, self.normalise(open_images[:1])),
        }
        if previous is not None:
            features["support_old"] = self._apply(previous, rows)
            before = self.store.features(self.plan.keys[task - 2])
            figures |= drift_figures(features["open"], before["open"])
            if self.info.gallery:
                features |= self._adapted(method, before, task)
                figures["gallery_flops"] = flops(method.adapt_gallery, before["open"][:1].to(self.device))
        if self.plan.config.method.classifier == "fixed":
            figures |= vertex_figures(features["support"], data.labels[rows], self.plan.num_outputs)
        return features, figures

    def _adapted(self, method: Method, before: Tensors, task: int) -> Tensors:
        """Every gallery stored so far, by older models too, in the space of φ_t."""
        stored = {GALLERY.format(k): before[GALLERY.format(k)] for k in range(1, task - 1)}
        stored[GALLERY.format(task - 1)] = before["open"]
        return {name: method.adapt_gallery(tensor.to(self.device)).cpu() for name, tensor in stored.items()}

    def _info(self, task: int, memory_rows: int) -> TaskInfo:
        labels = self.plan.scenario.tasks[task - 1].labels
        return TaskInfo(task, labels.start, len(labels), memory_rows)

    def _state_before(self, task: int) -> tuple[Method, Rows]:
        """The method as it was after task t-1, and M_t."""
        plan = self.plan
        method = build_method(plan.config, plan.dataset.channels, plan.num_outputs)
        method.network.to(self.device)
        self.workers.prepare(method.network)
        if task == 1:
            return method, np.empty(0, dtype=np.int64)
        all_before = np.concatenate([before.rows for before in plan.scenario.tasks[: task - 1]])
        state = self.workers.from_first(lambda: self.store.state(plan.keys[task - 2]))
        memory: Rows = state.pop("memory").numpy()
        method.restore(
            {name.removeprefix("method/"): tensor.to(self.device) for name, tensor in state.items()},
            self._info(task - 1, len(memory)),
        )
        if self.info.memory == "all":
            return method, all_before
        sampled = self.workers.from_first(lambda: self._sampled(task - 1, method))
        return method, np.concatenate([memory, sampled])

    def _sampled(self, task: int, method: Method) -> Rows:
        """Sampling(D_t), by φ_t where herding asks for it."""
        config, rows = self.plan.config, self.plan.scenario.tasks[task - 1].rows
        features = None
        if config.memory.selection == "herding":
            images = torch.from_numpy(self.plan.dataset.x_train[rows]).to(self.device)
            features = extract(method.extractor(), images, self.normalise).numpy()
        labels = self.plan.scenario.labels[rows]
        return sample_task(rows, labels, config.memory.per_class, config.memory.selection, config.seed, task, features)
