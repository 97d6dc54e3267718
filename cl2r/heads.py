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
    """A linear classifier, with or without bias, whose rows grow with the classes."""

    bias: nn.Parameter | None

    def __init__(self, dim: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, dim))
        self.register_parameter("bias", nn.Parameter(torch.empty(0)) if bias else None)

    def grow_to(self, num_classes: int, generator: torch.Generator) -> None:
        """Append rows up to `num_classes`, their biases 0; the old ones stay the same, bit for bit."""
        old, dim = self.weight.shape
        bound = 1 / math.sqrt(dim)
        fresh = torch.empty(num_classes - old, dim).uniform_(-bound, bound, generator=generator)
        self.weight = nn.Parameter(torch.cat([self.weight.detach(), fresh.to(self.weight.device)]))
        if self.bias is not None:
            self.bias = nn.Parameter(torch.cat([self.bias.detach(), self.bias.new_zeros(num_classes - old)]))

    def clear(self) -> None:
        """Forget all classes."""
        self.weight = nn.Parameter(self.weight.detach()[:0].clone())
        if self.bias is not None:
            self.bias = nn.Parameter(self.bias.detach()[:0].clone())

    def align(self, old: int) -> float:
        """Scale the rows from `old` on by γ, so that their mean length is that of the rows before; return γ.

        Biases stay as they are, as in published code.
        """
        with torch.no_grad():
            lengths = self.weight.norm(dim=1)
            gamma = lengths[:old].mean() / lengths[old:].mean()
            self.weight[old:] *= gamma
        return float(gamma)

    def forward(self, features: Tensor) -> Tensor:
        return nn.functional.linear(features, self.weight, self.bias)
