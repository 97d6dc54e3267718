"""From the backbone's output b(x) to the verification vector φ(x), and the trainable classifier on top of it."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

Projection = Literal["linear", "mlp", "none"]


def build_projection(kind: Projection, dim_in: int, dim_out: int) -> nn.Module:
    """Return the map from b(x) to φ(x). `linear` spans at most `dim_in` of the K−1 dimensions, `mlp` all of them."""
    if kind == "none":
        return nn.Identity()
    if kind == "linear":
        return nn.Linear(dim_in, dim_out, bias=False)
    return nn.Sequential(nn.Linear(dim_in, dim_out), nn.ReLU(), nn.Linear(dim_out, dim_out, bias=False))


class TrainableClassifier(nn.Module):
    """A bias-free linear classifier whose rows grow with the classes."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, dim))

    def grow_to(self, num_classes: int, generator: torch.Generator) -> None:
        """Append rows up to `num_classes`; the old rows stay the same, bit for bit."""
        old, dim = self.weight.shape
        bound = 1 / math.sqrt(dim)
        fresh = torch.empty(num_classes - old, dim).uniform_(-bound, bound, generator=generator)
        self.weight = nn.Parameter(torch.cat([self.weight.detach(), fresh.to(self.weight.device)]))

    def align(self, old: int) -> float:
        """Scale the rows from `old` on by γ, so that their mean length is that of the rows before; return γ."""
        with torch.no_grad():
            lengths = self.weight.norm(dim=1)
            gamma = lengths[:old].mean() / lengths[old:].mean()
            self.weight[old:] *= gamma
        return float(gamma)

    def forward(self, features: Tensor) -> Tensor:
        return nn.functional.linear(features, self.weight)
