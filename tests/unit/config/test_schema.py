"""Fields and their values: what is accepted, and what is refused by name."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from cl2r.config.layers import override, read_layer, resolve
from cl2r.config.methods import METHODS, RESERVED, sections
from cl2r.config.schema import Config, fields, to_yaml

REFUSED = [
    "seed=-1",
    "seed=one",
    "seed=1.5",
    f"seed={2**63}",  # no column of a frame can hold it
    "threads=0",
    "data.name=3",
    "data.size=7",
    "data.channels=2",
    "scenario.n_tasks=0",
    "scenario.n_tasks=many",
    "scenario.initial=0",
    "scenario.increment=-2",
    "scenario.class_order=random",
    "head.projection=cubic",
    "head.k_max=1",
    "head.preallocate=perhaps",
    "simplex.scale=0",
    "simplex.scale=-1",
    "simplex.scale=modern",
    "simplex.scale=.inf",
    "method.classifier=thawed",
    "method.fd=some",
    "method.lambda_base=-0.1",
    "method.lambda_base=.nan",
    "method.lambda_base=.inf",
    "method.lambda_base=[1, 2]",
    "method.lambda_rule=halving",
    "memory.per_class=-1",
    "memory.selection=best",
    "batches.size=1",
    "batches.batching=odd",
    "optim.epochs=0",
    "optim.lr=-1",
    "optim.lr=fast",
    "optim.lr=.inf",
    "optim.lr_later=-1",
    "optim.momentum=1",
    "optim.momentum=-0.5",
    "optim.weight_decay=-1e-4",
    "optim.milestones=5",
    "optim.milestones=[5, 3]",
    "optim.milestones=[5, 5]",
    "optim.milestones=[-1]",
    "optim.milestones=[early]",
    "seed=true",
    "optim.epochs=false",
    "optim.gamma=0",
    "optim.gamma=1.5",
    "augment.padding=-1",
    "augment.flip=maybe",
    "eval.positives=9",
    "eval.negatives=0",
    "eval.folds=1",
    "eval.tuning_share=1",
    "eval.tuning_share=-0.1",
    "eval.bootstrap=-1",
    "eval.far=[]",
    "eval.far=[0]",
    "eval.metric=precision",
    "eval.order=official_order",
    "data.loaders=-1",
    "augment.crop=random",
    "data=icons",
    "method=er",
    "optim=null",
    "seed.deeper=1",
]


@pytest.mark.parametrize(
    ("setting", "near"),
    [
        ("method.lamda_base=3", "'method.lambda_base'"),
        ("optim.epoch=3", "'optim.epochs'"),
        ("lambda_base=3", "'method.lambda_base'"),
        ("sede=3", "'seed'"),
        ("data.nmae=x", "'data.name'"),
        ("memory.perclass=3", "'memory.per_class'"),
        ("optim.lambda_base=3", "'method.lambda_base'"),
    ],
)
def test_an_unknown_key_names_the_nearest(message: Callable[..., str], setting: str, near: str) -> None:
    text = message(setting)
    assert setting.split("=")[0] in text
    assert f"did you mean {near}?" in text


def test_an_unknown_key_without_a_near_one_names_those_in_its_place(message: Callable[..., str]) -> None:
    assert message("zzzz=3").startswith("config: unknown key 'zzzz'; there are seed, threads, data, scenario, ")
    assert message("memory.zzzz=3") == (
        "config: unknown key 'memory.zzzz'; there are memory.per_class, memory.selection"
    )


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        (["data=icons"], "give a mapping of its fields: name, root, "),
        (["method=er"], "{name: er}"),
        (["optim.milestones=[5, 3]"], "ascending"),
        (["head.projection=none"], "set head.projection=linear"),
        (["method.name=lucir", "head.preallocate=true"], "leave it out, or use one of er, er_fd, "),
        (["method.name=lucir", "head.bias=true"], "lucir cannot; leave it out, or use one of er, "),
        (["method.name=cl2r", "head.bias=true"], "cl2r cannot; leave it out, or use one of er, "),
        (["method.name=wa", "head.mask_unseen=true"], "wa cannot; leave it out, or use one of er, "),
        (["adapter.name=slurp"], "did you mean 'slerp'?"),
        (["adapter.name=slurp"], "choose none or one of: aligner"),
        (["adapter.name=[slerp]"], "adapter.name: "),
        (["method.name=fan+slerp"], "leave the adapter out"),
        (["eval.thresholds=grid", "eval.metric=tar"], "leave it out, or eval.metric=tar"),
        (["eval.far=[0.1, 0.1]"], "each rate once"),
        (["eval.order=official_order"], "set both"),
        (["method.name=podnet", "method.fd=all"], "leave it out"),
        (["method.name=er", "method.fd=all"], "use --method er_fd"),
        (["method.name=er+slurp"], "adapters: aligner"),
        (["method.name=fan", "method.budget=native"], "leave out method.budget"),
        (["seed=true"], "give a number"),
        (["optim.milestones=[3"], "quote it"),
    ],
)
def test_every_refusal_says_what_to_do(message: Callable[..., str], settings: list[str], advice: str) -> None:
    assert advice in message(*settings)


@pytest.mark.parametrize("setting", REFUSED)
def test_a_bad_value_is_refused_in_one_line_that_names_the_field(message: Callable[..., str], setting: str) -> None:
    assert setting.partition("=")[0].removesuffix(".deeper") in message(setting)


def test_the_simplex_needs_a_projection(message: Callable[..., str]) -> None:
    assert "head.projection=none needs method.classifier=trainable" in message("head.projection=none")
    assert resolve([{"head": {"projection": "none"}, "method": {"name": "er"}}]).head.projection == "none"


def test_configs_are_frozen() -> None:
    config = resolve([])
    with pytest.raises(ValidationError, match="frozen"):
        config.seed = 3  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        config.optim.lr = 3.0  # type: ignore[misc]


def test_yaml_round_trips(tmp_path: Any) -> None:
    settings = ["simplex.scale=legacy", "optim.milestones=[]", "method.name=er", "head.k_max=300", "optim.lr=1e-7"]
    config = resolve([read_layer("icons"), *map(override, settings)])
    assert resolve([yaml.safe_load(to_yaml(config))]) == config
    (tmp_path / "c.yaml").write_text(to_yaml(config))
    assert resolve([read_layer(str(tmp_path / "c.yaml"))]) == config


@pytest.mark.parametrize("name", METHODS)
def test_a_run_has_the_fields_of_its_own_method_only(name: str) -> None:
    own = [key for key in fields(resolve([override(f"method.name={name}")])) if key.partition(".")[0] in sections()]
    info = METHODS[name]
    assert own == ([f"{info.section}.{key}" for key in info.options.model_fields] if info.options else [])


def test_names_of_sections_are_kept_for_every_config(message: Callable[..., str]) -> None:
    assert set(Config.model_fields) == RESERVED
    assert "unknown key 'options'" in message("options={}")


@pytest.mark.parametrize("setting", ["podnet.nca=none", "podnet.nac=code", "podnet=code", "lwf.weight=-1"])
def test_fields_of_methods_that_are_not_run_are_checked_all_the_same(message: Callable[..., str], setting: str) -> None:
    assert setting.partition("=")[0] in message("method.name=er", setting)
