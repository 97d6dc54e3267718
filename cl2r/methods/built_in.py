"""The methods and adapters of this package: data only.

`native` schedules are those published for CIFAR-100, as far as they are known.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from cl2r.methods import options
from cl2r.methods.info import AdapterInfo, MethodInfo

PAPER = "Biondi et al., CL2R: Compatible Lifelong Learning Representations, ACM TOMM 2022"
_OWN = {"method.classifier": "trainable", "method.fd": "none"}
_INCREMENTAL = {**_OWN, "head.projection": "none", "batches.batching": "natural"}
"""How class-incremental methods are published: φ is b(x) itself, and memory is not over-sampled."""
_SIGNED = {**_INCREMENTAL, "backbone.last_relu": False}
_ALWAYS = {"method.fd_when_no_memory": "on_new"}
"""FD over all rows needs no memory; that a λ_t of CL²R is undefined without is no concern of theirs."""
_HERDING = {"memory.selection": "herding"}
_PROJECTION, _BACKBONE = "projection, K-1 dimensions", "b(x), centred if head.centre"


def _steps(epochs: int, milestones: Iterable[int], batch: int = 128, **optim: Any) -> dict[str, Any]:
    usual = {"schedule": "steps", "lr": 0.1, "lr_later": None, "gamma": 0.1, "momentum": 0.9}
    fields = {"epochs": epochs, "milestones": list(milestones), **usual, **optim}
    return {"batches.size": batch, **{f"optim.{name}": value for name, value in fields.items()}}


def _cosine(epochs: int, **optim: Any) -> dict[str, Any]:
    return _steps(epochs, [], schedule="cosine", **optim)


_OURS = _steps(70, (50, 64), weight_decay=2e-4)


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
        native=_OURS,
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
    "Learning without Forgetting: logit distillation, softmax over the new classes; no memory unless asked for",
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
    native=_steps(90, (30, 60), batch=256, weight_decay=1e-4),
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
    native=_OURS,
    first_task="rehearsal",
    memory="all",
)


def _variant(info: MethodInfo, name: str, title: str, defaults: Mapping[str, Any], **changes: Any) -> MethodInfo:
    """Another method of the same family."""
    return MethodInfo(**{**vars(info), "name": name, "title": title, "defaults": defaults, **changes})


BUILT_IN: tuple[MethodInfo, ...] = (
    *_CELLS,
    _LWF,
    _variant(
        _LWF,
        "lwf_er",
        "LwF with memory: logit distillation, softmax over all classes seen",
        {**_INCREMENTAL, "lwf.ce": "seen"},
        carries="weights, memory, φ_{t-1} and its classifier",
    ),
    MethodInfo(
        "icarl",
        "iCaRL: binary cross-entropy on labels and old sigmoids",
        "Rebuffi et al., iCaRL: Incremental Classifier and Representation Learning, CVPR 2017",
        "cl2r.methods.icarl:Icarl",
        carries="weights, memory, φ_{t-1} and its classifier",
        feature=f"{_BACKBONE}, signed",
        defaults=_SIGNED,
        native={
            **_steps(70, (49, 63), lr=2.0, weight_decay=5e-5, gamma=0.2),
            **_HERDING,
            "icarl.over_classes": "mean",
        },
        options=options.IcarlOptions,
    ),
    MethodInfo(
        "lucir",
        "LUCIR: cosine classifier, FD on every row, margin ranking, imprinting",
        "Hou et al., Learning a Unified Classifier Incrementally via Rebalancing, CVPR 2019",
        "cl2r.methods.lucir:Lucir",
        carries="weights, memory, φ_{t-1}, frozen rows of old classes, scale η",
        feature=f"{_BACKBONE}, signed",
        defaults={**_SIGNED, "method.fd": "all", "method.lambda_rule": "old_over_new", **_ALWAYS},
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
        defaults={**_SIGNED, "method.fd": "all", **_ALWAYS},
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
        native=_steps(100, (70,), weight_decay=5e-4),
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
            "procrustes, then the point on the sphere between that and the old model's own query",
            "Shoemake, SIGGRAPH 1985, for the interpolation",
        ),
        AdapterInfo("query_drift", "the mean drift subtracted from new queries", "arXiv:2506.00037"),
    )
}
