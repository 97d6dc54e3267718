"""WA (weight aligning): distillation, then the classifier's new rows get the mean length of its old ones.

    L = λ · KD_T(z, z°; old classes) + (1 − λ) · CE(z, y; classes seen),    λ = n / N_t,
    at the end of task t > 1:    w_j ← γ · w_j for new j,    γ = mean ‖w_old‖ / mean ‖w_new‖.

γ leaves φ_t as it is: it matters through the teacher and the old rows of task t+1. The original is said to clip the
weights at 0 as well; that could not be checked and is left out.
"""

from torch import nn

from cl2r.batches import Batch
from cl2r.config.builtin import WaOptions
from cl2r.heads import TrainableClassifier
from cl2r.methods.base import Losses, Outputs, TaskData, TaskInfo
from cl2r.methods.incremental import Incremental


class Wa(Incremental[WaOptions]):
    """WA. The carried classifier is the aligned one."""

    keeps_teacher = True

    def begin_task(self, task: TaskInfo, data: TaskData) -> None:
        super().begin_task(task, data)
        self.weight = task.old_classes / task.seen_classes

    def loss(self, batch: Batch, network: nn.Module) -> Losses:
        out: Outputs = network(batch.x)
        ce = self.cross_entropy(out.logits, batch)
        if self.teacher is None:
            return {"ce": ce}
        kd = self.logit_distillation(out.logits, batch, self.options.temperature)
        return {"ce": (1 - self.weight) * ce, "kd": self.weight * kd}

    def end_task(self) -> None:
        if self.task.index > 1:
            classifier = self.network.classifier
            assert isinstance(classifier, TrainableClassifier)
            self.values["gamma"] = classifier.align(self.task.old_classes)
