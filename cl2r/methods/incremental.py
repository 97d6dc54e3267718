"""What most methods share: φ, a classifier that grows with the classes, and a frozen model of the previous task.

A method of this kind provides its classifier and the terms it adds to the cross-entropy.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from cl2r.backbones import build_backbone, compile_backbones, find_backbone, folded
from cl2r.batches import Batch, RowKind
from cl2r.config.schema import Config
from cl2r.distillation import distillation_weight, feature_distillation, logit_distillation
from cl2r.errors import InputError
from cl2r.heads import TrainableClassifier, build_projection
from cl2r.methods.base import Losses, Method, OptionsT, Outputs, TaskData, TaskInfo, Tensors
from cl2r.seeding import derive, torch_stream


def channels_last(module: nn.Module) -> nn.Module:
    """3×3 convolutions on small maps run several times faster on a CPU in this layout, and no slower on a GPU."""
    return module.to(memory_format=torch.channels_last)


class Network(nn.Module):
    """φ (backbone, centring, projection) and a classifier."""

    def __init__(self, phi: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.phi = phi
        self.classifier = classifier

    def forward(self, x: Tensor) -> Outputs:
        features = self.phi(x)
        return Outputs(features, self.classifier(features))


class Incremental(Method[OptionsT]):
    """L = CE(z, y; T_t) + λ_t · FD(S), S according to `method.fd`. Subclasses change classifier and loss."""

    network: Network
    network_type: type[Network] = Network
    keeps_teacher = False  # whether every later task uses the model before it, with or without FD
    teacher: nn.Module | None = None
    weight: float = 0.0  # λ_t

    def __init__(self, config: Config, channels: int, num_outputs: int) -> None:
        super().__init__(config, channels, num_outputs)
        phi = self.initial_phi()  # sets the feature size
        self.network = self.network_type(phi, self.build_classifier())
        channels_last(self.network)
        self.values: dict[str, float] = {}
        """Diagnostics of the current task besides λ_t."""

    @classmethod
    def check(cls, config: Config) -> None:
        find_backbone(config.backbone.name)

    def initial_phi(self, *task: int) -> nn.Sequential:
        """Return φ with fresh weights, the same for every method: classifiers draw from their own stream."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(self.config.seed, "init", *task))
            spec, head = self.config.backbone, self.config.head
            backbone = build_backbone(spec.name, self.channels, spec.last_relu)
            centre = nn.BatchNorm1d(backbone.dim, affine=False) if head.centre else nn.Identity()
            projection = build_projection(head.projection, backbone.dim, self.num_outputs - 1)
        self.feature_size = backbone.dim if head.projection == "none" else self.num_outputs - 1
        return nn.Sequential(backbone, centre, projection)

    def build_classifier(self) -> nn.Module:
        """Return the classifier before its first task."""
        return TrainableClassifier(self.feature_size, self.config.head.bias)

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return next(self.network.parameters()).device

    def begin_task(self, task: TaskInfo, data: TaskData) -> None:
        self.teacher = self.build_teacher() if task.index > 1 and self.needs_teacher(task) else None
        if self.teacher is not None and self.config.optim.compile:
            compile_backbones(self.teacher)
        method, self.weight, self.task, self.values = self.config.method, 0.0, task, {}
        if self._distils(task):
            rule = method.lambda_rule
            self.weight = distillation_weight(method.lambda_base, rule, task.new_classes, task.old_classes)
        self.grow(task, data)

    def needs_teacher(self, task: TaskInfo) -> bool:
        """Return whether task t > 1 uses the model of task t-1; by default only for FD."""
        return self.keeps_teacher or self._distils(task)

    def _distils(self, task: TaskInfo) -> bool:
        """FD needs an old model and, unless configured otherwise, memory: λ_t is defined by the memory's classes."""
        method = self.config.method
        if task.index == 1 or method.fd == "none" or method.lambda_base == 0:
            return False
        return task.memory_rows > 0 or method.fd_when_no_memory == "on_new"

    def build_teacher(self) -> nn.Module:
        """Return the network of task t-1, frozen, with folded batch norms; it returns `Outputs`."""
        return folded(self.network)

    def grow(self, task: TaskInfo, data: TaskData) -> None:
        """Add outputs for the new classes; rows of old classes stay as they are."""
        classifier = self.network.classifier
        if isinstance(classifier, TrainableClassifier):
            rows = self.num_outputs if self.config.head.preallocate else task.seen_classes
            classifier.grow_to(rows, torch_stream(self.config.seed, "classifier", task.index))

    def restart_phi(self, task: TaskInfo) -> None:
        """Give φ fresh weights, other ones in every task."""
        # Values, not modules: the device, the memory layout and synchronised batch norms stay as they are.
        self.network.phi.load_state_dict(self.initial_phi(task.index).state_dict())

    def new_class_means(self, features: Tensor, task: TaskInfo, data: TaskData) -> Tensor:
        """Return the mean feature of every new class; `features` belong to the rows of D_t."""
        labels = torch.from_numpy(data.labels[data.new]).to(features.device)
        return torch.stack([features[labels == label].mean(0) for label in range(task.old_classes, task.seen_classes)])

    def loss(self, batch: Batch, network: nn.Module) -> Losses:
        out: Outputs = network(batch.x)
        return {"ce": self.cross_entropy(out.logits, batch), **self.distillation(batch, out.features)}

    def cross_entropy(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return CE over all outputs of the classifier, or over the outputs of the classes seen."""
        if self.config.head.mask_unseen:
            logits = logits[:, : self.task.seen_classes]
        return functional.cross_entropy(logits.float(), batch.y) * batch.weight()

    def distillation(self, batch: Batch, features: Tensor) -> Losses:
        """Return λ_t · FD over the rows that `method.fd` names.

        The teacher gets only those rows: in eval mode a row's feature does not depend on the other rows.
        """
        if self.weight == 0 or self.teacher is None:
            return {}
        kind: RowKind = "all" if self.config.method.fd == "all" or self.task.memory_rows == 0 else "memory"
        rows = batch.rows(kind)
        old = self.old_features(batch.x if kind == "all" else batch.x[rows])
        return {"fd": self.weight * feature_distillation(features[rows], old) * batch.weight(kind)}

    def old_features(self, x: Tensor) -> Tensor:
        """Return φ_{t-1}(x)."""
        return self.old_outputs(x).features

    def old_outputs(self, x: Tensor) -> Outputs:
        """Return the outputs of the model of task t-1."""
        assert self.teacher is not None
        with torch.no_grad():
            old: Outputs = self.teacher(x)
        return old

    def logit_distillation(self, logits: Tensor, batch: Batch, temperature: float) -> Tensor:
        """Return KD_T over the outputs of the old classes, on all rows."""
        old = self.old_outputs(batch.x).logits
        return logit_distillation(logits[:, : self.task.old_classes], old, temperature) * batch.weight()

    def extractor(self) -> nn.Module:
        return folded(self.network.phi)

    def diagnostics(self) -> dict[str, float]:
        return {"lambda": self.weight, **self.values}

    def carry(self) -> Tensors:
        # The teacher of task t+1 is the model of task t itself.
        return {name: tensor.detach().clone() for name, tensor in self.network.state_dict().items()}

    def restore(self, tensors: Tensors, task: TaskInfo) -> None:
        own = self.network.state_dict()
        grown: dict[Tensor, Tensor] = {}
        if own.keys() != tensors.keys():
            differ = ", ".join(sorted(own.keys() ^ tensors.keys()))
            raise InputError(f"method {self.config.method.name}: restore() does not build what it carries: {differ}")
        for name, stored in tensors.items():
            before, now = own[name].shape, stored.shape
            if before != now:
                if len(before) != len(now) or any(a > b for a, b in zip(before, now, strict=True)):
                    built = f"restore() builds {name} of size {list(before)}, but {list(now)} was stored"
                    raise InputError(f"method {self.config.method.name}: {built}; build it no larger")
                place, _, last = name.rpartition(".")  # it grew
                module, empty = self.network.get_submodule(place), torch.empty_like(stored)
                small = getattr(module, last)
                large = nn.Parameter(empty) if isinstance(small, nn.Parameter) else empty
                setattr(module, last, grown.setdefault(small, large))  # one tensor under two names stays one
        self.network.load_state_dict(tensors)
        self.teacher, self.weight, self.task, self.values = None, 0.0, task, {}
