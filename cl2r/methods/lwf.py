"""Learning without Forgetting: the old network's answers on the images at hand stand in for old images.

    L = CE(z, y; J) + w · KD_T(z, z°; old classes),    J = new classes | classes seen,

z° from the whole network of task t-1, KD over all rows, its softmax over the old classes on both sides.
"""

from torch import Tensor, nn
from torch.nn import functional

from cl2r.config import Config
from cl2r.methods.base import Batch, Losses, Outputs, TaskInfo
from cl2r.methods.incremental import Incremental
from cl2r.methods.options import LwfOptions


class Lwf(Incremental):
    """LwF with the softmax of `lwf.ce`; without distillation and over the classes seen it is Experience Replay."""

    def __init__(self, config: Config, channels: int, num_outputs: int) -> None:
        super().__init__(config, channels, num_outputs)
        self.options = config.section(LwfOptions)

    def needs_teacher(self, task: TaskInfo) -> bool:
        """Also without memory; not for a term of weight 0."""
        return self.options.weight > 0

    def loss(self, batch: Batch, network: nn.Module) -> Losses:
        """CE, and from task 2 on w · KD_T."""
        out: Outputs = network(batch.x)
        ce = {"ce": self.cross_entropy(out.logits, batch)}
        if self.teacher is None:
            return ce
        return {**ce, "kd": self.options.weight * self.logit_distillation(out.logits, batch, self.options.temperature)}

    def cross_entropy(self, logits: Tensor, batch: Batch) -> Tensor:
        """Over the classes seen; or over the new ones, by the rows that have one of them as label."""
        if self.options.ce == "seen" or self.task.index == 1:
            return super().cross_entropy(logits, batch)
        old = self.task.old_classes
        rows = (batch.y >= old).nonzero()[:, 0]
        # A mean over no rows would be NaN, and not a 0 that still has the graph other workers wait for.
        total = functional.cross_entropy(logits[rows, old:].float(), batch.y[rows] - old, reduction="sum")
        return total / max(len(rows), 1) * batch.weight(len(rows))

    def metrics(self) -> dict[str, float]:
        """The weight of KD, 0 where nothing is distilled."""
        return {"lambda": 0.0 if self.teacher is None else self.options.weight}
