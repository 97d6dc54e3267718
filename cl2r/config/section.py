"""The base of every config section: frozen, strict, and each field states from which task on it can matter."""

import ast
import inspect
import textwrap
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo


class Section(BaseModel):
    """A frozen group of fields that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def keyed_from(task: int | None, **limits: Any) -> FieldInfo:
    """Return a field that cannot change the model before `task`; `limits` are pydantic's (ge, gt, le...)."""
    info: FieldInfo = Field(json_schema_extra={"keyed_from": task}, **limits)
    return info


def not_keyed(**limits: Any) -> FieldInfo:
    """Return a field that no model depends on: how to evaluate, where to run."""
    return keyed_from(None, **limits)


def first_task(info: FieldInfo) -> int | None:
    """Return the first task that a field can matter for, None if there is none. Raise TypeError if it does not say."""
    extra = info.json_schema_extra
    if not isinstance(extra, dict) or "keyed_from" not in extra:
        raise TypeError(f"config field {info!r} does not say from which task on it matters")
    task = extra["keyed_from"]
    return task if isinstance(task, int) else None


def docstrings(kind: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings below the fields of a model, on one line each; none if its source is not installed."""
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):  # TypeError: a class that was made at run time
        return {}
    (tree,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, after in zip(tree.body, tree.body[1:], strict=False):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            found[field.target.id] = " ".join(after.value.value.split())
    return found
