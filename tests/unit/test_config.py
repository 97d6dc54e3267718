"""Layers to a config, refusals in one line, and which field moves which link key."""

from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from cl2r.cli import _option_layers
from cl2r.config import Config, field_keys, fields, matters_from, to_yaml
from cl2r.errors import InputError
from cl2r.layers import override, presets, read_layer, resolve
from cl2r.link_keys import link_keys
from cl2r.methods.catalog import sections

CLASSES = [[0, 1, 2], [3, 4], [5, 6], [7]]
FIRST_KEYS = [
    "5e762a9a0afff0db0493dbd3106e2b4b",
    "8225c97b0083c3fa90b132e5abf826ec",
    "9c41c164ede82554ed15352690c2a4e4",
    "6bdbfc348a9ca0a6d167e8c5eec887a3",
]

OTHER_VALUES: dict[str, tuple[int | None, Any]] = {
    "seed": (1, 1),
    "threads": (None, 2),
    "data.name": (None, "elsewhere"),
    "data.root": (None, "elsewhere"),
    "data.loaders": (None, 0),
    "data.size": (None, 64),
    "data.channels": (None, 1),
    "scenario.n_tasks": (None, 7),
    "scenario.initial": (None, 3),
    "scenario.increment": (None, 2),
    "scenario.class_order": (None, "identity"),
    "scenario.stop_after": (None, 2),
    "backbone.name": (1, "resnet20"),
    "backbone.last_relu": (1, False),
    "head.centre": (1, True),
    "head.projection": (1, "mlp"),
    "head.k_max": (None, 500),
    "head.preallocate": (1, True),
    "head.mask_unseen": (1, True),
    "simplex.scale": (1, "legacy"),
    "method.name": (None, "fixed"),
    "method.budget": (None, "native"),
    "method.classifier": (1, "trainable"),
    "method.fd": (2, "all"),
    "method.lambda_base": (2, 1.5),
    "method.lambda_rule": (2, "const"),
    "method.fd_when_no_memory": (2, "on_new"),
    "memory.per_class": (2, 0),
    "memory.selection": (2, "herding"),
    "batches.size": (1, 32),
    "batches.batching": (2, "natural"),
    "optim.epochs": (1, 3),
    "optim.lr": (1, 0.05),
    "optim.lr_later": (2, 0.05),
    "optim.momentum": (1, 0.5),
    "optim.weight_decay": (1, 0.0),
    "optim.milestones": (1, (50,)),
    "optim.gamma": (1, 0.5),
    "optim.schedule": (1, "cosine"),
    "optim.precision": (1, "bf16"),
    "optim.compile": (1, True),
    "augment.crop": (1, "resized"),
    "augment.padding": (1, 2),
    "augment.flip": (1, False),
    "adapter.name": (None, "slerp"),
    "adapter.ridge": (None, 2.0),
    "adapter.share": (None, 0.1),
    "eval.metric": (None, "tar"),
    "eval.far": (None, (0.5,)),
    "eval.positives": (None, 100),
    "eval.negatives": (None, 100),
    "eval.folds": (None, 5),
    "eval.order": (None, "official_order"),
    "eval.thresholds": (None, "grid"),
    "eval.normalise": (1, "own"),
    "eval.features": (1, "float16"),
    "eval.pairs_seed": (None, 1),
    "eval.tuning_share": (None, 0.25),
    "eval.ties": (None, True),
    "eval.bootstrap": (None, 0),
}
"""For every field: the first task it matters for, and a value that is not the default."""

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
    "backbone.name=resnet31",
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


def with_field(config: Config, dotted: str, value: Any) -> Config:
    """The config with exactly one field changed; nothing else follows it, as it would in `resolve`."""
    name, _, key = dotted.partition(".")
    if not key:
        return config.model_copy(update={name: value})
    return config.model_copy(update={name: getattr(config, name).model_copy(update={key: value})})


def keys_of(config: Config, data: str = "d", classes: list[list[int]] = CLASSES, outputs: int = 8) -> list[str]:
    return link_keys(config, data, classes, outputs)


def message(*settings: str) -> str:
    with pytest.raises(InputError) as caught:
        resolve(map(override, settings))
    text = str(caught.value)
    assert "\n" not in text
    return text


# ---------------------------------------------------------------- layers


def test_every_field_says_from_which_task_on_it_matters() -> None:
    shared = {name: first for name, first in matters_from().items() if name.partition(".")[0] not in sections()}
    assert list(shared) == list(fields(resolve([])))
    assert shared == {name: first for name, (first, _) in OTHER_VALUES.items()}
    assert list(matters_from()) == field_keys()


@pytest.mark.parametrize(
    ("setting", "near"),
    [
        ("method.lamda_base=3", "'method.lambda_base'"),
        ("optim.epoch=3", "'optim.epochs'"),
        ("lambda_base=3", "'method.lambda_base'"),
        ("sede=3", "'seed'"),
        ("data.nmae=x", "'data.name'"),
        ("memory.perclass=3", "'memory.per_class'"),
    ],
)
def test_an_unknown_key_names_the_nearest(setting: str, near: str) -> None:
    text = message(setting)
    assert setting.split("=")[0] in text
    assert f"did you mean {near}?" in text


def test_an_unknown_key_without_a_near_one_is_named_all_the_same() -> None:
    assert message("zzzz=3") == "config: unknown key 'zzzz'"


@pytest.mark.parametrize("setting", REFUSED)
def test_a_bad_value_is_refused_in_one_line_that_names_the_field(setting: str) -> None:
    assert setting.partition("=")[0].removesuffix(".deeper") in message(setting)


@pytest.mark.parametrize("text", ["seed", "=3", " =3", "seed: 3"])
def test_an_override_needs_key_and_value(text: str) -> None:
    with pytest.raises(InputError, match="expected KEY=VALUE"):
        override(text)


def test_an_override_whose_value_is_no_yaml_is_refused() -> None:
    assert "not valid YAML" in message("optim.milestones=[3")


def test_overrides_are_read_as_yaml() -> None:
    texts = ["optim.weight_decay=2e-4", "optim.milestones=[3, 9]", "scenario.n_tasks=null", "scenario.increment=2"]
    config = resolve(map(override, texts))
    assert config.optim.weight_decay == 2e-4
    assert isinstance(config.optim.weight_decay, float)
    assert config.optim.milestones == (3, 9)
    assert config.scenario.n_tasks is None
    assert override("optim.lr_later=null") == {"optim": {"lr_later": None}}
    assert override("data.name=a=b") == {"data": {"name": "a=b"}}


def test_options_win_over_the_preset_and_set_over_options() -> None:
    preset = {"seed": 1, "scenario": {"n_tasks": 2}, "optim": {"epochs": 4, "lr": 0.3}}
    options = _option_layers({"data.name": "mine", "scenario.n_tasks": 3, "method.name": None, "seed": 2})
    config = resolve([preset, *options, override("seed=5"), override("optim.lr=0.2")])
    assert (config.seed, config.scenario.n_tasks, config.data.name) == (5, 3, "mine")
    assert (config.optim.epochs, config.optim.lr) == (4, 0.2)


def test_the_option_for_tasks_replaces_increments() -> None:
    preset = {"scenario": {"n_tasks": None, "initial": 4, "increment": 2}}
    spec = resolve([preset, *_option_layers({"scenario.n_tasks": 3})]).scenario
    assert (spec.n_tasks, spec.initial, spec.increment) == (3, None, None)


def test_layers_are_not_changed() -> None:
    layer: dict[str, Any] = {"optim": {"lr": 0.3}, "method": {"name": "er"}}
    resolve([layer, override("optim.lr=0.2"), override("method.fd=all")])
    assert layer == {"optim": {"lr": 0.3}, "method": {"name": "er"}}


# ---------------------------------------------------------------- methods


def test_a_later_method_replaces_the_fields_of_an_earlier_one() -> None:
    method = resolve([{"method": {"name": "cl2r", "lambda_base": 2}}, {"method": {"name": "er"}}]).method
    assert (method.classifier, method.fd, method.lambda_base) == ("trainable", "none", 2.0)


@pytest.mark.parametrize(
    ("name", "field", "value", "canonical"),
    [
        ("er", "fd", "memory", "er_fdm"),
        ("er", "classifier", "fixed", "fixed"),
        ("cl2r", "fd", "all", "fixed_fd"),
        ("cl2r", "fd", "memory", "cl2r"),
    ],
)
def test_the_name_follows_the_fields(name: str, field: str, value: str, canonical: str) -> None:
    assert resolve([{"method": {"name": name}}, {"method": {field: value}}]).method.name == canonical
    assert resolve([{"method": {"name": name, field: value}}]).method.name == canonical


def test_an_unknown_method_names_the_nearest() -> None:
    assert "did you mean 'er_fdm'?" in message("method.name=er_fdmm")


def test_the_simplex_needs_a_projection() -> None:
    assert "head.projection=none needs method.classifier=trainable" in message("head.projection=none")
    assert resolve([{"head": {"projection": "none"}, "method": {"name": "er"}}]).head.projection == "none"


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("name", presets())
def test_presets_resolve(name: str) -> None:
    assert isinstance(resolve([read_layer(name)]), Config)


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"no preset or file 'icon' \(did you mean 'icons'\?\); presets: .*icons"):
        read_layer("icon")


@pytest.mark.parametrize(
    ("text", "fault"),
    [("[1, 2]", "expected a mapping"), ("a: [", "not valid YAML"), ("# nothing", "expected a mapping")],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Any, text: str, fault: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=fault) as caught:
        read_layer(str(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_yaml_round_trips(tmp_path: Any) -> None:
    settings = ["simplex.scale=legacy", "optim.milestones=[]", "method.name=er", "head.k_max=300", "optim.lr=1e-7"]
    config = resolve([read_layer("icons"), *map(override, settings)])
    assert resolve([yaml.safe_load(to_yaml(config))]) == config
    (tmp_path / "c.yaml").write_text(to_yaml(config))
    assert resolve([read_layer(str(tmp_path / "c.yaml"))]) == config


def test_configs_are_frozen() -> None:
    config = resolve([])
    with pytest.raises(ValidationError, match="frozen"):
        config.seed = 3  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        config.optim.lr = 3.0  # type: ignore[misc]


# ---------------------------------------------------------------- link keys


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_a_field_moves_exactly_the_keys_from_its_task_on(name: str) -> None:
    first, value = OTHER_VALUES[name]
    config = resolve([{"method": {"name": "er"}}] if name == "head.preallocate" else [])
    changed = with_field(config, name, value)
    assert [key for key, entry in fields(changed).items() if entry != fields(config)[key]] == [name]
    moved = [task for task, (a, b) in enumerate(zip(keys_of(config), keys_of(changed), strict=True), 1) if a != b]
    assert moved == ([] if first is None else [task for task in range(1, len(CLASSES) + 1) if task >= first])


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("er", ["simplex.scale=5", "head.mask_unseen=true", "method.lambda_base=1", "method.lambda_rule=const"]),
        ("er_fdm", ["simplex.scale=legacy", "head.mask_unseen=true"]),
        ("fixed", ["head.preallocate=true", "method.lambda_base=9", "method.fd_when_no_memory=on_new"]),
        ("cl2r", ["head.preallocate=true"]),
    ],
)
def test_fields_that_others_switch_off_move_no_key(method: str, settings: list[str]) -> None:
    base: list[dict[str, Any]] = [{"method": {"name": method}}]
    assert keys_of(resolve([*base, *map(override, settings)])) == keys_of(resolve(base))


def test_keys_are_those_of_the_first_versions() -> None:
    """Links that were stored before a field existed must be found by configs that leave it at its default."""
    assert keys_of(resolve([{"method": {"name": "cl2r"}}])) == FIRST_KEYS


def test_masking_a_preallocated_trainable_head_matters() -> None:
    base: list[dict[str, Any]] = [{"method": {"name": "er"}, "head": {"preallocate": True}}]
    assert keys_of(resolve([*base, override("head.mask_unseen=true")])) != keys_of(resolve(base))


def test_the_keys_of_a_chain_differ() -> None:
    keys = keys_of(resolve([]))
    assert len(set(keys)) == len(keys) == len(CLASSES)


def test_data_and_outputs_move_all_keys() -> None:
    config = resolve([])
    for other in (keys_of(config, data="e"), keys_of(config, outputs=9)):
        assert not set(other) & set(keys_of(config))


@pytest.mark.parametrize("same", [1, 2, 3])
def test_a_key_depends_on_the_classes_so_far_only(same: int) -> None:
    config = resolve([])
    other = [*CLASSES[:same], [99], [98]]
    ours, theirs = keys_of(config), keys_of(config, classes=other)
    assert ours[:same] == theirs[:same]
    assert not set(ours[same:]) & set(theirs[same:])


def test_the_order_of_classes_and_their_split_into_tasks_matter() -> None:
    config = resolve([])
    assert keys_of(config, classes=[[0, 1]])[0] != keys_of(config, classes=[[1, 0]])[0]
    assert keys_of(config, classes=[[0, 1], [2, 3]])[1] != keys_of(config, classes=[[0, 1, 2], [3]])[1]


def test_equal_numbers_written_differently_have_equal_keys() -> None:
    assert keys_of(resolve([override("optim.lr=1")])) == keys_of(resolve([override("optim.lr=1.0")]))


def test_initial_and_increment_replace_the_number_of_tasks() -> None:
    config = resolve([read_layer("icons"), override("scenario.initial=60"), override("scenario.increment=10")])
    assert (config.scenario.n_tasks, config.scenario.initial, config.scenario.increment) == (None, 60, 10)


def test_milestones_beyond_the_last_epoch_move_no_key() -> None:
    base = [override("optim.epochs=10"), override("optim.milestones=[5]")]
    assert keys_of(resolve([*base, override("optim.milestones=[5, 10]")])) == keys_of(resolve(base))
    assert keys_of(resolve([*base, override("optim.milestones=[5, 9]")])) != keys_of(resolve(base))
