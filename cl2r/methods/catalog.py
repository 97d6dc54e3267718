"""The methods by name: what each is, where it comes from, which config fields it brings. Needs no torch.

Methods of other installed packages join through the entry point group `cl2r.methods` (see methods/README.md). A name
may carry an adapter of stored features after a plus sign: `er+procrustes`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any, Literal

from cl2r.errors import InputError, nearest
from cl2r.methods import options
from cl2r.section import Section

GROUP = "cl2r.methods"
PAPER = "Biondi et al., CL2R: Compatible Lifelong Learning Representations, ACM TOMM 2022"


@dataclass(frozen=True)
class MethodInfo:
    """One row of `cl2r methods`."""

    name: str
    title: str
    paper: str
    build: str
    """`module:Class` of its Method."""
    carries: str
    feature: str
    family: str = ""
    """Methods of one family are one class and differ in config fields; by default the name itself."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Config fields by dotted name that the method brings; explicit settings win over them."""
    native: Mapping[str, Any] | None = None
    """What `method.budget=native` brings besides: the schedule of its own publication. None: none is known."""
    options: type[Section] | None = None
    """The config section of fields that only this family has."""
    section: str = ""
    """The name of that section; by default the family's."""
    first_task: str | None = None
    """The family whose first task is the same, bit for bit: the two share their first links."""
    memory: Literal["quota", "all"] = "quota"
    """M_t: some images a class, or all images seen."""
    grows: bool = False
    """Whether φ_t has more dimensions than φ_{t-1}; its queries are then cut to the gallery's dimensions."""
    gallery: bool = False
    """Whether the stored gallery is mapped to the new model's space at every update."""
    version: str = ""
    """Part of the key of every link; to be changed with what the method computes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "family", self.family or self.name)
        object.__setattr__(self, "section", self.section or self.family)


@dataclass(frozen=True)
class AdapterInfo:
    """A map of new queries into an old model's space, fitted to stored features only."""

    name: str
    title: str
    paper: str


_OWN = {"method.classifier": "trainable", "method.fd": "none"}
_INCREMENTAL = {**_OWN, "head.projection": "none", "batches.batching": "natural"}
"""How class-incremental methods are published: φ is b(x) itself, and memory is not over-sampled."""
_SIGNED = {**_INCREMENTAL, "backbone.last_relu": False}
_HERDING = {"memory.selection": "herding"}
_PROJECTION, _BACKBONE = "projection, K-1 dimensions", "b(x)"


def _steps(epochs: int, milestones: Iterable[int], **optim: Any) -> dict[str, Any]:
    fields = {"epochs": epochs, "milestones": list(milestones), "schedule": "steps", "lr": 0.1, "gamma": 0.1, **optim}
    return {f"optim.{name}": value for name, value in fields.items()}


def _cosine(epochs: int, **optim: Any) -> dict[str, Any]:
    return _steps(epochs, [], schedule="cosine", **optim)


def _cell(name: str, title: str, classifier: str, fd: str) -> MethodInfo:
    """One cell of the ablation grid {Trainable, Fixed} x {none, FD, FD^M}: all six are one family."""
    return MethodInfo(
        name,
        title,
        PAPER,
        "cl2r.methods.rehearsal:Rehearsal",
        carries="weights, memory" if fd == "none" else "weights, memory, φ_{t-1}",
        feature=_PROJECTION,
        family="rehearsal",
        defaults={"method.classifier": classifier, "method.fd": fd},
        native={},
    )


_CELLS = (
    _cell("er", "Experience Replay: trainable classifier, no distillation", "trainable", "none"),
    _cell("er_fd", "trainable classifier, FD on every row", "trainable", "all"),
    _cell("er_fdm", "trainable classifier, FD on memory rows", "trainable", "memory"),
    _cell("fixed", "fixed d-Simplex classifier, no distillation", "fixed", "none"),
    _cell("fixed_fd", "fixed d-Simplex classifier, FD on every row", "fixed", "all"),
    _cell("cl2r", "CL²R: fixed d-Simplex classifier, FD on memory rows", "fixed", "memory"),
)
ABLATION_CELLS: tuple[str, ...] = tuple(cell.name for cell in _CELLS)

_LWF = MethodInfo(
    "lwf",
    "Learning without Forgetting: logit distillation, no memory",
    "Li and Hoiem, Learning without Forgetting, ECCV 2016",
    "cl2r.methods.lwf:Lwf",
    carries="weights, φ_{t-1} and its classifier",
    feature=_BACKBONE,
    family="lwf",
    defaults={**_INCREMENTAL, "memory.per_class": 0, "lwf.ce": "new"},
    native=_steps(250, (60, 120, 180, 220), weight_decay=2e-4),
    options=options.LwfOptions,
    first_task="rehearsal",
)
_BIC = MethodInfo(
    "bic",
    "BiC: logit distillation, then a bias correction of the new outputs",
    "Wu et al., Large Scale Incremental Learning, CVPR 2019",
    "cl2r.methods.bic:Bic",
    carries="weights, memory, corrected logits of φ_{t-1}, (α, β) of every task",
    feature=_BACKBONE,
    family="bic",
    defaults={**_INCREMENTAL, "bic.variant": "paper"},
    native={**_steps(250, (100, 150, 200), weight_decay=2e-4), **_HERDING},
    options=options.BicOptions,
    first_task="rehearsal",
)
_BCT = MethodInfo(
    "bct",
    "BCT: trained anew on all data, with the old classifier's influence loss",
    "Shen et al., Towards Backward-Compatible Representation Learning, CVPR 2020",
    "cl2r.methods.bct:Bct",
    carries="the old classifier, all data",
    feature=_PROJECTION,
    family="bct",
    defaults={**_OWN, "batches.batching": "natural"},
    native={**_steps(90, (30, 60), weight_decay=1e-4), "batches.size": 256},
    options=options.BctOptions,
    first_task="rehearsal",
    memory="all",
)
_BOUND = MethodInfo(
    "upper_bound",
    "UB: CL²R trained anew at every task on all data",
    PAPER,
    "cl2r.methods.upper_bound:UpperBound",
    carries="φ_{t-1}, all data",
    feature=_PROJECTION,
    family="upper_bound",
    defaults={"method.classifier": "fixed", "method.fd": "memory", "batches.batching": "natural"},
    native=_steps(100, (70,), weight_decay=5e-4),
    first_task="rehearsal",
    memory="all",
)


def _variant(info: MethodInfo, name: str, title: str, defaults: Mapping[str, Any], **changes: Any) -> MethodInfo:
    """Another method of the same family."""
    return MethodInfo(**{**vars(info), "name": name, "title": title, "defaults": defaults, **changes})


_BUILT_IN = (
    *_CELLS,
    _LWF,
    _variant(_LWF, "lwf_er", "LwF with memory: softmax over all classes seen", {**_INCREMENTAL, "lwf.ce": "seen"}),
    MethodInfo(
        "icarl",
        "iCaRL: binary cross-entropy on labels and old sigmoids",
        "Rebuffi et al., iCaRL: Incremental Classifier and Representation Learning, CVPR 2017",
        "cl2r.methods.icarl:Icarl",
        carries="weights, memory, φ_{t-1} and its classifier",
        feature=f"{_BACKBONE}, signed",
        defaults=_SIGNED,
        native={**_steps(70, (49, 63), lr=2.0, weight_decay=5e-5, gamma=0.2), **_HERDING},
    ),
    MethodInfo(
        "lucir",
        "LUCIR: cosine classifier, FD on every row, margin ranking, imprinting",
        "Hou et al., Learning a Unified Classifier Incrementally via Rebalancing, CVPR 2019",
        "cl2r.methods.lucir:Lucir",
        carries="weights, memory, φ_{t-1}, frozen rows of old classes, scale η",
        feature=f"{_BACKBONE}, signed",
        defaults={**_SIGNED, "method.fd": "all", "method.lambda_rule": "old_over_new"},
        native={**_steps(160, (80, 120), weight_decay=5e-4), **_HERDING},
        options=options.LucirOptions,
    ),
    _BIC,
    _variant(
        _BIC,
        "bic_inclearn",
        "BiC as the CL²R paper ran it: unweighted sigmoid distillation",
        {**_INCREMENTAL, "bic.variant": "inclearn"},
    ),
    MethodInfo(
        "podnet",
        "PODNet: proxy classifier, pooled distillation of every stage",
        "Douillard et al., PODNet: Pooled Outputs Distillation, ECCV 2020",
        "cl2r.methods.podnet:Podnet",
        carries="weights, memory, φ_{t-1} with its maps, proxies, scale η",
        feature=f"{_BACKBONE}, signed",
        defaults=_SIGNED,
        native={**_cosine(160, weight_decay=5e-4), **_HERDING},
        options=options.PodnetOptions,
    ),
    MethodInfo(
        "wa",
        "WA: logit distillation, then aligned norms of the classifier's rows",
        "Zhao et al., Maintaining Discrimination and Fairness in Class Incremental Learning, CVPR 2020",
        "cl2r.methods.wa:Wa",
        carries="weights, memory, φ_{t-1} and its aligned classifier",
        feature=_BACKBONE,
        defaults=_INCREMENTAL,
        native=_steps(170, (60, 100, 140), weight_decay=2e-4),
        options=options.WaOptions,
        first_task="rehearsal",
    ),
    MethodInfo(
        "foster",
        "FOSTER: a second backbone boosts the old one, then both are compressed into one",
        "Wang et al., FOSTER: Feature Boosting and Compression, ECCV 2022",
        "cl2r.methods.foster:Foster",
        carries="the compressed network, memory",
        feature=f"{_BACKBONE} of the compressed network",
        defaults=_INCREMENTAL,
        native={
            **_cosine(200, weight_decay=5e-4),
            **_HERDING,
            "foster.boost_epochs": 170,
            "foster.compress_epochs": 130,
        },
        options=options.FosterOptions,
        first_task="rehearsal",
    ),
    MethodInfo(
        "fan",
        "FAN: a network ψ_t maps the stored gallery to the new model's space",
        "Iscen et al., Memory-Efficient Incremental Learning Through Feature Adaptation, ECCV 2020",
        "cl2r.methods.fan:Fan",
        carries="weights, memory, φ_{t-1}, frozen rows of old classes, scale η",
        feature=f"{_BACKBONE}, signed",
        defaults={**_SIGNED, "method.fd": "all"},
        options=options.FanOptions,
        first_task="lucir",
        gallery=True,
    ),
    _BCT,
    _variant(
        _BCT,
        "lifelong_bct",
        "lifelong BCT: goes on from φ_{t-1}, influence loss on memory rows",
        dict(_OWN),
        carries="weights, memory, the old classifier",
        build="cl2r.methods.bct:LifelongBct",
        family="lifelong_bct",
        memory="quota",
    ),
    _BOUND,
    _variant(
        _BOUND,
        "cores",
        "CoReS: the fixed classifier trained anew at every task on all data, no distillation",
        {**_BOUND.defaults, "method.fd": "none"},
        paper="Biondi et al., CoReS: Compatible Representations via Stationarity, TPAMI 2023",
        carries="all data",
    ),
    MethodInfo(
        "der_trunc",
        "DER cut to the old dimensions (diagnostic): never re-index, never improve",
        "Yan et al., DER: Dynamically Expandable Representation, CVPR 2021",
        "cl2r.methods.der:DerTrunc",
        carries="every extractor so far, classifier, memory",
        feature=f"t concatenated {_BACKBONE}",
        defaults=_INCREMENTAL,
        native=_steps(170, (80, 120, 150), weight_decay=2e-4),
        options=options.DerOptions,
        first_task="rehearsal",
        grows=True,
    ),
    MethodInfo(
        "hoc",
        "d-Simplex-HOC: fixed classifier and a contrastive loss towards old features",
        "Biondi et al., Stationary Representations, CVPR 2024",
        "cl2r.methods.hoc:Hoc",
        carries="weights, memory, φ_{t-1}",
        feature=_PROJECTION,
        defaults={"method.classifier": "fixed", "method.fd": "none"},
        native={"optim.lr": 1e-3, "optim.schedule": "cosine", "head.k_max": 1024},
        options=options.HocOptions,
        first_task="rehearsal",
    ),
)

ADAPTERS: dict[str, AdapterInfo] = {
    info.name: info
    for info in (
        AdapterInfo(
            "aligner",
            "a linear map of new queries to the old space, least squares with a pull to the identity",
            "after Hu et al., Learning Backward Compatible Embeddings, KDD 2022",
        ),
        AdapterInfo(
            "procrustes", "the best rotation of new queries to the old space", "Schönemann, Psychometrika 1966"
        ),
        AdapterInfo(
            "slerp",
            "that rotation, then the point between it and the old model's own query on the sphere",
            "Shoemake, SIGGRAPH 1985, for the interpolation",
        ),
        AdapterInfo("query_drift", "the mean drift subtracted from new queries", "arXiv:2506.00037"),
    )
}


class _Registry(Mapping[str, MethodInfo]):
    """The methods of this package and of installed ones, found when first asked for: those import this module."""

    @cached_property
    def found(self) -> tuple[dict[str, MethodInfo], list[str]]:
        """Methods by name, and a line for every entry point that gives none."""
        methods, complaints = {info.name: info for info in _BUILT_IN}, []
        for point in entry_points(group=GROUP):
            try:
                info = point.load()
            except Exception as error:  # whatever another package does must not stop this one
                complaints.append(f"{point.name} ({point.value}): {type(error).__name__}: {error}")
                continue
            if not isinstance(info, MethodInfo):
                complaints.append(f"{point.name} ({point.value}): it is no MethodInfo")
            elif info.name in methods:
                complaints.append(f"{point.name} ({point.value}): there is a method {info.name!r} already")
            else:
                methods[info.name] = info
        return methods, complaints

    def __getitem__(self, name: str) -> MethodInfo:
        return self.found[0][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.found[0])

    def __len__(self) -> int:
        return len(self.found[0])


_REGISTRY = _Registry()
METHODS: Mapping[str, MethodInfo] = _REGISTRY


def complaints() -> list[str]:
    """Entry points of other packages that give no method, each with its reason."""
    return _REGISTRY.found[1]


def split_name(name: str) -> tuple[str, str]:
    """Method and adapter of `method` or `method+adapter`; refuses names that are not known."""
    base, plus, adapter = name.partition("+")
    if base not in METHODS:
        broken = "".join(f"; not loaded: {line}" for line in complaints())
        known = ", ".join(METHODS)
        raise InputError(f"method.name: no method {base!r}{nearest(base, METHODS)}; methods: {known}{broken}")
    if plus and adapter not in ADAPTERS:
        raise InputError(f"method.name: no adapter {adapter!r}{nearest(adapter, ADAPTERS)}; {', '.join(ADAPTERS)}")
    return base, adapter or "none"


def method_info(name: str) -> MethodInfo:
    """The method of a name that may carry an adapter."""
    return METHODS[split_name(name)[0]]


def sections() -> dict[str, type[Section]]:
    """The config sections of all methods, by name."""
    return {info.section: info.options for info in METHODS.values() if info.options is not None}
