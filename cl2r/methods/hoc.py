"""d-Simplex-HOC: the fixed classifier and a contrastive loss towards the features of the previous model.

    t = 1:  L = CE(z, y)
    t > 1:  L = λ_h · CE(z, y) + (1 − λ_h) · mean_i −log( e^{μ s_ii} / Σ_{j: y_j ≠ y_i} e^{μ s_ij} ),

s_ij = cos(φ_t(x_i), φ_{t-1}(x_j)), over all rows of the batch, new and remembered. The positive is not part of the
denominator, so the loss has no lower bound of 0. The released code differs in two ways, each an option: it sets the
similarities of a row's own class to 0 instead of leaving them out, which adds a term e^0 for each (`hoc.mask`), and it
compares every old feature with new ones, s_ji in place of s_ij (`hoc.anchor`).

Several workers contrast their rows with the old features of all of them, so the loss does not depend on how rows are
dealt. With `hoc.anchor=old` the features to gather would be new ones, with gradients; there each worker uses its own
rows only.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from cl2r.batches import Batch
from cl2r.config.builtin import HocOptions
from cl2r.methods.base import Losses, Outputs, TaskInfo
from cl2r.methods.rehearsal import Rehearsal


class Hoc(Rehearsal[HocOptions]):
    """Continues from φ_{t-1}; λ_h = 1 is the fixed classifier without distillation."""

    def needs_teacher(self, task: TaskInfo) -> bool:
        return self.options.weight < 1

    def loss(self, batch: Batch, network: nn.Module) -> Losses:
        out: Outputs = network(batch.x)
        cross_entropy = self.cross_entropy(out.logits, batch)
        if self.teacher is None:
            return {"ce": cross_entropy}
        old, labels = self.old_features(batch.x), batch.y
        if self.options.anchor == "new":
            old, labels = batch.gather(old.float()), batch.gather(labels)
        share = self.options.weight
        contrast = contrastive(out.features, old, batch.y, labels, self.options) * batch.weight()
        return {"ce": share * cross_entropy, "hoc": (1 - share) * contrast}


def contrastive(new: Tensor, old: Tensor, labels: Tensor, old_labels: Tensor, options: HocOptions) -> Tensor:
    """Return the mean over the rows of `new`, 0 if there are none. A row without a row of another class adds 0.

    Row i of `old` is φ_{t-1}(x_i); rows of other workers may follow.
    """
    with torch.autocast(new.device.type, enabled=False):
        similarity = functional.normalize(new.float(), dim=1) @ functional.normalize(old.float(), dim=1).T
        scores = options.mu * (similarity if options.anchor == "new" else similarity.T)
        same = labels[:, None] == old_labels[None, :]
        rows = scores.diagonal()
        if options.mask == "code":
            terms = scores.masked_fill(same, 0).logsumexp(1) - rows
        else:
            alone = same.all(1)  # without negatives the sum is empty, its logarithm and its gradient undefined
            negatives = scores.masked_fill(same & ~alone[:, None], -torch.inf)
            terms = (negatives.logsumexp(1) - rows).masked_fill(alone, 0)
        return terms.sum() / max(len(labels), 1)
