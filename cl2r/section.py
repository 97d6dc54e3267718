"""What every section of a config is made of: frozen, strict, and each field says from which task on it matters."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo


def from_task(task: int, **limits: Any) -> FieldInfo:
    """A field that cannot change the model before `task`; `limits` are pydantic's (ge, gt, le...)."""
    info: FieldInfo = Field(json_schema_extra={"from_task": task}, **limits)
    return info


def never(**limits: Any) -> FieldInfo:
    """A field that no model depends on: how to evaluate, where to run."""
    info: FieldInfo = Field(json_schema_extra={"from_task": None}, **limits)
    return info


class Section(BaseModel):
    """Frozen, and refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def first_task(info: FieldInfo) -> int | None:
    """From which task on a field matters; None: never."""
    extra = info.json_schema_extra
    if not isinstance(extra, dict) or "from_task" not in extra:
        raise TypeError(f"config field {info!r} does not say from which task on it matters")
    task = extra["from_task"]
    return task if isinstance(task, int) else None
