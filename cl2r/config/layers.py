"""Merge layers (a preset, the defaults of a method, overrides) into a checked config."""

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from cl2r.config.methods import ADAPTERS, METHODS, OWN_FIELDS, sections, split_name
from cl2r.config.schema import Config, ScenarioConfig, field_keys, field_types
from cl2r.errors import InputError, nearest
from cl2r.runtime.logs import without_secrets


def presets() -> dict[str, Path]:
    """Return the presets of this package by name."""
    folder = Path(str(resources.files("cl2r") / "presets"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def read_layer(preset: str) -> dict[str, Any]:
    """Return the mapping in a preset, given by its name or by the path of a YAML file."""
    known = presets()
    path = known.get(preset, Path(preset))
    if not path.is_file():
        raise InputError(f"no preset or file {preset!r}{nearest(preset, known)}; presets: {', '.join(known)}")
    try:
        layer = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise InputError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(layer, dict):
        raise InputError(f"{path}: expected a mapping")
    return layer


def override(text: str) -> dict[str, Any]:
    """Return `a.b=value` as a nested mapping; the value is read as YAML."""
    dotted, equals, value = text.partition("=")
    if not equals or not dotted.strip():
        raise InputError(f"--set {text!r}: expected KEY=VALUE, e.g. --set method.lambda_base=3")
    try:
        return from_dotted(dotted.strip(), yaml.safe_load(value))
    except yaml.YAMLError as error:
        raise InputError(f"--set {text!r}: the value is not valid YAML") from error


def from_dotted(dotted: str, value: Any) -> dict[str, Any]:
    """Return `a.b` and a value as a nested mapping."""
    for key in reversed(dotted.split(".")):
        value = {key: value}
    return dict(value)


def resolve(layers: Iterable[Mapping[str, Any]]) -> Config:
    """Merge layers (later ones win; the first is the preset) into a checked config; raise InputError for bad input.

    The requested method's defaults override the preset, unless the preset names that method; so does its native budget,
    unless the preset asks for that too. Explicit overrides always win.
    """
    preset, *overrides = [*layers] or [{}]
    given = merge_layers([preset, *overrides])
    named, requested = _field(preset, "method.name"), _field(given, "method.name")
    base, adapter = split_name(str(requested or "cl2r"))
    info, own = METHODS[base], named == requested
    if str(named or base).partition("+")[0] != base and any(_field(preset, key) for key in OWN_FIELDS):
        raise InputError(f"config: method.name={requested}: the preset is a saved config of {named}; give another one")
    counts = [_field(preset, "scenario.initial"), _field(preset, "scenario.increment")]
    if any(counts) and _field(given, "data.name") != _field(preset, "data.name"):
        # These counts suit the preset's data; other data is split into equal tasks, unless an override says how.
        overrides = [{"scenario": {"n_tasks": ScenarioConfig().n_tasks}}, *overrides]
    below, above = list[dict[str, Any]](), list[dict[str, Any]]()
    (below if own else above).extend([_nested(info.defaults), {"adapter": {"name": adapter}}])
    if _field(given, "method.budget") == "native":
        if info.native is None:
            raise InputError(f"method.budget=native: no schedule of {info.name} is known")
        (below if own and _field(preset, "method.budget") == "native" else above).append(_nested(info.native))
    merged = merge_layers([*below, preset, *above, *overrides])
    adapter = _field(merged, "adapter.name")
    merged["method"]["name"] = f"{base}+{adapter}" if adapter in ADAPTERS else base
    _check(merged)
    try:
        return Config.model_validate(merged)
    except ValidationError as error:
        raise InputError(f"config: {error_line(error, field_keys())}") from error


def merge_layers(layers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one layer that sets what all of them set; later ones win."""
    merged: dict[str, Any] = {}
    for layer in layers:
        if not isinstance(layer.get("method", {}), Mapping):
            raise InputError(f"config: method: expected a mapping of fields (got {layer['method']!r})")
        scenario = layer.get("scenario")
        if isinstance(scenario, Mapping):
            # `initial` or `increment` replaces the `n_tasks` of the layers below, and the other way round.
            set_here = {key for key, value in scenario.items() if value}
            if set_here & {"initial", "increment"}:
                layer = {**layer, "scenario": {"n_tasks": None, **scenario}}
            elif "n_tasks" in set_here:
                layer = {**layer, "scenario": {"initial": None, "increment": None, **scenario}}
        _merge(merged, layer)
    return merged


def _merge(into: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def _nested(dotted: Mapping[str, Any]) -> dict[str, Any]:
    return merge_layers(from_dotted(name, value) for name, value in dotted.items())


def _field(layer: Mapping[str, Any], dotted: str) -> Any:
    """Return a field of a layer, None if it is not set."""
    name, _, key = dotted.partition(".")
    value = layer.get(name)
    return value if not key else value.get(key) if isinstance(value, Mapping) else None


def _check(merged: Mapping[str, Any]) -> None:
    """Raise InputError for what pydantic would accept, and for mistakes in sections of methods that are not used."""
    for dotted, kind in field_types().items():
        value = _field(merged, dotted)
        if isinstance(value, bool) and kind is not bool:  # pydantic would read `seed: true` as 1
            raise InputError(f"config: {dotted}: not a yes-or-no field (got {value})")
    if "options" in merged:
        raise InputError("config: unknown key 'options': a method's section has the name that `cl2r methods` shows")
    for name, section in sections().items():
        try:
            section.model_validate(merged.get(name, {}))
        except ValidationError as error:
            raise InputError(f"config: {error_line(error, field_keys(), name)}") from error
    _refuse_secrets(merged)


def _refuse_secrets(value: Any, name: str = "") -> None:
    """Raise InputError for a login or token: configs are written into frames and reports."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            _refuse_secrets(entry, f"{name}.{key}" if name else str(key))
    elif isinstance(value, str) and without_secrets(value) != value:
        raise InputError(f"config: {name}: holds a login or a token, which would be written into frames; leave it out")


def error_line(error: ValidationError, keys: Sequence[str], *prefix: str) -> str:
    """Return the first validation error as one line; `keys` are the names that could have been meant."""
    first = error.errors()[0]
    # Union types add their own names to the location; a field path has at most two parts.
    path = [*prefix, *(str(part) for part in first["loc"])][:2]
    dotted = ".".join(path)
    if first["type"] == "extra_forbidden":
        near = nearest(dotted, keys) or nearest(path[-1], [key.split(".")[-1] for key in keys])
        return f"unknown key {dotted!r}{near}"
    message = first["msg"].removeprefix("Value error, ")
    got = f" (got {first['input']!r})" if dotted and first["type"] != "missing" else ""
    return f"{dotted}: {message}{got}" if dotted else message
