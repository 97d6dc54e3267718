"""An Optuna search over λ_base and memory per class for several task counts, or over any space given in YAML.

    python studies/sweep.py --trials 30                                       # 30 trials of each number of tasks
    python studies/sweep.py --objectives service_recall stored_bytes --sampler nsga2   # a Pareto front
    python studies/sweep.py --constraint "stored_bytes <= 2e6" --constraint "AC >= er + 0.1"
    python studies/sweep.py --spec my_space.yaml --pruner halving --warm-start NAME
    python studies/sweep.py --trials 60 --name same                           # later: 30 more trials
    optuna-dashboard results/studies/NAME/optuna.journal

The space is in sweep.yaml. The default maximises service accuracy among the trials whose last model has learned: its
re-indexed accuracy must be at least that of ER minus 0.01. Each number of tasks is searched and ranked by itself.
Trials are judged on tuning pairs, averaged over seeds. The best ones are trained again with further seeds and compared
with ER and the preset's settings on the report pairs, which no choice has seen. First tasks are shared: n trials with
one T and one seed train 1 + n·(T−1) links. Cost on two cores with the default preset: about half a minute per trial.
"""

from pathlib import Path

import click

from cl2r.cli.options import NameType
from cl2r.cli.study import Recipe, constraint_option, list_option, study_command
from cl2r.errors import InputError


@study_command(__file__, __doc__)
@click.option("--spec", type=click.Path(path_type=Path), metavar="YAML", help="Another space or search.")
@click.option("--trials", type=int, metavar="N", help="Trials of each number of tasks, earlier commands included.")
@list_option(
    "--objectives", type=NameType("objective"), metavar="NAME...", help="E.g. service_accuracy, BC, stored_bytes."
)
@constraint_option
@click.option("--no-constraints", is_flag=True, help="Rank all trials, also those that have not learned.")
@click.option("--sampler", type=click.Choice(["tpe", "nsga2", "random"]))
@click.option("--pruner", type=click.Choice(["none", "median", "halving", "hyperband"]), help="Stop poor trials early.")
@click.option("--warm-start", metavar="STUDY", help="Learn from the trials of an earlier study.")
def main(
    spec: Path | None,
    trials: int | None,
    objectives: tuple[str, ...],
    constraints: dict[str, str] | None,
    no_constraints: bool,
    sampler: str | None,
    pruner: str | None,
    warm_start: str | None,
) -> Recipe:
    """Choose the space and how to search it."""
    if no_constraints and constraints:
        raise InputError("give --constraint or --no-constraints, not both")
    search = {
        "trials": trials,
        "objectives": list(objectives) or None,
        "constraints": {} if no_constraints else constraints,
        "sampler": sampler,
        "pruner": pruner,
        "warm_start": warm_start,
    }
    return Recipe({"search": search}, file=spec)


if __name__ == "__main__":
    main.run_program()
