"""The plain pipeline that the engine is timed against computes what the engine computes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cl2r.config.builtin import ABLATION_CELLS
from cl2r.config.methods import METHODS
from cl2r.engine.plan import plan_run
from cl2r.methods.base import Method
from cl2r.study.cost import CPU, StepTimer
from cl2r.study.dry_run import DryChain
from tests.benchmarks.speed import matrix
from tests.benchmarks.speed.harness import SMALL, DisagreementError
from tests.benchmarks.speed.images import config_of, write_training_set
from tests.benchmarks.speed.plain import (
    PlainNetwork,
    PlainTraining,
)

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


def pair_of(cell: str, data: Path) -> tuple[StepTimer, PlainTraining]:
    """Both at task 2, with the same teacher, and a student that has moved away from it."""
    chain = DryChain(plan_run(config_of(data, SMALL, cell)), CPU)
    chain.begin()
    disturb(chain.method.network, 1)
    before = plain_names(chain.method)
    chain.method.end_task()
    chain.begin()
    engine = StepTimer(chain)
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


@pytest.fixture
def few_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid of 0.1 for both: the loop over it takes its time."""
    coarse = np.arange(0, 4, 0.1)
    monkeypatch.setattr("tests.benchmarks.speed.plain.THRESHOLDS", coarse)
    monkeypatch.setattr("cl2r.official_code.THRESHOLDS", coarse)


@pytest.mark.usefixtures("few_thresholds")
@pytest.mark.parametrize("name", ["mean_fold_accuracy", "grid_accuracy"])
def test_an_engine_that_computes_something_else_ends_the_benchmark(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = getattr(matrix, name)
    monkeypatch.setattr(matrix, name, lambda *given: right(*given) + 1e-3)
    with pytest.raises(DisagreementError, match="cell 1, 1"):
        list(matrix.measure(SMALL, tmp_path))
