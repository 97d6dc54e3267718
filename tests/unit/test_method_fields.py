"""What methods bring to a config: their own sections, defaults, native budgets, adapters, and links they share."""

import pytest
import yaml

from cl2r.config import Config, fields, matters_from, to_yaml
from cl2r.errors import InputError
from cl2r.layers import override, resolve
from cl2r.link_keys import link_keys
from cl2r.methods.catalog import METHODS, RESERVED, sections

TASKS = 4


def keys(config: Config) -> list[str]:
    return link_keys(config, "d", [[0, 1, 2], [3, 4], [5, 6], [7]], 8)


def message(*settings: str) -> str:
    with pytest.raises(InputError) as caught:
        resolve([{}, *map(override, settings)])
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", METHODS)
def test_a_run_has_the_fields_of_its_own_method_only(name: str) -> None:
    own = [key for key in fields(resolve([override(f"method.name={name}")])) if key.partition(".")[0] in sections()]
    info = METHODS[name]
    assert own == ([f"{info.section}.{key}" for key in info.options.model_fields] if info.options else [])


OWN_FIELDS = {
    f"{info.section}.{key}": name
    for name, info in METHODS.items()
    if info.options is not None
    for key in info.options.model_fields
}


@pytest.mark.parametrize(("field", "name"), OWN_FIELDS.items())
def test_a_field_of_a_method_moves_its_keys_and_no_other_methods(field: str, name: str) -> None:
    layer = override(f"method.name={name}")
    config = resolve([layer])
    assert config.options is not None
    key = field.partition(".")[2]
    current = getattr(config.options, key)
    other = {bool: lambda: not current, str: lambda: "other"}.get(type(current), lambda: (current or 0) + 1)()
    changed = config.model_copy(update={"options": config.options.model_copy(update={key: other})})
    moved = [task for task, (a, b) in enumerate(zip(keys(config), keys(changed), strict=True), 1) if a != b]
    assert moved == list(range(matters_from()[field] or 0, TASKS + 1))
    if METHODS[name].first_task:
        assert 1 not in moved, "its first task is another family's"


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


def test_the_native_budget_is_the_methods_own_and_yields_to_settings() -> None:
    native = [{"optim": {"epochs": 3}}, override("method.name=lucir"), override("method.budget=native")]
    optim = resolve(native).optim
    assert (optim.epochs, optim.milestones, optim.weight_decay) == (160, (80, 120), 5e-4)
    assert resolve([*native, override("optim.epochs=4")]).optim.epochs == 4
    assert "no schedule of fan is known" in message("seed=0", "method.name=fan", "method.budget=native")


def test_a_native_schedule_comes_whole_or_not_at_all() -> None:
    """Whoever names the method: a rate of 2 with another's epochs would be nobody's schedule."""
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


@pytest.mark.parametrize("former", ["lucir", "er+procrustes", "lwf", "foster"])
@pytest.mark.parametrize("name", ["er", "bic", "fan"])
def test_a_saved_config_leaves_nothing_of_its_method_to_another(former: str, name: str) -> None:
    saved = yaml.safe_load(to_yaml(resolve([{}, override(f"method.name={former}")])))
    assert resolve([saved, override(f"method.name={name}")]) == resolve([{}, override(f"method.name={name}")])


def test_names_of_sections_are_kept_for_every_config() -> None:
    assert set(Config.model_fields) == RESERVED
    assert "unknown key 'options'" in message("options={}")


def test_an_adapter_is_part_of_the_name_and_of_no_key() -> None:
    plain, adapted = (resolve([override(f"method.name={name}")]) for name in ("er", "er+slerp"))
    assert (adapted.method.name, adapted.adapter.name) == ("er+slerp", "slerp")
    assert resolve([override("method.name=er"), override("adapter.name=slerp")]) == adapted
    assert keys(plain) == keys(adapted)
    assert resolve([yaml.safe_load(to_yaml(adapted))]) == adapted
    assert "no adapter 'slurp' (did you mean 'slerp'?)" in message("method.name=er+slurp")
    assert "fan changes its feature space its own way" in message("method.name=fan+slerp")


@pytest.mark.parametrize("setting", ["podnet.nca=none", "podnet.nac=code", "podnet=code", "lwf.weight=-1"])
def test_fields_of_methods_that_are_not_run_are_checked_all_the_same(setting: str) -> None:
    assert setting.partition("=")[0] in message("method.name=er", setting)


def test_first_tasks_are_shared_as_the_catalog_says() -> None:
    first = {name: keys(resolve([override(f"method.name={name}")]))[0] for name in METHODS}
    assert first["er"] == first["er_fd"] == first["lifelong_bct"] == first["bct"]
    assert first["cl2r"] == first["upper_bound"] == first["cores"] == first["hoc"]
    assert first["lwf"] == first["bic"] == first["wa"] == first["foster"] == first["der_trunc"] != first["er"]
    assert first["lucir"] == first["fan"]
    assert len(set(first.values())) == 6


def test_no_two_methods_share_a_later_link() -> None:
    later = [key for name in METHODS for key in keys(resolve([override(f"method.name={name}")]))[1:]]
    assert len(set(later)) == len(later)
