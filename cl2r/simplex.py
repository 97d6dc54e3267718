"""The d-Simplex fixed classifier, in closed form.

K unit vectors w_1..w_K in R^{K-1} with Σ_j w_j = 0 and w_i·w_j = -1/(K-1): a regular simplex. With S = Σ_i f_i,

    z_j = √(K/(K-1)) · (f_j − S/(K+√K))   for j < K,        z_K = −S/√(K-1),

so the logits of a feature f cost O(K) and no K × (K-1) matrix exists anywhere: nothing to train, store or move.
"""

import math
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

Scale = float | Literal["legacy"]


def legacy_scale(num_classes: int) -> float:
    """Vertex norm in the first released code of the paper: divided by the matrix's Frobenius norm, then centred."""
    k = num_classes
    alpha = -1 / (math.sqrt(k) + 1)
    frobenius = math.sqrt((k - 1) * (1 + alpha**2))
    return math.sqrt((k - 1) / k) / frobenius


def resolve_scale(scale: Scale, num_classes: int) -> float:
    """`simplex.scale` as a number: the norm of every vertex."""
    return legacy_scale(num_classes) if scale == "legacy" else float(scale)


def _closed_form(features: Tensor, num_classes: int, scale: float) -> Tensor:
    if num_classes < 2 or features.shape[-1] != num_classes - 1:
        raise ValueError(f"{num_classes} classes need features of size {num_classes - 1}, got {features.shape[-1]}")
    k, total = num_classes, features.sum(-1, keepdim=True)
    first = math.sqrt(k / (k - 1)) * (features - total / (k + math.sqrt(k)))
    return scale * torch.cat([first, -total / math.sqrt(k - 1)], -1)


def simplex_logits(
    features: npt.NDArray[np.floating], num_classes: int, scale: float = 1.0
) -> npt.NDArray[np.floating]:
    """z = scale · W f for each row f of `features`, shape (..., K-1) -> (..., K)."""
    rows = np.asarray(features)
    dtype = np.float32 if rows.dtype == np.float32 else np.float64
    rows = np.ascontiguousarray(rows, dtype=dtype)  # torch takes no negative strides and no foreign byte order
    logits: npt.NDArray[np.floating] = _closed_form(torch.from_numpy(rows), num_classes, scale).numpy()
    return logits


def simplex_vertices(num_classes: int) -> npt.NDArray[np.float64]:
    """The K vertices as rows of a K × (K-1) matrix: for tests and diagnostics, never for training."""
    return np.asarray(simplex_logits(np.eye(num_classes - 1), num_classes).T, dtype=np.float64)


class SimplexClassifier(nn.Module):
    """The fixed classifier: no parameter, no buffer."""

    def __init__(self, num_classes: int, scale: Scale = 1.0) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.scale = resolve_scale(scale, num_classes)

    def forward(self, features: Tensor) -> Tensor:
        """All K logits. S is summed in float32 even under autocast: bfloat16 errs by 5e-2 on a logit."""
        with torch.autocast(features.device.type, enabled=False):
            return _closed_form(features.float(), self.num_classes, self.scale)
