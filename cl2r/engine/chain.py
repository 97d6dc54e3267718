"""Algorithm 1: a run is a chain of tasks. Each task leaves a link, which is trained once and reused ever after."""

import contextlib
import logging
import math
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cl2r.adapters import QueryAdapter, Support
from cl2r.augment import Normalise
from cl2r.batches import Rows
from cl2r.config.keys import MAKERS, AcceptLinks, made_by, stored_key
from cl2r.config.methods import method_info
from cl2r.engine.evaluation import ChainFeatures, Evaluation, Evaluator
from cl2r.engine.extraction import GALLERY, SUPPORT, SUPPORT_OLD, LinkFeatures, extract, stored_features
from cl2r.engine.links import MODEL, Link, LinkStore, Tensors, check_writable
from cl2r.engine.loop import TaskLoop, TaskRecord, TrainingImages, stopped
from cl2r.engine.pixels import training_pixels
from cl2r.engine.plan import Plan
from cl2r.engine.workers import ALONE, Workers
from cl2r.features import Features
from cl2r.memory import sample_task
from cl2r.methods.base import Method, TaskData, TaskInfo, build_method
from cl2r.runtime.environment import peak_bytes
from cl2r.runtime.progress import Listener
from cl2r.runtime.stop import Stop, never_stop
from cl2r.storage.path import StoragePath

log = logging.getLogger(__name__)
"""Which stored links a run uses: those made by the same kind of device and number of workers, or all."""


@dataclass(frozen=True)
class LinkSummary:
    """One task of a finished run."""

    task: int
    key: str  # under which it is stored
    reused: bool
    record: dict[str, Any]


@dataclass(frozen=True)
class RunResult:
    """A finished run: `tuning` is its evaluation on tuning pairs, if there are any, `report` that on report pairs."""

    plan: Plan
    links: list[LinkSummary]
    tuning: Evaluation | None
    report: Evaluation
    seconds: float


def training_images(plan: Plan, device: torch.device, loaders: int) -> TrainingImages:
    """Return the training set of a plan, held on the device or decoded by `loaders` processes."""
    labels = torch.from_numpy(plan.scenario.labels).to(device)
    pixels, normalise = training_pixels(plan.dataset, loaders, device), Normalise(*plan.dataset.moments, device)
    return TrainingImages(pixels, labels, normalise)


def execute(
    plan: Plan,
    root: StoragePath | Path,
    listener: Listener,
    stop: Stop = never_stop,
    after_task: "Callable[[Chain, int], None]" = lambda chain, task: None,
    accept_links: AcceptLinks = "same",
) -> RunResult:
    """Train the links that are missing below `root`, then evaluate the chain from stored features."""
    began = time.perf_counter()
    chain = Chain(plan, root, listener, trained_by=uuid.uuid4().hex, stop=stop, accept_links=accept_links)
    for task in chain.tasks:
        chain.ensure_link(task)
        after_task(chain, task)
    return chain.result(time.perf_counter() - began)


class Chain:
    """The links of one run, trained task by task unless the store has them.

    `trained_by` is written into trained links, to tell them from reused ones. `stop` is asked after every epoch.
    A stored link is used if it was made as this process would make it, on links that this chain uses too. `earlier` are
    the other ways in which this run's own links may have been made: by a command with another number of workers.
    `accept_links="any"` uses links however they were made.
    """

    def __init__(
        self,
        plan: Plan,
        root: StoragePath | Path,
        listener: Listener,
        trained_by: str,
        workers: Workers = ALONE,
        stop: Stop = never_stop,
        earlier: Sequence[str] = (),
        accept_links: AcceptLinks = "same",
    ) -> None:
        self.plan, self.listener, self.trained_by, self.workers, self.stop = plan, listener, trained_by, workers, stop
        self.store, self.info, self.device = LinkStore(root), method_info(plan.config.method.name), workers.device
        self.tasks = range(1, len(plan.keys) + 1)
        self.made_here = made_by(workers.device.type, workers.world, workers.sync_batchnorm)
        self.made = [self.made_here] * len(plan.keys)  # how each link was made; final once `ensure_link` has run
        self.earlier, self.accept_links = earlier, accept_links
        spec, tuning = plan.config.eval, plan.tuning_pairs
        self._report = Evaluator(plan.report_pairs, spec, plan.report_images)
        self._tuning = Evaluator(tuning, spec, plan.tuning_images) if tuning is not None else None
        if plan.config.threads:
            torch.set_num_threads(plan.config.threads)
        if workers.first:
            check_writable(root)
            if plan.config.eval.order == "official_order":
                log.warning(
                    "eval.order=official_order repeats a defect of the released evaluation: thresholds are tuned "
                    "on the wrong balance of classes and accuracies are too low (PAPER.md, row 13); do not report them"
                )
            epochs = plan.config.optim.epochs
            if late := [epoch for epoch in plan.config.optim.milestones if epoch >= epochs]:
                log.info("note: optim.milestones %s have no effect: they are not below optim.epochs=%s", late, epochs)
            present = self.store.planned(self._ways, accept_links)
            listener.begin([task for task in self.tasks if plan.keys[task - 1] not in present])

    def ensure_link(self, task: int) -> None:
        """Make sure link `task` exists: load it, wait for the process that is training it, or train it."""
        if self.workers.from_first(self.stop):
            raise stopped(f"before task {task}")
        found = self.workers.from_first(lambda: self._find(task))
        self.made[task - 1] = found or self.made_here
        key = self.key(task)
        if found:
            self._log(f"task {task}: reused link {key}")
            if found != self.made_here and self.workers.first:
                log.warning(
                    "task %d: its link was trained by %s; this command trains by %s", task, found, self.made_here
                )
            return
        with self.store.lock(key) if self.workers.first else contextlib.nullcontext():
            if self.workers.from_first(lambda: self.store.load(key) is not None):
                self._log(f"task {task}: reused link {key}, just trained by another process")
            else:
                self._train(task)

    def key(self, task: int) -> str:
        """Return the key of link `task`, given how the links before it were made."""
        return stored_key(self.plan.keys[task - 1], self.made[:task])

    def _find(self, task: int) -> str | None:
        """Return what made the stored link to use, or None if there is none.

        Of several, take the one with the longest stored chain: another study may have trained some of the links.
        """
        key, before = self.plan.keys[task - 1], self.made[: task - 1]
        ways = self._ways
        if len(ways) > 1:
            ways.sort(key=lambda way: self._reach([*before, way]), reverse=True)  # stable: in ties, this command's
        for way in ways:
            if self.store.load(stored_key(key, [*before, way])) is not None:
                return way
        if self.accept_links == "any":
            for stored in sorted(self.store.keys()):
                if (stored == key or stored.startswith(f"{key}-")) and (link := self.store.load(stored)) is not None:
                    way = made_by(*(link.record[name] for name in MAKERS))
                    if stored_key(key, [*before, way]) == stored:
                        return way
        return None

    @property
    def _ways(self) -> list[str]:
        """The ways in which links of this run may have been made, this command's first."""
        return list(dict.fromkeys([self.made_here, *self.earlier]))

    def _reach(self, made: list[str]) -> int:
        """Return the length of the longest stored chain that begins with links made in these ways."""
        if stored_key(self.plan.keys[len(made) - 1], made) not in self.store:
            return len(made) - 1
        ways = self._ways if len(made) < len(self.plan.keys) else []
        return max((self._reach([*made, way]) for way in ways), default=len(made))

    def result(self, seconds: float) -> RunResult:
        """Evaluate the whole chain, whose links must all exist."""
        links = []
        for task in self.tasks:
            key = self.key(task)
            record = self.store.record(key)
            record.pop(MODEL, None)  # for those who use the model, not about its training
            links.append(LinkSummary(task, key, record.pop("owner", None) != self.trained_by, record))
        features = self.features(len(links))
        tuning = self._tuning(features) if self._tuning else None
        return RunResult(self.plan, links, tuning, self._report(features), seconds)

    def evaluate_so_far(self, task: int, search: bool = False) -> Evaluation:
        """Evaluate the first `task` models without intervals, on the tuning pairs or, without any, the report pairs.

        Metrics of recall are NaN without `search`.
        """
        return (self._tuning or self._report)(self.features(task), bootstrap=False, search=search)

    def features(self, tasks: int) -> ChainFeatures:
        """Return the features of the open images by the first `tasks` models."""
        links = [self.store.features(self.key(task)) for task in self.tasks[:tasks]]
        cells = [(t, k) for t in range(tasks) for k in range(t) if self.info.maps_gallery]
        galleries = {(t, k): Features(links[t][GALLERY.format(k + 1)].numpy()) for t, k in cells}
        spec, adapter = self.plan.config.adapter, None
        if spec.name != "none":
            supports = [Support(link[SUPPORT].numpy(), link[SUPPORT_OLD].numpy()) for link in links[1:]]
            adapter = QueryAdapter(spec, supports)
        return ChainFeatures([stored_features(link) for link in links], galleries, adapter, self.info.grows)

    def _log(self, line: str) -> None:
        if self.workers.first:
            log.info(line)

    @cached_property
    def _loop(self) -> TaskLoop:
        images = training_images(self.plan, self.device, self.plan.config.data.loaders)
        return TaskLoop(self.plan.config, images, self.listener.epoch, self.workers, self.stop)

    @cached_property
    def _link_features(self) -> LinkFeatures:
        return LinkFeatures(self.plan, self.info, self.device)

    def _train(self, task: int) -> None:
        key, scenario = self.key(task), self.plan.scenario
        method, memory = self._state_before(task)
        previous = method.extractor() if task > 1 else None
        data = TaskData(scenario.tasks[task - 1].rows, memory, scenario.labels, self._apply)
        method.begin_task(self._task_info(task, len(memory)), data)
        partial = self.workers.from_first(lambda: self.store.load_partial(key))
        if partial:
            self._log(f"task {task}: resumed link {key} after epoch {partial.epoch}")
        record = self._loop.run(method, data.new, memory, partial, lambda saved: self.store.save_partial(key, saved))
        method.end_task()
        self.workers.from_first(lambda: self._save(key, method, previous, data, record))
        self._log(f"task {task}: trained link {key} in {record.seconds:.1f} s")

    def _state_before(self, task: int) -> tuple[Method, Rows]:
        """Return the method as it was after task t-1, and M_t."""
        plan = self.plan
        method = build_method(plan.config, plan.dataset.channels, plan.num_outputs)
        method.network.to(self.device)
        self.workers.prepare(method.network)
        if task == 1:
            return method, np.empty(0, dtype=np.int64)
        state = self.workers.from_first(lambda: self.store.state(self.key(task - 1)))
        memory: Rows = state.pop("memory").numpy()
        carried = {name.removeprefix("method/"): tensor.to(self.device) for name, tensor in state.items()}
        method.restore(carried, self._task_info(task - 1, len(memory)))
        if self.info.memory == "all":
            return method, np.concatenate([before.rows for before in plan.scenario.tasks[: task - 1]])

        def sampled() -> Rows:
            """Return Sampling(D_{t-1}); herding uses φ_{t-1}."""
            spec, rows, features = plan.config.memory, plan.scenario.tasks[task - 2].rows, None
            if spec.selection == "herding":
                features = self._apply(method.extractor(), rows).cpu().numpy()
            labels = plan.scenario.labels[rows]
            return sample_task(rows, labels, spec.per_class, spec.selection, plan.config.seed, task - 1, features)

        return method, np.concatenate([memory, self.workers.from_first(sampled)])

    def _save(self, key: str, method: Method, previous: nn.Module | None, data: TaskData, trained: TaskRecord) -> None:
        began = time.perf_counter()
        carried: Tensors = {f"method/{name}": tensor for name, tensor in method.carry().items()}
        before = self.store.features(self.key(method.task.index - 1)) if previous is not None else {}
        features, diagnostics = self._link_features.compute(method, previous, data, before)
        image_bytes = math.prod(self.plan.dataset.x_train.shape[1:])
        record = vars(trained) | {
            "metrics": method.diagnostics() | diagnostics,
            "memory": len(data.memory),
            "stored_bytes": len(data.memory) * image_bytes + sum(tensor.nbytes for tensor in carried.values()),
            "workers": self.workers.world,
            "sync_batchnorm": self.workers.sync_batchnorm,
            "device": self.workers.device.type,
            "extract_seconds": time.perf_counter() - began,
            "peak_bytes": peak_bytes(),
            "owner": self.trained_by,
            MODEL: self.plan.model_facts([self.key(task) for task in self.tasks[: method.task.index]]),
        }
        self.store.save(key, Link(carried | {"memory": torch.from_numpy(data.memory)}, features, record))

    def _apply(self, module: nn.Module, rows: Rows) -> Tensor:
        return extract(module, self._loop.data.pixels, rows, self._loop.data.normalise).to(self.device)

    def _task_info(self, task: int, memory_rows: int) -> TaskInfo:
        labels = self.plan.scenario.tasks[task - 1].labels
        return TaskInfo(task, labels.start, len(labels), memory_rows)
