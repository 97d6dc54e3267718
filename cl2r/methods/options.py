"""The options that only one method has, a config section a method (`--set podnet.nca=paper`). Needs no torch.

Defaults are the values of the original publications or their code, as far as known; a comment says where they are not.
"""

from typing import Annotated, Literal

from cl2r.section import Section, from_task


class LwfOptions(Section):
    """Learning without forgetting."""

    ce: Annotated[Literal["new", "seen"], from_task(2)] = "new"
    """Softmax of the cross-entropy: the new classes only, as there is no memory; or all classes seen."""
    weight: Annotated[float, from_task(2, ge=0)] = 1.0
    temperature: Annotated[float, from_task(2, gt=0)] = 2.0


class IcarlOptions(Section):
    """iCaRL's binary cross-entropy."""

    over_classes: Annotated[Literal["sum", "mean"], from_task(1)] = "sum"
    """Of a row's loss over the classes seen: the sum suits the rate of a cross-entropy; the mean, as in published code,
    needs a rate of 2."""


class LucirOptions(Section):
    """LUCIR's margin ranking term and imprinting; its distillation is `method.fd` and `method.lambda_*`."""

    margin_weight: Annotated[float, from_task(2, ge=0)] = 1.0
    margin: Annotated[float, from_task(2, ge=0)] = 0.5
    top: Annotated[int, from_task(2, ge=1)] = 2
    """Highest-scoring negatives a row."""
    negatives: Annotated[Literal["new", "all"], from_task(2)] = "new"
    imprint: Annotated[bool, from_task(2)] = True


class BicOptions(Section):
    """BiC's two versions, and its second stage."""

    variant: Annotated[Literal["paper", "inclearn"], from_task(2)] = "paper"
    """paper: weighted softmax distillation; inclearn: the unweighted sigmoid distillation that the CL²R paper ran."""
    temperature: Annotated[float, from_task(2, gt=0)] = 2.0
    validation: Annotated[float, from_task(2, gt=0, lt=1)] = 0.1
    """Share of the exemplars of a class kept for the second stage, at least one where there are two."""
    bias_epochs: Annotated[int, from_task(2, ge=0)] = 200
    """0: no second stage, and no row is kept for it."""
    bias_lr: Annotated[float, from_task(2, ge=0)] = 0.1
    bias_decay: Annotated[float, from_task(2, ge=0)] = 0.1
    """Weight of β²/2."""


class PodnetOptions(Section):
    """PODNet's classifier, its pooled distillation and its last stage."""

    nca: Annotated[Literal["code", "paper"], from_task(1)] = "code"
    """code: the margin cancels and the loss is bounded below by 0 softly; paper: margin and clipping as written."""
    proxies: Annotated[int, from_task(1, ge=1)] = 10
    """Of every class."""
    margin: Annotated[float, from_task(1, ge=0)] = 0.6
    """With `nca: paper` only."""
    spatial: Annotated[float, from_task(2, ge=0)] = 3.0
    flat: Annotated[float, from_task(2, ge=0)] = 1.0
    finetune_epochs: Annotated[int, from_task(2, ge=0)] = 20
    """Of the proxies alone, on as many images of a new class as of an old one; left out without memory."""
    finetune_lr: Annotated[float, from_task(2, ge=0)] = 0.05
    clamp: Annotated[float, from_task(1, gt=0)] = 5.0
    """Largest entry of a gradient."""


class WaOptions(Section):
    """WA's distillation."""

    temperature: Annotated[float, from_task(2, gt=0)] = 2.0


class FosterOptions(Section):
    """FOSTER's boosting and compression."""

    boost_epochs: Annotated[int | None, from_task(2, ge=1)] = None
    compress_epochs: Annotated[int | None, from_task(2, ge=1)] = None
    """None, for both: `optim.epochs` shared 4 : 3, so that a task is as long as everyone's."""
    weight: Annotated[float, from_task(2, ge=0)] = 1.0
    """Of the distillation of old logits, in the boosting."""
    temperature: Annotated[float, from_task(2, gt=0)] = 2.0
    beta_boost: Annotated[float, from_task(2, ge=0, lt=1)] = 0.94
    beta_compress: Annotated[float, from_task(2, ge=0, lt=1)] = 0.97
    """β of the effective number of images of a class; 0: all classes count the same."""
    new_on_old: Annotated[Literal["free", "zero"], from_task(2)] = "free"
    """The new classes' weights on the old features: trained, or held at zero."""


class FanOptions(Section):
    """FAN's feature adaptation network ψ. No code of its authors is public: width, α and rate are starting values."""

    pairs: Annotated[Literal["task", "task+memory"], from_task(2)] = "task+memory"
    alpha: Annotated[float, from_task(2, ge=0)] = 100.0
    width: Annotated[int, from_task(2, ge=1)] = 16
    """Hidden units, in multiples of the feature size."""
    epochs: Annotated[int, from_task(2, ge=0)] = 30
    lr: Annotated[float, from_task(2, gt=0)] = 1e-3
    kd_weight: Annotated[float, from_task(2, ge=0)] = 0.0
    """Weight of the logit distillation that the original may have had."""


class BctOptions(Section):
    """The influence loss of BCT and lifelong BCT."""

    weight: Annotated[float, from_task(2, ge=0)] = 1.0
    new_classes: Annotated[Literal["ignore", "synth"], from_task(2)] = "ignore"
    """Rows of classes the old head does not know: left out, or given the class mean under φ_{t-1} as old prototype,
    scaled to the mean norm of the old head's rows."""


class DerOptions(Section):
    """DER's auxiliary classifier."""

    auxiliary: Annotated[float, from_task(2, ge=0)] = 1.0
    """Weight of its cross-entropy."""


class HocOptions(Section):
    """The higher-order compatibility loss of d-Simplex-HOC."""

    weight: Annotated[float, from_task(2, ge=0, le=1)] = 0.1
    """λ_h, the share of the cross-entropy."""
    mu: Annotated[float, from_task(2, gt=0)] = 10.0
    mask: Annotated[Literal["code", "inf"], from_task(2)] = "inf"
    """Similarities inside a row's own class in the denominator: 0 as in the released code, or left out."""
    anchor: Annotated[Literal["new", "old"], from_task(2)] = "new"
    """Whose feature of a row meets the other model's features of all rows; old: as in the released code."""
