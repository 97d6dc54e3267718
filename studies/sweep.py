"""A search over λ_base, memory per class and task counts, or any other field given as a space in YAML, by Optuna.

    python studies/sweep.py --trials 30
    python studies/sweep.py --objectives BC stored_bytes --sampler nsga2      # a Pareto front
    python studies/sweep.py --spec my_space.yaml --early-stopping
    python studies/sweep.py --trials 60 --name same                           # later: 30 more trials
    optuna-dashboard results/studies/NAME/optuna.journal

The space is that of sweep.yaml. Trials are judged on tuning pairs, seeds averaged; the best ones are shown with their
values on the report pairs, which no choice has seen. First tasks are shared: n trials with one T and one seed train
1 + n·(T−1) links. Cost on two cores with the default preset: about half a minute a trial.
"""

import sys
from pathlib import Path

from cl2r.errors import exit_code
from cl2r.study.command import given, run_command, study_parser
from cl2r.study.custom import sweep_table
from cl2r.study.spec import OBJECTIVES

SPEC = Path(__file__).with_suffix(".yaml")


def main(words: list[str] | None = None) -> int:
    """Search and print."""
    parser = study_parser("sweep", __doc__)
    parser.add_argument("--spec", type=Path, default=SPEC, metavar="YAML", help="another space or search")
    parser.add_argument("--trials", type=int, metavar="N")
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, metavar="NAME", help=", ".join(OBJECTIVES))
    parser.add_argument("--sampler", choices=["tpe", "nsga2", "random"])
    parser.add_argument("--early-stopping", action="store_true", default=None, help="stop trials whose BC(t) is poor")
    args = parser.parse_args(words)
    names = ("trials", "objectives", "sampler", "early_stopping")
    search = given({name: getattr(args, name) for name in names})
    return run_command(args, args.spec, {"search": search}, sweep_table)


if __name__ == "__main__":
    sys.exit(exit_code("sweep", main))
