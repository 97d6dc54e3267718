"""LUCIR: cosine logits, frozen and imprinted rows, margin ranking; each formula against a slow loop."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from cl2r.methods.lucir import CosineClassifier, margin_ranking
from cl2r.seeding import torch_stream
from tests.support.method_case import Case, advanced, mixed
from tests.support.slow_losses import cosine, slow_ce

lucir = partial(advanced, "lucir")


def rows_of(made: Case) -> torch.Tensor:
    classifier = made.method.network.classifier
    return torch.cat([classifier.old, classifier.new]).detach()


def slow_cosines(features, rows) -> list[list[float]]:
    return [[cosine(f, w) for w in rows.tolist()] for f in features.tolist()]


def slow_margin(cosines, labels, old_classes, top, margin, negatives) -> float:
    hinges = []
    for row, label in zip(cosines, labels, strict=True):
        if label >= old_classes:
            continue
        rivals = [c for j, c in enumerate(row) if j != label and (negatives == "all" or j >= old_classes)]
        for rival in sorted(rivals, reverse=True)[:top]:
            hinges.append(max(0.0, margin - row[label] + rival))
    return sum(hinges) / len(hinges) if hinges else 0.0


def test_logits_are_the_scale_times_the_cosines():
    made = lucir()
    with torch.no_grad():
        made.method.network.classifier.scale.fill_(3.5)
        out = made.method.network(mixed(made, 2).x)
    expected = torch.tensor(slow_cosines(out.features, rows_of(made)))
    assert out.cosines.shape == (16, 8)
    torch.testing.assert_close(out.cosines, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(out.logits, 3.5 * expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(made.method.network.classifier(out.features), out.logits)


def test_cosines_do_not_lose_digits_under_autocast():
    classifier = CosineClassifier(64)
    generator = torch.Generator().manual_seed(0)
    classifier.grow(torch.randn(5, 64, generator=generator))
    features = torch.randn(7, 64, generator=generator)
    with torch.autocast("cpu", torch.bfloat16):
        inside = classifier.cosines(features)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, classifier.cosines(features))


def test_the_first_task_draws_its_rows_and_the_scale_starts_at_one():
    made = lucir(task=1, steps=0)
    classifier = made.method.network.classifier
    expected = torch.empty(4, 64).uniform_(-1 / 8, 1 / 8, generator=torch_stream(0, "classifier", 1))
    assert torch.equal(classifier.new, expected)
    assert classifier.old.shape == (0, 64)
    assert classifier.scale.item() == 1
    assert made.method.diagnostics() == {"lambda": 0, "eta": 1}


def test_old_rows_do_not_change_and_are_not_parameters():
    made = lucir(task=1)
    for task in (2, 3):
        before, scale = rows_of(made).clone(), made.method.network.classifier.scale.item()
        made.begin(task)
        fresh = made.method.network.classifier.new.detach().clone()
        for _ in range(3):
            made.step(mixed(made, task))
        classifier = made.method.network.classifier
        assert torch.equal(classifier.old, before)
        assert not torch.equal(classifier.new, fresh)
        assert classifier.scale.item() != scale
        names = {name for name, _ in made.method.network.named_parameters() if name.startswith("classifier.")}
        assert names == {"classifier.new", "classifier.scale"}
        chosen = {id(p) for p in made.method.stages()[0].parameters()}
        assert {id(classifier.new), id(classifier.scale)} <= chosen


@pytest.mark.parametrize("task", [2, 3])
def test_imprinted_rows_point_to_their_class_means_and_are_as_long_as_old_rows(task):
    made = lucir(task=task - 1)
    with torch.no_grad():
        made.method.network.classifier.new *= torch.arange(1.0, 5)[:, None]  # norms that differ
    phi, before = made.method.extractor(), rows_of(made).double().numpy()
    data = made.begin(task)
    length = np.mean([math.sqrt(sum(w * w for w in row)) for row in before])
    new = made.method.network.classifier.new.detach().double().numpy()
    for place, label in enumerate(made.tasks[task - 1]):
        features = made.apply(phi, data.new[data.labels[data.new] == label]).double().numpy()
        assert len(features) == 6
        mean = np.mean([f / np.linalg.norm(f) for f in features], axis=0)
        assert cosine(new[place], mean) == pytest.approx(1, abs=1e-6)
        assert np.linalg.norm(new[place]) == pytest.approx(length, rel=1e-5)


def test_imprinting_normalises_features_before_their_mean():
    """Long features must not weigh more: with lengths 1 and 100 the row lies in the middle of the two directions."""
    made = lucir(task=1)
    directions = torch.nn.functional.normalize(torch.randn(24, 64, generator=torch.Generator().manual_seed(1)))
    lengths = torch.tensor([1.0, 100.0]).repeat(12)[:, None]
    data = made.data(2)
    made.method.begin_task(
        replace(made.method.task, index=2, old_classes=4, memory_rows=8),
        replace(data, apply=lambda module, rows: directions * lengths),
    )
    for place in range(4):
        mean = directions[6 * place : 6 * place + 6].mean(0)
        assert cosine(made.method.network.classifier.new[place].tolist(), mean.tolist()) == pytest.approx(1)


def test_without_imprinting_new_rows_are_drawn():
    made = lucir("lucir.imprint=false", steps=0)
    expected = torch.empty(4, 64).uniform_(-1 / 8, 1 / 8, generator=torch_stream(0, "classifier", 2))
    assert torch.equal(made.method.network.classifier.new, expected)


@pytest.mark.parametrize("negatives", ["new", "all"])
@pytest.mark.parametrize("top", [1, 2, 9])
def test_margin_term_against_a_loop(negatives, top):
    made = lucir(f"lucir.negatives={negatives}", f"lucir.top={top}", "lucir.margin=0.3", "lucir.margin_weight=0.7")
    batch = mixed(made, 2)
    with torch.no_grad():
        cosines = slow_cosines(made.method.network(batch.x).features, rows_of(made))
    expected = slow_margin(cosines, batch.y.tolist(), 4, top, 0.3, negatives)
    assert expected > 1e-3
    assert made.losses(batch)["margin"] == pytest.approx(0.7 * expected, rel=1e-4)


@pytest.mark.parametrize(
    ("first", "top", "margin", "value"),
    [(2, 2, 0.5, 0.05), (0, 2, 0.5, 0.25), (2, 1, 0.5, 0.1), (0, 3, 0.5, 0.5 / 3), (2, 2, 0.3, 0)],
)
def test_both_kinds_of_negatives_differ(first, top, margin, value):
    """An old class nearer than every new one counts only if all classes are negatives."""
    cosines = torch.tensor([[0.5, 0.4, 0.1, 0.0]])
    assert margin_ranking(cosines, torch.tensor([0]), first, top, margin).item() == pytest.approx(value)


@pytest.mark.parametrize("negatives", ["new", "all"])
def test_a_batch_without_old_classes_has_a_margin_of_zero_with_a_gradient(negatives):
    made = lucir(f"lucir.negatives={negatives}")
    margin = made.method.loss(made.batch_of(2, range(4, 8)), made.method.network)["margin"]
    assert margin.item() == 0
    assert margin.requires_grad


def test_fewer_new_classes_than_negatives_asked_for():
    """m = 1 < k = 2."""
    made = lucir(tasks=12)
    batch = mixed(made, 2)
    with torch.no_grad():
        cosines = slow_cosines(made.method.network(batch.x).features, rows_of(made))
    expected = slow_margin(cosines, batch.y.tolist(), 1, 2, 0.5, "new")
    assert expected > 1e-3
    assert made.losses(batch)["margin"] == pytest.approx(expected, rel=1e-4)


def test_margin_looks_at_cosines_before_the_scale():
    made = lucir()
    batch = mixed(made, 2)
    before = made.losses(batch)
    with torch.no_grad():
        made.method.network.classifier.scale *= 4
    after = made.losses(batch)
    assert after["margin"] == before["margin"]
    assert after["ce"] != pytest.approx(before["ce"], abs=1e-3)


@pytest.mark.parametrize("task", [2, 3])
def test_distillation_on_every_row_with_the_weight_of_lucir(task):
    phi = lucir("method.lambda_base=3", task=task - 1).method.extractor()
    made = lucir("method.lambda_base=3", task=task)
    batch, weight = mixed(made, task), 3 * math.sqrt(task - 1)
    with torch.no_grad():
        pairs = zip(made.method.network(batch.x).features.tolist(), phi(batch.x).tolist(), strict=True)
    distances = [1 - cosine(new, old) for new, old in pairs]
    found = made.losses(batch)
    assert np.mean(distances[: 8 * (task - 1)]) != pytest.approx(np.mean(distances), rel=1e-2)
    assert found["fd"] == pytest.approx(weight * np.mean(distances), rel=1e-3)
    assert made.method.diagnostics()["lambda"] == pytest.approx(weight)
    assert set(found) == {"ce", "fd", "margin"}


def test_with_zero_weights_only_cross_entropy_is_left():
    made = lucir("lucir.margin_weight=0", "method.lambda_base=0")
    batch = mixed(made, 2)
    with torch.no_grad():
        out = made.method.network(batch.x)
    logits = made.method.network.classifier.scale.item() * torch.tensor(slow_cosines(out.features, rows_of(made)))
    found = made.losses(batch)
    assert set(found) == {"ce"}
    assert found["ce"] == pytest.approx(slow_ce(logits, batch.y), rel=1e-5)
    assert made.method.teacher is None


def test_the_first_task_is_cross_entropy_alone():
    made = lucir(task=1)
    batch = mixed(made, 1)
    with torch.no_grad():
        logits = made.method.network(batch.x).logits
    assert made.losses(batch) == {"ce": pytest.approx(slow_ce(logits, batch.y), rel=1e-5)}


def test_without_memory_all_rows_are_distilled_and_the_margin_term_is_zero():
    made = lucir(memory=0, steps=1)
    found = made.losses(made.batch_of(2, range(4, 8)))
    assert set(found) == {"ce", "fd", "margin"}
    assert found["fd"] > 0
    assert found["margin"] == 0
