"""The configuration of one run: frozen, typed, strict, merged from layers.

Every field states from which task on it can matter: `keyed_from(1)`, `keyed_from(2)` or `not_keyed()` (see `keys.py`).
A method may have a section of its own besides those of this file (`builtin.py`); a config holds only its method's.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    Field,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo

from cl2r.config.methods import ADAPTERS, HEAD_SWITCHES, METHODS, OWN_FIELDS, method_info, sections
from cl2r.config.section import Section, first_task, keyed_from, not_keyed
from cl2r.errors import InputError, nearest

LambdaRule = Literal["new_over_old", "old_over_new", "total_over_new", "const"]


class DataConfig(Section):
    """The images. The key of a link holds the fingerprint of the pixels instead of these fields."""

    name: Annotated[str, not_keyed()] = "icons"
    root: Annotated[str | None, not_keyed()] = None
    """The folder of the data sets; None: $CL2R_DATA, or `data`."""
    loaders: Annotated[int, not_keyed(ge=0, le=256)] = 4
    """Processes that decode images if the set is too large for memory; 0: the training process itself."""
    size: Annotated[int, not_keyed(ge=8)] = 32
    channels: Annotated[Literal[1, 3], not_keyed()] = 3


class ScenarioConfig(Section):
    """Which classes belong to which task. The key of a link holds the resulting class lists instead of these fields."""

    n_tasks: Annotated[int | None, not_keyed(ge=1)] = 5
    initial: Annotated[int | None, not_keyed(ge=1)] = None
    increment: Annotated[int | None, not_keyed(ge=1)] = None
    class_order: Annotated[Literal["seeded", "identity"], not_keyed()] = "seeded"
    stop_after: Annotated[int | None, not_keyed(ge=1)] = None
    """Train only this many tasks of the chain; a full run reuses their links."""


class BackboneConfig(Section):
    """b(x)."""

    name: Annotated[str, keyed_from(1)] = "resnet32"
    """One of `cl2r.backbones.BUILT_IN`, or one that an installed package adds; checked when a run is planned."""
    last_relu: Annotated[bool, keyed_from(1)] = True
    """False: b(x) is signed, as in LUCIR and PODNet."""


class HeadConfig(Section):
    """From b(x) to φ(x) and to the logits."""

    centre: Annotated[bool, keyed_from(1)] = False
    """Batch norm of b(x), without scale and shift: removes the part that all images share."""
    projection: Annotated[Literal["linear", "mlp", "none"], keyed_from(1)] = "linear"
    k_max: Annotated[int | None, not_keyed(ge=2)] = None
    """Outputs reserved for all future classes; None: the classes of the data set. Its resolved value is keyed."""
    bias: Annotated[bool, keyed_from(1)] = False
    """Whether a linear classifier has a bias. Methods that are published with one set it; ER and HOC have none."""
    preallocate: Annotated[bool, keyed_from(1)] = False
    """Trainable classifier: softmax over all K outputs from task 1 on, instead of over the classes seen."""
    mask_unseen: Annotated[bool, keyed_from(1)] = False
    """Fixed (or preallocated) classifier: softmax over the classes seen only."""


class SimplexConfig(Section):
    """The d-Simplex fixed classifier."""

    scale: Annotated[Annotated[float, Field(gt=0)] | Literal["legacy"], keyed_from(1)] = 1.0


class MethodConfig(Section):
    """Classifier and distillation. `classifier` and `fd` follow from `name`."""

    name: Annotated[str, not_keyed()] = "cl2r"
    budget: Annotated[Literal["cl2r", "native"], not_keyed()] = "cl2r"
    """The schedule: that of the preset, the same for every method, or that of the method's own publication."""
    classifier: Annotated[Literal["trainable", "fixed"], keyed_from(1)]
    fd: Annotated[Literal["none", "all", "memory"], keyed_from(2)]
    lambda_base: Annotated[float, keyed_from(2, ge=0)] = 5.0
    """Weight of FD before the rule; 0: no FD."""
    lambda_rule: Annotated[LambdaRule, keyed_from(2)] = "new_over_old"
    """λ_t = λ_base · √(k_n/k_0), √(k_0/k_n), √(N_t/k_n) or 1."""
    fd_when_no_memory: Annotated[Literal["skip", "on_new"], keyed_from(2)] = "skip"
    """Without memory: no FD, or FD on all rows."""


class MemoryConfig(Section):
    """The episodic memory M_t."""

    per_class: Annotated[int, keyed_from(2, ge=0, lt=2**31)] = 20
    """Images of every class."""
    selection: Annotated[Literal["random", "herding"], keyed_from(2)] = "random"
    """herding: the images whose mean feature is nearest to the class's."""


class BatchConfig(Section):
    """How mini-batches are drawn from T_t = D_t ∪ M_t."""

    size: Annotated[int, keyed_from(1, ge=2, le=2**20)] = 128
    batching: Annotated[Literal["balanced", "natural"], keyed_from(2)] = "balanced"


class OptimConfig(Section):
    """SGD; the schedule restarts at every task. Milestones count epochs from 0."""

    epochs: Annotated[int, keyed_from(1, ge=1)] = 70
    lr: Annotated[float, keyed_from(1, ge=0)] = 0.1
    lr_later: Annotated[float | None, keyed_from(2, ge=0)] = None
    """Learning rate of tasks 2..T; None: the same."""
    momentum: Annotated[float, keyed_from(1, ge=0, lt=1)] = 0.9
    weight_decay: Annotated[float, keyed_from(1, ge=0)] = 2e-4
    milestones: Annotated[tuple[Annotated[int, Field(ge=0)], ...], keyed_from(1)] = (50, 64)
    gamma: Annotated[float, keyed_from(1, gt=0, le=1)] = 0.1
    schedule: Annotated[Literal["steps", "cosine"], keyed_from(1)] = "steps"
    """steps: × gamma at the milestones; cosine: from lr to 0 over the epochs, without milestones."""
    precision: Annotated[Literal["fp32", "bf16"], keyed_from(1)] = "fp32"
    """bf16: autocast of forward and backward; the weights stay fp32."""
    compile: Annotated[bool, keyed_from(1)] = False
    """torch.compile of backbones: faster steps after a minute of compiling; see `cl2r calibrate`."""


class AugmentConfig(Section):
    """Random crop and horizontal flip."""

    crop: Annotated[Literal["padded", "resized"], keyed_from(1)] = "padded"
    """padded: after zero padding; resized: 8 to 100 % of the image, sides 3:4 to 4:3, scaled to full size."""
    padding: Annotated[int, keyed_from(1, ge=0, le=128)] = 4
    flip: Annotated[bool, keyed_from(1)] = True


class AdapterConfig(Section):
    """A map of new queries into an old model's space, fitted to stored features; no model depends on it."""

    name: Annotated[str, not_keyed()] = "none"
    """none, or one of `cl2r methods`."""
    ridge: Annotated[float, not_keyed(gt=0)] = 0.1
    """aligner: pull of the map to the identity, in multiples of the mean eigenvalue of AᵀA."""
    share: Annotated[float, not_keyed(ge=0, le=1)] = 0.5
    """slerp: how far from the rotated new query to the old model's query."""
    rank: Annotated[int, not_keyed(ge=1)] = 32
    """low_rank: rank of the affine map's matrix."""
    width: Annotated[int, not_keyed(ge=1)] = 128
    """residual_mlp: hidden units."""
    scaling: Annotated[bool, not_keyed()] = False
    """low_rank, residual_mlp: also one factor for every dimension of the result."""
    orthogonality: Annotated[float, not_keyed(ge=0)] = 5.0
    """orthogonal: threshold of ‖WWᵀ − I‖. That of W = 0 is √d, 9.9 for 99 dimensions: the default is half of it."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name != "none" and name not in ADAPTERS:
            raise ValueError(f"no such adapter{nearest(name, ADAPTERS)}; choose none or one of: {ADAPTERS}")
        return name


class EvalConfig(Section):
    """Pairs and statistics. Links store the features of all open images, so few of these fields change a link."""

    metric: Annotated[Literal["accuracy", "tar"], not_keyed()] = "accuracy"
    """tar: the true accept rate at every `far`; AC, BC and FC use the first."""
    far: Annotated[tuple[Annotated[float, Field(gt=0, lt=1)], ...], not_keyed(min_length=1)] = (1e-2, 1e-1, 1e-4)
    positives: Annotated[int, not_keyed(ge=10)] = 3000
    negatives: Annotated[int, not_keyed(ge=10)] = 3000
    folds: Annotated[int, not_keyed(ge=2)] = 10
    order: Annotated[Literal["stratified", "official_order"], not_keyed()] = "stratified"
    """official_order: pairs and folds as the released code draws them, which is wrong (PAPER.md, row 13)."""
    thresholds: Annotated[Literal["exact", "grid"], not_keyed()] = "exact"
    """grid: 0 to 4 in steps of 0.001, as in the released code."""
    normalise: Annotated[Literal["training", "own"], keyed_from(1)] = "training"
    """Mean and deviation for open images: those of the training images or, as in the released code, their own."""
    features: Annotated[Literal["float32", "float16"], keyed_from(1)] = "float32"
    """How links store features: float16 takes half the space and rounds to 11 bits."""
    pairs_seed: Annotated[int, not_keyed(ge=0, lt=2**63)] = 0
    tuning_share: Annotated[float, not_keyed(ge=0, lt=1)] = 0.5
    """Share of the open images that settings are chosen on; the others are reported. 0: all are reported."""
    split: Annotated[Literal["images", "classes"], not_keyed()] = "images"
    """images: every open class is split by its images; classes: every open class belongs to one side as a whole."""
    average_precision: Annotated[bool, not_keyed()] = False
    """Also rank the whole gallery for every query: the `matrix` frame then has mAP beside recall@1."""
    ties: Annotated[bool, not_keyed()] = False
    bootstrap: Annotated[int, not_keyed(ge=0, le=100_000)] = 1000


class Config(Section):
    """Everything about one run."""

    seed: Annotated[int, keyed_from(1, ge=0, lt=2**63)] = 0
    threads: Annotated[int | None, not_keyed(ge=1, le=1024)] = None
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
    """The section of the method; written and read under the section's own name."""

    def __init__(self, *values: Any, **fields: Any) -> None:
        """Raise InputError, one line that names the field, for bad input."""
        from cl2r.config.layers import error_line

        if values:
            raise InputError("Config: give fields by name, e.g. Config(seed=1, method=...)")
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise InputError(f"Config: {error_line(error, field_keys())}") from error

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # `model_validate` does not call it

    @model_validator(mode="before")
    @classmethod
    def _take_options(cls, values: Any) -> Any:
        """Check the sections of all methods and keep that of the method."""
        if not isinstance(values, Mapping) or "options" in values:
            return values
        known, method = sections(), values.get("method", {})
        given = {name: kind.model_validate(values.get(name, {})) for name, kind in known.items()}
        name = method.get("name", "cl2r") if isinstance(method, Mapping) else getattr(method, "name", "cl2r")
        rest = {key: value for key, value in values.items() if key not in known}
        return {**rest, "options": given.get(method_info(str(name)).section)}

    @model_serializer(mode="wrap")
    def _name_options(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        plain: dict[str, Any] = handler(self)
        options = plain.pop("options")
        return plain if options is None else {**plain, method_info(self.method.name).section: options}

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        info = method_info(self.method.name)
        if self.head.projection == "none" and self.method.classifier == "fixed":
            need = "head.projection=none needs method.classifier=trainable: the d-Simplex has K-1 dimensions"
            raise ValueError(f"{need}; set head.projection=linear, or choose another method")
        if list(self.optim.milestones) != sorted(set(self.optim.milestones)):
            raise ValueError(f"optim.milestones: give ascending epochs, each once (got {list(self.optim.milestones)})")
        for name in HEAD_SWITCHES:
            if getattr(self.head, name) and name not in info.switches:
                able = ", ".join(other.name for other in METHODS.values() if name in other.switches)
                raise ValueError(f"head.{name}=true: {info.name} cannot; leave it out, or use one of {able}")
        if self.adapter.name != "none" and (info.maps_gallery or info.grows):
            fault = f"adapter.name={self.adapter.name}: {info.name} changes its feature space its own way"
            raise ValueError(f"{fault}; leave the adapter out")
        if self.eval.metric == "tar" and self.eval.thresholds == "grid":
            raise ValueError("eval.thresholds=grid is for eval.metric=accuracy; leave it out, or eval.metric=tar")
        if len(set(self.eval.far)) < len(self.eval.far):
            raise ValueError(f"eval.far: name each rate once (got {list(self.eval.far)})")
        if self.eval.order == "official_order" and (self.eval.metric != "accuracy" or self.eval.tuning_share > 0):
            raise ValueError("eval.order=official_order needs eval.metric=accuracy and eval.tuning_share=0; set both")
        given = {name: getattr(self.method, name.removeprefix("method.")) for name in OWN_FIELDS}
        for name, value in given.items():
            if value != info.defaults[name]:
                relatives = (other for other in METHODS.values() if other.family == info.family)
                meant = next((m.name for m in relatives if {n: m.defaults[n] for n in given} == given), None)
                hint = f"use --method {meant}" if meant else "leave it out"
                raise ValueError(f"{name}={value}: {info.name} has {name}={info.defaults[name]}; {hint}")
        return self


def fields(config: Config) -> dict[str, Any]:
    """Return all fields by dotted name."""
    flat: dict[str, Any] = {}
    for name, value in config.model_dump(mode="json").items():
        flat |= {f"{name}.{key}": entry for key, entry in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def scalar(value: Any) -> Any:
    """Return a config value as a cell of a frame."""
    return json.dumps(value) if isinstance(value, list) else value


def field_keys() -> list[str]:
    """Return every dotted field name."""
    return list(matters_from())


def matters_from() -> dict[str, int | None]:
    """Return for every dotted field the first task it can matter for, None if there is none."""
    return {dotted: first_task(info) for dotted, info in _field_infos().items()}


def field_types() -> dict[str, Any]:
    """Return the type of every dotted field."""
    return {dotted: info.annotation for dotted, info in _field_infos().items()}


def _field_infos() -> dict[str, FieldInfo]:
    table: dict[str, FieldInfo] = {}
    kinds = {name: info.annotation for name, info in Config.model_fields.items() if name != "options"}
    for name, kind in (kinds | sections()).items():
        if isinstance(kind, type) and issubclass(kind, Section):
            table |= {f"{name}.{key}": info for key, info in kind.model_fields.items()}
        else:
            table[name] = Config.model_fields[name]
    return table


def to_yaml(config: Config) -> str:
    """Return the config as YAML that `resolve` reads back."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
