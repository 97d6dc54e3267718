"""The plain pipeline that the engine is timed against computes what the engine computes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision import transforms

from cl2r.augment import Normalise, crop_and_flip, draw
from cl2r.engine.plan import plan_run
from cl2r.methods.base import Method
from cl2r.methods.catalog import ABLATION_CELLS, METHODS
from cl2r.official_order import grid_accuracy
from cl2r.simplex import SimplexClassifier, simplex_vertices
from cl2r.study.dry_run import DryChain
from cl2r.verification import stratified_folds, tars_at_fars, verification_accuracy
from studies.speed import accept_rates, links, matrix, simplex
from studies.speed.engine_training import CPU, EngineTraining
from studies.speed.images import CLASSES, config_of, write_training_set
from studies.speed.plain_data import PADDING, BalancedSampler, training_transform
from studies.speed.plain_training import DenseSimplex, PlainNetwork, PlainTraining, dense_simplex
from studies.speed.plain_verification import THRESHOLDS, exhaustive_accuracy, plain_accuracy
from studies.speed.sizes import SMALL
from studies.speed.timing import DisagreementError

FARS = (0.1, 0.01, 0.003)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training_set(tmp_path_factory.mktemp("speed"), SMALL)


def disturb(network: nn.Module, seed: int) -> None:
    """Other weights and other statistics of batch norms, none of them trivial."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in network.state_dict().items():
        if tensor.is_floating_point():
            noise = torch.rand(tensor.shape, generator=generator)
            tensor.mul_(0.5 + noise) if "var" in name else tensor.add_(0.1 * (noise - 0.5))


def plain_names(method: Method) -> dict[str, Tensor]:
    """The engine's tensors by the names of the plain network."""
    prefixes = {"phi.0.": "backbone.", "phi.2.": "projection.", "classifier.": "classifier."}
    return {
        new + name.removeprefix(old): tensor.detach().clone()
        for name, tensor in method.network.state_dict().items()
        for old, new in prefixes.items()
        if name.startswith(old)
    }


def give(network: PlainNetwork, tensors: dict[str, Tensor]) -> None:
    """A classifier that has not grown yet (the teacher's) is left as it is, and so is the fixed one."""
    own = network.state_dict()
    fitting = {name: tensor for name, tensor in tensors.items() if own[name].shape == tensor.shape}
    missing = set(own) - set(fitting)
    assert missing <= {"classifier.weight"}
    network.load_state_dict(fitting, strict=False)


def pair_of(cell: str, data: Path) -> tuple[EngineTraining, PlainTraining]:
    """Both at task 2, with the same teacher, and a student that has moved away from it."""
    chain = DryChain(plan_run(config_of(data, SMALL, cell)), CPU)
    chain.begin()
    disturb(chain.method.network, 1)
    before = plain_names(chain.method)
    chain.method.end_task()
    chain.begin()
    engine = EngineTraining(chain)
    plain = PlainTraining(chain.plan, chain.data)
    disturb(chain.method.network, 2)
    give(plain.teacher, before)
    give(plain.network, plain_names(chain.method))
    return engine, plain


@pytest.mark.parametrize("cell", ABLATION_CELLS)
def test_loss_and_gradient_of_reference_and_engine_are_the_same(cell: str, data: Path) -> None:
    engine, plain = pair_of(cell, data)
    batch = next(engine.batches)
    engine.network.train()
    plain.network.train()
    losses = engine.stage.loss(batch, engine.network)
    torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]
    loss = plain.loss(batch.x.contiguous(), batch.y)
    loss.backward()  # type: ignore[no-untyped-call]
    assert ("fd" in losses) == (METHODS[cell].defaults["method.fd"] != "none")
    assert losses.get("fd", torch.ones(())).item() > 0.01
    assert loss.item() == pytest.approx(sum(term.item() for term in losses.values()), rel=1e-5)
    gradients = {name: value.grad for name, value in plain.network.named_parameters()}
    names = {"phi.0": "backbone", "phi.2": "projection", "classifier": "classifier"}
    compared = 0
    for name, parameter in engine.network.named_parameters():
        prefix = next(prefix for prefix in names if name.startswith(prefix))
        other = gradients.pop(names[prefix] + name.removeprefix(prefix))
        assert parameter.grad is not None
        assert other is not None
        torch.testing.assert_close(parameter.grad, other, rtol=1e-3, atol=1e-4 * float(other.abs().max()))
        compared += 1
    assert compared
    assert not gradients


def test_both_make_the_same_step(data: Path) -> None:
    """SGD with momentum and weight decay, fused or not."""
    engine, plain = pair_of("er_fdm", data)
    batch = next(engine.batches)
    for group in (*engine.optimiser.param_groups, *plain.optimiser.param_groups):
        group["lr"] = 0.1
    plain.batches = iter([(batch.x.contiguous(), batch.y)] * 2)
    engine.network.train()
    for _ in range(2):
        plain.step()
        engine.optimiser.zero_grad()
        losses = engine.stage.loss(batch, engine.network)
        torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]
        engine.optimiser.step()
    for name, tensor in plain_names(engine.chain.method).items():
        torch.testing.assert_close(plain.network.state_dict()[name], tensor, rtol=1e-2, atol=1e-3)


def test_the_loop_and_the_plain_step_run_on_their_own_batches(data: Path) -> None:
    engine = EngineTraining(config_of(data, SMALL, "cl2r"))
    plain = PlainTraining(engine.chain.plan, engine.chain.data)
    before = plain.network.backbone.bn1.running_mean.clone()
    engine.steps(2)
    plain.step()
    assert not torch.equal(plain.network.backbone.bn1.running_mean, before)
    x, y = next(plain.batches)
    assert x.shape == (SMALL.batch, 3, 32, 32)
    assert x.is_contiguous()
    assert int((y < CLASSES // 2).sum()) == SMALL.batch // 2


def test_a_balanced_batch_is_half_memory_and_names_no_place_twice() -> None:
    batches = list(BalancedSampler(memory=40, new=100, size=20))
    assert len(batches) == 7
    for batch in batches:
        assert sum(place < 40 for place in batch) == 10
        assert len(set(batch)) == 20
        assert max(batch) < 140


def test_augmentation_of_the_reference_is_the_engines_at_the_same_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
    moments = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    drawn = draw(len(images), PADDING, True, torch.Generator().manual_seed(4))
    ours = Normalise(*moments, CPU)(crop_and_flip(torch.from_numpy(images), drawn, PADDING))
    transform = training_transform(32, moments)
    for row, image in enumerate(images):
        place = (*drawn.offsets[row].tolist(), 32, 32)
        monkeypatch.setattr(transforms.RandomCrop, "get_params", lambda *_, place=place: place)
        transform.transforms[1].p = float(drawn.flips[row])
        torch.testing.assert_close(transform(Image.fromarray(image)), ours[row], rtol=1e-5, atol=1e-5)
    assert 0 < int(drawn.flips.sum()) < len(images)


@pytest.mark.parametrize("classes", [2, 3, 10, 101])
def test_the_dense_simplex_is_the_closed_form(classes: int) -> None:
    np.testing.assert_allclose(dense_simplex(classes).numpy(), simplex_vertices(classes), atol=1e-6)
    features, upstream = simplex.inputs(classes, 5)
    dense, closed = (
        simplex.passed(head, features, upstream) for head in (DenseSimplex(classes), SimplexClassifier(classes))
    )
    for one, other in zip(dense, closed, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_another_classifier_than_the_simplex_is_noticed() -> None:
    heads: dict[str, nn.Module] = {"dense": DenseSimplex(10), "closed": SimplexClassifier(10, scale=1.01)}
    with pytest.raises(DisagreementError, match="differ by"):
        simplex.apart(heads, *simplex.inputs(10, 4))


def some_distances(decimals: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(decimals)
    same = np.arange(240) % 3 == 0
    distances = np.clip(np.where(same, 1.7, 2.1) + 0.4 * rng.standard_normal(len(same)), 0, 4)
    return np.round(distances, decimals), same, stratified_folds(same, 5)


@pytest.mark.parametrize("decimals", [1, 3, 12])
def test_accuracies_of_the_loop_over_thresholds_are_those_of_the_grid(decimals: int) -> None:
    given = some_distances(decimals)
    assert plain_accuracy(*given) == pytest.approx(grid_accuracy(*given), abs=1e-12)


@pytest.mark.parametrize("decimals", [1, 2, 12])
def test_the_exact_accuracy_is_that_of_an_exhaustive_search(decimals: int) -> None:
    given = some_distances(decimals)
    assert exhaustive_accuracy(*given) == pytest.approx(verification_accuracy(*given), abs=1e-12)


def test_an_exhaustive_search_accepts_none_where_distances_tell_nothing() -> None:
    same = np.arange(60) % 3 == 0
    given = np.ones(60), same, stratified_folds(same, 4)
    assert exhaustive_accuracy(*given) == pytest.approx(verification_accuracy(*given)) == pytest.approx(2 / 3)


@pytest.mark.parametrize("decimals", [1, 12])
def test_accept_rates_are_those_of_a_full_sort(decimals: int) -> None:
    distances, same = accept_rates.made_up(4000, 300)
    distances = np.round(distances, decimals)
    assert tars_at_fars(distances, same, FARS) == accept_rates.sorted_tars(distances, same, FARS)


def test_the_loop_over_thresholds_finds_them_where_its_grid_parts_all_distances() -> None:
    distances, same = accept_rates.made_up(3000, 300)
    between = np.floor(distances * 1000).clip(0, 3998) / 1000 + 0.0005
    rates = accept_rates.plain_rates(between, same, THRESHOLDS)
    assert accept_rates.plain_tars(rates, FARS) == pytest.approx(tars_at_fars(between, same, FARS), abs=1e-12)


def test_made_up_distances_have_as_many_positives_as_asked_for() -> None:
    distances, same = accept_rates.made_up(300_000, 777)
    assert int(same.sum()) == 777
    assert distances.dtype == np.float64
    assert 0 <= distances.min() < distances.max() <= 4
    assert distances[same].mean() < distances[~same].mean() - 0.5


@pytest.fixture
def few_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid of 0.1 for both: the loop over it takes its time."""
    coarse = np.arange(0, 4, 0.1)
    monkeypatch.setattr("studies.speed.plain_verification.THRESHOLDS", coarse)
    monkeypatch.setattr("cl2r.official_order.THRESHOLDS", coarse)


@pytest.mark.usefixtures("few_thresholds")
def test_the_matrix_counts_images_and_cells(tmp_path: Path) -> None:
    rows = {row.what: row for row in matrix.measure(SMALL, tmp_path)}
    assert rows["verification of a cell"].repeats == 3
    assert rows["extraction, by row"].repeats == SMALL.tasks
    whole = rows["T = 2, 200 pairs, end to end"]
    assert "1,000 images through a model" in whole.note  # two rows: 2 + 3 passes over 200 pairs
    assert "3 cells equal an exhaustive search" in whole.note
    assert rows["T = 2, 200 pairs, end to end, every open image"].engine > whole.engine


def wrong_sum(right: Callable[..., float]) -> Callable[..., float]:
    return lambda *given: right(*given) + 1e-3


@pytest.mark.usefixtures("few_thresholds")
@pytest.mark.parametrize("name", ["mean_fold_accuracy", "grid_accuracy"])
def test_an_engine_that_computes_something_else_ends_the_benchmark(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix, name, wrong_sum(getattr(matrix, name)))
    with pytest.raises(DisagreementError, match="cell 1, 1"):
        list(matrix.measure(SMALL, tmp_path))


def test_links_and_plain_files_hold_the_same(tmp_path: Path) -> None:
    saves = links.Saves(SMALL, tmp_path)
    saves.save()
    saves.plain_save()
    saves.check()
    saves.features["open"][0, 0] += 1
    with pytest.raises(DisagreementError, match="does not come back"):
        saves.check()
