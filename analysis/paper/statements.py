"""What the paper's text states about its tables and figures (`reference/paper.yaml`), with checks against runs."""

from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from analysis.paper.items import COMPARED, ITEMS, RATES
from cl2r.config.methods import METHODS
from cl2r.config.section import Section
from cl2r.errors import InputError, nearest
from cl2r.storage.documents import yaml_mapping

RECORDED = (*COMPARED, *(f"{metric}@{rate}" for rate in RATES for metric in COMPARED))  # columns of `runs`
FROM_MATRIX = ("self_test", "cross_test", "mean_BC_t")  # C[T,T], C[T,1], and the mean over t of BC(t)


def _one_of(known: Sequence[str], what: str) -> AfterValidator:
    def check(name: str) -> str:
        if name not in known:
            raise ValueError(f"no {what} {name!r}{nearest(name, known)}")
        return name

    return AfterValidator(check)


def _listed(value: Any) -> Any:
    """Accept one name or number for a list of one."""
    return value if isinstance(value, list) else [value]


Method = Annotated[str, _one_of(tuple(METHODS), "method")]
Metric = Annotated[str, _one_of((*RECORDED, *FROM_MATRIX), "metric")]
Methods = Annotated[tuple[Method, ...], BeforeValidator(_listed), Field(min_length=1)]
Count = Annotated[int, Field(ge=2)]
Size = Annotated[int, Field(ge=0)]
Relation = Literal[">", "<", ">=", "<=", "="]


class Check(Section):
    """Fields of every kind of check."""

    method: Methods
    metric: Annotated[tuple[Metric, ...], BeforeValidator(_listed), Field(min_length=1)]
    tasks: Annotated[tuple[Count, ...], BeforeValidator(_listed)] = ()
    memory: Annotated[tuple[Size, ...], BeforeValidator(_listed)] = ()


class ValueCheck(Check):
    """The metric is `value`, up to its rounding (`within`)."""

    kind: Literal["value"]
    value: float
    within: Annotated[float, Field(gt=0)]


class BoundCheck(Check):
    """The metric, or with `over: lowest` its lowest value over all `tasks`, stands in this relation to `value`."""

    kind: Literal["bound"]
    relation: Relation
    value: float
    over: Literal["each", "lowest"] = "each"


class OrderCheck(Check):
    """The metric is higher than the same metric of each method of `above`."""

    kind: Literal["order"]
    above: Methods


class DifferenceCheck(Check):
    """The metric minus the same of each method of `minus` (with `minus_memory`, if given) is `value` ± `within`."""

    kind: Literal["difference"]
    minus: Methods
    minus_memory: Size | None = None
    value: float
    within: Annotated[float, Field(gt=0)]


class FactorCheck(Check):
    """The metric is more than `factor` times the same metric of method `of`."""

    kind: Literal["factor"]
    of: Method
    factor: Annotated[float, Field(gt=0)]


class TrendCheck(Check):
    """The metric, or its lead over method `minus`, falls or rises between two numbers of tasks or sizes of memory."""

    kind: Literal["trend"]
    minus: Method | None = None
    along: Literal["tasks", "memory"]
    start: Size
    end: Size
    direction: Literal["falls", "rises"]

    @model_validator(mode="after")
    def _one_axis(self) -> "TrendCheck":
        if getattr(self, self.along):
            raise ValueError(f"a trend along {self.along} has start and end instead of {self.along}")
        return self


class NearestZeroCheck(Check):
    """The metric is nearer to 0 than the same metric of each method of `others`."""

    kind: Literal["nearest_zero"]
    others: Methods


AnyCheck = ValueCheck | BoundCheck | OrderCheck | DifferenceCheck | FactorCheck | TrendCheck | NearestZeroCheck
KINDS = ("value", "bound", "order", "difference", "factor", "trend", "nearest_zero")
ABOUT_NUMBERS = ("value", "difference", "factor")  # kinds that can be judged only with the paper's budget


class Statement(Section):
    """One statement of the text."""

    item: Annotated[str, _one_of(tuple(ITEMS), "item")]
    source: str
    says: str
    reading: str | None = None  # how a sentence without a criterion of its own is read
    check: Annotated[AnyCheck, Field(discriminator="kind")]


class Reference(Section):
    """The whole file."""

    groups: dict[str, Methods]  # methods that several statements name, for YAML anchors
    statements: tuple[Statement, ...]


@cache
def paper_statements() -> tuple[Statement, ...]:
    """Return the statements in `reference/paper.yaml`."""
    return read_statements(Path(str(resources.files("analysis") / "reference" / "paper.yaml")))


def read_statements(path: Path) -> tuple[Statement, ...]:
    """Return all statements of a file; raise InputError that names the first fault, its statement and its field."""
    try:
        content = yaml_mapping(path.read_bytes(), path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from error
    try:
        return Reference.model_validate(content).statements
    except ValidationError as error:
        first = error.errors()[0]
        place = [str(part) for part in first["loc"] if part not in KINDS]
        if first["loc"][:1] == ("statements",) and len(place) > 1:
            place[:2] = [f"statement {int(place[1]) + 1}"]
        fault = f"{first['msg'].removeprefix('Value error, ')} (got {first['input']!r})"
        if first["type"] == "extra_forbidden":
            fault = f"unknown key {place.pop()!r}"
        elif first["type"] == "union_tag_invalid":
            kind = str(first["ctx"]["tag"])
            fault = f"no kind {kind!r}{nearest(kind, KINDS)}; there are {', '.join(KINDS)}"
        raise InputError(f"{path}: {'.'.join(place)}: {fault}") from error
