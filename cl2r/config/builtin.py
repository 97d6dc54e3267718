"""The built-in methods: the options that only one of them has, and the facts about each. Needs no torch.

Defaults of options are the values of the original publications or their code, if known; a comment says if not.
`native` schedules are those published for CIFAR-100, if known.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any, Literal

from cl2r.config.methods import MethodInfo
from cl2r.config.section import Section, keyed_from


class LwfOptions(Section):
    """Learning without forgetting."""

    ce: Annotated[Literal["new", "seen"], keyed_from(2)] = "new"
    """Softmax of the cross-entropy over the new classes only, because there is no memory, or over all classes seen."""
    weight: Annotated[float, keyed_from(2, ge=0)] = 1.0
    """Weight w of the distillation."""
    temperature: Annotated[float, keyed_from(2, gt=0)] = 2.0
    """T of the distillation."""


class IcarlOptions(Section):
    """iCaRL's binary cross-entropy."""

    over_classes: Annotated[Literal["sum", "mean"], keyed_from(1)] = "sum"
    """Reduction of a row's loss over the classes seen: `sum` suits the learning rate of a cross-entropy; `mean`, as in
    published code, needs a learning rate of 2."""


class LucirOptions(Section):
    """LUCIR's margin ranking term and imprinting; its distillation is `method.fd` and `method.lambda_*`."""

    margin_weight: Annotated[float, keyed_from(2, ge=0)] = 1.0
    """Weight μ of the margin ranking term."""
    margin: Annotated[float, keyed_from(2, ge=0)] = 0.5
    """m, the cosine by which the own class should lead."""
    top: Annotated[int, keyed_from(2, ge=1)] = 2
    """Number of highest-scoring negatives per row."""
    negatives: Annotated[Literal["new", "all"], keyed_from(2)] = "new"
    """Classes that are ranked against: the new ones, or all."""
    imprint: Annotated[bool, keyed_from(2)] = True
    """New rows start as the mean direction of their class under the old model; false: at random."""


class BicOptions(Section):
    """BiC's two versions, and its second stage."""

    variant: Annotated[Literal["paper", "inclearn"], keyed_from(2)] = "paper"
    """paper: weighted softmax distillation; inclearn: the unweighted sigmoid distillation that the CL²R paper ran."""
    temperature: Annotated[float, keyed_from(2, gt=0)] = 2.0
    """T of the distillation."""
    validation: Annotated[float, keyed_from(2, gt=0, lt=1)] = 0.1
    """Share of a class's exemplars set apart for the second stage; at least one if there are two."""
    bias_epochs: Annotated[int, keyed_from(2, ge=0)] = 200
    """0: no second stage, and no rows kept for it."""
    bias_lr: Annotated[float, keyed_from(2, ge=0)] = 0.1
    """Rate of the second stage; it has the schedule of the first."""
    bias_decay: Annotated[float, keyed_from(2, ge=0)] = 0.1
    """Weight of β²/2."""


class PodnetOptions(Section):
    """PODNet's classifier, its pooled distillation and its last stage."""

    nca: Annotated[Literal["code", "paper"], keyed_from(1)] = "code"
    """code: the margin cancels and the loss is bounded below by 0 softly; paper: margin and clipping as written."""
    proxies: Annotated[int, keyed_from(1, ge=1)] = 10
    """Proxies per class."""
    margin: Annotated[float, keyed_from(1, ge=0)] = 0.6
    """Used with `nca: paper` only."""
    spatial: Annotated[float, keyed_from(2, ge=0)] = 3.0
    """λ_c, the weight of the pooled maps; 8 in the presets of ImageNet and CASIA."""
    flat: Annotated[float, keyed_from(2, ge=0)] = 1.0
    """λ_f, the weight of the features; 10 in those presets."""
    finetune_epochs: Annotated[int, keyed_from(2, ge=0)] = 20
    """Epochs for the proxies alone, on as many images of a new class as of an old one; skipped without memory."""
    finetune_lr: Annotated[float, keyed_from(2, ge=0)] = 0.05
    """Rate of the stage that trains the proxies alone; 0.01 in those presets."""
    clamp: Annotated[float, keyed_from(1, gt=0)] = 5.0
    """Largest absolute entry of a gradient."""


class WaOptions(Section):
    """WA's distillation."""

    temperature: Annotated[float, keyed_from(2, gt=0)] = 2.0
    """T of the distillation."""


class FosterOptions(Section):
    """FOSTER's boosting and compression."""

    boost_epochs: Annotated[int | None, keyed_from(2, ge=1)] = None
    """Epochs of boosting; none for both: `optim.epochs` split 4 : 3."""
    compress_epochs: Annotated[int | None, keyed_from(2, ge=1)] = None
    """Epochs of compression; none for both: `optim.epochs` split 4 : 3, so that no method trains longer."""
    weight: Annotated[float, keyed_from(2, ge=0)] = 1.0
    """Weight of the distillation of old logits while boosting."""
    temperature: Annotated[float, keyed_from(2, gt=0)] = 2.0
    """T of both distillations."""
    beta_boost: Annotated[float, keyed_from(2, ge=0, lt=1)] = 0.94
    """β of the effective number of images per class while boosting; 0: all classes count the same."""
    beta_compress: Annotated[float, keyed_from(2, ge=0, lt=1)] = 0.97
    """The same while compressing."""
    new_on_old: Annotated[Literal["free", "zero"], keyed_from(2)] = "free"
    """The new classes' weights on the old features: trained, or held at zero."""
    old_on_new: Annotated[Literal["random", "zero"], keyed_from(2)] = "random"
    """The old classes' weights on the new features before boosting: random as in the released code, or zero."""


class FanOptions(Section):
    """FAN's feature adaptation network ψ. No code of its authors is public: width, α and rate are starting values."""

    pairs: Annotated[Literal["task", "task+memory"], keyed_from(2)] = "task+memory"
    """Images that ψ is trained on: those of the task, or also those in memory."""
    alpha: Annotated[float, keyed_from(2, ge=0)] = 100.0
    """Weight of the alignment of ψ(v) with the new feature."""
    width: Annotated[int, keyed_from(2, ge=1)] = 16
    """Hidden units, in multiples of the feature size."""
    epochs: Annotated[int, keyed_from(2, ge=0)] = 30
    """Epochs of ψ."""
    lr: Annotated[float, keyed_from(2, gt=0)] = 1e-3
    """Rate of ψ, by Adam."""
    kd_weight: Annotated[float, keyed_from(2, ge=0)] = 0.0
    """Weight of the logit distillation that the original may have had."""


class BctOptions(Section):
    """The influence loss of BCT and lifelong BCT."""

    weight: Annotated[float, keyed_from(2, ge=0)] = 1.0
    """λ_b, the weight of the influence loss."""
    new_classes: Annotated[Literal["ignore", "synth"], keyed_from(2)] = "ignore"
    """Rows of classes unknown to the old head: left out, or given the class mean under φ_{t-1} as old prototype,
    scaled to the mean norm of the old head's rows."""


class DerOptions(Section):
    """DER's auxiliary classifier."""

    auxiliary: Annotated[float, keyed_from(2, ge=0)] = 1.0
    """Weight of its cross-entropy term."""


class HocOptions(Section):
    """The higher-order compatibility loss of d-Simplex-HOC."""

    weight: Annotated[float, keyed_from(2, ge=0, le=1)] = 0.1
    """λ_h, the share of the cross-entropy."""
    mu: Annotated[float, keyed_from(2, gt=0)] = 10.0
    """Factor of the cosines."""
    mask: Annotated[Literal["code", "inf"], keyed_from(2)] = "inf"
    """Similarities inside a row's own class in the denominator: 0 as in the released code, or left out."""
    anchor: Annotated[Literal["new", "old"], keyed_from(2)] = "new"
    """Model whose feature of a row is compared with the other model's features of all rows; released code: old."""


PAPER = "Biondi et al., CL2R: Compatible Lifelong Learning Representations, ACM TOMM 2022"
_OWN = {"method.classifier": "trainable", "method.fd": "none"}
_INCREMENTAL = {**_OWN, "head.projection": "none", "batches.batching": "natural"}
"""How class-incremental methods are published: φ is b(x) itself, and memory is not over-sampled."""
_BIASED = {**_INCREMENTAL, "head.bias": True}
"""Those whose published linear classifier has a bias; that of inclearn's BiC has none."""
_SIGNED = {**_INCREMENTAL, "backbone.last_relu": False}
_DISTILLED = {**_SIGNED, "method.fd": "all", "method.lambda_rule": "old_over_new"}
"""LUCIR's stage 1, which FAN has too: FD on every row with a weight that grows with the number of old classes."""
_ALWAYS = {"method.fd_when_no_memory": "on_new"}
"""FD over all rows needs no memory; only the λ_t of CL²R is undefined without one."""
_HERDING = {"memory.selection": "herding"}
_PROJECTION, _BACKBONE = "projection, K-1 dimensions", "b(x), centred if head.centre"


def _steps(epochs: int, milestones: Iterable[int], batch: int = 128, **optim: Any) -> dict[str, Any]:
    usual = {"schedule": "steps", "lr": 0.1, "lr_later": None, "gamma": 0.1, "momentum": 0.9}
    fields = {"epochs": epochs, "milestones": list(milestones), **usual, **optim}
    return {"batches.size": batch, **{f"optim.{name}": value for name, value in fields.items()}}


_OURS = _steps(70, (50, 64), weight_decay=2e-4)
_COSINE_200 = _steps(200, (), schedule="cosine", weight_decay=5e-4)

_CELLS = tuple(
    MethodInfo(
        name,
        title,
        PAPER,
        "cl2r.methods.rehearsal:Rehearsal",
        carries="weights, memory" if fd == "none" else "weights, memory, φ_{t-1}",
        feature=_PROJECTION,
        family="rehearsal",
        defaults={"method.classifier": classifier, "method.fd": fd},
        native=_OURS,
        switches=("preallocate", "mask_unseen", *(["bias"] if classifier == "trainable" else [])),
    )
    for name, title, classifier, fd in (
        ("er", "Experience Replay: trainable classifier, no distillation", "trainable", "none"),
        ("er_fd", "trainable classifier, FD on every row", "trainable", "all"),
        ("er_fdm", "trainable classifier, FD on memory rows", "trainable", "memory"),
        ("fixed", "fixed d-Simplex classifier, no distillation", "fixed", "none"),
        ("fixed_fd", "fixed d-Simplex classifier, FD on every row", "fixed", "all"),
        ("cl2r", "CL²R: fixed d-Simplex classifier, FD on memory rows", "fixed", "memory"),
    )
)
"""The ablation grid {Trainable, Fixed} x {none, FD, FD^M}; all six are one family."""
ABLATION_CELLS: tuple[str, ...] = tuple(cell.name for cell in _CELLS)

_LWF = MethodInfo(
    "lwf",
    "Learning without Forgetting: logit distillation, softmax over the new classes; no memory unless asked for",
    "Li and Hoiem, Learning without Forgetting, ECCV 2016",
    "cl2r.methods.lwf:Lwf",
    carries="weights, φ_{t-1} and its classifier",
    feature=_BACKBONE,
    defaults={**_BIASED, "memory.per_class": 0, "lwf.ce": "new"},
    native=_steps(250, (60, 120, 180, 220), weight_decay=2e-4),
    options=LwfOptions,
    first_task="rehearsal",
    switches=("bias",),
)
_BIC = MethodInfo(
    "bic",
    "BiC: logit distillation, then a bias correction of the new outputs",
    "Wu et al., Large Scale Incremental Learning, CVPR 2019",
    "cl2r.methods.bic:Bic",
    carries="weights, memory, corrected logits of φ_{t-1}, (α, β) of every task",
    feature=_BACKBONE,
    defaults={**_BIASED, "bic.variant": "paper"},
    native={**_steps(250, (100, 150, 200), weight_decay=2e-4), **_HERDING},
    options=BicOptions,
    first_task="rehearsal",
    switches=("bias",),
    version="2",
)
_BCT = MethodInfo(
    "bct",
    "BCT: trained from scratch on all data, with the old classifier's influence loss",
    "Shen et al., Towards Backward-Compatible Representation Learning, CVPR 2020",
    "cl2r.methods.bct:Bct",
    carries="the old classifier, all data",
    feature=_PROJECTION,
    defaults={**_OWN, "head.bias": True, "batches.batching": "natural"},
    native=_steps(90, (30, 60), batch=256, weight_decay=1e-4),
    options=BctOptions,
    first_task="rehearsal",
    switches=("bias",),
    memory="all",
)
_BOUND = MethodInfo(
    "upper_bound",
    "UB: CL²R trained from scratch at every task on all data",
    PAPER,
    "cl2r.methods.upper_bound:UpperBound",
    carries="φ_{t-1}, all data",
    feature=_PROJECTION,
    defaults={"method.classifier": "fixed", "method.fd": "memory", "batches.batching": "natural"},
    native=_OURS,
    first_task="rehearsal",
    memory="all",
    switches=("mask_unseen",),
)


BUILT_IN: tuple[MethodInfo, ...] = (
    *_CELLS,
    _LWF,
    replace(
        _LWF,
        name="lwf_er",
        title="LwF with memory: logit distillation, softmax over all classes seen",
        defaults={**_BIASED, "lwf.ce": "seen"},
        carries="weights, memory, φ_{t-1} and its classifier",
    ),
    MethodInfo(
        "icarl",
        "iCaRL: binary cross-entropy on labels and old sigmoids",
        "Rebuffi et al., iCaRL: Incremental Classifier and Representation Learning, CVPR 2017",
        "cl2r.methods.icarl:Icarl",
        carries="weights, memory, φ_{t-1} and its classifier",
        feature=_BACKBONE,
        defaults=_BIASED,
        switches=("bias",),
        native={**_steps(70, (49, 63), lr=2.0, weight_decay=5e-5, gamma=0.2), **_HERDING, "icarl.over_classes": "mean"},
        options=IcarlOptions,
    ),
    MethodInfo(
        "lucir",
        "LUCIR: cosine classifier, FD on every row, margin ranking, imprinting",
        "Hou et al., Learning a Unified Classifier Incrementally via Rebalancing, CVPR 2019",
        "cl2r.methods.lucir:Lucir",
        carries="weights, memory, φ_{t-1}, frozen rows of old classes, scale η",
        feature=f"{_BACKBONE}, signed",
        defaults={**_DISTILLED, **_ALWAYS},
        native={**_steps(160, (80, 120), weight_decay=5e-4), **_HERDING},
        options=LucirOptions,
    ),
    _BIC,
    replace(
        _BIC,
        name="bic_inclearn",
        title="BiC as the CL²R paper ran it: unweighted sigmoid distillation",
        defaults={**_INCREMENTAL, "bic.variant": "inclearn"},
    ),
    MethodInfo(
        "podnet",
        "PODNet: proxy classifier, pooled distillation of every stage",
        "Douillard et al., PODNet: Pooled Outputs Distillation, ECCV 2020",
        "cl2r.methods.podnet:Podnet",
        carries="weights, memory, φ_{t-1} with its maps, proxies, scale η",
        feature=f"{_BACKBONE}, signed",
        defaults=_SIGNED,
        native={**_steps(160, (), schedule="cosine", weight_decay=5e-4), **_HERDING},
        options=PodnetOptions,
    ),
    MethodInfo(
        "wa",
        "WA: logit distillation, then aligned norms of the classifier's rows",
        "Zhao et al., Maintaining Discrimination and Fairness in Class Incremental Learning, CVPR 2020",
        "cl2r.methods.wa:Wa",
        carries="weights, memory, φ_{t-1} and its aligned classifier",
        feature=_BACKBONE,
        defaults=_BIASED,
        switches=("bias",),
        native={**_steps(170, (60, 100, 140), weight_decay=2e-4), **_HERDING},
        options=WaOptions,
        first_task="rehearsal",
    ),
    MethodInfo(
        "foster",
        "FOSTER: a second backbone boosts the old one, then both are compressed into one",
        "Wang et al., FOSTER: Feature Boosting and Compression, ECCV 2022",
        "cl2r.methods.foster:Foster",
        carries="the compressed network, memory",
        feature=f"{_BACKBONE} of the compressed network",
        defaults=_BIASED,
        switches=("bias",),
        native={**_COSINE_200, **_HERDING, "foster.boost_epochs": 170, "foster.compress_epochs": 130},
        options=FosterOptions,
        first_task="rehearsal",
    ),
    MethodInfo(
        "fan",
        "FAN: a network ψ_t maps the stored gallery to the new model's space",
        "Iscen et al., Memory-Efficient Incremental Learning Through Feature Adaptation, ECCV 2020",
        "cl2r.methods.fan:Fan",
        carries="weights, memory, φ_{t-1}, frozen rows of old classes, scale η",
        feature=f"{_BACKBONE}, signed",
        defaults={**_DISTILLED, **_ALWAYS},
        options=FanOptions,
        first_task="lucir",
        maps_gallery=True,
    ),
    _BCT,
    replace(
        _BCT,
        name="lifelong_bct",
        title="lifelong BCT: continues from φ_{t-1}, influence loss on memory rows",
        defaults={**_OWN, "head.bias": True},
        carries="weights, memory, the old classifier",
        build="cl2r.methods.bct:LifelongBct",
        family="lifelong_bct",
        memory="quota",
    ),
    _BOUND,
    replace(
        _BOUND,
        name="cores",
        title="CoReS: the fixed classifier trained from scratch at every task on all data, no distillation",
        defaults={**_BOUND.defaults, "method.fd": "none"},
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
        defaults=_BIASED,
        switches=("bias",),
        native={**_steps(170, (80, 120, 150), weight_decay=2e-4), **_HERDING},
        options=DerOptions,
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
        options=HocOptions,
        first_task="rehearsal",
        switches=("mask_unseen",),
    ),
)
