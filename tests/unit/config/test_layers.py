"""Presets, methods and overrides are merged into one config."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cl2r.config.keys import link_keys
from cl2r.config.layers import describe_preset, override, preset_layers, presets, read_layer, resolve
from cl2r.config.methods import METHODS
from cl2r.config.schema import Config, fields, to_yaml
from cl2r.errors import InputError


def keys(config: Config) -> list[str]:
    return link_keys(config, "d", [[0, 1, 2], [3, 4], [5, 6], [7]], 8)


@pytest.mark.parametrize("text", ["seed", "=3", " =3", "seed: 3"])
def test_an_override_needs_key_and_value(text: str) -> None:
    with pytest.raises(InputError, match="expected KEY=VALUE"):
        override(text)


def test_an_override_whose_value_is_no_yaml_is_refused(message: Callable[..., str]) -> None:
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
    options = [{"data": {"name": "mine"}}, {"scenario": {"n_tasks": 3}}, {"seed": 2}]
    config = resolve([preset, *options, override("seed=5"), override("optim.lr=0.2")])
    assert (config.seed, config.scenario.n_tasks, config.data.name) == (5, 3, "mine")
    assert (config.optim.epochs, config.optim.lr) == (4, 0.2)


def test_the_option_for_tasks_replaces_increments() -> None:
    preset = {"scenario": {"n_tasks": None, "initial": 4, "increment": 2}}
    spec = resolve([preset, {"scenario": {"n_tasks": 3}}]).scenario
    assert (spec.n_tasks, spec.initial, spec.increment) == (3, None, None)


def test_layers_are_not_changed() -> None:
    layer: dict[str, Any] = {"optim": {"lr": 0.3}, "method": {"name": "er"}}
    resolve([layer, override("optim.lr=0.2"), override("method.lambda_base=1")])
    assert layer == {"optim": {"lr": 0.3}, "method": {"name": "er"}}


def test_a_later_method_replaces_the_fields_of_an_earlier_one() -> None:
    method = resolve([{"method": {"name": "cl2r", "lambda_base": 2}}, {"method": {"name": "er"}}]).method
    assert (method.classifier, method.fd, method.lambda_base) == ("trainable", "none", 2.0)


def test_an_unknown_method_names_the_nearest(message: Callable[..., str]) -> None:
    assert "did you mean 'er_fdm'?" in message("method.name=er_fdmm")


@pytest.mark.parametrize("name", presets())
def test_presets_resolve(name: str) -> None:
    assert isinstance(resolve([read_layer(name)]), Config)


IMAGENET, CIFAR = (8.0, 10.0, 0.01), (3.0, 1.0, 0.05)


@pytest.mark.parametrize(
    ("name", "factors"),
    [
        *((name, IMAGENET) for name in ("imagenet900", "tiny_imagenet200", "casia_lfw", "casia_ijbc")),
        *((name, CIFAR) for name in ("cifar100", "icons", "lfw")),
    ],
)
def test_podnet_has_the_factors_published_for_the_data_and_yields_to_settings(
    name: str, factors: tuple[float, ...]
) -> None:
    layers = [read_layer(name), override("method.name=podnet")]
    keys = ("podnet.spatial", "podnet.flat", "podnet.finetune_lr")
    assert tuple(fields(resolve(layers))[key] for key in keys) == factors
    for key in keys:
        assert fields(resolve([*layers, override(f"{key}=2.5")]))[key] == 2.5
    assert not any(key in fields(resolve([read_layer(name)])) for key in keys), "CL²R has no such fields"


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


def test_initial_and_increment_replace_the_number_of_tasks() -> None:
    config = resolve([read_layer("icons"), override("scenario.initial=60"), override("scenario.increment=10")])
    assert (config.scenario.n_tasks, config.scenario.initial, config.scenario.increment) == (None, 60, 10)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_brings_its_fields(name: str) -> None:
    config = resolve([{"method": {"name": name}}])
    assert {key: fields(config)[key] for key in METHODS[name].defaults} == METHODS[name].defaults
    assert config.method.name == name


def test_what_a_method_brings_yields_to_settings_and_overrules_a_preset() -> None:
    preset = {"head": {"projection": "mlp"}, "method": {"name": "cl2r"}}
    assert resolve([preset, override("method.name=lwf")]).head.projection == "none"
    setting = override("head.projection=linear")
    for layers in ([setting, override("method.name=lwf")], [override("method.name=lwf"), setting]):
        assert resolve([preset, *layers]).head.projection == "linear"
    assert resolve([{**preset, "method": {"name": "lwf"}}]).head.projection == "mlp", "the preset means lwf"


def test_nothing_of_another_method_stays_behind() -> None:
    lucir, er = override("method.name=lucir"), override("method.name=er")
    assert resolve([{}, lucir, er]) == resolve([{}, er])


def test_the_native_budget_is_the_methods_own_and_yields_to_settings(message: Callable[..., str]) -> None:
    native = [{"optim": {"epochs": 3}}, override("method.name=lucir"), override("method.budget=native")]
    optim = resolve(native).optim
    assert (optim.epochs, optim.milestones, optim.weight_decay) == (160, (80, 120), 5e-4)
    assert resolve([*native, override("optim.epochs=4")]).optim.epochs == 4
    assert "no schedule of fan is known" in message("seed=0", "method.name=fan", "method.budget=native")


def test_a_native_schedule_comes_whole_or_not_at_all() -> None:
    """A rate of 2 with other epochs would be no published schedule, whichever layer names the method."""
    preset = {"method": {"name": "icarl"}, "optim": {"epochs": 20, "lr_later": 0.01}, "batches": {"size": 64}}
    config = resolve([preset, override("method.budget=native")])
    optim = config.optim
    assert (optim.epochs, optim.lr, optim.lr_later, optim.milestones) == (70, 2.0, None, (49, 63))
    assert config.batches.size == 128
    assert config.model_dump()["icarl"] == {"over_classes": "mean"}, "a rate of 2 is for the mean"
    assert resolve([yaml.safe_load(to_yaml(config))]) == config
    mine = {"method": {"name": "icarl", "budget": "native"}, "optim": {"epochs": 5}}
    assert resolve([mine]).optim.epochs == 5, "a preset that asks for it may change it"


def test_every_known_native_schedule_is_complete() -> None:
    for name, info in METHODS.items():
        if info.native is not None:
            config = resolve(
                [override("optim.epochs=3"), override(f"method.name={name}"), override("method.budget=native")]
            )
            assert config.optim.epochs >= 70, name
            assert all(milestone < config.optim.epochs for milestone in config.optim.milestones)
    assert {name for name, info in METHODS.items() if info.native is None} == {"fan", "hoc"}


def test_native_memory_is_herded_where_the_publication_herds() -> None:
    selection = {
        name: fields(resolve([override(f"method.name={name}"), override("method.budget=native")]))["memory.selection"]
        for name, info in METHODS.items()
        if info.native is not None and info.memory == "quota"
    }
    herded = {"icarl", "lucir", "bic", "bic_inclearn", "podnet", "wa", "foster", "der_trunc"}
    assert {name for name, chosen in selection.items() if chosen == "herding"} == herded


def test_an_adapter_is_part_of_the_name_and_of_no_key(message: Callable[..., str]) -> None:
    plain, adapted = (resolve([override(f"method.name={name}")]) for name in ("er", "er+slerp"))
    assert (adapted.method.name, adapted.adapter.name) == ("er+slerp", "slerp")
    assert resolve([override("method.name=er"), override("adapter.name=slerp")]) == adapted
    assert keys(plain) == keys(adapted)
    assert resolve([yaml.safe_load(to_yaml(adapted))]) == adapted
    assert "no adapter 'slurp' (did you mean 'slerp'?)" in message("method.name=er+slurp")
    assert "fan changes its feature space its own way" in message("method.name=fan+slerp")


@pytest.mark.parametrize(
    ("name", "setting", "meant"),
    [
        ("er", "method.fd=memory", "er_fdm"),
        ("er", "method.classifier=fixed", "fixed"),
        ("cl2r", "method.fd=all", "fixed_fd"),
        ("upper_bound", "method.fd=none", "cores"),
        ("podnet", "method.fd=all", ""),
    ],
)
def test_classifier_and_distillation_follow_from_the_name(
    message: Callable[..., str], name: str, setting: str, meant: str
) -> None:
    text = message(f"method.name={name}", setting)
    assert setting in text
    assert text.endswith(f"--method {meant}") if meant else "--method" not in text


@pytest.mark.parametrize("former", ["lucir", "er+procrustes", "lwf"])
def test_a_saved_config_is_refused_for_another_method(former: str) -> None:
    saved = yaml.safe_load(to_yaml(resolve([{}, override(f"method.name={former}")])))
    assert resolve([saved]).method.name == former
    with pytest.raises(InputError, match="saved") as caught:
        resolve([saved, override("method.name=bic")])
    assert former in str(caught.value)


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_a_file_without_a_base_is_built_on_icons_and_says_so(tmp_path: Path) -> None:
    mine = write(tmp_path / "mine.yaml", "optim: {epochs: 3}")
    icons = resolve([read_layer("icons")])
    assert resolve([read_layer(mine)]) == resolve([read_layer("icons"), override("optim.epochs=3")])
    assert resolve([read_layer(mine)]).backbone == icons.backbone != resolve([]).backbone
    assert describe_preset(mine) == f"{mine} on preset icons"
    assert describe_preset("icons") == "preset icons"


def test_a_base_is_a_preset_a_file_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is looked for beside the one that names it, then in the working directory."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    write(tmp_path / "faces.yaml", "preset: lfw\nseed: 4")
    above = write(tmp_path / "mine.yaml", "preset: faces.yaml\noptim: {epochs: 3}")
    found = [read_layer("lfw"), override("seed=4"), override("optim.epochs=3")]
    assert resolve([read_layer(above)]) == resolve(found)
    assert describe_preset(above) == f"{above} on {tmp_path / 'faces.yaml'} on preset lfw"
    write(Path("here.yaml"), "seed: 5")
    assert resolve([read_layer(write(tmp_path / "mine.yaml", "preset: here.yaml"))]).seed == 5
    alone = write(tmp_path / "alone.yaml", "preset: none\nseed: 6")
    assert resolve([read_layer(alone)]) == resolve([{"seed": 6}])
    assert describe_preset(alone) == f"{alone} on the built-in defaults"
    assert resolve([read_layer("none")]) == resolve([])


def test_the_fields_of_a_file_win_over_what_a_method_brings(tmp_path: Path) -> None:
    """As with `set` of a study: the base is the preset, everything above it is an explicit setting."""
    mine = read_layer(write(tmp_path / "mine.yaml", "method: {name: lwf}\nhead: {projection: linear}"))
    assert resolve([mine]).head.projection == "linear"
    assert resolve([mine]).batches.batching == "natural", "lwf wins over icons"
    er = resolve([mine, override("method.name=er")])
    assert (er.batches.batching, er.memory.per_class, er.head.projection) == ("balanced", 4, "linear")


def test_the_fields_of_a_base_yield_to_what_a_method_brings(tmp_path: Path) -> None:
    """Except for those of a file that names the method."""
    base = write(tmp_path / "base.yaml", "memory: {per_class: 7, selection: herding}")
    lwf = override("method.name=lwf")
    assert resolve([read_layer(base), lwf]).memory.per_class == 7, "it is no base here"
    above = read_layer(write(tmp_path / "above.yaml", f"preset: {base}"))
    assert (resolve([above]).memory.per_class, resolve([above, lwf]).memory.per_class) == (7, 0)
    assert resolve([above, lwf]).memory.selection == "herding", "lwf brings none"
    base = write(tmp_path / "base.yaml", "method: {name: lwf}\nmemory: {per_class: 7}")
    assert resolve([above]).memory.per_class == 7, "the base means lwf"
    assert resolve([above]).batches.batching == "natural", "but icons does not"
    assert resolve([above, override("method.name=er")]).batches.batching == "balanced"
    assert resolve(preset_layers(base), base=len(preset_layers(base))) == resolve([above])


def test_a_file_may_set_fields_by_dotted_name(tmp_path: Path) -> None:
    mine = write(tmp_path / "mine.yaml", "optim: {epochs: 3, lr: 0.2}\nset: {optim.lr: 0.3, scenario.initial: 50}")
    config = resolve([read_layer(mine)])
    assert (config.optim.epochs, config.optim.lr) == (3, 0.3)
    assert (config.scenario.n_tasks, config.scenario.initial) == (None, 50)


@pytest.mark.parametrize("name", presets())
def test_a_saved_config_and_a_copy_of_a_preset_mean_themselves(name: str, tmp_path: Path) -> None:
    """A config saved by an older version lacks later fields: they must not come from icons."""
    config = resolve([read_layer(name)])
    copied = write(tmp_path / "copy.yaml", presets()[name].read_text())
    assert resolve([read_layer(copied)]) == config
    fields_then = yaml.safe_load(to_yaml(config))
    del fields_then["head"]["centre"]
    saved = write(tmp_path / "config.yaml", yaml.safe_dump(fields_then))
    assert resolve([read_layer(saved)]) == resolve([read_layer(name), override("head.centre=false")])
    assert describe_preset(saved) == f"{saved}, a whole config"
    assert len(preset_layers(saved)) == len(preset_layers(name)) == 1


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("preset: 5", ["preset", "5", "YAML file"]),
        ("preset: iconz", ["'iconz'", "'icons'"]),
        ("preset: mine.yaml", ["mine.yaml", "another base"]),
        ("preset: other.yaml", ["other.yaml", "another base"]),
        ("set: 5", ["mine.yaml: set", "optim.epochs"]),
        ("set: {optim.epoch: 5}", ["'optim.epochs'"]),
        ("grid: {method.name: [er]}", ["mine.yaml: the file of a study", "'grid'", "cl2r study", "mine.yaml`"]),
        ("seeds: [0]", ["'seeds'", "cl2r study"]),
    ],
)
def test_a_bad_base_is_refused(tmp_path: Path, text: str, faults: list[str]) -> None:
    write(tmp_path / "other.yaml", "preset: ./mine.yaml")
    with pytest.raises(InputError) as caught:
        resolve(preset_layers(write(tmp_path / "mine.yaml", text)))
    assert all(fault in str(caught.value) for fault in faults), caught.value
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["3", "[a]", "{a: 1}", "true", "2024-01-01"])
def test_a_data_set_whose_name_is_no_text_is_bad_input(value: str) -> None:
    with pytest.raises(InputError, match=r"data\.name"):
        resolve([read_layer("icons"), override(f"data.name={value}")])


def test_other_data_than_the_presets_is_split_into_equal_tasks(tmp_path: Path) -> None:
    def split(*words: str, preset: str = "icons") -> tuple[int | None, int | None, int | None]:
        scenario = resolve([read_layer(preset), *map(override, words)]).scenario
        return scenario.n_tasks, scenario.initial, scenario.increment

    assert split() == (None, 30, 14)
    assert split("data.name=photos") == (5, None, None)
    assert split("data.name=photos", "scenario.n_tasks=3") == (3, None, None)
    assert split("scenario.initial=4", "scenario.increment=2", "data.name=photos") == (None, 4, 2)
    mine = tmp_path / "mine.yaml"
    mine.write_text("data: {name: photos}\nscenario: {initial: 4, increment: 2}\n")
    assert split(preset=str(mine)) == (None, 4, 2)
    assert split("data.name=cifar100", preset=str(mine)) == (None, 4, 2), "the file's own fields are overrides"
    mine.write_text("preset: none\ndata: {name: photos}\nscenario: {initial: 4, increment: 2}\n")
    assert split("data.name=cifar100", preset=str(mine)) == (5, None, None)
    assert split(f"data.name={Path('photos').absolute()}", preset=str(mine)) == (None, 4, 2), "as a study names it"


def test_a_file_that_names_classifier_and_distillation_is_not_a_whole_config(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("method: {name: er, classifier: trainable, fd: none}\noptim: {epochs: 3}\n")
    assert read_layer(str(mine))["preset"] == "icons"
