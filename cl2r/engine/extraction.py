"""Features of images by a frozen model, batch by batch, and those that a link stores with their diagnostics.

Templates are pooled batch by batch: v = Σ_i w_i·φ(x_i)/‖φ(x_i)‖, w_i the share of an image in its template. If
φ(x) = P·b(x) has very many dimensions, b(x) and P are stored instead: pooling is linear, and ‖P·b‖² = bᵀ(PᵀP)b.
"""

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from cl2r.augment import Normalise
from cl2r.batches import Rows
from cl2r.config.methods import MethodInfo
from cl2r.data.dataset import Templates
from cl2r.engine.links import Tensors
from cl2r.engine.pixels import Pixels, open_pixels
from cl2r.engine.plan import FACTORED_ABOVE, Plan
from cl2r.errors import TrainingError
from cl2r.features import Features
from cl2r.memory import support_rows
from cl2r.methods.base import Method, TaskData
from cl2r.methods.incremental import Network
from cl2r.stationarity import common_direction, drift, vertices

EXTRACTION_BATCH = 128  # in larger batches the maps of ResNet-32 do not fit a processor's cache: a seventh slower
GALLERY = "gallery_{}"  # features of φ_k as they are stored after this task
OPEN, PROJECTION, SUPPORT, SUPPORT_OLD = "open", "projection", "support", "support_old"


class LinkFeatures:
    """Computes the features that the links of a plan store: of open images, of a sample of T_t, of mapped galleries."""

    def __init__(self, plan: Plan, info: MethodInfo, device: torch.device) -> None:
        self.plan, self.info, self.device = plan, info, device
        own = plan.config.eval.normalise == "own"
        self.normalise = Normalise(*(plan.dataset.open_moments if own else plan.dataset.moments), device)

    def compute(
        self, method: Method, previous: nn.Module | None, data: TaskData, before: Tensors
    ) -> tuple[Tensors, dict[str, float]]:
        """Return features to store with link t, and diagnostics. Raise TrainingError if the features are not finite.

        `previous` is φ_{t-1} and `before` are the features of link t-1, if there is one.
        """
        task, extractor, config, dataset = method.task.index, method.extractor(), self.plan.config, self.plan.dataset
        images = open_pixels(dataset, config.data.loaders, self.device)
        body, projection = (extractor, None) if self.info.maps_gallery else split_projection(extractor)
        if dataset.templates is None:
            features = {OPEN: extract(body, images, np.arange(len(images)), self.normalise)}
        else:
            features = {OPEN: extract_templates(body, projection, images, dataset.templates, self.normalise)}
        rows = support_rows(data.new, data.memory, config.seed, task)
        support = data.apply(extractor, rows)
        if not torch.isfinite(features[OPEN]).all():
            raise TrainingError(f"task {task}: the features are not finite; try a lower optim.lr")
        if projection is None:
            features[SUPPORT] = support
            if previous is not None:
                features[SUPPORT_OLD] = data.apply(previous, rows)
        else:  # no adapter needs the support, and it is large
            features[PROJECTION] = projection
        now = stored_features(features)
        diagnostics = {
            "common_direction": common_direction(now),
            "feature_size": float(support.shape[1]),
            "model_bytes": float(sum(tensor.nbytes for tensor in extractor.state_dict().values())),
            "forward_flops": flops(extractor, self.normalise(*images.stream([np.arange(1)]))),
        }
        if previous is not None:
            diagnostics |= drift(now, stored_features(before))
            if self.info.maps_gallery:
                # Every gallery stored so far, also those of older models, is mapped into the space of φ_t.
                galleries = {GALLERY.format(k): before[GALLERY.format(k)] for k in range(1, task - 1)}
                galleries[GALLERY.format(task - 1)] = before[OPEN]
                for name, gallery in galleries.items():
                    features[name] = method.adapt_gallery(gallery.to(self.device)).cpu()
                diagnostics["gallery_flops"] = flops(method.adapt_gallery, before[OPEN][:1].to(self.device))
        network = method.network
        if isinstance(network, Network) and type(network).forward is Network.forward:  # others have no plain logits
            with torch.no_grad():
                found = network.classifier(support).argmax(1).cpu().numpy()
            diagnostics["train_accuracy"] = float((found == data.labels[rows]).mean())
        if config.method.classifier == "fixed":
            diagnostics |= vertices(support.cpu().numpy(), data.labels[rows], self.plan.num_outputs)
        return in_precision(features, config.eval.features), diagnostics


def stored_features(link: Tensors) -> Features:
    """Return the features of the open images or templates from the tensors of a link."""
    return Features(link[OPEN].numpy(), link[PROJECTION].cpu().numpy() if PROJECTION in link else None)


def in_precision(features: Tensors, precision: Literal["float32", "float16"]) -> Tensors:
    """Return the features as a link stores them. Raise TrainingError if float16 cannot hold them (above 65 504)."""
    if precision == "float32":
        return features
    halves = {name: tensor.half() for name, tensor in features.items()}
    for name, tensor in halves.items():
        if not torch.isfinite(tensor).all():
            raise TrainingError(f"eval.features=float16: {name} has values above 65504; keep float32")
    return halves


def extract(extractor: nn.Module, pixels: Pixels, rows: Rows, normalise: Normalise) -> Tensor:
    """Return φ of the images at `rows`, in order, on the CPU."""
    return torch.cat([features.cpu() for features in _batches(extractor, pixels, rows, normalise)])


def extract_templates(
    extractor: nn.Module, projection: Tensor | None, pixels: Pixels, templates: Templates, normalise: Normalise
) -> Tensor:
    """Return the pooled features of every template; with a projection, `extractor` computes b(x)."""
    gram = None if projection is None else projection.T @ projection
    template, shares = torch.from_numpy(templates.template), torch.from_numpy(templates.weights)
    pooled, start = torch.empty(0), 0
    for features in _batches(extractor, pixels, np.arange(len(pixels)), normalise):
        if start == 0:
            pooled = torch.zeros(len(templates), features.shape[1])
        stop = start + len(features)
        if gram is None:
            lengths = torch.linalg.vector_norm(features, dim=1)
        else:
            lengths = ((features @ gram) * features).sum(1).clamp(min=0).sqrt()
        weights = (shares[start:stop] / lengths.cpu().clamp(min=1e-12)).float()
        pooled.index_add_(0, template[start:stop], features.cpu() * weights[:, None])
        start = stop
    return pooled


def split_projection(extractor: nn.Module) -> tuple[nn.Module, Tensor | None]:
    """Return b and P if φ(x) = P·b(x) has more than `FACTORED_ABOVE` dimensions, otherwise φ and None."""
    if isinstance(extractor, nn.Sequential):
        last = extractor[-1]
        if isinstance(last, nn.Linear) and last.bias is None and last.out_features > FACTORED_ABOVE:
            return extractor[:-1], last.weight.detach()
    return extractor, None


def flops(module: Callable[[Tensor], Tensor], rows: Tensor) -> float:
    """Return the FLOPs of a module per row, two per multiply-add."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(rows)
    return float(counter.get_total_flops() / len(rows))


def _batches(extractor: nn.Module, pixels: Pixels, rows: Rows, normalise: Normalise) -> Iterator[Tensor]:
    extractor.eval()
    batches = [rows[start : start + EXTRACTION_BATCH] for start in range(0, len(rows), EXTRACTION_BATCH)]
    for images in pixels.stream(batches):
        with torch.inference_mode():
            features = extractor(normalise(images)).float()
        yield features
