"""iCaRL: every class is a yes-or-no question, and the old network answers those about old classes.

    L = mean over rows of the sum (or the mean, `icarl.over_classes`) over the N_t classes of BCE(σ(z_j), τ_j),
    τ_j = σ(z°_j) for old j, whatever the row's label; 1[j = y] for new j.

So the label of a memory row of an old class is not used: only the teacher tells its class. The classifier has a bias
and reads b(x) after the last ReLU, as published (`head.bias`, `backbone.last_relu`). Without the bias, on centred
features, every class's mean logit is 0, so that its sigmoid cannot learn to say no to most images: the loss stays near
that of guessing. φ is what the classifier reads; published code compares features before the ReLU. Nearest-mean
classification is left out, because nothing here classifies.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from cl2r.batches import Batch
from cl2r.config.builtin import IcarlOptions
from cl2r.methods.base import Losses, Outputs
from cl2r.methods.incremental import Incremental


class Icarl(Incremental[IcarlOptions]):
    """iCaRL's training; its memory by herding is `memory.selection=herding`."""

    keeps_teacher = True

    def loss(self, batch: Batch, network: nn.Module) -> Losses:
        """Return the sums over the new and over the old classes: the labels' part and the old network's part."""
        out: Outputs = network(batch.x)
        bce = functional.binary_cross_entropy_with_logits(out.logits.float(), self.targets(batch), reduction="none")
        classes = 1 if self.options.over_classes == "sum" else self.task.seen_classes
        means = bce.sum(0) / (max(len(batch.y), 1) * classes) * batch.weight()
        old = self.task.old_classes
        return {"bce": means[old:].sum()} | ({"kd": means[:old].sum()} if old else {})

    def targets(self, batch: Batch) -> Tensor:
        """Return τ, N_t numbers in [0, 1] per row."""
        target = functional.one_hot(batch.y, self.task.seen_classes).float()
        if self.teacher is not None:
            target[:, : self.task.old_classes] = torch.sigmoid(self.old_outputs(batch.x).logits.float())
        return target

    def diagnostics(self) -> dict[str, float]:
        return {}  # targets have no weight λ
