"""The authors' released code, run as it is, against this package: equal weights, pairs, accuracies and metrics.

The released code has no licence, so no part of it is in this repository. Without a checkout these tests are skipped:

    git clone https://github.com/NiccoBiondi/CompatibleLifelongRepresentation DIR
    git -C DIR checkout 8bd438b
    CL2R_RELEASED_CODE=DIR python -m pytest tests/golden/test_released_code.py

Its `main` trains and evaluates three short tasks in float64 on random mosaics. Replaced for that are CIFAR, `.cuda()`,
the number of pairs and the learning rate; `train` and `create_pairs` are wrapped to record what goes in and comes out.
The engine then gets its first weights and its batches, with the preset `official_code`.
"""

import contextlib
import copy
import importlib
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch
import yaml
from continuum.datasets import InMemoryDataset
from torch import Tensor, nn

from cl2r.augment import Normalise
from cl2r.batches import Batch, batches_per_epoch
from cl2r.compatibility import average_compatibility, backward_compatibility, forward_compatibility
from cl2r.config.layers import override, read_layer, resolve
from cl2r.config.schema import Config
from cl2r.data.pairs import draw_pairs
from cl2r.engine.evaluation import ChainFeatures, Evaluator
from cl2r.engine.loop import TaskLoop, TrainingImages
from cl2r.engine.pixels import HeldPixels
from cl2r.features import Features
from cl2r.methods.base import TaskInfo, build_method
from cl2r.official_code import contiguous_folds, draw_official_pairs, grid_accuracy
from cl2r.simplex import simplex_vertices
from cl2r.verification import Pairs, squared_distances, verification_accuracy
from tests.support.quick import blobs, no_data

CHECKOUT = os.environ.get("CL2R_RELEASED_CODE")
pytestmark = pytest.mark.skipif(
    CHECKOUT is None,
    reason="needs a checkout of github.com/NiccoBiondi/CompatibleLifelongRepresentation at commit 8bd438b: "
    "set CL2R_RELEASED_CODE to its folder",
)


def scale(num_classes: int) -> float:
    """Return the length of its vertices: it divides them by their length plus 1e-8."""
    return 1 / (1 + 1e-8 * math.sqrt(num_classes / (num_classes - 1)))


OUTPUTS = 100  # fixed in its main
SEEN, NEW = (0, 6, 9), (6, 3, 3)  # classes before and in every task
TASKS, BATCH, REHEARSAL, EPOCHS, PER_CLASS = 3, 8, 2, 2, 7
SLOWER = 0.01  # times its learning rate of 0.1, with which every step multiplies rounding by about ten
BATCHES = (5, 4, 4)  # of an epoch of every task
SHORT = {"epochs": EPOCHS, "stages": [1], "batch_size": BATCH, "rehearsal": REHEARSAL, "start": 6, "increment": 3}
OURS = (
    f"optim.lr={read_layer('official_code')['optim']['lr'] * SLOWER}",
    f"optim.epochs={EPOCHS}",
    "optim.milestones=[1]",
    f"batches.size={BATCH}",
    f"memory.per_class={REHEARSAL}",
    f"simplex.scale={scale(OUTPUTS)}",
)
PAIRS, FOLDS = 30, 10  # as many pairs of each kind
TOLERANCE = 1e-11
SMALLEST_CHANGE = 1e-6  # what another setting changes at least

State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Epoch:
    """One call of its `train`: batches of images, labels and numbers of tasks, and the weights before and after."""

    task: int
    lr: float
    weight: float  # λ_t
    batches: list[tuple[Tensor, Tensor, Tensor]]
    before: State
    after: State


@dataclass(frozen=True)
class ReleasedRun:
    """What a run of its `main` did. Row i of `queries` is compared with row i of `galleries`."""

    epochs: list[Epoch]
    queries: Tensor
    galleries: Tensor
    same: npt.NDArray[np.bool_]
    matrix: npt.NDArray[np.float64]


@dataclass(frozen=True)
class OurRun:
    """The same epochs by our engine: learning rate, λ_t and weights after each, and φ_t of every task."""

    lr: list[float]
    weight: list[float]
    after: list[State]
    phi: list[nn.Module]


@pytest.fixture(scope="module")
def released() -> SimpleNamespace:
    """Its modules. Its package has the name of ours, which is out of the way while they are imported."""
    folder = Path(str(CHECKOUT)) / "src" / "cl2r"
    if not (folder / "main.py").is_file():
        pytest.fail(f"CL2R_RELEASED_CODE={CHECKOUT}: there is no src/cl2r/main.py; name the folder of the checkout")
    package = ModuleType("cl2r")
    package.__path__ = [str(folder)]
    ours = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "cl2r"}
    sys.modules["cl2r"] = package
    try:
        names = ("main", "train", "model", "utils", "eval", "metrics", "params")
        modules = {name: importlib.import_module(f"cl2r.{name}") for name in names}
    finally:
        for name in list(sys.modules):
            if name.split(".")[0] == "cl2r":
                del sys.modules[name]
        sys.modules.update(ours)
    assert all(Path(str(module.__file__)).parent == folder for module in modules.values())
    return SimpleNamespace(**modules)


@contextlib.contextmanager
def float64_on_the_cpu() -> Iterator[pytest.MonkeyPatch]:
    """New tensors have 64 bits, `.float()` keeps them, and `.cuda()` changes nothing."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "float", lambda tensor: tensor.double())
        patch.setattr(torch.Tensor, "cuda", lambda tensor, device: tensor)
        patch.setattr(nn.Module, "cuda", lambda module, device: module)
        patch.setattr(torch.cuda, "is_available", lambda: False)
        try:
            yield patch
        finally:
            torch.set_default_dtype(default)


def mosaics(classes: int, seed: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return 32×32 colour images and labels."""
    images, labels = blobs(classes, np.random.default_rng(seed))
    return images[::2].repeat(2, 1).repeat(2, 2).repeat(3, 3), labels[::2]


def open_set(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], **given: Any) -> SimpleNamespace:
    """Return what its `create_pairs` reads of CIFAR10."""
    return SimpleNamespace(dataset=SimpleNamespace(data=images, targets=labels))


@pytest.fixture(scope="module")
def run(released: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> ReleasedRun:
    """A run of its `main` on small data: its own config.yml with less of everything."""
    folder, epochs, drawn = Path(tmp_path_factory.mktemp("released")), list[Epoch](), list[Any]()
    config = yaml.safe_load((Path(str(CHECKOUT)) / "config.yml").read_text(encoding="utf-8"))
    (folder / "short.yml").write_text(yaml.safe_dump(config | SHORT | {"num_workers": 0}), encoding="utf-8")
    train, create_pairs, sgd = released.main.train, released.main.create_pairs, torch.optim.SGD

    def recorded(args: Any, net: nn.Module, loader: Any, optimiser: Any, epoch: int, *others: Any) -> None:
        batches, before = list(loader), copy.deepcopy(net.state_dict())
        weight = float(getattr(args, "criterion_weight", 0.0))
        train(args, net, batches, optimiser, epoch, *others)
        lr, after = optimiser.param_groups[0]["lr"], copy.deepcopy(net.state_dict())
        epochs.append(Epoch(others[-1] + 1, lr, weight, batches, before, after))

    def slower_sgd(parameters: Any, lr: float, **given: Any) -> torch.optim.Optimizer:
        return sgd(parameters, lr * SLOWER, **given)

    def few_pairs(data_path: str) -> Any:
        drawn.append(create_pairs(data_path, PAIRS, PAIRS))
        return drawn[-1]

    with float64_on_the_cpu() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["cl2r", "--config_path", "short.yml"])
        patch.setattr(released.main, "CIFAR100", lambda **given: InMemoryDataset(*mosaics(sum(NEW), 0)))
        patch.setattr(released.utils, "CIFAR10", partial(open_set, *mosaics(4, 1)))
        patch.setattr(torch.optim, "SGD", slower_sgd)
        patch.setattr(released.main, "train", recorded)
        patch.setattr(released.main, "create_pairs", few_pairs)
        torch.manual_seed(0)
        np.random.seed(0)
        released.main.main()
    queries, galleries = drawn[-1]
    (stored,) = folder.glob("checkpoints-*/compatibility_matrix.npy")
    images = torch.from_numpy(queries.data), torch.from_numpy(galleries.data)
    return ReleasedRun(epochs, *images, queries.targets, np.load(str(stored)))


def official(*settings: str) -> Config:
    return resolve([read_layer("official_code"), *map(override, settings)])


def trained(run: ReleasedRun, *settings: str, tasks: Sequence[int] = (1, 2, 3)) -> OurRun:
    """Train our network on the recorded batches of some tasks, from the recorded weights before them."""
    ours, chosen = OurRun([], [], [], []), [epoch for epoch in run.epochs if epoch.task in tasks]
    with float64_on_the_cpu():
        config, cpu = official(*OURS, *settings), torch.device("cpu")
        method = build_method(config, 3, OUTPUTS)
        phi = cast(nn.Module, method.network.phi)
        phi.load_state_dict(in_our_names(chosen[0].before))
        pixels = HeldPixels(torch.empty(0, 32, 32, 3, dtype=torch.uint8))
        images = TrainingImages(pixels, torch.empty(0, dtype=torch.int64), Normalise((0.0,), (1.0,), cpu))
        loop = TaskLoop(config, images, report=lambda report: None)
        for task, epochs in groupby(chosen, lambda epoch: epoch.task):
            old, new = SEEN[task - 1], NEW[task - 1]
            method.begin_task(TaskInfo(task, old, new, old * REHEARSAL), no_data())
            (stage,) = method.stages()
            optimiser = loop.optimiser(method, stage)
            for number, epoch in enumerate(epochs):
                batches = iter([as_ours(*batch, task) for batch in epoch.batches])
                ours.lr.append(loop.epoch(method, method.network, stage, optimiser, number, batches).lr)
                ours.weight.append(method.diagnostics()["lambda"])
                ours.after.append(copy.deepcopy(phi.state_dict()))
            method.end_task()
            ours.phi.append(method.extractor())
    return ours


def as_ours(images: Tensor, labels: Tensor, tasks: Tensor, task: int) -> Batch:
    """Return a batch whose memory rows are those of earlier tasks; its tasks count from 0."""
    return Batch.of_one_worker(images, labels, torch.nonzero(tasks < task - 1).flatten().tolist())


LAYERS = {"conv_a": "conv1", "bn_a": "bn1", "conv_b": "conv2", "bn_b": "bn2"}
BLOCKS = 5  # of a stage


def in_our_names(state: State) -> dict[str, Tensor]:
    """Return the weights of its network under the names of our φ, without the fixed classifier.

    Its shortcuts append channels of zeros, ours put half of them before: the same function, channels reordered.
    """
    orders = channel_orders()
    ours = {}
    for name, tensor in state.items():
        match name.split("."):
            case ["fc2", _]:
                pass
            case ["fc1", kind]:
                ours[f"2.{kind}"] = tensor[:, orders[3]]
            case ["backbone", ("conv_1_3x3" | "bn_1") as layer, kind]:
                ours[f"0.{'bn1' if layer == 'bn_1' else 'conv1'}.{kind}"] = tensor
            case ["backbone", stage_name, block, layer, kind]:
                stage = int(stage_name.removeprefix("stage_"))
                if layer == "conv_a":
                    tensor = tensor[:, orders[stage if int(block) else max(stage - 1, 1)]]
                elif layer != "bn_a" and tensor.ndim:
                    tensor = tensor[orders[stage]]
                ours[f"0.blocks.{BLOCKS * (stage - 1) + int(block)}.{LAYERS[layer]}.{kind}"] = tensor
            case _:
                pytest.fail(f"the released network has an unknown part {name}")
    return ours


def channel_orders() -> dict[int, npt.NDArray[np.int64]]:
    """Return for each stage which of its channels each of our channels is."""
    orders = {1: np.arange(16)}
    for stage in (2, 3):
        old = len(orders[stage - 1])
        fresh = np.arange(old, 2 * old)
        orders[stage] = np.concatenate([fresh[: old // 2], orders[stage - 1], fresh[old // 2 :]])
    return orders


def largest_difference(epoch: Epoch, ours: State) -> float:
    """Return the largest difference of a weight or a running moment."""
    theirs = in_our_names(epoch.after)
    assert theirs.keys() == ours.keys()
    return max(float((theirs[name] - ours[name]).abs().max()) for name in ours)


@pytest.fixture(scope="module")
def ours(run: ReleasedRun) -> OurRun:
    return trained(run)


def test_the_classifier_is_the_closed_form(released: SimpleNamespace) -> None:
    with float64_on_the_cpu():
        for num_classes in (2, 3, 10, OUTPUTS):
            matrix = released.model.dsimplex(num_classes, "cpu").numpy()
            np.testing.assert_allclose(matrix, scale(num_classes) * simplex_vertices(num_classes), atol=1e-14, rtol=0)


def test_its_settings_are_those_of_the_preset(released: SimpleNamespace) -> None:
    config, theirs = official(), vars(released.params.ExperimentParams())
    theirs |= yaml.safe_load((Path(str(CHECKOUT)) / "config.yml").read_text(encoding="utf-8"))
    assert (theirs["epochs"], tuple(theirs["stages"])) == (config.optim.epochs, config.optim.milestones)
    assert (theirs["start"], theirs["increment"]) == (config.scenario.initial, config.scenario.increment)
    assert (theirs["batch_size"], theirs["rehearsal"]) == (config.batches.size, config.memory.per_class)
    assert theirs["criterion_weight_base"] == config.method.lambda_base


def test_its_memory_rows_are_the_first_half_of_every_batch(run: ReleasedRun) -> None:
    for epoch in run.epochs:
        new, memory = NEW[epoch.task - 1] * PER_CLASS, SEEN[epoch.task - 1] * REHEARSAL
        assert len(epoch.batches) == batches_per_epoch(new, memory, BATCH) == BATCHES[epoch.task - 1]
        for _, _, tasks in epoch.batches:
            half = len(tasks) // 2 if epoch.task > 1 else 0
            assert (tasks[:half] < epoch.task - 1).all()
            assert (tasks[half:] == epoch.task - 1).all()


def test_rates_and_lambda_are_equal_in_every_epoch(run: ReleasedRun, ours: OurRun) -> None:
    assert ours.lr == pytest.approx([epoch.lr for epoch in run.epochs], rel=1e-12)
    assert ours.weight == pytest.approx([epoch.weight for epoch in run.epochs], rel=1e-12)
    assert [epoch.task for epoch in run.epochs] == [1, 1, 2, 2, 3, 3]


def test_weights_are_equal_after_every_epoch(run: ReleasedRun, ours: OurRun) -> None:
    differences = [largest_difference(epoch, after) for epoch, after in zip(run.epochs, ours.after, strict=True)]
    assert max(differences) < TOLERANCE, differences


@pytest.mark.parametrize(
    "setting",
    [
        "method.lambda_rule=old_over_new",
        "method.name=fixed_fd",
        "optim.weight_decay=2e-4",
        "optim.momentum=0.8",
        "simplex.scale=0.99",
        "head.mask_unseen=true",
        "optim.milestones=[]",
    ],
)
def test_with_another_setting_they_are_not(run: ReleasedRun, setting: str) -> None:
    after = trained(run, setting, tasks=[2]).after[-1]
    assert largest_difference(run.epochs[2 * EPOCHS - 1], after) > SMALLEST_CHANGE


def test_our_models_have_its_matrix_and_metrics(released: SimpleNamespace, run: ReleasedRun, ours: OurRun) -> None:
    """Queries are the first half of the open images, galleries the second."""
    rows = np.arange(len(run.same))
    pairs = Pairs(rows, rows + len(rows), run.same, contiguous_folds(len(rows), FOLDS))
    with torch.no_grad():
        models = [phi(torch.cat([run.queries, run.galleries])).numpy() for phi in ours.phi]
    spec = official("eval.bootstrap=0").eval
    evaluation = Evaluator(pairs, spec)(ChainFeatures(list(map(Features, models))))
    lower = np.tri(TASKS, dtype=bool)
    np.testing.assert_allclose(evaluation.matrix[lower], run.matrix[lower], atol=1e-14, rtol=0)
    assert len(np.unique(run.matrix[lower])) > 3
    for name, function in (("AC", "average"), ("BC", "backward"), ("FC", "forward")):
        theirs = getattr(released.metrics, f"{function}_compatibility")(run.matrix)
        assert evaluation.values[name] == pytest.approx(theirs, abs=1e-14)


def test_the_same_draws_give_the_same_pairs_in_the_same_order(released: SimpleNamespace) -> None:
    """Images have one pixel, which says which image it is."""
    labels, count = np.repeat(np.arange(10), 10), 300
    images = np.arange(100, dtype=np.uint8).reshape(-1, 1, 1, 1).repeat(3, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(released.utils, "CIFAR10", partial(open_set, images, labels))
        np.random.seed(4)
        queries, galleries = released.utils.create_pairs("", count, count)
    stream = np.random.RandomState(4)
    draws = SimpleNamespace(integers=lambda high, size: stream.randint(high, size=size))
    found = draw_official_pairs(labels, count, count, FOLDS, cast(np.random.Generator, draws))
    drawn, rows = np.unique(np.concatenate([queries.data, galleries.data])[:, 0, 0, 0], return_inverse=True)
    assert len(drawn) == len(labels)
    np.testing.assert_array_equal(np.concatenate([found.query, found.gallery]), rows)
    np.testing.assert_array_equal(found.same, queries.targets)


def unit(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


@pytest.mark.parametrize("noise", [0.5, 2.0])
def test_accuracy_is_equal_on_the_same_features_and_pairs(released: SimpleNamespace, noise: float) -> None:
    rng = np.random.default_rng(3)
    labels = np.repeat(np.arange(10), 30)
    centres = rng.normal(size=(10, 8))
    query, gallery = (unit(centres[labels] + noise * rng.normal(size=(300, 8))) for _ in range(2))
    pairs = draw_official_pairs(labels, 203, 200, FOLDS, rng)  # folds of 41 and 40 pairs
    query, gallery = query[pairs.query], gallery[pairs.gallery]
    theirs = released.eval.verification(query, gallery, pairs.same)
    assert grid_accuracy(squared_distances(query, gallery), pairs.same, pairs.folds) == pytest.approx(theirs, abs=1e-14)


def test_summaries_are_equal_and_ties_count(released: SimpleNamespace) -> None:
    rng = np.random.default_rng(5)
    for tasks in (2, 3, 6, 11):
        matrix = np.tril(rng.integers(50, 60, (tasks, tasks)) / 100)  # many ties
        theirs = released.metrics
        assert average_compatibility(matrix, ties=True) == pytest.approx(theirs.average_compatibility(matrix))
        assert backward_compatibility(matrix) == pytest.approx(theirs.backward_compatibility(matrix), abs=1e-14)
        assert forward_compatibility(matrix) == pytest.approx(theirs.forward_compatibility(matrix), abs=1e-14)
    equal = np.tril(np.full((4, 4), 0.5))
    assert released.metrics.average_compatibility(equal) == 1
    assert average_compatibility(equal) == 0


def test_features_that_know_no_label_score_far_below_half_in_its_evaluation(released: SimpleNamespace) -> None:
    """Its pairs, its folds and its thresholds; with our folds the same features score one half."""
    rng = np.random.default_rng(0)
    labels, features = np.repeat(np.arange(10), 100), unit(rng.normal(size=(1000, 99)))
    official_pairs = draw_official_pairs(labels, 3000, 3000, FOLDS, rng)
    query, gallery = features[official_pairs.query], features[official_pairs.gallery]
    theirs = released.eval.verification(query, gallery, official_pairs.same)
    assert theirs == pytest.approx(0.107, abs=0.02)
    distances = squared_distances(query, gallery)
    assert grid_accuracy(distances, official_pairs.same, official_pairs.folds) == pytest.approx(theirs, abs=1e-14)
    assert verification_accuracy(distances, official_pairs.same, FOLDS) == pytest.approx(0.5, abs=0.02)
    pairs = draw_pairs(labels, np.arange(1000), 3000, 3000, FOLDS, rng)
    distances = squared_distances(features[pairs.query], features[pairs.gallery])
    assert verification_accuracy(distances, pairs.same, pairs.folds) == pytest.approx(0.5, abs=0.02)
