"""The rehearsal family: {trainable, fixed} classifier × {none, all, memory} feature distillation.

    L = CE(z, y; T_t) + λ_t · FD(S),    S = ∅ | T_t | M_t.

Trainable and S = ∅ is Experience Replay; fixed and S = M_t is CL²R. All six share backbone, projection, initial weights
and the order of the data, so that two cells differ in exactly what their names say.
"""

from torch import nn

from cl2r.backbones import folded
from cl2r.methods.base import OptionsT
from cl2r.methods.incremental import Incremental, Network
from cl2r.simplex import SimplexClassifier


class Rehearsal(Incremental[OptionsT]):
    """One of the six cells, chosen by `config.method`."""

    def build_classifier(self) -> nn.Module:
        if self.config.method.classifier == "fixed":
            return SimplexClassifier(self.num_outputs, self.config.simplex.scale)
        return super().build_classifier()

    def build_teacher(self) -> nn.Module:
        return folded(Network(self.network.phi, nn.Identity()))  # FD needs no logits
