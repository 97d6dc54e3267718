"""An Optuna search over λ_base, memory per class and task counts, or over any other fields given as a space in YAML.

    python studies/sweep.py --trials 30
    python studies/sweep.py --objectives BC stored_bytes --sampler nsga2      # a Pareto front
    python studies/sweep.py --spec my_space.yaml --early-stopping
    python studies/sweep.py --trials 60 --name same                           # later: 30 more trials
    optuna-dashboard results/studies/NAME/optuna.journal

The space is in sweep.yaml. Trials are judged on tuning pairs, averaged over seeds; the best ones are shown with their
values on the report pairs, which no choice has seen. First tasks are shared: n trials with one T and one seed train
1 + n·(T−1) links. Cost on two cores with the default preset: about half a minute per trial.
"""

from pathlib import Path

import click

from cl2r.cli.options import NameType
from cl2r.cli.study import Recipe, list_option, points_table, study_command


@study_command(__file__, __doc__)
@click.option("--spec", type=click.Path(path_type=Path), metavar="YAML", help="Another space or search.")
@click.option("--trials", type=int, metavar="N", help="Number of trials, those of earlier commands included.")
@list_option(
    "--objectives", type=NameType("objective"), metavar="NAME...", help="E.g. BC, mean_accuracy, stored_bytes, seconds."
)
@click.option("--sampler", type=click.Choice(["tpe", "nsga2", "random"]))
@click.option("--early-stopping", is_flag=True, default=None, help="Stop trials whose BC(t) is poor.")
def main(
    spec: Path | None, trials: int | None, objectives: tuple[str, ...], sampler: str | None, early_stopping: bool | None
) -> Recipe:
    """Choose the space and how to search it."""
    search = {"trials": trials, "objectives": list(objectives) or None, "sampler": sampler}
    return Recipe(points_table, {"search": {**search, "early_stopping": early_stopping}}, spec)


if __name__ == "__main__":
    main.run_program()
