"""BiC: what is held out, what each stage trains and on which loss, and what the next task distils from."""

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from cl2r.config.schema import Config
from cl2r.memory import sample_task
from cl2r.methods.base import Rows, TaskData, TaskInfo
from cl2r.methods.bic import Bic, Split, hold_out
from tests.support.method_case import Case, advanced, case
from tests.support.quick import Interrupter, assert_same_chain, chain_tensors, quick_config, train
from tests.support.slow_losses import slow_ce, slow_kd

BIAS_EPOCHS = 4
VARIANTS = ["bic", "bic_inclearn"]


def config_of(tiny: Path, name: str = "bic", **options: float) -> Config:
    """Return the config of a run with a short second stage."""
    return quick_config(tiny, {"method": {"name": name}, "bic": {"bias_epochs": BIAS_EPOCHS, **options}})


def set_pair(made: Case, alpha: float, beta: float) -> None:
    """Set the pair, as if stage 2 had found it."""
    correction = made.method.network.correction
    with torch.no_grad():
        correction.alpha.fill_(alpha)
        correction.beta.fill_(beta)


def at_task(task: int, name: str = "bic", *overrides: str) -> Case:
    """Return a case inside `task`: φ differs from its teacher, and task 2 has the pair (0.5, 0.25)."""
    made = case(name, *overrides)
    for index in range(1, task + 1):
        made.begin(index)
        made.step(made.batch_of(index, made.tasks[index - 1]))
        if index == 2 < task:
            set_pair(made, 0.5, 0.25)
    return made


def task_data(memory: list[int], new: list[int]) -> TaskData:
    """Return data with the given numbers of rows per old and per new class."""
    labels = np.repeat(np.arange(len(memory) + len(new)), [*memory, *new])
    rows = np.arange(len(labels))
    return TaskData(rows[sum(memory) :], rows[: sum(memory)], labels, lambda module, rows: torch.empty(0))


def counts(rows: Rows, data: TaskData, classes: int) -> list[int]:
    return np.bincount(data.labels[rows], minlength=classes).tolist()


def split_of(data: TaskData, quota: int, share: float = 0.1, seed: int = 0) -> Split | None:
    """Return the split if the memory keeps `quota` rows of every class."""
    return hold_out(data, sample_task(data.new, data.labels[data.new], quota, "random", seed, 2), share, seed)


def test_eighteen_and_two_of_twenty_exemplars() -> None:
    data = task_data([20] * 5, [50] * 3)
    split = split_of(data, 20)
    for held, kept, whole in zip(split.validation, split.training, (data.new, data.memory), strict=True):
        assert not set(held) & set(kept)
        assert sorted([*held, *kept]) == whole.tolist()
    assert counts(np.concatenate(split.validation), data, 8) == [2] * 8
    assert counts(split.training[1], data, 8)[:5] == [18] * 5


@pytest.mark.parametrize(
    ("memory", "new", "quota", "share", "expected"),
    [
        ([2, 2], [9], 2, 0.1, [1, 1, 1]),
        ([1, 6, 6], [9], 6, 0.34, [0, 2, 2, 2]),
        ([3, 3], [2, 1], 3, 0.99, [2, 2, 1, 0]),
        ([20, 20, 10], [50], 20, 0.1, [2, 2, 1, 2]),
    ],
)
def test_every_class_keeps_a_row(
    memory: list[int], new: list[int], quota: int, share: float, expected: list[int]
) -> None:
    data = task_data(memory, new)
    split = split_of(data, quota, share)
    assert counts(np.concatenate(split.validation), data, len(expected)) == expected
    assert min(counts(np.concatenate(split.training), data, len(expected))) >= 1


@pytest.mark.parametrize(("memory", "new"), [([], [5, 5]), ([1, 1], [5]), ([4, 4], [1, 1])])
def test_without_rows_to_spare_nothing_is_held_out(memory: list[int], new: list[int]) -> None:
    assert split_of(task_data(memory, new), 4, 0.5) is None


def test_held_out_rows_are_drawn_and_stay_held_out() -> None:
    data = task_data([20] * 4, [30] * 2)
    later = TaskData(np.arange(200, 230), data.memory, np.append(data.labels, np.full(100, 6)), data.apply)
    held = split_of(data, 20).validation[1]
    np.testing.assert_array_equal(held, split_of(later, 20).validation[1])
    assert set(held) != set(split_of(data, 20, seed=1).validation[1])
    assert set(held % 20) != {0, 1}, "not simply the first ones"


def test_rows_for_stage_2_are_set_apart_from_their_own_task_on(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a real chain: what stage 2 of task 3 reads of the classes of task 2, no stage 1 has seen."""
    splits, begin = [], Bic.begin_task

    def recorded(method: Bic, task: TaskInfo, data: TaskData) -> None:
        begin(method, task, data)
        splits.append(method.split)

    monkeypatch.setattr(Bic, "begin_task", recorded)
    result = train(config_of(tiny), tmp_path)
    second, third = splits[1:]
    held = third.validation[1]
    held = held[np.isin(held, result.plan.scenario.tasks[1].rows)]
    assert len(held)
    np.testing.assert_array_equal(held, second.validation[0])
    for split in (second, third):
        assert not np.isin(held, np.concatenate(split.training)).any()


def test_the_stages_train_on_what_was_split() -> None:
    made = advanced("bic", steps=0, memory=4)
    first, second = made.method.stages()
    data = made.data(2, 4)
    quota = made.method.config.memory.per_class
    kept = sample_task(data.new, data.labels[data.new], quota, "random", 0, 2)
    split = hold_out(data, kept, 0.1, 0)
    for got, expected in zip((*first.rows, *second.rows), (*split.training, *split.validation), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert first.augmented
    assert not second.augmented
    assert (second.batching, second.statistics, second.schedule) == ("natural", False, "optim")
    assert (second.lr, second.epochs, second.weight_decay) == (0.1, 200, 0)


@pytest.mark.parametrize(("memory", "epochs"), [(0, 200), (1, 200), (4, 0)])
def test_without_rows_to_spare_or_epochs_there_is_one_stage_on_all_rows(memory: int, epochs: int) -> None:
    made = advanced("bic", f"bic.bias_epochs={epochs}", steps=0, memory=memory)
    (stage,) = made.method.stages()
    assert stage.rows is None
    losses = made.step(made.batch_of(2, range(4, 8)))
    assert losses.keys() == {"ce", "kd"}
    assert made.method.diagnostics() == {"lambda": 0.5, "alpha": 1.0, "beta": 0.0}


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def logits_of(made: Case, x: Tensor) -> npt.NDArray[np.float64]:
    """Return z, computed row by row from features, weights and, if the classifier has them, biases."""
    network = made.method.network.eval()
    with torch.no_grad():
        features = network.phi(x).double().numpy()
    tensors = {name: tensor.double().numpy() for name, tensor in network.classifier.state_dict().items()}
    weights = tensors["weight"]
    bias = tensors.get("bias", np.zeros(len(weights)))
    assert (bias != 0).any() == (made.method.config.method.name == "bic")
    return np.array([[float(np.dot(w, f)) + b for w, b in zip(weights, bias, strict=True)] for f in features])


def distillation(z: npt.NDArray[np.float64], old: npt.NDArray[np.float64], variant: str, temperature: float) -> float:
    if variant == "bic":
        return slow_kd(torch.from_numpy(z), torch.from_numpy(old), temperature)
    total = 0.0
    for a, b in zip(z[:, : old.shape[1]].ravel() / temperature, old.ravel() / temperature, strict=True):
        p, q = sigmoid(a), sigmoid(b)
        total -= q * math.log(p) + (1 - q) * math.log(1 - p)
    return total / old.size


@pytest.mark.parametrize("variant", VARIANTS)
def test_stage_1_distils_the_corrected_logits(variant: str) -> None:
    """At task 4, whose teacher has a pair of its own and an older one."""
    made = case(variant, "bic.temperature=3", tasks=4)
    pairs = {1: (1.0, 0.0), 2: (0.5, 0.25), 3: (2.0, -0.75)}
    for task, pair in pairs.items():
        made.begin(task)
        made.step(made.batch_of(task, made.tasks[task - 1]))
        if task > 1:
            set_pair(made, *pair)
    batch = made.batch_of(4, range(12))
    old = logits_of(made, batch.x)
    for task, (alpha, beta) in pairs.items():
        classes = made.tasks[task - 1]
        old[:, classes.start : classes.stop] = alpha * old[:, classes.start : classes.stop] + beta
    made.begin(4)
    made.step(batch)
    with torch.no_grad():  # far from uniform, so that every probability of the teacher counts
        made.method.network.get_parameter("classifier.weight").mul_(20)
    z = logits_of(made, batch.x)
    for task, (alpha, beta) in pairs.items():  # old pairs are the student's as well
        z[:, made.tasks[task - 1].start : made.tasks[task - 1].stop] *= alpha
        z[:, made.tasks[task - 1].start : made.tasks[task - 1].stop] += beta
    losses = made.method.loss(batch, made.method.network.eval())
    ce, kd = (1 / 4, 3 / 4) if variant == "bic" else (1.0, 1.0)
    assert losses["ce"].item() == pytest.approx(ce * slow_ce(torch.from_numpy(z), batch.y), rel=1e-5)
    assert losses["kd"].item() == pytest.approx(kd * distillation(z, old, variant, 3.0), rel=1e-5)
    assert losses.keys() == {"ce", "kd"}


def test_only_old_outputs_are_distilled() -> None:
    made = at_task(3)
    made.method.network.eval()
    kd = made.method.loss(made.batch_of(3, range(12)), made.method.network)["kd"]
    (gradient,) = torch.autograd.grad(kd, [made.method.network.get_parameter("classifier.weight")])
    assert (gradient[8:] == 0).all()
    assert (gradient[:8] != 0).any(1).all()


def test_stage_2_corrects_the_new_outputs() -> None:
    made = at_task(3, "bic", "bic.bias_decay=0.3")
    set_pair(made, 1.5, -0.5)
    batch = made.batch_of(3, range(12))
    q = logits_of(made, batch.x)
    q[:, 4:8] = 0.5 * q[:, 4:8] + 0.25  # the pair of task 2
    q[:, 8:] = 1.5 * q[:, 8:] - 0.5
    losses = made.method.bias_loss(batch, made.method.network.eval())
    assert losses["bias_ce"].item() == pytest.approx(slow_ce(torch.from_numpy(q), batch.y), rel=1e-5)
    assert losses["bias_decay"].item() == pytest.approx(0.3 * 0.25 / 2, rel=1e-6)


def test_a_worker_without_rows_has_a_loss_of_zero() -> None:
    made = at_task(2)
    losses = made.step(made.batch(2, np.empty(0, dtype=np.int64)), stage=1)
    assert losses["bias_ce"].item() == 0
    assert [tensor.item() for tensor in made.method.network.correction.parameters()] == [1.0, 0.0]


def test_a_fresh_pair_corrects_nothing() -> None:
    made = at_task(3)
    network, x = made.method.network.eval(), made.images[:7]
    assert made.method.network.correction.alpha.item() == 1
    assert made.method.network.correction.beta.item() == 0
    plain = functional.linear(
        network.phi(x), *(network.get_parameter(f"classifier.{name}") for name in ("weight", "bias"))
    )
    assert torch.equal(network(x).logits[:, 8:], plain[:, 8:])
    assert torch.equal(network(x).logits[:, :4], plain[:, :4]), "task 1 has no pair"


def test_the_next_student_starts_where_its_teacher_ended() -> None:
    """Before any step KD is the teacher's own entropy: no correction counts twice."""
    made = at_task(2)
    set_pair(made, 0.5, 0.25)
    x = made.images[:9]
    before = made.method.network.eval()(x).logits
    made.begin(3)
    student = made.method.network.eval()(x).logits[:, :8]
    torch.testing.assert_close(student, before, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(made.method.teacher(x).logits, before, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("name", "weight"), [("bic", 0.9), ("bic_inclearn", 1.0)])
def test_the_weight_of_distillation_at_ten_classes_of_which_one_is_new(name: str, weight: float) -> None:
    made = case(name, tasks=12)
    for task in range(1, 11):
        made.begin(task)
    assert made.method.diagnostics()["lambda"] == pytest.approx(weight)


def test_stage_2_finds_a_bias_towards_new_classes() -> None:
    """Outputs of new classes that are six times too large become smaller."""
    made = at_task(2)
    with torch.no_grad():
        made.method.network.get_parameter("classifier.weight")[4:] *= 6
    batch = made.batch_of(2, range(8), 4)
    began = made.step(batch, 0.05, stage=1)["bias_ce"].item()
    for _ in range(150):
        losses = made.step(batch, 0.05, stage=1)
    assert losses["bias_ce"].item() < began
    assert made.method.network.correction.alpha.item() < 0.9


def test_a_run_has_the_same_features_however_long_stage_2_is(tiny: Path, tmp_path: Path) -> None:
    short, long = (train(config_of(tiny, bias_epochs=epochs), tmp_path / str(epochs)) for epochs in (1, 6))
    one, two = (chain_tensors(result.plan, tmp_path / name)[1] for result, name in ((short, "1"), (long, "6")))
    assert one.keys() == two.keys()
    changed = {name for name in one if not torch.equal(one[name], two[name])}
    assert changed == {"method/correction.alpha", "method/correction.beta"}


def test_the_pairs_of_all_tasks_are_carried() -> None:
    made = at_task(3)
    set_pair(made, 2.0, -1.0)
    carried = made.method.carry()
    assert carried["correction.old_alpha"].tolist() == [1.0] * 4 + [0.5] * 4
    assert carried["correction.old_beta"].tolist() == [0.0] * 4 + [0.25] * 4
    assert (carried["correction.alpha"].item(), carried["correction.beta"].item()) == (2.0, -1.0)
    alpha, beta = made.method.network.correction.all_classes(12)
    assert alpha.tolist() == [1.0] * 4 + [0.5] * 4 + [2.0] * 4
    assert beta.tolist() == [0.0] * 4 + [0.25] * 4 + [-1.0] * 4


def test_it_resumes_an_interrupted_first_task_of_experience_replay(tiny: Path, tmp_path: Path) -> None:
    head = {"head": {"projection": "none"}}
    with pytest.raises(KeyboardInterrupt):
        train(quick_config(tiny, {"method": {"name": "er"}}, head), tmp_path / "one", Interrupter(after=2))
    one, two = (train(config_of(tiny), tmp_path / name) for name in ("one", "two"))
    assert one.plan.keys == two.plan.keys
    assert_same_chain(two.plan, tmp_path / "one", tmp_path / "two")
