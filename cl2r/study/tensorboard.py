"""Scalars of a run for TensorBoard: one small event file per finished task."""

import math
from numbers import Real
from typing import Any

from tensorboardX import SummaryWriter
from tensorboardX.proto.summary_pb2 import Summary

from cl2r.storage.path import StoragePath


def write_task(
    folder: StoragePath, task: int, epochs_before: int, curves: list[dict[str, Any]], scalars: dict[str, float]
) -> None:
    """Write epochs as `train/<key>`, counted over the whole run, and values of the task as `task/<name>`.

    Values that are not numbers (the name of a stage, NaN) are left out. Writing a task again replaces its file.
    """
    # The writer names its file by the second and overwrites: two tasks within one second need different names.
    suffix = f".task{task:04d}"
    for former in folder.list(f"events.*{suffix}"):
        former.unlink(missing_ok=True)
    with folder.staging() as here, SummaryWriter(str(here), filename_suffix=suffix) as writer:
        for step, row in enumerate(curves, start=epochs_before + 1):
            _add(writer, step, "train", row)
        _add(writer, task, "task", scalars)


def _add(writer: SummaryWriter, step: int, group: str, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, Real) and not math.isnan(value):
            # Not add_scalar, which would turn `BC(t)` into `BC_t_`.
            scalar = Summary.Value(tag=f"{group}/{name}", simple_value=float(value))
            writer.file_writer.add_summary(Summary(value=[scalar]), step)
