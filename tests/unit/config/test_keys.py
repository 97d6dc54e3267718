"""Which field moves the key of which link."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from cl2r.config.keys import KEY, ONE_CPU, link_keys, made_by, stored_key
from cl2r.config.layers import override, resolve
from cl2r.config.methods import HEAD_SWITCHES, METHODS, sections
from cl2r.config.schema import Config, field_keys, fields, matters_from
from cl2r.errors import InputError

CLASSES = [[0, 1, 2], [3, 4], [5, 6], [7]]
PINNED_KEYS = [
    "8993bacecd0fa78b3231de5a2a298f41",
    "2e8e522493a8de30d4de1243fdf8d203",
    "94326c7300fd9c9c717030379d3d8084",
    "d6bfce52e48230ea0e4f6bbd963aa383",
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
    "head.bias": (1, True),
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
    "adapter.rank": (None, 4),
    "adapter.width": (None, 4),
    "adapter.scaling": (None, True),
    "adapter.orthogonality": (None, 0.5),
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
    "eval.split": (None, "classes"),
    "eval.average_precision": (None, True),
    "eval.ties": (None, True),
    "eval.bootstrap": (None, 0),
}
"""For every field: the first task it matters for, and a value that is not the default."""


def with_field(config: Config, dotted: str, value: Any) -> Config:
    """The config with exactly one field changed; nothing else follows it, as it would in `resolve`."""
    name, _, key = dotted.partition(".")
    if not key:
        return config.model_copy(update={name: value})
    return config.model_copy(update={name: getattr(config, name).model_copy(update={key: value})})


def keys_of(config: Config, data: str = "d", classes: list[list[int]] = CLASSES, outputs: int = 8) -> list[str]:
    return link_keys(config, data, classes, outputs)


def test_every_field_says_from_which_task_on_it_matters() -> None:
    shared = {name: first for name, first in matters_from().items() if name.partition(".")[0] not in sections()}
    assert list(shared) == list(fields(resolve([])))
    assert shared == {name: first for name, (first, _) in OTHER_VALUES.items()}
    assert list(matters_from()) == field_keys()


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
        ("upper_bound", ["memory.per_class=0", "memory.selection=herding"]),
    ],
)
def test_fields_that_others_switch_off_move_no_key(method: str, settings: list[str]) -> None:
    base: list[dict[str, Any]] = [{"method": {"name": method}}]
    assert keys_of(resolve([*base, *map(override, settings)])) == keys_of(resolve(base))


def test_keys_do_not_change_unnoticed() -> None:
    """Other keys mean that all stored links are trained again: then LINK_FORMAT changes, and these keys with it."""
    assert keys_of(resolve([{"method": {"name": "cl2r"}}])) == PINNED_KEYS


@pytest.mark.parametrize(
    ("device", "workers", "sync", "made"),
    [("cpu", 1, False, "cpu1"), ("cpu", 2, False, "cpu2"), ("cuda", 1, False, "cuda1"), ("cuda", 4, True, "cuda4s")],
)
def test_what_makes_a_link(device: str, workers: int, sync: bool, made: str) -> None:
    assert made_by(device, workers, sync) == made
    assert stored_key("abc", [made] * 3) == ("abc" if made == ONE_CPU else f"abc-{made}")


def test_a_stored_key_tells_all_ways_in_which_a_chain_can_be_made_apart() -> None:
    ways = ["cpu1", "cpu2", "cuda1", "cuda2", "cuda2s"]
    chains = [made for tasks in (1, 2, 3) for made in itertools.product(ways, repeat=tasks)]
    stored = {made: stored_key(f"abc{len(made)}", made) for made in chains}
    assert len(set(stored.values())) == len(chains)
    assert all(KEY.fullmatch(key) and key.startswith("abc") for key in stored.values())
    assert stored["cpu1", "cpu1"] == "abc2"
    assert stored["cuda2", "cuda2"] == "abc2-cuda2"
    assert stored["cpu1", "cpu2"].startswith("abc2-mixed")
    assert stored["cpu1", "cpu2"] == stored_key("abc2", ["cpu1", "cpu2"]), "the same in every process"


def test_methods_published_with_a_bias_have_it_and_other_keys_than_without() -> None:
    biased = {name for name in METHODS if resolve([{"method": {"name": name}}]).head.bias}
    assert biased == {
        *("lwf", "lwf_er", "icarl", "bic", "wa", "foster", "der_trunc"),
        *("bct", "lifelong_bct"),
    }
    for name in biased:
        layer: dict[str, Any] = {"method": {"name": name}}
        with_bias, without = resolve([layer]), resolve([layer, override("head.bias=false")])
        assert not without.head.bias
        assert not set(keys_of(with_bias)) & set(keys_of(without))


def test_every_switch_of_the_head_that_a_method_follows_is_accepted_and_no_other() -> None:
    for name, switch in itertools.product(METHODS, HEAD_SWITCHES):
        layers: list[dict[str, Any]] = [{"method": {"name": name}}, {"head": {switch: True}}]
        if switch in METHODS[name].switches:
            assert getattr(resolve(layers).head, switch)
        else:
            with pytest.raises(InputError, match=f"head.{switch}=true: {name} cannot"):
                resolve(layers)


@pytest.mark.parametrize("name", ["upper_bound", "cores", "hoc"])
def test_methods_with_the_fixed_classifier_share_its_masked_first_task(name: str) -> None:
    masked = override("head.mask_unseen=true")
    first, plain, fixed = (
        keys_of(resolve(layers))[0]
        for layers in (
            [{"method": {"name": name}}, masked],
            [{"method": {"name": name}}],
            [{"method": {"name": "fixed"}}, masked],
        )
    )
    assert first == fixed != plain


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


def test_milestones_beyond_the_last_epoch_move_no_key() -> None:
    base = [override("optim.epochs=10"), override("optim.milestones=[5]")]
    assert keys_of(resolve([*base, override("optim.milestones=[5, 10]")])) == keys_of(resolve(base))
    assert keys_of(resolve([*base, override("optim.milestones=[5, 9]")])) != keys_of(resolve(base))


OPTIONS = {
    f"{info.section}.{key}": name
    for name, info in METHODS.items()
    if info.options is not None
    for key in info.options.model_fields
}


@pytest.mark.parametrize(("field", "name"), OPTIONS.items())
def test_a_field_of_a_method_moves_its_keys_and_no_other_methods(field: str, name: str) -> None:
    layer = override(f"method.name={name}")
    config = resolve([layer])
    assert config.options is not None
    key = field.partition(".")[2]
    current = getattr(config.options, key)
    other = {bool: lambda: not current, str: lambda: "other"}.get(type(current), lambda: (current or 0) + 1)()
    changed = config.model_copy(update={"options": config.options.model_copy(update={key: other})})
    moved = [task for task, (a, b) in enumerate(zip(keys_of(config), keys_of(changed), strict=True), 1) if a != b]
    assert moved == list(range(matters_from()[field] or 0, len(CLASSES) + 1))
    if METHODS[name].first_task:
        assert 1 not in moved, "its first task is another family's"


def test_first_tasks_are_shared_as_the_catalog_says() -> None:
    first = {name: keys_of(resolve([override(f"method.name={name}")]))[0] for name in METHODS}
    assert first["er"] == first["er_fd"] != first["lifelong_bct"] == first["bct"]
    assert first["cl2r"] == first["upper_bound"] == first["cores"] == first["hoc"]
    assert first["lwf"] == first["bic"] == first["wa"] == first["foster"] == first["der_trunc"] != first["er"]
    assert first["bic"] != first["bic_inclearn"], "only one of them has a bias"
    assert first["lucir"] == first["fan"]
    assert len(set(first.values())) == 8


def test_no_two_methods_share_a_later_link() -> None:
    later = [key for name in METHODS for key in keys_of(resolve([override(f"method.name={name}")]))[1:]]
    assert len(set(later)) == len(later)


@pytest.mark.parametrize(("like", "switch"), [("er", "mask_unseen"), ("fixed", "preallocate")])
def test_a_switch_that_an_installed_method_declares_moves_its_keys(
    like: str, switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may follow a switch that has no effect on the built-in methods."""
    installed = replace(METHODS[like], name="other", family="other", build="elsewhere:Other", switches=HEAD_SWITCHES)
    monkeypatch.setitem(METHODS._loaded[0], "other", installed)
    base: list[dict[str, Any]] = [{"method": {"name": "other"}}]
    plain, switched = keys_of(resolve(base)), keys_of(resolve([*base, override(f"head.{switch}=true")]))
    assert not set(plain) & set(switched)
