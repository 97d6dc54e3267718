"""What a sweep optimised, and the columns of `runs` that say how well."""

from analysis.study import Study
from analysis.trials import COSTS


def objectives(study: Study) -> list[str]:
    """The objectives by the specification."""
    return [str(name) for name in (study.specification.get("search") or {}).get("objectives") or ["BC"]]


def objective_column(name: str) -> str:
    """What trials are judged by: a cost, or a metric on the tuning pairs."""
    return COSTS.get(name, f"tuning_{name}")
