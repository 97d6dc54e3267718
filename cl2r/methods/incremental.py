"""What most methods have in common: φ, a classifier that grows with the classes, and a frozen model of the task before.

A method of this kind gives its own classifier, what it adds to the cross-entropy, and nothing else.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from cl2r.backbones import build_backbone, compile_backbones, folded
from cl2r.config import Config
from cl2r.distillation import distillation_weight, feature_distillation, logit_distillation
from cl2r.heads import TrainableClassifier, build_projection
from cl2r.methods.base import Batch, Losses, Method, Outputs, TaskData, TaskInfo, channels_last
from cl2r.seeding import derive, torch_stream


class Network(nn.Module):
    """φ (backbone, centring, projection) and a classifier."""

    def __init__(self, phi: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.phi = phi
        self.classifier = classifier

    def forward(self, x: Tensor) -> Outputs:
        """φ(x) and its logits."""
        features = self.phi(x)
        return Outputs(features, self.classifier(features))


class Incremental(Method):
    """L = CE(z, y; T_t) + λ_t · FD(S), S as `method.fd` says. Subclasses change classifier and loss."""

    network: Network
    teacher: nn.Module | None

    def __init__(self, config: Config, channels: int, num_outputs: int) -> None:
        super().__init__(config, channels, num_outputs)
        phi = self.initial_phi()
        self.network = Network(phi, self.build_classifier())
        channels_last(self.network)
        self.teacher = None
        self.weight = 0.0
        self._task = TaskInfo(0, 0, 0, 0)

    def initial_phi(self, *task: int) -> nn.Sequential:
        """Fresh weights. Same ones for every method: the classifier draws from a stream of its own."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(self.config.seed, "init", *task))
            spec, head = self.config.backbone, self.config.head
            backbone = build_backbone(spec.name, self.channels, spec.last_relu)
            centre = nn.BatchNorm1d(backbone.dim, affine=False) if head.centre else nn.Identity()
            projection = build_projection(head.projection, backbone.dim, self.num_outputs - 1)
        self.feature_size = backbone.dim if head.projection == "none" else self.num_outputs - 1
        return nn.Sequential(backbone, centre, projection)

    def build_classifier(self) -> nn.Module:
        """The classifier before its first task."""
        return TrainableClassifier(self.feature_size)

    @property
    def task(self) -> TaskInfo:
        """The task begun last."""
        return self._task

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.network.parameters()).device

    def begin_task(self, task: TaskInfo, data: TaskData) -> None:
        """Keep a teacher where one is needed, and give the new classes their outputs."""
        self.teacher = self.build_teacher() if task.index > 1 and self.needs_teacher(task) else None
        if self.teacher is not None and self.config.optim.compile:
            compile_backbones(self.teacher)
        self.weight = self._distillation_weight(task)
        self._task = task
        self.grow(task, data)

    def needs_teacher(self, task: TaskInfo) -> bool:
        """Whether task t > 1 looks at the model of task t-1; by default for FD only."""
        return self._distils(task)

    def build_teacher(self) -> nn.Module:
        """The network of task t-1, frozen, with folded batch norms: gives `Outputs`."""
        return folded(self.network)

    def grow(self, task: TaskInfo, data: TaskData) -> None:
        """Outputs for the new classes; rows of old ones stay as they are."""
        classifier = self.network.classifier
        if isinstance(classifier, TrainableClassifier):
            rows = self.num_outputs if self.config.head.preallocate else task.seen_classes
            classifier.grow_to(rows, torch_stream(self.config.seed, "classifier", task.index))

    def _distils(self, task: TaskInfo) -> bool:
        """FD needs an old model, and, unless told otherwise, memory (λ_t is defined through the memory's classes)."""
        method = self.config.method
        if task.index == 1 or method.fd == "none" or method.lambda_base == 0:
            return False
        return task.memory_rows > 0 or method.fd_when_no_memory == "on_new"

    def _distillation_weight(self, task: TaskInfo) -> float:
        method = self.config.method
        if not self._distils(task):
            return 0.0
        return distillation_weight(method.lambda_base, method.lambda_rule, task.new_classes, task.old_classes)

    def loss(self, batch: Batch, network: nn.Module) -> Losses:
        """CE over the classifier's outputs, and λ_t · FD over the rows `config.method.fd` names."""
        out: Outputs = network(batch.x)
        return {"ce": self.cross_entropy(out.logits, batch), **self.distillation(batch, out.features)}

    def cross_entropy(self, logits: Tensor, batch: Batch) -> Tensor:
        """CE over all of the classifier's outputs, or over those of the classes seen."""
        if self.config.head.mask_unseen:
            logits = logits[:, : self.task.seen_classes]
        return functional.cross_entropy(logits.float(), batch.y) * batch.weight(len(batch.y))

    def distillation(self, batch: Batch, features: Tensor) -> Losses:
        """λ_t · FD. The teacher sees only the rows it is needed for: in eval mode a row's feature is its own alone."""
        if self.weight == 0 or self.teacher is None:
            return {}
        on_all = self.config.method.fd == "all" or self.task.memory_rows == 0
        rows = torch.arange(len(batch.y), device=batch.y.device) if on_all else batch.is_memory.nonzero()[:, 0]
        old = self.old_features(batch.x if on_all else batch.x[rows])
        return {"fd": self.weight * feature_distillation(features[rows], old) * batch.weight(len(rows))}

    def old_features(self, x: Tensor) -> Tensor:
        """φ_{t-1}(x)."""
        return self.old_outputs(x).features

    def old_outputs(self, x: Tensor) -> Outputs:
        """What the model of task t-1 says of x."""
        assert self.teacher is not None
        with torch.no_grad():
            old: Outputs = self.teacher(x)
        return old

    def logit_distillation(self, logits: Tensor, batch: Batch, temperature: float) -> Tensor:
        """KD_T over the outputs of the old classes, on all rows."""
        old = self.old_outputs(batch.x).logits
        return logit_distillation(logits[:, : self.task.old_classes], old, temperature) * batch.weight(len(batch.y))

    def extractor(self) -> nn.Module:
        """φ_t with folded batch norms."""
        return folded(self.network.phi)

    def metrics(self) -> dict[str, float]:
        """λ_t, 0 where nothing is distilled."""
        return {"lambda": self.weight}

    def carry(self) -> dict[str, Tensor]:
        """The network; the teacher of task t+1 is the model of task t itself."""
        return {name: tensor.detach().clone() for name, tensor in self.network.state_dict().items()}

    def restore(self, tensors: dict[str, Tensor], task: TaskInfo) -> None:
        """Rows of a classifier that grows first, then all weights."""
        classifier = self.network.classifier
        if isinstance(classifier, TrainableClassifier):
            classifier.weight = nn.Parameter(torch.empty_like(tensors["classifier.weight"]))
        self.network.load_state_dict(tensors)
        self.teacher, self.weight, self._task = None, 0.0, task
