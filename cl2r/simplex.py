"""The d-Simplex fixed classifier, in closed form.

K unit vectors w_1..w_K in R^{K-1} with Σ_j w_j = 0 and w_i·w_j = -1/(K-1): a regular simplex. With S = Σ_i f_i,

    z_j = √(K/(K-1)) · (f_j − S/(K+√K))   for j < K,        z_K = −S/√(K-1),

so the logits of a feature f cost O(K), and no K × (K-1) matrix has to be trained, stored or moved.
"""

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

Scale = float | Literal["legacy"]


def resolve_scale(scale: Scale, num_classes: int) -> float:
    """Return `simplex.scale` as a number, the norm of every vertex.

    `legacy` is that of the paper's first released code, which divides by the Frobenius norm, then centres.
    """
    if scale != "legacy":
        return float(scale)
    alpha = -1 / (math.sqrt(num_classes) + 1)
    frobenius = math.sqrt((num_classes - 1) * (1 + alpha**2))
    return math.sqrt((num_classes - 1) / num_classes) / frobenius


def _closed_form(features: Tensor, num_classes: int, scale: float) -> Tensor:
    if num_classes < 2 or features.shape[-1] != num_classes - 1:
        raise ValueError(f"{num_classes} classes need features of size {num_classes - 1}, got {features.shape[-1]}")
    logits: Tensor = _ClosedForm.apply(features, scale)
    return logits


class _ClosedForm(torch.autograd.Function):
    """z and its gradient, each in one array: with 10 575 classes all the time goes into passes over memory.

    With g = ∂L/∂z, a = √(K/(K-1)):  ∂L/∂f_j = a·g_j − Σ_i a·g_i/(K+√K) − g_K/√(K-1).
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, scale: float) -> Tensor:
        k, total = features.shape[-1] + 1, features.sum(-1, keepdim=True)
        ctx.scale, logits = scale, features.new_empty(*features.shape[:-1], k)
        torch.sub(features, total / (k + math.sqrt(k)), out=logits[..., :-1]).mul_(math.sqrt(k / (k - 1)))
        logits[..., -1:] = -total / math.sqrt(k - 1)
        return logits if scale == 1 else logits.mul_(scale)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        given = gradients[0] if ctx.scale == 1 else gradients[0] * ctx.scale
        k = given.shape[-1]
        gradient = given[..., :-1] * math.sqrt(k / (k - 1))
        total = gradient.sum(-1, keepdim=True) / (k + math.sqrt(k)) + given[..., -1:] / math.sqrt(k - 1)
        return gradient.sub_(total), None


def simplex_logits(
    features: npt.NDArray[np.floating], num_classes: int, scale: float = 1.0
) -> npt.NDArray[np.floating]:
    """Return z = scale · W f for each row f of `features`, shape (..., K-1) -> (..., K)."""
    rows = np.asarray(features)
    dtype = np.float32 if rows.dtype == np.float32 else np.float64
    rows = np.ascontiguousarray(rows, dtype=dtype)  # torch accepts no negative strides and no foreign byte order
    logits: npt.NDArray[np.floating] = _closed_form(torch.from_numpy(rows), num_classes, scale).numpy()
    return logits


def simplex_vertices(num_classes: int) -> npt.NDArray[np.float64]:
    """Return the K vertices as rows of a K × (K-1) matrix, for tests and diagnostics, never for training."""
    return np.asarray(simplex_logits(np.eye(num_classes - 1), num_classes).T, dtype=np.float64)


class SimplexClassifier(nn.Module):
    """The fixed classifier, without parameters or buffers."""

    def __init__(self, num_classes: int, scale: Scale = 1.0) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.scale = resolve_scale(scale, num_classes)

    def forward(self, features: Tensor) -> Tensor:
        """Return all K logits. S is summed in float32 even under autocast: bfloat16 errors reach 5e-2 per logit."""
        with torch.autocast(features.device.type, enabled=False):
            return _closed_form(features.float(), self.num_classes, self.scale)
