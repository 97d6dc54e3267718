"""Which runs the tables and plots of studies/results/which-method-when.md show: its regimes, methods and seeds."""

from collections.abc import Iterable

import pandas as pd

from analysis.matrices import bc_by_task
from analysis.study import Study

CELLS = ("er", "er_fdm", "fixed", "cl2r")
REGIMES = {
    "equal": "ten equal tasks",
    "equal_centred": "ten equal tasks, centred",
    "half_first": "half of the classes first",
    "half_first_centred": "half of the classes first, centred",
}
"""Titles of the variants with all tasks and three seeds."""
LONG = {
    "epochs_70": "ten equal tasks, 70 epochs",
    "epochs_70_centred": "ten equal tasks, 70 epochs, centred",
}
"""Titles of the variants with all tasks and the paper's epochs; the same with 14 are `equal` and `equal_centred`."""


def of_variant(study: Study, variant: str, method: str | None = None) -> pd.DataFrame:
    """Return the runs of a variant, or those of one of its methods, by seed."""
    runs = study.runs[study.runs["variant"] == variant]
    return (runs if method is None else runs[runs["method.name"] == method]).set_index("seed").sort_index()


def shared_seeds(study: Study, *variants: str, methods: Iterable[str] = CELLS) -> list[int]:
    """Return the seeds that all methods have in all of these variants."""
    seeds = [set(of_variant(study, variant, method).index) for variant in variants for method in methods]
    return sorted(set.intersection(*seeds))


def bc_points(study: Study) -> pd.DataFrame:
    """Return BC(t) of the runs with ten equal tasks: centred, method, seed, x = t, y = BC(t)."""
    found = []
    for centred in (False, True):
        for method in CELLS:
            runs = of_variant(study, "equal_centred" if centred else "equal", method)["run"]
            curves = bc_by_task(study.matrix[study.matrix["run"].isin(runs)])
            seeds = curves["run"].map({run: seed for seed, run in runs.items()})
            found.append(
                pd.DataFrame({"seed": seeds, "x": curves["t"], "y": curves["BC"]}).assign(
                    centred=centred, method=method
                )
            )
    return pd.concat(found, ignore_index=True)
