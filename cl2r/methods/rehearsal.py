"""The rehearsal family: {trainable, fixed} classifier × {none, all, memory} feature distillation.

    L = CE(z, y; T_t) + λ_t · FD(S),    S = ∅ | T_t | M_t.

Trainable and S = ∅ is Experience Replay; fixed and S = M_t is CL²R. All six share backbone, projection, initial weights
and the order of the data, so that two cells differ in exactly what their names say.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from cl2r.backbones import build_backbone, folded
from cl2r.config import Config
from cl2r.distillation import distillation_weight, feature_distillation
from cl2r.heads import TrainableClassifier, build_projection
from cl2r.methods.base import Batch, Losses, Method, Outputs, TaskInfo, channels_last
from cl2r.seeding import derive, torch_stream
from cl2r.simplex import SimplexClassifier


class RehearsalNetwork(nn.Module):
    """Backbone, projection to φ(x), classifier."""

    def __init__(self, phi: nn.Sequential, classifier: nn.Module) -> None:
        super().__init__()
        self.phi = phi
        self.classifier = classifier

    def forward(self, x: Tensor) -> Outputs:
        """φ(x) and its logits."""
        features = self.phi(x)
        return Outputs(features, self.classifier(features))


class Rehearsal(Method):
    """One of the six cells, as `config.method` says."""

    network: RehearsalNetwork

    def __init__(self, config: Config, channels: int, num_outputs: int) -> None:
        super().__init__(config, channels, num_outputs)
        self.network = RehearsalNetwork(self._initial_phi(), self._classifier())
        channels_last(self.network)
        self.teacher: nn.Module | None = None
        self.weight = 0.0
        self._task = TaskInfo(0, 0, 0, 0)

    def _initial_phi(self) -> nn.Sequential:
        """Same initial weights for every cell: the classifier draws from a stream of its own."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(self.config.seed, "init"))
            spec, head = self.config.backbone, self.config.head
            backbone = build_backbone(spec.name, self.channels, spec.last_relu)
            centre = nn.BatchNorm1d(backbone.dim, affine=False) if head.centre else nn.Identity()
            projection = build_projection(head.projection, backbone.dim, self.num_outputs - 1)
        self.feature_size = backbone.dim if head.projection == "none" else self.num_outputs - 1
        return nn.Sequential(backbone, centre, projection)

    def _classifier(self) -> nn.Module:
        if self.config.method.classifier == "fixed":
            return SimplexClassifier(self.num_outputs, self.config.simplex.scale)
        return TrainableClassifier(self.feature_size)

    @property
    def task(self) -> TaskInfo:
        """The task begun last."""
        return self._task

    def begin_task(self, task: TaskInfo) -> None:
        """Keep φ_{t-1} as teacher where FD needs it, and give the new classes their outputs."""
        self.teacher = folded(self.network.phi) if self._distils(task) else None
        self.weight = 0.0
        if self.teacher is not None:
            method = self.config.method
            self.weight = distillation_weight(
                method.lambda_base, method.lambda_rule, task.new_classes, task.old_classes
            )
        self._task = task
        self._grow(task)

    def _distils(self, task: TaskInfo) -> bool:
        """FD needs an old model, and, unless told otherwise, memory (λ_t is defined through the memory's classes)."""
        method = self.config.method
        if task.index == 1 or method.fd == "none" or method.lambda_base == 0:
            return False
        return task.memory_rows > 0 or method.fd_when_no_memory == "on_new"

    def _grow(self, task: TaskInfo) -> None:
        classifier = self.network.classifier
        if isinstance(classifier, TrainableClassifier):
            rows = self.num_outputs if self.config.head.preallocate else task.seen_classes
            classifier.grow_to(rows, torch_stream(self.config.seed, "classifier", task.index))

    def loss(self, batch: Batch, network: nn.Module) -> Losses:
        """CE over the classifier's outputs, and λ_t · FD over the rows `config.method.fd` names."""
        out: Outputs = network(batch.x)
        logits = out.logits
        if self.config.head.mask_unseen:
            logits = logits[:, : self.task.seen_classes]
        losses = {"ce": functional.cross_entropy(logits.float(), batch.y) * batch.weight(len(batch.y))}
        if self.teacher is not None:
            losses["fd"] = self.weight * self._distillation(batch, out.features, self.teacher)
        return losses

    def _distillation(self, batch: Batch, features: Tensor, teacher: nn.Module) -> Tensor:
        """The teacher sees only the rows it is needed for: in eval mode a row's feature depends on that row alone."""
        on_all = self.config.method.fd == "all" or self.task.memory_rows == 0
        rows = torch.arange(len(batch.y), device=batch.y.device) if on_all else batch.is_memory.nonzero()[:, 0]
        with torch.no_grad():
            old = teacher(batch.x if on_all else batch.x[rows])
        return feature_distillation(features[rows], old) * batch.weight(len(rows))

    def extractor(self) -> nn.Module:
        """φ_t with folded batch norms."""
        return folded(self.network.phi)

    def metrics(self) -> dict[str, float]:
        """λ_t, 0 where nothing is distilled."""
        return {"lambda": self.weight}

    def carry(self) -> dict[str, Tensor]:
        """The network; the teacher of task t+1 is φ_t itself."""
        return {name: tensor.detach().clone() for name, tensor in self.network.state_dict().items()}

    def restore(self, tensors: dict[str, Tensor], task: TaskInfo) -> None:
        """Rows of a trainable classifier first, then all weights."""
        classifier = self.network.classifier
        if isinstance(classifier, TrainableClassifier):
            classifier.weight = nn.Parameter(torch.empty_like(tensors["classifier.weight"]))
        self.network.load_state_dict(tensors)
        self.teacher, self.weight, self._task = None, 0.0, task
