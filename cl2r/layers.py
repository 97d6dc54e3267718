"""From layers (a preset, what its method brings, overrides) to a checked config. Bad input is named in one line."""

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from cl2r.config import Config, field_keys, field_types
from cl2r.errors import InputError, nearest
from cl2r.methods.catalog import ADAPTERS, METHODS, MethodInfo, family_of, sections, split_name, telling_fields
from cl2r.privacy import without_secrets


def presets() -> dict[str, Path]:
    """The presets that come with the package, by name."""
    folder = Path(str(resources.files("cl2r") / "presets"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def read_layer(preset: str) -> dict[str, Any]:
    """The YAML mapping of a preset name or of a YAML file."""
    known = presets()
    path = known.get(preset, Path(preset))
    if not path.is_file():
        raise InputError(f"no preset or file {preset!r}{nearest(preset, known)}; presets: {', '.join(known)}")
    try:
        layer = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(layer, dict):
        raise InputError(f"{path}: expected a mapping of config sections")
    return layer


def override(text: str) -> dict[str, Any]:
    """`a.b=value` as a nested mapping; the value is read as YAML."""
    dotted, equals, value = text.partition("=")
    if not equals or not dotted.strip():
        raise InputError(f"--set {text!r}: expected KEY=VALUE, e.g. --set method.lambda_base=3")
    try:
        layer: Any = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise InputError(f"--set {text!r}: the value is not valid YAML") from error
    return from_dotted(dotted.strip(), layer)


def from_dotted(dotted: str, value: Any) -> dict[str, Any]:
    """`a.b` and a value as a nested mapping."""
    for key in reversed(dotted.split(".")):
        value = {key: value}
    return dict(value)


def resolve(layers: Iterable[Mapping[str, Any]]) -> Config:
    """Merge layers (later ones win) into a checked config. The first one is the preset.

    What the method brings lies above the preset, or below it if it is the preset that means this method; anything that
    is set explicitly after the preset wins.
    """
    preset, *rest = [*layers] or [{}]
    given = merge_layers([preset, *rest])
    name = str(_field(given, "method.name") or "cl2r")
    base, adapter = split_name(name)
    brought = {**_as_layer(METHODS[base].defaults), "adapter": {"name": adapter}}
    means_it = _field(preset, "method.name") == name or _field(given, "method.name") is None
    native = _native(METHODS[base], given)
    below, above = (brought, {}) if means_it else ({}, brought)
    if means_it and _field(preset, "method.budget") == "native":
        below, native = merge_layers([below, native]), {}
    merged = merge_layers([below, _without_former(preset, base), above, native, *rest])
    _refuse_yes_for_numbers(merged)
    merged["method"]["name"] = _canonical_name(METHODS[base], merged)
    _check_sections(merged)
    _refuse_secrets(merged)
    try:
        return Config.model_validate(merged)
    except ValidationError as error:
        raise InputError(f"config: {error_line(error, field_keys())}") from error


def _native(info: MethodInfo, given: Mapping[str, Any]) -> dict[str, Any]:
    """The schedule of the method's own publication, where it is asked for."""
    if _field(given, "method.budget") != "native":
        return {}
    if info.native is None:
        raise InputError(f"method.budget=native: no schedule of {info.name} is known")
    return _as_layer(info.native)


def _without_former(preset: Mapping[str, Any], base: str) -> Mapping[str, Any]:
    """A preset that means another method, e.g. a saved config, without what that method brought to it."""
    former = str(_field(preset, "method.name") or base).partition("+")[0]
    if former == base or former not in METHODS:
        return preset
    kept = merge_layers([preset])
    for dotted, value in METHODS[former].defaults.items():
        section, _, key = dotted.partition(".")
        if isinstance(kept.get(section), dict) and kept[section].get(key) == value:
            del kept[section][key]
    return kept


def _check_sections(merged: Mapping[str, Any]) -> None:
    """Sections of methods, also of those that are not run: a typing error is one all the same."""
    if "options" in merged:
        raise InputError("config: unknown key 'options': a method's section has the name `cl2r methods` shows")
    for name, kind in sections().items():
        try:
            kind.model_validate(merged.get(name, {}))
        except ValidationError as error:
            raise InputError(f"config: {error_line(error, field_keys(), name)}") from error


def merge_layers(layers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One layer that says what all of them say."""
    merged: dict[str, Any] = {}
    for layer in layers:
        if not isinstance(layer.get("method", {}), Mapping):
            raise InputError(f"config: method: expected a mapping of fields (got {layer['method']!r})")
        _merge(merged, _one_form_of_tasks(layer))
    return merged


def _as_layer(dotted: Mapping[str, Any]) -> dict[str, Any]:
    """Fields by dotted name as a layer."""
    return merge_layers(from_dotted(name, value) for name, value in dotted.items())


def _refuse_yes_for_numbers(merged: Mapping[str, Any]) -> None:
    """Pydantic would read `seed: true` as 1."""
    for dotted, kind in field_types().items():
        value = _field(merged, dotted)
        if isinstance(value, bool) and kind is not bool:
            raise InputError(f"config: {dotted}: not a yes-or-no field (got {value})")


def _refuse_secrets(value: Any, name: str = "") -> None:
    """A config is written into frames and reports."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            _refuse_secrets(entry, f"{name}.{key}" if name else str(key))
    elif isinstance(value, str) and without_secrets(value) != value:
        raise InputError(f"config: {name}: holds a login or a token, which would be written into frames; leave it out")


def _one_form_of_tasks(layer: Mapping[str, Any]) -> Mapping[str, Any]:
    """`initial` or `increment` replaces the `n_tasks` of the layers below, and the other way round."""
    scenario = layer.get("scenario")
    if not isinstance(scenario, Mapping):
        return layer
    given = {key for key, value in scenario.items() if value}
    if given & {"initial", "increment"}:
        return {**layer, "scenario": {"n_tasks": None, **scenario}}
    if "n_tasks" in given:
        return {**layer, "scenario": {"initial": None, "increment": None, **scenario}}
    return layer


def _canonical_name(info: MethodInfo, merged: Mapping[str, Any]) -> str:
    """`er` with `fd: memory` is `er_fdm`: the name follows the fields, so that equal runs have equal names."""
    adapter = _field(merged, "adapter.name")
    suffix = f"+{adapter}" if adapter in ADAPTERS else ""
    telling = telling_fields(info)
    for other in family_of(info):
        if all(_field(merged, key) == other.defaults[key] for key in telling):
            return other.name + suffix
    return info.name + suffix


def _field(merged: Mapping[str, Any], dotted: str) -> Any:
    """A field of nested mappings, None if it is not there."""
    name, _, key = dotted.partition(".")
    value = merged.get(name)
    return value if not key else value.get(key) if isinstance(value, Mapping) else None


def _merge(into: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def error_line(error: ValidationError, keys: Sequence[str], *prefix: str) -> str:
    """The first thing pydantic complains of, in one line; `keys` are the names that could have been meant."""
    first = error.errors()[0]
    # Union types add their own names to the location; a field path has at most two parts.
    path = [*prefix, *(str(part) for part in first["loc"])][:2]
    dotted = ".".join(path)
    if first["type"] == "extra_forbidden":
        near = nearest(dotted, keys) or nearest(path[-1], [key.split(".")[-1] for key in keys])
        return f"unknown key {dotted!r}{near}"
    message = first["msg"].removeprefix("Value error, ")
    return f"{dotted}: {message} (got {first['input']!r})" if dotted else message
