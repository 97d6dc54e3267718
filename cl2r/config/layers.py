"""Merge layers (a preset, the defaults of a method, overrides) into a checked config.

The file of a run and the file of a study share one grammar. Both name their base under `preset`: the name of a preset,
another YAML file, or `none` for the built-in defaults of every field. Without it the base is the preset `icons`, except
for a whole config such as a run saves, which has no base. Sections of fields follow (`optim: {epochs: 3}`), and `set`
with the same fields by dotted name; both override the base. What a method brings overrides the base too, but yields to
the file's own fields. With `preset: none` the sections are the base themselves, as in a preset; `set` overrides them.
A study's file adds what varies (`STUDY_KEYS`).
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cl2r.config.methods import ADAPTERS, METHODS, OWN_FIELDS, sections, split_name
from cl2r.config.schema import Config, ScenarioConfig, field_keys, field_types
from cl2r.errors import InputError, nearest
from cl2r.runtime.logs import without_secrets
from cl2r.storage.documents import parse_yaml, yaml_mapping

CLASS_COUNTS = ("scenario.initial", "scenario.increment")
DEFAULT_PRESET = "icons"
NO_PRESET = "none"
STUDY_KEYS = ("seeds", "grid", "variants", "space", "search", "race")
"""Keys that only the file of a study has."""
WHOLE = {"data", "scenario", "backbone", "head", "method", "memory", "batches", "optim", "augment", "eval"}
"""Sections that every config saved by a run has."""


def presets() -> dict[str, Path]:
    """Return the presets of this package by name."""
    folder = Path(str(resources.files("cl2r") / "presets"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file. A `preset` that is a file beside it becomes the path of that file."""
    try:
        content = yaml_mapping(path.read_bytes(), path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from error
    base = content.get("preset")
    if isinstance(base, str) and base not in (NO_PRESET, *presets()) and (path.parent / base).is_file():
        content["preset"] = str(path.parent / base)
    return content


def read_layer(preset: str) -> dict[str, Any]:
    """Return the mapping in a preset, given by its name, or in the YAML file of a run, with its base as `preset`."""
    known = presets()
    if preset == NO_PRESET:
        return {}
    path = known.get(preset, Path(preset))
    if not path.is_file():
        there = f"presets: {', '.join(known)}; or give the path of a YAML file"
        raise InputError(f"no preset or file {preset!r}{nearest(preset, known)}; {there}")
    return with_base(read_yaml(path), str(path))


def with_base(layer: Mapping[str, Any], where: str = "config") -> dict[str, Any]:
    """Return the content of a run's file with its base as `preset`; a whole config has none. `where` names the file."""
    for key in STUDY_KEYS:
        if key in layer:
            raise InputError(f"{where}: the file of a study, because of {key!r}; start it with `cl2r study {where}`")
    base = layer.get("preset", DEFAULT_PRESET)
    if not isinstance(base, str):
        raise InputError(f"{where}: preset: give the name of a preset, a YAML file or {NO_PRESET} (got {base!r})")
    return dict(layer) if is_whole(layer) and "preset" not in layer else {**layer, "preset": base}


def is_whole(layer: Mapping[str, Any]) -> bool:
    """Return whether a layer is a config as a run saves it: only those set fields that follow from the method."""
    return layer.keys() >= WHOLE and all(_field(layer, key) is not None for key in OWN_FIELDS)


def preset_layers(preset: str, above: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the layers that a preset or the file of a run stands for: its base first, then its own.

    `above` are the files that lead to it; a file that is its own base is refused.
    """
    if Path(preset).resolve() in (Path(file).resolve() for file in above):
        raise InputError(
            f"{above[-1]}: preset: {preset} is built on this file; give another base, e.g. {DEFAULT_PRESET}"
        )
    base, own = _expand(read_layer(preset), [*above, preset])
    return [*base, *own]


def _expand(layer: Mapping[str, Any], above: Sequence[str] = ()) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the layers of the base that a layer names, and its own; a layer without a base is one."""
    if not isinstance(layer, Mapping):
        raise InputError(f"{above[-1] if above else 'config'}: expected a mapping, e.g. `optim: {{epochs: 3}}`")
    own = dict(layer)
    base, settings = own.pop("preset", NO_PRESET), own.pop("set", {})
    if not isinstance(settings, Mapping):
        raise InputError(f"{above[-1] if above else 'config'}: set: give fields by name, e.g. {{optim.epochs: 3}}")
    dotted = [from_dotted(str(name), value) for name, value in settings.items()]
    return ([own], dotted) if base == NO_PRESET else (preset_layers(base, above), [own, *dotted])


def describe_preset(preset: str) -> str:
    """Return a preset or file and what it is built on: `preset icons`, `my.yaml on preset icons`."""
    if preset == NO_PRESET:
        return "the built-in defaults"
    if preset in presets():
        return f"preset {preset}"
    base = read_layer(preset).get("preset")
    return f"{preset}, a whole config" if base is None else f"{preset} on {describe_preset(base)}"


def override(text: str) -> dict[str, Any]:
    """Return `a.b=value` as a nested mapping; the value is read as YAML."""
    dotted, equals, value = text.partition("=")
    if not equals or not dotted.strip():
        raise InputError(f"--set {text!r}: expected KEY=VALUE, e.g. --set method.lambda_base=3")
    quoted = "quote it, e.g. --set 'optim.milestones=[3, 9]'"
    return from_dotted(dotted.strip(), parse_yaml(value, f"--set {text[:100]!r}", quoted))


def from_dotted(dotted: str, value: Any) -> dict[str, Any]:
    """Return `a.b` and a value as a nested mapping."""
    for key in reversed(dotted.split(".")):
        value = {key: value}
    return dict(value)


def resolve(layers: Iterable[Mapping[str, Any]], base: int | None = None) -> Config:
    """Merge layers (later ones win) into a checked config; raise InputError for bad input.

    The first `base` layers are the preset. By default it is the base that the first layer names, or this layer itself
    if it names none. The requested method's defaults override the preset, except for the layers from which on it names
    that method; so does its native budget, unless the preset asks for that too. Explicit overrides always win.
    """
    every = [*layers] or [{}]
    chain, own = (every[:base], []) if base else _expand(every[0])
    overrides = [*own, *every[base or 1 :]]
    given = merge_layers([*chain, *overrides])
    chain = _split_for(_field(given, "data.name"), chain)
    preset, given = merge_layers(chain), merge_layers([*chain, *overrides])
    named, requested = _field(preset, "method.name"), _field(given, "method.name")
    name, adapter = split_name(str(requested or "cl2r"))
    info, place = METHODS[name], len(chain)
    if str(named or name).partition("+")[0] != name and any(_field(preset, key) for key in OWN_FIELDS):
        other = f"start from a preset instead, e.g. {DEFAULT_PRESET}"
        raise InputError(f"config: method.name={requested}: the preset is a saved config of {named}; {other}")
    while place and _field(merge_layers(chain[:place]), "method.name") == requested:
        place -= 1  # this layer was written for the method
    brought = [_nested(info.defaults), {"adapter": {"name": adapter}}]
    above = list[dict[str, Any]]()
    if _field(given, "method.budget") == "native":
        if info.native is None:
            raise InputError(f"method.budget=native: no schedule of {info.name} is known; leave out method.budget")
        meant = named == requested and _field(preset, "method.budget") == "native"
        (brought if meant else above).append(_nested(info.native))
    merged = merge_layers([*chain[:place], *brought, *chain[place:], *above, *overrides])
    adapter = _field(merged, "adapter.name")
    merged["method"]["name"] = f"{name}+{adapter}" if isinstance(adapter, str) and adapter in ADAPTERS else name
    _check(merged)
    try:
        return Config.model_validate(merged)
    except ValidationError as error:
        raise InputError(f"config: {error_line(error, field_keys())}") from error


def _split_for(data: Any, chain: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the layers of a preset for this data set.

    Numbers of classes suit the data they were written for. Other data is split into equal tasks, unless a later layer
    says how.
    """
    places = [place for place, layer in enumerate(chain, 1) if any(_field(layer, key) for key in CLASS_COUNTS)]
    if not places:
        return list(chain)
    last = places[-1]
    own = _field(merge_layers(chain[:last]), "data.name")
    if own == data or (data and _absolute(own) == _absolute(data)):  # a study makes paths absolute
        return list(chain)
    return [*chain[:last], {"scenario": {"n_tasks": ScenarioConfig().n_tasks}}, *chain[last:]]


def _absolute(data: Any) -> Any:
    return Path(data).expanduser().absolute() if isinstance(data, str) else data  # other values are refused later


def merge_layers(layers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one layer that sets what all of them set; later ones win."""
    merged: dict[str, Any] = {}
    for layer in layers:
        if not isinstance(layer.get("method", {}), Mapping):
            raise InputError(f"config: method: give a mapping of fields, e.g. {{name: er}} (got {layer['method']!r})")
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
            raise InputError(f"config: {dotted}: not a yes-or-no field; give a number or a name (got {value})")
    if "options" in merged:
        raise InputError("config: unknown key 'options': give a method's section by the name that `cl2r methods` shows")
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
    dotted, kind = ".".join(path), first["type"]
    if kind == "extra_forbidden":
        return unknown_key(dotted, keys)
    if kind == "missing":
        return f"{dotted}: missing; give it, it has no default"
    message = first["msg"].removeprefix("Value error, ")
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        own = ", ".join(key.partition(".")[2] for key in keys if key.startswith(f"{dotted}."))
        message = f"give a mapping of its fields: {own}" if own else "give a mapping"
    return f"{dotted}: {message} (got {first['input']!r})" if dotted else message


def unknown_key(dotted: str, keys: Sequence[str]) -> str:
    """Return that a key is unknown, with the one that was probably meant, else with those there are in its place."""
    section, _, last = dotted.rpartition(".")
    own = [key for key in keys if section and key.startswith(f"{section}.")]
    elsewhere = [key for key in keys if key.rpartition(".")[2] == last]
    if own:
        near = nearest(dotted, own) if nearest(last, [key.rpartition(".")[2] for key in own]) else ""
    else:
        near = nearest(dotted, keys) or nearest(last, [key.rpartition(".")[2] for key in keys])
    if near or elsewhere:
        return f"unknown key {dotted!r}{near or nearest(elsewhere[0], elsewhere)}"
    own = own or list(dict.fromkeys(key.split(".")[0] for key in keys))
    return f"unknown key {dotted!r}; there are {', '.join(own)}"
