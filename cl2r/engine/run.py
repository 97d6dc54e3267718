"""Algorithm 1: one run, a chain of tasks, each link trained once and found again ever after."""

import contextlib
import math
import time
import uuid
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cl2r.adapters import QueryAdapter, Support
from cl2r.augment import Normalise
from cl2r.engine.evaluation import ChainFeatures, Evaluation, Evaluator
from cl2r.engine.extraction import extract
from cl2r.engine.link_features import GALLERY, LinkFeatures, in_precision, stored
from cl2r.engine.pixels import training_pixels
from cl2r.engine.plan import Plan
from cl2r.engine.process_memory import peak_bytes
from cl2r.engine.store import LinkStore, Tensors, check_writable
from cl2r.engine.task_loop import EpochReport, TaskLoop, TaskRecord, TrainingImages, stopped
from cl2r.engine.workers import ALONE, Workers
from cl2r.files import Place
from cl2r.memory import sample_task
from cl2r.methods.base import Method, TaskData, TaskInfo
from cl2r.methods.catalog import method_info
from cl2r.methods.registry import build_method
from cl2r.stopping import Stop, never

Rows = npt.NDArray[np.int64]


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


def training_images(plan: Plan, device: torch.device, loaders: int) -> TrainingImages:
    """The training set of a plan, on the device or on its way there."""
    dataset, scenario = plan.dataset, plan.scenario
    return TrainingImages(
        training_pixels(dataset, loaders, device),
        torch.from_numpy(scenario.labels).to(device),
        torch.from_numpy(scenario.task_of_row).to(device),
        Normalise(*dataset.moments, device),
    )


def execute(plan: Plan, root: Place, listener: Listener, stop: Stop = never) -> RunResult:
    """Train the links that are missing below `root`, then evaluate the chain from stored features."""
    began = time.perf_counter()
    chain = Chain(plan, root, listener, owner=uuid.uuid4().hex, stop=stop)
    for task in chain.tasks:
        chain.reach(task)
    return chain.result(time.perf_counter() - began)


class Chain:
    """Walks the tasks in order, training only those whose link is not in the store.

    `owner` is written into the links that are trained, so that a frame can tell them from those found. `stop` is asked
    before every task and after every epoch.
    """

    def __init__(
        self, plan: Plan, root: Place, listener: Listener, owner: str, workers: Workers = ALONE, stop: Stop = never
    ) -> None:
        self.plan, self.listener, self.owner, self.workers, self.stop = plan, listener, owner, workers, stop
        if self.workers.first:
            check_writable(root)
        if plan.config.threads:
            torch.set_num_threads(plan.config.threads)
        self.store = LinkStore(root, listener.warn)
        self.info = method_info(plan.config.method.name)
        self.device = self.workers.device
        self.tasks = range(1, len(plan.keys) + 1)
        if self.workers.first:
            self._announce()

    def _announce(self) -> None:
        optim = self.plan.config.optim
        if self.plan.config.eval.order == "official_order":
            self.listener.warn(
                "eval.order=official_order repeats a defect of the released evaluation: thresholds are tuned on the "
                "wrong balance of classes and accuracies come out too low (PAPER.md, row 13); do not report them"
            )
        late = [epoch for epoch in optim.milestones if epoch >= optim.epochs]
        if late:
            self.listener.say(f"note: optim.milestones {late} lie beyond optim.epochs={optim.epochs}: no effect")
        self.listener.begin([task for task in self.tasks if not self.store.present(self.plan.keys[task - 1])])

    def reach(self, task: int) -> None:
        """Have link `task`: find it, wait for another process that trains it, or train it. Links before it exist."""
        key = self.plan.keys[task - 1]
        if self.workers.from_first(self.stop):
            raise stopped(f"before task {task}")
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
        features = self.features(len(plan.keys))
        tuning = self._tuning(features) if plan.tuning_pairs else None
        return RunResult(plan, links, tuning, self._report(features), seconds)

    def tuning_so_far(self, task: int) -> Evaluation:
        """C of the first `task` models on the tuning pairs (the report pairs where there are none), no intervals."""
        return (self._tuning if self.plan.tuning_pairs else self._report)(self.features(task), bootstrap=False)

    @cached_property
    def _tuning(self) -> Evaluator:
        assert self.plan.tuning_pairs is not None
        return Evaluator(self.plan.tuning_pairs, self.plan.config.eval)

    @cached_property
    def _report(self) -> Evaluator:
        return Evaluator(self.plan.report_pairs, self.plan.config.eval)

    def features(self, tasks: int) -> ChainFeatures:
        """What the first `tasks` links say of the open images."""
        links = [self.store.features(key) for key in self.plan.keys[:tasks]]
        models = [stored(link) for link in links]
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
        config = self.plan.config
        images = training_images(self.plan, self.device, config.data.loaders)
        return TaskLoop(config, images, self.listener.epoch, self.workers, self.stop)

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

    @cached_property
    def _views(self) -> LinkFeatures:
        return LinkFeatures(self.plan, self.info, self.device)

    def _data(self, task: int, memory: Rows) -> TaskData:
        scenario = self.plan.scenario
        return TaskData(scenario.tasks[task - 1].rows, memory, scenario.labels, self._apply)

    def _apply(self, module: nn.Module, rows: Rows) -> Tensor:
        return extract(module, self._loop.data.pixels, rows, self._loop.data.normalise).to(self.device)

    def _save(self, key: str, method: Method, previous: nn.Module | None, data: TaskData, trained: TaskRecord) -> None:
        began = time.perf_counter()
        carried: Tensors = {f"method/{name}": tensor for name, tensor in method.carry().items()}
        before = self.store.features(self.plan.keys[method.task.index - 2]) if previous is not None else {}
        features, figures = self._views.of(method, previous, data, before)
        image_bytes = math.prod(self.plan.dataset.x_train.shape[1:])
        record = vars(trained) | {
            "metrics": method.metrics() | figures,
            "memory": len(data.memory),
            "stored_bytes": len(data.memory) * image_bytes + sum(tensor.nbytes for tensor in carried.values()),
            "workers": self.workers.world,
            "sync_batchnorm": self.workers.sync_batchnorm,
            "extract_seconds": time.perf_counter() - began,
            "peak_bytes": peak_bytes(),
            "owner": self.owner,
        }
        kept = in_precision(features, self.plan.config.eval.features)
        self.store.save(key, {**carried, "memory": torch.from_numpy(data.memory)}, kept, record)

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
            features = self._apply(method.extractor(), rows).cpu().numpy()
        labels = self.plan.scenario.labels[rows]
        return sample_task(rows, labels, config.memory.per_class, config.memory.selection, config.seed, task, features)
