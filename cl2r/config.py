"""The configuration of one run: frozen, typed, strict; and the content key of every link of its chain.

Every field says from which task on it can matter: `from_task(1)`, `from_task(2)` or `never()`. The state after task t
is a pure function of the fields that matter up to t, so the key of link t hashes exactly those (see `link_keys`).
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from cl2r.errors import InputError, nearest
from cl2r.methods.catalog import METHODS

LINK_FORMAT = 2
"""Raise this when a change of the code changes what a link contains: old links are then trained again."""


def from_task(task: int, **limits: Any) -> FieldInfo:
    """A field that cannot change the model before `task`; `limits` are pydantic's (ge, gt, le...)."""
    info: FieldInfo = Field(json_schema_extra={"from_task": task}, **limits)
    return info


def never(**limits: Any) -> FieldInfo:
    """A field that no model depends on: how to evaluate, where to run."""
    info: FieldInfo = Field(json_schema_extra={"from_task": None}, **limits)
    return info


class Section(BaseModel):
    """Frozen, and refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


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
    precision: Annotated[Literal["fp32", "bf16"], from_task(1)] = "fp32"
    """bf16: autocast of forward and backward; the weights stay fp32."""


class AugmentConfig(Section):
    """Random crop after zero padding, and horizontal flip."""

    padding: Annotated[int, from_task(1, ge=0, le=128)] = 4
    flip: Annotated[bool, from_task(1)] = True


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
    eval: EvalConfig = EvalConfig()

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        if self.head.projection == "none" and self.method.classifier == "fixed":
            raise ValueError("head.projection=none needs method.classifier=trainable: the d-Simplex has K-1 dimensions")
        if list(self.optim.milestones) != sorted(set(self.optim.milestones)):
            raise ValueError(f"optim.milestones must ascend, got {list(self.optim.milestones)}")
        return self


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
    """Merge layers (later ones win) into a checked config."""
    merged = merge_layers(layers)
    _refuse_yes_for_numbers(merged)
    merged["method"]["name"] = _canonical_name(merged["method"])
    try:
        return Config.model_validate(merged)
    except ValidationError as error:
        raise InputError(f"config: {error_line(error, field_keys())}") from error


def merge_layers(layers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One layer that says what all of them say. A layer that names a method brings its defaults."""
    merged: dict[str, Any] = {"method": {"name": "cl2r", **METHODS["cl2r"].defaults}}
    for layer in layers:
        if not isinstance(layer.get("method", {}), Mapping):
            raise InputError(f"config: method: expected a mapping of fields (got {layer['method']!r})")
        _merge(merged, _one_form_of_tasks(_with_method_defaults(layer)))
    return merged


def _with_method_defaults(layer: Mapping[str, Any]) -> Mapping[str, Any]:
    method = layer.get("method")
    if not isinstance(method, Mapping) or "name" not in method:
        return layer
    name = str(method["name"])
    if name not in METHODS:
        raise InputError(f"method.name: no method {name!r}{nearest(name, METHODS)}; methods: {', '.join(METHODS)}")
    return {**layer, "method": {**METHODS[name].defaults, **method}}


def _refuse_yes_for_numbers(merged: Mapping[str, Any]) -> None:
    """Pydantic would read `seed: true` as 1."""
    for dotted, info in _field_infos().items():
        name, _, key = dotted.partition(".")
        value = merged.get(name)
        if key:
            value = value.get(key) if isinstance(value, Mapping) else None
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


def _canonical_name(method: Mapping[str, Any]) -> str:
    """`er` with `fd: memory` is `er_fdm`: the name follows the fields, so that equal runs have equal names."""
    name = str(method["name"])
    for info in METHODS.values():
        if info.family == METHODS[name].family and info.defaults.items() <= method.items():
            return info.name
    return name


def _merge(into: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def error_line(error: ValidationError, keys: Sequence[str]) -> str:
    """The first thing pydantic complains of, in one line; `keys` are the names that could have been meant."""
    first = error.errors()[0]
    # Union types add their own names to the location; a field path has at most two parts.
    path = [str(part) for part in first["loc"][:2]]
    dotted = ".".join(path)
    if first["type"] == "extra_forbidden":
        near = nearest(dotted, keys) or nearest(path[-1], [key.split(".")[-1] for key in keys])
        return f"unknown key {dotted!r}{near}"
    message = first["msg"].removeprefix("Value error, ")
    return f"{dotted}: {message} (got {first['input']!r})" if dotted else message


# ---------------------------------------------------------------- fields and keys


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
    return {dotted: _first_task(info) for dotted, info in _field_infos().items()}


def field_types() -> dict[str, Any]:
    """For every dotted field its type."""
    return {dotted: info.annotation for dotted, info in _field_infos().items()}


def _field_infos() -> dict[str, FieldInfo]:
    table: dict[str, FieldInfo] = {}
    for name, info in Config.model_fields.items():
        section = info.annotation
        if isinstance(section, type) and issubclass(section, Section):
            table |= {f"{name}.{key}": inner for key, inner in section.model_fields.items()}
        else:
            table[name] = info
    return table


def _first_task(info: FieldInfo) -> int | None:
    extra = info.json_schema_extra
    if not isinstance(extra, dict) or "from_task" not in extra:
        raise TypeError(f"config field {info!r} does not say from which task on it matters")
    task = extra["from_task"]
    return task if isinstance(task, int) else None


def link_keys(
    config: Config, fingerprint: str, classes_by_task: Sequence[Sequence[int]], num_outputs: int
) -> list[str]:
    """The content key of links 1..T: data, class lists so far, K, and every config field that matters so far."""
    values, off = fields(config), _switched_off(config)
    values["optim.milestones"] = [epoch for epoch in config.optim.milestones if epoch < config.optim.epochs]
    first = {name: since for name, since in matters_from().items() if since is not None and name not in off}
    family = METHODS[config.method.name].family
    keys = []
    for task in range(1, len(classes_by_task) + 1):
        content = {
            "format": LINK_FORMAT,
            "family": family,
            "data": fingerprint,
            "outputs": num_outputs,
            "classes": [list(map(int, classes)) for classes in classes_by_task[:task]],
            "fields": {name: values[name] for name, since in first.items() if since <= task},
        }
        keys.append(hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32])
    return keys


def _switched_off(config: Config) -> set[str]:
    """Fields that other fields keep from mattering at all: a sweep over λ trains ER once."""
    off: set[str] = set()
    if config.method.classifier == "fixed":
        off |= {"head.preallocate"}
    else:
        off |= {"simplex.scale"} if config.head.preallocate else {"simplex.scale", "head.mask_unseen"}
    if config.method.fd == "none":
        off |= {"method.lambda_base", "method.lambda_rule", "method.fd_when_no_memory"}
    return off


def to_yaml(config: Config) -> str:
    """The resolved config as YAML that `resolve` reads back."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
