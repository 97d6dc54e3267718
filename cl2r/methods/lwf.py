"""Learning without Forgetting: the old network's answers on the current images replace old images.

    L = CE(z, y; J) + w · KD_T(z, z°; old classes),    J = new classes | classes seen,

z° from the whole network of task t-1, KD over all rows, its softmax over the old classes on both sides.
"""

from torch import Tensor, nn
from torch.nn import functional

from cl2r.batches import Batch
from cl2r.config.builtin import LwfOptions
from cl2r.methods.base import Losses, Outputs, TaskInfo
from cl2r.methods.incremental import Incremental


class Lwf(Incremental[LwfOptions]):
    """LwF with the softmax of `lwf.ce`; without distillation and over the classes seen it is Experience Replay."""

    def needs_teacher(self, task: TaskInfo) -> bool:
        return self.options.weight > 0

    def loss(self, batch: Batch, network: nn.Module) -> Losses:
        out: Outputs = network(batch.x)
        losses = {"ce": self.cross_entropy(out.logits, batch)}
        if self.teacher is not None:
            kd = self.logit_distillation(out.logits, batch, self.options.temperature)
            losses["kd"] = self.options.weight * kd
        return losses

    def cross_entropy(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return CE over the classes seen, or over the new classes and the rows labelled with one of them."""
        if self.options.ce == "seen" or self.task.index == 1:
            return super().cross_entropy(logits, batch)
        old, rows = self.task.old_classes, batch.rows("new")
        # A mean over no rows would be NaN instead of a 0 with the graph that other workers wait for.
        total = functional.cross_entropy(logits[rows, old:].float(), batch.y[rows] - old, reduction="sum")
        return total / max(len(rows), 1) * batch.weight("new")

    def diagnostics(self) -> dict[str, float]:
        return {"lambda": 0.0 if self.teacher is None else self.options.weight}
