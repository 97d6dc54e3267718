"""What a link keeps of features (of open images, of a sample of T_t, of galleries a method maps), and their figures."""

from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from cl2r.augment import Normalise
from cl2r.engine.evaluation import Features
from cl2r.engine.extraction import extract, extract_templates, split_projection
from cl2r.engine.figures import common_direction, drift_figures, flops, support_rows, vertex_figures
from cl2r.engine.pixels import Look, Pixels, open_pixels
from cl2r.engine.plan import Plan
from cl2r.engine.store import Tensors
from cl2r.errors import TrainingError
from cl2r.methods.base import Method, TaskData
from cl2r.methods.info import MethodInfo
from cl2r.pair_distances import Factored

GALLERY = "gallery_{}"  # of φ_k, as it is stored after this task
OPEN, PROJECTION, SUPPORT, SUPPORT_OLD = "open", "projection", "support", "support_old"


def stored(link: Tensors) -> Features | Factored:
    """The open images or templates as a link keeps them."""
    rows = link[OPEN].numpy()
    return Factored(rows, link[PROJECTION].cpu().numpy()) if PROJECTION in link else rows


def in_precision(features: Tensors, precision: Literal["float32", "float16"]) -> Tensors:
    """As a link keeps them. What float16 cannot hold (above 65 504) is refused: its cosines would be lost."""
    if precision == "float32":
        return features
    halves = {name: tensor.half() for name, tensor in features.items()}
    for name, tensor in halves.items():
        if not torch.isfinite(tensor).all():
            raise TrainingError(f"eval.features=float16: {name} has values above 65504; keep float32")
    return halves


class LinkFeatures:
    """Looks at the open images of a plan with one model after the other."""

    def __init__(self, plan: Plan, info: MethodInfo, device: torch.device) -> None:
        self.plan, self.info, self.device = plan, info, device
        own = plan.config.eval.normalise == "own"
        self.normalise = Normalise(*(plan.dataset.open_moments if own else plan.dataset.moments), device)

    def of(
        self, method: Method, previous: nn.Module | None, data: TaskData, before: Tensors
    ) -> tuple[Tensors, dict[str, float]]:
        """What link t keeps of features, and the figures read off them; `before` is what link t-1 kept."""
        task, extractor, config = method.task.index, method.extractor(), self.plan.config
        rows = support_rows(data.new, data.memory, config.seed, task)
        features, support = self._open_features(extractor), data.apply(extractor, rows)
        if not torch.isfinite(features[OPEN]).all():
            raise TrainingError(f"task {task}: the features are not finite; try a lower optim.lr")
        figures = self._figures(extractor, stored(features), support)
        if PROJECTION not in features:  # else no adapter will ask for the support, and it is large
            features[SUPPORT] = support
            if previous is not None:
                features[SUPPORT_OLD] = data.apply(previous, rows)
        if previous is not None:
            figures |= drift_figures(stored(features), stored(before))
            if self.info.gallery:
                features |= self._adapted(method, before, task)
                figures["gallery_flops"] = flops(method.adapt_gallery, before[OPEN][:1].to(self.device))
        if config.method.classifier == "fixed":
            figures |= vertex_figures(support, data.labels[rows], self.plan.num_outputs)
        return features, figures

    def _figures(self, extractor: nn.Module, now: Features | Factored, support: Tensor) -> dict[str, float]:
        image = self.normalise(*self._open.stream([Look(np.arange(1))]))
        return {
            "common_direction": common_direction(now),
            "feature_size": float(support.shape[1]),
            "model_bytes": float(sum(tensor.nbytes for tensor in extractor.state_dict().values())),
            "forward_flops": flops(extractor, image),
        }

    @cached_property
    def _open(self) -> Pixels:
        return open_pixels(self.plan.dataset, self.plan.config.data.loaders, self.device)

    def _open_features(self, extractor: nn.Module) -> Tensors:
        """φ_t of every open image or template, or b(x) and the projection."""
        projection, templates = None, self.plan.dataset.templates
        if not self.info.gallery:
            extractor, projection = split_projection(extractor)
        if templates is None:
            rows = extract(extractor, self._open, np.arange(len(self._open)), self.normalise)
        else:
            rows = extract_templates(extractor, projection, self._open, templates, self.normalise)
        return {OPEN: rows} if projection is None else {OPEN: rows, PROJECTION: projection}

    def _adapted(self, method: Method, before: Tensors, task: int) -> Tensors:
        """Every gallery stored so far, by older models too, in the space of φ_t."""
        known = {GALLERY.format(k): before[GALLERY.format(k)] for k in range(1, task - 1)}
        known[GALLERY.format(task - 1)] = before[OPEN]
        return {name: method.adapt_gallery(tensor.to(self.device)).cpu() for name, tensor in known.items()}
