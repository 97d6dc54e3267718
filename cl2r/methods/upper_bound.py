"""UB, the upper bound: CL²R without its two limits. Every task starts from fresh weights and has all images seen.

    L = CE(z, y; D_1 ∪ … ∪ D_t) + λ_t · FD(rows of old classes),    φ_t starts from fresh weights.

The paper does not say whether FD stays. It does here (`upper_bound`); without it (`cores`) a task knows about earlier
ones only through the fixed classifier, which is CoReS. Cost grows with t: an epoch covers all images so far.
"""

from cl2r.methods.base import TaskData, TaskInfo
from cl2r.methods.rehearsal import Rehearsal


class UpperBound(Rehearsal[None]):
    """M_t is all of D_1..D_{t-1}: the engine provides it (`MethodInfo.memory`)."""

    def begin_task(self, task: TaskInfo, data: TaskData) -> None:
        super().begin_task(task, data)  # keeps φ_{t-1} as teacher
        if task.index > 1:
            self.restart_phi(task)
