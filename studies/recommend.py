"""Which method, λ_base and memory should I use for my images, so that a gallery survives the next upgrades?

    cl2r recommend --data photos/ --hours 2                            # or: python studies/recommend.py --data photos/
    cl2r recommend --data photos/ --tasks 4 --methods er_fdm lucir --hours 0.5
    cl2r recommend --constraint "reindexed_accuracy >= er - 0.02" --constraint "stored_bytes <= 2e6"
    cl2r plan recommend --data photos/ --hours 2                       # the rounds and their times; starts nothing
    cl2r run results/studies/NAME/recommended.yaml                     # the choice, as it is

A race of three rounds: every method at its defaults for a third of the epochs; the best third of them at several points
of their own settings, then adapters on the best of these; the best candidates with whole training and several seeds
beside ER and CL²R. All choices are made on tuning pairs, the result is reported on other classes. The race is fitted
into `--hours`, which all commands on the study share. It ends with a sentence, a table and recommended.yaml.
Cost on two cores with the default preset: with --hours 0.45, races of all methods took 23 and 27 minutes.
"""

import functools
from pathlib import Path

import click

from cl2r.cli.options import NameType
from cl2r.cli.recommend import recommendation_text
from cl2r.cli.study import Recipe, constraint_option, list_option, study_command
from cl2r.errors import InputError


@study_command(__file__, __doc__)
@click.option("--hours", type=float, metavar="H", help="Time for the whole race.  [default: 2]")
@list_option(
    "--methods", type=NameType("method"), metavar="NAME...", help="Methods besides ER and CL²R (default: all)."
)
@list_option("--adapters", metavar="NAME...", help="Adapters to try (default: all); none for none.")
@click.option("--objective", type=NameType("objective"), metavar="NAME", help="Default: service_accuracy.")
@constraint_option
@click.option("--no-constraints", is_flag=True, help="Rank all candidates, also those that have not learned.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Copy of recommended.yaml."
)
def main(
    hours: float | None,
    methods: tuple[str, ...],
    adapters: tuple[str, ...],
    objective: str | None,
    constraints: dict[str, str] | None,
    no_constraints: bool,
    out: Path | None,
) -> Recipe:
    """Choose who takes part, what counts, and how long it may take."""
    if out is not None and not out.absolute().parent.is_dir():
        raise InputError(f"--out {out}: there is no folder {out.absolute().parent}")
    race = {"hours": hours, "methods": list(methods) or None}
    race["adapters"] = [] if adapters == ("none",) else list(adapters) or None
    search = {"objectives": [objective] if objective else None, "constraints": {} if no_constraints else constraints}
    return Recipe({"race": race, "search": search}, functools.partial(recommendation_text, out=out))


if __name__ == "__main__":
    main.run_program()
