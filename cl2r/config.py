"""The configuration of one run: frozen, typed, strict, merged from layers.

Every field says from which task on it can matter: `from_task(1)`, `from_task(2)` or `never()` (see `link_keys`). Beside
the sections of this file a method may have one of its own (`cl2r/methods/options.py`); a run keeps its method's only.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import (
    Field,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo

from cl2r.methods.catalog import (
    ABLATION_CELLS,
    family_of,
    method_info,
    sections,
)
from cl2r.section import Section, first_task, from_task, never

Own = TypeVar("Own", bound=Section)


class DataConfig(Section):
    """Which images. The key of a link holds the fingerprint of the pixels, not these fields."""

    name: Annotated[str, never()] = "icons"
    root: Annotated[str | None, never()] = None
    """Where benchmarks lie; None: $CL2R_DATA, or `data`."""
    loaders: Annotated[int, never(ge=0, le=256)] = 4
    """Processes that decode images of sets too large to be held in memory; 0: the training process itself."""
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

    name: Annotated[
        Literal["resnet8s", "resnet20", "resnet32", "resnet18_64", "resnet18_224", "resnet50_112"], from_task(1)
    ] = "resnet32"
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
    compile: Annotated[bool, from_task(1)] = False
    """torch.compile of backbones: faster steps after a minute of compiling; `cl2r calibrate` says whether that pays."""


class AugmentConfig(Section):
    """Random crop and horizontal flip."""

    crop: Annotated[Literal["padded", "resized"], from_task(1)] = "padded"
    """padded: after zero padding; resized: 8 to 100 % of the image, sides 3:4 to 4:3, scaled to full size."""
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
    """Pairs and statistics. Features of all open images are stored, so only `normalise` touches a link."""

    metric: Annotated[Literal["accuracy", "tar"], never()] = "accuracy"
    """tar: the true accept rate at every `far`; AC, BC and FC are those of the first."""
    far: Annotated[tuple[Annotated[float, Field(gt=0, lt=1)], ...], never(min_length=1)] = (1e-2, 1e-1, 1e-4)
    positives: Annotated[int, never(ge=10)] = 3000
    negatives: Annotated[int, never(ge=10)] = 3000
    folds: Annotated[int, never(ge=2)] = 10
    order: Annotated[Literal["stratified", "official_order"], never()] = "stratified"
    """official_order: pairs and folds as the released code draws them, which is wrong (PAPER.md, row 13)."""
    thresholds: Annotated[Literal["exact", "grid"], never()] = "exact"
    """grid: 0 to 4 in steps of 0.001, as in the released code."""
    normalise: Annotated[Literal["training", "own"], from_task(1)] = "training"
    """Mean and deviation for open images: those of the training images, or their own, as in the released code."""
    features: Annotated[Literal["float32", "float16"], from_task(1)] = "float32"
    """How links keep features: float16 halves them, and rounds them to 11 bits."""
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
        if self.eval.metric == "tar" and self.eval.thresholds == "grid":
            raise ValueError("eval.thresholds=grid is for eval.metric=accuracy")
        if len(set(self.eval.far)) < len(self.eval.far):
            raise ValueError(f"eval.far names a rate twice: {list(self.eval.far)}")
        if self.eval.order == "official_order" and (self.eval.metric != "accuracy" or self.eval.tuning_share > 0):
            raise ValueError("eval.order=official_order needs eval.metric=accuracy and eval.tuning_share=0")
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


def fields(config: Config) -> dict[str, Any]:
    """All fields flat, by dotted name."""
    flat: dict[str, Any] = {}
    for name, value in config.model_dump(mode="json").items():
        flat |= {f"{name}.{key}": entry for key, entry in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def scalar(value: Any) -> Any:
    """A config value as a cell of a frame."""
    return json.dumps(value) if isinstance(value, list) else value


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
