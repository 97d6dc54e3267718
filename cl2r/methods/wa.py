"""WA (weight aligning): distillation, then the classifier's new rows get the length of its old ones.

    L = λ · KD_T(z, z°; old classes) + (1 − λ) · CE(z, y; classes seen),    λ = n / N_t,
    at the end of task t > 1:    w_j ← γ · w_j for new j,    γ = mean ‖w_old‖ / mean ‖w_new‖.

γ leaves φ_t as it is: it matters through the teacher and the old rows of task t+1. The original is said to clip the
weights at 0 as well; that could not be checked and is left out.
"""

from torch import nn

from cl2r.config import Config
from cl2r.heads import TrainableClassifier
from cl2r.methods.base import Batch, Losses, Outputs, TaskData, TaskInfo
from cl2r.methods.incremental import Incremental
from cl2r.methods.options import WaOptions


class Wa(Incremental):
    """WA. The carried classifier is the aligned one."""

    def __init__(self, config: Config, channels: int, num_outputs: int) -> None:
        super().__init__(config, channels, num_outputs)
        self.options = config.section(WaOptions)
        self.gamma: float | None = None

    def begin_task(self, task: TaskInfo, data: TaskData) -> None:
        """λ = n / N_t: 0 in task 1, then the more old classes, the more distillation."""
        super().begin_task(task, data)
        self.weight, self.gamma = task.old_classes / task.seen_classes, None

    def needs_teacher(self, task: TaskInfo) -> bool:
        """Also without memory."""
        return True

    def loss(self, batch: Batch, network: nn.Module) -> Losses:
        """CE in task 1, then its mix with KD_T."""
        out: Outputs = network(batch.x)
        ce = self.cross_entropy(out.logits, batch)
        if self.teacher is None:
            return {"ce": ce}
        kd = self.logit_distillation(out.logits, batch, self.options.temperature)
        return {"ce": (1 - self.weight) * ce, "kd": self.weight * kd}

    def end_task(self) -> None:
        """Align the new rows; in task 1 there is nothing to align to."""
        if self.task.index == 1:
            return
        classifier = self.network.classifier
        assert isinstance(classifier, TrainableClassifier)
        self.gamma = classifier.align(self.task.old_classes)

    def metrics(self) -> dict[str, float]:
        """λ, and γ where rows were aligned."""
        return {**super().metrics(), **({} if self.gamma is None else {"gamma": self.gamma})}
