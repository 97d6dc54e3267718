"""iCaRL: every class is a yes-or-no question, and the old network answers those about old classes.

    L = mean over rows of the sum (or the mean, `icarl.over_classes`) over the N_t classes of BCE(σ(z_j), τ_j),
    τ_j = σ(z°_j) for old j, whatever the row's label; 1[j = y] for new j.

So the label of a memory row of an old class is not used: only the teacher tells what it is. Features are read before
the last ReLU. Nearest-mean classification is left out, as nothing here classifies.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from cl2r.methods.base import Batch, Losses, Outputs, TaskInfo
from cl2r.methods.incremental import Incremental
from cl2r.methods.options import IcarlOptions


class Icarl(Incremental):
    """iCaRL's training; its memory by herding is `memory.selection=herding`."""

    def needs_teacher(self, task: TaskInfo) -> bool:
        """Always: targets of old classes come from it."""
        return True

    def loss(self, batch: Batch, network: nn.Module) -> Losses:
        """The one term: plain BCE in task 1, with old sigmoids as targets later."""
        out: Outputs = network(batch.x)
        bce = functional.binary_cross_entropy_with_logits(out.logits.float(), self.targets(batch))
        classes = self.task.seen_classes if self.config.section(IcarlOptions).over_classes == "sum" else 1
        return {"bce": classes * bce * batch.weight(len(batch.y))}

    def targets(self, batch: Batch) -> Tensor:
        """τ, a row of N_t numbers in [0, 1] for every row."""
        target = functional.one_hot(batch.y, self.task.seen_classes).float()
        if self.teacher is not None:
            target[:, : self.task.old_classes] = torch.sigmoid(self.old_outputs(batch.x).logits.float())
        return target

    def metrics(self) -> dict[str, float]:
        """None: targets have no weight λ."""
        return {}
