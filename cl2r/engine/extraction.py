"""Features of images by a frozen model, batch by batch, and what a link keeps of them.

Templates are pooled on the way: v = Σ_i w_i·φ(x_i)/‖φ(x_i)‖, w the share of every image in its template, so that no
more than one batch of single features exists. Where φ(x) = P·b(x) has very many dimensions, b(x) and P are kept in its
place: pooling is linear, and ‖P·b‖² = bᵀ(PᵀP)b.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cl2r.augment import Normalise
from cl2r.data.dataset import Templates
from cl2r.engine.pixels import Look, Pixels

Rows = npt.NDArray[np.int64]
EXTRACTION_BATCH = 128
"""Images at a time. Of larger batches the maps of ResNet-32 leave a processor's cache, which costs a seventh."""
FACTORED_ABOVE = 4096
"""Features of more dimensions are kept as b(x) and P."""


def extract(extractor: nn.Module, pixels: Pixels, rows: Rows, normalise: Normalise) -> Tensor:
    """φ of some images, in order, on the CPU."""
    return torch.cat([features.cpu() for features in _batches(extractor, pixels, rows, normalise)])


def extract_templates(
    extractor: nn.Module, projection: Tensor | None, pixels: Pixels, templates: Templates, normalise: Normalise
) -> Tensor:
    """The pooled features of every template; `extractor` gives b(x) where there is a projection."""
    gram = None if projection is None else projection.T @ projection
    owner, shares = torch.from_numpy(templates.template), torch.from_numpy(templates.weights)
    pooled, start = torch.empty(0), 0
    for features in _batches(extractor, pixels, np.arange(len(pixels)), normalise):
        if start == 0:
            pooled = torch.zeros(len(templates), features.shape[1])
        stop = start + len(features)
        lengths = torch.linalg.vector_norm(features, dim=1) if gram is None else _lengths(features, gram)
        weights = (shares[start:stop] / lengths.cpu().clamp(min=1e-12)).float()
        pooled.index_add_(0, owner[start:stop], features.cpu() * weights[:, None])
        start = stop
    return pooled


def split_projection(extractor: nn.Module) -> tuple[nn.Module, Tensor | None]:
    """b and P where φ(x) = P·b(x) has more than `FACTORED_ABOVE` dimensions, else φ itself."""
    if not isinstance(extractor, nn.Sequential):
        return extractor, None
    last = extractor[-1]
    if isinstance(last, nn.Linear) and last.bias is None and last.out_features > FACTORED_ABOVE:
        return extractor[:-1], last.weight.detach()
    return extractor, None


def _lengths(features: Tensor, gram: Tensor) -> Tensor:
    return ((features @ gram) * features).sum(1).clamp(min=0).sqrt()


def _batches(extractor: nn.Module, pixels: Pixels, rows: Rows, normalise: Normalise) -> Iterator[Tensor]:
    extractor.eval()
    looks = (Look(rows[start : start + EXTRACTION_BATCH]) for start in range(0, len(rows), EXTRACTION_BATCH))
    for images in pixels.stream(looks):
        with torch.inference_mode():
            features = extractor(normalise(images)).float()
        yield features
