"""The catalogue of methods: those of this package and of installed ones, by name. Needs no torch.

Other packages add methods through the entry point group `cl2r.methods` (see methods/README.md). A name may carry an
adapter of stored features after a plus sign, `er+procrustes`; other packages add those through `cl2r.adapters`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cl2r.config.section import Section, first_task
from cl2r.errors import InputError, nearest
from cl2r.runtime.plugins import Plugins

OWN_FIELDS = ("method.classifier", "method.fd")
"""Fields that follow from the method's name; every method has defaults for them."""
HEAD_SWITCHES = ("bias", "preallocate", "mask_unseen")
"""Fields of `head` that only some methods can follow."""
RESERVED = {
    *("seed", "threads", "data", "scenario", "backbone", "head", "simplex", "method"),
    *("memory", "batches", "optim", "augment", "adapter", "eval", "options"),
}
"""Names that sections of every config have."""


@dataclass(frozen=True)
class MethodInfo:
    """Facts about a method: one row of `cl2r methods`."""

    name: str
    title: str
    paper: str
    build: str
    """`module:Class` of its Method."""
    carries: str
    feature: str
    family: str = ""
    """Methods of one family share one class and differ in config fields; the name by default."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Config fields by dotted name that the method sets; explicit settings win over them."""
    native: Mapping[str, Any] | None = None
    """Fields that `method.budget=native` sets in addition: the schedule of its publication. None: unknown."""
    options: type[Section] | None = None
    """The config section of fields that only this family has."""
    section: str = ""
    """The name of that section; the family's by default."""
    first_task: str | None = None
    """The family whose first task is the same, bit for bit: the two share their first links."""
    memory: Literal["quota", "all"] = "quota"
    """M_t: some images per class, or all images seen."""
    grows: bool = False
    """Whether φ_t has more dimensions than φ_{t-1}; its queries are then cut to the gallery's dimensions."""
    maps_gallery: bool = False
    """Whether the stored gallery is mapped to the new model's space at every update."""
    switches: tuple[str, ...] = ()
    """Which of `HEAD_SWITCHES` the method follows; configs that turn on another one are refused."""
    version: str = ""
    """Part of the key of every link; change it when the method computes something else."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "family", self.family or self.name)
        object.__setattr__(self, "section", self.section or self.family)


@dataclass(frozen=True)
class AdapterInfo:
    """A map of new queries into an old model's space, fitted to stored features only.

    An installed package adds one through the entry point group `cl2r.adapters`. It has to give `build` and both costs;
    those of the built-in adapters are in `cl2r/adapters.py`.
    """

    name: str
    title: str
    paper: str
    build: str = ""
    """`module:function` of (Support, AdapterConfig) that returns the map of one step."""
    flops: Callable[[int], float] | None = None
    """FLOPs to map one query of this many dimensions by one step."""
    numbers: Callable[[int], int] | None = None
    """Numbers that the map of one step stores, for features of this many dimensions."""


_ALIGNER = "a linear map of new queries to the old space, least squares with a pull to the identity"
_SLERP = "procrustes, then the point on the sphere between that and the old model's own query"
_DRIFT_ADAPTER = "Vejendla, Drift-Adapter, EMNLP 2025"
_ORTHOGONAL = "Ricci et al., λ-Orthogonality Regularization for Compatible Representation Learning, NeurIPS 2025"
_ADAPTERS: dict[str, AdapterInfo] = {
    name: AdapterInfo(name, title, paper)
    for name, title, paper in (
        ("aligner", _ALIGNER, "after Hu et al., Learning Backward Compatible Embeddings, KDD 2022"),
        ("procrustes", "the best rotation of new queries to the old space", "Schönemann, Psychometrika 1966"),
        ("slerp", _SLERP, "Shoemake, SIGGRAPH 1985, for the interpolation"),
        ("query_drift", "the mean drift subtracted from new queries", "arXiv:2506.00037"),
        ("low_rank", "an affine map of low rank", _DRIFT_ADAPTER),
        ("residual_mlp", "new queries plus what a network with one hidden layer makes of them", _DRIFT_ADAPTER),
        ("orthogonal", "an affine map that may leave the orthogonal ones up to a threshold", _ORTHOGONAL),
    )
}


def _adapter_problem(info: object, known: Mapping[str, AdapterInfo]) -> str | None:
    """Return why an adapter cannot be added to the known ones, None if it can."""
    if not isinstance(info, AdapterInfo):
        return "it is no AdapterInfo"
    if info.name in known or info.name == "none":
        return f"there is an adapter {info.name!r} already"
    if "+" in info.name:
        return "its name has a plus sign"
    if not info.build or info.flops is None or info.numbers is None:
        return "it has to give build, flops and numbers"
    return None


ADAPTERS = Plugins("cl2r.adapters", _ADAPTERS.copy, _adapter_problem)


def _problem(info: object, known: Mapping[str, MethodInfo]) -> str | None:
    """Return why a method cannot be added to the known ones, None if it can."""
    if not isinstance(info, MethodInfo):
        return "it is no MethodInfo"
    if info.name in known:
        return f"there is a method {info.name!r} already"
    if "+" in info.name:
        return "its name has a plus sign"
    if missing := [name for name in OWN_FIELDS if name not in info.defaults]:
        return f"its defaults lack {', '.join(missing)}"
    if unknown := [name for name in info.switches if name not in HEAD_SWITCHES]:
        return f"it follows unknown switches: {', '.join(unknown)}"
    for other in known.values():
        if other.family == info.family and other.build != info.build:
            return f"the family {info.family!r} is {other.build}"
        if info.options and other.section == info.section and other.options is not info.options:
            return f"the section {info.section!r} belongs to {other.name}"
    if info.options and info.section in RESERVED:
        return f"the section {info.section!r} belongs to every config"
    for option in info.options.model_fields.values() if info.options else ():
        first_task(option)  # raises if a field does not say from which task on it matters
    return None


def _built_in() -> dict[str, MethodInfo]:
    from cl2r.config.builtin import BUILT_IN  # it describes methods in the terms of this module

    return {info.name: info for info in BUILT_IN}


METHODS = Plugins("cl2r.methods", _built_in, _problem)


def split_name(name: str) -> tuple[str, str]:
    """Return method and adapter of `method` or `method+adapter`; raise InputError if either is unknown."""
    base, plus, adapter = name.partition("+")
    if base not in METHODS:
        raise InputError(f"method.name: no method {base!r}{nearest(base, METHODS)}; methods: {METHODS}")
    if plus and adapter not in ADAPTERS:
        raise InputError(f"method.name: no adapter {adapter!r}{nearest(adapter, ADAPTERS)}; adapters: {ADAPTERS}")
    return base, adapter or "none"


def method_info(name: str) -> MethodInfo:
    """Return the method of a name that may carry an adapter."""
    return METHODS[split_name(name)[0]]


def sections() -> dict[str, type[Section]]:
    """Return the config sections of all methods, by name."""
    return {info.section: info.options for info in METHODS.values() if info.options is not None}
