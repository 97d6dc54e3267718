"""The worked example of CONTRIBUTING.md, a backbone from an installed package: one file and an entry point."""

import re
from pathlib import Path

import pytest
import torch

from cl2r.backbones import build_backbone, find_backbone, folded
from cl2r.config.schema import Config
from cl2r.engine.plan import plan_run
from cl2r.errors import InputError
from cl2r.methods.base import build_method
from tests.support.installed import install
from tests.support.quick import chain_tensors, quick_config, train

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"
EXAMPLE = re.search(r"```python\n(from torch import nn.*?)```", CONTRIBUTING.read_text(), re.DOTALL)
NOTHING = "\n\ndef nothing(channels, last_relu):\n    return None\n"


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution `shallow` with three backbones, two of them broken."""
    assert EXAMPLE
    points = {name.lower(): f"shallow_net:{name}" for name in ("Shallow", "nothing", "Missing")}
    install(tmp_path / "site", "cl2r.backbones", points, {"shallow_net.py": EXAMPLE[1] + NOTHING})
    monkeypatch.syspath_prepend(tmp_path / "site")


def config(data: Path, method: str = "cl2r", name: str = "shallow") -> Config:
    short = {"scenario": {"stop_after": 2}, "optim": {"epochs": 1, "milestones": []}, "eval": {"bootstrap": 0}}
    return quick_config(data, short, {"method": {"name": method}, "backbone": {"name": name}})


@pytest.mark.parametrize(("method", "size"), [("cl2r", 11), ("lucir", 12)])
def test_any_module_with_a_feature_size_can_be_trained(tiny: Path, tmp_path: Path, method: str, size: int) -> None:
    result = train(config(tiny, method), tmp_path)
    assert len(result.links) == 2
    for link in chain_tensors(result.plan, tmp_path):
        assert link["features/open"].shape[1] == size
        assert link["method/phi.0.module.conv1.weight"].shape == (12, 1, 5, 5)


def test_parts_are_not_folded_by_their_names() -> None:
    """Here bn1 comes before conv1, unlike in residual backbones."""
    backbone = build_backbone("shallow", 3).eval()
    torch.nn.init.uniform_(backbone.get_parameter("module.bn1.weight"), 0.5, 1.5)
    x = torch.randn(2, 3, 9, 9)
    assert torch.equal(folded(backbone)(x), backbone(x))


def test_last_relu_reaches_the_backbone(tiny: Path) -> None:
    x = torch.randn(8, 1, 16, 16)
    signed = build_method(config(tiny, "lucir"), 1, 12).extractor()(x)
    assert signed.min() < 0 <= build_backbone("shallow", 1)(x).min()


def test_podnet_refuses_a_backbone_without_maps_before_any_work(tiny: Path) -> None:
    with pytest.raises(InputError, match="shallow has no maps") as refused:
        plan_run(config(tiny, "podnet"))
    assert "\n" not in str(refused.value)
    plan_run(config(tiny, "podnet", "resnet8s"))


@pytest.mark.parametrize(
    ("name", "word"),
    [("shalow", "did you mean 'shallow'"), ("missing", "shallow_net:Missing"), ("resnet31", "resnet32")],
)
def test_an_unknown_or_broken_backbone_is_refused_before_any_work(tiny: Path, name: str, word: str) -> None:
    with pytest.raises(InputError, match=word):
        plan_run(config(tiny, name=name))


def test_a_builder_must_return_a_module_with_a_size() -> None:
    assert find_backbone("nothing")(3, True) is None
    with pytest.raises(InputError, match="`dim`"):
        build_backbone("nothing", 3)
