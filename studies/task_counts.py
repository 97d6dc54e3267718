"""How compatibility falls with the number of tasks: T = 2, 3, 5, 10 × methods (the paper's tables by task count).

    python studies/task_counts.py
    python studies/task_counts.py --methods er cl2r --counts 2 5 --seeds 0 1 2

Nothing is shared between task counts: each has other class lists from the first task on. Methods of one classifier
share their first task. Cost on two cores with the default preset: about 15 minutes a seed; `--plan` says more.
"""

import sys
from pathlib import Path

import pandas as pd

from analysis.tables import comparison_markdown, comparison_table
from cl2r.errors import exit_code
from cl2r.methods.catalog import METHODS
from cl2r.study.command import given, run_command, study_parser
from cl2r.study.spec import Study

FIELD = "scenario.n_tasks"


def table(frames: dict[str, pd.DataFrame], _: Study) -> str:
    """Methods × numbers of tasks."""
    return comparison_markdown(comparison_table(frames["runs"], FIELD))


def main(words: list[str] | None = None) -> int:
    """Run and print."""
    parser = study_parser("task_counts", __doc__)
    parser.add_argument("--methods", nargs="+", choices=METHODS, metavar="NAME")
    parser.add_argument("--counts", nargs="+", type=int, metavar="T")
    args = parser.parse_args(words)
    changes = {"grid": given({"method.name": args.methods, FIELD: args.counts})}
    return run_command(args, Path(__file__).with_suffix(".yaml"), changes, table)


if __name__ == "__main__":
    sys.exit(exit_code("task_counts", main))
