"""The configuration of one run: frozen, typed, strict, merged from layers.

Every field says from which task on it can matter: `from_task(1)`, `from_task(2)` or `never()` (see `link_keys`). Beside
the sections of this file a method may have one of its own (`cl2r/methods/options.py`); a run keeps its method's only.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import (
    Field,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo

from cl2r.errors import InputError, nearest
from cl2r.methods.catalog import ABLATION_CELLS, METHODS, MethodInfo, method_info, sections, split_name
from cl2r.section import Section, first_task, from_task, never

Own = TypeVar("Own", bound=Section)


class DataConfig(Section):
    """Which images. The key of a link holds the fingerprint of the pixels, not these fields."""

    name: Annotated[str, never()] = "icons"
    size: Annotated[int, never(ge=8)] = 32
    channels: Annotated[Literal[1, 3], never()] = 3


class ScenarioConfig(Section):
    """Which classes come in which task. The key of a link holds the resulting class lists, not these fields."""

    n_tasks: Annotated[int | None, never(ge=1)] = 5
    initial: Annotated[int | None, never(ge=1)] = None
    increment: Annotated[int | None, never(ge=1)] = None
    class_order: Annotated[Literal["seeded", "identity"], never()] = "seeded"
    stop_after: Annotated[int | None, never(ge=1)] = None
    """Train only the first so many of the tasks: a cheap look at a long chain, whose links a full run reuses."""


class BackboneConfig(Section):
    """b(x)."""

    name: Annotated[Literal["resnet8s", "resnet20", "resnet32"], from_task(1)] = "resnet32"
    last_relu: Annotated[bool, from_task(1)] = True
    """False: b(x) is signed, as in LUCIR and PODNet."""


class HeadConfig(Section):
    """From b(x) to φ(x) and to the logits."""

    centre: Annotated[bool, from_task(1)] = False
    """Batch norm (without scale and shift of its own) of b(x): takes out the part that all images share."""
    projection: Annotated[Literal["linear", "mlp", "none"], from_task(1)] = "linear"
    k_max: Annotated[int | None, never(ge=2)] = None
    """Outputs reserved for all classes ever to come; None: the classes of the data set. Its resolved value is keyed."""
    preallocate: Annotated[bool, from_task(1)] = False
    """Trainable classifier: softmax over all K outputs from task 1 on, instead of the classes seen."""
    mask_unseen: Annotated[bool, from_task(1)] = False
    """Fixed (or preallocated) classifier: softmax over the classes seen only."""


class SimplexConfig(Section):
    """The d-Simplex fixed classifier."""

    scale: Annotated[Annotated[float, Field(gt=0)] | Literal["legacy"], from_task(1)] = 1.0


class MethodConfig(Section):
    """Classifier and distillation. `name` fixes `classifier` and `fd` unless they are given."""

    name: Annotated[str, never()] = "cl2r"
    budget: Annotated[Literal["cl2r", "native"], never()] = "cl2r"
    """Whose schedule: the preset's, the same for every method; or that of the method's own publication."""
    classifier: Annotated[Literal["trainable", "fixed"], from_task(1)]
    fd: Annotated[Literal["none", "all", "memory"], from_task(2)]
    lambda_base: Annotated[float, from_task(2, ge=0)] = 5.0
    lambda_rule: Annotated[Literal["new_over_old", "old_over_new", "total_over_new", "const"], from_task(2)] = (
        "new_over_old"
    )
    fd_when_no_memory: Annotated[Literal["skip", "on_new"], from_task(2)] = "skip"


class MemoryConfig(Section):
    """The episodic memory M_t."""

    per_class: Annotated[int, from_task(2, ge=0, lt=2**31)] = 20
    selection: Annotated[Literal["random", "herding"], from_task(2)] = "random"


class BatchConfig(Section):
    """How mini-batches are drawn from T_t = D_t ∪ M_t."""

    size: Annotated[int, from_task(1, ge=2, le=2**20)] = 128
    batching: Annotated[Literal["balanced", "natural"], from_task(2)] = "balanced"


class OptimConfig(Section):
    """SGD; the schedule restarts at every task. Milestones count epochs from 0."""

    epochs: Annotated[int, from_task(1, ge=1)] = 70
    lr: Annotated[float, from_task(1, ge=0)] = 0.1
    lr_later: Annotated[float | None, from_task(2, ge=0)] = None
    """Learning rate of tasks 2..T; None: the same."""
    momentum: Annotated[float, from_task(1, ge=0, lt=1)] = 0.9
    weight_decay: Annotated[float, from_task(1, ge=0)] = 2e-4
    milestones: Annotated[tuple[Annotated[int, Field(ge=0)], ...], from_task(1)] = (50, 64)
    gamma: Annotated[float, from_task(1, gt=0, le=1)] = 0.1
    schedule: Annotated[Literal["steps", "cosine"], from_task(1)] = "steps"
    """steps: × gamma at the milestones; cosine: from lr to 0 over the epochs, whatever the milestones."""
    precision: Annotated[Literal["fp32", "bf16"], from_task(1)] = "fp32"
    """bf16: autocast of forward and backward; the weights stay fp32."""


class AugmentConfig(Section):
    """Random crop after zero padding, and horizontal flip."""

    padding: Annotated[int, from_task(1, ge=0, le=128)] = 4
    flip: Annotated[bool, from_task(1)] = True


class AdapterConfig(Section):
    """A map of new queries into an old model's space, fitted to stored features; no model depends on it."""

    name: Annotated[Literal["none", "aligner", "procrustes", "slerp", "query_drift"], never()] = "none"
    ridge: Annotated[float, never(gt=0)] = 0.1
    """aligner: pull of the map to the identity, in multiples of the mean eigenvalue of AᵀA."""
    share: Annotated[float, never(ge=0, le=1)] = 0.5
    """slerp: how far from the rotated new query to the old model's query."""


class EvalConfig(Section):
    """Pairs and statistics. Features of all open images are stored, so none of this touches a link."""

    positives: Annotated[int, never(ge=10)] = 3000
    negatives: Annotated[int, never(ge=10)] = 3000
    folds: Annotated[int, never(ge=2)] = 10
    pairs_seed: Annotated[int, never(ge=0, lt=2**63)] = 0
    tuning_share: Annotated[float, never(ge=0, lt=1)] = 0.5
    ties: Annotated[bool, never()] = False
    bootstrap: Annotated[int, never(ge=0, le=100_000)] = 1000


class Config(Section):
    """Everything about one run."""

    seed: Annotated[int, from_task(1, ge=0, lt=2**63)] = 0
    threads: Annotated[int | None, never(ge=1, le=1024)] = None
    data: DataConfig = DataConfig()
    scenario: ScenarioConfig = ScenarioConfig()
    backbone: BackboneConfig = BackboneConfig()
    head: HeadConfig = HeadConfig()
    simplex: SimplexConfig = SimplexConfig()
    method: MethodConfig
    memory: MemoryConfig = MemoryConfig()
    batches: BatchConfig = BatchConfig()
    optim: OptimConfig = OptimConfig()
    augment: AugmentConfig = AugmentConfig()
    adapter: AdapterConfig = AdapterConfig()
    eval: EvalConfig = EvalConfig()
    options: SerializeAsAny[Section] | None = None
    """The section of the method; written and read under that section's own name."""

    @model_validator(mode="before")
    @classmethod
    def _take_options(cls, values: Any) -> Any:
        """The sections of all methods are checked, that of the method is kept."""
        if not isinstance(values, Mapping) or "options" in values:
            return values
        known, method = sections(), values.get("method", {})
        given = {name: kind.model_validate(values.get(name, {})) for name, kind in known.items()}
        name = method.get("name", "cl2r") if isinstance(method, Mapping) else method.name
        rest = {key: value for key, value in values.items() if key not in known}
        return {**rest, "options": given.get(method_info(name).section)}

    @model_serializer(mode="wrap")
    def _name_options(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        plain: dict[str, Any] = handler(self)
        options = plain.pop("options")
        return plain if options is None else {**plain, method_info(self.method.name).section: options}

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        info = method_info(self.method.name)
        if self.head.projection == "none" and self.method.classifier == "fixed":
            raise ValueError("head.projection=none needs method.classifier=trainable: the d-Simplex has K-1 dimensions")
        if list(self.optim.milestones) != sorted(set(self.optim.milestones)):
            raise ValueError(f"optim.milestones must ascend, got {list(self.optim.milestones)}")
        if info.family != "rehearsal" and (self.head.preallocate or self.head.mask_unseen):
            raise ValueError(f"head.preallocate and head.mask_unseen are for {', '.join(ABLATION_CELLS)}")
        if self.adapter.name != "none" and (info.gallery or info.grows):
            raise ValueError(f"adapter.name={self.adapter.name}: {info.name} changes its feature space its own way")
        for key, value in {"classifier": self.method.classifier, "fd": self.method.fd}.items():
            choices = sorted({str(m.defaults[f"method.{key}"]) for m in family_of(info)})
            if value not in choices:
                raise ValueError(f"method.{key}={value}: {info.name} has {' or '.join(choices)}")
        return self

    def section(self, kind: type[Own]) -> Own:
        """The method's own section, as the type its class expects."""
        if not isinstance(self.options, kind):
            raise TypeError(f"{self.method.name} has no section {kind.__name__}")
        return self.options


def family_of(info: MethodInfo) -> list[MethodInfo]:
    """The methods that differ from it in config fields only."""
    return [other for other in METHODS.values() if other.family == info.family]


# ---------------------------------------------------------------- reading


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

    What the method brings lies above the preset, or below it if it is the preset that names the method; anything that
    is set explicitly after the preset wins.
    """
    preset, *rest = [*layers] or [{}]
    given = merge_layers([preset, *rest])
    name = str(given.get("method", {}).get("name", "cl2r"))
    base, adapter = split_name(name)
    brought = _brought(METHODS[base], str(given.get("method", {}).get("budget", "cl2r")))
    if adapter != "none":
        brought["adapter"] = {"name": adapter}
    means_it = preset.get("method", {}).get("name") == name or "name" not in given.get("method", {})
    merged = merge_layers([brought, preset, *rest] if means_it else [preset, brought, *rest])
    _refuse_yes_for_numbers(merged)
    merged["method"]["name"] = _canonical_name(METHODS[base], merged)
    _check_sections(merged)
    try:
        return Config.model_validate(merged)
    except ValidationError as error:
        raise InputError(f"config: {error_line(error, field_keys())}") from error


def _check_sections(merged: Mapping[str, Any]) -> None:
    """Sections of methods, also of those that are not run: a typing error is one all the same."""
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


def _brought(info: MethodInfo, budget: str) -> dict[str, Any]:
    """The fields that a method brings, as a layer."""
    layer: dict[str, Any] = {"method": {}}
    if budget == "native" and info.native is None:
        raise InputError(f"method.budget=native: no schedule of {info.name} was published")
    for dotted, value in {**info.defaults, **(info.native or {} if budget == "native" else {})}.items():
        _merge(layer, from_dotted(dotted, value))
    return layer


def _refuse_yes_for_numbers(merged: Mapping[str, Any]) -> None:
    """Pydantic would read `seed: true` as 1."""
    for dotted, info in _field_infos().items():
        value = _field(merged, dotted)
        if isinstance(value, bool) and info.annotation is not bool:
            raise InputError(f"config: {dotted}: not a yes-or-no field (got {value})")


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
    family = family_of(info)
    shared = set.intersection(*(set(other.defaults) for other in family))
    telling = [key for key in shared if len({str(other.defaults[key]) for other in family}) > 1]
    adapter = _field(merged, "adapter.name")
    suffix = f"+{adapter}" if adapter not in (None, "none") else ""
    for other in family:
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


# ---------------------------------------------------------------- fields


def fields(config: Config) -> dict[str, Any]:
    """All fields flat, by dotted name."""
    flat: dict[str, Any] = {}
    for name, value in config.model_dump(mode="json").items():
        flat |= {f"{name}.{key}": entry for key, entry in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def field_keys() -> list[str]:
    """Every dotted field name, e.g. for completion and for `did you mean`."""
    return list(matters_from())


def matters_from() -> dict[str, int | None]:
    """For every dotted field the first task it can matter for; None: never."""
    return {dotted: first_task(info) for dotted, info in _field_infos().items()}


def field_types() -> dict[str, Any]:
    """For every dotted field its type."""
    return {dotted: info.annotation for dotted, info in _field_infos().items()}


def _field_infos() -> dict[str, FieldInfo]:
    table: dict[str, FieldInfo] = {}
    for name, info in Config.model_fields.items():
        section = info.annotation
        if isinstance(section, type) and issubclass(section, Section):
            table |= {f"{name}.{key}": inner for key, inner in section.model_fields.items()}
        elif name != "options":
            table[name] = info
    for name, own in sections().items():
        table |= {f"{name}.{key}": inner for key, inner in own.model_fields.items()}
    return table


def to_yaml(config: Config) -> str:
    """The resolved config as YAML that `resolve` reads back."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
