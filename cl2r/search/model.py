"""A model φ_t at work: images to vectors, and how its queries meet the galleries of older models.

    most methods     a query by φ_t meets a gallery of φ_k as it is
    adapters         the query is mapped into the space of φ_k (`cl2r/adapters.py`); the gallery is untouched
    FAN              the gallery is mapped, ψ_t ∘ … ∘ ψ_{k+1}; queries are untouched
    growing φ (DER)  the query is cut to the dimensions of φ_k

Vectors have length one, so that an inner product is a cosine.
"""

import hashlib
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from cl2r.adapters import QueryAdapter, Support
from cl2r.augment import Normalise
from cl2r.config import Config
from cl2r.errors import InputError
from cl2r.methods.base import Method, TaskInfo
from cl2r.methods.catalog import method_info
from cl2r.methods.registry import build_method
from cl2r.search.snapshot import Snapshot

Images = npt.NDArray[np.uint8]
Vectors = npt.NDArray[np.float32]
BATCH = 256
CARRIED = 8192  # gallery vectors mapped at a time


class Model:
    """φ_t on a device."""

    def __init__(self, snapshot: Snapshot, device: torch.device | None = None) -> None:
        self.snapshot, self.card = snapshot, snapshot.card
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.config = Config.model_validate(dict(self.card.config))
        self.info = method_info(self.config.method.name)
        self.normalise = Normalise(self.card.mean, self.card.std, self.device)
        self._methods: dict[int, Method] = {}
        self._extractors: dict[int, nn.Module] = {}

    @cached_property
    def dim(self) -> int:
        """Dimensions of its vectors."""
        return int(self.embed(np.zeros((1, self.card.size, self.card.size, self.card.channels), np.uint8)).shape[1])

    @cached_property
    def digest(self) -> str:
        """Of its weights: the same run trained on another machine has the same key, but other bits."""
        found = hashlib.sha256()
        for name, tensor in sorted(self.snapshot.states[self.card.task].items()):
            found.update(name.encode())
            found.update(np.ascontiguousarray(tensor.cpu().numpy()).tobytes())
        return found.hexdigest()[:32]

    def embed(self, images: Images, task: int | None = None) -> Vectors:
        """φ_t(x)/‖φ_t(x)‖ of uint8 (N, H, W, C); of an older model of the chain where its state is at hand."""
        self._refuse_others(images)
        extractor = self._extractor(task or self.card.task)
        rows = [self._embed(extractor, images[start : start + BATCH]) for start in range(0, len(images), BATCH)]
        return np.concatenate(rows) if rows else np.empty((0, self.dim), np.float32)

    def _refuse_others(self, images: Images) -> None:
        """The network would take images of any size, and one channel for three, and give vectors of no use."""
        right = (self.card.size, self.card.size, self.card.channels)
        if images.dtype != np.uint8 or images.shape[1:] != right:
            found = f"{images.dtype} of shape {images.shape}"
            raise InputError(f"{self.card.name}: expected images as uint8 of shape {('N', *right)}, found {found}")

    def _embed(self, extractor: nn.Module, images: Images) -> Vectors:
        with torch.inference_mode():
            batch = torch.from_numpy(np.array(images, order="C")).to(self.device)  # a copy, which PyTorch can own
            features = extractor(self.normalise(batch)).float()
            return np.asarray(functional.normalize(features).cpu().numpy())

    @property
    def carries_gallery(self) -> bool:
        """Whether stored vectors of older models must be mapped before its queries can meet them."""
        return self.info.gallery

    @property
    def adapts_queries(self) -> bool:
        """Whether its queries are mapped into the space of older models."""
        return self.config.adapter.name != "none"

    def toward(self, queries: Vectors, task: int, images: Images | None = None) -> Vectors:
        """Its queries as they meet a gallery of φ_k, k = `task`; slerp needs the images."""
        self._refuse_later(task)
        if task == self.card.task:
            return queries
        if self.info.grows:
            old = sum(self._dims[:task])
            return np.asarray(functional.normalize(torch.from_numpy(queries[:, :old])).numpy())
        if not self.adapts_queries:
            return queries
        seen: list[Vectors] = [queries] * self.card.task
        if self.config.adapter.name == "slerp":
            if images is None:
                raise InputError("the adapter slerp runs old models on every query: give images, not vectors")
            seen[task - 1] = self.embed(images, task)
        return self._adapter(seen, self.card.task - 1, task - 1)

    def carry(self, vectors: Vectors, task: int) -> Vectors:
        """Stored vectors of φ_k, k = `task`, in the space of φ_t: ψ_t ∘ … ∘ ψ_{k+1}."""
        self._refuse_later(task)
        if not self.carries_gallery or task == self.card.task:
            return vectors
        blocks = [vectors[start : start + CARRIED] for start in range(0, len(vectors), CARRIED)]
        mapped = [self._carry(np.array(block, np.float32), task) for block in blocks]
        return np.concatenate(mapped) if mapped else vectors

    def _refuse_later(self, task: int) -> None:
        if not 1 <= task <= self.card.task:
            raise InputError(f"{self.card.name}: it meets galleries of φ_1..φ_{self.card.task}, not of φ_{task}")

    def _carry(self, block: Vectors, task: int) -> Vectors:
        with torch.inference_mode():
            carried: Tensor = torch.from_numpy(block).to(self.device)
            for step in range(task + 1, self.card.task + 1):
                carried = self.method(step).adapt_gallery(carried)
            return np.asarray(functional.normalize(carried.float()).cpu().numpy())

    @cached_property
    def _dims(self) -> list[int]:
        """A growing φ has the same number of new dimensions in every task."""
        return [self.dim // self.card.task] * self.card.task

    @cached_property
    def _adapter(self) -> QueryAdapter:
        supports = [
            Support(kept["support"].cpu().numpy(), kept["support_old"].cpu().numpy())
            for _, kept in sorted(self.snapshot.supports.items())
        ]
        return QueryAdapter(self.config.adapter, supports)

    def _extractor(self, task: int) -> nn.Module:
        if task not in self._extractors:
            self._extractors[task] = self.method(task).extractor().eval()
        return self._extractors[task]

    def method(self, task: int) -> Method:
        """The method as link `task` left it."""
        if task not in self._methods:
            card = self.card
            method = build_method(self.config, card.channels, card.num_outputs)
            method.network.to(self.device)
            state = {name: tensor.to(self.device) for name, tensor in self.snapshot.states[task].items()}
            old = sum(card.classes[: task - 1])
            try:
                memory = len(state.pop("memory"))
                method.restore(
                    {name.removeprefix("method/"): tensor for name, tensor in state.items()},
                    TaskInfo(task, old, card.classes[task - 1], memory),
                )
            except (RuntimeError, KeyError) as error:
                why = " ".join(str(error).split())[:200]
                raise InputError(f"{card.name}: its tensors do not fit its config ({why})") from error
            method.network.eval()
            self._methods[task] = method
        return self._methods[task]
