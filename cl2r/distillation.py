"""Distillation: distance of features and logits to the previous model's, and the weight λ_t."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from cl2r.config.schema import LambdaRule


def feature_distillation(new: Tensor, old: Tensor) -> Tensor:
    """Return L_FD, the mean over the rows of 1 − cos(φ_t(x), φ_{t-1}(x)). No rows: 0, with a gradient of 0."""
    with torch.autocast(new.device.type, enabled=False):
        if new.shape[0] == 0:
            return new.float().sum()
        return (1 - functional.cosine_similarity(new.float(), old.float(), dim=-1)).mean()


def logit_distillation(new: Tensor, old: Tensor, temperature: float) -> Tensor:
    """Return KD_T = −mean over rows of Σ_j softmax(z°/T)_j · log softmax(z/T)_j. No T² factor. No rows: 0."""
    with torch.autocast(new.device.type, enabled=False):
        if new.shape[0] == 0:
            return new.float().sum()
        target = functional.softmax(old.float() / temperature, dim=-1)
        return -(target * functional.log_softmax(new.float() / temperature, dim=-1)).sum(-1).mean()


def distillation_weight(base: float, rule: LambdaRule, new_classes: int, old_classes: int) -> float:
    """Return λ_t: the paper has `new_over_old`, λ_base·√(k_n/k_0), LUCIR `old_over_new`, PODNet `total_over_new`."""
    if old_classes < 1 or new_classes < 1:
        raise ValueError(f"λ_t needs old and new classes, got k_0={old_classes}, k_n={new_classes}")
    ratio = {
        "new_over_old": new_classes / old_classes,
        "old_over_new": old_classes / new_classes,
        "total_over_new": (old_classes + new_classes) / new_classes,
        "const": 1.0,
    }[rule]
    return base * math.sqrt(ratio)
