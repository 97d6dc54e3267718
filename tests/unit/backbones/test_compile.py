"""torch.compile: which parts are compiled, and that compiled training gives the models of plain training."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cl2r.backbones import build_backbone, compile_backbones, folded
from cl2r.backbones.base import Backbone
from cl2r.config.schema import Config
from cl2r.engine.plan import plan_run
from tests.support.quick import quick_config, train

ON = {"optim": {"compile": True}}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The modules that would be compiled; compiling itself takes a minute."""
    seen: list[nn.Module] = []
    monkeypatch.setattr(nn.Module, "compile", lambda module, *_: seen.append(module))
    return seen


def test_only_backbones_are_compiled(compiled: list[nn.Module]) -> None:
    backbone = build_backbone("resnet8s", 1)
    compile_backbones(nn.Sequential(backbone, nn.Linear(64, 9)))
    assert compiled == [backbone]


def test_student_and_teacher_of_a_run_are_compiled_if_asked_for(
    tiny: Path, tmp_path: Path, compiled: list[nn.Module]
) -> None:
    short = {"method": {"name": "cl2r"}, "scenario": {"stop_after": 2}}
    train(quick_config(tiny, short), tmp_path / "plain")
    assert compiled == []
    train(quick_config(tiny, ON, short), tmp_path / "compiled")
    assert [module.training for module in compiled] == [True, False, True], "task 1; teacher and student of task 2"
    assert all(isinstance(module, Backbone) for module in compiled)


def test_a_compiled_backbone_has_the_names_and_copies_of_a_plain_one() -> None:
    backbone = build_backbone("resnet8s", 1)
    names = list(backbone.state_dict())
    backbone.compile(backend="eager")
    assert list(backbone.state_dict()) == names
    assert folded(backbone)._compiled_call_impl is None, "evaluation is too short to compile for"


def test_keys_depend_on_compilation(tiny: Path) -> None:
    def keys(*layers: dict[str, Any]) -> list[str]:
        return plan_run(quick_config(tiny, *layers)).keys

    assert not set(keys()) & set(keys(ON))
    assert keys() == keys({"optim": {"compile": False}}), "links from before the field keep their keys"


@pytest.mark.slow
def test_compiled_training_gives_the_models_of_plain_training(tiny: Path, tmp_path: Path) -> None:
    def config(*layers: dict[str, Any]) -> Config:
        return quick_config(tiny, {"scenario": {"stop_after": 2}, "optim": {"epochs": 2}}, *layers)

    plain, fast = train(config(), tmp_path / "plain"), train(config(ON), tmp_path / "fast")
    again = train(config(ON), tmp_path / "again")
    torch.testing.assert_close(
        torch.from_numpy(fast.report.matrix), torch.from_numpy(plain.report.matrix), atol=0.05, rtol=0, equal_nan=True
    )
    losses = [[row["loss_ce"] for row in run.links[0].record["curves"]] for run in (plain, fast, again)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    assert losses[1] == losses[2], "the same seed gives the same losses"
