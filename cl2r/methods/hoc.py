"""d-Simplex-HOC: the fixed classifier and a contrastive loss towards the features of the model before.

    t = 1:  L = CE(z, y)
    t > 1:  L = λ_h · CE(z, y) + (1 − λ_h) · mean_i −log( e^{μ s_ii} / Σ_{j: y_j ≠ y_i} e^{μ s_ij} ),

s_ij = cos(φ_t(x_i), φ_{t-1}(x_j)), over all rows of the batch, new and remembered. The positive is not part of the
denominator, so the loss has no lower bound of 0. The released code differs in two ways, each an option: it sets the
similarities of a row's own class to 0 instead of leaving them out, which adds a term e^0 for each (`hoc.mask`), and it
compares every old feature with new ones, s_ji in place of s_ij (`hoc.anchor`).

Several workers contrast their rows with the old features of all of them, so the loss does not depend on how rows are
dealt. With `hoc.anchor=old` the features to gather would be new ones, with gradients: there each has its own rows only.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from cl2r.methods.base import Batch, Losses, Outputs, TaskInfo
from cl2r.methods.options import HocOptions
from cl2r.methods.rehearsal import Rehearsal


class Hoc(Rehearsal):
    """Goes on from φ_{t-1}; λ_h = 1 is the fixed classifier without distillation."""

    @property
    def options(self) -> HocOptions:
        """The section `hoc`."""
        return self.config.section(HocOptions)

    def needs_teacher(self, task: TaskInfo) -> bool:
        """Unless the contrastive loss counts for nothing."""
        return self.options.weight < 1

    def loss(self, batch: Batch, network: nn.Module) -> Losses:
        """CE, and from task 2 on its convex combination with the contrastive loss."""
        out: Outputs = network(batch.x)
        cross_entropy = self.cross_entropy(out.logits, batch)
        if self.teacher is None:
            return {"ce": cross_entropy}
        old, labels = self._others(batch, self.old_features(batch.x))
        share = self.options.weight
        contrast = contrastive(out.features, old, batch.y, labels, self.options) * batch.weight(len(batch.y))
        return {"ce": share * cross_entropy, "hoc": (1 - share) * contrast}

    def _others(self, batch: Batch, old: Tensor) -> tuple[Tensor, Tensor]:
        """Old features and labels to contrast with; those of the batch come first, in its order."""
        if self.options.anchor == "old":
            return old, batch.y
        return batch.workers.rows_of_all(old.float()), batch.workers.rows_of_all(batch.y)


def contrastive(new: Tensor, old: Tensor, labels: Tensor, old_labels: Tensor, options: HocOptions) -> Tensor:
    """Mean over the rows of `new`; one without a row of another class beside it adds 0 to the sum. No rows: 0.

    Row i of `old` is what φ_{t-1} makes of row i; it may go on with rows of others.
    """
    with torch.autocast(new.device.type, enabled=False):
        similarity = functional.normalize(new.float(), dim=1) @ functional.normalize(old.float(), dim=1).T
        scores = options.mu * (similarity if options.anchor == "new" else similarity.T)
        same = labels[:, None] == old_labels[None, :]
        rows = scores.diagonal()
        if options.mask == "code":
            terms = scores.masked_fill(same, 0).logsumexp(1) - rows
        else:
            others = ~same.all(1)  # without negatives the sum is empty, its logarithm and its gradient undefined
            terms = scores.masked_fill(same, -torch.inf)[others].logsumexp(1) - rows[others]
        return terms.sum() / max(len(labels), 1)
